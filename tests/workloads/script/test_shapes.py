"""Whose layers are recorded when a script's steps differ: those of the measured steps, and what is
said of the others."""

from __future__ import annotations

import json

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
"""Case -> how the model is called, and the batch sizes of its steps: two of warm-up, three
measured, the rest."""


@pytest.mark.parametrize(
    ("case", "recorded", "steps", "reasons"),
    [
        ("the last batch is smaller", {6}, "0-1", ["measured steps 0-1 with inputs 6x4", "2: 3x4"]),
        ("first seen inside, and again", {6}, "0-2", []),
        (
            "first seen inside, and never again",
            {6},
            "0, 2",
            [
                "measured steps 0, 2 with inputs 6x4",
                "first occurred in the measured steps",
                "1: 5x4",
            ],
        ),
        ("each one once", {1, 2}, "none", ["which no measured step had", "0: 3x4; 1: 4x4; 2: 5x4"]),
        ("given by name", {6}, "0-1", ["2: 3x4"]),
    ],
)
def test_the_layers_are_those_of_most_measured_steps_and_the_others_are_named(
    tmp_path, forks: Forks, case: str, recorded: set[int], steps: str, reasons: list[str]
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    options = f"--steps {STEPS} --warmup {WARMUP} --annotate record_function --record r.json --"
    argv = (*PERFCTL, *options.split(), "script.py", *map(str, SIZES[case]))
    done = forks.run(tmp_path, *argv)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    ops = [op for op in found["ops"] if op["op"] == "aten.addmm" and op["direction"] == "forward"]
    assert [op["calls"] for op in ops] == [1]
    assert ops[0]["outputs"][0][0] in recorded
    assert found["environment"]["layer_calls_of_steps"] == steps
    said = [gap["reason"] for gap in found["gaps"] if gap["quantity"] == "layer_call"]
    assert len(said) == bool(reasons)
    assert all(reason in said[0] for reason in reasons)
    if case == "the last batch is smaller":
        assert "first occurred" not in said[0], "a step of that size was recorded in the warm-up"
