from __future__ import annotations

import pytest

from perfctl.records.stats import needed, percentile


@pytest.mark.parametrize(
    ("percent", "count", "above"),
    [
        (1, 1, 0),
        (49, 1, 0),
        (50, 1, 0),
        *((percent, count, 1) for percent, count in ((51, 3), (75, 4), (80, 5), (90, 10))),
        (95, 20, 1),
        (99, 100, 1),
    ],
)
def test_a_percentile_takes_so_many_values_that_one_lies_above_it(
    percent: int, count: int, above: int
) -> None:
    assert needed(percent) == count
    values = [float(value) for value in range(1, count + 1)]
    assert percentile(values[:-1], percent) is None
    rank = percentile(values, percent)
    assert rank is not None
    assert sum(value > rank for value in values) == above


def test_a_percentile_is_the_nearest_rank() -> None:
    values = [10.0, 20.0, 30.0, 40.0, 50.0]
    assert [percentile(values, percent) for percent in (20, 21, 40, 75, 80)] == [
        10.0,
        20.0,
        20.0,
        40.0,
        40.0,
    ]
    assert percentile(values, 81) is None
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert [
        percentile([float(value) for value in range(200, 0, -1)], percent) for percent in (95, 99)
    ] == [
        190.0,
        198.0,
    ]
    assert percentile([], 50) is None
