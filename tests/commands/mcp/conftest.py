"""A small store of recordings, and the SDK's own client, which starts the server as an agent's
program does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.cli.main import run_command_line

DATA = Path(__file__).resolve().parents[2] / "data"
Question = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client got."""

    refused: bool
    text: str
    held: Any
    """The structured content; None of an error."""


Ask = Callable[[Path, Sequence[Question]], list[Answer]]


@pytest.fixture(scope="session", autouse=True)
def _sdk():
    """Loading it takes more than a second: only the process that asks does so."""
    pytest.importorskip("mcp")


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Runs 1 and 2: mnist_cnn at batches 16 and 32 under torch.profiler on a CPU. Run 3: six
    launches under ncu."""
    folder = tmp_path_factory.mktemp("agents")
    path = folder / "perfctl.db"
    replay = ["replay", str(DATA / "recorded-cpu" / "torch"), "--out", str(folder / "perfctl-runs")]
    assert run_command_line([*replay, "--store", str(path)]) == 0
    assert (
        run_command_line(["ingest", str(DATA / "ncu-nvtx" / "layers.csv"), "--store", str(path)])
        == 0
    )
    return path


@pytest.fixture(scope="session")
def ask():
    """Ask a store some questions over standard input and output."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters

    async def asked(store, questions):
        words = ["-m", "perfctl", "mcp", "--store", str(store), "--timeout", "600"]
        named = StdioServerParameters(
            command=sys.executable, args=words, env=dict(os.environ), cwd=store.parent
        )
        async with Client(named) as client:
            await client.list_tools()
            got = [await client.call_tool(name, arguments) for name, arguments in questions]
        return [
            Answer(one.is_error, "".join(part.text for part in one.content), one.structured_content)
            for one in got
        ]

    def run(store, questions):
        # of its own: the tests with a browser leave a loop running in this one
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(asked(store, questions))).result()

    return run
