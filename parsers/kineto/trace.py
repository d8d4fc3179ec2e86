"""Kineto traces: the Chrome-format JSON that torch.profiler writes, plain or gzipped, from 2021 to now.

Times: ``ts`` and ``dur`` are microseconds (whole until 2023, with three decimals since), whatever
``displayTimeUnit`` says; they become integer ns. Where ``baseTimeNanoseconds`` is given they count from
there, and it is kept as the environment fact ``clock_base_ns``.

A kernel belongs to the CPU span that launched it: the one with its External id, if that one was running
when the launch call (same correlation) began, else the innermost one running then. External id alone
is not enough: in 2023 CPU operations and GPU events numbered theirs independently.

A span belongs to the layer whose range it lies in; where no range names a layer, to the module whose call
(python_function, with_stack or with_modules) it lies in. Backward operations outside of all these take the
layer of the forward operation with the same sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfctl.parsers.kineto import events as kineto_events
from perfctl.parsers.kineto import nesting as kineto_backward
from perfctl.parsers.kineto.events import Events, collect
from perfctl.parsers.kineto.facts import METADATA, describe
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.records import Launches, copies, kernels, operations, ranges, steps
from perfctl.parsers.text.json import JsonStream, peek
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

_OF_KINETO = ('"schemaVersion"', '"deviceProperties"', '"distributedInfo"', '"baseTimeNanoseconds"')


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is a JSON object with "traceEvents", or with Kineto's members where job metadata come first."""
    text = peek(head).lstrip()
    return text.startswith("{") and ('"traceEvents"' in text or sum(word in text for word in _OF_KINETO) >= 2)


def parse(path: Path) -> Report:
    """Read one trace. Raises ReportError when it is cut off, broken, or not a trace of torch.profiler."""
    stream = JsonStream(path, "torch", "traceEvents")
    metadata: dict[str, Any] = {}
    events = collect(_events(stream, metadata))
    if not events.known and "schemaVersion" not in metadata:
        raise ReportError(
            path,
            "torch",
            "it is a Chrome trace without any event of torch.profiler (cpu_op, kernel, ...)",
            "Pass a trace that torch.profiler's export_chrome_trace wrote",
        )
    return _report(path, events, metadata, stream.repaired)


def _report(path: Path, events: Events, metadata: dict[str, Any], repaired: bool) -> Report:
    launches = Launches(events)
    nesting = Nesting(events, launches.probes)
    launches.resolve(nesting)
    kineto_backward.assign_layers(events, nesting)
    found_ranges = ranges(events, nesting)
    found_operations = operations(events, nesting, launches)
    found_copies = copies(events, nesting, launches)
    found_kernels = kernels(events, nesting, launches)
    facts = describe(events, metadata, found_kernels, repaired)
    return Report(
        tool="torch",
        path=path,
        form=facts.form,
        tool_version=facts.tool_version,
        devices=facts.devices,
        environment=facts.environment,
        kernels=found_kernels,
        copies=found_copies,
        ranges=found_ranges,
        operations=found_operations,
        steps=steps(found_ranges),
        memory=facts.memory,
        gaps=facts.gaps,
        diagnostics=(*facts.diagnostics, *kineto_events.diagnostics(events.unknown)),
        started_at=facts.started_at,
        duration_ns=facts.duration_ns,
    )


def _events(stream: JsonStream, metadata: dict[str, Any]) -> Iterator[Any]:
    """Yield the events and collect the metadata that perfctl keeps. Other metadata may name jobs, users and hosts."""
    for key, value in stream.members():
        if key == "traceEvents":
            yield value
        elif key in METADATA:
            metadata[key] = value
