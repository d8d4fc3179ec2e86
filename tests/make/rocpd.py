"""A small database with the layout of rocprofv3's (schema 3); synthetic, every number made up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

COMPLETE = Path(__file__).resolve().parents[1] / "data" / "rocm" / "database" / "complete.sql"


def made(path: Path) -> Path:
    """Three launches of one kernel with counters, copies, calls, a range, and an environment with
    a secret."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(COMPLETE.read_text(encoding="utf-8"))
    return path
