"""Matrix products and convolutions on tensor cores: FLOPs in whole tiles.

A tile is computed whole, and so is each step along the sum. The grid says how tiles lie and how often a sum is split.
Persistent kernels (cuBLAS and CUTLASS from Hopper on) launch fewer thread blocks than there are tiles: there tiles
follow from the shape alone. Where orientation, cluster or split stay open and matter, there is no rule for the
launch. Sources: CUTLASS (``GemmIdentityThreadblockSwizzle``, ``implicit_gemm_k_iterations``, the tile scheduler of
``sm90``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from perfctl.orchestrator.analyse.derived.cuda_cores import up
from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape, Grid
from perfctl.orchestrator.analyse.kernels.names import Algorithm

VOLTA_STEP = 32
"""Along the sum, of Volta's s884 and h884 kernels, whose names have no step."""
LONGEST_STEP = 128
"""Of any kernel: a sum that fills it fills all steps, so that a name without a step does not matter."""
_ALIKE = 0.02
_PERSISTENT = re.compile(r"nvjet|sm(?:90|1\d\d)_xmma|cutlass3x|gemmuniversal<|stream_?k|segment_k")
_CLUSTER = re.compile(
    r"cutlass3x\w*?_\d+x\d+x\d+_(\d+)x(\d+)x\d+_|cgasize(\d+)x(\d+)x|nvjet\w*?_\d+x\d+_\d+x\d+_(\d+)x(\d+)_"
)
_NOT_DENSE = re.compile(
    r"grouped_?gemm|groupproblemshape|grouped_|sparse(?:gemm|tensorop)|sptensorop|spgemm|planar_?complex|(?<![a-z])(?:g?c|g?z)\d+gemm"
)
"""Several products of unknown shapes, 2:4 sparsity, complex numbers."""
_THRICE = re.compile(r"3x_?tf32|tf32x3|fast_?f32")
_SPLIT = re.compile(r"split_?k|segment_k_on|stream_?k")
_SWIZZLES = (1, 2, 4, 8, 16)

Cover = tuple[int, int, int, int]
"""Tile sides along rows and columns, and how many tiles are computed along each."""


def product(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Products on tensor cores: tiles of the shape x m x n x the sum in whole steps, 2 FLOPs each (3 products for 3xTF32)."""
    shape = work.shape
    if not isinstance(shape, GemmShape) or algorithm.family != "gemm":
        return None
    return _tiled(launch, algorithm, shape, f"tensor product, {_kind(algorithm)}", shape.k)


def is_dense(name: str, algorithm: Algorithm) -> bool:
    """Whether the rules below may be asked about a kernel of this name, in lower case."""
    return (
        algorithm.role == "main"
        and bool(algorithm.tensor_core)
        and algorithm.tile is not None
        and not _NOT_DENSE.search(name)
    )


def _kind(algorithm: Algorithm) -> str:
    return algorithm.instruction or algorithm.architecture or algorithm.library or "unknown instruction"


def _tiled(
    launch: Launch, algorithm: Algorithm, shape: GemmShape, family: str, sum_words: int, deep: int | None = None
) -> Derived | None:
    """``deep``: the sum with its padding where the caller knows it, else whole steps of each part."""
    said = {}
    for cover, split in _covers(launch, algorithm, shape):
        for padded in [deep] if deep is not None else _depths(algorithm, shape.k, split):
            said[shape.batch * cover[0] * cover[1] * cover[2] * cover[3] * padded] = cover, split, padded
    if not said or max(said) > min(said) * (1 + _ALIKE):
        return None
    macs, (cover, split, padded) = next(iter(said.items()))
    thrice = 3 if _THRICE.search(launch.name.lower()) else 1
    done = 2 * macs * thrice
    times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
    parts = f" in {split} parts" if split > 1 else ""
    again = " x 3 TF32 products" if thrice > 1 else ""
    return Derived(
        family,
        f"{times}{cover[2]:,} x {cover[3]:,} tiles of {cover[0]} x {cover[1]} for {shape.m:,} x {shape.n:,} x "
        f"(sum of {sum_words:,}{parts}, padded to {padded:,}) x 2{again} = {done:,} FLOP",
        tensor=done, math=algorithm.math,
    )  # fmt: skip


def _depths(algorithm: Algorithm, k: int, split: int) -> list[int]:
    """The sum as it is computed; both ways to part it, evenly or in whole steps, where they differ."""
    step = (algorithm.tile or (0, 0, None))[2]
    if step is None and algorithm.instruction in ("s884", "h884"):
        step = VOLTA_STEP
    if step is None:
        return [k] if k % (LONGEST_STEP * split) == 0 else []
    part = ceil(k / split)
    evenly = up(part, step) * (split - 1) + up(max(k - part * (split - 1), 0), step)
    return list(dict.fromkeys((evenly, up(k, step))))


class _Said(NamedTuple):
    """What a kernel's name says about its grid."""

    cluster: tuple[int, int]
    is_persistent: bool
    is_split: bool
    may_round: bool


@lru_cache(maxsize=4096)
def _said(name: str) -> _Said:
    lowered = name.lower()
    found = _CLUSTER.search(lowered)
    rows, columns = (int(side) for side in found.groups() if side) if found else (1, 1)
    return _Said(
        (rows, columns), _PERSISTENT.search(lowered) is not None, _SPLIT.search(lowered) is not None, "nvjet" in lowered
    )


def _covers(launch: Launch, algorithm: Algorithm, shape: GemmShape) -> Iterator[tuple[Cover, int]]:
    """(tiles, parts of the sum) that name and grid allow. cuBLAS works column by column, so the tile's first side lies along
    the outputs in most kernels."""
    said = _said(launch.name)
    m, n = (algorithm.tile or (0, 0, None))[:2]
    for sides, along in (((n, m), said.cluster[::-1]), ((m, n), said.cluster)):
        whole = ceil(shape.m / sides[0]), ceil(shape.n / sides[1])
        rounded = up(whole[0], along[0]), up(whole[1], along[1])
        for rows, columns in dict.fromkeys((rounded, whole)) if said.may_round else (rounded,):
            if said.is_persistent or launch.grid is None:
                yield (*sides, rows, columns), 1
            elif (split := parts(launch.grid, rows, columns, shape.batch, said.is_split)) is not None:
                yield (*sides, rows, columns), split


def parts(grid: Grid, rows: int, columns: int, batch: int = 1, one_dimension: bool = False) -> int | None:
    """How often the sum is split by this grid of rows x columns tiles; None where the grid is not of these tiles.

    Tiles lie in x and y in either order, or swizzled (columns of S tiles side by side), or all in x; z holds products and parts.
    """
    x, y, z = grid
    is_laid = (x * y == rows * columns and 1 in (x, y)) or any(
        x == a * s and y == ceil(b / s) for a, b in ((rows, columns), (columns, rows)) for s in _SWIZZLES
    )
    if is_laid and z % batch == 0:
        return z // batch
    tiles = rows * columns * batch
    if x * y * z == tiles:
        return 1
    return x // tiles if one_dimension and y == z == 1 and x % tiles == 0 else None


def convolution(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Forward, and both gradients, as implicit GEMM. The channels of each filter position fill whole steps: CUTLASS pads them so,
    and where they are whole already all kernels agree."""
    shape = work.shape
    if algorithm.family != "conv":
        return None
    step = (algorithm.tile or (0, 0, None))[2]
    gradient = algorithm.direction in ("grad_input", "grad_weight")
    forward = work.forward if gradient else shape
    if work.direction != (algorithm.direction if gradient else "forward") or not isinstance(forward, ConvShape):
        return None
    if forward.groups != 1 or not step:
        return None
    positions, cutlass = forward.kernel_h * forward.kernel_w, "cutlass" in launch.name.lower()
    if algorithm.direction == "grad_weight":
        made = GemmShape(forward.out_channels, forward.depth, forward.pixels)
        return _tiled(launch, algorithm, made, "tensor convolution, gradient of the weight", forward.pixels)
    channels, outputs = forward.in_channels, forward.out_channels
    if gradient:  # with a stride, positions of the filter are skipped
        if not forward.same_size:
            return None
        channels, outputs = outputs, channels
    if channels % step and not cutlass:
        return None
    made = GemmShape(forward.pixels, outputs, positions * channels)
    family = "tensor convolution, gradient of the input" if gradient else "tensor convolution"
    return _tiled(launch, algorithm, made, family, made.k, positions * up(channels, step))
