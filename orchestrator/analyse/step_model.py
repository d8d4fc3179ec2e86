"""Seconds of a whole step from a fitted step model: costs of its parts, added up, times what trees learned of the rest.

    base    = sum(costs[i] * parts[i]) in the order of PARTS
    seconds = efficiency.predict(fit.fitted, features, base * HEADROOM).seconds

Every part and every feature that batch drives grows with batch, costs are never negative and the trees grow with these
features, so seconds never fall with batch. For another machine the parts are worked out at its peaks, the trees' features
at those of the fit: the efficiency of each kind of work carries over, the peaks do not.
"""

from __future__ import annotations

from dataclasses import replace

from perfctl.orchestrator.analyse import efficiency
from perfctl.orchestrator.analyse.efficiency import Prediction
from perfctl.orchestrator.analyse.step_parts import features, parts
from perfctl.orchestrator.analyse.step_records import HEADROOM, TRANSFER, StepFitted
from perfctl.orchestrator.analyse.work_records import Machine, StepSpec


def predict_step(fit: StepFitted, case: StepSpec, machine: Machine | None = None) -> Prediction:
    """The step's time, on the fit's machine or another one. Raises ValueError without a peak for the precision."""
    own = parts(case, fit.machine)
    row = features(case, own)
    if machine is None or machine == fit.machine:
        return efficiency.predict(fit.fitted, row, weighed(fit.costs, own) * HEADROOM)
    here = efficiency.predict(fit.fitted, row, weighed(fit.costs, own) * HEADROOM)
    there = weighed(fit.costs, parts(case, machine))
    return _moved(here, there / weighed(fit.costs, own))


def _moved(here: Prediction, ratio: float) -> Prediction:
    """On another machine: as much slower as its parts are, and the interval :data:`TRANSFER` times as wide in logarithms."""
    wide = here.high / here.seconds
    factor = wide
    for _ in range(int(TRANSFER) - 1):
        factor *= wide
    seconds = here.seconds * ratio
    return replace(here, seconds=seconds, low=seconds / factor, high=seconds * factor, floor=here.floor * ratio)


def weighed(costs: tuple[float, ...], found: tuple[float, ...]) -> float:
    """Costs times parts, added in order."""
    total = 0.0
    for cost, seconds in zip(costs, found, strict=True):
        total += cost * seconds
    return total


def phases_of(fit: StepFitted, case: StepSpec, seconds: float, machine: Machine | None = None) -> dict[str, float]:
    """Seconds of forward, backward and optimizer, which add up to ``seconds``; empty when the fit had no phases."""
    found = parts(case, machine or fit.machine)
    each = {name: weighed(costs, found) for name, costs in fit.phases.items()}
    total = 0.0
    for value in each.values():
        total += value
    return {name: seconds * (value / total) for name, value in each.items()} if total > 0 else {}


def drivers(fit: StepFitted, case: StepSpec) -> tuple[tuple[str, float], ...]:
    """(feature, factor on the time), the strongest first: what the trees made of this network's shape."""
    return efficiency.drivers(fit.fitted, features(case, parts(case, fit.machine)))
