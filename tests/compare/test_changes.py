"""Change points of series that are made with a known level, noise and autocorrelation."""

import math

import numpy as np
import pytest

from perfctl.orchestrator.compare.changes import (
    LevelChange,
    compute_min_points_for_change,
    find_every_value_change,
    find_significant_changes,
)
from tests.make.tables import table


def series(seed, count, *, alike=0.0, jump=1.0, at=0, spread=0.01):
    """Times around 1 ms whose logarithms have this spread; each is as like the one before it as
    ``alike`` says."""
    dice, noise = np.random.default_rng(seed), [0.0]
    for shock in dice.standard_normal(count + 100):
        noise.append(alike * noise[-1] + math.sqrt(1 - alike**2) * shock)
    return [
        1e6 * math.exp(spread * one) * (jump if place >= at else 1.0)
        for place, one in enumerate(noise[-count:])
    ]


@table("jump", [1.1, 0.9])
def test_a_level_that_changed_by_ten_times_the_noise_is_found_where_it_changed(jump):
    (found,) = find_significant_changes(series(1, 30, jump=jump, at=18))
    assert found.earliest <= 18 <= found.latest
    assert found.after == 18
    assert (found.before_points, found.after_points) == (18, 12)
    assert found.interval is not None
    assert found.interval[0] <= jump - 1 <= found.interval[1]
    assert found.change == pytest.approx(jump - 1, abs=0.02)


def test_two_changes_are_two():
    values = [*series(2, 15), *series(3, 15, jump=1.2), *series(4, 15, jump=1.5)]
    assert [one.after for one in find_significant_changes(values)] == [15, 30]


@table("alike most", [(0.0, 2), (0.6, 6)])
def test_noise_alone_is_seldom_a_change_also_where_each_point_is_like_the_one_before(alike, most):
    assert (
        sum(bool(find_significant_changes(series(seed, 20, alike=alike))) for seed in range(50))
        <= most
    )


def test_fewer_points_than_can_show_a_change_show_none():
    count = compute_min_points_for_change()
    assert find_significant_changes(series(5, count - 1, jump=3.0, at=count // 2)) == []
    assert find_significant_changes(series(5, count, jump=3.0, at=count // 2)) != []


def test_among_many_series_more_points_are_needed():
    assert compute_min_points_for_change(100) > compute_min_points_for_change(1)


def test_a_change_within_the_gate_is_not_told():
    values = series(6, 30, jump=1.04, at=15, spread=0.001)
    assert find_significant_changes(values, min_relative_change=0.05) == []
    assert len(find_significant_changes(values, min_relative_change=0.03)) == 1


def test_one_slow_point_is_no_level():
    values = series(7, 30)
    values[14] *= 3
    assert find_significant_changes(values) == []


def test_a_value_that_is_no_time_is_not_judged():
    assert find_significant_changes([0.0, *series(9, 29, jump=2.0, at=15)]) == []


def test_every_change_of_an_exact_count_is_told():
    assert find_every_value_change([8, 8, 16, 16, 16, 0, 4]) == [
        LevelChange(2, 1.0, None, None, 2, 2, 2, 3),
        LevelChange(5, -1.0, None, None, 5, 5, 3, 1),
        LevelChange(6, None, None, None, 6, 6, 1, 1),
    ]


def test_a_count_that_stays_has_no_change():
    assert find_every_value_change([8, 8, 8]) == []
