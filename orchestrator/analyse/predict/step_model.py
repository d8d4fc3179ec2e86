"""Seconds of a whole step from a fitted step model: costs of its parts, added up, times what trees learned of the rest.

    base    = sum(costs[i] * parts[i]) in the order of PARTS
    seconds = efficiency.predict(fit.fitted, features, base * HEADROOM).seconds

Every part and every feature that batch drives grows with batch, costs are never negative and the trees grow with these
features, so seconds never fall with batch. For another machine the parts are worked out at its peaks, the trees' features
at those of the fit: the efficiency of each kind of work carries over, the peaks do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict import trees
from perfctl.orchestrator.analyse.predict.operations import StepSpec
from perfctl.orchestrator.analyse.predict.step_parts import FEATURES, PARTS, features, parts
from perfctl.orchestrator.analyse.predict.trees import Fitted, Prediction

FORMAT = "perfctl step 1"
HEADROOM = 0.25
"""The trees may not go below this part of the sum of parts: what lies far outside of the fit stays a time."""
TRANSFER = 2.0
"""How much wider an interval (in logarithms) is for another device than the one of the fit."""
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class StepFitted:
    """What was learned from steps measured on one machine."""

    name: str
    """What it was learned from: said wherever a prediction is shown."""
    machine: Machine
    """The trees' features are worked out at this machine's peaks."""
    precision: str
    training: bool
    costs: tuple[float, ...]
    """Of each part, >= 0: seconds for one second at the machine's peaks. The reciprocal is an efficiency."""
    phases: Mapping[str, tuple[float, ...]]
    """Phase -> costs of the parts, for the share of each phase. Empty: phases were not measured."""
    fitted: Fitted
    """Trees over the sum of parts and its interval; its floor is the sum times :data:`HEADROOM`."""
    families: tuple[str, ...]
    """Seen in the fit."""
    optimizers: tuple[str, ...]


def to_json(fit: StepFitted) -> dict[str, Any]:
    """Numbers, strings, lists and maps alone: ``json.dumps`` gives them back exactly."""
    return {
        "format": FORMAT,
        "name": fit.name,
        "machine": {each.name: _plain(getattr(fit.machine, each.name)) for each in fields(Machine)},
        "precision": fit.precision,
        "training": fit.training,
        "parts": list(PARTS),
        "costs": list(fit.costs),
        "phases": {name: list(costs) for name, costs in fit.phases.items()},
        "fitted": trees.to_json(fit.fitted),
        "families": list(fit.families),
        "optimizers": list(fit.optimizers),
    }


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def from_json(found: Mapping[str, Any]) -> StepFitted:
    """Raises ValueError for another format, other parts or features, or a damaged one, naming what is wrong."""
    if found.get("format") != FORMAT:
        raise ValueError(f"format is {found.get('format')!r}, not {FORMAT!r}: fit again")
    try:
        fitted = trees.from_json(found["fitted"])
        if tuple(found["parts"]) != PARTS or fitted.features != FEATURES:
            raise ValueError("fitted with other parts or features than this version knows: fit again")
        phases = {str(name): _costs(costs) for name, costs in found["phases"].items()}
        return StepFitted(
            str(found["name"]), Machine(**found["machine"]), str(found["precision"]), bool(found["training"]),
            _costs(found["costs"]), phases, fitted, tuple(found["families"]), tuple(found["optimizers"]),
        )  # fmt: skip
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is missing") from missing
    except TypeError as wrong:
        raise ValueError(f"no fitted step model: {wrong}") from wrong


def _costs(given: Any) -> tuple[float, ...]:
    costs = tuple(float(each) for each in given)
    if len(costs) != len(PARTS) or not all(0.0 <= each < float("inf") for each in costs):
        raise ValueError(f"costs must be {len(PARTS)} figures of 0 or more")
    return costs


def predict_step(fit: StepFitted, case: StepSpec, machine: Machine | None = None) -> Prediction:
    """The step's time, on the fit's machine or another one. Raises ValueError without a peak for the precision."""
    own = parts(case, fit.machine)
    row = features(case, own)
    if machine is None or machine == fit.machine:
        return trees.predict(fit.fitted, row, weighed(fit.costs, own) * HEADROOM)
    here = trees.predict(fit.fitted, row, weighed(fit.costs, own) * HEADROOM)
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
    return trees.drivers(fit.fitted, features(case, parts(case, fit.machine)))
