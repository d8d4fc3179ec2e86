"""One quantity of A against B: every figure of a row, and each verdict exactly at its boundary.
Worked out by hand."""

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.compare.quantities import (
    DIFFERS,
    EQUAL,
    FASTER,
    GONE,
    LARGER,
    NEW,
    NOT_JUDGED,
    NOT_SHOWN,
    SLOWER,
    SMALLER,
    WITHIN,
    ObservedQuantity,
    QuantityKey,
    compare_quantities,
    judge_row_by_p_value,
)
from tests.make.tables import table

CONV = QuantityKey("layer", "time", "", "conv2", "forward")
STEP = QuantityKey("step", "time", "step")
FLOPS = QuantityKey("step", "flops", "executed FLOPs")
PEAK = QuantityKey("step", "memory", "peak allocated")


def seen(*values, basis="the clock", note=None, trusted=True):
    return ObservedQuantity(
        values, basis, trusted, note=note, is_bound="lower bound" in (note or "")
    )


def row_of(key, a, b):
    """The row of one quantity; None is a run that does not have it."""
    (row,) = compare_quantities(
        [{key: one} if one else {} for one in a], [{key: one} if one else {} for one in b]
    )
    return row


CHANGED = "counts are exact, so the computation changed"
VARIES = "the count differs between the repeats of one side"
ROUGH, BOUND = "estimated: x", "a lower bound: y"
ABOUT_8, AT_LEAST_8, AT_LEAST_9 = seen(8, note=ROUGH), seen(8, note=BOUND), seen(9, note=BOUND)


@table(
    "key said",
    [
        (STEP, "step"),
        (PEAK, "peak allocated"),
        (CONV, "conv2 forward"),
        (QuantityKey("layer", "time", "", "not attributed"), "not attributed"),
        (QuantityKey("layer", "time", "", "", "optimizer"), "optimizer"),
        (QuantityKey("layer", "time", "", "fc", "optimizer"), "fc optimizer"),
        (QuantityKey("layer", "time", "", "", "forward"), "outside of layers forward"),
        (QuantityKey("kernel", "time", "", "", "optimizer", "adam"), "optimizer: adam"),
        (QuantityKey("kernel", "time", "", "conv2", "forward", "sgemm"), "conv2 forward: sgemm"),
    ],
)
def test_a_row_is_called_by_its_place(key, said):
    assert key.name == said


def test_rows_stand_in_the_order_in_which_they_are_first_seen_a_before_b():
    first, second, third = (
        QuantityKey("layer", "time", "", layer, "forward") for layer in ("c", "a", "b")
    )
    found = compare_quantities(
        [{second: seen(1)}, {first: seen(1)}], [{third: seen(1), second: seen(1)}]
    )
    assert [row.key.layer for row in found] == ["a", "c", "b"]


def test_a_number_is_the_median_over_runs_of_each_runs_median_over_steps():
    runs = [
        ObservedQuantity((1.0, 4.0, 100.0), "x", grids=("8x1x1", "4x1x1"), launches=2.0),
        ObservedQuantity((10.0, 20.0), "x", grids=("4x1x1", "2x1x1"), launches=5.0),
        ObservedQuantity((7.0,), "x"),
    ]
    a = row_of(CONV, [*runs, None], [seen(14.0, basis="y")]).before
    assert a is not None
    assert (a.median, a.low, a.high) == (7.0, 4.0, 15.0)  # of the medians 4, 15 and 7
    assert (a.runs, a.total_runs, a.steps) == (3, 4, 6)
    assert (a.grids, a.launches) == (("8x1x1", "4x1x1", "2x1x1"), 3.5)
    logs = [math.log(value) for value in (4, 15, 7)]
    middle = sum(logs) / 3
    spread = math.sqrt(sum((one - middle) ** 2 for one in logs) / 2 / 3)
    reach = 0.95 * math.sqrt(2 / (1 - 0.95**2)) * spread  # Student's t of 2 degrees of freedom
    assert a.interval == pytest.approx((math.exp(middle - reach), math.exp(middle + reach)))


def test_the_change_is_b_over_a_less_one_and_unknown_from_0():
    row = row_of(CONV, [seen(4.0)], [seen(5.0)])
    assert (row.change, row.basis) == (0.25, "the clock")
    assert row.before is not None and row.after is not None
    assert (row.before.interval, row.after.launches, row.distance_of_medians) == (None, None, 1.0)
    back = row_of(CONV, [seen(5.0)], [seen(4.0)])
    assert (back.change, back.distance_of_medians) == (pytest.approx(-0.2), 1.0)
    assert row_of(CONV, [seen(0.0)], [seen(5.0)]).change is None
    assert row_of(CONV, [seen(5.0)], [seen(0.0)]).change == -1.0


HAS, LACKS = seen(3.0), None


@table(
    "key a b verdict why",
    [
        (STEP, [HAS], [LACKS], NOT_JUDGED, "B did not record it"),
        (STEP, [LACKS], [HAS], NOT_JUDGED, "A did not record it"),
        (CONV, [HAS], [LACKS], GONE, "in the run of A, not in the run of B"),
        (CONV, [LACKS], [HAS], NEW, "in the run of B, not in the run of A"),
        (CONV, [HAS, LACKS], [LACKS], GONE, "in 1 of 2 runs of A, not in the run of B"),
        (CONV, [LACKS], [HAS, LACKS], NEW, "in 1 of 2 runs of B, not in the run of A"),
        (CONV, [LACKS] * 2, [HAS], NEW, "in the run of B, in none of 2 runs of A"),
        (CONV, [HAS], [LACKS] * 2, GONE, "in the run of A, in none of 2 runs of B"),
    ],
)
def test_what_one_side_has_alone_is_new_or_gone_and_a_step_is_not_recorded(key, a, b, verdict, why):
    row = row_of(key, a, b)
    assert (row.result, row.reason, row.distance_of_medians, row.change) == (
        verdict,
        why,
        3.0,
        None,
    )


@table(
    "a b verdict why",
    [
        ([seen(8)], [seen(8)], EQUAL, "the same count in every run"),
        ([ABOUT_8], [ABOUT_8], EQUAL, "the same count; estimated: x"),
        ([seen(8)], [ABOUT_8], EQUAL, "the same count; estimated: x"),
        ([AT_LEAST_8] * 2, [AT_LEAST_8], EQUAL, "the same count; a lower bound: y"),
        ([seen(8)], [AT_LEAST_8], NOT_JUDGED, BOUND),
        ([AT_LEAST_8], [AT_LEAST_9], NOT_JUDGED, BOUND),
        ([ABOUT_8], [AT_LEAST_9], NOT_JUDGED, "a lower bound: y; estimated: x"),
        ([seen(8)], [seen(9)], DIFFERS, CHANGED),
        ([seen(1e9)], [seen(1e9 + 2)], DIFFERS, CHANGED),
        ([seen(8)] * 2, [seen(7)] * 2, DIFFERS, CHANGED),
        ([seen(8)], [replace(ABOUT_8, values=(9,))], DIFFERS, f"{CHANGED}; {ROUGH}"),
        ([seen(8), seen(9)], [seen(8)], NOT_JUDGED, VARIES),
        ([seen(8)], [seen(8), seen(9)], NOT_JUDGED, VARIES),
        ([seen(8), seen(9)], [seen(8), seen(9)], NOT_JUDGED, VARIES),
    ],
)
def test_counts_are_equal_or_differ_or_nothing_is_said_of_them(a, b, verdict, why):
    row = row_of(FLOPS, a, b)
    assert (row.result, row.reason, row.p) == (verdict, why, None)


UNKNOWN = "the spread between runs is unknown; run 2 or more repeats"


@table(
    "a b verdict p why",
    [
        ([5.0], [5.0], EQUAL, None, "the same in every run"),
        ([5.0, 5.0], [5.0], EQUAL, None, "the same in every run"),
        ([5.0], [6.0], NOT_JUDGED, None, f"one run each, so {UNKNOWN}"),
        ([5.0, 5.0], [6.0], NOT_JUDGED, None, f"B is one run, so {UNKNOWN}"),
        ([5.0], [6.0, 6.0, 6.0], NOT_JUDGED, None, f"A is one run, so {UNKNOWN}"),
        (
            [5.0, 5.0],
            [6.0, 6.0, 6.0],
            NOT_JUDGED,
            0.0,
            "the same in all 2 runs of A and in all 3 of B",
        ),
        ([0.0, 0.0], [6.0, 6.0], NOT_JUDGED, None, "so the change is undefined"),
    ],
)
def test_memory_that_repeats_itself_is_exact_from_two_runs_on(a, b, verdict, p, why):
    row = row_of(PEAK, [seen(value) for value in a], [seen(value) for value in b])
    assert (row.result, row.p, row.adjusted) == (verdict, p, p)
    assert row.reason.endswith(why)


@table("a b", [((5.0, 5.1), (5.0, 5.0)), ((5.0, 5.0), (5.0, 5.1))])
def test_memory_with_a_spread_is_judged_like_a_time(a, b):
    row = row_of(PEAK, [seen(value) for value in a], [seen(value) for value in b])
    assert (row.reason, row.adjusted) == ("2 and 2 runs", None)
    assert row.p is not None
    assert row.interval is not None and row.interval[0] < 0 < row.interval[1]


@table(
    "a b why",
    [
        ([seen(1.0)], [seen(2.0, basis="another")], "different clocks: the clock / another"),
        ([seen(1.0, trusted=False)], [seen(2.0)], "the clock; use times from nsys or torch"),
        ([seen(1.0)], [seen(2.0, trusted=False)], "the clock; use times from nsys or torch"),
        (
            [seen(1.0), None],
            [seen(2.0)] * 2,
            "in 1 of 2 runs of A and 2 of 2 runs of B: not in every repeat",
        ),
        (
            [seen(1.0)] * 2,
            [None, None, seen(2.0)],
            "in 2 of 2 runs of A and 1 of 3 runs of B: not in every repeat",
        ),
        (
            [seen(1.0)] * 2,
            [seen(2.0)] * 2,
            "every repeat gave the same value, so there is no spread",
        ),
    ],
)
def test_a_time_that_cannot_be_judged_says_why(a, b, why):
    row = row_of(CONV, a, b)
    assert (row.result, row.reason, row.p, row.interval) == (NOT_JUDGED, why, None, None)


def test_a_time_with_a_spread_has_its_chance_and_the_interval_of_its_change():
    """Three runs with logarithms 0, 0.1 and 0.2 against one of 0.5: t = 0.4 / sqrt(0.01 / 3 +
    0.01) = 2 sqrt 3."""
    row = row_of(CONV, [seen(1.0), seen(math.exp(0.1)), seen(math.exp(0.2))], [seen(math.exp(0.5))])
    assert row.p == pytest.approx(1 - math.sqrt(6 / 7))
    reach = 0.95 * math.sqrt(2 / (1 - 0.95**2)) * math.sqrt(0.04 / 3)
    assert row.interval == pytest.approx((math.exp(0.4 - reach) - 1, math.exp(0.4 + reach) - 1))
    assert row.change == pytest.approx(math.exp(0.4) - 1)
    assert (row.adjusted, row.result) == (None, NOT_JUDGED), (
        "rows of a level are judged together, later"
    )


PLAIN = row_of(CONV, [seen(1.0)], [seen(2.0)])


@table(
    "change around adjusted verdict",
    [
        (0.3, (0.2, 0.4), 0.0, SLOWER),
        (-0.3, (-0.4, -0.2), 0.0, FASTER),
        (0.3, (0.2, 0.4), 0.0499, SLOWER),
        (0.3, (0.2, 0.4), 0.05, NOT_SHOWN),
        (0.25, (0.2, 0.4), 0.0, WITHIN),  # exactly the gate is not more than the gate
        (-0.25, (-0.4, -0.2), 0.0, WITHIN),
        (0.2501, (0.2, 0.4), 0.0, SLOWER),
        (-0.2501, (-0.4, -0.2), 0.0, FASTER),
        (0.3, (-0.5, 0.4), 0.0, NOT_SHOWN),  # the means moved the other way than the medians
        (0.3, (-0.4, 0.5), 0.0, SLOWER),
        (-0.3, (-0.4, 0.5), 0.0, NOT_SHOWN),
        (-0.3, (-0.5, 0.4), 0.0, FASTER),
        (0.3, None, 0.0, SLOWER),
        (-0.3, None, 0.0, FASTER),
    ],
)
def test_a_change_counts_when_it_is_no_chance_and_larger_than_the_gate(
    change, around, adjusted, verdict
):
    row = replace(PLAIN, change=change, interval=around)
    found = judge_row_by_p_value(row, adjusted, gate=0.25, alpha=0.05)
    assert (found.result, found.adjusted) == (verdict, adjusted)
    held = judge_row_by_p_value(replace(row, key=PEAK), adjusted, gate=0.25, alpha=0.05)
    assert held.result == {SLOWER: LARGER, FASTER: SMALLER}.get(verdict, verdict)
