"""Connections to a database's file, and SQLite's errors in perfctl's words."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote

from perfctl.orchestrator.errors import StoreError

PAGE_BYTES = 16384
"""A million kernels are written in 7/8 of the time that SQLite's default of 4096 takes, and the
file is no larger."""
WAIT_MS = 60_000
"""How long one process waits for another's transaction."""
OLDEST_SQLITE = (3, 37, 0)
"""The first one with STRICT tables."""
REPLACING = partial(str, encoding="utf-8", errors="replace")
"""How texts are read: somebody else may have written some that are no UTF-8."""
_MOVE_AWAY = "Set --store to another file, or move this file away and ingest the reports again"
DISK_ERRORS = frozenset(
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


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Return a connection in autocommit mode that may write; what the file's schema calls may only
    compute, and damaged pages are noticed as they are read. Raises StoreError."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StoreError(
            f"{path}: Python's SQLite is {sqlite3.sqlite_version}, too old for STRICT tables",
            "Use a Python with SQLite 3.37 or later",
        )
    try:
        # Absolute, so that no name reads as a URI; uri=True lets reports be attached read-only (see
        # bulk.attach_read_only).
        connection = sqlite3.connect(
            path.absolute(), timeout=WAIT_MS / 1000, isolation_level=None, uri=True
        )
    except sqlite3.Error as error:
        raise StoreError(
            f"{path}: cannot be opened ({error})", "Check that the folder can be written to"
        ) from error
    _enable_untrusted_file_pragmas(connection)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # works only while the file is empty
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write."""
    address = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=WAIT_MS / 1000)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        # A WAL store in a folder that cannot be written to: nobody else can be writing it either.
        connection.close()
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True)
    except sqlite3.DatabaseError:
        pass  # no SQLite file: whoever reads it says so
    _enable_untrusted_file_pragmas(connection)
    connection.text_factory = REPLACING
    return connection


def _enable_untrusted_file_pragmas(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def read_schema_version(connection: sqlite3.Connection) -> int:
    """Return the number of the file's schema; 0 for an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def set_journal_mode(connection: sqlite3.Connection, mode: str) -> None:
    """Turn WAL mode on or off. SQLite refuses that at once, instead of waiting, while two processes
    create one file or another one uses it."""
    until = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode = {mode}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


@contextmanager
def hold_folder_lock(
    path: Path, flock_mode: int, timeout_seconds: float = 1
) -> Iterator[bool | None]:
    """Hold a lock on the folder while a database in it is opened (shared), migrated or removed
    (exclusive): SQLite cannot tell that the file it opened has lost its name.

    False after this many seconds without it; None where the file system has no locks.
    """
    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    until = time.monotonic() + timeout_seconds
    is_locked: bool | None = False
    try:
        while is_locked is False and time.monotonic() < until:
            try:
                fcntl.flock(folder, flock_mode | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                is_locked = None
        yield is_locked
    finally:
        os.close(folder)


@contextmanager
def convert_sqlite_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors inside the block as a StoreError that names the file."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        problem, remedy = f"{path}: {error}", _MOVE_AWAY
        if isinstance(error, sqlite3.OperationalError):
            if "locked" in str(error) or "busy" in str(error):
                problem = (
                    f"{path}: another process has been writing to this file for over "
                    f"{WAIT_MS // 1000} s"
                )
                remedy = "Wait until the other process ends, then try again"
            elif "interrupted" in str(error):  # by Ctrl-C; only that ends a statement here
                raise KeyboardInterrupt from error
            elif (getattr(error, "sqlite_errorcode", 0) & 0xFF) in DISK_ERRORS:
                remedy = "Check free disk space and permissions"
        elif isinstance(error, sqlite3.IntegrityError):
            remedy = (
                "A constraint in this database rejects perfctl's rows. Drop the constraint, or set "
                "--store to another file"
            )
        raise StoreError(problem, remedy) from error
