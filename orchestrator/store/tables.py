"""The store table by table, streamed, for those who take their rows elsewhere. Nothing here writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfctl.orchestrator.store.describe import Column, tables, views

PARTS = frozenset({"kernel_name", "kernel_layer", "kernel_launch", "metric", "metric_value", "store_info"})
"""Tables that the views kernel and counter put together, and the file's own record."""
_WHERE = {
    "run": "id IN (SELECT value FROM json_each(:runs))",
    "sweep": "id IN (SELECT sweep_id FROM run WHERE id IN (SELECT value FROM json_each(:runs)))",
    "device": "id IN (SELECT device_id FROM run_device WHERE run_id IN (SELECT value FROM json_each(:runs))"
    " UNION SELECT device_id FROM run WHERE id IN (SELECT value FROM json_each(:runs)))",
    "counter": "kernel_id IN (SELECT id FROM kernel_launch WHERE run_id IN (SELECT value FROM json_each(:runs)))",
}
_ORDER = {"kernel": "id", "counter": "rowid"}


@dataclass(frozen=True, slots=True)
class Shape:
    """One table as it leaves the store: its columns in order, what each means, and of which type it is."""

    name: str
    columns: tuple[Column, ...]
    types: tuple[str, ...]
    """INTEGER, REAL, NUMERIC (either) or TEXT, one a column."""


def names() -> tuple[str, ...]:
    """The tables and views that hold what was measured, in the order of the schema."""
    return (*(name for name in tables() if name not in PARTS), *views())


def shape(connection: sqlite3.Connection, table: str) -> Shape:
    """Columns and types of one of ``names()``."""
    columns = {**tables(), **views()}[table][1]
    declared = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_xinfo({table})")}
    return Shape(table, tuple(columns), tuple(declared[column.name] for column in columns))


def count(connection: sqlite3.Connection, table: str, runs: Sequence[int] | None) -> int:
    """Rows that ``rows`` would give."""
    where, bound = _limits(table, runs)
    return int(connection.execute(f"SELECT count(*) FROM {table}{where}", bound).fetchone()[0])


def rows(connection: sqlite3.Connection, table: str, runs: Sequence[int] | None) -> Iterator[tuple[Any, ...]]:
    """Rows of one of ``names()`` in the order they were written; of these runs only, where they are given.

    A million rows are never in memory at once.
    """
    chosen = ", ".join(column.name for column in {**tables(), **views()}[table][1])
    where, bound = _limits(table, runs)
    cursor = connection.execute(f"SELECT {chosen} FROM {table}{where} ORDER BY {_ORDER.get(table, 'rowid')}", bound)
    while part := cursor.fetchmany(5000):
        yield from part


def _limits(table: str, runs: Sequence[int] | None) -> tuple[str, dict[str, str]]:
    if runs is None:
        return "", {}
    where = _WHERE.get(table, "run_id IN (SELECT value FROM json_each(:runs))")
    return f" WHERE {where}", {"runs": json.dumps(list(runs))}
