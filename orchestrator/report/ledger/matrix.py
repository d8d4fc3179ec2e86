"""The FLOPs ledger at a glance: layers x batch sizes, each cell one figure and a color."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import log2

from perfctl.orchestrator.counts.figure import sum_figures
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.ledger.timing import ALL_STEPS, KERNELS_OF_STEPS
from perfctl.orchestrator.report.ledger import build_row_trail_key
from perfctl.orchestrator.report.ledger.page import build_ledger_row_cells, describe_time_spread
from perfctl.orchestrator.report.numbers import format_all_digits, format_ratio, round_to_six_digits
from perfctl.orchestrator.report.tables import (
    Cell,
    choose_figure_style,
    explain_figure_state,
    format_state_sign,
    missing_cell,
    time_cell,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Point

RATIO_LOG2_MAX = 2.0
"""log2 of the ratio with the fullest color: a quarter, or four times."""
SHARE_MAX = 0.3
"""Share of the step with the fullest color."""
_TOTALS = {KERNELS_OF_STEPS: "kernel time of a step", ALL_STEPS: "time of a step"}
"""What shares are of -> what the totals are, each of which is a median; others have one name."""
NAMES_MAX = 3
"""Rows that a note names; of more it states the number."""


@dataclass(frozen=True, slots=True)
class MatrixTile:
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
    cells: tuple[tuple[str, tuple[MatrixTile, ...]] | None, ...]
    """For each batch size: (key of its trail, a tile for each measure); None if there is no such
    row."""


@dataclass(frozen=True, slots=True)
class LedgerMatrix:
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


def build_ledger_matrix(
    analysis: Analysis, minor: Collection[tuple[str, str]] = frozenset()
) -> LedgerMatrix | None:
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

    def build_matrix_cell(row: LedgerRow | None) -> tuple[str, tuple[MatrixTile, ...]] | None:
        if row is None:
            return None
        tiles = _build_tiles_by_measure(row, analysis)
        key = build_row_trail_key(row.place, row.direction, row.batch)
        return key, tuple(tiles[name] for name in measures)

    used = {row.batch for row in rows}
    batches = [point for point in (None, *analysis.study.points) if point in used]
    groups = group_by(rows, lambda row: (row.place, row.direction))
    drawn_rows = []
    for (layer, direction), group in groups.items():
        if (layer, direction) not in minor:
            by_batch = {row.batch: row for row in group}
            cells = tuple(build_matrix_cell(by_batch.get(batch)) for batch in batches)
            drawn_rows.append(MatrixRow(layer, group[0].shown_direction, cells))
    totals = []
    for batch in batches:
        ratio_cell = _build_total_ratio_cell([row for row in rows if row.batch == batch])
        cells_by_measure = {"ratio": ratio_cell, "share": _build_total_time_cell(analysis, batch)}
        totals.append(tuple(cells_by_measure[name] for name in measures))
    sentences = [_describe_total_ratio(rows)] if states else []
    if total:
        sentences.append(f"Total of the shares: {_TOTALS.get(total, total)}.")
    return LedgerMatrix(
        tuple("as recorded" if batch is None else str(batch) for batch in batches),
        tuple(measures.items()),
        tuple(drawn_rows),
        len(groups) - len(drawn_rows),
        tuple(totals),
        " ".join(sentences),
    )


def _build_tiles_by_measure(row: LedgerRow, analysis: Analysis) -> dict[str, MatrixTile]:
    cells = build_ledger_row_cells(row, analysis)
    ratio, share = MatrixTile(cells["ratio"]), MatrixTile(cells["share"])
    if row.ratio:
        depth = min(abs(log2(row.ratio)) / RATIO_LOG2_MAX, 1.0)
        ratio = MatrixTile(ratio.cell, "lo" if row.ratio < 1 else "hi", round(depth * 100))
    if row.share:
        share = MatrixTile(share.cell, "part", round(min(row.share / SHARE_MAX, 1.0) * 100))
    return {"ratio": ratio, "share": share}


def _select_rows_with_work(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return rows whose estimate is above 0 or unknown."""
    return [row for row in rows if row.estimated.value != 0 or row.estimated.lower_bound]


def _build_total_ratio_cell(rows: Sequence[LedgerRow]) -> Cell:
    """Return executed / estimated over the rows that have both; a dash if there is none."""
    complete = [row for row in rows if row.ratio is not None]
    if not complete:
        return missing_cell("no layer has both executed FLOPs and a complete estimate")
    work = _select_rows_with_work(rows)
    executed = sum_figures(row.executed for row in complete)
    estimate = sum(row.estimated.value or 0 for row in complete)
    value = (executed.value or 0) / estimate
    missing = ", ".join(row.name for row in work if row.ratio is None)
    is_plain = executed.state == "counted" and not executed.lower_bound
    facts = (
        f"{format_all_digits(executed.value or 0)} / {format_all_digits(estimate)} over "
        f"{len(complete)} of {len(work)} layers and passes",
        missing and f"not included: {missing}",
        "" if is_plain else explain_figure_state(executed),
    )
    title = "; ".join(filter(None, facts))
    return Cell(
        format_state_sign(executed) + format_ratio(value),
        title,
        choose_figure_style(executed),
        round_to_six_digits(value),
    )


def _build_total_time_cell(analysis: Analysis, batch: Point) -> Cell:
    """Return the time that the shares of one batch size are of."""
    times = analysis.study.at(batch).times
    if times is None:
        return missing_cell("not timed")
    note = f"{describe_time_spread(times.total, times.whole)}; {times.basis}"
    cell = time_cell(times.total.median, note=note)
    return cell if times.trusted else replace(cell, style="est")


def _describe_total_ratio(rows: Sequence[LedgerRow]) -> str:
    work = _select_rows_with_work(rows)
    missing = _name_or_count_rows(row for row in work if row.ratio is None)
    bounds = _name_or_count_rows(
        row for row in work if row.ratio is not None and row.executed.lower_bound
    )
    text = "Total, executed / estimated: sums over the layers and passes that have both"
    text += f"; without {missing}" if missing else ""
    bound = f"; a lower bound, because the executed FLOPs of {bounds} are lower bounds"
    return f"{text}{bound if bounds else ''}."


def _name_or_count_rows(rows: Iterable[LedgerRow]) -> str:
    names = list(dict.fromkeys(row.name for row in rows))
    return ", ".join(names) if len(names) <= NAMES_MAX else f"{len(names)} rows"
