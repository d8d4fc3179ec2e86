"""What a workload is, and the options that all of them share. Needs no torch."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from perfctl.parsers.records import Gap, Summary

MODES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32 turns TF32 off everywhere; tf32 turns it on for convolutions and matmuls; bf16, fp16 use autocast."""
DEVICES = ("cpu", "cuda")
DATA = ("synthetic", "mnist", "imagenet", "folder", "csv")
ANNOTATIONS = ("nvtx", "record_function", "none")
WINDOWS = ("cuda", "torch", "none")
LEAST_STEPS = 5
"""Measured steps, however slow one is."""


class SpecError(ValueError):
    """The arguments of a workload make no sense; nothing was started. One line."""


class UnknownWords(SpecError):
    """``words`` are no options of the workload."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        super().__init__(f"{shlex.join(words)}: the workload {name} has no such option")
        self.words = tuple(words)


class WorkloadError(RuntimeError):
    """The workload cannot run here (no GPU, no data, ...). One line: what, why, what to do."""


def first_line(error: BaseException) -> str:
    """What an error says in its first line, or its class when it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run a workload. Times and counts are per process."""

    batch_size: int
    mode: str = "train"
    device: str = "cpu"
    precision: str = "fp32"
    seed: int = 0
    steps: int = 10
    """Measured steps, inside the profiler's window."""
    warmup: int = 3
    """Steps before the window; at least one, which also records the shapes."""
    epochs: int = 0
    """Whole epochs over the data after the measured steps, with loss and test accuracy; 0 for none."""
    data: str = "synthetic"
    data_dir: Path | None = None
    download: bool = False
    record: Path | None = None
    """Where the JSON record goes; None prints a summary only."""
    annotate: str = "none"
    """nvtx, record_function or none."""
    window: str = "none"
    """cuda, torch or none: who is told where the measured steps begin and end."""
    trace: Path | None = None
    """Where ``--window torch`` writes its Kineto trace."""
    compile: bool = False
    """The model goes through torch.compile after the first warm-up step, which records the shapes."""
    threads: int | None = None
    """Threads torch computes with on the CPU; None leaves torch's own choice."""
    within: float | None = None
    """Seconds that the measured steps may take together: then fewer than ``steps``, at least LEAST_STEPS. None: all."""
    layer_steps: int | None = None
    """Steps after the measured ones in which each layer is timed; None for none."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a workload gives the loop."""

    model: torch.nn.Module
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer | None
    """None where nothing is trained."""
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    train_data: torch.utils.data.Dataset[Any]
    test_data: torch.utils.data.Dataset[Any]
    feed: Feed | None = None
    """Where the measured steps are one pass over a data set, loaded while they run; None: batches made beforehand."""
    overlap: int = 0
    """Classes of a pixel, where the test pass says Dice beside accuracy; 0 where the answers are no masks."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the record says beside the options ("weights": which were loaded)."""


class Feed(Protocol):
    """One pass over a data set in inference: full batches for the measured steps, and what is left after them."""

    @property
    def steps(self) -> int:
        """Full batches of the pass; at least 1."""
        ...

    def warm_up(self, count: int) -> Iterator[Any]:
        """``count`` full batches for the steps before the window."""
        ...

    def batches(self) -> Iterator[Any]:
        """(inputs, targets) on the host: ``steps`` full batches, then at most one smaller one."""
        ...

    def take(self, outputs: Any, targets: torch.Tensor) -> tuple[float | None, float | None]:
        """What the model answered, on the host for a classifier. Gives (mean loss, accuracy 0..1) of the batch."""
        ...

    def summaries(self) -> list[Summary]:
        """Figures over all images so far."""
        ...

    def gaps(self) -> list[Gap]:
        """What is not known, or was skipped, and why."""
        ...


class Workload(Protocol):
    """One module of this package. Importing it needs no torch; ``build`` does."""

    NAME: str
    ABOUT: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The workload's own options (mnist_cnn: --conv2)."""
        ...

    def settle(self, options: Options, own: argparse.Namespace) -> Options:
        """The options as the workload will run them. Raises SpecError for what it cannot do."""
        ...

    def build(self, options: Options, own: argparse.Namespace) -> Parts:
        """Model, loss, optimizer and data, on the CPU; the loop moves them."""
        ...


def parse_arguments(workload_name: str, arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """Options and the workload's own arguments, checked, without torch. Raises SpecError, one clear line.

    ``arguments`` is the command line after the workload's name: ``["--batch", "64", "--conv2", "32,128,5,1"]``.
    """
    from perfctl.workloads.arguments import parse

    return parse(workload_name, arguments)


def describe(workload_name: str) -> str:
    """Help text: the workload, the options of all workloads, and its own. Raises SpecError for an unknown name."""
    from perfctl.workloads.arguments import help_text

    return help_text(workload_name)
