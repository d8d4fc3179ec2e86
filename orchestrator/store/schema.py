"""The schema of the database: ``schema.sql``, what its comments say, whether a file has it, and
which values its columns may have.

Every column says in its comment ``meaning; unit; NULL: when``, in that order.
``docs/reference/schema.md`` is made from these comments (``scripts/accept/reference.py``), and they
reach anyone who types ``.schema`` in SQLite.

A database belongs to its user: columns, tables, views and indexes may be added. perfctl asks for
its own columns and for nothing else, always by name.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.orchestrator.errors import StoreError
from perfctl.records.possible import (
    FINITE,
    HOTTEST_C,
    LATEST_NS,
    LONGEST_NS,
    MOST_COUNT,
    MOST_WATTS,
    get_largest_plausible_value,
)

VERSION = 5
"""``PRAGMA user_version`` of a database that perfctl writes."""
SINCE = "2.0.0"
"""The perfctl that brought this version of the schema."""
SQL = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")
_ROW = re.compile(r"CREATE (?:TABLE|VIEW) (\w+) (?:\(|AS)\s*-- (.*)")
_COLUMN = re.compile(r"\s{4}(?:\w+\.(?:\w+ AS )?)?\[?(\w+).*?-- (.+?); (.+?); NULL: (.+)")
_FACTS = """
SELECT t.name, c.name, c.type FROM pragma_table_list AS t JOIN pragma_table_xinfo(t.name) AS c
WHERE t.schema = 'main' AND t.type = 'table' AND t.strict AND NOT t.wr AND c.hidden = 0
UNION ALL
SELECT t.name, k."from", 'foreign key to ' || k."table"
FROM pragma_table_list AS t JOIN pragma_foreign_key_list(t.name) AS k
WHERE t.schema = 'main' AND t.type = 'table' AND t.strict AND NOT t.wr
  AND k.on_delete = 'CASCADE'
"""
"""(table, column, type) of plain STRICT tables, and the foreign keys by which rows of a run go with
their run."""

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
IMPOSSIBLE = -(1 << 63)
"""A whole number that no column may have."""
NO_NUMBER: set[tuple[str, str]] = set()
"""(table, column) of ids and ordinals, which need no limits, that this process was given something
else for."""


class ColumnDescription(NamedTuple):
    """One column as its comment describes it."""

    name: str
    meaning: str
    unit: str
    null: str


class TableDescription(NamedTuple):
    """One table or view as its comments describe it."""

    row: str
    """What one row is."""
    columns: list[ColumnDescription]


@cache
def describe_store_tables() -> dict[str, TableDescription]:
    """Return the tables, in the order of the schema."""
    return _parse_schema_comments("TABLE")


@cache
def describe_store_views() -> dict[str, TableDescription]:
    """Return the views. Each joins tables of which one has each name once."""
    return _parse_schema_comments("VIEW")


def _parse_schema_comments(object_type: str) -> dict[str, TableDescription]:
    described: dict[str, TableDescription] = {}
    for statement in list_create_statements():
        if statement.startswith(f"CREATE {object_type}") and (start := _ROW.match(statement)):
            columns = filter(None, map(_COLUMN.match, statement.splitlines()[1:]))
            described[start[1]] = TableDescription(
                start[2], [ColumnDescription(*match.groups()) for match in columns]
            )
    return described


@cache
def list_create_statements() -> list[str]:
    """Return the statements that make a database, one by one: ``executescript`` would commit the
    transaction that it is run in."""
    statements, statement = [], ""
    for line in SQL.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            statements.append(statement.strip())
            statement = ""
    return statements


@cache
def _read_required_columns_and_types() -> tuple[
    frozenset[tuple[str, str, str]], dict[str, dict[str, str]]
]:
    """Return what a file needs, and the declared type of each column by table or view."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SQL)
        types = {
            name: {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({name})")}
            for name in describe_store_tables() | describe_store_views()
        }
        return frozenset(connection.execute(_FACTS)), types


def read_column_types(table: str) -> Mapping[str, str]:
    """Return column -> declared type of a table or view, in the order of the schema."""
    return _read_required_columns_and_types()[1][table]


def format_select_list(table: str) -> str:
    """Return ``table.column`` of every column that perfctl knows; ``*`` would also take the
    user's own."""
    return ", ".join(
        f"{table}.{format_column_list([column])}" for column in read_column_types(table)
    )


def format_column_list(names: Iterable[str]) -> str:
    """Return perfctl's own columns, ready for SQL: ``group`` is a word of SQL's. In "" a missing
    one would be a text."""
    return ", ".join(f"[{name}]" if name == "group" else name for name in names)


@cache
def find_value_limits(table: str) -> Mapping[str, _Between]:
    """Return column -> the smallest and the largest value that there can be, by its unit."""
    limits: dict[str, _Between] = {}
    for column in describe_store_tables()[table].columns:
        name, unit = column.name, column.unit.split(",")[0]
        if name in ("start_ns", "at_ns"):
            limits[name] = _START
        elif f"{table}.{name}" in _BY_NAME:
            limits[name] = _BY_NAME[f"{table}.{name}"]
        elif unit in _COUNTED:
            limits[name] = (0, get_largest_plausible_value(name))
        elif unit in _BY_UNIT:
            limits[name] = _BY_UNIT[unit]
        elif read_column_types(table)[name] == "REAL":
            limits[name] = (-FINITE, FINITE)
    return limits


def build_range_checked_sql(column: str, value: str) -> str:
    """Return SQL of a launch's value that ends the statement with an error if the value cannot
    be."""
    limits = find_value_limits("kernel_launch")
    if column not in limits:
        return value
    low, high = limits[column]
    error = f"abs({IMPOSSIBLE})"  # SQLite has no positive number for it
    return f"CASE WHEN {value} NOT BETWEEN {low!r} AND {high!r} THEN {error} ELSE {value} END"


def convert_to_column_type(table: str, column: str, values: Sequence[Any]) -> list[Any]:
    """Return a column's values as a STRICT table takes them: fractions of a whole number are
    rounded, and what is no number becomes one that ``write._remove_impossible_values`` refuses."""
    declared = read_column_types(table)[column]
    if declared == "TEXT":
        return [repr(value) if isinstance(value, bytes) else value for value in values]
    is_integer = declared == "INTEGER"
    if is_integer and column not in find_value_limits(table):
        NO_NUMBER.add((table, column))

    def fit_value(value: Any) -> Any:
        if isinstance(value, float) and (isfinite(value) or not is_integer):
            return round(value) if is_integer else value
        if value is None or isinstance(value, int):
            return value
        return IMPOSSIBLE if is_integer else -inf

    return list(map(fit_value, values))


def raise_if_tables_differ(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError where the file lacks a table or column, or where one was rebuilt."""
    there = set(connection.execute(_FACTS))
    missing = _read_required_columns_and_types()[0] - there
    if missing:
        table, column, _ = min(missing)
        if table not in {name for name, _, _ in there}:
            problem = f"{path}: the table {table} is missing or was rebuilt"
        elif (table, column) not in {fact[:2] for fact in there}:
            problem = f"{path}: {table} has no column {column}"
        else:
            problem = (
                f"{path}: the table {table} was rebuilt: {column} differs from perfctl's schema"
            )
        raise StoreError(
            problem,
            "Ingest the reports into a new database",
        )
