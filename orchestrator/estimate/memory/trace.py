"""Memory of one step: bytes from storage lifetimes, and the blocks and segments that PyTorch's
caching allocator takes for them.

Workspaces: at/cuda/CublasHandlePool.cpp of PyTorch. Rules: c10/cuda/CUDACachingAllocator.cpp of
PyTorch (kMinBlockSize and the others; ``release_cached_blocks``).
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from perfctl.records.paper import Allocation, MemoryTrace

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
docs/formulas.md."""
RESERVE = 1 << 30
"""Bytes that stay free by default: for the CUDA context, the workspaces of cuBLAS and cuDNN, and
fragmentation. What each takes: docs/formulas.md, Memory."""
NOT_KNOWN = (
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


class OutOfMemory(Exception):
    """The device has no segment left for a tensor, although every unused one was given back."""

    def __init__(self, size: int, reserved: int) -> None:
        """``size``: bytes of the tensor, in blocks; ``reserved``: of the segments in use."""
        super().__init__(f"no room for {size:,} B beside {reserved:,} B in use")
        self.size, self.reserved = size, reserved


def round_block(size: int) -> int:
    """Rounded up to the allocator's 512-byte blocks; 0 stays 0."""
    return -(-size // MIN_BLOCK) * MIN_BLOCK


def segment_size(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // ROUND_LARGE) * ROUND_LARGE


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, with its neighbours."""

    size: int
    large: bool
    free: bool = True
    order: int = 0
    """Among the free blocks of one size the one that was freed first is taken first."""
    before: Block | None = None
    after: Block | None = None


class Pool:
    """Blocks in use and free, on one device."""

    def __init__(self, limit: float | None = None) -> None:
        """``limit``: bytes that the segments may take together; None for no end."""
        self.limit, self.reserved = limit, 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {False: [], True: []}
        self._count = 0

    def take(self, size: int) -> Block:
        """A block of ``size`` bytes. Raises OutOfMemory."""
        size = round_block(max(size, 1))
        large = size > SMALL
        block = self._fit(size, large)
        block.free = False
        rest = block.size - size
        if (rest > SMALL) if large else (rest >= MIN_BLOCK):
            piece = Block(rest, large, before=block, after=block.after)
            if block.after is not None:
                block.after.before = piece
            block.after, block.size = piece, size
            self._offer(piece)
        return block

    def give(self, block: Block) -> None:
        """Back to the free blocks, joined with its free neighbours."""
        before, after = block.before, block.after
        if before is not None and before.free:
            self._withdraw(before)
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._withdraw(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self._offer(block)

    def _fit(self, size: int, large: bool) -> Block:
        free = self._free[large]
        place = bisect_left(free, (size,))
        if place < len(free):
            return free.pop(place)[2]
        taken = segment_size(size)
        if self.limit is not None and self.reserved + taken > self.limit:
            self._release()
            if self.reserved + taken > self.limit:
                raise OutOfMemory(size, self.reserved)
        self.reserved += taken
        return Block(taken, large)

    def _release(self) -> None:
        """Give every segment back that nothing uses."""
        for large, entries in self._free.items():
            kept = [
                entry
                for entry in entries
                if entry[2].before is not None or entry[2].after is not None
            ]
            self.reserved -= sum(entry[0] for entry in entries) - sum(entry[0] for entry in kept)
            self._free[large] = kept

    def _offer(self, block: Block) -> None:
        block.free = True
        self._count += 1
        block.order = self._count
        insort(self._free[block.large], (block.size, block.order, block))

    def _withdraw(self, block: Block) -> None:
        free = self._free[block.large]
        free.pop(bisect_left(free, (block.size, block.order)))


def capability(text: str) -> tuple[int, int] | None:
    """ "sm_90", "9.0" or "h100" as (9, 0); None if it is none of these."""
    known = CAPABILITIES.get(text.lower().replace(" ", ""))
    found = re.fullmatch(r"(?:sm_?(\d{1,2})(\d)a?|(\d{1,2})\.(\d))", text.lower())
    if known is not None or found is None:
        return known
    major, minor = filter(None, found.groups())
    return int(major), int(minor)


def cublas_workspace(gpu: tuple[int, int] | None) -> int:
    """Bytes that PyTorch allocates for each cuBLAS handle and stream: 32 MiB for Hopper, newer ones
    for Blackwell too."""
    return 32 << 20 if gpu is not None and gpu[0] >= 9 else 8_519_680


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of a step with most bytes."""

    bytes: int
    by_category: dict[str, int]
    phase: str
    layer: str
    """Layer of the operation that allocated last; "" outside modules."""
    op: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of a step, in bytes."""

    JSON_KEYS = ("*", "cublas_workspace", "allocated")

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int
    """Kept from forward for backward, including the output."""
    peak: Peak
    rounded_peak: int
    """Peak with every tensor rounded up to the allocator's 512-byte blocks."""
    workspaces: dict[str, int]
    """Of cuBLAS: each thread that multiplies matrices has its own, from its first product on."""
    reserved: int
    """Segments of the allocator, with the workspaces: torch.cuda.max_memory_reserved."""
    gpu: tuple[int, int] | None = None
    assumed: tuple[str, ...] = ()
    """What was taken for the GPU, one line each."""
    not_known: tuple[str, ...] = NOT_KNOWN

    @property
    def cublas_workspace(self) -> int:
        """All workspaces together."""
        return sum(self.workspaces.values())

    @property
    def allocated(self) -> int:
        """Peak of tensors in blocks, and the workspaces: torch.cuda.max_memory_allocated."""
        return self.rounded_peak + self.cublas_workspace

    @property
    def needed(self) -> int:
        """What the process takes on the device, without ``not_known``."""
        return self.reserved


def events(trace: MemoryTrace) -> Iterator[tuple[int, int, Allocation]]:
    """(moment, +1 allocated or -1 freed, storage), in order; at one moment, freed storages
    come first."""
    for moment, sign, place in _events(trace.allocations):
        yield moment, sign, trace.allocations[place]


def _events(storages: Sequence[Allocation]) -> list[tuple[int, int, int]]:
    """(moment, +1 or -1, place in ``storages``)."""
    born = [(storage.born, 1, place) for place, storage in enumerate(storages)]
    died = [(one.died, -1, place) for place, one in enumerate(storages) if one.died is not None]
    return sorted(born + died)


def peak(trace: MemoryTrace) -> Peak:
    """Bytes of the tensors; the first of equal moments."""
    now = top = moment = 0
    maker: Allocation | None = None
    held, shares = Counter[str](), Counter[str]()
    for at, sign, storage in events(trace):
        now += sign * storage.bytes
        held[storage.category] += sign * storage.bytes
        if now > top:
            top, moment, maker, shares = now, at, storage, held.copy()
    phase = (
        "forward"
        if moment <= trace.forward_ends
        else "backward"
        if moment <= trace.backward_ends
        else "optimizer"
    )
    by_category = {name: shares[name] for name in CATEGORIES if shares[name]}
    return Peak(top, by_category, phase, maker.layer if maker else "", maker.op if maker else "")


def rounded_peak(trace: MemoryTrace) -> int:
    """Peak with every storage rounded to blocks, as torch.cuda.max_memory_allocated reports it."""
    return max(
        accumulate(
            (sign * round_block(storage.bytes) for _, sign, storage in events(trace)), initial=0
        )
    )


def memory_of(trace: MemoryTrace, gpu: tuple[int, int] | None = None) -> Memory:
    """Memory of one traced step. ``gpu``: compute capability, which decides cuBLAS's workspaces."""
    sums = {
        name: sum(item.bytes for item in trace.allocations if item.category == name)
        for name in CATEGORIES
    }
    return Memory(
        parameters=sums["parameter"],
        buffers=sums["buffer"],
        gradients=sums["gradient"],
        optimizer=sums["optimizer"],
        inputs=sums["input"],
        activations=sums["activation"],
        peak=peak(trace),
        rounded_peak=rounded_peak(trace),
        workspaces=workspaces(trace, gpu),
        reserved=reserved(trace, gpu),
        gpu=gpu,
        assumed=trace.assumed
        if trace.on_gpu
        else ("kernels: those of the device that ran the step, not a GPU's",),
    )


def workspaces(trace: MemoryTrace, gpu: tuple[int, int] | None) -> dict[str, int]:
    """Of cuBLAS and cuBLASLt, for the threads that need one: that of forward and, on a GPU,
    backward's own."""
    found = (_workspaces(storage, gpu) for storage in (*trace.first, *trace.allocations))
    return {name: size for each in found for name, size in each.items()}


def _workspaces(storage: Allocation, gpu: tuple[int, int] | None) -> dict[str, int]:
    """Those that the operation which made ``storage`` uses."""
    if storage.op not in PRODUCTS or storage.direction not in ("forward", "backward"):
        return {}
    used = {f"cuBLAS, {storage.direction}": cublas_workspace(gpu)}
    return {**used, f"cuBLASLt, {storage.direction}": LT_WORKSPACE} if storage.op in LT else used


def replay(
    trace: MemoryTrace, gpu: tuple[int, int] | None = None, limit: float | None = None
) -> Pool:
    """Every allocation of both steps in their order, in a pool that ends at ``limit`` bytes. Raises
    OutOfMemory at its end."""
    pool, taken = Pool(limit), set[str]()
    held: dict[int, Block] = {}

    def run(storages: tuple[Allocation, ...]) -> None:
        for _, sign, place in _events(storages):
            storage = storages[place]
            for name, size in _workspaces(storage, gpu).items() if sign > 0 else ():
                if name not in taken:
                    taken.add(name)
                    pool.take(size)
            if storage.bytes and sign > 0 and place not in held:
                held[place] = pool.take(storage.bytes)
            elif storage.bytes and sign < 0:
                pool.give(held.pop(place))

    run(trace.first)
    staying = (place for place, storage in enumerate(trace.first) if storage.died is None)
    held = {now: held[before] for now, before in enumerate(staying) if before in held}
    run(trace.allocations)
    return pool


def reserved(trace: MemoryTrace, gpu: tuple[int, int] | None = None) -> int:
    """Bytes of segments after the step, on a device whose memory does not end."""
    return replay(trace, gpu).reserved
