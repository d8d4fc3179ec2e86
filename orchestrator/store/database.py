"""Open the database: one SQLite file, migrated, in WAL mode, shared between processes."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store import schema
from perfctl.orchestrator.store.connection import (
    connect_read_only,
    convert_sqlite_errors,
    hold_folder_lock,
    open_for_writing,
    read_schema_version,
    set_journal_mode,
)
from perfctl.orchestrator.store.migrate import OLD_VERSION, migrate_store_from_1_0
from perfctl.records.sqlite_header import APPLICATION_ID as APPLICATION_ID
from perfctl.records.sqlite_header import quote_sql_name
from perfctl.version import __version__

CACHE_KIB = 48 << 10
"""Pages that a writer keeps: with SQLite's 2 MB it writes pages of a large run more than once."""


@contextmanager
def open_store_for_writing(path: Path) -> Iterator[sqlite3.Connection]:
    """The database at ``path``, created or migrated where needed. Raises StoreError when it cannot
    be used.

    The connection is in autocommit mode: use ``write_in_transaction_without_triggers``
    around everything that belongs together.
    """
    raise_if_store_folder_missing(path)
    _raise_if_not_regular_file(path)
    with (
        convert_sqlite_errors(path),
        closing(
            _open_current_or_migrated_store(path, open_for_writing, _set_pragmas_and_create_tables)
        ) as connection,
    ):
        yield connection


@contextmanager
def open_store_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The database at ``path``, read-only: nothing is written to it, but that a database of perfctl
    1.0 is migrated. Raises StoreError when it is not a database."""
    _raise_if_not_regular_file(path)
    if not path.is_file():
        remedy = (
            "Run a sweep ('perfctl torch --batches 16,32') or 'perfctl ingest FILE' first, or set "
            "--store"
        )
        raise StoreError(f"{path}: no results database found", remedy)
    with (
        convert_sqlite_errors(path),
        closing(
            _open_current_or_migrated_store(path, connect_read_only, lambda connection: None)
        ) as connection,
    ):
        if read_schema_version(connection) == 0:
            raise StoreError(
                f"{path}: this file is not a results database yet",
                "Set --store to the results database",
            )
        _create_trusted_temp_views(connection)
        yield connection


def raise_if_store_folder_missing(path: Path) -> None:
    """Raise StoreError where there is no folder for a database at ``path``."""
    if not path.parent.is_dir():
        raise StoreError(
            f"{path}: folder {path.parent} not found",
            "Create it, or set --store to another file",
        )


def _raise_if_not_regular_file(path: Path) -> None:
    """Raise StoreError where something other than a file is there."""
    if path.is_dir():
        remedy = "Set --store to a file, for example --store FOLDER/perfctl.db"
        raise StoreError(f"{path}: this is a folder, not a results database", remedy)
    if path.exists() and not path.is_file():
        raise StoreError(
            f"{path}: this is a named pipe, socket or device, not a results database",
            "Set --store to a file",
        )


def _open_current_or_migrated_store(
    path: Path,
    connect: Callable[[Path], sqlite3.Connection],
    on_open: Callable[[sqlite3.Connection], None],
) -> sqlite3.Connection:
    """Return a connection to an empty file or a database of this version; a database of 1.0 is
    migrated first. ``on_open`` is called before the folder is unlocked."""
    while True:
        with hold_folder_lock(path, fcntl.LOCK_SH):
            before = path.stat() if path.exists() else None
            connection = connect(path)
            try:
                version = _read_supported_schema_version(connection, path)
                # another process may have put a migrated copy in its place
                is_same = before is None or os.path.samestat(before, path.stat())
                if is_same and version != OLD_VERSION:
                    if version:
                        schema.raise_if_tables_differ(connection, path)
                    on_open(connection)
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()
        if is_same:
            migrate_store_from_1_0(path)


def _set_pragmas_and_create_tables(connection: sqlite3.Connection) -> None:
    set_journal_mode(connection, "WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
    connection.execute("PRAGMA foreign_keys = ON")
    if read_schema_version(connection) == 0:
        _create_tables_if_new(connection)
    _create_trusted_temp_views(connection)


def _read_supported_schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the schema. Raises StoreError for one that this perfctl does not know,
    and for a file that is no database."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and _read_pragma(connection, "application_id") != APPLICATION_ID:
        remedy = (
            "Ingest a profiler's export with 'perfctl ingest FILE', or set --store to the results "
            "database"
        )
        raise StoreError(
            f"{path}: this is an SQLite file, but not a perfctl results database", remedy
        )
    version = read_schema_version(connection)
    if version < 0:
        raise StoreError(
            f"{path}: its schema has no version ({version})", "Set --store to a results database"
        )
    if 0 < version < OLD_VERSION:
        problem = f"{path}: perfctl 0.x wrote this database (schema version {version})"
        raise StoreError(problem, "Open it once with perfctl 1.0.0, which upgrades it")
    if version > schema.VERSION:
        row = connection.execute("SELECT value FROM store_info WHERE key = 'written_by'").fetchone()
        raise StoreError(
            f"{path}: the schema has version {version}, but this perfctl reads {schema.VERSION}",
            f"Install a perfctl later than {__version__} (perfctl {row and row[0]} wrote the "
            "database), or set --store to another file",
        )
    return version


def _create_tables_if_new(connection: sqlite3.Connection) -> None:
    """Make the tables of a new database, unless another process is faster."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if read_schema_version(connection) != 0:
            return
        for statement in schema.list_create_statements():
            connection.execute(statement)
        facts = "('created_at', strftime('%Y-%m-%dT%H:%M:%SZ', 'now')), ('written_by', ?)"
        connection.execute(f"INSERT INTO store_info (key, value) VALUES {facts}", (schema.SINCE,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def _create_trusted_temp_views(connection: sqlite3.Connection) -> None:
    """Let this connection read through perfctl's own views, whatever the file has under their
    names."""
    connection.execute("PRAGMA temp_store = MEMORY")
    for statement in schema.list_create_statements():
        if statement.startswith("CREATE VIEW"):
            connection.execute(statement.replace("CREATE VIEW", "CREATE TEMP VIEW", 1))


def is_store_damaged(connection: sqlite3.Connection) -> bool:
    """Whether the database fails SQLite's own check: which of two attached files is damaged, an
    error does not say."""
    try:
        return _read_pragma(connection, "main.quick_check(1)") != "ok"
    except sqlite3.Error:
        return True


@contextmanager
def remove_new_empty_store_on_exit(path: Path) -> Iterator[None]:
    """A database that was made inside the block, by another process too, goes again behind it
    unless something was stored or another process uses it."""
    existed = path.exists()
    try:
        yield
    finally:
        if not existed and path.is_file():
            with suppress(sqlite3.Error, OSError):
                _remove_empty_store(path)


def _remove_empty_store(path: Path) -> None:
    """Remove the database if no table has a row. What this asks of SQLite is refused while another
    process has it open."""
    with (
        hold_folder_lock(path, fcntl.LOCK_EX) as is_locked,
        closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection,
    ):
        if not is_locked or _read_pragma(connection, "journal_mode = DELETE") != "delete":
            return
        connection.execute("BEGIN EXCLUSIVE")
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'store_info' "
            "AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        ).fetchall()
        if any(
            connection.execute(f"SELECT 1 FROM {quote_sql_name(name)} LIMIT 1").fetchone()
            for (name,) in names
        ):
            connection.execute("ROLLBACK")
            connection.execute("PRAGMA journal_mode = WAL")
        else:
            path.resolve().unlink()


def _read_pragma(connection: sqlite3.Connection, pragma: str) -> object:
    return connection.execute(f"PRAGMA {pragma}").fetchone()[0]
