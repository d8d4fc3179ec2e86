"""The calculator's page: its controls, its sources, and its answers for networks of the
families."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from http import HTTPStatus
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from perfctl.orchestrator.counts.hardware.machines import BOARDS, Device, Machine, classify_gpu
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.memory import RESERVE
from perfctl.orchestrator.predict.fit import StepFit
from perfctl.orchestrator.predict.grid import LARGEST
from perfctl.orchestrator.predict.models.calculator import (
    CalculatorModel,
    build_family_calculator_model,
)
from perfctl.orchestrator.predict.models.packed_grid import pack_time_grid
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.predict import Evidence
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.predict.published import ShippedFit
from perfctl.orchestrator.predict.published import load_shipped_fit as load_published
from perfctl.orchestrator.report.numbers import format_bytes_binary_prefix
from perfctl.orchestrator.report.prices import format_price_dates, list_price_publishers
from perfctl.workloads.models.plan import (
    PARAMETERS,
    ChoiceParameter,
    Parameter,
    format_canonical_spec,
    parse_spec_settings,
    plan_model,
)
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
COUNT: dict[str, Any] = {"low": 1, "is_integer": True, "always": True}
"""Options of a field that is a number of things."""
MACHINE_KEYS = ("name", "kind", "memory_bytes")
DEVICE_KEYS = ("source", "link_gbs", "link", "offers", "uncertain", "watts", "group", "mixed")
PRICE_KEYS = (
    "provider",
    "instance",
    "gpu",
    "count",
    "on_demand",
    "spot",
    "region",
    "date",
    "source",
    "is_old",
)
"""Fields of a device, its machine, and a price that the page has."""
MIXED = "mixed"
"""Precision that the page resolves for each device: :attr:`ListedDevice.mixed`."""


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
    uncertain: int = 0
    """Offers that may have it but do not state their form."""

    @property
    def mixed(self) -> str:
        """Mixed precision on this device: bf16, otherwise fp16, by its tensor cores; fp32 if it
        has none for them."""
        peaks = self.machine.flops_per_second
        return next((name for name in ("bf16", "fp16") if PATH_OF[name] in peaks), "fp32")


@dataclass(frozen=True, slots=True)
class CalculatorContents:
    """Everything that the page shows."""

    models: Sequence[CalculatorModel]
    devices: Sequence[ListedDevice]
    fits: Sequence[StepFit]
    measured: Sequence[StepMeasurement]
    prices: Sequence[Price]
    published: ShippedFit | None = None
    """The fit that ships."""
    price_source: str = ""
    notes: Sequence[str] = ()
    omitted: Sequence[str] = ()
    """A sentence for each requested model that the page lacks, with the reason."""


@dataclass(frozen=True, slots=True)
class CalculatorField:
    """One choice of the reader."""

    key: str
    """Its name after the # of a link."""
    label: str
    value: float | int | str
    unit: str = ""
    low: float = 0
    high: float | None = None
    is_integer: bool = False
    scale: str = ""
    """Of the slider: log2, log or linear; "" without one."""
    slider: tuple[float, float] | None = None
    step: float = 1
    choices: tuple[tuple[str, str], ...] = ()
    """(value, label) of a list to pick from; empty for a number."""
    always: bool = False
    """Whether it is part of every link."""
    groups: tuple[str, ...] = ()
    """Heading of each of ``choices``; empty without headings."""

    @property
    def data(self) -> dict[str, Any]:
        """The field as the scripts read it."""
        data = asdict(self)
        for key in ("choices", "unit", "groups"):
            del data[key]
        return data | {"options": [value for value, _ in self.choices] or None}


SHOW = CalculatorField(
    "show", "Which devices", "all", choices=tuple((name, name) for name in ("all", *GROUPS[1:]))
)
"""A switch above the table of devices: which rows it has."""
SORT = CalculatorField(
    "sort",
    "Sort the devices",
    "cost",
    choices=(("cost", "cheapest first"), ("time", "fastest first")),
)
"""A switch above the table of devices: the order of its rows."""


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """Fields under one heading."""

    key: str
    title: str
    fields: tuple[CalculatorField, ...]


@dataclass(frozen=True, slots=True)
class CalculatorView:
    """The record of templates/calculator.html."""

    parts: tuple[ControlGroup, ...]
    sort: CalculatorField
    show: CalculatorField
    about: tuple[str, ...]
    made: str
    data: Mapping[str, Any]
    title: str = "calculator for training time and cost"


def build_calculator_page(
    contents: CalculatorContents, *, date: str, version: str
) -> CalculatorView:
    """Return what the page shows. ``date``: of the page, YYYY-MM-DD."""
    names = [model.network.name for model in contents.models]
    first = "torchvision:resnet50" if "torchvision:resnet50" in names else names[0]
    network, *parts = _build_control_groups(contents, first)
    fields = [field for part in parts for field in part.fields]
    machines = [device.machine for device in contents.devices]
    data = {
        "grid": pack_time_grid(
            contents.models, machines, contents.measured, contents.fits, contents.published
        ),
        "machines": [
            _select_fields(device.machine, MACHINE_KEYS) | _select_fields(device, DEVICE_KEYS)
            for device in contents.devices
        ],
        "prices": [_select_fields(price, PRICE_KEYS) for price in contents.prices],
        "fields": [
            field.data
            for field in (
                CalculatorField("model", "model", first, always=True),
                *fields,
                SORT,
                SHOW,
            )
        ],
    }
    about = (*_describe_prediction_basis(contents), *contents.notes, *contents.omitted)
    source_text = f"perfctl {version} calculator, made on {date}."
    return CalculatorView((network, *parts), SORT, SHOW, about, source_text, data)


def _select_fields(record: object, keys: Sequence[str]) -> dict[str, Any]:
    return {key: getattr(record, key) for key in keys}


def _build_control_groups(
    contents: CalculatorContents, default_model: str
) -> tuple[ControlGroup, ...]:
    names: dict[str, list[str]] = {}
    for network in (model.network for model in contents.models):
        names.setdefault(network.family, []).append(network.name)
    families = tuple((family, family) for family in names)
    models = tuple((name, name.partition(":")[2]) for name in names.get("torchvision", ()))
    precisions = (
        (MIXED, "mixed, autocast"),
        ("fp32", "fp32 (TF32 off)"),
        ("tf32", "tf32"),
        ("bf16", "bf16, autocast"),
        ("fp16", "fp16, autocast"),
    )
    optimizers = (("sgd", "SGD"), ("momentum", "SGD, momentum"), ("adam", "Adam"))
    return (
        ControlGroup(
            "network",
            "Network",
            (
                CalculatorField("family", "Family", default_model, choices=families),
                CalculatorField(
                    "traced", "Model", default_model, choices=models or (("", "none"),)
                ),
            ),
        ),
        ControlGroup(
            "training",
            "Training",
            (
                CalculatorField(
                    "batch",
                    "Batch per GPU",
                    64,
                    high=LARGEST,
                    scale="log2",
                    slider=(1, 4096),
                    **COUNT,
                ),
                CalculatorField(
                    "samples", "Samples", 1_281_167, scale="log", slider=(1e3, 1e8), **COUNT
                ),
                CalculatorField("epochs", "Epochs", 90, scale="log", slider=(1, 1000), **COUNT),
                CalculatorField("precision", "Precision", MIXED, choices=precisions, always=True),
                CalculatorField(
                    "optimizer", "Optimizer", "momentum", choices=optimizers, always=True
                ),
            ),
        ),
        _build_device_controls(contents),
        ControlGroup(
            "parallel",
            "Several GPUs",
            (
                CalculatorField(
                    "overlap", "Hidden part", 0, unit="0 to 1, share of the communication", high=1
                ),
                CalculatorField("interconnect", "Link", 0, unit="GB/s; 0: data sheet"),
                CalculatorField("efficiency", "Efficiency", 0, unit="0: from the link", high=1),
            ),
        ),
        ControlGroup(
            "money",
            "Money",
            (
                CalculatorField(
                    "pay",
                    "Instances",
                    "on_demand",
                    choices=(("on_demand", "on demand"), ("spot", "spot, may be interrupted")),
                ),
                CalculatorField("price", "Own price", 0, unit="$/h per GPU; 0: from the table"),
                CalculatorField("tariff", "Energy", 0, unit="$/kWh; 0: no cost"),
            ),
        ),
    )


def _build_device_controls(contents: CalculatorContents) -> ControlGroup:
    """Return the choice of a device, newest generation first, and of a number of GPUs."""
    ages = list(dict.fromkeys(classify_gpu(board.gpu) for board in BOARDS))

    def rank_device_group(device: ListedDevice) -> tuple[int, int]:
        """Servers of one generation stay together, the newest first."""
        age = ages.index(device.group) if device.group in ages else 0
        return GROUPS.index(device.group.partition(",")[0]), -age

    def find_newest_single_gpu_price_date(device: ListedDevice) -> str:
        """The date of the newest on-demand price of one such GPU; "" without one."""
        prices = (contents.prices[number] for number in device.offers)
        dates = (price.date for price in prices if price.count == 1 and price.on_demand is not None)
        return max(dates, default="")

    listed = sorted(contents.devices, key=rank_device_group)
    devices = tuple((device.machine.name, device.machine.name) for device in listed)
    newest = max(listed, key=find_newest_single_gpu_price_date)  # the page opens on it
    return ControlGroup(
        "device",
        "Device",
        (
            CalculatorField(
                "device",
                "Device",
                newest.machine.name,
                choices=devices,
                always=True,
                groups=tuple(device.group for device in listed),
            ),
            CalculatorField("gpus", "GPUs", 1, scale="log2", slider=(1, 64), **COUNT),
        ),
    )


def _describe_prediction_basis(contents: CalculatorContents) -> tuple[str, ...]:
    """Return what the predictions rest on, a paragraph each."""
    old, published = [price for price in contents.prices if price.is_old], contents.published
    warning = (
        f" Prices of {format_price_dates(old)} were more than a year old when this page was "
        "created."
        if old
        else ""
    )
    traced = sum(model.network.family == "torchvision" for model in contents.models)
    fits = "; ".join(
        f"{fit.name} (error of models held out: {fit.fitted.error:.1%})" for fit in contents.fits
    )
    return (
        *([f"Fitted to your own runs: {fits}. A fit applies to its device only."] if fits else []),
        f"All {'other ' if fits else ''}GPUs: fitted to {published.rows:,} steps that others "
        "published for "
        f"{len(published.measured)} devices. A device or precision without published data has a "
        "wider range."
        if published is not None
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
        f"Prices: {len(contents.prices)} offers that state their GPU model, of "
        f"{format_price_dates(contents.prices)}, {contents.price_source} "
        f"({'; '.join(list_price_publishers(contents.prices))}). Prices change: check before you "
        f"rent.{warning} This page excludes offers without a known date."
        if contents.prices
        else "This page has no prices.",
        "'perfctl predict --device-spec' predicts for other devices.",
        (
            "Memory is the peak of the tensors in the selected precision, plus "
            f"{format_bytes_binary_prefix(RESERVE)} reserved on a GPU for the CUDA context, "
            f"workspaces "
            "and the allocator. The largest batch is an upper bound: "
            "'perfctl predict' replays the allocator, which cannot use every byte, and may find a "
            "slightly smaller batch."
        ),
        (
            "Times exclude data loading, preprocessing, validation and checkpoints. Costs exclude "
            "storage, network traffic, host energy, and recomputed work on spot instances."
        ),
    )


def _describe_family_parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    if isinstance(parameter, ChoiceParameter):
        return _select_fields(parameter, ("default", "words", "about"))
    low, high = _SLIDERS.get(name, (parameter.least, parameter.most))
    data = _select_fields(parameter, ("default", "least", "most", "odd", "multiple", "about"))
    return data | {"slider": [max(low, parameter.least), min(high, parameter.most)]}


@cache
def list_family_parameters() -> dict[str, Any]:
    """Return the parameters of each family with their ranges and the ends of their sliders; a
    residual network's depth with those that its blocks can make."""
    ranges = {
        family: {
            name: _describe_family_parameter(name, value) for name, value in parameters.items()
        }
        for family, parameters in PARAMETERS.items()
    }
    depth = ranges["resnet"]["depth"]
    low, high = depth["slider"]
    depth["stops"] = []
    for value in range(low, high + 1):
        with suppress(SpecError):
            plan_model(f"resnet:depth={value}")
            depth["stops"].append(value)
    return ranges


class FamilyAnswers:
    """Networks of the families by their parameters, computed on request; safe for several
    threads."""

    def __init__(self, learn: Callable[[], tuple[Evidence, Sequence[Device]]]) -> None:
        """``learn``: returns the evidence of the database, and every device; called once."""
        self._lock = Lock()
        self._learn = cache(learn)
        self._grid = lru_cache(KEPT)(self._compute_step_time_grid)

    def answer_query(self, query: str) -> tuple[HTTPStatus, Mapping[str, Any]]:
        """Return the answer to a request: ``model=SPEC`` gives :meth:`build_network_answer`,
        nothing :func:`list_family_parameters`, everything else an error."""
        if not query:
            return HTTPStatus.OK, {"families": list_family_parameters()}
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
            return HTTPStatus.OK, self.build_network_answer(spec)
        except SpecError as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except PerfctlError as error:
            return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error), "again": True}

    def build_network_answer(self, spec: str) -> dict[str, Any]:
        """Return what the page shows of one network: its name, the optimizer that the specification
        named, and its grid.

        Raises SpecError for a network that cannot be built, and for a text that is no
        specification; PerfctlError for a database that cannot be read.
        """
        family, settings = parse_spec_settings(spec)
        optimizer, default = settings["optimizer"], PARAMETERS[family]["optimizer"].default
        name = format_canonical_spec(family, {**settings, "optimizer": default})
        with self._lock:  # so that no network is computed twice at a time
            grid = self._grid(name)
        return {
            "name": name,
            "optimizer": optimizer if optimizer != default else None,
            "grid": grid,
        }

    def _compute_step_time_grid(self, name: str) -> dict[str, Any]:
        model = build_family_calculator_model(name)
        learned, devices = self._learn()
        measured = tuple(step for step in learned.measured if step.case.training)
        machines = [device.machine for device in devices]
        return pack_time_grid([model], machines, measured, learned.fits, load_published("gpu"))
