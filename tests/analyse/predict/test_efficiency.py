"""Learned efficiency: never above 1, never falling with batch, the same numbers from JSON and in bulk."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfctl.orchestrator.analyse.predict.trees import (
    LEAF,
    Fitted,
    Trees,
    drivers,
    eighths,
    exponential,
    from_json,
    predict,
    to_json,
    total,
)

patient = settings(deadline=None)
"""The first example waits for the fit."""


def made(batch: float, depth: float) -> tuple[tuple[float, float, float], float]:
    """A made-up operation: its row of features and its floor in seconds."""
    return (batch, depth, batch * depth), 1e-6 * batch * depth + 1e-5


@cache
def fitted() -> Fitted:
    """Learned once, from 300 made-up times with noise: efficiency rises with size towards 0.8."""
    pytest.importorskip("sklearn")
    from perfctl.orchestrator.analyse.predict.trees_fit import Sample, Settings, fit

    rng = random.Random(5)
    drawn = [(rng.randint(1, 128), math.exp(rng.uniform(0, 5))) for _ in range(300)]
    rows, floors = zip(*(made(batch, depth) for batch, depth in drawn), strict=True)
    taken = [
        floor / 0.8 * (1 + 100 / (row[2] + 10)) * math.exp(rng.gauss(0, 0.05))
        for row, floor in zip(rows, floors, strict=True)
    ]
    sample = Sample(("batch", "depth", "work"), rows, floors, taken, [d for _, d in drawn], ("batch", "work"))
    return fit("made up", sample, Settings(rounds=60, power=4))


sizes = st.tuples(st.integers(1, 100_000), st.floats(0.01, 1e6))


@patient
@given(sizes, st.integers(1, 1000))
def test_a_larger_batch_is_never_faster(size: tuple[int, float], more: int) -> None:
    batch, depth = size
    assert predict(fitted(), *made(batch + more, depth)).seconds >= predict(fitted(), *made(batch, depth)).seconds


@patient
@given(sizes)
def test_efficiency_lies_above_0_and_up_to_1_and_the_interval_around_the_time(size: tuple[int, float]) -> None:
    found = predict(fitted(), *made(*size))
    assert 0 < found.efficiency <= 1
    assert found.floor <= found.low <= found.seconds <= found.high


@patient
@given(st.integers(129, 10_000))
def test_what_lies_outside_of_the_data_is_named_and_widens_the_interval(batch: int) -> None:
    far, near = predict(fitted(), *made(batch, 50.0)), predict(fitted(), *made(120, 50.0))
    assert "batch" in far.outside
    assert near.outside == ()
    assert far.high / far.seconds > 1 + (near.high / near.seconds - 1) * 0.5


def test_the_interval_grows_with_the_distance_up_to_five_times() -> None:
    ratios = [math.log(found.high / found.seconds) for batch in (128, 256, 640, 6400)
              for found in [predict(fitted(), (batch, 50.0, 1000.0), 0.001)]]  # fmt: skip
    excess = [batch / fitted().high[0] - 1 for batch in (128, 256, 640, 6400)]
    for ratio, beyond in zip(ratios, excess, strict=True):
        assert ratio / ratios[0] == pytest.approx((1 + min(max(beyond, 0), 4)) / (1 + max(excess[0], 0)), rel=1e-9)


def test_beyond_the_data_efficiency_stays_what_it_was() -> None:
    row, _ = made(128, fitted().high[1])
    near = predict(fitted(), row, fitted().floor_high)
    far = predict(fitted(), row, 10 * fitted().floor_high)
    assert far.seconds == pytest.approx(10 * near.seconds)


def test_it_learns_what_it_was_shown() -> None:
    assert fitted().error < 0.1
    assert fitted().rows == 300


def test_json_gives_back_the_same_numbers() -> None:
    assert from_json(json.loads(json.dumps(to_json(fitted())))) == fitted()


@patient
@given(st.floats(-600, 600))
def test_the_exponential_is_right_to_the_last_digits(x: float) -> None:
    assert exponential(x) == pytest.approx(math.exp(x), rel=1e-15, abs=0)


@patient
@given(st.floats(1e-9, 1e3), st.integers(0, 8))
def test_eighths_are_powers(x: float, power: int) -> None:
    assert eighths(x, power) == pytest.approx(x ** (power / 8), rel=1e-14, abs=0)


STUMP = Trees(1.0, (0,), (0, LEAF, LEAF), (2.0, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, 0.25, 0.5))


def test_a_row_goes_left_up_to_the_threshold_itself() -> None:
    assert total(STUMP, (2.0,)) == 1.25
    assert total(STUMP, (2.0000001,)) == 1.5


def test_the_feature_that_moves_the_time_most_is_named_first() -> None:
    trees = Trees(0.0, (0,), (1, LEAF, LEAF), (2.0, 0.0, 0.0), (1, 0, 0), (2, 0, 0), (0.0, -1.0, 1.0))
    names = drivers(replace(fitted(), trees=trees), (1.0, 5.0, 5.0))
    assert names[0] == ("depth", pytest.approx(math.e))
    assert names[1][1] == 1.0


@pytest.mark.parametrize("row", [(1.0, 2.0), (1.0, 2.0, math.nan), (1.0, 2.0, math.inf)])
def test_a_row_that_is_no_row_is_refused(row: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="3 finite figures"):
        predict(fitted(), row, 1.0)


@pytest.mark.parametrize("floor", [0.0, -1.0, math.nan, math.inf])
def test_a_floor_that_is_no_time_is_refused(floor: float) -> None:
    with pytest.raises(ValueError, match="floor must be positive"):
        predict(fitted(), (1.0, 1.0, 1.0), floor)


def test_json_of_another_format_is_refused_with_both_names() -> None:
    with pytest.raises(ValueError, match="perfctl efficiency 1"):
        from_json({"format": "other"})


def test_json_that_lacks_something_says_what() -> None:
    found = to_json(fitted())
    del found["quantile"]
    with pytest.raises(ValueError, match="quantile is missing"):
        from_json(found)


def test_trees_that_point_backwards_are_refused() -> None:
    found = to_json(fitted())
    found["trees"]["left"][found["trees"]["roots"][1]] = 0
    with pytest.raises(ValueError, match="later nodes"):
        from_json(found)
