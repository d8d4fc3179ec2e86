"""Matrix products, convolutions and attention on tensor cores: FLOPs in whole tiles.

A tile is computed whole, and so is each step along the sum. Persistent kernels (cuBLAS from Hopper on) launch fewer thread
blocks than there are tiles, and swizzled grids more: tiles follow from the shape, the grid only tells how they lie.
"""

from __future__ import annotations

import re
from math import ceil, prod

from perfctl.orchestrator.analyse.derived.products import up
from perfctl.orchestrator.analyse.derived.records import AttentionShape, Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.analyse.kernels.names import Algorithm

VOLTA_STEP = 32
"""Along the sum, of Volta's s884 and h884 kernels, whose names have no step."""
_ALIKE = 0.02
_PERSISTENT = ("nvjet", "sm90_xmma", "sm100_xmma", "sm120_xmma", "cutlass3x", "gemmuniversal")


def product(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Products on tensor cores: tiles of the shape x m x n x the sum in whole steps, 2 FLOPs each."""
    shape, tile = work.shape, algorithm.tile
    if not isinstance(shape, GemmShape) or tile is None or not algorithm.tensor_core or algorithm.family != "gemm":
        return None
    step = tile[2] or (VOLTA_STEP if algorithm.instruction in ("s884", "h884") else None)
    sides = _sides(launch, tile[:2], shape)
    if step is None or sides is None:
        return None
    split = _parts(launch, shape, sides)
    part = ceil(shape.k / split)
    deep = up(part, step) * (split - 1) + up(max(shape.k - part * (split - 1), 0), step)
    rows, columns = ceil(shape.m / sides[0]), ceil(shape.n / sides[1])
    done = 2 * shape.batch * rows * columns * prod(sides) * deep
    times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
    parts = f" in {split} parts" if split > 1 else ""
    return Derived(
        f"tensor product, {algorithm.instruction or algorithm.architecture or algorithm.library}",
        f"{times}ceil({shape.m:,} / {sides[0]}) x ceil({shape.n:,} / {sides[1]}) tiles x {sides[0]} x {sides[1]} x "
        f"(sum of {shape.k:,}{parts}, in steps of {step}: {deep:,}) x 2 = {done:,} FLOP",
        tensor=done, math=algorithm.math,
    )  # fmt: skip


def _sides(launch: Launch, tile: tuple[int, ...], shape: GemmShape) -> tuple[int, int] | None:
    """The tile's sides along rows and columns: as the grid says, else any if both do the same; None where that is open."""
    m, n = tile
    choices = list(dict.fromkeys(((n, m), (m, n))))
    blocks = {sides: (ceil(shape.m / sides[0]), ceil(shape.n / sides[1])) for sides in choices}
    if launch.grid is not None and not launch.name.lower().startswith(_PERSISTENT):
        whole = [
            sides for sides, (rows, columns) in blocks.items()
            if sorted(launch.grid[:2]) == sorted((rows, columns))
            or prod(launch.grid) in (rows * columns, rows * columns * shape.batch)
        ]  # fmt: skip
        fits = [sides for sides in choices if prod(launch.grid) >= prod(blocks[sides]) * shape.batch]
        # a swizzled grid fills up one side: 13 x 6 tiles in a grid of 13 x 8 (seen on an H100: CUTLASS's 128x64_64x6)
        swizzled = [sides for sides in fits if any(prod(launch.grid) % side == 0 for side in blocks[sides])]
        choices = whole or (swizzled if len(swizzled) == 1 else fits)
    areas = [prod(blocks[sides]) for sides in choices]
    if not areas or max(areas) > min(areas) * (1 + _ALIKE):
        return None
    return choices[0]


def _parts(launch: Launch, shape: GemmShape, sides: tuple[int, int]) -> int:
    """How often the sum is split: what is left in the grid's z."""
    grid = launch.grid
    if grid is None or launch.name.lower().startswith(_PERSISTENT) or grid[2] % shape.batch:
        return 1
    tiles = ceil(shape.m / sides[0]) * ceil(shape.n / sides[1])
    return max(grid[2] // shape.batch, 1) if grid[0] * grid[1] >= tiles else 1


def convolution(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Forward convolutions as implicit GEMM, where the channels fill whole steps: how others are padded, no name says."""
    shape, tile = work.shape, algorithm.tile
    if not isinstance(shape, ConvShape) or tile is None or not algorithm.tensor_core or algorithm.family != "conv":
        return None
    step = tile[2]
    channels = shape.in_channels // shape.groups
    if algorithm.direction in ("grad_input", "grad_weight") or shape.groups != 1 or not step or channels % step:
        return None
    m, n, _ = tile
    tiles = ceil(shape.pixels / m) * ceil(shape.out_channels / n)
    done = 2 * tiles * m * n * shape.depth
    return Derived(
        "tensor convolution",
        f"ceil({shape.pixels:,} outputs / {m}) x ceil({shape.out_channels} channels / {n}) tiles x {m} x {n} x "
        f"{shape.depth:,} x 2 = {done:,} FLOP", tensor=done, math=algorithm.math,
    )  # fmt: skip


_FLASH = re.compile(
    r"flash_(?P<way>fwd|bwd)\w*kernel_traits<(?:\(int\))?(?P<width>\d+), ?(?:\(int\))?(?P<m>\d+), ?(?:\(int\))?(?P<n>\d+)"
)
_EFFICIENT = re.compile(r"fmha_cutlass(?P<way>[fb])_(?:f16|bf16)_\w*?(?P<m>\d+)x(?P<n>\d+)")


def attention(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Flash and memory-efficient attention in half precision: whole tiles of queries by keys, of which a causal mask skips
    those above the diagonal. Backward computes the scores again: five products in place of four."""
    shape, name = work.shape, launch.name.lower()
    if not isinstance(shape, AttentionShape):
        return None
    found = _FLASH.search(name) or _EFFICIENT.search(name)
    if found is None:
        return None
    backward = found["way"] in ("bwd", "b")
    if backward != shape.backward:
        return None
    m, n = int(found["m"]), int(found["n"])
    tiles = _tiles(shape, m, n)
    width = int(found["width"]) if "width" in found.re.groupindex else shape.width
    value_width = max(width, shape.value_width) if "width" in found.re.groupindex else shape.value_width
    # forward: scores, output; backward: scores and their gradient (width, value width), gradients of V, Q and K
    depth = 3 * width + 2 * value_width if backward else width + value_width
    done = 2 * shape.batch * shape.heads * tiles * m * n * depth
    mask = " that the mask leaves" if shape.causal else ""
    return Derived(
        f"{'flash' if 'flash' in name else 'memory-efficient'} attention, {'backward' if backward else 'forward'}",
        f"{shape.batch * shape.heads:,} heads x {tiles:,} tiles{mask} x {m} x {n} x {depth} x 2 = {done:,} FLOP",
        tensor=done, math=algorithm.math,
    )  # fmt: skip


def _tiles(shape: AttentionShape, m: int, n: int) -> int:
    rows, columns = ceil(shape.queries / m), ceil(shape.keys / n)
    if not shape.causal:
        return rows * columns
    shift = shape.keys - shape.queries  # the mask's diagonal ends at the last key
    seen = (min(min((row + 1) * m, shape.queries) + shift, shape.keys) for row in range(rows))
    return sum(max(ceil(last / n), 0) for last in seen)
