"""Which runs of a store are points of a bench. Nothing here writes."""

from __future__ import annotations

import sqlite3


def bench_run_ids(connection: sqlite3.Connection) -> list[int]:
    """Whole runs of networks of the families, without a profiler, oldest first."""
    rows = connection.execute(
        "SELECT id FROM run WHERE workload = 'families' AND profiler = 'none' AND status = 'ok' ORDER BY id"
    )
    return [number for (number,) in rows]
