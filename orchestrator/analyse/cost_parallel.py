"""Data parallel training: every GPU takes a batch of its own, and gradients are summed over a ring.

A ring all-reduce sends and receives 2 (n - 1) / n of the gradients' bytes on every GPU's link (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfctl.orchestrator.analyse.cost import Span

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
