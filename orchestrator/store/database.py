"""Open the store: one SQLite file, migrated, in WAL mode, shared between processes.

Triggers of a store's user do not fire while perfctl writes. SQLite has no switch for them that
Python 3.11 reaches. Schema changes are part of a transaction, though: triggers are dropped at its
beginning and created again, word for word, before it is committed. No other process ever sees the
file without them, and a kill in between leaves them where they were.

What sqlite-utils keeps up to date by triggers (full-text search, ``_counts``) is brought up to date
in one go instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from perfctl.orchestrator.errors import StoreError, StoreNote
from perfctl.orchestrator.store import shape
from perfctl.orchestrator.store.schema.migrations import MIGRATIONS, NEWEST, OLDEST, Migration
from perfctl.orchestrator.store.shape import own_tables, quoted
from perfctl.version import __version__

_CONTENT = re.compile(r"""content\s*=\s*["'`\[]?(\w+)""", re.IGNORECASE)
"""The table whose text an FTS table indexes, in the SQL that made it."""
APPLICATION_ID = 0x70657266  # "perf": tells a perfctl store from any other SQLite file
PAGE_BYTES = 16384
"""A million kernels are written in 7/8 of the time that SQLite's default of 4096 takes, and the
file is no larger."""
WAIT_MS = 60_000
"""How long one process waits for another's transaction."""
_MOVE_AWAY = "Name the store with --store, or move this file away and ingest the reports again"
_OF_THE_DISK = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""SQLite's errors that are not about what the file holds."""

REPLACING = partial(str, encoding="utf-8", errors="replace")
"""How texts are read that are no UTF-8; it takes longer than SQLite's own way."""


class Trigger(NamedTuple):
    """One trigger as the file keeps it."""

    name: str
    table: str
    sql: str


@contextmanager
def set_aside(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, no trigger of the file fires. To be used inside a transaction, whose end puts all of
    them back.

    After an error there is nothing to do: the ROLLBACK brings them back. Warns (StoreNote) once of
    triggers that would have fired.
    """
    kept = (
        "SELECT name, tbl_name, sql FROM main.sqlite_master WHERE type = 'trigger' ORDER BY rowid"
    )
    found = list(map(Trigger._make, connection.execute(kept)))
    for trigger in found:
        connection.execute(f"DROP TRIGGER main.{quoted(trigger.name)}")
    before = connection.total_changes
    yield
    silent = [trigger for trigger in found if trigger.table.lower() in own_tables()]
    if silent and connection.total_changes != before:
        refreshed = _refresh(connection, silent)
        path = connection.execute("PRAGMA database_list").fetchone()[2]
        names = ", ".join(f"{trigger.name} on {trigger.table}" for trigger in silent)
        brought = f"; brought up to date instead: {', '.join(refreshed)}" if refreshed else ""
        warnings.warn(
            f"{path}: triggers do not fire while perfctl writes ({names}){brought}",
            StoreNote,
            stacklevel=1,
        )
    for trigger in found:
        connection.execute(trigger.sql)


def _refresh(connection: sqlite3.Connection, silent: Sequence[Trigger]) -> list[str]:
    """Bring up to date what sqlite-utils keeps by triggers on these tables; the names of what was.

    What SQLite cannot rebuild (a tokenizer that is not here) stays as it is, and out of the list.
    """
    from sqlite_utils import Database

    store = Database(connection, recursive_triggers=False, execute_plugins=False)
    tables = {trigger.table.lower() for trigger in silent}
    refreshed = []
    for index in [*store.table_names(fts5=True), *store.table_names(fts4=True)]:
        content = _CONTENT.search(store.table(index).schema)
        if content is not None and content[1].lower() in tables:
            with suppress(sqlite3.Error):
                store.table(index).rebuild_fts()
                refreshed.append(index)
    counted = {
        trigger.table
        for trigger in silent
        if trigger.name.lower() == f"{trigger.table}_counts_insert".lower()
    }
    if counted and "_counts" in store.table_names():
        rows = [{"table": table, "count": store.table(table).count} for table in sorted(counted)]
        with suppress(sqlite3.Error):
            store.table("_counts").upsert_all(rows, pk="table")
            refreshed.append("_counts")
    return refreshed


def check_folder(path: Path) -> None:
    """Raises StoreError where there is no folder for a store at ``path``."""
    if not path.parent.is_dir():
        raise StoreError(
            f"{path}: there is no folder {path.parent}",
            "Make it, or name another file with --store",
        )


@contextmanager
def writing(path: Path, *, keep_empty: bool = True) -> Iterator[sqlite3.Connection]:
    """The store at ``path``, created or migrated where needed. Raises StoreError when it cannot
    be used.

    The connection is in autocommit mode: use ``transaction`` around everything that belongs
    together. Without ``keep_empty`` a store that this call made goes again, unless something was
    stored or another process uses it.
    """
    check_folder(path)
    _check_kind(path)
    with _as_store_error(path):
        with _folder_locked(path, fcntl.LOCK_SH):
            made = not path.exists()
            connection = _migrated(path)
        try:
            yield connection
        finally:
            if made and not keep_empty:
                _remove_empty(connection, path)
            connection.close()


def _check_kind(path: Path) -> None:
    """Raises StoreError where something other than a file is there."""
    if path.is_dir():
        remedy = "Name the file with --store, as in --store FOLDER/perfctl.db"
        raise StoreError(f"{path}: this is a folder, not a store", remedy)
    if path.exists() and not path.is_file():
        raise StoreError(
            f"{path}: this is a named pipe, socket or device, not a store",
            "Name a file with --store",
        )


def _migrated(path: Path) -> sqlite3.Connection:
    try:
        # Absolute, so that no name reads as a URI; uri=True lets reports be attached read-only (see
        # bulk.attached).
        connection = sqlite3.connect(
            path.absolute(), timeout=WAIT_MS / 1000, isolation_level=None, uri=True
        )
    except sqlite3.Error as error:
        raise StoreError(
            f"{path}: cannot be opened ({error})", "Check that the folder can be written to"
        ) from error
    try:
        _check(connection, path)
        shape.check_writable(connection, path)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # works only while the file is empty
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _folder_locked(path: Path, how: int) -> Iterator[bool]:
    """Hold a lock on the folder while a store in it is opened (shared) or removed (exclusive):
    SQLite itself cannot tell

    that the file it opened has lost its name. False after a second without it, or where the file
    system has no locks.
    """
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        yield any(_is_locked(folder, how) for _ in range(100))
    finally:
        os.close(folder)


def _is_locked(folder: int, how: int) -> bool:
    try:
        fcntl.flock(folder, how | fcntl.LOCK_NB)
    except OSError:
        time.sleep(0.01)
        return False
    return True


def _remove_empty(connection: sqlite3.Connection, path: Path) -> None:
    """Remove the store if no table has a row. What this asks of SQLite is refused while another
    process has it open."""
    with suppress(sqlite3.Error, OSError), _folder_locked(path, fcntl.LOCK_EX) as is_locked:
        if not is_locked:
            return
        connection.execute("PRAGMA busy_timeout = 0")
        if connection.execute("PRAGMA journal_mode = DELETE").fetchone()[0] != "delete":
            return
        connection.execute("BEGIN EXCLUSIVE")
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'store_info'"
        )
        tables = [name for (name,) in names if not name.startswith("sqlite_")]
        if any(connection.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() for name in tables):
            connection.execute("ROLLBACK")
            connection.execute("PRAGMA journal_mode = WAL")
        else:
            path.resolve().unlink()


@contextmanager
def no_empty(path: Path) -> Iterator[None]:
    """A store that was made inside the block, by another process too, goes again behind it unless
    something was stored."""
    existed = path.exists()
    try:
        yield
    finally:
        if not existed and path.is_file():
            with (
                suppress(sqlite3.Error),
                closing(sqlite3.connect(path, isolation_level=None)) as connection,
            ):
                _remove_empty(connection, path)


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn WAL mode on. While two processes create one file, SQLite refuses one of them at once
    instead of waiting."""
    until = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


@contextmanager
def reading(path: Path, *, as_it_is: bool = False) -> Iterator[sqlite3.Connection]:
    """The store at ``path``, read-only: nothing is written to it. Raises StoreError when it is not
    a store.

    Tables that their owner changed are read with perfctl's own columns and types, unless
    ``as_it_is``.
    """
    _check_kind(path)
    if not path.is_file():
        remedy = (
            "Run a sweep ('perfctl torch --batches 16,32') or 'perfctl ingest FILE' first, or name "
            "it with --store"
        )
        raise StoreError(f"{path}: there is no store here yet", remedy)
    with _folder_locked(path, fcntl.LOCK_SH):
        connection = _open_read_only(path)
    try:
        with _as_store_error(path):
            _check(connection, path)
            if _version(connection) == 0:
                raise StoreError(
                    f"{path}: this file is not a store yet", "Name the store with --store"
                )
            if _version(connection) < NEWEST:
                with writing(path):  # brings an older store up to date
                    pass
            if not as_it_is:
                shape.stand_in(connection, path)
            _read_texts(connection)
            yield connection
    finally:
        connection.close()


def is_no_utf8(error: sqlite3.Error) -> bool:
    """Whether it says that a text cannot be decoded."""
    return "Could not decode to UTF-8" in str(error)


def _read_texts(connection: sqlite3.Connection) -> None:
    """Have a damaged name of a sweep or run replaced: it would end every list of runs."""
    try:
        for table in ("sweep", "run", "device"):
            connection.execute(f"SELECT * FROM {table}").fetchall()
    except sqlite3.OperationalError as error:
        if not is_no_utf8(error):
            raise
        connection.text_factory = REPLACING


def is_damaged(connection: sqlite3.Connection) -> bool:
    """Whether the store fails SQLite's own check: which of two attached files is damaged, an error
    does not say."""
    try:
        (said,) = connection.execute("PRAGMA main.quick_check(1)").fetchone()
    except sqlite3.Error:
        return True
    return str(said) != "ok"


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or none of it; waits for other writers before it begins. Triggers of the store's
    user do not fire."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        with set_aside(connection):
            yield
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back after some errors
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open_read_only(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=WAIT_MS / 1000)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        # A WAL store in a folder that cannot be written to: nobody else can be writing it either.
        connection.close()
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True)
    except sqlite3.DatabaseError:
        pass  # not SQLite at all: _check says so in our words
    return connection


@contextmanager
def _as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            problem = f"{path}: another process has been writing to it for over {WAIT_MS // 1000} s"
            raise StoreError(problem, "Wait for it to end, then try again") from error
        if "interrupted" in str(error):  # by Ctrl-C; only that ends a statement here
            raise KeyboardInterrupt from error
        is_of_disk = (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _OF_THE_DISK
        raise StoreError(
            f"{path}: {error}",
            "Check free disk space and permissions" if is_of_disk else _MOVE_AWAY,
        ) from error
    except sqlite3.DatabaseError as error:
        remedy = _MOVE_AWAY
        if isinstance(error, sqlite3.IntegrityError):
            refused = "A constraint of this store does not allow what perfctl writes"
            remedy = f"{refused}: drop it, or name another store with --store"
        raise StoreError(f"{path}: {error}", remedy) from error


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _check(connection: sqlite3.Connection, path: Path) -> None:
    shape.distrust(connection)
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    identity = connection.execute("PRAGMA application_id").fetchone()[0]
    if tables and identity != APPLICATION_ID:
        remedy = (
            "A profiler's export goes in with 'perfctl ingest FILE'; name the store with --store"
        )
        raise StoreError(f"{path}: this is a SQLite file, but not a perfctl store", remedy)
    version = _version(connection)
    if version < 0:
        raise StoreError(
            f"{path}: its schema has no version ({version})", "Name a store with --store"
        )
    if 0 < version < OLDEST:
        problem = f"{path}: perfctl 0.x wrote this store (schema version {version})"
        raise StoreError(problem, "Open it once with perfctl 1.0.0, which upgrades it")
    if version > NEWEST:
        row = connection.execute("SELECT value FROM store_info WHERE key = 'written_by'").fetchone()
        problem = f"{path}: its schema is version {version}, this perfctl knows {NEWEST}"
        raise StoreError(
            problem, f"Install perfctl {_newer(row and row[0])}, or name another store with --store"
        )


def _newer(written_by: object) -> str:
    """The version to install; what the store says only helps where it is newer than this one."""
    newer = _numbers(written_by) > _numbers(__version__)
    return f"{written_by} or later" if newer else f"later than {__version__}"


def _numbers(version: object) -> tuple[int, ...]:
    """Return the numbers of a release, or of the release that a version leads to: 2.0.0.dev0."""
    numbers = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.dev\d+)?", str(version))
    return tuple(map(int, numbers[1].split("."))) if numbers else ()


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date: a new store in one transaction, an older one in a transaction
    for each step."""
    while _version(connection) < NEWEST:
        with transaction(connection):
            version = _version(connection)  # another process may have been faster
            if version == 0:
                _create(connection)
            elif version < NEWEST:
                _upgrade(connection, next(step for step in MIGRATIONS if step.number > version))


def _create(connection: sqlite3.Connection) -> None:
    for step in MIGRATIONS:
        for statement in _statements(step.sql):
            connection.execute(statement)
    facts = (("created_at", now()), ("written_by", MIGRATIONS[-1].since))
    connection.executemany("INSERT INTO store_info (key, value) VALUES (?, ?)", facts)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {NEWEST}")


def _upgrade(connection: sqlite3.Connection, step: Migration) -> None:
    for statement in _statements(step.sql):
        connection.execute(statement)
    connection.execute("UPDATE store_info SET value = ? WHERE key = 'written_by'", (step.since,))
    connection.execute(f"PRAGMA user_version = {step.number}")


def _statements(sql: str) -> Iterator[str]:
    """Split a script into statements; ``executescript`` would commit the transaction around it."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
    if statement.strip():
        yield statement


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
