"""One row of the FLOPs ledger as cells, which the HTML report, the terminal, documents, the matrix
and the trails share. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from dataclasses import replace

from perfctl.orchestrator.counts.kernels.layers import SHARED_OUT
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow, Unattributed
from perfctl.orchestrator.ledger.timing import KERNELS_OF_CAPTURE, Spread
from perfctl.orchestrator.report.ledger.roofline import bound_cell
from perfctl.orchestrator.report.numbers import full, ratio, rounded, significant, time
from perfctl.orchestrator.report.tables import (
    Cell,
    amount,
    estimated,
    figure_cell,
    mark,
    nothing,
    share_cell,
    style_of,
    text_cell,
    time_cell,
    why,
)

LOCKED_CLOCKS = "under ncu at locked clocks: not a realistic time"


def row_cells(row: LedgerRow, analysis: Analysis) -> dict[str, Cell]:
    """Return the cells of one layer, pass and batch size by the labels of their columns."""
    reason = row.time_reason or "not timed"
    spent, share = nothing(reason), share_cell(row.share, reason)
    if row.time is not None:
        note = f"{describe_spread(row.time, row.whole)}; {row.basis}"
        spent = time_cell(row.time.median, note=note)
        if not row.trusted:
            spent = replace(spent, title=f"{spent.title}; {LOCKED_CLOCKS}", style="est")
            share = replace(share, title=LOCKED_CLOCKS, style="est")
        if row.shared:
            spent, share = estimated(spent, SHARED_OUT), estimated(share, SHARED_OUT)
    point = analysis.roofline.of(row.batch, row.layer, row.direction)
    return {
        "batch": batch_cell(row.batch),
        "estimate": _estimate_cell(row),
        "executed": _executed_cell(row),
        "ratio": _ratio_cell(row),
        "time": spent,
        "share": share,
        "achieved": amount(row.achieved, "FLOP/s", _explain_missing_rate(row)),
        "bound": bound_cell(point, analysis.roofline),
    }


def unattributed_cells(rest: Unattributed) -> dict[str, Cell]:
    """Return the cells of what belongs to no layer at one batch size."""
    return dict.fromkeys(("estimate", "ratio", "achieved", "bound"), nothing("not a layer")) | {
        "batch": batch_cell(rest.batch),
        "executed": figure_cell(rest.counted, "FLOP"),
        "time": time_cell(rest.time.median, note=rest.basis),
        "share": share_cell(rest.share),
    }


def batch_cell(batch: int | None) -> Cell:
    """Return the batch size, or a dash for a report that does not state it."""
    return nothing("the report does not state it") if batch is None else text_cell(batch)


def describe_spread(spread: Spread, total: str | None) -> str:
    """Return what a time is of its steps: "24.1 ms to 26.0 ms over 5 steps"."""
    if total == KERNELS_OF_CAPTURE:
        return "complete capture"
    if spread.over > 1:
        return f"mean of {spread.over} steps"
    if spread.count == 1:
        return "one step"
    return f"{time(spread.low)} to {time(spread.high)} over {spread.count} steps"


def _estimate_cell(row: LedgerRow) -> Cell:
    cell = figure_cell(row.paper, "FLOP")
    elementwise = sum(call.elementwise_flops or 0 for call in row.calls)
    if row.paper.value is None or not elementwise:
        return cell
    return replace(cell, title=f"{cell.title}; plus {full(elementwise)} elementwise")


def _executed_cell(row: LedgerRow) -> Cell:
    """Return the executed FLOPs; next to a measured count, the one that its kernels' rules give."""
    cell, measured, derived = figure_cell(row.counted, "FLOP"), row.counted, row.derived
    if (
        derived is None
        or derived.value is None
        or measured.state == "derived"
        or not measured.value
    ):
        return cell
    error = f", {derived.value / measured.value - 1:+.1%} of the executed FLOPs"
    rule = (
        f"derived {mark(derived)}{full(derived.value, 'FLOP')}"
        f"{'' if derived.lower_bound else error}: {why(derived)}"
    )
    return replace(cell, title="; ".join(filter(None, (cell.title, rule))))


def _ratio_cell(row: LedgerRow) -> Cell:
    executed, estimate = row.counted, row.paper
    if executed.value is None:
        return nothing(executed.reason or "not measured")
    numbers = f"{full(executed.value)} / {{}}{full(estimate.value or 0)} = {{}}"
    if row.ratio is not None:
        title = numbers.format("", significant(row.ratio, 5))
        text = mark(executed) + ratio(row.ratio)
        return Cell(text, title, style_of(executed), rounded(row.ratio))
    if (most := row.ratio_at_most) is not None:
        title = numbers.format("at least ", f"at most {significant(most, 5)}")
        return Cell(f"≤ {ratio(most)}", f"{title}; {why(estimate)}", "est", rounded(most))
    if estimate.lower_bound:
        return nothing("executed and estimated FLOPs are lower bounds, so there is no ratio")
    return nothing(
        "no estimate to compare with"
        if estimate.value is None
        else "the estimate is 0, so there is no ratio"
    )


def _explain_missing_rate(row: LedgerRow) -> str:
    if row.time is None:
        return row.time_reason or "not timed"
    if not row.trusted:
        return "the only time is under ncu, at locked clocks"
    if row.paper.lower_bound:
        return "the estimate is a lower bound"
    return "no estimate" if row.paper.value is None else "the estimate is 0 FLOPs"
