"""What becomes of a store that was made and got no row, and which perfctl a newer store
asks for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from perfctl.orchestrator.store import database


def _write(path: Path, name: str = "a device") -> None:
    with database.writing(path) as connection:
        connection.execute("INSERT INTO device (name, kind) VALUES (?, 'gpu')", (name,))


def _write_nothing(path: Path) -> None:
    with database.no_empty(path), database.writing(path):
        pass


def _names(path: Path) -> list[str]:
    with database.reading(path) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM device")]


def test_a_new_store_in_which_nothing_was_stored_goes_again(path: Path) -> None:
    _write_nothing(path)
    assert list(path.parent.iterdir()) == []


def test_an_empty_store_stays_where_it_was_there_before_or_another_process_uses_it(
    path: Path,
) -> None:
    first = ExitStack()
    first.enter_context(database.no_empty(path))
    first.enter_context(database.writing(path))
    with database.writing(path) as second:
        first.close()
        second.execute("INSERT INTO store_info VALUES ('a', 'b')")
    assert path.is_file()
    _write_nothing(path)
    assert path.is_file()


def test_a_new_store_stays_with_its_first_row_and_in_wal_mode(path: Path) -> None:
    with database.no_empty(path), database.writing(path) as connection:
        connection.execute("INSERT INTO device (name, kind) VALUES ('first', 'gpu')")
    assert _names(path) == ["first"]
    with database.reading(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_who_opens_a_new_store_while_it_is_removed_writes_into_one_that_is_there(
    path: Path,
) -> None:
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
