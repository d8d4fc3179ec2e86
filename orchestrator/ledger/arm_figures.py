"""Figures of the runs of one device or precision: epochs, rates, memory, and what its time goes to.

FLOPs: 1 multiply-add = 2.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, Peaks, peaks_of
from perfctl.orchestrator.counts.kernels import categories
from perfctl.orchestrator.estimate.flops.engine import BACKWARD, totals
from perfctl.orchestrator.ledger.prepared import PreparedRun, device_label
from perfctl.orchestrator.ledger.sweep import memory_figures
from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.records.report import Kernel
from perfctl.records.run import Run

DICE = "dice:epoch:"
"""Beginning of the name of the Dice score of an epoch."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of an arm's newest run."""

    number: int
    ns: float
    """Without the test pass."""
    reached_ns: float
    loss: float | None
    test_loss: float | None
    accuracy: float | None
    """0..1, of test data; dice: of its masks."""
    dice: float | None


@dataclass(frozen=True, slots=True)
class Top:
    """One of the most expensive operations (CPU, by self time) or kernels (GPU)."""

    name: str
    category: str
    calls: int
    self_ns: float
    total_ns: float | None
    """With the operations it called; None for kernels."""
    share: float


@dataclass(frozen=True, slots=True)
class Rate:
    """FLOPs on paper over measured time. 1 multiply-add = 2 FLOPs."""

    flops: int | None
    per_second: float | None
    peak: float | None
    """FLOP/s of the device in this precision; None if unknown."""
    reason: str | None


@dataclass(frozen=True, slots=True)
class ArmFacts:
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
    epochs: tuple[Epoch, ...]
    memory: Mapping[str, int]
    top: tuple[Top, ...]
    categories: Mapping[str, float] | None
    """Kind of work -> share of all time in the trace."""
    rate: Rate
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
    gaps: tuple[tuple[str, str], ...] = ()
    paper_memory: int | None = None
    """Peak bytes of all tensors on paper, in the allocator's 512-byte blocks."""
    paper_memory_reason: str | None = None


def facts_of(label: str, runs: Sequence[Run], peaks: Sequence[Peaks] = ()) -> ArmFacts:
    """Return the figures of the newest of these complete runs; ``runs`` counts all of them."""
    run = runs[-1]
    prepared = PreparedRun(run)
    timed = prepared.step_time
    warmup = run.report.environment.get("option:warmup", "")
    step = timed[0].median if timed else None
    course = epochs(run)
    wanted = ("layer ranges",) if run.device_kind == "cpu" else ("layer ranges", "kernel")
    busy = [
        one.share for one in prepared.usage.busy if one.stream is None and one.share is not None
    ]
    gaps = [(gap.quantity, gap.reason) for gap in run.report.gaps if gap.quantity in wanted]
    return ArmFacts(
        label=label,
        device=device_label(run),
        precision=run.precision,
        runs=len(runs),
        total_ns=sum(one.ns for one in course) if course else None,
        step_ns=step,
        step_range=(timed[0].low, timed[0].high) if timed else None,
        steps_per_second=1e9 / step if step else None,
        samples_per_second=run.samples_per_step * 1e9 / step
        if step and run.samples_per_step
        else None,
        warmup=int(warmup) if warmup.isdecimal() else None,
        epochs=course,
        memory=memory_figures(run),
        top=top(run),
        categories=shares(run),
        rate=rate(run, step, peaks),
        idle=1 - statistics.fmean(busy) if busy else None,
        overlap=overlap(run),
        launch_bound=launch_bound(run),
        overhead=overhead(run),
        gaps=tuple(dict.fromkeys(gaps)),
    )


def epochs(run: Run) -> tuple[Epoch, ...]:
    tests = {row.number: row for row in run.report.steps if row.phase == "test"}
    scored = {one.name: one.value for one in run.report.summaries if one.name.startswith(DICE)}
    rows = [row for row in run.report.steps if row.phase == "epoch" and row.duration_ns is not None]
    rows.sort(key=attrgetter("number"))
    spent = [float(row.duration_ns or 0) for row in rows]
    return tuple(
        Epoch(
            row.number,
            ns,
            gone,
            row.loss,
            tests[row.number].loss if row.number in tests else None,
            row.accuracy,
            scored.get(f"{DICE}{row.number}"),
        )
        for row, ns, gone in zip(rows, spent, accumulate(spent), strict=True)
    )


def top(run: Run, most: int = 10) -> tuple[Top, ...]:
    """The most expensive kernels by time; without kernels, CPU operations by self time. One line
    per name, as in torch's tables."""
    found: list[tuple[str, int, float, float]] = [
        (one.name, 1, one.duration_ns or 0, 0) for one in run.report.kernels
    ]
    kernels = bool(found)
    if not kernels:
        found = [
            (one.name, one.calls, one.self_cpu_ns or 0, one.cpu_ns or 0)
            for one in run.report.operations
        ]
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for name, *figures in found:
        sums[name] = [one + more for one, more in zip(sums[name], figures, strict=True)]
    whole = sum(own for _, own, _ in sums.values())
    kind = categories.kernel if kernels else categories.operation
    return tuple(
        Top(name, kind(name), int(calls), own, None if kernels else total, own / whole)
        for name, (calls, own, total) in sorted(
            sums.items(), key=lambda item: (-item[1][1], item[0])
        )[:most]
        if whole
    )


def shares(run: Run) -> Mapping[str, float] | None:
    """Kind of work -> share of all time in the trace, without kinds that took none."""
    found = categories.times(run) or {}
    whole = sum(found.values())
    return {kind: spent / whole for kind, spent in found.items() if spent} if whole else None


def rate(run: Run, step_ns: float | None, peaks: Sequence[Peaks] = ()) -> Rate:
    """FLOPs of a step on paper over its measured time, and the device's peak."""
    if not run.layer_calls:
        return Rate(None, None, None, "the shapes of the layers were not recorded")
    directions = ("forward", *BACKWARD) if run.mode == "train" else ("forward",)
    total = totals(run.layer_calls, directions)
    if total.at_least:
        names = ", ".join(name for name, _ in total.unknown)
        return Rate(
            None, None, None, f"at least {total.flops:,} FLOP on paper: {names} not counted"
        )
    flops = total.flops
    roofs = peaks_of(run.device, peaks)
    precision = run.precision or ""
    path = precision if run.device_kind == "cpu" else PATH_OF.get(precision, precision)
    peak = roofs.flops.get(path)
    reason = None if peak else roofs.reason or f"no peak of {path} is known for {roofs.device}"
    return Rate(flops, flops * 1e9 / step_ns if step_ns else None, peak, reason)


def launch_bound(run: Run) -> float | None:
    """Share of kernels that ran for less time than the device was idle before them; None without
    kernel times."""
    spans = sorted(
        (one.device_index or 0, one.start_ns, one.start_ns + one.duration_ns)
        for one in run.report.kernels
        if one.start_ns is not None and one.duration_ns is not None
    )
    waited: list[bool] = []
    reached: dict[int, float] = {}
    for device, start, end in spans:
        if device in reached:
            waited.append(start - reached[device] > end - start)
        reached[device] = max(end, reached.get(device, end))
    return sum(waited) / len(waited) if waited else None


def overlap(run: Run) -> float | None:
    """Share of the copies' time in which a kernel of the device ran; None without copies."""
    running: dict[int, list[Kernel]] = defaultdict(list)
    for one in run.report.kernels:
        if one.start_ns is None or one.duration_ns is None:
            return None
        running[one.device_index or 0].append(one)
    kernels = {device: Intervals.of(spans) for device, spans in running.items()}
    whole = both = 0.0
    for copy in run.report.copies:
        if copy.kind != "memset" and copy.start_ns is not None and copy.duration_ns:
            start, end = copy.start_ns, copy.start_ns + copy.duration_ns
            whole += copy.duration_ns
            if (device := copy.device_index or 0) in kernels:
                both += kernels[device].length_within(start, end)
    return both / whole if whole else None


def overhead(run: Run) -> float | None:
    """Share of the measured steps outside all operations: Python, and the profiler. None on
    a GPU."""
    if run.device_kind != "cpu" or not run.report.operations:
        return None
    steps = sum(row.duration_ns or 0 for row in run.report.steps if row.phase == "step")
    own = sum(item.self_cpu_ns or 0 for item in run.report.operations)
    return max(1 - own / steps, 0.0) if steps else None
