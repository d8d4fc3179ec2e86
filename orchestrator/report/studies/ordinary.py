"""Chapters that are sections of the ordinary page, for studies of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    """Return the section of each part of the page, with the part's heading in its captions if there
    are several."""
    pairs = [(view, part) for view in views for part in view.sections if part.key == key]

    def name_tables(read: Callable[[Section], Sequence[Table]]) -> Iterator[Table]:
        for view, part in pairs:
            heading = f", {view.heading}" if len(views) > 1 else ""
            for table in read(part):
                yield replace(table, caption=table.caption + heading)

    return make_chapter(
        dict.fromkeys(part.note for _, part in pairs if part.note),
        (chart for _, part in pairs for chart in part.charts),
        name_tables(lambda part: part.tables),
        name_tables(lambda part: part.folded),
        (
            finding
            for view in views
            for finding in (*view.findings, *view.warnings)
            if finding.evidence == key
        ),
    )
