"""Student's t, Holm and autocorrelation, against closed forms and against chance itself."""

from __future__ import annotations

import math
import random

import pytest

from perfctl.orchestrator.analyse.compare_stats import (
    FEWEST_STEPS,
    Ratio,
    autocorrelation,
    holm,
    interval,
    ratio,
    t_quantile,
    t_two_sided,
)


@pytest.mark.parametrize("t", [0.1, 0.5, 1.0, 2.0, 10.0, 100.0])
def test_students_t_is_the_closed_form_where_there_is_one(t: float) -> None:
    assert t_two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-12)
    assert t_two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
    assert t_two_sided(t, 1e7) == pytest.approx(math.erfc(t / math.sqrt(2)), abs=1e-6)
    assert t_two_sided(-t, 3) == t_two_sided(t, 3)


def test_the_quantile_is_the_inverse() -> None:
    assert t_quantile(0.95, 1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-9)
    for freedom in (1.5, 4, 30):
        assert t_two_sided(t_quantile(0.95, freedom), freedom) == pytest.approx(0.05, rel=1e-9)


def test_holm_multiplies_the_smallest_by_all_the_next_by_one_less_and_never_falls() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5}) == {
        "a": pytest.approx(0.04), "c": pytest.approx(0.09), "b": pytest.approx(0.09), "d": 0.5,
    }  # fmt: skip
    assert holm({}) == {}


def test_the_interval_of_repeats_is_students_on_logarithms() -> None:
    values = [100.0, 110.0, 121.0]  # logarithms one step of log 1.1 apart: mean log 110, standard deviation log 1.1
    reach = t_quantile(0.95, 2) * math.log(1.1) / math.sqrt(3)
    assert interval(values) == pytest.approx((110 * math.exp(-reach), 110 * math.exp(reach)))
    assert interval([100.0]) is None
    assert interval([0.0, 1.0]) is None


def test_alternating_values_count_as_independent_and_a_drift_does_not() -> None:
    assert autocorrelation([1.0, 2.0] * 10) == 0.0
    assert autocorrelation([float(step) for step in range(50)]) > 0.9
    assert autocorrelation([3.0] * 9) == 0.0


def test_a_single_figure_each_is_never_told_apart_and_the_reason_is_said() -> None:
    said = ratio([[100.0]], [[200.0]])
    assert isinstance(said, str)
    assert "no spread" in said
    few = ratio([[100.0] * (FEWEST_STEPS - 1)], [[200.0] * 50])
    assert isinstance(few, str)
    assert f"at least {FEWEST_STEPS}" in few


def test_what_has_no_spread_at_all_is_not_judged() -> None:
    assert isinstance(ratio([[5.0]] * 3, [[6.0]] * 3), str)
    assert isinstance(ratio([[5.0] * 20], [[6.0] * 20]), str)
    assert isinstance(ratio([[0.0], [1.0]], [[1.0], [1.1]]), str)


def test_one_run_against_several_takes_the_spread_of_the_several() -> None:
    several = [[98.0], [100.0], [102.0], [101.0], [99.0]]
    far, near = ratio(several, [[130.0]]), ratio(several, [[101.5]])
    assert isinstance(far, Ratio)
    assert isinstance(near, Ratio)
    assert far.p < 0.001 < 0.05 < near.p
    back = ratio([[130.0]], several)
    assert isinstance(back, Ratio)
    assert back.p == pytest.approx(far.p)
    assert back.low == pytest.approx(1 / far.high)


def rate(trials: int, make: object) -> float:
    """Share of trials in which nothing differs and p is below 0.05."""
    dice = random.Random(7)
    found = [make(dice) for _ in range(trials)]  # type: ignore[operator]
    return sum(isinstance(one, Ratio) and one.p < 0.05 for one in found) / trials


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_noise_between_runs_is_called_a_difference_no_more_often_than_one_time_in_20(runs: int) -> None:
    def trial(dice: random.Random) -> Ratio | str:
        return ratio(*([[math.exp(dice.gauss(0, 0.1))] for _ in range(runs)] for _ in "ab"))

    assert rate(2000, trial) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_steps_that_follow_on_one_another_are_not_taken_for_independent_ones(alike: float) -> None:
    def steps(dice: random.Random) -> list[float]:
        level, found = dice.gauss(0, 1), []
        for _ in range(60):
            level = alike * level + math.sqrt(1 - alike**2) * dice.gauss(0, 1)
            found.append(math.exp(0.02 * level))
        return found

    measured = rate(1000, lambda dice: ratio([steps(dice)], [steps(dice)]))
    assert measured < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 1000)
    if alike:  # what it would be if they were
        naive = rate(400, lambda dice: ratio([[x] for x in steps(dice)], [[x] for x in steps(dice)]))
        assert naive > 0.15
