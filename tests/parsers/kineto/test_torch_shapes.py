"""Paper FLOPs of a trace that torch.profiler writes here, of a network that perfctl has not run,
against exact totals."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.estimate.flops.engine import BACKWARD, estimate, totals
from perfctl.parsers import parse
from perfctl.records.report import Report

torch = pytest.importorskip("torch")

BATCH, STEPS = 4, 2
CONV1, CONV2, FC1, FC2 = 26 * 26 * 32 * 9, 24 * 24 * 64 * 32 * 9, 9216 * 128, 128 * 10
FORWARD = BATCH * (CONV1 + CONV2 + FC1 + FC2)


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """The CNN of PyTorch's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, images: Any) -> Any:
        hidden = torch.max_pool2d(torch.relu(self.conv2(torch.relu(self.conv1(images)))), 2)
        return self.fc2(torch.relu(self.fc1(hidden.flatten(1))))


def profiled(path: Path, **options: bool) -> Report:
    torch.manual_seed(0)
    net, images = Net(), torch.randn(BATCH, 1, 28, 28)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.profiler.profile(activities=cpu, record_shapes=True, **options) as profiler:
            for _ in range(STEPS):
                net(images).sum().backward()
                profiler.step()
        profiler.export_chrome_trace(str(path))
    return parse(path)


@pytest.mark.parametrize("modules", [False, True], ids=["operators", "modules"])
def test_paper_of_a_foreign_trace_is_that_of_the_network(tmp_path: Path, modules: bool) -> None:
    found = profiled(tmp_path / "t.pt.trace.json", with_stack=modules)
    calls, times = estimate(found.ops), len({step.number for step in found.steps}) or STEPS
    each = STEPS if "ledger_covers" in found.environment else STEPS / times
    assert totals(calls, ("forward",)).macs == each * FORWARD
    # conv1's input needs no gradient
    assert totals(calls, BACKWARD).macs == each * (2 * FORWARD - BATCH * CONV1)
    assert not totals(calls, (*BACKWARD, "forward")).missing
    rows = {call.layer for call in calls}
    if modules:
        assert rows == {"Conv2d_0", "Conv2d_1", "Linear_0", "Linear_1"}
    else:
        assert f"aten::addmm {BATCH}x9216x128" in rows and all(
            row.startswith("aten::") for row in rows
        )
