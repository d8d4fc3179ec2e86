"""Small databases with the layout of DLProf's; synthetic, every number made up."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

BARE = Path(__file__).resolve().parents[1] / "data" / "dlprof" / "database" / "bare.sql"
"""The tables that every version has."""


def made(path: Path, more: str = "") -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        script = BARE.read_text(encoding="utf-8") + more
        database.executescript(f"PRAGMA synchronous = OFF; BEGIN; {script} COMMIT;")
    return path
