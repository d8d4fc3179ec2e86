"""A store that its user changed, or that somebody else made: perfctl uses its own columns, and
nothing else runs."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.errors import StoreError, StoreNote
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.store.write import write_in_transaction_without_triggers
from perfctl.records.report import (
    Counter,
    Gap,
    Kernel,
    Report,
    Step,
)
from tests.make import stored
from tests.make.stored import rows

ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t"
KERNELS = [
    Kernel(0, "gemm", None, "conv1", "forward", 0, "range", duration_ns=10),
    Kernel(1, "relu", duration_ns=2.5),
]
GAPS = (Gap("memory", "not_collected", "nobody asked"), Gap("power", "not_available", "no sensor"))
REPORT = Report(
    "ncu",
    Path("r.csv"),
    "made",
    kernels=KERNELS,
    counters=[Counter(0, "flops", 7, None)],
    gaps=GAPS,
    steps=(Step(0, "step", 0, 100, 2.5, None), Step(1, "step", 100, 90, 2.25, None)),
)


@pytest.fixture
def store(path):
    write(path)
    return path


def write(path, report=REPORT, status="ok"):
    with database.open_store_for_writing(path) as connection:
        run = stored.write(connection, report, status=status, workload="net", batch_size=16)
        return run.run_id


def change(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def is_read_as_written(path):
    with database.open_store_for_reading(path) as connection:
        run = read.load_run(connection, 1)
    kept = (run.report.kernels, run.report.counters, run.report.steps, run.report.gaps)
    assert [type(kernel.duration_ns) for kernel in run.report.kernels] == [int, float]
    return kept == (KERNELS, REPORT.counters, REPORT.steps, GAPS)


@pytest.mark.parametrize(
    "trigger",
    [
        "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM gap; END",
        "CREATE TRIGGER t BEFORE INSERT ON kernel_launch BEGIN SELECT RAISE(ABORT, 'no'); END",
        (
            'CREATE TRIGGER "it\'s [a] ""t""" AFTER INSERT ON step WHEN new.number > 0 BEGIN /* '
            "why */ DELETE FROM step; END"
        ),
        (
            "CREATE TRIGGER t AFTER INSERT ON gap BEGIN INSERT INTO mine SELECT n FROM "
            f"({ENDLESS}); END"
        ),
    ],
)
def test_a_trigger_on_a_table_of_perfctls_does_not_fire_stays_and_is_named(store, trigger):
    change(store, "CREATE TABLE mine (n)", trigger)
    (before,) = rows(store, "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    with pytest.warns(StoreNote, match="perfctl disables triggers while it writes") as said:
        write(store)
    assert [str(before[0]) in str(note.message) for note in said] == [True]
    assert rows(store, "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'") == [
        before
    ]
    assert is_read_as_written(store)
    counts = [
        rows(store, f"SELECT count(*) FROM {table}")
        for table in ("run", "gap", "step", "kernel", "mine")
    ]
    assert counts == [[(2,)], [(4,)], [(4,)], [(4,)], [(0,)]]


def test_triggers_of_tables_of_ones_own_stay_and_are_not_named(store):
    change(
        store,
        "CREATE VIEW mine AS SELECT 1",
        "CREATE TRIGGER t INSTEAD OF DELETE ON mine BEGIN SELECT 1; END",
    )
    write(store)
    assert rows(store, "SELECT name FROM sqlite_master WHERE type = 'trigger'") == [("t",)]


def _die_while_triggers_are_away(path):
    with (
        database.open_store_for_writing(path) as connection,
        write_in_transaction_without_triggers(connection),
    ):
        connection.execute("DELETE FROM step")
        assert connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'"
        ).fetchone() == (0,)
        os.kill(os.getpid(), signal.SIGKILL)


def test_after_an_error_or_a_kill_in_the_middle_the_triggers_are_where_they_were(store, is_killed):
    change(store, "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM gap; END")
    before = rows(store, "SELECT name, sql FROM sqlite_master")
    with database.open_store_for_writing(store) as connection:
        with pytest.raises(KeyError), write_in_transaction_without_triggers(connection):
            connection.execute("DELETE FROM step")
            raise KeyError
        assert connection.execute("SELECT count(*) FROM step").fetchone() == (2,)
    assert rows(store, "SELECT name, sql FROM sqlite_master") == before
    is_killed(_die_while_triggers_are_away, store)
    assert rows(store, "SELECT name, sql FROM sqlite_master") == before
    assert is_read_as_written(store)


def test_a_trigger_that_deletes_does_not_fire_when_a_failed_run_is_forgotten(store):
    failed = write(store, None, "failed")
    trigger = "CREATE TRIGGER t AFTER DELETE ON run BEGIN INSERT INTO seen VALUES (old.id); END"
    change(store, "CREATE TABLE seen (id)", trigger)
    with pytest.warns(StoreNote, match="t on run"):
        write(store)
    assert rows(store, "SELECT id, status FROM run ORDER BY id") == [(1, "ok"), (failed, "ok")]
    assert rows(store, "SELECT count(*) FROM seen") == [(0,)]


@pytest.mark.parametrize("of", ["view", "table"])
def test_a_view_of_perfctls_that_was_replaced_is_not_the_one_that_is_read(store, of):
    change(store, "DROP VIEW kernel", f"CREATE {of} kernel AS {ENDLESS} LIMIT 3")
    assert is_read_as_written(store)
    write(store)
    assert rows(store, "SELECT count(*) FROM kernel") == [(3,)]


def test_a_view_of_perfctls_that_is_gone_is_not_missed(store):
    change(store, "DROP VIEW kernel", "DROP VIEW counter")
    assert is_read_as_written(store)


STEP = (
    "run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, number INTEGER, phase TEXT, "
    "start_ns INTEGER, duration_ns {type}, loss REAL, accuracy REAL"
)


def rebuilt(columns, ending="STRICT"):
    return [
        "PRAGMA legacy_alter_table = ON",
        "ALTER TABLE step RENAME TO kept",
        f"CREATE TABLE step ({columns}) {ending}",
        "INSERT INTO step SELECT * FROM kept",
        "DROP TABLE kept",
    ]


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (["DROP TABLE gap"], "the table gap is missing or was rebuilt. Ingest the reports"),
        (
            ["ALTER TABLE gap RENAME COLUMN reason TO why"],
            "gap has no column reason. Ingest the reports",
        ),
        (
            ["DROP TABLE gap", "CREATE VIEW gap AS SELECT 1 AS run_id"],
            "the table gap is missing or was rebuilt",
        ),
        (
            ["DROP TABLE gap", "CREATE VIRTUAL TABLE gap USING fts4(run_id, quantity, state)"],
            "the table gap is missing or was rebuilt",
        ),
        (rebuilt(STEP.format(type="TEXT")), "the table step was rebuilt: duration_ns differs"),
        (
            [
                "ALTER TABLE step DROP COLUMN accuracy",
                "ALTER TABLE step ADD COLUMN accuracy REAL AS (1)",
            ],
            "step has no column accuracy",
        ),
        (rebuilt(STEP.format(type="INTEGER"), ""), "the table step is missing or was rebuilt"),
        (
            rebuilt(
                STEP.format(type="INTEGER").replace("REFERENCES run(id) ON DELETE CASCADE", "")
            ),
            "the table step was rebuilt: run_id differs",
        ),
        (
            rebuilt(
                STEP.format(type="INTEGER") + ", PRIMARY KEY (number, phase)",
                "STRICT, WITHOUT ROWID",
            ),
            "the table step is missing or was rebuilt",
        ),
        (["PRAGMA user_version = -1"], "has no version"),
    ],
)
def test_what_perfctl_needs_and_does_not_find_is_said_in_one_line_and_nothing_is_written(
    store, statements, said
):
    before = change(store, *statements)
    for mode in (database.open_store_for_reading, database.open_store_for_writing):
        with pytest.raises(StoreError) as raised, mode(store):
            pass
        assert said in str(raised.value)
        assert "\n" not in str(raised.value)
    assert store.read_bytes() == before


def test_the_same_table_in_another_order_of_columns_is_read_by_name(store):
    names = "accuracy, loss, duration_ns, start_ns, phase, number, run_id"
    change(
        store,
        "ALTER TABLE step RENAME TO kept",
        "CREATE TABLE step (accuracy REAL, loss REAL, mine ANY, duration_ns INTEGER, "
        "start_ns INTEGER, phase TEXT, number INTEGER, "
        "run_id INTEGER REFERENCES run(id) ON DELETE CASCADE) STRICT",
        f"INSERT INTO step ({names}) SELECT {names} FROM kept",
        "DROP TABLE kept",
    )
    assert is_read_as_written(store)
    number = write(store)
    with database.open_store_for_reading(store) as connection:
        assert read.load_run(connection, number).report.steps == REPORT.steps


def test_rows_of_the_users_that_belong_to_a_run_go_with_it(store):
    write(store, REPORT, "failed")
    change(
        store,
        'CREATE TABLE "my notes" (run_id INTEGER REFERENCES run(id) ON DELETE CASCADE, "a text" '
        "TEXT)",
        'INSERT INTO "my notes" SELECT id, status FROM run',
    )
    write(store)
    assert rows(store, 'SELECT "a text" FROM "my notes"') == [("ok",)]
    for table in ("kernel_launch", "gap", "kernel_name"):
        assert rows(store, f"SELECT 1 FROM {table} WHERE run_id NOT IN (SELECT id FROM run)") == []


def test_a_rule_of_the_users_that_refuses_a_row_is_named_and_leaves_the_store_as_it_was(store):
    change(store, "CREATE UNIQUE INDEX one_each ON gap(quantity)")
    before = rows(store, "SELECT * FROM run")
    with pytest.raises(StoreError, match=r"gap\.quantity\. A constraint in this database"):
        write(store)
    assert rows(store, "SELECT * FROM run") == before


def test_a_store_whose_name_is_not_utf_8_is_opened(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xff\n%3f.db"))
    with database.open_store_for_writing(path):
        pass
    with database.open_store_for_reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)


def test_an_id_that_leaves_no_number_for_the_next_row_is_named(store):
    change(store, f"UPDATE kernel_launch SET id = {2**63 - 1} WHERE id = 2")
    with pytest.raises(StoreError, match="kernel_launch has the id 9223372036854775807"):
        write(store)
