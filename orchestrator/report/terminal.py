"""One run, and the runs of a sweep, as answers: the same findings and tables as in the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.ledger.analysis import Analysis, analyse_study
from perfctl.orchestrator.ledger.prepared import format_study_heading, group_into_studies
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.ledger.parts import find_last_test_accuracy
from perfctl.orchestrator.report.ledger.phases import has_repeated_blocks
from perfctl.orchestrator.report.ledger.view import (
    DOCUMENT,
    LedgerViewOptions,
    build_ledger_row_views,
)
from perfctl.orchestrator.report.numbers import format_time
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.chapters import RunGroup, list_terminal_tables
from perfctl.orchestrator.report.page.kernels import build_source_table
from perfctl.orchestrator.report.page.records import COMPLETE_FINDINGS, shorten_findings
from perfctl.orchestrator.report.page.study import build_ranges_table, build_sweep_table
from perfctl.orchestrator.report.studies.inference_findings import is_timed_inference
from perfctl.orchestrator.report.tables import Table, build_table, text_columns
from perfctl.orchestrator.report.view import View
from perfctl.records.report import Report, SourceLine
from perfctl.records.run import Run

ROWS, SOURCE_ROWS = 12, 20
"""Of a table on a terminal, before "and N more"."""
OF_RUN = LedgerViewOptions(hint="More in perfctl ledger")


def build_run_views(
    run: Run, *, is_whole: bool = False, is_document: bool = False
) -> Iterator[View]:
    """Yield what is known of one run: findings, the ledger, chapters of the HTML report, and what
    the run is. ``is_whole``: ranges, values of the report and the SHA-256 too."""
    group = RunGroup(analyse_study(group_into_studies([run])[0]))
    yield _build_findings_view(group.analysis, is_complete=is_whole or is_document)
    if is_document or not has_repeated_blocks(group.phases):
        yield from build_ledger_row_views(group.analysis, DOCUMENT if is_document else OF_RUN)
    tables = list_terminal_tables(group, is_complete=is_whole)
    yield View("", tables=tables, rows_on_terminal=ROWS)
    yield View("", tables=(_build_about_table(group, is_whole=is_whole),))


def _build_findings_view(
    analysis: Analysis, tables: Sequence[Table] = (), *, is_complete: bool = False
) -> View:
    stated, study = list_findings(analysis), analysis.study
    return View(
        f"{format_study_heading(study)}   {about.describe_study_device(study) or ''}   "
        f"{about.describe_tools(study.runs)}",
        () if stated else ("No findings.",),
        tuple(tables),
        findings=stated if is_complete else shorten_findings(stated, COMPLETE_FINDINGS),
        rows_on_terminal=ROWS,
    )


def _describe_rank(report: Report) -> str | None:
    """Return the rank of a process among several, and what shows the others; None for one alone."""
    is_alone = report.world_size == 1 or (report.world_size is None and report.rank == 0)
    if report.rank is None or is_alone:
        return None
    total = "" if report.world_size is None else f" of {report.world_size}"
    return f"{report.rank}{total}; 'perfctl report' shows the ranks as one job"


def _build_about_table(group: RunGroup, *, is_whole: bool) -> Table:
    (run,) = group.runs
    share = find_last_test_accuracy([run])
    facts = {
        "heading": format_study_heading(group.study),
        **about.list_study_facts(group.study),
        "report": run.report.form,
        "rank": _describe_rank(run.report),
        "accuracy": None if share is None else f"{share * 100:.2f}% in the last test",
        "status": f"{run.status}: {run.reason}" if run.reason else run.status,
        "origin": about.ORIGINS.get(run.origin, run.origin),
        "started": run.started_at,
        "duration": None if run.duration_ns is None else format_time(run.duration_ns),
        "artifact": run.artifact,
        "sha256": run.artifact_sha256 if is_whole else None,
    }
    rows = [fact for fact in facts.items() if fact[1]]
    about_run = build_table(f"About run {run.id}", text_columns("", ""), rows, limit=len(rows))
    assert about_run is not None  # its status is known
    return about_run


def build_source_view(lines: Sequence[SourceLine]) -> View:
    """Return the source lines of a run, those with the most samples first."""
    source = build_source_table(lines)
    return View(tables=(source,) if source else (), rows_on_terminal=SOURCE_ROWS)


def build_sweep_views(runs: Sequence[Run]) -> Iterator[View]:
    """Yield the results of a sweep: for each study a heading, the findings, and one row a batch
    size."""
    return (_build_sweep_view(analyse_study(study)) for study in group_into_studies(runs))


def _build_sweep_view(analysis: Analysis) -> View:
    rates = not is_timed_inference(analysis.study)
    study = analysis.study
    swept = (
        None if study.is_foreign else build_sweep_table(analysis.points, study.axis, rates=rates)
    )
    labels = {column.label for column in swept.columns} if swept else set()
    is_known = swept is not None and labels - {study.axis, "problems"}
    swept_table = swept if is_known else None if study.batches else build_ranges_table(study.runs)
    return _build_findings_view(analysis, [swept_table] if swept_table is not None else [])
