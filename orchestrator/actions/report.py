"""Write the HTML page of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfctl.orchestrator.actions.files import write_text
from perfctl.orchestrator.actions.messages import SILENT, Messages
from perfctl.orchestrator.actions.predict import peaks as measured_peaks
from perfctl.orchestrator.errors import PerfctlError, UsageError

if TYPE_CHECKING:
    from perfctl.records.run import Run

STUDIES = 12
"""Studies on a page by default: more than a reader goes through, and several MB already."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page that was written."""

    path: Path
    size: int
    """Bytes."""
    runs: tuple[int, ...]
    """Numbers of the runs on it."""
    left_out: str | None
    """Which older studies are not on it, in one sentence; None when all are."""


@dataclass(frozen=True, slots=True)
class _Chosen:
    runs: list[Run]
    left_out: str | None
    last_change: str


def report(
    store: Path | str = "perfctl.db",
    out: Path | str = "perfctl-report.html",
    *,
    sweep: int | None = None,
    runs: Sequence[int] = (),
    studies: int = STUDIES,
    title: str | None = None,
    peaks: str = "published",
    messages: Messages = SILENT,
) -> Page:
    """Write one self-contained HTML page of a store: counted and estimated FLOPs, time, memory, kernels, what is missing.

    sweep: only this sweep (its number); runs: only these runs (their numbers). By default the page has the newest run
    of each kind and the fastest run of each point of a bench.
    studies: at most this many studies, the newest; ``Page.left_out`` says what is not on the page.
    peaks: "published", or "measured": on this machine, about 20 s, then kept beside the store.
    out: an existing page is replaced.

    The same store gives the same page. Raises StoreError when there is no store, PerfctlError when it has no such run or
    ``out`` cannot be written, UsageError for other values of ``studies`` and ``peaks``.
    """
    from perfctl.orchestrator.report.page import page

    if studies < 1:
        raise UsageError(f"`studies` must be at least 1, got {studies}")
    store, out = Path(store), Path(out)
    chosen = _choose(store, sweep, runs, studies)
    roofs = measured_peaks.roofs(peaks, store, chosen.runs, messages)
    text = page.render(chosen.runs, generated_at=chosen.last_change, title=title, peaks=roofs, left_out=chosen.left_out)
    write_text(out, text)
    return Page(out, out.stat().st_size, tuple(run.id for run in chosen.runs), chosen.left_out)


def _choose(store: Path, sweep: int | None, asked: Sequence[int], studies: int) -> _Chosen:
    """The runs of the page. Raises PerfctlError when there are none."""
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        ids = list(asked) or _default_ids(connection, sweep)
        kept, others = (ids, 0) if asked else read.newest_studies(connection, ids, studies)
        runs = read.load(connection, kept)
        last_change = read.last_change(connection)
    if not runs:
        if sweep is not None:
            raise PerfctlError(
                f"{store}: it holds no run of a sweep {sweep}", "'perfctl runs --json' has the sweep_id of each"
            )
        raise PerfctlError(f"{store}: nothing to report: it holds no run", "Run a sweep, or 'perfctl ingest FILE'")
    left_out = _left_out(others, len(ids) - len(kept), studies) if others else None
    return _Chosen(runs, left_out, last_change)


def _default_ids(connection: sqlite3.Connection, sweep: int | None) -> list[int]:
    """The newest run of each kind; of a bench the fastest run of each point."""
    from perfctl.orchestrator.store import read

    ids = read.run_ids(connection, sweep=sweep, latest_of_each=True)
    if sweep is not None:
        return ids
    fastest, slower = read.fastest_bench_runs(connection)
    return sorted({*ids, *fastest} - {*slower})


def _left_out(studies: int, runs: int, most: int) -> str:
    said = (
        f"{studies:,} older studies ({runs:,} runs) of the store are not in this page"
        if studies > 1
        else f"1 older study ({runs:,} runs) of the store is not in this page"
    )
    return f"{said}: 'perfctl runs' lists them, 'perfctl report --studies {most + studies}' shows all"
