"""A database of perfctl 1.0 into the present schema: a copy is rebuilt, and takes the database's
place.

Nobody sees anything but the old database or the new one, each complete: the old file is locked and
not changed, and ``os.replace`` puts the finished copy under its name. After a kill, what is left of
a copy is removed by the next attempt.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.errors import StoreError, StoreNote
from perfctl.orchestrator.store import schema
from perfctl.orchestrator.store.connection import (
    WAIT_MS,
    hold_folder_lock,
    open_for_writing,
    read_schema_version,
    set_journal_mode,
)
from perfctl.records.sqlite_header import quote_sql_name

OLD_VERSION = 4
"""``PRAGMA user_version`` of databases that perfctl 1.0 wrote."""
ADDED = ("parameter", "expectation", "counter_sample")
"""Tables that 1.0 did not have."""
DROPPED = {"range": {"payload"}, "graph_launch": {"matched_ns"}}
"""Table -> columns of 1.0 that nothing read."""
_PLAIN_TYPES = ("INTEGER", "REAL", "TEXT", "BLOB")
"""Types of added columns that a STRICT table takes; any other becomes ANY."""


def migrate_store_from_1_0(path: Path) -> None:
    """Bring the database up to date, unless another process was faster.

    Raises StoreError where the database may not be written to, is in use, or has values or tables
    that the present schema does not allow; the database is then as it was.
    """
    path = path.resolve()
    copy = path.with_name(f"{path.name}.migrating")
    before = path.stat()
    with (
        hold_folder_lock(path, fcntl.LOCK_EX, WAIT_MS / 1000) as is_locked,
        closing(open_for_writing(path)) as old,
    ):
        if is_locked is False:
            raise sqlite3.OperationalError("database is locked")
        if read_schema_version(old) != OLD_VERSION:
            return
        _raise_if_read_only(path)
        set_journal_mode(old, "MEMORY")  # leaves WAL mode: no file beside it belongs to it
        old.execute("BEGIN IMMEDIATE")  # nobody else writes to it until it is replaced
        if not os.path.samestat(before, path.stat()):
            return
        try:
            _delete_migration_copy(copy)
            with closing(open_for_writing(copy)) as new:
                with closing(
                    open_for_writing(path)
                ) as source:  # a backup waits for its own transaction
                    source.backup(new)
                with _raise_store_error_on_failed_upgrade(path):
                    _rebuild_schema(new)
                set_journal_mode(new, "WAL")
            _replace_with_copy(path, copy)
        finally:
            _delete_migration_copy(copy)
        # a perfctl 1.0 that waited for the old file has to see that it is out of date
        with suppress(sqlite3.OperationalError):
            old.execute(f"PRAGMA user_version = {schema.VERSION}")
            old.execute("COMMIT")
    warnings.warn(
        f"{path}: upgraded from perfctl 1.0, which can no longer open it",
        StoreNote,
        stacklevel=1,
    )


def _delete_migration_copy(copy: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        copy.with_name(copy.name + ending).unlink(missing_ok=True)


def _raise_if_read_only(path: Path) -> None:
    """Raise StoreError where the file or its folder is read-only; root may write to both, and a
    file's owner has said that it is not to be changed."""
    if not path.stat().st_mode & 0o222 or not os.access(path.parent, os.W_OK):
        raise StoreError(
            f"{path}: perfctl 1.0 wrote this database, and perfctl cannot upgrade it because it is "
            "read-only",
            "Copy it to a writable folder, and set --store to the copy",
        )


@contextmanager
def _raise_store_error_on_failed_upgrade(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.OperationalError) as error:
        if "disk" in str(error):
            raise
        raise StoreError(
            f"{path}: the upgrade from perfctl 1.0 failed ({error})",
            "Correct the database with sqlite-utils, or ingest the reports into a new database",
        ) from error


def _replace_with_copy(path: Path, copy: Path) -> None:
    """Put the copy in the database's place, with its mode and owner, so that a power cut loses
    neither."""
    owner = path.stat()
    shutil.copymode(path, copy)
    with suppress(PermissionError):
        os.chown(copy, owner.st_uid, owner.st_gid)
    _sync_to_disk(copy)
    copy.replace(path)
    _sync_to_disk(path.parent)


def _sync_to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _rebuild_schema(copy_connection: sqlite3.Connection) -> None:
    """Make perfctl's tables and views anew, in one transaction; what its user made stays."""
    for pragma in (
        "journal_mode = OFF",
        "synchronous = OFF",
        "foreign_keys = OFF",
        "legacy_alter_table = ON",
    ):
        copy_connection.execute(f"PRAGMA {pragma}")
    copy_connection.execute("BEGIN IMMEDIATE")
    own_tables = {name.lower() for name in schema.describe_store_tables()}
    user_objects = [
        (kind, name, sql)
        for kind, name, table, sql in copy_connection.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        )
        if kind == "trigger" or (kind == "index" and table.lower() in own_tables)
    ]
    for kind, name, _ in user_objects:
        copy_connection.execute(f"DROP {kind} {quote_sql_name(name)}")
    for view in schema.describe_store_views():
        copy_connection.execute(f"DROP VIEW IF EXISTS {view}")
    created = set()
    for statement in schema.list_create_statements():
        kind, name = statement.split()[1:3]
        created.add(name.lower())
        if kind == "TABLE" and name not in ADDED:
            _rebuild_table(copy_connection, name, statement)
        else:
            copy_connection.execute(statement)
    copy_connection.execute(
        "INSERT INTO parameter SELECT id, 'batch', CAST(batch_size AS TEXT), batch_size FROM run "
        "WHERE batch_size IS NOT NULL"
    )
    for _, name, sql in user_objects:
        if name.lower() not in created:
            copy_connection.execute(sql)
    copy_connection.execute(
        "UPDATE store_info SET value = ? WHERE key = 'written_by'", (schema.SINCE,)
    )
    copy_connection.execute(f"PRAGMA user_version = {schema.VERSION}")
    copy_connection.execute("COMMIT")


def _rebuild_table(copy_connection: sqlite3.Connection, table: str, create_statement: str) -> None:
    """Make one table anew and copy its rows, with their numbers and the columns that its user
    added."""
    old = quote_sql_name(f"{table} of 1.0")
    copy_connection.execute(f"ALTER TABLE {table} RENAME TO {old}")
    copy_connection.execute(create_statement)
    types = schema.read_column_types(table)
    # in a column of whole numbers, 1.0 kept fractions
    rounded = "CASE typeof({0}) WHEN 'real' THEN CAST(round({0}) AS INTEGER) ELSE {0} END"
    values = {}
    for name, declared in types.items():
        column = schema.format_column_list([name])
        values[column] = rounded.format(column) if declared == "INTEGER" else column
    for _, name, kind, needed, default, _, hidden in copy_connection.execute(
        f"PRAGMA table_xinfo({old})"
    ):
        if name.lower() in types or name in DROPPED.get(table, ()):
            continue
        if hidden:
            raise sqlite3.OperationalError(f"{table}.{name} is a computed column")
        strict = kind.upper() if kind.upper() in _PLAIN_TYPES else "ANY"
        rule = " NOT NULL" * needed + (f" DEFAULT {default}" if default is not None else "")
        copy_connection.execute(
            f"ALTER TABLE {table} ADD COLUMN {quote_sql_name(name)} {strict}{rule}"
        )
        values[quote_sql_name(name)] = quote_sql_name(name)
    if "id" not in types:
        values = {"rowid": "rowid", **values}
    copy_connection.execute(
        f"INSERT INTO {table} ({', '.join(values)}) SELECT {', '.join(values.values())} FROM {old}"
    )
    copy_connection.execute(f"DROP TABLE {old}")
