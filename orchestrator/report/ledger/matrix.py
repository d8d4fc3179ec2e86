"""The ledger at a glance: layers x batch sizes, each cell one figure and a colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import log2

from perfctl.orchestrator.analyse.analysis import Analysis
from perfctl.orchestrator.analyse.ledger.ledger import LedgerRow
from perfctl.orchestrator.report.cells import Cell, share_cell
from perfctl.orchestrator.report.ledger.keys import row_key
from perfctl.orchestrator.report.ledger.page import ratio_cell

FAR = 2.0
"""log2 of the ratio with the fullest colour: a quarter, or four times."""
FULL_SHARE = 0.3
"""Share of the step with the fullest colour."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of a cell."""

    cell: Cell
    side: str = ""
    """"lo" below 1, "hi" above, "part" for a share; "" without a colour."""
    depth: int = 0
    """0 to 100."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One layer in one direction."""

    layer: str
    direction: str
    cells: tuple[tuple[str, tuple[Tile, ...]] | None, ...]
    """A batch size each: (key of its trail, a tile for each measure); None where there is no such row."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The whole matrix; ``measures`` are (key, what it says), the first one shown first."""

    batches: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]
    rows: tuple[MatrixRow, ...]
    hidden: int = 0
    """Layers and directions without multiply-adds, hardly any time, and no reason: they are in the table only."""


def matrix(found: Analysis, minor: frozenset[tuple[str, str]] = frozenset()) -> Matrix | None:
    """Layers x batch sizes of the ledger; None where nothing was counted, derived or timed.

    minor: (layer, direction) of rows that are left out, as the table folds them.
    """
    rows = found.ledger.rows
    measures = []
    if any(row.ratio is not None for row in rows):
        state = "derived" if all(row.counted.state == "derived" for row in rows if row.ratio is not None) else "counted"
        measures.append(("ratio", f"{state} / paper"))
    if any(row.share is not None for row in rows):
        measures.append(("share", f"share of the {next(row.whole for row in rows if row.whole)}"))
    if not measures:
        return None
    batches = sorted({row.batch for row in rows}, key=lambda batch: batch or 0)
    groups = [(key, list(same)) for key, same in groupby(rows, key=lambda row: (row.place, row.direction))]
    kept = [(key, same) for key, same in groups if key not in minor]
    lines = tuple(_line(same, batches, [name for name, _ in measures]) for _, same in kept)
    heads = tuple("as recorded" if batch is None else str(batch) for batch in batches)
    return Matrix(heads, tuple(measures), lines, len(groups) - len(kept))


def _line(rows: Sequence[LedgerRow], batches: Sequence[int | None], measures: Sequence[str]) -> MatrixRow:
    at = {row.batch: row for row in rows}
    cells = tuple(_cell(at[batch], measures) if batch in at else None for batch in batches)
    first = rows[0]
    return MatrixRow(first.place, "" if first.place == first.direction else first.direction, cells)


def _cell(row: LedgerRow, measures: Sequence[str]) -> tuple[str, tuple[Tile, ...]]:
    tiles = tuple(_ratio(row) if name == "ratio" else _share(row) for name in measures)
    return row_key(row.place, row.direction, row.batch), tiles


def _ratio(row: LedgerRow) -> Tile:
    cell = ratio_cell(row)
    if not row.ratio:
        return Tile(cell)
    away = max(-1.0, min(1.0, log2(row.ratio) / FAR))
    return Tile(cell, "lo" if away < 0 else "hi", round(abs(away) * 100))


def _share(row: LedgerRow) -> Tile:
    cell = share_cell(row.share, row.time_reason or "not timed")
    return Tile(cell, "part", round(min(1.0, (row.share or 0) / FULL_SHARE) * 100)) if row.share else Tile(cell)
