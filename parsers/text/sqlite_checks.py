"""What an SQLite database says twice, compared: damage that nothing in a single row shows.

A profiler writes a database once, from the first row to the last, and says of its columns what they
hold. So rows are missing where their numbers have holes, and a text in a column of integers was not
written by a profiler. In all real reports that were seen these rules hold (29 exports of nsys
2020.3 to 2026.1, DLProf 1.8, rocprofv3).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from perfctl.parsers.text.sqlite import Database, quoted
from perfctl.records.report import Gap

LARGEST = 16 << 20
"""Bytes of a database whose pages and values are all looked at, which takes some 3 s of processor
time for each 100 MB; of a larger one only the numbers of rows are."""
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
_STARTS = {"start", "BeginNs", "gpu_start", "api_start"}
"""A table with one of these columns is of events."""
_ANYTHING = {"value"}
"""Columns of settings, which hold numbers and texts."""
MOST_COMPARED = 200_000
"""Rows of a table that are compared with each other."""
_OF_VALUES = re.compile(
    r"(?:NULL|TEXT|NUMERIC) value in |CHECK constraint failed|non-unique entry|row \d+ missing "
    "from index"
)
"""Messages of ``quick_check`` about values, not about the structure of the file."""
_MOST_MESSAGES = 100


def check(
    database: Database,
    numbered: Collection[str],
    others: Collection[str] = (),
    always: Mapping[str, Collection[str]] | None = None,
    references: Collection[tuple[str, str, str]] = (),
    distinct: Collection[str] = (),
) -> Iterator[Gap]:
    """Yield a gap for each kind of damage in the tables that are read.

    ``numbered``: tables whose rows the profiler numbers from 1 on, without holes; ``others``:
    tables that need not be. ``always``: tables and columns that every such database has;
    ``references``: (table, column, other table) of columns with the id of a row of another table,
    where the database does not say so; ``distinct``: tables in which no two rows are the same but
    for their number, as no two events are. Raises sqlite3.Error where the pages of the file do not
    fit together: what is read from them could be anything.
    """
    is_small = database.size() <= LARGEST
    if is_small:
        _check_pages(database.connection)
    for table in dict.fromkeys((*numbered, *others)):
        if table in database.tables:
            yield from _of_rows(database, table, is_numbered=table in numbered)
            if is_small:
                yield from _of_values(database, table)
                yield from _twice(database, table, is_distinct=table in distinct)
    yield from _unreadable(database, {*numbered, *others})
    for table, columns in (always or {}).items():
        if table not in database.tables:
            yield Gap(f"table:{table}", "not_available", f"the database has no table {table}")
        elif missing := sorted(set(columns) - database.tables[table]):
            yield Gap(
                f"table:{table}", "not_available", f"{table} has no column {', '.join(missing)}"
            )
    if is_small:
        yield from _dangling(database, {*numbered, *others})
        for reference in references:
            yield from _lost(database, *reference)


def _check_pages(connection: sqlite3.Connection) -> None:
    # they are expressions of somebody else's
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for (text,) in connection.execute(f"PRAGMA quick_check({_MOST_MESSAGES})"):
        if text != "ok" and not _OF_VALUES.search(str(text)):
            raise sqlite3.DatabaseError(str(text))


def _of_rows(database: Database, table: str, *, is_numbered: bool) -> Iterator[Gap]:
    """Rows that are missing by their numbers."""
    first, last = database.ends(table)
    count = database.count(table)
    lost = []
    if is_numbered and count and (first != 1 or last - first + 1 != count):
        at = _holes(database, table, int(first)) if last - first < 10 * count + 1000 else ""
        lost.append(
            f"{count:,} rows are there, and their numbers go from {first:,} to {last:,}{at}"
        )
    if "sqlite_sequence" in database.tables:
        row = database.connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)
        ).fetchone()
        if row and isinstance(row[0], int) and row[0] > (last or 0):
            lost.append(
                f"rows up to number {row[0]:,} were written, and the last one there is "
                f"{last or 0:,}"
            )
    if lost:
        yield Gap(
            f"table:{table}",
            "unreadable",
            f"rows of {table} are missing, or have other numbers: {'; '.join(lost)}",
        )


def _holes(database: Database, table: str, first: int) -> str:
    """The first few numbers that are missing, in words."""
    query = (
        "SELECT before + 1, rowid - 1 FROM (SELECT rowid, lag(rowid, 1, 0) OVER (ORDER BY rowid) "
        f"AS before FROM {quoted(table)}) WHERE rowid <> before + 1 LIMIT 4"
    )
    found = [
        f"{low:,}" if low == high else f"{low:,} to {high:,}"
        for low, high in database.connection.execute(query)
    ]
    shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
    return f": missing are {shown}" if found and first > 0 else ""


def _of_values(database: Database, table: str) -> Iterator[Gap]:
    """Values of another type than the column's, and NULL where the table does not allow it."""
    rows = database.connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    sums, whys = [], []
    for _, name, kind, is_needed, *_ in rows:
        classes = next((classes for part, classes in _TYPES if part in str(kind).upper()), None)
        column = quoted(name)
        if classes:
            shown = ", ".join(f"'{one}'" for one in (*classes, "null"))
            sums.append(f"sum(typeof({column}) NOT IN ({shown}))")
            whys.append((name, f"are not of the type {kind}"))
        if not kind and name not in _ANYTHING:
            others = f"sum(typeof({column}) NOT IN ('integer', 'null'))"
            sums.append(f"min({others}, sum(typeof({column}) = 'integer'))")
            whys.append((name, "are no integers, or are, where others are not"))
        if is_needed:
            sums.append(f"sum(typeof({column}) = 'null')")  # SQLite takes "IS NULL" for false here
            whys.append((name, "are NULL, which the table does not allow"))
    for first in range(0, len(sums), 500):  # a statement has at most 2,000 columns
        some = sums[first : first + 500]
        found = database.connection.execute(
            f"SELECT count(*), {', '.join(some)} FROM {quoted(table)} NOT INDEXED"
        ).fetchone()
        for wrong, (name, why) in zip(found[1:], whys[first : first + 500], strict=True):
            if wrong:
                yield Gap(
                    f"table:{table}",
                    "unreadable",
                    f"{table}.{name}: {wrong:,} of {found[0]:,} values {why}",
                )


def _twice(database: Database, table: str, *, is_distinct: bool) -> Iterator[Gap]:
    """Rows of events that are there twice: no two events of a real report are the same in
    all columns."""
    rows = database.connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
    names = [name for _, name, *_, key in rows if not key]
    if (
        not (is_distinct or _STARTS.intersection(names))
        or (count := database.count(table)) > MOST_COMPARED
    ):
        return
    listed = ", ".join(map(quoted, names))
    query = f"SELECT count(*) FROM (SELECT DISTINCT {listed} FROM {quoted(table)})"
    if twice := count - database.connection.execute(query).fetchone()[0]:
        yield Gap(
            f"table:{table}",
            "ambiguous",
            f"{table}: {twice:,} of {count:,} rows repeat another one, and are counted again",
        )


def _unreadable(database: Database, wanted: Collection[str]) -> Iterator[Gap]:
    """What has the name of a table that is read, and is none."""
    for name, kind in database.connection.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"
    ):
        if name in wanted and name not in database.tables:
            what = "a view" if kind == "view" else "a virtual table, or has a column called rowid"
            yield Gap(
                f"table:{name}",
                "unreadable",
                f"{name} is {what}, which no profiler writes: it is not read",
            )


def _dangling(database: Database, wanted: Collection[str]) -> Iterator[Gap]:
    """Rows that name a row of another table which is not there, where the database states
    such references."""
    for table in sorted(wanted):
        if table not in database.tables:
            continue
        try:
            rows: list[tuple[Any, ...]] = database.connection.execute(
                f"SELECT parent, count(*) FROM pragma_foreign_key_check({_text(table)}) GROUP BY 1 "
                "ORDER BY 1"
            ).fetchall()
        except sqlite3.OperationalError:
            # "foreign key mismatch": some exports refer to columns that are no keys
            continue
        for parent, count in rows:
            yield Gap(
                f"table:{table}",
                "unreadable",
                f"{table}: {count:,} references to rows of {parent} that are not there",
            )


def _lost(database: Database, table: str, column: str, parent: str) -> Iterator[Gap]:
    """Rows of a table that name a row of another one which is not there."""
    if database.has(table, column) and database.has(parent, "id"):
        name = quoted(column)
        known = f"SELECT id FROM {quoted(parent)} WHERE id IS NOT NULL"
        query = (
            f"SELECT count(*) FROM {quoted(table)} WHERE {name} IS NOT NULL AND {name} NOT IN "
            f"({known})"
        )
        if lost := database.connection.execute(query).fetchone()[0]:
            yield Gap(
                f"table:{table}",
                "unreadable",
                f"{table}.{column}: {lost:,} values name a row of {parent} that is not there",
            )


def _text(value: str) -> str:
    doubled = value.replace("'", "''")
    return f"'{doubled}'"
