"""Detection models of torchvision against their published counts: a line for each, when it
is known.

    python scripts/proof/accuracy/accuracy_detection.py [--shared ../shared]

How many boxes such a model finds, and so its FLOPs, can depend on data. So each runs on the CPU,
with random weights and one 512 x 512 image of noise, for three seeds: four minutes of one core.
Nothing is downloaded. Exits 1 when fewer than 8 models reach the published figure with any seed, or
when a count that changes with the data is not marked so.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import accuracy_cases as cases
import torch
from accuracy_lines import Line, parser_for, print_lines

from perfctl.orchestrator.estimate import session as estimation
from perfctl.workloads.tracing.recorder import trace_step

SEEDS = (0, 1, 2)
"""Of detection models: their number of boxes, and so of FLOPs, can depend on data."""


@dataclass(frozen=True)
class Detected:
    """One detection model: its multiply-adds for each seed of weights and image."""

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
            said = (
                "data-dependent: by the proposals that nms keeps; random weights keep all that are "
                "allowed"
            )
        if self.problem:
            said = self.problem
        return (
            f"{self.case.name:40}{self.case.gmac:10.3f}  {values:28} matches seeds {seeds:8} {said}"
        )


def detected(case: cases.Published) -> Detected:
    """One forward of a 512 x 512 image of noise a seed: real, on the CPU, because the number of
    boxes can depend on data."""
    macs, marked, problem = [], True, None
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = cases.build(case.name, case.family, train=False, device="cpu")
        found = estimation.estimate_from_trace(
            trace_step(model, (list(torch.randn((1, 3, 512, 512))),), mode="infer")
        )
        macs.append(found.forward.macs)
        marked, problem = marked and bool(found.data_dependent), problem or found.problem
    return Detected(case, tuple(macs), marked, problem)


def detection(folder: Path) -> Line:
    """Prints one line per model; their total: a model is right if every seed is within
    the rounding."""
    print(
        "One 512 x 512 image of noise: published GMAC, then GMAC for seeds 0, 1, 2 of weights and "
        "image"
    )
    found = []
    for case in cases.published(folder):
        if case.family == "detection":
            found.append(detected(case))
            print(found[-1].line(), flush=True)
    steady = sum(len(one.matching) == len(one.macs) for one in found)
    reached = sum(bool(one.matching) for one in found)
    unmarked = [one.case.name for one in found if one.varies and not one.marked]
    rest = [one for one in found if not one.matching]
    good = (
        reached >= 8
        and not unmarked
        and all(one.marked for one in rest)
        and not any(one.problem for one in found)
    )
    note = (
        f"{steady} for every seed, {reached - steady} for some seeds only, {len(rest)} for none: "
        "marked data-dependent"
    )
    return Line(
        "detection models inside the rounding", f"{reached} of {len(found)}", "8 of 12", good, note
    )


def main() -> int:
    """Print the table; return 1 when it misses its target."""
    folder = parser_for(__doc__, "datasets/peers").parse_args().shared / "datasets" / "peers"
    warnings.filterwarnings("ignore")
    if not (folder / "torchvision_ops.csv").is_file():
        print(f"No published figures in {folder}: say where they are with --shared")
        return 0
    return print_lines([detection(folder)])


if __name__ == "__main__":
    sys.exit(main())
