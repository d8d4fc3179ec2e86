"""Finds names of what looks like a secret in a report file, reading its texts piece by piece."""

from __future__ import annotations

import gzip
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, cast

from perfctl.parsers.text.sqlite import connect
from perfctl.records.sqlite_header import MAGIC, is_sqlite
from perfctl.redact import CHUNK, names_of

LOOKED_AT = 8 << 20
"""Bytes at the beginning of a file that ``names_in`` searches completely: messages of profilers and
programs are there."""
SAMPLE = 1 << 18
"""Of the rest, this much of every EVERY bytes is searched, and the last CHUNK: searching everything
would take more than half as long as parsing (13 of 20 ms per megabyte); this takes less than a
tenth. ``scrub`` searches everything."""
EVERY = 4 << 20
BEGIN, END = 3 << 14, 1 << 14
"""Of a text in a database that is longer than both, so many bytes at its beginning and its end
are searched."""
ALL_TEXTS = 64 << 20
"""Bytes of a database's texts that are searched: several times what the largest real
exports have."""
WORDY_TABLES = {
    "StringIds": "value",
    "TARGET_INFO_SYSTEM_ENV": "name || '=' || value",
    "META_DATA_CAPTURE": "name || '=' || value",
    "DIAGNOSTIC_EVENT": "text",
}
"""Table of an nsys export in which environments and messages stand -> what is read of a row."""
PROCESS = "coalesce(command, '') || char(10) || coalesce(environment, '')"
_PROCESSES = re.compile(rb"rocpd_info_process\w*")
"""Tables of rocprofv3 with command and environment of a process."""
_SHORT = (
    f"CASE WHEN length(t) > {BEGIN + END} THEN substr(t, 1, {BEGIN}) || x'0a' || substr(t, {-END}) "
    "ELSE t END AS s"
)
_GAP = re.compile(rb"[\s\",;]")


def names_in(path: Path, limit: int = LOOKED_AT) -> list[str]:
    """Names of what looks like a secret in a report, sorted; [] also for what cannot be read
    at all.

    Of an nsys export its strings, environments and messages (BEGIN, END, ALL_TEXTS); of anything
    else, gzipped or not, the first ``limit`` bytes, and samples of the rest (SAMPLE).
    """
    if path.is_dir():
        return []
    try:
        return names_of(texts_of(path, limit))
    except (OSError, EOFError, zlib.error, sqlite3.Error, UnicodeError):
        return []


def texts_of(path: Path, limit: int = LOOKED_AT) -> Iterator[bytes]:
    """Yield the texts that ``names_in`` searches, in pieces. Raises what reading a damaged
    file raises."""
    head = _head(path)
    yield from _database_texts(path) if is_sqlite(head) else _chunks(path, head, limit)


def is_database(path: Path) -> bool:
    """Return whether it is an SQLite database, of which ``names_in`` searches a few tables.
    Raises OSError."""
    return is_sqlite(_head(path))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def opened(path: Path, *, is_zipped: bool, mode: str = "rb") -> IO[bytes]:
    """The file, unzipped or to be zipped."""
    return cast("IO[bytes]", gzip.GzipFile(path, mode, 6) if is_zipped else path.open(mode))


def _chunks(path: Path, head: bytes, limit: int) -> Iterator[bytes]:
    """The first ``limit`` bytes, unzipped, and samples of the rest; UTF-16 as what it would be
    in ASCII."""
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    is_zipped = head.startswith(b"\x1f\x8b")
    with opened(path, is_zipped=is_zipped) as file:
        while limit > 0 and (chunk := file.read(min(limit, CHUNK))):
            limit -= len(chunk)
            yield chunk.replace(b"\0", b"") if wide else chunk
        if limit <= 0:
            for chunk in (
                _zipped_samples(file) if is_zipped else _samples(file, path.stat().st_size)
            ):
                yield _whole_words(chunk.replace(b"\0", b"") if wide else chunk)


def _samples(file: IO[bytes], size: int) -> Iterator[bytes]:
    end = max(file.tell(), (size - CHUNK) & ~1)
    for place in range(file.tell(), end, EVERY):
        file.seek(place)
        yield file.read(min(SAMPLE, end - place))
    file.seek(end)
    yield file.read(CHUNK)


def _zipped_samples(file: IO[bytes]) -> Iterator[bytes]:
    """The same for a gzip stream, which cannot seek: everything is unzipped, little is searched."""
    before = last = b""
    for number, chunk in enumerate(iter(partial(file.read, CHUNK), b"")):
        if number % (EVERY // CHUNK) == 0:
            yield chunk[:SAMPLE]
        before, last = last, chunk
    yield (before + last)[-CHUNK:]


def _whole_words(sample: bytes) -> bytes:
    """Drop a partial word at the start, and separate the sample from the one before."""
    start = _GAP.search(sample)
    return b"\n" + sample[start.end() :] + b"\n" if start else b"\n"


def _database_texts(path: Path) -> Iterator[bytes]:
    """The strings of an nsys export, the commands and environments of rocprofv3; nothing of
    another database."""
    with closing(connect(path)) as connection:
        connection.text_factory = bytes
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        wordy = {table: text for table, text in WORDY_TABLES.items() if table.encode() in tables}
        wordy |= {f'"{name.decode()}"': PROCESS for name in tables if _PROCESSES.fullmatch(name)}
        left = ALL_TEXTS
        for table, text in wordy.items():
            rows = connection.execute(
                f"SELECT {_SHORT} FROM (SELECT CAST({text} AS BLOB) AS t FROM {table}) WHERE "
                "length(t) > 8"
            )
            batch, size = list[bytes](), 0
            for (value,) in rows:
                batch.append(value)
                size += len(value)
                if size > CHUNK:
                    yield b"\n".join([*batch, b""])
                    left -= size
                    batch, size = [], 0
                    if left < 0:
                        return
            yield b"\n".join([*batch, b""])
            left -= size
