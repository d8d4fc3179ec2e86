"""Columns of an export as arrays: what a plain query gives, slice by slice, whatever the values and
the row ids."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.nsys.tables import Strings, opened
from perfctl.parsers.text import sqlite
from perfctl.parsers.text.sqlite import Database
from perfctl.records.errors import ReportError

NUMBERS = st.sampled_from([7, -1, 281546145665170, 2**63 - 1, -(2**63)])


class ClosedWhenDropped(sqlite3.Connection):
    def __del__(self) -> None:
        self.close()


def database(rows: list[tuple[object, ...]], ids: list[int] | None = None) -> Database:
    connection = sqlite3.connect(":memory:", check_same_thread=False, factory=ClosedWhenDropped)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, thread, start, text)")
    numbered = [
        (number, *row) for number, row in zip(ids or range(1, len(rows) + 1), rows, strict=True)
    ]
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", numbered)
    return Database(connection)


@given(
    st.lists(st.tuples(NUMBERS, st.integers(-(2**63), 2**63 - 1), st.just("")), max_size=12),
    st.integers(1, 5),
)
def test_columns_are_what_a_query_gives_however_often_a_number_comes_again(
    rows: list[tuple[int, int, str]], rows_of_a_slice: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "SLICE_ROWS", rows_of_a_slice)
        thread, start = database(rows).integers("t", "thread", "start", few=("thread",))
    assert thread.tolist() == [row[0] for row in rows]
    assert start.tolist() == [row[1] for row in rows]


@pytest.mark.parametrize("change_at", [0, 1, 3, 5])
def test_a_number_that_changes_in_a_later_slice_is_seen(
    monkeypatch: pytest.MonkeyPatch, change_at: int
) -> None:
    monkeypatch.setattr(sqlite, "SLICE_ROWS", 2)
    rows = [(5 if number < change_at else 6, number, "") for number in range(6)]
    pieces = list(database(rows).pieces("t", "start", "thread", few=("thread",)))
    assert [piece[1].tolist() for piece in pieces] == [
        [5 if number < change_at else 6 for number in range(first, first + 2)]
        for first in (0, 2, 4)
    ]


def test_rows_are_chosen_before_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "SLICE_ROWS", 2)
    rows = [(1, 0, ""), (2, 1, ""), (2, 2, ""), (1, 3, ""), (1, 4, "")]
    (start,) = database(rows).integers("t", "start", where="thread = 2")
    assert start.tolist() == [1, 2]
    thread, _ = database(rows).integers("t", "thread", "start", where="thread = 2", few=("thread",))
    assert thread.tolist() == [2, 2]
    (none,) = database(rows).integers("t", "start", where="thread = 3")
    assert none.tolist() == []


@pytest.mark.parametrize("ids", [[1, 2, 3], [-5, 10**15, 2 * 10**15], [7, 8, 10**12]])
def test_row_ids_may_be_far_apart(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> None:
    monkeypatch.setattr(sqlite, "SLICE_ROWS", 2)
    monkeypatch.setattr(sqlite, "MOST_SLICES", 2)
    rows = [(1, number, f"{number}") for number in range(3)]
    (start,) = database(rows, ids).integers("t", "start")
    assert start.tolist() == [0, 1, 2]
    assert list(database(rows, ids).texts("t", "text")) == ["0", "1", "2"]


@pytest.mark.parametrize("value", [None, b"\xff"])
def test_values_that_are_no_numbers_are_an_error_and_not_left_out(value: object) -> None:
    broken = database([(1, 1, ""), (1, value, "")])
    if value is None:
        with pytest.raises(sqlite3.DatabaseError, match="not numbers"):
            broken.integers("t", "start")
    else:  # cast, as SQLite casts what is not a number
        assert broken.integers("t", "start")[0].tolist() == [1, 0]


def test_a_text_that_holds_the_separator_is_one_text() -> None:
    texts = ["a", "b\x1fc", "", "d\x1f"]
    assert list(database([(1, 1, text) for text in texts]).texts("t", "text")) == texts


def test_texts_that_are_too_long_together_are_read_one_by_one() -> None:
    """40 texts of 20 characters, where no value may have more than 500."""
    texts = [f"{number:020}" for number in range(40)]
    found = database([(1, 1, text) for text in texts])
    found.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 500)
    assert list(found.texts("t", "text")) == texts
    assert list(found.texts("t", "text", where="id > 39")) == texts[-1:]
    assert list(found.texts("t", "text", where="id > 40")) == []


@pytest.mark.parametrize("rows_of_a_slice", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ids", [[3, 4, 5, 6], [3, 4, 9, 10], [-2, -1, 0, 1]])
def test_slices_hold_every_row_once_and_no_more_rows_than_they_may(
    monkeypatch: pytest.MonkeyPatch, rows_of_a_slice: int, ids: list[int]
) -> None:
    monkeypatch.setattr(sqlite, "SLICE_ROWS", rows_of_a_slice)
    for most in (1, 2, 10_000):
        monkeypatch.setattr(sqlite, "MOST_SLICES", most)
        pieces = [piece[0].tolist() for piece in database([(1, 1, "")] * 4, ids).pieces("t", "id")]
        assert [number for piece in pieces for number in piece] == ids
        assert max(map(len, pieces)) <= rows_of_a_slice


def test_columns_and_names_are_found_by_name_alone() -> None:
    found = database([(1, None, "x"), (2, None, "")])
    assert (
        found.has("t")
        and found.has("t", "id", "text")
        and not found.has("t", "id", "nowhere")
        and not found.has("u")
    )
    names = [found.column("t", "start"), found.column("t", "nowhere"), found.column("u", "id", "0")]
    assert names == ["start", "NULL", "0"]
    assert (found.filled("t"), found.filled("u"), database([]).filled("t")) == (True, False, False)
    assert [found.holds("t", *column) for column in (("text",), ("start",), ())] == [
        True,
        False,
        True,
    ]
    assert found.pairs("u") == {}
    assert found.rows("t", "start", "nowhere") == [(None, None)] * 2


def test_a_string_is_looked_up_by_a_number_and_remembered() -> None:
    found = database([])
    found.connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value)")
    found.connection.execute("INSERT INTO StringIds VALUES (0, 'zero'), (7, 'seven'), (9, NULL)")
    strings = Strings(Database(found.connection))
    absent = [f"(name {key} is not in the report)" for key in (8, 7, 9)]
    assert [strings[key] for key in (0, 7, 8, "7", 9, None)] == ["zero", "seven", *absent, None]
    assert sorted(map(str, strings)) == ["0", "7", "7", "8", "9", "None"]
    assert Strings(Database(found.connection), "nothing")[None] == "nothing"
    assert Strings(database([]))[3] == "(name 3 is not in the report)"


def test_a_table_that_is_not_there_is_empty() -> None:
    assert [column.tolist() for column in database([]).integers("u", "a", "b", few=("a",))] == [
        [],
        [],
    ]
    assert list(database([]).texts("u", "a")) == []
    assert database([]).rows("u", "a") == []


def test_an_error_while_slices_are_read_ahead_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (start)")
        connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ReportError, match=r"r\.sqlite.*damaged"), opened(path) as found:
        list(found.pieces("t", "no_such_function(start)"))
