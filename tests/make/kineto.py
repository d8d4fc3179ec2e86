"""Small Kineto traces, put together event by event (times are microseconds): also those of a server
that captures a graph and launches it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfctl.parsers.kineto import events as kineto_events
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.parsers.kineto.events import SortedEvents
from perfctl.parsers.kineto.stream import TraceEvent as StreamEvent
from perfctl.records.report import Report

Event = dict[str, Any]
STEP = "step[DECODE bs=8]"
MADE = ("embed", "gemm", "norm", "gemm", "norm")
"""Kernels of one graph, in the order of its launches."""
WHERE = ("Embedding_0", "Block_0.Linear_0", "Block_0", "Block_1.Linear_1", "Block_1")


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


def collect(events: Sequence[object]) -> SortedEvents:
    """What one pass over these elements of ``traceEvents`` leaves."""
    text = json.dumps([event for event in events if isinstance(event, dict)])
    block = msgspec.json.decode(text, type=list[StreamEvent])
    return kineto_events.classify_events([block])


def written(path: Path, *events: Event, **metadata: Any) -> Path:
    """The trace of these events, as a file."""
    path.write_text(json.dumps({"schemaVersion": 1, **metadata, "traceEvents": events}))
    return path


def read(folder: Path, *events: Event, **metadata: Any) -> Report:
    """The report of a trace of these events."""
    return kineto_trace.parse(written(folder / "trace.json", *events, **metadata))


def model_calls() -> list[Event]:
    """The calls of a model of two blocks, Block_n of Linear_n and a norm of its own."""
    return [
        module("Model_0", 15, 60),
        module("Embedding_0", 19, 5),
        module("Block_0", 29, 15),
        module("Linear_0", 29, 5),
        module("Block_1", 49, 15),
        module("Linear_1", 49, 5),
    ]


def capturing(
    path: Path, names: Sequence[str | None] = MADE, *, size: int = 8, nodes: bool = False
) -> Path:
    """A capture of the model of ``model_calls``; launch n is at 20 + 10 n."""
    product = [operation("aten::mm", 29, 4, 1), operation("aten::mm", 49, 4, 2)]
    for one in product:
        one["args"] |= {"Input Dims": [[8, 16], [16, 32]], "Input type": ["c10::BFloat16"] * 2}
    calls = [
        event(
            "cuda_runtime",
            "cudaLaunchKernel",
            20 + 10 * at,
            1,
            correlation=100 + at,
            kernel=name,
            graph_node_id=7 + at if nodes else None,
        )
        for at, name in enumerate(names)
    ]
    ends = [
        event("cuda_runtime", f"cudaStream{what}Capture", at, 1)
        for what, at in (("Begin", 12), ("End", 80))
    ]
    for number, one in enumerate(ends):
        one["args"]["correlation"] = 90 + number
    before = event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=99, kernel="warm-up")
    return written(
        path,
        annotation(f"capture_{size}_FULL", 0, 90),
        before,
        *ends,
        *model_calls(),
        *product,
        *calls,
    )


def executing(
    path: Path, names: Sequence[str] = MADE, *, replays: int = 1, nodes: bool = False
) -> Path:
    events: list[Event] = []
    for number in range(replays):
        begin, join = 1000 * number, 50 + number
        events += [
            annotation(STEP, begin, 500),
            event("cuda_runtime", "cudaGraphLaunch", begin + 1, 1, correlation=join),
        ]
        for at, name in enumerate(names):
            events.append(
                kernel(
                    name,
                    begin + 10 + 20 * at,
                    10,
                    correlation=join,
                    graph_id=1 if nodes else None,
                    graph_node_id=7 + at if nodes else None,
                )
            )
    return written(path, *events)


def eager(
    path: Path, names: Sequence[str] = MADE, *, blocks: int = 1, width: int = 32, times: int = 1
) -> Path:
    """The same model without graphs: every kernel has a launch of its own, under its module."""
    events: list[Event] = [annotation(STEP, 0, 500)]
    for at, name in enumerate(names):
        events.append(
            event("cuda_runtime", "cudaLaunchKernel", 20 + 10 * at, 1, correlation=100 + at)
        )
        events.append(
            kernel(
                name,
                200 + 20 * at,
                10,
                correlation=100 + at,
                grid=[blocks, 1, 1],
                block=[width, 1, 1],
            )
        )
    return written(path, *events, *model_calls())
