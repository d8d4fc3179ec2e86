"""One step of a run as Chrome trace events, which Perfetto and chrome://tracing show.

Kernels and copies stand by device and stream, ranges by thread; clicking one shows its layer, direction and launch.
Times in the file are microseconds from the beginning of the step, to the nanosecond; ``otherData`` says where that
is on the report's own clock. Operations are sums over a run and have no place in time: they are not in the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run

HOST = 0
"""Process number of the host's threads; a GPU's is its ordinal + 1."""
_LOOSE = 10_000_000
"""Added to a thread's number for its ranges that need not nest, which have a line of their own."""


def steps(run: Run) -> list[int]:
    """Measured steps of which this run has kernels or ranges with a place in time."""
    found = {kernel.step for kernel in run.report.kernels if kernel.start_ns is not None}
    return sorted({step for step in found | {span.step for span in run.report.ranges} if step is not None})


def trace(run: Run, step: int | None) -> dict[str, Any]:
    """The trace of one step; of the whole capture where ``step`` is None.

    Raises UsageError when the run has no such step, PerfctlError when it has nothing with a place in time.
    """
    known = steps(run)
    if step is not None and step not in known:
        none = "It has none: leave --step out for the whole capture"
        raise UsageError(f"run {run.id} has no step {step}", f"It has {', '.join(map(str, known))}" if known else none)
    kernels = [kernel for kernel in run.report.kernels if kernel.start_ns is not None]
    ranges, copies = list(run.report.ranges), [copy for copy in run.report.copies if copy.start_ns is not None]
    if step is not None:
        spans: list[Kernel | Range] = [*kernels, *ranges]
        mine = [item for item in spans if item.step == step]
        begin = min(item.start_ns or 0 for item in mine)
        end = max((item.start_ns or 0) + int(item.duration_ns or 0) for item in mine)
        kernels = [k for k in kernels if k.step == step or (k.step is None and begin <= (k.start_ns or 0) < end)]
        ranges = [span for span in ranges if span.step == step or _inside(span, begin, end)]
        copies = [copy for copy in copies if begin <= (copy.start_ns or 0) < end]
    placed: list[Kernel | Range | Copy] = [*kernels, *ranges, *copies]
    starts = [item.start_ns for item in placed if item.start_ns is not None]
    if not starts:
        text = f"run {run.id} ({run.profiler}) has nothing with a place in time"
        raise PerfctlError(text, "ncu keeps no start times; trace a run of 'perfctl nsys' or 'perfctl torch'")
    zero = min(starts)
    events = [*_range_events(ranges, zero), *_kernel_events(run, kernels, zero), *_copy_events(copies, zero)]
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {
        "schemaVersion": 1, "displayTimeUnit": "ns", "otherData": _about(run, step, zero),
        "traceEvents": [*_names(run, events), *ordered],
    }  # fmt: skip


def _inside(span: Range, begin: int, end: int) -> bool:
    """A range without a step that lies in this one whole; ranges around many steps are left out."""
    return span.step is None and begin <= span.start_ns and span.start_ns + (span.duration_ns or 0) <= end


def _range_events(ranges: Sequence[Range], zero: int) -> Iterator[dict[str, Any]]:
    for span in ranges:
        thread = (span.thread or 0) + (0 if span.kind == "push_pop" else _LOOSE)
        facts = ("layer", "direction", "step", "phase", "domain", "depth")
        args = _known(**{name: getattr(span, name) for name in facts})
        event = {"name": span.name, "cat": "user_annotation", "pid": HOST, "tid": thread, "args": args}
        yield event | _times(span.start_ns, None if span.kind == "mark" else span.duration_ns, zero)


def _kernel_events(run: Run, kernels: Sequence[Kernel], zero: int) -> Iterator[dict[str, Any]]:
    names = {span.number: span.name for span in run.report.ranges}
    for kernel in kernels:
        shared = [part for part in (kernel.static_shared_bytes, kernel.dynamic_shared_bytes) if part is not None]
        args = _known(
            device=kernel.device_index, stream=kernel.stream, layer=kernel.layer, direction=kernel.direction,
            layer_source=kernel.layer_source, step=kernel.step, launch=kernel.launch,
            range=names.get(kernel.range_number) if kernel.range_number is not None else None,
            grid=_three(kernel.grid_x, kernel.grid_y, kernel.grid_z),
            block=_three(kernel.block_x, kernel.block_y, kernel.block_z),
        ) | _known(**{"registers per thread": kernel.registers, "shared memory": sum(shared) if shared else None})  # fmt: skip
        device, stream = kernel.device_index or 0, kernel.stream or 0
        event = {"name": kernel.name, "cat": "kernel", "pid": device + 1, "tid": stream, "args": args}
        yield event | _times(kernel.start_ns or 0, kernel.duration_ns, zero)


def _copy_events(copies: Sequence[Copy], zero: int) -> Iterator[dict[str, Any]]:
    for copy in copies:
        memset = copy.kind == "memset"
        name, kind = ("Memset (Device)", "gpu_memset") if memset else (f"Memcpy {copy.kind}", "gpu_memcpy")
        args = _known(device=copy.device_index, stream=copy.stream, bytes=copy.bytes, layer=copy.layer)
        event = {"name": name, "cat": kind, "pid": (copy.device_index or 0) + 1, "tid": copy.stream or 0, "args": args}
        yield event | _times(copy.start_ns or 0, copy.duration_ns, zero)


def _times(start: int, duration: float | None, zero: int) -> dict[str, Any]:
    """An unknown duration is drawn as an instant: 0 would claim that it took no time."""
    if duration is None:
        return {"ph": "i", "s": "t", "ts": _us(start - zero)}
    return {"ph": "X", "ts": _us(start - zero), "dur": _us(duration)}


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 3)


def _three(x: int | None, y: int | None, z: int | None) -> list[int] | None:
    return None if x is None or y is None or z is None else [x, y, z]


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _names(run: Run, events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The labels of processes and threads in Perfetto."""

    def label(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
        return {"ph": "M", "pid": process, "tid": thread, "ts": 0, "name": kind, "args": {"name": name}}

    places = sorted({(event["pid"], event["tid"]) for event in events})
    devices = {device.index: device.name for device in run.report.devices if device.kind == "gpu"}
    for process in dict.fromkeys(process for process, _ in places):
        gpu = devices.get(process - 1)
        name = "host" if process == HOST else f"GPU {process - 1}" + (f": {gpu}" if gpu else "")
        yield label("process_name", process, 0, name)
    for process, thread in places:
        name = f"stream {thread}" if process != HOST else f"thread {thread}"
        if process == HOST and thread >= _LOOSE:
            name = f"thread {thread - _LOOSE}, ranges that need not nest"
        yield label("thread_name", process, thread, name)


def _about(run: Run, step: int | None, zero: int) -> dict[str, Any]:
    names = ("profiler", "profiler_version", "workload", "batch_size", "mode", "precision", "origin", "artifact_sha256")
    facts = _known(run=run.id, step=step, **{name: getattr(run, name) for name in names})
    gaps = (gap for gap in run.report.gaps if gap.quantity in ("kernel", "copy", "range"))
    missing = "; ".join(f"{gap.quantity}: {gap.reason}" for gap in gaps)
    return {name: str(value) for name, value in facts.items()} | {"zero_ns": str(zero), "missing": missing}
