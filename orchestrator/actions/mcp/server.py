"""The server: the Model Context Protocol over standard input and output, by the official SDK; and a
process that answers one question after another: one that takes too long is ended, and the next gets
a new process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.errors import PerfctlError, ToolMissing, UsageError
from perfctl.orchestrator.launch.machine.tools import has_package
from perfctl.orchestrator.outputs import schema_of
from perfctl.orchestrator.store import database
from perfctl.version import __version__

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_GRACE = 10.0
"""Seconds more than a question may take, for the first: the process has to start."""

INSTRUCTIONS = (
    "Profiler runs kept by perfctl: what GPU kernels executed, against what the layers need on "
    "paper, and why they differ. Start with list_runs and findings; then ledger, kernels, kernel, "
    "compare, query. Read-only."
)


def check(store: Path) -> None:
    """Raises ToolMissing without the SDK, StoreError where there is no store that can be read."""
    if not has_package("mcp"):
        raise ToolMissing(
            "this needs the MCP SDK, which is not installed", "pip install 'perfctl[mcp]'"
        )
    from importlib.metadata import version

    if int(version("mcp").partition(".")[0]) < 2:
        raise ToolMissing(
            f"the MCP SDK here is version {version('mcp')}; this needs 2",
            "pip install 'perfctl[mcp]'",
        )
    with database.reading(store):
        pass


def serve(store: Path, seconds: float, stopped: Callable[[], None]) -> None:
    """Serve the store on standard input and output until the client closes them. Raises as
    :func:`check`, and UsageError.

    Ctrl-C and TERM end the process after ``stopped``: the SDK reads its input in a thread, which
    nothing else ends.
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
            name=tool.name,
            description=tool.description,
            input_schema=tool.schema,
            output_schema=schema_of("mcp"),
            annotations=hints,
        )
        for tool in tools.TOOLS
    ]

    async def list_tools(context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=offered)

    async def call_tool(context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            text = await anyio.to_thread.run_sync(
                worker.ask, asked.name, asked.arguments or {}, abandon_on_cancel=True
            )
        except PerfctlError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        return types.CallToolResult(
            content=[types.TextContent(text=text)], structured_content=json.loads(text)
        )

    return Server(
        "perfctl",
        version=__version__,
        instructions=f"{INSTRUCTIONS} {tools.NOTE}",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


class Worker:
    """Questions wait for each other: one is answered at a time, so that ten together take no more
    memory than one."""

    def __init__(self, store: Path, seconds: float) -> None:
        self.store = store
        self.seconds = seconds
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None

    def ask(self, tool: str, arguments: dict[str, Any]) -> str:
        """The answer as JSON. Raises PerfctlError, in one line, where there is none."""
        question = json.dumps({"tool": tool, "arguments": arguments}).encode()
        with self._turn:
            line, seconds = self._line, self.seconds
            if line is None:
                line, seconds = self._start(), seconds + _GRACE
            try:
                line.send_bytes(question)
                if not line.poll(seconds):
                    self._end()
                    problem = f"{tool} took longer than {self.seconds:g} s and was ended"
                    raise PerfctlError(problem, "Ask for less: one run, layer or batch, fewer rows")
                answer = json.loads(line.recv_bytes())
            except (EOFError, OSError) as error:
                self._end()
                problem = f"{tool}: the process that answers ended, as it does when memory runs out"
                raise PerfctlError(problem, "Ask for less: one run, layer or batch") from error
        if "error" in answer:
            raise PerfctlError(answer["error"])
        return str(answer["answer"])

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._end()

    def _start(self) -> Connection:
        self._line, other = Pipe()
        with other:
            argv = [
                sys.executable,
                "-P",
                "-m",
                "perfctl.orchestrator.actions.mcp.server",
                str(self.store),
                str(other.fileno()),
            ]
            self._process = subprocess.Popen(
                argv,
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._line

    def _end(self) -> None:
        process, line = self._process, self._line
        self._process = self._line = None
        if line is not None:
            line.close()
        if process is not None:
            process.kill()
            process.wait()


def _serve(store: Path, line: Connection) -> None:
    """What the process does, until nobody asks any more."""
    from perfctl.orchestrator.actions.mcp.tools import call, one_line
    from perfctl.orchestrator.faults import said_of, short_of_memory

    while True:
        try:
            asked = json.loads(line.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            said = {"answer": call(store, asked["tool"], asked["arguments"])}
        except PerfctlError as error:
            said = {"error": str(error)}
        except MemoryError:
            said = {"error": short_of_memory(asked["tool"])}
        except Exception as error:
            said = {"error": one_line(said_of(f"perfctl mcp {asked['tool']}", error))}
        try:
            line.send_bytes(json.dumps(said).encode())
        except OSError:
            return


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Connection(int(sys.argv[2])))
