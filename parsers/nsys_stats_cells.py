"""One table of ``nsys stats``, line by line: CSV, columns under a ruler, or a box of + - and |.

nsys up to 2022.4 writes CSV by hand: a cell with a comma is quoted but quotes in it are not doubled, and a newline in
a range's name is not quoted at all. So the last column, the name in every sum, is what is left after the others.
"""

from __future__ import annotations

import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise

from perfctl.parsers.nsys_stats_names import NAMES, TEXTS, Column, columns_of

_RULER = re.compile(r" ?-{2,}(?: +-{2,})+")
_BOX = re.compile(r"\+(?:-+\+){2,}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,\u00a0\u202f' ]*(?:[eE][+-]?[0-9]+)?%?")
_LONGEST_RULER = 20_000
_LONGEST_NAME = 100_000
_NAMES_WITH_NEWLINES = "nvtx"
Spans = tuple[tuple[int, int], ...]


def ruler_spans(text: str) -> Spans:
    """Columns (from, to) of a ruler of dashes; empty for any other line."""
    if "--" not in text or len(text) > _LONGEST_RULER or not _RULER.fullmatch(text):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", text))


def box_spans(text: str) -> Spans:
    """Columns between the plus signs of "+----+---+"; empty for any other line."""
    text = text.strip()
    if not text.startswith("+-") or len(text) > _LONGEST_RULER or not _BOX.fullmatch(text):
        return ()
    return tuple((left + 1, right) for left, right in pairwise(match.start() for match in re.finditer(r"\+", text)))


class _Table(ABC):
    """Base of the three forms: counts rows that do not fit, and handles a last row that may be cut off."""

    def __init__(self) -> None:
        self.broken = 0
        """Rows that do not fit the columns."""
        self.unended = 0
        """1 when the file ended at the last row without a line end."""
        self._figures: list[int] = []
        self._columns = 0
        self._may_go_on = False
        self._row: list[str] | None = None
        """The last row, which may continue in the next line."""

    def know(self, columns: list[Column], report: str) -> None:
        """Set the columns of the table; called once, before any row."""
        self._columns = len(columns)
        self._figures = [index for index, column in enumerate(columns) if column.label not in TEXTS]
        self._may_go_on = report.startswith(_NAMES_WITH_NEWLINES) and columns[-1].label in NAMES

    def take(self, line: str) -> Iterator[list[str]]:
        """Read one line of the table; return the row before it."""
        cells = self._split_row(line)
        if cells is not None:
            yield from self._flush()
            self._row = cells
            self.unended = int(not line.endswith("\n"))
        elif self._row is not None and self._may_go_on and len(self._row[-1]) < _LONGEST_NAME:
            self._row[-1] += "\n" + line.rstrip()
        else:
            self.broken += 1

    def end(self) -> Iterator[list[str]]:
        """End the table; return its last row unless that is cut off."""
        if self.unended and self._row is not None and not _is_whole(self._row[-1]):
            self._row = None
            self.broken += 1
        yield from self._flush()

    def _flush(self) -> Iterator[list[str]]:
        if self._row is not None:
            yield self._finish(self._row)
        self._row = None

    def _finish(self, row: list[str]) -> list[str]:
        return row

    @abstractmethod
    def _split_row(self, line: str) -> list[str] | None:
        """The cells of one line; None where the line is no row of this table."""

    def _is_row(self, cells: list[str]) -> bool:
        """Are the cells of the figure columns numbers, empty, None or cut off?"""
        return all(_is_figure(cells[index]) for index in self._figures)


def _is_whole(name: str) -> bool:
    """Is every bracket and quote of the name closed? (One that was clipped by nsys ends with the mark of that.)"""
    if name.endswith("…"):
        return True
    return (
        bool(name)
        and all(name.count(left) == name.count(right) for left, right in ("()", "[]"))
        and name.count('"') % 2 == 0
    )


def _is_figure(cell: str) -> bool:
    return (
        not cell or cell == "None" or cell.endswith("…") or _NUMBER.fullmatch(cell) is not None or cell.startswith("0x")
    )


class CsvTable(_Table):
    """Rows of comma separated values."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self._columns = columns
        self._name_is_last = False

    @staticmethod
    def header_cells(text: str) -> list[str]:
        """The cells of a header row; empty when the line is none."""
        try:
            cells = next(csv.reader([text]), [])
        except csv.Error:
            return []
        return cells if columns_of(cells) else []

    def know(self, columns: list[Column], report: str) -> None:
        """See the base class."""
        super().know(columns, report)
        self._name_is_last = not any(column.label in NAMES for column in columns[:-1]) and columns[-1].label in NAMES

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip("\r\n")
        if self._name_is_last and not text.startswith('"'):
            cells = text.split(",", self._columns - 1)
        else:
            try:
                cells = next(csv.reader([text]), [])
            except csv.Error:
                return None
        if len(cells) != self._columns:
            return None
        *others, name = cells
        cells = [*(cell.strip() for cell in others), name]
        return cells if self._is_row(cells) else None

    def _finish(self, row: list[str]) -> list[str]:
        name = row[-1].strip()
        if self._name_is_last and len(name) > 1 and name[0] == name[-1] == '"':
            name = name[1:-1]
            if '"' in name and '"' not in name.replace('""', ""):  # doubled as the csv module does
                name = name.replace('""', '"')
        return [*row[:-1], name]


class TsvTable(_Table):
    """Rows parted by tabs, nothing quoted."""

    @staticmethod
    def header_cells(text: str) -> list[str]:
        """The cells of a header row; empty when the line is none."""
        cells = text.lstrip("\ufeff").split("\t")
        return cells if columns_of(cells) else []

    def _split_row(self, line: str) -> list[str] | None:
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t", self._columns - 1)]
        return cells if len(cells) == self._columns and self._is_row(cells) else None


class ColumnTable(_Table):
    """Rows under a ruler; columns are two blanks apart (one in the oldest reports)."""

    def __init__(self, spans: Spans, header: str) -> None:
        super().__init__()
        self._spans = spans
        self._header = header
        self._padded = len(header) >= spans[-1][1]

    def header(self) -> list[str]:
        """The cells of the line above the ruler."""
        return self._slice(self._header)

    def _slice(self, text: str) -> list[str]:
        *others, (start, _) = self._spans
        return [*(text[left:right].strip() for left, right in others), text[start:].strip()]

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip("\r\n")
        if not line.endswith("\n") and self._padded and len(text) < self._spans[-1][1]:
            return None  # rows are filled up with blanks: this one is cut
        gaps = "".join(text[right:left] for (_, right), (left, _) in pairwise(self._spans))
        cells = self._slice(text)
        if not gaps.strip() and not text[: self._spans[0][0]].strip() and self._is_row(cells):
            return cells
        if len(self._figures) < len(self._spans) - 1:
            return None
        cells = text.split(None, len(self._spans) - 1)  # edited by hand, or wider than its columns
        return cells if len(cells) == len(self._spans) and self._is_row(cells) else None

    def _finish(self, row: list[str]) -> list[str]:
        return [*row[:-1], row[-1].strip()]


class BoxTable(_Table):
    """Rows between bars."""

    def __init__(self, spans: Spans, ruler: str) -> None:
        super().__init__()
        self._spans = spans
        self._ruler = ruler.strip()

    def split(self, text: str) -> list[str]:
        """The cells between the bars."""
        return [text[left:right].strip() for left, right in self._spans]

    def take(self, line: str) -> Iterator[list[str]]:
        """See the base class; the ruler lines of the box are no rows."""
        if line.strip() != self._ruler:
            yield from super().take(line)

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip()
        bars = [text[left - 1 : left] for left, _ in self._spans]
        if len(text) != self._spans[-1][1] + 1 or {*bars, text[-1:]} != {"|"}:
            return None
        cells = self.split(text)
        return cells if self._is_row(cells) else None
