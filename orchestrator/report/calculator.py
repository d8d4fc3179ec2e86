"""The calculator's page: its controls, its sources, and the numbers that Python worked out, as
compact JSON.

A step by the fit that ships is the product of two tables of ``predict.grid``,
amounts of a model and costs of a device, so that 84 models on 99 devices stay small. Every other
step is a curve of ``predict.grid``. The page reads between two batch sizes on a straight
line. Numbers of the tables are 32-bit floats; those of a curve 16-bit levels, whose logarithms are
evenly spaced (``LEVELS`` a factor of e: 0.025% at most).
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date as Date
from itertools import islice, pairwise
from math import log
from typing import Any

from perfctl.orchestrator.counts.hardware.machines import BOARDS, Machine, class_of
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF
from perfctl.orchestrator.estimate.memory import (
    RESERVE,
    MemoryLine,
    largest_fitting,
    reserve_on,
    upper,
)
from perfctl.orchestrator.predict.cost import CLOSE
from perfctl.orchestrator.predict.fit import StepFitted
from perfctl.orchestrator.predict.grid import (
    LARGEST,
    PROBE,
    Amount,
    Amounts,
    Cell,
    Grid,
    Network,
    Split,
    costs,
    grid_of,
)
from perfctl.orchestrator.predict.grid import Part as SplitPart
from perfctl.orchestrator.predict.operations import OPTIMIZERS, Measured, element_bytes
from perfctl.orchestrator.predict.predict import PRECISIONS
from perfctl.orchestrator.predict.prices import Price
from perfctl.orchestrator.predict.published import Published
from perfctl.orchestrator.predict.step_parts import LIMIT_OF, PARTS
from perfctl.orchestrator.report.prices import days, sources

FORMAT = "perfctl grid 2"
LEVELS, LEAST = 2000, 1e-7
"""Of a stored number: levels for each factor of e, and the smallest number (0 is kept as 0)."""
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
WORK = {
    "conv": "convolutions",
    "pointwise": "1x1 convolutions",
    "grouped": "grouped convolutions",
    "depthwise": "depthwise convolutions",
    "linear": "linear layers",
    "matmul": "matrix products of activations, attention",
    "norm": "normalisations",
    "activation": "activations",
    "elementwise": "elementwise operations",
    "pool": "pooling",
    "softmax": "softmax and loss",
    "memory": "copies and other moves of bytes",
    "optimizer": "the optimizer",
    "overhead": "overhead of a step",
}
"""Group of work -> its name on the page."""
GROUPS = ("this machine", "data centre", "AMD", "workstation", "consumer")
"""Order of the devices in the list: the first word of a group."""
MIXED = "mixed"
"""What the page calls :func:`mixed_on`."""
LIMITS = {"arithmetic": "FLOPs", "bytes": "bandwidth", "operations": "launches"}


Lines = Mapping[str, Mapping[str, tuple[MemoryLine, ...]]]
"""Memory of a step over batch size, by precision and optimizer; of precisions with the same bytes,
one: :data:`SAME_BYTES`."""
SAME_BYTES = {"tf32": "fp32", "bf16": "fp16"}
"""A precision that a model's lines do not have -> the one whose lines are its own. TF32 is kept
as float32."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the page."""

    network: Network
    lines: Lines | None
    """None: not known."""
    amounts: Amounts
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
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
class Known:
    """Everything that the page shows."""

    models: Sequence[Model]
    places: Sequence[Place]
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
    title: str = "calculator of training time and cost"
    scripts: Sequence[str] = ("calculator_draw.js", "calculator_ui.js")


def page_view(known: Known, *, date: str, version: str) -> CalculatorView:
    """``date``: of the page, YYYY-MM-DD."""
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
    machines = [place.machine for place in known.places]
    price = (
        "provider",
        "instance",
        "gpu",
        "count",
        "on_demand",
        "spot",
        "region",
        "date",
        "source",
    )
    data = {
        "grid": grid_data(known.models, machines, known.measured, known.fits, known.published),
        "machines": [
            {
                "name": place.machine.name,
                "kind": place.machine.kind,
                "memory_bytes": place.machine.memory_bytes,
                "source": place.source,
                "mixed": mixed_on(place.machine),
                "link_gbs": place.link_gbs,
                "link": place.link,
                "offers": list(place.offers),
                "unsure": place.unsure,
                "watts": dict(place.watts),
                "group": place.group,
            }
            for place in known.places
        ],
        "prices": [
            {name: getattr(one, name) for name in price} | {"old": one.is_old(today)}
            for one in known.prices
        ],
        "fields": [one.data for one in fields],
    }
    made = f"perfctl {version} calculator, made on {date}."
    return CalculatorView(
        (network, *parts),
        SORT,
        SHOW,
        (*_about(known, today), *known.notes, *known.left_out),
        made,
        data,
    )


def mixed_on(machine: Machine) -> str:
    """Mixed precision on this device: bf16, else fp16, by its tensor cores; fp32 where it has none
    for them."""
    return next(
        (name for name in ("bf16", "fp16") if PATH_OF[name] in machine.flops_per_second), "fp32"
    )


def _controls(known: Known, first: str) -> tuple[Part, ...]:
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
    in_groups = sorted(known.places, key=_group_order)
    devices = tuple((place.machine.name, place.machine.name) for place in in_groups)
    device = max(in_groups, key=lambda place: _newest_alone(known, place)).machine.name
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
                    "Batch a GPU",
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
                Field("overlap", "Hidden part", 0, unit="0 to 1, of the communication", high=1),
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
                Field("price", "Own price", 0, unit="$/h a GPU; 0: the table's"),
                Field("tariff", "Energy", 0, unit="$/kWh; 0: not priced"),
            ),
        ),
    )


def _newest_alone(known: Known, place: Place) -> str:
    """Date of the newest price of one such GPU on demand; "" without one. The page opens on the
    first device with the newest."""
    offers = (known.prices[number] for number in place.offers)
    return max(
        (one.date for one in offers if one.count == 1 and one.on_demand is not None), default=""
    )


def _group_order(place: Place) -> tuple[int, int]:
    """Servers of one generation stay together, the newest first."""
    chips = list(dict.fromkeys(class_of(board.gpu) for board in BOARDS))
    return GROUPS.index(place.group.partition(",")[0]), -chips.index(
        place.group
    ) if place.group in chips else 0


def _about(known: Known, today: Date) -> tuple[str, ...]:
    late = [price for price in known.prices if price.is_old(today)]
    old = (
        f" Those of {days(late)} were more than a year old when this page was made." if late else ""
    )
    traced = sum(model.network.family == "torchvision" for model in known.models)
    fits = "; ".join(
        f"{fit.name} (error of models held out: {fit.fitted.error:.1%})" for fit in known.fits
    )
    return (
        *([f"Fitted to your own runs: {fits}. A fit holds for its device alone."] if fits else []),
        f"All other GPUs: learned from {known.published.rows:,} steps that others published for "
        f"{len(known.published.measured)} devices (docs/prediction.md). A device or precision that "
        "nobody published has a wider range."
        if known.published is not None
        else (
            "Other devices: the roofline, scaled by what the literature reports, with its wide "
            "range."
        ),
        (
            "Python worked out what each model computes and moves and what a unit of it takes on "
            "each device; the page multiplies: its times are within 0.5% of those of 'perfctl "
            "predict'."
        ),
        f"{traced} torchvision models were traced without data, for inputs as their weights state "
        "them."
        if traced
        else (
            "No torchvision model is in this page: it was made without torch, or with --models "
            "none."
        ),
        f"Prices: {len(known.prices)} offers that state their board, of {days(known.prices)}, "
        f"{known.prices_from} ({'; '.join(sources(known.prices))}). Prices change: check before "
        f"you rent.{old} Offers whose price has no known date are not in this page."
        if known.prices
        else "There is no price in this page.",
        (
            "The devices are those of docs/devices.md; 'perfctl predict --device-spec' takes the "
            "peaks of any other."
        ),
        (
            "Memory is that of the tensors at the fullest moment, in the precision that is "
            f"chosen, and {RESERVE / 1e9:.2f} GB that stay free on a GPU for the CUDA context, "
            "workspaces and the allocator (docs/formulas.md of perfctl). The largest batch is a "
            "bound: 'perfctl predict' replays the allocator, which cannot use every byte, and may "
            "find a few samples less."
        ),
        (
            "Not in the times: loading and preparing data, validation, checkpoints. Not in the "
            "costs: storage, traffic, the host's energy, and on spot instances what has to be "
            "computed again."
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


def grid_data(
    models: Sequence[Model],
    machines: Sequence[Machine],
    measured: Sequence[Measured],
    fits: Sequence[StepFitted],
    published: Published | None = None,
) -> dict[str, Any]:
    """Times of all models on all machines. Cells are in the order of machines,
    precisions, optimizers.

    ``layouts``: of each cell its sentences (``said``), curve and split, or -1, shared by models
    that have them alike. A curve is a row of knots, each four 16-bit numbers: batch - 1, then
    value, low and high as levels; a new one begins with batch 1. ``costs``: of each machine and
    precision by the fit that ships (:class:`grid.Cost`), rows of ``rates``.
    """
    said, layouts, rows, lists = _Once(), _Once(), _Once(), _Once()
    general = _General(machines, measured, fits, published, said)
    sizes = list(dict.fromkeys(map(_size, machines)))
    found = []
    for model in models:
        beyond = _Once()
        cells, grid = general.cells(model)
        places = {
            name: [-1 if (place := getattr(cell, name)) is None else place for _, cell in cells]
            for name in ("curve", "split", "backward")
        }
        layout = {
            "said": [words for words, _ in cells],
            **{name: found for name, found in places.items() if max(found, default=-1) >= 0},
            "beyond": [beyond.place(cell.beyond) for _, cell in cells],
        }
        worked = [
            {
                "batches": split.batches,
                "rows": [
                    (WORK[part.group], LIMITS[part.limit], name) for part, name in _parts(split)
                ],
            }
            for split in grid.splits
        ]  # (work, limit, optimizer or "" for all) of each row
        knots = [knot for curve in grid.curves for knot in curve]
        found.append(
            _model(model, sizes)
            | {
                "layout": layouts.place(layout),
                "beyond": beyond.items,
                "knots": packed(
                    [number for knot in knots for number in (knot.batch - 1, *map(level, knot[1:]))]
                ),
                "rows": [rows.place(row) for row in worked],
                "splits": packed(
                    [
                        level(amount)
                        for split in grid.splits
                        for part, _ in _parts(split)
                        for amount in part.amounts
                    ]
                ),
                **(_amounts(model.amounts, lists) if published is not None else {}),
            }
        )
    return {
        "format": FORMAT,
        "machines": [machine.name for machine in machines],
        "precisions": PRECISIONS,
        "optimizers": OPTIMIZERS,
        "largest": LARGEST,
        "levels": LEVELS,
        "least": LEAST,
        "close": CLOSE,
        "sizes": [sizes.index(_size(machine)) for machine in machines],
        "reserves": [reserve_on(machine.kind) for machine in machines],
        "same_bytes": SAME_BYTES,
        "bytes": [element_bytes(precision) for precision in PRECISIONS],
        "limits": [LIMITS[LIMIT_OF[part]] for part in PARTS],
        "said": said.items,
        "layouts": layouts.items,
        "rows": rows.items,
        "lists": lists.items,
        "models": found,
        **(_costs(published, machines) if published is not None else {}),
        "measured": [
            {
                "model": one.case.model,
                "machine": one.machine,
                "batch": one.case.batch,
                "precision": one.case.precision,
                "optimizer": one.case.optimizer,
                "seconds": one.seconds,
                "low": min(one.low, one.seconds),
                "high": max(one.high, one.seconds),
                "backward": one.backward,
            }
            for one in measured
        ],
    }


class _General:
    """Cells of all models. Where a device has no fit and no measured step of its own, its words are
    those of every model."""

    def __init__(
        self,
        machines: Sequence[Machine],
        measured: Sequence[Measured],
        fits: Sequence[StepFitted],
        published: Published | None,
        said: _Once,
    ) -> None:
        self.machines, self.measured, self.fits, self.published, self.said = (
            machines,
            measured,
            fits,
            published,
            said,
        )
        own = {one.machine.name for one in fits} | {one.machine for one in measured}
        self.plain = [
            published is not None and one.kind == "gpu" and one.name not in own for one in machines
        ]
        self.known: dict[str, list[tuple[int, Cell]]] = {}

    def cells(self, model: Model) -> tuple[list[tuple[int, Cell]], Grid]:
        """(the place of its words, the cell) of each; the curves and splits that cells point at."""
        plain = self.plain if model.network.works else [False] * len(self.machines)
        missing = [
            one
            for one, shared in zip(self.machines, plain, strict=True)
            if not shared or one.name not in self.known
        ]
        grid = grid_of(model.network, missing, self.measured, self.fits, self.published)
        made = iter(
            [
                (self.said.place(_said(cell, *_names(place, model, missing))), cell)
                for place, cell in enumerate(grid.cells)
            ]
        )
        found = []
        for machine, shared in zip(self.machines, plain, strict=True):
            mine = self.known.get(machine.name) if shared else None
            mine = mine or list(islice(made, len(PRECISIONS) * len(OPTIMIZERS)))
            if shared:
                self.known[machine.name] = mine
            found += mine
        return found, grid


def _amounts(known: Amounts, lists: _Once) -> dict[str, Any]:
    """``amounts``: by bytes of an activation and by optimizer, [place in ``lists`` of (work, part),
    the points of all].

    Points are pairs of 32-bit floats, batch and amount; a new row begins with batch 1.
    """

    def written(rows: Sequence[Amount]) -> tuple[int, str]:
        names = [(WORK[row.group], row.part) for row in rows]
        return lists.place(names), floats(
            [value for row in rows for point in row.points for value in point]
        )

    parts = {str(size): written(rows) for size, rows in known.steps.items()}
    parts |= {name: written(rows) for name, rows in known.optimizers.items()}
    return {"amounts": parts, "operations": known.operations}


def _costs(fit: Published, machines: Sequence[Machine]) -> dict[str, Any]:
    found = costs(fit, [one for one in machines if one.kind == "gpu"], PRECISIONS)
    return {
        "costs": [
            [found.of.get((one.name, precision)) for precision in PRECISIONS] for one in machines
        ],
        "rates": floats([rate for row in found.rows for rate in row]),
    }


class _Once:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, item: Any) -> int:
        key = json.dumps(item)
        if key not in self._places:
            self._places[key] = len(self.items)
            self.items.append(item)
        return self._places[key]


def _names(place: int, model: Model, machines: Sequence[Machine]) -> tuple[str, str]:
    """(model, machine) in the sentences of a cell."""
    machine, optimizer = divmod(place, len(OPTIMIZERS))
    named = model.network.names.get(OPTIMIZERS[optimizer], model.network.name)
    return named, machines[machine // len(PRECISIONS)].name


def _said(cell: Cell, model: str, machine: str) -> dict[str, Any]:
    """The sentences about a cell's times, with {model}, {device} and {batch} for the names that the
    page puts in."""

    def general(text: str) -> str:
        text = text.replace(machine, "{device}").removesuffix(f"not at {PROBE}")
        return (text + "not at {batch}" if text.endswith(", ") else text).replace(
            f" {model} ", " {model} "
        )

    if not cell.way:
        return {"reason": general(cell.reason)}
    return {
        "way": cell.way,
        "source": general(cell.source),
        "coverage": cell.coverage,
        "why_not": [general(text) for text in cell.why_not],
        "outside": [general(text) for text in cell.outside],
    }


def _size(machine: Machine) -> float | None:
    """Bytes for a step."""
    return machine.memory_bytes and machine.memory_bytes - reserve_on(machine.kind)


def _model(model: Model, sizes: Sequence[float | None]) -> dict[str, Any]:
    """A largest batch, one for each size of memory, is None where the memory is not known or sets
    no end."""
    network, lines = model.network, model.lines
    return {
        "name": network.name,
        "family": network.family,
        "parameters": network.parameters,
        "notes": model.notes,
        "names": dict(network.names),
        "lines": lines
        and {
            precision: {name: _lines(of) for name, of in each.items()}
            for precision, each in lines.items()
        },
        "largest": lines
        and {
            precision: {
                name: [None if size is None else largest_fitting(of, size) for size in sizes]
                for name, of in each.items()
            }
            for precision, each in lines.items()
        },
    }


def _lines(lines: Sequence[MemoryLine]) -> list[MemoryLine]:
    batches = {1, LARGEST}
    for steep, flat in pairwise(upper(lines)):
        crossing = (flat.fixed - steep.fixed) // (steep.per_sample - flat.per_sample)
        batches |= {min(max(batch, 1), LARGEST) for batch in (crossing, crossing + 1)}
    return sorted(
        {max(lines, key=lambda line: line.fixed + line.per_sample * batch) for batch in batches}
    )


def _parts(split: Split) -> list[tuple[SplitPart, str]]:
    """(part, optimizer or "" for all)."""
    own = [(part, name) for name, parts in split.optimizers.items() for part in parts]
    return [*((part, "") for part in split.parts), *own]


def level(value: float) -> int:
    """The stored number of a value, 0 or more; :data:`LEAST` for smaller ones."""
    return min(max(round(log(value / LEAST) * LEVELS), 1), 0xFFFF) if value > 0 else 0


def packed(numbers: Sequence[int]) -> str:
    """16-bit numbers, little end first, in base64."""
    return b64encode(struct.pack(f"<{len(numbers)}H", *numbers)).decode("ascii")


def floats(numbers: Sequence[float]) -> str:
    """32-bit floats, little end first, in base64."""
    return b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode("ascii")
