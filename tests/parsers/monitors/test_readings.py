"""Cells of monitors: numbers in base units, impossible ones left out with their reason, and figures
of other columns."""

import pytest

from perfctl.parsers import parse
from perfctl.parsers.common.numbers import (
    Timestamp,
    is_not_available_text,
    parse_quantity_in_base_units,
)
from perfctl.parsers.common.tables import FieldColumn
from perfctl.parsers.monitors.readings import TEXTS_KEPT, DeviceReadings
from perfctl.records.report import Summary

MIB = 2**20
SHARE = FieldColumn("utilization.gpu", "%", "gpu_utilisation")
POWER = FieldColumn("power.draw", "W", "power_w")
HEAT = FieldColumn("temperature.gpu", "C", "temperature_c")
FAN = FieldColumn("fan.speed", "%")


def taken(*rows, device=0):
    found = DeviceReadings()
    for number, row in enumerate(rows):
        found.add_reading(Timestamp(number, zoned=True), number, device, row)
    return found


def reason_of(found, quantity):
    return next(
        gap for gap in found.describe_missing_data() if gap.quantity == f"sample.{quantity}"
    )


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("841 MiB", "", (841 * MIB, "byte")),
        ("841", "MiB", (841 * MIB, "byte")),
        ("7 %", "", (7, "%")),
        ("22", "W", (22, "W")),
        ("22.5 W", "MiB", (22.5, "W")),
        ("1500 mW", "", (1.5, "W")),
        ("250mJ", "", (0.25, "J")),
        ("41500 mC", "", (41.5, "C")),
        ("1410 MHz", "", (1_410_000_000, "Hz")),
        ("1.5 GHz", "", (1.5e9, "Hz")),
        ("3", "", (3, None)),
        (" -20 ", "C", (-20, "C")),
        ("+5", "", (5, None)),
        ("1.5e3", "W", (1500.0, "W")),
        ("2e-1", "W", (0.2, "W")),
        ("5 furlongs", "", (5, "furlongs")),
        ("999999999999999999", "", (10**18 - 1, None)),
        ("9e18", "", (9e18, None)),
        ("-9e18", "", (-9e18, None)),
        ("1e19", "", (None, None)),
        ("-1e19", "", (None, None)),
        ("9999999999999", "MiB", (None, None)),
        ("1234567890123456789", "", (None, None)),
        ("N/A", "%", (None, None)),
        ("", "%", (None, None)),
        ("5  %", "", (None, None)),
        ("5 % 6", "", (None, None)),
    ],
)
def test_a_cell_is_its_number_in_the_base_unit_that_it_or_its_column_states(text, unit, expected):
    assert parse_quantity_in_base_units(text, unit) == expected
    assert type(parse_quantity_in_base_units(text, unit)[0]) is type(expected[0])


@pytest.mark.parametrize(
    "text", ["", "-", "--", "N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "ERR!", " - "]
)
def test_every_way_to_print_no_value_is_nothing(text):
    assert is_not_available_text(text)
    assert not is_not_available_text(text + "0")


@pytest.mark.parametrize(
    ("column", "text", "value", "shown"),
    [
        (SHARE, "0", 0.0, None),
        (SHARE, "100", 1.0, None),
        (SHARE, "100.5", None, "'100.5' 1 times"),
        (SHARE, "-1", None, "'-1' 1 times"),
        (SHARE, "5 W", None, "'5 W' 1 times"),
        (POWER, "0", 0, None),
        (POWER, "-0.5", None, "'-0.5' 1 times"),
        (HEAT, "-40", -40, None),
        (HEAT, "[N/A]", None, "'N/A' 1 times"),
        (HEAT, " ", None, "'an empty cell' 1 times"),
        (POWER, "x" * 70, None, f"'{'x' * 60}' 1 times"),
        (POWER, "7" * 70, None, f"'{'7' * 60}' 1 times"),
    ],
)
def test_an_impossible_value_is_left_out_and_the_gap_shows_what_was_printed(
    column, text, value, shown
):
    found = taken([(column, text)])
    assert getattr(found.samples[0], str(column.field)) == value
    gaps = {gap.quantity: gap for gap in found.describe_missing_data()}
    gap = gaps.get(f"sample.{column.field}")
    assert (gap.reason if gap else None) == (f"printed instead: {shown}" if shown else None)
    if gap:
        assert gap.state == ("unreadable" if any(map(str.isdigit, text)) else "not_available")
    assert len(gaps) == 5 + (shown is not None)  # the other five quantities have no column


def test_a_gap_shows_the_three_most_frequent_texts_and_absent_columns_say_so():
    texts = ["N/A"] * 3 + ["ERR!"] * 4 + ["-"] * 2 + ["lost"]
    found = taken(*([(POWER, text)] for text in texts))
    gap = reason_of(found, "power_w")
    assert gap.reason == "printed instead: 'ERR!' 4 times, 'N/A' 3 times, '-' 2 times"
    assert gap.state == "not_available"
    absent = reason_of(found, "sm_clock_hz")
    assert (absent.state, absent.reason) == ("not_collected", "the file has no column for it")


def test_figures_are_mean_least_and_largest_in_the_unit_of_the_first_number():
    found = taken(*([(FAN, text)] for text in ("40", "30", "55", "[N/A]", "3 W", "", "31")))
    assert list(found.summarize_non_sample_columns()) == [
        Summary("fan.speed mean", 39.0, "%"),
        Summary("fan.speed min", 30, "%"),
        Summary("fan.speed max", 55, "%"),
        Summary("fan.speed: not available", 2.0, "reading"),
        Summary("fan.speed: 3 W", 1.0, "reading"),
    ]
    assert found.summary_column_names == ["fan.speed"]


@pytest.mark.parametrize(
    "name", ["clocks_throttle_reasons.active", "gpu_uuid", "gpu_serial", "vbios_version", "pid"]
)
def test_numbers_that_are_codes_are_counted_and_not_averaged(name):
    assert list(
        taken([(FieldColumn(name), "4")], [(FieldColumn(name), "8")]).summarize_non_sample_columns()
    ) == [
        Summary(f"{name}: 4", 1.0, "reading"),
        Summary(f"{name}: 8", 1.0, "reading"),
    ]


def test_more_texts_than_are_kept_are_counted_together_and_known_ones_still_by_name():
    column = FieldColumn("note")
    texts = [f"text {'abcdefgh'[n // 8]}{'abcdefgh'[n % 8]}" for n in range(TEXTS_KEPT + 2)]
    found = taken(*([(column, text)] for text in [*texts, texts[0]]))
    counts = {figure.name: figure.value for figure in found.summarize_non_sample_columns()}
    assert len(counts) == TEXTS_KEPT + 1 == 51
    assert (counts["note: text aa"], counts["note: (others)"]) == (2.0, 2.0)


@pytest.mark.parametrize(("samples", "duration"), [(1, None), (3, 2)])
def test_one_sample_has_no_duration(tmp_path, samples, duration):
    path = tmp_path / "log.csv"
    rows = [f"2024/01/01 00:00:0{n}.000, {n} %, 30.00 W\n" for n in range(samples)]
    path.write_text("timestamp, utilization.gpu [%], power.draw [W]\n" + "".join(rows))
    assert parse(path).duration_ns == (duration and duration * 10**9)
