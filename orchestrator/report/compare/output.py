"""A comparison for the terminal, a pull request (Markdown), documents and programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfctl.orchestrator.compare.causes import Part as Alignment
from perfctl.orchestrator.compare.causes import Suspect
from perfctl.orchestrator.compare.compare import Comparison, Pair
from perfctl.orchestrator.compare.compared import Row
from perfctl.orchestrator.report.compare.page import (
    SENTENCES,
    compare_view,
    describe_side,
    overview_table,
    quantity_cells,
)
from perfctl.orchestrator.report.compare.words import findings
from perfctl.orchestrator.report.files.documents import cell_text, markdown_text
from perfctl.orchestrator.report.view import View

ROWS = 24
"""Rows of the table on a terminal."""
MARKDOWN_ROWS = 25
MARKDOWN_HEAD = """\
| batch | what | A | B | B/A | 95% interval | result |
|--:|---|--:|--:|--:|--:|---|"""


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


def comparison_view(comparison: Comparison, *, is_document: bool = False) -> View:
    """Return the sides, how the step changed and why, and one table; only the sides where nothing
    may be compared."""
    described = (describe_side(label, comparison) for label in ("A", "B"))
    sides = tuple(f"{label}  {name}: {facts}" for label, name, facts in described)
    if comparison.is_refused or not comparison.pairs:
        return View("", sides)
    said = findings(comparison)
    table = overview_table(comparison, is_complete=is_document)
    tables = [table] if table.rows else []
    notes = [f"A change is reported if it exceeds {comparison.gate * 100:g}% and the spread."]
    if is_document:
        view = compare_view(comparison, made_at="")
        tables += [*view.why, *(facts for _, facts in view.differences)]
    elif table.total > ROWS:
        table = replace(table, rows=table.rows[:ROWS])
        notes.append(f"{len(tables[0].rows) - ROWS} more rows: --out FILE.html.")
        tables = [table]
    return View(
        f"{comparison.b.label} against {comparison.a.label}" if is_document else "",
        sides,
        findings=said.news if is_document else said.news[: said.heads],
        warnings=(*filter(None, (said.banner,)), *said.warnings),
        tables=tuple(tables),
        notes=(" ".join(notes),),
    )


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
        f"{comparison.gate * 100:g}%. A is {a}, B is {b}.",
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
    """Return one row of a table of the page, from its batch size to its result."""
    cells = (cell_text(cell) for cell in quantity_cells(pair, row)[1:8])
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(words: str) -> str:
    """At most 300 characters of a name or sentence, as Markdown takes it for text."""
    return markdown_text(words if len(words) <= 300 else words[:299] + "…")


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
