"""Runs of a store, each by itself: one that cannot be read or analysed is said and left out."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from perfctl.orchestrator.actions.wall.unexpected import alone, whole
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.store import read
from perfctl.records.run import Run

R = TypeVar("R")


def loaded(connection: sqlite3.Connection, ids: Iterable[int]) -> list[Run]:
    """Whole runs, in the order asked for, without those whose rows make no sense. Raises StoreError when one is not there."""
    store = Path(connection.execute("PRAGMA database_list").fetchone()[2]).name
    found: list[Run] = []
    for run_id in ids:
        with alone(f"{store}: run {run_id}"):
            found += read.load(connection, [run_id])
    return found


def only_run(connection: sqlite3.Connection, run_id: int) -> Run:
    """One run. Raises StoreError where it is not there, PartlyDone where its rows make no sense."""
    with alone(f"run {run_id}", _nothing_left):
        (found,) = read.load(connection, [run_id])
    return found


def _nothing_left(said: str) -> NoReturn:
    raise PartlyDone(said)


def shown(run_id: int, work: Callable[[], R]) -> R:
    """What ``work`` makes of one run. Raises PartlyDone where it fails unexpectedly."""
    with alone(f"run {run_id}", _nothing_left, passing=(OSError,)):
        return work()


def analysed(runs: Sequence[Run], work: Callable[[Sequence[Run]], R]) -> R:
    """What ``work`` makes of these runs, or of those of them that it does not fail on unexpectedly."""
    return whole(runs, work, lambda run: f"run {run.id} ({run.profiler}, {run.artifact or 'no report'})")
