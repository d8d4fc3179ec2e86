"""A study as its readers meet it: sentences, then chapters with charts and tables; as Markdown that
a student hands in, and its tables as CSV."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.files import documents
from perfctl.orchestrator.report.files.tables import format_csv_lines
from perfctl.orchestrator.report.page import about
from perfctl.orchestrator.report.page.records import LONGEST, Finding
from perfctl.orchestrator.report.tables import Table, build_complete_table, text_columns
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

MAX_FINDINGS = 20
NOT_IN_STUDY = "Not in this study"
FILES = "The folder tables/ has the tables as CSV, and the folder charts/ the charts."
ROWS_MAX = 40
"""Rows of a table in the Markdown; the CSV file has all that the page has."""


def build_study_chapter(
    text: Iterable[str] = (),
    charts: Iterable[Chart | None] = (),
    tables: Iterable[Table | None] = (),
    folded: Iterable[Table | None] = (),
    findings: Iterable[Finding | str] = (),
    missing: Mapping[str, str] | None = None,
    key: str = "",
    title: str = "",
) -> View:
    """Return a chapter of a study, without charts and tables that have nothing to show.

    folded: they are in the CSV files, not in the Markdown. findings: a text is proved by this
    chapter. missing: quantity -> reason. key, title: "" stands for that of the study's file.
    """
    return View(
        title,
        tuple(text),
        tuple(filter(None, tables)),
        tuple(findings),
        charts=tuple(filter(None, charts)),
        folded=tuple(filter(None, folded)),
        missing=tuple((missing or {}).items()),
        key=key,
    )


@dataclass(frozen=True, slots=True)
class StudySubject:
    """What the chapters of one kind are made of."""

    chapters: Mapping[str, Callable[[], View | Iterable[View]]]
    """Name in a study's file -> what makes the chapter, or several."""
    facts: tuple[tuple[str, str], ...]
    """What was studied and where: (model, MNIST CNN), (device, ...), (batch sizes, ...)."""
    words: Mapping[str, str] = field(default_factory=dict)
    """{NAME} in a title -> the word that stands there."""
    missing: tuple[tuple[str, str], ...] = ()
    origins: tuple[str, ...] = ()
    """Where the numbers were not measured by this command: "transcribed", "recorded on ..."."""
    links: tuple[tuple[str, str], ...] = ()
    """(text, file beside the page): other pages of the study."""
    problems: tuple[str, ...] = ()
    """Parts that failed."""


def assemble_study_view(
    kind: str,
    study_file: Mapping[str, Any],
    subjects: Mapping[str, StudySubject],
    *,
    missing: Sequence[tuple[str, str]] = (),
    links: Sequence[tuple[str, str]] = (),
    source: Path | None = None,
    command: str | None = None,
) -> View:
    """Return a study: the chapters that its file lists, of the subjects that they name. Charts are
    drawn here."""
    items = subjects.values()
    texts = {name: text for item in items for name, text in item.words.items()}
    drawn = [
        chapter
        for entry in study_file["chapters"]
        for chapter in _build_entry_chapters(entry, subjects, texts)
    ]
    chapters = [replace(chapter, findings=()) for chapter in drawn if _has_content(chapter)]
    keys = [chapter.key for chapter in chapters]
    order = [*study_file.get("findings", ()), *(chapter.key for chapter in drawn)]
    findings = [
        _convert_to_short_finding(finding, chapter.key)
        for chapter in sorted(drawn, key=lambda chapter: order.index(chapter.key))
        for finding in chapter.findings
    ]
    by_text = {finding.text: finding for finding in findings if finding.evidence in keys}
    absent = [pair for item in items for pair in item.missing]
    absent += [pair for chapter in drawn for pair in chapter.missing]
    absent = list(dict.fromkeys((*missing, *absent)))
    origins = [origin for item in items for origin in item.origins]
    if source is not None and not origins:
        origins = [f"recorded in {source}"]
    origin = "; ".join(dict.fromkeys(origins))
    if absent:
        table = build_complete_table("", text_columns("quantity", "reason"), absent)
        chapters.append(View(NOT_IN_STUDY, tables=(table,), key="missing"))
    return View(
        _fill_placeholders(study_file["title"], texts),
        (f"Origin of the numbers: {origin}.",) if origin else (),
        findings=tuple(by_text.values())[:MAX_FINDINGS],
        notes=(FILES, *(["To repeat this study:"] if command else [])),
        lines=(command,) if command else (),
        command=f"study {kind}",
        properties=tuple(fact for item in items for fact in item.facts),
        chapters=tuple(chapters),
        missing=tuple(absent),
        links=(*links, *(link for item in items for link in item.links)),
    )


def _has_content(chapter: View) -> bool:
    return any((chapter.facts, chapter.charts, chapter.tables, chapter.folded))


def _fill_placeholders(text: str, texts: Mapping[str, str]) -> str:
    try:
        return text.format_map(texts)
    except (KeyError, ValueError, IndexError) as error:
        names = ", ".join(f"{{{name}}}" for name in texts)
        raise UsageError(f"'{text}': {error} is not known", f"Use {names}") from error


def _convert_to_short_finding(finding: Finding | str, chapter_key: str) -> Finding:
    if isinstance(finding, str):
        finding = Finding(finding, chapter_key)
    return finding if len(finding.text) <= LONGEST else replace(finding, text=finding.first)


def _build_entry_chapters(
    entry: Mapping[str, Any], subjects: Mapping[str, StudySubject], texts: Mapping[str, str]
) -> Iterator[View]:
    """Yield the chapters of an entry of the file, with what it fixes."""
    subject, _, name = entry["show"].partition(".")
    make = subjects[subject].chapters.get(name)
    if make is None:
        yield View(name, key=name, missing=((entry["show"], "the runs have nothing for it"),))
        return
    drawn = make()
    text = tuple(_fill_placeholders(sentence, texts) for sentence in entry.get("text", ()))
    for chapter in (drawn,) if isinstance(drawn, View) else drawn:
        yield replace(
            chapter,
            key=chapter.key or entry.get("key", name),
            title=chapter.title or _fill_placeholders(entry.get("title", name.capitalize()), texts),
            facts=(*text, *chapter.facts) if _has_content(chapter) else (),
        )


def collect_run_facts(runs: Sequence[Run]) -> dict[str, str]:
    """Return what measured the runs, where and on what."""
    devices = [device for run in runs for device in run.devices[:1]]
    device_names = [device.name for device in devices if device.name]
    batches = sorted({run.batch_size for run in runs if run.batch_size is not None})
    facts = {
        "device": ", ".join(dict.fromkeys(device_names or [device.kind for device in devices])),
        "batch sizes": ", ".join(map(str, batches)),
        "measured by": about.describe_profiler_versions(runs),
    }
    for fact in ("option:data", "weights", "torch", "threads"):
        values = (run.report.environment.get(fact) for run in runs)
        facts[fact.removeprefix("option:")] = ", ".join(dict.fromkeys(filter(None, values)))
    facts["date"] = about.find_first_run_date(runs)
    return {name: value for name, value in facts.items() if value}


def render_study_markdown(study: View, chart_file_names: Sequence[str]) -> str:
    """Return the study in short, without folded tables.

    chart_file_names: names of the files in the folder ``charts`` beside it, each starting with its
    chapter's key.
    """
    chapters = [
        replace(
            chapter,
            tables=tuple(
                replace(
                    table,
                    rows=table.rows[:ROWS_MAX],
                    hidden=table.total - min(len(table.rows), ROWS_MAX),
                )
                for table in chapter.tables
            ),
            folded=(),
        )
        for chapter in study.chapters
    ]
    facts = (*study.facts, "1 multiply-add = 2 FLOPs.")
    return documents.write_markdown(
        replace(study, facts=facts, chapters=chapters), 1, chart_file_names
    )


def render_tables_as_csv_files(study: View) -> Iterator[tuple[str, Iterable[str]]]:
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
