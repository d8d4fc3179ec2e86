"""SQLite databases that a profiler wrote: opened read-only without a trace, read by names of tables
and columns. Versions of a profiler differ in tables and columns: nothing here goes by position, and
what a version does not have reads as NULL."""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from perfctl.parsers.text import sqlite_pages
from perfctl.records.errors import ReportError
from perfctl.records.sqlite_header import HEADER_BYTES, stated_bytes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

_COLUMNS = (
    "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c"
    " WHERE t.type = 'table' AND t.sql NOT LIKE 'CREATE VIRTUAL%'"
)
"""Without virtual tables: they run code, and no profiler writes one."""
_LONGEST = 256 << 20
"""Bytes of one value; the largest that profilers write, nsys's own messages, have a
few thousand."""
SEPARATOR = 0x1F
"""Stands between texts that SQLite joins: the control character "unit separator"."""
MOST_SLICES = 10_000
SLICE_ROWS = 1 << 18
"""Rows joined into one text at a time: keeps memory low and stays far below SQLite's limit of
1e9 bytes."""


class Database:
    """A read-only connection and the tables and columns it has."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        """``path``: the file, where it may also be read page by page."""
        # real exports hold strings that are not UTF-8 (nsys 2021.3, a property of the host)
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        self.connection = connection
        self._path = path
        columns = defaultdict[str, set[str]](set)
        for table, column in connection.execute(_COLUMNS):
            columns[table].add(column)
        # a column called rowid hides the number of a row, by which tables are read
        self.tables = {
            table: frozenset(names)
            for table, names in columns.items()
            if "rowid" not in map(str.lower, names)
        }

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is such a table, with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def filled(self, table: str) -> bool:
        """Return whether the table exists and has rows (``--lazy=false`` exports empty
        tables too)."""
        return table in self.tables and self.holds(table)

    def holds(self, table: str, *columns: str) -> bool:
        """Return whether the table, of any name, has a row, or one of the columns a value."""
        where = (
            f" WHERE {' OR '.join(f'{quoted(column)} IS NOT NULL' for column in columns)}"
            if columns
            else ""
        )
        return (
            self.connection.execute(f"SELECT 1 FROM {quoted(table)}{where} LIMIT 1").fetchone()
            is not None
        )

    def size(self) -> int:
        """Bytes of the database by the number of its pages."""
        pages, page = (
            self.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "page_size")
        )
        return int(pages * page)

    def count(self, table: str) -> int:
        """How many rows the table, of any name, has."""
        return int(self.connection.execute(f"SELECT count(*) FROM {quoted(table)}").fetchone()[0])

    def deleted(self) -> str | None:
        """What to say where rows were deleted: SQLite keeps their pages, and profilers write a
        file once."""
        (pages,) = self.connection.execute("PRAGMA freelist_count").fetchone()
        return (
            f"rows were deleted from the file: {pages:,} of its pages are empty" if pages else None
        )

    def column(self, table: str, name: str, default: str = "NULL") -> str:
        """The column for use in SQL, or ``default`` where this version does not have it."""
        return name if self.has(table, name) else default

    def integers_of(self, table: str, name: str) -> str:
        """The same, with NULL for what is no integer."""
        return integer(name) if self.has(table, name) else "NULL"

    def rows(self, table: str, *columns: str) -> list[tuple[object, ...]]:
        """All rows of a small table in its order, None in the place of a missing column; [] without
        the table."""
        if table not in self.tables:
            return []
        wanted = ", ".join(self.column(table, name) for name in columns)
        return self.connection.execute(f"SELECT {wanted} FROM {table}").fetchall()

    def pairs(self, table: str) -> dict[str, str]:
        """A (name, value) table as a dict; empty without the table."""
        return {str(name): str(value) for name, value in self.rows(table, "name", "value")}

    def integers(
        self, table: str, *expressions: str, where: str = "1", few: Collection[str] = ()
    ) -> list[Integers]:
        """One int64 array an expression (SQL, never NULL), in the order of the table; empty without
        the table. ``few`` names expressions that give the same few large numbers again and again
        (threads, processes)."""
        import numpy as np

        columns: list[Integers] = [np.empty(0, np.int64) for _ in expressions]
        for pieces in self.pieces(table, *expressions, where=where, few=few):
            for column, values in zip(columns, pieces, strict=True):
                # in place: the system remaps pages and copies nothing
                column.resize(len(column) + len(values), refcheck=False)
                column[len(column) - len(values) :] = values
        return columns

    def pieces(
        self, table: str, *expressions: str, where: str = "1", few: Collection[str] = ()
    ) -> Iterator[list[Integers]]:
        """The same as ``integers``, at most SLICE_ROWS rows at a time. Joined inside SQLite and
        split by numpy: twice as fast as fetching tuples. What stands in ``few`` is only counted
        while it is the same in all rows, and else written as its difference to the first row, bit
        by bit, which is short."""
        if table not in self.tables:
            return
        bases = [
            self._first(table, expression, where) if expression in few else 0
            for expression in expressions
        ]
        pairs = list(zip(expressions, bases, strict=True))
        joined = [f"group_concat({_differing(*pair)})" for pair in pairs]
        others = {
            i: f"sum(CAST({one} AS INTEGER) <> {base})"
            for i, (one, base) in enumerate(pairs)
            if one in few
        }
        rows = f"FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? AND {where}"

        def read(ends: tuple[int, int]) -> tuple[Any, ...]:
            shown = ", ".join(others.get(number, text) for number, text in enumerate(joined))
            row: tuple[Any, ...] = self.connection.execute(
                f"SELECT count(*), {shown} {rows}", ends
            ).fetchone()
            if not any(row[1 + number] for number in others):
                return row
            others.clear()
            return read(ends)

        for row in _ahead(map(read, self._slices(table))):
            columns = [_split(value or "", zeros=row[0] if value == 0 else 0) for value in row[1:]]
            if any(len(values) != row[0] for values in columns):
                raise sqlite3.DatabaseError(f"table {table} holds values that are not numbers")
            yield [
                values ^ base if base else values
                for values, base in zip(columns, bases, strict=True)
            ]

    def numbers(
        self, table: str, *names: str, few: Collection[str] = (), also: Sequence[str] = ()
    ) -> Iterator[list[sqlite_pages.Column]]:
        """Columns of integers, some rows at a time, in the order of the table; nothing without the
        table. What this version does not have is NULL throughout. ``few``: as in ``integers``.
        ``also``: other columns of the table, which come behind the first, and only as long as they
        cost little: as the file's pages hold nothing but integers."""
        import numpy as np

        there = [name for name in names if self.has(table, name)]
        for some in self._numbers(table, there, few, also):
            rows = len(some[0].values) if some else 0
            if rows == 0:
                continue
            found = dict(zip(there, some))  # noqa: B905, those of ``also`` may follow
            missing = sqlite_pages.Column(np.zeros(rows, np.int64), np.zeros(rows, bool))
            yield [*(found.get(name, missing) for name in names), *some[len(there) :]]

    def _numbers(
        self, table: str, names: Sequence[str], few: Collection[str], also: Sequence[str]
    ) -> Iterator[list[sqlite_pages.Column]]:
        """From the file's pages; from SQLite, without ``also``, where these are not plain."""
        done = 0
        if not names:
            return
        try:
            if self._path is not None and (place := self._place(table, [*names, *also])):
                root, positions = place
                places = sorted(positions)
                order = [places.index(position) for position in positions]
                for some in sqlite_pages.columns(self._path, root, places):
                    done += len(some[0].values)
                    yield [some[number] for number in order]
                return
        except sqlite_pages.Unplain:
            pass
        # what is none counts as NULL
        is_number = {name: f"typeof({name}) = 'integer'" for name in names}
        given = {name: f"CASE WHEN {is_number[name]} THEN {name} ELSE 0 END" for name in names}
        often = {given[name] for name in few if name in names}
        for pieces in self.pieces(table, *given.values(), *is_number.values(), few=often):
            skipped = min(done, len(pieces[0]))
            done -= skipped
            values, known = pieces[: len(names)], pieces[len(names) :]
            yield [
                sqlite_pages.Column(
                    value[skipped:], None if is_known.all() else is_known[skipped:] != 0
                )
                for value, is_known in zip(values, known, strict=True)
            ]

    def _place(self, table: str, names: Sequence[str]) -> tuple[int, list[int]] | None:
        """The table's first page, and where its records hold these columns; None where SQL has to
        find out."""
        rows = self.connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
        if any(
            hidden or (key and kind.upper() == "INTEGER") for _, _, kind, _, _, key, hidden in rows
        ):
            return None  # computed, or another name of the rowid
        order = [row[1] for row in rows]
        found = self.connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        return int(found[0]), [order.index(name) for name in names]

    def _first(self, table: str, expression: str, where: str) -> int:
        query = (
            f"SELECT CAST({expression} AS INTEGER) FROM {table} NOT INDEXED WHERE {where} ORDER BY "
            "rowid LIMIT 1"
        )
        row = self.connection.execute(query).fetchone()
        return int(row[0] or 0) if row else 0

    def texts(self, table: str, expression: str, where: str = "1") -> Iterator[str]:
        """One text a row (SQL, never NULL), in the order of the table; nothing without the table.
        Joined inside SQLite and split by Python, for the same reason as in ``integers``."""
        for first, last in self._slices(table):
            rows = f"FROM {table} NOT INDEXED WHERE rowid BETWEEN ? AND ? AND {where}"
            joined = f"SELECT count(*), group_concat({expression}, char({SEPARATOR})) {rows}"
            try:
                count, text = self.connection.execute(joined, (first, last)).fetchone()
            except sqlite3.DataError:  # more than SQLite's limit of 1e9 bytes
                count, text = -1, ""
            parts = text.split(chr(SEPARATOR)) if count else []
            if len(parts) == count:
                yield from parts
            else:  # a text holds the separator itself
                single = self.connection.execute(f"SELECT {expression} {rows}", (first, last))
                yield from (value for (value,) in single)

    def ends(self, table: str) -> tuple[Any, Any]:
        """The first and last rowid; None without rows. Two queries: for min and max in one SQLite
        would scan every row."""
        query = f"SELECT {{}}(rowid) FROM {quoted(table)}"
        first, last = (
            self.connection.execute(query.format(end)).fetchone()[0] for end in ("min", "max")
        )
        return first, last

    def _slices(self, table: str) -> Iterator[tuple[int, int]]:
        """(first, last) rowid of slices of at most SLICE_ROWS rows."""
        if table not in self.tables:
            return
        first, last = self.ends(table)
        if first is None:
            return
        if last - first < SLICE_ROWS * MOST_SLICES:
            yield from (
                (start, start + SLICE_ROWS - 1) for start in range(first, last + 1, SLICE_ROWS)
            )
            return
        after = (
            f"SELECT rowid FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT 1 OFFSET "
            f"{SLICE_ROWS}"
        )
        while first is not None:  # row ids are far apart
            following = self.connection.execute(after, (first,)).fetchone()
            yield first, following[0] - 1 if following else last
            first = following[0] if following else None


@contextmanager
def opened(path: Path, tool: str, remedy: str) -> Iterator[Database]:
    """Open the database at ``path`` read-only, leaving nothing beside it. Raises ReportError, with
    ``tool`` and ``remedy``, for every SQLite error inside the block."""
    try:
        with closing(connect(path)) as connection:
            yield Database(connection, path)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        # a message about a damaged schema need not be UTF-8
        reason = f"the database is damaged or cut off ({' '.join(str(error).split())[:200]})"
        raise ReportError(path, tool, reason, remedy) from error


def connect(path: Path) -> sqlite3.Connection:
    """Read-only; ``immutable`` keeps SQLite from making -shm, -wal or -journal files. The file's
    schema may call only harmless functions, none of its views is read, and no value can fill
    the memory."""
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    connection = sqlite3.connect(address, uri=True, check_same_thread=False)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(_no_view)
    return connection


def _no_view(
    action: int, one: str | None, other: str | None, schema: str | None, within: str | None
) -> int:
    """Nothing is read through a view or a trigger, which is a program and may have no end."""
    return sqlite3.SQLITE_OK if within is None else sqlite3.SQLITE_DENY


def check_whole(path: Path, tool: str, remedy: str) -> None:
    """Raise ReportError for a file that is shorter than its header says, or that a program still
    writes. SQLite itself notices a missing end only when it happens to read there."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    size, whole = path.stat().st_size, stated_bytes(head)
    if len(head) < HEADER_BYTES or size < whole:
        reason = (
            f"the database is cut off: only {size:,} of {max(whole, HEADER_BYTES):,} bytes are "
            "there"
        )
        raise ReportError(path, tool, reason, remedy)
    for ending in ("-wal", "-journal"):
        log = path.with_name(path.name + ending)
        if log.is_file():
            with log.open("rb") as file:
                first = file.read(1)
            if first not in (b"", b"\0"):
                reason = f"the database was not closed: {log.name} beside it holds changes"
                raise ReportError(
                    path, tool, reason, f"Wait until the program that writes it has ended. {remedy}"
                )


def integer(column: str) -> str:
    """SQL of a column's integers; NULL for values of other types."""
    return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END"


def quoted(name: str) -> str:
    """A name for use in SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _ahead(rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield the same rows; a thread fetches the next row while one is processed."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, rows, None)
        while (row := following.result()) is not None:
            following = pool.submit(next, rows, None)
            yield row


def _differing(expression: str, base: int) -> str:
    """SQL of the bits in which an integer differs from ``base`` (SQLite has no operator for that;
    this never overflows)."""
    value = f"CAST({expression} AS INTEGER)"
    return f"(({value} | {base}) - ({value} & {base}))" if base else value


def _split(text: str, zeros: int) -> Integers:
    """The numbers of a text; ``zeros`` asks for so many zeros instead."""
    import numpy as np

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return (
                np.zeros(zeros, np.int64) if zeros else np.fromstring(text, dtype=np.int64, sep=",")
            )
        except (ValueError, DeprecationWarning) as error:
            raise sqlite3.DatabaseError(f"values that are not numbers ({error})") from error
