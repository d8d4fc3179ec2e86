"""perfctl mcp"""

from __future__ import annotations

from typing import Annotated

import typer

from perfctl.orchestrator.cli import console, options
from perfctl.orchestrator.store import DEFAULT_STORE as DEFAULT


def mcp(
    store: options.Store = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a question is ended.")
    ] = 60.0,
) -> None:
    """Serve the store to agents over the Model Context Protocol, on standard input and
    output, read-only.

    An MCP client starts this command itself and ends it by closing its input; docs/commands/mcp.md
    has its configuration.
    """
    from perfctl.orchestrator.actions.mcp import server

    server.serve(store or DEFAULT, timeout, lambda: console.error("stopped"))
