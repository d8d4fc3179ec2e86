"""Memory of a training step at any batch size: the largest of a few lines ``fixed + per_sample * batch``.

Between two moments of a step the tensors that live are the same at every batch size, and each is as large as the batch or
of one size: the bytes at a moment are a straight line in batch, and the peak is the largest of these lines. Not in it are
the allocator's rounding, workspaces and the CUDA context (``memory.NOT_KNOWN``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfctl.orchestrator.analyse.memory import events
from perfctl.parsers.paper import MemoryTrace


class MemoryLine(NamedTuple):
    """Bytes at one moment of a step."""

    fixed: int
    """That do not depend on the batch: parameters, gradients, the optimizer's values."""
    per_sample: int


class LinesError(ValueError):
    """Two traces of which no lines can be made: their steps differ in more than their sizes."""


def peak_at(lines: Iterable[MemoryLine], batch: int) -> int:
    """Bytes at the fullest moment of a step."""
    return max(line.fixed + line.per_sample * batch for line in lines)


def largest_fitting(lines: Iterable[MemoryLine], limit: float) -> int | None:
    """The largest batch whose peak is at most ``limit`` bytes; 0 when not one sample fits, None without an end."""
    ends = []
    for line in lines:
        if line.per_sample > 0:
            ends.append(max(int((limit - line.fixed) // line.per_sample), 0))
        elif line.fixed > limit:
            return 0
    return min(ends, default=None)


def upper(lines: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """Those that no other is above at every batch size, the steepest first."""
    kept: list[MemoryLine] = []
    for line in sorted(set(lines), reverse=True, key=lambda one: (one.per_sample, one.fixed)):
        if not kept or line.fixed > kept[-1].fixed:
            kept.append(line)
    return tuple(kept)


def lines_of(one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> tuple[MemoryLine, ...]:
    """From the traces of one step at two batch sizes. Raises LinesError when the steps are not the same."""
    return upper(line for _, line in moments(one, other, batches))


def lines_by_part(
    one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]
) -> tuple[tuple[MemoryLine, ...], tuple[MemoryLine, ...]]:
    """As :func:`lines_of`, apart: of forward and backward, and of the optimizer's step."""
    found = list(moments(one, other, batches))
    before = upper(line for moment, line in found if moment <= one.backward_ends)
    return before, upper(line for moment, line in found if moment > one.backward_ends)


def moments(one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> Iterator[tuple[int, MemoryLine]]:
    """(moment, its line) of a step, from its traces at two batch sizes. Raises LinesError when they differ in more."""
    if len(one.allocations) != len(other.allocations) or not (one.whole and other.whole):
        raise LinesError("the two traces have different tensors")
    slopes = {}
    for a, b in zip(one.allocations, other.allocations, strict=True):
        if (a.born, a.died) != (b.born, b.died):
            raise LinesError("a tensor lives for another time at another batch size")
        slopes[id(a)] = (b.bytes - a.bytes) // (batches[1] - batches[0])
    fixed = per_sample = 0
    for moment, sign, storage in events(one):
        slope = slopes[id(storage)]
        fixed += sign * (storage.bytes - slope * batches[0])
        per_sample += sign * slope
        yield moment, MemoryLine(fixed, per_sample)
