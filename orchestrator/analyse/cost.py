"""What a training costs: hours times price, and energy times tariff. Every figure carries its interval along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

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
        price,
        instances,
        instances * price.count - gpus,
        hours.times(price.on_demand) if price.on_demand is not None else None,
        hours.times(price.spot) if price.spot is not None else None,
    )


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
