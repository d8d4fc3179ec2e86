"""Matrix products on the CUDA cores in fp32: cuBLAS and CUTLASS.

The rules were read off counters of an A100 (CUDA 11.4) with known shapes; ``scripts/proof/silicon/silicon.py`` repeats the comparison.
cuBLAS computes C = alpha A B + beta C, column by column, so that a tile's first side lies along the outputs of a Linear layer.
"""

from __future__ import annotations

import re
from math import ceil, prod

from perfctl.orchestrator.analyse.derived.records import Derived, Launch, Work
from perfctl.orchestrator.analyse.kernels.grids import (
    STEP,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Tiling,
    slices_of,
    summed,
    tilings,
)
from perfctl.orchestrator.analyse.kernels.grids import up as up
from perfctl.orchestrator.analyse.kernels.names import Algorithm, recognise

WORKSPACE = 1 << 20
"""Values that cuBLAS's own workspace holds: 4 MiB before Hopper (``cublasSetWorkspace``)."""
_FEWEST_REDUCED = 4


_SGEMM = re.compile(r"sgemm_\d+x\d+|(?P<xmma>xmma_gemm_f32f32_f32f32\w*_ffma)")


def sgemm(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``..._sgemm_MxN_..``: whole tiles, the sum in whole steps, each part of a split sum by itself.

    FMUL is alpha: once for each value of the tiles, each slice and each part. The slices are added up by FADD. The parts
    wait in a workspace for ``splitKreduce``, which adds the bias, too; where they do not fit there, they are added to C one
    after the other: a multiply-add for each value and each part but the first. Verified for tiles of 32, 64 and 128.
    Not verified: the simt kernels of CUTLASS (``cutlass_80_simt_sgemm_128x256_8x4``), whose epilogue scales and adds in the same
    way, and ``xmma_gemm_f32f32_f32f32_.._ffma``, whose epilogue is in no rule.
    """
    tile, name = algorithm.tile, launch.name
    found = _SGEMM.search(name)
    if tile is None or algorithm.tensor_core or found is None or "fp16" in name:
        return None
    cut = _tiling(launch, work, tile[:2])
    if cut is None:
        return None
    slices = slices_of(name)
    step = tile[2] or STEP * slices
    deep = summed(cut.shape.k, cut.parts, step)
    onto = 0 if _waits(launch, cut) else cut.parts - 1 + work.onto
    parts = f" in {cut.parts} parts" if cut.parts > 1 else ""
    more = f" + {onto} onto each value" if onto else ""
    ffma = cut.values * (deep + onto)
    known = found["xmma"] is None
    return Derived(
        "sgemm, sliced" if slices > 1 else "cutlass sgemm" if "cutlass" in name else "sgemm" if known else "xmma sgemm",
        f"{cut} x (sum of {cut.shape.k:,}{parts}, in steps of {step}: {deep:,}{more}) = {ffma:,} FFMA",
        ffma=ffma, fmul=cut.values * slices * cut.parts if known else None,
        fadd=cut.values * (slices - 1) * cut.parts if known else None,
    )  # fmt: skip


def _tiling(launch: Launch, work: Work, tile: tuple[int, int]) -> Tiling | None:
    """How a kernel of cuBLAS cuts up the work; a convolution is a plain product only where its grid says so."""
    shape, grid = work.shape, launch.grid
    scale = launch.scale / slices_of(launch.name) if launch.scale else None
    if grid is not None and grid[2] == WINOGRAD_PRODUCTS and work.forward is not None and work.forward.kernel_h > 1:
        return None
    if isinstance(shape, GemmShape):
        return next(tilings(shape, tile, grid, scale, "cutlass" in launch.name), None)
    if not isinstance(shape, ConvShape) or shape.groups != 1 or grid is None or work.stride != 1:
        return None
    if grid[2] == WINOGRAD_PRODUCTS and shape.kernel_h > 1:
        return None
    # after im2col, or 1 x 1: all images at once, or one product an image
    whole = GemmShape(shape.pixels, shape.out_channels, shape.depth)
    apart = GemmShape(shape.out_h * shape.out_w, shape.out_channels, shape.depth, shape.batch)
    return next((cut for one in (whole, apart) for cut in tilings(one, tile, grid) if cut.parts == 1), None)


def _waits(launch: Launch, cut: Tiling) -> bool:
    """True where the parts of a sum wait in a workspace. Where the launch after it is not known: 4 parts or more that fit."""
    if cut.parts == 1:
        return False
    if launch.reduced is not None:
        return launch.reduced
    outputs = cut.shape.batch * cut.shape.m * cut.shape.n
    return cut.parts >= _FEWEST_REDUCED and cut.parts * outputs <= WORKSPACE


_REDUCE = re.compile(
    r"splitkreduce_kernel<(?:\(int\))?\d+, ?(?:\(int\))?\d+, ?int, ?float, ?float, ?float, ?float, ?(?:\(bool\))?\w+, ?"
    r"(?:\(bool\))?(?P<bias>\w+),"
)


def reduction(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``splitKreduce_kernel``: an FADD for each output and part, one more for a bias, and alpha once for each output."""
    found, shape = _REDUCE.search(launch.name.lower()), work.shape
    if found is None or launch.before is None or not isinstance(shape, GemmShape):
        return None
    before, tile = launch.before, recognise(launch.before.name).tile
    cut = next(tilings(shape, tile[:2], before.grid, swizzled=True), None) if tile and before.grid else None
    if cut is None or cut.parts == 1:
        return None
    parts, outputs, bias = cut.parts, shape.batch * shape.m * shape.n, found["bias"] in ("1", "true")
    fadd = outputs * (parts + bias)
    more = " + 1 of the bias" if bias else ""
    return Derived(
        "splitKreduce", f"{outputs:,} outputs x ({parts} parts{more}) = {fadd:,} FADD", ffma=0, fmul=outputs, fadd=fadd
    )


_SMALL = re.compile(r"gemmsn_\w*kernel\w*<float, ?\d+, ?\d+, ?\d+, ?\d+, ?(\d+),", re.IGNORECASE)


def small_columns(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``gemmSN_TN_kernel``: few rows, filled up to its columns; each of 16 threads scales and adds its part of the sum.

    Verified for the layout TN only.
    """
    shape, found = work.shape, _SMALL.search(launch.name)
    if not isinstance(shape, GemmShape) or found is None:
        return None
    side = int(found[1])
    rows = up(shape.m, side)
    onto = shape.m * shape.n * work.onto
    ffma = shape.batch * (rows * shape.n * shape.k + onto)
    fadd = rows * shape.n * (16 + ceil(shape.k / 16)) - (rows - shape.m) * shape.n
    family = "gemmSN" if "_tn_" in launch.name.lower() else "gemmSN, other layouts"
    more = f" + {onto:,} of the bias" if onto else ""
    return Derived(
        family, f"{shape.m} rows filled up to {rows} x {shape.n:,} x {shape.k:,}{more} = {ffma:,} FFMA",
        ffma=ffma, fmul=shape.batch * shape.m * up(shape.n, 8) * shape.k / 8, fadd=shape.batch * fadd,
    )  # fmt: skip


_VECTOR = re.compile(r"gemv2t_kernel_val<int, ?int, ?float,[^>]*?(128), ?16, ?(\d), ?\d,")


def vector(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``gemv2T_kernel_val<.., 128, 16, T, 4, ..>``: no padding; 128 threads add up 128 T elements at a time (T is 2 or 4), and
    a warp's 32 sums at the end. Verified up to 256 elements for T = 2."""
    shape, found = work.shape, _VECTOR.search(launch.name.lower())
    if not isinstance(shape, GemmShape) or found is None or 1 not in (shape.m, shape.n):
        return None
    each = int(found[1]) * int(found[2])
    outputs = shape.m * shape.n
    parts = launch.grid[2] // shape.batch if launch.grid and launch.grid[2] > shape.batch else 1
    ffma = shape.batch * outputs * (shape.k + work.onto)
    sums = parts * (31 + 16 * (ceil(ceil(shape.k / parts) / each) - 1))
    return Derived(
        "gemv", f"{outputs:,} outputs x {shape.k:,}{' + 1 of the bias' if work.onto else ''} = {ffma:,} FFMA",
        ffma=ffma, fmul=shape.batch * up(outputs, 4) * shape.k / 8, fadd=shape.batch * outputs * sums,
    )  # fmt: skip


_DOT = re.compile(r"(?:^|\s|::)dot_kernel<float, ?(?:\(int\))?(\d+),")


def dot(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``dot_kernel<float, 128, ..>``: one multiply-add for each element; each block adds up the sums of its 128 threads.

    FADD was 127 x 7, 16 and 216 for sums of 512, 2,048 and 65,536: without a grid no rule says how many blocks there are.
    """
    shape, found = work.shape, _DOT.search(launch.name)
    if not isinstance(shape, GemmShape) or found is None:
        return None
    fadd = prod(launch.grid) * (int(found[1]) - 1) if launch.grid else None
    rule = f"{shape.m * shape.n:,} x {shape.k:,} = {shape.macs:,} FFMA"
    return Derived("dot", rule, ffma=shape.macs, fmul=0, fadd=fadd)
