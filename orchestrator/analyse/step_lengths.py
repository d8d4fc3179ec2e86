"""What a step is wherever its time is learned from or predicted: forward, backward and optimizer, without its samples' way."""

from __future__ import annotations

from collections.abc import Iterable

from perfctl.parsers.records import Step

WAITING = ("data", "copy")
"""Phases that bring a step's samples: no part of what is predicted."""


def computed_ns(steps: Iterable[Step]) -> list[int]:
    """Nanoseconds of each timed step, in order, without the phases that bring its samples."""
    waited: dict[int, int] = {}
    whole = []
    for step in steps:
        if step.duration_ns is None:
            continue
        if step.phase in WAITING:
            waited[step.number] = waited.get(step.number, 0) + step.duration_ns
        elif step.phase == "step" and step.duration_ns:
            whole.append((step.duration_ns, step.number))
    return [length - waited.get(number, 0) for length, number in whole]
