"""Each quantity of a baseline against its value now.

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

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.compare.facts import FACTS, NOT_RECORDED
from perfctl.orchestrator.compare.gate_rows import (
    BETTER,
    CHANGED,
    KINDS,
    MISSING,
    NEW,
    NOT_JUDGED,
    SAME,
    SETUP,
    TIME,
    WITHIN,
    WORSE,
    Judged,
    Measured,
    Outcome,
    Place,
    Value,
)
from perfctl.orchestrator.statistics import Ratio, Untested, compare_samples, holm

ALPHA = 0.01
SESSIONS_MIN = 5
"""Of the baseline: fewer do not show what a time varies by from one session to another."""
SESSIONS_MAX = 20
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
_FACT_OF = {fact.name: fact for fact in FACTS}

Group = tuple[str, int | None]
"""Study and batch size."""


def judge(
    entry: str, before: Measured, after: Measured, tolerances: Mapping[str, float]
) -> Outcome:
    """Return ``after`` against the baseline ``before``. tolerances: quantity -> share, where
    another than its kind's was chosen."""
    after = _rename_report(before, after)
    groups_before, groups_after = (
        dict.fromkeys((place.study, place.batch) for place in side.places)
        for side in (before, after)
    )
    gone, new = (
        sorted(groups, key=lambda group: (group[0], group[1] or 0))
        for groups in (
            groups_before.keys() - groups_after.keys(),
            groups_after.keys() - groups_before.keys(),
        )
    )
    moved = {
        group: match
        for group in gone
        if (match := _find_successor(group, new, before, after)) is not None
    }
    successors = {successor for successor, _ in moved.values()}
    rows = [
        Judged(Place(*group), SETUP, Place(*group).name, Place(*successor).name, CHANGED, reason)
        for group, (successor, reason) in moved.items()
    ]
    for place in dict.fromkeys((*before.places, *after.places)):
        group = (place.study, place.batch)
        values, now = (side.places.get(place, {}) for side in (before, after))
        for quantity in dict.fromkeys((*values, *now)):
            row = Judged(place, quantity, values.get(quantity), now.get(quantity))
            if group in moved:
                rows.append(replace(row, reason=f"see the {SETUP} of {Place(*group).name}"))
            elif group not in successors and row.after is None:
                rows.append(_judge_missing(row, after, group in gone))
            elif group not in successors:
                rows.append(_judge_value(row, tolerances))
    _judge_times(rows, _tolerance(TIME, tolerances), _find_blocked(before, after))
    if after.problems:  # a part is less than the whole, and not better
        rows = [replace(row, result=NOT_JUDGED) if row.result == BETTER else row for row in rows]
    differences = dict.fromkeys(
        f"{fact}: {old} before, {value} now"
        for study, facts in before.environment.items()
        for fact, old in facts.items()
        if (value := after.environment.get(study, {}).get(fact)) is not None
        and not _is_same(fact, old, value)
    )
    notes = tuple(f"{what}: {why}" for what, why in after.unknown.items())
    return Outcome(entry, tuple(rows), tuple(differences), after.problems, notes)


def _is_same(fact: str, old: str, new: str) -> bool:
    return old == new or (fact in _FACT_OF and _FACT_OF[fact].is_same((old,), (new,)))


def _tolerance(quantity: str, tolerances: Mapping[str, float]) -> float:
    return tolerances.get(quantity, KINDS[quantity].tolerance)


def _rename_report(before: Measured, after: Measured) -> Measured:
    """A report that was made elsewhere is known by its file's name: if each side has one of another
    name, they are one."""
    old, new = (
        {name for name, facts in side.environment.items() if "workload" not in facts}
        for side in (before, after)
    )
    if len(old - new) != 1 or len(new - old) != 1:
        return after
    (old_name,), (new_name,) = old - new, new - old
    places = {
        place._replace(study=old_name) if place.study == new_name else place: values
        for place, values in after.places.items()
    }
    environment = {
        old_name if name == new_name else name: facts for name, facts in after.environment.items()
    }
    return replace(after, places=places, environment=environment)


def _find_successor(
    group: Group, new: Sequence[Group], before: Measured, after: Measured
) -> tuple[Group, str] | None:
    """Return (what is there now in the place of a study and batch size, how it differs); None if
    nothing is alike."""
    candidates = []
    old_facts = before.environment.get(group[0], {})
    for other in new:
        new_facts = after.environment.get(other[0], {})
        is_other_work = old_facts.get("workload", NOT_RECORDED) != new_facts.get("workload")
        if group[0] != other[0] and is_other_work:
            continue
        differences = [
            f"{fact}: {old_facts.get(fact, 'not said')} before, "
            f"{new_facts.get(fact, 'not said')} now"
            for fact in _WORK
            if old_facts.get(fact) != new_facts.get(fact)
        ]
        if group[1] != other[1]:
            differences.append(f"batch: {group[1]} before, {other[1]} now")
        reason = "; ".join(differences) or f"its name: {group[0]} before, {other[0]} now"
        candidates.append((len(differences), other, reason))
    return min(candidates, key=lambda candidate: candidate[0])[1:] if candidates else None


def _find_blocked(before: Measured, after: Measured) -> Mapping[str, str]:
    """Return study -> why its times are not to be compared."""
    blocked = {}
    for study, old in before.environment.items():
        new = after.environment.get(study, {})
        differ = [
            fact
            for fact in _CLOCKS
            if fact in old and fact in new and not _is_same(fact, old[fact], new[fact])
        ]
        differ += [fact for fact in _MACHINE if (fact in old) is not (fact in new)]
        if differ:
            blocked[study] = ", ".join(
                f"{fact}: {old.get(fact, NOT_RECORDED)} before, {new.get(fact, NOT_RECORDED)} now"
                for fact in differ
            )
    return blocked


def _judge_missing(row: Judged, after: Measured, is_gone: bool) -> Judged:
    """Judge what is not there now: unknown, or gone if the same quantity is known of the rest of
    its step. ``is_gone``: nothing of this study and batch size is known now."""
    place, quantity = row.place, row.quantity
    own_reason = after.unknown.get(f"{place.name}: {quantity}")
    reason = own_reason or after.unknown.get(Place(place.study, place.batch).name)
    if quantity == TIME and own_reason is not None:
        return replace(row, reason=reason or "")
    is_known = any(
        quantity in values and (other.study, other.batch) == (place.study, place.batch)
        for other, values in after.places.items()
    )
    is_part = bool(place.layer or place.direction)
    if reason is not None or is_gone or not is_known or not is_part:
        return replace(row, result=MISSING, reason=reason or "in the baseline, and not known now")
    if quantity == TIME:
        return replace(row, reason="nothing of it was timed now")
    is_better = quantity in KINDS and KINDS[quantity].less_is_better
    change = -1.0 if isinstance(row.before, int | float) else None
    result = BETTER if is_better else CHANGED
    return replace(row, result=result, reason="it is gone", change=change)


def _judge_value(row: Judged, tolerances: Mapping[str, float]) -> Judged:
    """Judge a value that is known now; times are judged later, all together."""
    old, new = row.before, row.after
    if old is None:
        return replace(row, result=NEW, reason="not in the baseline")
    if row.quantity not in KINDS:
        return replace(row, reason="this release of perfctl does not know the quantity")
    if row.quantity == TIME:
        return row
    if isinstance(old, int | float) and isinstance(new, int | float):
        return _judge_number(row, old, new, _tolerance(row.quantity, tolerances))
    if old == new:
        return replace(row, result=SAME)
    reason = f"{old} became {new}"
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        reason = _describe_launches(old, new)
    return replace(row, result=CHANGED, reason=reason)


def _judge_number(row: Judged, old: float, new: float, tolerance: float) -> Judged:
    kind = KINDS[row.quantity]
    change = new / old - 1 if old else None
    share = "" if change is None else f", {100 * change:+.3g} %"
    reason = f"{new - old:+,.10g} {kind.unit}".rstrip() + share
    result = WORSE if new > old else BETTER
    if new == old:
        result, reason = SAME, ""
    elif abs(new - old) <= tolerance * abs(old):
        result, reason = WITHIN, f"{reason}; {100 * tolerance:g} % is allowed"
    elif not kind.less_is_better:
        result = CHANGED
    return replace(row, result=result, reason=reason, change=change)


def _describe_launches(old: Mapping[str, float], new: Mapping[str, float]) -> str:
    """``old``, ``new``: launches by kernel name."""
    added = [f"{name} is new, {new[name]:g}" for name in new if name not in old]
    changed = [
        f"{name}: {old[name]:g} became {new[name]:g}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    removed = [f"{name} is gone" for name in old if name not in new]
    return "; ".join((*added, *changed, *removed))


def _judge_times(rows: list[Judged], gate: float, blocked: Mapping[str, str]) -> None:
    """Replace the rows of times that both sides know, all judged together."""
    tests: dict[int, Ratio] = {}
    for index, row in enumerate(rows):
        if row.quantity != TIME or row.before is None or row.after is None:
            continue
        test = _compare_sessions(row, blocked.get(row.place.study))
        if isinstance(test, Ratio):
            tests[index] = test
        else:
            rows[index] = replace(row, reason=test.reason)
    slower, faster = (
        holm({index: _p_value(rows[index], factor) for index in tests})
        for factor in (1 + gate, 1 / (1 + gate))
    )
    for index, test in tests.items():
        middle = (test.low * test.high) ** 0.5
        result = WITHIN
        if middle > 1 + gate and slower[index] < ALPHA:
            result = WORSE
        elif middle < 1 / (1 + gate) and faster[index] < ALPHA:
            result = BETTER
        change, low, high = (100 * (factor - 1) for factor in (middle, test.low, test.high))
        reason = f"{change:+.3g} % ({low:+.3g} to {high:+.3g} %)"
        rows[index] = replace(rows[index], result=result, reason=reason, change=middle - 1)


def _compare_sessions(row: Judged, blocked: str | None, factor: float = 1.0) -> Ratio | Untested:
    """Return the newest session against all of the baseline, as if those had taken ``factor`` times
    as long."""
    old, new = _sessions(row.before), _sessions(row.after)
    if blocked is not None:
        return Untested(f"not the same machine, clock or profiler: {blocked}")
    if len(old) < SESSIONS_MIN:
        sessions = f"{len(old)} session{'s' if len(old) > 1 else ''}"
        return Untested(
            f"the baseline has {sessions}; {SESSIONS_MIN} or more are needed, each a sweep and its "
            "--update"
        )
    return compare_samples([[time * factor] for time in old], [[new[-1]]])


def _p_value(row: Judged, factor: float) -> float:
    test = _compare_sessions(row, None, factor)
    return test.p if isinstance(test, Ratio) else 1.0


def _sessions(value: Value | None) -> tuple[float, ...]:
    assert isinstance(value, tuple)
    return value


def with_sessions(before: Measured, after: Measured, tolerances: Mapping[str, float]) -> Measured:
    """Return ``after`` with the sessions of ``before``, if all that was judged is as it was, on the
    same machine and clock.

    A session that is there already, the same recording once more, is not taken twice.
    """
    moved = judge("", before, after, tolerances).of(WORSE, CHANGED, BETTER, MISSING, NEW)
    if any(row.quantity != TIME or row.result == WORSE for row in moved):
        return after
    blocked = _find_blocked(before, after)
    times = {
        place: (_sessions(before.places[place][TIME]), _sessions(values[TIME]))
        for place, values in after.places.items()
        if TIME in values and TIME in before.places.get(place, {}) and place.study not in blocked
    }
    is_repeated = bool(times) and all(new[-1] in old for old, new in times.values())
    places = {place: dict(values) for place, values in after.places.items()}
    for place, (old, new) in times.items():
        places[place][TIME] = old if is_repeated else (*old, new[-1])[-SESSIONS_MAX:]
    # a session on a busy machine leaves those before it as they are
    for place, values in before.places.items():
        is_unknown = f"{place.name}: {TIME}" in after.unknown
        if TIME in values and is_unknown and place in places and place.study not in blocked:
            places[place][TIME] = values[TIME]
    return replace(after, places=places)
