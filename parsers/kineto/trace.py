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
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfctl.parsers.kineto.events import collect
from perfctl.parsers.kineto.facts import METADATA, describe
from perfctl.parsers.kineto.nesting import Nesting, assign_layers
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
        reason = "it is a Chrome trace without any event of torch.profiler (cpu_op, kernel, ...)"
        raise ReportError(path, "torch", reason, "Pass a trace that torch.profiler's export_chrome_trace wrote")
    launches = Launches(events)
    nesting = Nesting(events, launches.probes)
    launches.resolve(nesting)
    assign_layers(events, nesting)
    found_ranges = ranges(events, nesting)
    found_kernels = kernels(events, nesting, launches)
    return replace(
        describe(path, events, metadata, found_kernels, stream.repaired),
        kernels=found_kernels,
        copies=copies(events, nesting, launches),
        ranges=found_ranges,
        operations=operations(events, nesting, launches),
        steps=steps(found_ranges),
    )


def _events(stream: JsonStream, metadata: dict[str, Any]) -> Iterator[Any]:
    """Yield the events and collect the metadata that perfctl keeps. Other metadata may name jobs, users and hosts."""
    for key, value in stream.members():
        if key == "traceEvents":
            yield value
        elif key in METADATA:
            metadata[key] = value
