"""Tables of the page: columns, rows of cells, and how much was left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import isfinite
from typing import Any

from perfctl.orchestrator.report.cells import (
    Cell,
    count,
    in_one_unit,
    name_cell,
    nothing,
    size_cell,
    text_cell,
    time_cell,
    word,
)
from perfctl.orchestrator.report.numbers import column_unit, si

ROWS_SHOWN = 200
"""Longer tables are cut to this, with the number of the other rows."""
REASONS = 2
"""Reasons that are given for a column without values."""
STATIC_ROWS = 20
"""Rows that stand in the page for readers without JavaScript, and in print."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, the unit under it, and the style of its cells."""

    label: str
    unit: str = ""
    style: str = "num"
    """num (right-aligned), text, or code (names from a report)."""
    note: str | None = None
    """Shown on hover and focus of the head: a definition, or why the whole column is empty."""
    base: str = ""
    """Unit of the full values where the cells carry their own ("ns" beside 41.2 µs); for the exported file."""
    carried: bool = False
    """The cells show ``unit`` behind their prefixes, so that the head need not."""
    order: str = ""
    """"ascending" or "descending": the rows are made in the order of this column. :func:`table` drops it where they are not."""


RUN = Column("run", style="text")
LongColumn = tuple[tuple[str, str, str], Sequence[Any]]
"""((label, unit, kind), values)."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that stands in the page as HTML."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    hidden: int = 0
    tools: bool = True
    """Offer filter and CSV."""
    notes: tuple[str, ...] = ()
    """Above the table: why columns are left out."""
    marks: tuple[tuple[str, str], ...] = ()
    """(layer, direction) of each row, to light up with; empty where rows are of no layer."""

    @property
    def total(self) -> int:
        """Rows shown and not shown."""
        return len(self.rows) + self.hidden


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Any]],
    *,
    limit: int = ROWS_SHOWN,
    tools: bool = True,
    whole: bool = False,
) -> Table | None:
    """A table; None when there are no rows. A value is a cell, or becomes one of the kind of its column.

    A column in which every cell is a dash is left out, with its reasons above the table.
    """
    cells = one_unit_each([tuple(map(_cell, columns, row)) for row in rows])
    if not cells:
        return None
    kept = list(range(len(columns))) if whole else with_values(cells)
    by_column = {place: [row[place] for row in cells] for place in kept}
    heads = in_order([(with_carried(columns[place], found), found) for place, found in by_column.items()])
    shown = tuple(tuple(row[place] for place in kept) for row in cells[:limit])
    notes = () if whole else tuple(dash_notes(columns, cells))
    return Table(heads, shown, caption, len(cells) - len(shown), tools=tools and len(shown) > 8, notes=notes)


def with_values(rows: Sequence[Sequence[Cell]]) -> list[int]:
    """Places of the columns that are not dashes throughout."""
    return [place for place, cells in enumerate(zip(*rows, strict=True)) if any(cell.style != "no" for cell in cells)]


def dash_notes(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """ "counted, bound: not collected." for columns that are dashes throughout, those of the same reasons together."""
    empty: dict[tuple[str, ...], list[str]] = {}
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        if all(cell.style == "no" for cell in cells):
            reasons = dict.fromkeys(cell.title or "not collected" for cell in cells)
            empty.setdefault(tuple(reasons)[:REASONS], []).append(column.label)
    for why, labels in empty.items():
        yield f"{', '.join(labels)}: {'; '.join(why)}."


def with_carried(column: Column, cells: Iterable[Cell]) -> Column:
    """The column, marked where its cells show its unit."""
    return replace(column, carried=bool(column.unit) and any(cell.scale is not None for cell in cells))


def in_order(columns: Iterable[tuple[Column, Sequence[Cell]]]) -> tuple[Column, ...]:
    """The columns, with ``order`` at the first one only whose cells are in it; those without a value come last."""
    heads: list[Column] = []
    for column, cells in columns:
        values = [_number(cell) for cell in cells]
        known = [value for value in values if value is not None]
        kept = len(known) > 1 and known == sorted(known, reverse=column.order == "descending") == values[: len(known)]
        first = kept and not any(head.order for head in heads)
        heads.append(column if first else replace(column, order=""))
    return tuple(heads)


def _number(cell: Cell) -> float | None:
    try:
        return None if cell.style == "no" or cell.value is None else float(cell.value)
    except ValueError:
        return None


def one_unit_each(rows: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """The rows with one unit down each column."""
    return list(zip(*(in_one_unit(column) for column in zip(*rows, strict=True)), strict=True)) if rows else []


def _cell(column: Column, value: Any) -> Cell:
    """Words and names by the column's style, times and sizes by its unit, else a count."""
    if isinstance(value, Cell):
        return value
    if column.style == "code" and value:
        return name_cell(value)
    if column.style != "num":
        return word(value)
    if column.base == "ns":
        return time_cell(value)
    return size_cell(value) if column.base == "B" else count(value)


def listing(
    caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Any]], *, drop_run: bool = True, tools: bool = True
) -> Table | None:
    """A table without columns of dashes only, and without the run's column when there is only one run."""
    cells = [tuple(map(_cell, columns, row)) for row in rows]
    keep = with_values(cells)
    if drop_run and len({row[0].text for row in cells}) == 1:
        keep = [place for place in keep if place]
    return table(caption, [columns[at] for at in keep], [[row[at] for at in keep] for row in cells], tools=tools)


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of any length: its columns as packed() makes them."""

    key: str
    caption: str
    rows: int
    columns: tuple[dict[str, Any], ...]
    hidden: int = 0
    notes: tuple[str, ...] = ()
    first: Table | None = None

    @property
    def data(self) -> dict[str, Any]:
        """What the page carries."""
        return {"rows": self.rows, "columns": self.columns}


def packed(label: str, unit: str, kind: str, values: Sequence[Any]) -> dict[str, Any]:
    """One column in the smallest of five forms.

    ``{label, unit, kind, ...}`` with its data as one of ``c`` (one value for all rows), ``d`` + ``i`` (dictionary and
    index a row), ``d`` + ``r`` (index, how often, index, ...), ``s`` (first value and differences), ``v`` (text_cell
    values). None stays null. ``kind`` says how a value is written: time, start, si, int, text or code.
    """
    head: dict[str, Any] = {"label": label, "unit": unit, "kind": kind}
    tidy = [_tidy(value) for value in values]
    if kind in ("time", "start", "si"):
        head["scale"] = _scale_of(kind, unit, [value for value in tidy if value is not None])
    known = list(dict.fromkeys(tidy))
    if len(known) == 1:
        return head | {"c": known[0]}
    if len(known) <= max(16, len(tidy) // 3):
        place = {value: number for number, value in enumerate(known)}
        runs = [part for value, same in groupby(tidy) for part in (place[value], len(list(same)))]
        if len(runs) < len(tidy) // 2:
            return head | {"d": known, "r": runs}
        return head | {"d": known, "i": [place[value] for value in tidy]}
    if all(isinstance(value, int) for value in tidy):
        steps = differences(tidy)
        if sum(map(abs, steps)) < sum(map(abs, tidy)):
            return head | {"s": steps}
    return head | {"v": tidy}


def _scale_of(kind: str, unit: str, values: Sequence[float]) -> tuple[float, str]:
    """(what a value is divided by, unit) of a column, by its median; starts count from the first."""
    if kind == "si":
        divisor, prefix = column_unit(values)
        return divisor, f"{prefix}{'' if unit[:1] in ('F', 'B') or not prefix else ' '}{unit}"
    first = min(values, default=0) if kind == "start" else 0
    divisor, shown = column_unit([(value - first) / 1e9 for value in values], "s")
    return divisor * 1e9, shown


def differences(values: Sequence[int]) -> list[int]:
    """First value, then the difference of each to the one before."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]


def long_table(
    key: str, columns: Sequence[LongColumn], rows: int, hidden: int, more: Iterable[dict[str, Any]] = (),
    notes: Sequence[str] = (), names: Mapping[str, str] | None = None,
) -> Grid:  # fmt: skip
    """Columns, then ``more`` that are packed and stand in the long table only; those without a value become a note.

    ``names``: short kernel names.
    """
    caption = {"launches": "Every launch", "counters": "Counters by kernel name"}[key]
    made = [*(packed(*head, values) for head, values in columns), *more]
    for one in made:
        if one["label"] == "kernel" and names:
            known = one.get("d") or one.get("v") or [one.get("c")]
            one["short"] = {name: names[name] for name in dict.fromkeys(known) if names.get(name, name) != name}
    empty = [one["label"] for one in made if one.get("c", 0) is None and "refused" not in str(one.get("state", ""))]
    kept = tuple(one for one in made if one["label"] not in empty)
    said = (*([f"not in these reports: {', '.join(empty)}"] if empty else []), *notes)
    first = _first_rows(caption, [column for column in columns if column[0][0] not in empty], rows, names or {})
    return Grid(key, caption, rows, kept, hidden, said, first)


def _first_rows(caption: str, columns: Sequence[LongColumn], rows: int, names: Mapping[str, str]) -> Table | None:
    """As an HTML table, without moments on a clock."""
    shown, columns = min(rows, STATIC_ROWS), [column for column in columns if column[0][2] != "start"]
    heads = [Column(label, "" if kind == "time" else unit, kind if kind in ("text", "code") else "num")
             for (label, unit, kind), _ in columns]  # fmt: skip
    cells = [[_first_cell(kind, values[row], names) for (_, _, kind), values in columns] for row in range(shown)]
    return table(f"{caption}, first {shown} of {rows}" if shown < rows else caption, heads, cells, tools=False)


def _first_cell(kind: str, value: Any, names: Mapping[str, str]) -> Cell:
    if value is None:
        return nothing("not in this report")
    if kind == "time":
        return time_cell(value)
    if kind == "code":
        return name_cell(value, names.get(value))
    return text_cell(si(value) if kind == "si" else value)


def _tidy(value: Any) -> Any:
    """Whole floats as integers; NaN and infinity, which JSON lacks, as null."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    return value
