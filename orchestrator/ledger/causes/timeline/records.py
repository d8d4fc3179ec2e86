"""What a rule about a run's timeline says, and the time that its shares are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from perfctl.orchestrator.ledger.causes.rule import Confidence
from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
    sum_durations_ns,
)
from perfctl.orchestrator.ledger.usage.run_usage import CAPTURE, RunUsage
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Copy, Kernel
from perfctl.records.run import Run


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """One thing that makes a run slower than it need be."""

    rule: str
    """Name of the rule: "launch bound", "host sync"."""
    text: str
    """Subject, number and cause in full sentences, without the last period."""
    share: float
    """The number, 0..1; ``of`` says of what."""
    of: str
    todo: str
    confidence: Confidence = "observed"
    kernels: tuple[str, ...] = ()
    step_share: float | None = None
    """Share (0..1) of the time of the steps that is at stake; None if it is unknown."""

    @property
    def sentence(self) -> str:
        """The text with its period."""
        return f"{self.text}."


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """A measured step on one GPU; the whole capture where the report has no steps. Times in ns on
    the report's clock."""

    step: int | None
    kernels: tuple[Kernel, ...]
    """By start; each has a start and a duration."""
    start: int
    end: int
    """From the start of its first kernel to the end of its last."""


@dataclass(frozen=True)
class Timeline:
    """The kernels of a run's busiest GPU by steps."""

    run: Run
    device: int
    pieces: tuple[TimelineStep, ...]
    copies: tuple[Copy, ...]
    """Of this GPU, those with times."""
    explained: Intervals
    """Idle time with a cause that no graph removes, such as start-up or a synchronizing call."""
    window_ns: int = 0
    """Length from the start of the first marked step to the end of the last; 0 without marks."""

    @cached_property
    def kernels(self) -> list[Kernel]:
        """Kernels of all steps, in order."""
        return [kernel for piece in self.pieces for kernel in piece.kernels]

    @property
    def measured_wall_ns(self) -> int:
        """Of all steps together, in ns; never 0."""
        return max(self.window_ns or sum(piece.end - piece.start for piece in self.pieces), 1)

    @cached_property
    def kernel_time_sum_ns(self) -> float:
        """Durations of all kernels, added up; never 0."""
        return sum_durations_ns(self.kernels) or 1.0

    @property
    def measured_span_text(self) -> str:
        """What the lengths are of: "3 steps", "the step", "the capture (first to last kernel)"."""
        steps = sum(piece.step is not None for piece in self.pieces)
        name = f"{steps} steps" if steps > 1 else "the step" if steps else "the capture"
        return name if self.window_ns else f"{name} (first to last kernel)"


def build_busiest_gpu_timeline(usage: RunUsage) -> Timeline | None:
    """Return the kernels of the GPU that has the most; None under ncu, and where a kernel has no
    start or no duration.

    Kernels outside of the measured steps are left out where kernels say their step.
    """
    run, window = usage.run, usage.window
    by_device = window.by_device
    device = max(by_device, key=lambda number: len(by_device[number]), default=None)
    if device is None:
        return None
    kernels = sorted(by_device[device], key=get_start_ns)
    is_numbered = any(kernel.step is not None for kernel in kernels)
    in_steps = (kernel for kernel in kernels if kernel.step is not None or not is_numbered)
    return Timeline(
        run=run,
        device=device,
        pieces=tuple(
            TimelineStep(
                step, tuple(of_step), get_start_ns(of_step[0]), max(map(get_end_ns, of_step))
            )
            for step, of_step in group_by(in_steps, attrgetter("step")).items()
        ),
        copies=tuple(
            copy
            for copy in run.report.copies
            if copy.device_index in (None, device) and has_start_and_duration(copy)
        ),
        explained=next(
            (idle.explained for idle in usage.idle_times if idle.device == device), Intervals(())
        ),
        window_ns=0 if window.words == CAPTURE else window.length_ns,
    )


def format_ns(nanoseconds: float) -> str:
    """Return a time as text, as report.numbers.time does: 1234567 -> "1.23 ms", 420 -> "420 ns"."""
    sizes = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
    size, unit = next((item for item in sizes if nanoseconds >= 0.9995 * item[0]), sizes[-1])
    return f"{f'{nanoseconds / size:#.3g}'.rstrip('.')} {unit}"


def sort_names_by_time(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """Return the names of the kernels, those with the most time first."""
    by_name = group_by(kernels, attrgetter("name"))
    return tuple(sorted(by_name, key=lambda name: -sum_durations_ns(by_name[name])))
