"""Which runs of a store are points of a bench. Nothing here writes."""

from __future__ import annotations

import sqlite3
from statistics import median

_LENGTHS = """
SELECT run_id, sum(CASE phase WHEN 'step' THEN duration_ns WHEN 'data' THEN -duration_ns WHEN 'copy' THEN -duration_ns END)
FROM step WHERE phase IN ('step', 'data', 'copy') GROUP BY run_id, number
"""
"""A step without the phases that bring its samples, as everywhere where times of steps are learned from."""
_POINTS = """
SELECT run.id, variant, batch_size, mode, precision, device_id, environment.value
FROM run LEFT JOIN environment ON environment.run_id = run.id AND environment.key = 'threads'
WHERE workload = 'families' AND profiler = 'none' AND status = 'ok' ORDER BY run.id
"""


def bench_run_ids(connection: sqlite3.Connection) -> list[int]:
    """Whole runs of networks of the families, without a profiler, oldest first."""
    rows = connection.execute(
        "SELECT id FROM run WHERE workload = 'families' AND profiler = 'none' AND status = 'ok' ORDER BY id"
    )
    return [number for (number,) in rows]


def by_speed(connection: sqlite3.Connection) -> tuple[list[int], list[int]]:
    """(the fastest run of each point, all others of it), by the median of their steps.

    What disturbs a run makes it slower, never faster.
    """
    lengths: dict[int, list[int]] = {}
    for run_id, length in connection.execute(_LENGTHS):
        if length:
            lengths.setdefault(run_id, []).append(length)
    best: dict[tuple[object, ...], int] = {}
    every = []
    for run_id, *point in connection.execute(_POINTS):
        if run_id not in lengths:
            continue
        every.append(run_id)
        before = best.get(tuple(point))
        if before is None or median(lengths[run_id]) < median(lengths[before]):
            best[tuple(point)] = run_id
    fastest = sorted(best.values())
    return fastest, sorted(set(every) - set(fastest))
