"""Columns of an export as arrays: what a plain query gives, slice by slice, whatever the values and
the row ids."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfctl.parsers.common.sqlite import Database
from perfctl.parsers.nsys import columns
from perfctl.parsers.nsys.columns import NULL, iterate_integer_column_chunks, read_integer_columns
from perfctl.parsers.nsys.tables import StringTable, open_export
from perfctl.records.errors import ReportError
from tests.make.stored import execute

NUMBERS = st.sampled_from([7, -1, 281546145665170, 2**63 - 1, 1 - 2**63])


class ClosedWhenDropped(sqlite3.Connection):
    def __del__(self):
        self.close()


def database(rows, ids=None):
    connection = sqlite3.connect(":memory:", check_same_thread=False, factory=ClosedWhenDropped)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, thread, start, text)")
    numbered = [
        (number, *row) for number, row in zip(ids or range(1, len(rows) + 1), rows, strict=True)
    ]
    connection.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", numbered)
    return Database(connection)


def numbers(found, *names):
    rows: list[tuple[int | None, ...]] = []
    for piece in iterate_integer_column_chunks(found, "t", *names):
        shown = [
            [None if value == NULL else value for value in column.tolist()] for column in piece
        ]
        rows += zip(*shown, strict=True)
    return rows


@given(
    st.lists(st.tuples(NUMBERS, st.integers(1 - 2**63, 2**63 - 1), st.just("")), max_size=12),
    st.integers(1, 5),
)
def test_columns_are_what_a_query_gives_however_many_rows_are_read_together(rows, together):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "ROWS_TOGETHER", together)
        assert numbers(database(rows), "thread", "start") == [row[:2] for row in rows]


@pytest.mark.parametrize("ids", [[1, 2, 3], [-5, 10**15, 2 * 10**15], [7, 8, 10**12]])
def test_row_ids_may_be_far_apart(ids):
    rows = [(1, number, f"{number}") for number in range(3)]
    assert numbers(database(rows, ids), "start") == [(0,), (1,), (2,)]


@pytest.mark.parametrize("value", [None, b"\xff", "7", 1.5])
def test_values_that_are_no_integers_are_not_known(value):
    found = database([(1, 1, ""), (1, value, ""), (2, 3, "")])
    assert numbers(found, "thread", "start") == [(1, 1), (1, None), (2, 3)]
    assert numbers(found, "nowhere", "start") == [(None, 1), (None, None), (None, 3)]


def test_columns_and_names_are_found_by_name_alone():
    found = database([(1, None, "x"), (2, None, "")])
    assert (
        found.has_table_with_columns("t")
        and found.has_table_with_columns("t", "id", "text")
        and not found.has_table_with_columns("t", "id", "nowhere")
        and not found.has_table_with_columns("u")
    )
    names = [
        found.column_or_null("t", "start"),
        found.column_or_null("t", "nowhere"),
        found.column_or_null("u", "id"),
    ]
    assert names == ["start", "NULL", "NULL"]
    assert (
        found.has_row_or_value("t"),
        found.has_row_or_value("u"),
        database([]).has_row_or_value("t"),
    ) == (True, False, False)
    assert [found.has_row_or_value("t", *column) for column in (("text",), ("start",), ())] == [
        True,
        False,
        True,
    ]
    assert found.read_name_value_table("u") == {}
    assert found.read_rows("t", "start", "nowhere") == [(None, None)] * 2


def test_a_string_is_looked_up_by_a_number_and_remembered():
    found = database([])
    found.connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value)")
    found.connection.execute("INSERT INTO StringIds VALUES (0, 'zero'), (7, 'seven'), (9, NULL)")
    strings = StringTable(Database(found.connection))
    absent = [f"(name {key} is not in the report)" for key in (8, 7, 9)]
    assert [strings[key] for key in (0, 7, 8, "7", 9, None)] == ["zero", "seven", *absent, None]
    assert sorted(map(str, strings)) == ["0", "7", "7", "8", "9", "None"]
    assert StringTable(Database(found.connection), "nothing")[None] == "nothing"
    assert StringTable(database([]))[3] == "(name 3 is not in the report)"


def test_a_table_that_is_not_there_is_empty():
    assert list(iterate_integer_column_chunks(database([]), "u", "a", "b")) == []
    assert database([]).read_rows("u", "a") == []


def test_only_rows_that_fulfil_the_condition_are_read():
    found = database([(1, number, "") for number in range(4)])
    assert read_integer_columns(found, "t", "start", sql_condition="start > 1").tolist() == [[2, 3]]


def test_an_error_while_rows_are_read_names_the_file(tmp_path):
    path = tmp_path / "r.sqlite"
    execute(path, "CREATE TABLE t (start)")
    with pytest.raises(ReportError, match=r"r\.sqlite.*damaged"), open_export(path) as found:
        found.connection.execute("SELECT no_such_function(start) FROM t")
