"""Removes rows together with all that refers to them, without SQLite's own checks.

While a run is written, SQLite does not look up what each row refers to: a run's rows refer to rows that the same
transaction made, and a million lookups take an eighth of the time that a large report takes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def unchecked(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, foreign keys are neither checked nor followed. SQLite heeds it only outside of a transaction."""
    connection.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        connection.execute("PRAGMA foreign_keys = ON")


def forget(connection: sqlite3.Connection, table: str, where: str, values: Sequence[object]) -> None:
    """Delete the rows of ``table`` and, before them, those of other tables that are theirs (ON DELETE CASCADE)."""
    rows = f"SELECT id FROM main.{table} WHERE {where}"
    if connection.execute(f"SELECT 1 FROM main.{table} WHERE {where} LIMIT 1", values).fetchone() is None:
        return
    for child, column in _belonging(connection, table):
        forget(connection, child, f"{column} IN ({rows})", values)
    connection.execute(f"DELETE FROM main.{table} WHERE {where}", values)


def _belonging(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """(table, column) of all that refers to this one and goes with it."""
    tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'").fetchall()
    return [
        (child, key[3])
        for (child,) in tables
        for key in connection.execute(f"PRAGMA main.foreign_key_list({child})").fetchall()
        if key[2] == table and key[6] == "CASCADE"
    ]
