"""Correlations of a step's time with figures of pen and paper."""

import math
import statistics

import pytest

from perfctl.orchestrator.predict.bench import (
    compute_pearson,
    compute_ranks,
    correlate_feature_with_step_time,
    correlate_features_with_step_time,
)
from perfctl.records.bench import BenchMachine, BenchPoint

HERE = BenchMachine("a CPU", "cpu", 1, "2.9.0")


def point(model, batch, step_ns, **features):
    return BenchPoint(
        model, batch, "train", "fp32", HERE, 5, (step_ns, step_ns, step_ns), features=features
    )


def test_pearsons_coefficient_is_that_of_the_standard_library():
    xs, ys = [1.0, 2.0, 4.0, 7.0, 3.0], [2.0, 1.0, 9.0, 8.0, 5.0]

    assert compute_pearson(xs, ys) == pytest.approx(statistics.correlation(xs, ys))


def test_nothing_is_said_of_one_value():
    tenths = [0.1, 0.1, 0.1]  # whose mean in binary fractions is another number
    assert compute_pearson([1.0, 2.0, 4.0], tenths) is None
    assert compute_pearson(tenths, [1.0, 2.0, 4.0]) is None


def test_families_stand_alone_and_together_with_the_closest_figure_first():
    points = [
        point(model, batch, batch * (10 if model == "vgg" else 1), noise=float(batch % 3))
        for model in ("mlp:depth=2", "vgg")
        for batch in (1, 2, 3, 4, 5)
    ]
    found = correlate_features_with_step_time(points)

    assert list(dict.fromkeys(one.family for one in found)) == ["mlp", "vgg", "all"]
    assert next(one.feature for one in found if one.family == "mlp") == "batch"
    assert {one.points for one in found if one.family == "all"} == {10}


def test_three_points_are_enough_and_two_are_not():
    """A square law: a straight line of slope two on logarithms, and none on the values."""
    points = [
        point("mlp", batch, 10 * size**2, size=float(size))
        for batch, size in ((1, 1), (2, 2), (4, 3))
    ]
    found = correlate_feature_with_step_time("mlp", "size", points)
    assert (found.points, found.spearman, found.pearson_log, found.slope_log) == (
        3,
        *map(pytest.approx, (1.0, 1.0, 2.0)),
    )
    # means 2 and 140 / 3
    assert found.pearson == pytest.approx(80 / (math.sqrt(2) * math.sqrt(9800 / 3)))
    two = correlate_feature_with_step_time("mlp", "size", points[:2])
    assert (two.points, two.pearson, two.pearson_log, two.spearman, two.slope_log) == (
        2,
        *[None] * 4,
    )


def test_a_figure_that_is_0_has_no_logarithm_and_the_rest_is_still_a_line():
    points = [
        point("mlp", 1, step, size=size) for step, size in ((7, 0.0), (2, 1.0), (4, 2.0), (8, 4.0))
    ]
    found = correlate_feature_with_step_time("mlp", "size", points)
    assert (found.points, found.slope_log, found.pearson_log) == (
        4,
        pytest.approx(1.0),
        pytest.approx(1.0),
    )
    assert (
        correlate_feature_with_step_time("mlp", "size", points[:3]).slope_log is None
    )  # two of them have a logarithm


def test_what_falls_as_the_other_rises_is_minus_one_and_stands_before_what_is_only_near():
    points = [
        point("mlp", 1, step, falling=falling, near=near)
        for step, falling, near in ((1, 9.0, 1.0), (2, 5.0, 2.0), (3, 4.0, 4.0), (4, 1.0, 3.0))
    ]
    found = correlate_features_with_step_time(points)
    assert [(one.family, one.feature) for one in found] == [
        ("mlp", "falling"),
        ("mlp", "near"),
    ]  # the batch is one value
    assert [one.spearman for one in found] == pytest.approx([-1.0, 0.8])  # 1 - 6 x 2 / (4 x 15)


def test_a_point_without_the_figure_is_left_out():
    points = [*(point("mlp", 1, size, size=float(size)) for size in (1, 2, 3)), point("mlp", 1, 99)]
    assert correlate_feature_with_step_time("mlp", "size", points).points == 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10.0, 30.0, 10.0, 20.0], [1.5, 4.0, 1.5, 3.0]),
        ([5.0, 7.0, 7.0, 7.0, 9.0], [1.0, 3.0, 3.0, 3.0, 5.0]),
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]),
        ([], []),
    ],
)
def test_ranks_start_at_1_and_equal_values_share_the_mean_of_theirs(values, expected):
    assert compute_ranks(values) == expected
