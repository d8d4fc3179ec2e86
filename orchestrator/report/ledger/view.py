"""The ledger as an answer: a heading, findings, one table, and two lines below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import heading
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.ledger.page import (
    FOLD_FROM,
    MINOR_SHARE,
    Group,
    LedgerView,
    Line,
    explain_reason,
    ledger_view,
)
from perfctl.orchestrator.report.ledger.parts import times_table, variants_table
from perfctl.orchestrator.report.ledger.phases import (
    has_repeats,
    phase_tables,
    phases_of,
    short_parts,
)
from perfctl.orchestrator.report.numbers import full, si
from perfctl.orchestrator.report.page import about, usage
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.ranks import rank_findings, ranks_tables, talks
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    nothing,
    number_cell,
    text_cell,
    with_values,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

GAP_RATIO_MIN = 1.1
"""Ratio, or its reciprocal, from which on a batch size is shown though it is not among the first,
middle and last."""
LONG_NAME = 16
"""Characters of a layer's name from which on a terminal shows its last parts, which tell it from
the others."""
WHOLE_FINDINGS = 3
"""Findings with their details; the others are cut to their first sentence."""
TOO_WIDE = "Collectives of all ranks"
"""The table that no terminal has room for."""


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """How much of a ledger is shown."""

    is_whole: bool = True
    """With findings and the tables beside it; False: one layer, with the reasons of its rows."""
    has_all_rows: bool = False
    has_all_batches: bool = False
    is_by_time: bool = True
    """Rows with the largest share of the time come first; False: in the order of the network."""
    is_explained: bool = False
    is_by_block: bool = False
    """Each repeated block of a language model is a row of its own."""
    hint: str = "More"
    """Before the options of ``perfctl ledger`` that show more."""
    is_document: bool = False
    """For Markdown and LaTeX: every table, and a row for each batch size."""


DOCUMENT = LedgerShape(has_all_rows=True, has_all_batches=True, is_explained=True, is_document=True)


def ledger_views(analysis: Analysis, shape: LedgerShape) -> Iterator[View]:
    """Yield what a study has: findings, phases and passes, the ledger, variants."""
    study = analysis.study
    parts = phases_of(analysis, each=shape.is_by_block) if shape.is_whole else []
    facts = [
        heading(study),
        _batches(study.batches),
        about.device_text(study),
        about.tools(study.runs),
    ]
    title = " · ".join(filter(None, facts))
    if not shape.is_whole:
        yield View(title)
        yield from entries_views(analysis, shape)
        return
    stated = findings(analysis)
    runs = study.runs
    tables = (usage.phases_table(runs), usage.passes_table(runs), *phase_tables(parts))
    yield View(
        title,
        facts=tuple(_facts(analysis, stated)),
        findings=tuple(
            finding.text if shape.is_explained or number < WHOLE_FINDINGS else finding.first
            for number, finding in enumerate(item for item in stated if not item.warning)
        ),
        warnings=tuple(finding.text for finding in stated if finding.warning),
        tables=tuple(filter(None, tables)),
    )
    if shape.is_document or not has_repeats(parts):
        yield from entries_views(analysis, shape)
    elif shape.is_explained:
        yield View("", notes=_coverage(analysis))
    yield View("", tables=tuple(filter(None, (variants_table(analysis), times_table(analysis)))))


def entries_views(analysis: Analysis, shape: LedgerShape) -> Iterator[View]:
    """Yield the rows of a ledger, then the reasons for their differences where these are asked
    for."""
    view = ledger_view(analysis, details=False)
    if view is None:
        return
    table, notes = ledger_table(view, shape)
    yield View("", tables=(table,), notes=tuple(notes))
    if shape.is_explained or not shape.is_whole:
        reasons = tuple(explain_rows(view))
        basis = (*view.notes, *_coverage(analysis))
        yield View("Why" if reasons else "", findings=reasons, notes=basis)


def _coverage(analysis: Analysis) -> tuple[str, ...]:
    """Return how much of the kernel time has a module, and how it was found."""
    placed = (usage.placed_text(run) for run in analysis.study.runs)
    return tuple(dict.fromkeys(f"{text}." for text in placed if text))


def _batches(sizes: Sequence[int]) -> str | None:
    if len(sizes) == 1:
        return f"batch {sizes[0]}"
    return f"{len(sizes)} batch sizes" if sizes else None


def _facts(analysis: Analysis, stated: Sequence[Finding]) -> Iterator[str]:
    if not stated:
        yield "No findings."
    phases = (usage.phase_text(run) for run in analysis.study.runs)
    yield from dict.fromkeys(f"{text[:1].upper()}{text[1:]}." for text in phases if text)


def phase_views(
    analyses: Iterable[Analysis], phase: str, *, is_by_block: bool = False
) -> Iterator[View]:
    """Yield one phase (prefill, decode or mixed) of every study that has it, by part of the
    model."""
    for analysis in analyses:
        phases = phases_of(analysis, each=is_by_block)
        if tables := phase_tables([one for one in phases if one.phase == phase]):
            yield View(heading(analysis.study), tables=tuple(filter(None, tables)))


def ranks_views(runs: Iterable[Run], shape: LedgerShape) -> Iterator[View]:
    """Yield the tables and findings of each job of several ranks."""
    for talk in talks(runs):
        tables = ranks_tables(talk)
        if not shape.is_document:
            tables = tuple(table for table in tables if table.caption != TOO_WIDE)
        yield View(
            "Ranks",
            findings=tuple(finding.text for finding in rank_findings(talk)),
            tables=tuple(filter(None, tables)),
        )


def ledger_table(view: LedgerView, shape: LedgerShape) -> tuple[Table, list[str]]:
    """Return the rows of a ledger as one table, and at most two lines below it.

    Where something was counted or derived, or there is one batch size, a row is a layer, pass and
    batch size; else a row is a layer and pass, with its time and share at each batch size.
    """
    groups = list(view.groups)
    if not shape.is_document:
        short = short_parts([group.layer for group in groups])
        groups = [
            replace(group, layer=short[group.layer].removeprefix("aten::"))
            if len(group.layer) > LONG_NAME
            else group
            for group in groups
        ]
    if shape.is_by_time and any(_largest_share(group) for group in groups):
        groups.sort(key=lambda group: (group.is_left_over, -_largest_share(group)))
    hidden = [group for group in groups if _is_small(group)]
    if shape.has_all_rows or not shape.is_whole or not FOLD_FROM <= len(hidden) < len(groups):
        hidden = []
    shown = [group for group in groups if group not in hidden]
    sizes = sorted({line.batch for group in groups for line in group.lines if line.batch})
    some = sizes
    if shape.is_whole and not shape.has_all_batches and len(sizes) > 3:
        some = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    labels = [column.label for column in view.columns]
    is_by_batch = "executed" in labels or "time" not in labels or len(sizes) < 2
    if is_by_batch or shape.is_document:
        those = some if len(some) < len(sizes) else None
        table = _by_batch(view, shown, those, shape.is_document)
    else:
        table = _across_batches(view, shown, some)
    hints = {
        f"--all ({len(hidden)} rows below {whole_percent(MINOR_SHARE)})": bool(hidden),
        "--wide (all batch sizes)": len(some) < len(sizes),
        "--explain (reasons)": shape.is_whole and not shape.is_explained,
    }
    more = ", ".join(hint for hint, is_given in hints.items() if is_given)
    notes = [view.basis, *([f"{shape.hint}: {more}."] if more else [])]
    return replace(table, caption="Ledger" if shape.is_document else ""), notes


def _largest_share(group: Group) -> float:
    return max((line.share or 0.0 for line in group.lines), default=0.0)


def _is_small(group: Group) -> bool:
    """Return whether all its shares are known and small, or it has neither work nor a share."""
    shares = [line.share for line in group.lines]
    return group.minor or all(share is not None and share < MINOR_SHARE for share in shares)


def _by_batch(
    view: LedgerView, groups: Sequence[Group], sizes: Sequence[int] | None, is_document: bool
) -> Table:
    """Return a row for each layer, pass and batch size: of ``sizes``, and where the gap is
    widest."""
    has_sizes = len({line.batch for group in groups for line in group.lines}) > 1
    left_out = {"achieved"} if has_sizes or is_document else {"achieved", "batch"}
    shown = [place for place, column in enumerate(view.columns) if column.label not in left_out]
    columns = [
        Column("layer", style="code"),
        Column("pass", style="text"),
        *(
            replace(view.columns[place], is_optional=view.columns[place].label == "bound")
            for place in shown
        ),
        Column("cause", style="word"),
    ]
    far = log(GAP_RATIO_MIN)
    rows: list[list[Cell]] = []
    for group in groups:
        widest = max(group.lines, key=lambda line: line.gap)
        for line in group.lines:
            is_widest = line is widest and line.gap >= far
            if sizes is None or line.batch in sizes or is_widest:
                figures = [_figure(line, place, view.columns[place]) for place in shown]
                causes = ", ".join(line.causes) or ("unexplained" if line.gap >= far else "")
                rows.append([*_names(group), *figures, Cell(causes, style="" if causes else "no")])
    kept = with_values(rows)
    cells = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table(tuple(columns[place] for place in kept), cells, "", is_dense=True)


def _figure(line: Line, place: int, column: Column) -> Cell:
    cell = line.cells[place]
    if column.label != "share" or line.share is None:
        return cell
    return replace(cell, text=whole_percent(line.share))


def _across_batches(view: LedgerView, groups: Sequence[Group], sizes: Sequence[int]) -> Table:
    """Return a row for each layer and pass, with time and share at each of these batch sizes."""
    labels = [column.label for column in view.columns]
    time_at = labels.index("time")
    columns = [
        Column("layer", style="code"),
        Column("pass", style="text"),
        Column("FLOPs/sample", is_optional=True, note="estimated; 1 multiply-add = 2 FLOPs"),
        *(Column(f"batch {size}", base="ns") for size in sizes),
    ]
    rows = []
    for group in groups:
        of_size = {line.batch: line for line in group.lines}
        timed = [_timed(of_size.get(size), time_at) for size in sizes]
        rows.append([*_names(group), _per_sample(group, labels), *timed])
    return Table(tuple(columns), tuple(map(tuple, rows)), "")


def _names(group: Group) -> tuple[Cell, Cell]:
    return text_cell(group.layer), text_cell(group.direction)


def _timed(line: Line | None, at: int) -> Cell:
    """Return "12.1 ms  21%"."""
    if line is None or line.cells[at].style == "no":
        return nothing("not timed") if line is None else line.cells[at]
    cell = line.cells[at]
    share = "" if line.share is None else whole_percent(line.share)
    return Cell(
        f"{cell.text} {cell.unit:<2}{share:>4}",
        cell.title,
        cell.style,
        cell.value,
    )


def whole_percent(share: float) -> str:
    """Return 0.2134 as "21%"; "<1%" for what would be 0%."""
    return "<1%" if 0 < share < 0.005 else f"{share * 100:.0f}%"


def _per_sample(group: Group, labels: Sequence[str]) -> Cell:
    """Return the estimated FLOPs of one sample, by the smallest batch size that has them."""
    if "estimate" not in labels:
        return nothing("no estimate")
    at = labels.index("estimate")
    known = [line for line in group.lines if isinstance(line.cells[at].value, int | float)]
    if not known:
        return group.lines[0].cells[at]
    cell, batch = known[0].cells[at], known[0].batch or 1
    value = float(cell.value or 0) / batch
    return number_cell(
        si(value),
        full(value, "FLOP"),
        value,
        style=cell.style,
        mark="≥ " if cell.is_lower_bound else "",
        is_lower_bound=cell.is_lower_bound,
    )


def explain_rows(view: LedgerView) -> Iterator[str]:
    """Yield the reasons for the differences, those of the sweep first, and what stays open."""
    for reason in view.sweep:
        yield explain_reason(reason)
    for group in view.groups:
        name = f"{group.layer} {group.direction}".strip()
        for reason in group.reasons:
            yield explain_reason(reason, name)
        if group.open:
            yield f"{name}: {group.open[0].lower()}{group.open[1:]}"
