"""What a speed-up study is made of: arms (one device and precision each), and each set against the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perfctl.orchestrator.analyse.compare_records import Difference
from perfctl.parsers.stored import Run


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run it: all runs of one label at one batch size, repeats of one another."""

    label: str
    """"cpu", "cuda:bf16", or how the user named it."""
    runs: tuple[Run, ...]


class Gain(NamedTuple):
    """How many times faster, with its 95 % interval; ratio of geometric means."""

    value: float
    low: float
    high: float
    basis: str
    """What the spread was taken from, in words."""


class GainLine(NamedTuple):
    """One thing that both arms did."""

    level: str
    """epoch, step, phase or layer."""
    name: str
    base_ns: float | None
    """Median of the first arm; None where it did not do it."""
    ns: float | None
    gain: Gain | None
    """None where no spread is known: then there is no speed-up to show, and ``reason`` says why."""
    reason: str | None


class Epoch(NamedTuple):
    """One epoch of an arm's newest run, and what it had reached."""

    number: int
    ns: float
    """Training alone, without the test pass."""
    reached_ns: float
    """Training time from the first epoch's start to this one's end."""
    loss: float | None
    """Mean over the training data, while it was learnt from."""
    test_loss: float | None
    accuracy: float | None
    """0..1, of test data."""
    dice: float | None
    """0..1, of masks in the test data."""


class Top(NamedTuple):
    """One of the most expensive operations (CPU, self time) or kernels (GPU)."""

    name: str
    category: str
    calls: int
    self_ns: float
    total_ns: float | None
    """With what it called; None for kernels, which call nothing."""
    share: float
    """Of all self time in the trace."""


class Rate(NamedTuple):
    """FLOPs on paper over measured time. 1 multiply-add = 2 FLOPs."""

    flops: int | None
    """Forward and backward of one step, on paper; None where the shapes are not known."""
    per_second: float | None
    peak: float | None
    """FLOP/s of the device in this precision; None where no table knows it."""
    reason: str | None


@dataclass(frozen=True, slots=True)
class ArmFacts:
    """Everything about one arm alone."""

    label: str
    device: str | None
    precision: str | None
    runs: int
    total_ns: float | None
    """All epochs' training time; None without epochs."""
    step_ns: float | None
    """Median of the measured steps."""
    step_range: tuple[float, float] | None
    """Shortest and longest of the measured steps."""
    steps_per_second: float | None
    samples_per_second: float | None
    warmup: int | None
    """Steps before the measured ones: in no figure here."""
    epochs: tuple[Epoch, ...]
    memory: Mapping[str, int]
    top: tuple[Top, ...]
    categories: Mapping[str, float] | None
    """Kind of work -> share of all time in the trace."""
    rate: Rate
    idle: float | None
    """Share of the measured steps in which no kernel ran; None on a CPU."""
    overlap: float | None
    """Share of copy time in which a kernel ran too; None without copies."""
    launch_bound: float | None
    """Share of kernel launches that take less time than the wait before them on an idle device; None on a CPU."""
    overhead: float | None
    """Share of the measured steps outside of all operations (Python, the optimizer's loop); None on a GPU."""
    gaps: tuple[tuple[str, str], ...] = ()
    """(what is missing, why)."""
    paper_memory: int | None = None
    """Bytes of all tensors at the fullest moment of a step on paper, in the allocator's 512-byte blocks."""
    paper_memory_reason: str | None = None
    """Why ``paper_memory`` is not known."""


class IfOnly(NamedTuple):
    """Amdahl: the speed-up of a step if this layer alone ran as fast as on the other arm."""

    layer: str
    share: float
    """Of the first arm's step."""
    gain: Gain
    """Of the whole step."""
    limit: float
    """Of the whole step if the layer took no time at all."""


@dataclass(frozen=True, slots=True)
class Against:
    """One arm set against the first."""

    label: str
    refused: tuple[str, ...]
    """Why there is no speed-up; empty when there is one."""
    differences: tuple[Difference, ...]
    lines: tuple[GainLine, ...]
    if_only: tuple[IfOnly, ...]


class Reached(NamedTuple):
    """Training time until every arm was as good as the worst arm's best."""

    what: str
    """test loss, accuracy or Dice."""
    target: float
    times: Mapping[str, float | None]
    """label -> ns of training, or None where it was never reached."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """One workload at one batch size."""

    workload: str | None
    batch: int | None
    base: str
    arms: tuple[ArmFacts, ...]
    against: tuple[Against, ...]
    reached: tuple[Reached, ...]
    failed: tuple[tuple[str, str], ...] = ()
    """(label, why) of arms without a whole run."""
