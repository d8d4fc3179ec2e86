"""Integer columns of an SQLite table, read from the file's pages by numpy: in a third of the time
that SQLite takes to hand out a million rows. The layout is that of
https://www.sqlite.org/fileformat2.html (sections 1.6 and 2).

Only what is plain is read here. ``Unplain`` is raised for everything else (texts or reals in a
column, values on overflow pages, anything that does not add up): then SQLite reads the table, and
says what is wrong with it.
"""

from __future__ import annotations

import mmap
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Flags = npt.NDArray[np.bool_]

INTERIOR, LEAF = 5, 13
"""Kinds of pages of a table."""
FILE_HEADER = 100
"""Bytes before the first page's own header."""
SLICE_ROWS = 1 << 16
"""Rows read at a time: their arrays stay in the processor's cache, and their memory is used again.
With twice as many each array is allocated anew, which takes as long as the reading."""
SIZES = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0)
"""Serial type -> bytes of its value. 0 is NULL, 7 a real, 8 and 9 are the numbers 0 and 1, 12 on
are blobs and texts."""
LONGEST_TREE = 20
FIRST_LEAVES = 64
"""Leaf pages read first, to see how many rows they have."""


class Unplain(Exception):
    """This table is not plain enough to be read from its pages."""


class Column(NamedTuple):
    """Values of one column in some rows."""

    values: Integers
    """0 where the column is NULL."""
    known: Flags | None
    """Where it is not NULL; None where it is never NULL."""

    def or_else(self, instead: int) -> Integers:
        """The values, with this number in the place of NULL."""
        import numpy as np

        return self.values if self.known is None else np.where(self.known, self.values, instead)

    def check_known(self, table: str, rows: Flags) -> None:
        """Raises sqlite3.DatabaseError where one of these rows is NULL."""
        if self.known is not None and not self.known[rows].all():
            raise sqlite3.DatabaseError(f"table {table} holds values that are not numbers")

    def where_known(self) -> Flags:
        """The flags, also where it is never NULL."""
        import numpy as np

        return np.ones(len(self.values), bool) if self.known is None else self.known


def columns(path: Path, root: int, wanted: Sequence[int]) -> Iterator[list[Column]]:
    """Yield the ``wanted`` columns (positions in the table, ascending) of the table whose first
    page is ``root``, some rows at a time, in the order of rowid. Raises Unplain, also in the middle
    of it."""
    import numpy as np

    with path.open("rb") as file:
        # closed with the last array that lies on it
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file_pages = _Pages(np.frombuffer(mapped, np.uint8))
    leaves = file_pages.leaves(root)
    first, together = 0, FIRST_LEAVES
    while first < len(leaves):
        some = file_pages.read(leaves[first : first + together], wanted)
        yield some
        first += together
        # as many rows a page as in these
        together = max(1, SLICE_ROWS * together // max(1, len(some[0].values)))
        mapped.madvise(mmap.MADV_DONTNEED)  # or the whole file counts as this process's memory


class _Pages:
    def __init__(self, whole: Bytes) -> None:
        import numpy as np

        size = int(whole[16]) << 8 | int(whole[17])
        self._size = 65536 if size == 1 else size
        self._usable = self._size - int(whole[20])
        if self._size < 512 or len(whole) % self._size or self._usable < 480:
            raise Unplain
        self._whole = whole
        self._count = len(whole) // self._size
        # those that begin at each byte, of which numpy turns round a few faster than it reads them
        # the other way round
        self._two = np.ndarray((len(whole) - 1,), np.uint16, buffer=whole.data, strides=(1,))
        self._eight = np.ndarray((len(whole) - 7,), np.int64, buffer=whole.data, strides=(1,))
        self._sizes = np.array(SIZES, np.int64)
        self._shifts = 64 - 8 * np.maximum(self._sizes, 1)

    def _pair(self, at: Integers) -> Integers:
        """Two bytes as a number."""
        import numpy as np

        return _big_endian(self._two[at]).astype(np.int64)

    def _headers(self, pages: Integers) -> Integers:
        """Where the header of each page begins; pages count from 1."""
        import numpy as np

        if len(pages) and not (pages.min() >= 1 and pages.max() <= self._count):
            raise Unplain
        return (pages - 1) * self._size + np.where(pages == 1, FILE_HEADER, 0)

    def cells(self, pages: Integers) -> Integers:
        """How many cells each page has."""
        return self._pair(self._headers(pages) + 3)

    def leaves(self, root: int) -> Integers:
        """The leaf pages of a table, in the order of their rows."""
        import numpy as np

        pages = np.array([root], np.int64)
        for _ in range(LONGEST_TREE):
            headers = self._headers(pages)
            # read() looks at the others: here that would map the whole file
            if self._whole[headers[0]] == LEAF:
                return pages
            kinds = set(self._whole[headers].tolist())
            if kinds != {INTERIOR} or len(pages) > self._count:
                raise Unplain
            pages = np.concatenate(
                [
                    self._children(int(page), int(header))
                    for page, header in zip(pages, headers, strict=True)
                ]
            )
        raise Unplain

    def _children(self, page: int, header: int) -> Integers:
        import numpy as np

        count = int(self._whole[header + 3]) << 8 | int(self._whole[header + 4])
        if header + 12 + 2 * count > page * self._size:
            raise Unplain
        cells = (page - 1) * self._size + self._pair(
            np.arange(header + 12, header + 12 + 2 * count, 2)
        )
        at = np.append(cells, header + 8)
        if at.max() + 4 > page * self._size:
            raise Unplain
        return self._pair(at) << 16 | self._pair(at + 2)

    def read(self, pages: Integers, wanted: Sequence[int]) -> list[Column]:
        """The columns in all rows of these leaf pages."""
        import numpy as np

        headers, counts = self._headers(pages), self.cells(pages)
        if (self._whole[headers] != LEAF).any() or (
            headers + 8 + 2 * counts > pages * self._size
        ).any():
            raise Unplain
        before = np.cumsum(counts) - counts
        pointers = np.arange(counts.sum()) * 2 + np.repeat(headers + 8 - 2 * before, counts)
        begin, end = (
            np.repeat((pages - 1) * self._size, counts),
            np.repeat((pages - 1) * self._size + self._usable, counts),
        )
        at = begin + self._pair(pointers)
        if (at + 4 > end).any():
            raise Unplain
        size, at = self._number(at, end)
        at = self._skipped(at, end)
        local = at + self._local(size)
        if (local > end).any():
            raise Unplain
        return self._values(at, local, wanted)

    def _local(self, size: Integers) -> Integers:
        """How much of a record of this size is on the leaf page itself."""
        import numpy as np

        most, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        if not len(size) or size.max() <= most:
            return size
        kept = least + (size - least) % (self._usable - 4)
        return np.where(size <= most, size, np.where(kept <= most, kept, least))

    def _number(self, at: Integers, end: Integers) -> tuple[Integers, Integers]:
        """A varint of at most four bytes, and what lies behind it."""
        import numpy as np

        value = self._whole[at].astype(np.int64)
        at = at + 1
        long = np.flatnonzero(value >= 128)
        value[long] -= 128
        for _ in range(3):
            if not len(long):
                return value, at
            where = at[long]
            if (where >= end[long]).any():
                raise Unplain
            following = self._whole[where].astype(np.int64)
            value[long] = value[long] << 7 | (following & 127)
            at[long] += 1
            long = long[following >= 128]
        if len(long):
            raise Unplain
        return value, at

    def _skipped(self, at: Integers, end: Integers) -> Integers:
        """What lies behind a varint of up to nine bytes."""
        import numpy as np

        left = np.arange(len(at))
        for _ in range(9):
            here = at[left] if len(left) < len(at) else at
            if (here >= end[left]).any():
                raise Unplain
            more = self._whole[here] >= 128
            at[left] += 1
            left = left[more]
            if not len(left):
                break
        return at

    def _values(self, at: Integers, end: Integers, wanted: Sequence[int]) -> list[Column]:
        """``at``: where each record begins; ``end``: where its part on this page does."""
        import numpy as np

        if not len(at):
            empty = np.empty(0, np.int64)
            return [Column(empty, None)] * len(wanted)
        header, types_at = self._number(at, end)
        body = at + header
        if (body > end).any():
            raise Unplain
        found, last_type = [], at + header
        for position in range(wanted[-1] + 1):
            if (types_at >= last_type).any():  # a row from before the column was added
                raise Unplain
            kind = self._whole[types_at]
            types_at += 1
            one = int(kind[0])
            if one < 12 and (kind == one).all():
                if position in wanted:
                    found.append(self._same(body, one, end))
                body += SIZES[one]
                continue
            if kind.max() < 12:
                behind = body + self._sizes.take(kind)
                if position in wanted:
                    found.append(self._mixed(behind, kind, end))
                body = behind
                continue
            if position in wanted:
                raise Unplain
            types_at -= 1
            number, types_at = self._number(types_at, end)
            body += np.where(number >= 12, (number - 12) // 2, self._sizes[np.minimum(number, 11)])
        if (types_at > last_type).any() or (body > end).any():
            raise Unplain
        return found

    def _same(self, at: Integers, kind: int, end: Integers) -> Column:
        import numpy as np

        if kind in (0, 8, 9):
            known = np.zeros(len(at), bool) if kind == 0 else None
            return Column(np.full(len(at), int(kind == 9)), known)
        if kind > 6:
            raise Unplain
        size = SIZES[kind]
        return Column(self._integers(at + size, 64 - 8 * size, end), None)

    def _mixed(self, behind: Integers, kind: Bytes, end: Integers) -> Column:
        """``behind``: where each value ends."""

        if (kind == 7).any() or kind.max() > 9:
            raise Unplain
        values = self._integers(behind, self._shifts.take(kind), end)
        bare = (kind == 0) | (kind > 7)  # no bytes: what was read there is something else
        values[bare] = kind[bare] == 9
        return Column(values, kind != 0 if not kind.all() else None)

    def _integers(self, behind: Integers, shift: Integers | int, end: Integers) -> Integers:
        """Signed numbers of at most 8 bytes, the highest first; ``shift``: how many bits they have
        less than 64."""
        if (behind > end).any():
            raise Unplain
        raw = _big_endian(self._eight[behind - 8])
        raw <<= shift
        raw >>= shift
        return raw


def _big_endian(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers, in place, where their bytes were read as this machine's."""
    return values.byteswap(inplace=True) if sys.byteorder == "little" else values
