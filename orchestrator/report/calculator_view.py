"""What templates/calculator.html reads: the controls, what the page rests on, and the data its scripts compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from perfctl.orchestrator.analyse.step_records import StepFitted
from perfctl.orchestrator.report.calculator_data import Known, page_data
from perfctl.orchestrator.report.prices_text import days, sources

_SCRIPTS = "text plan work parts trees predict memory cost answer state controls chart show tables ui"
SCRIPTS = tuple(f"calculator_{name}.js" for name in _SCRIPTS.split())
"""In the order in which they stand in the page: each uses what stands before it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One choice of the reader. ``key`` is its name after the # of a link."""

    key: str
    label: str
    value: float | int | str
    """What it begins with."""
    unit: str = ""
    low: float = 0
    high: float | None = None
    """None: no upper end."""
    whole: bool = False
    scale: str = ""
    """Of the slider: log2, log or linear; "" without one."""
    slider: tuple[float, float] | None = None
    step: float = 1
    said: tuple[tuple[str, str], ...] = ()
    """(value, how it is written) of a list to pick from; empty for a number."""
    always: bool = False
    """Stands in every link."""

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts need of it."""
        found = {key: value for key, value in asdict(self).items() if key not in ("said", "unit")}
        return found | {"options": [value for value, _ in self.said] or None}


@dataclass(frozen=True, slots=True)
class Part:
    """Fields under one heading."""

    key: str
    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class PageView:
    """What the template reads."""

    parts: tuple[Part, ...]
    about: tuple[str, ...]
    made: str
    data: Mapping[str, Any]
    title: str = "calculator of training time and cost"
    scripts: Sequence[str] = field(default=SCRIPTS)


PRECISIONS = (
    ("fp32", "fp32 (TF32 off)"), ("tf32", "tf32"), ("bf16", "bf16, autocast"), ("fp16", "fp16, autocast"),
)  # fmt: skip
OPTIMIZERS = (("sgd", "SGD"), ("momentum", "SGD, momentum"), ("adam", "Adam"))
PAY = (("on_demand", "on demand"), ("spot", "spot, which can be taken away"))
NOT_IN_IT = (
    "Not in the times: loading and preparing data, validation, checkpoints. Not in the costs: storage, traffic, the host's "
    "energy, and on spot instances what has to be computed again."
)
MEMORY = (
    "Memory is that of the tensors at the fullest moment, in fp32: the allocator's rounding, workspaces and the CUDA context "
    "come on top, and under autocast activations take less."
)


def page_view(known: Known, *, date: str, version: str, prices_from: str, notes: Sequence[str] = ()) -> PageView:
    """``date``: of the page, YYYY-MM-DD; ``prices_from``: which price table this is, in words."""
    first = _first_model(known)
    return PageView(
        parts=(_network(known, first), _training(), _devices(known), _parallel(), _money()),
        about=(*_about(known, prices_from), *notes),
        made=f"perfctl {version} calculator, made on {date}.",
        data=page_data(known) | {"fields": [one.data for one in _fields(known, first)]},
    )


def _first_model(known: Known) -> str:
    names = [model.name for model in known.models]
    return "torchvision:resnet50" if "torchvision:resnet50" in names else next(iter(known.families))


def _fields(known: Known, first: str) -> tuple[Field, ...]:
    parts = (_training(), _devices(known), _parallel(), _money())
    return (Field("model", "model", first, always=True), *(field for part in parts for field in part.fields))


def _network(known: Known, first: str) -> Part:
    families = (*((name, name) for name in known.families), ("torchvision", "torchvision"))
    models = tuple((model.name, model.name.partition(":")[2]) for model in known.models)
    return Part(
        "network",
        "Network",
        (
            Field("family", "Family", first, said=families if models else families[:-1]),
            Field("traced", "Model", first, said=models or (("", "none"),)),
        ),
    )


def _training() -> Part:
    return Part(
        "training",
        "Training",
        (
            Field("batch", "Batch a GPU", 64, low=1, whole=True, scale="log2", slider=(1, 4096), always=True),
            Field("samples", "Samples", 1_281_167, low=1, whole=True, scale="log", slider=(1e3, 1e8),
                  always=True),
            Field("epochs", "Epochs", 90, low=1, whole=True, scale="log", slider=(1, 1000), always=True),
            Field("precision", "Precision", "fp32", said=PRECISIONS, always=True),
            Field("optimizer", "Optimizer", "momentum", said=OPTIMIZERS, always=True),
        ),
    )  # fmt: skip


def _devices(known: Known) -> Part:
    names = tuple((place.machine.name, place.machine.name) for place in known.places)
    first = next((name for name, _ in names if name.startswith("A100 SXM4 40")), names[0][0])
    return Part("device", "Device", (Field("device", "Device", first, said=names, always=True),
                                     Field("gpus", "GPUs", 1, low=1, whole=True, scale="log2", slider=(1, 64),
                                           always=True)))  # fmt: skip


def _parallel() -> Part:
    return Part(
        "parallel",
        "Several GPUs",
        (
            Field("overlap", "Hidden part", 0, unit="0 to 1, of the communication", high=1),
            Field("interconnect", "Link", 0, unit="GB/s; 0: data sheet"),
            Field("efficiency", "Efficiency", 0, unit="0: from the link", high=1),
        ),
    )


def _money() -> Part:
    return Part(
        "money",
        "Money",
        (
            Field("pay", "Instances", "on_demand", said=PAY),
            Field("price", "Own price", 0, unit="$/h a GPU; 0: the table's"),
            Field("tariff", "Energy", 0, unit="$/kWh; 0: not priced"),
        ),
    )


def _about(known: Known, prices_from: str) -> tuple[str, ...]:
    trained = [fit for fit in known.fits if fit.training]
    return (
        _fits(trained),
        f"{len(known.models)} torchvision models were traced without data, for inputs as their weights state them."
        if known.models else "No torchvision model is in this page: it was made without torch, or with --models none.",
        f"Prices: {len(known.prices)} offers of {days(known.prices)}, {prices_from} ({', '.join(sources(known.prices))}). "
        "Prices change: look before you rent."
        if known.prices else "There is no price in this page.",
        MEMORY,
        NOT_IN_IT,
    )  # fmt: skip


def _fits(fits: Sequence[StepFitted]) -> str:
    if not fits:
        return (
            "Nothing was fitted: the store has no 20 measured steps of one device. Times are those of the roofline, scaled "
            "by what the literature reports, with its wide range; 'perfctl bench' measures what a fit needs."
        )
    said = "; ".join(f"{fit.name} (error of models held out: {fit.fitted.error:.1%})" for fit in fits)
    return f"Fitted: {said}. On other devices of the kind the fit is moved by peaks and bandwidth, or the roofline is taken."
