"""Step times of one network on every device, in every precision, over all batch sizes: knots with straight lines between.

Of a step by the fit that ships only the words are here: ``published_table`` has its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, product
from math import isqrt
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict import predict, step_parts
from perfctl.orchestrator.analyse.predict.operations import OPTIMIZERS, Measured, Operation, StepSpec
from perfctl.orchestrator.analyse.predict.predict import PRECISIONS, Basis
from perfctl.orchestrator.analyse.predict.published import Published
from perfctl.orchestrator.analyse.predict.step_model import StepFitted, outside_range, phases_of, predict_steps
from perfctl.orchestrator.analyse.predict.step_parts import Floor, Rates, floor_seconds, optimizer_seconds

LARGEST = 65_536
TOLERANCE = 0.004
"""Largest error of a line, as a share of the prediction."""
ENDS = (1, 4096)
"""Batch sizes of a roofline split, whose parts are straight lines in batch."""
OCTETS = (1, 8, 64, 512, 4096)
"""Batch sizes of a fitted split, whose parts may begin at some size."""
PROBE = 65_521
"""A batch size that nobody measured, so that a sentence about it holds for all."""


class Knot(NamedTuple):
    """A batch size with its value and the range around it."""

    batch: int
    value: float
    low: float
    high: float


Curve = tuple[Knot, ...]
Rows = dict[tuple[str, str], list[float]]
"""(group, limit) -> amount at each batch size of a split."""
Made = TypeVar("Made")
Point = TypeVar("Point", bound=tuple[float, ...])


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in a step."""

    group: str
    limit: str
    amounts: tuple[float, ...]
    """At each batch size of the split, in seconds that only compare with each other."""


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of a step's time."""

    batches: tuple[int, ...]
    """Amounts are straight lines between and beyond these."""
    parts: tuple[Part, ...]
    optimizers: Mapping[str, tuple[Part, ...]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One device, precision and optimizer. The numbers are places in the lists of :class:`Grid`."""

    basis: Basis | None
    """None: nothing can be predicted, for ``reason``."""
    reason: str = ""
    curve: int | None = None
    """None: by ``published_table``."""
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
class Network:
    """What a grid is computed for."""

    name: str
    family: str
    works: tuple[Operation, ...]
    parameters: int
    names: Mapping[str, str] = field(default_factory=dict)
    """Its name in measured steps, by optimizer, if not ``name``."""

    def case(self, batch: int, precision: str, optimizer: str) -> StepSpec:
        name = self.names.get(optimizer, self.name)
        return StepSpec(name, self.family, self.works, batch, True, precision, optimizer, self.parameters)


@dataclass(slots=True)
class Grid:
    """All cells of one network, in the order of machines, precisions, optimizers."""

    cells: list[Cell] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)


def grid_of(
    network: Network,
    machines: Sequence[Machine],
    measured: Sequence[Measured] = (),
    fits: Sequence[StepFitted] = (),
    published: Published | None = None,
) -> Grid:
    """The training times of one network. Equal curves are stored once."""
    maker = _Maker(replace(network, works=step_parts.merged(network.works)))
    for machine in machines:
        own = [one for one in measured if one.machine == machine.name]
        for precision, optimizer in product(PRECISIONS, OPTIMIZERS):
            maker.add(machine, precision, optimizer, own, fits, published)
    return maker.grid


def curve_of(at: Callable[[Sequence[int]], Iterable[tuple[float, float, float]]], steps: int = 2) -> Curve:
    """A function of batch sizes as knots. ``steps``: points sampled per octave at least.

    Every call of ``at`` asks for many batch sizes, because a fitted model takes as long for one as for hundreds.
    """
    first = sorted({round(2 ** (n / steps)) for n in range(16 * steps + 1)})
    found = {batch: Knot(batch, *values) for batch, values in zip(first, at(first), strict=True)}
    open_pairs = list(pairwise(first))
    while middles := {(a, b): min(max(isqrt(a * b), a + 1), b - 1) for a, b in open_pairs if b - a > 1}:
        batches = list(middles.values())
        found |= {batch: Knot(batch, *values) for batch, values in zip(batches, at(batches), strict=True)}
        open_pairs = [
            pair
            for (a, b), middle in middles.items() if not _is_line(found[a], found[middle], found[b])
            for pair in ((a, middle), (middle, b))
        ]  # fmt: skip
    return tuple(thinned([found[batch] for batch in sorted(found)], TOLERANCE))


def _is_line(left: Knot, middle: Knot, right: Knot) -> bool:
    part = (middle.batch - left.batch) / (right.batch - left.batch)
    return all(
        abs(a + part * (b - a) - value) <= TOLERANCE / 2 * abs(value)
        for a, b, value in zip(left[1:], right[1:], middle[1:], strict=True)
    )


def thinned(points: Sequence[Point], tolerance: float) -> Iterator[Point]:
    """Those of ``points`` (batch, values) that lines between need to be within ``tolerance`` of all, as a share of each."""
    yield points[0]
    place = 0
    while place < len(points) - 1:
        place = _reach(points, place, tolerance)
        yield points[place]


def _reach(points: Sequence[tuple[float, ...]], start: int, tolerance: float) -> int:
    """The last point that a line from ``start`` reaches within the tolerance of all points between."""
    first, *origin = points[start]
    least, most, reached = [float("-inf")] * len(origin), [float("inf")] * len(origin), start + 1
    for place, (batch, *values) in enumerate(points[start + 1 :], start + 1):
        run = batch - first
        slopes = [(value - base) / run for value, base in zip(values, origin, strict=True)]
        if all(low <= slope <= high for low, slope, high in zip(least, slopes, most, strict=True)):
            reached = place
        gives = [tolerance * abs(value) / run for value in values]
        least = [max(low, slope - give) for low, slope, give in zip(least, slopes, gives, strict=True)]
        most = [min(high, slope + give) for high, slope, give in zip(most, slopes, gives, strict=True)]
        if any(low > high for low, high in zip(least, most, strict=True)):
            break
    return reached


class _Maker:
    """Computes the cells of one network. Curves and splits that cells share are computed once."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.grid = Grid()
        self.floors = step_parts.floors(network.works, training=True)
        self.known: dict[Hashable, int] = {}
        self.floor_at = cache(lambda rates, batch: step_parts.operations_floor(self.floors, batch, rates))
        self.beyond: dict[Hashable, tuple[tuple[int, tuple[str, ...]], ...]] = {}

    def add(
        self,
        machine: Machine,
        precision: str,
        optimizer: str,
        measured: Sequence[Measured],
        fits: Sequence[StepFitted],
        published: Published | None,
    ) -> None:
        case = self.network.case(PROBE, precision, optimizer)
        try:
            basis = predict.basis_of(case, machine, measured, fits, published)
        except ValueError as error:
            self.grid.cells.append(Cell(None, str(error)))
            return
        if basis.published is not None:
            source, coverage, outside = predict.published_words(basis.published, case, machine)
            self.grid.cells.append(Cell(basis, source=source, coverage=coverage, outside=outside))
            return
        found = predict.time_from(basis, case, machine)
        cell = Cell(basis, source=found.source, coverage=found.coverage)
        filled = self._fitted(cell, basis.fit, case, machine) if basis.fit else self._roofline(cell, case, machine)
        self.grid.cells.append(filled)

    def _place(self, into: list[Made], key: Hashable, make: Callable[[], Made]) -> int:
        if (id(into), key) not in self.known:
            self.known[id(into), key] = len(into)
            into.append(make())
        return self.known[id(into), key]

    def _roofline(self, cell: Cell, case: StepSpec, machine: Machine) -> Cell:
        rates = step_parts.rates_of(machine, case.precision)
        fp32, host = case.precision == "fp32", predict.started(case, machine)
        update = optimizer_seconds(case.parameters, case.optimizer, machine)

        def at(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for batch in batches:
                yield predict.around_roofline(self.floor_at(rates, batch) + update, case.precision, host)

        curve = self._place(self.grid.curves, (rates, fp32, host, update), lambda: curve_of(at))
        split = self._place(
            self.grid.splits, rates, lambda: roofline_split(self.floors, rates, case.parameters, machine)
        )
        return replace(cell, curve=curve, split=split)

    def _fitted(self, cell: Cell, fit: StepFitted, case: StepSpec, machine: Machine) -> Cell:
        key, curves = (fit.name, case.optimizer), self.grid.curves

        def at(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for time in predict_steps(fit, [replace(case, batch=batch) for batch in batches]):
                yield time.seconds, time.low, time.high

        def backward(batches: Sequence[int]) -> Iterator[tuple[float, float, float]]:
            for batch in batches:
                yield (phases_of(fit, replace(case, batch=batch), 1.0).get("backward", 0.0),) * 3

        if key not in self.beyond:
            self.beyond[key] = tuple(self._changes(fit, case))
        known = "backward" in fit.phases
        return replace(
            cell, curve=self._place(curves, key, lambda: curve_of(at, 8)),
            backward=self._place(curves, ("backward", key), lambda: curve_of(backward)) if known else None,
            split=self._place(self.grid.splits, fit.name, lambda: fitted_split(fit, case, machine)),
            outside=predict.beyond_fit(fit, case), beyond=self.beyond[key],
        )  # fmt: skip

    def _changes(self, fit: StepFitted, case: StepSpec) -> Iterator[tuple[int, tuple[str, ...]]]:
        @cache
        def outside(batch: int) -> tuple[str, ...]:
            return predict.beyond_range(outside_range(fit, replace(case, batch=batch)))

        yield 1, outside(1)
        open_pairs = [(2**n, 2 ** (n + 1)) for n in range(15, -1, -1)]
        while open_pairs:
            a, b = open_pairs.pop()
            if outside(a) == outside(b):
                continue
            if b - a == 1:
                yield b, outside(b)
            else:
                middle = (a + b) // 2
                open_pairs += ((middle, b), (a, middle))


def roofline_split(found: Sequence[Floor], rates: Rates, parameters: int, machine: Machine) -> Split:
    rows: Rows = defaultdict(lambda: [0.0] * len(ENDS))
    for floor in found:
        for place, batch in enumerate(ENDS):
            for limit, seconds in zip(("arithmetic", "bytes"), floor_seconds(floor, batch, rates), strict=True):
                rows[floor.group, limit][place] += seconds
    update = {name: (optimizer_seconds(parameters, name, machine),) * len(ENDS) for name in OPTIMIZERS}
    return Split(ENDS, _parts(rows), {name: (Part("optimizer", "bytes", each),) for name, each in update.items()})


def fitted_split(fit: StepFitted, case: StepSpec, machine: Machine) -> Split:
    rows: Rows = defaultdict(lambda: [0.0] * len(OCTETS))
    for place, batch in enumerate(OCTETS):
        for group, part, seconds in predict.fitted_amounts(fit, replace(case, batch=batch), machine):
            if group != "optimizer":
                rows[group, predict.limit_of(part)][place] += seconds
    optimizers: dict[str, Rows] = {name: defaultdict(lambda: [0.0] * len(OCTETS)) for name in OPTIMIZERS}
    for name, into in optimizers.items():
        for group, part, seconds in predict.fitted_amounts(fit, replace(case, batch=1, optimizer=name), machine):
            if group == "optimizer":
                key = group, predict.limit_of(part)
                into[key] = [value + seconds for value in into[key]]
    return Split(OCTETS, _parts(rows), {name: _parts(into) for name, into in optimizers.items()})


def _parts(amounts: Rows) -> tuple[Part, ...]:
    return tuple(Part(*key, tuple(row)) for key, row in amounts.items() if any(row))
