"""Yields the rows of ``--query-gpu``, and surveys them all before the first one is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from perfctl.parsers.monitor_text import MonitorText
from perfctl.parsers.nvidia_smi_header import Layout, read_header
from perfctl.parsers.nvidia_smi_headless import is_row
from perfctl.parsers.timestamps import day_is_first, is_stamp

LINE_LIMIT = 4096
_CHECKED = 20_000
"""Rows without a header whose units are checked."""
_DATES_KEPT = 100_000


@dataclass(slots=True)
class Row:
    """One row and its position."""

    layout: Layout | None
    """None above the first header."""
    cells: list[str]
    date: str | None
    """The line of ``date`` above it."""
    round: int
    """How many headers and dates came before."""
    place: int
    """Position of the row in its round, from 0."""
    is_cut: bool = False
    """The file ends with this row, without a line end."""


def rows(text: MonitorText) -> Iterator[Row]:
    """All rows; lines of others are set aside in ``text``."""
    layout: Layout | None = None
    date: str | None = None
    number = place = width = 0
    row: Row | None = None
    for line in text:
        if row is not None:
            yield row
            row = None
        if len(line) > LINE_LIMIT:
            text.stray(line)
        elif header := read_header(line):
            layout, width, number, place = header, len(header.columns), number + 1, 0
        elif "," not in line and is_stamp(line):
            date, number, place = line.strip(), number + 1, 0
        else:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == width if width else is_row(line):
                row = Row(layout, cells, date, number, place)
                width = len(cells)
                place += 1
            elif line.strip():
                text.stray(line)
    if row is not None:
        row.is_cut = not text.ends_whole
        yield row


@dataclass(slots=True)
class Survey:
    """Facts about all rows of a file."""

    first: Layout | None = None
    """The first header."""
    count: int = 0
    headless: list[list[str]] = field(default_factory=list)
    """Cells of rows above any header."""
    is_numbered: bool = False
    """Some row has an index."""
    has_bus: bool = True
    """Every row has the uuid or bus id of its device."""
    by_date: bool = True
    """Every row is below a ``date`` line and has no timestamp."""
    dates: dict[str, None] = field(default_factory=dict)
    """Different timestamps in which month and day may be mistaken for each other."""

    def take(self, layout: Layout, cells: list[str], date: str | None) -> None:
        """Note what one row of this layout says."""
        self.is_numbered |= layout.index is not None
        self.has_bus &= layout.bus is not None and cells[layout.bus] != ""
        self.by_date &= layout.timestamp is None and date is not None
        self.note(date if layout.timestamp is None else cells[layout.timestamp])

    def note(self, stamp: str | None) -> None:
        """Keep a date that does not begin with the year."""
        if stamp and not {"-", "/"}.isdisjoint(stamp[1:3]) and len(self.dates) < _DATES_KEPT:
            self.dates[stamp] = None

    def finish(self, layout: Layout) -> None:
        """Rows above any header are of this layout: the first header's, or the one form without a header."""
        for cells in self.headless:
            if len(cells) == len(layout.columns):
                self.take(layout, cells, date="" if self.by_date else None)

    def day_first(self) -> bool | None:
        """Of dates such as "03-11-2026"; None when nothing decides."""
        return day_is_first(self.dates)


def survey(text: MonitorText) -> Survey:
    """One pass over the file."""
    found = Survey()
    for row in rows(text):
        found.count += 1
        if row.layout is not None:
            found.first = found.first or row.layout
            found.take(row.layout, row.cells, row.date)
            continue
        found.by_date &= row.date is not None
        found.note(row.date)
        if len(found.headless) < _CHECKED:
            found.headless.append(row.cells)
    return found
