"""Whose layers are recorded when a script's steps differ: those of the measured steps, and what is said of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, *, x):
        return self.fc(x)
model = Model() if sys.argv[1] == "by name" else nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for size in map(int, sys.argv[2:]):
    x = torch.randn(size, 4)
    optimizer.zero_grad()
    loss = (model(x=x) if sys.argv[1] == "by name" else model(x)).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
WARMUP, STEPS = 2, 3
SIZES = {
    "the last batch is smaller": ("plain", 6, 3, 6, 6, 3, 6),
    "first seen inside, and again": ("plain", 3, 3, 6, 6, 6, 3, 6, 6),
    "first seen inside, and never again": ("plain", 6, 6, 6, 5, 6, 6, 6),
    "each one once": ("plain", 1, 2, 3, 4, 5),
    "given by name": ("by name", 3, 6, 6, 6, 3, 6, 6, 6),
}
"""Case -> how the model is called, and the batch sizes of its steps: two of warm-up, three measured, the rest."""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "script.py").write_text(SCRIPT)
    perfctl = (
        "-m",
        "perfctl.workloads",
        "--steps",
        str(STEPS),
        "--warmup",
        str(WARMUP),
        "--annotate",
        "record_function",
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(case: str) -> dict[str, Any]:
        words = ("script.py", *map(str, SIZES[case]))
        record = f"{list(SIZES).index(case)}.json"
        argv = (sys.executable, *perfctl, "--record", record, "--", *words)
        done = subprocess.run(
            argv, cwd=folder, capture_output=True, text=True, env=environment, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads((folder / record).read_text())
        return found

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SIZES, pool.map(run, SIZES), strict=True))


def batch_of(record: dict[str, Any]) -> set[int]:
    """First dimension of what the linear layer's forward got, by the recorded layers."""
    ops = [op for op in record["ops"] if op["op"] == "aten.addmm" and op["direction"] == "forward"]
    assert all(op["calls"] == 1 for op in ops)
    return {op["outputs"][0][0] for op in ops}


def said(record: dict[str, Any]) -> list[str]:
    return [gap["reason"] for gap in record["gaps"] if gap["quantity"] == "layer_call"]


def test_the_layers_are_those_of_most_measured_steps_and_the_others_are_named(
    records: dict[str, dict[str, Any]],
) -> None:
    found = records["the last batch is smaller"]
    assert batch_of(found) == {6}
    assert found["environment"]["layer_calls_of_steps"] == "0-1"
    (reason,) = said(found)
    assert "measured steps 0-1 with inputs 6x4" in reason
    assert "2: 3x4" in reason
    assert "first seen inside" not in reason, "a step of that size was recorded in the warm-up"


def test_a_shape_that_comes_inside_the_window_first_is_recorded_after_it(records: dict[str, dict[str, Any]]) -> None:
    found = records["first seen inside, and again"]
    assert batch_of(found) == {6}
    assert (found["environment"]["layer_calls_of_steps"], said(found)) == ("0-2", [])


def test_one_that_never_comes_again_is_said_to_be_missing(records: dict[str, dict[str, Any]]) -> None:
    found = records["first seen inside, and never again"]
    assert batch_of(found) == {6}
    (reason,) = said(found)
    assert "measured steps 0, 2 with inputs 6x4" in reason
    assert "first seen inside the window" in reason
    assert "1: 5x4" in reason


def test_layers_of_no_measured_step_are_said_to_be_so(records: dict[str, dict[str, Any]]) -> None:
    found = records["each one once"]
    assert len(batch_of(found)) == 1
    assert batch_of(found) <= {1, 2}
    assert found["environment"]["layer_calls_of_steps"] == "none"
    (reason,) = said(found)
    assert "no measured step had them" in reason
    assert "0: 3x4; 1: 4x4; 2: 5x4" in reason


def test_tensors_that_are_given_by_name_count(records: dict[str, dict[str, Any]]) -> None:
    found = records["given by name"]
    assert batch_of(found) == {6}
    assert found["environment"]["layer_calls_of_steps"] == "0-1"
    assert "2: 3x4" in said(found)[0]
