"""What tests ask of a study, and how they find a table in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfctl.orchestrator.launch.sweep.study import StudyRequest, read_study_definition
from perfctl.orchestrator.report.tables import Table
from perfctl.orchestrator.report.view import View


def ask(
    name: str,
    out: Path,
    *,
    quick: bool = False,
    source: Path | None = None,
    words: tuple[str, ...] = (),
    **typed: Any,
) -> StudyRequest:
    """A request with these options typed."""
    return StudyRequest(read_study_definition(name), typed, out, quick, source, words=words)


def find_table(study: View, start: str) -> Table:
    """Return the only table whose caption starts so."""
    tables = [table for chapter in study.chapters for table in (*chapter.tables, *chapter.folded)]
    (match,) = (table for table in tables if table.caption.startswith(start))
    return match
