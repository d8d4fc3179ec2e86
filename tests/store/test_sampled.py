"""Version 2 of the schema: readings beside a run."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS
from perfctl.orchestrator.store.write import RunFacts, SweepFacts, write_run
from perfctl.records.report import Report, Sample

FULL = Sample(5, 0.5, 1, 2, 70.5, 41.0, 10**9, 0, 10**8, 1234.5, "idle+sw_power_cap", 3, 0.25)
HOST = Sample(6, None, None, None, None, None, None, host_cpu=1.5, host_memory_bytes=4096)


def test_a_store_of_version_1_keeps_its_samples_and_takes_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "perfctl.db"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(MIGRATIONS[0].sql)
        old.execute(f"PRAGMA application_id = {database.APPLICATION_ID}")
        old.execute("PRAGMA user_version = 1")
        old.execute("INSERT INTO sweep VALUES (1, 's', 'sweep', '2026-01-01T00:00:00Z', NULL, NULL)")
        old.execute(
            "INSERT INTO run (id, sweep_id, profiler, status, origin, ingested_at)"
            " VALUES (1, 1, 'nvidia-smi', 'ok', 'ingested', '2026-01-01T00:00:00Z')"
        )
        old.execute("INSERT INTO sample VALUES (1, 7, 0.25, 10, 20, 30.5, 40.0, 50, 0)")
    report = Report("torch", Path("x"), "synthetic", samples=[FULL, HOST])
    with database.writing(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        write_run(
            connection, SweepFacts("t", "sweep", None, None), RunFacts("torch", "ok", "synthetic"), report,
            family=lambda name: None,
        )  # fmt: skip
        before, after = read.load(connection, [1, 2])
    assert list(before.report.samples) == [Sample(7, 0.25, 10, 20, 30.5, 40.0, 50, 0)]
    assert list(after.report.samples) == [FULL, HOST]
