"""Which model to estimate, and how it runs."""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.errors import UsageError
from perfctl.records.paper import ATTENTION, UPDATES
from perfctl.records.precision import PRECISIONS

DEFAULT_OPTIMIZER = "momentum"
"""Optimizer of a training step whose memory is asked for, where none is named."""


@dataclass(frozen=True, slots=True)
class Request:
    """Which model, and how it runs."""

    model: str
    """A built-in workload, LIBRARY:NAME, a config.json, package.module:factory or
    file.py:factory."""
    inputs: tuple[str, ...] = ()
    """Shape of one sample for each input: "3x224x224", "int64:128"; empty takes the model's own."""
    mode: str = "train"
    optimizer: str | None = None
    device: str = "meta"
    memory: bool = False
    gpu: tuple[int, int] | None = None
    """Compute capability of the device that memory is worked out for; None when not given."""
    attention: str = "auto"
    """Kernel of attention that memory is worked out for: auto, flash, efficient, cudnn, math."""
    update: str = "auto"
    """How the optimizer updates the parameters, for memory: auto, foreach, fused, for-loop."""
    own: tuple[str, ...] = ()
    """A built-in workload's own options, as words of a command line; empty takes its defaults."""
    seq: int | None = None
    """Length of the sequences of a library's model: tokens, samples of a waveform; None takes a
    usual one."""
    precision: str = "fp32"
    """A name of PRECISIONS."""
    prompt: int | None = None
    """Generation: tokens that go in at once; None: one plain pass, no generation."""
    generate: int | None = None
    """Generation: steps of one token after the prompt; None: none."""
    kv_cache: str | None = None
    """Generation: type of the cache's values, "none" for no cache; None takes the type that the
    model keeps."""

    def check(self) -> None:
        """Raises UsageError for a mode, optimizer, device, precision or length that is
        not known."""
        check_precision(self.precision)
        if self.seq is not None and self.seq < 1:
            raise UsageError(f"`seq` must be at least 1, got {self.seq}", "For example `seq` 128")
        if self.prompt is None and (self.generate is not None or self.kv_cache is not None):
            name = "generate" if self.generate is not None else "kv_cache"
            raise UsageError(f"`{name}` needs `prompt`", "Say how long the prompt is: `prompt` 512")
        optimizers = (None, "none", "sgd", "momentum", "adam", "adamw", "adadelta", "rmsprop")
        known_of = {
            "mode": ("train", "infer"),
            "optimizer": optimizers,
            "device": ("meta", "cpu", "cuda"),
            "attention": ATTENTION,
            "update": UPDATES,
        }
        for name, known in known_of.items():
            value = getattr(self, name)
            if value not in known:
                raise UsageError(
                    f"`{name}`: '{value}' is not known", f"Use {', '.join(filter(None, known))}"
                )


def check_precision(name: str) -> None:
    """Raises UsageError for a name that is not one of PRECISIONS."""
    if name not in PRECISIONS:
        raise UsageError(f"`precision`: '{name}' is not known", f"Use {', '.join(PRECISIONS)}")
