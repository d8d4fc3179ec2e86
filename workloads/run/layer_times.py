"""Time each layer with ranges that read the clock, in extra steps after the measured ones. Imports torch.

The measured steps have no ranges, so that nothing slows them down; a range adds a few microseconds to its layer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from perfctl.records.report import LayerTime
from perfctl.workloads.run.annotate import Annotator
from perfctl.workloads.run.clock import Backend, Clock, OpenRanges
from perfctl.workloads.run.setup import Setup
from perfctl.workloads.run.step import Batch, step

MODEL = "(model)"
"""Name of the model itself among its layers."""


class TimedRanges(Backend):
    """A backend of the annotator that sets a mark at both ends of each range, without waiting for the device."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = OpenRanges()
        self._ended: list[tuple[str, Any, Any, list[tuple[Any, Any]]]] = []
        """Name, start, end, and (start, end) of the ranges directly inside it."""

    def push(self, name: str) -> None:
        self._open.stack.append((name, self._clock.mark(), []))

    def pop(self) -> None:
        name, start, within = self._open.stack.pop()
        end = self._clock.mark()
        self._ended.append((name, start, end, within))
        if self._open.stack:
            self._open.stack[-1][2].append((start, end))

    def take(self) -> dict[str, int]:
        """Nanoseconds per range name since the last call, without inner ranges; waits for the device."""
        self._clock.wait()
        between = self._clock.between_ns
        found: dict[str, int] = {}
        for name, start, end, within in self._ended:
            own = between(start, end) - sum(between(*ends) for ends in within)
            found[name] = found.get(name, 0) + own
        self._ended.clear()
        return {name: max(spent, 0) for name, spent in found.items()}


def time_layers(setup: Setup, batches: Iterator[Batch], steps: int) -> list[LayerTime]:
    """Median, minimum and maximum over ``steps`` steps of each layer and direction, in order of first appearance.

    An extra step comes first, in which the annotator creates its hooks.
    """
    model, ranges = setup.parts.model, TimedRanges(setup.clock)
    seen: dict[str, list[int]] = {}
    with Annotator(ranges, model):
        step(setup, next(batches))
        ranges.take()
        for _ in range(steps):
            step(setup, next(batches))
            for name, spent in ranges.take().items():
                seen.setdefault(name, []).append(spent)
    kinds, root = {path: type(module).__name__ for path, module in model.named_modules()}, type(model).__name__
    found = []
    for name, times in seen.items():
        layer, _, direction = name.rpartition(":")
        kind = root if layer == root else kinds.get(layer, "")
        layer = MODEL if layer == root and layer not in kinds else layer
        middle = round(statistics.median(times))
        found.append(LayerTime(layer, kind, direction, middle, min(times), max(times), len(times)))
    return found
