"""Write the HTML page of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from perfctl.orchestrator.actions.messages import SILENT, Messages, Progress, no_progress
from perfctl.orchestrator.actions.predict import peaks as measured_peaks
from perfctl.orchestrator.actions.stored_runs import analysed, loaded, outlines
from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.errors import PerfctlError, UsageError
from perfctl.orchestrator.files import write_text
from perfctl.orchestrator.ledger.prepared import studies as group_studies
from perfctl.orchestrator.store import database, read

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


def report(
    store: Path | str = DEFAULT,
    out: Path | str = "perfctl-report.html",
    *,
    sweep: int | None = None,
    runs: Sequence[int] = (),
    studies: int = STUDIES,
    title: str | None = None,
    peaks: str = "published",
    messages: Messages = SILENT,
    progress: Progress = no_progress,
) -> Page:
    """Write one self-contained HTML page of a store: counted and estimated FLOPs, time, memory,
    kernels, what is missing.

    sweep: only this sweep (its number); runs: only these runs (their numbers). By default the page
    has the newest run of each kind and the fastest run of each point of a bench.
    studies: at most this many studies, the newest; ``Page.left_out`` says what is not on the page.
    peaks: "published", or "measured": on this machine, about 20 s, then kept beside the store.
    out: an existing page is replaced.

    The same store gives the same page. Raises StoreError when there is no store, PerfctlError when
    it has no such run or ``out`` cannot be written, UsageError for other values of ``studies``
    and ``peaks``.
    """
    from perfctl.orchestrator.report.page import page

    if studies < 1:
        raise UsageError(f"`studies` must be at least 1, got {studies}")
    store, out, others = Path(store), Path(out), 0
    with database.reading(store) as connection:
        kept = ids = list(runs) or read.run_ids(connection, sweep=sweep, latest_of_each=True)
        if not runs:
            if sweep is None:
                fastest, slower = read.fastest_bench_runs(connection)
                ids = sorted({*ids, *fastest} - {*slower})
            kept, others = keep_newest(connection, ids, studies)
        progress("reading the store", 0, 0)
        chosen = loaded(connection, kept)
        last_change = read.last_change(connection)
    if not kept and sweep is not None:
        remedy = "'perfctl runs --json' has the sweep_id of each"
        raise PerfctlError(f"{store}: it holds no run of a sweep {sweep}", remedy)
    if not chosen and kept:
        raise PerfctlError(
            f"{store}: nothing to report: none of its runs can be read", "The lines above say why"
        )
    if not chosen:
        raise PerfctlError(
            f"{store}: nothing to report: it holds no run", "Run a sweep, or 'perfctl ingest FILE'"
        )
    left_out = _left_out(others, len(ids) - len(kept), studies) if others else None
    roofs = measured_peaks.roofs(peaks, store, chosen, messages)

    def drawing(what: str, done: int, total: int) -> None:
        progress(f"drawing {what}", done + 1, total + 1)  # reading was the first part

    def drawn(some: Sequence[Run]) -> tuple[str, Sequence[Run]]:
        said: dict[str, Any] = {
            "title": title,
            "peaks": roofs,
            "left_out": left_out,
            "begun": drawing,
        }
        return page.render(some, generated_at=last_change, **said), some

    text, on_page = analysed(chosen, drawn)
    write_text(out, text)
    return Page(out, out.stat().st_size, tuple(run.id for run in on_page), left_out)


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
    what = "1 older study" if studies == 1 else f"{studies:,} older studies"
    said = f"{what} ({runs:,} runs) of the store {'is' if studies == 1 else 'are'} not in this page"
    return (
        f"{said}: 'perfctl runs' lists them, 'perfctl report --studies {most + studies}' shows all"
    )
