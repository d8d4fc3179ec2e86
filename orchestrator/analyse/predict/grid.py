"""Step times of one network worked out ahead, on every device, in every precision, over all batch sizes.

Over batch size a time is kept as a few knots; between two of them it is a straight line in batch (a step is made of parts
that grow with batch and parts that do not). Knots lie where the prediction bends or jumps: at least as many as keep the
line within :data:`TOLERANCE` of the prediction. A jump lies between two neighbouring batch sizes and is not smeared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict.operations import OPTIMIZERS, Measured, Operation, StepSpec
from perfctl.orchestrator.analyse.predict.predict import (
    PRECISIONS,
    Basis,
    around_roofline,
    basis_of,
    beyond_fit,
    beyond_range,
    fitted_amounts,
    limit_of,
    started,
    time_from,
)
from perfctl.orchestrator.analyse.predict.step_model import TRANSFER, StepFitted, phases_of, predict_step, weighed
from perfctl.orchestrator.analyse.predict.step_parts import (
    Floor,
    Rates,
    floor_seconds,
    floors,
    merged,
    operations_floor,
    optimizer_seconds,
    parts,
    rates_of,
)

LARGEST = 65_536
"""The largest batch size of a grid."""
TOLERANCE = 0.004
"""Of the value: how far a line between two knots may be from the prediction."""
ENDS = (1, 4096)
"""Batch sizes at which the parts of a step are kept where each is straight in batch: at the machine's peaks."""
OCTETS = (1, 8, 64, 512, 4096)
"""And where they bend: by a fit, of which some parts begin at a size."""
PROBE = 65_521
"""A batch size that nobody measured: what is said of it holds for all, with the number put in."""


class Knot(NamedTuple):
    """A batch size with its value and the range around it."""

    batch: int
    value: float
    low: float
    high: float


Curve = tuple[Knot, ...]
"""By batch, from 1 to :data:`LARGEST`."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work in a step."""

    group: str
    """See ``step_parts.group_of``; "optimizer" and "overhead" beside these."""
    limit: str
    """arithmetic, bytes or operations."""
    amounts: tuple[float, ...]
    """At each batch size of the split, in seconds that are only held against each other."""


@dataclass(frozen=True, slots=True)
class Split:
    """Where the time of a step goes."""

    batches: tuple[int, ...]
    """Between and beyond these the amounts are straight."""
    parts: tuple[Part, ...]
    optimizers: Mapping[str, tuple[Part, ...]]
    """By optimizer: what its step adds."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One device, precision and optimizer. The numbers are places in the lists of :class:`Grid`."""

    basis: Basis | None
    """None: nothing can be predicted, for ``reason``."""
    reason: str = ""
    curve: int = 0
    """Seconds of a step."""
    times: int | None = None
    """A curve by which these seconds are multiplied. None: by 1."""
    backward: int | None = None
    """A curve with the part of the step that is its backward. None: not known."""
    split: int = 0
    source: str = ""
    coverage: float | None = None
    outside: tuple[str, ...] = ()
    """Where this goes beyond what was learned from, at every batch size."""
    beyond: tuple[tuple[int, tuple[str, ...]], ...] = ()
    """(from this batch on, sentences)."""


@dataclass(frozen=True, slots=True)
class Network:
    """What a grid is made of."""

    name: str
    family: str
    works: tuple[Operation, ...]
    parameters: int
    names: Mapping[str, str] = field(default_factory=dict)
    """What it is called in measured steps, by optimizer, where that is not ``name``."""

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
    network: Network, machines: Sequence[Machine], measured: Sequence[Measured] = (), fits: Sequence[StepFitted] = ()
) -> Grid:
    """Of training; equal curves are kept once."""
    maker = _Maker(replace(network, works=merged(network.works)))
    here = {machine.name: [one for one in measured if one.machine == machine.name] for machine in machines}
    for machine in machines:
        for precision in PRECISIONS:
            for optimizer in OPTIMIZERS:
                maker.add(machine, precision, optimizer, here[machine.name], fits)
    return maker.grid


def between(curve: Curve, batch: int) -> Knot:
    """The curve at a batch size inside of it."""
    for left, right in pairwise(curve):
        if left.batch <= batch <= right.batch:
            return _line(left, right, batch)
    raise ValueError(f"batch {batch} is outside of the curve, which goes from {curve[0].batch} to {curve[-1].batch}")


def _line(left: Knot, right: Knot, batch: int) -> Knot:
    part = (batch - left.batch) / (right.batch - left.batch)
    value, low, high = (a + part * (b - a) for a, b in zip(left[1:], right[1:], strict=True))
    return Knot(batch, value, low, high)


def curve_of(at: Callable[[int], tuple[float, float, float]], steps: int = 2) -> Curve:
    """A function of batch size as knots. ``steps``: points an octave that are looked at in any case."""
    return _fewest(_sampled(at, steps))


def _sampled(at: Callable[[int], tuple[float, float, float]], steps: int) -> list[Knot]:
    """Points between which no line is far off, as far as their middles show it."""
    first = sorted({round(2 ** (n / steps)) for n in range(16 * steps + 1)})
    found = {batch: Knot(batch, *at(batch)) for batch in first}
    open_pairs = list(pairwise(first))
    while open_pairs:
        a, b = open_pairs.pop()
        if b - a < 2:
            continue
        middle = min(max(isqrt(a * b), a + 1), b - 1)
        found[middle] = Knot(middle, *at(middle))
        if not _near(_line(found[a], found[b], middle), found[middle], TOLERANCE / 2):
            open_pairs += ((a, middle), (middle, b))
    return [found[batch] for batch in sorted(found)]


def _near(one: Knot, other: Knot, tolerance: float) -> bool:
    return all(abs(a - b) <= tolerance * abs(b) for a, b in zip(one[1:], other[1:], strict=True))


def _fewest(points: Sequence[Knot]) -> Curve:
    """Those of the points between which lines stay within the tolerance of all others: from each as far as it goes."""
    kept, place = [points[0]], 0
    while place < len(points) - 1:
        place = _reach(points, place)
        kept.append(points[place])
    return tuple(kept)


def _reach(points: Sequence[Knot], start: int) -> int:
    """The last point to which a line from ``start`` passes near all between: slopes that do are a range that narrows."""
    x, *origin = points[start]
    least, most, reached = [float("-inf")] * 3, [float("inf")] * 3, start + 1
    for place in range(start + 1, len(points)):
        batch, *values = points[place]
        run = batch - x
        slopes = [(value - base) / run for value, base in zip(values, origin, strict=True)]
        if all(low <= slope <= high for low, slope, high in zip(least, slopes, most, strict=True)):
            reached = place
        for column, (slope, value) in enumerate(zip(slopes, values, strict=True)):
            give = TOLERANCE * abs(value) / run
            least[column] = max(least[column], slope - give)
            most[column] = min(most[column], slope + give)
        if any(low > high for low, high in zip(least, most, strict=True)):
            break
    return reached


class _Maker:
    """Works out the cells of one network; what several of them share is worked out once."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.grid = Grid()
        self.floors = floors(network.works, training=True)
        self.known: dict[Hashable, int] = {}
        self.floor_at: dict[tuple[Rates, int], float] = {}
        self.own_at: dict[tuple[str, str, int], tuple[float, ...]] = {}
        self.beyond: dict[Hashable, tuple[tuple[int, tuple[str, ...]], ...]] = {}

    def add(
        self, machine: Machine, precision: str, optimizer: str, measured: Sequence[Measured], fits: Sequence[StepFitted]
    ) -> None:
        case = self.network.case(PROBE, precision, optimizer)
        try:
            basis = basis_of(case, machine, measured, fits)
        except ValueError as error:
            self.grid.cells.append(Cell(None, str(error)))
            return
        found = time_from(basis, case, machine)
        cell = Cell(basis, source=found.source, coverage=found.coverage)
        filled = self._fitted(cell, basis.fit, case, machine) if basis.fit else self._roofline(cell, case, machine)
        self.grid.cells.append(filled)

    def _curve(self, key: Hashable, make: Callable[[], Curve]) -> int:
        if key not in self.known:
            self.known[key] = len(self.grid.curves)
            self.grid.curves.append(make())
        return self.known[key]

    def _split(self, key: Hashable, make: Callable[[], Split]) -> int:
        if ("split", key) not in self.known:
            self.known["split", key] = len(self.grid.splits)
            self.grid.splits.append(make())
        return self.known["split", key]

    def _roofline(self, cell: Cell, case: StepSpec, machine: Machine) -> Cell:
        rates = rates_of(machine, case.precision)
        fp32, host = case.precision == "fp32", started(case, machine)
        moved = optimizer_seconds(case.parameters, case.optimizer, machine)

        def at(batch: int) -> tuple[float, float, float]:
            if (rates, batch) not in self.floor_at:
                self.floor_at[rates, batch] = operations_floor(self.floors, batch, rates)
            return around_roofline(self.floor_at[rates, batch] + moved, case.precision, host)

        curve = self._curve((rates, fp32, host, moved), lambda: curve_of(at))
        split = self._split(rates, lambda: roofline_split(self.floors, rates, case.parameters, machine))
        return replace(cell, curve=curve, split=split)

    def _fitted(self, cell: Cell, fit: StepFitted, case: StepSpec, machine: Machine) -> Cell:
        own, key = machine.name == fit.machine.name, (fit.name, case.optimizer)
        curve = self._curve((key, own), lambda: curve_of(lambda batch: self._by_fit(fit, case, batch, own), 8))
        if key not in self.beyond:
            self.beyond[key] = tuple(self._changes(fit, case))
        times = None if own else self._curve(
            ("times", key, machine.name), lambda: curve_of(lambda batch: self._moved(fit, case, machine, batch)))  # fmt: skip
        backward = None
        if "backward" in fit.phases:
            backward = self._curve(
                ("backward", key, machine.name), lambda: curve_of(lambda batch: _backward(fit, case, machine, batch)))  # fmt: skip
        split = self._split((fit.name, machine.name), lambda: fitted_split(fit, case, machine))
        return replace(
            cell, curve=curve, times=times, backward=backward, split=split, outside=beyond_fit(fit, case, machine),
            beyond=self.beyond[key],
        )  # fmt: skip

    def _by_fit(self, fit: StepFitted, case: StepSpec, batch: int, own: bool) -> tuple[float, float, float]:
        """On the fit's machine; for another one the range is as wide as it is there."""
        found = predict_step(fit, replace(case, batch=batch))
        wide = (found.high / found.seconds) ** TRANSFER
        return (
            (found.seconds, found.low, found.high)
            if own
            else (found.seconds, found.seconds / wide, found.seconds * wide)
        )

    def _moved(self, fit: StepFitted, case: StepSpec, machine: Machine, batch: int) -> tuple[float, float, float]:
        """How much longer a step takes than on the fit's machine."""
        key, one = (fit.name, case.optimizer, batch), replace(case, batch=batch)
        if key not in self.own_at:
            self.own_at[key] = parts(one, fit.machine)
        ratio = weighed(fit.costs, parts(one, machine)) / weighed(fit.costs, self.own_at[key])
        return ratio, ratio, ratio

    def _changes(self, fit: StepFitted, case: StepSpec) -> Iterator[tuple[int, tuple[str, ...]]]:
        """(batch, what is outside of the fit's range from there on)."""
        seen: dict[int, tuple[str, ...]] = {}

        def outside(batch: int) -> tuple[str, ...]:
            if batch not in seen:
                seen[batch] = beyond_range(predict_step(fit, replace(case, batch=batch)).outside)
            return seen[batch]

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


def _backward(fit: StepFitted, case: StepSpec, machine: Machine, batch: int) -> tuple[float, float, float]:
    part = phases_of(fit, replace(case, batch=batch), 1.0, machine).get("backward", 0.0)
    return part, part, part


def roofline_split(found: Sequence[Floor], rates: Rates, parameters: int, machine: Machine) -> Split:
    """At the machine's peaks."""
    amounts: dict[tuple[str, str], list[float]] = {}
    for floor in found:
        for place, batch in enumerate(ENDS):
            arithmetic, moved = floor_seconds(floor, batch, rates)
            for limit, seconds in (("arithmetic", arithmetic), ("bytes", moved)):
                amounts.setdefault((floor.group, limit), [0.0] * len(ENDS))[place] += seconds
    optimizers = {
        name: (Part("optimizer", "bytes", (optimizer_seconds(parameters, name, machine),) * len(ENDS)),)
        for name in OPTIMIZERS
    }
    return Split(ENDS, _parts(amounts), optimizers)


def fitted_split(fit: StepFitted, case: StepSpec, machine: Machine) -> Split:
    """By the fit's cost of each part."""
    rows: dict[tuple[str, str], list[float]] = {}
    optimizers: dict[str, dict[tuple[str, str], list[float]]] = {name: {} for name in OPTIMIZERS}
    for place, batch in enumerate(OCTETS):
        for group, part, seconds in fitted_amounts(fit, replace(case, batch=batch), machine):
            if group != "optimizer":
                rows.setdefault((group, limit_of(part)), [0.0] * len(OCTETS))[place] += seconds
    for name, into in optimizers.items():
        for group, part, seconds in fitted_amounts(fit, replace(case, batch=1, optimizer=name), machine):
            if group == "optimizer":
                row = into.setdefault((group, limit_of(part)), [0.0] * len(OCTETS))
                row[:] = [value + seconds for value in row]
    return Split(OCTETS, _parts(rows), {name: _parts(into) for name, into in optimizers.items()})


def _parts(amounts: Mapping[tuple[str, str], Sequence[float]]) -> tuple[Part, ...]:
    return tuple(Part(*key, tuple(row)) for key, row in amounts.items() if any(row))
