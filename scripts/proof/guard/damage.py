"""Damages report files in fixed ways, and prints how ``perfctl ingest`` ends for each, as JSON.

    python damage.py [--every N] <FILES

Runs in perfctl's environment and in one process, because each call takes a tenth of a second there.
FILES is JSON: a list of name, path (or null), content as base64 (or null), and the number of
damages per kind (0: four kinds for a file). A damage is repeatable: its random numbers depend on
the name of the file, its kind and its number. These functions stay as they are; the recording
depends on them.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[bytes, Random], bytes]
ROWS = (
    "kernel",
    "counter",
    "range",
    "copy",
    "operation",
    "sample",
    "summary",
    "op_call",
    "memory",
    "layer_call",
    "api_call",
    "step",
    "collective",
    "advice",
)
"""Tables whose rows are counted."""
NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
ODD_VALUES: tuple[Any, ...] = (None, "x", -1, [], {}, 1e300, "12 ms", True)
SQL_VALUES = ("NULL", "'text'", "-1", "9223372036854775807", "x'ff00'", "''")
LIKELY = re.compile(
    "KERNEL|NVTX|RUNTIME|MEMCPY|StringIds|TARGET|rocpd_|OPS|HIP|COPY|metric|iteration|op_nodes|"
    "summary"
)
"""Tables of databases that perfctl reads."""


def cut(data: bytes, random: Random) -> bytes:
    """The file ends in the middle of a line."""
    return data[: random.randrange(1, max(2, len(data)))]


def flip_bits(data: bytes, random: Random) -> bytes:
    """Some bits are wrong."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 4, 32))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def lose_bytes(data: bytes, random: Random) -> bytes:
    """A part in the middle is missing, or is zeros."""
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((1, 64, 4096)))
    return data[:start] + random.choice((b"", bytes(end - start))) + data[end:]


def repeat_bytes(data: bytes, random: Random) -> bytes:
    """A part is there twice."""
    start = random.randrange(len(data))
    end = min(len(data), start + random.choice((16, 512, 4096)))
    return data[:end] + data[start:]


def of_lines(change: Callable[[list[bytes], Random], list[bytes]]) -> Damage:
    """Return a damage that works on lines."""

    def damage(data: bytes, random: Random) -> bytes:
        return b"".join(change(data.splitlines(keepends=True), random))

    return damage


def lose_head(lines: list[bytes], random: Random) -> list[bytes]:
    """The first lines are missing."""
    return lines[random.randrange(1, 1 + max(1, len(lines) // 4)) :]


def lose_tail(lines: list[bytes], random: Random) -> list[bytes]:
    """The file ends after a complete line."""
    return lines[: random.randrange(1, max(2, len(lines)))]


def lose_lines(lines: list[bytes], random: Random) -> list[bytes]:
    """Some lines in the middle are missing."""
    start = random.randrange(len(lines))
    return lines[:start] + lines[start + random.choice((1, 1, 3, 20)) :]


def repeat_line(lines: list[bytes], random: Random) -> list[bytes]:
    """A line is there twice."""
    at = random.randrange(len(lines))
    return [*lines[: at + 1], *lines[at:]]


def swap_lines(lines: list[bytes], random: Random) -> list[bytes]:
    """Two lines are exchanged."""
    one, two = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return lines


def of_cells(change: Callable[[list[bytes], int], list[bytes]], whole_column: bool) -> Damage:
    """Return a damage of one cell, or of the same cell in all lines."""

    def damage(data: bytes, random: Random) -> bytes:
        lines = data.splitlines(keepends=True)
        with_cells = [at for at, line in enumerate(lines) if line.count(b",") > 1] or list(
            range(len(lines))
        )
        count = lines[with_cells[-1]].count(b",") + 1
        column = random.randrange(count)
        for at in with_cells if whole_column else [random.choice(with_cells)]:
            bare = lines[at].rstrip(b"\r\n")
            lines[at] = b",".join(change(bare.split(b","), column)) + lines[at][len(bare) :]
        return b"".join(lines)

    return damage


def lose_cell(cells: list[bytes], column: int) -> list[bytes]:
    return cells[:column] + cells[column + 1 :]


def empty_cell(cells: list[bytes], column: int) -> list[bytes]:
    return [b"" if at == column else cell for at, cell in enumerate(cells)]


def swap_cells(cells: list[bytes], column: int) -> list[bytes]:
    return (
        cells[1:2] + cells[:1] + cells[2:]
        if column == 0
        else [*cells[: column - 1], *cells[column - 1 : column + 1][::-1], *cells[column + 1 :]]
    )


def of_numbers(change: Callable[[bytes, Random], bytes]) -> Damage:
    """Return a damage of one number."""

    def damage(data: bytes, random: Random) -> bytes:
        found = [match.span() for match in NUMBER.finditer(data)]
        if not found:
            return data
        start, end = random.choice(found)
        return data[:start] + change(data[start:end], random) + data[end:]

    return damage


def change_digit(number: bytes, random: Random) -> bytes:
    at = random.randrange(len(number))
    return number[:at] + str(random.randrange(10)).encode() + number[at + 1 :]


def make_word(number: bytes, random: Random) -> bytes:
    return random.choice((b"n/a", b"nan", b"inf", b"x" + number, b"9" * 40))


def negate(number: bytes, random: Random) -> bytes:
    return b"-" + number


BYTES: dict[str, Damage] = {
    "cut": cut,
    "bits": flip_bits,
    "bytes lost": lose_bytes,
    "bytes repeated": repeat_bytes,
}
LINES: dict[str, Damage] = {
    "head lost": of_lines(lose_head),
    "tail lost": of_lines(lose_tail),
    "lines lost": of_lines(lose_lines),
    "line repeated": of_lines(repeat_line),
    "lines swapped": of_lines(swap_lines),
    "digit": of_numbers(change_digit),
    "word for number": of_numbers(make_word),
    "negative": of_numbers(negate),
}
CELLS: dict[str, Damage] = {
    "cell lost": of_cells(lose_cell, False),
    "column lost": of_cells(lose_cell, True),
    "cell empty": of_cells(empty_cell, False),
    "column empty": of_cells(empty_cell, True),
    "cells swapped": of_cells(swap_cells, False),
    "columns swapped": of_cells(swap_cells, True),
}


def of_json(change: Callable[[Any, Any, Random], None]) -> Damage:
    """Return a damage of a value somewhere in a JSON document."""

    def damage(data: bytes, random: Random) -> bytes:
        document = json.loads(data)
        inside = document
        for _ in range(random.choice((1, 2, 3, 4, 5))):
            deeper = list(inside.values()) if isinstance(inside, dict) else list(inside)
            deeper = [value for value in deeper if isinstance(value, dict | list) and value]
            if not deeper:
                break
            inside = random.choice(deeper)
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        change(inside, random.choice(keys), random)
        return json.dumps(document).encode()

    return damage


def lose_value(inside: Any, key: Any, random: Random) -> None:
    del inside[key]


def wrong_value(inside: Any, key: Any, random: Random) -> None:
    inside[key] = random.choice(ODD_VALUES)


def repeat_value(inside: Any, key: Any, random: Random) -> None:
    if isinstance(inside, list):
        inside.insert(key, inside[key])
    else:
        inside[f"{key} "] = inside[key]


def rename_key(inside: Any, key: Any, random: Random) -> None:
    if isinstance(inside, dict):
        inside[f"{key}_2"] = inside.pop(key)
    else:
        inside.reverse()


JSON: dict[str, Damage] = {
    "value lost": of_json(lose_value),
    "wrong value": of_json(wrong_value),
    "value repeated": of_json(repeat_value),
    "key renamed": of_json(rename_key),
}


def of_database(change: Callable[[sqlite3.Connection, str, list[str], Random], None]) -> Damage:
    """Return a damage of a table of an SQLite database that has rows."""

    def damage(data: bytes, random: Random) -> bytes:
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
            Path(file.name).write_bytes(data)
            with closing(sqlite3.connect(file.name)) as base:
                found = base.execute(
                    "select name from sqlite_master where type = 'table' order by name"
                ).fetchall()
                names = [
                    name
                    for (name,) in found
                    if not name.startswith("sqlite_") and _has_rows(base, name)
                ]
                table = random.choice([name for name in names if LIKELY.search(name)] or names)
                columns = [row[1] for row in base.execute(f'pragma table_info("{table}")')]
                # a constraint forbids it: the database stays as it is
                with suppress(sqlite3.Error):
                    change(base, table, columns, random)
                base.commit()
            return Path(file.name).read_bytes()

    return damage


def _has_rows(base: sqlite3.Connection, table: str) -> bool:
    return base.execute(f'select 1 from "{table}" limit 1').fetchone() is not None


def lose_rows(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    base.execute(f'delete from "{table}" where rowid % {random.choice((1, 2, 3, 10))} = 0')


def lose_table(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    base.execute(f'drop table "{table}"')


def lose_column(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    base.execute(f'alter table "{table}" drop column "{random.choice(columns)}"')


def rename_column(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    column = random.choice(columns)
    base.execute(f'alter table "{table}" rename column "{column}" to "{column}_2"')


def wrong_cells(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    where = random.choice(("rowid = (select min(rowid) from {0})", "rowid % 3 = 0", "1")).format(
        f'"{table}"'
    )
    base.execute(
        f'update "{table}" set "{random.choice(columns)}" = {random.choice(SQL_VALUES)} where '
        f"{where}"
    )


def swap_columns(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    one, two = random.sample(columns, 2) if len(columns) > 1 else columns * 2
    base.execute(f'update "{table}" set "{one}" = "{two}", "{two}" = "{one}"')


def repeat_rows(base: sqlite3.Connection, table: str, columns: list[str], random: Random) -> None:
    base.execute(
        f'insert into "{table}" select * from "{table}" where rowid % {random.choice((1, 2, 5))} = '
        "0"
    )


DATABASE: dict[str, Damage] = {
    "rows lost": of_database(lose_rows),
    "table lost": of_database(lose_table),
    "column lost": of_database(lose_column),
    "column renamed": of_database(rename_column),
    "wrong cells": of_database(wrong_cells),
    "columns swapped": of_database(swap_columns),
    "rows repeated": of_database(repeat_rows),
}


def damages_for(data: bytes) -> dict[str, Damage]:
    """Return the damages that fit the content of a file."""
    if data.startswith(b"SQLite format 3"):
        return BYTES | DATABASE
    if b"\0" in data[:4096]:
        return BYTES
    with suppress(ValueError):
        json.loads(data)
        return BYTES | LINES | JSON
    return BYTES | LINES | (CELLS if data.count(b",") > 20 else {})


def damaged(name: str, data: bytes, each: int) -> Iterator[tuple[str, bytes]]:
    """Yield the damaged contents of a file, each with the kind and number of its damage."""
    packed = data[:2] == b"\x1f\x8b"
    bare = gzip.decompress(data) if packed else data
    kinds = damages_for(bare)
    chosen = list(kinds) if each else Random(name).sample(list(kinds), 4)  # noqa: S311
    for kind in chosen:
        for number in range(each or 1):
            random = Random(f"{name} / {kind} / {number}")  # noqa: S311
            inner = kinds[kind](bare, random)
            if inner != bare:
                yield f"{kind} / {number}", gzip.compress(inner, mtime=0) if packed else inner


def ingest(report: Path, store: Path) -> dict[str, object]:
    """Return how ``perfctl ingest`` ends, and what it stored."""
    from perfctl.__main__ import main

    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()
    sys.argv = ["perfctl", "ingest", str(report), "--store", str(store)]
    code: object = 0
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            code = type(error).__name__
    found: dict[str, object] = {"exit": code}
    if store.exists():
        with closing(sqlite3.connect(store)) as base:
            found["runs"] = dict(
                base.execute("select status, count(*) from run group by 1 order by 1")
            )
            found["gaps"] = dict(
                base.execute("select state, count(*) from gap group by 1 order by 1")
            )
            found["rows"] = sum(
                base.execute(f"select count(*) from {table}").fetchone()[0] for table in ROWS
            )
    return found


def describe(found: dict[str, object]) -> str:
    """Return the outcome as one short text: exit code, runs by status, gaps by state, rows."""
    parts = [f"exit {found.pop('exit')}"]
    for what, value in found.items():
        counts = value.items() if isinstance(value, dict) else [("", value)]
        parts.append(
            what + "".join(f" {name} {count}".replace("  ", " ") for name, count in counts)
        )
    return ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="take every N-th file")
    every = parser.parse_args().every
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path, content, each in json.load(sys.stdin)[::every]:
            data = Path(path).read_bytes() if path else base64.b64decode(content)
            report, store = Path(folder, "reports", Path(name).name), Path(folder, "guard.db")
            report.parent.mkdir(exist_ok=True)
            for kind, changed in [("sound", data), *damaged(name, data, each)]:
                report.write_bytes(changed)
                outcomes[f"{name} / {kind}"] = describe(ingest(report, store))
            report.unlink()
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
