"""Time, rent, energy and memory of a training, from the time of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from perfctl.orchestrator.estimate.memory import (
    MemoryLine,
    compute_batch_peak_bytes,
    find_largest_batch_by_lines,
)
from perfctl.orchestrator.predict.prices import Price

HOUR = 3600.0

GRADIENT_BYTES = 4
"""Bytes of one parameter's gradient: autocast keeps gradients in fp32."""

TIGHT_SHARE_MIN = 0.9
"""Share of the memory, tensors and reserve, from which a large CUDA context or workspace of cuDNN
may not find enough."""


@dataclass(frozen=True, slots=True)
class Span:
    """low <= value <= high."""

    value: float
    low: float
    high: float

    def scale(self, factor: float) -> Span:
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def shift(self, amount: float) -> Span:
        return Span(self.value + amount, self.low + amount, self.high + amount)


def count_epoch_steps(samples: int, batch: int, gpus: int = 1) -> int:
    """Steps of an epoch, with a partial last batch."""
    return ceil(samples / (batch * gpus))


@dataclass(frozen=True, slots=True)
class Rental:
    """One offer for the complete training. US dollars."""

    JSON_NAMES: ClassVar = {"on_demand": "on_demand_usd", "spot": "spot_usd"}
    JSON_INLINED = ("price",)

    price: Price
    instances: int
    idle_gpus: int
    on_demand: Span | None
    spot: Span | None
    """Without the work lost when a spot instance is reclaimed. None: the table has no
    such price."""


def compute_rental_cost(price: Price, gpus: int, seconds: Span) -> Rental:
    """``gpus`` at work for ``seconds`` on whole instances, billed by the second."""
    instances = ceil(gpus / price.count)
    hours = seconds.scale(instances / HOUR)
    on_demand, spot = (
        None if rate is None else hours.scale(rate) for rate in (price.on_demand, price.spot)
    )
    return Rental(price, instances, instances * price.count - gpus, on_demand, spot)


def rank_rentals(prices: Sequence[Price], gpus: int, seconds: Span) -> tuple[Rental, ...]:
    """Return the offers, the cheapest on demand first, those with a spot price alone last."""

    def get_sort_key(offer: Rental) -> tuple[bool, float]:
        return offer.on_demand is None, (offer.on_demand or offer.spot or seconds).value

    return tuple(
        sorted((compute_rental_cost(price, gpus, seconds) for price in prices), key=get_sort_key)
    )


@dataclass(frozen=True, slots=True)
class EnergyUse:
    """Of the GPUs, without host, cooling and power supply losses."""

    watts: float
    source: str
    kwh: Span
    cost: Span | None


def compute_energy_use_and_cost(
    watts_per_gpu: float, source: str, gpus: int, seconds: Span, price_per_kwh: float | None = None
) -> EnergyUse:
    kwh = seconds.scale(watts_per_gpu * gpus / (1000 * HOUR))
    return EnergyUse(
        watts_per_gpu, source, kwh, kwh.scale(price_per_kwh) if price_per_kwh is not None else None
    )


@dataclass(frozen=True, slots=True)
class ParallelStep:
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


def compute_allreduce_bytes_per_gpu(parameters: int, gpus: int) -> float:
    """Bytes that each GPU sends in an all-reduce of the gradients."""
    return 2 * (gpus - 1) / gpus * parameters * GRADIENT_BYTES


def compute_step_with_allreduce(
    single_gpu_step: Span,
    parameters: int,
    gpus: int,
    link_gbs: float,
    link_name: str,
    overlap: float = 0.0,
    backward_seconds: float | None = None,
) -> ParallelStep:
    """Return a step with its all-reduce. The overlap is at most ``backward_seconds``, if known."""
    moved = compute_allreduce_bytes_per_gpu(parameters, gpus)
    communication = moved / (link_gbs * 1e9)
    hidden = min(
        overlap * communication,
        backward_seconds if backward_seconds is not None else single_gpu_step.value,
    )
    exposed = communication - hidden
    longer = single_gpu_step.shift(exposed)
    return ParallelStep(
        gpus,
        longer,
        single_gpu_step.value / longer.value,
        moved,
        communication,
        exposed,
        link_gbs,
        link_name,
        overlap,
    )


@dataclass(frozen=True, slots=True)
class OfferChoice:
    """One offer at one batch size: how long the training takes and what it costs."""

    JSON_NAMES: ClassVar = {
        "seconds": "training_s",
        "dollars": "on_demand_usd",
        "spot": "spot_usd",
        "way": "basis",
    }
    JSON_INLINED = ("price",)

    price: Price
    gpu_model: str
    batch: int
    """Samples per step and GPU."""
    seconds: Span
    dollars: Span
    spot: Span | None = None
    """Dollars for the same on spot instances. None: the table has no such price."""
    way: str = ""
    """What the step's time rests on: one of WAYS of the predictor."""
    is_extrapolated: bool = False
    """Whether the step is outside of the measured range."""


@dataclass(frozen=True, slots=True)
class CostFrontier:
    """The choices that no other beats in both time and cost."""

    choices: tuple[OfferChoice, ...]
    compared: int
    """Pairs of an offer and a batch size."""
    too_large: int
    missing: int
    """Pairs without a price on demand, or without a peak for the precision."""
    uncertain: int = 0
    """Offers that do not state their GPU model."""


def select_time_cost_pareto(choices: Iterable[OfferChoice]) -> tuple[OfferChoice, ...]:
    """The choices that no other beats in both time and cost, the fastest first; of equal ones
    the first."""
    best: list[OfferChoice] = []
    for choice in sorted(choices, key=lambda choice: (choice.seconds.value, choice.dollars.value)):
        if not best or choice.dollars.value < best[-1].dollars.value:
            best.append(choice)
    return tuple(best)


@dataclass(frozen=True, slots=True)
class TrainingJob:
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
class MemoryNeed:
    """Memory of a step on one device, in bytes; ``limit`` is the device's. None: not known."""

    JSON_KEYS = ("needed", "reserve", "limit", "fits", "lacking", "largest")
    JSON_NAMES: ClassVar = {
        "needed": "needed_bytes",
        "reserve": "reserve_bytes",
        "limit": "limit_bytes",
        "lacking": "missing_bytes",
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
    is_bound: bool = False
    """Whether the allocator may need more: ``needed`` is of the tensors alone, on a GPU."""

    @property
    def total(self) -> int:
        """Bytes with the reserve."""
        return self.needed + self.reserve

    @property
    def fits(self) -> bool | None:
        """None: the limit is not known, or the tensors fit and the allocator may need more."""
        if self.limit is None:
            return None
        fits = self.largest is None or self.batch <= self.largest
        return None if fits and self.is_bound else fits

    @property
    def lacking(self) -> float:
        return max(self.total - self.limit, 0.0) if self.limit is not None else 0.0


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Time, cost, energy and memory of a job."""

    JSON_KEYS = (
        "step",
        "alone",
        "samples_per_second",
        "steps",
        "epoch",
        "total",
        "room",
        "parallel",
        "energy",
        "rentals",
    )
    JSON_NAMES: ClassVar = {
        "rentals": "offers",
        "step": "step_s",
        "alone": "step_one_gpu_s",
        "samples_per_second": "samples_per_s",
        "steps": "steps_per_epoch",
        "epoch": "epoch_s",
        "total": "training_s",
        "room": "memory",
    }

    job: TrainingJob
    step: Span
    alone: Span
    """Seconds of a step on one GPU; ``step``: on all."""
    parallel: ParallelStep | None
    steps: int | None
    epoch: Span | None
    total: Span | None
    """Seconds of all epochs."""
    rentals: tuple[Rental, ...] = ()
    energy: EnergyUse | None = None
    room: MemoryNeed | None = None

    @property
    def samples_per_second(self) -> Span:
        samples = self.job.batch * self.job.gpus
        return Span(samples / self.step.value, samples / self.step.high, samples / self.step.low)

    @property
    def billed_seconds(self) -> Span | None:
        """Seconds that are paid for: the complete training, otherwise an epoch."""
        return self.total or self.epoch


def compute_training_cost(
    single_step: Span,
    job: TrainingJob,
    *,
    backward_seconds: float | None = None,
    prices: Sequence[Price] = (),
    gpu_watts_and_source: tuple[float, str] | None = None,
    price_per_kwh: float | None = None,
    memory: MemoryNeed | None = None,
) -> TrainingCost:
    """``single_step``: seconds of a step on one GPU; ``backward_seconds``: of its backward pass,
    which communication may overlap.

    ``gpu_watts_and_source``: (W of one GPU, source). Intervals grow with the steps: prediction
    errors do not average out over an epoch. Raises ValueError for several GPUs without link and
    efficiency.
    """
    parallel = compute_data_parallel_step(single_step, job, backward_seconds)
    step = parallel.step if parallel is not None else single_step
    steps = count_epoch_steps(job.samples, job.batch, job.gpus) if job.samples is not None else None
    epoch = step.scale(steps) if steps is not None else None
    total = epoch.scale(job.epochs) if epoch is not None and job.epochs is not None else None
    billed = total or epoch
    offers = rank_rentals(prices, job.gpus, billed) if billed is not None else ()
    used = (
        compute_energy_use_and_cost(*gpu_watts_and_source, job.gpus, billed, price_per_kwh)
        if billed is not None and gpu_watts_and_source is not None
        else None
    )
    return TrainingCost(job, step, single_step, parallel, steps, epoch, total, offers, used, memory)


def compute_data_parallel_step(
    single_step: Span, job: TrainingJob, backward_seconds: float | None = None
) -> ParallelStep | None:
    """Return the step on several GPUs, by the stated efficiency or over the link; None on one.
    Raises ValueError without either."""
    if job.gpus == 1:
        return None
    if job.efficiency is not None:
        moved = compute_allreduce_bytes_per_gpu(job.parameters, job.gpus)
        step = single_step.scale(1 / job.efficiency)
        return ParallelStep(job.gpus, step, job.efficiency, moved, None, None, None, "as said", 0.0)
    if job.link_gbs is None:
        raise ValueError("the bandwidth between the GPUs is unknown")
    return compute_step_with_allreduce(
        single_step, job.parameters, job.gpus, job.link_gbs, job.link, job.overlap, backward_seconds
    )


def compute_tensor_memory_need(
    lines: Sequence[MemoryLine], batch: int, limit_bytes: float | None, reserved_bytes: int = 0
) -> MemoryNeed:
    """By the tensors alone. ``reserved_bytes``: bytes of ``limit_bytes`` that stay free."""
    largest = (
        find_largest_batch_by_lines(lines, limit_bytes - reserved_bytes)
        if limit_bytes is not None
        else None
    )
    return MemoryNeed(
        batch, compute_batch_peak_bytes(lines, batch), limit_bytes, largest, reserved_bytes
    )
