"""Stores of perfctl 1.0 are replaced by a migrated copy, whole or not at all; those of 0.x are
refused."""

import gzip
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlite_utils.cli import cli

from perfctl.orchestrator.errors import StoreError, StoreNote
from perfctl.orchestrator.store import database, migrate
from perfctl.orchestrator.store.schema import SINCE, VERSION
from tests.make.stored import execute, rows

STORES = Path(__file__).resolve().parents[2] / "scripts" / "proof" / "guard" / "stores"
pytestmark = pytest.mark.filterwarnings("ignore:.*upgraded from perfctl 1.0")


@pytest.fixture(params=["mnist-v100", "recorded-cpu", "synthetic"])
def old(request, path):
    """A store that perfctl 1.0.0 wrote, in WAL mode."""
    return unpack(request.param, path)


def unpack(name, path):
    with closing(sqlite3.connect(path)) as store:
        store.executescript(gzip.decompress((STORES / f"{name}.sql.gz").read_bytes()).decode())
        store.execute("PRAGMA journal_mode = WAL")
    return path


def contents(path, but=("store_info",)):
    """Every row of every table, with its number and as columns by name."""
    with closing(sqlite3.connect(path)) as store:
        store.row_factory = lambda cursor, row: dict(
            zip((column[0] for column in cursor.description), row, strict=True)
        )
        tables = [
            row["name"]
            for row in store.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
        ]
        return {
            name: store.execute(
                f'SELECT rowid AS "row number", * FROM "{name}" ORDER BY rowid'
            ).fetchall()
            for name in tables
            if name not in but and "_fts" not in name
        }


def without_dropped(tables):
    return {
        name: [
            {
                column: value
                for column, value in row.items()
                if column not in migrate.DROPPED.get(name, ())
            }
            for row in rows
        ]
        for name, rows in tables.items()
    }


def schema_of(path):
    return rows(path, "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")


def test_every_value_survives_and_the_schema_is_that_of_a_new_store(old):
    before = contents(old)
    with database.open_store_for_reading(old) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
    new = old.with_name("new.db")
    with database.open_store_for_writing(new):
        pass
    after = contents(old)
    parameters, *others = [after.pop(name) for name in migrate.ADDED]
    batches = {run["id"]: run["batch_size"] for run in before["run"] if run["batch_size"]}
    assert {row["run_id"]: row["number"] for row in parameters} == batches
    assert others == [[], []]
    assert after == without_dropped(before)
    assert schema_of(old) == schema_of(new)
    assert rows(old, "PRAGMA integrity_check") == [("ok",)]
    assert rows(old, "PRAGMA foreign_key_check") == []
    assert rows(old, "PRAGMA journal_mode") == [("wal",)]
    assert rows(old, "SELECT value FROM store_info WHERE key = 'written_by'") == [(SINCE,)]
    assert sorted(file.name for file in old.parent.iterdir()) == ["new.db", "perfctl.db"]


def test_what_the_owner_made_survives(path):
    store = unpack("synthetic", path)
    for command, *words in (
        ["add-column", "run", "mine", "text", "--not-null-default", "x"],
        ["add-column", "gap", "grade", "float"],
        ["create-index", "kernel_launch", "duration_ns", "stream"],
        ["create-view", "slow", "select name, sum(duration_ns) as ns from kernel group by name"],
        ["enable-fts", "kernel_name", "name", "--create-triggers"],
        ["enable-fts", "gap", "reason", "--fts4", "--create-triggers"],
        ["enable-counts", "run"],
    ):
        cli.main([command, str(store), *words], standalone_mode=False)
    execute(
        store,
        "CREATE TABLE notes (run_id REFERENCES run(id), text VARCHAR(9))",
        "INSERT INTO notes SELECT id, 'seen' FROM run",
        "UPDATE run SET mine = 'y' WHERE id = 2",
    )
    before, objects = contents(store), {row[:3] for row in schema_of(store)}
    with database.open_store_for_writing(store):
        pass
    after = contents(store)
    assert {name: after[name] for name in before} == without_dropped(before)
    assert objects <= {row[:3] for row in schema_of(store)}
    assert rows(store, "SELECT 1 FROM kernel_name_fts WHERE kernel_name_fts MATCH 'sgemm'")
    assert rows(store, "SELECT 1 FROM slow")
    ((text,),) = rows(store, "SELECT sql FROM sqlite_master WHERE name = 'notes'")
    assert "REFERENCES run(id)" in text
    assert rows(store, "PRAGMA integrity_check") == [("ok",)]


def test_a_fraction_in_a_column_of_whole_numbers_is_rounded(path):
    store = unpack("recorded-cpu", path)
    execute(store, "UPDATE step SET duration_ns = 10.75 WHERE run_id = 1")
    with database.open_store_for_reading(store) as connection:
        values = connection.execute(
            "SELECT DISTINCT duration_ns, typeof(duration_ns) FROM step WHERE run_id = 1"
        )
        assert values.fetchall() == [(11, "integer")]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE run SET batch_size = 'many' WHERE id = 1", "cannot store TEXT value in INTEGER"),
        ("DROP TABLE gap", "no such table: gap"),
        ("ALTER TABLE gap RENAME COLUMN reason TO why", "no such column: reason"),
        ("CREATE TABLE parameter (mine)", "table parameter already exists"),
        ("ALTER TABLE run ADD COLUMN twice AS (id * 2)", "run.twice is a computed column"),
    ],
)
def test_a_store_that_cannot_be_migrated_is_refused_in_one_line_and_stays_as_it_was(
    path, statement, said
):
    store = unpack("synthetic", path)
    execute(store, statement)
    before = contents(store, ()), schema_of(store)
    for mode in (database.open_store_for_reading, database.open_store_for_writing):
        with (
            pytest.raises(StoreError, match=r"upgrade from perfctl 1\.0 failed") as raised,
            mode(store),
        ):
            pass
        assert said in str(raised.value) and "\n" not in str(raised.value)
    assert (contents(store, ()), schema_of(store)) == before
    assert [file.name for file in path.parent.iterdir()] == ["perfctl.db"]


def test_a_read_only_store_is_refused_in_one_line_and_not_touched(path):
    store = unpack("synthetic", path)
    store.chmod(0o444)
    before = store.read_bytes()
    with (
        pytest.raises(StoreError, match=r"it is read-only.*Copy it to a writable"),
        database.open_store_for_reading(store),
    ):
        pass
    assert store.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["perfctl.db"]


def test_mode_and_links_stay_and_the_note_names_the_store(path):
    store = unpack("synthetic", path)
    store.chmod(0o640)
    link = path.with_name("link.db")
    link.symlink_to(store)
    with (
        pytest.warns(StoreNote, match="perfctl.db: upgraded"),
        database.open_store_for_reading(link),
    ):
        pass
    assert link.is_symlink()
    assert store.stat().st_mode & 0o777 == 0o640


def test_what_was_only_in_the_write_ahead_log_is_there_afterwards(path):
    store = unpack("synthetic", path)
    writer = sqlite3.connect(store)
    writer.execute("UPDATE sweep SET name = 'from the log'")
    writer.commit()
    files = {name: Path(f"{store}{name}").read_bytes() for name in ("", "-wal")}
    writer.close()
    for name, content in files.items():
        Path(f"{store}{name}").write_bytes(content)
    with database.open_store_for_reading(store) as connection:
        names = connection.execute("SELECT DISTINCT name FROM sweep").fetchall()
        assert names == [("from the log",)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _die_in(path, step):
    """Migrate, and be killed at the beginning of one step."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "replaced":
        replace = migrate._replace_with_copy

        def replace_and_die(*paths):
            replace(*paths)
            die()

        migrate._replace_with_copy = replace_and_die
    else:
        setattr(migrate, step, die)
    migrate.migrate_store_from_1_0(path)


@pytest.mark.parametrize(
    "step", ["_rebuild_schema", "_rebuild_table", "_replace_with_copy", "replaced"]
)
def test_a_kill_leaves_the_old_store_or_the_new_one_and_the_next_command_goes_on(
    path, is_killed, step
):
    store = unpack("synthetic", path)
    before = contents(store)
    is_killed(_die_in, store, step)
    version = VERSION if step == "replaced" else migrate.OLD_VERSION
    assert rows(store, "PRAGMA user_version") == [(version,)]
    with database.open_store_for_writing(store):
        pass
    after = contents(store)
    assert {name: after[name] for name in before} == without_dropped(before)
    assert [file.name for file in path.parent.iterdir()] == ["perfctl.db"]


def test_a_store_that_is_in_use_is_refused_and_left_alone(path, monkeypatch):
    store = unpack("synthetic", path)
    monkeypatch.setattr("perfctl.orchestrator.store.connection.WAIT_MS", 200)
    with closing(sqlite3.connect(store)) as other:
        other.execute("SELECT count(*) FROM run").fetchone()
        with (
            pytest.raises(StoreError, match="another process has been writing to this file"),
            database.open_store_for_reading(store),
        ):
            pass
        assert other.execute("PRAGMA user_version").fetchone() == (migrate.OLD_VERSION,)


@pytest.mark.parametrize("version", [1, migrate.OLD_VERSION - 1])
def test_a_store_of_perfctl_0_is_refused_in_one_line_and_left_alone(path, version):
    with database.open_store_for_writing(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    for mode in (database.open_store_for_writing, database.open_store_for_reading):
        with pytest.raises(StoreError) as raised, mode(path):
            pass
        assert str(raised.value) == (
            f"{path}: perfctl 0.x wrote this database (schema version {version})."
            " Open it once with perfctl 1.0.0, which upgrades it"
        )
    assert path.read_bytes() == before
