"""One step of a run as Chrome trace events, which Perfetto and chrome://tracing show.

Kernels and copies stand by device and stream, ranges and operators by thread, samples of a device
as counters; an arrow leads from the range around a launch to its kernel. Times in the file are
microseconds from the beginning of the step, to the nanosecond; ``otherData`` has that time on
the clock of the profiler report, and what is not in the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.ledger.usage.intervals import get_end_ns, get_start_ns
from perfctl.orchestrator.report.tables import JsonObject
from perfctl.orchestrator.statistics import group_by
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
"""Process number of samples that do not state their GPU."""
_COUNTERS = (
    ("gpu_utilisation", "GPU utilization", "%", 100),
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
Timed = Kernel | Range | Copy | OpCall
"""What stands on a line of a trace."""
_RANGE_FACTS = ("layer", "direction", "step", "phase", "domain", "depth")
_OPERATOR_FACTS = ("layer", "direction", "step", "shapes", "dtypes")
_KERNEL_FACTS = ("direction", "layer_source", "step", "launch", "correlation")
_RUN_FACTS = (
    "profiler",
    "profiler_version",
    "workload",
    "batch_size",
    "mode",
    "precision",
    "origin",
    "artifact_sha256",
)


class TraceCounts(NamedTuple):
    """Number of events of a trace, by kind."""

    kernels: int
    copies: int
    ranges: int
    operators: int
    samples: int
    arrows: int


def list_traceable_steps(run: Run) -> list[int]:
    """Return the measured steps of which this run has kernels or ranges with start times."""
    of_kernels = {kernel.step for kernel in run.report.kernels if _has_start(kernel)}
    numbers = of_kernels | {span.step for span in run.report.ranges}
    return sorted(number for number in numbers if number is not None)


def build_chrome_trace(
    run: Run, step: int | None, operators: Iterable[OpCall] = ()
) -> tuple[JsonObject, TraceCounts]:
    """Return the trace of one step, and what is in it; of the complete capture if ``step`` is None.
    ``operators``: of the run.

    Raises UsageError when the run has no such step, PerfctlError when it has no start times.
    """
    numbers = list_traceable_steps(run)
    if step is not None and step not in numbers:
        none = "It has none: leave --step out for the complete capture"
        raise UsageError(
            f"run {run.id} has no step {step}",
            f"It has {', '.join(map(str, numbers))}" if numbers else none,
        )
    every: list[Timed] = [*run.report.kernels, *run.report.ranges, *run.report.copies, *operators]
    timed = [item for item in every if _has_start(item)]
    if step is not None:
        timed = _select_step_items(timed, step)
    if not timed:
        raise PerfctlError(
            f"run {run.id} ({run.profiler}) has no start times of kernels, copies or ranges",
            "Trace a run of 'perfctl nsys' or 'perfctl torch'",
        )
    zero, last = min(map(get_start_ns, timed)), max(map(get_end_ns, timed))
    samples = [sample for sample in run.report.samples if zero <= sample.at_ns <= last]
    range_names: dict[int | None, str] = {span.number: span.name for span in run.report.ranges}
    bars = [_make_trace_event(item, zero, range_names) for item in timed]
    _move_overlapping_bars_to_new_lines(bars)
    arrows = list(_make_launch_arrows(list(zip(timed, bars, strict=True))))
    events = [*bars, *_make_sample_events(samples, zero), *arrows]
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))
    content = {
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "otherData": _list_trace_facts(run, step, zero, len(samples)),
        "traceEvents": [*_make_process_and_thread_labels(run, events), *ordered],
    }
    often = Counter(map(type, timed))
    counts = (often[Kernel], often[Copy], often[Range], often[OpCall])
    return content, TraceCounts(*counts, len(samples), len(arrows) // 2)


def _has_start(item: Timed) -> bool:
    return item.start_ns is not None


def _select_step_items(timed: Sequence[Timed], step: int) -> list[Timed]:
    """Return what belongs to the step, and what begins in it without a step of its own; of ranges
    only those that end in it too, without those around many steps."""
    items_of_step = [
        item for item in timed if isinstance(item, Kernel | Range) and item.step == step
    ]
    begin, end = min(map(get_start_ns, items_of_step)), max(map(get_end_ns, items_of_step))

    def is_in_step(item: Timed) -> bool:
        number = None if isinstance(item, Copy) else item.step
        last = get_end_ns(item) if isinstance(item, Range) else get_start_ns(item) + 1
        return number == step or (number is None and begin <= get_start_ns(item) and last <= end)

    return [item for item in timed if is_in_step(item)]


def _make_trace_event(
    item: Timed, zero_ns: int, range_names: Mapping[int | None, str]
) -> JsonObject:
    """Return a bar; an unknown duration is drawn as an instant, because 0 would claim that it took
    no time."""
    duration = item.duration_ns
    if isinstance(item, Range):
        name, category = item.name, "user_annotation"
        line = HOST, (item.thread or 0) + (0 if item.kind == "push_pop" else _LOOSE)
        facts = {name: getattr(item, name) for name in _RANGE_FACTS}
        facts["time of its GPU work (ns)"] = item.gpu_ns
        duration = None if item.kind == "mark" else duration
    elif isinstance(item, OpCall):
        name, category, line = item.name, "cpu_op", (HOST, item.thread or 0)
        facts = {name: getattr(item, name) for name in _OPERATOR_FACTS}
        facts["time of its GPU work (ns)"] = item.device_ns
    else:
        line = (item.device_index or 0) + 1, item.stream or 0
        facts = {"device": item.device_index, "stream": item.stream, "layer": item.layer}
        if isinstance(item, Kernel):
            name, category = item.name, "kernel"
            grid, block = (
                tuple(getattr(item, f"{sides}_{side}") for side in "xyz")
                for sides in ("grid", "block")
            )
            shared = item.static_shared_bytes, item.dynamic_shared_bytes
            facts |= {name: getattr(item, name) for name in _KERNEL_FACTS} | {
                "grid": None if None in grid else grid,
                "block": None if None in block else block,
                "registers per thread": item.registers,
                "shared memory": None
                if shared == (None, None)
                else sum(size or 0 for size in shared),
                "range": range_names.get(item.range_number),
            }
        else:
            name, category = f"Memcpy {item.kind}", "gpu_memcpy"
            if item.kind == "memset":
                name, category = "Memset (Device)", "gpu_memset"
            facts["bytes"] = item.bytes
    instant = {"ph": "i", "s": "t"}
    return {
        "name": name,
        "cat": category,
        "pid": line[0],
        "tid": line[1],
        "args": _drop_none_values(facts),
        "ts": _convert_to_us(get_start_ns(item) - zero_ns),
        **(instant if duration is None else {"ph": "X", "dur": _convert_to_us(duration)}),
    }


def _make_sample_events(samples: Sequence[Sample], zero_ns: int) -> Iterator[JsonObject]:
    """Yield a counter for each quantity that was sampled, at the end of the time that it covers."""
    for sample in samples:
        device = _UNKNOWN if sample.device_index is None else sample.device_index + 1
        for field, name, unit, factor in _COUNTERS:
            if (value := getattr(sample, field)) is not None:
                yield {
                    "name": f"{name} ({unit})",
                    "ph": "C",
                    "pid": HOST if field.startswith("host_") else device,
                    "tid": 0,
                    "ts": _convert_to_us(sample.at_ns - zero_ns),
                    "args": {unit: value * factor},
                }


def _move_overlapping_bars_to_new_lines(bars: Iterable[JsonObject]) -> None:
    """Move what begins inside a bar of its line and ends after it to a line of its own: Perfetto
    shows nested bars only."""
    lines = group_by(bars, lambda bar: (bar["pid"], bar["tid"]))
    while lines:
        (process, thread), of_line = lines.popitem()
        ends: list[int] = []
        overlapping = []
        for bar in sorted(of_line, key=lambda bar: (bar["ts"], -bar.get("dur", 0))):
            start = round(bar["ts"] * 1000)
            end = start + round(bar.get("dur", 0) * 1000)
            while ends and ends[-1] <= start:
                ends.pop()
            if ends and ends[-1] < end:
                bar["tid"] = thread + _OVERLAPPING
                overlapping.append(bar)
            elif "dur" in bar:
                ends.append(end)
        if overlapping:
            lines[process, thread + _OVERLAPPING] = overlapping


def _make_launch_arrows(bars: Sequence[tuple[Timed, JsonObject]]) -> Iterator[JsonObject]:
    """Yield arrows from the innermost range around a kernel's launch call to the kernel. The call's
    own time is not in the database: the arrow leaves where the range begins."""
    ranges: dict[int | None, JsonObject] = {
        item.number: bar for item, bar in bars if isinstance(item, Range) and "dur" in bar
    }
    kernels = ((item, bar) for item, bar in bars if isinstance(item, Kernel) and "dur" in bar)
    for kernel, bar in kernels:
        source = ranges.get(kernel.range_number)
        if source is not None and source["ts"] <= bar["ts"]:
            same = {"name": "launch", "cat": "ac2g", "id": kernel.launch + 1}
            yield same | {"ph": "s"} | {key: source[key] for key in ("pid", "tid", "ts")}
            yield same | {"ph": "f", "bp": "e"} | {key: bar[key] for key in ("pid", "tid", "ts")}


def _convert_to_us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 3)


def _drop_none_values(facts: JsonObject) -> JsonObject:
    return {name: value for name, value in facts.items() if value is not None}


def _make_process_and_thread_labels(run: Run, events: Iterable[JsonObject]) -> Iterator[JsonObject]:
    """Yield the labels of processes and threads in Perfetto."""

    def make_metadata_event(kind: str, process: int, thread: int, name: str) -> JsonObject:
        line = {"ph": "M", "pid": process, "tid": thread, "ts": 0}
        return line | {"name": kind, "args": {"name": name}}

    devices = {device.index: device.name for device in run.report.devices if device.kind == "gpu"}
    for process in sorted({event["pid"] for event in events}):
        gpu = devices.get(process - 1)
        name = f"GPU {process - 1}" + (f": {gpu}" if gpu else "")
        special = {HOST: "host", _UNKNOWN: "GPU that the samples do not name"}
        yield make_metadata_event("process_name", process, 0, special.get(process, name))
    lines = {(event["pid"], event["tid"]) for event in events if event["ph"] != "C"}
    for process, thread in sorted(lines):
        further, number = divmod(thread, _OVERLAPPING)
        name = f"thread {number}" if process == HOST else f"stream {number}"
        if process == HOST and number >= _LOOSE:
            name = f"thread {number - _LOOSE}, ranges that need not nest"
        suffix = f", overlapping {further}" if further else ""
        yield make_metadata_event("thread_name", process, thread, name + suffix)


def _list_trace_facts(
    run: Run, step: int | None, zero_ns: int, sample_count: int
) -> dict[str, str]:
    facts = {"run": run.id, "step": step} | {name: getattr(run, name) for name in _RUN_FACTS}
    missing = [
        f"{gap.quantity}: {gap.reason}"
        for gap in run.report.gaps
        if gap.quantity in ("kernel", "copy", "range")
    ]
    every = len(list(run.report.samples))
    if every and not sample_count:
        missing.append(
            f"sample: none of {every:,} samples lies in this time; they may be on another clock"
        )
    facts |= {"zero_ns": zero_ns, "missing": "; ".join(missing)}
    return {name: str(value) for name, value in _drop_none_values(facts).items()}
