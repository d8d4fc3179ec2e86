"""What a table is to the page: columns, rows of cells, and how much was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfctl.orchestrator.report.numbers import Cell

ROWS_SHOWN = 200
"""Longer tables end here and say how many more there are."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, the unit under it, and how its cells stand."""

    label: str
    unit: str = ""
    look: str = "num"
    """num (right-aligned), text, or code (names from a report)."""
    note: str | None = None
    """Said on hover and focus of the head: a definition, or why the whole column is empty."""
    empty: bool = False
    """Every cell is a dash for one and the same reason, which the table says above itself."""
    base: str = ""
    """Unit of the full values where the cells carry their own ("ns" beside 41.2 µs); for the exported file."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that stands in the page as HTML."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    hidden: int = 0
    """Rows that exist and are not shown."""
    hidden_note: str = "in the store"
    tools: bool = field(default=True)
    """Offer filter and CSV."""
    notes: tuple[str, ...] = ()
    """Said once above the table: why whole columns are empty."""

    @property
    def total(self) -> int:
        """Rows shown and not shown."""
        return len(self.rows) + self.hidden


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    limit: int = ROWS_SHOWN,
    tools: bool = True,
) -> Table | None:
    """A table without its empty columns; None when there are no rows.

    A column in which every cell is a dash for the same reason says that reason once, above the table.
    """
    cells = [tuple(row) for row in rows]
    if not cells:
        return None
    shown = cells[:limit]
    heads = list(columns)
    empty: dict[str, list[str]] = {}
    for place, column in enumerate(columns):
        titles = {row[place].title for row in shown} if all(row[place].look == "no" for row in shown) else set()
        if len(titles) == 1:
            heads[place] = replace(column, empty=True)
            empty.setdefault(next(iter(titles)) or "not collected", []).append(column.label)
    notes = tuple(f"{', '.join(labels)}: {reason}." for reason, labels in empty.items())
    hidden = len(cells) - len(shown)
    return Table(tuple(heads), tuple(shown), caption, hidden, tools=tools and len(shown) > 8, notes=notes)


def without_empty(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> tuple[list[Column], list[list[Cell]]]:
    """Drop columns that hold nothing but dashes: for lists where a missing column is no question."""
    keep = [place for place in range(len(columns)) if any(row[place].look != "no" for row in rows)]
    return [columns[place] for place in keep], [[row[place] for place in keep] for row in rows]
