"""What fitted numbers come out at, worked out by hand: no learning, no scikit-learn."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from perfctl.orchestrator.analyse.predict import trees
from perfctl.orchestrator.analyse.predict.trees import (
    LEAF,
    Fitted,
    Trees,
    drivers,
    eighths,
    exponential,
    path,
    predict,
    total,
    trees_from_json,
)


def constant(value: float) -> Trees:
    return Trees(value, (), (), (), (), (), ())


TWO = Trees(
    0.5, (0, 3), (0, LEAF, LEAF, 1, LEAF, 3 - 3, LEAF, LEAF), (2.0, 0.0, 0.0, 10.0, 0.0, 1.0, 0.0, 0.0),
    (1, 0, 0, 4, 0, 6, 0, 0), (2, 0, 0, 5, 0, 7, 0, 0), (0.0, 1.0, 3.0, 0.0, 10.0, 0.0, 20.0, 40.0),
)  # fmt: skip
"""First tree: x <= 2 gives 1, else 3. Second: y <= 10 gives 10, else x <= 1 gives 20, else 40."""

FITTED = Fitted(
    name="made up", features=("x", "y"), low=(1.0, 10.0), high=(4.0, 20.0), power=8, floor_low=0.001, floor_high=0.1,
    trees=constant(math.log(2.0)), spread=constant(0.1), spread_low=0.05, spread_high=0.2, quantile=2.0, coverage=0.9,
    rows=30, error=0.05,
)  # fmt: skip
"""Twice the floor, and 0.2 of a logarithm to either side."""


@pytest.mark.parametrize(
    ("row", "found"),
    [((2.0, 10.0), 11.5), ((2.1, 10.0), 13.5), ((1.0, 10.1), 21.5), ((1.1, 10.1), 41.5), ((9.0, 99.0), 43.5)],
)
def test_a_sum_is_its_start_and_one_leaf_of_each_tree(row: tuple[float, float], found: float) -> None:
    import numpy as np

    assert total(TWO, row) == found
    assert list(trees.totals(TWO, np.array([row, (2.0, 10.0)]))) == [found, 11.5]


def test_what_moves_a_sum_is_the_change_of_the_mean_below_each_question() -> None:
    # Means: first tree 2; second (10 + (20 + 40)/2)/2 = 20, its right branch 30.
    assert path(TWO, (2.0, 10.0)) == (1.0 - 2.0, 10.0 - 20.0)
    assert path(TWO, (9.0, 99.0)) == ((3.0 - 2.0) + (40.0 - 30.0), 30.0 - 20.0)
    found = drivers(replace(FITTED, trees=TWO), (2.0, 10.0))
    assert [name for name, _ in found] == ["y", "x"]
    assert [factor for _, factor in found] == pytest.approx([math.exp(-10), math.exp(-1)])


def test_trees_come_back_from_json_and_damaged_ones_are_refused() -> None:
    whole = asdict(TWO)
    assert trees_from_json(whole) == TWO
    for change, said in (
        ({"value": [1.0]}, "differ in length"),
        ({"roots": [0, 8]}, "a root lies outside"),
        ({"roots": [-1]}, "a root lies outside"),
        ({"left": [0, 0, 0, 4, 0, 6, 0, 0]}, r"node 0 of the trees points at \(0, 2\), not at later nodes"),
        ({"right": [2, 0, 0, 5, 0, 8, 0, 0]}, "node 5 of the trees"),
    ):
        with pytest.raises(ValueError, match=said):
            trees_from_json({**whole, **change})
    assert trees_from_json({**whole, "roots": [7]}).roots == (7,)


@pytest.mark.parametrize(
    ("x", "found"),
    [(0.0, 1.0), (1.0, math.e), (-1.0, 1 / math.e), (10.0, math.exp(10)), (0.3, math.exp(0.3)), (-30.0, math.exp(-30))],
)
def test_the_exponential_is_that_of_the_library(x: float, found: float) -> None:
    assert exponential(x) == pytest.approx(found, rel=4e-16, abs=0)


def test_the_exponential_ends_at_plus_and_minus_700() -> None:
    assert exponential(701.0) == exponential(700.0) == pytest.approx(math.exp(700.0), rel=1e-13)
    assert exponential(-701.0) == exponential(-700.0) == pytest.approx(math.exp(-700.0), rel=1e-13, abs=0)
    assert exponential(699.5) < exponential(700.0)


@pytest.mark.parametrize(
    ("power", "found"),
    [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0), (4, 16.0), (5, 32.0), (6, 64.0), (7, 128.0), (8, 256.0)],
)
def test_eighths_of_256_are_powers_of_two(power: int, found: float) -> None:
    assert eighths(256.0, power) == found


def test_inside_of_the_range_seconds_and_interval_follow_the_trees() -> None:
    found = predict(FITTED, (2.0, 15.0), 0.01)
    assert found.seconds == pytest.approx(0.02)
    assert (found.low, found.high) == pytest.approx((0.02 / math.exp(0.2), 0.02 * math.exp(0.2)))
    assert (found.floor, found.outside) == (0.01, ())
    assert found.efficiency == pytest.approx(0.5)


def test_the_edges_of_the_range_are_inside() -> None:
    for row, floor in (((1.0, 10.0), 0.001), ((4.0, 20.0), 0.1)):
        assert predict(FITTED, row, floor).outside == ()


def test_above_the_floors_seen_seconds_follow_the_floor_and_below_them_they_stay() -> None:
    assert predict(FITTED, (2.0, 15.0), 0.3).seconds == pytest.approx(0.6)
    assert predict(FITTED, (2.0, 15.0), 0.0005).seconds == pytest.approx(0.002)
    root = replace(FITTED, power=4)
    assert predict(root, (2.0, 15.0), 0.4).seconds == pytest.approx(2 * math.sqrt(0.1) * 4)


def test_nothing_is_faster_than_its_floor() -> None:
    fast = replace(FITTED, trees=constant(math.log(0.5)))
    found = predict(fast, (2.0, 15.0), 0.01)
    assert (found.seconds, found.low, found.efficiency) == (0.01, 0.01, 1.0)
    near = replace(FITTED, trees=constant(math.log(1.1)))
    assert predict(near, (2.0, 15.0), 0.01).low == 0.01  # 1.1 / e^0.2 is below it


@pytest.mark.parametrize(
    ("row", "floor", "outside", "excess"),
    [
        ((8.0, 15.0), 0.01, ("x",), 1.0),  # twice the largest
        ((6.0, 15.0), 0.01, ("x",), 0.5),
        ((0.5, 15.0), 0.01, ("x",), 1.0),  # half of the smallest
        ((8.0, 60.0), 0.01, ("x", "y"), 2.0),  # the larger of the two
        ((2.0, 15.0), 0.2, ("floor",), 1.0),
        ((2.0, 15.0), 0.0005, ("floor",), 1.0),
        ((400.0, 15.0), 0.01, ("x",), 4.0),  # no further than four
        ((0.0, 15.0), 0.01, ("x",), 4.0),
        ((-3.0, 15.0), 0.01, ("x",), 4.0),
    ],
)
def test_an_interval_is_wider_by_how_far_outside_the_range_a_row_lies(
    row: tuple[float, float], floor: float, outside: tuple[str, ...], excess: float
) -> None:
    found = predict(FITTED, row, floor)
    assert found.outside == outside
    assert math.log(found.high / found.seconds) == pytest.approx(2.0 * 0.1 * (1 + excess))


def test_a_feature_that_was_0_everywhere_is_as_far_outside_as_counts() -> None:
    flat = replace(FITTED, low=(0.0, 10.0), high=(0.0, 20.0))
    assert predict(flat, (0.0, 15.0), 0.01).outside == ()
    found = predict(flat, (0.1, 15.0), 0.01)
    assert math.log(found.high / found.seconds) == pytest.approx(0.2 * 5)


@pytest.mark.parametrize(("spread", "taken"), [(0.01, 0.05), (0.05, 0.05), (0.12, 0.12), (0.2, 0.2), (0.9, 0.2)])
def test_the_spread_stays_within_what_was_seen(spread: float, taken: float) -> None:
    found = predict(replace(FITTED, spread=constant(spread)), (2.0, 15.0), 0.01)
    assert math.log(found.high / found.seconds) == pytest.approx(2 * taken)


def test_a_fit_is_written_as_plain_numbers_and_what_is_missing_or_of_another_format_is_named() -> None:
    none: dict[str, tuple[float, ...]] = dict.fromkeys(("roots", "feature", "threshold", "left", "right", "value"), ())
    whole = trees.to_json(FITTED)
    assert whole == {
        "format": "perfctl efficiency 1", "name": "made up", "features": ("x", "y"), "low": (1.0, 10.0), "high": (4.0, 20.0),
        "power": 8, "floor_low": 0.001, "floor_high": 0.1, "trees": {"start": math.log(2.0), **none},
        "spread": {"start": 0.1, **none}, "spread_low": 0.05, "spread_high": 0.2, "quantile": 2.0, "coverage": 0.9,
        "rows": 30, "error": 0.05,
    }  # fmt: skip
    assert trees.from_json(whole) == FITTED
    for name in ("power", "low", "trees", "spread"):
        with pytest.raises(ValueError, match=f"^{name} is missing"):
            trees.from_json({key: value for key, value in whole.items() if key != name})
    with pytest.raises(ValueError, match=r"^format is None, not 'perfctl efficiency 1': fit again"):
        trees.from_json({})


def test_a_row_of_the_right_length_and_a_floor_above_0_are_needed() -> None:
    for row, floor, said in (
        ((1.0,), 1.0, "needs 2 finite figures"), ((1.0, 2.0, 3.0), 1.0, "needs 2 finite figures"),
        ((1.0, -math.inf), 1.0, "needs 2 finite figures"), ((2.0, 15.0), 0.0, "floor must be positive, got 0 s"),
        ((2.0, 15.0), math.inf, "floor must be positive, got inf s"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"made up: {said}"):
            predict(FITTED, row, floor)
    assert predict(FITTED, (2.0, 15.0), 1e-300).floor == 1e-300
