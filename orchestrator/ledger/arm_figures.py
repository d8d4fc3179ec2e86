"""Figures of the runs of one device or precision: epochs, rates, memory, and what its time goes to.

FLOPs: 1 multiply-add = 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, DevicePeaks, find_peaks
from perfctl.orchestrator.counts.kernels import categories
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, sum_layer_call_work
from perfctl.orchestrator.ledger.prepared import PreparedRun, get_device_label
from perfctl.orchestrator.ledger.sweep import read_memory_bytes_by_label
from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
    sum_durations_ns,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Run

TOP_OPERATIONS_MAX = 10
DICE = "dice:epoch:"
"""Beginning of the name of the Dice score of an epoch."""


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """One epoch of an arm's newest run."""

    number: int
    ns: float
    """Without the test pass."""
    elapsed_ns: float
    loss: float | None
    test_loss: float | None
    accuracy: float | None
    """0..1, of test data; dice: of its masks."""
    dice: float | None


@dataclass(frozen=True, slots=True)
class TopOperation:
    """One of the most expensive operations (CPU, by self time) or kernels (GPU)."""

    name: str
    category: str
    calls: int
    self_ns: float
    total_ns: float | None
    """With the operations it called; None for kernels."""
    share: float


@dataclass(frozen=True, slots=True)
class FlopRate:
    """Estimated FLOPs over measured time. 1 multiply-add = 2 FLOPs."""

    flops: int | None
    per_second: float | None
    peak: float | None
    """FLOP/s of the device in this precision; None if unknown."""
    reason: str | None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Figures of one arm."""

    label: str
    device: str | None
    precision: str | None
    runs: int
    total_ns: float | None
    """All epochs' training time."""
    step_ns: float | None
    step_range: tuple[float, float] | None
    steps_per_second: float | None
    samples_per_second: float | None
    warmup: int | None
    epochs: tuple[EpochFigures, ...]
    memory: Mapping[str, int]
    top_operations: tuple[TopOperation, ...]
    categories: Mapping[str, float] | None
    """Kind of work -> share of all time in the trace."""
    rate: FlopRate
    idle: float | None
    """Share of the measured steps without a running kernel; None on a CPU."""
    overlap: float | None
    """Share of copy time with a running kernel; None without copies."""
    launch_bound: float | None
    """Share of kernels that run for less time than the device was idle before them; None on
    a CPU."""
    overhead: float | None
    """Share of the measured steps outside all operations (Python, the optimizer's loop); None on
    a GPU."""
    missing_values: tuple[tuple[str, str], ...] = ()
    estimated_memory: int | None = None
    """Estimated peak bytes of all tensors, in the allocator's 512-byte blocks."""
    estimated_memory_reason: str | None = None


def compute_figures_of_newest_run(
    label: str, runs: Sequence[Run], peaks: Sequence[DevicePeaks] = ()
) -> ArmFigures:
    """Return the figures of the newest of these complete runs; ``runs`` counts all of them."""
    run = runs[-1]
    prepared = PreparedRun(run)
    spread, _ = prepared.step_time or (None, None)
    warmup = run.report.environment.get("option:warmup", "")
    step = spread.median if spread else None
    course = list_epochs(run)
    relevant = ("layer ranges",) if run.device_kind == "cpu" else ("layer ranges", "kernel")
    busy = prepared.usage.utilization_by_source.kernels.value
    gaps = [(gap.quantity, gap.reason) for gap in run.report.gaps if gap.quantity in relevant]
    return ArmFigures(
        label=label,
        device=get_device_label(run),
        precision=run.precision,
        runs=len(runs),
        total_ns=sum(epoch.ns for epoch in course) if course else None,
        step_ns=step,
        step_range=(spread.low, spread.high) if spread else None,
        steps_per_second=1e9 / step if step else None,
        samples_per_second=run.samples_per_step * 1e9 / step
        if step and run.samples_per_step
        else None,
        warmup=int(warmup) if warmup.isdecimal() else None,
        epochs=course,
        memory=read_memory_bytes_by_label(run),
        top_operations=list_longest_kernels_or_operations(run),
        categories=compute_time_share_by_category(run),
        rate=compute_estimated_flop_rate(run, step, peaks),
        idle=None if busy is None else 1 - busy,
        overlap=compute_copy_overlap_share(run),
        launch_bound=compute_launch_bound_kernel_share(run),
        overhead=compute_time_share_outside_operations(run),
        missing_values=tuple(dict.fromkeys(gaps)),
    )


def list_epochs(run: Run) -> tuple[EpochFigures, ...]:
    tests = {row.number: row for row in run.report.steps if row.phase == "test"}
    scored = {item.name: item.value for item in run.report.summaries}
    rows = [row for row in run.report.steps if row.phase == "epoch" and row.duration_ns is not None]
    rows.sort(key=attrgetter("number"))
    course, elapsed_ns = [], 0.0
    for row in rows:
        ns = float(row.duration_ns or 0)
        elapsed_ns += ns
        test_loss = tests[row.number].loss if row.number in tests else None
        dice = scored.get(f"{DICE}{row.number}")
        course.append(
            EpochFigures(row.number, ns, elapsed_ns, row.loss, test_loss, row.accuracy, dice)
        )
    return tuple(course)


def list_longest_kernels_or_operations(run: Run) -> tuple[TopOperation, ...]:
    """The most expensive kernels by time; without kernels, CPU operations by self time. One line
    per name, as in torch's tables."""
    rows = [
        TopOperation(
            name,
            categories.categorize_kernel(name),
            len(kernels),
            sum_durations_ns(kernels),
            None,
            0.0,
        )
        for name, kernels in group_by(run.report.kernels, lambda kernel: kernel.name).items()
    ]
    rows = rows or [
        TopOperation(
            name,
            categories.categorize_operation(name),
            sum(item.calls for item in items),
            sum(item.self_cpu_ns or 0 for item in items),
            sum(item.cpu_ns or 0 for item in items),
            0.0,
        )
        for name, items in group_by(run.report.operations, lambda item: item.name).items()
    ]
    total_ns = sum(row.self_ns for row in rows)
    rows.sort(key=lambda row: (-row.self_ns, row.name))
    return tuple(
        replace(row, share=row.self_ns / total_ns) for row in rows[:TOP_OPERATIONS_MAX] if total_ns
    )


def compute_time_share_by_category(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> share of all time in the trace, without kinds that took none."""
    times = categories.sum_ns_by_category(run) or {}
    total = sum(times.values())
    return {kind: spent / total for kind, spent in times.items() if spent} if total else None


def compute_estimated_flop_rate(
    run: Run, step_ns: float | None, peaks: Sequence[DevicePeaks] = ()
) -> FlopRate:
    """Estimated FLOPs of a step over its measured time, and the device's peak."""
    directions = ("forward", *BACKWARD) if run.mode == "train" else ("forward",)
    total = sum_layer_call_work(run.layer_calls, directions)
    problem = None
    if not run.layer_calls:
        problem = "the run did not record the shapes of the layers"
    elif total.is_lower_bound:
        names = ", ".join(name for name, _ in total.missing)
        problem = f"at least {total.flops:,} estimated FLOPs; not included: {names}"
    if problem:
        return FlopRate(None, None, None, problem)
    flops = total.flops
    roofs = find_peaks(run.device, peaks)
    precision = run.precision or ""
    path = precision if run.device_kind == "cpu" else PATH_OF.get(precision, precision)
    peak = roofs.flops.get(path)
    reason = None if peak else roofs.reason or f"the {path} peak of {roofs.device} is unknown"
    return FlopRate(flops, flops * 1e9 / step_ns if step_ns else None, peak, reason)


def compute_launch_bound_kernel_share(run: Run) -> float | None:
    """Share of kernels that ran for less time than the device was idle before them; None without
    kernel times."""
    spans = sorted(
        (get_start_ns(kernel), get_end_ns(kernel), kernel.device_index or 0)
        for kernel in filter(has_start_and_duration, run.report.kernels)
    )
    waited: list[bool] = []
    reached: dict[int, int] = {}
    for start, end, device in spans:
        if device in reached:
            waited.append(start - reached[device] > end - start)
        reached[device] = max(end, reached.get(device, end))
    return sum(waited) / len(waited) if waited else None


def compute_copy_overlap_share(run: Run) -> float | None:
    """Share of the copies' time in which a kernel of the device ran; None without copies."""
    if not all(map(has_start_and_duration, run.report.kernels)):
        return None
    kernels = group_by(run.report.kernels, lambda kernel: kernel.device_index or 0)
    copies = [
        copy for copy in run.report.copies if copy.kind != "memset" and has_start_and_duration(copy)
    ]
    by_device = group_by(copies, lambda copy: copy.device_index or 0)
    covered = 0
    for device, of_device in by_device.items():
        running = Intervals.make_from_items(kernels.get(device, ()))
        covered += sum(
            running.measure_covered_ns(get_start_ns(copy), get_end_ns(copy)) for copy in of_device
        )
    copy_ns = sum_durations_ns(copies)
    return covered / copy_ns if copy_ns else None


def compute_time_share_outside_operations(run: Run) -> float | None:
    """Share of the measured steps outside all operations: Python, and the profiler. None on
    a GPU."""
    if run.device_kind != "cpu" or not run.report.operations:
        return None
    steps = sum(row.duration_ns or 0 for row in run.report.steps if row.phase == "step")
    self_cpu_ns = sum(item.self_cpu_ns or 0 for item in run.report.operations)
    return max(1 - self_cpu_ns / steps, 0.0) if steps else None
