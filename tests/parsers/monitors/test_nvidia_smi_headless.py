"""Rows without a header: read in the one form whose units name the columns, refused in
every other."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors.nvidia_smi_query import is_row, layout_of

PATH = Path("smi.csv")


def test_units_of_all_rows_name_the_columns_and_a_warning_says_so() -> None:
    layout, warning = layout_of(
        [["1 %", "5 MiB", "9 MiB", "24", "50.5 W"], ["[N/A]", "9 MiB", "9 MiB", "25", "[N/A]"]],
        PATH,
    )
    names = ["utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw"]
    assert [column.name for column in layout.columns] == names
    assert [column.unit for column in layout.columns] == ["%", "MiB", "MiB", "C", "W"]
    assert warning.severity == "warning"
    assert all(name in warning.text for name in names)


@pytest.mark.parametrize(
    "row",
    [
        "1 %, 9 MiB, 5 MiB, 24, 50.5 W",  # more used than there is: the columns are others
        "1 %, 5 MiB, 9 MiB, 24 W, 50.5 W",
        "1 %, 2 %, 9 MiB, 24, 50.5 W",
        "1, 5 MiB, 9 MiB, 24, 50.5 W",
        "1 %, 5 MiB, 9 MiB, 24",
        "1 %, 5 MiB, 9 MiB, 24, 50.5 W, 60.5 W",
        "50.5 W, 1 %",
        "2024/03/05 10:00:00.250, 1 %, 5 MiB, 9 MiB, 24, 50.5 W",
    ],
)
def test_any_other_row_is_refused_with_what_to_do(row: str) -> None:
    with pytest.raises(ReportError, match="no header that names their columns") as raised:
        layout_of([["1 %", "5 MiB", "9 MiB", "24", "50.5 W"], row.split(", ")], PATH)
    assert "Put the header line above the rows" in raised.value.remedy


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("1 %, 5 MiB", True),
        ("1 %, 5", False),
        ("x, 1 %, y, -5.5 W", True),
        ("2024/03/05 10:00:00.250, 5", True),
        ("2024/03/05 10:00:00.250", False),
        ("2024-03-05 10:00:00, 5", False),
        ("5, 2024/03/05 10:00:00.250", False),
        ("1 %,5 MiB", False),
        ("1%, 5MiB", False),
    ],
)
def test_a_row_has_two_units_or_nvidia_smi_s_own_timestamp_and_another_cell(
    line: str, is_one: bool
) -> None:
    assert is_row(line) is is_one
