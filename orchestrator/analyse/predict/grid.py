"""Step times of one network on every device, in every precision, over all batch sizes.

A time over batch size is kept as a few knots with straight lines between them, at most :data:`TOLERANCE` from the prediction.
A jump lies between two neighbouring batch sizes and is not smeared.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
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
TOLERANCE = 0.004
"""Largest error of a line between two knots, as a share of the prediction."""
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
    curve: int = 0
    times: int | None = None
    """A curve that multiplies the seconds. None: by 1."""
    backward: int | None = None
    """A curve with the part of the step that is its backward. None: not known."""
    split: int = 0
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
    network: Network, machines: Sequence[Machine], measured: Sequence[Measured] = (), fits: Sequence[StepFitted] = ()
) -> Grid:
    """The training times of one network. Equal curves are stored once."""
    maker = _Maker(replace(network, works=merged(network.works)))
    for machine in machines:
        own = [one for one in measured if one.machine == machine.name]
        for precision, optimizer in product(PRECISIONS, OPTIMIZERS):
            maker.add(machine, precision, optimizer, own, fits)
    return maker.grid


def _line(left: Knot, right: Knot, batch: int) -> Knot:
    part = (batch - left.batch) / (right.batch - left.batch)
    value, low, high = (a + part * (b - a) for a, b in zip(left[1:], right[1:], strict=True))
    return Knot(batch, value, low, high)


def curve_of(at: Callable[[int], tuple[float, float, float]], steps: int = 2) -> Curve:
    """A function of batch size as knots. ``steps``: points sampled per octave at least."""
    first = sorted({round(2 ** (n / steps)) for n in range(16 * steps + 1)})
    found = {batch: Knot(batch, *at(batch)) for batch in first}
    open_pairs = list(pairwise(first))
    while open_pairs:
        a, b = open_pairs.pop()
        if b - a < 2:
            continue
        middle = min(max(isqrt(a * b), a + 1), b - 1)
        found[middle] = Knot(middle, *at(middle))
        line = _line(found[a], found[b], middle)[1:]
        if any(abs(x - y) > TOLERANCE / 2 * abs(y) for x, y in zip(line, found[middle][1:], strict=True)):
            open_pairs += ((a, middle), (middle, b))
    points = [found[batch] for batch in sorted(found)]
    kept, place = [points[0]], 0
    while place < len(points) - 1:
        place = _reach(points, place)
        kept.append(points[place])
    return tuple(kept)


def _reach(points: Sequence[Knot], start: int) -> int:
    """The last point that a line from ``start`` reaches within the tolerance of all points between."""
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
    """Computes the cells of one network. Curves and splits that cells share are computed once."""

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
        found = predict_step(fit, replace(case, batch=batch))
        if own:
            return found.seconds, found.low, found.high
        wide = (found.high / found.seconds) ** TRANSFER
        return found.seconds, found.seconds / wide, found.seconds * wide

    def _moved(self, fit: StepFitted, case: StepSpec, machine: Machine, batch: int) -> tuple[float, float, float]:
        key, one = (fit.name, case.optimizer, batch), replace(case, batch=batch)
        if key not in self.own_at:
            self.own_at[key] = parts(one, fit.machine)
        ratio = weighed(fit.costs, parts(one, machine)) / weighed(fit.costs, self.own_at[key])
        return ratio, ratio, ratio

    def _changes(self, fit: StepFitted, case: StepSpec) -> Iterator[tuple[int, tuple[str, ...]]]:
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
