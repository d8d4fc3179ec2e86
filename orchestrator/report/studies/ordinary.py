"""Chapters that are sections of the ordinary page, for studies of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from perfctl.orchestrator.report.page import chapters
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.page.sections import build_report_view
from perfctl.orchestrator.report.studies.inference import TITLES
from perfctl.orchestrator.report.studies.records import StudySubject, build_study_chapter
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

CHAPTERS = (*(chapter.key for chapter in chapters.CHAPTERS), *TITLES, "points", "goes-with")
"""Sections that the ordinary page may have."""


def build_report_sections_study(runs: Sequence[Run]) -> StudySubject:
    """Return a chapter for each section of the page of these runs: "sweep", "operators" ..."""
    page = build_report_view(runs)
    groups = tuple(page.chapters)
    keys = dict.fromkeys(section.key for group in groups for section in group.chapters)
    return StudySubject(
        {key: partial(build_chapter_from_section, groups, key) for key in keys},
        tuple(fact for group in groups[:1] for fact in group.properties if fact[0] != "origin"),
        {"title": page.title},
    )


def build_chapter_from_section(groups: Sequence[View], section_key: str) -> View:
    """Return the section of each run group, with the group's title in its captions if there
    are several."""
    pairs = [
        (group, part) for group in groups for part in group.chapters if part.key == section_key
    ]

    def caption_tables_by_group(read: Callable[[View], Sequence[Table]]) -> Iterator[Table]:
        for group, part in pairs:
            heading = f", {group.title}" if len(groups) > 1 else ""
            for table in read(part):
                yield replace(table, caption=table.caption + heading)

    return build_study_chapter(
        dict.fromkeys(fact for _, part in pairs for fact in part.facts),
        (chart for _, part in pairs for chart in part.charts),
        caption_tables_by_group(lambda part: part.tables),
        caption_tables_by_group(lambda part: part.folded),
        (
            finding
            for group in groups
            for finding in group.findings
            if isinstance(finding, Finding) and finding.evidence == section_key
        ),
    )
