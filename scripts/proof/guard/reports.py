"""What perfctl reads out of reports, and says about them: reading, attribution, ledger, compare."""

from __future__ import annotations

import sqlite3

from recorder import Recorder, Values, query_runs

RUN = {
    "run": (
        "select profiler, coalesce(batch_size, ''), coalesce(mode, ''), coalesce(precision, ''), "
        "status, coalesce(rank, ''), coalesce(world_size, '') from run where id = ?"
    ),
    "kernels": (
        "select count(*), sum(duration_ns), count(distinct name), count(layer), sum(grid_x is not "
        "null) from kernel where run_id = ?"
    ),
    "ranges": "select count(*), sum(duration_ns), max(depth) from range where run_id = ?",
    "copies": (
        "select kind, count(*), sum(bytes), sum(duration_ns) from copy where run_id = ? group by 1 "
        "order by 1"
    ),
    "operations": (
        "select count(*), sum(calls), sum(device_ns), sum(cpu_ns), sum(flops) from operation where "
        "run_id = ?"
    ),
    "api": (
        "select domain, count(*), sum(calls), sum(total_ns) from api_call where run_id = ? group "
        "by 1 order by 1"
    ),
    "operators": "select count(*), sum(device_ns) from op_call where run_id = ?",
    "collectives": "select count(*), sum(bytes), sum(exposed_ns) from collective where run_id = ?",
    "layers": (
        "select count(*), sum(macs), sum(flops), sum(parameters), sum(read_bytes) from layer_call "
        "where run_id = ?"
    ),
    "samples": "select count(*), sum(power_w), max(memory_used_bytes) from sample where run_id = ?",
    "steps": "select count(*), sum(duration_ns) from step where run_id = ?",
    "memory": "select moment, quantity, bytes from memory where run_id = ? order by 1, 2, 3",
    "summary": "select count(*), sum(value) from summary where run_id = ?",
    "missing": (
        "select quantity, state, count(*) from gap where run_id = ? group by 1, 2 order by 1, 2"
    ),
    "advice": "select count(*), sum(estimated_speedup) from advice where run_id = ?",
    "derived": (
        "select instruction, count(*), sum(value) from derived_count join kernel on kernel.id = "
        "kernel_id where run_id = ? group by 1 order by 1"
    ),
}
"""Counts and sums of what the results database holds of a run; all columns are in schema.md."""
ATTRIBUTION = {
    "by layer": (
        "select coalesce(layer, ''), coalesce(direction, ''), count(*), sum(duration_ns) from "
        "kernel where run_id = ? group by 1, 2 order by 4 desc, 1, 2 limit 60"
    ),
    "by name": (
        "select substr(name, 1, 80), coalesce(family, ''), count(*), sum(duration_ns) from kernel"
        " where run_id = ? group by name order by 4 desc, 1 limit 40"
    ),
    "by counter": (
        "select counter.name, count(*), sum(value) from counter join kernel on kernel.id = "
        "kernel_id where run_id = ? group by 1 order by 1 limit 400"
    ),
}
LARGEST_LEDGER, LARGEST_COMPARED = 80_000_000, 30_000_000
"""Bytes of a results database."""


def reading(recorder: Recorder) -> Values:
    """Yield the exit code of each report, and counts and sums of each run."""
    for path in recorder.reports():
        name, stored = recorder.name(path), recorder.store_of(path)
        yield f"{name} / exit", stored.exit_code
        for run, what, rows in query_runs(stored.path, RUN):
            yield f"{name} / run {run} / {what}", rows


def attribution(recorder: Recorder) -> Values:
    """Yield launches and time by layer and pass, by kernel name, by counter."""
    for path in recorder.reports():
        for run, what, rows in query_runs(recorder.store_of(path).path, ATTRIBUTION):
            for row in rows:
                text = " / ".join(cell for cell in row if isinstance(cell, str))
                numbers = [cell for cell in row if not isinstance(cell, str)]
                yield f"{recorder.name(path)} / run {run} / {what} / {text}", numbers


def ledger(recorder: Recorder) -> Values:
    """Yield estimated and executed FLOPs, their states, ratios and causes."""
    for path in recorder.reports():
        store = recorder.store_of(path).path
        if store.exists() and store.stat().st_size < LARGEST_LEDGER:
            for key, value in recorder.json("ledger", "--store", str(store)).items():
                yield f"{recorder.name(path)} / {key}", value


def compare(recorder: Recorder) -> Values:
    """Yield the comparison of the first two runs of each report, and the history of all."""
    for path in recorder.reports():
        store = recorder.store_of(path).path
        if not store.exists() or store.stat().st_size > LARGEST_COMPARED:
            continue
        with sqlite3.connect(store) as base:
            runs = [str(row[0]) for row in base.execute("select id from run order by id limit 2")]
        if len(runs) > 1:
            for command in (["compare", *runs], ["history"]):
                for key, value in recorder.json(*command, "--store", str(store)).items():
                    yield f"{recorder.name(path)} / {command[0]} / {key}", value
