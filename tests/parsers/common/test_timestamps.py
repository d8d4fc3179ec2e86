"""Timestamps of monitors and of ``date``: every form, zone and boundary, and which of day and month
comes first."""

from datetime import UTC, datetime, timedelta

import pytest

from perfctl.parsers.common.numbers import (
    Timestamp,
    format_utc_iso,
    is_day_before_month,
    parse_timestamp,
)

SECOND = 10**9


def moment(*parts, fraction_ns=0):
    """Nanoseconds since the epoch of a UTC date and time."""
    passed = datetime(*parts, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)  # type: ignore[arg-type,misc]
    return passed // timedelta(seconds=1) * SECOND + fraction_ns


TEN = moment(2024, 3, 5, 10, 7, 9)


@pytest.mark.parametrize(
    ("text", "ns", "zoned"),
    [
        ("2024/03/05 10:07:09.250", TEN + 250_000_000, False),
        ("2024/03/05 10:07:59.001", TEN + 50 * SECOND + 1_000_000, False),
        ("2024/03/05 10:07:09,250", TEN + 250_000_000, False),
        ("2024/3/5 10:07:09", TEN, False),
        ("2024-03-05T10:07:09Z", TEN, True),
        ("  2024-03-05 10:07:09.5 +00:00\n", TEN + 500_000_000, True),
        ("2024-03-05 10:07:09.123456789", TEN + 123_456_789, False),
        ("2024-03-05 10:07:09.000000001", TEN + 1, False),
        ("20240305 10:07:09", TEN, False),
        ("20240305   10:07:09 UTC", TEN, True),
        ("03-05-2024 10:07:09", TEN, False),
        ("3/5/2024 10:07:09 AM", TEN, False),
        ("Tue Mar  5 10:07:09 2024", TEN, False),
        ("Tue Mar  5 10:07:09 UTC 2024", TEN, True),
        ("Tue Mar  5 11:07:09 AM CET 2024", TEN, True),
        ("Tue 05 Mar 2024 10:07:09 AM UTC", TEN, True),
        ("Tue, 5 Mar 2024 12:37:09 +0230", TEN, True),
        ("1990-01-01 00:00:00", moment(1990, 1, 1), False),
        ("2199-12-31 23:59:59", moment(2199, 12, 31, 23, 59, 59), False),
        ("1969-12-31 23:59:59", None, False),
        ("1989-12-31 23:59:59", None, False),
        ("2200-01-01 00:00:00", None, False),
        ("2200/01/01 00:00:00.000", None, False),
        ("2024/03/05 10:07:60.250", None, False),
        ("2024/03/05 10:07:70.250", None, False),
        ("2024/03/05 10:60:09.250", None, False),
        ("2024/13/05 10:07:09.250", None, False),
        ("2024/02/30 10:07:09.250", None, False),
        ("2024/03/05 24:00:00.000", None, False),
        ("2024/03/05 10:07:09:250", None, False),
        ("2024/03/05 10:07:09.1234567890", None, False),
        ("Tue Foo  5 10:07:09 2024", None, False),
        ("Tue Mar  5 10:07:09 UTC", None, False),
        ("10:07:09", None, False),
        ("2024/03/05", None, False),
        ("", None, False),
        ("0, 45 %", None, False),
        # digits of other scripts
        ("2024/03/05 10:07:\u0660\u0669.250", None, False),
        ("2024/03/05 10:07:09.\u0662\u0665\u0660", None, False),
        ("03/05/2024 12:07:09 AM", moment(2024, 3, 5, 0, 7, 9), False),
        ("03/05/2024 1:07:09 am", moment(2024, 3, 5, 1, 7, 9), False),
        ("03/05/2024 12:07:09 PM", moment(2024, 3, 5, 12, 7, 9), False),
        ("03/05/2024 11:07:09 pm", moment(2024, 3, 5, 23, 7, 9), False),
        ("03/05/2024 0:07:09 AM", None, False),
        ("03/05/2024 13:07:09 PM", None, False),
    ],
)
def test_every_form_is_the_same_moment_and_what_is_no_moment_is_none(text, ns, zoned):
    assert parse_timestamp(text) == (None if ns is None else Timestamp(ns, zoned))


def test_a_text_of_more_than_64_characters_is_not_looked_at():
    longest = f"2024/03/05{'10:07:09':>54}"
    assert len(longest) == 64
    assert parse_timestamp(longest) == Timestamp(TEN, zoned=False)
    assert parse_timestamp(longest.replace(" ", "  ", 1)) is None


@pytest.mark.parametrize(
    ("hours", "names"),
    [
        (0, "UTC GMT WET Z"),
        (1, "WEST CET"),
        (2, "CEST EET"),
        (3, "EEST MSK"),
        (8, "SGT HKT AWST"),
        (9, "JST KST"),
        (10, "AEST"),
        (11, "AEDT"),
        (12, "NZST"),
        (13, "NZDT"),
        (-4, "EDT"),
        (-5, "EST CDT"),
        (-6, "MDT"),
        (-7, "MST PDT"),
        (-8, "PST AKDT"),
        (-9, "AKST"),
        (-10, "HST"),
    ],
)
def test_a_zone_s_name_means_its_offset_from_utc(hours, names):
    for name in names.split():
        assert parse_timestamp(f"2024-03-05 10:07:09 {name}") == Timestamp(
            TEN - hours * 3600 * SECOND, zoned=True
        ), name


@pytest.mark.parametrize(
    ("zone", "minutes"), [("-01:00", -60), ("+0530", 330), ("-03:30", -210), ("+23:59", 1439)]
)
def test_a_zone_in_numbers_is_hours_and_minutes_with_one_sign(zone, minutes):
    moment_of_zone = Timestamp(TEN - minutes * 60 * SECOND, zoned=True)
    assert parse_timestamp(f"2024-03-05 10:07:09{zone}") == moment_of_zone


@pytest.mark.parametrize("zone", ["CST", "IST", "BST", "+24:00", "-2400"])
def test_a_zone_that_means_several_or_none_is_taken_as_utc_and_told(zone):
    assert parse_timestamp(f"2024-03-05 10:07:09 {zone}") == Timestamp(TEN, zoned=False)


def test_the_day_goes_first_where_the_caller_says_so():
    assert parse_timestamp("03-05-2024 10:07:09", day_first=True) == Timestamp(
        moment(2024, 5, 3, 10, 7, 9), zoned=False
    )
    assert parse_timestamp("2024-03-05 10:07:09", day_first=True) == Timestamp(TEN, zoned=False)


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        ([], False),
        (["2024-03-05", "20240306"], False),
        (["03-25-2026"], False),  # no month 25
        (["25-03-2026"], True),
        (["25-03-2026", "03-25-2026"], False),  # neither makes dates of all
        (["03-03-2026"], False),  # the same either way
        (["03-11-2026"], None),
        (["03-11-2026", "03-11-2026"], None),
        (["03-11-2026", "03-12-2026"], False),  # a day apart, or a month
        (["11-03-2026", "12-03-2026"], True),
        # 1 Feb before 3 Jan is out of order; 2 Jan before 1 Mar is not, if wider
        (["02-01-2026", "01-03-2026"], True),
        (["01-02-2026", "03-01-2026"], False),
    ],
)
def test_day_or_month_first_is_what_makes_dates_keeps_order_and_lies_closer(dates, expected):
    assert is_day_before_month([f" {date} 10:00:00 " for date in dates]) is expected


def test_a_text_too_long_for_a_date_decides_nothing():
    longest = f"25-03-2026{'10:00:00':>54}"
    assert is_day_before_month([longest]) is True
    assert is_day_before_month([longest + " "]) is False


def test_utc_is_shown_to_the_whole_second_below():
    assert format_utc_iso(TEN + SECOND - 1) == "2024-03-05T10:07:09Z"
    assert format_utc_iso(TEN + SECOND) == "2024-03-05T10:07:10Z"
