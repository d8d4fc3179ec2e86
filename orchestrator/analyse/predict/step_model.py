"""Seconds of a whole step from a fitted step model: the costs of its parts, corrected by trees.

    base    = sum(costs[i] * parts[i]) in the order of PARTS
    seconds = trees.predict(fit.fitted, features, base * HEADROOM).seconds

Seconds never fall with batch. For another machine the parts are computed at its peaks, the features at those of the fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from perfctl.orchestrator.analyse.hardware.machines import Machine
from perfctl.orchestrator.analyse.predict import trees
from perfctl.orchestrator.analyse.predict.operations import StepSpec
from perfctl.orchestrator.analyse.predict.step_parts import FEATURES, PARTS, accumulated, features, parts
from perfctl.orchestrator.analyse.predict.trees import Fitted, Prediction

FORMAT = "perfctl step 1"
HEADROOM = 0.25
"""The trees may not go below this share of the sum of parts."""
TRANSFER = 2.0
"""Factor on the interval (in logarithms) for another device than the fit's."""
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
    """Trees over the sum of parts and its interval; its floor is the sum times :data:`HEADROOM`."""
    families: tuple[str, ...]
    optimizers: tuple[str, ...]


def to_json(fit: StepFitted) -> dict[str, Any]:
    """Numbers, strings, lists and maps, which ``json.dumps`` keeps exactly."""
    return {"format": FORMAT, "parts": list(PARTS), **asdict(fit), "fitted": trees.to_json(fit.fitted)}


def from_json(found: Mapping[str, Any]) -> StepFitted:
    """Raises ValueError for another format, other parts or features, or a damaged one, naming what is wrong."""
    if found.get("format") != FORMAT:
        raise ValueError(f"format is {found.get('format')!r}, not {FORMAT!r}: fit again")
    try:
        fitted = trees.from_json(found["fitted"])
        if tuple(found["parts"]) != PARTS or fitted.features != FEATURES:
            raise ValueError("fitted with other parts or features than this version's: fit again")
        phases = {str(name): _costs(costs) for name, costs in found["phases"].items()}
        return StepFitted(
            str(found["name"]), Machine(**found["machine"]), str(found["precision"]), bool(found["training"]),
            _costs(found["costs"]), phases, fitted, tuple(found["families"]), tuple(found["optimizers"]),
        )  # fmt: skip
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is missing") from missing
    except TypeError as wrong:
        raise ValueError(f"not a fitted step model: {wrong}") from wrong


def _costs(given: Any) -> tuple[float, ...]:
    costs = tuple(float(each) for each in given)
    if len(costs) != len(PARTS) or not all(0.0 <= each < float("inf") for each in costs):
        raise ValueError(f"costs must be {len(PARTS)} figures of 0 or more")
    return costs


def predict_step(fit: StepFitted, case: StepSpec, machine: Machine | None = None) -> Prediction:
    """The step's time, by default on the fit's machine. Raises ValueError without a peak for the precision."""
    own = parts(case, fit.machine)
    base = weighed(fit.costs, own)
    found = trees.predict(fit.fitted, features(case, own), base * HEADROOM)
    if machine is None or machine == fit.machine:
        return found
    return moved(found, weighed(fit.costs, parts(case, machine)) / base)


def moved(found: Prediction, ratio: float) -> Prediction:
    """To another machine, on which the parts take ``ratio`` times as long."""
    wide, seconds = (found.high / found.seconds) ** TRANSFER, found.seconds * ratio
    return replace(found, seconds=seconds, low=seconds / wide, high=seconds * wide, floor=found.floor * ratio)


def weighed(costs: tuple[float, ...], found: tuple[float, ...]) -> float:
    return accumulated(cost * seconds for cost, seconds in zip(costs, found, strict=True))


def phases_of(fit: StepFitted, case: StepSpec, seconds: float, machine: Machine | None = None) -> dict[str, float]:
    """Seconds of forward, backward and optimizer, which add up to ``seconds``; empty when the fit had no phases."""
    found = parts(case, machine or fit.machine)
    each = {name: weighed(costs, found) for name, costs in fit.phases.items()}
    total = accumulated(each.values())
    return {name: seconds * (value / total) for name, value in each.items()} if total > 0 else {}


def drivers(fit: StepFitted, case: StepSpec) -> tuple[tuple[str, float], ...]:
    return trees.drivers(fit.fitted, features(case, parts(case, fit.machine)))
