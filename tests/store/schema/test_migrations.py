"""Stores of other versions of the schema: those of perfctl 0.x are refused, and a later step is
applied whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import database, shape
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS, NEWEST, OLDEST, Migration

NEXT = (
    "ALTER TABLE run ADD COLUMN queue TEXT; -- queue of its job; -; NULL: not known\n"
    "CREATE TABLE {} (run_id INTEGER);\n"
)


@pytest.mark.parametrize("version", range(1, OLDEST))
def test_a_store_of_perfctl_0_is_refused_in_one_line_and_left_alone(
    path: Path, version: int
) -> None:
    with database.writing(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    for mode in (database.writing, database.reading):
        with pytest.raises(StoreError) as raised, mode(path):
            pass
        assert str(raised.value) == (
            f"{path}: perfctl 0.x wrote this store (schema version {version})."
            " Open it once with perfctl 1.0.0, which upgrades it"
        )
    assert path.read_bytes() == before


@pytest.fixture
def following(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store of this version, opened by a perfctl that has one more step."""
    with database.writing(path) as connection:
        connection.execute("INSERT INTO device (name, kind) VALUES ('kept', 'gpu')")
    steps = (*MIGRATIONS, Migration(NEWEST + 1, "9.0.0", NEXT.format("job")))
    for module in (database, shape):
        monkeypatch.setattr(module, "MIGRATIONS", steps)
    monkeypatch.setattr(database, "NEWEST", NEWEST + 1)
    yield
    shape.made_by.cache_clear()


def facts(path: Path) -> tuple[object, ...]:
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (written_by,) = connection.execute(
            "SELECT value FROM store_info WHERE key = 'written_by'"
        ).fetchone()
        columns = [row[1] for row in connection.execute("PRAGMA table_info(run)")]
        return (
            version,
            written_by,
            "queue" in columns,
            connection.execute("SELECT name FROM device").fetchall(),
        )


def test_the_next_step_is_applied_to_a_store_and_keeps_its_rows(
    path: Path, following: None
) -> None:
    with database.reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM job").fetchone() == (0,)
    assert facts(path) == (NEWEST + 1, "9.0.0", True, [("kept",)])
    with database.writing(path.with_name("new.db")) as connection:
        connection.execute("INSERT INTO device (name, kind) VALUES ('kept', 'gpu')")
    assert facts(path.with_name("new.db")) == facts(path)


def test_a_step_that_fails_leaves_the_store_at_the_version_it_had(
    path: Path, following: None
) -> None:
    before = facts(path)
    # in the way of the last statement of the step
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE job (mine TEXT)")
        connection.commit()
    with pytest.raises(StoreError, match="table job already exists"), database.writing(path):
        pass
    assert facts(path) == before
