"""Copies a report without its process environments and secrets: the only parser module that writes.

It writes only that copy, under a temporary name until it is complete and has been checked again. An nsys export loses its
environments, the program's output, and strings that nothing refers to; a database of rocprofv3 loses its environments and
the host's name; elsewhere secrets become "(removed)".
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import shutil
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from perfctl import redact
from perfctl.parsers.nsys.tables import EXPORT_AGAIN, STRINGS
from perfctl.parsers.secret_scan import opened, texts_of
from perfctl.parsers.text.sqlite import connect
from perfctl.records.errors import ReportError
from perfctl.records.sqlite_header import is_sqlite

HOST_FACTS = ("CpuDescription", "CpuCores", "CpuArchitecture", "OsDescription", "CudaDriverVersion", "NvDriverVersion")
"""Rows of TARGET_INFO_SYSTEM_ENV that stay: facts about the machine."""
DELETED = {
    "TARGET_INFO_SYSTEM_ENV": f"name IS NULL OR name NOT IN ({', '.join(repr(name) for name in HOST_FACTS)})",
    "META_DATA_CAPTURE": "name LIKE '%ENV%' OR value GLOB '[A-Z_]*=*'",
    "ProcessStreams": "1",  # what the program printed (all versions)
    "ANALYSIS_FILE": "1",  # the same, and files that nsys collected (2024.2 and later)
}
"""Table of an nsys export -> rows to delete."""
EMPTIED = {
    "rocpd_info_process": {"environment": "'{}'"},
    "rocpd_info_node": {"hostname": "NULL", "domain_name": "NULL"},
}
"""Beginning of a table of rocprofv3, which goes on with the run's GUID -> columns to empty, and what they hold then."""
ENVIRONMENT = re.compile(
    rb"(?:PATH|HOME|PWD|OLDPWD|USER|USERNAME|LOGNAME|SHELL|SHLVL|HOSTNAME|LANG|TERM|MAIL|EDITOR|DISPLAY|TMPDIR|_|PS1"
    rb"|LD_[A-Z_]+|LC_[A-Z]+|LS_COLORS|SSH_[A-Z_]+|XDG_[A-Z_]+|CUDA_[A-Z_]+|CONDA_[A-Z_0-9]+|PYTHON[A-Z]+"
    rb"|SLURM_[A-Z_0-9]+|AWS_[A-Z_]+|GIT_[A-Z_]+|DBUS_[A-Z_]+|KUBERNETES_[A-Z_0-9]+|VIRTUAL_ENV|[A-Z_]*PROXY"
    rb"|BASH_FUNC_[^=]*)=(?!\(removed\))"
)
"""How strings begin that are variables of an environment."""

_REFERS = re.compile(
    r"(?:\w*(?:name|text|string|content|symbol|module|label|message|title|description|path|json)Id|apiCallId"
    r"|symbol|module|\w+Name)\Z",
    re.IGNORECASE,
)
"""Columns that hold numbers of strings (2020.3 to 2026.1). From 2021 on comments in the schema say so, too."""
_COMMENT = re.compile(r"^\s*(\w+)\s.*--\s*REFERENCES\s+StringIds", re.MULTILINE)
_TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_SETTINGS = ("journal_mode=OFF", "secure_delete=ON", "trusted_schema=OFF", "foreign_keys=OFF")
"""Without a journal nothing of the old content is written anywhere else; a copy that fails is thrown away."""


def rewrite(part: Path, names: set[str]) -> dict[str, int]:
    """Rewrite the copy; adds what was found to ``names``. Gives the rows that went, by table. Raises sqlite3.Error."""
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        (coding,) = connection.execute("PRAGMA encoding").fetchone()
        if coding != "UTF-8":
            raise sqlite3.DatabaseError(f"its text encoding is {coding}, which nsys does not write")
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN")
        for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {_quoted(trigger)}")
        tables: dict[str, str] = dict(connection.execute(_TABLES))
        gone = {table: _delete(connection, table) for table in DELETED if table in tables}
        if STRINGS in tables:
            gone[STRINGS] = _drop_strings(connection, tables)
        for table in tables:
            if emptied := _empty(connection, table):
                gone[table] = emptied
            _replace_in(connection, table, names)
        connection.execute("COMMIT")
        connection.execute("VACUUM")
    return {table: rows for table, rows in gone.items() if rows}


def environment_in(part: Path) -> bool:
    """Is a variable of an environment left, among the strings of nsys or in a column of rocprofv3?"""
    with closing(connect(part)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table.startswith("rocpd_info_process") and "environment" in _columns(connection, table):
                query = f"SELECT 1 FROM {_quoted(table)} WHERE environment NOT IN ('{{}}', '[]', '')"
                if connection.execute(query).fetchone():
                    return True
        connection.text_factory = bytes
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (STRINGS,)).fetchone():
            return False
        values = connection.execute(f"SELECT CAST(value AS BLOB) FROM {STRINGS}")
        return any(ENVIRONMENT.match(value) for (value,) in values if value)


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    rows = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    return {row[1]: str(row[2]).upper() for row in rows}


def _delete(connection: sqlite3.Connection, table: str) -> int:
    """Delete the rows; all of them where the table lacks its usual columns."""
    known = _columns(connection, table).keys() >= {"name", "value"}
    return connection.execute(f"DELETE FROM {table} WHERE {DELETED[table] if known else '1'}").rowcount


def _empty(connection: sqlite3.Connection, table: str) -> int:
    """Empty what a table of rocprofv3 says about the user's machine. Gives the rows that changed."""
    changed = 0
    for start, columns in EMPTIED.items():
        present = _columns(connection, table) if table.startswith(start) else {}
        for column in (name for name in columns if name in present):
            new, name = columns[column], _quoted(column)
            query = f"UPDATE {_quoted(table)} SET {name} = {new} WHERE {name} IS NOT {new}"
            changed = max(changed, connection.execute(query).rowcount)
    return changed


def _drop_strings(connection: sqlite3.Connection, tables: dict[str, str]) -> int:
    """Delete the strings that no column refers to: every process's environment stands there, and nothing names it."""
    connection.execute("CREATE TEMP TABLE kept_string (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        stated = set(_COMMENT.findall(sql or ""))
        for column in _columns(connection, table):
            if table != STRINGS and (column in stated or _REFERS.match(column)):
                name = _quoted(column)
                numbers = f"SELECT {name} FROM {_quoted(table)} WHERE typeof({name}) = 'integer'"  # so never NULL
                connection.execute(f"INSERT OR IGNORE INTO kept_string {numbers}")
    gone = connection.execute(f"DELETE FROM {STRINGS} WHERE id NOT IN (SELECT id FROM kept_string)").rowcount

    def emptied(raw: bytes) -> bytes | None:  # a variable of an environment, without its value
        return raw[: raw.index(b"=") + 1] + redact.REMOVED if ENVIRONMENT.match(raw) else None

    _rewrite(connection, STRINGS, "value", emptied)
    return gone


def _replace_in(connection: sqlite3.Connection, table: str, names: set[str]) -> None:
    """Replace secrets in every text of a table; numbers, and texts without one, stay untouched."""

    def clean(raw: bytes) -> bytes | None:
        found = redact.secrets_in(raw)
        names.update(secret.name for secret in found)
        return redact.without(raw, found) if found else None

    for column, declared in _columns(connection, table).items():
        if "INT" not in declared and "REAL" not in declared:
            _rewrite(connection, table, column, clean)


def _rewrite(connection: sqlite3.Connection, table: str, column: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replace each text or blob by the result of ``change``; None leaves it. On bytes: not all texts are UTF-8."""
    raised: list[BaseException] = []

    def changed(raw: bytes) -> bytes | None:
        try:
            return change(raw)
        except BaseException as error:
            raised.append(error)
            raise

    connection.create_function("changed", 1, changed, deterministic=True)
    name = _quoted(column)
    raw = f"CAST({name} AS BLOB)"
    new = f"CASE typeof({name}) WHEN 'text' THEN CAST(changed({raw}) AS TEXT) ELSE changed({raw}) END"
    wordy = f"typeof({name}) IN ('text', 'blob') AND changed({raw}) IS NOT NULL"
    try:
        connection.execute(f"UPDATE {_quoted(table)} SET {name} = {new} WHERE {wordy}")
    except sqlite3.OperationalError as error:
        if "user-defined function" not in str(error):
            raise
        # SQLite keeps no exception: without one it was Ctrl-C between its call and ours
        raise (raised or [KeyboardInterrupt()])[0] from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


EXPORTS = {
    ".nsys-rep": "nsys export --type sqlite REPORT",
    ".qdrep": "nsys export --type sqlite REPORT",
    ".qdstrm": "QdstrmImporter -i REPORT, then nsys export --type sqlite",
    ".ncu-rep": "ncu --import REPORT --csv --page raw > REPORT.csv",
    ".nsight-cuprof-report": "ncu --import REPORT --csv --page raw > REPORT.csv",
}
"""Binary reports -> how to turn one into something that can be edited."""
CHUNK = 1 << 20
LONGEST = 1 << 16
"""Bytes held back, so that a secret is not split."""
MOST_KEPT = 8 << 20
"""Bytes after which a secret without an end is split anyway."""
GZIP = b"\x1f\x8b"
UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """Result of scrubbing, without any removed value."""

    path: Path
    names: tuple[str, ...]
    """Names of what looked like a secret in the report."""
    rows: dict[str, int]
    """Table -> rows that were deleted or emptied; empty for a text."""


def scrub(path: Path, target: Path) -> Scrubbed:
    """Write the copy, replacing ``target``. Raises ReportError when the result cannot be verified."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    names: set[str] = set()
    try:
        database = _is_database(path)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            rows = (_scrub_database if database else _scrub_text)(path, part, names)
            _check_clean(path, part, database)
            shutil.copymode(path, part)
            part.replace(target)
        finally:
            for ending in ("", "-journal", "-wal", "-shm"):
                part.with_name(part.name + ending).unlink(missing_ok=True)
    except (sqlite3.Error, UnicodeError) as error:
        reason = f"the database or its text is damaged or cut off ({error})"
        raise ReportError(path, "unknown", reason, EXPORT_AGAIN) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ReportError(path, "unknown", f"the gzip file is cut off or damaged ({error})", "Copy it again") from error
    except OSError as error:
        reason = f"no copy could be made ({error.strerror or error})"
        raise ReportError(path, "unknown", reason, "Check the permissions and the free disk space") from error
    return Scrubbed(target, tuple(sorted(names)), rows)


def _is_database(path: Path) -> bool:
    """Raises ReportError for what cannot be edited."""
    if path.is_dir():
        raise ReportError(path, "unknown", "this is a folder", "Pass one report in it")
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise ReportError(path, "unknown", "the file is empty", "Check the path")
    if is_sqlite(head):
        return True
    ways = [way for ending, way in EXPORTS.items() if path.name.endswith(ending)]
    if ways or (b"\0" in head and not head.startswith((GZIP, *UTF_16))):
        way = f"Export it and scrub the export: {(ways or ['as SQLite, CSV or JSON'])[0]}"
        raise ReportError(path, "unknown", "a binary report cannot be edited", way)
    return False


def _scrub_database(path: Path, part: Path, names: set[str]) -> dict[str, int]:
    names.update(redact.names_of(texts_of(path)))
    shutil.copyfile(path, part)
    return rewrite(part, names)


def _scrub_text(path: Path, part: Path, names: set[str]) -> dict[str, int]:
    """Works in pieces, so that neither a long file nor a long line fills memory."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == GZIP
    with opened(path, is_zipped=zipped) as source, opened(part, is_zipped=zipped, mode="wb") as out:
        first = source.read(4)
        coding = UTF_16.get(first[:2])
        for piece in _replaced(_pieces(source, first, coding), names):
            out.write(piece.decode("utf-8", "surrogatepass").encode(coding, "surrogatepass") if coding else piece)
    return {}


def _pieces(source: IO[bytes], first: bytes, coding: str | None) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(coding)("surrogatepass") if coding else None
    piece = first
    while piece:
        yield decoder.decode(piece).encode("utf-8", "surrogatepass") if decoder else piece
        piece = source.read(CHUNK)
    if decoder:
        decoder.decode(b"", final=True)


def _replaced(pieces: Iterator[bytes], names: set[str]) -> Iterator[bytes]:
    """The text again without secrets, cut elsewhere: never inside of a secret, of its name or of a character."""
    rest = b""
    for piece in chain(pieces, [None]):  # None: the end
        rest += piece or b""
        cut = len(rest) - (0 if piece is None else LONGEST)
        found = redact.secrets_in(rest) if cut > 0 else []
        if piece is not None and len(rest) < MOST_KEPT:
            cut = _between(found, cut)
        while 0 < cut < len(rest) and rest[cut] & 0xC0 == 0x80:
            cut -= 1
        if cut > 0:
            before = [secret._replace(end=min(secret.end, cut)) for secret in found if secret.start < cut]
            names.update(secret.name for secret in before)
            yield redact.without(rest[:cut], before)
            rest = rest[cut:]


def _between(found: Iterable[redact.Secret], cut: int) -> int:
    """The last place up to ``cut`` that splits no secret, nor a secret from its name."""
    ended = 0
    for secret in found:
        if secret.end > cut:
            return min(cut, max(secret.start - redact.BEFORE, ended))
        ended = secret.end
    return cut


def _check_clean(path: Path, part: Path, database: bool) -> None:
    """Check the whole copy again. Raises ReportError when a secret is left."""
    left = set(redact.names_of(texts_of(part, limit=1 << 62)))
    if database:
        with part.open("rb") as file:  # deleted rows must not remain in the file's free pages
            left |= set(redact.names_of(iter(lambda: file.read(CHUNK), b"")))
        if environment_in(part):
            left.add("a process environment")
    if left:
        reason = f"the copy would still hold {', '.join(sorted(left))}, so none was made"
        raise ReportError(path, "unknown", reason, "Do not share the report, and report this as a bug in perfctl")
