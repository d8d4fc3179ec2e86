"""Correlations of a step's time with figures of pen and paper."""

from __future__ import annotations

import statistics

import pytest

from perfctl.orchestrator.analyse.correlate import correlation, correlations, pearson, ranks
from perfctl.parsers.bench_points import BenchMachine, BenchPoint

HERE = BenchMachine("a CPU", "cpu", 1, "2.9.0")


def point(model: str, batch: int, step_ns: int, **features: float) -> BenchPoint:
    return BenchPoint(model, batch, "train", "fp32", HERE, 5, (step_ns, step_ns, step_ns), features=features)


def test_pearsons_coefficient_is_that_of_the_standard_library() -> None:
    xs, ys = [1.0, 2.0, 4.0, 7.0, 3.0], [2.0, 1.0, 9.0, 8.0, 5.0]

    assert pearson(xs, ys) == pytest.approx(statistics.correlation(xs, ys))


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([10.0, 30.0, 10.0, 20.0]) == [1.5, 4.0, 1.5, 3.0]


def test_a_square_law_is_a_straight_line_of_slope_two_on_logarithms() -> None:
    points = [point("mlp", 1, 3 * size**2, size=float(size)) for size in (1, 2, 5, 9, 30)]
    found = correlation("mlp", "size", points)

    assert (found.spearman, found.pearson_log) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found.slope_log == pytest.approx(2.0)
    assert found.pearson is not None
    assert found.pearson < 0.999


def test_nothing_is_said_of_too_few_points_or_of_one_value() -> None:
    two = [point("mlp", 1, 5, size=1.0), point("mlp", 2, 6, size=2.0)]
    same = [point("mlp", batch, 5 + batch, size=1.0) for batch in (1, 2, 3)]

    assert correlation("mlp", "size", two).pearson is None
    assert correlation("mlp", "size", same).spearman is None


def test_families_stand_alone_and_together_with_the_closest_figure_first() -> None:
    points = [
        point(model, batch, batch * (10 if model == "vgg" else 1), noise=float(batch % 3))
        for model in ("mlp:depth=2", "vgg")
        for batch in (1, 2, 3, 4, 5)
    ]
    found = correlations(points)

    assert list(dict.fromkeys(one.family for one in found)) == ["mlp", "vgg", "all"]
    assert next(one.feature for one in found if one.family == "mlp") == "batch"
    assert {one.points for one in found if one.family == "all"} == {10}
