"""One SQLite file, described column by column in docs/reference/schema.md."""

from pathlib import Path

DEFAULT_STORE = Path("perfctl.db")
"""The database, where none is named; a sweep makes it beside its folder."""
