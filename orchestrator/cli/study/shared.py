"""What the commands of perfctl study share: their options, and what they print at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated

import typer

from perfctl.orchestrator.actions.study.folder import StudyFolder, StudyParts, write_study
from perfctl.orchestrator.cli import console
from perfctl.orchestrator.report.studies.records import StudyPage

Out = Annotated[
    Path, typer.Option("--out", "-o", help="Folder of the study: runs, store, page, summary, tables, charts.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A small form that takes under 3 minutes on two CPU cores.")]
Recorded = Annotated[
    Path | None,
    typer.Option("--from", metavar="PATH", help="Run nothing: take the runs from this folder, report or store."),
]


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: print the commands of the study's parts, for a batch system.")
]
_TAKEN: ContextVar[list[StudyParts] | None] = ContextVar("taken", default=None)


@contextmanager
def taking_parts() -> Iterator[list[StudyParts]]:
    """Parts that --dry-run would print inside the block, instead of printing them."""
    taken: list[StudyParts] = []
    token = _TAKEN.set(taken)
    try:
        yield taken
    finally:
        _TAKEN.reset(token)


def show_parts(study: StudyParts) -> None:
    """A line for each command of a study, the one that makes the page last; files that they name are written."""
    taken = _TAKEN.get()
    if taken is not None:
        taken.append(study)
        return
    study.write_files()
    for path, _ in study.files:
        console.note(f"Wrote {path}, which these commands name")
    for words in (*(words for _, words in study.parts), study.finish):
        console.result(shlex.join(["perfctl", *words]))


def write_and_show(made: Callable[[], StudyPage], folder: StudyFolder) -> None:
    """Write the study, print its findings and the names of what was written."""
    studies: list[StudyPage] = []

    def once() -> StudyPage:
        studies.append(made())
        return studies[0]

    written = write_study(once, folder)
    for place, finding in enumerate(studies[0].findings, 1):
        console.result(f"{place}  {finding.text}")
    for what, why in studies[0].missing:
        console.note(f"not in this study: {what}: {why}")
    for path in written:
        console.result(f"Wrote {path}")
