"""Chapters that are sections of the ordinary page, for studies of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from perfctl.orchestrator.report.page.records import Section, StudyView
from perfctl.orchestrator.report.page.sections import page_view
from perfctl.orchestrator.report.studies.records import Subject, make_chapter
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run


def subject(runs: Sequence[Run]) -> Subject:
    """Return a chapter for each section of the page of these runs: "sweep", "operators" ..."""
    page = page_view(runs, generated_at="", title=None)
    keys = dict.fromkeys(section.key for view in page.studies for section in view.sections)
    return Subject(
        {key: partial(section_chapter, page.studies, key) for key in keys},
        tuple(fact for view in page.studies[:1] for fact in view.facts),
        {"title": page.title},
    )


def section_chapter(views: Sequence[StudyView], key: str) -> View:
    """The section of each part of the page, with the part's heading in its captions where there are
    several."""
    several = len(views) > 1
    found = [(view, part) for view in views for part in view.sections if part.key == key]

    def named(tables: Sequence[Table], view: StudyView) -> list[Table]:
        return [
            replace(one, caption=f"{one.caption}, {view.heading}" if several else one.caption)
            for one in tables
        ]

    sections: list[Section] = [part for _, part in found]
    return make_chapter(
        tuple(dict.fromkeys(part.note for part in sections if part.note)),
        tuple(chart for part in sections for chart in part.charts),
        tuple(one for view, part in found for one in named(part.tables, view)),
        tuple(one for view, part in found for one in named(part.folded, view)),
        tuple(
            finding
            for view in views
            for finding in (*view.findings, *view.warnings)
            if finding.evidence == key
        ),
    )
