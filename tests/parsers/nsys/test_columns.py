"""Columns read from the pages of an SQLite file are those that SQLite reads; what is not plain is
left to SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from perfctl.parsers.common import sqlite
from perfctl.parsers.nsys import columns as nsys_columns

NUMBERS = (
    0,
    1,
    -1,
    127,
    -128,
    128,
    32767,
    -32768,
    1 << 23,
    -(1 << 23),
    1 << 31,
    -(1 << 31),
    1 << 47,
    -(1 << 47),
    2**63 - 1,
    1 - 2**63,
)


def made(path: Path, rows: int, page: int = 4096, seed: int = 1) -> None:
    """A table with texts of many lengths before the numbers, gaps among its rowids, and another
    table in between."""
    random = Random(seed)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute("CREATE TABLE other (x)")
        connection.execute(
            "CREATE TABLE t (a INTEGER, name TEXT, b INTEGER, c INTEGER NOT NULL, last)"
        )
        for number in range(rows):
            numbers = [random.choice(NUMBERS) if random.random() < 0.8 else None for _ in "ab"]
            text = "x" * random.choice((0, 3, 57, 58, 59, 200))
            row = (
                number * number,
                numbers[0],
                text,
                numbers[1],
                random.getrandbits(random.randint(1, 60)),
                text,
            )
            connection.execute(
                "INSERT INTO t (rowid, a, name, b, c, last) VALUES (?, ?, ?, ?, ?, ?)", row
            )
            connection.execute("INSERT INTO other VALUES (?)", (text,))
        connection.commit()


def read(path: Path, *names: str) -> list[tuple[int | None, ...]]:
    with sqlite.opened(path, "nsys", "") as database:
        rows: list[tuple[int | None, ...]] = []
        for columns in nsys_columns.read_pieces(database, "t", *names):
            shown = [
                [None if value == nsys_columns.NULL else value for value in column.tolist()]
                for column in columns
            ]
            rows += zip(*shown, strict=True)
        return rows


def from_pages(path: Path, *names: str) -> int:
    """How many rows its pages give."""
    with sqlite.opened(path, "nsys", "") as database:
        return sum(len(some[0]) for some in nsys_columns.read_pages(database, "t", names))


def by_sqlite(path: Path, names: str) -> list[tuple[int | None, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {names} FROM t ORDER BY rowid").fetchall()


@pytest.mark.parametrize("page", [512, 4096, 65536])
@pytest.mark.parametrize("rows", [0, 1, 40, 3000])
def test_numbers_of_every_size_and_null_are_read_from_the_pages(
    rows: int, page: int, tmp_path: Path
) -> None:
    path = tmp_path / "r.sqlite"
    made(path, rows, page)
    assert read(path, "c", "a", "b") == by_sqlite(path, "c, a, b")
    if page > 512:  # there the longest texts go to pages of their own
        assert from_pages(path, "a", "b", "c") == rows


def test_slices_of_any_size_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.sqlite"
    made(path, 500)
    monkeypatch.setattr(nsys_columns, "SLICE_ROWS", 7)
    assert read(path, "a", "c") == by_sqlite(path, "a, c")


def test_a_column_that_is_not_there_is_null(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    made(path, 3)
    assert read(path, "nowhere", "c") == [(None, c) for (c,) in by_sqlite(path, "c")]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE t SET a = 'text' WHERE rowid = 4",
        "UPDATE t SET a = 2.5 WHERE rowid = 400",
        "UPDATE t SET name = printf('%9000s', 'x') WHERE rowid = 400",
        "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 7",
    ],
)
def test_what_is_not_plain_is_read_by_sqlite(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.sqlite"
    made(path, 300)
    # so that it is noticed after some rows were read
    monkeypatch.setattr(nsys_columns, "SLICE_ROWS", 50)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    names = "later, c" if "later" in change else "CASE WHEN typeof(a) = 'integer' THEN a END, c"
    assert read(path, "later" if "later" in change else "a", "c") == by_sqlite(path, names)


def test_a_number_that_stands_for_the_rowid_is_read(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, c INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(5, 50), (9, 90)])
        connection.commit()
    assert read(path, "id", "c") == [(5, 50), (9, 90)]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_page_gives_an_error_or_what_sqlite_gives(seed: int, tmp_path: Path) -> None:
    """Bytes of the headers and cells are overwritten: nothing is read beyond a page, and nothing
    else goes wrong."""
    from perfctl.records.errors import ReportError

    path = tmp_path / "r.sqlite"
    made(path, 60, 512, seed)
    random = Random(seed)
    whole = bytearray(path.read_bytes())
    for _ in range(3):
        page = random.randrange(3, len(whole) // 512)
        whole[page * 512 + random.randrange(40)] = random.randrange(256)
    path.write_bytes(bytes(whole))
    try:
        read(path, "a", "b", "c")
    except (ReportError, nsys_columns.Unplain, IndexError) as error:
        assert isinstance(error, ReportError)
