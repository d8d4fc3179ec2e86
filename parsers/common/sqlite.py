"""SQLite databases that a profiler wrote: opened read-only without a trace, read by names of tables
and columns. Versions of a profiler differ in tables and columns: nothing here goes by position, and
what a version does not have reads as NULL. Pages that do not fit together refuse the file; values
of another type, views in the place of tables, and tables that every version has are gaps."""

from __future__ import annotations

import os
import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfctl.parsers.common.doubts import list_unknown_names
from perfctl.parsers.common.tables import FieldColumn as Field
from perfctl.parsers.common.tables import RowReader
from perfctl.records.errors import ReportError, convert_os_errors
from perfctl.records.report import Gap
from perfctl.records.sqlite_header import (
    HEADER_BYTES,
    has_sqlite_magic,
    quote_sql_name,
    read_file_size_from_header,
)

_COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c"
    " WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'"
)
"""Without virtual tables: they run code, and no profiler writes one."""
_LONGEST = 256 << 20
"""Bytes of one value; the largest that profilers write, nsys's own messages, have a
few thousand."""
LARGEST = 16 << 20
"""Bytes of a database whose pages and values are all looked at, which takes some 3 s of processor
time for each 100 MB."""
_TYPES = (
    ("INT", ("integer",)),
    ("CHAR", ("text",)),
    ("CLOB", ("text",)),
    ("TEXT", ("text",)),
    ("REAL", ("integer", "real")),
    ("FLOA", ("integer", "real")),
    ("DOUB", ("integer", "real")),
)
"""Part of a column's declared type -> storage classes of its values
(https://www.sqlite.org/datatype3.html, section 3.1)."""
_OF_VALUES = re.compile(
    r"(?:NULL|TEXT|NUMERIC) value in |CHECK constraint failed|non-unique entry|row \d+ missing "
    "from index"
)
"""Messages of ``quick_check`` about values, not about the structure of the file."""
COPY_KINDS: dict[object, str] = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "unified HtoD",
    12: "unified DtoH",
    13: "unified DtoD",
}
"""CUpti_ActivityMemcpyKind -> the short word that perfctl stores; other kinds keep their number
or label. 11 to 13 are nsys's own, for what the driver of unified memory moves."""


class Database:
    """A read-only connection and the tables and columns it has."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        # real exports hold strings that are not UTF-8 (nsys 2021.3, a property of the host)
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        self.connection = connection
        columns = defaultdict[str, set[str]](set)
        for table, column in connection.execute(_COLUMNS):
            columns[table].add(column)
        # a column called rowid hides the number of a row, by which tables are read
        self.tables = {
            table: frozenset(names)
            for table, names in columns.items()
            if "rowid" not in map(str.lower, names)
        }

    def has_table_with_columns(self, table: str, *columns: str) -> bool:
        """Return whether there is such a table, with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def has_row_or_value(self, table: str, *columns: str) -> bool:
        """Return whether the table exists and has a row (``--lazy=false`` exports empty tables
        too), or one of these columns a value."""
        values = " OR ".join(f"{quote_sql_name(column)} IS NOT NULL" for column in columns)
        query = f"SELECT 1 FROM {quote_sql_name(table)} WHERE {values or 'TRUE'} LIMIT 1"
        return (
            self.has_table_with_columns(table, *columns)
            and self.connection.execute(query).fetchone() is not None
        )

    def find_unknown_tables_and_columns(
        self,
        recognized_columns: Mapping[str, Collection[str]],
        recognized_tables: Collection[str],
        recognized_table_prefixes: tuple[str, ...] = (),
    ) -> dict[str, list[str]]:
        """Return tables and columns that hold data and are in no list. ``recognized_columns``:
        table -> its known columns; ``recognized_tables`` and ``recognized_table_prefixes``: other
        known tables, and how they begin."""
        unknown = list_unknown_names(self.tables, recognized_columns, recognized_tables)
        unknown_columns = [
            (table, name)
            for table, names in recognized_columns.items()
            for name in list_unknown_names(sorted(self.tables.get(table, ())), names)
        ]
        return {
            "tables": [
                name
                for name in unknown
                if not name.startswith(recognized_table_prefixes) and self.has_row_or_value(name)
            ],
            "columns": [".".join(pair) for pair in unknown_columns if self.has_row_or_value(*pair)],
        }

    def count_rows(self, table: str) -> int:
        """Return how many rows the table, of any name, has."""
        return int(
            self.connection.execute(f"SELECT count(*) FROM {quote_sql_name(table)}").fetchone()[0]
        )

    def column_or_null(self, table: str, name: str) -> str:
        """Return the column for use in SQL, or NULL where this version does not have it."""
        return name if self.has_table_with_columns(table, name) else "NULL"

    def build_select_query(self, table: str, columns: Iterable[str]) -> str:
        """Return a query of a table, with NULL in the place of a missing column, and without a row
        in the place of a missing table."""
        columns_of_table = self.tables.get(table, frozenset())
        selected = [
            f'"{name}"' if name in columns_of_table else f'NULL AS "{name}"' for name in columns
        ]
        source = f"FROM {quote_sql_name(table)}" if columns_of_table else "WHERE FALSE"
        return f"SELECT {', '.join(selected)} {source}"

    def read_rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """Return all rows of a small table in its order."""
        return self.connection.execute(self.build_select_query(table, columns)).fetchall()

    def read_name_value_table(self, table: str) -> dict[str, str]:
        """Return a (name, value) table as a dict; empty without the table."""
        return {str(name): str(value) for name, value in self.read_rows(table, "name", "value")}


class NamedTables:
    """The tables of a database that a parser reads, by their names without ``suffix``. A column
    that this version lacks is NULL, and a table that it lacks has no rows."""

    def __init__(
        self, database: Database, columns: Mapping[str, Iterable[str]], suffix: str = ""
    ) -> None:
        """``columns``: table -> columns that are read."""
        self.database, self.suffix = database, suffix
        self._selects = {
            table: f"({database.build_select_query(table + suffix, names)})"
            for table, names in columns.items()
        }

    def execute_query(self, query: str) -> sqlite3.Cursor:
        """Run a query that names tables in braces."""
        return self.database.connection.execute(query.format_map(self._selects))

    def read_table(self, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small table, with the columns that are read."""
        return self.execute_query(f"SELECT * FROM {{{table}}}").fetchall()

    def query_fields(self, columns: Iterable[Field], query: str) -> Iterator[dict[str, Any]]:
        """Yield the fields of each row of a query that names tables in braces."""
        cursor = self.execute_query(query)
        return map(
            RowReader(columns, [name for name, *_ in cursor.description]).convert_row, cursor
        )

    def count_rows(self, table: str) -> int:
        """Return how many rows the table has."""
        return int(self.execute_query(f"SELECT count(*) FROM {{{table}}}").fetchone()[0])


def has_tables(path: Path, head: bytes, *name_prefixes: str) -> bool:
    """Return whether the file is a database with tables of these names, or of names that begin
    with them. A damaged one is recognised by the table definitions in its first bytes."""
    if not has_sqlite_magic(head):
        return False
    tables = list_table_names(path)
    if tables is None:
        return all(re.search(rf"TABLE\W+{name}".encode(), head) for name in name_prefixes)
    return all(any(table.startswith(name) for table in tables) for name in name_prefixes)


def list_table_names(path: Path) -> list[str] | None:
    """Return the names of a database's tables; None if it is damaged."""
    try:
        with closing(connect_read_only(path)) as connection:
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
            return [str(name) for (name,) in connection.execute(query)]
    except (sqlite3.Error, OSError, UnicodeError):
        # a message about a damaged schema need not be UTF-8
        return None


@contextmanager
def open_database(path: Path, tool: str, remedy: str) -> Iterator[Database]:
    """Open the database at ``path`` read-only, leaving nothing beside it. Raises ReportError, with
    ``tool`` and ``remedy``, for a file that is not complete, and for every SQLite error inside
    the block."""
    with convert_os_errors(path, tool):
        raise_if_incomplete_database(path, tool, remedy)
    try:
        with closing(connect_read_only(path)) as connection:
            yield Database(connection)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        # a message about a damaged schema need not be UTF-8
        reason = f"the database is damaged or truncated ({' '.join(str(error).split())[:200]})"
        raise ReportError(path, tool, reason, remedy) from error


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open read-only; ``immutable`` keeps SQLite from making -shm, -wal or -journal files. The
    file's schema may call only harmless functions, none of its views is read, and no value can fill
    the memory."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(_deny_reads_through_views)
    return connection


def _deny_reads_through_views(
    action: int, first: str | None, second: str | None, schema: str | None, view: str | None
) -> int:
    """Read nothing through a view or a trigger, which is a program and may have no end."""
    return sqlite3.SQLITE_OK if view is None else sqlite3.SQLITE_DENY


def raise_if_incomplete_database(path: Path, tool: str, remedy: str) -> None:
    """Raise ReportError for a file that is shorter than its header says, or that a program still
    writes. SQLite itself notices a missing end only when it happens to read there."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    size, needed = path.stat().st_size, max(read_file_size_from_header(head), HEADER_BYTES)
    if size < needed:
        reason = f"the database is truncated: only {size:,} of {needed:,} bytes exist"
        raise ReportError(path, tool, reason, remedy)
    for ending in ("-wal", "-journal"):
        log = path.with_name(path.name + ending)
        if log.is_file():
            with log.open("rb") as file:
                first = file.read(1)
            if first not in (b"", b"\0"):
                reason = f"the database was not closed: {log.name} next to it contains changes"
                wait = "Wait until the program that writes it has ended."
                raise ReportError(path, tool, reason, f"{wait} {remedy}")


def sql_integer(column: str) -> str:
    """Return SQL of a column's integers; NULL for values of other types."""
    return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END"


def list_unreadable_column_gaps(
    database: Database, tables: Collection[str], required_columns: Mapping[str, Collection[str]]
) -> Iterator[Gap]:
    """Yield a gap for each column and table that cannot be read whole.

    ``tables``: those that are read; ``required_columns``: tables and columns that every such
    database has. Raises sqlite3.Error where the pages of a file do not fit together: what is read
    from them could be anything.
    """
    connection = database.connection
    pages, page_bytes = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
    )
    if pages * page_bytes <= LARGEST:
        # they are expressions of somebody else's
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (text,) in connection.execute("PRAGMA quick_check"):
            if text != "ok" and not _OF_VALUES.search(str(text)):
                raise sqlite3.DatabaseError(str(text))
        for table in sorted(set(tables) & database.tables.keys()):
            yield from _list_wrong_type_gaps(database, table)
    objects = "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
    for name, kind in connection.execute(objects):
        if name in tables and name not in database.tables:
            kind_text = (
                "a view" if kind == "view" else "a virtual table, or has a column called rowid"
            )
            reason = f"{name} is {kind_text}, which no profiler writes, so perfctl skips it"
            yield Gap(f"table:{name}", "unreadable", reason)
    for table, columns in required_columns.items():
        if table not in database.tables:
            yield Gap(f"table:{table}", "not_available", f"the database has no table {table}")
        elif missing := sorted(set(columns) - database.tables[table]):
            reason = f"{table} has no column {', '.join(missing)}"
            yield Gap(f"table:{table}", "not_available", reason)


def _list_wrong_type_gaps(database: Database, table: str) -> Iterator[Gap]:
    """Yield a gap for each column with values of another type than it declares."""
    rows = database.connection.execute(f"PRAGMA table_info({quote_sql_name(table)})").fetchall()
    for _, name, declared, *_ in rows:
        classes = next((kinds for part, kinds in _TYPES if part in str(declared).upper()), None)
        if declared and classes is None:
            continue
        kinds = ", ".join(f"'{kind}'" for kind in (*(classes or ("integer",)), "null"))
        column = quote_sql_name(name)
        query = (
            f"SELECT sum(typeof({column}) NOT IN ({kinds})), sum(typeof({column}) = 'integer'), "
            f"count(*) FROM {quote_sql_name(table)}"
        )
        odd, integers, count = database.connection.execute(query).fetchone()
        # without a declared type the others tell it; settings hold numbers and texts
        if not declared and (name == "value" or not integers):
            continue
        if odd:
            problem = (
                f"are not of the type {declared}"
                if declared
                else "are not integers, unlike the others"
            )
            reason = f"{table}.{name}: {odd:,} of {count:,} values {problem}"
            yield Gap(f"table:{table}", "unreadable", reason)
