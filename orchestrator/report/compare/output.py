"""A comparison for the terminal, a pull request (Markdown), documents and programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfctl.orchestrator.compare.causes import Part as Alignment
from perfctl.orchestrator.compare.causes import Suspect
from perfctl.orchestrator.compare.compare import Comparison, Pair
from perfctl.orchestrator.compare.compared import Row
from perfctl.orchestrator.report.compare.page import (
    SENTENCES,
    CompareTable,
    compare_view,
    name_of,
)
from perfctl.orchestrator.report.compare.words import (
    around,
    findings,
    percent_change,
    quantity,
)
from perfctl.orchestrator.report.files.documents import Part, markdown_text, of_view
from perfctl.orchestrator.report.numbers import DASH
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.text_tables import add_rows, draw_table, grid, text

if TYPE_CHECKING:
    from rich.console import RenderableType

ROWS, ELSEWHERE = 12, "--out compare.html shows them"
"""Rows of a table in the terminal, and the place of the others."""
MARKDOWN_ROWS = 25
MARKDOWN_HEAD = """\
| batch | what | A | B | change | 95 % interval | verdict |
|--:|---|--:|--:|--:|--:|---|"""
LEFT_OUT = ("workload", "why", "95 % interval")
"""Columns of the page that do not fit a terminal of 80 columns."""
LEFT_OUT_OF_WHY = ("workload", "launches", "FLOPs, B/A")
"""Columns of the aligned sides that do not fit a terminal of 80 columns."""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side."""

    label: str
    runs: list[int]
    """Numbers of runs."""


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """One workload and batch size on both sides."""

    JSON_INLINED = ("pair",)

    pair: Pair
    comparable: bool
    differences: tuple[Suspect, ...]
    by_layer: bool
    aligned: tuple[Alignment, ...]
    """Times in ns a step, B less A."""


@dataclass(frozen=True, slots=True)
class CompareOutput:
    """Times in ns, memory in bytes, throughput in samples per second, energy in J, energy-delay
    product in J s."""

    JSON_INLINED = ("comparison",)

    comparison: Comparison
    a: ComparedSide
    b: ComparedSide
    regressions: int
    improvements: int
    news: int
    not_comparable: int
    findings: Sequence[str]
    warnings: Sequence[str]
    pairs: list[ComparedPair]


def terminal(comparison: Comparison) -> list[RenderableType]:
    """Return sentences, then the tables of the page cut to what fits 80 columns."""
    view = compare_view(comparison, made_at="")
    out: list[RenderableType] = [text(f"{view.title}   gate {view.gate}", "bold")]
    out += [text(f"{side}  {label}: {runs}") for side, label, runs in view.sides]
    if view.banner:
        out.append(text(f"! {view.banner}", "bold"))
    sentences = grid(("", "right"), ("", "left"), heads=False)
    news = [finding.text for finding in (*view.findings, *view.more)]
    add_rows(sentences, [(str(number), sentence) for number, sentence in enumerate(news[:ROWS], 1)])
    if (left := len(news) - ROWS) > 0:
        sentences.add_row("", text(f"and {left} more: {ELSEWHERE}", "dim"))
    add_rows(sentences, [("!", sentence) for sentence in view.warnings])
    out.append(sentences)
    tables = [
        *((replace(table, caption="Why"), LEFT_OUT_OF_WHY) for table in view.why),
        *((_table_of(table), LEFT_OUT) for table in view.tables),
        *(
            (replace(table, caption=f"Differences: {table.caption}"), ("effect",))
            for _, table in view.differences
        ),
    ]
    for table, left_out in tables:
        numbers = [column.label for column in table.columns if column.style == "num"]
        out.append(draw_table(table, ROWS, ELSEWHERE, left_out=left_out, whole=numbers, code=32))
    return out


def _table_of(view: CompareTable) -> Table:
    at = [column.label for column in view.columns].index("verdict")
    rows = [
        (*line.cells[:at], replace(line.cells[at], style=line.style), *line.cells[at + 1 :])
        for line in view.lines
    ]
    return Table(view.columns, tuple(rows), view.title, view.hidden, notes=view.notes)


def markdown(comparison: Comparison) -> str:
    """Return a summary for a pull request: the sentences of the page, and the rows that count as a
    table."""
    said = findings(comparison)
    a, b = _escaped(comparison.a.label), _escaped(comparison.b.label)
    worse, better, news = comparison.regressions, comparison.improvements, comparison.news
    lines = [
        f"### perfctl compare: {b} against {a}",
        "",
        f"**{len(worse)} worse, {len(better)} better, {len(news)} new, gone or different**; gate "
        f"{comparison.gate * 100:g} %. A is {a}, B is {b}.",
        "",
    ]
    if said.banner:
        lines += [f"> **{_escaped(said.banner)}**", ""]
    lines += [f"- {_escaped(sentence)}" for sentence in said.news[:SENTENCES]]
    if len(said.news) > SENTENCES:
        lines.append(f"- and {len(said.news) - SENTENCES} more")
    lines += [f"- ⚠ {_escaped(sentence)}" for sentence in said.warnings]
    whole = (("step", "time"), ("step", "memory"))
    steps = [(pair, row) for pair in comparison.pairs for row in pair.rows if row.key[:2] in whole]
    for title, chosen in (("What counts", [*worse, *better, *news]), ("Steps and memory", steps)):
        if chosen:
            lines += ["", f"<details><summary>{title}</summary>", "", MARKDOWN_HEAD]
            lines += [_markdown_row(*item) for item in chosen[:MARKDOWN_ROWS]]
            if len(chosen) > MARKDOWN_ROWS:
                lines.append(f"\nand {len(chosen) - MARKDOWN_ROWS} more")
            lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _markdown_row(pair: Pair, row: Row) -> str:
    values = (
        DASH if side is None else quantity(row.key.quantity, side.median)
        for side in (row.before, row.after)
    )
    change = DASH if row.change is None else percent_change(row.change)
    interval = around(row.interval) or DASH
    cells = (pair.batch or DASH, name_of(row), *values, change, interval, row.result)
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(words: str) -> str:
    """At most 300 characters of a name or sentence, as Markdown takes it for text."""
    return markdown_text(words if len(words) <= 300 else words[:299] + "…")


def document(comparison: Comparison) -> list[Part]:
    """Return the sentences and whole tables of the page, for Markdown and LaTeX."""
    view = compare_view(comparison, made_at="")
    news = (finding.text for finding in (*view.findings, *view.more))
    sides = (f"{side} is {label}: {runs}" for side, label, runs in view.sides)
    banner = filter(None, (view.banner,))
    tables = (*view.why, *map(_table_of, view.tables), *(table for _, table in view.differences))
    sentences = (f"Gate {view.gate}.", *sides, *banner, *news, *view.warnings)
    return [Part(view.title, sentences), *map(of_view, tables)]


def compare_output(comparison: Comparison) -> CompareOutput:
    """Return the complete comparison for programs."""
    said = findings(comparison)
    a, b = comparison.a.label, comparison.b.label
    return CompareOutput(
        comparison=comparison,
        a=ComparedSide(a, [run.id for pair in comparison.pairs for run in pair.runs_a]),
        b=ComparedSide(b, [run.id for pair in comparison.pairs for run in pair.runs_b]),
        regressions=len(comparison.regressions),
        improvements=len(comparison.improvements),
        news=len(comparison.news),
        not_comparable=len(comparison.not_comparable),
        findings=said.news,
        warnings=said.warnings,
        pairs=[
            ComparedPair(why.pair, not why.pair.blocked, why.suspects, why.by_layer, why.parts)
            for why in said.pairs
        ],
    )
