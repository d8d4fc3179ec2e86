"""Memory of a step at any batch size: lines ``fixed + per_sample * batch`` of its moments, and a
replay of its allocations.

A line has the bytes of the tensors. :class:`StepMemory` also knows what PyTorch's allocator makes
of them on a GPU, and is what every command asks for the largest batch that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from perfctl.orchestrator.estimate.memory.trace import (
    RESERVE,
    OutOfMemory,
    cublas_workspace,
    events,
    replay,
    reserved,
    rounded_peak,
    workspaces,
)
from perfctl.records.paper import Allocation, MemoryTrace

STATE = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adadelta": 2, "rmsprop": 1}
"""Values that an optimizer keeps for each parameter, besides the parameter and its gradient."""

Gpu = tuple[int, int] | None
"""Compute capability, which decides cuBLAS's workspaces; None: not known."""

FARTHEST = 1 << 20
"""Where doubling ends."""


class MemoryLine(NamedTuple):
    """Bytes at one moment of a step."""

    fixed: int
    """Independent of batch: parameters, gradients, optimizer state."""
    per_sample: int


class LinesError(ValueError):
    """Two traces whose steps differ in more than their sizes."""


def reserve_on(kind: str) -> int:
    """Bytes that a step leaves free on a "gpu", as ``perfctl estimate --reserve`` does by default;
    0 on a "cpu"."""
    return RESERVE if kind == "gpu" else 0


def peak_at(lines: Iterable[MemoryLine], batch: int) -> int:
    """Peak bytes of a step."""
    return max(line.fixed + line.per_sample * batch for line in lines)


def largest_fitting(lines: Iterable[MemoryLine], limit: float) -> int | None:
    """The largest batch whose peak is at most ``limit`` bytes; 0 if no sample fits, None if every
    batch fits."""
    least: float | None = None
    for line in lines:
        if line.per_sample > 0:
            fitting = (limit - line.fixed) // line.per_sample
            least = fitting if least is None or fitting < least else least
        elif line.fixed > limit:
            return 0
    return None if least is None else max(int(least), 0)


def upper(lines: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """The lines that are the largest at some batch size, the steepest first."""
    kept: list[MemoryLine] = []
    for line in sorted(set(lines), reverse=True, key=lambda one: (one.per_sample, one.fixed)):
        if not kept or line.fixed > kept[-1].fixed:
            kept.append(line)
    return tuple(kept)


def lines_of(
    one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]
) -> tuple[MemoryLine, ...]:
    """From the traces of one step at two batch sizes. Raises LinesError when the steps are not
    the same."""
    return upper(line for _, line in moments(one, other, batches))


def lines_by_part(
    one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]
) -> tuple[tuple[MemoryLine, ...], tuple[MemoryLine, ...]]:
    """As :func:`lines_of`: of forward and backward, and of the optimizer's step."""
    found = list(moments(one, other, batches))
    before = upper(line for moment, line in found if moment <= one.backward_ends)
    return before, upper(line for moment, line in found if moment > one.backward_ends)


def moments(
    one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]
) -> Iterator[tuple[int, MemoryLine]]:
    """(moment, its line) of a step, from traces at two batch sizes. Raises LinesError if their
    tensors differ."""
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


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest batch that fits on a device beside what is left free. Bytes."""

    batch: int | None
    """0: not even one sample fits; None: every batch fits."""
    needed: int
    """Tensors in the allocator's blocks at the fullest moment, and cuBLAS's workspaces:
    torch.cuda.max_memory_allocated."""
    reserve: int
    """Left free."""
    margin: int
    """What remains of the limit after ``needed`` and ``reserve``: the allocator may use it for
    pieces that nothing fits in."""
    next_needed: int
    """As ``needed`` at the next batch size, which does not fit: also not where these bytes would,
    if the allocator has them only in pieces that are too small."""


def _alike(gpu: Gpu) -> Gpu:
    """One capability for all with the same workspaces: they share answers."""
    return next(
        (one for one in ((8, 0), (9, 0)) if cublas_workspace(one) == cublas_workspace(gpu)), gpu
    )


class StepMemory:
    """One step on a GPU, from its traces at two batch sizes: every storage grows by the same bytes
    with each sample."""

    def __init__(self, one: MemoryTrace, other: MemoryTrace, batches: tuple[int, int]) -> None:
        """Raises LinesError when the two steps differ in more than their sizes."""
        self.lines = lines_of(one, other, batches)
        if [(item.born, item.died) for item in one.first] != [
            (item.born, item.died) for item in other.first
        ]:
            raise LinesError("the first of two steps has different tensors")
        self._one, self._batch = one, batches[0]
        between = batches[1] - batches[0]
        self._slopes = tuple(
            [(b.bytes - a.bytes) // between for a, b in zip(before, after, strict=True)]
            for before, after in ((one.first, other.first), (one.allocations, other.allocations))
        )
        self._fits = cache(self._fit)
        self._reserved = cache(self._reserved_at)

    def at(self, batch: int) -> MemoryTrace:
        """The trace at a batch size."""

        def grown(storages: tuple[Allocation, ...], slopes: list[int]) -> tuple[Allocation, ...]:
            more = batch - self._batch
            return tuple(
                a._replace(bytes=a.bytes + each * more)
                for a, each in zip(storages, slopes, strict=True)
            )

        first, second = self._slopes
        return replace(
            self._one,
            allocations=grown(self._one.allocations, second),
            first=grown(self._one.first, first),
        )

    def allocated(self, batch: int, gpu: Gpu = None) -> int:
        """Bytes at the fullest moment: tensors in blocks, and cuBLAS's workspaces."""
        return allocated_by(self.at(batch), gpu)

    def fits(self, batch: int, limit: float, reserve: int = 0, gpu: Gpu = None) -> bool:
        """Whether ``batch`` is at most the largest: at once where the segments of an endless device
        have room."""
        if self._reserved(batch, _alike(gpu)) <= limit - reserve:
            return True
        largest = self.largest(limit, reserve, gpu).batch
        return largest is None or batch <= largest

    def largest(self, limit: float, reserve: int = 0, gpu: Gpu = None) -> Fit:
        """The largest batch whose step runs in ``limit`` bytes of which ``reserve`` stay free."""
        return self._fits(limit, reserve, _alike(gpu))

    def _reserved_at(self, batch: int, gpu: Gpu) -> int:
        return reserved(self.at(batch), gpu)

    def _fit(self, limit: float, reserve: int, gpu: Gpu) -> Fit:
        room = limit - reserve
        most = largest_fitting(self.lines, room)
        if most is None:
            return Fit(None, self.allocated(1, gpu), reserve, int(room) - self.allocated(1, gpu), 0)
        return largest_batch(room, reserve, self.at, gpu, most)


def allocated_by(trace: MemoryTrace, gpu: Gpu = None) -> int:
    """Bytes that torch.cuda.max_memory_allocated would say."""
    return rounded_peak(trace) + sum(workspaces(trace, gpu).values())


def runs_in(trace: MemoryTrace, room: float, gpu: Gpu = None) -> bool:
    """Whether the allocator finds a piece for every tensor in ``room`` bytes."""
    if allocated_by(trace, gpu) > room:
        return False
    try:
        replay(trace, gpu, room)
    except OutOfMemory:
        return False
    return True


def largest_batch(
    room: float,
    reserve: int,
    at: Callable[[int], MemoryTrace],
    gpu: Gpu = None,
    most: int | None = None,
) -> Fit:
    """The largest batch that runs in ``room`` bytes. ``at``: the trace at a batch size; ``most``:
    no larger one has room.

    Down from ``most`` in growing steps, or up by doubling where it is not known; then by halves.
    """
    trace_at = cache(at)

    def runs(batch: int) -> bool:
        return runs_in(trace_at(batch), room, gpu)

    if most is None:
        low, high = 0, 1
        while high <= FARTHEST and runs(high):
            low, high = high, 2 * high
    else:
        low, high, step = most, most + 1, 1
        while low > 0 and not runs(low):
            low, high, step = max(low - step, 0), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if runs(middle) else (low, middle)
    needed = allocated_by(trace_at(low), gpu) if low else 0
    return Fit(low, needed, reserve, int(room) - needed, allocated_by(trace_at(high), gpu))
