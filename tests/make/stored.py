"""Runs in a results database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from perfctl.orchestrator.store.write import RunFacts, SweepFacts, WrittenRun, write_run
from perfctl.records.paper import LayerCall
from perfctl.records.report import Report

SWEEP = SweepFacts("a sweep", "sweep", "perfctl ncu --batches 16", "host")


def write(
    connection: sqlite3.Connection,
    report: Report | None = None,
    calls: Sequence[LayerCall] = (),
    *,
    again: bool = False,
    **facts: Any,
) -> WrittenRun:
    """Write a run of the sweep; ``facts`` are fields of RunFacts."""
    run = RunFacts(**{"profiler": "ncu", "status": "ok", "origin": "measured", **facts})
    return write_run(connection, SWEEP, run, report, calls, allow_duplicate_artifact=again)


def rows(path: Path | str, query: str) -> list[tuple[Any, ...]]:
    """Return the answer of the database to a query, without perfctl."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def execute(path: Path | str, *statements: str) -> None:
    """Change the database without perfctl."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
