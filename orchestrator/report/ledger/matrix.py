"""The FLOPs ledger at a glance: layers x batch sizes, each cell one figure and a color."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2

from perfctl.orchestrator.counts.figure import total_of
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.ledger.timing import ALL_STEPS, KERNELS_OF_STEPS
from perfctl.orchestrator.report.ledger import row_key
from perfctl.orchestrator.report.ledger.page import describe_spread, row_cells
from perfctl.orchestrator.report.numbers import full, ratio, rounded
from perfctl.orchestrator.report.tables import Cell, mark, nothing, reason_of, style_of, time_cell
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Point

RATIO_LOG2_MAX = 2.0
"""log2 of the ratio with the fullest color: a quarter, or four times."""
SHARE_MAX = 0.3
"""Share of the step with the fullest color."""
_TOTALS = {
    KERNELS_OF_STEPS: "kernel time of a step",
    ALL_STEPS: "time of a step",
}
"""What shares are of -> what the totals are, each of which is a median; others have one name."""
NAMES_MAX = 3
"""Rows that a note names; of more it states the number."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of a cell."""

    cell: Cell
    side: str = ""
    """"lo" below 1, "hi" above, "part" for a share; "" without a color."""
    depth: int = 0
    """0 to 100."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One layer in one pass."""

    layer: str
    direction: str
    cells: tuple[tuple[str, tuple[Tile, ...]] | None, ...]
    """For each batch size: (key of its trail, a tile for each measure); None if there is no such
    row."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The complete matrix."""

    batches: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]
    """(key, description); the first one is shown first."""
    rows: tuple[MatrixRow, ...]
    hidden: int
    """Layers and passes without multiply-adds, hardly any time, and no cause: only the table has
    them."""
    totals: tuple[tuple[Cell, ...], ...]
    """For each batch size, a cell for each measure, over all rows of the ledger."""
    total_note: str
    """What the totals are of, and which rows they do not include."""


def matrix(analysis: Analysis, minor: Collection[tuple[str, str]] = frozenset()) -> Matrix | None:
    """Return the ledger as layers x batch sizes; None if nothing was measured, derived or timed.

    minor: (layer, pass) of rows that are left out, as the table folds them.
    """
    rows = analysis.ledger.rows
    total = next((row.whole for row in rows if row.whole and row.share is not None), None)
    states = {row.executed.state for row in rows if row.ratio is not None}
    measures = {}
    if states:
        measures["ratio"] = f"{'derived' if states == {'derived'} else 'executed'} / estimated"
    if total:
        measures["share"] = f"share of the {total}"
    if not measures:
        return None

    def cell(row: LedgerRow | None) -> tuple[str, tuple[Tile, ...]] | None:
        if row is None:
            return None
        tiles = _tiles(row, analysis)
        key = row_key(row.place, row.direction, row.batch)
        return key, tuple(tiles[name] for name in measures)

    used = {row.batch for row in rows}
    batches = [point for point in (None, *analysis.study.points) if point in used]
    groups = group_by(rows, lambda row: (row.place, row.direction))
    drawn_rows = []
    for (layer, direction), group in groups.items():
        if (layer, direction) not in minor:
            by_batch = {row.batch: row for row in group}
            cells = tuple(cell(by_batch.get(batch)) for batch in batches)
            shown_direction = next(iter(group)).shown_direction
            drawn_rows.append(MatrixRow(layer, shown_direction, cells))
    totals = []
    for batch in batches:
        ratio_cell = _ratio_total([row for row in rows if row.batch == batch])
        cells_by_measure = {"ratio": ratio_cell, "share": _time_total(analysis, batch)}
        totals.append(tuple(cells_by_measure[name] for name in measures))
    sentences = [_describe_ratio_total(rows)] if states else []
    if total:
        sentences.append(f"Total of the shares: {_TOTALS.get(total, total)}.")
    return Matrix(
        tuple("as recorded" if batch is None else str(batch) for batch in batches),
        tuple(measures.items()),
        tuple(drawn_rows),
        len(groups) - len(drawn_rows),
        tuple(totals),
        " ".join(sentences),
    )


def _tiles(row: LedgerRow, analysis: Analysis) -> dict[str, Tile]:
    cells = row_cells(row, analysis)
    ratio, share = Tile(cells["ratio"]), Tile(cells["share"])
    if row.ratio:
        depth = min(abs(log2(row.ratio)) / RATIO_LOG2_MAX, 1.0)
        ratio = Tile(ratio.cell, "lo" if row.ratio < 1 else "hi", round(depth * 100))
    if row.share:
        share = Tile(share.cell, "part", round(min(row.share / SHARE_MAX, 1.0) * 100))
    return {"ratio": ratio, "share": share}


def _with_work(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return rows whose estimate is above 0 or unknown."""
    return [row for row in rows if row.estimated.value != 0 or row.estimated.lower_bound]


def _ratio_total(rows: Sequence[LedgerRow]) -> Cell:
    """Return executed / estimated over the rows that have both; a dash if there is none."""
    complete = [row for row in rows if row.ratio is not None]
    if not complete:
        return nothing("no layer has both executed FLOPs and a complete estimate")
    work = _with_work(rows)
    executed = total_of(row.executed for row in complete)
    estimate = sum(row.estimated.value or 0 for row in complete)
    value = (executed.value or 0) / estimate
    missing = ", ".join(row.name for row in work if row.ratio is None)
    is_plain = executed.state == "counted" and not executed.lower_bound
    facts = (
        f"{full(executed.value or 0)} / {full(estimate)} over {len(complete)} of {len(work)} "
        "layers and passes",
        missing and f"not included: {missing}",
        "" if is_plain else reason_of(executed),
    )
    title = "; ".join(filter(None, facts))
    return Cell(mark(executed) + ratio(value), title, style_of(executed), rounded(value))


def _time_total(analysis: Analysis, batch: Point) -> Cell:
    """Return the time that the shares of one batch size are of."""
    times = analysis.study.at(batch).times
    if times is None:
        return nothing("not timed")
    note = f"{describe_spread(times.total, times.whole)}; {times.basis}"
    cell = time_cell(times.total.median, note=note)
    return cell if times.trusted else replace(cell, style="est")


def _describe_ratio_total(rows: Sequence[LedgerRow]) -> str:
    work = _with_work(rows)
    missing = _name_some(row for row in work if row.ratio is None)
    bounds = _name_some(row for row in work if row.ratio is not None and row.executed.lower_bound)
    text = "Total, executed / estimated: sums over the layers and passes that have both"
    text += f"; without {missing}" if missing else ""
    bound = f"; a lower bound, because the executed FLOPs of {bounds} are lower bounds"
    return f"{text}{bound if bounds else ''}."


def _name_some(rows: Iterable[LedgerRow]) -> str:
    names = list(dict.fromkeys(row.name for row in rows))
    return ", ".join(names) if len(names) <= NAMES_MAX else f"{len(names)} rows"
