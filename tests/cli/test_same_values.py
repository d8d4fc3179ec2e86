"""One question asked of several surfaces: what two of them print is the same value."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands import mcp


def test_mcp_gives_the_flops_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each layer, and of backward, at both batch sizes of a recorded sweep."""
    pytest.importorskip("jsonschema")
    store, recorded = tmp_path / "perfctl.db", Path(__file__).parents[1] / "data/recorded-cpu/torch"
    assert (
        run_command_line(
            ["replay", str(recorded), "--out", str(tmp_path / "r"), "--store", str(store)]
        )
        == 0
    )

    async def run_here(caller: mcp.ToolCaller, words: list[str]) -> tuple[str, list[str]]:
        capsys.readouterr()
        assert run_command_line(words) == 0
        return capsys.readouterr().out, []

    monkeypatch.setattr(mcp.ToolCaller, "_run_tool_command", run_here)
    with ThreadPoolExecutor(1) as thread:  # the tests with a browser leave a loop running here
        call = mcp.ToolCaller(store, 60).call("ledger", {"form": "json", "limit": mcp.MAX_ROWS})
        answer = thread.submit(asyncio.run, call).result()
    rows = [row for row in answer["answer"]["rows"] if row["layer"] and row["estimated_flops"]]
    for batch in (16, 32):
        assert run_command_line(["estimate", "mnist_cnn", "--batch", str(batch), "--json"]) == 0
        own = json.loads(capsys.readouterr().out)["batches"][str(batch)]
        listed = {
            direction: {
                row["layer"]: row["estimated_flops"]
                for row in rows
                if (row["batch"], row["direction"]) == (batch, direction)
            }
            for direction in ("forward", "backward")
        }
        layers = {row["layer"]: row["flops"] for row in own["layers"] if row["flops"]}
        assert listed["forward"] == layers
        assert sum(listed["backward"].values()) == own["backward"]["flops"]


def digits(value: float) -> str:
    """Return a value with three digits, as the terminal prints it."""
    return f"{value:.3g}" if value >= 100 else f"{value:#.3g}"
