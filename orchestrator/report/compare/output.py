"""A comparison for the terminal, a pull request (Markdown), documents and programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfctl.orchestrator.compare.causes import Why, explain
from perfctl.orchestrator.compare.compare import Comparison
from perfctl.orchestrator.report.compare.page import (
    SENTENCES,
    compare_view,
    describe_sides,
    gate_text,
    quantity_table,
    select_rows,
    style_of,
)
from perfctl.orchestrator.report.compare.words import ENERGY_UNITS, describe
from perfctl.orchestrator.report.files import documents
from perfctl.orchestrator.report.view import View

ROWS = 24
"""Rows of the table on a terminal."""
MARKDOWN_ROWS = 25


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side."""

    label: str
    runs: list[int]
    """Numbers of runs."""


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
    other_changes: int
    not_comparable: int
    findings: Sequence[str]
    warnings: Sequence[str]
    pairs: Sequence[Why]


def comparison_view(comparison: Comparison) -> View:
    """Return the sides, how the step changed and why, and one table: steps, memory and energy, then
    layers by the size of their change, then kernels and counts that changed. Only the sides if
    nothing may be compared."""
    view = View(properties=describe_sides(comparison), document=partial(compare_view, comparison))
    if comparison.is_refused or not comparison.pairs:
        return view
    sentences = describe(comparison, tuple(map(explain, comparison.pairs)))
    steps = select_rows(comparison, *(("step", name) for name in ("time", "memory", *ENERGY_UNITS)))
    layers = select_rows(comparison, ("layer", "time"))
    kernels = select_rows(comparison, ("kernel", "time"))
    counts = select_rows(comparison, ("step", "flops"), ("layer", "flops"))
    if layers:
        kernels = [item for item in kernels if style_of(item[1])]
    if steps:
        counts = [item for item in counts if style_of(item[1])]
    for level in (layers, kernels, counts):
        level.sort(key=lambda item: -item[1].weight)
    rows = [*steps, *layers, *kernels, *counts]
    table = quantity_table("", rows, without=("95% interval", "reason"), limit=ROWS)
    notes = [gate_text(comparison)]
    if table.hidden:
        notes.append(f"{table.hidden} more rows: --out FILE.html.")
    return replace(
        sentences,
        findings=sentences.findings[: sentences.open_findings],
        properties=view.properties,
        document=view.document,
        tables=(replace(table, hidden=0, notes=()),) if rows else (),
        notes=(" ".join(notes),),
    )


def markdown(comparison: Comparison) -> str:
    """Return a summary for a pull request: the sentences of the page, and folded tables of the rows
    that count."""
    sentences = describe(comparison, tuple(map(explain, comparison.pairs)))
    worse, better, news = comparison.regressions, comparison.improvements, comparison.news
    steps = select_rows(comparison, ("step", "time"), ("step", "memory"))
    more = len(sentences.findings) - SENTENCES
    return documents.markdown(
        replace(
            sentences,
            title=f"perfctl compare: {comparison.b.label} against {comparison.a.label}",
            facts=(
                f"{len(worse)} worse, {len(better)} better, {len(news)} new, gone or different.",
                gate_text(comparison),
            ),
            findings=sentences.findings[:SENTENCES],
            properties=describe_sides(comparison),
            folded=tuple(
                quantity_table(caption, rows, without=("reason",), limit=MARKDOWN_ROWS)
                for caption, rows in (
                    ("Changes", [*worse, *better, *news]),
                    ("Steps and memory", steps),
                )
                if rows
            ),
            notes=(f"perfctl compare --out FILE.html has {more} more findings.",)
            if more > 0
            else (),
        ),
        level=3,
    )


def compare_output(comparison: Comparison) -> CompareOutput:
    """Return the complete comparison for programs."""
    pairs = tuple(map(explain, comparison.pairs))
    sentences = describe(comparison, pairs)
    a, b = comparison.a.label, comparison.b.label
    return CompareOutput(
        comparison=comparison,
        a=ComparedSide(a, [run.id for pair in comparison.pairs for run in pair.runs_a]),
        b=ComparedSide(b, [run.id for pair in comparison.pairs for run in pair.runs_b]),
        regressions=len(comparison.regressions),
        improvements=len(comparison.improvements),
        other_changes=len(comparison.news),
        not_comparable=len(comparison.not_comparable),
        findings=sentences.stated[0],
        warnings=sentences.warnings,
        pairs=pairs,
    )
