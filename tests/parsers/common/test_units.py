"""Printed numbers and units become base units, and what cannot be decided is not guessed."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.common.numbers import (
    AmbiguousNumber,
    DecimalStyle,
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
        ("nsecond", "ns", 1),
        ("usecond", "ns", 10**3),
        ("msecond", "ns", 10**6),
        ("second", "ns", 10**9),
        ("ns", "ns", 1),
        ("us", "ns", 10**3),
        ("ms", "ns", 10**6),
        ("byte", "byte", 1),
        ("Kbyte", "byte", 10**3),
        ("Mbyte", "byte", 10**6),
        ("Gbyte", "byte", 10**9),
        ("MiB", "byte", 2**20),
        ("byte/block", "byte/block", 1),
        ("Kbyte/block", "byte/block", 10**3),
        ("Gbyte/second", "byte/s", 10**9),
        ("Gbyte/s", "byte/s", 10**9),
        ("byte/nsecond", "byte/s", 10**9),
        ("cycle/second", "Hz", 1),
        ("cycle/nsecond", "Hz", 10**9),
        ("cycle/usecond", "Hz", 10**6),
        ("Ghz", "Hz", 10**9),
        ("MHz", "Hz", 10**6),
        ("hz", "Hz", 1),
        ("sector/nsecond", "sector/s", 10**9),
        ("%", "%", 1),
        ("inst", "inst", 1),
        ("inst/cycle", "inst/cycle", 1),
        ("register/thread", "register/thread", 1),
        ("", None, 1),
        ("Mfurlong", "Mfurlong", 1),
    ],
)
def test_every_unit_that_ncu_prints_has_its_base_unit(
    printed: str, name: str | None, scale: int
) -> None:
    assert base_unit(printed) == Unit(name, scale)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("203.62", "usecond", 203620),
        ("10.12", "cycle/nsecond", 10_120_000_000),
        ("9,007,199,254,740,993", "", 2**53 + 1),
        ("171,805,402,726,400.00", "", 171_805_402_726_400),
        ("18446744073709551615", "", float(2**64)),
        ("5e90", "", 5e90),
    ],
)
def test_a_printed_decimal_is_an_exact_integer_up_to_64_bits_and_a_float_beyond(
    text: str, unit: str, expected: float
) -> None:
    assert (value(text, POINT, unit), type(value(text, POINT, unit))) == (expected, type(expected))


@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ("837,859,712", POINT, 837859712),
        ("5,318,969,728.00", POINT, 5318969728),
        ("1.234", POINT, 1.234),
        ("1,234", POINT, 1234),
        ("12,34,567", POINT, 1234567),
        ("-1.5", POINT, -1.5),
        ("1.2e6", POINT, 1200000),
        ("448.600", COMMA, 448600),
        ("10,12", COMMA, 10.12),
        ("1.234,5", COMMA, 1234.5),
        ("2.520.000", COMMA, 2520000),
        ("134.234240", COMMA, 134.23424),
        ("0.000000", COMMA, 0),
        ("1,234", COMMA, 1.234),
        ("1 234,5", COMMA, 1234.5),
        ("512", COMMA, 512),
        ("0.860", UNDECIDED, 0.86),
        ("134.234240", UNDECIDED, 134.23424),
        ("1,5", UNDECIDED, 1.5),
    ],
)
def test_one_number_is_read_in_the_style_of_its_file(
    text: str, style: DecimalStyle, expected: float
) -> None:
    assert value(text, style) == expected


@pytest.mark.parametrize("text", ["1.234", "1,234", "512.000", "-9.860"])
def test_a_number_that_may_mean_two_things_is_refused_when_the_file_does_not_decide(
    text: str,
) -> None:
    with pytest.raises(AmbiguousNumber):
        read_number(text, UNDECIDED)


@pytest.mark.parametrize(
    ("texts", "style"),
    [
        (("1.234", "837,859,712"), POINT),
        (("1,234", "10.12"), POINT),
        (("1.234", "2.520.000"), COMMA),
        (("9.860", "85,33"), COMMA),
        (("1,234.5",), POINT),
        (("1.234,5",), COMMA),
        (("134.234240", "9.860"), UNDECIDED),  # six decimals, as on the raw page
        (("134.234240", "9.860", "2.520.000"), COMMA),
        (("10.12", "10,12"), UNDECIDED),
        (("512", "NVIDIA B200", "(16, 8, 1)"), UNDECIDED),
    ],
)
def test_the_style_comes_from_any_number_that_can_only_be_read_one_way(
    texts: tuple[str, ...], style: DecimalStyle
) -> None:
    assert style_of(*texts) is style


@given(st.integers(-(2**62), 2**62), st.integers(0, 6))
def test_what_is_written_in_a_style_is_read_back_in_it(digits: int, decimals: int) -> None:
    whole, fraction = divmod(abs(digits), 10**decimals)
    sign = "-" if digits < 0 else ""
    tail = f".{fraction:0{decimals}d}" if decimals else ""
    english = f"{sign}{whole:,}{tail}"
    german = english.translate(str.maketrans(",.", ".,"))
    expected = to_base(Decimal(digits).scaleb(-decimals))
    assert value(english, POINT) == read_value(english, POINT) == expected
    assert value(german, COMMA) == read_value(german, COMMA) == expected


def test_every_prefix_has_its_power() -> None:
    for power, prefix in enumerate(("", "K", "M", "G", "T", "P")):
        assert base_unit(prefix + "byte") == Unit("byte", 1000**power)
    assert base_unit("kB") == Unit("byte", 1000)
    for power, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1):
        assert base_unit(prefix + "B") == Unit("byte", 1024**power)
    for counted in (
        "inst",
        "sector",
        "request",
        "warp",
        "thread",
        "block",
        "cycle",
        "flop",
        "FLOP",
        "pass",
    ):
        assert base_unit(f" K{counted} ") == Unit(counted, 1000)


def test_a_rate_is_scaled_to_the_second_and_a_share_of_something_scaled_stays_as_printed() -> None:
    assert base_unit("byte/ms") == Unit("byte/s", 1000)
    assert base_unit("Minst/us") == Unit("inst/s", 10**12)
    assert base_unit("Kcycle/s") == Unit("Hz", 1000)
    assert base_unit("byte/Kbyte") == Unit("byte/Kbyte", 1)
    assert base_unit("inst/warp") == Unit("inst/warp", 1)


@pytest.mark.parametrize(
    ("text", "style", "digits", "decimals"),
    [
        ("1,234.50", POINT, 123450, 2),
        ("12.5", POINT, 125, 1),
        ("-.5", POINT, -5, 1),
        ("+5", POINT, 5, 0),
        ("1 234.5", POINT, 12345, 1),
        ("1'234'567", POINT, 1234567, 0),
        ("1.25e-2", POINT, 125, 4),
        ("1.25e1", COMMA, 125, 1),
        ("1.5e1", UNDECIDED, 15, 0),
        ("-2e3", POINT, -2000, 0),
        ("2E+03", POINT, 2000, 0),
        ("1.234,50", COMMA, 123450, 2),
        ("-,5", COMMA, -5, 1),
        ("1\u202f234,5", COMMA, 12345, 1),
        ("1.5", COMMA, 15, 1),
        ("12,34,567", UNDECIDED, 1234567, 0),
        ("1.234.567", UNDECIDED, 1234567, 0),
        ("1234.567", UNDECIDED, 1234567, 3),
        ("1234,567", UNDECIDED, 1234567, 3),
        (".125", UNDECIDED, 125, 3),
        ("1.2345", UNDECIDED, 12345, 4),
        ("0,125", UNDECIDED, 125, 3),
        ("7", UNDECIDED, 7, 0),
        ("9" * 64, POINT, 10**64 - 1, 0),
    ],
)
def test_a_number_is_read_exactly(
    text: str, style: DecimalStyle, digits: int, decimals: int
) -> None:
    assert read_number(text, style) == Decimal(f"{digits}e-{decimals}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n/a",
        "PreferNone",
        "(16, 8, 1)",
        "1.2.3",
        "85,33,1",
        "-",
        "0x10",
        "9" * 5000,
        "9" * 65,
        "0." + "1" * 63,
        "\u0663",
        "1e100",
        "12 34",
        "1,23",
        "1,2345",
        ",",
        ".",
        "85,33",
    ],
)
def test_what_no_style_prints_is_no_number(text: str) -> None:
    assert read_number(text, POINT) is None
    assert read_value(text, POINT) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("999999999999999999", 10**18 - 1),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", float(2**63)),
        ("9,223,372,036,854,775,808", float(2**63)),
        ("99,999,999,999,999,999,999", 1e20),
        ("999,999,999,999,999,999", 10**18 - 1),
        ("1,500.00", 1500),
        ("1.50", 1.5),
        ("-1.50", -1.5),
        ("-3", -3),
        (".25", 0.25),
        ("0." + "1" * 62, 1 / 9),
        ("1.5e3", 1500),
    ],
)
def test_a_value_is_whole_where_it_can_be_and_a_float_beyond_64_bits(
    text: str, expected: float
) -> None:
    found = read_value(text, POINT)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("number", "scale", "expected"),
    [
        (Decimal("5e-1"), 1000, 500),
        (Decimal("1e-3"), 10, 0.01),
        (Decimal("-15e-1"), 1, -1.5),
        (Decimal("-20e-1"), 1, -2),
        (2**63 - 1, 1, 2**63 - 1),
        (2**63, 1, float(2**63)),
        (2**62, 2, float(2**63)),
        (1 - 2**63, 1, 1 - 2**63),
        (-(2**63), 1, -float(2**63)),
    ],
)
def test_base_units_are_whole_up_to_64_bits(
    number: Decimal | int, scale: int, expected: float
) -> None:
    assert to_base(number, scale) == expected
    assert type(to_base(number, scale)) is type(expected)


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ("1.23456", POINT),
        ("1.234567", UNDECIDED),
        ("1.2345678", POINT),
        ("1,234567", COMMA),
        ("12.345", UNDECIDED),
        ("123.456", UNDECIDED),
        ("1234.567", POINT),
        ("1234,567", COMMA),
        ("0.860", POINT),
        ("0,860", COMMA),
        (".5", POINT),
        ("1.2.3", UNDECIDED),
        ("1 234,5", COMMA),
        ("1,234,567.8", POINT),
        ("1e5.", UNDECIDED),
    ],
)
def test_one_number_decides_only_where_it_can_be_read_one_way(
    text: str, style: DecimalStyle
) -> None:
    assert style_of(text) is style


def test_cells_beyond_the_longest_and_the_20000th_number_say_nothing() -> None:
    assert style_of("0." + "5" * 62) is POINT
    assert style_of("0." + "5" * 63) is UNDECIDED
    assert style_of(*["1.234"] * 19_999, "1.5") is POINT
    assert style_of(*["1.234"] * 20_000, "1.5") is UNDECIDED
    assert style_of(*["7", "x", "," * 65] * 20_000, "1.5") is POINT  # no numbers with a separator
