"""Removes the process environments from a copy of an nsys export, in place, for :mod:`perfctl.parsers.scrub`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from perfctl.parsers import secrets
from perfctl.parsers.nsys_tables import STRINGS
from perfctl.parsers.text.sqlite import connect

HOST_FACTS = ("CpuDescription", "CpuCores", "CpuArchitecture", "OsDescription", "CudaDriverVersion", "NvDriverVersion")
"""Rows of TARGET_INFO_SYSTEM_ENV that stay: facts about the machine."""
DELETED = {
    "TARGET_INFO_SYSTEM_ENV": f"name IS NULL OR name NOT IN ({', '.join(repr(name) for name in HOST_FACTS)})",
    "META_DATA_CAPTURE": "name LIKE '%ENV%' OR value GLOB '[A-Z_]*=*'",
    "ProcessStreams": "1",  # what the program printed (all versions)
    "ANALYSIS_FILE": "1",  # the same, and files that nsys collected (2024.2 and later)
}
"""Table of an nsys export -> rows to delete."""
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
            _replace_in(connection, table, names)
        connection.execute("COMMIT")
        connection.execute("VACUUM")
    return {table: rows for table, rows in gone.items() if rows}


def environment_in(part: Path) -> bool:
    """Is a variable of an environment left among the strings?"""
    with closing(connect(part)) as connection:
        connection.text_factory = bytes
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (STRINGS,)).fetchone():
            return False
        values = connection.execute(f"SELECT CAST(value AS BLOB) FROM {STRINGS}")
        return any(ENVIRONMENT.match(value) for (value,) in values if value)


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """(name, declared type)"""
    rows = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    return [(row[1], str(row[2]).upper()) for row in rows]


def _delete(connection: sqlite3.Connection, table: str) -> int:
    """Delete the rows; all of them where the table lacks its usual columns."""
    known = {name for name, _ in _columns(connection, table)} >= {"name", "value"}
    return connection.execute(f"DELETE FROM {table} WHERE {DELETED[table] if known else '1'}").rowcount


def _drop_strings(connection: sqlite3.Connection, tables: dict[str, str]) -> int:
    """Delete the strings that no column refers to: every process's environment stands there, and nothing names it."""
    connection.execute("CREATE TEMP TABLE kept_string (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        stated = set(_COMMENT.findall(sql or ""))
        for column, _ in _columns(connection, table):
            if table != STRINGS and (column in stated or _REFERS.match(column)):
                name = _quoted(column)
                numbers = f"SELECT {name} FROM {_quoted(table)} WHERE typeof({name}) = 'integer'"  # so never NULL
                connection.execute(f"INSERT OR IGNORE INTO kept_string {numbers}")
    gone = connection.execute(f"DELETE FROM {STRINGS} WHERE id NOT IN (SELECT id FROM kept_string)").rowcount
    _rewrite(connection, STRINGS, "value", _emptied)
    return gone


def _emptied(raw: bytes) -> bytes | None:
    """A string that is a variable of an environment, without its value; None for any other."""
    return b"%b=%b" % (raw.partition(b"=")[0], secrets.REMOVED) if ENVIRONMENT.match(raw) else None


def _replace_in(connection: sqlite3.Connection, table: str, names: set[str]) -> None:
    """Replace secrets in every text of a table; numbers, and texts without one, stay untouched."""

    def clean(raw: bytes) -> bytes | None:
        found = secrets.secrets_in(raw)
        names.update(secret.name for secret in found)
        return secrets.without(raw, found) if found else None

    for column, declared in _columns(connection, table):
        if "INT" not in declared and "REAL" not in declared:
            _rewrite(connection, table, column, clean)


def _rewrite(connection: sqlite3.Connection, table: str, column: str, change: Callable[[bytes], bytes | None]) -> None:
    """Replace each text or blob by the result of ``change``; None leaves it. On bytes: not all texts are UTF-8."""
    connection.create_function("changed", 1, change, deterministic=True)
    name = _quoted(column)
    raw = f"CAST({name} AS BLOB)"
    new = f"CASE typeof({name}) WHEN 'text' THEN CAST(changed({raw}) AS TEXT) ELSE changed({raw}) END"
    wordy = f"typeof({name}) IN ('text', 'blob') AND changed({raw}) IS NOT NULL"
    connection.execute(f"UPDATE {_quoted(table)} SET {name} = {new} WHERE {wordy}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
