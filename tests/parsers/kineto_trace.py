"""Small Kineto traces, put together event by event (times are microseconds), and the one record
that a test is about."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfctl.parsers.kineto import events as kineto_events
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.parsers.kineto.events import Events
from perfctl.parsers.kineto.stream import Event as StreamEvent
from perfctl.records.report import Kernel, Operation, Report

Event = dict[str, Any]


def event(
    category: object,
    name: object,
    ts: object,
    dur: object = None,
    *,
    process: object = 1,
    thread: object = 1,
    **args: Any,
) -> Event:
    """One complete event; without ``dur`` where that is None, and with those of ``args`` that are
    not None."""
    given = {key.replace("_", " "): value for key, value in args.items() if value is not None}
    made = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": ts,
        "args": given,
    }
    return made if dur is None else {**made, "dur": dur}


def operation(
    name: str,
    ts: object,
    dur: object,
    external: object = None,
    *,
    thread: object = 1,
    process: object = 1,
    number: object = None,
    forward: object = None,
) -> Event:
    """``number``: autograd's sequence number; ``forward``: the thread of the forward side, for
    backward operations."""
    args = {"External id": external, "Sequence number": number, "Fwd thread id": forward}
    return event("cpu_op", name, ts, dur, process=process, thread=thread, **args)


def annotation(
    name: str, ts: object, dur: object, external: object = None, *, thread: object = 1
) -> Event:
    return event("user_annotation", name, ts, dur, thread=thread, **{"External id": external})


def module(name: str, ts: object, dur: object) -> Event:
    return event("python_function", f"nn.Module: {name}", ts, dur)


def launch(
    ts: object, correlation: object, *, thread: object = 1, category: str = "cuda_runtime"
) -> Event:
    return event(category, "cudaLaunchKernel", ts, 1, thread=thread, correlation=correlation)


def kernel(
    name: str,
    ts: object,
    dur: object,
    external: object = None,
    correlation: object = None,
    **args: Any,
) -> Event:
    given = {"External id": external, "correlation": correlation, **args}
    return event("kernel", name, ts, dur, process=0, thread=7, **given)


def collect(events: Sequence[object]) -> Events:
    """What one pass over these elements of ``traceEvents`` leaves."""
    text = json.dumps([event for event in events if isinstance(event, dict)])
    block = msgspec.json.decode(text, type=list[StreamEvent])
    return kineto_events.collect([block])


def read(folder: Path, *events: Event, **metadata: Any) -> Report:
    """The report of a trace of these events."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}))
    return kineto_trace.parse(path)


def the_operation(found: Report, name: str, **where: str | None) -> Operation:
    (only,) = [
        op
        for op in found.operations
        if op.name == name and all(getattr(op, k) == v for k, v in where.items())
    ]
    return only


def the_kernel(found: Report, name: str) -> Kernel:
    (only,) = [entry for entry in found.kernels if entry.name == name]
    return only
