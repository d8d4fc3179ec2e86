"""Long tables as compact JSON columns, which table.js unpacks and draws a screen at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite
from typing import Any

from perfctl.orchestrator.report.numbers import Cell, plain, si, time_cell
from perfctl.orchestrator.report.tables import Column, Table, table

STATIC_ROWS = 20
"""Rows that stand in the page for readers without JavaScript, and in print."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of any length: its columns as packed() makes them."""

    key: str
    caption: str
    rows: int
    columns: tuple[dict[str, Any], ...]
    hidden: int = 0
    """Rows that exist and are not in the page."""
    notes: tuple[str, ...] = ()
    first: Table | None = None
    """The first rows as a plain table."""

    @property
    def data(self) -> dict[str, Any]:
        """What the page carries."""
        return {"rows": self.rows, "columns": self.columns}


def packed(label: str, unit: str, kind: str, values: Sequence[Any]) -> dict[str, Any]:
    """One column in the smallest of five forms.

    ``{label, unit, kind, ...}`` with its data as one of ``c`` (one value for all rows), ``d`` + ``i`` (dictionary and
    index a row), ``d`` + ``r`` (index, how often, index, ...), ``s`` (first value and differences), ``v`` (plain
    values). None stays null. ``kind`` says how a value is written: time, start, si, int, text or code.
    """
    head: dict[str, Any] = {"label": label, "unit": unit, "kind": kind}
    tidy = [_tidy(value) for value in values]
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


def differences(values: Sequence[int]) -> list[int]:
    """First value, then what each adds to the one before."""
    return [*values[:1], *(after - before for before, after in pairwise(values))]


def first_rows(caption: str, columns: Sequence[tuple[tuple[str, str, str], Sequence[Any]]], rows: int) -> Table | None:
    """The first rows of columns ``((label, unit, kind), values)`` as a plain table, without moments on a clock."""
    shown, columns = min(rows, STATIC_ROWS), [column for column in columns if column[0][2] != "start"]
    heads = [Column(label, "" if kind == "time" else unit, kind if kind in ("text", "code") else "num")
             for (label, unit, kind), _ in columns]  # fmt: skip
    cells = [[_cell(kind, values[row]) for (_, _, kind), values in columns] for row in range(shown)]
    said = f"{caption}, first {shown} of {rows}" if shown < rows else caption
    return table(said, heads, cells, tools=False)


def _cell(kind: str, value: Any) -> Cell:
    if value is None:
        return Cell("–", "not in this report", "no")
    if kind == "time":
        return time_cell(value)
    return plain(si(value) if kind == "si" else value)


def _tidy(value: Any) -> Any:
    """Whole floats as integers; what JSON has no word for (NaN, infinity) as null."""
    if isinstance(value, float):
        if not isfinite(value):
            return None
        return int(value) if value.is_integer() else value
    return value
