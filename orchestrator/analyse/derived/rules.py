"""Derived counts: what a library kernel executes, from its name, its grid and the shape of what it computes.

Counted instructions are facts of one launch; derived ones are arithmetic with a rule. A kernel without a rule has none:
nothing is guessed. 1 multiply-add = 2 FLOPs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perfctl.orchestrator.analyse.derived import attention, convolutions, products, tensor
from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.names import Algorithm, recognise

Rule = Callable[[Launch, Algorithm, Work], Derived | None]
RULES: tuple[Rule, ...] = (
    products.sgemm, products.reduction, products.small_columns, products.vector, products.dot,
    convolutions.convolution, convolutions.input_gradient, convolutions.weight_gradient, convolutions.simt,
    convolutions.transformed, convolutions.fourier, convolutions.direct, convolutions.depthwise,
    tensor.product, tensor.convolution, attention.attention,
)  # fmt: skip


def derive(launch: Launch, work: Work) -> Derived | None:
    """The instructions of one launch that does ``work``; None: no rule for this kernel, or its grid is not of this work."""
    algorithm = recognise(launch.name)
    return next((found for rule in RULES if (found := rule(launch, algorithm, work)) is not None), None)


@dataclass(frozen=True, slots=True)
class Verified:
    """How a family's rule did on launches whose counters are known."""

    launches: int
    within: float
    """Largest error of FFMA (or tensor operations) on 95 of 100 launches: 0.01 is 1 %."""
    worst: float
    chip: str

    def __str__(self) -> str:
        on = f"{self.launches:,} launches on {self.chip}"
        if not self.worst:
            return f"exact on {on}"
        return f"within {100 * self.within:.2g} % on 95 % of {on}, {100 * self.worst:.2g} % at worst"


@lru_cache(maxsize=1)
def verified() -> dict[str, Verified]:
    """Family -> what ``scripts/silicon.py`` and ``silicon_aten.py`` measured; families that no counter has verified are missing."""
    text = Path(__file__).with_name("verified.json").read_text(encoding="utf-8")
    return {family: Verified(**facts) for family, facts in json.loads(text).items()}


def error_of(families: Sequence[str]) -> str:
    """In words, how far derived counts of these families were off on hardware."""
    known = verified()
    said = [
        f"{family}: {known[family]}" if family in known else f"{family}: not verified on silicon" for family in families
    ]
    return "; ".join(said)
