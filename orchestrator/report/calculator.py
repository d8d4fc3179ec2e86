"""The calculator's page: its controls, its sources, and its answers for networks of the
families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date as Date
from functools import cache, lru_cache
from http import HTTPStatus
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from perfctl.orchestrator.counts.hardware.machines import BOARDS, Device, Machine, class_of
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.memory import (
    RESERVE,
)
from perfctl.orchestrator.predict.fit import StepFitted
from perfctl.orchestrator.predict.grid import (
    LARGEST,
)
from perfctl.orchestrator.predict.models.calculator import Model, planned_model
from perfctl.orchestrator.predict.models.packed_grid import grid_data
from perfctl.orchestrator.predict.operations import Measured
from perfctl.orchestrator.predict.predict import Evidence
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.predict.published import Published
from perfctl.orchestrator.predict.published import load as load_published
from perfctl.orchestrator.report.prices import days, sources
from perfctl.workloads.models.plan import PARAMETERS, canonical, plan, read_settings
from perfctl.workloads.spec import SpecError

LONGEST = 300
"""Characters of a specification that is answered."""
KEPT = 64
"""Networks whose answers are kept."""
_SLIDERS = {
    "depth": (4, 152),
    "width": (8, 512),
    "hidden": (64, 8192),
    "image": (16, 512),
    "channels": (1, 16),
    "classes": (2, 10_000),
    "blocks": (1, 48),
}
"""Ends of sliders of parameters whose range is orders of magnitude wider; the box beside a slider
has the whole range."""
GROUPS = ("this machine", "data centre", "AMD", "workstation", "consumer")
"""Order of the devices in the list: the first word of a group."""
MACHINE_KEYS = ("name", "kind", "memory_bytes")
DEVICE_KEYS = ("source", "link_gbs", "link", "offers", "unsure", "watts", "group")
PRICE_KEYS = (
    *("provider", "instance", "gpu", "count", "on_demand", "spot", "region", "date", "source"),
)
"""Fields of a device, its machine, and a price that the page has."""
MIXED = "mixed"
"""What the page calls :func:`mixed_on`."""


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """A device that can be picked."""

    machine: Machine
    source: str
    link_gbs: float | None
    """GB/s one way between several. None: not known."""
    link: str
    offers: tuple[int, ...]
    """Numbers of the prices that have it."""
    watts: Mapping[str, tuple[float, str]]
    """Model, or "" for all others -> (W of one, source). Empty: not known."""
    group: str = "this machine"
    """What it is made for, as lists of devices are headed."""
    unsure: int = 0
    """Offers that may have it but do not state their form."""


@dataclass(frozen=True, slots=True)
class CalculatorContents:
    """Everything that the page shows."""

    models: Sequence[Model]
    devices: Sequence[ListedDevice]
    fits: Sequence[StepFitted]
    measured: Sequence[Measured]
    prices: Sequence[Price]
    published: Published | None = None
    """The fit that ships."""
    prices_from: str = ""
    notes: Sequence[str] = ()
    left_out: Sequence[str] = ()
    """Which models were asked for and are not there, and why: a sentence each."""


@dataclass(frozen=True, slots=True)
class Field:
    """One choice of the reader."""

    key: str
    """Its name after the # of a link."""
    label: str
    value: float | int | str
    unit: str = ""
    low: float = 0
    high: float | None = None
    whole: bool = False
    scale: str = ""
    """Of the slider: log2, log or linear; "" without one."""
    slider: tuple[float, float] | None = None
    step: float = 1
    said: tuple[tuple[str, str], ...] = ()
    """(value, how it is written) of a list to pick from; empty for a number."""
    always: bool = False
    """Stands in every link."""
    groups: tuple[str, ...] = ()
    """Heading of each of ``said``; empty without headings."""

    @property
    def data(self) -> dict[str, Any]:
        """For the scripts."""
        found = {
            key: value
            for key, value in asdict(self).items()
            if key not in ("said", "unit", "groups")
        }
        return found | {"options": [value for value, _ in self.said] or None}


SHOW = Field(
    "show", "Which devices", "all", said=(("all", "all"), *((one, one) for one in GROUPS[1:]))
)
"""A switch above the table of devices: which rows it has."""
SORT = Field(
    "sort", "Sort the devices", "cost", said=(("cost", "cheapest first"), ("time", "fastest first"))
)
"""A switch above the table of devices: the order of its rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """Fields under one heading."""

    key: str
    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class CalculatorView:
    """The record of templates/calculator.html."""

    parts: tuple[Part, ...]
    sort: Field
    show: Field
    about: tuple[str, ...]
    made: str
    data: Mapping[str, Any]
    title: str = "calculator for training time and cost"
    scripts: Sequence[str] = ("calculator_draw.js", "calculator_ui.js")


def page_view(known: CalculatorContents, *, date: str, version: str) -> CalculatorView:
    """Return what the page shows. ``date``: of the page, YYYY-MM-DD."""
    names = [model.network.name for model in known.models]
    first = "torchvision:resnet50" if "torchvision:resnet50" in names else names[0]
    network, *parts = _controls(known, first)
    today = Date.fromisoformat(date)
    fields = (
        Field("model", "model", first, always=True),
        *(field for part in parts for field in part.fields),
        SORT,
        SHOW,
    )
    machines = [device.machine for device in known.devices]
    data = {
        "grid": grid_data(known.models, machines, known.measured, known.fits, known.published),
        "machines": [
            {
                **{
                    name: getattr(device.machine, name) for name in ("name", "kind", "memory_bytes")
                },
                **{name: getattr(device, name) for name in DEVICE_KEYS},
                "mixed": mixed_on(device.machine),
            }
            for device in known.devices
        ],
        "prices": [
            {name: getattr(price, name) for name in PRICE_KEYS} | {"old": price.is_old(today)}
            for price in known.prices
        ],
        "fields": [field.data for field in fields],
    }
    about = (*_about(known, today), *known.notes, *known.left_out)
    made = f"perfctl {version} calculator, made on {date}."
    return CalculatorView((network, *parts), SORT, SHOW, about, made, data)


def mixed_on(machine: Machine) -> str:
    """Mixed precision on this device: bf16, else fp16, by its tensor cores; fp32 where it has none
    for them."""
    return next(
        (name for name in ("bf16", "fp16") if PATH_OF[name] in machine.flops_per_second), "fp32"
    )


def _controls(known: CalculatorContents, first: str) -> tuple[Part, ...]:
    networks = [model.network for model in known.models]
    families = tuple((name, name) for name in dict.fromkeys(network.family for network in networks))
    models = tuple(
        (one.name, one.name.partition(":")[2]) for one in networks if one.family == "torchvision"
    )
    precisions = (
        (MIXED, "mixed, autocast"),
        ("fp32", "fp32 (TF32 off)"),
        ("tf32", "tf32"),
        ("bf16", "bf16, autocast"),
        ("fp16", "fp16, autocast"),
    )
    optimizers = (("sgd", "SGD"), ("momentum", "SGD, momentum"), ("adam", "Adam"))
    in_groups = sorted(known.devices, key=_group_order)
    devices = tuple((place.machine.name, place.machine.name) for place in in_groups)
    device = max(in_groups, key=lambda device: _newest_alone(known, device)).machine.name
    count: dict[str, Any] = {"low": 1, "whole": True, "always": True}
    return (
        Part(
            "network",
            "Network",
            (
                Field("family", "Family", first, said=families),
                Field("traced", "Model", first, said=models or (("", "none"),)),
            ),
        ),
        Part(
            "training",
            "Training",
            (
                Field(
                    "batch",
                    "Batch per GPU",
                    64,
                    high=LARGEST,
                    scale="log2",
                    slider=(1, 4096),
                    **count,
                ),
                Field("samples", "Samples", 1_281_167, scale="log", slider=(1e3, 1e8), **count),
                Field("epochs", "Epochs", 90, scale="log", slider=(1, 1000), **count),
                Field("precision", "Precision", MIXED, said=precisions, always=True),
                Field("optimizer", "Optimizer", "momentum", said=optimizers, always=True),
            ),
        ),
        Part(
            "device",
            "Device",
            (
                Field(
                    "device",
                    "Device",
                    device,
                    said=devices,
                    always=True,
                    groups=tuple(place.group for place in in_groups),
                ),
                Field("gpus", "GPUs", 1, scale="log2", slider=(1, 64), **count),
            ),
        ),
        Part(
            "parallel",
            "Several GPUs",
            (
                Field(
                    "overlap", "Hidden part", 0, unit=("0 to 1, share of the communication"), high=1
                ),
                Field("interconnect", "Link", 0, unit="GB/s; 0: data sheet"),
                Field("efficiency", "Efficiency", 0, unit="0: from the link", high=1),
            ),
        ),
        Part(
            "money",
            "Money",
            (
                Field(
                    "pay",
                    "Instances",
                    "on_demand",
                    said=(("on_demand", "on demand"), ("spot", "spot, may be interrupted")),
                ),
                Field("price", "Own price", 0, unit="$/h per GPU; 0: from the table"),
                Field("tariff", "Energy", 0, unit="$/kWh; 0: no cost"),
            ),
        ),
    )


def _newest_alone(known: CalculatorContents, place: ListedDevice) -> str:
    """Date of the newest price of one such GPU on demand; "" without one. The page opens on the
    first device with the newest."""
    offers = (known.prices[number] for number in place.offers)
    return max(
        (one.date for one in offers if one.count == 1 and one.on_demand is not None), default=""
    )


def _group_order(place: ListedDevice) -> tuple[int, int]:
    """Servers of one generation stay together, the newest first."""
    chips = list(dict.fromkeys(class_of(board.gpu) for board in BOARDS))
    return GROUPS.index(place.group.partition(",")[0]), -chips.index(
        place.group
    ) if place.group in chips else 0


def _about(known: CalculatorContents, today: Date) -> tuple[str, ...]:
    late = [price for price in known.prices if price.is_old(today)]
    old = (
        f" Prices of {days(late)} were more than a year old when this page was created."
        if late
        else ""
    )
    traced = sum(model.network.family == "torchvision" for model in known.models)
    fits = "; ".join(
        f"{fit.name} (error of models held out: {fit.fitted.error:.1%})" for fit in known.fits
    )
    return (
        *([f"Fitted to your own runs: {fits}. A fit applies to its device only."] if fits else []),
        f"All other GPUs: fitted to {known.published.rows:,} steps that others published for "
        f"{len(known.published.measured)} devices (docs/prediction.md). A device or precision "
        "without published data has a wider range."
        if known.published is not None
        else ("Other devices: the roofline, scaled by published efficiencies, with a wide range."),
        (
            "perfctl computed the work of each model and its cost per unit on each device; this "
            "page multiplies them. Its times are within 0.5% of those of 'perfctl predict'."
        ),
        f"{traced} torchvision models were traced without data, with the input sizes of their "
        "weights."
        if traced
        else (
            "This page has no torchvision model, because it was created without torch or with "
            "--models none."
        ),
        f"Prices: {len(known.prices)} offers that state their GPU model, of {days(known.prices)}, "
        f"{known.prices_from} ({'; '.join(sources(known.prices))}). Prices change: check before "
        f"you rent.{old} This page excludes offers without a known date."
        if known.prices
        else "This page has no prices.",
        (
            "The devices are those of docs/devices.md. Use 'perfctl predict --device-spec' for "
            "other devices."
        ),
        (
            "Memory is the peak of the tensors in the selected precision, plus "
            f"{RESERVE / 1e9:.2f} GB reserved on a GPU for the CUDA context, workspaces and the "
            "allocator (docs/formulas.md of perfctl). The largest batch is an upper bound: "
            "'perfctl predict' replays the allocator, which cannot use every byte, and may find a "
            "slightly smaller batch."
        ),
        (
            "Times exclude data loading, preprocessing, validation and checkpoints. Costs exclude "
            "storage, network traffic, host energy, and recomputed work on spot instances."
        ),
    )


def family_data(families: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Parameters of each family (``workloads.plan.PARAMETERS``) with their ranges and the ends of
    their sliders."""
    return {
        family: {name: _parameter(name, one) for name, one in known.items()}
        for family, known in families.items()
    }


def _parameter(name: str, one: Any) -> dict[str, Any]:
    if hasattr(one, "words"):
        return {"default": one.default, "words": list(one.words), "about": one.about}
    low, high = _SLIDERS.get(name, (one.least, one.most))
    found = {
        key: getattr(one, key) for key in ("default", "least", "most", "odd", "multiple", "about")
    }
    return found | {"slider": [max(low, one.least), min(high, one.most)]}


@cache
def families() -> dict[str, Any]:
    """Return the parameters of each family with their ranges; a residual network's depth with those
    that its blocks can make."""
    ranges = family_data(PARAMETERS)
    depth = ranges["resnet"]["depth"]
    low, high = depth["slider"]
    depth["stops"] = []
    for value in range(low, high + 1):
        with suppress(SpecError):
            plan(f"resnet:depth={value}")
            depth["stops"].append(value)
    return ranges


class FamilyAnswers:
    """Networks of the families by their parameters, worked out when they are asked for; safe for
    several threads."""

    def __init__(self, learn: Callable[[], tuple[Evidence, Sequence[Device]]]) -> None:
        """``learn``: gives what the store knows, and every device; called once."""
        self._lock = Lock()
        self._learn = cache(learn)
        self._grid = lru_cache(KEPT)(self._compute_grid)

    def answer(self, query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        """Return the answer to a request: ``model=SPEC`` gives :meth:`network`, nothing
        :func:`families`, everything else an error."""
        if not query:
            return HTTPStatus.OK, {"families": families()}
        key = spec = ""
        with suppress(ValueError):
            ((key, spec),) = parse_qsl(
                query,
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
                max_num_fields=1,
            )
        if key != "model" or len(spec) > LONGEST or not (spec.isascii() and spec.isprintable()):
            problem = "the request is not model=FAMILY:NAME=VALUE,..."
            return HTTPStatus.BAD_REQUEST, {"error": problem}
        try:
            return HTTPStatus.OK, self.network(spec)
        except SpecError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except PerfctlError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error), "again": True}

    def network(self, spec: str) -> dict[str, Any]:
        """Return what the page shows of one network: its name, the optimizer that the specification
        named, and its grid.

        Raises SpecError for one that cannot be built, and for a text that is none; PerfctlError for
        a store that cannot be read.
        """
        family, settings = read_settings(spec)
        asked, own = settings["optimizer"], PARAMETERS[family]["optimizer"].default
        name = canonical(family, {**settings, "optimizer": own})
        with self._lock:  # so that none is worked out twice at a time
            return {
                "name": name,
                "optimizer": asked if asked != own else None,
                "grid": self._grid(name),
            }

    def _compute_grid(self, name: str) -> dict[str, Any]:
        model = planned_model(name)
        learned, devices = self._learn()
        measured = tuple(step for step in learned.measured if step.case.training)
        machines = [device.machine for device in devices]
        return grid_data([model], machines, measured, learned.fits, load_published("gpu"))
