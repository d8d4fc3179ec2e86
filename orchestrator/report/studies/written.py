"""A study as Markdown that a student hands in, and its tables as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.report.files import documents
from perfctl.orchestrator.report.files.documents import Part, markdown_text
from perfctl.orchestrator.report.files.tables import lines
from perfctl.orchestrator.report.studies.records import StudyPage
from perfctl.orchestrator.report.tables import Table

ROWS_MAX = 40
"""Rows of a table in the Markdown; the CSV file has all that the page has."""


def markdown(study: StudyPage, charts: Sequence[str] = ()) -> str:
    """Return the study in short: facts, findings, each chapter's sentences and tables, what is
    missing, how to repeat it.

    charts: names of the files in the folder ``charts`` beside it, each starting with its
    chapter's key.
    """
    facts = [f"{name}: {value}" for name, value in study.facts]
    facts += [f"Origin of the numbers: {study.origin}."] if study.origin else []
    parts = [
        f"# {markdown_text(study.title)}",
        documents.markdown([Part(None, (*facts, "1 multiply-add = 2 FLOPs."))]),
        "## Findings",
        "\n".join(
            f"{number}. {markdown_text(finding.text)}"
            for number, finding in enumerate(study.findings, 1)
        ),
    ]
    left = list(charts)
    for chapter in study.chapters:
        parts += [f"## {markdown_text(chapter.title)}", *map(markdown_text, chapter.text)]
        own = [name for name in left if name.startswith(f"{chapter.key}-")]
        left = [name for name in left if name not in own]
        parts += [f"![{markdown_text(chapter.title)}](charts/{name})" for name in own]
        for table in filter(None, chapter.tables):
            hidden = max(table.total - ROWS_MAX, 0)
            cut = documents.of_view(replace(table, rows=table.rows[:ROWS_MAX], hidden=hidden))
            parts.append(f"**{markdown_text(table.caption)}**")
            parts.append(documents.markdown([replace(cut, title=None)]))
    parts += ["## Charts", *(f"![{name}](charts/{name})" for name in left)] if left else []
    if study.missing:
        missing = tuple(f"{what}: {why}" for what, why in study.missing)
        parts.append(documents.markdown([Part("Not in this study", missing)]))
    if study.command:
        parts += ["## To repeat it", f"```\n{study.command}\n```"]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def csv_files(study: StudyPage) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the name of the file and the lines of every table: full values in the units of the
    head; empty where unknown."""
    for chapter in study.chapters:
        for table in filter(None, (*chapter.tables, *chapter.folded)):
            name = re.sub(r"[^a-z0-9]+", "-", table.caption.lower()).strip("-")[:60] or "table"
            yield f"{chapter.key}-{name}.csv", _csv(table)


def _csv(table: Table) -> Iterator[str]:
    units = [column.base or column.unit for column in table.columns]
    heads = [
        f"{column.label} [{unit}]" if unit else column.label
        for column, unit in zip(table.columns, units, strict=True)
    ]
    rows = [
        [
            None if cell.style == "no" else cell.text if cell.value is None else cell.value
            for cell in row
        ]
        for row in table.rows
    ]
    return lines(heads, rows)
