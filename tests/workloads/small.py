"""A workload of one linear layer, and short runs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from perfctl.workloads.interface import WorkloadParts
from perfctl.workloads.run import loop
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.spec import WorkloadOptions


class Small:
    """Fails at its n-th forward pass, if any."""

    NAME = "small"
    ABOUT = "one linear layer"

    def __init__(self, fail_at: int = -1, error: BaseException | None = None) -> None:
        self._fail_at, self._make_error = (
            fail_at,
            error or RuntimeError("the layer broke\nand more"),
        )

    class Own:
        """It has none."""

    def build(self, options: WorkloadOptions, own: Any) -> WorkloadParts:
        outer, passes = self, iter(range(10**9))

        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                if next(passes) == outer._fail_at:
                    raise outer._make_error
                return self.fc(x)

        model = Layer()
        dataset = TensorDataset(torch.randn(20, 6), torch.arange(20) % 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return WorkloadParts(
            model, nn.functional.cross_entropy, optimizer, dataset, dataset, scheduler
        )


def run(tmp_path: Path, workload: Any = None, **changes: Any) -> WorkloadRecord:
    """Two warm-up steps and three measured ones, or as many as there is time for."""
    options = WorkloadOptions(
        **{"batch_size": 4, "steps": 3, "warmup": 2, "record": tmp_path / "record.json"} | changes
    )
    return loop.run_workload(workload or Small(), options, Small.Own())
