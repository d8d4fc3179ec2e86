"""Which model to estimate, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.estimate.memory import CAPABILITIES, parse_capability_or_gpu_name
from perfctl.orchestrator.options import Option
from perfctl.records.paper import ATTENTION, UPDATES
from perfctl.records.precision import PRECISIONS

DEFAULT_OPTIMIZER = "momentum"
"""Optimizer of a training step whose memory is asked for, where none is named."""
OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adamw", "adadelta", "rmsprop")


def parse_gpu_compute_capability(text: str) -> tuple[int, int]:
    """ "sm_90", "9.0" or "h100" as a compute capability. Raises UsageError."""
    parsed = parse_capability_or_gpu_name(text)
    if parsed is None:
        choices = ", ".join(CAPABILITIES)
        raise UsageError(
            f"invalid value '{text}' for `gpu`", f"Choose sm_90, 9.0 or one of {choices}"
        )
    return parsed


@dataclass(frozen=True, slots=True)
class Request:
    """Which model, and how it runs."""

    model: Annotated[
        str,
        Option(
            "mnist_cnn, mnist_cnn:conv2=32,128,5,1, unet, lstm, torchvision:NAME, timm:NAME, "
            "hf:NAME, torchaudio:NAME, diffusers:CLASS, config.json, resnet:depth=26,width=32, "
            "package.module:factory, file.py:factory.",
            is_argument=True,
        ),
    ]
    inputs: Annotated[
        tuple[str, ...],
        Option(
            "Shape of one sample, once per input: 3x224x224, int64:128, 100xNx8 (N: batch). "
            "Default: the shape of the model.",
            names=("--input",),
            metavar="SHAPE",
        ),
    ] = ()
    mode: Annotated[str, Option("train (with backward) or infer.", metavar="MODE")] = "train"
    optimizer: Annotated[
        str | None,
        Option(
            f"{', '.join(OPTIMIZERS[1:])}, none. Default: the optimizer of the workload, otherwise "
            f"(with --memory) {DEFAULT_OPTIMIZER}.",
            metavar="NAME",
        ),
    ] = None
    device: Annotated[
        str,
        Option(
            "meta (no data, no memory), or cpu for models that depend on data.", metavar="DEVICE"
        ),
    ] = "meta"
    memory: bool = False
    """Whether memory is followed, too."""
    gpu: Annotated[
        tuple[int, int] | None,
        Option(
            "GPU for --memory: sm_90, 9.0 or h100.",
            "Memory",
            metavar="NAME",
            parse=parse_gpu_compute_capability,
        ),
    ] = None
    attention: Annotated[
        str,
        Option(
            "Attention kernel for --memory: auto (as PyTorch chooses), flash, efficient, cudnn, "
            "math.",
            "Memory",
            metavar="KERNEL",
        ),
    ] = "auto"
    update: Annotated[
        str,
        Option(
            "Optimizer update for --memory: auto (as PyTorch chooses), foreach, fused, for-loop.",
            "Memory",
            metavar="WAY",
        ),
    ] = "auto"
    own: tuple[str, ...] = ()
    """A built-in workload's own options, as words of a command line; empty takes its defaults."""
    seq: Annotated[
        int | None,
        Option("Sequence length of a library model, in tokens or audio samples."),
    ] = None
    precision: Annotated[
        str,
        Option(
            "fp32; tf32 (matrix multiplications, Ampere+); bf16, fp16: CUDA autocast; bf16-true, "
            "fp16-true: model.to(dtype); fp8: Linear layers, the rest bf16 (assumed). Shows FLOPs "
            "by data type.",
            metavar="TYPE",
        ),
    ] = "fp32"
    prompt: Annotated[
        int | None,
        Option("Tokens of the prompt (prefill), forward only.", "Generation"),
    ] = None
    generate: Annotated[
        int | None, Option("Decode steps of one token after the prompt.", "Generation")
    ] = None
    kv_cache: Annotated[
        str | None,
        Option(
            "Data type of the KV cache: fp32, bf16, fp16, fp8, int8 or none. Default: as in the "
            "model.",
            "Generation",
            metavar="TYPE",
        ),
    ] = None

    def check(self) -> None:
        """Raise UsageError for a mode, optimizer, device, precision or length that is not known."""
        raise_if_unknown_precision(self.precision)
        if self.seq is not None and self.seq < 1:
            raise UsageError(f"`seq` must be at least 1, got {self.seq}", "For example `seq` 128")
        if self.prompt is None and (self.generate is not None or self.kv_cache is not None):
            name = "generate" if self.generate is not None else "kv_cache"
            raise UsageError(
                f"`{name}` needs `prompt`",
                "Set the prompt length in tokens, for example `prompt` 512",
            )
        known_of = {
            "mode": ("train", "infer"),
            "optimizer": (None, *OPTIMIZERS),
            "device": ("meta", "cpu", "cuda"),
            "attention": ATTENTION,
            "update": UPDATES,
        }
        for name, choices in known_of.items():
            value = getattr(self, name)
            if value not in choices:
                raise UsageError(
                    f"invalid value '{value}' for `{name}`",
                    f"Choose {', '.join(filter(None, choices))}",
                )


def raise_if_unknown_precision(name: str) -> None:
    """Raise UsageError for a name that is not one of PRECISIONS."""
    if name not in PRECISIONS:
        raise UsageError(
            f"invalid value '{name}' for `precision`", f"Choose {', '.join(PRECISIONS)}"
        )
