"""perfctl schema"""

from __future__ import annotations

from typing import Annotated

import typer

from perfctl.orchestrator.cli import console


def schema(
    output: Annotated[
        str | None, typer.Argument(help="Name of the output; without it, all names.")
    ] = None,
) -> None:
    """Print the JSON Schema (2020-12) of what a command prints with --json: keys, types, units,
    what null means.

    An output that is an object states its version first, as in "schema": "perfctl.ledger/1".
    """
    from perfctl.orchestrator.outputs import OUTPUTS, name_of, schema_of

    if output is not None:
        console.as_json(schema_of(output))
        return
    for name in OUTPUTS:
        console.result(f"{name:<{max(map(len, OUTPUTS))}}  {name_of(name)}")
