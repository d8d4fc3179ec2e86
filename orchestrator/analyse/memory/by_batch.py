"""Memory of a step at any batch size: the largest of a few lines ``fixed + per_sample * batch``, one for each moment.

The bytes are those of the tensors: what a device needs besides them is :func:`reserve_on`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfctl.orchestrator.analyse.memory.trace import RESERVE, events
from perfctl.records.paper import MemoryTrace

STATE = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adadelta": 2, "rmsprop": 1}
"""Values that an optimizer keeps for each parameter, besides the parameter and its gradient."""


class MemoryLine(NamedTuple):
    """Bytes at one moment of a step."""

    fixed: int
    """Independent of batch: parameters, gradients, optimizer state."""
    per_sample: int


class LinesError(ValueError):
    """Two traces whose steps differ in more than their sizes."""


def reserve_on(kind: str) -> int:
    """Bytes that a step leaves free on a "gpu", as ``perfctl estimate --reserve`` does by default; 0 on a "cpu"."""
    return RESERVE if kind == "gpu" else 0


def peak_at(lines: Iterable[MemoryLine], batch: int) -> int:
    """Peak bytes of a step."""
    return max(line.fixed + line.per_sample * batch for line in lines)


def largest_fitting(lines: Iterable[MemoryLine], limit: float) -> int | None:
    """The largest batch whose peak is at most ``limit`` bytes; 0 if no sample fits, None if every batch fits."""
    ends = []
    for line in lines:
        if line.per_sample > 0:
            ends.append(max(int((limit - line.fixed) // line.per_sample), 0))
        elif line.fixed > limit:
            return 0
    return min(ends, default=None)


def upper(lines: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """The lines that are the largest at some batch size, the steepest first."""
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
    """As :func:`lines_of`: of forward and backward, and of the optimizer's step."""
    found = list(moments(one, other, batches))
    before = upper(line for moment, line in found if moment <= one.backward_ends)
    return before, upper(line for moment, line in found if moment > one.backward_ends)


def moments(one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> Iterator[tuple[int, MemoryLine]]:
    """(moment, its line) of a step, from traces at two batch sizes. Raises LinesError if their tensors differ."""
    if len(one.allocations) != len(other.allocations) or not (one.whole and other.whole):
        raise LinesError("the two traces have different tensors")
    slopes = {}
    for a, b in zip(one.allocations, other.allocations, strict=True):
        if (a.born, a.died) != (b.born, b.died):
            raise LinesError("a tensor is born or freed at another moment at the other batch size")
        slopes[id(a)] = (b.bytes - a.bytes) // (batches[1] - batches[0])
    fixed = per_sample = 0
    for moment, sign, storage in events(one):
        slope = slopes[id(storage)]
        fixed += sign * (storage.bytes - slope * batches[0])
        per_sample += sign * slope
        yield moment, MemoryLine(fixed, per_sample)
