"""What perfctl predict is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar

from perfctl.orchestrator.counts.hardware.machines import Device
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.memory import MemoryLine, StepMemory
from perfctl.orchestrator.estimate.parallel import Plan
from perfctl.orchestrator.options import Option, parse_batch_sizes, raise_if_invalid_batch_sizes
from perfctl.orchestrator.predict.cost import TrainingCost
from perfctl.orchestrator.predict.operations import Operation
from perfctl.orchestrator.predict.predict import PRECISIONS, Evidence, StepTime
from perfctl.orchestrator.predict.prices import Price, PriceTable

LIKE = {"adamw": "adam", "adadelta": "adam", "rmsprop": "momentum"}
OPTIMIZERS = ("sgd", "momentum", "adam", *LIKE)
ENGINES = {
    "eager": ("fp32", "tf32", "fp16", "bf16"),
    "tensorrt-llm": ("fp16", "bf16", "fp8"),
}
"""Engine of generation -> types of weights and arithmetic that it is predicted in. In fp8 the head,
embeddings and attention stay in 16 bits."""
CACHES = {"eager": (), "tensorrt-llm": ("fp16", "bf16", "fp8", "int8")}
"""Engine -> types of the KV cache that it can be asked for; eager keeps it in the type of the
weights."""
GENERATION_ONLY = ("generate", "kv_cache", "engine")
TRAINING_ONLY = (
    "dataset_size",
    "epochs",
    "optimizer",
    "gpus",
    "parallel",
    "overlap",
    "interconnect",
    "efficiency",
    "seq",
    "tariff",
    "power",
    "threads",
    "store",
    "inputs",
    "channels_last",
    "compiled",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """One model, in training or inference."""

    JSON_KEYS = ("model", "mode", "optimizer", "parameters", "tokens")
    JSON_NAMES: ClassVar = {"tokens": "tokens_per_sample"}

    model: str
    family: str
    works: tuple[Operation, ...]
    training: bool
    parameters: int
    optimizer: str | None
    """The user's or the model's own; None in inference."""
    lines: tuple[MemoryLine, ...] | None
    """Bytes of the tensors of a step by batch. None: not known."""
    notes: tuple[str, ...] = ()
    memory: StepMemory | None = None
    """The step's storages, for a replay of a GPU's allocator. None where the model was
    not traced."""
    tokens: int | None = None
    """Tokens of one sample; None if a sample is not a sequence of tokens."""

    @property
    def mode(self) -> str:
        """Return "train" or "infer"."""
        return "train" if self.training else "infer"


@dataclass(frozen=True, slots=True)
class Question:
    """Predict the time, memory and cost of a model on a device that need not be there.

    ``perfctl.predict`` answers for training and inference: ``answer.step.seconds`` (``low``,
    ``high``) is one step on one GPU, ``answer.training.total`` the training (None without
    ``dataset_size`` and ``epochs``), ``answer.training.rentals`` its cost in US dollars by offer.
    ``perfctl.predict_generation`` answers for a model that generates text:
    ``answer.points[0].prefill.time`` is the time to the first token in seconds.

    Raises UsageError for what makes no sense, ToolMissing without torch if the model needs it,
    PerfctlError if the model's own code fails, StoreError for a damaged store.
    """

    model: Annotated[
        str | None,
        Option(
            "Model as in 'perfctl estimate': torchvision:NAME, hf:NAME, resnet:depth=26, ...",
            is_argument=True,
        ),
    ] = None
    _: KW_ONLY
    batch: Annotated[
        int | Sequence[int],
        Option(
            "Samples per step and GPU (generation: sequences), or several for a table: 16,32,64.",
            names=("--batch", "--batches", "-b"),
            metavar="N,...",
            parse=partial(parse_batch_sizes, field="batch"),
        ),
    ] = ()
    device: Annotated[
        str | None,
        Option("GPU such as A100, V100 SXM2 32 GB or rtx3090; cpu means the CPU of this machine."),
    ] = None
    threads: Annotated[
        int | None,
        Option("CPU threads, with --device cpu. Default: the thread count of torch."),
    ] = None
    device_spec: Annotated[
        str | None,
        Option(
            "Peaks of another device: name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24.",
            metavar="SPEC",
        ),
    ] = None
    dataset_size: Annotated[int | None, Option("Samples per epoch.")] = None
    epochs: Annotated[int | None, Option("Passes over the dataset.")] = None
    precision: Annotated[
        str | None,
        Option(
            "fp32 (TF32 off), tf32, bf16, fp16; with --prompt also fp8. Default: fp32; with "
            "--prompt fp16."
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        Option(
            "sgd, momentum, adam, adamw, ... Default: the optimizer of the model, otherwise "
            "momentum."
        ),
    ] = None
    gpus: Annotated[int, Option("Number of data-parallel GPUs.")] = 1
    parallel: Plan = None
    interconnect: Annotated[
        float | None,
        Option(
            "One-way bandwidth between GPUs. Default: the link of the data sheet.", metavar="GB/S"
        ),
    ] = None
    overlap: Annotated[
        float, Option("Share of the communication hidden behind backward, 0 to 1.")
    ] = 0.0
    efficiency: Annotated[
        float | None,
        Option("Data-parallel efficiency, 0 to 1, instead of computing it."),
    ] = None
    mode: Annotated[str, Option("train, or infer: forward only.")] = "train"
    inputs: Annotated[
        Sequence[str],
        Option(
            "Shape of one sample, if the model does not state it: 3x224x224.",
            names=("--input",),
            metavar="SHAPE",
        ),
    ] = ()
    seq: Annotated[
        int | None, Option("Sequence length of a library model, in tokens or audio samples.")
    ] = None
    prompt: Annotated[
        int | None,
        Option("Generation: tokens of the prompt (prefill)."),
    ] = None
    generate: Annotated[
        int, Option("Generation: number of generated tokens; the first comes from prefill.")
    ] = 1
    kv_cache: Annotated[
        str | None,
        Option(
            "Generation: data type of the KV cache: fp16, bf16, fp8, int8. Default: type of the "
            "weights."
        ),
    ] = None
    engine: Annotated[
        str,
        Option("Generation: eager (PyTorch) or tensorrt-llm (fused kernels, CUDA graphs)."),
    ] = "eager"
    channels_last: Annotated[bool, Option("Store images channels-last in memory (NHWC).")] = False
    compiled: Annotated[
        bool,
        Option("Use torch.compile (inference only; on CPUs fp32 only).", names=("--compile",)),
    ] = False
    tariff: Annotated[float | None, Option("Electricity price per kWh.")] = None
    power: Annotated[
        float | None,
        Option("Power of one GPU in W. Default: measured, otherwise from the data sheet."),
    ] = None
    prices: Annotated[
        Path | None,
        Option("Price table (CSV). Default: your table if you set one, otherwise perfctl's."),
    ] = None
    undated: Annotated[
        bool,
        Option("Also use offers with an undated or promotional price."),
    ] = False
    store: Annotated[
        Path | None,
        Option("Results database whose runs are used. Default: perfctl.db, if it exists."),
    ] = None

    @property
    def name(self) -> str:
        """The model's name. Raises UsageError without one."""
        if self.model is None:
            raise UsageError("no model", "Name a model, for example torchvision:resnet50")
        return self.model

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes, one prediction each; one sequence if text is generated and none is given."""
        sizes = (self.batch,) if isinstance(self.batch, int) else tuple(self.batch)
        return sizes or ((1,) if self.prompt is not None else ())

    @property
    def precision_or_default(self) -> str:
        """The precision, by default fp32, and fp16 if text is generated."""
        return self.precision or ("fp32" if self.prompt is None else "fp16")

    @property
    def is_inference(self) -> bool:
        return self.mode == "infer"

    def check(self) -> None:
        """Raise UsageError for values that make no sense, with the field in backquotes."""
        if not self.batches:
            remedy = "Use `batch` 64, or `batch` 16,32,64 for a table"
            raise UsageError("no batch size was set", remedy)
        raise_if_invalid_batch_sizes(self.batches)
        if self.prompt is not None:
            self._raise_if_generation_invalid(self.prompt)
            return
        for name in GENERATION_ONLY:
            if self._is_not_default(name):
                remedy = "Set the prompt length in tokens, for example `prompt` 512"
                raise UsageError(f"`{name}` needs `prompt`", remedy)
        if self.precision_or_default not in PRECISIONS:
            raise UsageError(
                f"`precision` must be one of {', '.join(PRECISIONS)}, got '{self.precision}'"
            )
        if self.mode not in ("train", "infer"):
            raise UsageError(f"invalid value '{self.mode}' for `mode`", "Choose train or infer")
        self._raise_if_number_invalid()
        self._raise_if_options_conflict()
        if self.epochs is not None and self.dataset_size is None:
            remedy = "Set the samples per epoch, for example `dataset_size` 1281167"
            raise UsageError("`epochs` needs `dataset_size`", remedy)

    def _is_not_default(self, name: str) -> bool:
        """Return whether the field was given another value than its default."""
        value = getattr(self, name)
        return any(
            value not in (field.default, []) for field in fields(Question) if field.name == name
        )

    def _raise_if_options_conflict(self) -> None:
        on_cpu = (self.device or "").lower() == "cpu"
        if self.is_inference and self.optimizer is not None:
            raise UsageError(
                "`optimizer` is not available with `mode` infer, because inference has no "
                "optimizer",
                "Omit one of them",
            )
        if on_cpu and self.precision == "tf32":
            raise UsageError(
                "a CPU has no TF32: matrix multiplications would run in fp32",
                "Use `precision` fp32",
            )
        if self.compiled and not self.is_inference:
            problem = (
                "`compiled` is not available in training: perfctl found no published times under "
                "torch.compile"
            )
            remedy = "Predict inference with `mode` infer, or omit it for eager mode"
            raise UsageError(problem, remedy)
        if self.compiled and on_cpu and self.precision_or_default != "fp32":
            problem = f"`compiled` with `device` cpu in {self.precision}: perfctl has no fit for it"
            raise UsageError(problem, "Use `precision` fp32, or omit it for eager mode")
        if self.parallel is not None and self.gpus > 1:
            raise UsageError("`parallel` and `gpus` exclude each other", "Use `parallel` dp=N,...")
        if self.is_inference and (self.gpus > 1 or self.parallel is not None):
            name = "gpus" if self.gpus > 1 else "parallel"
            problem = (
                f"`{name}` is not available with `mode` infer, because GPUs exchange no gradients"
            )
            raise UsageError(problem, "Divide the dataset by the number of GPUs instead")

    def _raise_if_number_invalid(self) -> None:
        counts = {
            "dataset_size": self.dataset_size,
            "epochs": self.epochs,
            "gpus": self.gpus,
            "threads": self.threads,
            "seq": self.seq,
        }
        for name, count in counts.items():
            if count is not None and count < 1:
                raise UsageError(f"`{name}` must be at least 1, got {count}")
        amounts = {"tariff": self.tariff, "power": self.power, "interconnect": self.interconnect}
        for name, amount in amounts.items():
            if amount is not None and not 0 < amount < inf:
                raise UsageError(
                    f"`{name}` must be a number above 0, got {amount}", "Omit it if it is unknown"
                )
        if not 0 <= self.overlap <= 1:
            raise UsageError(
                f"`overlap` must be between 0 and 1, got {self.overlap}", "0 hides no communication"
            )
        if self.efficiency is not None and not 0 < self.efficiency <= 1:
            raise UsageError(
                f"`efficiency` must be above 0 and at most 1, got {self.efficiency}",
                "For example 0.9",
            )

    def _raise_if_generation_invalid(self, prompt_tokens: int) -> None:
        for name in TRAINING_ONLY:
            if self._is_not_default(name):
                raise UsageError(f"`{name}` and `prompt` exclude each other", f"Omit `{name}`")
        for name, tokens in (("prompt", prompt_tokens), ("generate", self.generate)):
            if tokens < 1:
                raise UsageError(
                    f"`{name}` must be at least 1, got {tokens}", f"For example `{name}` 128"
                )
        if self.engine not in ENGINES:
            raise UsageError(
                f"invalid value '{self.engine}' for `engine`", f"Choose {' or '.join(ENGINES)}"
            )
        precisions = ENGINES[self.engine]
        if self.precision_or_default not in precisions:
            raise UsageError(
                f"perfctl does not predict `precision` {self.precision} for {self.engine}",
                f"Choose {', '.join(precisions)}",
            )
        caches = CACHES[self.engine]
        if self.kv_cache is not None and self.kv_cache not in caches:
            if not caches:
                text = "PyTorch in eager mode keeps the cache in the type of the weights"
                raise UsageError(
                    f"`kv_cache` {self.kv_cache}: {text}", "Omit it, or use `engine` tensorrt-llm"
                )
            raise UsageError(
                f"perfctl does not predict `kv_cache` {self.kv_cache}",
                f"Choose {', '.join(caches)}",
            )
        if (self.device or "").lower() == "cpu":
            raise UsageError(
                "`prompt` needs a GPU: perfctl predicts generation on GPUs only",
                "Name a GPU, for example `device` A100",
            )


@dataclass(frozen=True, slots=True)
class DeviceAndPrices:
    """The device and the prices of a question, looked up once."""

    device: Device
    prices: PriceTable
    """Prices that the question may use."""
    offers: tuple[Price, ...]
    """The usable prices of instances that have this device."""
    unused_offers: int
    """Offers of this device that are not used for want of a date."""

    def describe_unused_offers(self) -> str | None:
        """Return a sentence about offers of this device that are not used; None without any."""
        if not self.unused_offers:
            return None
        none = "" if self.offers else "no cost: "
        return (
            f"{none}perfctl ignores offers with an undated or promotional price "
            f"({self.unused_offers} of them; `undated` takes them)"
        )


@dataclass(frozen=True, slots=True)
class AnswerPoint:
    step: StepTime
    training: TrainingCost


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
    def training(self) -> TrainingCost:
        return self.points[0].training
