"""One question asked of several surfaces: what two of them print is the same value."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

import perfctl
from perfctl.orchestrator.cli.main import run
from perfctl.orchestrator.commands import mcp

GIB = 1024**3
DEVICE, LIMIT, CAPABILITY = "3090", "24GiB", "8.6"
QUESTIONS = tuple(
    product(
        ("mnist_cnn", "alexnet"), ((32, "sgd"), (116, "adam"), (512, "momentum")), ("fp32", "bf16")
    )
)


@pytest.mark.parametrize(("model", "step", "precision"), QUESTIONS)
def test_memory_and_largest_batch_are_the_same_wherever_they_are_printed(
    model: str, step: tuple[int, str], precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torchvision")
    batch, optimizer = step

    def ask(*words: str) -> str:
        line = f"{model} --batch {batch} --optimizer {optimizer} --precision {precision}".split()
        assert run([words[0], *line, *words[1:]]) == 0
        return capsys.readouterr().out

    predicted = json.loads(ask("predict", "--device", DEVICE, "--json"))
    estimated = json.loads(ask("estimate", "--memory", LIMIT, "--gpu", CAPABILITY, "--json"))
    (answer,) = predicted["batches"]
    memory, own = answer["memory"], estimated["batches"][str(batch)]
    assert memory["needed_bytes"] == own["memory"]["allocated"]
    assert memory["largest_batch"] == estimated["largest_batch"]["batch"]
    assert memory["fits"] is (batch <= estimated["largest_batch"]["batch"])
    answered = perfctl.predict(
        model, batch=batch, device=DEVICE, optimizer=optimizer, precision=precision
    )
    room = answered.points[0].training.room
    assert room is not None
    assert (room.needed, room.largest) == (memory["needed_bytes"], memory["largest_batch"])
    assert predicted["parameters"] == own["parameters"]
    text = " ".join(ask("predict", "--device", DEVICE).split())
    needed = memory["needed_bytes"] + memory["reserve_bytes"]
    assert f"memory {digits(needed / GIB)} GiB of" in text
    assert f"largest batch {memory['largest_batch']:,}" in text
    table = " ".join(ask("estimate", "--memory", LIMIT, "--gpu", CAPABILITY).split())
    assert f"allocated at the peak {memory['needed_bytes']:,}" in table
    assert f"{own['parameters']:,}" in table


def test_mcp_gives_the_flops_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each layer, and of backward, at both batch sizes of a recorded sweep."""
    pytest.importorskip("jsonschema")
    store, recorded = tmp_path / "perfctl.db", Path(__file__).parents[1] / "data/recorded-cpu/torch"
    assert run(["replay", str(recorded), "--out", str(tmp_path / "r"), "--store", str(store)]) == 0

    async def run_here(caller: mcp.Caller, words: list[str]) -> tuple[str, list[str]]:
        capsys.readouterr()
        assert run(words) == 0
        return capsys.readouterr().out, []

    monkeypatch.setattr(mcp.Caller, "_run", run_here)
    with ThreadPoolExecutor(1) as thread:  # the tests with a browser leave a loop running here
        call = mcp.Caller(store, 60).call("ledger", {"form": "json", "limit": mcp.MAX_ROWS})
        answer = thread.submit(asyncio.run, call).result()
    rows = [row for row in answer["answer"]["rows"] if row["layer"] and row["estimated_flops"]]
    for batch in (16, 32):
        assert run(["estimate", "mnist_cnn", "--batch", str(batch), "--json"]) == 0
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
