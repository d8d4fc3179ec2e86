"""The builder of records from tables: cells, columns by name, CSV, JSON and SQL."""

from __future__ import annotations

import sqlite3

import pytest

from perfctl.parsers.common.numbers import parse_integer, parse_real
from perfctl.parsers.common.sqlite import Database, NamedTables
from perfctl.parsers.common.tables import (
    FieldColumn,
    RowReader,
    has_complete_last_line,
    iterate_csv_rows,
    nonempty_text_or_none,
    read_json_fields,
)
from perfctl.records.errors import ReportError
from tests.make.files import write

COLUMNS = (
    FieldColumn("Start", "ns", "start"),
    FieldColumn("Stream_Id", field="stream", also=("Queue_Id",)),
    FieldColumn("Name", field="name", read=nonempty_text_or_none),
    FieldColumn("Size", "byte", "bytes"),
)


@pytest.mark.parametrize(
    ("cell", "integer", "real"),
    [
        ("24576", 24576, 24576),
        ("16384.0", 16384, 16384),
        ("1.5", None, 1.5),
        (7, 7, 7),
        (7.5, None, 7.5),
        ("9223372036854775807", 2**63 - 1, 2**63 - 1),
        ("9223372036854775808", None, None),
        ("nan", None, None),
        ("", None, None),
        ("-", None, None),
        (None, None, None),
        (True, None, None),
        (b"7", None, None),
    ],
)
def test_a_number_fits_64_bits_and_anything_else_is_none(cell, integer, real):
    assert (parse_integer(cell), parse_real(cell)) == (integer, real)


def test_columns_are_found_by_any_of_their_names_and_the_first_that_is_there_counts():
    table = RowReader(COLUMNS, ["Name", " Queue_Id ", "Start", "Size", "Start"])
    row = ["mul", "3", "1000", "", "9"]
    assert table.convert_row(row) == {"start": 1000, "stream": 3, "name": "mul", "bytes": None}
    both = RowReader(COLUMNS, ["Queue_Id", "Stream_Id"])
    assert both.convert_row(["1", "2"])["stream"] == 2


def test_a_missing_column_reads_as_none():
    table = RowReader(COLUMNS, ["Start"])
    assert table.convert_row(["5"]) == {"start": 5, "stream": None, "name": None, "bytes": None}


def test_names_with_points_lead_into_objects_and_the_first_readable_value_counts():
    columns = (
        FieldColumn("grid.x", field="x"),
        FieldColumn("agent.handle", field="agent", also=("agent",)),
    )
    assert read_json_fields(columns, {"grid": {"x": 8}, "agent": {"handle": 3}}) == {
        "x": 8,
        "agent": 3,
    }
    assert read_json_fields(columns, {"grid": 8, "agent": 4}) == {"x": None, "agent": 4}


def test_a_column_that_a_database_lacks_is_null():
    with sqlite3.connect(":memory:") as connection:
        connection.execute('CREATE TABLE t_7 ("Start", "Name")')
        connection.execute("INSERT INTO t_7 VALUES (5, 'mul')")
        read = {"t": ["Start", "Name", "Size"], "u": ["Size"]}
        tables = NamedTables(Database(connection), read, "_7")
        assert list(tables.query_fields(COLUMNS, "SELECT * FROM {t}")) == [
            {"start": 5, "stream": None, "name": "mul", "bytes": None}
        ]
        assert (tables.count_rows("t"), tables.read_table("u")) == (1, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('a,b\n1,"2', r"the file ends inside a quoted cell \(line 2\)"),
        ('a,b\n1,"2"x\n', "line 2 is no complete CSV"),
    ],
)
def test_what_is_no_csv_is_refused_with_its_line(tmp_path, text, reason):
    with pytest.raises(ReportError, match=reason):
        list(iterate_csv_rows(write(tmp_path / "a.csv", text), "tool", "Copy it again"))


def test_rows_come_with_their_lines_and_blank_ones_are_left_out(tmp_path):
    assert list(
        iterate_csv_rows(write(tmp_path / "a.csv", 'a,b\n\n,\n"1\n2",3\n'), "tool", "")
    ) == [(1, ["a", "b"]), (5, ["1\n2", "3"])]


@pytest.mark.parametrize(
    ("content", "is_complete"), [(b"a\n", True), (b"a\r", True), (b"a\n\0", True), (b"a", False)]
)
def test_a_file_ends_with_a_line_if_nothing_follows_its_last_line_end(
    tmp_path, content, is_complete
):
    (tmp_path / "a.csv").write_bytes(content)
    assert has_complete_last_line(tmp_path / "a.csv") is is_complete
