"""How numbers look."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.predict.cost import Span
from perfctl.orchestrator.report import numbers, tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1.00 k"),
        (999.6, "1.00 k"),
        (2 * 64 * 64 * 24 * 24 * 288, "1.36 G"),
        (0.04, "40.0 m"),
        (24_700_000, "24.7 M"),
        (-1500, "-1.50 k"),
        (0.99999, "1.00"),
    ],
)
def test_three_significant_digits_with_a_prefix(value: float, text: str) -> None:
    assert numbers.si(value) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 s"), (412, "412 ns"), (41_234, "41.2 µs"), (1.36e6, "1.36 ms"), (2.5e9, "2.50 s")],
)
def test_times_have_their_unit(ns: float, text: str) -> None:
    assert numbers.time(ns) == text


def test_each_cell_has_the_unit_that_suits_it_and_a_known_zero_has_none() -> None:
    times = [tables.time_cell(ns) for ns in (12_345_678, 24_700, 1_360, 12.3, 0, None)]
    assert [(cell.text, cell.unit) for cell in times] == [
        ("12.3", "ms"),
        ("24.7", "µs"),
        ("1.36", "µs"),
        ("12.3", "ns"),
        ("0", ""),
        (numbers.DASH, None),
    ]
    counts = [tables.amount(value, "FLOP") for value in (512, 7, 12_345)]
    assert [(cell.text, cell.unit) for cell in counts] == [("512", ""), ("7", ""), ("12.3", "k")]
    assert counts[2].title == "12,345 FLOP" and counts[2].value == 12_345
    slow = tables.rate(0.107, "images/s")
    assert (slow.text, slow.unit) == ("0.107", ""), "a rate has no prefix below 1"


def test_the_full_value_keeps_every_digit_and_a_rate_no_more_than_it_has() -> None:
    assert numbers.full(1_358_954_496, "FLOP") == "1,358,954,496 FLOP"
    assert numbers.full(279720279720279.75) == "279,720,000,000,000"
    assert numbers.full(41234) == "41,234"


def test_the_four_states_have_four_looks_and_a_lower_bound_says_so() -> None:
    looks = [
        tables.figure_cell(figure, "FLOP")
        for figure in (
            Figure(5, "counted"),
            Figure(5, "estimated", "a rule"),
            missing("not_collected", "nobody asked"),
            missing("refused", "would be wrong"),
        )
    ]
    assert [cell.style for cell in looks] == ["", "est", "no", "refused"]
    assert looks[1].text.startswith("~ ")
    assert looks[2].text == numbers.DASH and "nobody asked" in (looks[2].title or "")
    assert "would be wrong" in (looks[3].title or "")
    cell = tables.figure_cell(Figure(5, "counted", launches=2, of_launches=3), "FLOP")
    assert cell.text.startswith("≥ ") and "2 of 3 launches" in (cell.title or "")


def test_what_rounds_to_nothing_is_not_shown_as_zero() -> None:
    assert numbers.percent(0.0001) == "< 0.1%"
    assert numbers.percent(0.0) == "0.0%"
    assert numbers.percent(0.99985) == "> 99.9%" and numbers.percent(1) == "100.0%"
    assert numbers.ratio(6e-7) == "< 0.01"
    assert numbers.ratio(0) == "0.00"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.5078, "0.508"),
        (0.0123, "0.0123"),
        (0.9996, "1.00"),
        (30.8, "30.8"),
        (1360, "1.36 k"),
    ],
)
def test_so_many_a_second_never_has_a_prefix_below_one(value: float, text: str) -> None:
    assert numbers.per_second(value) == text
    cell = tables.rate(value, "1/s")
    assert (f"{cell.text.strip()} {cell.unit}".strip(), cell.value) == (
        text,
        value,
    )
    assert tables.rate(None, "1/s", "not timed") == tables.nothing("not timed")


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
    assert numbers.duration(Span(*seconds)) == said


def test_columns_have_short_ranges_and_bytes_are_gigabytes_or_megabytes() -> None:
    assert numbers.duration(Span(0.0412, 0.04, 0.05), is_short=True) == "41.2 ms (40-50)"
    assert numbers.size(5_663_000_000) == "5.66 GB"
    assert numbers.size(3_800_000) == "3.80 MB"


def test_money_has_cents_where_they_matter_and_little_is_not_nothing() -> None:
    assert numbers.dollars(Span(12.345, 10.1, 115.2)) == "$12.35 ($10.10 to $115)"
    assert numbers.money(1234.5) == "$1,234"
    assert numbers.money(0.004) == "< $0.01"
    assert numbers.money(0.0) == "$0.00"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.0, "0"),
        (0.0000123, "0.000012"),
        (3.14159, "3.14"),
        (99.97, "100"),
        (12345.6, "12,346"),
        (1e9, "1,000,000,000"),
        (4e-7, "< 0.000001"),
    ],
)
def test_three_digits_without_exponent(value: float, said: str) -> None:
    assert numbers.digits(value) == said
