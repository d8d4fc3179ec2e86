"""The server: the Model Context Protocol over standard input and output, by the official SDK."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.actions.mcp.worker import Worker
from perfctl.orchestrator.actions.schemas.answer import ANSWER
from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.launch.machine.tools import has_package
from perfctl.orchestrator.store import database
from perfctl.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

INSTRUCTIONS = (
    "Profiler runs kept by perfctl: what GPU kernels executed, against what the layers need on paper, and why they differ. "
    "Start with list_runs and findings; then ledger, kernels, kernel, compare, query. Read-only."
)


def check(store: Path) -> None:
    """Raises ToolMissing without the SDK, StoreError where there is no store that can be read."""
    if not has_package("mcp"):
        raise ToolMissing("this needs the MCP SDK, which is not installed", "pip install 'perfctl[mcp]'")
    from importlib.metadata import version

    if int(version("mcp").partition(".")[0]) < 2:
        raise ToolMissing(f"the MCP SDK here is version {version('mcp')}; this needs 2", "pip install 'perfctl[mcp]'")
    with database.reading(store):
        pass


def serve(store: Path, seconds: float, stopped: Callable[[], None]) -> None:
    """Serve the store on standard input and output until the client closes them. Raises as :func:`check`, and UsageError.

    Ctrl-C and TERM end the process after ``stopped``: the SDK reads its input in a thread, which nothing else ends.
    """
    if not seconds > 0:
        raise UsageError(f"`seconds` must be above 0, got {seconds:g}")
    check(store)
    import anyio
    from mcp.server.stdio import stdio_server

    logging.getLogger("mcp").setLevel(logging.ERROR)
    worker = Worker(store, seconds)

    def stop(number: int, frame: object) -> None:
        stopped()
        worker.close()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)

    async def run() -> None:
        server = _server(worker)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        worker.close()


def _server(worker: Worker) -> Server[Any]:
    import anyio.to_thread
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from perfctl.orchestrator.actions.mcp import tools

    hints = types.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    offered = [
        types.Tool(
            name=tool.name, description=tool.description, input_schema=tool.schema,
            output_schema=ANSWER, annotations=hints,
        )
        for tool in tools.TOOLS
    ]  # fmt: skip

    async def list_tools(context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text = await anyio.to_thread.run_sync(worker.ask, asked.name, asked.arguments or {}, abandon_on_cancel=True)
        except PerfctlError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=json.loads(text))

    return Server(
        "perfctl", version=__version__, instructions=f"{INSTRUCTIONS} {tools.NOTE}", on_list_tools=list_tools,
        on_call_tool=call_tool,
    )  # fmt: skip
