"""Runs that timed their steps without a profiler around them: what predictions rest on. Nothing
here writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from perfctl.orchestrator.store.read import read_op_shapes, read_run_table_rows
from perfctl.records.report import Step
from perfctl.records.timed_run import PowerReading, TimedRun

_RUNS = """
SELECT run.id, workload, variant, batch_size, mode, precision, device.name, device.kind
FROM run JOIN device ON device.id = run.device_id
WHERE profiler = 'none' AND status = 'ok' AND origin <> 'synthetic' AND workload IS NOT NULL
  AND batch_size > 0 AND mode IS NOT NULL AND precision IS NOT NULL AND device.name IS NOT NULL
ORDER BY run.id
"""
_PEAK = "SELECT max(bytes) FROM memory WHERE run_id = ? AND moment = 'peak' AND quantity = ?"
_LAYERS = "SELECT layer, direction, duration_ns FROM layer_time WHERE run_id = ?"
_THREADS = "SELECT value FROM environment WHERE run_id = ? AND key = 'threads'"
_POWER = """
SELECT run.id, workload, variant, batch_size, device.name, avg(power_w), count(*)
FROM sample JOIN run ON run.id = sample.run_id JOIN device ON device.id = run.device_id
WHERE power_w > 0 AND status = 'ok' AND origin <> 'synthetic' AND device.name IS NOT NULL
  AND at_ns >= (SELECT min(start_ns) FROM step WHERE step.run_id = run.id AND phase = 'step')
  AND at_ns <= (
    SELECT max(start_ns + duration_ns) FROM step WHERE step.run_id = run.id AND phase = 'step'
  )
GROUP BY run.id ORDER BY run.id
"""


def read_unprofiled_timed_runs(connection: sqlite3.Connection) -> Iterator[TimedRun]:
    """Every whole run of the plain profiler that knows its workload, batch size and device,
    oldest first."""
    for row in connection.execute(_RUNS).fetchall():
        run_id, *_, kind = row
        (peak,) = connection.execute(
            _PEAK, (run_id, "allocated" if kind == "gpu" else "host_resident")
        ).fetchone()
        layers = {
            (layer, direction): length
            for layer, direction, length in connection.execute(_LAYERS, (run_id,))
        }
        (threads_text,) = connection.execute(_THREADS, (run_id,)).fetchone() or (None,)
        threads = (
            int(str(threads_text)) if kind == "cpu" and str(threads_text).isdecimal() else None
        )
        steps = tuple(read_run_table_rows(connection, Step, "step", run_id))
        ops = tuple(read_op_shapes(connection, run_id))
        yield TimedRun._make((*row, steps, ops, peak, layers, threads))


def read_mean_step_power_per_run(connection: sqlite3.Connection) -> list[PowerReading]:
    """Mean power over the measured steps of each whole run whose device was sampled meanwhile."""
    return list(map(PowerReading._make, connection.execute(_POWER)))
