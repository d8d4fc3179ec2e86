"""Memory of one step: bytes from storage lifetimes, the blocks and segments that PyTorch's caching
allocator takes for them, and the same at any batch size.

A line ``fixed + per_sample * batch`` has the bytes of the tensors at one moment of a step.
:class:`StepMemory` also knows what PyTorch's allocator makes of them on a GPU, and is what every
command asks for the largest batch that fits.

Workspaces: at/cuda/CublasHandlePool.cpp of PyTorch. Rules: c10/cuda/CUDACachingAllocator.cpp of
PyTorch (kMinBlockSize and the others; ``release_cached_blocks``).
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from perfctl.records.paper import MemoryTrace, TensorAllocation

MIN_BLOCK = 512
SMALL = 1 << 20
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
MIN_LARGE, ROUND_LARGE = 10 << 20, 2 << 20
CAPABILITIES = {
    "v100": (7, 0),
    "t4": (7, 5),
    "a100": (8, 0),
    "a10": (8, 6),
    "rtx3090": (8, 6),
    "l4": (8, 9),
    "l40": (8, 9),
    "rtx4090": (8, 9),
    "h100": (9, 0),
    "h200": (9, 0),
    "b200": (10, 0),
    "rtx5090": (12, 0),
}

CATEGORIES = ("parameter", "buffer", "gradient", "optimizer", "input", "activation", "temporary")
CONTEXT = (250 << 20, 1350 << 20)
"""CUDA context and loaded kernels, least and most: outside of the allocator. Sources:
docs/reference/formulas.md."""
RESERVE = 1 << 30
"""Bytes that stay free by default: for the CUDA context, the workspaces of cuBLAS and cuDNN, and
fragmentation. What each takes: docs/reference/formulas.md, Memory."""
UNPREDICTED = (
    "cuDNN workspace (by algorithm, chosen at run time)",
    "CUDA context and loaded kernels (by GPU, driver and libraries)",
    "memory of other processes on the device",
)
PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "_int_mm",
        "_scaled_mm",
    )
)
"""Operations that CUDA runs with cuBLAS."""
LT = frozenset(("aten.addmm", "aten._int_mm", "aten._scaled_mm"))
"""Operations that CUDA runs with cuBLASLt: in forward, addmm adds the bias of a linear layer."""
LT_WORKSPACE = 1 << 20
STATE = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2, "adadelta": 2, "rmsprop": 1}
"""Values that an optimizer keeps for each parameter, besides the parameter and its gradient."""
TRIED_BATCH_MAX = 1 << 20
"""Batch size at which the search by doubling ends."""

Gpu = tuple[int, int] | None
"""Compute capability, which decides cuBLAS's workspaces; None: not known."""
TRACED_AT = (2, 3)
"""Batch sizes; not 1, because a batch norm in training refuses a batch with one value a channel."""


class OutOfMemory(Exception):
    """The device has no segment left for a tensor, although every unused one was given back."""


def round_up_to_block_bytes(size: int) -> int:
    """Return a size rounded up to the allocator's 512-byte blocks; 0 stays 0."""
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def compute_segment_bytes(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A piece of a segment, with its neighbours."""

    size: int
    large: bool
    free: bool = True
    order: int = 0
    """Among the free blocks of one size the one that was freed first is taken first."""
    before: MemoryBlock | None = None
    after: MemoryBlock | None = None


class BlockPool:
    """Blocks in use and free, on one device."""

    def __init__(self, limit: float | None = None) -> None:
        """``limit``: bytes that the segments may take together; None for no end."""
        self.limit, self.reserved = limit, 0
        self._free: dict[bool, list[tuple[int, int, MemoryBlock]]] = {False: [], True: []}
        self._count = 0

    def allocate(self, size: int) -> MemoryBlock:
        """Return a block of ``size`` bytes. Raises OutOfMemory."""
        size = round_up_to_block_bytes(max(size, 1))
        large = size > SMALL
        block = self._get_or_reserve_fitting_block(size, large)
        block.free = False
        remainder = block.size - size
        if (remainder > SMALL) if large else (remainder >= MIN_BLOCK):
            piece = MemoryBlock(remainder, large, before=block, after=block.after)
            if block.after is not None:
                block.after.before = piece
            block.after, block.size = piece, size
            self._add_free_block(piece)
        return block

    def free_block(self, block: MemoryBlock) -> None:
        """Give a block back to the free ones, joined with its free neighbors."""
        before, after = block.before, block.after
        if before is not None and before.free:
            self._remove_free_block(before)
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._remove_free_block(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._add_free_block(block)

    def _get_or_reserve_fitting_block(self, size: int, large: bool) -> MemoryBlock:
        free = self._free[large]
        index = bisect_left(free, (size,))
        if index < len(free):
            return free.pop(index)[2]
        segment_bytes = compute_segment_bytes(size)
        if self.limit is not None and self.reserved + segment_bytes > self.limit:
            self._release_unused_segments()
            if self.reserved + segment_bytes > self.limit:
                raise OutOfMemory(f"no room for {size:,} B beside {self.reserved:,} B in use")
        self.reserved += segment_bytes
        return MemoryBlock(segment_bytes, large)

    def _release_unused_segments(self) -> None:
        """Give every segment back that nothing uses."""
        for large, entries in self._free.items():
            self._free[large] = []
            for size, order, block in entries:
                if block.before is None and block.after is None:
                    self.reserved -= size
                else:
                    self._free[large].append((size, order, block))

    def _add_free_block(self, block: MemoryBlock) -> None:
        block.free = True
        self._count += 1
        block.order = self._count
        insort(self._free[block.large], (block.size, block.order, block))

    def _remove_free_block(self, block: MemoryBlock) -> None:
        free = self._free[block.large]
        free.pop(bisect_left(free, (block.size, block.order)))


def parse_capability_or_gpu_name(text: str) -> Gpu:
    """Return "sm_90", "9.0" or "h100" as (9, 0); None if it is none of these."""
    match = re.fullmatch(r"(?:sm_?(\d{1,2})(\d)a?|(\d{1,2})\.(\d))", text.lower())
    if match is None:
        return CAPABILITIES.get(text.lower().replace(" ", ""))
    major, minor = filter(None, match.groups())
    return int(major), int(minor)


def get_cublas_workspace_bytes(gpu: Gpu) -> int:
    """Return the bytes that PyTorch allocates for each cuBLAS handle and stream: 32 MiB for Hopper,
    newer ones for Blackwell too."""
    return 32 << 20 if gpu is not None and gpu[0] >= 9 else 8_519_680


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    """The moment of a step with most bytes."""

    bytes: int
    by_category: dict[str, int]
    phase: str
    layer: str
    """Layer of the operation that allocated last; "" outside modules."""
    op: str


@dataclass(frozen=True, slots=True)
class StepMemorySummary:
    """Memory of a step, in bytes."""

    JSON_KEYS = ("*", "cublas_workspace", "allocated")

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int
    """Kept from forward for backward, including the output."""
    peak: MemoryPeak
    rounded_peak: int
    """Peak with every tensor rounded up to the allocator's 512-byte blocks."""
    workspaces: dict[str, int]
    """Of cuBLAS: each thread that multiplies matrices has its own, from its first product on."""
    reserved: int
    """Segments of the allocator, with the workspaces: torch.cuda.max_memory_reserved."""
    gpu: Gpu = None
    assumed: tuple[str, ...] = ()
    """Assumptions about the GPU, one line each."""
    missing: tuple[str, ...] = UNPREDICTED
    """Memory that no trace shows."""

    @property
    def cublas_workspace(self) -> int:
        """All workspaces together."""
        return sum(self.workspaces.values())

    @property
    def allocated(self) -> int:
        """Peak of tensors in blocks, and the workspaces: torch.cuda.max_memory_allocated."""
        return self.rounded_peak + self.cublas_workspace


def list_ordered_allocation_events(
    storages: Sequence[TensorAllocation],
) -> list[tuple[int, int, int]]:
    """Return (moment, +1 allocated or -1 freed, index in ``storages``), in order; at one moment,
    freed storages come first."""
    born = [(storage.born, 1, index) for index, storage in enumerate(storages)]
    died = [
        (storage.died, -1, index)
        for index, storage in enumerate(storages)
        if storage.died is not None
    ]
    return sorted(born + died)


def find_memory_peak(trace: MemoryTrace) -> MemoryPeak:
    """Return the fullest moment, in bytes of the tensors; the first of equal ones."""
    size = top = moment = 0
    maker: TensorAllocation | None = None
    alive, shares = Counter[str](), Counter[str]()
    for event, sign, index in list_ordered_allocation_events(trace.allocations):
        storage = trace.allocations[index]
        size += sign * storage.bytes
        alive[storage.category] += sign * storage.bytes
        if size > top:
            top, moment, maker, shares = size, event, storage, alive.copy()
    ends = {"forward": trace.forward_ends, "backward": trace.backward_ends}
    phase = next((name for name, end in ends.items() if moment <= end), "optimizer")
    by_category = {name: shares[name] for name in CATEGORIES if shares[name]}
    return MemoryPeak(
        top, by_category, phase, maker.layer if maker else "", maker.op if maker else ""
    )


def compute_block_rounded_peak_bytes(trace: MemoryTrace) -> int:
    """Return the peak with every storage rounded to blocks, as torch.cuda.max_memory_allocated
    reports it."""
    sizes = [round_up_to_block_bytes(storage.bytes) for storage in trace.allocations]
    changes = (
        sign * sizes[index] for _, sign, index in list_ordered_allocation_events(trace.allocations)
    )
    return max(accumulate(changes, initial=0))


def summarize_memory(trace: MemoryTrace, gpu: Gpu = None) -> StepMemorySummary:
    """Return the memory of one traced step. ``gpu``: compute capability, which decides cuBLAS's
    workspaces."""
    sums = Counter[str]()
    for storage in trace.allocations:
        sums[storage.category] += storage.bytes
    of_device = ("kernels: those of the device that ran the step, not a GPU's",)
    return StepMemorySummary(
        parameters=sums["parameter"],
        buffers=sums["buffer"],
        gradients=sums["gradient"],
        optimizer=sums["optimizer"],
        inputs=sums["input"],
        activations=sums["activation"],
        peak=find_memory_peak(trace),
        rounded_peak=compute_block_rounded_peak_bytes(trace),
        workspaces=list_cublas_workspace_bytes(trace, gpu),
        reserved=compute_reserved_bytes(trace, gpu),
        gpu=gpu,
        assumed=trace.assumed if trace.on_gpu else of_device,
    )


def list_cublas_workspace_bytes(trace: MemoryTrace, gpu: Gpu) -> dict[str, int]:
    """Return those of cuBLAS and cuBLASLt, for the threads that need one: that of forward and, on
    a GPU, backward's own."""
    sizes: dict[str, int] = {}
    for storage in (*trace.first, *trace.allocations):
        sizes.update(_list_operation_cublas_workspaces(storage, gpu))
    return sizes


def _list_operation_cublas_workspaces(storage: TensorAllocation, gpu: Gpu) -> dict[str, int]:
    """Return those that the operation which made ``storage`` uses."""
    sizes = {}
    if storage.op in PRODUCTS and storage.direction in ("forward", "backward"):
        sizes[f"cuBLAS, {storage.direction}"] = get_cublas_workspace_bytes(gpu)
        if storage.op in LT:
            sizes[f"cuBLASLt, {storage.direction}"] = LT_WORKSPACE
    return sizes


def replay_allocations(
    trace: MemoryTrace, gpu: Gpu = None, limit_bytes: float | None = None
) -> BlockPool:
    """Return a pool after every allocation of both steps in their order. It ends at ``limit_bytes``
    bytes; raises OutOfMemory at its end."""
    pool, workspaces_taken = BlockPool(limit_bytes), set[str]()
    blocks: dict[int, MemoryBlock] = {}
    for storages in (trace.first, trace.allocations):
        for _, sign, index in list_ordered_allocation_events(storages):
            storage = storages[index]
            for name, size in (
                _list_operation_cublas_workspaces(storage, gpu).items() if sign > 0 else ()
            ):
                if name not in workspaces_taken:
                    workspaces_taken.add(name)
                    pool.allocate(size)
            if storage.bytes and sign > 0 and index not in blocks:
                blocks[index] = pool.allocate(storage.bytes)
            elif storage.bytes and sign < 0:
                pool.free_block(blocks.pop(index))
        # What stays is the first of the next step, in the same order.
        staying = [index for index, storage in enumerate(storages) if storage.died is None]
        blocks = {now: blocks[old] for now, old in enumerate(staying) if old in blocks}
    return pool


def compute_reserved_bytes(trace: MemoryTrace, gpu: Gpu = None) -> int:
    """Return the bytes of segments after the step, on a device whose memory does not end."""
    return replay_allocations(trace, gpu).reserved


class MemoryLine(NamedTuple):
    """Bytes at one moment of a step."""

    fixed: int
    """Independent of batch: parameters, gradients, optimizer state."""
    per_sample: int


class UnlikeTracesError(ValueError):
    """Two traces whose steps differ in more than their sizes."""


def get_default_reserve_bytes(device_kind: str) -> int:
    """Return the bytes that a step leaves free on a "gpu", as ``perfctl estimate --reserve`` does
    by default; 0 on a "cpu"."""
    return RESERVE if device_kind == "gpu" else 0


def compute_batch_peak_bytes(lines: Iterable[MemoryLine], batch: int) -> int:
    """Return the peak bytes of a step."""
    return max(line.fixed + line.per_sample * batch for line in lines)


def find_largest_batch_by_lines(lines: Iterable[MemoryLine], limit_bytes: float) -> int | None:
    """Return the largest batch whose peak is at most ``limit_bytes``; 0 if no sample fits, None if
    every batch fits."""
    least: float | None = None
    for line in lines:
        if line.per_sample > 0:
            fitting = (limit_bytes - line.fixed) // line.per_sample
            least = fitting if least is None or fitting < least else least
        elif line.fixed > limit_bytes:
            return 0
    return None if least is None else max(int(least), 0)


def select_upper_envelope_lines(lines: Iterable[MemoryLine]) -> tuple[MemoryLine, ...]:
    """Return the lines that are the largest at some batch size, the steepest first."""
    largest: list[MemoryLine] = []
    for line in sorted(set(lines), reverse=True, key=lambda line: (line.per_sample, line.fixed)):
        if not largest or line.fixed > largest[-1].fixed:
            largest.append(line)
    return tuple(largest)


def _compute_storage_bytes_per_sample(
    first: Sequence[TensorAllocation], other: Sequence[TensorAllocation]
) -> list[int]:
    """Return the bytes by which each storage grows with a sample. Raises UnlikeTracesError."""
    lives, other_lives = (
        [(storage.born, storage.died) for storage in step] for step in (first, other)
    )
    if lives != other_lives:
        raise UnlikeTracesError("the lifetime of a tensor depends on the batch size")
    between = TRACED_AT[1] - TRACED_AT[0]
    return [(b.bytes - a.bytes) // between for a, b in zip(first, other, strict=True)]


@dataclass(frozen=True, slots=True)
class LargestBatch:
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


def _choose_capability_with_same_workspace(gpu: Gpu) -> Gpu:
    """Return one capability for all with the same workspaces: they share answers."""
    size = get_cublas_workspace_bytes(gpu)
    return next(
        (
            candidate
            for candidate in ((8, 0), (9, 0))
            if get_cublas_workspace_bytes(candidate) == size
        ),
        gpu,
    )


class StepMemory:
    """One step on a GPU, from its traces at :data:`TRACED_AT`: every storage grows by the same
    bytes with each sample."""

    def __init__(self, first: MemoryTrace, other: MemoryTrace) -> None:
        """Raises UnlikeTracesError when the two steps differ in more than their sizes."""
        if len(first.allocations) != len(other.allocations) or not (first.whole and other.whole):
            raise UnlikeTracesError("the two traces have different tensors")
        self._one = first
        self._growth = _compute_storage_bytes_per_sample(first.allocations, other.allocations)
        self._first_growth = _compute_storage_bytes_per_sample(first.first, other.first)
        self._moments = list(self._yield_memory_line_per_moment())
        self.lines = select_upper_envelope_lines(line for _, line in self._moments)
        self._fits = cache(self._compute_largest_fitting_batch)
        self._reserved = cache(
            lambda batch, gpu: compute_reserved_bytes(self.extrapolate_trace_to_batch(batch), gpu)
        )

    def _yield_memory_line_per_moment(self) -> Iterator[tuple[int, MemoryLine]]:
        """Yield (moment, its line) of the step."""
        fixed = per_sample = 0
        for moment, sign, index in list_ordered_allocation_events(self._one.allocations):
            growth = self._growth[index]
            fixed += sign * (self._one.allocations[index].bytes - growth * TRACED_AT[0])
            per_sample += sign * growth
            yield moment, MemoryLine(fixed, per_sample)

    @property
    def lines_by_phase(self) -> tuple[tuple[MemoryLine, ...], tuple[MemoryLine, ...]]:
        """The lines of forward and backward, and those of the optimizer's step."""
        before, after = (
            select_upper_envelope_lines(
                line
                for moment, line in self._moments
                if (moment > self._one.backward_ends) == is_optimizer
            )
            for is_optimizer in (False, True)
        )
        return before, after

    def extrapolate_trace_to_batch(self, batch: int) -> MemoryTrace:
        """Return the trace at a batch size."""
        allocations, first = (
            tuple(
                storage._replace(bytes=storage.bytes + growth * (batch - TRACED_AT[0]))
                for storage, growth in zip(storages, growths, strict=True)
            )
            for storages, growths in (
                (self._one.allocations, self._growth),
                (self._one.first, self._first_growth),
            )
        )
        return replace(self._one, allocations=allocations, first=first)

    def compute_allocated_peak_bytes(self, batch: int, gpu: Gpu = None) -> int:
        """Return the bytes at the fullest moment: tensors in blocks, and cuBLAS's workspaces."""
        return compute_peak_allocated_bytes(self.extrapolate_trace_to_batch(batch), gpu)

    def can_fit_batch(
        self, batch: int, limit_bytes: float, reserved_bytes: int = 0, gpu: Gpu = None
    ) -> bool:
        """Return whether ``batch`` is at most the largest: at once where the segments of an endless
        device have room."""
        if (
            self._reserved(batch, _choose_capability_with_same_workspace(gpu))
            <= limit_bytes - reserved_bytes
        ):
            return True
        largest = self.find_largest_fitting_batch(limit_bytes, reserved_bytes, gpu).batch
        return largest is None or batch <= largest

    def find_largest_fitting_batch(
        self, limit_bytes: float, reserved_bytes: int = 0, gpu: Gpu = None
    ) -> LargestBatch:
        """Return the largest batch whose step runs in ``limit_bytes`` of which ``reserved_bytes``
        stay free."""
        return self._fits(limit_bytes, reserved_bytes, _choose_capability_with_same_workspace(gpu))

    def _compute_largest_fitting_batch(
        self, limit_bytes: float, reserved_bytes: int, gpu: Gpu
    ) -> LargestBatch:
        room = limit_bytes - reserved_bytes
        most = find_largest_batch_by_lines(self.lines, room)
        if most is None:
            return LargestBatch(
                None,
                self.compute_allocated_peak_bytes(1, gpu),
                reserved_bytes,
                int(room) - self.compute_allocated_peak_bytes(1, gpu),
                0,
            )
        return find_largest_batch_by_replay(
            room, reserved_bytes, self.extrapolate_trace_to_batch, gpu, most
        )


def compute_peak_allocated_bytes(trace: MemoryTrace, gpu: Gpu = None) -> int:
    """Return the bytes that torch.cuda.max_memory_allocated would report."""
    return compute_block_rounded_peak_bytes(trace) + sum(
        list_cublas_workspace_bytes(trace, gpu).values()
    )


def can_run_trace_in_bytes(trace: MemoryTrace, bytes_available: float, gpu: Gpu = None) -> bool:
    """Return whether the allocator finds a piece for every tensor in ``bytes_available`` bytes."""
    if compute_peak_allocated_bytes(trace, gpu) > bytes_available:
        return False
    try:
        replay_allocations(trace, gpu, bytes_available)
    except OutOfMemory:
        return False
    return True


def find_largest_batch_by_replay(
    bytes_available: float,
    reserved_bytes: int,
    make_trace: Callable[[int], MemoryTrace],
    gpu: Gpu = None,
    max_batch: int | None = None,
) -> LargestBatch:
    """Return the largest batch that runs in ``bytes_available``. ``make_trace``: the trace at a
    batch size; ``max_batch``: no larger one has room.

    Down from ``max_batch`` in growing steps, or up by doubling where it is not known; then by
    halves.
    """
    trace_at = cache(make_trace)

    if max_batch is None:
        low, high = 0, 1
        while high <= TRIED_BATCH_MAX and can_run_trace_in_bytes(
            trace_at(high), bytes_available, gpu
        ):
            low, high = high, 2 * high
    else:
        low, high, step = max_batch, max_batch + 1, 1
        while low > 0 and not can_run_trace_in_bytes(trace_at(low), bytes_available, gpu):
            low, high, step = max(low - step, 0), low, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        runs = can_run_trace_in_bytes(trace_at(middle), bytes_available, gpu)
        low, high = (middle, high) if runs else (low, middle)
    needed = compute_peak_allocated_bytes(trace_at(low), gpu) if low else 0
    return LargestBatch(
        low,
        needed,
        reserved_bytes,
        int(bytes_available) - needed,
        compute_peak_allocated_bytes(trace_at(high), gpu),
    )
