"""Time, rent, energy and memory of a training, from the time of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from perfctl.orchestrator.estimate.memory import (
    MemoryLine,
    largest_fitting,
    peak_at,
)
from perfctl.orchestrator.predict.prices import Price

HOUR = 3600.0

GRADIENT_BYTES = 4
"""Of one parameter: autocast keeps gradients in fp32."""

CLOSE = 0.9
"""Share of the memory, tensors and reserve, from which a large CUDA context or workspace of cuDNN
may not find enough."""


@dataclass(frozen=True, slots=True)
class Span:
    """low <= value <= high."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Span:
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def plus(self, amount: float) -> Span:
        return Span(self.value + amount, self.low + amount, self.high + amount)


def steps_of(samples: int, batch: int, gpus: int = 1) -> int:
    """Steps of an epoch, with a partial last batch."""
    return ceil(samples / (batch * gpus))


@dataclass(frozen=True, slots=True)
class Rental:
    """One offer for the whole training. US dollars."""

    JSON_KEYS = ("instances", "idle", "on_demand", "spot")
    JSON_NAMES: ClassVar = {
        "idle": "idle_gpus",
        "on_demand": "on_demand_usd",
        "spot": "spot_usd",
    }

    price: Price
    instances: int
    idle: int
    on_demand: Span | None
    spot: Span | None
    """Without the work lost when a spot instance is reclaimed. None: the table has no
    such price."""


def rental(price: Price, gpus: int, seconds: Span) -> Rental:
    """``gpus`` at work for ``seconds`` on whole instances, billed by the second."""
    instances = ceil(gpus / price.count)
    hours = seconds.times(instances / HOUR)
    whole, spot = (
        None if rate is None else hours.times(rate) for rate in (price.on_demand, price.spot)
    )
    return Rental(price, instances, instances * price.count - gpus, whole, spot)


def rentals(prices: Sequence[Price], gpus: int, seconds: Span) -> tuple[Rental, ...]:
    """The cheapest on demand first, those with a spot price alone last."""
    found = (rental(price, gpus, seconds) for price in prices)
    return tuple(
        sorted(
            found,
            key=lambda one: (one.on_demand is None, (one.on_demand or one.spot or seconds).value),
        )
    )


@dataclass(frozen=True, slots=True)
class Energy:
    """Of the GPUs, without host, cooling and power supply losses."""

    watts: float
    source: str
    kwh: Span
    cost: Span | None


def energy(
    watts: float, source: str, gpus: int, seconds: Span, tariff: float | None = None
) -> Energy:
    kwh = seconds.times(watts * gpus / (1000 * HOUR))
    return Energy(watts, source, kwh, kwh.times(tariff) if tariff is not None else None)


@dataclass(frozen=True, slots=True)
class Parallel:
    """One step on several GPUs. Communication and link are None where the efficiency was given."""

    gpus: int
    step: Span
    efficiency: float
    """Time of a step on one GPU over that on all, 0..1."""
    moved_bytes: float
    """Sent (and received) by each GPU in a step."""
    communication: float | None
    """Seconds; ``exposed``: of it that do not overlap."""
    exposed: float | None
    link_gbs: float | None
    """GB/s one way, as stated."""
    link: str
    overlap: float
    """Assumed share of the communication that overlaps the backward pass."""


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
    """A step with its all-reduce. The overlap is at most ``backward`` seconds, if known."""
    moved = ring_bytes(parameters, gpus)
    communication = moved / (link_gbs * 1e9)
    hidden = min(overlap * communication, backward if backward is not None else step.value)
    exposed = communication - hidden
    longer = step.plus(exposed)
    return Parallel(
        gpus,
        longer,
        step.value / longer.value,
        moved,
        communication,
        exposed,
        link_gbs,
        link,
        overlap,
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """One offer at one batch size: how long the training takes and what it costs."""

    JSON_KEYS = ("board", "batch", "way", "beyond", "seconds", "dollars", "spot")
    JSON_NAMES: ClassVar = {
        "beyond": "beyond_the_data",
        "seconds": "training_s",
        "dollars": "on_demand_usd",
        "spot": "spot_usd",
    }

    price: Price
    board: str
    """Name of the board."""
    batch: int
    """Samples a step and GPU."""
    seconds: Span
    dollars: Span
    spot: Span | None = None
    """Dollars for the same on spot instances. None: the table has no such price."""
    way: str = ""
    """What the step's time rests on: one of WAYS of the predictor."""
    beyond: bool = False
    """Whether the step is outside of what was measured."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The choices that no other beats in both time and cost."""

    choices: tuple[Choice, ...]
    compared: int
    too_large: int
    unknown: int
    """Pairs without a price on demand, or without a peak for the precision."""
    unsure: int = 0
    """Offers that do not say which board they have."""


def frontier(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """The choices that no other beats in both time and cost, the fastest first; of equal ones
    the first."""
    best: list[Choice] = []
    for choice in sorted(choices, key=lambda one: (one.seconds.value, one.dollars.value)):
        if not best or choice.dollars.value < best[-1].dollars.value:
            best.append(choice)
    return tuple(best)


@dataclass(frozen=True, slots=True)
class Job:
    """The training to cost."""

    batch: int
    """Samples a step and GPU."""
    samples: int | None = None
    epochs: int | None = None
    gpus: int = 1
    parameters: int = 0
    link_gbs: float | None = None
    """GB/s one way between GPUs. None: not known."""
    link: str = ""
    overlap: float = 0.0
    efficiency: float | None = None
    """Data-parallel efficiency stated by the user. None: computed from the link."""


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of a step on one device, in bytes; ``limit`` is the device's. None: not known."""

    JSON_KEYS = ("needed", "reserve", "limit", "fits", "lacking", "largest")
    JSON_NAMES: ClassVar = {
        "needed": "needed_bytes",
        "reserve": "reserve_bytes",
        "limit": "limit_bytes",
        "lacking": "lacking_bytes",
        "largest": "largest_batch",
    }

    batch: int
    needed: int
    """At the peak. Of a replayed step what ``perfctl estimate --memory`` says is allocated; else
    the tensors alone."""
    limit: float | None
    largest: int | None
    """Largest batch that fits beside ``reserve``. None: not known, no limit, or every
    batch fits."""
    reserve: int = 0
    """Left free for the CUDA context and cuDNN's workspaces: :data:`RESERVE` of estimate.memory."""

    @property
    def whole(self) -> int:
        """With the reserve."""
        return self.needed + self.reserve

    @property
    def fits(self) -> bool | None:
        """None: the limit is not known."""
        return None if self.limit is None else self.largest is None or self.batch <= self.largest

    @property
    def close(self) -> bool:
        return bool(self.fits) and self.limit is not None and CLOSE * self.limit < self.whole

    @property
    def lacking(self) -> float:
        return max(self.whole - self.limit, 0.0) if self.limit is not None else 0.0


@dataclass(frozen=True, slots=True)
class Training:
    """Time, cost, energy and memory of a job."""

    JSON_KEYS = (
        "step",
        "alone",
        "samples_per_second",
        "steps",
        "epoch",
        "whole",
        "room",
        "parallel",
        "energy",
    )
    JSON_NAMES: ClassVar = {
        "step": "step_s",
        "alone": "step_one_gpu_s",
        "samples_per_second": "samples_per_s",
        "steps": "steps_per_epoch",
        "epoch": "epoch_s",
        "whole": "training_s",
        "room": "memory",
    }

    job: Job
    step: Span
    alone: Span
    """Seconds of a step on one GPU; ``step``: on all."""
    parallel: Parallel | None
    steps: int | None
    epoch: Span | None
    whole: Span | None
    rentals: tuple[Rental, ...] = ()
    energy: Energy | None = None
    room: Room | None = None

    @property
    def samples_per_second(self) -> Span:
        samples = self.job.batch * self.job.gpus
        return Span(samples / self.step.value, samples / self.step.high, samples / self.step.low)

    @property
    def billed(self) -> Span | None:
        """Seconds that are paid for: the whole training, else an epoch."""
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
    """``alone``: seconds of a step on one GPU; ``backward``: of its backward pass, which
    communication may overlap.

    ``power``: (W of one GPU, source). Intervals grow with the steps: prediction errors do not
    average out over an epoch. Raises ValueError for several GPUs without link and efficiency.
    """
    parallel = parallel_step(alone, job, backward)
    step = parallel.step if parallel is not None else alone
    steps = steps_of(job.samples, job.batch, job.gpus) if job.samples is not None else None
    epoch = step.times(steps) if steps is not None else None
    whole = epoch.times(job.epochs) if epoch is not None and job.epochs is not None else None
    billed = whole or epoch
    offers = rentals(prices, job.gpus, billed) if billed is not None else ()
    used = (
        energy(*power, job.gpus, billed, tariff)
        if billed is not None and power is not None
        else None
    )
    return Training(job, step, alone, parallel, steps, epoch, whole, offers, used, room)


def parallel_step(alone: Span, job: Job, backward: float | None = None) -> Parallel | None:
    """Return the step on several GPUs, by the stated efficiency or over the link; None on one.
    Raises ValueError without either."""
    if job.gpus == 1:
        return None
    if job.efficiency is not None:
        moved = ring_bytes(job.parameters, job.gpus)
        step = alone.times(1 / job.efficiency)
        return Parallel(job.gpus, step, job.efficiency, moved, None, None, None, "as said", 0.0)
    if job.link_gbs is None:
        raise ValueError("the bandwidth between the GPUs is unknown")
    return over_link(alone, job.parameters, job.gpus, job.link_gbs, job.link, job.overlap, backward)


def room_of(lines: Sequence[MemoryLine], batch: int, limit: float | None, reserve: int = 0) -> Room:
    """By the tensors alone. ``reserve``: bytes of ``limit`` that stay free."""
    largest = largest_fitting(lines, limit - reserve) if limit is not None else None
    return Room(batch, peak_at(lines, batch), limit, largest, reserve)
