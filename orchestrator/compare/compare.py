"""Two sides compared: a change counts when it is both significant and larger than the gate.

The three levels (steps, layers, kernels) share a 5% chance of any false result; within a level
Holm's step-down keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isclose
from typing import ClassVar

from perfctl.orchestrator.compare.quantities import (
    BETTER,
    GONE,
    LEVELS,
    NEW,
    NEWS,
    NOT_JUDGED,
    QUANTITIES,
    STEP_TIME,
    UNATTRIBUTED,
    WORSE,
    ComparedRow,
    compare_quantities,
    judge_row_by_p_value,
    observe_all_quantities,
)
from perfctl.orchestrator.compare.sides import (
    FactDifference,
    OpposedRuns,
    align_runs_of_sides,
    compare_run_facts,
    explain_cpu_contention,
    find_truncated_side,
    list_shared_profilers,
)
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names_uniquely
from perfctl.orchestrator.ledger.prepared import (
    PreparedRun,
    join_gradients_to_backward,
    split_fused_kernels_between_layers,
)
from perfctl.orchestrator.ledger.timing import rank_profiler_clock
from perfctl.orchestrator.statistics import adjust_p_values_by_holm
from perfctl.records.run import Point, Run

GATE = 0.05
FALSE_VERDICT_CHANCE_MAX = 0.05
"""Of any false result in all levels together."""
SAME_BATCH_ERROR_MAX = 0.01
"""Samples per second change as the inverse of the step within this, if the batch is the same."""


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """A or B, with its name."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """One workload at one batch size, on both sides."""

    JSON_KEYS = ("heading", "batch_a", "batch_b", "rows")

    heading: str
    batch_a: Point
    batch_b: Point
    runs_a: tuple[Run, ...]
    runs_b: tuple[Run, ...]
    differences: tuple[FactDifference, ...]
    facts: tuple[tuple[str, str, str], ...]
    rows: tuple[ComparedRow, ...]
    notes: tuple[str, ...]

    @property
    def blocking_differences(self) -> tuple[FactDifference, ...]:
        """Differences that make it not comparable."""
        return tuple(difference for difference in self.differences if difference.blocks)

    @property
    def has_cpu_contention(self) -> bool:
        """Whether other programs kept the CPU busy while a side ran."""
        return any(explain_cpu_contention(runs) for runs in (self.runs_a, self.runs_b))

    @property
    def batch_label(self) -> str:
        """ "64", "64 / 128" (forced), or "" if unknown."""
        sizes = dict.fromkeys((self.batch_a, self.batch_b))
        return " / ".join(str(size) for size in sizes if size is not None)

    @property
    def batch_prefix(self) -> str:
        """ "batch " before ``batch_label``; "" before values of other parameters, which have
        names."""
        return "" if isinstance(self.batch_a or self.batch_b, str) else "batch "


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B, whole."""

    JSON_KEYS = ("gate", "forced", "only_a", "only_b", "failed")
    JSON_NAMES: ClassVar = {"failed": "failed_in_b"}

    a: ComparisonSide
    b: ComparisonSide
    gate: float
    forced: bool
    pairs: tuple[ComparedPair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    failed: tuple[str, ...]

    def select_rows_except_throughput(
        self, verdicts: tuple[str, ...]
    ) -> tuple[tuple[ComparedPair, ComparedRow], ...]:
        """Return the rows with these verdicts, the largest change first, without throughput, which
        repeats its step."""
        rows = (
            (pair, row)
            for pair in self.pairs
            for row in pair.rows
            if row.key.quantity != "throughput" and row.result in verdicts
        )
        order = sorted(
            rows, key=lambda item: (LEVELS.index(item[1].key.level), -item[1].distance_of_medians)
        )
        return tuple(order)

    @property
    def regressions(self) -> tuple[tuple[ComparedPair, ComparedRow], ...]:
        """Rows that are slower or larger."""
        return self.select_rows_except_throughput(WORSE)

    @property
    def improvements(self) -> tuple[tuple[ComparedPair, ComparedRow], ...]:
        """Rows that are faster or smaller."""
        return self.select_rows_except_throughput(BETTER)

    @property
    def new_gone_or_different_rows(self) -> tuple[tuple[ComparedPair, ComparedRow], ...]:
        """Rows that are new or gone, or whose exact count differs."""
        return self.select_rows_except_throughput(NEWS)

    @property
    def not_comparable(self) -> tuple[ComparedPair, ...]:
        """Pairs that are not judged because of what differs; none if forced."""
        return (
            () if self.forced else tuple(pair for pair in self.pairs if pair.blocking_differences)
        )

    @property
    def has_no_comparable_pair(self) -> bool:
        """Whether no pair of the sides is comparable."""
        return bool(self.pairs) and len(self.not_comparable) == len(self.pairs)

    @property
    def judged_time_count(self) -> int:
        """Number of times that were judged."""
        rows = (row for pair in self.pairs for row in pair.rows if row.key.quantity == "time")
        return sum(row.result not in (NOT_JUDGED, NEW, GONE) for row in rows)


def compare_two_sides(
    a: ComparisonSide, b: ComparisonSide, *, gate: float = GATE, is_forced: bool = False
) -> Comparison:
    """Return B against A. ``gate``: 0.05 is 5%.

    If differences block, the figures are there and none is judged. ``is_forced``: judge them all
    the same, which every page then states.
    """
    alignment = align_runs_of_sides(a.runs, b.runs)
    pairs = _judge_rows_of_pairs(
        [_compare_opposed_runs(opposed, is_forced) for opposed in alignment.opposed], gate
    )
    return Comparison(a, b, gate, is_forced, tuple(pairs), *alignment[1:])


def _compare_opposed_runs(opposed: OpposedRuns, is_forced: bool) -> ComparedPair:
    profilers = list_shared_profilers(opposed.a, opposed.b)
    sides = []
    for side in opposed[1:]:
        chosen = profilers or (min((run.profiler for run in side), key=rank_profiler_clock),)
        sides.append(tuple(run for run in side if run.profiler in chosen))
    a, b = sides
    if profilers:
        differences, facts = compare_run_facts(a, b)
        if (ends := find_truncated_side(a, b)) is not None:
            differences = (ends, *differences)
    else:
        differences, facts = compare_run_facts(opposed.a, opposed.b)
        first, second = (", ".join(sorted({run.profiler for run in side})) for side in opposed[1:])
        explanation = "profilers differ in overhead and in what they record"
        differences = (FactDifference("profiler", first, second, True, explanation), *differences)
    rows = _compare_all_quantities(a, b, profilers)
    blocking = [difference.fact for difference in differences if difference.blocks]
    busy = "; ".join(
        f"in {label} {reason}"
        for label, runs in (("A", a), ("B", b))
        if (reason := explain_cpu_contention(runs)) is not None
    )
    reason = busy
    if blocking:
        reason = f"not comparable: {', '.join(blocking)} differ{'s' if len(blocking) == 1 else ''}"
    if reason and not is_forced:
        # without what a judgement left in them; other programs change times, not counts
        rows = [
            ComparedRow(
                row.key,
                row.before,
                row.after,
                row.change,
                reason=reason,
                name=row.name,
                basis=row.basis,
            )
            if blocking or row.key.quantity in ("time", "throughput")
            else row
            for row in rows
        ]
    notes = [f"{busy[:1].upper()}{busy[1:]}"] if busy and (blocking or is_forced) else []
    for label, runs in (("A", opposed.a), ("B", opposed.b)):
        other_profilers = sorted({run.profiler for run in runs} - set(profilers))
        if other_profilers and profilers:
            notes.append(
                f"perfctl does not compare {', '.join(other_profilers)}, which ran in {label} only"
            )
    sizes = a[0].point, b[0].point
    return ComparedPair(
        opposed.heading, *sizes, a, b, differences, facts, tuple(rows), tuple(notes)
    )


def _compare_all_quantities(
    a: Sequence[Run], b: Sequence[Run], profilers: Sequence[str]
) -> list[ComparedRow]:
    """Return the rows of each level and quantity, from the first profiler that saw it on both
    sides."""
    prepared = join_gradients_to_backward(
        [split_fused_kernels_between_layers(PreparedRun(run)) for run in (*a, *b)]
    )
    observed = [
        (run.run.profiler if profilers else "", observe_all_quantities(run)) for run in prepared
    ]
    rows = []
    for level_quantity in product(LEVELS, QUANTITIES):
        for profiler in profilers or ("",):
            sides = [
                [
                    {key: run[key] for key in run if key[:2] == level_quantity}
                    for name, run in side
                    if name == profiler
                ]
                for side in (observed[: len(a)], observed[len(a) :])
            ]
            if all(map(any, sides)):
                rows += compare_quantities(*sides)
                break
    return rows


def _copy_step_verdict_to_throughput(rate: ComparedRow, step: ComparedRow) -> ComparedRow:
    """Return the row of samples per second, judged as its step. Not if the sides have other batch
    sizes: a step may then take longer at more samples per second."""
    is_same_batch = (
        rate.change is None
        or step.change is None
        or isclose((1 + rate.change) * (1 + step.change), 1, rel_tol=SAME_BATCH_ERROR_MAX)
    )
    if not is_same_batch:
        return replace(rate, reason="the batch sizes differ, and only steps were judged")
    return replace(
        rate,
        interval=step.interval and (1 / (1 + step.interval[1]) - 1, 1 / (1 + step.interval[0]) - 1),
        p=step.p,
        adjusted=step.adjusted,
        result=step.result,
        reason=f"{'' if step.result == NOT_JUDGED else 'as its step; '}{step.reason}",
    )


def _judge_rows_of_pairs(pairs: Sequence[ComparedPair], gate: float) -> list[ComparedPair]:
    """Return the pairs with all rows of a level judged together, and throughput as its step.

    Kernels get names that are short and differ wherever the kernels do; without their layer where
    no kernel of the pair has one.
    """
    rows = {(index, row.key): row for index, pair in enumerate(pairs) for row in pair.rows}
    for level in LEVELS:
        p_values = {
            row_key: row.p
            for row_key, row in rows.items()
            if row.key.level == level and row.key.quantity != "throughput" and row.p is not None
        }
        for row_key, adjusted in adjust_p_values_by_holm(p_values).items():
            alpha = FALSE_VERDICT_CHANCE_MAX / len(LEVELS)
            rows[row_key] = judge_row_by_p_value(rows[row_key], adjusted, gate=gate, alpha=alpha)
    short = shorten_kernel_names_uniquely(key.kernel for _, key in rows if key.kernel)
    with_layers = {index for index, key in rows if key.kernel and key.layer != UNATTRIBUTED}
    for (index, key), row in rows.items():
        step = rows.get((index, STEP_TIME))
        if key.quantity == "throughput" and step is not None:
            rows[index, key] = _copy_step_verdict_to_throughput(row, step)
        if name := short.get(key.kernel):
            name = key._replace(kernel=name).name if index in with_layers else name
            rows[index, key] = replace(row, name=name)
    return [
        replace(pair, rows=tuple(rows[index, row.key] for row in pair.rows))
        for index, pair in enumerate(pairs)
    ]
