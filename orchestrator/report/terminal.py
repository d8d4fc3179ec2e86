"""One run, and the runs of a sweep, as answers: the same findings and tables as on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from perfctl.orchestrator.ledger.analysis import Analysis, analyse
from perfctl.orchestrator.ledger.prepared import heading, studies
from perfctl.orchestrator.ledger.usage.served import same_sequences
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.ledger.parts import accuracy
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.ledger.view import DOCUMENT, LedgerShape, entries_views
from perfctl.orchestrator.report.numbers import time
from perfctl.orchestrator.report.page import about, kernels, usage
from perfctl.orchestrator.report.page import study as page_study
from perfctl.orchestrator.report.studies.inference import inference_tables
from perfctl.orchestrator.report.studies.inference_findings import answered
from perfctl.orchestrator.report.tables import Column, Table, table
from perfctl.orchestrator.report.text_tables import WIDTH, draw_table
from perfctl.orchestrator.report.view import View, draw_views
from perfctl.records.report import SourceLine
from perfctl.records.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS, SOURCE_ROWS = 12, 20
"""Of a table on a terminal, before "and N more"."""
OF_PAGE = ("run", "concerns")
"""Columns of the page that a terminal has no room for."""
OF_RUN = LedgerShape(hint="More in perfctl ledger")


def run_views(run: Run, *, is_whole: bool = False, is_document: bool = False) -> Iterator[View]:
    """Yield what is known of one run: findings, the ledger, tables, and what the run is.
    ``is_whole``: ranges, summaries and the SHA-256 too."""
    analysis = analyse(studies([run])[0])
    study, prepared = analysis.study, analysis.study.prepared_runs
    phases, used = phases_of(analysis), [item.usage for item in prepared]
    served = (usage.phases_table([run]), usage.passes_table([run]), *phase_tables(phases))
    yield _findings(analysis, served)
    if is_document or not has_repeats(phases):
        yield from entries_views(analysis, DOCUMENT if is_document else OF_RUN)
    tables = (
        *inference_tables([run]),
        kernels.summary(prepared, analysis.names),
        kernels.advice_table([run], analysis.names),
        kernels.mix_table([run], analysis.names),
        page_study.operators([run]),
        page_study.ranges([run]) if is_whole else None,
        page_study.api_calls([run]),
        usage.ways_table(used),
        usage.busy_table(used),
        usage.readings_table(used),
        usage.energy_table(used),
        usage.memory_list(run),
        page_study.summaries([run]) if is_whole else None,
    )
    basis = (
        about.missing_values(study, analysis.ledger),
        _about(run, analysis, is_whole=is_whole),
    )
    narrow = (lambda table: table) if is_document else _without_columns_of_page
    yield View("", tables=tuple(map(narrow, filter(None, tables))), rows_on_terminal=ROWS)
    yield View("", tables=tuple(map(narrow, filter(None, basis))))


def _without_columns_of_page(table: Table) -> Table:
    kept = [place for place, column in enumerate(table.columns) if column.label not in OF_PAGE]
    return replace(
        table,
        columns=tuple(table.columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in table.rows),
    )


def _findings(analysis: Analysis, tables: Iterable[Table | None] = ()) -> View:
    stated, study = findings(analysis), analysis.study
    return View(
        f"{heading(study)}   {about.device_text(study) or ''}   {about.tools(study.runs)}",
        () if stated else ("No findings.",),
        tuple(filter(None, tables)),
        findings=tuple(item.text for item in stated if not item.warning),
        warnings=tuple(item.text for item in stated if item.warning),
        rows_on_terminal=ROWS,
    )


def _about(run: Run, analysis: Analysis, *, is_whole: bool) -> Table | None:
    study, sequences = analysis.study, same_sequences(run)
    share = accuracy([run])
    facts = (
        ("what", heading(study)),
        ("report", run.report.form),
        ("profiler", about.tools([run])),
        (
            "batch",
            f"{sequences} (sequences in each step)"
            if run.batch_size is None and sequences is not None
            else run.batch_size,
        ),
        ("device", about.device_text(study)),
        ("modules", usage.placed_text(run)),
        ("phases", usage.phase_text(run)),
        ("accuracy", None if share is None else f"{share * 100:.2f}% in the last test"),
        ("status", f"{run.status}: {run.reason}" if run.reason else run.status),
        ("origin", about.ORIGINS.get(run.origin, run.origin)),
        ("started", run.started_at),
        ("length", None if run.duration_ns is None else time(run.duration_ns)),
        ("artifact", run.artifact),
        ("sha256", run.artifact_sha256 if is_whole else None),
    )
    rows = [fact for fact in facts if fact[1] is not None]
    columns = (Column("", style="text"), Column("", style="text"))
    return table(f"About run {run.id}", columns, rows, limit=len(rows))


def source_view(lines: Sequence[SourceLine]) -> View:
    """Return the source lines of a run, those with the most samples first."""
    return View(
        "", tables=tuple(filter(None, [kernels.source_table(lines)])), rows_on_terminal=SOURCE_ROWS
    )


def sweep_summary(runs: Sequence[Run]) -> Iterator[RenderableType]:
    """Yield the results of a sweep: for each study a heading, the findings, and one row a batch
    size."""
    return chain.from_iterable(
        draw_views([_sweep_view(analyse(study))], WIDTH) for study in studies(runs)
    )


def _sweep_view(analysis: Analysis) -> View:
    rates = not answered(analysis.study)
    swept = None if analysis.study.foreign else page_study.sweep_table(analysis.points, rates=rates)
    is_told = swept is None or {column.label for column in swept.columns} <= {"batch", "problems"}
    return _findings(analysis, [] if is_told else [swept])


def shown(tables: Iterable[Table], rows: int, elsewhere: str) -> list[RenderableType]:
    """Tables of a page for the terminal, each cut to ``rows``; ``elsewhere`` names the place of
    the others."""
    return [draw_table(table, rows, elsewhere) for table in tables]


def inference_summary(runs: Sequence[Run]) -> list[RenderableType]:
    """Latency and accuracy of several models and batch sizes; empty where no run has them."""
    return [draw_table(table, rows=len(table.rows)) for table in inference_tables(runs)]
