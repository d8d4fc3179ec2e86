"""The ledger at a glance: layers x batch sizes, each cell one figure and a colour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log2

from perfctl.orchestrator.counts.figure import total_of
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.report.ledger.keys import row_key
from perfctl.orchestrator.report.ledger.page import ratio_cell
from perfctl.orchestrator.report.numbers import full, ratio, rounded
from perfctl.orchestrator.report.tables import (
    Cell,
    mark,
    nothing,
    share_cell,
    style_of,
    time_cell,
    why,
)

FAR = 2.0
"""log2 of the ratio with the fullest colour: a quarter, or four times."""
NAMED = 3
"""Rows that a note names; the rest is counted."""
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
    """A batch size each: (key of its trail, a tile for each measure); None where there is no
    such row."""


@dataclass(frozen=True, slots=True)
class Total:
    """What the rows of one batch size add up to: a cell for each measure, and in words what is
    in them."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """The whole matrix; ``measures`` are (key, what it says), the first one shown first."""

    batches: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]
    rows: tuple[MatrixRow, ...]
    hidden: int = 0
    """Layers and directions without multiply-adds, hardly any time, and no reason: they are in the
    table only."""
    totals: tuple[Total, ...] = ()
    """One a batch size, over all rows of the ledger."""
    total_note: str = ""
    """What the totals are of, and which rows are not in them."""


def matrix(found: Analysis, minor: frozenset[tuple[str, str]] = frozenset()) -> Matrix | None:
    """Layers x batch sizes of the ledger; None where nothing was counted, derived or timed.

    minor: (layer, direction) of rows that are left out, as the table folds them.
    """
    rows = found.ledger.rows
    measures = []
    if any(row.ratio is not None for row in rows):
        state = (
            "derived"
            if all(row.counted.state == "derived" for row in rows if row.ratio is not None)
            else "counted"
        )
        measures.append(("ratio", f"{state} / paper"))
    if any(row.share is not None for row in rows):
        measures.append(("share", f"share of the {next(row.whole for row in rows if row.whole)}"))
    if not measures:
        return None
    batches = sorted({row.batch for row in rows}, key=lambda batch: batch or 0)
    groups = [
        (key, list(same)) for key, same in groupby(rows, key=lambda row: (row.place, row.direction))
    ]
    kept = [(key, same) for key, same in groups if key not in minor]
    lines = tuple(_line(same, batches, [name for name, _ in measures]) for _, same in kept)
    heads = tuple("as recorded" if batch is None else str(batch) for batch in batches)
    of_batch = {batch: [row for row in rows if row.batch == batch] for batch in batches}
    totals = tuple(
        Total(
            tuple(
                _ratio_total(mine) if name == "ratio" else _time_total(found, batch)
                for name, _ in measures
            )
        )
        for batch, mine in of_batch.items()
    )
    return Matrix(
        heads,
        tuple(measures),
        lines,
        len(groups) - len(kept),
        totals,
        _total_note(rows, dict(measures)),
    )


def _with_work(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Rows that paper has multiply-adds for, or does not know."""
    return [row for row in rows if row.paper.value != 0 or row.paper.lower_bound]


def _ratio_total(rows: Sequence[LedgerRow]) -> Cell:
    """Counted / paper over the rows that have both whole; a dash where there is none."""
    known = [row for row in rows if row.ratio is not None]
    if not known:
        return nothing("no layer has both a count and a whole paper figure")
    counted, paper = (
        total_of(row.counted for row in known),
        sum(row.paper.value or 0 for row in known),
    )
    value = (counted.value or 0) / paper
    over, named = (
        len(_with_work(rows)),
        ", ".join(row.name for row in _with_work(rows) if row.ratio is None),
    )
    title = (
        f"{full(counted.value or 0)} / {full(paper)} over {len(known)} of {over} layers and "
        "directions"
    )
    title += f"; not in it: {named}" if named else ""
    title += f"; {why(counted)}" if counted.state != "counted" or counted.lower_bound else ""
    return Cell(mark(counted) + ratio(value), title, style_of(counted), rounded(value))


def _time_total(found: Analysis, batch: int | None) -> Cell:
    """The time that the shares of one batch size are of."""
    times = found.study.at(batch).times
    if times is None:
        return nothing("not timed")
    took = times.total
    statistic = (
        f"median of {took.count}"
        if took.count > 1
        else f"mean of {took.over}"
        if took.over > 1
        else "one step"
    )
    cell = time_cell(took.median, note=f"{statistic}; {times.basis}")
    return cell if times.trusted else replace(cell, style="est")


def _total_note(rows: Sequence[LedgerRow], measures: Mapping[str, str]) -> str:
    """One sentence a measure."""
    said = []
    if "ratio" in measures:
        work = _with_work(rows)
        missing = dict.fromkeys(row.name for row in work if row.ratio is None)
        least = dict.fromkeys(
            row.name for row in work if row.ratio is not None and row.counted.lower_bound
        )
        text = "Total, counted / paper: sums over the layers and directions that have both"
        text += f"; without {_some(missing)}" if missing else ""
        said.append(
            text
            + (f"; at least, for the counts of {_some(least)} are lower bounds" if least else "")
            + "."
        )
    if "share" in measures:
        whole = next((row.whole for row in rows if row.whole), "")
        said.append(
            "Total of the shares: "
            f"{whole.replace('of all steps', 'of a step').replace('all steps', 'time of a step')}."
        )
    return " ".join(said)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:NAMED]) + (
        f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    )


def _line(
    rows: Sequence[LedgerRow], batches: Sequence[int | None], measures: Sequence[str]
) -> MatrixRow:
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
    return (
        Tile(cell, "part", round(min(1.0, (row.share or 0) / FULL_SHARE) * 100))
        if row.share
        else Tile(cell)
    )
