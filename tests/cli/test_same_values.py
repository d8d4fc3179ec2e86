"""One question asked of several surfaces: what two of them print is the same value."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands import mcp
from perfctl.orchestrator.predict.models import subjects
from tests.report.outline import outline

UNITS = {"kFLOP": 1e3, "MFLOP": 1e6, "GFLOP": 1e9, "µs": 1e-6, "ms": 1e-3}


def test_mcp_gives_the_flops_of_the_estimate(tmp_path, monkeypatch, capsys):
    """Of each layer, and of backward, at both batch sizes of a recorded sweep."""
    pytest.importorskip("jsonschema")
    store, recorded = tmp_path / "perfctl.db", Path(__file__).parents[1] / "data/recorded-cpu/torch"
    assert (
        run_command_line(
            ["replay", str(recorded), "--out", str(tmp_path / "r"), "--store", str(store)]
        )
        == 0
    )

    async def run_here(caller, words):
        capsys.readouterr()
        assert run_command_line(words) == 0
        return capsys.readouterr().out, []

    monkeypatch.setattr(mcp.ToolCaller, "_run_tool_command", run_here)
    with ThreadPoolExecutor(1) as thread:  # the tests with a browser leave a loop running here
        call = mcp.ToolCaller(store, 60).call_tool(
            "ledger", {"form": "json", "limit": mcp.MAX_ROWS}
        )
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


def test_the_report_prints_the_flops_and_times_of_the_ledger(perfctl, recorded):
    """Of each layer, pass and batch size, to the last printed digit."""
    perfctl("replay", recorded / "torch").ok()
    perfctl("report --out page.html").ok()
    words = (word.strip() for word in outline(Path("page.html").read_text()).words)
    page = "|".join(word for word in words if word)
    rows = [row for row in perfctl("ledger --json").json["rows"] if row["estimated_flops"]]
    assert len(rows) == 16
    for row in rows:
        name = f"|{row['layer']}|{row['direction']}|{row['kind']}|formula, kernels, source|"
        cells = page.partition(name)[2].partition(f"{row['batch']}|")[2].split("|")
        for number, unit, value in (
            (*cells[:2], row["estimated_flops"]),
            (*cells[2:4], row["time_ns"] / 1e9),
        ):
            assert number == digits(value / UNITS[unit]), (name, unit)
        assert cells[4] == f"{row['share']:.1%}"


def test_without_torch_predict_prints_the_same_times_and_says_that_memory_is_a_bound(
    perfctl, monkeypatch
):
    """Without torch the memory is of the tensors only, as on the page of the calculator."""
    command = "predict resnet:depth=18,image=64 --device 'A100 SXM4 80 GB' --batch 64"
    own, text = perfctl(f"{command} --json").json, perfctl(command).ok().out
    monkeypatch.setattr(subjects, "find_spec", lambda name: None)
    bare, bare_text = perfctl(f"{command} --json").json, perfctl(command).ok().out
    (own_point,), (bare_point,) = own["batches"], bare["batches"]
    own_memory, bare_memory = own_point.pop("memory"), bare_point.pop("memory")
    assert own_point == bare_point
    assert bare_memory["needed_bytes"] <= own_memory["needed_bytes"]
    assert bare_memory["largest_batch"] >= own_memory["largest_batch"]
    assert f"; largest batch {own_memory['largest_batch']:,};" in " ".join(text.split())
    words = " ".join(bare_text.split())
    assert f"; largest batch at most {bare_memory['largest_batch']:,};" in words
    assert "memory counts the tensors only: without torch" in words


def digits(value):
    """Return a value with three digits, as the page prints it."""
    return f"{value:.3g}" if value >= 100 else f"{value:#.3g}"
