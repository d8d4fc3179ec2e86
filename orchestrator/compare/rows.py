"""One quantity of both sides: its figures, and the result on their difference."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from perfctl.orchestrator.compare.quantities import ENERGIES, Key, Observed
from perfctl.orchestrator.statistics import Ratio, Untested, compare_samples, interval

SLOWER, FASTER, LARGER, SMALLER = "slower", "faster", "larger", "smaller"
NEW, GONE, DIFFERS = "new", "gone", "differs"
WITHIN, NOT_SHOWN, EQUAL, NOT_JUDGED = "within the gate", "not shown", "equal", "not judged"
WORSE, BETTER, NEWS = (SLOWER, LARGER), (FASTER, SMALLER), (NEW, GONE, DIFFERS)
MEANING = {
    SLOWER: "more time: above the gate, and significant",
    FASTER: "less time: above the gate, and significant",
    LARGER: "more memory, above the gate",
    SMALLER: "less memory, above the gate",
    NEW: "in B only",
    GONE: "in A only",
    DIFFERS: "a different exact count",
    WITHIN: "significant, and below the gate",
    NOT_SHOWN: "not significant: the spread is as large as the difference",
    EQUAL: "the same count",
    NOT_JUDGED: "no spread, figures of different meaning, or sides that are not comparable",
}


@dataclass(frozen=True, slots=True)
class Number:
    """One side of a row."""

    median: float
    interval: tuple[float, float] | None
    """95 % interval over runs; None with one run."""
    low: float
    high: float
    runs: int
    of_runs: int
    steps: int
    grids: tuple[str, ...] = ()
    launches: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity on both sides."""

    JSON_KEYS = (
        "key",
        "name",
        "change",
        "interval",
        "p",
        "adjusted",
        "result",
        "reason",
        "basis",
        "a",
        "b",
    )
    JSON_NAMES: ClassVar = {"result": "verdict", "reason": "why"}
    JSON_INLINED = ("key",)

    key: Key
    name: str
    """ "step", "conv2 forward", "conv2 forward: volta_sgemm_128x64_tn"."""
    a: Number | None
    b: Number | None
    basis: str | None
    change: float | None = None
    """Median of B over median of A, less 1."""
    result: Annotated[str, MEANING] = NOT_JUDGED
    reason: str = ""
    interval: tuple[float, float] | None = None
    """95 % interval of the change of this row; None if not judged by a spread."""
    p: float | None = None
    adjusted: float | None = None
    needs_repeats: bool = False
    """Each side is one run with too few steps to show a spread."""
    ratio: Ratio | None = None
    """What the interval was made from; None if not judged by a spread."""

    @property
    def weight(self) -> float:
        """How far the medians are apart; what one side lacks counts as 0."""
        return abs((self.b.median if self.b else 0.0) - (self.a.median if self.a else 0.0))


def compare_quantities(
    a: Sequence[Mapping[Key, Observed]], b: Sequence[Mapping[Key, Observed]]
) -> list[Row]:
    """Return a row for each quantity of either side; what has a p-value is judged later, with all
    rows of its level."""
    rows = []
    for key in dict.fromkeys(key for run in (*a, *b) for key in run):
        observed_a, observed_b = ([run[key] for run in side if key in run] for side in (a, b))
        rows.append(_compare(key, observed_a, observed_b, len(a), len(b)))
    return rows


def _compare(
    key: Key,
    a: Sequence[Observed],
    b: Sequence[Observed],
    runs_a: int,
    runs_b: int,
) -> Row:
    """``a``, ``b``: what the runs of each side that have this quantity observed."""
    basis = " / ".join(dict.fromkeys(run.basis for run in (*a, *b))) or None
    first, second = _number(key, a, runs_a), _number(key, b, runs_b)
    change = second.median / first.median - 1 if first and second and first.median else None
    row = Row(key, key.name, first, second, basis, change)
    if not a or not b:
        return _one_sided(row, runs_b if a else runs_a)
    notes = "; ".join(dict.fromkeys(run.note for run in (*a, *b) if run.note))
    if key.quantity in ENERGIES:
        return replace(row, reason=f"one figure a run, not judged; {notes}")
    values_a, values_b = ({value for run in side for value in run.values} for side in (a, b))
    if key.quantity == "flops":
        return _compare_counts(row, a, b, values_a, values_b)
    if key.quantity == "memory" and len(values_a) == len(values_b) == 1:
        return _compare_bytes(row, len(a), len(b))
    return _compare_samples(row, a, b)


def _number(key: Key, runs: Sequence[Observed], of_runs: int) -> Number | None:
    if not runs:
        return None
    median: Callable[[Iterable[float]], float] = statistics.median
    if key.quantity == "throughput":
        median = _median_rate
    medians = [median(run.values) for run in runs]
    launches = [run.launches for run in runs if run.launches is not None]
    return Number(
        median=median(medians),
        interval=interval(medians),
        low=min(medians),
        high=max(medians),
        runs=len(runs),
        of_runs=of_runs,
        steps=sum(len(run.values) for run in runs),
        grids=tuple(dict.fromkeys(grid for run in runs for grid in run.grids)),
        launches=statistics.median(launches) if launches else None,
    )


def _median_rate(rates: Iterable[float]) -> float:
    """Return the rate of the median time: two times have their mean for a median, and two rates
    would have another one."""
    return 1 / statistics.median(1 / rate for rate in rates)


def _one_sided(row: Row, other_runs: int) -> Row:
    side, other, result = ("A", "B", GONE) if row.b is None else ("B", "A", NEW)
    number = row.a or row.b
    if row.key.level == "step" or number is None:
        return replace(row, reason=f"{other} did not record it")
    in_runs = f"{number.runs} of {number.of_runs} runs" if number.of_runs > 1 else "the run"
    in_none = f"in none of {other_runs} runs" if other_runs > 1 else "not in the run"
    return replace(row, result=result, reason=f"in {in_runs} of {side}, {in_none} of {other}")


def _compare_counts(
    row: Row,
    a: Sequence[Observed],
    b: Sequence[Observed],
    values_a: set[float],
    values_b: set[float],
) -> Row:
    notes_a, notes_b = ({run.note for run in side if run.note} for side in (a, b))
    notes = "; ".join(sorted(notes_a | notes_b))
    has_bound = any(run.is_bound for run in (*a, *b))
    if values_a == values_b and len(values_a) == 1 and (notes_a == notes_b or not has_bound):
        reason = f"the same count; {notes}" if notes else "the same count in every run"
        return replace(row, result=EQUAL, reason=reason)
    if has_bound:
        return replace(row, reason=notes)
    if max(len(values_a), len(values_b)) > 1:
        return replace(row, reason="the count is not the same in all repeats of one side")
    reason = f"counts are exact, so this is another computation{'; ' + notes if notes else ''}"
    return replace(row, result=DIFFERS, reason=reason)


def _compare_bytes(row: Row, runs_a: int, runs_b: int) -> Row:
    """``row``: each side has the same figure in all of its runs."""
    assert row.a is not None and row.b is not None
    if row.a.median == row.b.median:
        return replace(row, result=EQUAL, reason="the same in every run")
    if min(runs_a, runs_b) < 2:
        single = f"{'A' if runs_a < runs_b else 'B'} is one run"
        if runs_a == runs_b:
            single = "one run each"
        reason = f"{single}: whether another run needs the same is unknown; run 2 or more repeats"
        return replace(row, reason=reason)
    if row.change is None:
        return replace(row, reason="A is 0, so the change is undefined")
    reason = f"the same in all {runs_a} runs of A and in all {runs_b} of B"
    return replace(row, p=0.0, adjusted=0.0, reason=reason)


def _compare_samples(row: Row, a: Sequence[Observed], b: Sequence[Observed]) -> Row:
    assert row.a is not None and row.b is not None
    if len({run.basis for run in (*a, *b)}) > 1:
        return replace(row, reason=f"not the same clock: {row.basis}")
    if not all(run.trusted for run in (*a, *b)):
        return replace(row, reason=f"{row.basis}; times come from nsys or torch")
    if row.a.runs < row.a.of_runs or row.b.runs < row.b.of_runs:
        in_runs = (
            f"{number.runs} of {number.of_runs} runs of {side}"
            for side, number in (("A", row.a), ("B", row.b))
        )
        return replace(row, reason=f"in {' and '.join(in_runs)}: not in every repeat")
    test = compare_samples([run.values for run in a], [run.values for run in b])
    if isinstance(test, Untested):
        return replace(row, reason=test.reason, needs_repeats=test.needs_repeats)
    ends = (test.low - 1, test.high - 1)
    return replace(row, interval=ends, p=test.p, reason=test.basis, ratio=test)


def judge_row(row: Row, adjusted: float, *, gate: float, alpha: float) -> Row:
    """Return a row that has a p-value with its result: significant, and larger than the gate."""
    change = row.change or 0.0
    # The medians must move in the direction of the interval.
    is_same_side = row.interval is None or (change > 0) == (sum(row.interval) > 0)
    if adjusted >= alpha or not is_same_side:
        result = NOT_SHOWN
    elif abs(change) <= gate:
        result = WITHIN
    elif row.key.quantity == "memory":
        result = LARGER if change > 0 else SMALLER
    else:
        result = SLOWER if change > 0 else FASTER
    return replace(row, adjusted=adjusted, result=result)
