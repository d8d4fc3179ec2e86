"""Rewrites a copy of a profiler's database without environments, secrets, and the names of hosts,
users and home folders.

An nsys export loses its environments, the program's output, and strings that nothing refers to; a
database of rocprofv3 loses its environments and the host's names.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from perfctl import redact
from perfctl.parsers.nsys.tables import STRINGS
from perfctl.parsers.text.sqlite import connect
from perfctl.redact.people import People, is_environment

HOST_FACTS = (
    "CpuDescription",
    "CpuCores",
    "CpuArchitecture",
    "OsDescription",
    "CudaDriverVersion",
    "NvDriverVersion",
)
"""Rows of TARGET_INFO_SYSTEM_ENV that stay: facts about the machine."""
_WHO = " OR ".join(
    f"name LIKE '%{part}%'" for part in ("HOST", "USER", "DISPLAY_NAME", "WORKING_DIR", "_PATH")
)
"""Facts of a capture or an export that say who made it, where."""
DELETED = {
    "TARGET_INFO_SYSTEM_ENV": (
        f"name IS NULL OR name NOT IN ({', '.join(repr(name) for name in HOST_FACTS)})"
    ),
    "META_DATA_CAPTURE": f"name LIKE '%ENV%' OR value GLOB '[A-Z_]*=*' OR {_WHO}",
    "META_DATA_EXPORT": _WHO,
    "EXPORT_META_DATA": _WHO,
    "ProcessStreams": "1",  # what the program printed (all versions)
    "ANALYSIS_FILE": "1",  # the same, and files that nsys collected (2024.2 and later)
}
"""Table of an nsys export -> rows to delete."""
EMPTIED = {
    "rocpd_info_process": {
        "environment": "'{}'",
        "extdata": "'{}'",
    },  # extdata: where the output went, by the host's name
    "rocpd_info_node": {
        "hostname": "NULL",
        "domain_name": "NULL",
        "machine_id": "'(removed) ' || id",
    },
}
"""Beginning of a table of rocprofv3, which goes on with the run's GUID -> columns to empty, and
what they hold then."""
ENVIRONMENT = re.compile(
    b"(?:PATH|HOME|PWD|OLDPWD|USER|USERNAME|LOGNAME|SHELL|SHLVL|HOSTNAME|LANG|TERM|MAIL|EDITOR|"
    b"DISPLAY|TMPDIR|_|PS1|LD_[A-Z_]+|LC_[A-Z]+|LS_COLORS|SSH_[A-Z_]+|XDG_[A-Z_]+|CUDA_[A-Z_]+|"
    b"CONDA_[A-Z_0-9]+|PYTHON[A-Z]+|SLURM_[A-Z_0-9]+|AWS_[A-Z_]+|GIT_[A-Z_]+|DBUS_[A-Z_]+|"
    b"KUBERNETES_[A-Z_0-9]+|VIRTUAL_ENV|[A-Z_]*PROXY"
    rb"|BASH_FUNC_[^=]*)=(?!\(removed\))"
)
"""How strings begin that are variables of an environment."""

_REFERS = re.compile(
    r"(?:\w*(?:name|text|string|content|symbol|module|label|message|title|description|path|json)Id|"
    "apiCallId"
    r"|symbol|module|\w+Name)\Z",
    re.IGNORECASE,
)
"""Columns that hold numbers of strings (2020.3 to 2026.1). From 2021 on comments in the schema say
so, too."""
_COMMENT = re.compile(r"^\s*(\w+)\s.*--\s*REFERENCES\s+StringIds", re.MULTILINE)
_TABLES = "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
_ARGUMENT = re.compile(r"(.*ARGUMENT_)(\d{1,6})\Z")
_SETTINGS = ("journal_mode=OFF", "secure_delete=ON", "trusted_schema=OFF", "foreign_keys=OFF")
"""Without a journal nothing of the old content is written anywhere else; a copy that fails is
thrown away."""


def rewrite(part: Path, found: Counter[str]) -> dict[str, int]:
    """Rewrite the copy; counts what was replaced in ``found``. Gives the rows that went, by table.
    Raises sqlite3.Error."""
    with closing(sqlite3.connect(part, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        (coding,) = connection.execute("PRAGMA encoding").fetchone()
        if coding != "UTF-8":
            raise sqlite3.DatabaseError(f"its text encoding is {coding}, which nsys does not write")
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN")
        for (trigger,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {_quoted(trigger)}")
        tables: dict[str, str] = dict(connection.execute(_TABLES))
        people = people_in(connection, tables)
        gone = {table: _delete(connection, table) for table in DELETED if table in tables}
        _mask_arguments(connection, tables, found)
        if STRINGS in tables:
            gone[STRINGS] = _drop_strings(connection, tables)
        for table in tables:
            if emptied := _empty(connection, table):
                gone[table] = emptied
            _replace_in(connection, table, people, found)
        connection.execute("COMMIT")
        connection.execute("VACUUM")
    return {table: rows for table, rows in gone.items() if rows}


def people_in(connection: sqlite3.Connection, tables: Iterable[str]) -> People:
    """The names of hosts and users that the database states."""
    hosts, users = set[str](), set[str]()
    for table in (*DELETED, STRINGS):
        has = _columns(connection, table).keys() if table in tables else ()
        if table == STRINGS and "value" in has:
            rows = connection.execute(
                f"SELECT '', value FROM {STRINGS} WHERE value GLOB 'USER=*' OR value GLOB "
                "'HOSTNAME=*'"
            )
        elif {"name", "value"}.issubset(has):
            rows = connection.execute(
                f"SELECT name, value FROM {_quoted(table)} WHERE typeof(value) = 'text'"
            )
        else:
            continue
        for name, value in rows:
            key, _, said = value.partition("=") if not name or "ENV" in name else (name, "", value)
            said = said.strip('"')
            if key in ("HOSTNAME", "EXPORT_HOST", "DEVICE_DISPLAY_NAME", "Hostname"):
                hosts.add(said)
            elif key in ("USER", "LOGNAME", "EXPORT_USER") or key.endswith("USER_NAME"):
                users.add(said)
    for table in tables:
        if table.startswith("rocpd_info_node") and "hostname" in _columns(connection, table):
            hosts.update(
                name
                for (name,) in connection.execute(f"SELECT hostname FROM {_quoted(table)}")
                if isinstance(name, str)
            )
    return People(hosts, users)


def environment_in(part: Path) -> bool:
    """Is a variable of an environment left, among the strings of nsys or in a column
    of rocprofv3?"""
    with closing(connect(part)) as connection:
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            if table.startswith("rocpd_info_process") and "environment" in _columns(
                connection, table
            ):
                query = (
                    f"SELECT 1 FROM {_quoted(table)} WHERE CAST(environment AS TEXT) NOT IN "
                    f"('{{}}', '[]', '')"
                )
                if connection.execute(query).fetchone():
                    return True
        connection.text_factory = bytes
        if not connection.execute(
            "SELECT 1 FROM sqlite_master WHERE name = ?", (STRINGS,)
        ).fetchone():
            return False
        values = connection.execute(f"SELECT CAST(value AS BLOB) FROM {STRINGS}")
        return any(ENVIRONMENT.match(value) for (value,) in values if value)


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    rows = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    return {row[1]: str(row[2]).upper() for row in rows}


def _delete(connection: sqlite3.Connection, table: str) -> int:
    """Delete the rows; all of them where the table lacks its usual columns."""
    known = _columns(connection, table).keys() >= {"name", "value"}
    return connection.execute(
        f"DELETE FROM {table} WHERE {DELETED[table] if known else '1'}"
    ).rowcount


def _empty(connection: sqlite3.Connection, table: str) -> int:
    """Empty what a table of rocprofv3 says about the user's machine. Gives the rows
    that changed."""
    changed = 0
    for start, columns in EMPTIED.items():
        present = _columns(connection, table) if table.startswith(start) else {}
        for column in (name for name in columns if name in present):
            new, name = columns[column], _quoted(column)
            query = f"UPDATE {_quoted(table)} SET {name} = {new} WHERE {name} IS NOT {new}"
            changed = max(changed, connection.execute(query).rowcount)
    return changed


def _drop_strings(connection: sqlite3.Connection, tables: dict[str, str]) -> int:
    """Delete the strings that no column refers to: every process's environment stands there, and
    nothing names it."""
    connection.execute("CREATE TEMP TABLE kept_string (id INTEGER PRIMARY KEY)")
    for table, sql in tables.items():
        stated = set(_COMMENT.findall(sql or ""))
        for column in _columns(connection, table):
            if table != STRINGS and (column in stated or _REFERS.match(column)):
                name = _quoted(column)
                # so never NULL
                numbers = f"SELECT {name} FROM {_quoted(table)} WHERE typeof({name}) = 'integer'"
                connection.execute(f"INSERT OR IGNORE INTO kept_string {numbers}")
    gone = connection.execute(
        f"DELETE FROM {STRINGS} WHERE id NOT IN (SELECT id FROM kept_string)"
    ).rowcount

    def emptied(raw: bytes) -> bytes | None:  # a variable of an environment, without its value
        return raw[: raw.index(b"=") + 1] + redact.REMOVED if ENVIRONMENT.match(raw) else None

    _rewrite(connection, STRINGS, "value", emptied)
    return gone


def _mask_arguments(
    connection: sqlite3.Connection, tables: Iterable[str], found: Counter[str]
) -> None:
    """The program's arguments, of which nsys writes each in a row of its own."""
    if "META_DATA_CAPTURE" not in tables or not _columns(
        connection, "META_DATA_CAPTURE"
    ).keys() >= {"name", "value"}:
        return
    rows = connection.execute(
        "SELECT rowid, name, value FROM META_DATA_CAPTURE WHERE name LIKE '%ARGUMENT@_%' ESCAPE '@'"
    ).fetchall()
    processes: dict[str, list[tuple[int, int, str]]] = {}
    for row, name, value in rows:
        if (match := _ARGUMENT.fullmatch(name)) and isinstance(value, str):
            processes.setdefault(match[1], []).append((int(match[2]), row, value))
    for arguments in processes.values():
        arguments.sort()
        words = redact.masked_words([value for *_, value in arguments])
        for (_, row, value), word in zip(arguments, words, strict=True):
            if redact.REMOVED_TEXT in word and word != value:
                found["an argument"] += 1
                connection.execute(
                    "UPDATE META_DATA_CAPTURE SET value = ? WHERE rowid = ?", (word, row)
                )


def _replace_in(
    connection: sqlite3.Connection, table: str, people: People, found: Counter[str]
) -> None:
    """Replace secrets in every text of a table; numbers, and texts without one, stay untouched."""

    def clean(raw: bytes) -> bytes | None:
        if is_environment(raw):
            found["a process environment"] += 1
            return b"{}" if raw.lstrip()[:1] == b"{" else redact.REMOVED
        inside = redact.secrets_in(raw, people.found_in(raw))
        found.update(secret.name for secret in inside)
        return redact.without(raw, inside) if inside else None

    for column, declared in _columns(connection, table).items():
        if "INT" not in declared and "REAL" not in declared:
            _rewrite(connection, table, column, clean)


def _rewrite(
    connection: sqlite3.Connection, table: str, column: str, change: Callable[[bytes], bytes | None]
) -> None:
    """Replace each text or blob by the result of ``change``, asked once each; None leaves it. On
    bytes: not all are UTF-8."""
    last: list[bytes | None] = [None]
    raised: list[BaseException] = []

    def is_changed(raw: bytes) -> bool:
        try:
            last[0] = change(raw)
        except BaseException as error:
            raised.append(error)
            raise
        return last[0] is not None

    connection.create_function("is_changed", 1, is_changed)
    connection.create_function("changed", 0, lambda: last[0])
    name = _quoted(column)
    key = "rowid" if _has_rowid(connection, table) else ""
    query = (
        f"SELECT {key or name}, typeof({name}), changed() FROM {_quoted(table)} WHERE "
        f"typeof({name}) IN ('text', 'blob')"
    )
    try:
        rows = connection.execute(f"{query} AND is_changed(CAST({name} AS BLOB))").fetchall()
    except sqlite3.OperationalError as error:
        if "user-defined function" not in str(error):
            raise
        # SQLite keeps no exception: without one it was Ctrl-C between its call and ours
        raise (raised or [KeyboardInterrupt()])[0] from None
    for place, kind, new in rows:
        value = "CAST(? AS TEXT)" if kind == "text" else "?"
        connection.execute(
            f"UPDATE {_quoted(table)} SET {name} = {value} WHERE {key or name} = ?", (new, place)
        )


def _has_rowid(connection: sqlite3.Connection, table: str) -> bool:
    try:
        connection.execute(f"SELECT rowid FROM {_quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
