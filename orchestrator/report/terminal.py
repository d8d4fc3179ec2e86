"""The page on a terminal: the same findings and the same rows, 80 columns wide."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import TYPE_CHECKING

from perfctl.orchestrator.ledger.analysis import Analysis, analyse
from perfctl.orchestrator.ledger.prepared import heading, studies
from perfctl.orchestrator.ledger.usage.served import same_sequences
from perfctl.orchestrator.report.files.documents import Part, cell_text, head_text, of_view
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.ledger.page import Reason, ledger_view
from perfctl.orchestrator.report.ledger.parts import accuracy, times_table, variants_table
from perfctl.orchestrator.report.ledger.phases import has_repeats, phase_tables, phases_of
from perfctl.orchestrator.report.numbers import DASH, time
from perfctl.orchestrator.report.page import about, kernels, usage
from perfctl.orchestrator.report.page import study as page_study
from perfctl.orchestrator.report.page.inference import inference_tables
from perfctl.orchestrator.report.page.kernels import advice_table, mix_table, source_table
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.studies.ranks import rank_findings, ranks_tables, talks
from perfctl.orchestrator.report.tables import Table as View
from perfctl.orchestrator.report.text_tables import LEFT_OUT, add_rows, draw_table, styled_cell
from perfctl.orchestrator.report.text_tables import grid as _grid
from perfctl.orchestrator.report.text_tables import text as _text
from perfctl.orchestrator.report.view import separate
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
_OF_RANKS = {"span", "hidden", "±", "most exposed", "with the most"}
_NOT_PRINTED = {"Collectives of all ranks"}
"""Tables that are too wide."""
NAME_WIDTH = 24
"""Columns for the name of a layer, which continues beside its other batch sizes."""


def run_details(run: Run) -> list[RenderableType]:
    """Everything about one run that fits a screen, for ``perfctl show RUN``: findings, the ledger,
    tables, then what the run is."""
    analysis = analyse(studies([run])[0])
    facts = _grid(("", "left"), ("", "left"), heads=False)
    add_rows(facts, [(_text(name, "dim"), value) for name, value in _facts(run, analysis)])
    tables = [
        draw_table(
            view,
            left_out=LEFT_OUT
            | _OF_RANGES
            | (_OF_CALLS if view.caption == page_study.CALLS else set()),
        )
        for view in _views(run, analysis)
    ]
    parts = phases_of(analysis)
    has_ledger = analysis.ledger.rows and not has_repeats(parts)
    blocks: list[Sequence[RenderableType]] = [
        [_title(analysis), *_findings(analysis)],
        *([table] for table in _drawn(_of_phases_and_passes([run]))),
        *([table] for table in _by_part(parts)),
        ledger_table(analysis) if has_ledger else [],
        *([table] for table in tables),
        [_text("About this run", "bold"), facts],
    ]
    return list(separate(blocks))


def run_document(run: Run) -> list[Part]:
    """The same with whole tables, for Markdown and LaTeX."""
    analysis = analyse(studies([run])[0])
    about_run = Part(f"Run {run.id}", (), ("", ""), _facts(run, analysis), (False, False))
    views = [of_view(view) for view in _views(run, analysis)]
    phases = list(map(of_view, _of_phases_and_passes([run])))
    phases += map(of_view, phase_tables(phases_of(analysis)))
    return [
        about_run,
        Part("Findings", _said(analysis)),
        *phases,
        *ledger_document(analysis),
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
        about.missing_values(analysis.study, analysis.ledger),
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


def shown(views: Iterable[View], rows: int, elsewhere: str) -> list[RenderableType]:
    """Tables of a page for the terminal, each cut to ``rows``; ``elsewhere`` names the place of
    the others."""
    return [draw_table(view, rows, elsewhere) for view in views]


def inference_summary(runs: Sequence[Run]) -> list[RenderableType]:
    """Latency and accuracy of several models and batch sizes; empty where no run has them."""
    return [draw_table(view, rows=len(view.rows)) for view in inference_tables(runs)]


def _batch(run: Run) -> str | int | None:
    sequences = same_sequences(run) if run.batch_size is None else None
    return run.batch_size if sequences is None else f"{sequences} (sequences in each step)"


def ledgers(
    analyses: Sequence[Analysis], *, whole: bool = True, each: bool = False
) -> list[RenderableType]:
    """Every study's ledger under its heading, with the verdicts; when shown whole, findings
    before it.

    Of a language model's phases the repeated blocks are one row, in place of the rows of all
    layers. ``each``: all rows.
    """
    out: list[RenderableType] = []
    for found in analyses:
        out += [_title(found), *(_findings(found) if whole else [])]
        out += _served(found) if whole else []
        parts = phases_of(found, each=each) if whole else []
        out += _by_part(parts)
        out += (
            ledger_table(found, brief=whole) if found.ledger.rows and not has_repeats(parts) else []
        )
        out += _parts(found) if whole else []
    return out


def ranks(runs: Iterable[Run]) -> list[RenderableType]:
    """Tables and findings of each job of several ranks; they stand below all ledgers that are
    shown whole."""
    out: list[RenderableType] = []
    for talk in talks(runs):
        out += [
            draw_table(view, left_out=_OF_RANKS)
            for view in ranks_tables(talk)
            if view.caption not in _NOT_PRINTED
        ]
        out += _numbered(rank_findings(talk))
    return out


def phases(analyses: Sequence[Analysis], phase: str, *, each: bool = False) -> list[RenderableType]:
    """One phase (prefill, decode or mixed) of every study that has it, by part of the model.
    ``each``: every block."""
    out: list[RenderableType] = []
    for found in analyses:
        parts = [one for one in phases_of(found, each=each) if one.phase == phase]
        out += [_title(found), *_by_part(parts)] if parts else []
    return out


def phases_document(analyses: Sequence[Analysis], phase: str, *, each: bool = False) -> list[Part]:
    """The same for Markdown and LaTeX, with all columns."""
    parts = [one for found in analyses for one in phases_of(found, each=each) if one.phase == phase]
    return [of_view(view) for view in phase_tables(parts)]


def _by_part(parts: Sequence[PhaseParts]) -> list[RenderableType]:
    """The blocks of a language model in one row a part."""
    return [
        draw_table(view, rows=len(view.rows), left_out=_OF_PARTS, code=26)
        for view in phase_tables(parts)
    ]


def _served(found: Analysis) -> list[RenderableType]:
    """Prefill and decode of a server's traces, forward and backward of training traces, and what is
    known of their modules."""
    runs = found.study.runs
    said = [
        text
        for made in (usage.placed_text, usage.phase_text)
        for run in runs
        if (text := made(run)) is not None
    ]
    return [
        *_drawn(_of_phases_and_passes(runs)),
        *(_text(f"{text}.", "dim") for text in said),
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


def _parts(found: Analysis) -> list[RenderableType]:
    """The parts of one study side by side, and times of the host's clock."""
    views = (variants_table(found), times_table(found))
    return [
        draw_table(view, rows=len(view.rows), left_out=("GPU",))
        for view in views
        if view is not None
    ]


def ledger_table(found: Analysis, *, brief: bool = True) -> list[RenderableType]:
    """The ledger, then its numbered verdicts. FLOPs: 1 multiply-add = 2.

    ``brief``: the findings stand above, so sentences about the whole sweep are not repeated.
    """
    view = ledger_view(found, details=False)
    assert view is not None
    kept = [
        (place, column)
        for place, column in enumerate(view.columns)
        if column.label not in ("achieved", "share")
    ]
    heads = {"counted / paper": "ratio"}
    named = [
        (heads.get(head.label, head.label), "left" if head.style == "text" else "right")
        for _, head in kept
    ]
    grid = _grid(("layer", "left"), *named, ("why", "right"))
    fold = f" Left out: {view.fold}." if view.fold else ""
    below = _text(f"Paper and counted in FLOP. {' '.join(view.notes)}{fold}", "dim")
    shown = [group for group in view.groups if not group.minor]
    cells_of = [
        [[line.cells[place] for place, _ in kept] for line in group.lines] for group in shown
    ]
    columns = zip(*chain.from_iterable(cells_of), strict=True)
    widths = [max(len(cell.unit or "") for cell in cells) for cells in columns]
    why = _grid(("", "right"), ("", "left"), heads=False)
    numbers = count(1)
    for item in view.sweep:
        why.add_row(
            _text(str(next(numbers))), _why("", replace(item, sentence="") if brief else item)
        )
    for group, lines in zip(shown, cells_of, strict=True):
        name = f"{group.layer} {group.direction}".strip()
        mine = [str(next(numbers)) for _ in group.reasons]
        for number, item in zip(mine, group.reasons, strict=True):
            why.add_row(_text(number), _why(name, item))
        if group.open:
            why.add_row(_text(""), _text(f"{name}: {group.open[0].lower()}{group.open[1:]}", "dim"))
        marks = "-".join(dict.fromkeys((mine[0], mine[-1]))) if mine else ""
        labels = _over_lines(name, len(lines))
        for row, line in enumerate(lines):
            cells = (styled_cell(cell, width) for cell, width in zip(line, widths, strict=True))
            grid.add_row(_text(labels[row]), *cells, _text(marks if row == 0 else ""))
    return [grid, below, why] if why.row_count else [grid, below]


def ledgers_document(analyses: Sequence[Analysis], *, whole: bool = True) -> list[Part]:
    """Every study's ledger with all its rows and columns, for Markdown and LaTeX; findings where it
    is shown whole."""
    out = []
    for found in analyses:
        out.append(Part(_title(found).plain, _said(found) if whole else ()))
        out += ledger_document(found)
        views = (
            (*_of_phases_and_passes(found.study.runs), variants_table(found), times_table(found))
            if whole
            else ()
        )
        out += [of_view(view) for view in views if view is not None]
    for talk in talks(run for found in analyses for run in found.study.runs) if whole else ():
        out += [
            Part("Ranks", tuple(item.text for item in rank_findings(talk))),
            *map(of_view, ranks_tables(talk)),
        ]
    return out


def ledger_document(found: Analysis) -> list[Part]:
    """The ledger, a row a layer, direction and batch size; then why rows differ. Nothing where
    there is no ledger."""
    view = ledger_view(found, details=False)
    if view is None:
        return []
    rows = tuple(
        (group.layer, group.direction, *map(cell_text, line.cells))
        for group in view.groups
        for line in group.lines
    )
    heads = ("layer", "direction", *map(head_text, view.columns))
    numbers = (False, False, *(head.style == "num" for head in view.columns))
    filled = [at for at in range(len(heads)) if any(row[at] != DASH for row in rows)]
    kept = tuple(tuple(row[at] for at in filled) for row in rows)
    table = Part(
        "Ledger",
        (),
        tuple(heads[at] for at in filled),
        kept,
        tuple(numbers[at] for at in filled),
        ("Paper and counted in FLOP.", *view.notes),
    )
    why = [_why("", item).plain for item in view.sweep]
    why += [
        _why(f"{group.layer} {group.direction}".strip(), item).plain
        for group in view.groups
        for item in group.reasons
    ]
    return [table, *([Part("Why", tuple(why))] if why else [])]


def _over_lines(name: str, count: int) -> list[str]:
    """``name`` in ``count`` pieces, broken after dots and blanks; the last one takes the rest."""
    pieces = [""]
    for part in re.findall(r"[^. ]*[. ]?", name):
        if pieces[-1] and len(pieces[-1]) + len(part.rstrip()) > NAME_WIDTH:
            pieces.append("")
        pieces[-1] += part
    shown, rest = pieces[: count - 1], pieces[count - 1 :]
    return [*shown, "\n".join(rest), *[""] * (count - len(shown) - 1)]


def _why(name: str, item: Reason) -> Text:
    sure = f"({item.confidence})."
    rest = [f"{item.rule}: {item.numbers} {sure}" if item.numbers else f"{item.rule} {sure}"]
    rest += [f"{item.elsewhere}."] if item.elsewhere else []
    said = " ".join(
        part for part in (item.sentence, *(text[:1].upper() + text[1:] for text in rest)) if part
    )
    if name and name not in item.sentence:
        said = f"{name}: {said}"
    return _text(f"{said} \u2192 {item.todo}" if item.todo else said)


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
