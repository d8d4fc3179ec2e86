"""A study as Markdown that a student hands in, and its tables as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from perfctl.orchestrator.report.files import documents
from perfctl.orchestrator.report.files.tables import format_csv_lines
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.view import View

ROWS_MAX = 40
"""Rows of a table in the Markdown; the CSV file has all that the page has."""


def write_study_markdown(study: View, charts: Sequence[str] = ()) -> str:
    """Return the study in short, without folded tables.

    charts: names of the files in the folder ``charts`` beside it, each starting with its
    chapter's key.
    """
    chapters = [
        replace(chapter, tables=tuple(map(_limit_table_rows, chapter.tables)), folded=())
        for chapter in study.chapters
    ]
    facts = (*study.facts, "1 multiply-add = 2 FLOPs.")
    return documents.write_markdown(replace(study, facts=facts, chapters=chapters), 1, charts)


def _limit_table_rows(table: Table) -> Table:
    rows = table.rows[:ROWS_MAX]
    return replace(table, rows=rows, hidden=table.total - len(rows))


def list_csv_files(study: View) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the name of the file and the lines of every table: full values in the units of the
    head; empty where unknown."""
    for chapter in study.chapters:
        for table in (*chapter.tables, *chapter.folded):
            name = re.sub(r"[^a-z0-9]+", "-", table.caption.lower()).strip("-")[:60] or "table"
            yield f"{chapter.key}-{name}.csv", _format_table_as_csv(table)


def _format_table_as_csv(table: Table) -> Iterator[str]:
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
    return format_csv_lines(heads, rows)
