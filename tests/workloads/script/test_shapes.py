"""Whose layers are recorded when a script's steps differ: those of the measured steps, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.forked import PERFCTL, Forks

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
def records(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sizes")
    (folder / "script.py").write_text(SCRIPT)
    options = ("--steps", str(STEPS), "--warmup", str(WARMUP), "--annotate", "record_function", "--record", "r.json")

    def run(case: str) -> dict[str, Any]:
        done = forks.run(folder, *PERFCTL, *options, "--", "script.py", *map(str, SIZES[case]))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads((folder / "r.json").read_text())
        return found

    return {case: run(case) for case in SIZES}


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
    assert "first occurred" not in reason, "a step of that size was recorded in the warm-up"


def test_a_shape_that_comes_inside_the_window_first_is_recorded_after_it(records: dict[str, dict[str, Any]]) -> None:
    found = records["first seen inside, and again"]
    assert batch_of(found) == {6}
    assert (found["environment"]["layer_calls_of_steps"], said(found)) == ("0-2", [])


def test_one_that_never_comes_again_is_said_to_be_missing(records: dict[str, dict[str, Any]]) -> None:
    found = records["first seen inside, and never again"]
    assert batch_of(found) == {6}
    (reason,) = said(found)
    assert "measured steps 0, 2 with inputs 6x4" in reason
    assert "first occurred in the measured steps" in reason
    assert "1: 5x4" in reason


def test_layers_of_no_measured_step_are_said_to_be_so(records: dict[str, dict[str, Any]]) -> None:
    found = records["each one once"]
    assert len(batch_of(found)) == 1
    assert batch_of(found) <= {1, 2}
    assert found["environment"]["layer_calls_of_steps"] == "none"
    (reason,) = said(found)
    assert "which no measured step had" in reason
    assert "0: 3x4; 1: 4x4; 2: 5x4" in reason


def test_tensors_that_are_given_by_name_count(records: dict[str, dict[str, Any]]) -> None:
    found = records["given by name"]
    assert batch_of(found) == {6}
    assert found["environment"]["layer_calls_of_steps"] == "0-1"
    assert "2: 3x4" in said(found)[0]
