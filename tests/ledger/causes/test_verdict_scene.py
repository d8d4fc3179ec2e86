"""Numbers as verdicts say them, and which factors are worth a word."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.ledger.causes.rule import amount, deviates, percent, times


@pytest.mark.parametrize(
    ("factor", "said"),
    [(0.44444, "0.444"), (1.0156, "1.016"), (1.9994, "1.999"), (2, "2.00"), (3.5556, "3.56")],
)
def test_a_factor_has_three_digits_behind_the_point_below_2_and_two_above(
    factor: float, said: str
) -> None:
    assert times(factor) == said


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0156, "1.6%"),
        (0.0949, "9.5%"),
        (0.0004, "< 0.1%"),
        (0.9999, "> 99.9%"),
        (1, "100.0%"),
        (0.5, "50.0%"),
        (2, "200.0%"),
        (0, "0.0%"),
    ],
)
def test_a_share_has_one_decimal(share: float, said: str) -> None:
    assert percent(share) == said


@pytest.mark.parametrize(
    ("flops", "said"),
    [
        (999, "999 "),
        (1000, "1 k"),
        (1e6, "1 M"),
        (1_358_954_496, "1.36 G"),
        (999e9, "999 G"),
        (1e12, "1 T"),
        (2.5e15, "2.5 P"),
        (0, "0 "),
        (-1500, "-1.5 k"),
    ],
)
def test_an_amount_has_the_prefix_that_fits(flops: float, said: str) -> None:
    assert amount(flops) == said


@pytest.mark.parametrize(
    ("factor", "news"),
    [
        (1, False),
        (1.004, False),
        (1.006, True),
        (0.996, False),
        (0.994, True),
        (0, False),
        (-2, False),
    ],
)
def test_a_factor_is_news_from_half_a_percent_on(factor: float, news: bool) -> None:
    assert deviates(factor) is news
