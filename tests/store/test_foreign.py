"""A store that somebody else made: what runs in it is refused before anything is read from it or written to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS
from perfctl.orchestrator.store.schema.v1 import FIRST

ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "perfctl.db"
    with database.writing(path):
        pass
    return path


def change(path: Path, *statements: str) -> bytes:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def view_sql(path: Path, name: str) -> str:
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0])


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM gap; END"], "a trigger in it"),
        (["CREATE VIEW mine AS SELECT 1", "CREATE TRIGGER t INSTEAD OF DELETE ON mine BEGIN SELECT 1; END"], "a trigger"),
        (["DROP VIEW kernel", f"CREATE VIEW kernel AS {ENDLESS}"], "the view kernel is not as perfctl made it"),
        (["DROP TABLE gap", f"CREATE VIEW gap AS {ENDLESS}"], "the table gap is not as perfctl made it"),
        (["DROP TABLE gap", "CREATE VIRTUAL TABLE gap USING fts4(run_id, quantity)"], "the table gap is not as"),
        (["DROP TABLE gap", "CREATE TABLE gap (run_id, quantity, state, reason AS (zeroblob(9)), x)"], "the table gap"),
        (["DROP TABLE gap"], "the table gap is missing"),
        (["PRAGMA user_version = -1"], "has no version"),
    ],
)  # fmt: skip
def test_what_runs_by_itself_is_refused_and_nothing_is_written(store: Path, statements: list[str], said: str) -> None:
    before = change(store, *statements)
    for mode in (database.reading, database.writing):
        with pytest.raises(StoreError, match=said) as raised, mode(store):
            pass
        assert "\n" not in str(raised.value)
    assert store.read_bytes() == before


def test_a_view_cannot_hide_what_it_does_behind_what_looks_like_a_comment(store: Path) -> None:
    own = view_sql(store, "kernel")
    assert own.count("FROM") >= 1
    place = own.index("FROM")
    harmless = f"{own[:place]}/* why not */ -- 'quoted'\n {own[place:]}"
    change(store, "DROP VIEW kernel", harmless)
    with database.reading(store) as connection:
        assert connection.execute("SELECT count(*) FROM kernel").fetchone() == (0,)
    change(store, "DROP VIEW kernel", f"{own[:place]}, '--' AS a, 'b'\n {own[place:]}")
    with pytest.raises(StoreError, match="view kernel"), database.reading(store):
        pass


def test_tables_views_and_indexes_of_the_users_own_are_left_alone(store: Path) -> None:
    change(store, "CREATE TABLE note (text)", "CREATE VIEW mine AS SELECT 1", "CREATE INDEX fast ON run(workload)")
    for mode in (database.reading, database.writing):
        with mode(store) as connection:
            assert connection.execute("SELECT count(*) FROM mine").fetchone() == (1,)


def test_a_schema_may_call_nothing_that_does_more_than_compute(store: Path) -> None:
    for mode in (database.reading, database.writing):
        with mode(store) as connection:
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
            assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)


def first_version(path: Path, *more: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(FIRST.replace("CREATE TABLE", "CREATE  TABLE"))
        for statement in (*more, f"PRAGMA application_id = {database.APPLICATION_ID}", "PRAGMA user_version = 1"):
            db.execute(statement)
        db.commit()
    return path


def test_a_store_of_the_first_version_is_compared_with_that_one_and_then_brought_up_to_date(tmp_path: Path) -> None:
    with database.reading(first_version(tmp_path / "old.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_trigger_in_an_older_store_is_refused_before_it_is_brought_up_to_date(tmp_path: Path) -> None:
    old = first_version(tmp_path / "old.db", "CREATE TRIGGER t AFTER INSERT ON run BEGIN SELECT 1; END")
    before = old.read_bytes()
    with pytest.raises(StoreError, match="trigger"), database.reading(old):
        pass
    assert old.read_bytes() == before


def test_a_store_whose_name_is_no_utf_8_is_opened(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xff\n%3f.db"))
    with database.writing(path):
        pass
    with database.reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
