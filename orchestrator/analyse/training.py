"""From the time of one step to a training: epochs, whole time, what it costs, whether it fits. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse import cost_parallel
from perfctl.orchestrator.analyse.cost import Energy, Rental, Span, energy, rentals, steps_of
from perfctl.orchestrator.analyse.cost_parallel import Parallel
from perfctl.orchestrator.analyse.memory_lines import MemoryLine, largest_fitting, peak_at
from perfctl.orchestrator.analyse.prices import Price

CLOSE = 0.9
"""From this share of the memory on, what is not known (context, workspaces, rounding) may not find room."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done with the step."""

    batch: int
    """Samples a step and GPU."""
    samples: int | None = None
    """Of the data. None: not said."""
    epochs: int | None = None
    gpus: int = 1
    parameters: int = 0
    link_gbs: float | None = None
    """GB/s one way between GPUs. None: not known."""
    link: str = ""
    overlap: float = 0.0
    efficiency: float | None = None
    """Data-parallel efficiency as said by the user. None: worked out from the link."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a step on one device. Bytes."""

    needed: int
    """Tensors at the fullest moment: allocator's rounding, workspaces and CUDA context come on top and are not known."""
    limit: float | None
    """Of the device. None: not known."""
    largest: int | None
    """Largest batch whose tensors fit. None: not known, or without an end."""

    @property
    def fits(self) -> bool | None:
        """None where the limit is not known."""
        return None if self.limit is None else self.needed <= self.limit

    @property
    def close(self) -> bool:
        return self.limit is not None and CLOSE * self.limit < self.needed <= self.limit

    @property
    def lacking(self) -> float:
        """Bytes that are missing; 0 where it fits."""
        return max(self.needed - self.limit, 0.0) if self.limit is not None else 0.0


@dataclass(frozen=True, slots=True)
class Training:
    """Everything that follows from the time of a step."""

    job: Job
    step: Span
    """Seconds of a step, on all GPUs together."""
    alone: Span
    """Seconds of it on one GPU."""
    parallel: Parallel | None
    """None for one GPU."""
    steps: int | None
    """Of an epoch."""
    epoch: Span | None
    whole: Span | None
    """Seconds of all epochs."""
    rentals: tuple[Rental, ...] = ()
    energy: Energy | None = None
    room: Room | None = None
    """None: memory is not known."""

    @property
    def samples_per_second(self) -> Span:
        """Of all GPUs: slow steps give the low end."""
        samples = self.job.batch * self.job.gpus
        return Span(samples / self.step.value, samples / self.step.high, samples / self.step.low)

    @property
    def billed(self) -> Span | None:
        """Seconds that costs are worked out for: the whole training, else an epoch."""
        return self.whole or self.epoch


def training(
    alone: Span,
    job: Job,
    *,
    backward: float | None = None,
    prices: Sequence[Price] = (),
    power: tuple[float, str] | None = None,
    tariff: float | None = None,
    room: Room | None = None,
) -> Training:
    """``alone``: seconds of a step on one GPU; ``backward``: of its backward pass, behind which communication hides.

    ``power``: (W of one GPU, where that comes from). The interval of a step is that of every step: errors of the
    prediction do not average out over an epoch. Raises ValueError for several GPUs without link and efficiency.
    """
    parallel = _parallel(alone, job, backward)
    step = parallel.step if parallel is not None else alone
    steps = steps_of(job.samples, job.batch, job.gpus) if job.samples is not None else None
    epoch = step.times(steps) if steps is not None else None
    whole = epoch.times(job.epochs) if epoch is not None and job.epochs is not None else None
    billed = whole or epoch
    return Training(
        job=job,
        step=step,
        alone=alone,
        parallel=parallel,
        steps=steps,
        epoch=epoch,
        whole=whole,
        rentals=rentals(prices, job.gpus, billed) if billed is not None else (),
        energy=energy(*power, job.gpus, billed, tariff) if billed is not None and power is not None else None,
        room=room,
    )


def _parallel(alone: Span, job: Job, backward: float | None) -> Parallel | None:
    if job.gpus == 1:
        return None
    if job.efficiency is not None:
        return cost_parallel.at_efficiency(alone, job.parameters, job.gpus, job.efficiency)
    if job.link_gbs is None:
        raise ValueError("how fast the GPUs reach each other is not known")
    return cost_parallel.over_link(alone, job.parameters, job.gpus, job.link_gbs, job.link, job.overlap, backward)


def room_of(lines: Sequence[MemoryLine], batch: int, limit: float | None) -> Room:
    """Memory at one batch size, from the lines of ``memory_lines``."""
    largest = largest_fitting(lines, limit) if limit is not None else None
    return Room(peak_at(lines, batch), limit, largest)
