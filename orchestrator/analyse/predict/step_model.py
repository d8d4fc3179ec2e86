"""Seconds of a whole step from a fitted step model: the costs of its parts, corrected by a learned efficiency.

    base    = sum(costs[i] * parts[i]) in the order of PARTS
    seconds = efficiency.predict(fit.fitted, [features], [base * HEADROOM])[0].seconds

Seconds never fall with batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict import efficiency
from perfctl.orchestrator.analyse.predict.efficiency import Fitted, Prediction
from perfctl.orchestrator.analyse.predict.operations import StepSpec
from perfctl.orchestrator.analyse.predict.step_parts import accumulated, features, parts

HEADROOM = 0.25
"""The correction may not go below this share of the sum of parts."""
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class StepFitted:
    """A fit to steps measured on one machine."""

    name: str
    """The measured steps, in words."""
    machine: Machine
    precision: str
    training: bool
    costs: tuple[float, ...]
    """Of each part, >= 0: seconds per second at the machine's peaks, the reciprocal of an efficiency."""
    phases: Mapping[str, tuple[float, ...]]
    """Phase -> costs of the parts. Empty: phases were not measured."""
    fitted: Fitted
    """Efficiency over the sum of parts and its interval; its floor is the sum times :data:`HEADROOM`."""
    families: tuple[str, ...]
    optimizers: tuple[str, ...]


def predict_steps(fit: StepFitted, cases: Iterable[StepSpec]) -> list[Prediction]:
    """Return the times of steps on the fit's machine. Raises ValueError without a peak for the precision."""
    rows, floors = zip(*(_inputs(fit, case) for case in cases), strict=True)
    return efficiency.predict(fit.fitted, rows, floors)


def predict_step(fit: StepFitted, case: StepSpec) -> Prediction:
    """Return the step's time on the fit's machine. Raises ValueError without a peak for the precision."""
    return predict_steps(fit, [case])[0]


def outside_range(fit: StepFitted, case: StepSpec) -> tuple[str, ...]:
    """Return the features of a step (or "floor") outside the range of the fit."""
    return tuple(efficiency.excess_of(fit.fitted, *_inputs(fit, case)))


def _inputs(fit: StepFitted, case: StepSpec) -> tuple[Sequence[float], float]:
    """Return (features, floor)."""
    own = parts(case, fit.machine)
    return features(case, own), weighed(fit.costs, own) * HEADROOM


def weighed(costs: tuple[float, ...], found: tuple[float, ...]) -> float:
    return accumulated(cost * seconds for cost, seconds in zip(costs, found, strict=True))


def phases_of(fit: StepFitted, case: StepSpec, seconds: float) -> dict[str, float]:
    """Seconds of forward, backward and optimizer, which add up to ``seconds``; empty when the fit had no phases."""
    found = parts(case, fit.machine)
    each = {name: weighed(costs, found) for name, costs in fit.phases.items()}
    total = accumulated(each.values())
    return {name: seconds * (value / total) for name, value in each.items()} if total > 0 else {}


def drivers(fit: StepFitted, case: StepSpec) -> tuple[tuple[str, float], ...]:
    return efficiency.drivers(fit.fitted, features(case, parts(case, fit.machine)))
