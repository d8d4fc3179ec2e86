"""Printed numbers and units become base units, and what cannot be decided is not guessed."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.common import numbers
from perfctl.parsers.common.numbers import (
    AmbiguousNumberError,
    DecimalStyle,
    DecimalStyleEvidence,
    Unit,
    parse_decimal,
    parse_number_fast,
    parse_unit,
    scale_printed_number,
    to_int_or_float,
)

POINT, COMMA, UNDECIDED = DecimalStyle.POINT, DecimalStyle.COMMA, DecimalStyle.UNDECIDED


def style_of(*texts):
    evidence = DecimalStyleEvidence()
    for text in texts:
        evidence.add_cell(text)
    return evidence.decide_decimal_style()


@pytest.mark.parametrize(
    ("printed", "name", "scale"),
    [
        *((unit, "ns", 10**0) for unit in ("ns", "nsecond")),
        *((unit, "ns", 10**3) for unit in ("us", "usecond")),
        *((unit, "ns", 10**6) for unit in ("ms", "msecond")),
        ("second", "ns", 10**9),
        *((f"{prefix}byte", "byte", 1000**power) for power, prefix in enumerate(["", *"KMGTP"])),
        *((f"{prefix}iB", "byte", 1024**power) for power, prefix in enumerate("KMGT", 1)),
        ("kB", "byte", 1000),
        *((f" K{unit} ", unit, 1000) for unit in numbers._COUNTED),
        ("byte/block", "byte/block", 1),
        ("Kbyte/block", "byte/block", 10**3),
        ("Gbyte/second", "byte/s", 10**9),
        ("Gbyte/s", "byte/s", 10**9),
        ("byte/nsecond", "byte/s", 10**9),
        ("byte/ms", "byte/s", 1000),
        ("Minst/us", "inst/s", 10**12),
        ("cycle/second", "Hz", 1),
        ("cycle/nsecond", "Hz", 10**9),
        ("Kcycle/s", "Hz", 1000),
        ("Ghz", "Hz", 10**9),
        ("MHz", "Hz", 10**6),
        ("%", "%", 1),
        ("inst/cycle", "inst/cycle", 1),
        ("register/thread", "register/thread", 1),
        ("", None, 1),
        # not known, or a share of something scaled: as printed
        ("Mfurlong", "Mfurlong", 1),
        ("byte/Kbyte", "byte/Kbyte", 1),
    ],
)
def test_every_printed_unit_has_its_base_unit(printed, name, scale):
    assert parse_unit(printed) == Unit(name, scale)


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [("203.62", "usecond", 203620), ("10.12", "cycle/nsecond", 10_120_000_000)],
)
def test_a_printed_decimal_is_scaled_exactly(text, unit, expected):
    found = scale_printed_number(
        text, parse_number_fast(text, POINT), POINT, parse_unit(unit).scale
    )
    assert (found, type(found)) == (expected, int)


@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ("837,859,712", POINT, 837859712),
        ("5,318,969,728.00", POINT, 5318969728),
        ("171,805,402,726,400.00", POINT, 171_805_402_726_400),
        ("9,007,199,254,740,993", POINT, 2**53 + 1),
        ("999,999,999,999,999,999", POINT, 10**18 - 1),
        ("9223372036854775807", POINT, 2**63 - 1),
        ("9223372036854775808", POINT, float(2**63)),
        ("9,223,372,036,854,775,808", POINT, float(2**63)),
        ("9" * 64, POINT, 1e64),
        ("5e90", POINT, 5e90),
        ("1.234", POINT, 1.234),
        ("1,234", POINT, 1234),
        ("12,34,567", POINT, 1234567),
        ("-1.50", POINT, -1.5),
        ("-3", POINT, -3),
        ("+5", POINT, 5),
        ("-.5", POINT, -0.5),
        ("0." + "1" * 62, POINT, 1 / 9),
        ("1'234'567", POINT, 1234567),
        ("1.2e6", POINT, 1200000),
        ("1.25e-2", POINT, 0.0125),
        ("2E+03", POINT, 2000),
        ("448.600", COMMA, 448600),
        ("10,12", COMMA, 10.12),
        ("1.234,5", COMMA, 1234.5),
        ("2.520.000", COMMA, 2520000),
        ("134.234240", COMMA, 134.23424),
        ("0.000000", COMMA, 0),
        ("1,234", COMMA, 1.234),
        ("1 234,5", COMMA, 1234.5),
        ("1\u202f234,5", COMMA, 1234.5),
        ("-,5", COMMA, -0.5),
        ("1.25e1", COMMA, 12.5),
        ("512", COMMA, 512),
        ("0.860", UNDECIDED, 0.86),
        ("134.234240", UNDECIDED, 134.23424),
        ("1,5", UNDECIDED, 1.5),
        ("1.5e1", UNDECIDED, 15),
        ("12,34,567", UNDECIDED, 1234567),
        ("1.234.567", UNDECIDED, 1234567),
        ("1234.567", UNDECIDED, 1234.567),
        ("1234,567", UNDECIDED, 1234.567),
        (".125", UNDECIDED, 0.125),
        ("0,125", UNDECIDED, 0.125),
    ],
)
def test_a_number_is_whole_where_it_can_be_in_the_style_of_its_file_and_a_float_beyond_64_bits(
    text, style, expected
):
    value = parse_number_fast(text, style)
    assert (value, type(value)) == (expected, type(expected))


@pytest.mark.parametrize("text", ["1.234", "1,234", "512.000", "-9.860"])
def test_a_number_that_may_mean_two_things_is_refused_when_the_file_does_not_decide(text):
    with pytest.raises(AmbiguousNumberError):
        parse_decimal(text, UNDECIDED)


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
        *(((text,), POINT) for text in ("1.23456", "1.2345678", "1234.567", "0.860", ".5")),
        *(((text,), COMMA) for text in ("1,234567", "1234,567", "0,860", "1 234,5")),
        *(((text,), UNDECIDED) for text in ("1.234567", "123.456", "1.2.3", "1e5.")),
    ],
)
def test_the_style_comes_from_any_number_that_can_only_be_read_one_way(texts, style):
    assert style_of(*texts) is style


@given(st.integers(-(2**62), 2**62), st.integers(0, 6))
def test_what_is_written_in_a_style_is_read_back_in_it(digits, decimals):
    whole, fraction = divmod(abs(digits), 10**decimals)
    sign = "-" if digits < 0 else ""
    tail = f".{fraction:0{decimals}d}" if decimals else ""
    english = f"{sign}{whole:,}{tail}"
    german = english.translate(str.maketrans(",.", ".,"))
    expected = to_int_or_float(Decimal(digits).scaleb(-decimals))
    assert parse_number_fast(english, POINT) == parse_number_fast(german, COMMA) == expected


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
def test_what_no_style_prints_is_no_number(text):
    assert parse_decimal(text, POINT) is None
    assert parse_number_fast(text, POINT) is None


def test_cells_beyond_the_longest_and_the_20000th_number_say_nothing():
    assert style_of("0." + "5" * 62) is POINT
    assert style_of("0." + "5" * 63) is UNDECIDED
    assert style_of(*["1.234"] * 19_999, "1.5") is POINT
    assert style_of(*["1.234"] * 20_000, "1.5") is UNDECIDED
    assert style_of(*["7", "x", "," * 65] * 20_000, "1.5") is POINT  # no numbers with a separator
