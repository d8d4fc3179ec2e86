"""A store that somebody else made holds what perfctl made and nothing that runs: no trigger, no table or view of another shape.

SQLite keeps programs in a file's schema: triggers run when rows are written, a view or a generated column when one is
read. The schema of a store is compared with what the migrations up to its version make; tables, views and indexes of the
user's own beside it are left alone.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from perfctl.orchestrator.errors import StoreError
from perfctl.orchestrator.store.migrations import MIGRATIONS

_TEXT_OR_GAP = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|(?:--[^\n]*|/\*.*?\*/|\s)+""", re.DOTALL)
_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE type IN ('table', 'view', 'trigger')"
_REMEDY = "Do not use it unless you know who made it: ingest the reports into a new store"


def distrust(connection: sqlite3.Connection) -> None:
    """What the file's schema calls may do nothing but compute, and damaged pages are noticed as they are read."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def refuse_programs(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError for a store that holds what perfctl of its schema's version did not put there."""
    connection.execute("BEGIN")  # another process may be migrating it: version and schema of one moment
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        found = {name: (kind, _bare(sql)) for kind, name, sql in connection.execute(_SCHEMA)}
    finally:
        connection.execute("ROLLBACK")
    for name, (kind, _) in found.items():
        if kind == "trigger":
            raise StoreError(f"{path}: there is a trigger in it ({name}), which perfctl never makes", _REMEDY)
    for name, made in _made_by(version).items():
        if found.get(name) != made:
            said = "is missing" if name not in found else "is not as perfctl made it"
            raise StoreError(f"{path}: the {made[0]} {name} {said}", _REMEDY)


@lru_cache(maxsize=4)
def _made_by(version: int) -> dict[str, tuple[str, str]]:
    """Name -> (table or view, its SQL) after the first ``version`` migrations."""
    with closing(sqlite3.connect(":memory:")) as empty:
        for step in MIGRATIONS[: max(version, 0)]:
            empty.executescript(step.sql)
        return {name: (kind, _bare(sql)) for kind, name, sql in empty.execute(_SCHEMA)}


def _bare(sql: str | None) -> str:
    """Without comments, and with one blank wherever there is any; what stands in quotes stays."""
    return _TEXT_OR_GAP.sub(lambda found: found[1] or " ", sql or "")
