"""Integer columns of a table in an nsys export as numpy arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import chain

import numpy as np

from perfctl.parsers.attribution import Integers
from perfctl.parsers.common.sqlite import Database

NULL = -(2**63)
"""Stands for NULL, for a value that is no integer, and for a column that this version lacks."""
ROWS_TOGETHER = 1 << 14
"""Rows fetched from SQLite at a time."""


def read_integer_columns(
    database: Database, table: str, *names: str, sql_condition: str = "TRUE"
) -> Integers:
    """Return these columns of the table, one row of the array each; empty ones without the
    table."""
    nothing = np.empty((len(names), 0), np.int64)
    return np.concatenate(
        [
            nothing,
            *iterate_integer_column_chunks(database, table, *names, sql_condition=sql_condition),
        ],
        axis=1,
    )


def iterate_integer_column_chunks(
    database: Database, table: str, *names: str, sql_condition: str = "TRUE"
) -> Iterator[Integers]:
    """Yield the columns some rows at a time, in the order of the table; nothing without it."""
    if table not in database.tables:
        return
    columns = [database.column_or_null(table, name) for name in names]
    values = ", ".join(
        f"CASE WHEN typeof({column}) = 'integer' THEN {column} ELSE {NULL} END"
        for column in columns
    )
    query = f"SELECT {values} FROM {table} NOT INDEXED WHERE {sql_condition} ORDER BY rowid"
    cursor = database.connection.execute(query)
    while rows := cursor.fetchmany(ROWS_TOGETHER):
        numbers = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(names))
        yield np.ascontiguousarray(numbers.reshape(-1, len(names)).T)


def raise_if_null_values(table: str, values: Integers) -> None:
    """Raise sqlite3.DatabaseError for a value that is not known: the file is damaged, and SQLite
    did not notice."""
    if (values == NULL).any():
        raise sqlite3.DatabaseError(f"table {table} contains values that are not numbers")
