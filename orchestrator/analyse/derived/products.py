"""Matrix products and convolutions on the CUDA cores in fp32: cuBLAS and cuDNN.

The rules were read off counters of an A100 (CUDA 11.4) with known shapes; ``scripts/silicon.py`` repeats the comparison.
cuBLAS computes C = alpha A B + beta C, column by column, so that a tile's first side lies along the outputs of a Linear layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape, expected_grid
from perfctl.orchestrator.analyse.kernels.names import Algorithm

_SLICED = re.compile(r"_sliced1x(\d+)")
_STEP = 8
"""Elements of the sum that a tile takes at a time; each slice of a ``sliced1xS`` kernel takes as many."""
_WHOLE = 1e-6


def up(length: int, step: int) -> int:
    """Rounded up to whole steps."""
    return -(-length // step) * step


def sgemm(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``..._sgemm_MxN_..``: whole tiles, the sum in whole steps, each part of a split sum by itself.

    FMUL is alpha: once for each value of the tiles, each slice and each part. The slices are added up by FADD. Parts are
    added to C one after the other, except by sliced kernels: a multiply-add for each value and each part but the first.
    """
    shape, tile = work.shape, algorithm.tile
    if not isinstance(shape, GemmShape) or tile is None or algorithm.tensor_core or not _is_sgemm(launch.name):
        return None
    found = _SLICED.search(launch.name)
    slices = int(found[1]) if found else 1
    area, split, sides = next(_splits(launch, shape, tile, slices), (0, 0, (0, 0)))
    if not split:
        return None
    part = ceil(shape.k / split)
    last = shape.k - part * (split - 1)
    if last < 1:
        part, last = up(part, 1), max(last, 0)
    step = tile[2] or _STEP * slices
    deep = up(part, step) * (split - 1) + up(last, step)
    onto = (split - 1 if slices == 1 else 0) + work.onto
    tiles = f"ceil({shape.m:,} / {sides[0]}) x ceil({shape.n:,} / {sides[1]}) tiles x {tile[0]} x {tile[1]}"
    times = f"{shape.batch:,} products x " if shape.batch > 1 else ""
    parts = f" in {split} parts" if split > 1 else ""
    more = f" + {onto} onto each value" if onto else ""
    return Derived(
        "sgemm, sliced" if slices > 1 else "sgemm",
        f"{times}{tiles} x (sum of {shape.k:,}{parts}, in steps of {step}: {deep:,}{more}) = {area * (deep + onto):,} FFMA",
        ffma=area * (deep + onto), fmul=area * slices * split, fadd=area * (slices - 1) * split,
    )  # fmt: skip


def _is_sgemm(name: str) -> bool:
    return re.search(r"sgemm_\d+x\d+", name) is not None and "fp16" not in name


def _splits(
    launch: Launch, shape: GemmShape, tile: tuple[int, int, int | None], slices: int
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """(values of all tiles, parts of the sum, tile sides along rows and columns) that grid or FMUL allow, likeliest first."""
    m, n, _ = tile
    for along_rows, along_columns in dict.fromkeys(((n, m), (m, n))):
        rows, columns = ceil(shape.m / along_rows), ceil(shape.n / along_columns)
        area = shape.batch * rows * columns * m * n
        sides = along_rows, along_columns
        if launch.grid is not None:
            if launch.grid[0] * launch.grid[1] == rows * columns and launch.grid[2] % shape.batch == 0:
                yield area, launch.grid[2] // shape.batch, sides
            elif launch.grid[0] * launch.grid[1] * launch.grid[2] == rows * columns * shape.batch:
                yield area, 1, sides
        elif launch.scale:
            split = launch.scale / area / slices
            if split >= 1 and abs(split - round(split)) < _WHOLE * split and round(split) <= shape.k:
                yield area, round(split), sides
        else:
            yield area, 1, sides


_SMALL = re.compile(r"gemmsn_\w*kernel\w*<float, ?\d+, ?\d+, ?\d+, ?\d+, ?(\d+),", re.IGNORECASE)


def small_columns(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``gemmSN_TN_kernel``: few rows, filled up to its columns; each of 16 threads scales and adds its part of the sum."""
    shape, found = work.shape, _SMALL.search(launch.name)
    if not isinstance(shape, GemmShape) or found is None:
        return None
    side = int(found[1])
    rows = up(shape.m, side)
    onto = shape.m * shape.n * work.onto
    ffma = shape.batch * (rows * shape.n * shape.k + onto)
    fadd = rows * shape.n * (16 + ceil(shape.k / 16)) - (rows - shape.m) * shape.n
    return Derived(
        "gemmSN", f"{shape.m} rows filled up to {rows} x {shape.n:,} x {shape.k:,}"
        f"{f' + {onto:,} of the bias' if onto else ''} = {ffma:,} FFMA",
        ffma=ffma, fmul=shape.batch * shape.m * up(shape.n, 8) * shape.k / 8, fadd=shape.batch * fadd,
    )  # fmt: skip


def vector(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``gemv2T_kernel_val``: no padding; 128 threads add up 512 elements at a time, and a warp's 32 sums at the end."""
    shape = work.shape
    if not isinstance(shape, GemmShape) or "gemv2t_kernel_val<int, int, float" not in launch.name.lower():
        return None
    if 1 not in (shape.m, shape.n):
        return None
    outputs = shape.m * shape.n
    parts = launch.grid[2] // shape.batch if launch.grid and launch.grid[2] > shape.batch else 1
    ffma = shape.batch * outputs * (shape.k + work.onto)
    sums = parts * (31 + 16 * (ceil(ceil(shape.k / parts) / 512) - 1))
    return Derived(
        "gemv", f"{outputs:,} outputs x {shape.k:,}{' + 1 of the bias' if work.onto else ''} = {ffma:,} FFMA",
        ffma=ffma, fmul=shape.batch * up(outputs, 4) * shape.k / 8, fadd=shape.batch * outputs * sums,
    )  # fmt: skip


def dot(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``dot_kernel``: one multiply-add for each element; how many sums it adds up, no rule says."""
    shape = work.shape
    if not isinstance(shape, GemmShape) or "dot_kernel<float" not in launch.name:
        return None
    return Derived("dot", f"{shape.m * shape.n:,} x {shape.k:,} = {shape.macs:,} FFMA", ffma=shape.macs, fmul=0)


_SCUDNN_STEP = 4
_CONVOLVE_STEP = 8


def convolution(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Implicit and explicit GEMM on the CUDA cores: outputs of all images by channels, in whole tiles.

    ``..._scudnn_MxN``: the sum in steps of 4, and FMUL and FADD of the epilogue for each value of the tiles.
    ``..._convolve_sgemm``: filters larger than 1 x 1 in steps of 8; only outputs that exist are scaled.
    """
    shape, tile, name = work.shape, algorithm.tile, launch.name
    if not isinstance(shape, ConvShape) or tile is None or shape.groups != 1 or algorithm.tensor_core:
        return None
    if algorithm.direction in ("grad_input", "grad_weight"):
        return None
    m, n, _ = tile
    area = up(shape.pixels, m) * up(shape.out_channels, n)
    blocks = f"ceil({shape.pixels:,} outputs / {m}) x ceil({shape.out_channels} channels / {n}) tiles x {m} x {n}"
    if re.search(r"_scudnn_\d+x\d+", name) and "winograd" not in name:
        deep = up(shape.depth, _SCUDNN_STEP)
        return Derived("scudnn", f"{blocks} x {deep:,} = {area * deep:,} FFMA", ffma=area * deep, fmul=area, fadd=area)
    if "convolve_sgemm<float" in name:
        deep = up(shape.depth, _CONVOLVE_STEP) if shape.kernel_h * shape.kernel_w > 1 else shape.depth
        family = f"{name.partition('_convolve_sgemm')[0].split()[-1].rpartition('::')[2]}_convolve_sgemm"
        rule = f"{blocks} x {deep:,} = {area * deep:,} FFMA"
        return Derived(family, rule, ffma=area * deep, fmul=shape.pixels * shape.out_channels, fadd=0)
    return None


def transformed(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Winograd, and the products between its transforms: multiply-adds of whole blocks; its additions are in no rule."""
    shape = work.shape
    if not isinstance(shape, ConvShape) or launch.grid is None or algorithm.family not in ("winograd", "gemm"):
        return None
    said = expected_grid(algorithm, launch.grid, shape)
    if said is None or not said.matches or algorithm.tensor_core:
        return None
    return Derived(said.family, said.rule, ffma=said.multiplies)


def direct(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Kernels that fill no tiles: ``conv2d_grouped_direct_kernel``, and ``conv2d_c1_k1`` with one more for each output."""
    shape = work.shape
    if not isinstance(shape, ConvShape):
        return None
    outputs = shape.pixels * shape.out_channels
    if "conv2d_grouped_direct_kernel" in launch.name:
        return Derived(
            "grouped direct", f"{outputs:,} outputs x {shape.depth:,} = {shape.macs:,} FFMA",
            ffma=shape.macs, fmul=outputs, fadd=0,
        )  # fmt: skip
    if "conv2d_c1_k1_" in launch.name:
        ffma = outputs * (shape.depth + 1)
        rule = f"{outputs:,} outputs x ({shape.depth:,} + 1) = {ffma:,} FFMA"
        return Derived("conv2d_c1_k1", rule, ffma=ffma, fmul=outputs, fadd=0)
    return None
