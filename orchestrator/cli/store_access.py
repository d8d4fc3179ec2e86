"""Where the store is, and its runs for those who only read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.parsers.stored import Run

DEFAULT = Path("perfctl.db")


def runs(store: Path | str = DEFAULT, *, sweep: int | None = None) -> list[Run]:
    """Every run of a store (or of one sweep), whole, oldest first. Raises StoreError when there is no store."""
    from perfctl.orchestrator.store import database, read

    with database.reading(Path(store)) as connection:
        return read.load(connection, read.run_ids(connection, sweep=sweep))


def newest_runs(store: Path) -> list[Run]:
    """The newest run of each kind, whole: what a page shows. Raises StoreError when there is no store."""
    from perfctl.orchestrator.store import database, read

    with database.reading(store) as connection:
        return read.load(connection, read.run_ids(connection, latest_of_each=True))
