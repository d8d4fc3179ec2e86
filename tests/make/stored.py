"""Runs in a results database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from perfctl.orchestrator.store.write import RunFacts, SweepFacts, Written, write_run
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
) -> Written:
    """Write a run of the sweep; ``facts`` are fields of RunFacts."""
    run = RunFacts(**{"profiler": "ncu", "status": "ok", "origin": "measured", **facts})
    return write_run(connection, SWEEP, run, report, calls, again=again)
