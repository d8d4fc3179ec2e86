"""How times and money look."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.report.numbers import compact, digits, dollars, duration, gigabytes, money


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((3.1 * 3600, 2.6 * 3600, 3.9 * 3600), "3.1 h (2.6 to 3.9 h)"),
        ((0.0412, 0.04, 0.05), "41.2 ms (40 to 50 ms)"),
        ((5e-4, 4e-4, 2e-3), "500 µs (400 to 2,000 µs)"),
        ((90.0, 80.0, 130.0), "90 s (80 to 130 s)"),
        ((600.0, 600.0, 600.0), "10 min"),
        ((10 * 86400.0, 8 * 86400.0, 20 * 86400.0), "10 d (8 to 20 d)"),
    ],
)
def test_a_range_has_the_unit_of_its_middle(seconds: tuple[float, float, float], said: str) -> None:
    assert duration(Span(*seconds)) == said


def test_columns_have_short_ranges() -> None:
    assert compact(Span(0.0412, 0.04, 0.05)) == "41.2 ms (40-50)"


def test_money_has_cents_where_they_matter_and_little_is_not_nothing() -> None:
    assert dollars(Span(12.345, 10.1, 115.2)) == "$12.35 ($10.10 to $115)"
    assert money(1234.5) == "$1,234"
    assert money(0.004) == "< $0.01"
    assert money(0.0) == "$0.00"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"), (0.0000123, "0.000012"), (3.14159, "3.14"), (99.97, "100"), (12345.6, "12,346"),
        (1e9, "1,000,000,000"),
    ],
)  # fmt: skip
def test_three_digits_without_exponent(value: float, said: str) -> None:
    assert digits(value) == said


def test_bytes_are_gigabytes_or_megabytes() -> None:
    assert gigabytes(5_663_000_000) == "5.66 GB"
    assert gigabytes(3_800_000) == "3.8 MB"
