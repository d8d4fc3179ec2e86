"""What perfctl predict is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.memory import MemoryLine, StepMemory
from perfctl.orchestrator.predict.cost import Training
from perfctl.orchestrator.predict.operations import Operation
from perfctl.orchestrator.predict.predict import PRECISIONS, Evidence, StepTime
from perfctl.orchestrator.predict.prices import Price, PriceTable

LIKE = {"adamw": "adam", "adadelta": "adam", "rmsprop": "momentum"}
OPTIMIZERS = ("sgd", "momentum", "adam", *LIKE)
DEFAULT_OPTIMIZER = "momentum"
ENGINES = {
    "eager": ("fp32", "tf32", "fp16", "bf16"),
    "tensorrt-llm": ("fp16", "bf16", "fp8"),
}
"""Engine of generation -> types of weights and arithmetic that it is predicted in. In fp8 the head,
embeddings and attention stay in 16 bits."""
CACHES = {"eager": (), "tensorrt-llm": ("fp16", "bf16", "fp8", "int8")}
"""Engine -> types of the KV cache that it can be asked for; eager keeps it in the type of the
weights."""


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


@dataclass(frozen=True, slots=True)
class Question:
    """The options of ``perfctl predict``, of a training and, with ``prompt``, of generation."""

    model: str
    batches: tuple[int, ...]
    """Samples per step and GPU, or sequences that are generated at once; one prediction each."""
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
    """Price of a kWh."""
    power: float | None = None
    """W of one GPU."""
    link_gbs: float | None = None
    overlap: float = 0.0
    efficiency: float | None = None
    inputs: tuple[str, ...] = ()
    threads: int | None = None
    """Of a CPU; None for as many as torch uses."""
    seq: int | None = None
    prices: Path | None = None
    """A price table in place of the one in use."""
    channels_last: bool = False
    undated: bool = False
    """Use prices, too, whose date nobody knows, and promotional ones."""
    compiled: bool = False
    prompt: int | None = None
    """Tokens that go in at once; None: the model does not generate text."""
    generate: int = 1
    engine: str = "eager"
    kv_cache: str | None = None

    def check(self) -> None:
        """Raise UsageError for values that make no sense, with the field in backquotes."""
        if not self.batches or any(batch < 1 for batch in self.batches):
            raise UsageError("`batch` must be at least 1", "For example `batch` 64")
        if self.prompt is not None:
            self._check_generation(self.prompt)
            return
        if self.precision not in PRECISIONS:
            raise UsageError(
                f"`precision` must be one of {', '.join(PRECISIONS)}, got '{self.precision}'"
            )
        self._check_ranges()
        if self.infer and self.optimizer is not None:
            raise UsageError(
                "`optimizer` with `infer`: inference has no optimizer", "Omit one of them"
            )
        on_cpu = (self.device or "").lower() == "cpu"
        if on_cpu and self.precision == "tf32":
            raise UsageError(
                "a CPU has no TF32: products would run in fp32", "Use `precision` fp32"
            )
        if self.compiled and not self.infer:
            why = (
                "`compiled` in training: no times under torch.compile were published that perfctl "
                "may learn from"
            )
            raise UsageError(why, "Predict inference with `infer`, or leave it out for eager mode")
        if self.compiled and on_cpu and self.precision != "fp32":
            why = f"`compiled` with `device` cpu in {self.precision}: perfctl has no fit of it"
            raise UsageError(why, "Use `precision` fp32, or leave it out for eager mode")
        if self.infer and self.gpus > 1:
            why = "`gpus` with `infer`: GPUs do not exchange gradients"
            raise UsageError(why, "Divide the dataset by them instead")
        if self.epochs is not None and self.samples is None:
            remedy = "Samples of an epoch, for example `dataset_size` 1281167"
            raise UsageError("`epochs` without `dataset_size`", remedy)

    def _check_ranges(self) -> None:
        counts = {
            "dataset_size": self.samples,
            "epochs": self.epochs,
            "gpus": self.gpus,
            "threads": self.threads,
            "seq": self.seq,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise UsageError(f"`{name}` must be at least 1, got {count}")
        amounts = {"tariff": self.tariff, "power": self.power, "interconnect": self.link_gbs}
        for name, amount in amounts.items():
            if amount is not None and not 0 < amount < inf:
                raise UsageError(
                    f"`{name}` must be a number above 0, got {amount}", "Omit it if it is not known"
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

    def _check_generation(self, prompt: int) -> None:
        for name, tokens in (("prompt", prompt), ("generate", self.generate)):
            if tokens < 1:
                raise UsageError(
                    f"`{name}` must be at least 1, got {tokens}", f"For example `{name}` 128"
                )
        if self.engine not in ENGINES:
            raise UsageError(
                f"`engine`: '{self.engine}' is not known", f"Use {' or '.join(ENGINES)}"
            )
        precisions = ENGINES[self.engine]
        if self.precision not in precisions:
            raise UsageError(
                f"`precision`: '{self.precision}' is not predicted for {self.engine}",
                f"Use {', '.join(precisions)}",
            )
        caches = CACHES[self.engine]
        if self.kv_cache is not None and self.kv_cache not in caches:
            if not caches:
                text = "PyTorch in eager mode keeps the cache in the type of the weights"
                raise UsageError(
                    f"`kv_cache` {self.kv_cache}: {text}", "Omit it, or use `engine` tensorrt-llm"
                )
            raise UsageError(
                f"`kv_cache`: '{self.kv_cache}' is not predicted", f"Use {', '.join(caches)}"
            )
        if (self.device or "").lower() == "cpu":
            raise UsageError(
                "`prompt` with `device` cpu: generation is predicted on GPUs only",
                "Name a GPU, for instance `device` A100",
            )


@dataclass(frozen=True, slots=True)
class Setting:
    """The device and the prices of a question, looked up once."""

    device: Device
    prices: PriceTable
    """Prices that the question may use."""
    offers: tuple[Price, ...]
    """The usable prices of instances that have this device."""
    unused_offers: int
    """Offers of this device that are not used for want of a date."""

    def unused_note(self) -> str | None:
        """Return a sentence about offers of this device that are not used; None without any."""
        if not self.unused_offers:
            return None
        none = "" if self.offers else "no cost: "
        return (
            f"{none}offers whose price has no known date, or is promotional, are not used "
            f"({self.unused_offers} of them; `undated` takes them)"
        )


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
    evidence: Evidence = field(default_factory=Evidence)
    """What the predictions rest on."""

    @property
    def step(self) -> StepTime:
        return self.points[0].step

    @property
    def training(self) -> Training:
        return self.points[0].training
