"""Exports of nsys as one Parquet or Arrow file a table (``nsys export --type parquetdir`` and
``arrowdir``): the tables of the SQLite export, loaded into such a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from perfctl.parsers.nsys.tables import STRINGS, TOOL
from perfctl.records.errors import ReportError
from perfctl.records.sqlite_header import quote_sql_name

_SUFFIXES = (".parquet", ".arrow")


def is_parquet_or_arrow_export(path: Path) -> bool:
    """Return whether it is the folder of such an export."""
    return any((path / (STRINGS + suffix)).is_file() for suffix in _SUFFIXES)


def load_into_sqlite(path: Path, database: Path) -> None:
    """Write the tables into a new SQLite file. Raises ReportError without pyarrow, and for a file
    that it cannot read."""
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        reason = "it is an nsys export of Parquet or Arrow files, and pyarrow is not installed"
        remedy = "Run pip install 'perfctl[export]', or nsys export --type sqlite"
        raise ReportError(path, TOOL, reason, remedy) from error
    with closing(sqlite3.connect(database)) as connection:
        for file in sorted(path.iterdir()):
            if file.suffix in _SUFFIXES:
                try:
                    _load_table_into_sqlite(connection, file)
                except (
                    arrow.ArrowException,
                    OSError,
                    ValueError,
                    sqlite3.Error,
                    OverflowError,
                ) as error:
                    reason = f"{file.name} cannot be read ({' '.join(str(error).split())[:200]})"
                    raise ReportError(path, TOOL, reason, "Export the report again") from error
        connection.commit()


def _load_table_into_sqlite(connection: sqlite3.Connection, file: Path) -> None:
    schema, batches = _open_schema_and_batches(file)
    if not schema.names:
        return
    table = quote_sql_name(file.stem)
    columns = ", ".join(
        f"{quote_sql_name(field.name)} {_map_arrow_to_sql_type(field.type)}" for field in schema
    )
    connection.execute(f"CREATE TABLE {table} ({columns})")
    insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(schema.names))})"
    for batch in batches:
        # SQLite has numbers beyond 63 bits as negative ones
        columns_of_batch = (
            column.cast("int64", safe=False) if str(column.type) == "uint64" else column
            for column in batch.columns
        )
        values = (column.to_pylist() for column in columns_of_batch)
        connection.executemany(insert, zip(*values, strict=True))


def _open_schema_and_batches(file: Path) -> tuple[Any, Iterable[Any]]:
    """Return the schema and the parts of a table."""
    if file.suffix == ".parquet":
        table = import_module("pyarrow.parquet").ParquetFile(file)
        return table.schema_arrow, table.iter_batches()
    ipc, data = import_module("pyarrow.ipc"), import_module("pyarrow").memory_map(str(file))
    is_stream = data.read(6) != b"ARROW1"
    data.seek(0)
    reader = (ipc.open_stream if is_stream else ipc.open_file)(data)
    indices = () if is_stream else range(reader.num_record_batches)
    return reader.schema, reader if is_stream else map(reader.get_batch, indices)


def _map_arrow_to_sql_type(kind: Any) -> str:
    """Return the type that the SQLite export declares."""
    types = import_module("pyarrow.types")
    if types.is_integer(kind) or types.is_boolean(kind):
        return "INTEGER"
    if types.is_floating(kind):
        return "REAL"
    return "BLOB" if types.is_binary(kind) else "TEXT"
