"""Each quantity of a baseline against its value now; and the rows put together by what moved: one
change of a layer moves many quantities, and one line should name it.

Counts are compared exactly, or with the tolerance of their kind.

Time is a sample of sessions: sweeps on different days. What runs beside a session slows all of its
repeats, so their spread says too little, and a new session is compared with the spread between
those of the baseline: worse only where the interval in which one more session of the same code is
expected (Student's t on logarithms) lies below it by more than the tolerance. Of all times of an
entry together, 1 % of clean comparisons fail at most (Holm's step-down). That holds as far as
sessions are alike: not where a machine drifts or is busy on some days only. The baseline needs five
of them; times of layers, of which there are many, are left to `compare`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from perfctl.orchestrator.compare.facts import FACTS, NOT_RECORDED
from perfctl.orchestrator.compare.gate.records import (
    BETTER,
    CHANGED,
    KINDS,
    MISSING,
    NAMING,
    NEW,
    NOT_JUDGED,
    SAME,
    SETUP,
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
from perfctl.orchestrator.statistics import Ratio, holm, ratio

ALPHA = 0.01
SESSIONS = 5
"""Of the baseline: fewer do not show what a time varies by from one session to another."""
MOST = 20
"""Sessions that a baseline keeps, the newest."""
_CLOCKS = (
    "device",
    "largest clock",
    "SM clock while it ran",
    "threads",
    "cpu",
    "cpu_model",
    "cpu_capability",
    "what timed the steps",
    "profilers",
)
"""Facts that make times say nothing about the code."""
_MACHINE = ("cpu_model", "cpu_capability")
"""Facts about the CPU that both sides must know if one does: without them, a processor may be any
of its name."""
_WORK = ("workload", "variant", "mode", "precision", "device", "world_size")
"""Facts that name a study."""
_NEAR = {fact.name: fact.tolerance for fact in FACTS if fact.tolerance}

Group = tuple[str, int | None]
"""Study and batch size."""


def judge(
    entry: str, before: Measured, after: Measured, tolerances: Mapping[str, float]
) -> Outcome:
    """``after`` against the baseline ``before``. tolerances: quantity -> share, where another than
    its kind's was chosen."""
    after = _renamed(before, after)
    gone = _groups(before) - _groups(after)
    fresh = _groups(after) - _groups(before)
    moved = {
        group: found
        for group in sorted(gone, key=_size)
        if (found := _instead(group, fresh, before, after))
    }
    blocked = _blocked(before, after)
    rows = list(_setups(moved))
    for place, quantity in _asked(before, after):
        group = (place.study, place.batch)
        if group in moved:
            why = f"see the {SETUP} of {Place(*group).name}"
            rows.append(
                Judged(place, quantity, before.places[place][quantity], None, NOT_JUDGED, why)
            )
        elif group not in {found for found, _ in moved.values()}:
            rows.append(_row(place, quantity, before, after, tolerances, blocked, group in gone))
    said = dict.fromkeys(
        f"{fact}: {old} before, {new} now"
        for study, facts in before.environment.items()
        for fact, old in facts.items()
        if (new := after.environment.get(study, {}).get(fact)) is not None
        and not _same(fact, old, new)
    )
    notes = tuple(f"{what}: {why}" for what, why in after.unknown.items())
    judged = _with_times(rows, tolerances)
    if after.problems:  # a part is less than the whole, and not better
        judged = (
            replace(row, verdict=NOT_JUDGED) if row.verdict == BETTER else row for row in judged
        )
    return Outcome(entry, tuple(judged), tuple(said), after.problems, notes)


def _groups(side: Measured) -> set[Group]:
    return {(place.study, place.batch) for place in side.places}


def _size(group: Group) -> tuple[str, int]:
    return group[0], group[1] or 0


def _renamed(before: Measured, after: Measured) -> Measured:
    """A report that was made elsewhere is known by its file's name: where each side has one of
    another name, they are one."""
    old, new = (
        {name for name, facts in side.environment.items() if "workload" not in facts}
        for side in (before, after)
    )
    gone, fresh = sorted(old - new), sorted(new - old)
    if len(gone) != 1 or len(fresh) != 1:
        return after
    (was,), (now,) = gone, fresh
    places = {
        place._replace(study=was) if place.study == now else place: held
        for place, held in after.places.items()
    }
    environment = {was if name == now else name: facts for name, facts in after.environment.items()}
    return replace(after, places=places, environment=environment)


def _instead(
    group: Group, fresh: Iterable[Group], before: Measured, after: Measured
) -> tuple[Group, str] | None:
    """(what is there now in the place of a study and batch size, how it differs); None where
    nothing is alike."""
    found = []
    for other in sorted(fresh, key=_size):
        old, new = before.environment.get(group[0], {}), after.environment.get(other[0], {})
        if group[0] != other[0] and (
            "workload" not in old or old["workload"] != new.get("workload")
        ):
            continue
        differ = [
            f"{fact}: {old.get(fact, 'not said')} before, {new.get(fact, 'not said')} now"
            for fact in _WORK
            if old.get(fact) != new.get(fact)
        ]
        if group[1] != other[1]:
            differ.append(f"batch: {group[1]} before, {other[1]} now")
        found.append(
            (
                len(differ),
                other,
                "; ".join(differ) or f"its name: {group[0]} before, {other[0]} now",
            )
        )
    return min(found, key=lambda one: one[0])[1:] if found else None


def _setups(moved: Mapping[Group, tuple[Group, str]]) -> Iterator[Judged]:
    for group, (other, said) in moved.items():
        yield Judged(Place(*group), SETUP, Place(*group).name, Place(*other).name, CHANGED, said)


def _asked(before: Measured, after: Measured) -> Iterator[tuple[Place, str]]:
    """All quantities: the baseline's in its order, then the new ones."""
    for place, values in before.places.items():
        for quantity in dict.fromkeys((*values, *after.places.get(place, ()))):
            yield place, quantity
    for place, values in after.places.items():
        if place not in before.places:
            for quantity in values:
                yield place, quantity


def _same(fact: str, old: str, new: str) -> bool:
    """Clocks within their tolerance are the same: power and temperature change them."""
    if old == new:
        return True
    numbers = [[float(one) for one in re.findall(r"\d+(?:\.\d+)?", said)] for said in (old, new)]
    if fact not in _NEAR or not all(numbers):
        return False
    return max(*numbers[0], *numbers[1]) <= min(*numbers[0], *numbers[1]) * (1 + _NEAR[fact])


def _blocked(before: Measured, after: Measured) -> Mapping[str, str]:
    """Study -> why its times are not to be compared."""
    found = {}
    for study, facts in before.environment.items():
        now = after.environment.get(study, {})
        other = [
            fact
            for fact in _CLOCKS
            if fact in facts and fact in now and not _same(fact, facts[fact], now[fact])
        ]
        other += [fact for fact in _MACHINE if (fact in facts) is not (fact in now)]
        if other:
            said = (
                f"{fact}: {facts.get(fact, NOT_RECORDED)} before, {now.get(fact, NOT_RECORDED)} now"
                for fact in other
            )
            found[study] = ", ".join(said)
    return found


def _row(
    place: Place,
    quantity: str,
    before: Measured,
    after: Measured,
    tolerances: Mapping[str, float],
    blocked: Mapping[str, str],
    gone: bool,
) -> Judged:
    """``gone``: nothing of this study and batch size is known now."""
    old, new = (side.places.get(place, {}).get(quantity) for side in (before, after))
    if old is None:
        return Judged(place, quantity, None, new, NEW, "not in the baseline")
    if new is None:
        return _without(place, quantity, old, after, gone)
    kind = KINDS.get(quantity)
    if kind is None:
        return Judged(
            place,
            quantity,
            old,
            new,
            NOT_JUDGED,
            "this release of perfctl does not know the quantity",
        )
    kind = kind._replace(tolerance=tolerances.get(quantity, kind.tolerance))
    if quantity == TIME:
        return _time(place, old, new, blocked.get(place.study))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _sets(place, quantity, old, new)
    if isinstance(old, int | float) and isinstance(new, int | float):
        return _numbers(place, quantity, old, new, kind)
    same = old == new
    return Judged(
        place, quantity, old, new, SAME if same else CHANGED, "" if same else f"{old} became {new}"
    )


def _without(place: Place, quantity: str, old: Value, after: Measured, gone: bool) -> Judged:
    """Of what is not there now: unknown, or gone where the same quantity is known of the rest of
    its step."""
    why = after.unknown.get(f"{place.name}: {quantity}") or after.unknown.get(
        Place(place.study, place.batch).name
    )
    if quantity == TIME and f"{place.name}: {quantity}" in after.unknown:
        return Judged(place, quantity, old, None, NOT_JUDGED, why or "")
    known = any(
        quantity in values and (other.study, other.batch) == (place.study, place.batch)
        for other, values in after.places.items()
    )
    if why is not None or gone or not known or not (place.layer or place.direction):
        return Judged(
            place, quantity, old, None, MISSING, why or "in the baseline, and not known now"
        )
    if quantity == TIME:
        return Judged(place, quantity, old, None, NOT_JUDGED, "nothing of it was timed now")
    kind = KINDS.get(quantity)
    verdict = BETTER if kind is not None and kind.less_is_better else CHANGED
    return Judged(
        place,
        quantity,
        old,
        None,
        verdict,
        "it is gone",
        -1.0 if isinstance(old, int | float) else None,
    )


def _numbers(place: Place, quantity: str, old: float, new: float, kind: Kind) -> Judged:
    change = new / old - 1 if old else None
    said = f"{new - old:+,.10g} {kind.unit}".rstrip() + (
        "" if change is None else f", {100 * change:+.3g} %"
    )
    row = Judged(place, quantity, old, new, SAME, said, change)
    if new == old:
        return replace(row, said="")
    if abs(new - old) <= kind.tolerance * abs(old):
        return replace(row, verdict=WITHIN, said=f"{said}; {100 * kind.tolerance:g} % is allowed")
    if not kind.less_is_better:
        return replace(row, verdict=CHANGED)
    return replace(row, verdict=WORSE if new > old else BETTER)


def _sets(
    place: Place, quantity: str, old: Mapping[str, float], new: Mapping[str, float]
) -> Judged:
    if old == new:
        return Judged(place, quantity, old, new, SAME, "")
    gone = [f"{name} is gone" for name in old if name not in new]
    more = [f"{name} is new, {new[name]:g}" for name in new if name not in old]
    other = [
        f"{name}: {old[name]:g} became {new[name]:g}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    return Judged(place, quantity, old, new, CHANGED, "; ".join((*more, *other, *gone)))


def _time(place: Place, old: Value, new: Value, blocked: str | None) -> Judged:
    """Before its spread is looked at."""
    assert isinstance(old, tuple) and isinstance(new, tuple)
    row = Judged(place, TIME, old, new, NOT_JUDGED, "")
    if blocked is not None:
        return replace(row, said=f"not the same machine, clock or profiler: {blocked}")
    if len(old) < SESSIONS:
        held = f"{len(old)} session{'s' if len(old) > 1 else ''}"
        return replace(
            row,
            said=(
                f"the baseline has {held}; {SESSIONS} or more are needed, each a sweep and its "
                "--update"
            ),
        )
    return replace(row, verdict=TIME)


def _with_times(rows: list[Judged], tolerances: Mapping[str, float]) -> Iterator[Judged]:
    gate = tolerances.get(TIME, KINDS[TIME].tolerance)
    found: dict[int, Ratio] = {}
    for at, row in enumerate(rows):
        if row.verdict != TIME:
            continue
        one = _compared(row, 1.0)
        if isinstance(one, Ratio):
            found[at] = one
        else:
            rows[at] = replace(row, verdict=NOT_JUDGED, said=one)
    slower, faster = (
        holm(
            {
                at: one.p if isinstance(one := _compared(rows[at], factor), Ratio) else 1.0
                for at in found
            }
        )
        for factor in (1 + gate, 1 / (1 + gate))
    )
    for at, row in enumerate(rows):
        if row.verdict == TIME:
            yield _timed(row, found[at], gate, slower[at], faster[at])
        else:
            yield row


def _compared(row: Judged, factor: float) -> Ratio | str:
    """The newest session against all of the baseline, as if those had taken ``factor`` times
    as long."""
    assert isinstance(row.before, tuple) and isinstance(row.after, tuple)
    return ratio([[value * factor] for value in row.before], [[row.after[-1]]])


def _timed(row: Judged, found: Ratio, gate: float, slower: float, faster: float) -> Judged:
    middle = (found.low * found.high) ** 0.5
    said = (
        f"{100 * (middle - 1):+.3g} % ({100 * (found.low - 1):+.3g} to "
        f"{100 * (found.high - 1):+.3g} %)"
    )
    row = replace(row, said=said, change=middle - 1)
    if middle > 1 + gate and slower < ALPHA:
        return replace(row, verdict=WORSE)
    if middle < 1 / (1 + gate) and faster < ALPHA:
        return replace(row, verdict=BETTER)
    return replace(row, verdict=WITHIN)


def with_sessions(before: Measured, after: Measured, tolerances: Mapping[str, float]) -> Measured:
    """``after`` with the sessions of ``before``, where all that was judged is as it was, on the
    same machine and clock.

    A session that is there already, the same recording once more, is not taken twice.
    """
    moved = judge("", before, after, tolerances).of(WORSE, CHANGED, BETTER, MISSING, NEW)
    if any(row.quantity != TIME or row.verdict == WORSE for row in moved):
        return after
    blocked = _blocked(before, after)
    timed = [
        place
        for place, values in after.places.items()
        if TIME in values and TIME in before.places.get(place, {})
    ]
    held = {
        place: (_sessions(before, place), _sessions(after, place))
        for place in timed
        if place.study not in blocked
    }
    again = bool(held) and all(new[-1] in old for old, new in held.values())
    places = {
        place: {**values, TIME: old if again else (*old, new[-1])[-MOST:]}
        if (old := held.get(place, ((), ()))[0]) and (new := held[place][1])
        else values
        for place, values in after.places.items()
    }
    # a session on a busy machine leaves those before it as they are
    for place, values in before.places.items():
        if (
            TIME in values
            and f"{place.name}: {TIME}" in after.unknown
            and place in places
            and place.study not in blocked
        ):
            places[place] = {**places[place], TIME: values[TIME]}
    return replace(after, places=places)


def _sessions(side: Measured, place: Place) -> tuple[float, ...]:
    found = side.places[place][TIME]
    assert isinstance(found, tuple)
    return found


class Cause(NamedTuple):
    """Rows of one quantity in one study, of all its places and batch sizes."""

    first: Judged
    """The row that says most: of the layer where the quantity moved most, else of the whole."""
    whole: Judged | None
    """Of the step that ``first`` is a part of; None where ``first`` is the whole, or the whole is
    not among the rows."""
    others: tuple[Judged, ...]
    """Rows of the other places, those that moved most first."""

    @property
    def size(self) -> int:
        return 1 + len(self.others)


def causes(outcome: Outcome, *verdicts: str) -> list[Cause]:
    """The rows of these verdicts, those first whose quantity names a cause rather than a
    consequence (``NAMING``)."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in outcome.of(*verdicts):
        groups[row.place.study, row.quantity].append(row)
    fresh = outcome.of(NEW)
    found = [
        _cause(rows, [row for row in fresh if (row.place.study, row.quantity) == key])
        for key, rows in groups.items()
    ]
    return sorted(
        found, key=lambda cause: (_rank(cause.first.quantity), -abs(cause.first.change or 0))
    )


def _rank(quantity: str) -> int:
    return NAMING.index(quantity) if quantity in NAMING else len(NAMING)


def _cause(rows: list[Judged], fresh: Iterable[Judged]) -> Cause:
    """``fresh``: rows of places that the baseline does not have; one of them may be what made a
    sum larger."""
    batch = rows[0].place.batch
    every = sorted((*rows, *fresh), key=lambda row: -_moved(row))
    mine = [row for row in every if row.place.batch == batch]
    first = next(
        (row for fits in (_of_layer, _of_direction, _any) for row in mine if fits(row)), rows[0]
    )
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
