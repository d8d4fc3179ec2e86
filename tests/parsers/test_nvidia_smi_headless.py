"""Rows without a header: a column is told where its unit and its figures leave one answer, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.nvidia_smi_headless import guess, is_row

PATH = Path("smi.csv")


def told(*rows: str) -> tuple[list[str], set[str]]:
    """(names of the columns, quantities that were said to be ambiguous)"""
    columns, _, gaps = guess([row.split(", ") for row in rows], PATH)
    assert all(gap.state == "ambiguous" for gap in gaps)
    return [column.name for column in columns], {gap.quantity.removeprefix("sample.") for gap in gaps}


@pytest.mark.parametrize(
    ("rows", "names", "ambiguous"),
    [
        (("1 %, 5 MiB, 9 MiB", "2 %, 6 MiB, 9 MiB"), ["utilization.gpu", "memory.used", "memory.total"], set()),
        (("1 %, 9 MiB, 5 MiB", "2 %, 9 MiB, 9 MiB"), ["utilization.gpu", "memory.total", "memory.used"], set()),
        (("1 %, 5 MiB, 9 MiB", "2 %, 10 MiB, 9 MiB"), ["utilization.gpu", "column 2", "column 3"],
         {"memory_used_bytes", "memory_total_bytes"}),  # one row has more than the other column's constant
        (("1 %, 5 MiB, 9 MiB", "2 %, 5 MiB, 9 MiB"), ["utilization.gpu", "column 2", "column 3"],
         {"memory_used_bytes", "memory_total_bytes"}),  # both constant
        (("1 %, 5 MiB, 9 MiB", "2 %, 6 MiB, 8 MiB"), ["utilization.gpu", "column 2", "column 3"],
         {"memory_used_bytes", "memory_total_bytes"}),  # none constant
        (("1 %, 5 MiB", "2 %, 6 MiB"), ["utilization.gpu", "column 2"], {"memory_used_bytes", "memory_total_bytes"}),
        (("1 %, 5 MiB, 9 MiB, 4 MiB", "2 %, 6 MiB, 9 MiB, 3 MiB"),
         ["utilization.gpu", "column 2", "memory.total", "column 4"], {"memory_used_bytes"}),
        (("1 %, 5 MiB, 9 MiB", "2 %, [N/A], 9 MiB"), ["utilization.gpu", "column 2", "column 3"],
         {"memory_used_bytes", "memory_total_bytes"}),
        (("1 %, 50.5 W", "2 %, 50.0 W"), ["utilization.gpu", "power.draw"], set()),
        (("1 %, 50.0 W", "2 %, 60.0 W"), ["utilization.gpu", "column 2"], {"power_w"}),
        (("1 %, 50.5 W, 300.00 W", "2 %, 51.5 W, 300.00 W"), ["utilization.gpu", "power.draw", "column 3"], set()),
        (("1 %, 50.5 W, 60.5 W", "2 %, 51.5 W, 61.5 W"), ["utilization.gpu", "column 2", "column 3"], {"power_w"}),
        (("1 %, 5", "2 %, 120"), ["utilization.gpu", "temperature.gpu"], set()),
        (("1 %, 4", "2 %, 50"), ["utilization.gpu", "column 2"], {"temperature_c"}),
        (("1 %, 50", "2 %, 121"), ["utilization.gpu", "column 2"], {"temperature_c"}),
        (("1 %, 0.5", "2 %, 60.5"), ["utilization.gpu", "column 2"], {"temperature_c"}),  # no watts without their unit
        (("1 %, 50", "2 %, [N/A]"), ["utilization.gpu", "temperature.gpu"], set()),
        (("1 %, 50, 60", "2 %, 51, 61"), ["utilization.gpu", "column 2", "column 3"], {"temperature_c"}),
        (("1 %, 2 %, 50.5 W", "3 %, 4 %, 51.5 W"), ["column 1", "column 2", "power.draw"], {"gpu_utilisation"}),
        (("1 %, 1400 MHz", "2 %, 1500 MHz"), ["utilization.gpu", "column 2"], set()),
        (("2024/03/05 10:00:00.250, 00000000:01:00.0, GPU-0123-4567, A 1, 1 %",),
         ["timestamp", "pci.bus_id", "uuid", "name", "utilization.gpu"], set()),
        (("A 1, P0, 1 %",), ["column 1", "column 2", "utilization.gpu"], set()),
        (("[N/A], A 1, 1 %",), ["column 1", "column 2", "utilization.gpu"], set()),  # nothing in it: no kind
    ],
)  # fmt: skip
def test_a_column_is_told_only_where_one_reading_makes_sense(
    rows: tuple[str, ...], names: list[str], ambiguous: set[str]
) -> None:
    assert told(*rows) == (names, ambiguous)


def test_the_assignment_is_named_in_a_warning_and_temperatures_are_celsius() -> None:
    columns, (warning,), _ = guess([["50", "x", "1 %"], ["51", "x", "2 %"]], PATH)
    assert warning.severity == "warning"
    shown = "column 1 as temperature.gpu, column 3 as utilization.gpu"
    assert warning.text == f"the rows have no header: by unit and size, {shown} was taken"
    assert [(column.unit, column.quantity) for column in columns] == [
        ("C", "temperature_c"), ("", None), ("", "gpu_utilisation"),
    ]  # fmt: skip


def test_units_in_no_list_are_named_and_known_ones_and_texts_are_not() -> None:
    rows = [["1 %", "3 l/min", "4 ms", "word", "7 x"], ["2 %", "4 l/min", "5 ms", "word", "8 y"]]
    _, said, _ = guess(rows, PATH)
    assert said[1].text == "not understood and kept as printed: units of column 2 [l/min], column 5 [x, y]"
    assert len(said) == 2


def test_no_rows_and_rows_that_tell_nothing_are_refused() -> None:
    with pytest.raises(ReportError, match="no whole row in it"):
        guess([], PATH)
    with pytest.raises(ReportError, match="units do not tell the columns"):
        guess([["1 %", "2 %"], ["3 %", "4 %"]], PATH)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("1 %, 5 MiB", True), ("1 %, 5", False), ("x, 1 %, y, -5.5 W", True), ("2024/03/05 10:00:00.250, 5", True),
        ("2024/03/05 10:00:00.250", False), ("2024-03-05 10:00:00, 5", False), ("5, 2024/03/05 10:00:00.250", False),
        ("1 %,5 MiB", False), ("1%, 5MiB", False),
    ],
)  # fmt: skip
def test_a_row_has_two_units_or_nvidia_smi_s_own_timestamp_and_another_cell(line: str, is_one: bool) -> None:
    assert is_row(line) is is_one
