"""Step times of one network on every device, in every precision, over all batch sizes: knots with
straight lines between.

A step by the fit that ships, as two small tables: what a network has of each part, and what a unit
of it costs on a device.

Amounts are the same on every device, costs the same for every network, and the seconds of the GPU
are their scalar product::

    seconds = max(min(sum(rate[row, part] * amount[part, batch]) for row in rows),
                  host seconds an operation * operations)

``rows`` are those of the device and of weaker ones (``published``: no device is slower than a
weaker one). The result is that of :func:`published.predict_step_by_published_fit`; amounts that
bend are kept to :data:`CLOSE`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from math import isqrt
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict import predict, published, step_parts
from perfctl.orchestrator.predict.fit import (
    StepFit,
    list_features_outside_fit_range,
    predict_step_times,
    split_seconds_into_phases,
)
from perfctl.orchestrator.predict.operations import (
    OPTIMIZERS,
    Operation,
    StepMeasurement,
    StepSpec,
)
from perfctl.orchestrator.predict.predict import (
    PRECISIONS,
    Evidence,
    OwnFitSource,
    PublishedSource,
    choose_best_time_source,
)
from perfctl.orchestrator.predict.published import UNIT, ShippedFit
from perfctl.orchestrator.predict.step_parts import (
    LIMIT_OF,
    PARTS,
    compute_optimizer_seconds,
)

CLOSE = 0.001
"""Largest error of an amount between two of its batch sizes, as a share of it."""
TYPES = {4: "fp32", 2: "fp16"}
"""Bytes of an activation -> a precision that has it: amounts are equal in all others that
have it."""
PLACES = {name: place for place, name in enumerate(PARTS)}
ONE = (Operation("", "other", 1, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0),)

Points = tuple[tuple[int, float], ...]
"""(batch, amount), from the first batch to the last, on straight lines."""
LARGEST = 65_536
TOLERANCE = 0.004
"""Largest error of a line, as a share of the prediction."""
OCTETS = (1, 8, 64, 512, 4096)
"""Batch sizes of a split, whose parts may begin at some size."""
PROBE = 65_521
"""A batch size that nobody measured, so that a sentence about it holds for all."""
Rows = dict[tuple[str, str], list[float]]
"""(group, limit) -> amount at each batch size of a split."""
Made = TypeVar("Made")
Point = TypeVar("Point", bound=tuple[float, ...])


class GroupAmount(NamedTuple):
    """How much a group of work has of one part: FLOPs, bytes or a count (1 multiply-add =
    2 FLOPs)."""

    group: str
    """``step_parts.classify_operation``, "optimizer" or "overhead"."""
    part: int
    """Its place in PARTS."""
    points: Points


@dataclass(frozen=True, slots=True)
class NetworkAmounts:
    """Of one network, in training."""

    steps: Mapping[int, tuple[GroupAmount, ...]]
    """Bytes of an activation -> everything but the optimizer."""
    optimizers: Mapping[str, tuple[GroupAmount, ...]]
    """Optimizer -> the part of its update, which is equal at every batch size: one point."""
    operations: float
    """:func:`published.count_weighted_host_starts`."""


class DeviceCost(NamedTuple):
    """What a step costs on one device, in one precision."""

    own: int
    """The row of the device itself."""
    rows: tuple[int, ...]
    """Rows of the table of which the smallest product counts."""
    host: float
    """Seconds of the host for each operation."""
    gpu_width: float
    """Factor to the ends of the interval, of the GPU's seconds; host_width: of the host's."""
    host_width: float


@dataclass(frozen=True, slots=True)
class DeviceCosts:
    """Rows of seconds a unit, one for each of PARTS, and the devices that they belong to."""

    rows: tuple[tuple[float, ...], ...]
    of: Mapping[tuple[str, str], DeviceCost]
    """(device, precision) -> its rows. Without those that a device has no peak for."""


def compute_network_part_amounts(
    works: Sequence[Operation], parameters: int, max_batch: int
) -> NetworkAmounts:
    """``max_batch``: the last batch size."""
    case = StepSpec(
        "", "", step_parts.merge_equal_operations(works), 1, True, "fp32", OPTIMIZERS[0], parameters
    )
    optimizers = {
        name: tuple(_compute_optimizer_part_amounts(replace(case, optimizer=name)))
        for name in OPTIMIZERS
    }
    steps = {
        size: _compute_step_part_amounts(replace(case, precision=name), size, max_batch)
        for size, name in TYPES.items()
    }
    return NetworkAmounts(
        steps, optimizers, published.count_weighted_host_starts(works, training=True)
    )


def _compute_optimizer_part_amounts(case: StepSpec) -> Iterable[GroupAmount]:
    """Return the amounts of the optimizer's update, which are equal at every batch size."""
    sums: dict[str, float] = defaultdict(float)
    for row in step_parts.iterate_weighted_part_seconds(case, UNIT):
        if row.group == "optimizer":
            sums[row.part] += row.amount
    return (
        GroupAmount("optimizer", PLACES[part], ((1, amount),))
        for part, amount in sums.items()
        if amount
    )


def _compute_step_part_amounts(
    case: StepSpec, element_bytes: int, max_batch: int
) -> tuple[GroupAmount, ...]:
    """Each operation's parts are straight between the batch sizes at which it outgrows a cache:
    they are added up as slopes."""
    starts: dict[tuple[str, str], float] = defaultdict(float)
    turns: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for work in case.works:
        group = step_parts.classify_operation(work)
        batches = sorted(
            {
                1,
                max_batch,
                *(
                    bend
                    for bend in step_parts.list_cache_overflow_batches(work, element_bytes)
                    if 1 < bend < max_batch
                ),
            }
        )
        part_sums: list[dict[str, float]] = []
        for batch in batches:
            sums: dict[str, float] = defaultdict(float)
            for part, amount in step_parts.list_operation_part_seconds(
                work, replace(case, batch=batch), UNIT
            ):
                if not part.endswith(" optimizer"):
                    sums[part] += amount
            part_sums.append(sums)
        for part, first in part_sums[0].items():
            key, slope = (group, part), 0.0
            starts[key] += first
            for (batch, part_sum), (after, other) in pairwise(zip(batches, part_sums, strict=True)):
                rise = (other[part] - part_sum[part]) / (after - batch)
                if rise != slope:
                    turns[key][batch] += rise - slope
                    slope = rise
    starts["overhead", "step forward"] = step_parts.MILLISECOND
    keyed_points = (
        (*key, _integrate_slopes(start, turns.get(key, {}), max_batch))
        for key, start in starts.items()
    )
    return tuple(
        GroupAmount(group, PLACES[part], points)
        for group, part, points in keyed_points
        if points[-1][1]
    )


def _integrate_slopes(start: float, slope_changes: Mapping[int, float], max_batch: int) -> Points:
    """From the first value and the changes of slope, with as few points as :data:`CLOSE` allows."""
    points, slope = [(1, start)], slope_changes.get(1, 0.0)
    for batch in (*sorted(turn for turn in slope_changes if turn > 1), max_batch):
        before, value = points[-1]
        points.append((batch, value + slope * (batch - before)))
        slope += slope_changes.get(batch, 0.0)
    return tuple(simplify_polyline(points, CLOSE))


def compute_device_part_costs(
    fit: ShippedFit, machines: Iterable[Machine], precisions: Iterable[str]
) -> DeviceCosts:
    """Of GPUs; a device without a peak for a precision is left out there."""
    rows: dict[tuple[float, ...], int] = {}
    cost_by_pair: dict[tuple[str, str], DeviceCost] = {}
    for precision in precisions:
        case = StepSpec("", "", ONE, 1, True, precision, OPTIMIZERS[0], 0)
        for machine in machines:
            try:
                machine_row, other_rows = (
                    published.scale_fit_to_machine(fit, case, machine).rates,
                    published.list_upper_bound_rates(fit, case, machine),
                )
            except ValueError:
                continue
            bounds = published.compute_host_time_and_interval_factors(fit, case, machine)
            undominated = [
                machine_row,
                *(row for row in other_rows if not _is_never_cheaper(row, machine_row)),
            ]
            undominated = [
                row
                for row in dict.fromkeys(undominated)
                if not any(_is_never_cheaper(row, other) for other in undominated if other != row)
            ]
            places = tuple(rows.setdefault(row, len(rows)) for row in (machine_row, *undominated))
            cost_by_pair[machine.name, precision] = DeviceCost(
                places[0],
                tuple(sorted(set(places[1:]))),
                bounds.host,
                bounds.gpu_width,
                bounds.host_width,
            )
    return DeviceCosts(tuple(rows), cost_by_pair)


def _is_never_cheaper(row: Sequence[float], other: Sequence[float]) -> bool:
    """True if no network could take less time by ``row`` than by ``other``."""
    return all(value >= its for value, its in zip(row, other, strict=True))


class CurveKnot(NamedTuple):
    """A batch size with its value and the range around it."""

    batch: int
    value: float
    low: float
    high: float


Curve = tuple[CurveKnot, ...]


@dataclass(frozen=True, slots=True)
class WorkShare:
    """One kind of work in a step."""

    group: str
    limit: str
    amounts: tuple[float, ...]
    """At each batch size of the split, in seconds that only compare with each other."""


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Shares of a step's time."""

    batches: tuple[int, ...]
    """Amounts are straight lines between and beyond these."""
    parts: tuple[WorkShare, ...]
    optimizers: Mapping[str, tuple[WorkShare, ...]]


@dataclass(frozen=True, slots=True)
class GridCell:
    """One device, precision and optimizer. The numbers are places in the lists of
    :class:`TimeGrid`."""

    way: str
    """Name of the source; "" if nothing can be predicted, for ``reason``."""
    reason: str = ""
    why_not: tuple[str, ...] = ()
    """Why each better source was not possible."""
    curve: int | None = None
    """Index of a curve. None: by the tables of amounts and costs."""
    backward: int | None = None
    """A curve with the part of the step that is its backward. None: not known."""
    split: int | None = None
    source: str = ""
    coverage: float | None = None
    outside: tuple[str, ...] = ()
    """Sentences: what the fit has not seen, at every batch size."""
    beyond: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """(from this batch on, sentences)."""


@dataclass(frozen=True, slots=True)
class GridNetwork:
    """What a grid is computed for."""

    name: str
    family: str
    works: tuple[Operation, ...]
    parameters: int
    names: Mapping[str, str] = field(default_factory=dict)
    """Its name in measured steps, by optimizer, if not ``name``."""

    def make_step_spec(self, batch: int, precision: str, optimizer: str) -> StepSpec:
        name = self.names.get(optimizer, self.name)
        return StepSpec(
            name, self.family, self.works, batch, True, precision, optimizer, self.parameters
        )


@dataclass(slots=True)
class TimeGrid:
    """All cells of one network, in the order of machines, precisions, optimizers."""

    cells: list[GridCell] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    splits: list[StepSplit] = field(default_factory=list)


def compute_training_time_grid(
    network: GridNetwork,
    machines: Sequence[Machine],
    measured: Sequence[StepMeasurement] = (),
    fits: Sequence[StepFit] = (),
    published: ShippedFit | None = None,
) -> TimeGrid:
    """Return the training times of one network. Equal curves are stored once."""
    maker = _GridBuilder(replace(network, works=step_parts.merge_equal_operations(network.works)))
    for machine in machines:
        machine_steps = [step for step in measured if step.machine == machine.name]
        for precision, optimizer in product(PRECISIONS, OPTIMIZERS):
            maker.add_cell(machine, precision, optimizer, machine_steps, fits, published)
    return maker.grid


def sample_curve_adaptively(
    evaluate_batches: Callable[[Sequence[int]], Iterable[tuple[float, float, float]]],
    points_per_octave: int = 2,
) -> Curve:
    """Return a function of batch sizes as knots. ``points_per_octave``: points sampled per octave
    at least.

    Every call of ``evaluate_batches`` asks for many batch sizes, because a fitted model takes as
    long for one as for hundreds.
    """
    first = sorted({round(2 ** (n / points_per_octave)) for n in range(16 * points_per_octave + 1)})
    knot_at = {
        batch: CurveKnot(batch, *values)
        for batch, values in zip(first, evaluate_batches(first), strict=True)
    }
    open_pairs = list(pairwise(first))
    while middles := {
        (a, b): min(max(isqrt(a * b), a + 1), b - 1) for a, b in open_pairs if b - a > 1
    }:
        batches = list(middles.values())
        knot_at |= {
            batch: CurveKnot(batch, *values)
            for batch, values in zip(batches, evaluate_batches(batches), strict=True)
        }
        open_pairs = [
            pair
            for (a, b), middle in middles.items()
            if not _is_straight_between(knot_at[a], knot_at[middle], knot_at[b])
            for pair in ((a, middle), (middle, b))
        ]
    return tuple(simplify_polyline([knot_at[batch] for batch in sorted(knot_at)], TOLERANCE))


def _is_straight_between(first: CurveKnot, middle: CurveKnot, right: CurveKnot) -> bool:
    part = (middle.batch - first.batch) / (right.batch - first.batch)
    return all(
        abs(a + part * (b - a) - value) <= TOLERANCE / 2 * abs(value)
        for a, b, value in zip(first[1:], right[1:], middle[1:], strict=True)
    )


def simplify_polyline(points: Sequence[Point], tolerance: float) -> Iterator[Point]:
    """Those of ``points`` (batch, values) that lines between need to be within ``tolerance`` of
    all, as a share of each."""
    yield points[0]
    index = 0
    while index < len(points) - 1:
        index = _find_farthest_line_end(points, index, tolerance)
        yield points[index]


def _find_farthest_line_end(
    points: Sequence[tuple[float, ...]], start: int, tolerance: float
) -> int:
    """Return the last point that a line from ``start`` reaches within the tolerance of all points
    between."""
    first, *origin = points[start]
    least, most, reached = [float("-inf")] * len(origin), [float("inf")] * len(origin), start + 1
    for index, (batch, *values) in enumerate(points[start + 1 :], start + 1):
        run = batch - first
        slopes = [(value - base) / run for value, base in zip(values, origin, strict=True)]
        if all(low <= slope <= high for low, slope, high in zip(least, slopes, most, strict=True)):
            reached = index
        gives = [tolerance * abs(value) / run for value in values]
        least = [
            max(low, slope - give) for low, slope, give in zip(least, slopes, gives, strict=True)
        ]
        most = [
            min(high, slope + give) for high, slope, give in zip(most, slopes, gives, strict=True)
        ]
        if any(low > high for low, high in zip(least, most, strict=True)):
            break
    return reached


class _GridBuilder:
    """Computes the cells of one network. Curves and splits that cells share are computed once."""

    def __init__(self, network: GridNetwork) -> None:
        self.network = network
        self.grid = TimeGrid()
        self.floors = step_parts.list_operation_floors(network.works, training=True)
        self.known: dict[Hashable, int] = {}
        self.floor_at = cache(
            lambda rates, batch: step_parts.sum_operation_floor_seconds(self.floors, batch, rates)
        )
        self.beyond: dict[Hashable, tuple[tuple[int, tuple[str, ...]], ...]] = {}

    def add_cell(
        self,
        machine: Machine,
        precision: str,
        optimizer: str,
        measured: Sequence[StepMeasurement],
        fits: Sequence[StepFit],
        published: ShippedFit | None,
    ) -> None:
        case = self.network.make_step_spec(PROBE, precision, optimizer)
        try:
            source, why_not = choose_best_time_source(
                case, machine, Evidence(measured, fits, published)
            )
        except ValueError as error:
            self.grid.cells.append(GridCell("", str(error)))
            return
        grounds = source.grounds
        cell = GridCell(
            source.way,
            why_not=why_not,
            source=grounds.source,
            coverage=grounds.coverage,
            outside=grounds.outside,
        )
        if isinstance(source, OwnFitSource):
            cell = self._add_fitted_curve(cell, source.fit, case, machine)
        elif not isinstance(source, PublishedSource):
            cell = self._add_roofline_curve(cell, case, machine)
        self.grid.cells.append(cell)

    def _add_once_and_get_index(
        self, into: list[Made], key: Hashable, make: Callable[[], Made]
    ) -> int:
        if (id(into), key) not in self.known:
            self.known[id(into), key] = len(into)
            into.append(make())
        return self.known[id(into), key]

    def _add_roofline_curve(self, cell: GridCell, case: StepSpec, machine: Machine) -> GridCell:
        rates = step_parts.get_peak_rates(machine, case.precision)
        fp32, host = case.precision == "fp32", predict.compute_host_launch_seconds(case, machine)
        update = compute_optimizer_seconds(case.parameters, case.optimizer, machine)

        def predict_batches(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for batch in batches:
                yield predict.compute_roofline_seconds_and_interval(
                    self.floor_at(rates, batch) + update, case.precision, host
                )

        curve = self._add_once_and_get_index(
            self.grid.curves,
            (rates, fp32, host, update),
            lambda: sample_curve_adaptively(predict_batches),
        )
        split = self._add_once_and_get_index(
            self.grid.splits, rates, lambda: split_step_by_work_and_limit(None, case, machine)
        )
        return replace(cell, curve=curve, split=split)

    def _add_fitted_curve(
        self, cell: GridCell, fit: StepFit, case: StepSpec, machine: Machine
    ) -> GridCell:
        key, curves = (fit.name, case.optimizer), self.grid.curves

        def predict_batches(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for time in predict_step_times(fit, [replace(case, batch=batch) for batch in batches]):
                yield time.seconds, time.low, time.high

        def predict_backward_share(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for batch in batches:
                yield (
                    split_seconds_into_phases(fit, replace(case, batch=batch), 1.0).get(
                        "backward", 0.0
                    ),
                ) * 3

        if key not in self.beyond:
            self.beyond[key] = tuple(self._find_fit_range_changes_by_batch(fit, case))
        splits_phases = "backward" in fit.phases
        return replace(
            cell,
            curve=self._add_once_and_get_index(
                curves, key, lambda: sample_curve_adaptively(predict_batches, 8)
            ),
            backward=self._add_once_and_get_index(
                curves, ("backward", key), lambda: sample_curve_adaptively(predict_backward_share)
            )
            if splits_phases
            else None,
            split=self._add_once_and_get_index(
                self.grid.splits, fit.name, lambda: split_step_by_work_and_limit(fit, case, machine)
            ),
            beyond=self.beyond[key],
        )

    def _find_fit_range_changes_by_batch(
        self, fit: StepFit, case: StepSpec
    ) -> Iterator[tuple[int, tuple[str, ...]]]:
        @cache
        def describe_features_outside_fit(batch: int) -> tuple[str, ...]:
            return predict.describe_features_outside_fit_range(
                list_features_outside_fit_range(fit, replace(case, batch=batch))
            )

        yield 1, describe_features_outside_fit(1)
        open_pairs = [(2**n, 2 ** (n + 1)) for n in range(15, -1, -1)]
        while open_pairs:
            a, b = open_pairs.pop()
            if describe_features_outside_fit(a) == describe_features_outside_fit(b):
                continue
            if b - a == 1:
                yield b, describe_features_outside_fit(b)
            else:
                middle = (a + b) // 2
                open_pairs += ((middle, b), (a, middle))


def split_step_by_work_and_limit(
    fit: StepFit | None, case: StepSpec, machine: Machine
) -> StepSplit:
    """Return the shares of a step by the costs of a fit, or by the peaks alone."""
    costs = predict.get_cost_by_part(fit)
    rows: Rows = defaultdict(lambda: [0.0] * len(OCTETS))
    for octet, batch in enumerate(OCTETS):
        for row in step_parts.iterate_weighted_part_seconds(
            replace(case, batch=batch), machine, costs
        ):
            if row.group != "optimizer":
                rows[row.group, LIMIT_OF[row.part]][octet] += row.amount
    optimizers: dict[str, tuple[WorkShare, ...]] = {}
    for name in OPTIMIZERS:
        updates: Rows = defaultdict(lambda: [0.0] * len(OCTETS))
        for row in step_parts.iterate_weighted_part_seconds(
            replace(case, batch=1, optimizer=name), machine, costs
        ):
            if row.group == "optimizer":
                key = row.group, LIMIT_OF[row.part]
                updates[key] = [value + row.amount for value in updates[key]]
        optimizers[name] = _list_work_shares(updates)
    return StepSplit(OCTETS, _list_work_shares(rows), optimizers)


def _list_work_shares(amounts: Rows) -> tuple[WorkShare, ...]:
    return tuple(WorkShare(*key, tuple(row)) for key, row in amounts.items() if any(row))
