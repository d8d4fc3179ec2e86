"""Each quantity of a baseline against its value now.

Counts are compared exactly, or with the tolerance of their kind. Time is worse only where all of its interval lies above the
tolerance: at 99 % for all times of an entry together (Holm's step-down).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from perfctl.orchestrator.analyse.gate.records import (
    BETTER,
    CHANGED,
    KINDS,
    MISSING,
    NEW,
    NOT_JUDGED,
    SAME,
    TIME,
    WITHIN,
    WORSE,
    Judged,
    Kind,
    Measured,
    Outcome,
    Place,
    Value,
)
from perfctl.orchestrator.analyse.statistics import Ratio, holm, ratio

ALPHA = 0.01
REPEATS = 3
"""Runs on each side that a time is judged by."""


def judge(entry: str, before: Measured, after: Measured, tolerances: Mapping[str, float]) -> Outcome:
    """``after`` against the baseline ``before``. tolerances: quantity -> share, where another than its kind's was chosen."""
    blocked = _blocked(before, after)
    rows = [_row(*one, before, after, tolerances, blocked) for one in _asked(before, after)]
    said = dict.fromkeys(
        f"{fact}: {old} before, {new} now"
        for study, facts in before.environment.items()
        for fact, old in facts.items()
        if (new := after.environment.get(study, {}).get(fact)) is not None and new != old
    )
    notes = tuple(f"{what}: {why}" for what, why in after.unknown.items())
    return Outcome(entry, tuple(_with_times(rows, tolerances)), tuple(said), after.problems, notes)


def _asked(before: Measured, after: Measured) -> Iterator[tuple[Place, str]]:
    """All quantities: the baseline's in its order, then the new ones."""
    for place, values in before.places.items():
        for quantity in dict.fromkeys((*values, *after.places.get(place, ()))):
            yield place, quantity
    for place, values in after.places.items():
        if place not in before.places:
            for quantity in values:
                yield place, quantity


_CLOCKS = ("device", "largest clock", "SM clock while it ran", "threads", "cpu", "what timed the steps")
"""Facts that make times say nothing about the code."""


def _blocked(before: Measured, after: Measured) -> Mapping[str, str]:
    """Study -> why its times are not to be compared."""
    found = {}
    for study, facts in before.environment.items():
        now = after.environment.get(study, {})
        other = [fact for fact in _CLOCKS if fact in facts and fact in now and facts[fact] != now[fact]]
        if other:
            found[study] = ", ".join(f"{fact}: {facts[fact]} before, {now[fact]} now" for fact in other)
    return found


def _row(
    place: Place, quantity: str, before: Measured, after: Measured, tolerances: Mapping[str, float],
    blocked: Mapping[str, str],
) -> Judged:  # fmt: skip
    old, new = (side.places.get(place, {}).get(quantity) for side in (before, after))
    if old is None:
        return Judged(place, quantity, None, new, NEW, "not in the baseline")
    if new is None:
        why = after.unknown.get(f"{place.name}: {quantity}", "in the baseline, and not there now")
        return Judged(place, quantity, old, None, MISSING, why)
    kind = KINDS.get(quantity)
    if kind is None:
        return Judged(place, quantity, old, new, NOT_JUDGED, "this release of perfctl does not know the quantity")
    kind = kind._replace(tolerance=tolerances.get(quantity, kind.tolerance))
    if quantity == TIME:
        return _time(place, old, new, blocked.get(place.study))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _sets(place, quantity, old, new)
    if isinstance(old, int | float) and isinstance(new, int | float):
        return _numbers(place, quantity, old, new, kind)
    same = old == new
    return Judged(place, quantity, old, new, SAME if same else CHANGED, "" if same else f"{old} became {new}")


def _numbers(place: Place, quantity: str, old: float, new: float, kind: Kind) -> Judged:
    change = new / old - 1 if old else None
    said = f"{new - old:+,.10g} {kind.unit}".rstrip() + ("" if change is None else f", {100 * change:+.3g} %")
    row = Judged(place, quantity, old, new, SAME, said, change)
    if new == old:
        return replace(row, said="")
    if abs(new - old) <= kind.tolerance * abs(old):
        return replace(row, verdict=WITHIN, said=f"{said}; {100 * kind.tolerance:g} % is allowed")
    if not kind.less_is_better:
        return replace(row, verdict=CHANGED)
    return replace(row, verdict=WORSE if new > old else BETTER)


def _sets(place: Place, quantity: str, old: Mapping[str, float], new: Mapping[str, float]) -> Judged:
    if old == new:
        return Judged(place, quantity, old, new, SAME, "")
    gone = [f"{name} is gone" for name in old if name not in new]
    more = [f"{name} is new, {new[name]:g}" for name in new if name not in old]
    other = [f"{name}: {old[name]:g} became {new[name]:g}" for name in old if name in new and old[name] != new[name]]
    return Judged(place, quantity, old, new, CHANGED, "; ".join((*gone, *more, *other)))


def _time(place: Place, old: Value, new: Value, blocked: str | None) -> Judged:
    """Before its spread is looked at."""
    assert isinstance(old, tuple) and isinstance(new, tuple)
    row = Judged(place, TIME, old, new, NOT_JUDGED, "")
    if blocked is not None:
        return replace(row, said=f"not the same machine or clock: {blocked}")
    fewest = min(len(old), len(new))
    if fewest < REPEATS:
        side = "both have" if len(old) == len(new) else "one side has"
        return replace(
            row, said=f"{side} {fewest} run{'s' if fewest > 1 else ''}; --repeat {REPEATS} or more is needed"
        )
    return replace(row, verdict=TIME)


def _with_times(rows: list[Judged], tolerances: Mapping[str, float]) -> Iterator[Judged]:
    gate = tolerances.get(TIME, KINDS[TIME].tolerance)
    found: dict[int, Ratio] = {}
    for at, row in enumerate(rows):
        if row.verdict != TIME:
            continue
        assert isinstance(row.before, tuple) and isinstance(row.after, tuple)
        # Against a baseline that may be slower by the tolerance: so a p-value is of "slower by more than it".
        one = ratio([[value] for value in row.before], [[value] for value in row.after])
        if isinstance(one, Ratio):
            found[at] = one
        else:
            rows[at] = replace(row, verdict=NOT_JUDGED, said=one)
    slower = holm({at: _beyond(rows[at], 1 + gate) for at in found})
    faster = holm({at: _beyond(rows[at], 1 / (1 + gate)) for at in found})
    for at, row in enumerate(rows):
        if row.verdict == TIME:
            yield _timed(row, found[at], gate, slower[at], faster[at])
        else:
            yield row


def _beyond(row: Judged, factor: float) -> float:
    """Two-sided p-value of the change against one by ``factor``."""
    assert isinstance(row.before, tuple) and isinstance(row.after, tuple)
    moved = ratio([[value * factor] for value in row.before], [[value] for value in row.after])
    return moved.p if isinstance(moved, Ratio) else 1.0


def _timed(row: Judged, found: Ratio, gate: float, slower: float, faster: float) -> Judged:
    middle = (found.low * found.high) ** 0.5
    said = f"{100 * (middle - 1):+.3g} % ({100 * (found.low - 1):+.3g} to {100 * (found.high - 1):+.3g} %)"
    row = replace(row, said=said, change=middle - 1)
    if middle > 1 + gate and slower < ALPHA:
        return replace(row, verdict=WORSE)
    if middle < 1 / (1 + gate) and faster < ALPHA:
        return replace(row, verdict=BETTER)
    return replace(row, verdict=WITHIN)
