"""A convolution and a fitted step model made by hand: costs are known, and no scikit-learn
is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict.efficiency import FittedEfficiency
from perfctl.orchestrator.predict.fit import StepFit
from perfctl.orchestrator.predict.operations import Operation, StepSpec
from perfctl.orchestrator.predict.step_parts import FEATURES, PARTS

CPU = Machine("Test CPU", "cpu", {"fp32": 100e9}, 20e9)
CONV = Operation("c", "conv", 1, 3600.0 * 100, 400.0, 800.0, 3600.0, 100.0, 8.0, 36.0, kernel=9)
"""3 x 3 from 4 to 8 channels on 10 x 10... with twelve times the weights, so that no two sizes
are alike."""


def case_of(
    *works: Operation,
    batch: int = 2,
    training: bool = True,
    optimizer: str = "momentum",
    precision: str = "fp32",
) -> StepSpec:
    return StepSpec(
        "m", "f", works, batch, training, precision, optimizer if training else "", 1000
    )


@dataclass(frozen=True)
class Linear:
    """In place of a model that scikit-learn fitted: a start, and a factor for some columns."""

    start: float
    factors: Mapping[int, float] = field(default_factory=dict)

    def predict(self, X: Any, /) -> Any:
        return self.start + sum(
            (factor * np.asarray(X)[:, column] for column, factor in self.factors.items()),
            np.zeros(len(X)),
        )


def fit_of(
    costs: Mapping[str, float], phases: Mapping[str, Mapping[str, float]] | None = None
) -> StepFit:
    """Parts at these costs, and a model that says nothing."""
    few = (0.0,) * len(FEATURES)
    wide = (1e30,) * len(FEATURES)
    fitted = FittedEfficiency(
        "made up",
        FEATURES,
        few,
        wide,
        few,
        8,
        1e-12,
        1e12,
        Linear(math.log(4.0)),
        Linear(0.1),
        0.1,
        0.1,
        1.0,
        0.9,
        30,
        0.05,
    )

    def row(given: Mapping[str, float]) -> tuple[float, ...]:
        return tuple(given.get(name, 0.0) for name in PARTS)

    return StepFit(
        "made up",
        CPU,
        "fp32",
        True,
        row(costs),
        {name: row(each) for name, each in (phases or {}).items()},
        fitted,
        ("f",),
        ("momentum",),
    )
