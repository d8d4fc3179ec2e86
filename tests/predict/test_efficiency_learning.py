"""What learning comes to where features say nothing: means of the rows that were seen, and
intervals worked out by hand."""

import math
from dataclasses import replace
from importlib.util import find_spec

import pytest

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict.efficiency import (
    FitSample,
    FitSettings,
    fit_efficiency,
    fit_efficiency_regressor,
    fit_error_model_and_quantile,
    predict_cross_validated_log_seconds,
    predict_seconds,
    split_groups_into_folds,
)

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="perfctl[predict]")

ONCE = FitSettings(power=8, rounds=1, folds=2)
HALVES = ["a"] * 10 + ["b"] * 10
AT = (3.0,)
SAMPLE = FitSample(("x",), [(3.0,)] * 20, [0.5] * 10 + [0.125] * 10, [1.0] * 20, HALVES)
"""Efficiencies of a half and of an eighth, which no feature tells apart."""


def value(model, row):
    (found,) = model.predict([row])
    return float(found)


def test_a_fit_of_two_groups_misses_each_by_what_the_other_says():
    found = fit_efficiency("made up", SAMPLE, ONCE)
    assert (found.name, found.features, found.low, found.high, found.power) == (
        "made up",
        ("x",),
        (3.0,),
        (3.0,),
        8,
    )
    assert (found.floor_low, found.floor_high, found.rows, found.coverage) == (0.125, 0.5, 20, 0.9)
    assert value(found.model, AT) == pytest.approx(math.log(4.0))  # the mean of log 2 and log 8
    # Group a is said to take 4 s and b 0.25 s: a factor of 4 either way, off by 3 and by 0.75.
    assert found.error == pytest.approx((3.0 + 0.75) / 2)
    assert (found.spread_low, found.spread_high, found.quantile) == pytest.approx(
        (math.log(4.0), math.log(4.0), 1.0)
    )
    (said,) = predict_seconds(found, [AT], [0.25])
    assert (said.seconds, said.low, said.high) == pytest.approx((1.0, 0.25, 4.0))


def test_a_row_is_predicted_from_the_other_groups_over_its_own_floor_and_not_below_it():
    # Square roots of the floors 4 and 16: 2 and 4; one group takes e times as long, the other e^3.
    given = replace(
        SAMPLE, floors=[4.0] * 10 + [16.0] * 10, seconds=[2 * math.e] * 10 + [4 * math.e**3] * 10
    )
    held = predict_cross_validated_log_seconds(given, replace(ONCE, power=4))
    assert held[:10] == pytest.approx([math.log(2.0) + 3] * 10)
    assert held[10:] == pytest.approx([math.log(16.0)] * 10)  # 4 e is below the floor


def test_least_absolute_errors_start_at_the_median_and_least_squares_at_the_mean():
    seconds = [math.exp(1.0)] * 15 + [math.exp(9.0)] * 5
    given = replace(SAMPLE, floors=[1.0] * 20, seconds=seconds)
    assert value(fit_efficiency_regressor(given, ONCE), (3.0,)) == pytest.approx(3.0)
    assert value(
        fit_efficiency_regressor(given, replace(ONCE, absolute=True)), (3.0,)
    ) == pytest.approx(1.0)


def test_the_seconds_follow_eighths_of_the_floor():
    given = replace(SAMPLE, floors=[256.0] * 20, seconds=[1000.0] * 20)
    for power, part in ((0, 1.0), (3, 8.0), (6, 64.0), (8, 256.0)):
        assert value(
            fit_efficiency_regressor(given, replace(ONCE, power=power)), AT
        ) == pytest.approx(math.log(1000.0 / part))


def test_a_feature_that_batch_drives_never_makes_a_step_faster_and_another_may():
    rows = [(float(place),) for place in range(40)]
    falling = FitSample(
        ("x",),
        rows,
        [1e-3] * 40,
        [math.exp(-place / 10) for place in range(40)],
        [str(i % 4) for i in range(40)],
    )
    settings = FitSettings(power=0, rounds=5, least=2)
    free, bound = (
        fit_efficiency_regressor(falling, settings),
        fit_efficiency_regressor(replace(falling, increasing=("x",)), settings),
    )
    assert value(free, (0.0,)) > value(free, (39.0,)) + 0.5
    assert value(bound, (0.0,)) <= value(bound, (39.0,))
    two = replace(
        falling, features=("y", "x"), rows=[(0.0, *row) for row in rows], increasing=("y",)
    )
    assert (
        value(fit_efficiency_regressor(two, settings), (0.0, 0.0))
        > value(fit_efficiency_regressor(two, settings), (0.0, 39.0)) + 0.5
    )


def quantile(missed, groups, coverage=0.9):
    """(low, high, quantile) where no feature tells rows apart."""
    rows = np.full((len(missed), 1), 3.0)
    _, *found = fit_error_model_and_quantile(
        rows, np.array(missed), groups, replace(ONCE, coverage=coverage)
    )
    return tuple(found)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("coverage", "found"),
    [(0.45, 1 / 3), (0.47, 1 / 3), (0.48, 3.0), (0.9, 3.0), (0.99, 3.0), (0.01, 1 / 3)],
)
def test_the_quantile_is_the_score_at_the_coverage_of_one_row_more(coverage, found):
    # Missed by 0.1 and 0.3, each expected to miss what the other does: ten scores of 1/3 and ten
    # of 3.
    # 0.47 of 21 is the 10th score, 0.48 the 11th; of 20 it would be the 10th.
    assert quantile([0.1] * 10 + [0.3] * 10, HALVES, coverage) == pytest.approx(
        (0.1, 0.3, found), rel=1e-5
    )


def test_the_spread_lies_between_what_a_fifth_and_what_nearly_all_miss_by():
    missed = [place / 100 for place in range(1, 21)]
    low, high, _ = quantile(missed, HALVES)
    assert (low, high) == pytest.approx((0.048, 0.1962))  # places 3.8 and 18.62 of 0 to 19
    # Only two rows miss by 0.1: what is expected of the others (0.1) is taken as 0.3, so that they
    # score 1.
    assert quantile([0.1] * 2 + [0.3] * 18, ["a"] * 2 + ["b"] * 18) == pytest.approx(
        (0.3, 0.3, 1.0), rel=1e-5
    )
    assert quantile([0.0] * 20, HALVES) == (1e-4, 1e-4, 0.0)
    spread, *_ = fit_error_model_and_quantile(np.full((20, 1), 3.0), np.array(missed), HALVES, ONCE)
    assert value(spread, (3.0,)) == pytest.approx(0.105, rel=1e-5)


def test_every_row_is_held_out_once_whole_groups_together_and_the_same_for_a_seed():
    groups = [place // 4 for place in range(60)]
    first, again, other = (
        [tuple(test) for _, test in split_groups_into_folds(groups, 5, seed)] for seed in (3, 3, 4)
    )
    assert first == again != other
    assert sorted(place for test in first for place in test) == list(range(60))
    for train, test in split_groups_into_folds(groups, 5, 3):
        assert not {groups[place] for place in train} & {groups[place] for place in test}


@pytest.mark.parametrize(
    ("count", "sizes"), [(5, [2, 2, 2, 3, 3]), (12, [1] * 12), (40, [1] * 12), (2, [6, 6])]
)
def test_folds_are_as_even_as_groups_allow_and_no_more_than_there_are_groups(count, sizes):
    groups = [str(place) for place in range(12)]
    assert sorted(len(test) for _, test in split_groups_into_folds(groups, count, 1)) == sizes


def test_groups_are_told_apart_by_what_they_are_called():
    (first, second) = [test.tolist() for _, test in split_groups_into_folds([1, "1", 2, "2"], 5, 1)]
    assert sorted([first, second]) == [[0, 1], [2, 3]]


NO_TIME = "floors and measured seconds must be greater than 0"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"floors": [0.0] + [1.0] * 19}, NO_TIME),
        ({"floors": [math.inf] + [1.0] * 19}, NO_TIME),
        ({"floors": [-1.0] + [1.0] * 19}, NO_TIME),
        ({"seconds": [1.0] * 19 + [0.0]}, NO_TIME),
        ({"seconds": [1.0] * 19 + [math.inf]}, NO_TIME),
        ({"seconds": [math.nan] + [1.0] * 19}, NO_TIME),
        ({"rows": [(3.0,)] * 19 + [(math.inf,)]}, "one finite figure for each of 1 features"),
        ({"rows": [(math.nan,)] * 20}, "one finite figure"),
        ({"features": ("batch", "depth")}, "for each of 2 features"),
        ({"increasing": ("speed",)}, "no feature is called speed"),
        ({"groups": ["one"] * 20}, "two groups"),
        (
            {
                "rows": [AT] * 19,
                "floors": [1.0] * 19,
                "seconds": [1.0] * 19,
                "groups": HALVES[:19],
            },
            "a: 19 measured rows are too few to learn from",
        ),
    ],
)
def test_what_cannot_be_learned_from_is_refused_with_its_reason(change, said):
    with pytest.raises(UsageError, match=said):
        fit_efficiency("a", replace(SAMPLE, **change), ONCE)


def test_the_same_rows_give_the_same_numbers():
    rows = [(float(place), float(place % 7)) for place in range(1, 31)]
    seconds = [2e-3 + row[0] * 1e-5 for row in rows]
    given = FitSample(
        ("batch", "depth"),
        rows,
        [1e-3] * 30,
        seconds,
        [place // 4 for place in range(30)],
        ("batch",),
    )
    one, other = (fit_efficiency("a", given, ONCE) for _ in range(2))
    assert replace(one, model=other.model, spread=other.spread) == other
    assert predict_seconds(one, rows, given.floors) == predict_seconds(other, rows, given.floors)
