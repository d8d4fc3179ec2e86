"""One step of a run as Chrome trace events, which Perfetto and chrome://tracing show.

Kernels and copies stand by device and stream, ranges and operators by thread, readings of a device
as counters; an arrow leads from the range around a launch to its kernel. Times in the file are
microseconds from the beginning of the step, to the nanosecond; ``otherData`` says where that is on
the report's own clock, and what is not in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.records.report import Copy, Kernel, OpCall, Range, Sample
from perfctl.records.run import Run

HOST = 0
"""Process number of the host's threads; a GPU's is its ordinal + 1."""
_LOOSE = 10_000_000
"""Added to a thread's number for its ranges that need not nest, which have a line of their own."""
_OVERLAPPING = 100_000_000
"""Added for each further line of a stream or thread, where bars overlap without one being inside
the other."""
_UNKNOWN = 9_999
"""Process number of readings that do not say which GPU they are of."""
_COUNTERS = (
    ("gpu_utilisation", "GPU utilisation", "%", 100),
    ("memory_used_bytes", "memory used", "bytes", 1),
    ("power_w", "power", "W", 1),
    ("temperature_c", "temperature", "°C", 1),
    ("sm_clock_hz", "SM clock", "Hz", 1),
    ("memory_clock_hz", "memory clock", "Hz", 1),
    ("process_memory_bytes", "memory used by the process", "bytes", 1),
    ("process_utilisation", "GPU use of the process", "%", 100),
    ("allocated_bytes", "PyTorch allocated", "bytes", 1),
    ("reserved_bytes", "PyTorch reserved", "bytes", 1),
    ("host_cpu", "CPU of the processes", "cores", 1),
    ("host_memory_bytes", "memory of the processes", "bytes", 1),
)
"""Field of Sample, what its counter is called, unit, units in one of the field."""


class Counted(NamedTuple):
    """Events of a trace, by what they are of."""

    kernels: int
    copies: int
    ranges: int
    operators: int
    readings: int
    arrows: int


def steps(run: Run) -> list[int]:
    """Measured steps of which this run has kernels or ranges with a place in time."""
    found = {kernel.step for kernel in run.report.kernels if kernel.start_ns is not None}
    return sorted(
        {step for step in found | {span.step for span in run.report.ranges} if step is not None}
    )


def trace(
    run: Run, step: int | None, operators: Iterable[OpCall] = ()
) -> tuple[dict[str, Any], Counted]:
    """The trace of one step, and what is in it; of the whole capture where ``step`` is None.
    ``operators``: of the run.

    Raises UsageError when the run has no such step, PerfctlError when it has nothing with a place
    in time.
    """
    known = steps(run)
    if step is not None and step not in known:
        none = "It has none: leave --step out for the whole capture"
        raise UsageError(
            f"run {run.id} has no step {step}",
            f"It has {', '.join(map(str, known))}" if known else none,
        )
    kernels = [kernel for kernel in run.report.kernels if kernel.start_ns is not None]
    ranges, copies = (
        list(run.report.ranges),
        [copy for copy in run.report.copies if copy.start_ns is not None],
    )
    calls = [call for call in operators if call.start_ns is not None]
    if step is not None:
        spans: list[Kernel | Range] = [*kernels, *ranges]
        mine = [item for item in spans if item.step == step]
        begin = min(item.start_ns or 0 for item in mine)
        end = max((item.start_ns or 0) + int(item.duration_ns or 0) for item in mine)
        kernels = [
            k
            for k in kernels
            if k.step == step or (k.step is None and begin <= (k.start_ns or 0) < end)
        ]
        ranges = [span for span in ranges if span.step == step or _inside(span, begin, end)]
        copies = [copy for copy in copies if begin <= (copy.start_ns or 0) < end]
        calls = [
            c
            for c in calls
            if c.step == step or (c.step is None and begin <= (c.start_ns or 0) < end)
        ]
    placed: list[Kernel | Range | Copy | OpCall] = [*kernels, *ranges, *copies, *calls]
    spans_ns = [
        (item.start_ns, item.start_ns + int(item.duration_ns or 0))
        for item in placed
        if item.start_ns is not None
    ]
    if not spans_ns:
        text = f"run {run.id} ({run.profiler}) has nothing with a place in time"
        raise PerfctlError(
            text, "ncu keeps no start times; trace a run of 'perfctl nsys' or 'perfctl torch'"
        )
    zero, last = min(start for start, _ in spans_ns), max(end for _, end in spans_ns)
    samples = [sample for sample in run.report.samples if zero <= sample.at_ns <= last]
    of_ranges, of_kernels = (
        list(_range_events(ranges, zero)),
        list(_kernel_events(run, kernels, zero)),
    )
    bars = [*of_ranges, *_operator_events(calls, zero), *of_kernels, *_copy_events(copies, zero)]
    _nest(bars)
    arrows = list(
        _arrows(zip(ranges, of_ranges, strict=True), zip(kernels, of_kernels, strict=True))
    )
    events = [*bars, *_reading_events(samples, zero), *arrows]
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))
    content = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "otherData": _about(run, step, zero, len(samples)),
        "traceEvents": [*_names(run, events), *ordered],
    }
    return content, Counted(
        len(kernels), len(copies), len(ranges), len(calls), len(samples), len(arrows) // 2
    )


def _inside(span: Range, begin: int, end: int) -> bool:
    """A range without a step that lies in this one whole; ranges around many steps are left out."""
    return (
        span.step is None
        and begin <= span.start_ns
        and span.start_ns + (span.duration_ns or 0) <= end
    )


def _range_events(ranges: Sequence[Range], zero: int) -> Iterator[dict[str, Any]]:
    facts = ("layer", "direction", "step", "phase", "domain", "depth")
    for span in ranges:
        thread = (span.thread or 0) + (0 if span.kind == "push_pop" else _LOOSE)
        args = _known(**{name: getattr(span, name) for name in facts}) | _known(
            **{"time of its GPU work (ns)": span.gpu_ns}
        )
        event = {
            "name": span.name,
            "cat": "user_annotation",
            "pid": HOST,
            "tid": thread,
            "args": args,
        }
        yield event | _times(span.start_ns, None if span.kind == "mark" else span.duration_ns, zero)


def _operator_events(calls: Sequence[OpCall], zero: int) -> Iterator[dict[str, Any]]:
    for call in calls:
        args = _known(
            layer=call.layer,
            direction=call.direction,
            step=call.step,
            shapes=call.shapes,
            dtypes=call.dtypes,
        )
        args |= _known(**{"time of its GPU work (ns)": call.device_ns})
        event = {
            "name": call.name,
            "cat": "cpu_op",
            "pid": HOST,
            "tid": call.thread or 0,
            "args": args,
        }
        yield event | _times(call.start_ns or 0, call.duration_ns, zero)


def _kernel_events(run: Run, kernels: Sequence[Kernel], zero: int) -> Iterator[dict[str, Any]]:
    names = {span.number: span.name for span in run.report.ranges}
    for kernel in kernels:
        shared = [
            part
            for part in (kernel.static_shared_bytes, kernel.dynamic_shared_bytes)
            if part is not None
        ]
        args = _known(
            device=kernel.device_index,
            stream=kernel.stream,
            layer=kernel.layer,
            direction=kernel.direction,
            layer_source=kernel.layer_source,
            step=kernel.step,
            launch=kernel.launch,
            correlation=kernel.correlation,
            range=names.get(kernel.range_number) if kernel.range_number is not None else None,
            grid=_three(kernel.grid_x, kernel.grid_y, kernel.grid_z),
            block=_three(kernel.block_x, kernel.block_y, kernel.block_z),
        ) | _known(
            **{
                "registers per thread": kernel.registers,
                "shared memory": sum(shared) if shared else None,
            }
        )
        event = {"name": kernel.name, "cat": "kernel", "args": args} | _stream(kernel)
        yield event | _times(kernel.start_ns or 0, kernel.duration_ns, zero)


def _stream(item: Kernel | Copy) -> dict[str, Any]:
    return {"pid": (item.device_index or 0) + 1, "tid": item.stream or 0}


def _copy_events(copies: Sequence[Copy], zero: int) -> Iterator[dict[str, Any]]:
    for copy in copies:
        memset = copy.kind == "memset"
        name, kind = (
            ("Memset (Device)", "gpu_memset") if memset else (f"Memcpy {copy.kind}", "gpu_memcpy")
        )
        args = _known(
            device=copy.device_index, stream=copy.stream, bytes=copy.bytes, layer=copy.layer
        )
        event = {"name": name, "cat": kind, "args": args} | _stream(copy)
        yield event | _times(copy.start_ns or 0, copy.duration_ns, zero)


def _reading_events(samples: Sequence[Sample], zero: int) -> Iterator[dict[str, Any]]:
    """A counter for each quantity that was read; a reading stands where it was taken, and covers
    the time before it."""
    for sample in samples:
        for field, name, unit, factor in _COUNTERS:
            if (value := getattr(sample, field)) is not None:
                host = field.startswith("host_")
                device = (
                    HOST
                    if host
                    else _UNKNOWN
                    if sample.device_index is None
                    else sample.device_index + 1
                )
                event = {
                    "name": f"{name} ({unit})",
                    "ph": "C",
                    "pid": device,
                    "tid": 0,
                    "ts": _us(sample.at_ns - zero),
                }
                yield event | {"args": {unit: value * factor}}


def _nest(events: Iterable[dict[str, Any]]) -> None:
    """Move what begins inside a bar of its line and ends after it to a line of its own: Perfetto
    shows nested bars only."""
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        lines.setdefault((event["pid"], event["tid"]), []).append(event)
    while lines:
        (process, thread), mine = lines.popitem()
        opened: list[int] = []
        loose = []
        for event in sorted(mine, key=lambda event: (event["ts"], -event.get("dur", 0))):
            start, length = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
            while opened and opened[-1] <= start:
                opened.pop()
            if opened and opened[-1] < start + length:
                event["tid"] = thread + _OVERLAPPING
                loose.append(event)
            elif "dur" in event:
                opened.append(start + length)
        if loose:
            lines[process, thread + _OVERLAPPING] = loose


def _arrows(
    ranges: Iterable[tuple[Range, dict[str, Any]]], kernels: Iterable[tuple[Kernel, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """From the innermost range around a kernel's launch call to the kernel. The call's own time is
    not in the store: the arrow leaves where the range begins."""
    of = {span.number: event for span, event in ranges if "dur" in event}
    for kernel, event in kernels:
        source = of.get(kernel.range_number) if kernel.range_number is not None else None
        if source is None or "dur" not in event or source["ts"] > event["ts"]:
            continue
        same = {"name": "launch", "cat": "ac2g", "id": kernel.launch + 1}
        yield same | {"ph": "s"} | {key: source[key] for key in ("pid", "tid", "ts")}
        yield same | {"ph": "f", "bp": "e"} | {key: event[key] for key in ("pid", "tid", "ts")}


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
        return {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "ts": 0,
            "name": kind,
            "args": {"name": name},
        }

    places = sorted({(event["pid"], event["tid"]) for event in events if event["ph"] != "C"})
    processes = sorted({event["pid"] for event in events})
    devices = {device.index: device.name for device in run.report.devices if device.kind == "gpu"}
    for process in processes:
        gpu = devices.get(process - 1)
        name = "host" if process == HOST else f"GPU {process - 1}" + (f": {gpu}" if gpu else "")
        yield label(
            "process_name",
            process,
            0,
            "GPU, which one is not said" if process == _UNKNOWN else name,
        )
    for process, thread in places:
        further, number = divmod(thread, _OVERLAPPING)
        name = f"stream {number}" if process != HOST else f"thread {number}"
        if process == HOST and number >= _LOOSE:
            name = f"thread {number - _LOOSE}, ranges that need not nest"
        yield label(
            "thread_name", process, thread, name + (f", overlapping {further}" if further else "")
        )


def _about(run: Run, step: int | None, zero: int, readings: int) -> dict[str, Any]:
    names = (
        "profiler",
        "profiler_version",
        "workload",
        "batch_size",
        "mode",
        "precision",
        "origin",
        "artifact_sha256",
    )
    facts = _known(run=run.id, step=step, **{name: getattr(run, name) for name in names})
    gaps = (gap for gap in run.report.gaps if gap.quantity in ("kernel", "copy", "range"))
    missing = [f"{gap.quantity}: {gap.reason}" for gap in gaps]
    samples = list(run.report.samples)
    if samples and not readings:
        missing.append(
            f"sample: none of {len(samples):,} readings lies in this time; they may be on another "
            "clock"
        )
    return {name: str(value) for name, value in facts.items()} | {
        "zero_ns": str(zero),
        "missing": "; ".join(missing),
    }
