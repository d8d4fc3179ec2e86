"""A step by the fit that ships, as two small tables: what a network has of each part, and what a unit of it costs on a device.

Amounts are the same on every device, costs the same for every network, and the seconds of the GPU are their scalar product::

    seconds = max(min(sum(rate[row, part] * amount[part, batch]) for row in rows),
                  host seconds an operation * operations)

``rows`` are those of the device and of weaker ones (``published``: no device is slower than a weaker one). The result is that of
:func:`published.predict`; amounts that bend are kept to :data:`CLOSE`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict import published, step_parts
from perfctl.orchestrator.analyse.predict.grid import thinned
from perfctl.orchestrator.analyse.predict.operations import OPTIMIZERS, Operation, StepSpec
from perfctl.orchestrator.analyse.predict.predict import amounts_of
from perfctl.orchestrator.analyse.predict.published import UNIT, Published
from perfctl.orchestrator.analyse.predict.step_parts import PARTS

CLOSE = 0.001
"""Largest error of an amount between two of its batch sizes, as a share of it."""
TYPES = {4: "fp32", 2: "fp16"}
"""Bytes of an activation -> a precision that has it: amounts are equal in all others that have it."""
PLACES = {name: place for place, name in enumerate(PARTS)}
ONE = (Operation("", "other", 1, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0),)

Points = tuple[tuple[int, float], ...]
"""(batch, amount), from the first batch to the last, on straight lines."""


class Amount(NamedTuple):
    """How much a group of work has of one part: FLOPs, bytes or a count (1 multiply-add = 2 FLOPs)."""

    group: str
    """``step_parts.group_of``, "optimizer" or "overhead"."""
    part: int
    """Its place in PARTS."""
    points: Points


@dataclass(frozen=True, slots=True)
class Amounts:
    """Of one network, in training."""

    steps: Mapping[int, tuple[Amount, ...]]
    """Bytes of an activation -> everything but the optimizer."""
    optimizers: Mapping[str, tuple[Amount, ...]]
    """Optimizer -> the part of its update, which is equal at every batch size: one point."""
    operations: float
    """:func:`published.started`."""


class Cost(NamedTuple):
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
class Costs:
    """Rows of seconds a unit, one for each of PARTS, and the devices that they belong to."""

    rows: tuple[tuple[float, ...], ...]
    of: Mapping[tuple[str, str], Cost]
    """(device, precision) -> its rows. Without those that a device has no peak for."""


def amounts(works: Sequence[Operation], parameters: int, largest: int) -> Amounts:
    """``largest``: the last batch size."""
    case = StepSpec("", "", step_parts.merged(works), 1, True, "fp32", OPTIMIZERS[0], parameters)
    optimizers = {name: tuple(_optimizer(replace(case, optimizer=name))) for name in OPTIMIZERS}
    steps = {size: _step(replace(case, precision=name), size, largest) for size, name in TYPES.items()}
    return Amounts(steps, optimizers, published.started(works, training=True))


def _optimizer(case: StepSpec) -> Iterable[Amount]:
    sums: dict[str, float] = defaultdict(float)
    for group, part, amount in amounts_of(case, UNIT):
        if group == "optimizer":
            sums[part] += amount
    return (Amount("optimizer", PLACES[part], ((1, amount),)) for part, amount in sums.items() if amount)


def _step(case: StepSpec, size: int, largest: int) -> tuple[Amount, ...]:
    """Each operation's parts are straight between the batch sizes at which it outgrows a cache: they are added up as slopes."""
    starts: dict[tuple[str, str], float] = defaultdict(float)
    turns: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for work in case.works:
        group = step_parts.group_of(work)
        batches = sorted({1, largest, *(one for one in step_parts.bends(work, size) if 1 < one < largest)})
        found = [_parts(work, replace(case, batch=batch)) for batch in batches]
        for part, first in found[0].items():
            key, slope = (group, part), 0.0
            starts[key] += first
            for (batch, one), (after, other) in pairwise(zip(batches, found, strict=True)):
                rise = (other[part] - one[part]) / (after - batch)
                if rise != slope:
                    turns[key][batch] += rise - slope
                    slope = rise
    starts["overhead", "step forward"] = step_parts.MILLISECOND
    made = ((*key, _points(start, turns.get(key, {}), largest)) for key, start in starts.items())
    return tuple(Amount(group, PLACES[part], points) for group, part, points in made if points[-1][1])


def _parts(work: Operation, case: StepSpec) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for part, amount in step_parts.parts_of_work(work, case, UNIT):
        if not part.endswith(" optimizer"):
            sums[part] += amount
    return sums


def _points(start: float, turns: Mapping[int, float], largest: int) -> Points:
    """From the first value and the changes of slope, with as few points as :data:`CLOSE` allows."""
    points, slope = [(1, start)], turns.get(1, 0.0)
    for batch in (*sorted(one for one in turns if one > 1), largest):
        before, value = points[-1]
        points.append((batch, value + slope * (batch - before)))
        slope += turns.get(batch, 0.0)
    return tuple(thinned(points, CLOSE))


def costs(fit: Published, machines: Iterable[Machine], precisions: Iterable[str]) -> Costs:
    """Of GPUs; a device without a peak for a precision is left out there."""
    rows: dict[tuple[float, ...], int] = {}
    found: dict[tuple[str, str], Cost] = {}
    for precision in precisions:
        case = StepSpec("", "", ONE, 1, True, precision, OPTIMIZERS[0], 0)
        for machine in machines:
            try:
                own, others = published.rates(fit, case, machine), published.weaker(fit, case, machine)
            except ValueError:
                continue
            around = published.around(fit, case, machine)
            kept = [own, *(row for row in others if not _above(row, own))]
            kept = [row for row in dict.fromkeys(kept) if not any(_above(row, other) for other in kept if other != row)]
            places = tuple(rows.setdefault(row, len(rows)) for row in (own, *kept))
            found[machine.name, precision] = Cost(
                places[0], tuple(sorted(set(places[1:]))), around.host, around.gpu_width, around.host_width
            )
    return Costs(tuple(rows), found)


def _above(row: Sequence[float], other: Sequence[float]) -> bool:
    """True if no network could take less time by ``row`` than by ``other``."""
    return all(one >= its for one, its in zip(row, other, strict=True))
