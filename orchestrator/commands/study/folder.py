"""The folder of a study: its runs and store, and what is written of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT

if TYPE_CHECKING:
    from perfctl.orchestrator.report.studies.records import StudyPage

CHART_MM = 140
"""Width of a chart in the Markdown: a page of text."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """Where everything of one study is."""

    path: Path

    @property
    def request(self) -> Path:
        """What the study is of."""
        return self.path / "study.json"

    @property
    def store(self) -> Path:
        return self.path / DEFAULT

    @property
    def runs(self) -> Path:
        """One folder a run; the same command goes on from here."""
        return self.path / "perfctl-runs"

    @property
    def page(self) -> Path:
        return self.path / "study.html"

    @property
    def summary(self) -> Path:
        return self.path / "summary.md"

    @property
    def tables(self) -> Path:
        return self.path / "tables"

    @property
    def charts(self) -> Path:
        return self.path / "charts"


@dataclass(frozen=True, slots=True)
class StudyParts:
    """A study as commands that a batch system runs one by one, and the one that makes its page."""

    kind: str
    """flops, inference, speedup or cost."""
    folder: StudyFolder
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    """(label for people, words after "perfctl"). Each leaves its runs in ``folder.runs`` and opens
    no store of the others."""
    finish: tuple[str, ...]
    """Words after "perfctl" of what gathers the runs."""
    device: str = "cuda"
    """What the nodes must have: cuda or cpu."""
    files: tuple[tuple[Path, str], ...] = ()
    """(path, text) of files that the commands name and that do not exist yet."""

    def write_files(self) -> None:
        """Raises PerfctlError when one cannot be written."""
        for path, text in self.files:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)


def claim(folder: StudyFolder, kind: str, asked: Mapping[str, Any]) -> None:
    """Create the folder for this request, or find it there from the same one: the study then goes
    on from what it holds.

    asked: what decides which numbers come out, as JSON can hold it. Raises UsageError when the
    folder holds another study, PerfctlError when it cannot be written.
    """
    said = json.loads(json.dumps({"study": kind, **asked}, default=str))
    place = folder.request
    try:
        before = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        before = None
    except (OSError, ValueError) as error:
        raise PerfctlError(
            f"{place}: cannot be read ({error})", "Remove it, or choose another `out`"
        ) from error
    if before is not None and before != said:
        keys = [key for key in {**said, **before} if said.get(key) != before.get(key)]
        which = ", ".join(f"{key} was {before.get(key)}, now {said.get(key)}" for key in keys)
        raise UsageError(
            f"{folder.path} holds another study ({which})",
            "Choose another `out`, or remove that folder",
        )
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfctlError(
            f"{folder.path}: cannot be written ({error.strerror})", "Choose another `out`"
        ) from error
    if before is None:
        write_text(place, json.dumps(said, indent=1) + "\n")


@contextmanager
def none_if_empty(folder: StudyFolder) -> Iterator[None]:
    """Where the block fails, a folder that holds no more than its request goes again."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if [one.name for one in folder.path.iterdir()] == [folder.request.name]:
                folder.request.unlink()
                folder.path.rmdir()
        raise


def write_study(made: Callable[[], StudyPage], folder: StudyFolder) -> list[Path]:
    """Write page, summary, tables and charts (PNG); earlier ones are replaced. What was written,
    the page first.

    made: builds the study; its charts are drawn while it runs, and their names begin with the key
    of their chapter ("time-step" for a chart in the chapter "time"). Raises PerfctlError when the
    folder cannot be written.
    """
    from perfctl.orchestrator.report.charts import files as charts_files
    from perfctl.orchestrator.report.page.page import render_study
    from perfctl.orchestrator.report.studies.written import csv_files, markdown

    with none_if_empty(folder):
        with charts_files.drawn() as drawings:
            study = made()
        text = render_study(study)
    try:
        for place in (folder.charts, folder.tables):
            place.mkdir(parents=True, exist_ok=True)
            for old in place.iterdir():
                old.unlink()
        for drawing in drawings:
            charts_files.save(
                drawing, folder.charts / f"{drawing.name}.png", "png", CHART_MM, dpi=150
            )
    except OSError as error:
        raise PerfctlError(
            f"{folder.path}: cannot be written ({error.strerror})", "Choose another `out`"
        ) from error
    for name, lines in csv_files(study):
        write_text(folder.tables / name, "".join(lines))
    write_text(folder.summary, markdown(study, [f"{drawing.name}.png" for drawing in drawings]))
    write_text(folder.page, text)
    return [folder.page, folder.summary, folder.tables, folder.charts]
