"""How closely time, memory and FLOPs of a step go with the sizes of its network: coefficients with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfctl.orchestrator.analyse.predict.bench import ALL, LEAST, pearson, ranks, slope
from perfctl.orchestrator.analyse.statistics import fisher_interval

TIME, MEMORY, FLOPS = "time", "memory", "FLOPs"
QUANTITIES = (TIME, MEMORY, FLOPS)
SIZES = ("parameters", "depth", "width", "kernel", "input", "batch")
OWN = ("depth", "width")
"""Sizes that each family counts in a way of its own: they are not compared across families."""
FEW = 10
"""Below so many points a coefficient says little."""
ONE_VALUE = "it is the same in every point"


@dataclass(frozen=True, slots=True)
class Observation:
    """One network at one batch size."""

    family: str
    model: str
    batch: int
    sizes: Mapping[str, float]
    """Of ``SIZES``, those that its family has."""
    values: Mapping[str, float]
    """Of ``QUANTITIES``, those that are known: seconds, bytes, FLOPs (1 multiply-add = 2)."""


class Coefficient(NamedTuple):
    """-1..1, with its 95 % interval."""

    value: float
    interval: tuple[float, float] | None
    """None with three points, or where every point lies on one line."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One quantity against one size, in one family or in all."""

    family: str
    quantity: str
    size: str
    points: int
    networks: int
    """Points of one network at several batch sizes are no independent measurements of its other sizes."""
    ranked: Coefficient | None
    """Spearman's, of the ranks: any rising curve gives 1."""
    linear: Coefficient | None
    """Pearson's, of the values: a straight line gives 1."""
    exponent: float | None
    """Slope between the logarithms: 1 where the quantity is proportional to the size."""
    reason: str | None
    """Why there are no coefficients."""

    @property
    def few(self) -> bool:
        return self.points < FEW


def relations(found: Sequence[Observation]) -> list[Relation]:
    """Every quantity against every size: in each family that has it, then in all where it means the same in all."""
    has = {(one.family, size) for one in found for size in one.sizes}
    families = list(dict.fromkeys(one.family for one in found))
    return [
        relation(family, quantity, size, found)
        for family in (*families, *([ALL] if len(families) > 1 else []))
        for quantity in QUANTITIES
        for size in SIZES
        if (family, size) in has or (family == ALL and size not in OWN)
    ]


def relation(family: str, quantity: str, size: str, found: Iterable[Observation]) -> Relation:
    mine = list(_known(found, family, quantity, size))
    xs, ys = [one.sizes[size] for one in mine], [one.values[quantity] for one in mine]
    networks = len({one.model for one in mine})
    reason = None
    if len(mine) < LEAST:
        reason = f"{len(mine)} points know both; {LEAST} are the fewest" if mine else "no point knows both"
    elif len(set(xs)) == 1 or len(set(ys)) == 1:
        reason = ONE_VALUE
    if reason:
        return Relation(family, quantity, size, len(mine), networks, None, None, None, reason)
    by_rank, by_value = _coefficient(ranks(xs), ranks(ys), ranked=True), _coefficient(xs, ys, ranked=False)
    logs = ([math.log(value) for value in side] for side in (xs, ys)) if min(*xs, *ys) > 0 else None
    return Relation(
        family, quantity, size, len(mine), networks, by_rank, by_value, slope(*logs) if logs else None, None
    )


def _known(found: Iterable[Observation], family: str, quantity: str, size: str) -> Iterator[Observation]:
    for one in found:
        if family in (ALL, one.family) and size in one.sizes and quantity in one.values:
            yield one


def _coefficient(xs: Sequence[float], ys: Sequence[float], *, ranked: bool) -> Coefficient | None:
    value = pearson(xs, ys)
    return None if value is None else Coefficient(value, fisher_interval(value, len(xs), ranked=ranked))
