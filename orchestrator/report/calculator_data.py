"""What the calculator's page carries: the numbers that its scripts compute with, as compact JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from perfctl.orchestrator.analyse import step_records
from perfctl.orchestrator.analyse.memory_lines import MemoryLine
from perfctl.orchestrator.analyse.predict import HOST, ROOFLINE
from perfctl.orchestrator.analyse.prices import Price
from perfctl.orchestrator.analyse.step_parts import (
    BESIDE,
    OVERFLOW,
    PARTS,
    PLAIN,
    PRODUCTS,
    REFERENCE,
    SPILLED,
    merged,
)
from perfctl.orchestrator.analyse.step_records import StepFitted
from perfctl.orchestrator.analyse.work_records import KINDS, Machine, Measured, Operation

WORK_FIELDS = tuple(field.name for field in fields(Operation) if field.name not in ("layer", "calls", "kind"))
_SLIDERS = {
    "depth": (4, 152), "width": (8, 512), "hidden": (64, 8192), "image": (16, 512), "channels": (1, 16),
    "classes": (2, 10_000), "blocks": (1, 48),
}  # fmt: skip
"""Where a slider ends, where the parameter goes on for orders of magnitude; the box beside it takes all of them."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A model whose operations were found by a trace."""

    name: str
    """As ``perfctl predict --model`` takes it: torchvision:resnet50."""
    works: tuple[Operation, ...]
    parameters: int
    """Elements of all parameters, shared ones once."""
    lines: tuple[MemoryLine, ...] | None
    """Memory of a step with plain SGD. None: not known."""
    adam: tuple[MemoryLine, ...] = ()
    """Moments that only Adam's step has, without what it keeps."""
    notes: tuple[str, ...] = ()
    """What has to be known about its operations."""


@dataclass(frozen=True, slots=True)
class Place:
    """A device that can be picked."""

    machine: Machine
    source: str
    """Where its peaks come from, in words."""
    link_gbs: float | None
    """GB/s one way between several. None: not known."""
    link: str
    """What kind of link, and where that is stated."""
    offers: tuple[int, ...]
    """Numbers of the prices that have it."""
    watts: Mapping[str, tuple[float, str]]
    """Model, or "" for all others -> (W of one, where that comes from). Empty: not known."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the page computes with."""

    families: Mapping[str, Mapping[str, Any]]
    """Parameters of each family, see ``workloads.plan.PARAMETERS``."""
    models: Sequence[Traced]
    places: Sequence[Place]
    fits: Sequence[StepFitted]
    measured: Sequence[Measured]
    prices: Sequence[Price]


def page_data(known: Known) -> dict[str, Any]:
    """Everything, as JSON takes it. Inference is left out: the page is about training."""
    return {
        "families": family_data(known.families),
        "traced": model_data(known.models),
        "machines": [_place(place) for place in known.places],
        "fits": [step_records.to_json(fit) for fit in known.fits if fit.training],
        "measured": [_record(one) for one in known.measured if one.case.training],
        "prices": [_price(one) for one in known.prices],
        "step": {
            "parts": PARTS,
            "products": PRODUCTS,
            "plain": PLAIN,
            "beside": BESIDE,
            "reference": REFERENCE,
            "spilled": SPILLED,
            "overflow": OVERFLOW,
        },
        "roofline": ROOFLINE,
        "host": HOST,
        "headroom": step_records.HEADROOM,
        "transfer": step_records.TRANSFER,
    }


def _place(place: Place) -> dict[str, Any]:
    (machine,) = machine_data([place.machine])
    return machine | {
        "source": place.source, "link_gbs": place.link_gbs, "link": place.link, "offers": list(place.offers),
        "watts": dict(place.watts),
    }  # fmt: skip


def _record(one: Measured) -> dict[str, Any]:
    case = one.case
    return {
        "model": case.model, "machine": one.machine, "batch": case.batch, "precision": case.precision,
        "optimizer": case.optimizer, "seconds": one.seconds, "low": one.low, "high": one.high, "backward": one.backward,
    }  # fmt: skip


def _price(one: Price) -> dict[str, Any]:
    names = ("provider", "instance", "gpu", "count", "on_demand", "spot", "region", "date", "source")
    return {name: getattr(one, name) for name in names} | {"boards": len(one.boards)}


def family_data(families: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Parameters of each family (``workloads.plan.PARAMETERS``) with their ranges and where a slider ends."""
    return {family: {name: _parameter(name, one) for name, one in known.items()} for family, known in families.items()}


def _parameter(name: str, one: Any) -> dict[str, Any]:
    if hasattr(one, "words"):
        return {"default": one.default, "words": list(one.words), "about": one.about}
    low, high = _SLIDERS.get(name, (one.least, one.most))
    return {
        "default": one.default, "least": one.least, "most": one.most, "odd": one.odd, "multiple": one.multiple,
        "about": one.about, "slider": [max(low, one.least), min(high, one.most)],
    }  # fmt: skip


def model_data(models: Sequence[Traced]) -> dict[str, Any]:
    """Every distinct operation once, and of each model which it has and how often: ``[operation, calls, ...]``.

    The name of the layer is left out, so that equal layers are one row: times are sums over them.
    """
    rows: dict[tuple[Any, ...], int] = {}
    found = []
    for model in models:
        uses: list[int] = []
        for work in merged(model.works):
            row = (KINDS.index(work.kind), *(_number(value) for value in astuple(work)[3:]))
            uses += (rows.setdefault(row, len(rows)), work.calls)
        found.append({
            "name": model.name, "family": model.name.partition(":")[0], "parameters": model.parameters, "uses": uses,
            "memory": None if model.lines is None else {"lines": model.lines, "adam": model.adam}, "notes": model.notes,
        })  # fmt: skip
    return {"kinds": KINDS, "fields": WORK_FIELDS, "rows": [list(row) for row in rows], "models": found}


def machine_data(machines: Iterable[Machine]) -> list[dict[str, Any]]:
    """Peaks and sizes, in base units; null where they are not known."""
    return [{field.name: _plain(getattr(machine, field.name)) for field in fields(Machine)} for machine in machines]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _number(part) for key, part in value.items()}
    return _number(value)


def _number(value: Any) -> Any:
    """Whole floats without their ".0", which JavaScript reads as the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
