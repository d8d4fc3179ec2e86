"""What a prediction of a step says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfctl.orchestrator.analyse.work_records import Machine, StepSpec

WAYS = ("measured", "fitted", "transferred", "roofline")
"""From the best to the least: measured here on this device; fitted from steps measured on this device; fitted on another
device and moved by peaks, bandwidth and the efficiency of each kind of work; peaks alone."""


@dataclass(frozen=True, slots=True)
class Share:
    """One layer's part of the step's time."""

    layer: str
    """Dotted module path; "" where it is not known (the loss, operations between modules)."""
    kind: str
    seconds: float
    part: float
    """Of the step, 0 to 1."""
    limit: str
    """What most of it goes to: arithmetic, bytes, or operations (starting them)."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step takes."""

    case: StepSpec
    machine: Machine
    seconds: float
    low: float
    high: float
    way: str
    """One of :data:`WAYS`."""
    source: str
    """In words: which steps were measured or learned from, or which peaks."""
    coverage: float | None
    """Part of cases that low to high covers, as found on steps held out. None: the spread of measured steps, or the
    range that the literature reports."""
    why_not: tuple[str, ...]
    """Why each better way was not possible, one sentence each."""
    outside: tuple[str, ...]
    """Where this goes beyond what was learned from, in words. Empty when it does not."""
    floor: float
    """Seconds at the machine's peaks: the roofline's."""
    phases: Mapping[str, float]
    """Seconds of forward, backward, optimizer; they add up to ``seconds``. Empty: not known."""
    shares: tuple[Share, ...]
    """By layer, the longest first; the optimizer and what a step costs by itself are rows of their own."""
    drivers: tuple[tuple[str, float], ...]
    """(feature, factor on the time), the strongest first; empty where nothing was learned."""

    @property
    def samples_per_second(self) -> float:
        return self.case.batch / self.seconds
