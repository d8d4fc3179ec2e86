"""Which studies of a store were written last, known before any of their rows is read. Nothing here writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

_RUNS = """
SELECT run.id, profiler, workload, batch_size, mode, precision, coalesce(device.name, device.kind), variant, status
FROM run LEFT JOIN device ON device.id = run.device_id ORDER BY run.id
"""
Group = tuple[object, ...]


def newest_studies(connection: sqlite3.Connection, ids: Collection[int], most: int) -> tuple[list[int], int]:
    """(ids of the runs of the ``most`` studies with the newest runs, oldest run first; how many studies were left out).

    A study is what ``analyse.grouping.studies`` makes of the same runs. Points of a bench share a part of the page, and are
    never left out; a run that failed before its device was known stays with the studies of its workload.
    """
    wanted = set(ids)
    groups: dict[Group, list[int]] = {}
    bench: list[int] = []
    unsure: list[tuple[int, str, str | None]] = []
    for run_id, profiler, workload, batch, mode, precision, device, variant, status in connection.execute(_RUNS):
        if run_id not in wanted:
            continue
        if workload is None or batch is None:
            groups[("foreign", run_id)] = [run_id]
        elif workload == "families" and profiler == "none":
            bench.append(run_id)
        elif status == "failed" and (device is None or precision is None):
            unsure.append((run_id, workload, mode))
        else:
            groups.setdefault((workload, mode, precision, device, variant), []).append(run_id)
    for run_id, workload, mode in unsure:
        home = next((group for group in groups if group[:1] == (workload,)), (workload, mode, None, None, None))
        groups.setdefault(home, []).append(run_id)
    kept = sorted(groups.values(), key=max)[-most:]
    return sorted([*bench, *(run_id for group in kept for run_id in group)]), len(groups) - len(kept)
