"""The page on a terminal: the same findings and the same rows, 80 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from perfctl.orchestrator.ledger.analysis import Analysis, analyse
from perfctl.orchestrator.ledger.prepared import heading, studies
from perfctl.orchestrator.ledger.usage.served import same_sequences
from perfctl.orchestrator.report.files.documents import Part, of_view
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.ledger.parts import accuracy
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.ledger.view import DOCUMENT, LedgerShape, entries_views
from perfctl.orchestrator.report.numbers import time
from perfctl.orchestrator.report.page import about, kernels, usage
from perfctl.orchestrator.report.page import study as page_study
from perfctl.orchestrator.report.page.inference import inference_tables
from perfctl.orchestrator.report.page.kernels import advice_table, mix_table, source_table
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import Column, text_cell
from perfctl.orchestrator.report.tables import Table as View
from perfctl.orchestrator.report.text_tables import LEFT_OUT, add_rows, draw_table
from perfctl.orchestrator.report.text_tables import grid as _grid
from perfctl.orchestrator.report.text_tables import text as _text
from perfctl.orchestrator.report.view import as_parts, draw_views, separate
from perfctl.records.report import SourceLine
from perfctl.records.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from perfctl.orchestrator.ledger.usage.phase_layers import PhaseParts

SOURCE_ROWS = 20
"""Of source lines, before "and N more"."""


_OF_SOURCE = {"instructions", "opcode", "by threads"}
"""Columns of source lines that do not fit."""
_OF_RANGES = {"domain", "host mean", "host longest"}
_OF_CALLS = {"shortest"}
"""The names need the room."""
_OF_PHASES = {"kernel time"}
_OF_PASSES = {"layers", "launches"}
_OF_PARTS = {"launches", "share", "FLOP/B", "time a token", "of prompts"}
OF_RUN = LedgerShape(hint="More in perfctl ledger")


def run_details(run: Run, *, is_whole: bool = False) -> list[RenderableType]:
    """Return what is known of one run, for ``perfctl show RUN``: findings, the ledger, tables, what
    is missing, then what the run is. ``is_whole``: ranges, summaries and the SHA-256 too."""
    analysis = analyse(studies([run])[0])
    facts = _grid(("", "left"), ("", "left"), heads=False)
    for name, value in _facts(run, analysis):
        if is_whole or name != "sha256":
            facts.add_row(_text(name, "dim"), _text(value))
    of_whole = (page_study.ranges([run]), page_study.summaries([run]))
    views = [view for view in _views(run, analysis) if is_whole or view not in of_whole]
    tables = [
        draw_table(
            view,
            left_out=LEFT_OUT
            | _OF_RANGES
            | (_OF_CALLS if view.caption == page_study.CALLS else set()),
        )
        for view in views
    ]
    gaps = about.gaps(analysis.study, analysis.ledger)
    parts = phases_of(analysis)
    has_ledger = analysis.ledger.rows and not has_repeats(parts)
    blocks: list[Sequence[RenderableType]] = [
        [_title(analysis), *_findings(analysis)],
        *([table] for table in _drawn(_of_phases_and_passes([run]))),
        *([table] for table in _by_part(parts)),
        list(draw_views(entries_views(analysis, OF_RUN), 80)) if has_ledger else [],
        *([table] for table in tables),
        [] if gaps is None else [draw_table(_by_reason(gaps), len(gaps.rows))],
        [_text("About this run", "bold"), facts],
    ]
    return list(separate(blocks))


def _by_reason(gaps: View) -> View:
    """Return what is missing in one row for each reason."""
    names: dict[str, dict[str, None]] = {}
    for what, state, why, *_ in gaps.rows:
        reason = why.text if state.text != "lower bound" else f"lower bound: {why.text}"
        names.setdefault(reason, {})[what.text] = None
    columns = (Column("what", style="text"), Column("why, and what would change it", style="text"))
    rows = tuple((text_cell(", ".join(some)), text_cell(why)) for why, some in names.items())
    return View(columns, rows, "Not in this run")


def run_document(run: Run) -> list[Part]:
    """The same with whole tables, for Markdown and LaTeX."""
    analysis = analyse(studies([run])[0])
    about_run = Part(f"Run {run.id}", (), ("", ""), _facts(run, analysis), (False, False))
    gaps = about.gaps(analysis.study, analysis.ledger)
    views = [of_view(view) for view in (*_views(run, analysis), *([gaps] if gaps else []))]
    phases = list(map(of_view, _of_phases_and_passes([run])))
    phases += map(of_view, phase_tables(phases_of(analysis)))
    return [
        about_run,
        Part("Findings", _said(analysis)),
        *phases,
        *(part for view in entries_views(analysis, DOCUMENT) for part in as_parts(view)),
        *views,
    ]


def _facts(run: Run, analysis: Analysis) -> tuple[tuple[str, str], ...]:
    study = analysis.study
    rows = (
        ("what", heading(study)),
        ("report", run.report.form),
        ("profiler", about.tools([run])),
        ("batch", _batch(run)),
        ("device", about.device_text(study)),
        ("modules", usage.placed_text(run)),
        ("phases", usage.phase_text(run)),
        ("accuracy", _percent(accuracy([run]))),
        ("status", f"{run.status}: {run.reason}" if run.reason else run.status),
        ("origin", about.ORIGINS.get(run.origin, run.origin)),
        ("started", run.started_at),
        ("length", None if run.duration_ns is None else time(run.duration_ns)),
        ("artifact", run.artifact),
        ("sha256", run.artifact_sha256),
    )
    return tuple((name, str(value)) for name, value in rows if value is not None)


def _views(run: Run, analysis: Analysis) -> list[View]:
    prepared = analysis.study.prepared_runs
    used = [item.usage for item in prepared]
    views = (
        *inference_tables([run]),
        kernels.summary(prepared, paths=False, names=analysis.names),
        advice_table([run], brief=True, names=analysis.names),
        mix_table([run], analysis.names),
        page_study.operators([run]),
        page_study.ranges([run]),
        page_study.api_calls([run]),
        usage.ways_table(used),
        usage.busy_table(used),
        usage.readings_table(used),
        usage.energy_table(used),
        usage.memory_list(run),
        page_study.summaries([run]),
    )
    return [view for view in views if view is not None]


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.2f} % in the last test"


def source_lines(lines: Sequence[SourceLine]) -> RenderableType:
    """The source lines of a run with the most samples, for ``perfctl show RUN --source``."""
    view = source_table(lines)
    assert view is not None
    return draw_table(
        view, SOURCE_ROWS, "perfctl show RUN --source --json has all", left_out=_OF_SOURCE
    )


def source_lines_document(lines: Sequence[SourceLine]) -> list[Part]:
    """All of them with all columns, for Markdown and LaTeX."""
    view = source_table(lines)
    return [] if view is None else [of_view(view)]


def sweep_summary(runs: Sequence[Run]) -> list[RenderableType]:
    """The results of a sweep: for each study a heading, the findings, and one row a batch size."""
    out: list[RenderableType] = []
    for found in map(analyse, studies(runs)):
        out += [_title(found), *_findings(found)]
        rates = not inference_tables(found.study.runs)
        view = None if found.study.foreign else page_study.sweep_table(found.points, rates=rates)
        if view is not None and any(
            column.label not in {"batch", *LEFT_OUT} for column in view.columns
        ):
            out.append(draw_table(view))
    return out


def _title(found: Analysis) -> Text:
    return _text(
        f"{heading(found.study)}   {about.device_text(found.study) or ''}   "
        f"{about.tools(found.study.runs)}",
        "bold",
    )


def _batch(run: Run) -> str | int | None:
    sequences = same_sequences(run) if run.batch_size is None else None
    return run.batch_size if sequences is None else f"{sequences} (sequences in each step)"


def _by_part(parts: Sequence[PhaseParts]) -> list[RenderableType]:
    """The blocks of a language model in one row a part."""
    return [
        draw_table(view, rows=len(view.rows), left_out=_OF_PARTS, code=26, short=26)
        for view in phase_tables(parts)
    ]


def _of_phases_and_passes(runs: Sequence[Run]) -> list[View]:
    return [
        view for view in (usage.phases_table(runs), usage.passes_table(runs)) if view is not None
    ]


def _drawn(views: Sequence[View]) -> list[RenderableType]:
    """Phases have no room for the kernel time added up; of passes it stands beside the share, which
    is of it."""
    return [
        draw_table(view, left_out=_OF_PASSES if view.caption == usage.PASSES else _OF_PHASES)
        for view in views
    ]


def _said(found: Analysis) -> tuple[str, ...]:
    return tuple(item.text for item in findings(found)) or ("Nothing stands out.",)


def _findings(found: Analysis) -> list[RenderableType]:
    said = findings(found)
    if not said:
        return [_text("Nothing stands out.")]
    return _numbered(said)


def _numbered(said: Sequence[Finding]) -> list[RenderableType]:
    if not said:
        return []
    numbers = count(1)
    rows = [("!" if item.warning else str(next(numbers)), item.text) for item in said]
    return [add_rows(_grid(("", "right"), ("", "left"), heads=False), rows)]
