"""Time against cost: the choices that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfctl.orchestrator.analyse.cost import Span
from perfctl.orchestrator.analyse.prices import Price


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
