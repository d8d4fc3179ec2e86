"""A study as Markdown that a student hands in, and its tables as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from perfctl.orchestrator.report.files.tables import lines
from perfctl.orchestrator.report.studies.records import Chapter, StudyPage
from perfctl.orchestrator.report.tables import Cell, Column, Table

ROWS = 40
"""Rows of a table in the Markdown; the CSV file has all that the page has."""


def markdown(study: StudyPage, charts: Sequence[str] = ()) -> str:
    """The study in short: facts, findings, each chapter's sentences and tables, what is missing,
    how to repeat it.

    charts: names of the files in the folder ``charts`` beside it, each starting with its
    chapter's key.
    """
    parts = [
        f"# {_plain(study.title)}",
        "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in study.facts),
    ]
    parts += [f"Origin of the numbers: {_plain(study.origin)}."] if study.origin else []
    parts += ["1 multiply-add = 2 FLOPs."]
    if study.findings:
        parts += [
            "## Findings",
            "\n".join(
                f"{place}. {_plain(one.text)}" for place, one in enumerate(study.findings, 1)
            ),
        ]
    for chapter in study.chapters:
        parts += _chapter(chapter, charts)
    keys = tuple(f"{chapter.key}-" for chapter in study.chapters)
    if others := [name for name in charts if not name.startswith(keys)]:
        parts += ["## Charts", *(f"![{name}](charts/{name})" for name in others)]
    if study.missing:
        parts += [
            "## Not in this study",
            "\n".join(f"- {_plain(what)}: {_plain(why)}" for what, why in study.missing),
        ]
    if study.command:
        parts += ["## To repeat it", f"```\n{study.command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _chapter(chapter: Chapter, charts: Sequence[str]) -> Iterator[str]:
    yield f"## {_plain(chapter.title)}"
    yield from map(_plain, chapter.text)
    for name in charts:
        if name.startswith(f"{chapter.key}-"):
            yield f"![{_plain(chapter.title)}](charts/{name})"
    for table in filter(None, chapter.tables):
        yield f"**{_plain(table.caption)}**"
        yield from map(_plain, table.notes)
        yield _rows(table)


def _rows(table: Table) -> str:
    heads = [_head(column) for column in table.columns]
    sides = ["---:" if column.style == "num" else "---" for column in table.columns]
    rows = [[_plain(_shown(cell)) for cell in row] for row in table.rows[:ROWS]]
    said = [_line(heads), _line(sides), *map(_line, rows)]
    if table.total > ROWS:
        said.append("")
        said.append(f"and {table.total - ROWS:,} more rows in the CSV file")
    return "\n".join(said)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _head(column: Column) -> str:
    unit = "" if column.carried else column.unit
    return _plain(f"{column.label} ({unit})" if unit else column.label)


def _shown(cell: Cell) -> str:
    return f"{cell.text} {cell.unit}" if cell.unit else cell.text


def _plain(text: str) -> str:
    """Return the text on one line, without what Markdown or HTML would read: names come from
    reports. An underscore within a name means nothing there."""
    marks = r"[\\`*|<>\[\]]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    return re.sub(f"({marks})", r"\\\1", " ".join(text.split()))


def csv_files(study: StudyPage) -> Iterator[tuple[str, Iterable[str]]]:
    """(name of the file, its lines) of every table: full values in the units of the head; empty
    where unknown."""
    for chapter in study.chapters:
        for table in filter(None, (*chapter.tables, *chapter.folded)):
            yield f"{chapter.key}-{_file_name(table.caption)}.csv", lines(*_values(table))


def _values(table: Table) -> tuple[list[str], list[list[Any]]]:
    heads = []
    for column in table.columns:
        unit = column.base or column.unit
        heads.append(f"{column.label} [{unit}]" if unit else column.label)
    rows = [
        [
            None if cell.style == "no" else cell.text if cell.value is None else cell.value
            for cell in row
        ]
        for row in table.rows
    ]
    return heads, rows


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "table"
