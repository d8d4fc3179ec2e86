"""Pairs and their verdicts: which profiler speaks, what is judged together, and how rows are put
in order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.compare.compare import (
    ComparedPair,
    Comparison,
    ComparisonSide,
    compare_two_sides,
)
from perfctl.orchestrator.compare.quantities import (
    EQUAL,
    FASTER,
    NEW,
    NOT_JUDGED,
    NOT_SHOWN,
    SLOWER,
    ComparedRow,
    QuantityKey,
    SideFigure,
)
from perfctl.orchestrator.compare.sides import FactDifference
from perfctl.records.report import Kernel, MemoryFigure, Step
from perfctl.records.run import Run
from tests.make.synthetic import make_run
from tests.make.tables import table

LONG = 10**9
"""Nanoseconds of a step: rounding to whole ones then changes nothing that is looked at."""


def side(label, *logs, first=1, **changes):
    """A run for each logarithm of its one step's time."""
    return ComparisonSide(
        label,
        tuple(
            make_run(number, steps=(Step(0, "step", None, round(LONG * math.exp(log))),), **changes)
            for number, log in enumerate(logs, first)
        ),
    )


def profiled(label, *profilers, first=1):
    """A run under each of these profilers."""
    runs = (
        side(label, 0.0, first=number, profiler=name).runs[0]
        for number, name in enumerate(profilers, first)
    )
    return ComparisonSide(label, tuple(runs))


def apart(p):
    """By how much a run's logarithm must lie off 0, 0.1 and 0.2 to have this chance: t of 2 degrees
    of freedom."""
    return (1 - p) * math.sqrt(2 / (1 - (1 - p) ** 2)) * math.sqrt(0.04 / 3)


def steps_of(found):
    return [
        row
        for pair in found.pairs
        for row in pair.rows
        if row.key == QuantityKey("step", "time", "step")
    ]


@table("p verdict", [(0.017, NOT_SHOWN), (0.0163, SLOWER), (0.04, NOT_SHOWN), (0.001, SLOWER)])
def test_a_level_has_a_third_of_one_chance_in_twenty(p, verdict):
    found = compare_two_sides(side("A", 0.0, 0.1, 0.2), side("B", 0.1 + apart(p)))
    (row,) = steps_of(found)
    assert (row.p, row.adjusted) == (pytest.approx(p, rel=1e-4), row.p)
    assert row.result == verdict
    assert found.judged_time_count == 1


def test_rows_of_a_level_are_judged_together_over_all_pairs():
    def both(label, *logs):
        parts = (
            side(label, *each, batch_size=batch) for batch, each in zip((16, 32), logs, strict=True)
        )
        return ComparisonSide(label, tuple(run for part in parts for run in part.runs))

    a = both("A", (0.0, 0.1, 0.2), (0.0, 0.1, 0.2))
    b = both("B", (0.1 + apart(0.01),), (0.1 - apart(0.004),))
    first, second = steps_of(compare_two_sides(a, b))
    assert (first.p, second.p) == (pytest.approx(0.01, rel=1e-4), pytest.approx(0.004, rel=1e-4))
    assert (first.adjusted, second.adjusted) == (first.p, pytest.approx(0.008, rel=1e-4))
    assert (first.result, second.result) == (SLOWER, FASTER)
    assert {row.result for row in steps_of(compare_two_sides(a, b, gate=3.0))} == {
        "within the gate"
    }


def test_samples_per_second_say_what_their_step_says_the_other_way_round():
    (pair,) = compare_two_sides(side("A", 0.0, 0.1, 0.2), side("B", 0.1 + apart(0.001))).pairs
    step, speed = pair.rows
    assert step.interval is not None and speed.interval is not None
    assert speed.interval == pytest.approx(
        (1 / (1 + step.interval[1]) - 1, 1 / (1 + step.interval[0]) - 1)
    )
    assert speed.interval[0] < speed.interval[1] < 0 < step.interval[0]
    assert (speed.p, speed.adjusted, speed.result) == (step.p, step.adjusted, SLOWER)
    assert speed.reason == f"as its step; {step.reason}"
    assert speed.change == pytest.approx(1 / (1 + (step.change or 0)) - 1)
    (single,) = compare_two_sides(side("A", 0.0), side("B", 1.0)).pairs
    step, speed = single.rows
    assert (speed.result, speed.reason, speed.interval) == (NOT_JUDGED, step.reason, None)


def test_each_quantity_comes_from_the_first_profiler_that_has_it_on_both_sides():
    def both(label, base):
        def run(number, profiler, step, kernel, **more):
            return make_run(
                number,
                profiler=profiler,
                steps=(Step(0, "step", None, step),),
                kernels=[
                    Kernel(0, "gemm", layer="fc", direction="forward", step=0, duration_ns=kernel)
                ],
                **more,
            )

        held = (MemoryFigure("peak", "allocated", 512),)
        torch = run(base, "torch", 900, 70, memory=held)
        return ComparisonSide(label, (torch, run(base + 1, "nsys", 100, 40)))

    (pair,) = compare_two_sides(both("A", 1), both("B", 3)).pairs
    found = {row.key[:3]: row for row in pair.rows}
    step, memory = found["step", "time", "step"], found["step", "memory", "peak allocated"]
    assert step.basis == "CPU timer around each step, while nsys was recording"
    assert step.before and step.before.median == 100
    assert memory.result == EQUAL
    assert memory.before and memory.before.median == 512
    kernels = [row.after for row in pair.rows if row.key.level != "step"]
    assert [after and after.median for after in kernels] == [40, 40]
    assert pair.notes == ()


def test_a_profiler_of_one_side_alone_is_named_and_not_compared():
    (pair,) = compare_two_sides(
        profiled("A", "torch", "none", "dlprof"), profiled("B", "torch", "ncu", first=4)
    ).pairs
    assert pair.notes == (
        "perfctl does not compare dlprof, none, which ran in A only",
        "perfctl does not compare ncu, which ran in B only",
    )
    assert [run.profiler for run in (*pair.runs_a, *pair.runs_b)] == ["torch", "torch"]


def test_without_a_common_profiler_the_best_of_each_side_is_named_and_compared_by_force_only():
    a = profiled("A", "ncu", "torch")
    b = side("B", 0.5, first=5, profiler="nsys")
    (pair,) = compare_two_sides(a, b).pairs
    assert pair.blocking_differences[0] == FactDifference(
        "profiler",
        "ncu, torch",
        "nsys",
        True,
        "profilers differ in overhead and in what they record",
    )
    assert ([run.profiler for run in pair.runs_a], pair.notes) == (["torch"], ())
    assert {row.result for row in pair.rows} == {NOT_JUDGED}
    (forced,) = compare_two_sides(a, b, is_forced=True).pairs
    step = next(row for row in forced.rows if row.key == QuantityKey("step", "time", "step"))
    assert (step.result, step.change) == (NOT_JUDGED, pytest.approx(math.exp(0.5) - 1))
    assert step.reason.startswith(
        "different clocks: CPU timer around each step, while torch was recording / CPU"
    )


def row(level, quantity, verdict, a, b, name=""):
    def number(value):
        return None if value is None else SideFigure(value, None, value, value, 1, 1, 1)

    return ComparedRow(
        QuantityKey(level, quantity, name), number(a), number(b), result=verdict, name=name
    )


def pair_of(*rows, differences=(), batch=(64, 64)):
    return ComparedPair("net", *batch, (), (), differences, (), rows, ())


def comparison(*pairs, forced=False):
    nothing: tuple[Run, ...] = ()
    return Comparison(
        ComparisonSide("A", nothing), ComparisonSide("B", nothing), 0.05, forced, pairs, (), (), ()
    )


def test_what_counts_is_sorted_by_level_and_then_by_weight():
    first = pair_of(
        row("kernel", "time", SLOWER, 1, 900, "k"),
        row("layer", "time", SLOWER, 10, 13, "small"),
        row("step", "throughput", SLOWER, 1, 5000),
        row("step", "time", FASTER, 9, 1, "quick"),
    )
    second = pair_of(
        row("layer", "time", SLOWER, 10, 17, "large"),
        row("step", "memory", "larger", 1, 2, "peak"),
        row("layer", "time", NEW, None, 4, "new"),
        row("layer", "time", "gone", 40, None, "gone"),
    )
    found = comparison(first, second)
    assert [(pair is second, one.name) for pair, one in found.regressions] == [
        (True, "peak"),
        (True, "large"),
        (False, "small"),
        (False, "k"),
    ]
    assert [one.name for _, one in found.improvements] == ["quick"]
    assert [(one.name, one.distance_of_medians) for _, one in found.new_gone_or_different_rows] == [
        ("gone", 40),
        ("new", 4),
    ]
    assert found.judged_time_count == 4, "times alone, and neither what is new nor what is gone"


def test_a_pair_is_blocked_by_what_blocks_and_not_by_what_is_said():
    said = FactDifference("host", "x", "y", False, "said only")
    stops = replace(said, fact="torch", a="2.8", b="2.9", blocks=True)
    blocked, free = pair_of(differences=(said, stops)), pair_of(differences=(said,))
    assert (blocked.blocking_differences, free.blocking_differences) == ((stops,), ())
    assert stops.sentence == "torch: 2.8 in A, 2.9 in B"
    assert comparison(blocked, free).not_comparable == (blocked,)
    assert comparison(blocked, free, forced=True).not_comparable == ()


@table("a b said", [(64, 64, "64"), (64, 32, "64 / 32"), (None, 32, "32"), (None, None, "")])
def test_a_batch_size_is_said_once_where_both_have_it(a, b, said):
    assert pair_of(batch=(a, b)).batch_label == said
