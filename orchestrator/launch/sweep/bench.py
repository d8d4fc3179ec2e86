"""Measure the points of a design one after the other, each in its own process, within a
time budget."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from perfctl.orchestrator.launch.sweep import sweep as sweeps
from perfctl.orchestrator.launch.sweep.folders import is_run_complete, read_run_record
from perfctl.orchestrator.launch.sweep.request import RunResult, SweepListener, SweepRequest

_HOPELESS = 3
"""After so many failures in a row with one reason (no GPU, a broken torch), the other points
are skipped."""


@dataclass(frozen=True, slots=True)
class PointToMeasure:
    """One model at one batch size."""

    model: str
    """The full specification."""
    family: str
    batch: int
    flops: float
    """Estimated FLOPs of one step; 1 multiply-add = 2 FLOPs."""


@dataclass(slots=True)
class TimeBudget:
    """The time budget of a bench, with an estimate for the next point from those measured
    so far."""

    seconds: float | None
    """None for no limit."""
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)
    _seen: list[tuple[float, float]] = field(init=False, default_factory=list)
    """(FLOPs of a step, seconds of the whole process) of each measured point."""

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def remaining_s(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self.seconds is None else self.seconds - (self.clock() - self._began)

    def add_measured_point(self, flops: float, seconds: float) -> None:
        """Add a measured point."""
        self._seen.append((flops, seconds))

    def predict_seconds(self, flops: float) -> float | None:
        """Return seconds for a point, from a line fitted to the measured ones, at least their
        minimum; None before the first."""
        if not self._seen:
            return None
        work, took = zip(*self._seen, strict=True)
        slope = statistics.linear_regression(work, took).slope if len(set(work)) > 1 else 0.0
        line = statistics.fmean(took) + max(slope, 0.0) * (flops - statistics.fmean(work))
        return float(max(line, min(took)))

    def has_time_for(self, flops: float) -> bool:
        """Return whether a point is expected to end within the budget."""
        return self.remaining_s is None or self.remaining_s > (self.predict_seconds(flops) or 0.0)


@dataclass(frozen=True, slots=True)
class MeasuredBench:
    """The results of a bench."""

    results: tuple[tuple[PointToMeasure, RunResult], ...]
    """Measured now, or complete already."""
    left: tuple[PointToMeasure, ...]
    """Not measured: the budget was used up, or the points before all failed alike."""


def measure_bench_points_within_budget(
    points: tuple[PointToMeasure, ...],
    make_request: Callable[[PointToMeasure], SweepRequest],
    budget: TimeBudget,
    listener: SweepListener,
    points_to_repeat: frozenset[tuple[str, int]] = frozenset(),
) -> MeasuredBench:
    """Measure every point that is not complete yet, within the budget; complete ones are reported
    to the listener too.

    ``points_to_repeat``: (model, batch) of complete points to measure once more.
    Raises UsageError when another perfctl measures the same point, Interrupted after a signal.
    """
    results: list[tuple[PointToMeasure, RunResult]] = []
    unmeasured: list[PointToMeasure] = []
    waiting: list[PointToMeasure] = []
    for point in points:
        request = make_request(point)
        folder = request.paths.folder
        if not is_run_complete(folder):
            waiting.append(point)
            continue
        record = read_run_record(folder)
        if record and record.get("duration_ns"):
            budget.add_measured_point(point.flops, record["duration_ns"] / 1e9)
        results.append((point, sweeps.run_incomplete_settings(request, listener)[0]))
        if (point.model, point.batch) in points_to_repeat:
            waiting.append(point)
    for index, point in enumerate(waiting):
        if not budget.has_time_for(point.flops):
            unmeasured += waiting[index:]
            break
        request = replace(make_request(point), again=(point.model, point.batch) in points_to_repeat)
        # a slow point cannot exceed the budget; loading torch alone takes seconds
        if budget.remaining_s is not None:
            most = max(budget.remaining_s, 20.0)
            request = replace(request, timeout=min(most, request.timeout or most))
        result = sweeps.run_incomplete_settings(request, listener)[0]
        results.append((point, result))
        if result.duration_ns is not None and result.status == "ok":
            budget.add_measured_point(point.flops, result.duration_ns / 1e9)
        elif [(earlier.status, earlier.reason) for _, earlier in results[-_HOPELESS:]] == [
            ("failed", result.reason)
        ] * _HOPELESS:
            unmeasured += waiting[index + 1 :]
            break
    return MeasuredBench(tuple(results), tuple(unmeasured))
