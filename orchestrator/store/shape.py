"""What perfctl needs of a store's tables, and how it reads tables that their owner has changed.

A store belongs to its user: columns, tables, views and indexes of one's own may be added, and a
table may be rebuilt with its columns in another order or of another type. So perfctl asks for the
columns that it uses and for nothing else, always by name. Where a table cannot be read as it is, a
temporary view of the same name takes its place on the reading connection; the file stays as it is.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from perfctl.orchestrator.errors import StoreError, StoreNote
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS, NEWEST

LONGEST_BYTES = 16_000_000
"""Longest value that is read through a view or a computed column, where a few letters of SQL can
make any length."""
INTERRUPT_EVERY = 1_000_000
"""Steps of SQLite's machine between two moments at which Ctrl-C can stop a view that never ends."""
_GAP = r"(?:--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/|\s)"
_TEXT_OR_GAP = re.compile(rf"""('(?:[^']|'')*'|"(?:[^"]|"")*")|{_GAP}*([(,)]){_GAP}*|{_GAP}+""")
_KINDS = {"view": "view", "virtual": "virtual table"}
_SCHEMA = "SELECT name, type, sql FROM main.sqlite_master WHERE type IN ('table', 'view')"


class Made(NamedTuple):
    """A table or view as the migrations make it."""

    kind: str
    """table or view."""
    sql: str
    """As ``_bare`` writes it."""
    columns: Mapping[str, str]
    """Column -> declared type, in order."""
    owners: Mapping[str, tuple[str, str]]
    """Column -> (table, key) of the row that takes this one with it when it is deleted."""


class Changed(NamedTuple):
    """A table or view of perfctl's that is not in the file as perfctl made it."""

    kind: str
    """table, view or virtual."""
    types: Mapping[str, str]
    """Column, in lower case -> declared type; empty for an expression."""
    computed: frozenset[str]
    """Generated columns."""


def distrust(connection: sqlite3.Connection) -> None:
    """What the file's schema calls may only compute, and damaged pages are noticed as they
    are read."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


@lru_cache(maxsize=4)
def made_by(version: int = NEWEST) -> dict[str, Made]:
    """Name -> table or view in version ``version`` of the schema; none in version 0, a new file."""
    found = {}
    with closing(sqlite3.connect(":memory:")) as empty:
        for step in MIGRATIONS:
            if step.number <= version:
                empty.executescript(step.sql)
        for name, kind, sql in empty.execute(_SCHEMA).fetchall():
            types = {row[1]: row[2] for row in empty.execute(f"PRAGMA table_xinfo({name})")}
            keys = empty.execute(f"PRAGMA foreign_key_list({name})").fetchall()
            owners = {key[3]: (key[2], key[4]) for key in keys if key[6] == "CASCADE"}
            found[name] = Made(kind, _bare(sql), types, owners)
    return found


def own_tables() -> frozenset[str]:
    """The tables that perfctl writes."""
    return frozenset(name for name, made in made_by().items() if made.kind == "table")


def belonging(table: str) -> set[tuple[str, str, str]]:
    """(table, column, key) of perfctl's tables whose rows go when the row they refer to goes."""
    return {
        (name, column, key)
        for name, made in made_by().items()
        for column, (owner, key) in made.owners.items()
        if owner == table
    }


def columns(table: str) -> Mapping[str, str]:
    """Column -> declared type of one of perfctl's tables or views, in the order of
    docs/schema.md."""
    return made_by()[table].columns


def selected(table: str) -> str:
    """``table.column`` of every column that perfctl knows, for a SELECT: ``*`` would also take the
    user's own."""
    return ", ".join(f"{table}.{named([column])}" for column in columns(table))


def named(columns: Iterable[str]) -> str:
    """Columns of perfctl's own, ready for SQL; ``group`` is a word of SQL's. In "" a missing one
    would be a text."""
    return ", ".join(f"[{column}]" if column == "group" else column for column in columns)


def check_writable(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError where perfctl cannot write one of its tables, with what to do about it."""
    version, changed = _compare(connection, path)
    for name, found in changed.items():
        made = made_by(version)[name]
        if made.kind == "view":
            continue
        if found.kind != "table":
            kind = _KINDS[found.kind]
            problem = (
                f"{path}: {name} is a {kind} in this store; perfctl can read it, but not write to "
                "it"
            )
            raise StoreError(
                problem,
                f"Rename it and put the table {name} back, or name another store with --store",
            )
        if computed := found.computed & made.columns.keys():
            column = f"{name}.{min(computed)}"
            problem = (
                f"{path}: {column} is a computed column in this store; perfctl can read it, but "
                "not write to it"
            )
            raise StoreError(problem, "Make it a plain column, or name another store with --store")


def stand_in(connection: sqlite3.Connection, path: Path) -> None:
    """Let this connection read perfctl's tables with their own columns and types, whatever the file
    has in their place.

    Raises StoreError where a table or column is missing. Warns (StoreNote) of views that are
    not perfctl's.
    """
    version, changed = _compare(connection, path)
    if not changed:
        return
    made = made_by(version)
    tables = {name: found for name, found in changed.items() if made[name].kind == "table"}
    if any(found.kind != "table" or found.computed for found in tables.values()):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_BYTES)
        # Python looks for Ctrl-C whenever it is called
        connection.set_progress_handler(lambda: 0, INTERRUPT_EVERY)
    selects = {
        name: sql
        for name, found in tables.items()
        if (sql := _select(connection, name, made[name], found))
    }
    connection.execute("PRAGMA temp_store = MEMORY")
    for name, sql in selects.items():
        connection.execute(f"CREATE TEMP VIEW {name} AS {sql}")
    for name, view in made.items():
        if view.kind == "view" and (name in changed or selects):
            connection.execute(view.sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))
    for name, found in changed.items():
        if made[name].kind == "view" and found.kind != "missing":
            _warn(
                f"{path}: the view {name} is not the one perfctl made; perfctl reads the tables "
                "behind it"
            )
        elif made[name].kind == "table" and found.kind != "table":
            _warn(
                f"{path}: {name} is a {_KINDS[found.kind]}, not a table; perfctl shows what it "
                "gives"
            )


def _warn(text: str) -> None:
    warnings.warn(text, StoreNote, stacklevel=1)


def _compare(connection: sqlite3.Connection, path: Path) -> tuple[int, dict[str, Changed]]:
    """(version of the schema, what is not as perfctl made it). Raises StoreError for a missing
    table or column."""
    # another process may be migrating it: version and schema of one moment
    connection.execute("BEGIN")
    try:
        version = int(connection.execute("PRAGMA main.user_version").fetchone()[0])
        there = {name.lower(): (kind, sql) for name, kind, sql in connection.execute(_SCHEMA)}
        changed = {}
        for name, made in made_by(version).items():
            kind, sql = there.get(name, (None, None))
            if kind != made.kind or _bare(sql) != made.sql:
                changed[name] = _look_at(connection, name, kind, sql or "")
    finally:
        connection.execute("ROLLBACK")
    for name, found in changed.items():
        if made_by(version)[name].kind == "table":
            _need(path, name, made_by(version)[name], found)
    return version, changed


def _look_at(connection: sqlite3.Connection, name: str, kind: str | None, sql: str) -> Changed:
    if kind is None:
        return Changed("missing", {}, frozenset())
    rows = connection.execute(f"PRAGMA main.table_xinfo({name})").fetchall()
    computed = frozenset(row[1].lower() for row in rows if row[6] in (2, 3))
    kind = "virtual" if sql.upper().startswith("CREATE VIRTUAL") else kind
    return Changed(kind, {row[1].lower(): row[2] for row in rows}, computed)


def _need(path: Path, name: str, made: Made, found: Changed) -> None:
    if found.kind == "missing":
        remedy = (
            "Put it back (docs/schema.md has its columns), or ingest the reports into a new store"
        )
        raise StoreError(f"{path}: the table {name} is missing", remedy)
    for column, declared in made.columns.items():
        if column in found.types:
            continue
        add = (
            f"sqlite-utils add-column {path.name} {name} {column} "
            f"{'float' if declared == 'NUMERIC' else declared.lower()}"
        )
        its_table = found.kind == "table"
        remedy = (
            f"Rename it back, or add it empty: {add}"
            if its_table
            else f"Let the {_KINDS[found.kind]} show it"
        )
        raise StoreError(f"{path}: {name} has no column {column}", remedy)


def _select(connection: sqlite3.Connection, name: str, made: Made, found: Changed) -> str | None:
    """What gives the table its own columns and types; None where the table itself does."""
    plain = [named([column]) for column in made.columns]
    types = [(declared, found.types[column]) for column, declared in made.columns.items()]
    values = [_converted(column, *both) for column, both in zip(plain, types, strict=True)]
    rowid = _has_rowid(connection, name)
    if rowid and values == plain:
        return None
    shown = [f"{value} AS {column}" for value, column in zip(values, plain, strict=True)]
    return f"SELECT {', '.join(shown)}, {'rowid' if rowid else '0'} AS rowid FROM main.{name}"


def _has_rowid(connection: sqlite3.Connection, name: str) -> bool:
    """Views and tables WITHOUT ROWID have none; their rows come in the order in which they lie."""
    try:
        connection.execute(f"SELECT rowid FROM main.{name} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def _converted(column: str, wanted: str, declared: str) -> str:
    """SQL of a column's value as the wanted type holds it; the column itself where the type is
    the same.

    A rebuilt table may keep a whole number as 10.0 or as '10'. Text that is not a number is not
    known: NULL.
    """
    if affinity(wanted) == affinity(declared):
        return column
    if wanted == "TEXT":
        return f"CAST({column} AS TEXT)"
    number = (
        f"CASE typeof({column}) WHEN 'integer' THEN {column}"
        f" WHEN 'real' THEN CASE WHEN CAST({column} AS INTEGER) = {column} THEN CAST({column} AS "
        f"INTEGER) ELSE {column} END WHEN 'text' THEN CASE WHEN {column} GLOB '*[0-9]*' AND "
        f"{column} NOT GLOB '*[^-+.0-9eE]*' THEN CAST({column} AS NUMERIC) END END"
    )
    return f"CAST({number} AS REAL)" if wanted == "REAL" else number


def affinity(declared: str) -> str:
    """As SQLite works it out from a declared type."""
    said = declared.upper()
    for affinity, words in (
        ("INTEGER", ("INT",)),
        ("TEXT", ("CHAR", "CLOB", "TEXT")),
        ("BLOB", ("BLOB",)),
    ):
        if any(word in said for word in words):
            return affinity
    if not said:
        return "BLOB"
    return "REAL" if any(word in said for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def quoted(name: str) -> str:
    """A name of the user's as SQL takes it."""
    return '"' + name.replace('"', '""') + '"'


def _bare(sql: str | None) -> str:
    """Without comments and without blanks next to a bracket or comma, elsewhere one for many;
    quoted text stays.

    ALTER TABLE writes ", name TEXT" below the last column, in the store of which such a column was
    added later.
    """
    return _TEXT_OR_GAP.sub(lambda found: found[1] or found[2] or " ", sql or "")
