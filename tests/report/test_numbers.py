"""How numbers look."""

import pytest

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.ledger.causes.timeline.records import format_ns
from perfctl.orchestrator.predict.cost import Span
from perfctl.orchestrator.report import numbers, tables


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (numbers.format_significant, 0.00078, "0.00078"),
        (numbers.format_significant, 1e-9, "0.000000001"),
        (numbers.format_significant, 0.0078, "0.01"),
        (numbers.format_si, 0, "0"),
        (numbers.format_si, 7, "7"),
        (numbers.format_si, 999, "999"),
        (numbers.format_si, 1000, "1.00 k"),
        (numbers.format_si, 999.6, "1.00 k"),
        (numbers.format_si, 2 * 64 * 64 * 24 * 24 * 288, "1.36 G"),
        (numbers.format_si, 0.04, "40.0 m"),
        (numbers.format_si, 24_700_000, "24.7 M"),
        (numbers.format_si, -1500, "-1.50 k"),
        (numbers.format_si, 0.99999, "1.00"),
        (numbers.format_time, 0, "0 s"),
        (numbers.format_time, 412, "412 ns"),
        (numbers.format_time, 41_234, "41.2 µs"),
        (numbers.format_time, 1.36e6, "1.36 ms"),
        (numbers.format_time, 2.5e9, "2.50 s"),
        (numbers.format_time, 90 * 60e9, "90.0 min"),
        (numbers.format_time, 35342e9, f"{35342 / 3600:.2f} h"),
        (numbers.format_bytes, 5_663_000_000, "5.66 GB"),
        (numbers.format_bytes, 3_800_000, "3.80 MB"),
        (numbers.format_integer_or_six_digits, 279720279720279.75, "279,720,000,000,000"),
        (numbers.format_integer_or_six_digits, 41234, "41,234"),
        (numbers.format_integer_or_six_digits, 1_358_954_496, "1,358,954,496"),
        (numbers.format_percent, 0.0001, "< 0.1%"),
        (numbers.format_percent, 0.0, "0.0%"),
        (numbers.format_percent, 0.99985, "> 99.9%"),
        (numbers.format_percent, 1, "100.0%"),
        (numbers.format_ratio, 6e-7, "< 0.01"),
        (numbers.format_ratio, 0, "0.00"),
        (numbers.format_dollars, 1234.5, "$1,234"),
        (numbers.format_dollars, 0.004, "< $0.01"),
        (numbers.format_dollars, 0.0, "$0.00"),
        (numbers.format_three_significant_digits, 0.0, "0"),
        (numbers.format_three_significant_digits, 0.0000123, "0.000012"),
        (numbers.format_three_significant_digits, 3.14159, "3.14"),
        (numbers.format_three_significant_digits, 99.97, "100"),
        (numbers.format_three_significant_digits, 12345.6, "12,346"),
        (numbers.format_three_significant_digits, 1e9, "1,000,000,000"),
        (numbers.format_three_significant_digits, 4e-7, "< 0.000001"),
    ],
)
def test_a_number_has_the_digits_that_it_needs_and_its_unit(write, value, text):
    assert write(value) == text


def test_each_cell_has_the_unit_that_suits_it_and_a_known_zero_has_none():
    times = [tables.time_cell(ns) for ns in (12_345_678, 24_700, 1_360, 12.3, 0, None)]
    assert [(cell.text, cell.unit) for cell in times] == [
        ("12.3", "ms"),
        ("24.7", "µs"),
        ("1.36", "µs"),
        ("12.3", "ns"),
        ("0", ""),
        (numbers.DASH, None),
    ]
    counts = [tables.amount_cell(value, "FLOP") for value in (512, 7, 12_345)]
    assert [(cell.text, cell.unit) for cell in counts] == [("512", ""), ("7", ""), ("12.3", "k")]
    assert counts[2].title == "12,345 FLOP" and counts[2].value == 12_345
    slow = tables.rate_cell(0.107, "images/s")
    assert (slow.text, slow.unit) == ("0.107", ""), "a rate has no prefix below 1"


def test_the_four_states_have_four_looks_and_a_lower_bound_says_so():
    looks = [
        tables.figure_cell(figure, "FLOP")
        for figure in (
            Figure(5, "counted"),
            Figure(5, "estimated", "a rule"),
            make_missing_figure("not_collected", "nobody asked"),
            make_missing_figure("refused", "would be wrong"),
        )
    ]
    assert [cell.style for cell in looks] == ["", "est", "no", "refused"]
    assert looks[1].text.startswith("~ ")
    assert looks[2].text == numbers.DASH and "nobody asked" in (looks[2].title or "")
    assert "would be wrong" in (looks[3].title or "")
    cell = tables.figure_cell(Figure(5, "counted", launches=2, of_launches=3), "FLOP")
    assert cell.text.startswith("≥ ") and "2 of 3 launches" in (cell.title or "")


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
def test_so_many_a_second_never_has_a_prefix_below_one(value, text):
    assert numbers.format_rate(value) == text
    cell = tables.rate_cell(value, "1/s")
    assert (f"{cell.text.strip()} {cell.unit}".strip(), cell.value) == (
        text,
        value,
    )
    assert tables.rate_cell(None, "1/s", "not timed") == tables.missing_cell("not timed")


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
def test_a_range_has_the_unit_of_its_middle(seconds, said):
    assert numbers.format_seconds_with_range(Span(*seconds)) == said


def test_a_column_has_short_ranges_and_money_has_cents_where_they_matter():
    assert (
        numbers.format_seconds_with_range(Span(0.0412, 0.04, 0.05), is_short=True)
        == "41.2 ms (40–50)"
    )
    assert numbers.format_dollars_with_range(Span(12.345, 10.1, 115.2)) == "$12.35 ($10.10 to $115)"


@pytest.mark.parametrize("ns", [1, 420, 999.4, 999.6, 48_549, 633_500, 999_499, 999_600, 5.855e6])
def test_sentences_about_causes_round_a_time_as_tables_do(ns):
    assert format_ns(ns).replace(".00 ns", " ns") == numbers.format_time(ns).replace(
        ".00 ns", " ns"
    )
