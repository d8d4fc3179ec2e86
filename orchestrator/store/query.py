"""The database for those who ask it something: one SELECT, a part of a name, or whole tables,
streamed. Nothing here writes.

A SELECT can neither change the database nor reach another file. The worker that runs it limits
its time and memory.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import StoreError, UsageError
from perfctl.orchestrator.store import database, schema
from perfctl.orchestrator.store.schema import (
    ColumnDescription,
    describe_store_tables,
    describe_store_views,
)

LONGEST_BYTES = 16_000_000
"""Of one value or of the statement; what is longer is refused, so that zeroblob(1e9) fills
no memory."""
LONGEST_SQL = 1_000_000
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_DENIED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "edit", "readfile", "writefile"}
_PRAGMAS = {"table_info", "table_xinfo", "table_list", "user_version"}
"""Pragmas that only read; without an argument that sets anything."""
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: LONGEST_SQL,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1000,
}

PARTS = frozenset(
    {"kernel_name", "kernel_layer", "kernel_launch", "metric", "metric_value", "store_info"}
    | {"op_signature", "op_instance", "derived_rule", "derived_value"}
)
"""Tables that the views put together, and the file's own record."""
FOUND_COLUMNS = ("type", "name", "kind", "runs", "launches", "duration_ns")
"""Of ``search_kernel_and_layer_names``: kernel or layer, its name, family or class, runs it is in,
launches and their time in all of them."""
_NAMES = """
WITH launched AS (
    SELECT name_id, layer_id, count(*) AS launches, sum(duration_ns) AS ns
    FROM kernel_launch GROUP BY 1, 2
)
SELECT 'kernel', name, min(family), count(DISTINCT run_id), sum(launches), sum(ns)
FROM kernel_name LEFT JOIN launched ON name_id = id GROUP BY name
UNION ALL
SELECT 'layer', layer, min(kind), count(DISTINCT run_id), sum(launches), sum(ns) FROM (
    SELECT layer, NULL AS kind, run_id, launches, ns
    FROM kernel_layer LEFT JOIN launched ON layer_id = id
    UNION ALL SELECT DISTINCT layer, kind, run_id, NULL, NULL FROM layer_call
) WHERE layer <> '' GROUP BY layer
"""


@contextmanager
def run_select(
    store: Path, sql: str
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]]:
    """(column names, rows, streamed) of one SELECT. The rows may be read inside the block only.

    Raises UsageError when it is no single SELECT or names what is not there.
    """
    with database.open_store_for_reading(store) as connection:
        _restrict_to_reading(connection)
        with _convert_query_errors(store, sql):
            cursor = connection.execute(sql)
            if cursor.description is None:
                raise UsageError(
                    "the query is empty", "For example: perfctl query 'select * from run'"
                )
            yield tuple(column[0] for column in cursor.description), cursor


def _restrict_to_reading(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    for function in ("json_each('[]')", "json_tree('[]')", "pragma_table_info('run')"):
        # declared at first use, which the fence refuses
        connection.execute(f"SELECT 1 FROM {function}").fetchall()
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_authorizer(_authorize_action)


def _authorize_action(
    action: int, first: str | None, second: str | None, schema: str | None, inner: str | None
) -> int:
    """SQLite's authorizer: reading, and functions that touch nothing but their arguments."""
    allowed = action in _ALLOWED
    if action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in _DENIED_FUNCTIONS
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = first in _PRAGMAS and (first != "user_version" or second is None)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def _convert_query_errors(store: Path, sql: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        message = str(error)
        if "one statement" in message:
            raise UsageError(
                "the query has more than one statement", "Run one SELECT at a time"
            ) from error
        if "authoriz" in message or "prohibited" in message or "readonly" in message:
            remedy = "Use SELECT. To change the database, use sqlite-utils or sqlite3"
            raise UsageError(f"the query may only read ({message})", remedy) from error
        if "no such table" in message:
            raise UsageError(message, _format_table_name_list()) from error
        if "locked" in message or "malformed" in message:
            raise StoreError(
                f"{store}: {message}", "Try again, or ingest the reports into a new database"
            ) from error
        remedy = (
            _describe_query_table_columns(sql)
            if "no such column" in message
            else _format_table_name_list()
        )
        raise UsageError(f"SQLite rejected the query: {message}", remedy) from error


def _describe_query_table_columns(sql: str) -> str:
    """The columns of the first tables that a query names."""
    identifiers = dict.fromkeys(re.findall(r"\w+", sql.lower()))
    mentioned = [name for name in identifiers if name in list_public_table_names()][:2]
    columns = (
        f"{name} has {', '.join(column.name for column, _ in list_table_columns(name))}"
        for name in mentioned
    )
    return "; ".join(columns) or _format_table_name_list()


def _format_table_name_list() -> str:
    return f"Tables: {', '.join(list_public_table_names())}"


def search_kernel_and_layer_names(store: Path, text: str) -> list[tuple[Any, ...]]:
    """Kernels and layers whose name holds every word of ``text``, anywhere and in either case, the
    shortest first; see FOUND_COLUMNS. Raises UsageError for no words."""
    parts = text.casefold().split()
    if not parts:
        raise UsageError(
            "`search` is empty",
            "Use a part of the name of a kernel or layer: perfctl query --search conv2",
        )
    with database.open_store_for_reading(store) as connection:
        rows = [row for row in connection.execute(_NAMES) if isinstance(row[1], str)]
    hits = [row for row in rows if all(piece in row[1].casefold() for piece in parts)]
    return sorted(hits, key=lambda row: len(row[1]))


def list_public_table_names() -> tuple[str, ...]:
    """The tables and views that hold what was measured, in the order of the schema."""
    return (
        *(name for name in describe_store_tables() if name not in PARTS),
        *describe_store_views(),
    )


def list_table_columns(table: str) -> list[tuple[ColumnDescription, str]]:
    """(column, its type: INTEGER, REAL, NUMERIC (either) or TEXT) of one of
    ``list_public_table_names()``, in order."""
    declared = schema.read_column_types(table)
    return [
        (column, declared[column.name].replace("ANY", "NUMERIC"))
        for column in (describe_store_tables() | describe_store_views())[table].columns
    ]


def count_table_rows(
    connection: sqlite3.Connection, table: str, run_ids: Sequence[int] | None
) -> int:
    """Rows that ``read_table_rows`` would give."""
    query = f"SELECT count(*) FROM {table}{_build_run_filter(table, run_ids)}"
    return int(connection.execute(query).fetchone()[0])


def read_table_rows(
    connection: sqlite3.Connection, table: str, run_ids: Sequence[int] | None
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of one of ``list_public_table_names()`` in the order they were written; of
    these runs only, where they are given.

    A million rows are never in memory at once.
    """
    order = "id" if table == "kernel" else "rowid"
    yield from _select_rows(
        connection, table, f"{_build_run_filter(table, run_ids)} ORDER BY {order}"
    )


def read_run_rows(
    connection: sqlite3.Connection, table: str, run_id: int
) -> Iterator[tuple[Any, ...]]:
    """Rows of one run in one of ``list_public_table_names()`` that has some, read by its index:
    nothing is sorted."""
    yield from _select_rows(connection, table, _build_run_filter(table, [run_id]))


def _select_rows(
    connection: sqlite3.Connection, table: str, sql_ending: str
) -> Iterator[tuple[Any, ...]]:
    sql = (
        f"SELECT {schema.format_column_list(schema.read_column_types(table))} FROM {table}"
        f"{sql_ending}"
    )
    # "yield from" closes the cursor, after its database at a Ctrl-C
    for row in connection.execute(sql):  # noqa: UP028
        yield row


def _build_run_filter(table: str, run_ids: Sequence[int] | None) -> str:
    """Return the SQL that finds the rows of these runs; nothing for all rows."""
    if run_ids is None:
        return ""
    chosen = f"IN ({', '.join(f'{run:d}' for run in run_ids)})"
    if table == "run":
        return f" WHERE id {chosen}"
    if table == "sweep":
        return f" WHERE id IN (SELECT sweep_id FROM run WHERE id {chosen})"
    if table == "device":
        used_devices = f"SELECT device_id FROM run_device WHERE run_id {chosen}"
        return f" WHERE id IN ({used_devices} UNION SELECT device_id FROM run WHERE id {chosen})"
    if "run_id" in schema.read_column_types(table):
        return f" WHERE run_id {chosen}"
    return f" WHERE kernel_id IN (SELECT id FROM kernel_launch WHERE run_id {chosen})"
