"""What of an SQLite database cannot be read, or is not there: pages that do not fit together refuse
the file; values of another type, views in the place of tables, and tables and columns that every
version has are gaps."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping

from perfctl.parsers.common.sqlite import Database, quoted
from perfctl.records.report import Gap

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


def check(
    database: Database, tables: Collection[str], always: Mapping[str, Collection[str]]
) -> Iterator[Gap]:
    """Yield a gap for each column and table that cannot be read whole.

    ``tables``: those that are read; ``always``: tables and columns that every such database has.
    Raises sqlite3.Error where the pages of a file do not fit together: what is read from them could
    be anything.
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
            yield from _find_odd_values(database, table)
    objects = "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
    for name, kind in connection.execute(objects):
        if name in tables and name not in database.tables:
            what = "a view" if kind == "view" else "a virtual table, or has a column called rowid"
            reason = f"{name} is {what}, which no profiler writes: it is not read"
            yield Gap(f"table:{name}", "unreadable", reason)
    for table, columns in always.items():
        if table not in database.tables:
            yield Gap(f"table:{table}", "not_available", f"the database has no table {table}")
        elif missing := sorted(set(columns) - database.tables[table]):
            reason = f"{table} has no column {', '.join(missing)}"
            yield Gap(f"table:{table}", "not_available", reason)


def _find_odd_values(database: Database, table: str) -> Iterator[Gap]:
    """Yield a gap for each column with values of another type than it declares."""
    rows = database.connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    for _, name, declared, *_ in rows:
        classes = next((kinds for part, kinds in _TYPES if part in str(declared).upper()), None)
        if declared and classes is None:
            continue
        kinds = ", ".join(f"'{kind}'" for kind in (*(classes or ("integer",)), "null"))
        column = quoted(name)
        query = (
            f"SELECT sum(typeof({column}) NOT IN ({kinds})), sum(typeof({column}) = 'integer'), "
            f"count(*) FROM {quoted(table)}"
        )
        odd, integers, count = database.connection.execute(query).fetchone()
        # without a declared type the others tell it; settings hold numbers and texts
        if not declared and (name == "value" or not integers):
            continue
        if odd:
            what = (
                f"are not of the type {declared}" if declared else "are no integers, as others are"
            )
            reason = f"{table}.{name}: {odd:,} of {count:,} values {what}"
            yield Gap(f"table:{table}", "unreadable", reason)
