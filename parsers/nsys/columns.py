"""Integer columns of a table in an nsys export as numpy arrays, read from the pages of the file.
Their layout is that of https://www.sqlite.org/fileformat2.html (sections 1.6 and 2).

Reading pages buys speed: a million kernels and their million calls become arrays in 0.3 s of
processor time, and in 1.9 s when SQLite hands them out row by row (of 2 s for the whole ingest).

Only plain tables are read from their pages: integers and NULL, in rows that lie on one page each.
SQLite reads all others, and says what is wrong with them.
"""

from __future__ import annotations

import mmap
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from perfctl.parsers.common.sqlite import Database, quoted

if TYPE_CHECKING:
    import numpy.typing as npt

    from perfctl.parsers.attribution import Integers

    Bytes = npt.NDArray[np.uint8]

NULL = -(2**63)
"""Stands for NULL, for a value that is no integer, and for a column that this version lacks."""
SLICE_ROWS = 1 << 16
"""Rows read at a time, about: their arrays stay in the processor's cache."""
ROWS_TOGETHER = 4096
"""Rows fetched from SQLite at a time (with 65,536 it takes a fifth longer)."""

_INTERIOR, _LEAF = 5, 13
"""Kinds of pages of a table."""
_SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
"""Serial type -> bytes of its value. 0 is NULL, 7 a real, 8 and 9 are the numbers 0 and 1, 12 on
are blobs and texts."""
_DEEPEST = 20
"""Levels of a tree of pages."""
_FIRST_LEAVES = 64
"""Leaf pages read first, to see how many rows they have."""


class Unplain(Exception):
    """This table is not plain enough to be read from its pages."""


def read_whole(database: Database, table: str, *names: str) -> list[Integers]:
    """Return these columns of the table, one array each; empty ones without the table."""
    pieces = list(read_pieces(database, table, *names))
    return join_pieces(pieces) if pieces else [np.empty(0, np.int64) for _ in names]


def join_pieces(pieces: list[list[Any]]) -> list[Any]:
    """Return the columns of which these are pieces. They are taken out of the list, and each column
    is joined by itself: both copies of all columns would take twice the memory."""
    columns = deque(zip(*pieces, strict=True))
    pieces.clear()
    return [np.concatenate(columns.popleft()) for _ in range(len(columns))]


def read_pieces(database: Database, table: str, *names: str) -> Iterator[list[Integers]]:
    """Yield the columns some rows at a time, in the order of the table; nothing without it."""
    if table not in database.tables:
        return
    done = 0
    try:
        for columns in read_pages(database, table, names):
            done += len(columns[0])
            yield columns
    except (Unplain, IndexError):  # or a damaged page leads out of the file
        yield from _fetch(database, table, names, done)


def check_known(table: str, values: Integers) -> None:
    """Raise sqlite3.DatabaseError for a value that is not known: the file is damaged, and SQLite
    did not notice."""
    if (values == NULL).any():
        raise sqlite3.DatabaseError(f"table {table} contains values that are not numbers")


def _fetch(
    database: Database, table: str, names: Sequence[str], skipped: int
) -> Iterator[list[Integers]]:
    shown = ", ".join(database.column(table, name) for name in names)
    query = f"SELECT {shown} FROM {table} NOT INDEXED ORDER BY rowid LIMIT -1 OFFSET {skipped}"
    cursor = database.connection.execute(query)
    while rows := cursor.fetchmany(ROWS_TOGETHER):
        values = [value if type(value) is int else NULL for value in chain.from_iterable(rows)]
        yield list(np.array(values, np.int64).reshape(-1, len(names)).T)


def read_pages(database: Database, table: str, names: Sequence[str]) -> Iterator[list[Integers]]:
    """Yield the columns some pages at a time. Raises Unplain and IndexError, also in the
    middle."""
    info = database.connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    order = [name for _, name, *_ in info]
    positions = [order.index(name) if name in order else -1 for name in names]
    # computed columns and the rowid are not in the records
    if database.path is None or any(hidden or key for *_, key, hidden in info):
        raise Unplain
    query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
    (root,) = database.connection.execute(query, (table,)).fetchone()
    with database.path.open("rb") as file:
        # closed with the last array that lies on it
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pages = _Pages(mapped)
    leaves = pages.find_leaves(root)
    first, together = 0, _FIRST_LEAVES
    while first < len(leaves):
        columns = pages.read_leaves(leaves[first : first + together], positions)
        if len(columns[0]):
            yield columns
        first += together
        # as many rows a page as in these
        together = max(1, SLICE_ROWS * together // max(1, len(columns[0])))
        mapped.madvise(mmap.MADV_DONTNEED)  # or the whole file counts as this process's memory


class _Pages:
    def __init__(self, mapped: mmap.mmap) -> None:
        self._bytes = np.frombuffer(mapped, np.uint8)
        size = int.from_bytes(mapped[16:18], "big")
        self._size = 65536 if size == 1 else size
        _check(self._size >= 512 and len(mapped) % self._size == 0 and mapped[20] == 0)
        # two, four and eight bytes that begin at each byte
        self._two, self._four, self._eight = (
            np.ndarray((len(mapped) - width + 1,), f">u{width}", mapped, strides=(1,))
            for width in (2, 4, 8)
        )

    def _find_headers(self, pages: Integers) -> Integers:
        """Return where each page begins, with its header; page 1 is of no table of nsys."""
        _check(pages.min() > 1 and pages.max() * self._size <= len(self._bytes))
        return (pages - 1) * self._size

    def find_leaves(self, root: int) -> Integers:
        """Return the leaf pages of a table, in the order of their rows."""
        pages = np.array([root], np.int64)
        for _ in range(_DEEPEST):
            headers = self._find_headers(pages)
            # read_leaves looks at the others: here that would map the whole file
            if self._bytes[headers[0]] == _LEAF:
                return pages
            _check((self._bytes[headers] == _INTERIOR).all() and len(pages) < 1 << 24)
            children = []
            for header in headers.tolist():
                count = int(self._two[header + 3])
                _check(count <= self._size // 2)
                cells = self._two[header + 12 : header + 12 + 2 * count : 2].astype(np.int64)
                at = header + np.append(cells, 8)
                _check(at.max() + 4 <= header + self._size)
                children.append(self._four[at].astype(np.int64))
            pages = np.concatenate(children)
        raise Unplain

    def read_leaves(self, pages: Integers, wanted: Sequence[int]) -> list[Integers]:
        """Return the columns at these positions in all rows of the leaf pages; -1 is a missing
        one."""
        headers = self._find_headers(pages)
        counts = self._two[headers + 3].astype(np.int64)
        _check((self._bytes[headers] == _LEAF).all())
        _check((headers + 8 + 2 * counts <= pages * self._size).all())
        before = np.cumsum(counts) - counts
        pointers = np.arange(counts.sum()) * 2 + np.repeat(headers + 8 - 2 * before, counts)
        start = np.repeat(headers, counts)
        at = start + self._two[pointers]
        # the payload's size is one byte or two, as it lies on this page
        size, following = self._bytes[at].astype(np.int64), self._bytes[at + 1]
        is_long = size >= 128
        _check(not (is_long & (following >= 128)).any())
        size[is_long] = (size[is_long] - 128 << 7) + following[is_long]
        _check(size.max(initial=0) <= self._size - 35)
        at = self._skip_rowid(at + 1 + is_long)
        _check((at + size <= start + self._size).all())
        return self._read_records(at, size, wanted)

    def _skip_rowid(self, at: Integers) -> Integers:
        """Return what lies behind a number of up to nine bytes, each but the last with its high
        bit."""
        for _ in range(8):
            goes_on = self._bytes[at] >= 128
            if not goes_on.any():
                break
            at = at + goes_on
        return at + 1

    def _read_records(self, at: Integers, size: Integers, wanted: Sequence[int]) -> list[Integers]:
        """Return the ``wanted`` columns. ``at``: where each record begins, with its header: its
        length, and the types of the columns. Texts are stepped over."""
        header = self._bytes[at].astype(np.int64)
        types, first, end = at + 1, at + header, at + size
        body = first
        sizes = np.array([*_SIZES, *(length // 2 for length in range(116))], np.int64)
        found: dict[int, Integers] = {-1: np.broadcast_to(np.int64(NULL), len(at))}
        for position in range(max(wanted) + 1):
            kinds, types = self._bytes[types], types + 1
            is_long = kinds >= 128
            if is_long.any():  # a longer text
                following = self._bytes[types]
                _check(position not in wanted and not (is_long & (following >= 128)).any())
                number = (kinds.astype(np.int64) - 128 << 7) + following
                width = np.where(is_long, (number - 12) // 2, sizes[kinds & 127])
                types = types + is_long
            else:
                is_same = len(kinds) > 0 and (kinds == kinds[0]).all()
                width = sizes[kinds[0]] if is_same else sizes[kinds]
            body = body + width
            if position in wanted:
                _check(kinds.max(initial=0) < 10 and not (kinds == 7).any())
                found[position] = self._read_integers(body, width, kinds)
        # a shorter header is a row from before a column was added
        _check(header.max(initial=0) < 128 and (types <= first).all())
        _check((first <= end).all() and (body <= end).all())
        return [found[position] for position in wanted]

    def _read_integers(self, behind: Integers, width: Integers, kinds: Bytes) -> Integers:
        """Return signed numbers of ``width`` bytes, the highest first, that end at ``behind``."""
        values = self._eight[behind - 8].astype(np.int64)
        shift = 64 - 8 * np.maximum(width, 1)
        values <<= shift
        values >>= shift
        bare = kinds >= 8  # no bytes: what was read there is something else
        values = np.where(bare, kinds == 9, values) if bare.any() else values
        is_null = kinds == 0
        return np.where(is_null, NULL, values) if is_null.any() else values


def _check(is_plain: np.bool_ | bool) -> None:
    if not is_plain:
        raise Unplain
