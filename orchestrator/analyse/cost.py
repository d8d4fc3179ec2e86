"""What a training costs: hours times price, and energy times tariff. Every figure carries its interval along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from perfctl.orchestrator.analyse.memory.by_batch import MemoryLine, largest_fitting, peak_at
from perfctl.orchestrator.analyse.prices import Price

HOUR = 3600.0
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Span:
    """A figure between two others: low <= value <= high."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Span:
        """All three multiplied; ``factor`` is not negative."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def plus(self, amount: float) -> Span:
        return Span(self.value + amount, self.low + amount, self.high + amount)


def steps_of(samples: int, batch: int, gpus: int = 1) -> int:
    """Steps of an epoch over ``samples``; a last batch that is not full counts as one."""
    return ceil(samples / (batch * gpus))


@dataclass(frozen=True, slots=True)
class Rental:
    """One offer, for as long as the training takes. US dollars."""

    price: Price
    instances: int
    """How many of them have the GPUs that were asked for."""
    idle: int
    """GPUs that are paid for and have nothing to do."""
    on_demand: Span | None
    spot: Span | None
    """None: the table has no such price. A spot instance can be taken away; what is then computed again is not in it."""


def rental(price: Price, gpus: int, seconds: Span) -> Rental:
    """``gpus`` at work for ``seconds`` on whole instances, billed by the second."""
    instances = ceil(gpus / price.count)
    hours = seconds.times(instances / HOUR)
    return Rental(
        price, instances, instances * price.count - gpus,
        hours.times(price.on_demand) if price.on_demand is not None else None,
        hours.times(price.spot) if price.spot is not None else None,
    )  # fmt: skip


def rentals(prices: Sequence[Price], gpus: int, seconds: Span) -> tuple[Rental, ...]:
    """The cheapest on demand first, those with a spot price alone last."""
    found = (rental(price, gpus, seconds) for price in prices)
    return tuple(sorted(found, key=lambda one: (one.on_demand is None, (one.on_demand or one.spot or seconds).value)))


@dataclass(frozen=True, slots=True)
class Energy:
    """Of the GPUs alone: host, cooling and power supply come on top."""

    watts: float
    """Of one GPU."""
    source: str
    """Measured in which run, a data sheet's board power, or said by the user."""
    kwh: Span
    cost: Span | None
    """In the tariff's currency. None: no tariff was given."""


def energy(watts: float, source: str, gpus: int, seconds: Span, tariff: float | None = None) -> Energy:
    """``tariff``: price of a kWh."""
    kwh = seconds.times(watts * gpus / JOULES_PER_KWH)
    return Energy(watts, source, kwh, kwh.times(tariff) if tariff is not None else None)


GRADIENT_BYTES = 4
"""Of one parameter: autocast keeps parameters and their gradients in fp32."""


@dataclass(frozen=True, slots=True)
class Parallel:
    """One step on several GPUs."""

    gpus: int
    step: Span
    """Seconds, communication in it."""
    efficiency: float
    """Time of a step on one GPU over that on all, 0..1; 1 for one GPU."""
    moved_bytes: float
    """That one GPU sends (and receives) in a step."""
    communication: float | None
    """Seconds of it. None: the efficiency was given, not worked out."""
    exposed: float | None
    """Seconds of it that nothing hides."""
    link_gbs: float | None
    """GB/s one way, as stated. None: the efficiency was given."""
    link: str
    """Where that comes from, in words."""
    overlap: float
    """Share of the communication that was taken to hide behind the backward pass."""


def ring_bytes(parameters: int, gpus: int) -> float:
    """Bytes that each GPU sends in an all-reduce of the gradients."""
    return 2 * (gpus - 1) / gpus * parameters * GRADIENT_BYTES


def over_link(
    step: Span,
    parameters: int,
    gpus: int,
    link_gbs: float,
    link: str,
    overlap: float = 0.0,
    backward: float | None = None,
) -> Parallel:
    """A step with its all-reduce. What is hidden takes no longer than ``backward`` seconds, where they are known."""
    moved = ring_bytes(parameters, gpus)
    communication = moved / (link_gbs * 1e9)
    hidden = min(overlap * communication, backward if backward is not None else step.value)
    exposed = communication - hidden
    longer = step.plus(exposed)
    return Parallel(gpus, longer, step.value / longer.value, moved, communication, exposed, link_gbs, link, overlap)


def at_efficiency(step: Span, parameters: int, gpus: int, efficiency: float) -> Parallel:
    """A step at an efficiency that the user measured or expects."""
    moved = ring_bytes(parameters, gpus)
    return Parallel(gpus, step.times(1 / efficiency), efficiency, moved, None, None, None, "as said", 0.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """One offer at one batch size: how long the training takes and what it costs."""

    price: Price
    board: str
    """Name of the board; of the slowest where the offer may be one of several."""
    batch: int
    """Samples a step and GPU."""
    seconds: Span
    dollars: Span
    """On demand."""
    spot: Span | None = None
    """Dollars for the same on spot instances. None: the table has no such price."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The choices that no other beats in time and cost."""

    choices: tuple[Choice, ...]
    compared: int
    """Offers times batch sizes that were worked out."""
    too_large: int
    """Of offers times batch sizes: the tensors of a step do not fit."""
    unknown: int
    """Without a price on demand, or on a device without a peak for the precision."""


def frontier(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices for which none is both as fast and as cheap, the fastest first; of equal ones the first."""
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.seconds.value, one.dollars.value)):
        if not best or choice.dollars.value < best[-1].dollars.value:
            best.append(choice)
    return tuple(best)


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
        job=job, step=step, alone=alone, parallel=parallel, steps=steps, epoch=epoch, whole=whole,
        rentals=rentals(prices, job.gpus, billed) if billed is not None else (),
        energy=energy(*power, job.gpus, billed, tariff) if billed is not None and power is not None else None,
        room=room,
    )  # fmt: skip


def _parallel(alone: Span, job: Job, backward: float | None) -> Parallel | None:
    if job.gpus == 1:
        return None
    if job.efficiency is not None:
        return at_efficiency(alone, job.parameters, job.gpus, job.efficiency)
    if job.link_gbs is None:
        raise ValueError("how fast the GPUs reach each other is not known")
    return over_link(alone, job.parameters, job.gpus, job.link_gbs, job.link, job.overlap, backward)


def room_of(lines: Sequence[MemoryLine], batch: int, limit: float | None) -> Room:
    """Memory at one batch size, from the lines of ``memory_lines``."""
    largest = largest_fitting(lines, limit) if limit is not None else None
    return Room(peak_at(lines, batch), limit, largest)
