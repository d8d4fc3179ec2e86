"""The terminal's twin of the page: the same findings and the same rows, 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.grouping import Study, device_label, studies
from perfctl.orchestrator.analyse.ledger import Ledger, ledger
from perfctl.orchestrator.analyse.sweep import points
from perfctl.orchestrator.report import about_view, kernel_view, study_view
from perfctl.orchestrator.report.findings import findings
from perfctl.orchestrator.report.ledger_view import ledger_view
from perfctl.orchestrator.report.numbers import DASH, Cell, time
from perfctl.orchestrator.report.tables import Table as View
from perfctl.orchestrator.report.view import heading, tools
from perfctl.parsers.stored import Run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

ROWS = 12
"""Rows of a table before "and N more"."""
LEFT_OUT = {"category", "direction", "host time", "memory", "concerns", "run"}
"""Columns of the page's tables that 80 columns have no room for."""


def runs_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """One line a run, for ``perfctl runs``. A row has the columns of the store's table run, device_name, kernels."""
    grid = _grid(("run", "right"), ("profiler", "left"), ("workload", "left"), ("batch", "right"), ("mode", "left"),
                 ("device", "left"), ("kernels", "right"), ("status", "left"), ("origin", "left"))  # fmt: skip
    columns = ("id", "profiler", "workload", "batch_size", "mode", "device_name", "kernels", "status", "origin")
    for row in rows:
        words = (DASH if row[column] is None else str(row[column]) for column in columns)
        grid.add_row(*(_text(word, "bold red" if word == "failed" else "") for word in words))
    return grid


def doctor_table(findings: Iterable[tuple[str, str, str | None, str | None]]) -> Table:
    """(name, state, value, detail) of each finding, for ``perfctl doctor``; states also stand as words."""
    grid = _grid(("", "left"), ("", "left"), ("", "left"), heads=False)
    styles = {"ok": "green", "warning": "yellow", "missing": "dim"}
    for name, state, value, detail in findings:
        said = "\n".join(part for part in (value, detail) if part)
        grid.add_row(_text(name), _text(state, styles.get(state, "")), _text(said))
    return grid


def run_details(run: Run) -> list[RenderableType]:
    """Everything about one run that fits a screen, for ``perfctl show RUN``."""
    (study,) = studies([run])
    facts = _grid(("", "left"), ("", "left"), heads=False)
    rows = [
        ("what", heading(study)), ("report", run.report.form), ("profiler", tools([run])), ("batch", run.batch_size),
        ("device", device_label(run)), ("status", f"{run.status}: {run.reason}" if run.reason else run.status),
        ("origin", about_view.ORIGINS.get(run.origin, run.origin)), ("started", run.started_at),
        ("length", None if run.duration_ns is None else time(run.duration_ns)), ("artifact", run.artifact),
        ("sha256", run.artifact_sha256),
    ]  # fmt: skip
    for name, value in rows:
        if value is not None:
            facts.add_row(_text(name, "dim"), _text(str(value)))
    entries = ledger(study)
    out: list[RenderableType] = [facts, *_findings(study, entries)]
    if entries.rows:
        out.append(ledger_table(entries))
    views = (kernel_view.summary([run], paths=False), study_view.operators([run]), study_view.summaries([run]))
    out += [_from_view(view) for view in views if view is not None]
    missing = about_view.gaps(study, entries)
    return [*out, _from_view(missing)] if missing else out


def sweep_summary(runs: Sequence[Run]) -> list[RenderableType]:
    """What came out of a sweep: a heading, the findings, and one row a batch size, for every study in it."""
    out: list[RenderableType] = []
    for study in studies(runs):
        out.append(_text(f"{heading(study)}   {study.device or ''}   {tools(study.runs)}", "bold"))
        out += _findings(study, ledger(study))
        view = None if study.foreign else study_view.sweep_table(points(study))
        if view is not None:
            out.append(_from_view(view))
    return out


def ledger_table(entries: Ledger) -> Table:
    """The ledger; layer and direction stand once a group. FLOPs: 1 multiply-add = 2."""
    view = ledger_view(entries)
    assert view is not None
    grid = _grid(("layer", "left"), *((f"{column.label} {column.unit}".strip(), "right") for column in view.columns))
    grid.caption = " ".join(view.notes) + (f" Left out: {view.fold}." if view.fold else "")
    shown = [group for group in view.groups if not group.minor]
    lines = [line.cells for group in shown for line in group.lines]
    widths = [max(len(cells[place].unit or "") for cells in lines) for place in range(len(view.columns))]
    for group in shown:
        for number, line in enumerate(group.lines):
            name = f"{group.layer} {group.direction}".strip() if number == 0 else ""
            cells = (_cell(cell, width) for cell, width in zip(line.cells, widths, strict=True))
            grid.add_row(_text(name), *cells)
    return grid


def _findings(study: Study, entries: Ledger) -> list[RenderableType]:
    said = findings(study, entries, points(study))
    if not said:
        return [_text("Nothing stands out.")]
    numbers = iter(range(1, len(said) + 1))
    grid = _grid(("", "right"), ("", "left"), heads=False)
    for item in said:
        grid.add_row(_text("!" if item.warning else str(next(numbers))), _text(item.text))
    return [grid]


def _from_view(view: View) -> Table:
    """A page's table for the terminal, cut to ROWS."""
    kept = [place for place, column in enumerate(view.columns) if column.label not in LEFT_OUT]
    sides = {"num": "right", "code": "code"}
    grid = _grid(*((view.columns[place].label, sides.get(view.columns[place].look, "left")) for place in kept))
    grid.title = view.caption
    widths = [max(len(row[place].unit or "") for row in view.rows[:ROWS]) for place in kept]
    for row in view.rows[:ROWS]:
        grid.add_row(*(_cell(row[place], width) for place, width in zip(kept, widths, strict=True)))
    said = list(view.notes)
    if view.total > ROWS:
        said.append(f"and {view.total - ROWS} more: perfctl report shows them")
    grid.caption = _text("\n".join(said)) if said else None
    return grid


def _grid(*columns: tuple[str, str], heads: bool = True) -> Table:
    from rich.table import Table

    grid = Table(box=None, show_header=heads, header_style="dim", pad_edge=False, title_justify="left",
                 caption_justify="left", title_style="bold", caption_style="dim")  # fmt: skip
    for label, side in columns:
        if side == "code":
            grid.add_column(_text(label), no_wrap=True, overflow="ellipsis", min_width=16, max_width=36)
        else:
            grid.add_column(_text(label), justify="right" if side == "right" else "left", overflow="fold")
    return grid


def _cell(cell: Cell, width: int = 0) -> Text:
    """``width``: of the longest unit in the column, so that units stand below each other."""
    style = {"est": "italic", "no": "dim", "refused": "strike", "bad": "bold red"}.get(cell.look, "")
    if cell.unit is None or not width:
        return _text(cell.text.rstrip("\u2007\u2008"), style)
    return _text(f"{cell.text} {cell.unit.ljust(width)}".replace("\u2007", " ").replace("\u2008", " "), style)


def _text(words: str, style: str = "") -> Text:
    """Text as it is: brackets in names are no markup, control characters are not sent to the terminal."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c in "\n\u202f" else "\ufffd" for c in words), style=style)
