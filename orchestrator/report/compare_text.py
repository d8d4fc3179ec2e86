"""A comparison for the terminal, for a pull request (Markdown), and for programs (JSON)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.compare.records import BETTER, NEWS, WORSE, Comparison, Difference, Number, Pair, Row
from perfctl.orchestrator.report.compare import (
    SENTENCES,
    CompareTable,
    around,
    compare_view,
    findings,
    grid_change,
    launch_change,
    percent_change,
    quantity,
)
from perfctl.orchestrator.report.numbers import DASH

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

ROWS = 12
"""Rows of a table in the terminal before "and N more"."""
MARKDOWN_ROWS = 25
LEFT_OUT = ("workload", "why", "95 % interval")
"""Columns of the page's tables that 80 columns have no room for."""


def terminal(found: Comparison) -> list[RenderableType]:
    """Sentences, then the tables of the page cut to what fits 80 columns."""
    view = compare_view(found, made_at="")
    out: list[RenderableType] = [_text(f"{view.title}   gate {view.gate}", "bold")]
    for which, label, what in view.sides:
        out.append(_text(f"{which}  {label}: {what}"))
    if view.banner:
        out.append(_text(f"! {view.banner}", "bold"))
    grid = _grid(("", "right"), ("", "left"), heads=False)
    for number, (sentence, _) in enumerate((*view.findings, *view.more)[:ROWS], 1):
        grid.add_row(_text(str(number)), _text(sentence))
    if (left := len(view.findings) + len(view.more) - ROWS) > 0:
        grid.add_row("", _text(f"and {left} more: --out compare.html shows them", "dim"))
    for sentence in view.warnings:
        grid.add_row(_text("!"), _text(sentence))
    return [*out, grid, *(_table(table) for table in view.tables)]


def _table(view: CompareTable) -> Table:
    kept = [place for place, column in enumerate(view.columns) if column.label not in LEFT_OUT]
    grid = _grid(*((view.columns[place].label, _side(view.columns[place].style)) for place in kept))
    grid.title = view.title
    widths = [max((len(line.cells[place].unit or "") for line in view.lines[:ROWS]), default=0) for place in kept]
    for line in view.lines[:ROWS]:
        style = {"worse": "bold red", "better": "green", "news": "yellow"}.get(line.style, "")
        cells = []
        for place, width in zip(kept, widths, strict=True):
            cell = line.cells[place]
            words = cell.text if cell.unit is None else f"{cell.text} {cell.unit.ljust(width)}"
            last = view.columns[place].label == "verdict"
            cells.append(_text(words.replace("\u2007", " ").replace("\u2008", " "), style if last else ""))
        grid.add_row(*cells)
    more = len(view.lines) + view.hidden - min(len(view.lines), ROWS)
    said = [*view.notes, *([f"and {more} more: --out compare.html shows them"] if more else [])]
    grid.caption = _text("\n".join(said)) if said else None
    return grid


def _side(style: str) -> str:
    return {"num": "right", "code": "code"}.get(style, "left")


def _grid(*columns: tuple[str, str], heads: bool = True) -> Table:
    from rich.table import Table

    grid = Table(box=None, show_header=heads, header_style="dim", pad_edge=False, title_justify="left",
                 caption_justify="left", title_style="bold", caption_style="dim")  # fmt: skip
    for label, side in columns:
        if side == "code":
            grid.add_column(_text(label), no_wrap=True, overflow="ellipsis", min_width=16, max_width=32)
        else:
            grid.add_column(
                _text(label), justify="right" if side == "right" else "left", overflow="fold", no_wrap=side == "right"
            )
    return grid


def _text(words: str, style: str = "") -> Text:
    """Names from reports as they are, without what a terminal would obey."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() or c in "\n\u202f" else "\ufffd" for c in words), style=style)


def markdown(found: Comparison) -> str:
    """A summary for a pull request: the same sentences, and the rows that count as a table."""
    said = findings(found)
    worse, better, news = (len(found.rows(group)) for group in (WORSE, BETTER, NEWS))
    lines = [
        f"### perfctl compare: {_plain(found.b.label)} against {_plain(found.a.label)}",
        "",
        f"**{worse} worse, {better} better, {news} new, gone or different**; gate {found.gate * 100:g} %. "
        f"A is {_plain(found.a.label)}, B is {_plain(found.b.label)}.",
        "",
    ]
    if said.banner:
        lines += [f"> **{_plain(said.banner)}**", ""]
    lines += [f"- {_plain(sentence)}" for sentence in said.news[:SENTENCES]]
    if len(said.news) > SENTENCES:
        lines.append(f"- and {len(said.news) - SENTENCES} more")
    lines += [f"- ⚠ {_plain(sentence)}" for sentence in said.warnings]
    steps = [
        (pair, row)
        for pair in found.pairs
        for row in pair.rows
        if row.key[:2] in (("step", "time"), ("step", "memory"))
    ]
    counted = [*found.regressions, *found.improvements, *found.news]
    for title, chosen in (("What counts", counted), ("Steps and memory", steps)):
        if chosen:
            lines += ["", f"<details><summary>{title}</summary>", "", *_rows(chosen), "", "</details>"]
    return "\n".join(lines) + "\n"


def _rows(chosen: list[tuple[Pair, Row]]) -> list[str]:
    lines = ["| batch | what | A | B | change | 95 % interval | verdict |", "|--:|---|--:|--:|--:|--:|---|"]
    for pair, row in chosen[:MARKDOWN_ROWS]:
        values = (DASH if side is None else quantity(row.key.quantity, side.median) for side in (row.a, row.b))
        change = DASH if row.change is None else percent_change(row.change)
        extra = grid_change(row) or launch_change(row)
        name = f"{row.name} ({extra})" if extra else row.name
        cells = (pair.batch or DASH, name, *values, change, around(row.interval) or DASH, row.verdict)
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    if len(chosen) > MARKDOWN_ROWS:
        lines.append(f"\nand {len(chosen) - MARKDOWN_ROWS} more")
    return lines


_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;", "|": "&#124;", "#": "&#35;"}


def _plain(words: str) -> str:
    """Names from reports as text: no HTML, no Markdown, no mention of anybody, one line, 300 characters."""
    shown = words if len(words) <= 300 else words[:299] + "…"
    shown = "".join(c if c.isprintable() else " " for c in shown)
    shown = "".join(_ENTITIES.get(c, c) for c in shown)
    return "".join(f"\\{c}" if c in "\\`*_[]~" else c for c in shown)


def as_json(found: Comparison) -> dict[str, Any]:
    """The whole comparison as plain data. Times in ns, memory in bytes, FLOPs with 1 multiply-add = 2."""
    said = findings(found)
    return {
        "a": _side_json(found, "a"),
        "b": _side_json(found, "b"),
        "gate": found.gate,
        "forced": found.forced,
        "regressions": len(found.regressions),
        "improvements": len(found.improvements),
        "news": len(found.news),
        "not_comparable": len(found.not_comparable),
        "findings": list(said.news),
        "warnings": list(said.warnings),
        "only_a": list(found.only_a),
        "only_b": list(found.only_b),
        "failed_in_b": list(found.failed),
        "pairs": [_pair_json(pair) for pair in found.pairs],
    }


def _side_json(found: Comparison, which: str) -> dict[str, Any]:
    runs = [run for pair in found.pairs for run in (pair.runs_a if which == "a" else pair.runs_b)]
    return {"label": (found.a if which == "a" else found.b).label, "runs": [run.id for run in runs]}


def _pair_json(pair: Pair) -> dict[str, Any]:
    return {
        "heading": pair.heading,
        "batch_a": pair.batch_a,
        "batch_b": pair.batch_b,
        "comparable": not pair.blocked,
        "differences": [_difference_json(one) for one in pair.differences],
        "rows": [_row_json(row) for row in pair.rows],
    }


def _difference_json(one: Difference) -> dict[str, Any]:
    return asdict(one)


def _row_json(row: Row) -> dict[str, Any]:
    fields = ("name", "change", "interval", "p", "adjusted", "verdict", "why", "basis")
    return {
        **row.key._asdict(),
        **{name: getattr(row, name) for name in fields},
        "a": _number_json(row.a),
        "b": _number_json(row.b),
    }


def _number_json(number: Number | None) -> dict[str, Any] | None:
    return None if number is None else asdict(number)
