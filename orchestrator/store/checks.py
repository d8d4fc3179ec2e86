"""Values are checked where rows are written: a time, count or share that cannot be is NULL, and a
gap says so."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from math import inf, isfinite
from typing import Any

from perfctl.orchestrator.store import schema
from perfctl.records.possible import (
    FINITE,
    HOTTEST_C,
    LATEST_NS,
    LONGEST_NS,
    MOST_COUNT,
    MOST_WATTS,
    most,
)
from perfctl.records.report import Gap

_Between = tuple[float, float]
_COUNT = (0, MOST_COUNT)
_START = (-LONGEST_NS, LATEST_NS)
"""``start_ns`` and ``at_ns`` lie on a report's own clock, which may count from 1970 or from
somewhere inside the run."""
_COUNTED = ("ns", "count", "byte", "byte/s", "FLOP", "Hz")
"""Units of what is 0 or more, and at most what its name allows."""
_BY_UNIT: Mapping[str, _Between] = {
    "0..1": (0, 1),
    "W": (0, MOST_WATTS),
    "J": (0, FINITE),
    "degree Celsius": (-HOTTEST_C, HOTTEST_C),
    "base units": (0, FINITE),
}
_BY_NAME: Mapping[str, _Between] = {
    "run.rank": _COUNT,
    "step.number": _COUNT,
    "operation.memory_bytes": (-MOST_COUNT, MOST_COUNT),  # what it gave back is below 0
}
_VIEWED = {
    "kernel_launch": "kernel",
    "op_instance": "op_call",
    "derived_value": "derived_count",
    "metric_value": "counter",
}
"""Table -> the view through which it is read."""
IMPOSSIBLE = -(1 << 63)
"""A whole number that no column may have."""
_TOO_LOW: Mapping[float, str] = {
    -FINITE: "infinite or not a number",
    -MOST_COUNT: "not a number",
}
_NO_NUMBER: set[tuple[str, str]] = set()
"""(table, column) of ids and ordinals, which need no limits, that this process was given something
else for."""


@cache
def possible(table: str) -> Mapping[str, _Between]:
    """Return column -> the smallest and the largest value that there can be, by its unit."""
    limits: dict[str, _Between] = {}
    for column in schema.tables()[table].columns:
        name, unit = column.name, column.unit.split(",")[0]
        if name in ("start_ns", "at_ns"):
            limits[name] = _START
        elif f"{table}.{name}" in _BY_NAME:
            limits[name] = _BY_NAME[f"{table}.{name}"]
        elif unit in _COUNTED:
            limits[name] = (0, most(name))
        elif unit in _BY_UNIT:
            limits[name] = _BY_UNIT[unit]
        elif schema.columns(table)[name] == "REAL":
            limits[name] = (-FINITE, FINITE)
    return limits


def require_possible(table: str, column: str, value: str) -> str:
    """Return SQL of a value that ends the statement with an error if the value cannot be."""
    if column not in possible(table):
        return value
    low, high = possible(table)[column]
    error = f"abs({IMPOSSIBLE})"  # SQLite has no positive number for it
    return f"CASE WHEN {value} NOT BETWEEN {low!r} AND {high!r} THEN {error} ELSE {value} END"


def clean_device(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's row without counts that cannot be."""
    clean = dict(facts)
    for name, (low, high) in possible("device").items():
        value = clean[name]
        if not isinstance(value, (int, float)) or not low <= value <= high:
            clean[name] = None
    return clean


def fit_type(table: str, column: str, values: Sequence[Any]) -> list[Any]:
    """Return a column's values as a STRICT table takes them: fractions of a whole number are
    rounded, and what is no number becomes one that ``refuse_impossible`` refuses."""
    declared = schema.columns(table)[column]
    if declared == "TEXT":
        return [repr(value) if isinstance(value, bytes) else value for value in values]
    is_integer = declared == "INTEGER"
    if is_integer and column not in possible(table):
        _NO_NUMBER.add((table, column))

    def fitted(value: Any) -> Any:
        if isinstance(value, float) and (isfinite(value) or not is_integer):
            return round(value) if is_integer else value
        if value is None or isinstance(value, int):
            return value
        return IMPOSSIBLE if is_integer else -inf

    return list(map(fitted, values))


def refuse_impossible(connection: sqlite3.Connection, new_rows: Mapping[str, str]) -> list[Gap]:
    """Replace values of a run that cannot be by NULL; where a column has to have a value, delete
    the row. Return the gaps that say so.

    ``new_rows``: table -> SQL that finds its new rows, without its index where there are many.
    """
    gaps: list[Gap] = []
    for table, mine in new_rows.items():
        checked = dict(possible(table))
        checked |= {name: (-MOST_COUNT, MOST_COUNT) for own, name in _NO_NUMBER if own == table}
        if not checked:
            continue
        wrong = " OR ".join(
            f"{column} NOT BETWEEN {low!r} AND {high!r}" for column, (low, high) in checked.items()
        )
        seek = f"SELECT EXISTS (SELECT 1 FROM {table} WHERE {mine} AND ({wrong}))"
        if not connection.execute(seek).fetchone()[0]:
            continue
        needed = {
            row[1] for row in connection.execute(f"PRAGMA main.table_info({table})") if row[3]
        }
        for column, (low, high) in checked.items():
            above = f"{column} > {high!r} AND {column} < 9e999 AND typeof({column}) <> 'text'"
            below = f"{column} NOT BETWEEN {low!r} AND {high!r}"
            too_low = _TOO_LOW.get(low, f"below {low:,} or not a number")
            for condition, why in (
                (above, f"above {high:,}, more than there can be"),
                (below, too_low),
            ):
                rows = f"{table} WHERE {mine} AND {condition}"
                left_out = ""
                if column in needed:
                    if table == "range":
                        _unlink_ranges(connection, rows)
                    count = connection.execute(f"DELETE FROM {rows}").rowcount
                    left_out = f", so {'that row is' if count == 1 else 'those rows are'} left out"
                else:
                    sql = f"UPDATE {table} SET {column} = NULL WHERE {mine} AND {condition}"
                    count = connection.execute(sql).rowcount
                if count:
                    values = "1 value is" if count == 1 else f"{count} values are"
                    quantity = f"{_VIEWED.get(table, table)}.{column}"
                    gaps.append(Gap(quantity, "unreadable", f"{values} {why}{left_out}"))
    return gaps


def _unlink_ranges(connection: sqlite3.Connection, rows: str) -> None:
    """Let nothing refer to these ranges any more."""
    if connection.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone():
        for table, column in (("range", "parent"), ("kernel_launch", "range_id")):
            connection.execute(
                f"UPDATE {table} SET {column} = NULL WHERE {column} IN (SELECT id FROM {rows})"
            )
