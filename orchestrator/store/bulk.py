"""The tables of millions of rows: ranges, kernels, counters (also by instruction), operators,
derived counts.

Names and the like, which many rows share, are written once, after the rows: their number is known
as soon as they are seen. What lies in an SQLite report already goes from file to file
inside SQLite.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import schema
from perfctl.records.bulk import ColumnRecords, NumberedCounters, SqlKernels
from perfctl.records.report import Kernel
from perfctl.redact import mask_and_truncate_column

SCHEMA = "report"
"""What an attached report is called in SQL."""

Column = Sequence[Any]
CHUNK = 1000
"""Rows turned to columns at a time."""
TOGETHER = 100
"""Rows that one statement takes at most, in half the time of one statement a row."""
LARGEST_ID = 1 << 62
"""Ids above it leave too few numbers for the next run."""
LARGEST_EXACT = 1 << 51
"""SQLite, too, keeps a larger float as it is where a column takes both kinds of numbers."""
_NOTHING = bytearray()
"""Bound as a blob of no bytes, and as fast as a number."""


_Ids = defaultdict[tuple[Any, ...], int]
"""Anything that can be a key -> a number."""


class SharedFields(NamedTuple):
    """Fields that many rows of a large table share: a table of their own keeps them once, and
    rows have their number. A view puts them back."""

    column: str
    """Of the large table: the number."""
    table: str
    fields: tuple[str, ...]
    """Of the record."""
    columns: tuple[str, ...] = ()
    """Of the table; none where they are named as the fields."""


SHARED: Mapping[str, Sequence[SharedFields]] = {
    "kernel_launch": (
        SharedFields("name_id", "kernel_name", ("name", "short_name")),
        SharedFields("layer_id", "kernel_layer", ("layer", "direction", "layer_source")),
    ),
    "metric_value": (SharedFields("metric_id", "metric", ("name", "unit", "section")),),
    "op_instance": (
        SharedFields(
            "signature_id", "op_signature", ("name", "shapes", "dtypes", "layer", "direction")
        ),
        SharedFields("stack_id", "stack", ("stack",), ("text",)),
    ),
    "derived_value": (
        SharedFields("rule_id", "derived_rule", ("instruction", "rule", "verified_error")),
    ),
    "source_counter": (SharedFields("file_id", "source_file", ("file",), ("name",)),),
}
REFERENCES = {"parent": "range", "range_id": "range", "kernel_id": "kernel_launch"} | {
    group.column: group.table for shared in SHARED.values() for group in shared
}
"""Column -> the table whose ids it holds. Tables of a large report refer to no others."""
_NUMBERS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "range": {"number": ("id",), "parent": ("parent",)},
    "kernel_launch": {"launch": ("id", "launch"), "range_number": ("range_id",)},
    "metric_value": {"launch": ("kernel_id",)},
    "derived_value": {"launch": ("kernel_id",)},
    "source_counter": {"launch": ("kernel_id",)},
}
"""Table -> field that numbers launches or ranges from 0 -> the columns that it is written to."""


@contextmanager
def attach_read_only(connection: sqlite3.Connection, path: Path, name: str) -> Iterator[None]:
    """Inside, the SQLite file at ``path``, to which nobody writes, is there as schema ``name``. Not
    inside a transaction. Raises sqlite3.Error where SQLite does not take the file."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection.execute(f"ATTACH ? AS {name}", (address,))
    try:
        yield
    finally:
        with suppress(sqlite3.Error):
            connection.execute(f"DETACH {name}")


def convert_rows_to_column_chunks(rows: Iterable[tuple[Any, ...]]) -> Iterator[Sequence[Column]]:
    """The rows turned to columns, CHUNK rows at a time."""
    if isinstance(rows, ColumnRecords):
        yield from rows.chunks()
        return
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        yield tuple(zip(*chunk, strict=True))


def insert_columns(
    connection: sqlite3.Connection,
    table: str,
    run_id: int,
    sql_by_column: Mapping[str, str],
    chunks: Iterable[Sequence[Column]],
) -> int:
    """Insert columns of a run, chunk by chunk, and return the number of rows.

    ``sql_by_column``: name -> the SQL that goes into it, with a ``?`` where a value of the column
    stands. Last columns that a chunk does not have are NULL. Values of a type that the column does
    not take are handled as ``schema.convert_to_column_type`` says.
    """
    declared = schema.read_column_types(table)
    rows = 0
    for chunk in chunks:
        values = {
            name: _convert_integral_floats_to_int(column) if declared[name] == "ANY" else column
            for name, column in zip(sql_by_column, chunk, strict=False)
        }
        connection.execute("SAVEPOINT chunk")
        try:
            _insert_chunk(connection, table, run_id, sql_by_column, values)
        except sqlite3.IntegrityError as error:
            if "cannot store" not in str(error):
                raise
            connection.execute("ROLLBACK TO chunk")
            fitted = {
                name: schema.convert_to_column_type(table, name, values[name]) for name in values
            }
            _insert_chunk(connection, table, run_id, sql_by_column, fitted)
        connection.execute("RELEASE chunk")
        rows += len(chunk[0])
    return rows


def _convert_integral_floats_to_int(column: Column) -> Column:
    """Return 10 for 10.0, in columns that hold whole numbers and fractions."""
    if float not in set(map(type, column)):
        return column
    return [
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_EXACT
        else value
        for value in column
    ]


def _insert_chunk(
    connection: sqlite3.Connection,
    table: str,
    run_id: int,
    sql_by_column: Mapping[str, str],
    values: Mapping[str, Column],
) -> None:
    """Insert the columns in the order of the table, which SQLite would otherwise restore for every
    row. Python 3.11 binds None four times slower than anything else, so a column without values is
    NULL in the SQL, and one with gaps says NULL by a blob that no record holds."""
    expressions: dict[str, str] = {}
    bound: list[Column] = []
    for name in schema.read_column_types(table):
        column_values = values.get(name)
        if name == "run_id":
            expressions[name] = str(run_id)
        elif column_values is None or (
            bound and column_values[0] is None and column_values.count(None) == len(column_values)
        ):
            expressions[name] = "NULL"
        else:
            column = mask_and_truncate_column(column_values)
            expressions[name] = sql_by_column[name]
            if None in column:
                expressions[name] = sql_by_column[name].replace("?", "nullif(?, x'')")
                column = [_NOTHING if item is None else item for item in column]
            bound.append(column)
    into = f"INSERT INTO {table} ({schema.format_column_list(expressions)}) VALUES "
    _insert_rows(connection, into, f"({', '.join(expressions.values())})", bound)


def _insert_rows(
    connection: sqlite3.Connection, insert_into: str, row_sql: str, columns: Sequence[Column]
) -> None:
    """``row_sql`` is the SQL of one, whose marks take the columns' values."""
    width, rows = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * rows)
    for index, column in enumerate(columns):
        values[index::width] = column
    # 999 up to SQLite 3.31, then 32,766
    limit = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    rows_per_insert = max(1, min(TOGETHER, limit // width))
    full_rows = rows - rows % rows_per_insert
    for first, last, number in ((0, full_rows, rows_per_insert), (full_rows, rows, 1)):
        places = range(first * width, last * width, number * width)
        if not places:  # to make a statement of many rows takes longer than to insert a few
            continue
        parts = (values[offset : offset + number * width] for offset in places)
        connection.executemany(insert_into + ", ".join([row_sql] * number), parts)


def _write_shared_field_values(
    connection: sqlite3.Connection,
    group: SharedFields,
    run_id: int,
    rows: Iterable[tuple[Any, ...]],
) -> None:
    """Write what the rows of a large table refer to; its number comes first."""
    columns = dict.fromkeys(("id", *(group.columns or group.fields)), "?")
    insert_columns(connection, group.table, run_id, columns, convert_rows_to_column_chunks(rows))


def write_kernels(
    connection: sqlite3.Connection,
    run_id: int,
    kernels: Iterable[Kernel],
    first_ids: Mapping[str, int],
) -> tuple[int, bool]:
    """Write the kernels of a run, inside SQLite where its report is attached.

    Return how many there are, and whether all their values are known to be possible. ``first_ids``:
    as in ``write_records``.
    """
    if isinstance(kernels, SqlKernels):
        shared = SHARED["kernel_launch"]
        first_shared = {group.table: find_next_id(connection, group.table) for group in shared}
        try:
            rows = _copy_kernels_inside_sqlite(
                connection, run_id, kernels, {**first_ids, **first_shared}
            )
        except sqlite3.Error:
            # it is not attached, a value is impossible or of another type, or the report is
            # damaged, which the records say
            for _ in kernels:
                pass
        else:
            for group, texts in zip(shared, (kernels.names, kernels.layers), strict=True):
                keys = ((number + first_shared[group.table], *key) for number, key in texts.items())
                _write_shared_field_values(connection, group, run_id, keys)
            return rows, True
    return write_records(connection, "kernel_launch", Kernel, run_id, kernels, first_ids), False


def _copy_kernels_inside_sqlite(
    connection: sqlite3.Connection,
    run_id: int,
    kernels: SqlKernels,
    first_ids: Mapping[str, int],
) -> int:
    """Copy the rows of the attached report, without one passing through Python, and return how
    many. Raises sqlite3.Error for a value that cannot be."""
    # rows come in the order of launches, so that SQLite counts the ids up itself
    values = {
        "run_id": f"{run_id:d}",
        "launch": f"kernel.rowid - {kernels.first_row}",
        "name_id": f"kernel.{kernels.name_column} + {first_ids['kernel_name']}",
        "layer_id": "stretch.layer_id",
        "step": "stretch.step",
        "range_id": "stretch.range_id",
        **kernels.fields,
    }
    layer, span = (
        f"nullif(?, -1) + {first_ids['kernel_layer']}",
        f"nullif(?, -1) + {first_ids['range']}",
    )
    row = f"(?, ?, {layer}, nullif(?, -1), {span})"
    connection.execute(
        "CREATE TABLE temp.stretch (first_row INTEGER, last_row INTEGER, layer_id INTEGER, step "
        "INTEGER, range_id INTEGER)"
    )
    try:
        for columns in kernels.stretches():
            _insert_rows(connection, "INSERT INTO temp.stretch VALUES ", row, columns)
        # SQLite computes the table's first columns where the row needs them; it would copy others
        table = connection.execute("PRAGMA main.table_info(kernel_launch)").fetchall()
        names = [name for _, name, *_ in table]
        into = names[: 1 + max(map(names.index, values))]
        expressions = [
            schema.build_range_checked_sql(name, values.get(name, "NULL")) for name in into
        ]
        return connection.execute(
            f"INSERT INTO main.kernel_launch ({', '.join(into)})"
            f" SELECT {', '.join(expressions)} FROM temp.stretch AS stretch"
            f" CROSS JOIN {SCHEMA}.{kernels.table} AS kernel NOT INDEXED"
            " WHERE kernel.rowid BETWEEN stretch.first_row AND stretch.last_row"
        ).rowcount
    finally:
        with suppress(sqlite3.Error):  # SQLite may have rolled all of it back
            connection.execute("DROP TABLE temp.stretch")


def write_records(
    connection: sqlite3.Connection,
    table: str,
    record: type[Any],
    run_id: int,
    rows: Iterable[tuple[Any, ...]],
    first_ids: Mapping[str, int] = MappingProxyType({}),
) -> int:
    """Write records of a run to their table; how many rows.

    ``first_ids``: table -> id of its number 0. What rows refer to by number has to be there
    already.
    """
    shared = SHARED.get(table, ())
    # each new key gets the next number
    numbers: list[_Ids] = [
        defaultdict(count(find_next_id(connection, group.table)).__next__) for group in shared
    ]
    shared_fields = {field for group in shared for field in group.fields}
    own_columns = [
        (field, column)
        for field in record._fields
        if field not in shared_fields
        for column in _NUMBERS.get(table, {}).get(field, (field,))
    ]
    if isinstance(rows, NumberedCounters):
        ids = [numbers[0][metric] for metric in rows.metrics]
        chunks: Iterable[Sequence[Column]] = (
            (launch, value, text, [ids[number] for number in metrics])
            for launch, metrics, value, text in rows.chunks()
        )
    else:
        fields = [field for field, _ in own_columns]
        chunks = (
            _replace_shared_fields_by_ids(record, fields, shared, numbers, chunk)
            for chunk in convert_rows_to_column_chunks(rows)
        )
    columns = dict.fromkeys(
        [*(column for _, column in own_columns), *(group.column for group in shared)], "?"
    )
    for name, target in {"id": table, **REFERENCES}.items():
        if name in columns and target in first_ids:
            columns[name] = f"? + {first_ids[target]}"
    written = insert_columns(connection, table, run_id, columns, chunks)
    for group, id_of in zip(shared, numbers, strict=True):
        keys = ((number, *key) for key, number in id_of.items())
        _write_shared_field_values(connection, group, run_id, keys)
    return written


def _replace_shared_fields_by_ids(
    record: type[Any],
    own_fields: Sequence[str],
    shared: Sequence[SharedFields],
    numbers: Sequence[_Ids],
    columns: Sequence[Column],
) -> list[Column]:
    """Return the columns of some records, with a column of numbers for those that rows share."""
    nothing = [None] * len(columns[0])
    by_field = dict.fromkeys(record._fields, nothing) | dict(
        zip(record._fields, columns, strict=False)
    )
    result = [by_field[field] for field in own_fields]
    for group, ids in zip(shared, numbers, strict=True):
        keys = zip(*(by_field[field] for field in group.fields), strict=True)
        unknown = (None,) * len(group.fields)
        result.append([None if key == unknown else ids[key] for key in keys])
    return result


def find_next_id(connection: sqlite3.Connection, table: str) -> int:
    """One more than the largest id of a table. Raises StoreError if no number is left."""
    largest = connection.execute(f"SELECT coalesce(max(id), 0) FROM main.{table}").fetchone()[0]
    if largest > LARGEST_ID:
        problem = f"table {table} has the id {largest}, which perfctl did not write"
        raise StoreError(problem, "Ingest the reports into a new database")
    return int(largest) + 1
