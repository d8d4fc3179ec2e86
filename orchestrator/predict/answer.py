"""What perfctl predict is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.memory import MemoryLine, StepMemory
from perfctl.orchestrator.predict.cost import Training
from perfctl.orchestrator.predict.operations import Operation, StepSpec
from perfctl.orchestrator.predict.predict import PRECISIONS, StepTime
from perfctl.orchestrator.predict.prices import PriceTable

LIKE = {"adamw": "adam", "adadelta": "adam", "rmsprop": "momentum"}
OPTIMIZERS = ("sgd", "momentum", "adam", *LIKE)
DEFAULT_OPTIMIZER = "momentum"


@dataclass(frozen=True, slots=True)
class Subject:
    """One model, in training or inference."""

    model: str
    family: str
    works: tuple[Operation, ...]
    training: bool
    parameters: int
    optimizer: str
    """The user's or the model's own; "" in inference."""
    lines: tuple[MemoryLine, ...] | None
    """Bytes of the tensors of a step by batch. None: not known."""
    notes: tuple[str, ...] = ()
    memory: StepMemory | None = None
    """The step's storages, for a replay of a GPU's allocator. None where the model was
    not traced."""
    tokens: int | None = None
    """Of one sample; None where a sample is not a sequence of tokens."""

    def case(
        self, batch: int, precision: str, channels_last: bool = False, compiled: bool = False
    ) -> StepSpec:
        return StepSpec(
            model=self.model,
            family=self.family,
            works=self.works,
            batch=batch,
            training=self.training,
            precision=precision,
            optimizer=LIKE.get(self.optimizer, self.optimizer),
            parameters=self.parameters,
            channels_last=channels_last,
            compiled=compiled,
        )


@dataclass(frozen=True, slots=True)
class Question:
    """The options of ``perfctl predict``; tariff: price of a kWh; power: W of one GPU; threads of a
    CPU, by default torch's."""

    model: str
    batches: tuple[int, ...]
    """Samples per step and GPU; one prediction each."""
    device: str | None = None
    device_spec: str | None = None
    samples: int | None = None
    epochs: int | None = None
    precision: str = "fp32"
    optimizer: str | None = None
    gpus: int = 1
    infer: bool = False
    store: Path = field(default=Path("perfctl.db"))
    tariff: float | None = None
    power: float | None = None
    link_gbs: float | None = None
    overlap: float = 0.0
    efficiency: float | None = None
    inputs: tuple[str, ...] = ()
    threads: int | None = None
    seq: int | None = None
    prices: Path | None = None
    """A price table in place of the one in use."""
    channels_last: bool = False
    undated: bool = False
    """Use prices, too, whose date nobody knows, and promotional ones."""
    compiled: bool = False

    def check(self) -> None:
        """Raises UsageError for values that make no sense, with the field in backquotes."""
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise UsageError("`batch` must be at least 1", "For example `batch` 64")
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"`precision` must be one of {', '.join(PRECISIONS)}, got '{self.precision}'"
            )
        whole = {
            "dataset_size": self.samples,
            "epochs": self.epochs,
            "gpus": self.gpus,
            "threads": self.threads,
        }
        whole["seq"] = self.seq
        for name, value in whole.items():
            if value is not None and value < 1:
                raise UsageError(f"`{name}` must be at least 1, got {value}")
        for name, given in (
            ("tariff", self.tariff),
            ("power", self.power),
            ("interconnect", self.link_gbs),
        ):
            if given is not None and not 0 < given < float("inf"):
                raise UsageError(
                    f"`{name}` must be a number above 0, got {given}", "Omit it if it is not known"
                )
        if not 0 <= self.overlap <= 1:
            raise UsageError(
                f"`overlap` must be between 0 and 1, got {self.overlap}", "With 0 nothing is hidden"
            )
        if self.efficiency is not None and not 0 < self.efficiency <= 1:
            raise UsageError(
                f"`efficiency` must be above 0 and at most 1, got {self.efficiency}",
                "For example 0.9",
            )
        if self.infer and self.optimizer is not None:
            raise UsageError(
                "`optimizer` with `infer`: inference has no optimizer", "Omit one of them"
            )
        if self.compiled and not self.infer:
            why = (
                "`compiled` in training: no times under torch.compile were published that perfctl "
                "may learn from"
            )
            raise UsageError(why, "Predict inference with `infer`, or leave it out for eager mode")
        if self.compiled and (self.device or "").lower() == "cpu" and self.precision != "fp32":
            why = f"`compiled` with `device` cpu in {self.precision}: perfctl has no fit of it"
            raise UsageError(why, "Use `precision` fp32, or leave it out for eager mode")
        if self.infer and self.gpus > 1:
            why = "`gpus` with `infer`: GPUs do not exchange gradients"
            raise UsageError(why, "Divide the dataset by them instead")
        if self.epochs is not None and self.samples is None:
            remedy = "Samples of an epoch, for example `dataset_size` 1281167"
            raise UsageError("`epochs` without `dataset_size`", remedy)


@dataclass(frozen=True, slots=True)
class AnswerPoint:
    step: StepTime
    training: Training


@dataclass(frozen=True, slots=True)
class Answer:
    """Times in seconds as spans from low to high, costs in US dollars, memory in bytes."""

    question: Question
    subject: Subject
    device: Device
    points: tuple[AnswerPoint, ...]
    prices: PriceTable
    notes: tuple[str, ...]

    @property
    def step(self) -> StepTime:
        return self.points[0].step

    @property
    def training(self) -> Training:
        return self.points[0].training
