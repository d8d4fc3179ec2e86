"""Damages an SQLite database as a database: cells, rows, columns, tables, its schema, its pages."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

VALUES = (
    "NULL",
    "-1",
    "0",
    "1",
    "9223372036854775807",
    "-9223372036854775808",
    "4611686018427387904",
    "9e999",
    "-9e999",
    "1.5",
    "-1e300",
    "''",
    "'text'",
    "'12abc'",
    "'nan'",
    "x''",
    "x'ff00'",
    "CAST(x'ff41' AS TEXT)",
    "CAST(x'410042' AS TEXT)",
    "char(31)",
    "char(8238)",
    "zeroblob(70000)",
    "hex(zeroblob(50000))",
    "'[' || char(10) || '{\"a\": 1e999}'",
    "'1,2,3'",
)
"""SQL of what takes a cell's place."""
LIKELY = re.compile(
    "KERNEL|NVTX|RUNTIME|MEMCPY|MEMSET|StringIds|GPU|EXPORT|dictionary|read_only_|op_nodes|metric|"
    "iteration|summary|rocpd_(?:kernel|info|string|pmc|region|event|memory)|OPS|HIP|COPY",
)
"""Tables that are read; the others are damaged less often."""
Change = Callable[[sqlite3.Connection, str, list[str], Random], str]
"""Of a table with rows, given with its columns; what was done to it."""


def quoted(name: str) -> str:
    """For use in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _tables(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return [name for (name,) in rows]


def _filled(db: sqlite3.Connection, random: Random) -> tuple[str, list[str]]:
    """A table with rows, and its columns."""
    names = _tables(db)
    random.shuffle(names)
    names.sort(key=lambda name: not LIKELY.search(name) and random.random() < 0.8)
    for name in names:
        if db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone():
            return name, [row[1] for row in db.execute(f"PRAGMA table_info({quoted(name)})")]
    raise sqlite3.OperationalError("no table with rows")


def _some(db: sqlite3.Connection, table: str, random: Random) -> tuple[str, str]:
    """SQL that finds one row, a few or all, and a word for it."""
    how = random.choice(("one", "one", "few", "all"))
    if how == "all":
        return "1", how
    count = 1 if how == "one" else 5
    ids = [
        row[0]
        for row in db.execute(f"SELECT rowid FROM {quoted(table)} ORDER BY random() LIMIT {count}")
    ]
    return f"rowid IN ({', '.join(map(str, ids))})", how


def _cell(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    column, value = random.choice(columns), random.choice(VALUES)
    where, how = _some(db, table, random)
    db.execute(f"UPDATE OR IGNORE {quoted(table)} SET {quoted(column)} = {value} WHERE {where}")
    return f"cell {table}.{column} = {value[:24]} in {how}"


def _drop_rows(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    where, how = _some(db, table, random)
    db.execute(f"DELETE FROM {quoted(table)} WHERE {where}")
    return f"rows dropped: {how} of {table}"


def _double_rows(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    keys = {row[1] for row in db.execute(f"PRAGMA table_info({quoted(table)})") if row[5]}
    rest = ", ".join(quoted(name) for name in columns if name not in keys) or "rowid"
    where, how = _some(db, table, random)
    db.execute(
        f"INSERT OR IGNORE INTO {quoted(table)} ({rest}) SELECT {rest} FROM {quoted(table)} WHERE "
        f"{where}"
    )
    return f"rows doubled: {how} of {table}"


def _far_ids(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    where, how = _some(db, table, random)
    far = random.choice((1 << 40, 1 << 62, -(1 << 62)))
    db.execute(f"UPDATE OR IGNORE {quoted(table)} SET rowid = rowid + {far} WHERE {where}")
    return f"row ids moved: {how} of {table}"


def _drop_table(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    db.execute(f"DROP TABLE {quoted(table)}")
    return f"table dropped: {table}"


def _rename_table(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    new = random.choice(
        (f"{table}_X", "Z" * 60000, "a b\"c'd", table.swapcase() + "9", "\u202e" + table)
    )
    db.execute(f"ALTER TABLE {quoted(table)} RENAME TO {quoted(new)}")
    return f"table renamed: {table} to {new[:20]!r}"


def _add_table(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    new = random.choice(
        (
            f"{table}2",
            "CUPTI_ACTIVITY_KIND_NEW",
            "rocpd_new_0",
            "odd \x01 name",
            "TABLE",
            "W" * 30000,
        )
    )
    db.execute(f"CREATE TABLE {quoted(new)} AS SELECT * FROM {quoted(table)}")
    return f"table added: {new[:20]!r} from {table}"


def _drop_column(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    column = random.choice(columns)
    db.execute(f"ALTER TABLE {quoted(table)} DROP COLUMN {quoted(column)}")
    return f"column dropped: {table}.{column}"


def _rename_column(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    column = random.choice(columns)
    new = random.choice(
        (f"{column}X", "N" * 50000, 'o"dd', column.swapcase() + "_", "rowid", "Index")
    )
    db.execute(f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(column)} TO {quoted(new)}")
    return f"column renamed: {table}.{column} to {new[:12]!r}"


def _swap_columns(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    first, second = random.choice(columns), random.choice(columns)
    db.execute(f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(first)} TO perfctl_x")
    if first != second:
        db.execute(f"ALTER TABLE {quoted(table)} RENAME COLUMN {quoted(second)} TO {quoted(first)}")
    db.execute(f"ALTER TABLE {quoted(table)} RENAME COLUMN perfctl_x TO {quoted(second)}")
    return f"columns swapped: {table}.{first} and {second}"


def _add_column(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    for number in range(random.choice((1, 1, 1, 300))):
        value = random.choice(VALUES[:16])
        db.execute(
            f"ALTER TABLE {quoted(table)} ADD COLUMN newColumn{number} DEFAULT ({value})"
            if value[0] != "C"
            else "SELECT 1"
        )
    return f"column added: {table}"


def _remade(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    """The same rows in a table of another kind, or in what is no table."""
    name, old = quoted(table), quoted(table + "_old")
    kind = random.choice(
        (
            "view",
            "endless view",
            "without rowid",
            "types",
            "order",
            "generated",
            "virtual",
            "fts",
            "strict",
        )
    )
    listed = ", ".join(map(quoted, columns))
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT "
    made = {
        "view": [f"CREATE VIEW {name} AS SELECT * FROM {old}"],
        "endless view": [
            (
                f"CREATE VIEW {name} AS "
                f"{endless}{', '.join(f'n AS {quoted(one)}' for one in columns)} FROM t"
            )
        ],
        "without rowid": [
            f"CREATE TABLE {name} (perfctl_key INTEGER PRIMARY KEY, {listed}) WITHOUT ROWID",
            f"INSERT INTO {name} ({listed}, perfctl_key) SELECT {listed}, rowid FROM {old}",
            f"DROP TABLE {old}",
        ],
        "types": [
            f"CREATE TABLE {name} ({', '.join(quoted(one) + ' TEXT' for one in columns)})",
            f"INSERT INTO {name} SELECT * FROM {old}",
            f"DROP TABLE {old}",
        ],
        "order": [
            (
                f"CREATE TABLE {name} AS SELECT {', '.join(map(quoted, reversed(columns)))} FROM "
                f"{old} ORDER BY rowid DESC"
            ),
            f"DROP TABLE {old}",
        ],
        "generated": [
            f"CREATE TABLE {name} ({listed}, perfctl_g AS ({quoted(columns[0])} || 'x') STORED)",
            f"INSERT INTO {name} ({listed}) SELECT {listed} FROM {old}",
            f"DROP TABLE {old}",
        ],
        "virtual": [f"CREATE VIRTUAL TABLE {name} USING rtree(id, a, b)"],
        "fts": [
            f"CREATE VIRTUAL TABLE {name} USING fts4({listed})",
            f"INSERT INTO {name} SELECT * FROM {old}",
            f"DROP TABLE {old}",
        ],
        "strict": [
            f"CREATE TABLE {name} ({', '.join(quoted(one) + ' ANY' for one in columns)}) STRICT",
            f"INSERT INTO {name} SELECT * FROM {old}",
            f"DROP TABLE {old}",
        ],
    }
    db.execute(f"ALTER TABLE {name} RENAME TO {old}")
    for statement in made[kind]:
        db.execute(statement)
    return f"table as {kind}: {table}"


def _trigger(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    db.execute(
        f"CREATE TRIGGER t1 AFTER INSERT ON {quoted(table)} BEGIN DELETE FROM {quoted(table)}; END"
    )
    return f"trigger on {table}"


def _schema_text(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    """The schema says other things than the pages do: SQLite's own guards are turned off."""
    db.execute("PRAGMA writable_schema = ON")
    how = random.choice(
        ("root page", "root of another", "statement", "type", "no statement", "name", "bytes")
    )
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    change = {
        "root page": (
            "rootpage = "
            f"{random.choice((0, -1, 1, pages, pages + 5, 1 << 40, random.randrange(1, pages + 1)))}"  # noqa: E501
        ),
        "root of another": (
            "rootpage = (SELECT rootpage FROM sqlite_master WHERE type = 'table' ORDER BY random() "
            "LIMIT 1)"
        ),
        "statement": "sql = substr(sql, 1, length(sql) / 2)",
        "type": "type = 'view'",
        "no statement": "sql = NULL",
        "name": "name = CAST(x'ff41' AS TEXT)",
        "bytes": "sql = replace(sql, 'INTEGER', CAST(x'ff41' AS TEXT))",
    }[how]
    db.execute(f"UPDATE sqlite_master SET {change} WHERE name = ?", (table,))
    return f"schema, {how}: {table}"


def _rebuilt(db: sqlite3.Connection, table: str, columns: list[str], random: Random) -> str:
    how = random.choice(
        (
            "PRAGMA page_size = 512",
            "PRAGMA page_size = 65536",
            "PRAGMA auto_vacuum = FULL",
            "PRAGMA cache_size = 10",
        )
    )
    db.execute(how)
    db.execute("VACUUM")
    return f"rebuilt, {how}"


CHANGES: dict[Change, int] = {
    _cell: 40,
    _drop_rows: 8,
    _double_rows: 6,
    _far_ids: 4,
    _drop_table: 4,
    _rename_table: 3,
    _add_table: 3,
    _drop_column: 6,
    _rename_column: 5,
    _swap_columns: 4,
    _add_column: 3,
    _remade: 10,
    _trigger: 1,
    _schema_text: 5,
    _rebuilt: 1,
}
"""Change of the content -> how often it is drawn."""


def pages(data: bytearray, random: Random) -> str:
    """The file's bytes, page by page."""
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size < 512 else size
    count = max(1, len(data) // size)
    one, two = (random.randrange(count) * size for _ in "ab")
    how = random.choice(
        ("bits", "bits", "zeros", "swapped", "header", "cut", "noise", "pointers", "kind")
    )
    if how == "bits":
        for _ in range(random.choice((1, 3, 20))):
            data[one + random.randrange(size)] ^= 1 << random.randrange(8)
    elif how == "zeros":
        data[one : one + size] = bytes(size)
    elif how == "swapped":
        data[one : one + size], data[two : two + size] = (
            data[two : two + size],
            data[one : one + size],
        )
    elif how == "header":
        data[random.randrange(16, 100)] = random.randrange(256)
    elif how == "cut":
        del data[one + random.randrange(size) :]
    elif how == "noise":
        start, length = one + random.randrange(size), random.choice((4, 64, 512))
        data[start : start + length] = random.randbytes(len(data[start : start + length]))
    elif how == "pointers":
        data[one + 3 : one + 20] = random.randbytes(17)
    else:
        data[one] = random.choice((2, 5, 10, 13, 0, 255))
    return f"pages, {how}"


def damaged(source: Path, target: Path, random: Random) -> list[str]:
    """Make a mutant of a database; what was done to it. Empty where nothing could be."""
    shutil.copyfile(source, target)
    done = []
    if random.random() < 0.8:
        with closing(sqlite3.connect(target, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("PRAGMA synchronous = OFF")
            for change in random.choices(
                [*CHANGES], [*CHANGES.values()], k=random.choice((1, 1, 1, 2, 3))
            ):
                try:
                    done.append(change(db, *_filled(db, random), random))
                except (sqlite3.Error, UnicodeError):  # not every table takes every change
                    continue
    if not done or random.random() < 0.05:
        data = bytearray(target.read_bytes())
        done.append(pages(data, random))
        target.write_bytes(data)
    return done
