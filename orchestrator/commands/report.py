"""Write the HTML page of a store."""

from __future__ import annotations

import sqlite3
import webbrowser
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from perfctl.orchestrator import evidence
from perfctl.orchestrator.commands.declare import (
    DEFAULT_STORE,
    Command,
    Events,
    Option,
    PeaksOf,
    Runs,
    Store,
    api,
)
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.ledger.prepared import studies as group_studies
from perfctl.orchestrator.report.view import View
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import analysed, loaded, outlines

if TYPE_CHECKING:
    from perfctl.records.run import Run

STUDIES = 12
"""Studies on a page by default: more than a reader goes through, and several MB already."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was written."""

    JSON_NAMES: ClassVar = {"size": "bytes"}

    path: Path
    size: int
    runs: tuple[int, ...]
    """Numbers of the runs on it."""
    left_out: str | None
    """Which older studies are not on it, in one sentence; None when all are."""


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Write one self-contained HTML report: executed and estimated FLOPs, time, memory, kernels and
    missing values. The same database gives the same report.

    Raises StoreError if there is no store, PerfctlError if it has no such run or the page cannot be
    written, UsageError for other values of ``studies`` and ``peaks``.
    """

    store: Store = DEFAULT_STORE
    out: Annotated[Path, Option("HTML report to write.", group="Output", names=("--out", "-o"))] = (
        Path("perfctl-report.html")
    )
    _: KW_ONLY
    sweep: Annotated[
        int | None,
        Option("Only this sweep. Default: the newest run of each kind (benchmark: the fastest)."),
    ] = None
    runs: Runs = ()
    studies: Annotated[
        int, Option("Maximum number of run groups in the report, newest first.", least=1)
    ] = STUDIES
    title: Annotated[str | None, Option("Title of the report.")] = None
    peaks: PeaksOf = "published"
    open_page: Annotated[bool, Option("Open the report in the browser.", names=("--open",))] = False


def run(asked: ReportOptions, events: Events) -> Page:
    """Write the page."""
    from perfctl.orchestrator.report.page import page

    if asked.studies < 1:
        raise UsageError(f"`studies` must be at least 1, got {asked.studies}")
    store, out, others = Path(asked.store), Path(asked.out), 0
    with database.reading(store) as connection:
        kept = ids = list(asked.runs) or read.run_ids(
            connection, sweep=asked.sweep, latest_of_each=True
        )
        if not asked.runs:
            if asked.sweep is None:
                fastest, slower = read.fastest_bench_runs(connection)
                ids = sorted({*ids, *fastest} - {*slower})
            kept, others = keep_newest(connection, ids, asked.studies)
        events.progress("reading the store", 0, 0)
        chosen = loaded(connection, kept)
        last_change = read.last_change(connection)
    if not kept and asked.sweep is not None:
        remedy = "Run 'perfctl runs --json' to list the sweep_id of each run"
        raise PerfctlError(f"{store}: no run belongs to sweep {asked.sweep}", remedy)
    if not chosen and kept:
        raise PerfctlError(
            f"{store}: nothing to report, because none of its runs can be read",
            "See the reasons above",
        )
    if not chosen:
        raise PerfctlError(
            f"{store}: nothing to report, because it has no runs",
            "Run a sweep or 'perfctl ingest FILE' first",
        )
    left_out = _left_out(others, len(ids) - len(kept), asked.studies) if others else None
    roofs = evidence.roofs(asked.peaks, store, chosen, events.note)

    def drawing(what: str, done: int, total: int) -> None:
        events.progress(f"drawing {what}", done + 1, total + 1)  # reading was the first part

    def drawn(some: Sequence[Run]) -> tuple[str, Sequence[Run]]:
        said: dict[str, Any] = {
            "title": asked.title,
            "peaks": roofs,
            "left_out": left_out,
            "begun": drawing,
        }
        return page.render(some, generated_at=last_change, **said), some

    text, on_page = analysed(chosen, drawn)
    write_text(out, text)
    if left_out:
        events.note(left_out)
    if asked.open_page:
        webbrowser.open(out.resolve().as_uri())
    return Page(out, out.stat().st_size, tuple(run.id for run in on_page), left_out)


def view(page: Page) -> View:
    """What was written."""
    return View(f"Wrote {page.path} ({page.size / 1e6:.1f} MB, {len(page.runs)} runs)")


def keep_newest(
    connection: sqlite3.Connection, ids: Sequence[int], most: int
) -> tuple[list[int], int]:
    """Return the runs of the ``most`` studies with the newest runs, and how many studies are left
    out. Points of a bench share a part of the page, and are never left out."""
    bench: list[Run] = []
    others: list[Run] = []
    for run in outlines(connection, ids):
        is_point = run.workload == "families" and run.profiler == "none"
        (bench if is_point and run.batch_size is not None else others).append(run)
    groups = [[run.id for run in study.runs] for study in group_studies(others)]
    kept = sorted(groups, key=max)[-most:]
    return sorted(chain([run.id for run in bench], *kept)), len(groups) - len(kept)


def _left_out(studies: int, runs: int, most: int) -> str:
    what = "1 older run group" if studies == 1 else f"{studies:,} older run groups"
    said = (
        f"{what} ({runs:,} runs) of the store {'is' if studies == 1 else 'are'} not in this report"
    )
    return (
        f"{said}: 'perfctl runs' lists them, 'perfctl report --studies {most + studies}' shows all"
    )


COMMAND = Command(ReportOptions, run, view, has_document=False)
report = api(ReportOptions, run)
