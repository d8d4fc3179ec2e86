"""What a workload leaves behind when a step raises, memory runs out, or somebody stops it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from perfctl.workloads.run import loop
from perfctl.workloads.spec import Options, Parts

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization")


class Breaks:
    """A workload of one linear layer, which fails at its n-th forward pass."""

    NAME = "small"
    ABOUT = "one linear layer"

    def __init__(self, fail_at: int, error: BaseException | None = None) -> None:
        self._fail_at, self._error = fail_at, error or RuntimeError("the layer broke\nand more")

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        pass

    def build(self, options: Options, own: argparse.Namespace) -> Parts:
        outer, passes = self, iter(range(10**9))

        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                if next(passes) == outer._fail_at:
                    raise outer._error
                out: Tensor = self.fc(x)
                return out

        model = Layer()
        inputs, labels = torch.randn(20, 6), torch.arange(20) % 3
        dataset = TensorDataset(inputs, labels)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Parts(model, nn.functional.cross_entropy, optimizer, dataset, dataset)


def run(tmp_path: Path, workload: Breaks, **changes: Any) -> None:
    """Two warm-up steps and three measured ones, or as many as there is time for."""
    options = Options(**{"batch_size": 4, "steps": 3, "warmup": 2, "record": tmp_path / "record.json"} | changes)
    loop.run(workload, options, argparse.Namespace())


@pytest.mark.parametrize(
    ("fail_at", "status", "whole_steps"), [(0, "failed", 0), (2, "failed", 0), (3, "partial", 1), (4, "partial", 2)]
)
def test_a_failing_step_leaves_a_record_that_says_so(
    tmp_path: Path, fail_at: int, status: str, whole_steps: int
) -> None:
    with pytest.raises(RuntimeError, match="the layer broke"):
        run(tmp_path, Breaks(fail_at), annotate="none")
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["perfctl_workload_record"] == 1
    assert (written["status"], written["reason"]) == (status, "RuntimeError: the layer broke")
    assert sum(row["phase"] == "step" for row in written["steps"]) == whole_steps
    assert written["duration_ns"] is None


def test_a_trace_is_left_when_a_measured_step_fails(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with pytest.raises(RuntimeError, match="the layer broke"):
        run(tmp_path, Breaks(3), annotate="record_function", window="torch", trace=trace)
    names = Counter(event["name"] for event in json.loads(trace.read_text())["traceEvents"])
    assert names["perfctl:step:0"] == 1


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_called_that(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(tmp_path, Breaks(0, error))
    written = json.loads((tmp_path / "record.json").read_text())
    assert written["reason"].startswith("out of memory at batch size 4: ")
    assert "smaller --batch" in written["reason"]


def test_an_interrupt_leaves_the_steps_that_ended(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Breaks(3, KeyboardInterrupt()))
    written = json.loads((tmp_path / "record.json").read_text())
    assert (written["status"], written["reason"]) == ("partial", "interrupted")
