"""Rows of a gate, put together by what moved: one change of a layer moves many quantities, and one line should name it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perfctl.orchestrator.analyse.gate.records import NAMING, NEW, Judged, Outcome


class Cause(NamedTuple):
    """Rows of one quantity in one study, of all its places and batch sizes."""

    first: Judged
    """The row that says most: of the layer where the quantity moved most, else of the whole."""
    whole: Judged | None
    """Of the step that ``first`` is a part of; None where ``first`` is the whole, or the whole is not among the rows."""
    others: tuple[Judged, ...]
    """Rows of the other places, those that moved most first."""

    @property
    def size(self) -> int:
        return 1 + len(self.others)


def causes(outcome: Outcome, *verdicts: str) -> list[Cause]:
    """The rows of these verdicts, those first whose quantity names a cause rather than a consequence (``NAMING``)."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in outcome.of(*verdicts):
        groups[row.place.study, row.quantity].append(row)
    fresh = outcome.of(NEW)
    found = [
        _cause(rows, [row for row in fresh if (row.place.study, row.quantity) == key]) for key, rows in groups.items()
    ]
    return sorted(found, key=lambda cause: (_rank(cause.first.quantity), -abs(cause.first.change or 0)))


def _rank(quantity: str) -> int:
    return NAMING.index(quantity) if quantity in NAMING else len(NAMING)


def _cause(rows: list[Judged], fresh: Iterable[Judged]) -> Cause:
    """``fresh``: rows of places that the baseline does not have; one of them may be what made a sum larger."""
    batch = rows[0].place.batch
    every = sorted((*rows, *fresh), key=lambda row: -_moved(row))
    mine = [row for row in every if row.place.batch == batch]
    first = next((row for fits in (_of_layer, _of_direction, _any) for row in mine if fits(row)), rows[0])
    of_direction = first.place._replace(layer="")
    wholes = {row.place: row for row in rows if row is not first and not row.place.layer}
    whole = wholes.get(of_direction) or wholes.get(of_direction._replace(direction=""))
    others = tuple(row for row in every if row is not first and row in rows)
    return Cause(first, whole, others)


def _of_layer(row: Judged) -> bool:
    return bool(row.place.layer)


def _of_direction(row: Judged) -> bool:
    return bool(row.place.direction)


def _any(row: Judged) -> bool:
    return True


def _moved(row: Judged) -> float:
    """How far, in the quantity's own unit; of kernels the launches that came and went."""
    old, new = row.before, row.after
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        before, after = (one if isinstance(one, Mapping) else {} for one in (old, new))
        return sum(abs(after.get(name, 0) - before.get(name, 0)) for name in {*before, *after})
    if isinstance(old, tuple) or isinstance(new, tuple):
        sides = [(one[-1] if isinstance(one, tuple) else 0.0) for one in (old, new)]
        return abs(sides[1] - sides[0])
    numbers = [one if isinstance(one, int | float) else 0 for one in (old, new)]
    return abs(numbers[1] - numbers[0])
