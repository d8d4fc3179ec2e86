"""The FLOPs ledger as groups of lines: one group per layer and pass, one line per batch size; as a
matrix of layers x batch sizes; and the cells of a line, which trails show too. 1 multiply-add = 2
FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import log, log2

from perfctl.orchestrator.counts.figure import sum_figures
from perfctl.orchestrator.counts.kernels.layers import SHARED_OUT
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.causes.judge import StudyCauses
from perfctl.orchestrator.ledger.ledger import (
    LedgerRow,
)
from perfctl.orchestrator.ledger.timing import (
    ALL_STEPS,
    KERNELS_OF_CAPTURE,
    KERNELS_OF_STEPS,
    TimeSpread,
    is_capture_treated_as_single_step,
)
from perfctl.orchestrator.ledger.unattributed import explain_unattributed_time
from perfctl.orchestrator.report.ledger import build_row_evidence_trail_key
from perfctl.orchestrator.report.ledger.causes import (
    DescribedCause,
    compute_abs_log_ratio,
    describe_cause_with_fix,
    describe_causes_by_rule,
    describe_unexplained_difference_share,
)
from perfctl.orchestrator.report.ledger.roofline import build_bound_cell
from perfctl.orchestrator.report.numbers import (
    format_integer_or_six_digits,
    format_percent,
    format_ratio,
    format_significant,
    format_time,
    round_to_six_significant_digits,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    amount_cell,
    choose_figure_style,
    explain_figure_state,
    figure_cell,
    format_state_sign,
    join_notes,
    mark_cell_estimated,
    mark_column_if_cells_show_unit,
    missing_cell,
    share_cell,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.records.report import pluralize_count
from perfctl.records.run import Point, format_sweep_point

MINOR_SHARE, FOLD_FROM = 0.01, 3
"""Groups without multiply-adds below this share are folded if there are as many."""
LONGEST_OPEN = 40
"""Layers and passes of a table that is open when the HTML report opens."""
CAUSE_RATIO_MIN = 1.02
"""Ratio, or its reciprocal, from which on the table names causes; the reasons name all."""
EXPLAINED_MIN = 0.25
"""Share of a difference from which on the table names a cause; the reasons have all."""
CONSTANT_MOVES = "constant moves"
"""Rule that holds for most rows of a step; the table states it once."""
RATIO_LOG2_MAX = 2.0
"""log2 of the ratio with the fullest color: a quarter, or four times."""
SHARE_MAX = 0.3
"""Share of the step with the fullest color."""
TOTALS = {KERNELS_OF_STEPS: "kernel time of a step", ALL_STEPS: "time of a step"}
"""What shares are of -> what the totals are, each of which is a median; others have one name."""
NAMES_MAX = 3
"""Rows that a note names; of more it states the number."""
LOCKED_CLOCKS = "under ncu at locked clocks: not a realistic time"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One batch size of a group."""

    batch: Point
    share: float | None
    """Of the time of all steps."""
    cells: Mapping[str, Cell]
    """Label of a column -> its cell."""
    key: str = ""
    """Key of its trail; "" if it has none."""
    ratio: float | None = None
    deviation: float = 0.0
    """Logarithm of the ratio, 0 or more; 0 also if more FLOPs may have been executed."""
    causes: tuple[str, ...] = ()
    """Rules that explain a part of the difference, or why there is no count."""

    @property
    def bar(self) -> tuple[float, float] | None:
        """Left edge and width of the ratio's bar in percent: it spans 1/4 to 4 and starts at 1 in
        the middle. None without a ratio."""
        if not self.ratio:
            return None
        reach = max(-2.0, min(2.0, log2(self.ratio))) * 25
        return round(50 + min(reach, 0), 1), round(abs(reach), 1)

    def choose_tint(self, measure: str) -> tuple[str, int]:
        """Return the color of a figure in the matrix, and its depth from 0 to 100: "lo" below 1,
        "hi" above, "part" for a share; "" without a color."""
        if measure == "ratio" and self.ratio:
            depth = min(abs(log2(self.ratio)) / RATIO_LOG2_MAX, 1.0)
            return "lo" if self.ratio < 1 else "hi", round(depth * 100)
        if measure == "share" and self.share:
            return "part", round(min(self.share / SHARE_MAX, 1.0) * 100)
        return "", 0


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """One layer in one pass."""

    layer: str
    direction: str
    lines: tuple[LedgerLine, ...]
    kind: str | None = None
    note: str | None = None
    causes: tuple[DescribedCause, ...] = ()
    unexplained: str | None = None
    """The unexplained share of the difference in a sentence; None if there is none."""
    is_minor: bool = False
    """Without multiply-adds and hardly any time: folded away until it is asked for."""
    is_unattributed: bool = False

    @property
    def name(self) -> str:
        return f"{self.layer} {self.direction}".strip()


@dataclass(frozen=True, slots=True)
class LedgerView:
    """The complete table."""

    axis: str
    """Label of the column of batch sizes, which ``columns`` lacks if no batch size is known."""
    columns: tuple[Column, ...]
    groups: tuple[LedgerGroup, ...]
    basis: str
    """What the times are, in a line."""
    notes: tuple[str, ...]
    sweep: tuple[DescribedCause, ...]
    fold: str | None
    """The folded groups in words; None if nothing is folded."""

    @property
    def is_long(self) -> bool:
        """Whether the table is folded, because it would be several screens tall."""
        return len(self.groups) > LONGEST_OPEN


def build_ledger_view(analysis: Analysis) -> LedgerView | None:
    """Return the ledger without columns that have no value; None without rows."""
    rows = analysis.ledger.rows
    if not rows:
        return None
    explained: dict[str, str] = {}
    groups = [
        _build_ledger_group(list(same), analysis, explained)
        for _, same in groupby(rows, key=lambda row: (row.layer_label, row.direction))
    ]
    if analysis.ledger.unattributed:
        groups.append(_build_unattributed_group(analysis))
    minor = [group for group in groups if group.is_minor]
    if not FOLD_FROM <= len(minor) < len(groups):
        groups, minor = [replace(group, is_minor=False) for group in groups], []
    total = " or ".join(sorted({row.whole for row in rows if row.whole})) or ALL_STEPS
    fold = f"{len(minor)} rows without multiply-adds, below {MINOR_SHARE:.0%} of the {total}"
    basis = _describe_time_basis(analysis)
    shares = f"Shares of the {total}. " if any(row.share is not None for row in rows) else ""
    mark = " ~ approximate." if any(row.shared for row in rows) else ""
    columns = []
    for column in _build_ledger_columns(total, basis, analysis.study.axis_name):
        cells = [line.cells[column.label] for group in groups for line in group.lines]
        if any(cell.style != "no" for cell in cells):
            columns.append(mark_column_if_cells_show_unit(column, cells))
    return LedgerView(
        analysis.study.axis_name,
        tuple(columns),
        tuple(groups),
        f"{basis}. {shares}1 multiply-add = 2 FLOPs.{mark}",
        tuple(_list_ledger_notes(analysis)),
        tuple(map(describe_cause_with_fix, analysis.judgement.sweep)),
        fold if minor else None,
    )


def _build_ledger_columns(share_basis: str, time_basis: str, axis_name: str) -> list[Column]:
    """Return the columns with their definitions. ``share_basis``: what the shares are of;
    ``time_basis``: what the times are; ``axis_name``: what varies."""
    estimate = "from the shapes of each layer; 1 multiply-add = 2 FLOPs; without elementwise work"
    bound = "compute, memory or launch; executed FLOPs / time / the attainable rate"
    return [
        Column(axis_name),
        Column("estimate", "FLOP", note=estimate),
        Column("executed", "FLOP", note="executed, from SASS counters (ncu), per step"),
        Column("ratio", note="1 means that the hardware executed the estimated FLOPs"),
        time_column("time", time_basis),
        Column("share", note=f"of the {share_basis}"),
        Column("estimate / time", "FLOP/s", note="algorithms with fewer FLOPs may exceed the peak"),
        text_column("bound", bound),
    ]


def _describe_time_basis(analysis: Analysis) -> str:
    """Return what the times are: "Median per step: kernels, torch (CUPTI)"."""
    rows = analysis.ledger.rows
    bases = "; ".join(sorted({row.basis for row in rows if row.basis}))
    if any(is_capture_treated_as_single_step(run) for run in analysis.study.runs):
        return f"Complete capture, without steps: {bases or 'not timed'}"
    if not bases:
        return "Per step, without times"
    steps = max((row.time.over for row in rows if row.time), default=1)
    mean = f"Mean of {steps} steps, because no launch states its step"
    return f"{'Median per step' if steps == 1 else mean}: {bases}"


def _list_ledger_notes(analysis: Analysis) -> Iterator[str]:
    """Yield where the figures come from, and why others are missing."""
    rows = analysis.ledger.rows
    if any(run.batch_size is None for run in analysis.study.runs) and any(
        row.calls for row in rows
    ):
        yield (
            "Estimated FLOPs come from the operators' shapes in the report; a row without a module "
            "is named by its operator."
        )
    if not analysis.ledger.has_executed_flops:
        figures = [row.executed for row in rows if row.executed.reason]
        states = " or ".join(sorted({figure.state.replace("_", " ") for figure in figures}))
        reasons = "; ".join(sorted({str(figure.reason) for figure in figures})[:2])
        yield f"Executed FLOPs: {states}: {reasons}."
    rules = (row.executed.rule for row in rows if row.executed.value is not None)
    if parts := dict.fromkeys(part for rule in rules if rule for part in rule.split("; ")):
        yield f"Rules of the executed FLOPs: {'; '.join(parts)}."
    if any(row.shared for row in rows):
        yield f"~ marks approximate values: {SHARED_OUT}."
    if reason := analysis.roofline.peaks.reason:
        yield f"Bound unknown: {reason}."


def _build_ledger_group(
    rows: Sequence[LedgerRow], analysis: Analysis, first_row_by_rule: dict[str, str]
) -> LedgerGroup:
    """Return one layer and pass. ``first_row_by_rule``: rule -> the first row that it holds for, at
    which a rule without a number is explained."""
    first, causes = rows[0], []
    for cause in describe_causes_by_rule(rows, analysis.judgement):
        name = first_row_by_rule.setdefault(cause.rule, first.name)
        is_repeated = name != first.name and not cause.numbers
        if cause.rule == CONSTANT_MOVES and is_repeated:
            continue
        names = {
            row.name
            for row in analysis.ledger.rows
            if any(
                item.rule == CONSTANT_MOVES
                for item in analysis.judgement.get_row_causes(*row.key).causes
            )
        } - {first.name}
        if cause.rule == CONSTANT_MOVES and names:
            also = f"{pluralize_count(len(names), 'more row', 'has', 'have')} such instructions"
            cause = replace(cause, elsewhere=join_notes(cause.elsewhere, also))
        causes.append(replace(cause, sentence=f"See {name}.", fix="") if is_repeated else cause)
    is_small = all(
        row.estimated.value == 0 and not row.executed.value and (row.share or 0) < MINOR_SHARE
        for row in rows
    )
    return LedgerGroup(
        first.layer_label,
        first.direction_label,
        tuple(_build_ledger_line(row, analysis) for row in rows),
        first.kind,
        "; ".join(_list_layer_notes(rows)) or None,
        tuple(causes),
        describe_unexplained_difference_share(rows, analysis.judgement),
        is_small and not causes,
    )


def _list_layer_notes(rows: Sequence[LedgerRow]) -> Iterator[str]:
    first = rows[0]
    if not first.calls and first.layer:
        yield str(first.estimated.reason)
    if missing := dict.fromkeys(
        call.formula or call.kind for row in rows for call in row.calls if call.flops is None
    ):
        bound = "the estimate is a lower bound: " if first.estimated.lower_bound else ""
        yield f"{bound}{'; '.join(missing)}"
    if guessed := max(row.guessed for row in rows):
        yield f"perfctl guessed the layer for {format_percent(guessed)} of its launches"
    if shared := max(row.shared for row in rows):
        yield (
            f"{format_percent(shared)} of its launches are parts of fused kernels, divided by "
            "their operations (approximate)"
        )


def _build_ledger_line(row: LedgerRow, analysis: Analysis) -> LedgerLine:
    # more may have been executed
    is_open = row.executed.lower_bound and row.ratio is not None and row.ratio < 1
    return LedgerLine(
        row.batch,
        row.share,
        build_ledger_row_cells(row, analysis),
        build_row_evidence_trail_key(row.layer_label, row.direction, row.batch),
        row.ratio,
        0.0 if is_open else compute_abs_log_ratio(row),
        _select_explaining_rules(row, analysis.judgement),
    )


def _select_explaining_rules(row: LedgerRow, judgement: StudyCauses) -> tuple[str, ...]:
    """Return the rules that explain most of a difference; without a ratio, those that explain
    why."""
    causes = judgement.get_row_causes(*row.key).causes
    if row.ratio is None:
        return tuple(cause.rule for cause in causes)
    if compute_abs_log_ratio(row) < log(CAUSE_RATIO_MIN):
        return ()
    explaining = [cause.rule for cause in causes if (cause.explained or 0) >= EXPLAINED_MIN]
    return tuple(explaining or (cause.rule for cause in causes if cause.factor is None))


def _build_unattributed_group(analysis: Analysis) -> LedgerGroup:
    items, axis = analysis.ledger.unattributed, analysis.study.axis_name
    lines, causes = [], ""
    for item in items:
        absent = missing_cell("not a layer")
        cells = dict.fromkeys(("estimate", "ratio", "estimate / time", "bound"), absent) | {
            axis: build_batch_or_parameter_cell(item.batch, axis),
            "executed": figure_cell(item.executed, "FLOP"),
            "time": time_cell(item.time.median, note=item.basis),
            "share": share_cell(item.share),
        }
        lines.append(LedgerLine(item.batch, item.share, cells))
        run = analysis.study.get_batch(item.batch).timing_run
        parts = []
        for cause in explain_unattributed_time(run) if run else ():
            part = f"{cause.text} {format_percent(cause.share * item.share)}"
            if cause.launches is not None:
                part += f" in {pluralize_count(cause.launches, 'launch')}"
            parts.append(part)
        batch = "" if item.batch is None else f"{format_sweep_point(item.batch)}: "
        causes += f"; {batch}{', '.join(parts)}" if parts else ""
    note = f"the part of the {items[0].whole} that is not attributed to a layer{causes}"
    return LedgerGroup("not attributed", "", tuple(lines), note=note, is_unattributed=True)


def build_ledger_row_cells(row: LedgerRow, analysis: Analysis) -> dict[str, Cell]:
    """Return the cells of one layer, pass and batch size by the labels of their columns."""
    reason = row.time_reason or "not timed"
    spent, share = missing_cell(reason), share_cell(row.share, reason)
    if row.time is not None:
        note = f"{describe_time_spread(row.time, row.whole)}; {row.basis}"
        spent = time_cell(row.time.median, note=note)
        if not row.trusted:
            spent = replace(spent, title=f"{spent.title}; {LOCKED_CLOCKS}", style="est")
            share = replace(share, title=LOCKED_CLOCKS, style="est")
        if row.shared:
            spent = mark_cell_estimated(spent, SHARED_OUT)
            share = mark_cell_estimated(share, SHARED_OUT)
    point = analysis.roofline.get_ledger_row_point(row.batch, row.layer, row.direction)
    estimate = figure_cell(row.estimated, "FLOP")
    elementwise = sum(call.elementwise_flops or 0 for call in row.calls)
    if row.estimated.value is not None and elementwise:
        addition = f"plus {format_integer_or_six_digits(elementwise)} elementwise"
        estimate = replace(estimate, title=f"{estimate.title}; {addition}")
    return {
        analysis.study.axis_name: build_batch_or_parameter_cell(
            row.batch, analysis.study.axis_name
        ),
        "estimate": estimate,
        "executed": _build_executed_cell(row),
        "ratio": _build_ratio_cell(row),
        "time": spent,
        "share": share,
        "estimate / time": amount_cell(row.achieved, "FLOP/s", _explain_missing_flop_rate(row)),
        "bound": build_bound_cell(point, analysis.roofline),
    }


def build_batch_or_parameter_cell(point: Point, axis: str) -> Cell:
    """Return the batch size, or the value of ``axis``; a dash for a report that does not state
    it."""
    if point is None:
        return missing_cell("the report does not state it")
    return text_cell(point if isinstance(point, int) else point.removeprefix(f"{axis}="))


def describe_time_spread(spread: TimeSpread, share_basis: str | None) -> str:
    """Return what a time is of its steps: "24.1 ms to 26.0 ms over 5 steps"."""
    if share_basis == KERNELS_OF_CAPTURE:
        return "complete capture"
    if spread.over > 1:
        return f"mean of {spread.over} steps"
    if spread.count == 1:
        return "one step"
    return f"{format_time(spread.low)} to {format_time(spread.high)} over {spread.count} steps"


def _build_executed_cell(row: LedgerRow) -> Cell:
    """Return the executed FLOPs; next to a measured count, the one that its kernels' rules give."""
    cell, measured, derived = figure_cell(row.executed, "FLOP"), row.executed, row.derived
    if (
        derived is None
        or derived.value is None
        or measured.state == "derived"
        or not measured.value
    ):
        return cell
    error = f", {derived.value / measured.value - 1:+.1%} of the executed FLOPs"
    rule = (
        f"derived {format_state_sign(derived)}{format_integer_or_six_digits(derived.value, 'FLOP')}"
        f"{'' if derived.lower_bound else error}: {explain_figure_state(derived)}"
    )
    return replace(cell, title=join_notes(cell.title, rule))


def _build_ratio_cell(row: LedgerRow) -> Cell:
    executed, estimate = row.executed, row.estimated
    if executed.value is None:
        return missing_cell(executed.reason or "not measured")
    numbers = (
        f"{format_integer_or_six_digits(executed.value)} / "
        f"{{}}{format_integer_or_six_digits(estimate.value or 0)} = {{}}"
    )
    if row.ratio is not None:
        title = numbers.format("", format_significant(row.ratio, 5))
        is_bound = estimate.upper_bound and not executed.lower_bound
        text = ("≥ " if is_bound else "") + format_state_sign(executed) + format_ratio(row.ratio)
        return Cell(
            text, title, choose_figure_style(executed), round_to_six_significant_digits(row.ratio)
        )
    if (most := row.ratio_at_most) is not None:
        title = numbers.format("at least ", f"at most {format_significant(most, 5)}")
        return Cell(
            f"≤ {format_ratio(most)}",
            f"{title}; {explain_figure_state(estimate)}",
            "est",
            round_to_six_significant_digits(most),
        )
    if estimate.lower_bound:
        return missing_cell("executed and estimated FLOPs are lower bounds, so there is no ratio")
    return missing_cell(
        "no estimate to compare with"
        if estimate.value is None
        else "the estimate is 0, so there is no ratio"
    )


def _explain_missing_flop_rate(row: LedgerRow) -> str:
    if row.time is None:
        return row.time_reason or "not timed"
    if not row.trusted:
        return "the only time is under ncu, at locked clocks"
    if row.estimated.lower_bound:
        return "the estimate is a lower bound"
    return "no estimate" if row.estimated.value is None else "the estimate is 0 FLOPs"


@dataclass(frozen=True, slots=True)
class LedgerMatrix:
    """The ledger at a glance, without the folded groups: layers x batch sizes, with one figure of a
    line in each cell."""

    batches: Mapping[Point, str]
    """Batch size -> its head."""
    measures: Mapping[str, str]
    """Column of the ledger -> its description; the first one is shown first."""
    totals: tuple[tuple[Cell, ...], ...]
    """For each batch size, a cell for each measure, over all rows of the ledger."""
    total_note: str
    """What the totals are of, and which rows they do not include."""


def build_ledger_matrix(analysis: Analysis) -> LedgerMatrix | None:
    """Return the matrix of the ledger; None if nothing was measured, derived or timed."""
    rows = analysis.ledger.rows
    total = next((row.whole for row in rows if row.whole and row.share is not None), None)
    states = {row.executed.state for row in rows if row.ratio is not None}
    measures, sentences = {}, []
    if states:
        measures["ratio"] = f"{'derived' if states == {'derived'} else 'executed'} / estimated"
        sentences.append(_describe_total_ratio(rows))
    if total:
        measures["share"] = f"share of the {total}"
        sentences.append(f"Total of the shares: {TOTALS.get(total, total)}.")
    if not measures:
        return None
    used = {row.batch for row in rows}
    batches = [point for point in (None, *analysis.study.points) if point in used]
    totals = []
    for batch in batches:
        ratio_cell = build_total_ratio_cell(
            [row for row in rows if row.batch == batch], lists_missing_rows=True
        )
        time, times = missing_cell("not timed"), analysis.study.get_batch(batch).layer_times
        if times is not None:
            note = f"{describe_time_spread(times.total, times.whole)}; {times.basis}"
            time = time_cell(times.total.median, note=note)
            time = time if times.trusted else replace(time, style="est")
        cells = {"ratio": ratio_cell, "share": time}
        totals.append(tuple(cells[name] for name in measures))
    return LedgerMatrix(
        {batch: "as recorded" if batch is None else str(batch) for batch in batches},
        measures,
        tuple(totals),
        " ".join(sentences),
    )


def _select_rows_with_estimated_work(rows: Iterable[LedgerRow]) -> list[LedgerRow]:
    """Return rows whose estimate is above 0 or unknown."""
    return [row for row in rows if row.estimated.value != 0 or row.estimated.lower_bound]


def build_total_ratio_cell(rows: Sequence[LedgerRow], *, lists_missing_rows: bool = False) -> Cell:
    """Return executed / estimated over the rows that have both; a dash if there is none.
    ``lists_missing_rows``: with the rows that are missing, and the state of the sum, in the
    title."""
    complete = [row for row in rows if row.ratio is not None]
    if not complete:
        reasons = (row.executed.reason for row in rows if row.executed.reason)
        none = "no layer has both executed FLOPs and a complete estimate"
        return missing_cell(next(reasons, none))
    work = _select_rows_with_estimated_work(rows)
    executed = sum_figures(row.executed for row in complete)
    estimate = sum(row.estimated.value or 0 for row in complete)
    value = (executed.value or 0) / estimate
    missing = ", ".join(row.name for row in work if row.ratio is None)
    is_plain = executed.state == "counted" and not executed.lower_bound
    facts = (
        f"{format_integer_or_six_digits(executed.value or 0)} / "
        f"{format_integer_or_six_digits(estimate)} over "
        f"{len(complete)} of {len(work)} layers and passes",
        f"not included: {missing}" if missing and lists_missing_rows else "",
        explain_figure_state(executed) if lists_missing_rows and not is_plain else "",
    )
    title = "; ".join(filter(None, facts))
    return Cell(
        format_state_sign(executed) + format_ratio(value),
        title,
        choose_figure_style(executed),
        round_to_six_significant_digits(value),
    )


def _describe_total_ratio(rows: Sequence[LedgerRow]) -> str:
    work = _select_rows_with_estimated_work(rows)
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
