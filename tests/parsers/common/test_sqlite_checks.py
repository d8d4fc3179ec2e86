"""What a database says twice is compared: each kind of damage is named with its table, and sound
databases say nothing."""

from contextlib import closing

import pytest

from perfctl.parsers import ReportError, parse
from perfctl.parsers.common import sqlite
from perfctl.parsers.common.sqlite import list_unreadable_column_gaps
from tests.make.nsys_sqlite import NsysBuilder, training_step
from tests.make.stored import execute, rows

SCHEMA = (
    "CREATE TABLE parent (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL)",
    (
        "CREATE TABLE child (id INTEGER PRIMARY KEY AUTOINCREMENT, parent_id INTEGER REFERENCES "
        "parent(id), share REAL, size BIGINT)"
    ),
    "INSERT INTO parent (name) VALUES ('a'), ('b'), ('c')",
    (
        "WITH RECURSIVE generated (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM generated "
        "WHERE value < 39) INSERT INTO child (parent_id, share, size) SELECT 1 + value % 3, "
        "value / 7.0, value FROM generated"
    ),
)


def said(path, *statements):
    """Reasons of the gaps after the statements; 40 rows of ``child`` and 3 of ``parent`` are
    there before."""
    execute(path, *SCHEMA, *statements)
    with closing(sqlite.connect_read_only(path)) as connection:
        always = {"child": ("size", "share"), "parent": ("name",)}
        return [
            gap.reason
            for gap in list_unreadable_column_gaps(
                sqlite.Database(connection), ("child", "parent"), always
            )
        ]


def test_a_sound_database_says_nothing(tmp_path):
    assert said(tmp_path / "d.sqlite") == []


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "UPDATE child SET size = 'many' WHERE id < 4",
            "child.size: 3 of 40 values are not of the type BIGINT",
        ),
        (
            "UPDATE child SET size = 1.5 WHERE id = 4",
            "child.size: 1 of 40 values are not of the type BIGINT",
        ),
        (
            "UPDATE parent SET name = x'ff41' WHERE id = 1",
            "parent.name: 1 of 3 values are not of the type TEXT",
        ),
        ("ALTER TABLE child DROP COLUMN size", "child has no column size"),
        ("DROP TABLE child", "the database has no table child"),
        (
            "ALTER TABLE child ADD COLUMN rowid",
            "child is a virtual table, or has a column called rowid",
        ),
    ],
)
def test_each_damage_is_named_with_its_table_and_number_of_rows(statement, expected, tmp_path):
    assert any(expected in reason for reason in said(tmp_path / "d.sqlite", statement))


def test_a_view_in_the_place_of_a_table_is_named(tmp_path):
    view = "CREATE VIEW parent AS SELECT * FROM old"
    reasons = said(tmp_path / "d.sqlite", "ALTER TABLE parent RENAME TO old", view)
    assert "parent is a view, which no profiler writes, so perfctl skips it" in reasons


def test_pages_that_do_not_fit_together_refuse_the_file(tmp_path):
    """Two pages in each other's place: SQLite reads on, with rows of other tables."""
    path = training_step(NsysBuilder()).write(tmp_path / "report.sqlite")
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    roots = "SELECT rootpage FROM sqlite_master WHERE name IN ('StringIds', 'NVTX_EVENTS')"
    one, two = ((root - 1) * size for (root,) in rows(path, roots))
    page = data[one : one + size]
    data[one : one + size] = data[two : two + size]
    data[two : two + size] = bytes([page[0] ^ 8]) + page[1:]
    path.write_bytes(data)
    with pytest.raises(ReportError, match="damaged or truncated"):
        for kernel in parse(path).kernels:
            assert kernel


def test_values_of_a_large_database_are_not_looked_at_one_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr("perfctl.parsers.common.sqlite.LARGEST", 1)
    assert said(tmp_path / "types.sqlite", "UPDATE child SET size = 'many'") == []
