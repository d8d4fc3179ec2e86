"""Titles, columns, units and report names of ``nsys stats`` in the spellings of all years."""

from __future__ import annotations

from perfctl.parsers.common.numbers import Unit
from perfctl.parsers.nsys.stats_tables import (
    Column,
    read_columns,
)

NS, MS = Unit("ns", 1), Unit("ns", 10**6)


def test_columns_have_the_unit_of_their_header_of_their_total_or_of_the_title() -> None:
    assert read_columns(["Time(%)", "Total Time (ms)", "Average", "Name"]) == [
        Column("Time", Unit("%", 1)),
        Column("Total Time", MS),
        Column("Avg", MS),
        Column("Name"),
    ]
    assert read_columns(["Total", "Operations", "Operation"], "KiB") == [
        Column("Total", Unit("byte", 1024)),
        Column("Operations"),
        Column("Operation"),
    ]
    assert read_columns(["Total Time", "Name"]) is None, "two known columns are no table"
    assert read_columns(["Total Time", "Calls", "Name", "a", "b", "c"]) is not None, "three of six"
    assert read_columns(["Total Time", "Calls", "Name", "a", "b", "c", "d"]) is None
    assert read_columns(["Name", "Range", "PID"]) is None, "no figure"
    assert read_columns(["Metric Name", "Minimum", "Maximum", "Average"]) is None, (
        "a summary of ncu"
    )
