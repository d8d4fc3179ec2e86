"""One run, the runs of a sweep, and the FLOPs ledger as answers: the same findings and tables as in
the HTML report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import log

from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.prepared import format_study_heading, group_into_studies
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.ledger.causes import RATIO_MIN
from perfctl.orchestrator.report.ledger.page import (
    FOLD_FROM,
    MINOR_SHARE,
    LedgerGroup,
    LedgerLine,
    LedgerView,
    build_ledger_view,
)
from perfctl.orchestrator.report.ledger.parts import (
    build_cpu_time_vs_peak_minimum_table,
    build_variant_comparison_table,
    find_last_test_accuracy,
)
from perfctl.orchestrator.report.ledger.phases import (
    build_phase_tables,
    has_repeated_blocks,
    list_prefill_decode_phases,
    shorten_module_paths,
)
from perfctl.orchestrator.report.ledger.ranks import (
    build_communication_tables,
    find_communication_costs,
    list_job_communications,
)
from perfctl.orchestrator.report.ledger.roofline import format_whole_percent
from perfctl.orchestrator.report.numbers import format_integer_or_six_digits, format_si, format_time
from perfctl.orchestrator.report.page import about, usage
from perfctl.orchestrator.report.page.chapters import RunGroup, list_terminal_tables
from perfctl.orchestrator.report.page.kernels import build_source_line_table
from perfctl.orchestrator.report.page.records import shorten_findings
from perfctl.orchestrator.report.page.study import build_ranges_table, build_sweep_table
from perfctl.orchestrator.report.studies.inference_fields import is_timed_image_inference
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_complete_table,
    build_table,
    missing_cell,
    name_column,
    number_cell,
    text_cell,
    text_column,
    text_columns,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.report import SourceLine
from perfctl.records.run import Point, Run, format_sweep_point, get_batch_size_sort_key

ROWS, SOURCE_ROWS = 12, 20
"""Of a table on a terminal, before "and N more"."""
LONG_NAME = 16
"""Characters of a layer's name from which on a terminal shows its last parts, which tell it from
the others."""
TOO_WIDE = "Collectives of all ranks"
"""The table that no terminal has room for."""


OPERATOR_NAME = 15
"""Characters of an operator with shapes that 80 columns have room for."""


@dataclass(frozen=True, slots=True)
class LedgerViewOptions:
    """How much of a ledger is shown."""

    is_whole: bool = True
    """With findings and the tables next to it; False: one layer, with the causes of its rows."""
    has_all_rows: bool = False
    has_all_batches: bool = False
    is_by_time: bool = True
    """Rows with the largest share of the time come first; False: in the order of the network."""
    is_explained: bool = False
    is_by_block: bool = False
    """Each repeated block of a language model has a separate row."""
    hint: str = "More"
    """Before the options of ``perfctl ledger`` that show more."""
    is_document: bool = False
    """For Markdown and LaTeX: every table, and a row for each batch size."""


OF_RUN = LedgerViewOptions(hint="More in perfctl ledger")
DOCUMENT = LedgerViewOptions(
    has_all_rows=True, has_all_batches=True, is_explained=True, is_document=True
)


def build_run_views(
    run: Run, *, show_all: bool = False, is_document: bool = False
) -> Iterator[View]:
    """Yield what is known of one run: findings, the ledger, chapters of the HTML report, and what
    the run is. ``show_all``: ranges, values of the report and the SHA-256 too."""
    group = RunGroup(analyse_study(group_into_studies([run])[0]))
    yield _build_findings_view(group.analysis, show_full_findings=show_all or is_document)
    if is_document or not has_repeated_blocks(group.phases):
        yield from build_ledger_row_views(group.analysis, DOCUMENT if is_document else OF_RUN)
    tables = list_terminal_tables(group, include_optional=show_all)
    yield View(tables=tables, rows_on_terminal=ROWS)
    yield View(tables=(_build_about_table(group, show_sha256=show_all),))


def _build_findings_view(
    analysis: Analysis, tables: Sequence[Table] = (), *, show_full_findings: bool = False
) -> View:
    stated, study = list_findings(analysis), analysis.study
    return View(
        f"{format_study_heading(study)}   {about.describe_study_device(study) or ''}   "
        f"{about.describe_profiler_versions(study.runs)}",
        () if stated else ("No findings.",),
        tuple(tables),
        findings=stated if show_full_findings else shorten_findings(stated),
        rows_on_terminal=ROWS,
    )


def _build_about_table(group: RunGroup, *, show_sha256: bool) -> Table:
    (run,) = group.runs
    report, share = run.report, find_last_test_accuracy([run])
    is_alone = report.world_size == 1 or (report.world_size is None and report.rank == 0)
    total = "" if report.world_size is None else f" of {report.world_size}"
    facts = {
        "heading": format_study_heading(group.study),
        **about.list_study_facts(group.study),
        "report": report.form,
        "rank": None
        if report.rank is None or is_alone
        else f"{report.rank}{total}; 'perfctl report' shows the ranks as one job",
        "accuracy": None if share is None else f"{share * 100:.2f}% in the last test",
        "status": f"{run.status}: {run.reason}" if run.reason else run.status,
        "origin": about.ORIGINS.get(run.origin, run.origin),
        "started": run.started_at,
        "duration": None if run.duration_ns is None else format_time(run.duration_ns),
        "artifact": run.artifact,
        "sha256": run.artifact_sha256 if show_sha256 else None,
    }
    rows = [fact for fact in facts.items() if fact[1]]
    about_run = build_table(f"About run {run.id}", text_columns("", ""), rows, max_rows=len(rows))
    assert about_run is not None  # its status is known
    return about_run


def build_source_lines_view(lines: Sequence[SourceLine]) -> View:
    """Return the source lines of a run, those with the most samples first."""
    source = build_source_line_table(lines)
    return View(tables=(source,) if source else (), rows_on_terminal=SOURCE_ROWS)


def build_sweep_views(runs: Sequence[Run]) -> Iterator[View]:
    """Yield the results of a sweep: for each study a heading, the findings, and one row a batch
    size."""
    return (_build_sweep_view(analyse_study(study)) for study in group_into_studies(runs))


def _build_sweep_view(analysis: Analysis) -> View:
    rates = not is_timed_image_inference(analysis.study)
    study = analysis.study
    swept = (
        None
        if study.is_foreign
        else build_sweep_table(analysis.points, study.axis_name, show_rates=rates)
    )
    labels = {column.label for column in swept.columns} if swept else set()
    is_known = swept is not None and labels - {study.axis_name, "problems"}
    swept_table = swept if is_known else None if study.batches else build_ranges_table(study.runs)
    return _build_findings_view(analysis, [swept_table] if swept_table is not None else [])


def build_run_group_views(analysis: Analysis, options: LedgerViewOptions) -> Iterator[View]:
    """Yield what a run group has: findings, phases and passes, the ledger, variants."""
    study, runs = analysis.study, analysis.study.runs
    points, noun = study.points, "batch sizes" if study.batches else f"values of {study.axis_name}"
    batches = format_sweep_point(points[0]) if len(points) == 1 else f"{len(points)} {noun}"
    batches = batches if points else ""
    facts = (
        format_study_heading(study),
        batches,
        about.describe_study_device(study),
        about.describe_profiler_versions(runs),
    )
    title = " · ".join(filter(None, facts))
    if not options.is_whole:
        yield View(title)
        yield from build_ledger_row_views(analysis, options)
        return
    stated = list_findings(analysis)
    phases = list_prefill_decode_phases(analysis, by_block=options.is_by_block)
    tables = (
        usage.build_prefill_decode_table(runs),
        usage.build_training_passes_table(runs),
        *build_phase_tables(phases),
    )
    origins = dict.fromkeys(
        text for run in runs if (text := usage.explain_unknown_prefill_decode(run))
    )
    yield View(
        title,
        facts=(
            *(() if stated else ("No findings.",)),
            *(f"{text[:1].upper()}{text[1:]}." for text in origins),
        ),
        findings=stated if options.is_explained else shorten_findings(stated),
        tables=tuple(filter(None, tables)),
    )
    if options.is_document or not has_repeated_blocks(phases):
        yield from build_ledger_row_views(analysis, options)
    elif options.is_explained:
        yield View(notes=_describe_kernel_attribution(analysis))
    yield View(
        tables=tuple(
            filter(
                None,
                (
                    build_variant_comparison_table(analysis),
                    build_cpu_time_vs_peak_minimum_table(analysis),
                ),
            )
        ),
    )


def build_ledger_row_views(analysis: Analysis, options: LedgerViewOptions) -> Iterator[View]:
    """Yield the rows of a ledger; if these are asked for, then the causes of their differences,
    those of the sweep first, and what is unexplained."""
    view = build_ledger_view(analysis)
    if view is None:
        return
    table, notes = build_ledger_table(view, options)
    yield View(tables=(table,), notes=tuple(notes))
    if options.is_explained or not options.is_whole:
        causes = [cause.join_sentence_numbers_fix() for cause in view.sweep]
        for group in view.groups:
            causes += [cause.join_sentence_numbers_fix(group.name) for cause in group.causes]
            if group.unexplained:
                unexplained = f"{group.unexplained[0].lower()}{group.unexplained[1:]}"
                causes.append(f"{group.name}: {unexplained}")
        yield View(
            "Why" if causes else "",
            findings=tuple(causes),
            notes=(*view.notes, *_describe_kernel_attribution(analysis)),
        )


def _describe_kernel_attribution(analysis: Analysis) -> tuple[str, ...]:
    """Return how much of the kernel time has a module, and how perfctl attributed it."""
    texts = map(usage.describe_kernel_time_module_coverage, analysis.study.runs)
    return tuple(dict.fromkeys(f"{text}." for text in texts if text))


def build_phase_views(
    analyses: Iterable[Analysis], phase: str, *, is_by_block: bool
) -> Iterator[View]:
    """Yield one phase (prefill, decode or mixed) of every run group that has it, by part of the
    model."""
    for analysis in analyses:
        phases = list_prefill_decode_phases(analysis, by_block=is_by_block)
        if tables := build_phase_tables([item for item in phases if item.phase == phase]):
            yield View(format_study_heading(analysis.study), tables=tables)


def build_multi_rank_job_views(
    analyses: Iterable[Analysis], options: LedgerViewOptions
) -> Iterator[View]:
    """Yield the tables and findings of each job of several ranks."""
    for job in list_job_communications(run for analysis in analyses for run in analysis.study.runs):
        tables = build_communication_tables(job)
        yield View(
            "Ranks",
            findings=find_communication_costs(job),
            tables=tuple(t for t in tables if options.is_document or t.caption != TOO_WIDE),
        )


def build_ledger_table(view: LedgerView, options: LedgerViewOptions) -> tuple[Table, list[str]]:
    """Return the rows of a ledger as one table, and at most two lines below it.

    If FLOPs were executed or derived, or there is one batch size, a row is a layer, pass and batch
    size. Otherwise a row is a layer and pass, with its time and share at each batch size.
    """
    groups = list(view.groups)
    labels = {column.label for column in view.columns}
    if not options.is_document and labels & {"executed", "time"}:
        short = shorten_module_paths([group.layer for group in groups])
        groups = [
            replace(group, layer=_shorten_operator_name(short[group.layer].removeprefix("aten::")))
            if len(group.layer) > LONG_NAME
            else group
            for group in groups
        ]
    if options.is_by_time:
        groups.sort(
            key=lambda group: (
                group.is_unattributed,
                -max(line.share or 0.0 for line in group.lines),
            )
        )
    small = [
        group
        for group in groups
        if group.is_minor
        or all(line.share is not None and line.share < MINOR_SHARE for line in group.lines)
    ]
    if options.has_all_rows or not options.is_whole or not FOLD_FROM <= len(small) < len(groups):
        small = []
    points = dict.fromkeys(line.batch for group in groups for line in group.lines if line.batch)
    sizes = sorted(points, key=get_batch_size_sort_key)
    listed = sizes
    if options.is_whole and not options.has_all_batches and len(sizes) > 3:
        listed = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    chosen = [group for group in groups if group not in small]
    is_of_batches = len(sizes) > 1 and isinstance(sizes[0], int)
    if is_of_batches and "time" in labels and "executed" not in labels and not options.is_document:
        table = _build_time_by_batch_table(chosen, listed)
    else:
        table = _build_rows_by_batch_table(view, chosen, listed, options)
    hints = []
    if small:
        hints.append(f"--all ({len(small)} rows below {MINOR_SHARE:.0%})")
    if len(listed) < len(sizes):
        hints.append("--wide (all batch sizes)")
    if options.is_whole and not options.is_explained:
        hints.append("--explain (causes)")
    return table, [view.basis, *([f"{options.hint}: {', '.join(hints)}."] if hints else [])]


def _shorten_operator_name(name: str) -> str:
    """Return the end of an operator with the shapes of its operands: only the end tells it from
    the same operator of another layer."""
    is_operator = len(name) > OPERATOR_NAME and re.search(r" \d", name)
    return f"…{name[1 - OPERATOR_NAME :]}" if is_operator else name


def _build_rows_by_batch_table(
    view: LedgerView,
    groups: Sequence[LedgerGroup],
    sizes: Sequence[Point],
    options: LedgerViewOptions,
) -> Table:
    """Return a row for each layer, pass and batch size: of ``sizes``, and where the difference is
    largest."""
    has_sizes = len({line.batch for group in groups for line in group.lines}) > 1
    omitted = {"estimate / time"}
    if not has_sizes and not options.is_document:
        omitted.add(view.axis)
    heads = [
        name_column("layer"),
        text_column("pass"),
        *(
            replace(column, is_optional=column.label == "bound")
            for column in view.columns
            if column.label not in omitted
        ),
        Column("cause", style="word"),
    ]
    rows = []
    for group in groups:
        largest = max(group.lines, key=lambda line: line.deviation)
        for line in group.lines:
            is_far = line.deviation >= log(RATIO_MIN)
            if line.batch in sizes or not line.batch or (is_far and line is largest):
                causes = ", ".join(line.causes) or ("unexplained" if is_far else "")
                cells = {
                    **line.cells,
                    "layer": text_cell(group.layer),
                    "pass": text_cell(group.direction),
                    "cause": Cell(causes, style="" if causes else "no"),
                }
                if line.share is not None:
                    share = format_whole_percent(line.share)
                    cells["share"] = replace(line.cells["share"], text=share)
                rows.append([cells[head.label] for head in heads])
    return build_complete_table("Ledger" if options.is_document else "", heads, rows, is_dense=True)


def _build_time_by_batch_table(groups: Sequence[LedgerGroup], sizes: Sequence[Point]) -> Table:
    """Return a row for each layer and pass, with time and share at each of these batch sizes."""
    columns = (
        name_column("layer"),
        text_column("pass"),
        Column("FLOPs/sample", is_optional=True, note="estimated; 1 multiply-add = 2 FLOPs"),
        *(time_column(format_sweep_point(size)) for size in sizes),
    )
    rows = []
    for group in groups:
        lines = {line.batch: line for line in group.lines}
        names = text_cell(group.layer), text_cell(group.direction)
        times = (_build_time_and_share_cell(lines.get(size)) for size in sizes)
        rows.append((*names, _build_estimate_per_sample_cell(group), *times))
    return Table(columns, tuple(rows), "")


def _build_time_and_share_cell(line: LedgerLine | None) -> Cell:
    """Return "12.1 ms  21%"."""
    if line is None:
        return missing_cell("not timed")
    cell = line.cells["time"]
    share = "" if line.share is None else format_whole_percent(line.share)
    if cell.unit is None:
        return cell
    return replace(cell, text=f"{cell.text} {cell.unit:<2} {share:>3}", unit=None)


def _build_estimate_per_sample_cell(group: LedgerGroup) -> Cell:
    """Return the estimated FLOPs of one sample, by the smallest batch size that has them."""
    for line in group.lines:
        cell = line.cells["estimate"]
        if isinstance(cell.value, int | float) and isinstance(line.batch, int):
            value = cell.value / line.batch
            bound = "≥ " if cell.is_lower_bound else ""
            return number_cell(
                format_si(value),
                format_integer_or_six_digits(value, "FLOP"),
                value,
                style=cell.style,
                mark=bound,
                is_lower_bound=cell.is_lower_bound,
            )
    return group.lines[0].cells["estimate"]
