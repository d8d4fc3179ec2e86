"""Single values of a Kineto trace: what they become, exactly, and where a value stops
being usable."""

from __future__ import annotations

import pytest

from perfctl.parsers.kineto.stream import nanoseconds, read_int64
from tests.make.kineto import collect, operation

LAST = 2**63 - 1


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (0, 0),
        (5, 5_000),
        (-5, -5_000),
        ("7", 7_000),
        ("1.5", 1_500),
        ("1.25", 1_250),
        ("1.2346", 1_235),
        ("1623143089861.123", 1_623_143_089_861_123),
        ("-0.500", -500),
        ("-1.250", -1_250),
        ("2e3", 2_000_000),
        (9_223_372_036_854_775, 9_223_372_036_854_775_000),
        (9_223_372_036_854_776, None),
        ("9223372036854775.807", LAST),
        ("9223372036854775.808", None),
        ("-9223372036854775.808", -LAST - 1),
        ("-9223372036854775.809", None),
        (1.5, 1_500),
        (4348661288164.763, 4_348_661_288_164_763),
        (True, None),
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ([1], None),
        ("169581e4005579936493", None),
        ("1e999999", None),
        ("-1e999999", None),
        (1e306, None),
    ],
)
def test_microseconds_become_nanoseconds_to_the_last_digit(
    microseconds: object, expected: int | None
) -> None:
    assert nanoseconds(microseconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (12, 12),
        ("12", 12),
        (-3, -3),
        (LAST, LAST),
        (str(LAST), LAST),
        (LAST + 1, None),
        (str(LAST + 1), None),
        (-LAST - 1, -LAST - 1),
        (-LAST - 2, None),
        (1.0, None),
        ("1.0", None),
        (True, None),
        (None, None),
        ("x", None),
    ],
)
def test_only_integers_that_fit_64_bits_are_whole(value: object, expected: int | None) -> None:
    assert read_int64(value) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"External id": 3}, 3),
        ({"External id": "3"}, 3),
        ({"external id": 4}, 4),
        ({"external id": "5"}, 5),
        ({"External id": 0, "external id": 9}, 0),
        ({"External id": -7}, -1),
        ({}, -1),
        ({"External id": "none"}, -1),
        ({"External id": LAST + 1}, -1),
    ],
)
def test_an_external_id_is_read_in_both_spellings(args: dict[str, object], expected: int) -> None:
    (span,) = collect([{**operation("op", 1, 1), "args": args}]).spans
    assert span.external == expected
