"""Where the window of a script on a GPU opens. torch.cuda is a stand-in: no GPU is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forked import PERFCTL, Forks

torch = pytest.importorskip("torch")

BEGIN = """
from types import SimpleNamespace
import torch
from torch import nn

class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def elapsed_time(self, end): return 1.0

GPU = SimpleNamespace(
    name="GPU of a test", major=9, minor=0, multi_processor_count=132, total_memory=80
)
ANSWERS = dict(
    is_initialized=True, synchronize=None, current_device=0, get_device_properties=GPU,
    get_device_capability=(9, 0), mem_get_info=(70, 80), memory_allocated=1, memory_reserved=2,
    max_memory_allocated=3, max_memory_reserved=4, is_current_stream_capturing=False,
)
for name, answer in ANSWERS.items():
    setattr(torch.cuda, name, lambda *given, answer=answer: answer)
torch.cuda.Event = Event
torch.cuda.profiler.start = lambda: print("start")
torch.cuda.profiler.stop = lambda: print("stop")
"""
SCRIPTS = {
    "modules": """
class Kernel(nn.Module):
    def forward(self, x):
        return x + 1

class Known(nn.Module):
    def __init__(self):
        super().__init__()
        self.add = Kernel()

    def forward(self, x):
        print("step")
        return self.add(x)

model = Known()
for _ in range(5):
    model(torch.zeros(8))
""",
    "tensors": """
weight = torch.zeros(8, requires_grad=True)
for _ in range(5):
    print("step")
    (weight * 2).sum().backward()
""",
}
"""Programs without a parameter in a module: kernels of their own, tensors alone."""
MARKERS = {"modules": ("--step-marker", "forward:Known"), "tensors": ()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_program_without_parameters_that_uses_a_gpu_is_measured_on_it(
    tmp_path: Path, forks: Forks, name: str
) -> None:
    (tmp_path / "known.py").write_text(BEGIN + SCRIPTS[name])
    words = "--batch 8 --annotate none --window cuda --steps 1 --warmup 1 --record record.json"
    argv = (*PERFCTL, *words.split(), *MARKERS[name], "--", "known.py")
    code, out, err = forks.run(tmp_path, *argv)
    assert code == 0, err
    lines = out.splitlines()
    assert lines.count("start") == lines.count("stop") == 1
    assert lines[lines.index("start") : lines.index("stop") + 1] == ["start", "step", "stop"]
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["status"] == "ok"
    assert record["device"]["name"] == "GPU of a test"
    assert not [gap for gap in record["gaps"] if gap["quantity"] == "window:cuda"]
