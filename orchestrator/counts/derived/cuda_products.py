"""Matrix products on the CUDA cores in fp32: cuBLAS, CUTLASS and xmma.

Most rules were read off counters of an A100 (CUDA 11.4) with known shapes, others off those of an
H100 (CUDA 13.0); ``scripts/proof/silicon`` repeats both comparisons. cuBLAS computes C = alpha A B
+ beta C, column by column, so that a tile's first side lies along the outputs of a Linear layer.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import ceil, prod

from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, LaunchWork
from perfctl.orchestrator.counts.kernels.grids import (
    STEP,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Tiling,
    list_tilings,
    parse_slice_count,
    round_up,
)
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel

WORKSPACE = 1 << 20
"""Values that cuBLAS's own workspace holds: 4 MiB before Hopper (``cublasSetWorkspace``)."""
_FEWEST_REDUCED = 4
_SGEMM = re.compile(r"sgemm_\d+x\d+|(?P<xmma>xmma_gemm_f32f32_f32f32\w*_ffma)")
_REDUCE = re.compile(
    r"splitkreduce_kernel<(?:\(int\))?\d+, ?(?:\(int\))?\d+, ?int, ?float, ?float, ?float, ?float, "
    r"?(?:(?:\(\w+\))?\w+, ?float, ?float, ?float, ?)?(?:\(bool\))?\w+, ?"
    r"(?:\(bool\))?(?P<bias>\w+),"
)
"""Kernels of CUDA 13 name four arguments more before the two flags, of which the second is the
bias."""
_LARGE_SUM_STEP = 32
"""Elements of a part's sum that fill all steps of ``sgemm_largek``, whose step no name states."""
_BIAS_EPILOGUE = re.compile(
    r"epilogue::(?:impl::)?globalkernel<(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), ?float, ?float, "
    "?float,"
)
_SMALL = re.compile(r"gemmsn_\w*kernel\w*<float, ?\d+, ?\d+, ?\d+, ?\d+, ?(\d+),", re.IGNORECASE)
_VECTOR = re.compile(r"gemv2t_kernel_val<int, ?int, ?float,[^>]*?(128), ?16, ?(\d), ?\d,")
_DOT = re.compile(r"(?:^|\s|::)dot_kernel<float, ?(?:\(int\))?(\d+),")


def derive_sgemm(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``..._sgemm_MxN_..``: whole tiles, the sum in whole steps, each part of a split sum
    by itself.

    FMUL is alpha: once for each value of the tiles, each slice and each part. The slices are added
    up by FADD. The parts wait in a workspace for ``splitKreduce``, which adds the bias, too; where
    they do not fit there, they are added to C one after the other: a multiply-add for each value
    and each part but the first. Verified for tiles of 32, 64 and 128. Not verified: CUTLASS tiles
    of 128 x 256.
    """
    tile, name = algorithm.tile, launch.name
    match = _SGEMM.search(name)
    if tile is None or algorithm.tensor_core or match is None or "fp16" in name:
        return None
    slices = parse_slice_count(name)
    cut = _find_cublas_tiling(launch, work, (*tile[:2], tile[2] or STEP * slices))
    if cut is None:
        return None
    if match["xmma"]:
        cut = replace(cut, is_xmma=True)
        return _derive_xmma_sgemm(
            cut, has_split_k_reduction=cut.parts > 1 and launch.reduced is True
        )
    onto = 0 if _needs_split_k_reduction(launch, cut) else cut.parts - 1 + work.onto
    suffix = f" + {onto} onto each value" if onto else ""
    ffma, values = cut.values * (cut.padded_k + onto), cut.values * cut.parts
    return DerivedInstructions(
        "sgemm, sliced" if slices > 1 else "cutlass sgemm" if "cutlass" in name else "sgemm",
        f"{cut.describe_tiles()} x ({_describe_split_k_sum(cut)}{suffix}) = {ffma:,} FFMA",
        ffma,
        values * slices,
        values * (slices - 1),
    )


def _derive_xmma_sgemm(cut: Tiling, *, has_split_k_reduction: bool) -> DerivedInstructions:
    """``xmma_gemm_f32f32_f32f32_.._ffma``: every thread block takes one step of the sum at least,
    also where the others leave nothing of it; their parts are added up by FADD, and one
    multiply-add for each value scales it and adds the bias.

    Counted on an H100 (CUDA 13.0). What the epilogue does where the parts wait for ``splitKreduce``
    is in no rule.
    """
    scaled = 0 if has_split_k_reduction else 1
    ffma = cut.values * (cut.padded_k + scaled)
    suffix = " + 1 to scale each value" if scaled else ""
    return DerivedInstructions(
        "xmma sgemm",
        f"{cut.describe_tiles()} x ({_describe_split_k_sum(cut)}{suffix}) = {ffma:,} FFMA",
        ffma=ffma,
        fmul=0 if scaled else None,
        fadd=cut.values * (cut.parts - 1) if scaled else None,
    )


def _describe_split_k_sum(cut: Tiling) -> str:
    parts = f" in {cut.parts} parts" if cut.parts > 1 else ""
    return f"sum of {cut.shape.k:,}{parts}, in steps of {cut.step}: {cut.padded_k:,}"


def derive_large_k_gemm(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``sgemm_largek_lds64<.., a, b, ..>``: tiles of 2^a by 2^b, whose parts of the sum are scaled
    and added to C one after the other: an FMUL and a multiply-add for each value and part.

    Counted on an H100 (CUDA 13.0) for a = b = 5. No name states the step of the sum, so the rule
    takes sums that fill it only.
    """
    tile, shape, grid = algorithm.tile, work.shape, launch.grid
    if tile is None or not isinstance(shape, GemmShape) or grid is None:
        return None
    cut = next(list_tilings(shape, tile[:2], grid), None)
    if cut is None or shape.k % (cut.parts * _LARGE_SUM_STEP):
        return None
    ffma = cut.values * (shape.k + cut.parts)
    return DerivedInstructions(
        "sgemm, long sum",
        f"{cut.describe_tiles()} x (sum of {shape.k:,} in {cut.parts} parts + 1 to add each) "
        f"= {ffma:,} "
        "FFMA",
        ffma=ffma,
        fmul=cut.values * cut.parts,
        fadd=0,
    )


def derive_bias_epilogue(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``cublasLt::epilogue::globalKernel<w, h, ..>`` after a product that has no bias of its own:
    an FADD for each thread of whole blocks of w x h outputs. Counted on an H100 (CUDA 13.0)."""
    match, shape, grid = _BIAS_EPILOGUE.search(launch.name.lower()), work.shape, launch.grid
    if match is None or not isinstance(shape, GemmShape) or not work.onto or grid is None:
        return None
    width, height = int(match[1]), int(match[2])
    if grid != (ceil(shape.n / width), ceil(shape.m / height), shape.batch):
        return None
    fadd = prod(grid) * width * height
    rule = f"{prod(grid):,} blocks of {width} x {height} outputs: {fadd:,} FADD"
    return DerivedInstructions("bias epilogue", rule, ffma=0, fmul=0, fadd=fadd)


def _find_cublas_tiling(
    launch: Launch, work: LaunchWork, tile: tuple[int, int, int]
) -> Tiling | None:
    """Return how a kernel of cuBLAS cuts up the work; a convolution is a plain product only if its
    grid fits that."""
    shape, grid, sides = work.shape, launch.grid, tile[:2]
    scale = launch.scale / parse_slice_count(launch.name) if launch.scale else None
    if (
        grid is not None
        and grid[2] == WINOGRAD_PRODUCTS
        and work.forward is not None
        and work.forward.kernel_h > 1
    ):
        return None
    if isinstance(shape, GemmShape):
        cut = next(list_tilings(shape, sides, grid, scale, "cutlass" in launch.name), None)
        return None if cut is None else replace(cut, step=tile[2])
    if not isinstance(shape, ConvShape) or shape.groups != 1 or grid is None or work.stride != 1:
        return None
    if grid[2] == WINOGRAD_PRODUCTS and shape.kernel_h > 1:
        return None
    # after im2col, or 1 x 1: all images at once, or one product per image
    image = GemmShape(
        shape.out_h * shape.out_w, shape.out_channels, shape.macs_per_output, shape.batch
    )
    cuts = (
        cut
        for product in (shape.implicit_gemm, image)
        for cut in list_tilings(product, sides, grid)
    )
    return next((replace(cut, step=tile[2]) for cut in cuts if cut.parts == 1), None)


def _needs_split_k_reduction(launch: Launch, cut: Tiling) -> bool:
    """True where the parts of a sum wait in a workspace. Where the launch after it is not known: 4
    parts or more that fit."""
    if cut.parts == 1:
        return False
    if launch.reduced is not None:
        return launch.reduced
    outputs = cut.shape.batch * cut.shape.m * cut.shape.n
    return cut.parts >= _FEWEST_REDUCED and cut.parts * outputs <= WORKSPACE


def derive_split_k_reduction(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``splitKreduce_kernel``: an FADD for each output and part, one more for a bias, and alpha
    once for each output."""
    match, shape = _REDUCE.search(launch.name.lower()), work.shape
    if match is None or launch.before is None or not isinstance(shape, GemmShape):
        return None
    before, tile = launch.before, recognise_kernel(launch.before.name).tile
    cut = (
        next(list_tilings(shape, tile[:2], before.grid, swizzled=True), None)
        if tile and before.grid
        else None
    )
    if cut is None or cut.parts == 1:
        return None
    parts, outputs, bias = (
        cut.parts,
        shape.batch * shape.m * shape.n,
        match["bias"] in ("1", "true"),
    )
    fadd = outputs * (parts + bias)
    suffix = " + 1 of the bias" if bias else ""
    return DerivedInstructions(
        "splitKreduce",
        f"{outputs:,} outputs x ({parts} parts{suffix}) = {fadd:,} FADD",
        ffma=0,
        fmul=outputs,
        fadd=fadd,
    )


def derive_small_gemm(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``gemmSN_TN_kernel``: few rows, filled up to its columns; each of 16 threads scales and adds
    its part of the sum.

    Verified for the layout TN only: in other layouts FMUL and FADD are in no rule.
    """
    shape, match = work.shape, _SMALL.search(launch.name)
    if not isinstance(shape, GemmShape) or match is None:
        return None
    side = int(match[1])
    rows = round_up(shape.m, side)
    onto = shape.m * shape.n * work.onto
    ffma = shape.batch * (rows * shape.n * shape.k + onto)
    fadd = rows * shape.n * (16 + ceil(shape.k / 16)) - (rows - shape.m) * shape.n
    is_tn = "_tn_" in launch.name.lower()
    suffix = f" + {onto:,} of the bias" if onto else ""
    return DerivedInstructions(
        "gemmSN" if is_tn else "gemmSN, other layouts",
        f"{shape.m} rows filled up to {rows} x {shape.n:,} x {shape.k:,}{suffix} = {ffma:,} FFMA",
        ffma=ffma,
        fmul=shape.batch * shape.m * round_up(shape.n, 8) * shape.k / 8 if is_tn else None,
        fadd=shape.batch * fadd if is_tn else None,
    )


def derive_gemv(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``gemv2T_kernel_val<.., 128, 16, T, 4, ..>``: no padding; 128 threads add up 128 T elements
    at a time (T is 2 or 4), and a warp's 32 sums at the end. Verified up to 256 elements for
    T = 2."""
    shape, match = work.shape, _VECTOR.search(launch.name.lower())
    if not isinstance(shape, GemmShape) or match is None or 1 not in (shape.m, shape.n):
        return None
    each = int(match[1]) * int(match[2])
    outputs = shape.m * shape.n
    parts = launch.grid[2] // shape.batch if launch.grid and launch.grid[2] > shape.batch else 1
    ffma = shape.batch * outputs * (shape.k + work.onto)
    sums = parts * (31 + 16 * (ceil(ceil(shape.k / parts) / each) - 1))
    return DerivedInstructions(
        "gemv",
        f"{outputs:,} outputs x {shape.k:,}{' + 1 of the bias' if work.onto else ''} = {ffma:,} "
        "FFMA",
        ffma=ffma,
        fmul=shape.batch * round_up(outputs, 4) * shape.k / 8,
        fadd=shape.batch * outputs * sums,
    )


def derive_dot_product(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """``dot_kernel<float, 128, ..>``: one multiply-add for each element; each block adds up the
    sums of its 128 threads.

    FADD was 127 x 7, 16 and 216 for sums of 512, 2,048 and 65,536: without a grid no rule says how
    many blocks there are.
    """
    shape, match = work.shape, _DOT.search(launch.name)
    if not isinstance(shape, GemmShape) or match is None:
        return None
    fadd = prod(launch.grid) * (int(match[1]) - 1) if launch.grid else None
    rule = f"{shape.m * shape.n:,} x {shape.k:,} = {shape.macs:,} FFMA"
    return DerivedInstructions("dot", rule, ffma=shape.macs, fmul=0, fadd=fadd)
