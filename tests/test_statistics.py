"""Student's t, Holm and autocorrelation, against closed forms and against chance itself."""

import math
import random

import pytest

from perfctl.orchestrator.statistics import (
    RatioInterval,
    UntestedRatio,
    adjust_p_values_by_holm,
    compute_b_over_a_interval,
    compute_geometric_mean_95_interval,
    compute_lag1_autocorrelation,
    compute_two_sided_t_p_value,
    compute_two_sided_t_quantile,
    compute_wilson_interval,
    explain_wide_ratio_interval,
    explain_wide_run_interval,
    explain_wide_share_interval,
)


def ratio(a, b):
    """B over A, or the reason why it is unknown."""
    test = compute_b_over_a_interval(a, b)
    return test.reason if isinstance(test, UntestedRatio) else test


def test_holm_multiplies_the_smallest_by_all_the_next_by_one_less_and_never_falls():
    assert adjust_p_values_by_holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.5}) == {
        "a": pytest.approx(0.04),
        "c": pytest.approx(0.09),
        "b": pytest.approx(0.09),
        "d": 0.5,
    }
    assert adjust_p_values_by_holm({}) == {}


def test_the_interval_of_repeats_is_students_on_logarithms():
    # logarithms one step of log 1.1 apart: mean log 110, standard deviation log 1.1
    values = [100.0, 110.0, 121.0]
    reach = compute_two_sided_t_quantile(0.95, 2) * math.log(1.1) / math.sqrt(3)
    assert compute_geometric_mean_95_interval(values) == pytest.approx(
        (110 * math.exp(-reach), 110 * math.exp(reach))
    )
    assert compute_geometric_mean_95_interval([100.0]) is None
    assert compute_geometric_mean_95_interval([0.0, 1.0]) is None


def rate(trials, make):
    """Share of trials in which nothing differs and p is below 0.05."""
    dice = random.Random(7)
    found = [make(dice) for _ in range(trials)]  # type: ignore[operator]
    return sum(isinstance(one, RatioInterval) and one.p < 0.05 for one in found) / trials


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_noise_between_runs_is_called_a_difference_no_more_often_than_one_time_in_20(runs):
    def trial(dice):
        return ratio(*([[math.exp(dice.gauss(0, 0.1))] for _ in range(runs)] for _ in "ab"))

    assert rate(1000, trial) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize("alike", [0.0, 0.6])
def test_steps_that_follow_on_one_another_are_not_taken_for_independent_ones(alike):
    def steps(dice):
        level, found = dice.gauss(0, 1), []
        for _ in range(60):
            level = alike * level + math.sqrt(1 - alike**2) * dice.gauss(0, 1)
            found.append(math.exp(0.02 * level))
        return found

    measured = rate(400, lambda dice: ratio([steps(dice)], [steps(dice)]))
    assert measured < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)
    if alike:  # what it would be if they were
        naive = rate(
            200, lambda dice: ratio([[x] for x in steps(dice)], [[x] for x in steps(dice)])
        )
        assert naive > 0.15


def closed_form(t, freedom):
    """Chance beyond t for whole degrees of freedom: Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range(2 if odd else 1, freedom, 2):
        total += term
        term *= step / (step + 1) * math.cos(angle) ** 2
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return 1 - within


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 6, 7, 10, 19, 60, 199])
def test_students_t_is_the_finite_sum_for_whole_degrees_of_freedom(freedom):
    for t in (0.01, 0.3, 0.9, 1.0, 1.7, 2.5, 4.0, 9.0, 40.0):
        assert compute_two_sided_t_p_value(t, freedom) == pytest.approx(
            closed_form(t, freedom), abs=1e-12
        )


def test_students_t_at_its_ends_and_far_out():
    assert compute_two_sided_t_p_value(0, 3) == 1.0
    assert compute_two_sided_t_p_value(-2, 3) == compute_two_sided_t_p_value(2, 3)
    assert compute_two_sided_t_p_value(2, 1e7) == pytest.approx(
        math.erfc(2 / math.sqrt(2)), abs=1e-6
    )
    assert compute_two_sided_t_p_value(
        compute_two_sided_t_quantile(0.95, 1.5), 1.5
    ) == pytest.approx(0.05, rel=1e-9)
    assert compute_two_sided_t_p_value(math.inf, 3) == 0.0
    # 1 - t / sqrt(2 + t^2) is 1 / t^2 there
    assert compute_two_sided_t_p_value(1e6, 2) == pytest.approx(1e-12, rel=1e-9)
    assert compute_two_sided_t_p_value(1e6, 1) == pytest.approx(2e-6 / math.pi, rel=1e-9)


@pytest.mark.parametrize("confidence", [0.1, 0.5, 0.95, 0.99, 0.9999])
def test_the_quantile_is_the_closed_form_where_there_is_one(confidence):
    assert compute_two_sided_t_quantile(confidence, 2) == pytest.approx(
        confidence * math.sqrt(2 / (1 - confidence**2)), rel=1e-9
    )
    assert compute_two_sided_t_quantile(confidence, 1) == pytest.approx(
        math.tan(confidence * math.pi / 2), rel=1e-9
    )


def test_holm_gives_no_more_than_certainty_and_the_same_to_what_is_alike():
    assert adjust_p_values_by_holm({"a": 0.9, "b": 0.6}) == {"b": 1.0, "a": 1.0}
    assert adjust_p_values_by_holm({"a": 0.2, "b": 0.2, "c": 0.2}) == pytest.approx(
        dict.fromkeys("abc", 0.6)
    )
    assert adjust_p_values_by_holm({"a": 0.03}) == {"a": 0.03}


@pytest.mark.parametrize(
    ("values", "alike"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.92),  # 4 / 10, and (1 + 1.6) / 5 put back
        ([1.0, 2.0, 4.0, 3.0], 0.55),  # 0.75 / 5, and (1 + 0.6) / 4
        ([10.0, 20.0, 40.0, 30.0], 0.55),
        ([0.0, 0.0, 1.0, 1.0] * 3, 7 / 36),  # (6 - 5) / 12, and (1 + 1/3) / 12
        ([1.0, 3.0, 2.0, 4.0], 0.0),  # -1.75 / 5 and less: no negative one
        ([float(number) for number in range(10)], 0.95),  # 57.75 / 82.5 and 0.38: 1.08 is cut
        ([3.0] * 9, 0.0),
    ],
)
def test_autocorrelation_by_hand(values, alike):
    assert compute_lag1_autocorrelation(values) == pytest.approx(alike, abs=1e-12)


def told(a, b):
    """The ratio of two sides that are given as logarithms."""
    found = ratio(*([[math.exp(value) for value in run] for run in side] for side in (a, b)))
    assert isinstance(found, RatioInterval)
    return found


def expected(change, variance, freedom):
    reach = compute_two_sided_t_quantile(0.95, freedom) * math.sqrt(variance)
    return (
        math.exp(change - reach),
        math.exp(change + reach),
        compute_two_sided_t_p_value(change / math.sqrt(variance), freedom),
    )


def test_two_sides_of_runs_are_told_apart_by_welch():
    """Logarithms 0 and 0.2: variance 0.02 / 2; 1, 1.1 and 1.2: 0.01 / 3. Medians of each run; the
    odd steps do not count."""
    found = told([[0.0, -9.0, 9.0], [0.2]], [[1.0], [1.1, 1.1, 7.0], [1.2]])
    assert (found.low, found.high, found.p) == pytest.approx(expected(1.0, 0.04 / 3, 32 / 19))
    assert found.basis == "2 and 3 runs"


@pytest.mark.parametrize(
    ("turned", "which"), [(False, "3 and 1 runs; B"), (True, "1 and 3 runs; A")]
)
def test_one_run_spreads_as_the_several_do(turned, which):
    several, single = [[0.0], [0.1, 0.1, 5.0], [0.2]], [[0.5, 0.5, -4.0]]
    found = told(single, several) if turned else told(several, single)
    change = -0.4 if turned else 0.4
    assert found.p == pytest.approx(1 - math.sqrt(6 / 7))  # t^2 = 0.16 / (0.01 + 0.01 / 3) = 12
    assert (found.low, found.high) == pytest.approx(expected(change, 0.04 / 3, 2)[:2])
    assert found.basis == f"{which} is one run, assumed to spread like the others"


def test_steps_of_one_run_each_count_for_as_many_as_they_are_worth():
    blocks, swinging = [0.0, 0.0, 0.3, 0.3] * 3, [1.0, 1.2] * 10
    # 12 steps of which 7/36 hangs together: 12 x 29 / 43 of them; the 20 that swing are worth 20.
    worth, spread = 12 * 29 / 43, 3 / 11 * 0.09
    first, second = spread / worth, 0.01 / 19
    freedom = (first + second) ** 2 / (first**2 / (worth - 1) + second**2 / 19)
    found = told([blocks], [swinging])
    assert (found.low, found.high, found.p) == pytest.approx(
        expected(1.1 - 0.15, first + second, freedom)
    )
    assert found.basis == "12 and 20 steps of one run each; the spread between runs is unknown"


def test_steps_that_only_drift_are_worth_two():
    drift, swinging = [number / 100 for number in range(10)], [1.0, 1.2] * 5
    first, second = 55 / 6 * 1e-4 / 2, 0.01 / 9
    freedom = (first + second) ** 2 / (first**2 / 1 + second**2 / 9)
    found = told([drift], [swinging])
    assert (found.low, found.high, found.p) == pytest.approx(
        expected(1.1 - 0.045, first + second, freedom)
    )


def test_ten_steps_are_enough_and_nine_are_not():
    even, odd = [1.0, 1.1] * 5, [2.0, 2.1] * 5
    assert isinstance(ratio([even], [odd]), RatioInterval)
    nine = "one run each of 9 steps: a spread needs 10 steps, or 5 repeats of the runs"
    assert ratio([even], [odd[1:]]) == ratio([even[1:]], [odd]) == nine
    assert ratio([even], [odd[:2]]) == nine.replace("9 steps", "2 steps")
    lone = "one run each and one value in {}, so there is no spread. Repeat the runs 5 times"
    assert ratio([[1.0]], [[2.0]]) == lone.format("it")
    assert (ratio([even], [[2.0]]), ratio([[2.0]], [even])) == (lone.format("B"), lone.format("A"))


def test_a_spread_on_one_side_is_enough_and_none_on_both_is_said():
    steady = [5.0] * 10
    assert isinstance(ratio([steady], [[1.0, 1.1] * 5]), RatioInterval)
    assert ratio([steady], [[6.0] * 10]) == "every step took the same time, so there is no spread"
    same = "every repeat gave the same value, so there is no spread"
    assert (
        ratio([[5.0], [5.0]], [[6.0], [6.0]])
        == ratio([[5.0], [5.0]], [[6.0]])
        == ratio([[6.0]], [[5.0]] * 2)
        == same
    )
    assert isinstance(ratio([[5.0], [5.0]], [[6.0], [6.1]]), RatioInterval)


def test_a_0_is_no_share_of_anything_where_it_is_compared():
    zero = "one value is 0, so the ratio is undefined"
    assert (
        ratio([[0.0, *[1.0] * 9]], [[1.0] * 10]) == ratio([[1.0] * 10], [[0.0, *[1.0] * 9]]) == zero
    )
    assert ratio([[0.0], [1.0]], [[1.0]]) == ratio([[1.0]], [[0.0], [1.0]]) == zero
    assert isinstance(ratio([[0.0, 1.0, 1.0], [1.1]], [[1.0]]), RatioInterval), (
        "the medians are compared, and none is 0"
    )
    assert ratio([], [[1.0]]) == ratio([[1.0]], []) == "on one side only"


def test_two_values_have_an_interval_and_a_huge_one_does_not_overflow():
    assert compute_geometric_mean_95_interval([1.0, math.e]) == pytest.approx(
        (
            math.exp(0.5 - math.tan(0.475 * math.pi) / 2),
            math.exp(0.5 + math.tan(0.475 * math.pi) / 2),
        )
    )
    found = ratio([[1e-200], [1e200]], [[1.0], [1.5]])
    assert isinstance(found, RatioInterval)
    assert (found.low, found.high) == pytest.approx((math.exp(-700), math.exp(700)))


def test_the_interval_of_two_far_repeats_says_nothing_and_how_many_more_would_settle_it():
    """Two runs have t = 12.7: 1 s and 1.5 s give an interval over more than a factor of 100."""
    low, high = compute_geometric_mean_95_interval([1.0, 1.5]) or (0.0, 0.0)
    assert high / low > 100
    wide = explain_wide_run_interval([1.0, 1.5])
    assert wide is not None
    deviation = math.log(1.5) / math.sqrt(2)

    def apart(runs):
        return math.exp(
            2 * compute_two_sided_t_quantile(0.95, runs - 1) * deviation / math.sqrt(runs)
        )

    assert apart(2 + wide.more) <= 3 < apart(1 + wide.more)
    settle = f"about {wide.more} more runs would decide"
    assert wide.reason == f"unknown: its 95% interval is wider than a factor of 3; {settle}"
    assert explain_wide_run_interval([1.0, 1.01]) is None, "two runs that agree have a narrow one"


def test_more_than_a_thousand_further_values_are_not_counted():
    found = RatioInterval(1e-3, 1e8, 0.9, "", 9.0)
    wide = explain_wide_ratio_interval(found, 10, "steps")
    assert wide is not None
    assert wide.additional_values_text == "more than 1,000 more steps"
    assert explain_wide_ratio_interval(RatioInterval(1.0, 2.9, 0.1, "", 9.0), 10, "steps") is None


def test_a_share_of_a_few_images_has_an_interval_only_once_it_is_narrower_than_half():
    wide = explain_wide_share_interval(0.5, 4)
    assert wide is not None

    def width(images):
        low, high = compute_wilson_interval(0.5, images)
        return high - low

    assert width(4 + wide.more) <= 0.5 < width(3 + wide.more)
    assert wide.unit == "images"
    assert explain_wide_share_interval(0.7, 200) is None
