"""A comparison for the terminal, a pull request (Markdown), documents and programs (JSON)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from perfctl.orchestrator.compare.causes import Part as Alignment
from perfctl.orchestrator.compare.compare import Comparison, Pair
from perfctl.orchestrator.compare.rows import BETTER, NEWS, WORSE, Row
from perfctl.orchestrator.compare.suspects import Suspect
from perfctl.orchestrator.report.compare.page import (
    SENTENCES,
    CompareTable,
    CompareView,
    compare_view,
    name_of,
)
from perfctl.orchestrator.report.compare.words import (
    around,
    explained,
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
LEFT_OUT = ("workload", "why", "95 % interval")
"""Columns of the page that do not fit a terminal of 80 columns."""


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


def terminal(found: Comparison) -> list[RenderableType]:
    """Sentences, then the tables of the page cut to what fits 80 columns."""
    view = compare_view(found, made_at="")
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
    return [*out, sentences, *_aligned(view), *map(_shown, view.tables), *_differing(view)]


def _table_of(view: CompareTable) -> Table:
    at = [column.label for column in view.columns].index("verdict")
    rows = [
        (*line.cells[:at], replace(line.cells[at], style=line.style), *line.cells[at + 1 :])
        for line in view.lines
    ]
    return Table(view.columns, tuple(rows), view.title, view.hidden, notes=view.notes)


def _shown(view: CompareTable) -> RenderableType:
    numbers = [column.label for column in view.columns if column.style == "num"]
    return draw_table(_table_of(view), ROWS, ELSEWHERE, left_out=LEFT_OUT, whole=numbers, code=32)


def _aligned(view: CompareView) -> Iterable[RenderableType]:
    """Places whose time changed, with what is behind it."""
    for one in view.why:
        numbers = [column.label for column in one.columns if column.style == "num"]
        left = ("workload", "launches", "FLOPs, B/A")
        yield draw_table(replace(one, caption="Why"), ROWS, ELSEWHERE, left_out=left, whole=numbers)


def _differing(view: CompareView) -> Iterable[RenderableType]:
    for _, one in view.differences:
        yield draw_table(
            replace(one, caption=f"Differences: {one.caption}"),
            ROWS,
            ELSEWHERE,
            left_out=("effect",),
        )


def markdown(found: Comparison) -> str:
    """A summary for a pull request: the sentences of the page, and the rows that count as
    a table."""
    said = findings(found)
    a, b = _escaped(found.a.label), _escaped(found.b.label)
    worse, better, news = (len(found.rows(group)) for group in (WORSE, BETTER, NEWS))
    lines = [
        f"### perfctl compare: {b} against {a}",
        "",
        (
            f"**{worse} worse, {better} better, {news} new, gone or different**; gate "
            f"{found.gate * 100:g} %. A is {a}, B is {b}."
        ),
        "",
    ]
    if said.banner:
        lines += [f"> **{_escaped(said.banner)}**", ""]
    lines += [f"- {_escaped(sentence)}" for sentence in said.news[:SENTENCES]]
    if len(said.news) > SENTENCES:
        lines.append(f"- and {len(said.news) - SENTENCES} more")
    lines += [f"- ⚠ {_escaped(sentence)}" for sentence in said.warnings]
    whole = (("step", "time"), ("step", "memory"))
    steps = [(pair, row) for pair in found.pairs for row in pair.rows if row.key[:2] in whole]
    counted = [*found.regressions, *found.improvements, *found.news]
    for title, chosen in (("What counts", counted), ("Steps and memory", steps)):
        if chosen:
            lines += [
                "",
                f"<details><summary>{title}</summary>",
                "",
                *_markdown_rows(chosen),
                "",
                "</details>",
            ]
    return "\n".join(lines) + "\n"


def _markdown_rows(chosen: list[tuple[Pair, Row]]) -> list[str]:
    lines = [
        "| batch | what | A | B | change | 95 % interval | verdict |",
        "|--:|---|--:|--:|--:|--:|---|",
    ]
    for pair, row in chosen[:MARKDOWN_ROWS]:
        values = (
            DASH if side is None else quantity(row.key.quantity, side.median)
            for side in (row.a, row.b)
        )
        change = DASH if row.change is None else percent_change(row.change)
        cells = (
            pair.batch or DASH,
            name_of(row),
            *values,
            change,
            around(row.interval) or DASH,
            row.result,
        )
        lines.append("| " + " | ".join(map(_escaped, cells)) + " |")
    if len(chosen) > MARKDOWN_ROWS:
        lines.append(f"\nand {len(chosen) - MARKDOWN_ROWS} more")
    return lines


def _escaped(words: str) -> str:
    """At most 300 characters of a name or sentence, as Markdown takes it for text."""
    return markdown_text(words if len(words) <= 300 else words[:299] + "…")


def document(found: Comparison) -> list[Part]:
    """The sentences and whole tables of the page, for Markdown and LaTeX."""
    view = compare_view(found, made_at="")
    news = tuple(finding.text for finding in (*view.findings, *view.more))
    banner = (view.banner,) if view.banner else ()
    sides = tuple(f"{side} is {label}: {runs}" for side, label, runs in view.sides)
    said = (f"Gate {view.gate}.", *sides, *banner, *news, *view.warnings)
    tables = [
        *view.why,
        *(_table_of(one) for one in view.tables),
        *(one for _, one in view.differences),
    ]
    return [Part(view.title, said), *map(of_view, tables)]


def compare_output(found: Comparison) -> CompareOutput:
    """Return the whole comparison for programs."""
    said = findings(found)
    return CompareOutput(
        comparison=found,
        a=ComparedSide(found.a.label, [run.id for pair in found.pairs for run in pair.runs_a]),
        b=ComparedSide(found.b.label, [run.id for pair in found.pairs for run in pair.runs_b]),
        regressions=len(found.regressions),
        improvements=len(found.improvements),
        news=len(found.news),
        not_comparable=len(found.not_comparable),
        findings=said.news,
        warnings=said.warnings,
        pairs=list(map(_pair, found.pairs)),
    )


def _pair(pair: Pair) -> ComparedPair:
    shown = explained(pair)
    why = shown.why
    return ComparedPair(pair, not pair.blocked, shown.suspects, why.by_layer, why.parts)
