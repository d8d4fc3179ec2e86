"""Damages a report's bytes, lines, cells, numbers, JSON values, or rows and columns of its
database: what ``attack.py`` does."""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[bytes, Random], bytes]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(1, max(2, len(data)))]


def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 32))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _hole(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 16, 512, 4096)))
    return data[:start] + random.choice((b"", b"\0" * (end - start))) + data[end:]


def _repeat(data: bytes, random: Random) -> bytes:
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 64, 4096)))
    return data[:end] + data[start:end] * random.choice((1, 2, 50)) + data[end:]


BYTES: dict[str, Damage] = {
    "cut": _cut,
    "flipped bits": _flip,
    "hole": _hole,
    "repeated bytes": _repeat,
}


def _lines(change: Callable[[list[bytes], Random], None]) -> Damage:
    def damage(data: bytes, random: Random) -> bytes:
        lines = data.splitlines(keepends=True)
        change(lines, random)
        return b"".join(lines)

    return damage


def _drop_line(lines: list[bytes], random: Random) -> None:
    del lines[random.randrange(len(lines))]


def _double_line(lines: list[bytes], random: Random) -> None:
    lines.insert(at := random.randrange(len(lines)), lines[at])


def _swap_lines(lines: list[bytes], random: Random) -> None:
    a, b = random.randrange(len(lines)), random.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]


def _drop_cell(lines: list[bytes], random: Random) -> None:
    at = random.randrange(len(lines))
    cells = lines[at].split(b",")
    del cells[random.randrange(len(cells))]
    lines[at] = b",".join(cells)


def _drop_block(lines: list[bytes], random: Random) -> None:
    start = random.randrange(len(lines))
    del lines[start : start + random.randrange(2, 40)]


def _number(data: bytes, random: Random) -> bytes:
    """Another number in the place of one: a digit, the sign, or far too large."""
    places = [at for at in range(len(data)) if 48 <= data[at] <= 57]
    if not places:
        return _flip(data, random)
    at = random.choice(places)
    new = random.choice((b"%d" % random.randrange(10), b"-", b"9" * 30, b"nan", b"1e400"))
    return data[:at] + new + data[at + 1 :]


_NUMBER, _POINT = re.compile(rb"(?<![\w.])\d[\d.,]*\d"), re.compile(rb"(?<=\d)\.(?=\d)")
_UNITS = (
    (b"ns", b"us", b"ms", b"s"),
    (b"KiB", b"MiB", b"GiB"),
    (b"KB", b"MB", b"GB"),
    (b"byte", b"Kbyte", b"Mbyte", b"Gbyte"),
    (b"nsecond", b"usecond", b"msecond", b"second"),
    (b"MHz", b"GHz"),
    (b"W", b"mW"),
    (b"cycle/nsecond", b"cycle/usecond"),
)
_UNIT = re.compile(
    rb"(?<![A-Za-z/])(?:"
    + b"|".join(unit for units in _UNITS for unit in units)
    + rb")(?![A-Za-z/])"
)


def _place(pattern: re.Pattern[bytes], data: bytes, random: Random) -> tuple[int, int]:
    """Where one of the matches stands. Raises IndexError where there is none."""
    return random.choice([found.span() for found in pattern.finditer(data)])


def _digits(data: bytes, random: Random) -> bytes:
    """Two digits of a number change places."""
    start, end = _place(_NUMBER, data, random)
    digits = [at for at in range(start, end) if 48 <= data[at] <= 57]
    one, two = sorted(random.sample(digits, 2))
    return (
        data[:one]
        + data[two : two + 1]
        + data[one + 1 : two]
        + data[one : one + 1]
        + data[two + 1 :]
    )


def _point(data: bytes, random: Random) -> bytes:
    start, end = _place(_POINT, data, random)
    return data[:start] + data[end:]


def _sign(data: bytes, random: Random) -> bytes:
    start, _ = _place(_NUMBER, data, random)
    return data[:start] + b"-" + data[start:]


def _unit(data: bytes, random: Random) -> bytes:
    """Another unit of the same kind, in one place or in all."""
    start, end = _place(_UNIT, data, random)
    old = data[start:end]
    new = random.choice([unit for units in _UNITS if old in units for unit in units if unit != old])
    if random.random() < 0.5:
        return data[:start] + new + data[end:]
    return _UNIT.sub(lambda found: new if found[0] == old else found[0], data)


def _swap_cells(lines: list[bytes], random: Random) -> None:
    """In one line, or in all below the first that have as many cells."""
    at = random.randrange(len(lines))
    count = lines[at].count(b",") + 1
    one, two = random.sample(range(count), 2)
    changed = (
        [at]
        if random.random() < 0.5
        else [n for n in range(1, len(lines)) if lines[n].count(b",") + 1 == count]
    )
    for n in changed:
        ending = lines[n][len(lines[n].rstrip(b"\r\n")) :]
        cells = lines[n].rstrip(b"\r\n").split(b",")
        cells[one], cells[two] = cells[two], cells[one]
        lines[n] = b",".join(cells) + ending


def _copy_block(lines: list[bytes], random: Random) -> None:
    start, to = random.randrange(len(lines)), random.randrange(len(lines) + 1)
    lines[to:to] = lines[start : start + random.randrange(2, 40)]


def _line_ends(lines: list[bytes], random: Random) -> None:
    """From somewhere on as Windows writes them."""
    start = random.randrange(len(lines))
    lines[start:] = [line.rstrip(b"\r\n") + b"\r\n" for line in lines[start:]]


def _twice(data: bytes, random: Random) -> bytes:
    return data + data


TEXT: dict[str, Damage] = {
    "line missing": _lines(_drop_line),
    "line twice": _lines(_double_line),
    "lines swapped": _lines(_swap_lines),
    "cell missing": _lines(_drop_cell),
    "lines missing": _lines(_drop_block),
    "number": _number,
    "digits swapped": _digits,
    "point lost": _point,
    "sign": _sign,
    "unit": _unit,
    "cells swapped": _lines(_swap_cells),
    "lines copied": _lines(_copy_block),
    "line ends": _lines(_line_ends),
    "report twice": _twice,
}


def _odd(random: Random) -> Any:
    return random.choice(
        (None, -1, 1 << 62, 1 << 70, -1e308, "x", "", "\ud800", [], {}, True, [[]] * 3, "9" * 5000)
    )


def _json_value(data: bytes, random: Random) -> bytes:
    """One value somewhere in the tree is another, is missing or stands there twice."""
    try:
        tree = json.loads(data)
    except ValueError:
        return _flip(data, random)
    at = tree
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        if not len(keys):
            return data + b" "
        key = random.choice(keys)
        if isinstance(at[key], (dict, list)) and len(at[key]) and random.random() < 0.85:
            at = at[key]
            continue
        how = random.randrange(3)
        if how == 0:
            del at[key]
        elif how == 1 and isinstance(at, list):
            at.insert(key, at[key])
        else:
            at[key] = _odd(random)
        return json.dumps(tree).encode("utf-8", "surrogatepass")


def _sqlite(change: Callable[[sqlite3.Connection, str, Random], None]) -> Damage:
    def damage(data: bytes, random: Random) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "a.sqlite")
            path.write_bytes(data)
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                names = [
                    name
                    for (name,) in connection.execute(
                        "SELECT name FROM sqlite_master WHERE type = 'table'"
                    )
                    if not name.startswith("sqlite_")
                    and connection.execute(f'SELECT 1 FROM "{name}"').fetchone()
                ]
                if names:
                    change(connection, random.choice(names), random)
            return path.read_bytes()

    return damage


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]


def _rowid(connection: sqlite3.Connection, table: str, random: Random) -> int:
    (total,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
    return int(
        connection.execute(
            f'SELECT rowid FROM "{table}" LIMIT 1 OFFSET ?', (random.randrange(total),)
        ).fetchone()[0]
    )


def _db_value(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column, row = random.choice(columns_of(connection, table)), _rowid(connection, table, random)
    value = random.choice(
        (None, -1, 0, (1 << 63) - 1, -(1 << 63), 1e308, "x", "", b"\xff\xfe", "9" * 5000)
    )
    bad = "CAST(x'ff41' AS TEXT)" if random.random() < 0.15 else "?"
    connection.execute(
        f'UPDATE OR IGNORE "{table}" SET "{column}" = {bad} WHERE rowid = ?',
        (value, row)[bad != "?" :],
    )


def _db_column(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column = random.choice(columns_of(connection, table))
    value = random.choice((None, -1, 0, (1 << 63) - 1, "x", b"\xff"))
    connection.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (value,))


def _db_delete(connection: sqlite3.Connection, table: str, random: Random) -> None:
    how = random.choice(("rowid = ?", "rowid > ?", "rowid % 3 = ? % 3"))
    connection.execute(f'DELETE FROM "{table}" WHERE {how}', (_rowid(connection, table, random),))


def _db_shape(connection: sqlite3.Connection, table: str, random: Random) -> None:
    column = random.choice(columns_of(connection, table))
    how = random.choice(
        (
            "DROP TABLE {0}",
            "ALTER TABLE {0} RENAME TO gone",
            "ALTER TABLE {0} RENAME COLUMN {1} TO gone",
        )
    )
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(how.format(f'"{table}"', f'"{column}"'))


def _db_copy(connection: sqlite3.Connection, table: str, random: Random) -> None:
    """A row once more, with a number of its own."""
    keys = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")') if row[5]}
    rest = ", ".join(f'"{name}"' for name in columns_of(connection, table) if name not in keys)
    row = _rowid(connection, table, random)
    connection.execute(
        f'INSERT INTO "{table}" ({rest}) SELECT {rest} FROM "{table}" WHERE rowid = ?', (row,)
    )


def _db_exchange(connection: sqlite3.Connection, table: str, random: Random) -> None:
    """A value of one row in another, too, or in exchange: references among them."""
    column, one, two = (
        random.choice(columns_of(connection, table)),
        _rowid(connection, table, random),
        _rowid(connection, table, random),
    )
    query = f'SELECT "{column}" FROM "{table}" WHERE rowid = ?'
    first, second = (connection.execute(query, (row,)).fetchone()[0] for row in (one, two))
    change = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?'
    connection.execute(change, (second, one))
    if random.random() < 0.5:
        connection.execute(change, (first, two))


SQLITE: dict[str, Damage] = {
    "value": _sqlite(_db_value),
    "whole column": _sqlite(_db_column),
    "rows missing": _sqlite(_db_delete),
    "rows copied": _sqlite(_db_copy),
    "value of another row": _sqlite(_db_exchange),
    "table or column missing": _sqlite(_db_shape),
}


def damages(name: str, data: bytes) -> Mapping[str, Damage]:
    """The kinds of damage that fit this content."""
    if data.startswith(b"SQLite format 3"):
        return SQLITE | {"flipped bits": _flip, "hole": _hole, "cut": _cut}
    if name.endswith(".ncu-rep") or b"\0" in data[:4096]:
        return BYTES
    more = {"value in the tree": _json_value} if data.lstrip()[:1] in (b"{", b"[") else {}
    return BYTES | TEXT | more
