"""Printed numbers and units become base units, and what cannot be decided is not guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.units import (
    AmbiguousNumber,
    DecimalStyle,
    Number,
    StyleEvidence,
    Unit,
    base_unit,
    read_number,
    read_value,
    to_base,
)

POINT, COMMA, UNDECIDED = DecimalStyle.POINT, DecimalStyle.COMMA, DecimalStyle.UNDECIDED


def value(text: str, style: DecimalStyle, unit: str = "") -> int | float:
    number = read_number(text, style)
    assert number is not None
    return to_base(number, base_unit(unit).scale)


def style_of(*texts: str) -> DecimalStyle:
    evidence = StyleEvidence()
    for text in texts:
        evidence.add(text)
    return evidence.decide()


@pytest.mark.parametrize(
    ("printed", "name", "scale"),
    [
        ("nsecond", "ns", 1), ("usecond", "ns", 10**3), ("msecond", "ns", 10**6), ("second", "ns", 10**9),
        ("ns", "ns", 1), ("us", "ns", 10**3), ("ms", "ns", 10**6),
        ("byte", "byte", 1), ("Kbyte", "byte", 10**3), ("Mbyte", "byte", 10**6), ("Gbyte", "byte", 10**9),
        ("MiB", "byte", 2**20), ("byte/block", "byte/block", 1), ("Kbyte/block", "byte/block", 10**3),
        ("Gbyte/second", "byte/s", 10**9), ("Gbyte/s", "byte/s", 10**9), ("byte/nsecond", "byte/s", 10**9),
        ("cycle/second", "Hz", 1), ("cycle/nsecond", "Hz", 10**9), ("cycle/usecond", "Hz", 10**6),
        ("Ghz", "Hz", 10**9), ("MHz", "Hz", 10**6), ("hz", "Hz", 1),
        ("sector/nsecond", "sector/s", 10**9), ("%", "%", 1), ("inst", "inst", 1), ("inst/cycle", "inst/cycle", 1),
        ("register/thread", "register/thread", 1), ("", None, 1),
    ],
)  # fmt: skip
def test_every_unit_that_ncu_prints_has_its_base_unit(printed: str, name: str | None, scale: int) -> None:
    assert base_unit(printed) == Unit(name, scale)


def test_a_unit_that_is_not_known_stays_as_it_is_printed() -> None:
    assert base_unit("Mfurlong") == Unit("Mfurlong", 1)


def test_scaling_a_printed_decimal_gives_an_exact_integer() -> None:
    assert value("203.62", POINT, "usecond") == 203620
    assert isinstance(value("203.62", POINT, "usecond"), int)
    assert value("10.12", POINT, "cycle/nsecond") == 10_120_000_000


def test_an_integer_beyond_the_precision_of_a_float_stays_exact() -> None:
    assert value("9,007,199,254,740,993", POINT) == 2**53 + 1
    assert value("171,805,402,726,400.00", POINT) == 171_805_402_726_400


def test_a_value_beyond_64_bits_becomes_a_float_that_sqlite_can_hold() -> None:
    assert value("18446744073709551615", POINT) == float(2**64)
    assert isinstance(value("18446744073709551615", POINT), float)
    assert value("5e90", POINT) == 5e90


@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ("837,859,712", POINT, 837859712), ("5,318,969,728.00", POINT, 5318969728), ("1.234", POINT, 1.234),
        ("1,234", POINT, 1234), ("12,34,567", POINT, 1234567), ("-1.5", POINT, -1.5), ("1.2e6", POINT, 1200000),
        ("448.600", COMMA, 448600), ("10,12", COMMA, 10.12), ("1.234,5", COMMA, 1234.5), ("2.520.000", COMMA, 2520000),
        ("134.234240", COMMA, 134.23424), ("0.000000", COMMA, 0), ("1,234", COMMA, 1.234), ("1 234,5", COMMA, 1234.5),
        ("512", COMMA, 512), ("0.860", UNDECIDED, 0.86), ("134.234240", UNDECIDED, 134.23424), ("1,5", UNDECIDED, 1.5),
    ],
)  # fmt: skip
def test_one_number_is_read_in_the_style_of_its_file(text: str, style: DecimalStyle, expected: float) -> None:
    assert value(text, style) == expected


@pytest.mark.parametrize("text", ["", "n/a", "PreferNone", "(16, 8, 1)", "1.2.3", "85,33,1", "-", "0x10", "9" * 5000])
def test_what_is_no_number_is_not_read_as_one(text: str) -> None:
    assert read_number(text, POINT) is None


def test_a_number_that_does_not_fit_the_style_of_the_file_is_not_read() -> None:
    assert read_number("85,33", POINT) is None


@pytest.mark.parametrize("text", ["1.234", "1,234", "512.000", "-9.860"])
def test_a_number_that_may_mean_two_things_is_refused_when_the_file_does_not_decide(text: str) -> None:
    with pytest.raises(AmbiguousNumber):
        read_number(text, UNDECIDED)


def test_the_style_comes_from_any_number_that_can_only_be_read_one_way() -> None:
    assert style_of("1.234", "837,859,712") is POINT
    assert style_of("1,234", "10.12") is POINT
    assert style_of("1.234", "2.520.000") is COMMA
    assert style_of("9.860", "85,33") is COMMA
    assert style_of("1,234.5") is POINT
    assert style_of("1.234,5") is COMMA


def test_the_six_decimals_of_the_raw_page_say_nothing_about_its_grouped_integers() -> None:
    assert style_of("134.234240", "9.860") is UNDECIDED
    assert style_of("134.234240", "9.860", "2.520.000") is COMMA


def test_contradicting_numbers_and_no_numbers_leave_the_style_undecided() -> None:
    assert style_of("10.12", "10,12") is UNDECIDED
    assert style_of("512", "NVIDIA B200", "(16, 8, 1)") is UNDECIDED


@given(st.integers(-(2**62), 2**62), st.integers(0, 6))
def test_what_is_written_in_a_style_is_read_back_in_it(digits: int, decimals: int) -> None:
    whole, fraction = divmod(abs(digits), 10**decimals)
    sign = "-" if digits < 0 else ""
    tail = f".{fraction:0{decimals}d}" if decimals else ""
    english = f"{sign}{whole:,}{tail}"
    german = english.translate(str.maketrans(",.", ".,"))
    expected = to_base(Number(digits, decimals))
    assert value(english, POINT) == read_value(english, POINT) == expected
    assert value(german, COMMA) == read_value(german, COMMA) == expected
