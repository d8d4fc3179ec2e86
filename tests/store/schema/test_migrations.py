"""Stores that earlier versions wrote, recorded, and opened by this one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS

RECORDED = Path(__file__).resolve().parents[2] / "data" / "stores"
VERSIONS = range(1, len(MIGRATIONS))

Content = dict[str, tuple[list[str], list[tuple[Any, ...]]]]


def recorded(version: int, folder: Path) -> Path:
    assert (RECORDED / f"version{version}.sql").is_file(), "tests/data/stores/HOW.md says how to record one"
    store = folder / "old.db"
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript((RECORDED / f"version{version}.sql").read_text())
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
    return store


def tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name <> 'store_info'")
    return sorted(name for (name,) in rows if not name.startswith("sqlite_"))


def columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def content(store: Path, of: Content | None = None) -> Content:
    """Every row of every table, in the columns of ``of`` where it is given."""
    with closing(sqlite3.connect(store)) as connection:
        names = {table: columns(connection, table) for table in tables(connection)}
        if of is not None:
            names = {table: known for table, (known, _) in of.items()}
        return {
            table: (known, connection.execute(f"SELECT {', '.join(known)} FROM {table} ORDER BY 1, 2").fetchall())
            for table, known in names.items()
        }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_store_keeps_every_row_gets_the_newest_schema_and_is_read_as_its_runs_were_written(
    tmp_path, version
):
    store, fresh = recorded(version, tmp_path), tmp_path / "fresh.db"
    before = content(store)
    assert sum(len(rows) for _, rows in before.values()) > 500
    with database.writing(store) as connection, database.writing(fresh) as new:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        assert tables(connection) == tables(new)
        assert all(columns(connection, table) == columns(new, table) for table in tables(new))
        wanted = connection.execute("SELECT id, profiler, batch_size FROM run ORDER BY id").fetchall()
        steps = connection.execute("SELECT count(*) FROM step").fetchone()[0]
        runs = read.load(connection, [number for number, _, _ in wanted])
    assert content(store, of=before) == before
    assert [(run.id, run.profiler, run.batch_size) for run in runs] == wanted
    assert sum(len(run.report.steps) for run in runs) == steps


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_that_fails_leaves_the_store_at_the_version_it_had(tmp_path, version):
    store = recorded(version, tmp_path)
    with closing(sqlite3.connect(store)) as connection:  # in the way of what version 3 brings
        connection.execute("CREATE TABLE layer_time (mine TEXT)")
        connection.commit()
    with pytest.raises(database.StoreError, match="a table layer_time of your own"), database.writing(store):
        pass
    with closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 2
        assert columns(connection, "layer_time") == ["mine"]
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'feature'").fetchone() == (0,)
