"""Triggers of a store's user do not fire while perfctl writes.

SQLite has no switch for them that Python 3.11 reaches. Schema changes are part of a transaction, though: triggers are
dropped at its beginning and created again, word for word, before it is committed. No other process ever sees the file
without them, and a kill in between leaves them where they were.

What sqlite-utils keeps up to date by triggers (full-text search, ``_counts``) is brought up to date in one go instead.
"""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from perfctl.orchestrator.errors import StoreNote
from perfctl.orchestrator.store.shape import own_tables, quoted

_CONTENT = re.compile(r"""content\s*=\s*["'`\[]?(\w+)""", re.IGNORECASE)
"""The table whose text an FTS table indexes, in the SQL that made it."""


class Trigger(NamedTuple):
    """One trigger as the file keeps it."""

    name: str
    table: str
    sql: str


@contextmanager
def set_aside(connection: sqlite3.Connection) -> Iterator[None]:
    """Inside, no trigger of the file fires. To be used inside a transaction, whose end puts all of them back.

    After an error there is nothing to do: the ROLLBACK brings them back. Warns (StoreNote) once of triggers that
    would have fired.
    """
    kept = "SELECT name, tbl_name, sql FROM main.sqlite_master WHERE type = 'trigger' ORDER BY rowid"
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
        warnings.warn(f"{path}: triggers do not fire while perfctl writes ({names}){brought}", StoreNote, stacklevel=1)
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
    counted = {trigger.table for trigger in silent if trigger.name.lower() == f"{trigger.table}_counts_insert".lower()}
    if counted and "_counts" in store.table_names():
        rows = [{"table": table, "count": store.table(table).count} for table in sorted(counted)]
        with suppress(sqlite3.Error):
            store.table("_counts").upsert_all(rows, pk="table")
            refreshed.append("_counts")
    return refreshed
