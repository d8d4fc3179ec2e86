import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from perfctl import __version__
from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import database
from perfctl.orchestrator.store.schema import VERSION, describe_store_tables, describe_store_views
from perfctl.orchestrator.store.write import write_in_transaction_without_triggers
from tests.make.stored import execute


def test_a_new_store_has_the_newest_schema_and_is_in_wal_mode(writing):
    asked = [
        writing.execute(f"PRAGMA {one}").fetchone()[0]
        for one in ("user_version", "journal_mode", "foreign_keys")
    ]
    assert asked == [VERSION, "wal", 1]


def test_every_table_takes_values_of_its_columns_types_only(writing):
    tables = writing.execute(
        "SELECT name FROM pragma_table_list WHERE type = 'table' AND NOT strict"
    )
    assert {name for (name,) in tables} == {"sqlite_schema", "sqlite_temp_schema"}


def test_a_schema_may_call_nothing_that_does_more_than_compute(writing, path):
    with database.open_store_for_reading(path) as reading:
        for connection in (reading, writing):
            assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
            assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)


@pytest.mark.parametrize(
    ("kind", "described"), [("table", describe_store_tables()), ("view", describe_store_views())]
)
def test_every_column_of_the_schema_says_meaning_unit_and_when_null(kind, described, writing):
    names = [
        name
        for (name,) in writing.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))
    ]
    assert sorted(names) == sorted(described)
    for name in names:
        columns = [row[1] for row in writing.execute(f"PRAGMA table_info({name})")]
        assert columns == [column.name for column in described[name][1]]


@pytest.mark.parametrize(
    ("view", "index", "names"),
    [
        ("kernel", "kernel_launch_by_run", "kernel_name"),
        ("op_call", "op_instance_by_run", "op_signature"),
    ],
)
def test_counting_rows_of_a_run_reads_only_its_index(writing, view, index, names):
    query = f"EXPLAIN QUERY PLAN SELECT count(*) FROM {view} WHERE run_id = 1"
    plan = " ".join(row[3] for row in writing.execute(query))
    assert index in plan and names not in plan


@pytest.mark.parametrize("mode", [database.open_store_for_writing, database.open_store_for_reading])
@pytest.mark.parametrize("written_by", [__version__, "9.8.0", "x'; --", None])
def test_a_newer_database_asks_for_a_later_perfctl(path, written_by, mode):
    """A version under development writes the next schema under the number that was released
    before it."""
    with database.open_store_for_writing(path) as connection:
        connection.execute(
            "UPDATE store_info SET value = ? WHERE key = 'written_by'", (written_by,)
        )
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    wanted = re.escape(f"Install a perfctl later than {__version__} (perfctl {written_by} wrote")
    with pytest.raises(StoreError, match=wanted), mode(path):
        pass


def test_a_profilers_sqlite_file_and_what_is_no_database_are_refused_in_one_line_and_left_alone(
    path,
):
    execute(path, "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    other = path.with_name("other.db")
    other.write_bytes(b"no database at all" * 100)
    remedy = "--store to another file, or move this file away and ingest the reports again"
    for file, said in ((path, "not a perfctl results database"), (other, remedy)):
        before = file.read_bytes()
        for mode in (database.open_store_for_writing, database.open_store_for_reading):
            with pytest.raises(StoreError, match=said), mode(file):
                pass
        assert file.read_bytes() == before


def test_a_folder_and_a_file_that_is_not_there_are_no_stores(path):
    with (
        pytest.raises(StoreError, match="perfctl ingest FILE"),
        database.open_store_for_reading(path),
    ):
        pass
    with (
        pytest.raises(StoreError, match="a folder, not a results database"),
        database.open_store_for_reading(path.parent),
    ):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_transaction_that_fails_leaves_nothing(writing):
    with pytest.raises(KeyError), write_in_transaction_without_triggers(writing):
        writing.execute("INSERT INTO store_info VALUES ('half', 'written')")
        raise KeyError
    assert writing.execute("SELECT count(*) FROM store_info WHERE key = 'half'").fetchone() == (0,)


def test_reading_changes_nothing_and_cannot_write_and_an_empty_file_is_no_store_and_stays_empty(
    path,
):
    path.touch()
    with (
        pytest.raises(StoreError, match="is not a results database yet"),
        database.open_store_for_reading(path),
    ):
        pass
    assert path.stat().st_size == 0
    with database.open_store_for_writing(path):
        pass
    with (
        pytest.raises(StoreError, match="readonly"),
        database.open_store_for_reading(path) as connection,
    ):
        connection.execute("DELETE FROM store_info")


def _write(path, name="a device"):
    with database.open_store_for_writing(path) as connection:
        connection.execute("INSERT INTO device (name, kind) VALUES (?, 'gpu')", (name,))


def _write_nothing(path):
    with database.remove_new_empty_store_on_exit(path), database.open_store_for_writing(path):
        pass


def _names(path):
    with database.open_store_for_reading(path) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM device")]


def test_a_new_store_in_which_nothing_was_stored_goes_again(path):
    _write_nothing(path)
    assert list(path.parent.iterdir()) == []


def test_an_empty_store_stays_where_it_was_there_before_or_another_process_uses_it(path):
    first = ExitStack()
    first.enter_context(database.remove_new_empty_store_on_exit(path))
    first.enter_context(database.open_store_for_writing(path))
    with database.open_store_for_writing(path) as second:
        first.close()
        second.execute("INSERT INTO store_info VALUES ('a', 'b')")
    assert path.is_file()
    _write_nothing(path)
    assert path.is_file()


def test_a_new_store_stays_with_its_first_row_and_in_wal_mode(path):
    with (
        database.remove_new_empty_store_on_exit(path),
        database.open_store_for_writing(path) as connection,
    ):
        connection.execute("INSERT INTO device (name, kind) VALUES ('first', 'gpu')")
    assert _names(path) == ["first"]
    with database.open_store_for_reading(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_who_opens_a_new_store_while_it_is_removed_writes_into_one_that_is_there(path):
    for attempt in range(20):
        with ThreadPoolExecutor(3) as threads:
            jobs = [
                threads.submit(_write_nothing, path),
                threads.submit(_write, path),
                threads.submit(_write_nothing, path),
            ]
            for job in jobs:
                job.result()
        assert _names(path) == ["a device"], attempt
        path.unlink()
