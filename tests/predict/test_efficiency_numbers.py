"""What fitted numbers come out at, worked out by hand: no learning, no scikit-learn."""

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.predict import efficiency
from perfctl.orchestrator.predict.efficiency import (
    FittedEfficiency,
    compute_feature_time_factors,
)
from tests.make.made_fits import Linear

FITTED = FittedEfficiency(
    name="made up",
    features=("x", "y"),
    low=(1.0, 10.0),
    high=(4.0, 20.0),
    middle=(2.0, 12.0),
    power=8,
    floor_low=0.001,
    floor_high=0.1,
    model=Linear(math.log(2.0)),
    spread=Linear(0.1),
    spread_low=0.05,
    spread_high=0.2,
    quantile=2.0,
    coverage=0.9,
    rows=30,
    error=0.05,
)
"""Twice the floor, and 0.2 of a logarithm to either side."""


def predict(fitted, row, floor):
    (found,) = efficiency.predict_seconds(fitted, [row], [floor])
    return found


def test_many_rows_are_predicted_as_one_at_a_time():
    by_x = replace(FITTED, model=Linear(0.5, {0: 0.1}), spread=Linear(0.05, {1: 0.005}))
    rows, floors = [(2.0, 15.0), (3.0, 11.0), (9.0, 99.0)], [0.01, 0.02, 0.3]
    assert efficiency.predict_seconds(by_x, rows, floors) == [
        predict(by_x, *each) for each in zip(rows, floors, strict=True)
    ]


def test_what_drives_a_time_is_each_feature_against_its_median():
    found = compute_feature_time_factors(
        replace(FITTED, model=Linear(0.5, {0: 0.1, 1: -0.25})), (3.0, 16.0)
    )
    assert list(found) == ["y", "x"]
    assert list(found.values()) == pytest.approx([math.exp(-1.0), math.exp(0.1)])


def test_inside_of_the_range_seconds_and_interval_follow_the_model():
    found = predict(FITTED, (2.0, 15.0), 0.01)
    assert found.seconds == pytest.approx(0.02)
    assert (found.low, found.high) == pytest.approx((0.02 / math.exp(0.2), 0.02 * math.exp(0.2)))
    assert (found.floor, found.outside) == (0.01, ())
    assert found.efficiency == pytest.approx(0.5)


def test_above_the_floors_seen_seconds_follow_the_floor_and_below_them_they_stay():
    assert predict(FITTED, (2.0, 15.0), 0.3).seconds == pytest.approx(0.6)
    assert predict(FITTED, (2.0, 15.0), 0.0005).seconds == pytest.approx(0.002)
    root = replace(FITTED, power=4)
    assert predict(root, (2.0, 15.0), 0.4).seconds == pytest.approx(2 * math.sqrt(0.1) * 4)


def test_nothing_is_faster_than_its_floor():
    fast = replace(FITTED, model=Linear(math.log(0.5)))
    found = predict(fast, (2.0, 15.0), 0.01)
    assert (found.seconds, found.low, found.efficiency) == (0.01, 0.01, 1.0)
    near = replace(FITTED, model=Linear(math.log(1.1)))
    assert predict(near, (2.0, 15.0), 0.01).low == 0.01  # 1.1 / e^0.2 is below it


@pytest.mark.parametrize(
    ("row", "floor", "outside", "excess"),
    [
        ((1.0, 10.0), 0.001, (), 0.0),  # the edges are inside
        ((4.0, 20.0), 0.1, (), 0.0),
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
def test_an_interval_is_wider_by_how_far_outside_the_range_a_row_lies(row, floor, outside, excess):
    found = predict(FITTED, row, floor)
    assert found.outside == outside
    assert math.log(found.high / found.seconds) == pytest.approx(2.0 * 0.1 * (1 + excess))


def test_a_feature_that_was_0_everywhere_is_as_far_outside_as_counts():
    flat = replace(FITTED, low=(0.0, 10.0), high=(0.0, 20.0))
    assert predict(flat, (0.0, 15.0), 0.01).outside == ()
    found = predict(flat, (0.1, 15.0), 0.01)
    assert math.log(found.high / found.seconds) == pytest.approx(0.2 * 5)


@pytest.mark.parametrize(
    ("spread", "taken"), [(0.01, 0.05), (0.05, 0.05), (0.12, 0.12), (0.2, 0.2), (0.9, 0.2)]
)
def test_the_spread_stays_within_what_was_seen(spread, taken):
    found = predict(replace(FITTED, spread=Linear(spread)), (2.0, 15.0), 0.01)
    assert math.log(found.high / found.seconds) == pytest.approx(2 * taken)


def test_a_row_of_the_right_length_and_a_floor_above_0_are_needed():
    for row, floor, said in (
        ((1.0,), 1.0, "needs 2 finite figures"),
        ((1.0, 2.0, 3.0), 1.0, "needs 2 finite figures"),
        ((1.0, -math.inf), 1.0, "needs 2 finite figures"),
        ((2.0, 15.0), 0.0, "floor must be positive, got 0 s"),
        ((2.0, 15.0), math.inf, "floor must be positive, got inf s"),
    ):
        with pytest.raises(ValueError, match=f"made up: {said}"):
            predict(FITTED, row, floor)
    assert predict(FITTED, (2.0, 15.0), 1e-300).floor == 1e-300
