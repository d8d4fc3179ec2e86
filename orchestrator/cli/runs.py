"""perfctl runs"""

from __future__ import annotations

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options


def runs(store: options.Store = None, as_json: options.Json = False) -> None:
    """List the runs in the store: what ran on what, how it ended, how much is held."""
    from perfctl.orchestrator.report import terminal
    from perfctl.orchestrator.store import database, read

    with database.reading(store or DEFAULT) as connection:
        rows = read.run_rows(connection)
    if as_json:
        console.as_json(rows)
    else:
        console.show(terminal.runs_table(rows))
