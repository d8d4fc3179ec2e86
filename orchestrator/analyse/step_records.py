"""A fitted step model as plain numbers, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from perfctl.orchestrator.analyse import efficiency
from perfctl.orchestrator.analyse.efficiency import Fitted
from perfctl.orchestrator.analyse.step_parts import FEATURES, PARTS
from perfctl.orchestrator.analyse.work_records import Machine

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
        "fitted": efficiency.to_json(fit.fitted),
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
        fitted = efficiency.from_json(found["fitted"])
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
