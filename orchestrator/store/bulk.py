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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count, islice
from typing import Any, NamedTuple
from urllib.parse import quote

from perfctl.orchestrator.store import checks, clean_text, schema
from perfctl.records.bulk import Columns, NumberedCounters, SqlKernels
from perfctl.records.report import Kernel, Range, Report

SCHEMA = "report"
"""What an attached report is called in SQL."""

_AS_RECORDED = Kernel._fields[Kernel._fields.index("device_index") :]
"""Fields of a kernel that the store keeps as they are; a new last field of ``Kernel`` needs a
migration, and nothing here."""
_LAUNCH_KEYS = ("id", "name_id", "launch", "layer_id", "step", "range_id")
_LAUNCH_COLUMNS = ", ".join((*_LAUNCH_KEYS, *_AS_RECORDED))

Column = Sequence[Any]
CHUNK = 1000
"""Rows turned to columns at a time."""
TOGETHER = 100
"""Rows that one statement takes at most, in half the time of one statement a row."""
LARGEST_EXACT = 1 << 51
"""SQLite, too, keeps a larger float as it is where a column takes both kinds of numbers."""
_NOTHING = bytearray()
"""Bound as a blob of no bytes, and as fast as a number."""
_NOWHERE = (None, None, None)


class KernelRows(NamedTuple):
    """The rows of a run's kernels."""

    number: int
    first_id: int
    """Of launch 0."""
    are_checked: bool
    """Whether all values are possible; otherwise ``checks.refuse_impossible`` has to look."""


_Numbers = defaultdict[tuple[Any, ...], int]
"""Anything that can be a key -> a number."""


class Shared(NamedTuple):
    """Fields that many rows of a large table share: a table of their own keeps them once, and
    rows have their number. A view puts them back."""

    column: str
    """Of the large table: the number."""
    table: str
    fields: tuple[str, ...]
    """Of the record."""
    columns: tuple[str, ...] = ()
    """Of the table; none where they are named as the fields."""


SHARED = {
    "metric_value": (Shared("metric_id", "metric", ("name", "unit", "section")),),
    "op_instance": (
        Shared("signature_id", "op_signature", ("name", "shapes", "dtypes", "layer", "direction")),
        Shared("stack_id", "stack", ("stack",), ("text",)),
    ),
    "derived_value": (
        Shared("rule_id", "derived_rule", ("instruction", "rule", "verified_error")),
    ),
    "source_counter": (Shared("file_id", "source_file", ("file",), ("name",)),),
}


def _counted_from(first: int) -> _Numbers:
    """Each new key that is asked for gets the next number."""
    return defaultdict(count(first).__next__)


@contextmanager
def attached(connection: sqlite3.Connection, report: Report | None) -> Iterator[None]:
    """Where the report's kernels can be copied by SQL, its file is there as schema ``report``
    inside the block.

    SQLite attaches nothing inside a transaction. A file that it does not take (another text
    encoding) is read row by row.
    """
    if report is None or not isinstance(report.kernels, SqlKernels):
        yield
        return
    path = quote(os.fsencode(report.kernels.path.absolute()))
    with suppress(sqlite3.Error):
        connection.execute(f"ATTACH ? AS {SCHEMA}", (f"file:{path}?mode=ro&immutable=1",))
    try:
        yield
    finally:
        if _is_attached(connection):
            connection.execute(f"DETACH {SCHEMA}")


def _is_attached(connection: sqlite3.Connection) -> bool:
    return any(row[1] == SCHEMA for row in connection.execute("PRAGMA database_list"))


def columns_of(rows: Iterable[tuple[Any, ...]]) -> Iterator[Sequence[Column]]:
    """The rows turned to columns, CHUNK rows at a time."""
    if isinstance(rows, Columns):
        yield from rows.chunks()
        return
    left = iter(rows)
    while chunk := list(islice(left, CHUNK)):
        yield tuple(zip(*chunk, strict=True))


def insert(
    connection: sqlite3.Connection,
    into: str,
    fixed: Sequence[str],
    values: Sequence[str],
    chunks: Iterable[Sequence[Column]],
) -> int:
    """Insert columns, chunk by chunk, and return the number of rows.

    ``into`` names table and columns; ``fixed`` and then ``values`` are the SQL that goes into them,
    with a ``?`` where a value of the column stands. Last columns that a chunk does not have are
    NULL. Values of a type that the column does not take are handled as ``checks.fit_type`` says.
    """
    table, _, names = into.rstrip(")").replace("[", "").replace("]", "").partition(" (")
    written = names.split(", ")[len(fixed) :]
    mixed = [at for at, name in enumerate(written) if schema.columns(table)[name] == "ANY"]
    rows = 0
    for columns in chunks:
        columns = list(columns)
        for at in mixed:
            if at < len(columns):
                columns[at] = _without_zero_fractions(columns[at])
        connection.execute("SAVEPOINT chunk")
        try:
            _insert_chunk(connection, into, fixed, values, columns)
        except sqlite3.IntegrityError as error:
            if "cannot store" not in str(error):
                raise
            connection.execute("ROLLBACK TO chunk")
            fitted = [
                checks.fit_type(table, name, column)
                for name, column in zip(written, columns, strict=False)
            ]
            _insert_chunk(connection, into, fixed, values, fitted)
        connection.execute("RELEASE chunk")
        rows += len(columns[0])
    return rows


def _without_zero_fractions(column: Column) -> Column:
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
    into: str,
    fixed: Sequence[str],
    values: Sequence[str],
    columns: Sequence[Column],
) -> None:
    """Python 3.11 binds None four times slower than anything else, so a column without values
    becomes NULL in the SQL, and one with gaps says NULL by a blob that no record holds."""
    shown, bound = list(fixed), list[Column]()
    for value, given in zip(values, columns, strict=False):
        if bound and given[0] is None and given.count(None) == len(given):
            shown.append("NULL")
            continue
        column = clean_text.of_column(given)
        if None not in column:
            shown.append(value)
            bound.append(column)
        else:
            shown.append(value.replace("?", "nullif(?, x'')"))
            bound.append([_NOTHING if item is None else item for item in column])
    shown += ["NULL"] * (len(values) - len(columns))
    _insert_rows(connection, f"INSERT INTO {into} VALUES ", f"({', '.join(shown)})", bound)


def _insert_rows(
    connection: sqlite3.Connection, insert_into: str, row: str, columns: Sequence[Column]
) -> None:
    """``row`` is the SQL of one, whose marks take the columns' values."""
    width, rows = len(columns), len(columns[0])
    values: list[Any] = [None] * (width * rows)
    for at, column in enumerate(columns):
        values[at::width] = column
    # 999 up to SQLite 3.31, then 32,766
    limit = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
    together = max(1, min(TOGETHER, limit // width))
    whole = rows - rows % together
    for first, last, number in ((0, whole, together), (whole, rows, 1)):
        places = range(first * width, last * width, number * width)
        if not places:  # to make a statement of many rows takes longer than to insert a few
            continue
        parts = (values[place : place + number * width] for place in places)
        connection.executemany(insert_into + ", ".join([row] * number), parts)


def write_ranges(
    connection: sqlite3.Connection, run_id: int, ranges: Iterable[Range]
) -> tuple[int, int]:
    """(how many, id of number 0)"""
    base = next_id(connection, "range")
    values = [f"? + {base}" if field in ("number", "parent") else "?" for field in Range._fields]
    names = ", ".join("id" if field == "number" else field for field in Range._fields)
    return insert(
        connection, f"range (run_id, {names})", [str(run_id)], values, columns_of(ranges)
    ), base


def _write_shared(
    connection: sqlite3.Connection,
    table: str,
    run_id: int,
    columns: Sequence[str],
    rows: Iterable[tuple[Any, ...]],
) -> None:
    """What the rows of a large table refer to; its number comes first."""
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO {table} (id, run_id, {', '.join(columns)}) VALUES (?, {run_id:d}, {marks})"
    connection.executemany(sql, clean_text.of_rows(rows))


def write_kernels(
    connection: sqlite3.Connection,
    run_id: int,
    kernels: Iterable[Kernel],
    first_range: int,
    family: Callable[[str], str | None],
) -> KernelRows:
    """Write the kernels. Their ranges have to be there already."""
    base, first_name, first_layer = (
        next_id(connection, f"kernel_{what}") for what in ("launch", "name", "layer")
    )
    names: Iterable[tuple[Any, ...]] = ()
    layers: Iterable[tuple[Any, ...]] = ()
    rows = -1
    if isinstance(kernels, SqlKernels) and _is_attached(connection):
        try:
            rows = _copy_kernels(
                connection, run_id, kernels, (first_range, first_name, first_layer)
            )
            names = ((n + first_name, *texts) for n, texts in kernels.names.items())
            layers = ((n + first_layer, *layer) for n, layer in kernels.layers.items())
        except sqlite3.Error:
            # a value is impossible or of another type, or the report is damaged, which the
            # records say
            for _ in kernels:
                pass
    is_copied = rows >= 0
    if not is_copied:
        name_numbers, layer_numbers = _counted_from(first_name), _counted_from(first_layer)
        values = [f"? + {base}", *["?"] * 4, f"? + {first_range}", *["?"] * len(_AS_RECORDED)]
        columns = (
            _launch_columns(name_numbers, layer_numbers, *columns)
            for columns in columns_of(kernels)
        )
        into = f"kernel_launch (run_id, {_LAUNCH_COLUMNS})"
        rows = insert(connection, into, [str(run_id)], values, columns)
        names = ((n, *texts) for texts, n in name_numbers.items())
        layers = ((n, *layer) for layer, n in layer_numbers.items())
    with_family = ((n, name, short, family(name)) for n, name, short in names)
    _write_shared(connection, "kernel_name", run_id, ("name", "short_name", "family"), with_family)
    _write_shared(
        connection, "kernel_layer", run_id, ("layer", "direction", "layer_source"), layers
    )
    return KernelRows(rows, base, are_checked=is_copied)


def _launch_columns(
    names: _Numbers,
    layers: _Numbers,
    launch: Column,
    name: Column,
    short: Column,
    layer: Column,
    direction: Column,
    step: Column,
    source: Column,
    *rest: Column,
) -> list[Column]:
    name_ids = list(map(names.__getitem__, zip(name, short, strict=True)))
    places = zip(layer, direction, source, strict=True)
    layer_ids = [None if place == _NOWHERE else layers[place] for place in places]
    return [launch, name_ids, launch, layer_ids, step, *rest]


def _copy_kernels(
    connection: sqlite3.Connection,
    run_id: int,
    kernels: SqlKernels,
    first_ids: tuple[int, int, int],
) -> int:
    """Copy the rows of the attached report, without one passing through Python, and return how
    many. ``first_ids``: of ranges, names and layers. Raises sqlite3.Error for a value that cannot
    be.
    """
    first_range, first_name, first_layer = first_ids
    # rows come in the order of launches, so that SQLite counts the ids up itself
    values = {
        "run_id": f"{run_id:d}",
        "launch": f"kernel.rowid - {kernels.first_row}",
        "name_id": f"kernel.{kernels.name_column} + {first_name}",
        "layer_id": "stretch.layer_id",
        "step": "stretch.step",
        "range_id": "stretch.range_id",
        **kernels.fields,
    }
    stretch = ("?", "?", f"nullif(?, -1) + {first_layer}", "nullif(?, -1)")
    row = f"({', '.join(stretch)}, nullif(?, -1) + {first_range})"
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
        shown = [
            checks.require_possible("kernel_launch", name, values.get(name, "NULL"))
            for name in into
        ]
        return connection.execute(
            f"INSERT INTO main.kernel_launch ({', '.join(into)})"
            f" SELECT {', '.join(shown)} FROM temp.stretch AS stretch"
            f" CROSS JOIN {SCHEMA}.{kernels.table} AS kernel NOT INDEXED"
            " WHERE kernel.rowid BETWEEN stretch.first_row AND stretch.last_row"
        ).rowcount
    finally:
        with suppress(sqlite3.Error):  # SQLite may have rolled all of it back
            connection.execute("DROP TABLE temp.stretch")


def write_large(
    connection: sqlite3.Connection,
    table: str,
    record: type[Any],
    run_id: int,
    first_kernel: int,
    rows: Iterable[tuple[Any, ...]],
) -> int:
    """Write one of the tables of ``SHARED``; how many rows. Kernels have to be there already,
    ``first_kernel`` is the id of launch 0."""
    shared = SHARED[table]
    numbers = [_counted_from(next_id(connection, kept.table)) for kept in shared]
    taken = {field for kept in shared for field in kept.fields}
    own = [field for field in record._fields if field not in taken]
    if isinstance(rows, NumberedCounters):
        ids = [numbers[0][metric] for metric in rows.metrics]
        chunks: Iterable[Sequence[Column]] = (
            (launch, value, text, [ids[number] for number in metrics])
            for launch, metrics, value, text in rows.chunks()
        )
    else:
        chunks = (
            _number_shared(record, own, shared, numbers, columns) for columns in columns_of(rows)
        )
    names = [*own, *(kept.column for kept in shared)]
    values = [f"? + {first_kernel}" if name == "launch" else "?" for name in names]
    columns = ", ".join("kernel_id" if name == "launch" else name for name in names)
    if "launch" in own:
        written = insert(connection, f"{table} ({columns})", [], values, chunks)
    else:
        written = insert(connection, f"{table} (run_id, {columns})", [str(run_id)], values, chunks)
    for kept, known in zip(shared, numbers, strict=True):
        keys = ((number, *key) for key, number in known.items())
        _write_shared(connection, kept.table, run_id, kept.columns or kept.fields, keys)
    return written


def _number_shared(
    record: type[Any],
    own: Sequence[str],
    shared: Sequence[Shared],
    numbers: Sequence[_Numbers],
    columns: Sequence[Column],
) -> list[Column]:
    """Return the columns of some records, with a column of numbers for those that rows share."""
    nothing = [None] * len(columns[0])
    by_field = dict.fromkeys(record._fields, nothing) | dict(
        zip(record._fields, columns, strict=False)
    )
    result = [by_field[field] for field in own]
    for kept, known in zip(shared, numbers, strict=True):
        keys = zip(*(by_field[field] for field in kept.fields), strict=True)
        unknown = (None,) * len(kept.fields)
        result.append([None if key == unknown else known[key] for key in keys])
    return result


def next_id(connection: sqlite3.Connection, table: str) -> int:
    """One more than the largest id of a table."""
    return int(connection.execute(f"SELECT coalesce(max(id), 0) + 1 FROM {table}").fetchone()[0])
