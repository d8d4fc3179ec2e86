"""Each quantity of a baseline against its value now.

Counts are compared exactly, or with the tolerance of their kind.

Time is a sample of sessions: sweeps on different days. What runs beside a session slows all of its
repeats, so their spread says too little, and a new session is compared with the spread between
those of the baseline: worse only where the interval in which one more session of the same code is
expected (Student's t on logarithms) lies below it by more than the tolerance. Of all times of an
entry together, 1% of clean comparisons fail at most (Holm's step-down). That holds as far as
sessions are alike: not where a machine drifts or is busy on some days only. The baseline needs five
of them; times of layers, of which there are many, are left to `compare`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, NamedTuple

from perfctl.orchestrator.compare.quantities import ComparedQuantity
from perfctl.orchestrator.compare.sides import FACTS, NOT_RECORDED
from perfctl.orchestrator.statistics import (
    RatioInterval,
    UntestedRatio,
    adjust_p_values_by_holm,
    compute_b_over_a_interval,
)
from perfctl.records.run import Point, format_sweep_point


class QuantityPlace(NamedTuple):
    """What a quantity is of; all empty: of the whole."""

    study: str = ""
    """ "mnist_cnn, training, fp32", or the name of a report; "" for a model."""
    batch: Point = None
    layer: str = ""
    """Dotted module path; "" for the whole step."""
    direction: str = ""

    @property
    def name(self) -> str:
        """ "mnist_cnn, training, fp32, batch 16, conv2 forward"."""
        size = format_sweep_point(self.batch, "")
        layer = " ".join(filter(None, (self.layer, self.direction)))
        return ", ".join(filter(None, (self.study, size, layer))) or "whole"


class GateQuantity(NamedTuple):
    """What a quantity is, and how it is judged."""

    unit: str
    meaning: str
    less_is_better: bool = True
    """False: any change counts."""
    tolerance: float = 0.0
    """Share of the baseline's value that may come on top: 0 is exact."""


KINDS: Mapping[str, GateQuantity] = {
    "setup": GateQuantity(
        "", "request: options, mode, precision, device, batch size", less_is_better=False
    ),
    "steps": GateQuantity("", "measured steps of a recording", less_is_better=False),
    "algorithm": GateQuantity(
        "", "how the kernels compute it, from their names", less_is_better=False
    ),
    "cast_bytes": GateQuantity(
        "bytes", "read and written by copies from one floating-point type to another"
    ),
    "flops": GateQuantity("FLOP", "multiply-adds x 2, by formula, or as counted"),
    "parameters": GateQuantity("", "elements of all parameters"),
    "launches": GateQuantity("", "kernels per step"),
    "kernels": GateQuantity(
        "", "names of kernels, and launches of each per step", less_is_better=False
    ),
    "counted_flops": GateQuantity("FLOP", "FLOPs that kernels executed per step, from counters"),
    "derived_flops": GateQuantity(
        "FLOP", "FLOPs that kernels executed per step, from names, grids and shapes"
    ),
    "threads": GateQuantity(
        "", "of all launches per step, from grids and blocks", less_is_better=False
    ),
    "operations": GateQuantity("", "operations in PyTorch's dispatcher per step"),
    "elementwise_flops": GateQuantity("FLOP", "by formula: biases, activations, norms, pooling"),
    "copied_bytes": GateQuantity(
        "bytes", "tensors made by clone, including calls from contiguous or reshape"
    ),
    "bytes": GateQuantity("bytes", "tensors that operations read and write, by formula"),
    "dram_bytes": GateQuantity(
        "bytes", "between the GPU and its memory per step, from counters", tolerance=0.05
    ),
    "memory_peak": GateQuantity(
        "bytes", "largest sum of live tensors, with the allocator's rounding"
    ),
    "allocated": GateQuantity("bytes", "peak of PyTorch's allocator", tolerance=0.01),
    "time": GateQuantity(
        "ns", "per step: median of each session (a sweep with --repeat)", tolerance=0.05
    ),
}
"""Quantity -> what it means; those first that name a cause rather than a consequence: a cast moves
bytes, and a wider layer does too. A tolerance is stated in the baseline where it was chosen."""
TIME, SETUP = "time", "setup"
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

Group = tuple[str, Point]
"""Study and batch size."""
Value = int | float | str | Mapping[str, float] | tuple[float, ...]
"""A figure; a text; launches by kernel name; or the time of each session, the oldest first."""
Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class MeasuredQuantities:
    """What is known of one subject."""

    places: Mapping[QuantityPlace, Values]
    unknown: Mapping[str, str] = field(default_factory=dict)
    """What is not held -> why: "batch 16, conv3 forward: dram_bytes"."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Study -> fact -> value: libraries, device, clocks."""
    problems: tuple[str, ...] = ()
    """Why figures are less than the whole: where a trace stopped."""


SAME, WITHIN, WORSE, CHANGED, BETTER = "same", "within the tolerance", "worse", "changed", "better"
NEW, MISSING, NOT_JUDGED = "new", "missing", "not judged"
MEANING = {
    WORSE: "above the baseline by more than the tolerance; for time, also significant",
    CHANGED: "a different value of a quantity without a better direction",
    MISSING: "in the baseline, but unknown now",
    NEW: "not in the baseline; --update adds it",
    BETTER: "less than the baseline; --update records the new level",
    NOT_JUDGED: "known on both sides, but not comparable",
    WITHIN: "differs by at most the tolerance or its spread",
    SAME: "equal",
}
"""Verdict -> what it means; what a reader must see first comes first."""
FAILS = (WORSE, CHANGED)


@dataclass(frozen=True, slots=True)
class JudgedQuantity(ComparedQuantity[QuantityPlace, Value]):
    """One quantity against the baseline."""

    JSON_KEYS = ("key", "quantity", "before", "after", "result", "reason", "change", "unit")
    JSON_NAMES: ClassVar = {"key": "position"}

    result: Annotated[str, MEANING] = NOT_JUDGED
    quantity: str = ""

    @property
    def unit(self) -> str | None:
        """Of the quantity."""
        return KINDS[self.quantity].unit or None


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """One entry of the baseline, judged."""

    JSON_KEYS = (
        "entry",
        "failed",
        "undecided",
        "problems",
        "notes",
        "differences",
        "not_the_same",
        "unchanged",
    )
    JSON_NAMES: ClassVar = {"not_the_same": "rows"}

    entry: str
    rows: tuple[JudgedQuantity, ...]
    """All, in the order of the baseline."""
    differences: tuple[str, ...] = ()
    """Facts of the environment that differ: "torch: 2.13.0 before, 2.14.1 now"."""
    problems: tuple[str, ...] = ()
    """Why the subject could not be had, or not all of it."""
    notes: tuple[str, ...] = ()
    """What is not held, and why."""

    def select_rows_with_results(self, *verdicts: str) -> tuple[JudgedQuantity, ...]:
        return tuple(row for row in self.rows if row.result in verdicts)

    @property
    def not_the_same(self) -> tuple[JudgedQuantity, ...]:
        """All rows but those that are equal."""
        return tuple(row for row in self.rows if row.result != SAME)

    @property
    def unchanged(self) -> int:
        """How many rows are equal."""
        return len(self.select_rows_with_results(SAME))

    @property
    def failed(self) -> bool:
        return bool(self.select_rows_with_results(*FAILS))

    @property
    def undecided(self) -> bool:
        """Something of the baseline could not be judged at all, or nothing of it could."""
        return bool(self.problems or self.select_rows_with_results(MISSING)) or all(
            row.result in (NEW, NOT_JUDGED) for row in self.rows
        )


class QuantityCause(NamedTuple):
    """Rows of one quantity in one study, of all its places and batch sizes."""

    first: JudgedQuantity
    """The row that says most: of the layer where the quantity moved most, else of the whole."""
    whole: JudgedQuantity | None
    """Of the step that ``first`` is a part of; None where ``first`` is the whole, or the whole is
    not among the rows."""
    others: tuple[JudgedQuantity, ...]
    """Rows of the other places, those that moved most first."""


def judge_against_baseline(
    entry: str,
    before: MeasuredQuantities,
    after: MeasuredQuantities,
    tolerances: Mapping[str, float],
) -> GateOutcome:
    """Return ``after`` against the baseline ``before``. tolerances: quantity -> share, where
    another than its kind's was chosen."""
    after = _rename_report_to_baseline_name(before, after)
    moved = _match_renamed_studies_and_batches(before, after)
    successors = {successor for successor, _ in moved.values()}
    rows = []
    for group, (successor, reason) in moved.items():
        names = QuantityPlace(*group).name, QuantityPlace(*successor).name
        row = JudgedQuantity(
            QuantityPlace(*group), *names, result=CHANGED, reason=reason, quantity=SETUP
        )
        rows.append(row)
    for location in dict.fromkeys((*before.places, *after.places)):
        values, now = (side.places.get(location, {}) for side in (before, after))
        for quantity in dict.fromkeys((*values, *now)):
            row = JudgedQuantity(
                location, values.get(quantity), now.get(quantity), quantity=quantity
            )
            if location[:2] in moved:
                row = replace(row, reason=f"see the {SETUP} of {QuantityPlace(*location[:2]).name}")
            elif location[:2] in successors:
                continue
            elif row.after is None:
                row = _judge_missing_quantity(row, after)
            else:
                row = _judge_value_except_time(row, tolerances)
            rows.append(row)
    tolerance = tolerances.get(TIME, KINDS[TIME].tolerance)
    _judge_time_rows_inplace(rows, tolerance, _explain_incomparable_study_times(before, after))
    if after.problems:  # a part is less than the whole, and not better
        rows = [replace(row, result=NOT_JUDGED) if row.result == BETTER else row for row in rows]
    differences = dict.fromkeys(
        f"{fact}: {old} before, {value} now"
        for study, facts in before.environment.items()
        for fact, old in facts.items()
        if (value := after.environment.get(study, {}).get(fact)) is not None
        and not _is_same_fact(fact, old, value)
    )
    notes = tuple(
        f"{quantity_name}: {explanation}" for quantity_name, explanation in after.unknown.items()
    )
    return GateOutcome(entry, tuple(rows), tuple(differences), after.problems, notes)


def _rename_report_to_baseline_name(
    before: MeasuredQuantities, after: MeasuredQuantities
) -> MeasuredQuantities:
    """A report that was made elsewhere is known by its file's name: if each side has one of another
    name, they are one."""
    old, new = (
        {name for name, facts in side.environment.items() if "workload" not in facts}
        for side in (before, after)
    )
    if len(old - new) != 1 or len(new - old) != 1:
        return after
    names = dict(zip(new - old, old - new, strict=True))
    places = {
        location._replace(study=names.get(location.study, location.study)): values
        for location, values in after.places.items()
    }
    environment = {names.get(name, name): facts for name, facts in after.environment.items()}
    return replace(after, places=places, environment=environment)


def _match_renamed_studies_and_batches(
    before: MeasuredQuantities, after: MeasuredQuantities
) -> dict[Group, tuple[Group, str]]:
    """Return each study and batch size that is gone -> (what is there now in its place, how it
    differs), if anything is alike."""
    groups = [{location[:2] for location in side.places} for side in (before, after)]
    gone, new = (
        sorted(groups_here - groups_there, key=lambda group: (group[0], group[1] or 0))
        for groups_here, groups_there in (groups, groups[::-1])
    )
    moved = {}
    for group in gone:
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
        if candidates:
            moved[group] = min(candidates, key=lambda candidate: candidate[0])[1:]
    return moved


def _is_same_fact(fact: str, old: str, new: str) -> bool:
    return old == new or (fact in _FACT_OF and _FACT_OF[fact].is_same_on_both_sides((old,), (new,)))


def _explain_incomparable_study_times(
    before: MeasuredQuantities, after: MeasuredQuantities
) -> Mapping[str, str]:
    """Return study -> why its times are not to be compared."""
    blocked = {}
    for study, old in before.environment.items():
        new = after.environment.get(study, {})
        differ = [
            fact
            for fact in _CLOCKS
            if fact in old and fact in new and not _is_same_fact(fact, old[fact], new[fact])
        ]
        differ += [fact for fact in _MACHINE if (fact in old) is not (fact in new)]
        if differ:
            blocked[study] = ", ".join(
                f"{fact}: {old.get(fact, NOT_RECORDED)} before, {new.get(fact, NOT_RECORDED)} now"
                for fact in differ
            )
    return blocked


def _judge_missing_quantity(row: JudgedQuantity, after: MeasuredQuantities) -> JudgedQuantity:
    """Judge what is not there now: unknown, or gone if the same quantity is known of the rest of
    its step."""
    group = row.key[:2]
    own_reason = after.unknown.get(f"{row.key.name}: {row.quantity}")
    reason = own_reason or after.unknown.get(QuantityPlace(*group).name)
    if row.quantity == TIME and own_reason is not None:
        return replace(row, reason=reason or "")
    is_known = any(
        location[:2] == group and row.quantity in values
        for location, values in after.places.items()
    )
    is_part = bool(row.key.layer or row.key.direction)
    if reason is not None or not is_known or not is_part:
        return replace(row, result=MISSING, reason=reason or "in the baseline, but unknown now")
    if row.quantity == TIME:
        return replace(row, reason="it has no time now")
    kind = KINDS.get(row.quantity)
    change = -1.0 if isinstance(row.before, int | float) else None
    result = BETTER if kind is not None and kind.less_is_better else CHANGED
    return replace(row, result=result, reason="it is gone", change=change)


def _judge_value_except_time(
    row: JudgedQuantity, tolerances: Mapping[str, float]
) -> JudgedQuantity:
    """Judge a value that is known now; times are judged later, all together."""
    old, new, kind = row.before, row.after, KINDS.get(row.quantity)
    if old is None:
        return replace(row, result=NEW, reason="not in the baseline")
    if kind is None:
        return replace(row, reason="this release of perfctl does not know the quantity")
    if row.quantity == TIME:
        return row
    if old == new:
        return replace(row, result=SAME)
    if not (isinstance(old, int | float) and isinstance(new, int | float)):
        reason = f"{old} became {new}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            reason = _describe_launch_changes(old, new)
        return replace(row, result=CHANGED, reason=reason)
    change = new / old - 1 if old else None
    share = "" if change is None else f", {100 * change:+.3g}%"
    reason = f"{new - old:+,.10g} {kind.unit}".rstrip() + share
    result = WORSE if new > old else BETTER
    tolerance = tolerances.get(row.quantity, kind.tolerance)
    if abs(new - old) <= tolerance * abs(old):
        result, reason = WITHIN, f"{reason}; the tolerance is {100 * tolerance:g}%"
    elif not kind.less_is_better:
        result = CHANGED
    return replace(row, result=result, reason=reason, change=change)


def _describe_launch_changes(old: Mapping[str, float], new: Mapping[str, float]) -> str:
    """``old``, ``new``: launches by kernel name."""
    added = [f"{name} is new, {new[name]:g}" for name in new if name not in old]
    changed = [
        f"{name}: {old[name]:g} became {new[name]:g}"
        for name in old
        if name in new and old[name] != new[name]
    ]
    removed = [f"{name} is gone" for name in old if name not in new]
    return "; ".join((*added, *changed, *removed))


def _judge_time_rows_inplace(
    rows: list[JudgedQuantity], tolerance: float, reason_by_blocked_study: Mapping[str, str]
) -> None:
    """Replace the rows of times that both sides know, all judged together."""
    tests: dict[int, RatioInterval] = {}
    for index, row in enumerate(rows):
        if row.quantity != TIME or row.before is None or row.after is None:
            continue
        test = _test_newest_session_against_baseline(
            row, reason_by_blocked_study.get(row.key.study)
        )
        if isinstance(test, RatioInterval):
            tests[index] = test
        else:
            rows[index] = replace(row, reason=test.reason)
    slower, faster = (
        adjust_p_values_by_holm(
            {
                index: test.p
                for index in tests
                if isinstance(
                    test := _test_newest_session_against_baseline(rows[index], None, factor),
                    RatioInterval,
                )
            }
        )
        for factor in (1 + tolerance, 1 / (1 + tolerance))
    )
    for index, test in tests.items():
        middle = (test.low * test.high) ** 0.5
        result = WITHIN
        if middle > 1 + tolerance and slower.get(index, 1.0) < ALPHA:
            result = WORSE
        elif middle < 1 / (1 + tolerance) and faster.get(index, 1.0) < ALPHA:
            result = BETTER
        change, low, high = (100 * (factor - 1) for factor in (middle, test.low, test.high))
        reason = f"{change:+.3g}% ({low:+.3g} to {high:+.3g}%)"
        rows[index] = replace(
            rows[index],
            change=middle - 1,
            interval=(test.low - 1, test.high - 1),
            test=test,
            result=result,
            reason=reason,
        )


def _test_newest_session_against_baseline(
    row: JudgedQuantity, blocking_reason: str | None, baseline_factor: float = 1.0
) -> RatioInterval | UntestedRatio:
    """Return the newest session against all of the baseline, as if those had taken
    ``baseline_factor`` times as long."""
    old, new = _get_session_times(row.before), _get_session_times(row.after)
    if blocking_reason is not None:
        return UntestedRatio(f"the machine, clock or profiler differs: {blocking_reason}")
    if len(old) < SESSIONS_MIN:
        sessions = f"{len(old)} session{'s' if len(old) > 1 else ''}"
        return UntestedRatio(
            f"the baseline has {sessions}; {SESSIONS_MIN} or more are needed, each a sweep and its "
            "--update"
        )
    return compute_b_over_a_interval([[time * baseline_factor] for time in old], [[new[-1]]])


def _get_session_times(value: Value | None) -> tuple[float, ...]:
    assert isinstance(value, tuple)
    return value


def append_new_session_if_unchanged(
    before: MeasuredQuantities, after: MeasuredQuantities, tolerances: Mapping[str, float]
) -> MeasuredQuantities:
    """Return ``after`` with the sessions of ``before``, if all that was judged is as it was, on the
    same machine and clock.

    A session that is there already, the same recording once more, is not taken twice.
    """
    moved = judge_against_baseline("", before, after, tolerances).select_rows_with_results(
        WORSE, CHANGED, BETTER, MISSING, NEW
    )
    if any(row.quantity != TIME or row.result == WORSE for row in moved):
        return after
    blocked = _explain_incomparable_study_times(before, after)
    times = {
        location: (
            _get_session_times(before.places[location][TIME]),
            _get_session_times(values[TIME]),
        )
        for location, values in after.places.items()
        if TIME in values
        and TIME in before.places.get(location, {})
        and location.study not in blocked
    }
    is_repeated = bool(times) and all(new[-1] in old for old, new in times.values())
    places = {location: dict(values) for location, values in after.places.items()}
    for location, (old, new) in times.items():
        places[location][TIME] = old if is_repeated else (*old, new[-1])[-SESSIONS_MAX:]
    # a session on a busy machine leaves those before it as they are
    for location, values in before.places.items():
        is_unknown = f"{location.name}: {TIME}" in after.unknown
        if TIME in values and is_unknown and location in places and location.study not in blocked:
            places[location][TIME] = values[TIME]
    return replace(after, places=places)


def group_rows_by_study_quantity(outcome: GateOutcome, *verdicts: str) -> list[QuantityCause]:
    """Return the rows of these verdicts, those first whose quantity names a cause rather than a
    consequence (the order of ``KINDS``)."""
    groups: dict[tuple[str, str], list[JudgedQuantity]] = defaultdict(list)
    for row in outcome.select_rows_with_results(*verdicts):
        groups[row.key.study, row.quantity].append(row)
    new = () if NEW in verdicts else outcome.select_rows_with_results(NEW)
    unsorted = [
        _build_quantity_cause(rows, [row for row in new if (row.key.study, row.quantity) == key])
        for key, rows in groups.items()
    ]
    return sorted(
        unsorted, key=lambda cause: (get_quantity_rank(cause.first), -abs(cause.first.change or 0))
    )


def get_quantity_rank(row: JudgedQuantity) -> int:
    """Return the position of the row's quantity among those that name a cause."""
    return [*KINDS, row.quantity].index(row.quantity)


def _build_quantity_cause(
    rows: Sequence[JudgedQuantity], new_rows: Sequence[JudgedQuantity]
) -> QuantityCause:
    """``new_rows``: rows of places that the baseline does not have; one of them may be what made a
    sum larger."""
    ordered = sorted((*rows, *new_rows), key=_compute_absolute_change, reverse=True)
    first = min(
        (row for row in ordered if row.key.batch == rows[0].key.batch),
        key=lambda row: 0 if row.key.layer else 1 if row.key.direction else 2,
    )
    direction = first.key._replace(layer="")
    totals = {row.key: row for row in rows if row is not first and not row.key.layer}
    total = totals.get(direction) or totals.get(direction._replace(direction=""))
    other_rows = tuple(row for row in ordered if row is not first and row in rows)
    return QuantityCause(first, total, other_rows)


def _compute_absolute_change(row: JudgedQuantity) -> float:
    """Return how far a value moved, in its own unit: of kernels the launches that came and went, of
    sessions the newest; a text has no distance."""
    old, new = map(_convert_value_to_numbers, (row.before, row.after))
    return sum(abs(new.get(name, 0) - old.get(name, 0)) for name in {*old, *new})


def _convert_value_to_numbers(value: Value | None) -> Mapping[str, float]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        return {"": value[-1]}
    return {"": value} if isinstance(value, int | float) else {}
