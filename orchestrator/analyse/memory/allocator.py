"""The caching allocator of PyTorch for CUDA, in bytes alone: blocks, segments, and what happens where memory ends.

Rules: c10/cuda/CUDACachingAllocator.cpp of PyTorch (kMinBlockSize and the others; ``release_cached_blocks``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

MIN_BLOCK = 512
SMALL = 1 << 20
SMALL_SEGMENT, LARGE_SEGMENT = 2 << 20, 20 << 20
MIN_LARGE, ROUND_LARGE = 10 << 20, 2 << 20


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
            kept = [entry for entry in entries if entry[2].before is not None or entry[2].after is not None]
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
