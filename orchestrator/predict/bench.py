"""Points of a bench from stored runs, what a predictor is fitted on, and how closely time, memory
and FLOPs of a step go with the sizes of its network: coefficients with their 95% intervals.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from perfctl.orchestrator.predict.fit import list_step_ns_without_data_loading
from perfctl.orchestrator.statistics import compute_fisher_interval
from perfctl.records.bench import WORKLOAD, BenchMachine, BenchPoint
from perfctl.records.report import LayerTime
from perfctl.records.run import Run
from perfctl.workloads.models.plan import plan_model
from perfctl.workloads.spec import SpecError

TIME, MEMORY, FLOPS = "time", "memory", "FLOPs"
QUANTITIES = (TIME, MEMORY, FLOPS)
SIZES = ("parameters", "depth", "width", "kernel", "input", "batch")
OWN = ("depth", "width")
"""Sizes that each family counts in a way of its own: they are not compared across families."""
FEW = 10
"""Below so many points a coefficient says little."""
ONE_VALUE = "it is equal in every point"

ALL = "all"
LEAST = 3


@dataclass(frozen=True, slots=True)
class SizeObservation:
    """One network at one batch size."""

    family: str
    model: str
    batch: int
    sizes: Mapping[str, float]
    """Of ``SIZES``, those that its family has."""
    values: Mapping[str, float]
    """Of ``QUANTITIES``, those that are known: seconds, bytes, FLOPs (1 multiply-add = 2)."""


class Coefficient(NamedTuple):
    """-1..1, with its 95% interval."""

    value: float
    interval: tuple[float, float] | None
    """None with three points, or where every point lies on one line."""


@dataclass(frozen=True, slots=True)
class SizeRelation:
    """One quantity against one size, in one family or in all."""

    family: str
    quantity: str
    size: str
    points: int
    networks: int
    """Points of one network at several batch sizes are no independent measurements of its
    other sizes."""
    ranked: Coefficient | None
    """Spearman's, of the ranks: any rising curve gives 1."""
    linear: Coefficient | None
    """Pearson's, of the values: a straight line gives 1."""
    exponent: float | None
    """Slope between the logarithms: 1 where the quantity is proportional to the size."""
    reason: str | None
    """Why there are no coefficients."""

    @property
    def has_few_points(self) -> bool:
        return self.points < FEW


def sum_point_flops(point: BenchPoint) -> float | None:
    """Return the FLOPs of one step, forward and backward; None if the point has no estimate."""
    names = ("flops:forward", "flops:backward")
    parts = [point.features[name] for name in names if name in point.features]
    return sum(parts) if parts else None


def list_size_observations(points: Iterable[BenchPoint]) -> list[SizeObservation]:
    """Return sizes and quantities of each point; a network that this version cannot plan has those
    of its features alone.

    Memory is the peak of what torch allocated on a GPU; on a CPU it is what the process grew by in
    the steps, because its whole also holds Python and torch.
    """
    return list(map(_build_size_observation, points))


def _build_size_observation(point: BenchPoint) -> SizeObservation:
    settings: Mapping[str, int | str] = {}
    with suppress(SpecError):
        settings = plan_model(point.model).settings
    sizes = {
        "depth": settings.get("depth", settings.get("blocks")),
        "width": settings.get("width"),
        "kernel": settings.get("kernel"),
        "input": settings.get("image"),
        "parameters": point.features.get("parameters"),
        "batch": point.batch,
    }
    memory = point.memory_bytes.get("peak")
    if point.machine.kind == "cpu" and memory is not None:
        before = point.memory_bytes.get("before")
        memory = None if before is None else memory - before
    values = {TIME: point.step_ns[0] / 1e9, MEMORY: memory, FLOPS: sum_point_flops(point)}
    return SizeObservation(
        point.family,
        point.model,
        point.batch,
        {name: float(size) for name, size in sizes.items() if size is not None},
        {name: float(value) for name, value in values.items() if value is not None and value > 0},
    )


def correlate_quantities_with_sizes(observations: Sequence[SizeObservation]) -> list[SizeRelation]:
    """Every quantity against every size: in each family that has it, then in all where it means the
    same in all."""
    has = {(observation.family, size) for observation in observations for size in observation.sizes}
    families = list(dict.fromkeys(observation.family for observation in observations))
    return [
        correlate_quantity_with_size(family, quantity, size, observations)
        for family in (*families, *([ALL] if len(families) > 1 else []))
        for quantity in QUANTITIES
        for size in SIZES
        if (family, size) in has or (family == ALL and size not in OWN)
    ]


def correlate_quantity_with_size(
    family: str, quantity: str, size: str, observations: Iterable[SizeObservation]
) -> SizeRelation:
    selected = [
        observation
        for observation in observations
        if family in (ALL, observation.family)
        and size in observation.sizes
        and quantity in observation.values
    ]
    xs, ys = (
        [observation.sizes[size] for observation in selected],
        [observation.values[quantity] for observation in selected],
    )
    networks = len({observation.model for observation in selected})
    facts = (family, quantity, size, len(selected), networks)
    reason = None
    if len(selected) < LEAST:
        reason = (
            f"{len(selected)} points have both values; at least {LEAST} are needed"
            if selected
            else "no point has both values"
        )
    elif len(set(xs)) == 1 or len(set(ys)) == 1:
        reason = ONE_VALUE
    if reason:
        return SizeRelation(*facts, None, None, None, reason)
    association = compute_correlation_coefficients(xs, ys)
    ranked, linear = (
        None
        if value is None
        else Coefficient(value, compute_fisher_interval(value, len(xs), ranked=is_ranked))
        for value, is_ranked in ((association.spearman, True), (association.pearson, False))
    )
    return SizeRelation(*facts, ranked, linear, association.slope_log, None)


def list_unprofiled_bench_points(runs: Iterable[Run]) -> list[BenchPoint]:
    """The complete runs of the families' networks without a profiler, in order."""
    return [point for run in runs if (point := build_unprofiled_bench_point(run)) is not None]


def keep_fastest_points(points: Iterable[BenchPoint]) -> list[BenchPoint]:
    """Of several runs of one point on one machine, the one with the least median: disturbances only
    make runs slower."""
    best: dict[tuple[object, ...], BenchPoint] = {}
    for point in points:
        key = (point.model, point.batch, point.mode, point.precision, point.machine)
        best[key] = min(best.get(key, point), point, key=lambda one: one.step_ns[0])
    return list(best.values())


def build_unprofiled_bench_point(run: Run) -> BenchPoint | None:
    """None for a run that failed, of another workload, or with a profiler."""
    facts = run.report.environment
    model = facts.get("option:model")
    times = list_step_ns_without_data_loading(run.report.steps)
    if (run.workload, run.profiler, run.status) != (WORKLOAD, "none", "ok") or not times:
        return None
    if not (
        model and run.batch_size and run.mode and run.precision and run.device and run.device.name
    ):
        return None
    on_cpu = run.device.kind == "cpu"
    threads = facts.get("threads", "")
    cores = int(threads) if on_cpu and threads.isdecimal() else None
    memory = [
        sample
        for sample in run.report.memory
        if sample.quantity == ("host_resident" if on_cpu else "allocated")
    ]
    sizes = {
        sample.moment: sample.bytes for sample in memory if sample.moment in ("before", "peak")
    }
    forward, backward = sum_forward_and_other_times_by_layer(run.report.layer_times)
    low, median, high = (
        statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    )
    return BenchPoint(
        model=model,
        batch=run.batch_size,
        mode=run.mode,
        precision=run.precision,
        machine=BenchMachine(run.device.name, run.device.kind, cores, facts.get("torch")),
        steps=len(times),
        step_ns=(round(median), round(low), round(high)),
        fastest_ns=min(times),
        phase_ns=_compute_phase_median_ns(run),
        memory_bytes=sizes,
        forward_ns=forward,
        backward_ns=backward,
        features={feature.name: feature.value for feature in run.report.features},
    )


def sum_forward_and_other_times_by_layer(
    rows: Iterable[LayerTime],
) -> tuple[dict[str, int], dict[str, int]]:
    """Layer -> nanoseconds forward, and of all its other directions together."""
    forward, backward = Counter[str](), Counter[str]()
    for row in rows:
        (forward if row.direction == "forward" else backward)[row.layer] += row.duration_ns
    return dict(forward), dict(backward)


def _compute_phase_median_ns(run: Run) -> dict[str, int]:
    durations: dict[str, list[int]] = defaultdict(list)
    for row in run.report.steps:
        if (
            row.phase in ("forward", "backward", "optimizer", "inference")
            and row.duration_ns is not None
        ):
            durations[row.phase].append(row.duration_ns)
    return {name: round(statistics.median(times)) for name, times in durations.items()}


@dataclass(frozen=True, slots=True)
class TimeCorrelation:
    """One figure against the step's time, in one family."""

    family: str
    feature: str
    points: int
    pearson: float | None
    """-1..1, of the values. None: fewer than three points, or one value everywhere."""
    pearson_log: float | None
    """Of the logarithms of the points where the figure is above 0."""
    spearman: float | None
    """Of the ranks: any rising curve gives 1."""
    slope_log: float | None
    """Of the line through the logarithms: 1 where time is proportional to the figure."""


def correlate_features_with_step_time(points: Sequence[BenchPoint]) -> list[TimeCorrelation]:
    """Each family, then all together; in each the closest figure (by rank) first."""
    families = list(dict.fromkeys(point.family for point in points))
    names = sorted({name for point in points for name in collect_features_with_batch(point)})
    rows_ = []
    for family in (*families, *([ALL] if len(families) > 1 else [])):
        family_points = [point for point in points if family in (ALL, point.family)]
        rows = [
            row
            for name in names
            if (row := correlate_feature_with_step_time(family, name, family_points)).spearman
            is not None
        ]
        rows_ += sorted(rows, key=lambda row: -abs(row.spearman or 0.0))
    return rows_


def collect_features_with_batch(point: BenchPoint) -> dict[str, float]:
    return {**point.features, "batch": float(point.batch)}


def correlate_feature_with_step_time(
    family: str, feature: str, points: Iterable[BenchPoint]
) -> TimeCorrelation:
    """Return one figure against the step's time, over the points that have it."""
    pairs = [
        (collect_features_with_batch(point)[feature], point.step_ns[0] / 1e9)
        for point in points
        if feature in collect_features_with_batch(point)
    ]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    return TimeCorrelation(family, feature, len(pairs), *compute_correlation_coefficients(xs, ys))


class Association(NamedTuple):
    """How closely two figures go together, as in :class:`TimeCorrelation`."""

    pearson: float | None
    pearson_log: float | None
    spearman: float | None
    slope_log: float | None


def compute_correlation_coefficients(xs: Sequence[float], ys: Sequence[float]) -> Association:
    """Return the coefficients of these points; those of the logarithms are of the points where both
    figures are above 0."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True) if x > 0 and y > 0]
    log_xs, log_ys = [x for x, _ in logs], [y for _, y in logs]
    by_rank = compute_pearson(compute_ranks(xs), compute_ranks(ys))
    return Association(
        compute_pearson(xs, ys),
        compute_pearson(log_xs, log_ys),
        by_rank,
        fit_least_squares_slope(log_xs, log_ys),
    )


def compute_pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Return the coefficient of the values; None as in :class:`TimeCorrelation`."""
    if len(xs) < LEAST:
        return None
    off_x, off_y = ([value - math.fsum(side) / len(side) for value in side] for side in (xs, ys))
    along = math.sqrt(math.fsum(x**2 for x in off_x)) * math.sqrt(math.fsum(y**2 for y in off_y))
    if len(set(xs)) == 1 or len(set(ys)) == 1 or along == 0:
        return None
    return max(-1.0, min(1.0, math.fsum(x * y for x, y in zip(off_x, off_y, strict=True)) / along))


def compute_ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [
        (bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values
    ]


def fit_least_squares_slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Of the line of least squares through the points; None with fewer than three, or one value of
    x everywhere."""
    if len(xs) < LEAST or len(set(xs)) == 1:
        return None
    off = [x - math.fsum(xs) / len(xs) for x in xs]
    return math.fsum(x * y for x, y in zip(off, ys, strict=True)) / math.fsum(x**2 for x in off)
