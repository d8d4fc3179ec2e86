"""The ledger at a glance: layers x batch sizes, each cell one figure and a colour."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
class Matrix:
    """The whole matrix; ``measures`` are (key, what it says), the first one shown first."""

    batches: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]
    rows: tuple[MatrixRow, ...]
    hidden: int = 0
    """Layers and directions without multiply-adds, hardly any time, and no reason: they are in the
    table only."""
    totals: tuple[tuple[Cell, ...], ...] = ()
    """One a batch size, a cell for each measure, over all rows of the ledger."""
    total_note: str = ""
    """What the totals are of, and which rows are not in them."""


def matrix(found: Analysis, minor: frozenset[tuple[str, str]] = frozenset()) -> Matrix | None:
    """Layers x batch sizes of the ledger; None where nothing was counted, derived or timed.

    minor: (layer, direction) of rows that are left out, as the table folds them.
    """
    rows = found.ledger.rows
    measures = {}
    states = {row.counted.state for row in rows if row.ratio is not None}
    if states:
        measures["ratio"] = f"{'derived' if states == {'derived'} else 'executed'} / estimated"
    if any(row.share is not None for row in rows):
        measures["share"] = f"share of the {next(row.whole for row in rows if row.whole)}"
    if not measures:
        return None
    batches = sorted({row.batch for row in rows}, key=lambda batch: batch or 0)
    groups = {key: list(same) for key, same in groupby(rows, key=_place)}
    kept = {key: same for key, same in groups.items() if key not in minor}
    tiles = {"ratio": _ratio, "share": _share}

    def cell(row: LedgerRow | None) -> tuple[str, tuple[Tile, ...]] | None:
        if row is None:
            return None
        shown = tuple(tiles[name](row) for name in measures)
        return row_key(row.place, row.direction, row.batch), shown

    lines = []
    for (place, direction), same in kept.items():
        of_batch = {row.batch: row for row in same}
        cells = tuple(cell(of_batch.get(batch)) for batch in batches)
        lines.append(MatrixRow(place, "" if place == direction else direction, cells))
    totals = []
    for batch in batches:
        of_measure = {
            "ratio": _ratio_total([row for row in rows if row.batch == batch]),
            "share": _time_total(found, batch),
        }
        totals.append(tuple(of_measure[name] for name in measures))
    return Matrix(
        tuple("as recorded" if batch is None else str(batch) for batch in batches),
        tuple(measures.items()),
        tuple(lines),
        len(groups) - len(kept),
        tuple(totals),
        _total_note(rows, measures),
    )


def _place(row: LedgerRow) -> tuple[str, str]:
    return row.place, row.direction


def _with_work(rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Rows that paper has multiply-adds for, or does not know."""
    return [row for row in rows if row.paper.value != 0 or row.paper.lower_bound]


def _ratio_total(rows: Sequence[LedgerRow]) -> Cell:
    """Counted / paper over the rows that have both whole; a dash where there is none."""
    known = [row for row in rows if row.ratio is not None]
    if not known:
        return nothing("no layer has both executed FLOPs and a complete estimate")
    work = _with_work(rows)
    counted = total_of(row.counted for row in known)
    paper = sum(row.paper.value or 0 for row in known)
    missing = ", ".join(row.name for row in work if row.ratio is None)
    is_plain = counted.state == "counted" and not counted.lower_bound
    facts = (
        f"{full(counted.value or 0)} / {full(paper)} over {len(known)} of {len(work)} layers and "
        "passes",
        missing and f"not included: {missing}",
        "" if is_plain else why(counted),
    )
    value = (counted.value or 0) / paper
    title = "; ".join(filter(None, facts))
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


def _total_note(rows: Sequence[LedgerRow], measures: Collection[str]) -> str:
    """One sentence a measure."""
    sentences = []
    if "ratio" in measures:
        work = _with_work(rows)
        missing = dict.fromkeys(row.name for row in work if row.ratio is None)
        least = dict.fromkeys(
            row.name for row in work if row.ratio is not None and row.counted.lower_bound
        )
        text = "Total, executed / estimated: sums over the layers and passes that have both"
        text += f"; without {_some(missing)}" if missing else ""
        text += (
            f"; a lower bound, because the executed FLOPs of {_some(least)} are lower bounds"
            if least
            else ""
        )
        sentences.append(f"{text}.")
    if "share" in measures:
        whole = next((row.whole for row in rows if row.whole), "")
        of_step = whole.replace("of all steps", "of a step").replace("all steps", "time of a step")
        sentences.append(f"Total of the shares: {of_step}.")
    return " ".join(sentences)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


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
