from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS, tables


def test_a_new_store_has_the_newest_schema_and_is_in_wal_mode(tmp_path: Path) -> None:
    with database.writing(tmp_path / "perfctl.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_every_column_of_the_schema_says_meaning_unit_and_when_null(tmp_path: Path) -> None:
    described = tables()
    with database.writing(tmp_path / "perfctl.db") as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert sorted(names) == sorted(described)
        for name in names:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
            assert columns == [column.name for column in described[name][1]]


def test_a_store_of_a_newer_perfctl_is_refused_with_the_version_to_install(tmp_path: Path) -> None:
    path = tmp_path / "perfctl.db"
    with database.writing(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        connection.execute("UPDATE store_info SET value = '9.8.0' WHERE key = 'written_by'")
    for mode in (database.writing, database.reading):
        with pytest.raises(StoreError, match=r"Install perfctl 9\.8\.0 or later"), mode(path):
            pass


def test_a_profilers_sqlite_file_is_not_taken_for_a_store(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a perfctl store"), database.writing(path):
        pass
    assert path.read_bytes() == before


def test_a_file_that_is_not_a_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "perfctl.db"
    path.write_bytes(b"no database at all" * 100)
    for mode in (database.writing, database.reading):
        with (
            pytest.raises(StoreError, match="--store, or move this file away and ingest the reports again"),
            mode(path),
        ):
            pass


def test_reading_where_there_is_no_store_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="perfctl ingest FILE"), database.reading(tmp_path / "perfctl.db"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="a folder, not a store"), database.reading(tmp_path):
        pass


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with database.writing(tmp_path / "perfctl.db") as connection:
        with pytest.raises(KeyError), database.transaction(connection):
            connection.execute("INSERT INTO store_info VALUES ('half', 'written')")
            raise KeyError
        assert connection.execute("SELECT count(*) FROM store_info WHERE key = 'half'").fetchone() == (0,)


def test_reading_changes_nothing_and_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "perfctl.db"
    with database.writing(path):
        pass
    with pytest.raises(StoreError, match="readonly"), database.reading(path) as connection:
        connection.execute("DELETE FROM store_info")


def test_an_empty_file_is_not_a_store_and_stays_empty_when_read(tmp_path: Path) -> None:
    path = tmp_path / "perfctl.db"
    path.touch()
    with pytest.raises(StoreError, match="is not a store yet"), database.reading(path):
        pass
    assert path.stat().st_size == 0
