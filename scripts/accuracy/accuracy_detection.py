"""Detection models: real forwards on the CPU, because the number of boxes, and so of FLOPs, can depend on data."""

from __future__ import annotations

from dataclasses import dataclass

import accuracy_cases as cases
import torch

from perfctl.orchestrator.actions import estimate as estimation
from perfctl.workloads.tracing.recorder import trace

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Detected:
    """One model: its multiply-adds for each seed of weights and image."""

    case: cases.Published
    macs: tuple[int, ...]
    marked: bool
    """perfctl names operations whose result sizes depend on the data."""
    problem: str | None

    @property
    def matching(self) -> tuple[int, ...]:
        """Seeds inside the published rounding."""
        return tuple(
            seed
            for seed, macs in zip(SEEDS, self.macs, strict=False)
            if abs(macs / 1e9 - self.case.gmac) <= cases.ROUNDING + 1e-12
        )

    @property
    def varies(self) -> bool:
        """Whether the count was seen to change with the seed."""
        return len(set(self.macs)) > 1

    def line(self) -> str:
        values = ", ".join(f"{macs / 1e9:.3f}" for macs in self.macs)
        seeds = ", ".join(map(str, self.matching)) or "none"
        said = "the same for every seed"
        if self.varies:
            said = "data-dependent: the count changes with the seed"
        elif not self.matching:
            said = "data-dependent: by the proposals that nms keeps; random weights keep all that are allowed"
        if self.problem:
            said = self.problem
        return f"{self.case.name:40}{self.case.gmac:10.3f}  {values:28} matches seeds {seeds:8} {said}"


def detected(case: cases.Published) -> Detected:
    """One forward of a 512 x 512 image of noise a seed."""
    macs, marked, problem = [], True, None
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = cases.build(case.name, case.family, train=False, device="cpu")
        found = estimation.from_trace(trace(model, (list(torch.randn((1, 3, 512, 512))),), mode="infer"))
        macs.append(found.forward.macs)
        marked, problem = marked and bool(found.data_dependent), problem or found.problem
    return Detected(case, tuple(macs), marked, problem)
