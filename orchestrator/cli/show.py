"""perfctl show"""

from __future__ import annotations

from typing import Annotated

import typer

from perfctl.orchestrator.actions.tables import DEFAULT
from perfctl.orchestrator.cli import console, options


def show(
    run: Annotated[int, typer.Argument(help="Number of the run, from 'perfctl runs'.")],
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show one run: layers, kernels, memory, what is missing and why. FLOPs count 1 multiply-add as 2."""
    from perfctl.orchestrator.report import export, terminal
    from perfctl.orchestrator.store import database, read

    with database.reading(store or DEFAULT) as connection:
        (found,) = read.load(connection, [run])
    if as_json:
        console.as_json(export.run_json(found))
        return
    for part in terminal.run_details(found):
        console.show(part)
