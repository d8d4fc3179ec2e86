"""Matrix products, convolutions and their gradients on the CUDA cores in fp32: cuBLAS, cuDNN,
CUTLASS and ATen.

Forward rules were read off counters of an A100 (CUDA 11.4) with known shapes, stride 1 and no
padding; ``scripts/proof/silicon/silicon.py`` repeats the comparison. No counter has verified a rule
for gradients: each follows from a sister kernel or from open source.
cuBLAS computes C = alpha A B + beta C, column by column, so that a tile's first side lies along the
outputs of a Linear layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.kernels.grids import (
    STEP,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Tiling,
    covers,
    predict_tiles,
    slices_of,
    tilings,
    up,
    winograd_product,
)
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise

WORKSPACE = 1 << 20
"""Values that cuBLAS's own workspace holds: 4 MiB before Hopper (``cublasSetWorkspace``)."""
_FEWEST_REDUCED = 4


_SGEMM = re.compile(r"sgemm_\d+x\d+|(?P<xmma>xmma_gemm_f32f32_f32f32\w*_ffma)")
_SCUDNN_STEP = 4
_XMMA_FORWARD = re.compile(r"xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_\w*_ffma")
_OUTPUTS = "output positions", "channels"
_WEIGHTS = "weights of a channel"

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

_ENGINE = re.compile(r"(dgrad|wgrad)_(?:alg\d_)?(?:nd_float_)?engine<float")

_SIMT = re.compile(r"cutlass_\w*simt_s(fprop|dgrad|wgrad)_")
_SIMT_DIRECTIONS = {"fprop": "forward", "dgrad": "grad_input", "wgrad": "grad_weight"}

_POINTS = {t * (t // 2 + 1): t for t in (16, 32, 64)}
"""Points of a transformed tile of t x t real values (the rest mirrors them) -> t: the z of the
product's grid."""

_COMPLEX = re.compile(r"cgemm_|xmma_gemm_cf32cf32")

_GROUPED = re.compile(r"(conv|dgrad|wgrad)2d_grouped_direct_kernel")
_GROUPED_DIRECTIONS = {"conv": "forward", "dgrad": "grad_input", "wgrad": "grad_weight"}

_DEPTHWISE = re.compile(r"conv_depthwise2d_(forward|backward|grad_weight)_kernel<[^>]*?float")
_DEPTHWISE_DIRECTIONS = {
    "forward": "forward",
    "backward": "grad_input",
    "grad_weight": "grad_weight",
}


def sgemm(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
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
    slices = slices_of(name)
    cut = _tiling(launch, work, (*tile[:2], tile[2] or STEP * slices))
    if cut is None:
        return None
    if match["xmma"]:
        cut = replace(cut, is_xmma=True)
        return _xmma_sgemm(cut, waits=cut.parts > 1 and launch.reduced is True)
    onto = 0 if _waits(launch, cut) else cut.parts - 1 + work.onto
    more = f" + {onto} onto each value" if onto else ""
    ffma = cut.values * (cut.depth + onto)
    return Derived(
        "sgemm, sliced" if slices > 1 else "cutlass sgemm" if "cutlass" in name else "sgemm",
        f"{cut.describe()} x ({_sum(cut)}{more}) = {ffma:,} FFMA",
        ffma=ffma,
        fmul=cut.values * slices * cut.parts,
        fadd=cut.values * (slices - 1) * cut.parts,
    )


def _xmma_sgemm(cut: Tiling, *, waits: bool) -> Derived:
    """``xmma_gemm_f32f32_f32f32_.._ffma``: every thread block takes one step of the sum at least,
    also where the others leave nothing of it; their parts are added up by FADD, and one
    multiply-add for each value scales it and adds the bias.

    Counted on an H100 (CUDA 13.0). What the epilogue does where the parts wait for ``splitKreduce``
    is in no rule.
    """
    scaled = 0 if waits else 1
    ffma = cut.values * (cut.depth + scaled)
    more = " + 1 to scale each value" if scaled else ""
    return Derived(
        "xmma sgemm",
        f"{cut.describe()} x ({_sum(cut)}{more}) = {ffma:,} FFMA",
        ffma=ffma,
        fmul=0 if scaled else None,
        fadd=cut.values * (cut.parts - 1) if scaled else None,
    )


def _sum(cut: Tiling) -> str:
    parts = f" in {cut.parts} parts" if cut.parts > 1 else ""
    return f"sum of {cut.shape.k:,}{parts}, in steps of {cut.step}: {cut.depth:,}"


def large_sum(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``sgemm_largek_lds64<.., a, b, ..>``: tiles of 2^a by 2^b, whose parts of the sum are scaled
    and added to C one after the other: an FMUL and a multiply-add for each value and part.

    Counted on an H100 (CUDA 13.0) for a = b = 5. No name states the step of the sum, so the rule
    takes sums that fill it only.
    """
    tile, shape, grid = algorithm.tile, work.shape, launch.grid
    if tile is None or not isinstance(shape, GemmShape) or grid is None:
        return None
    cut = next(tilings(shape, tile[:2], grid), None)
    if cut is None or shape.k % (cut.parts * _LARGE_SUM_STEP):
        return None
    ffma = cut.values * (shape.k + cut.parts)
    return Derived(
        "sgemm, long sum",
        f"{cut.describe()} x (sum of {shape.k:,} in {cut.parts} parts + 1 to add each) = {ffma:,} "
        "FFMA",
        ffma=ffma,
        fmul=cut.values * cut.parts,
        fadd=0,
    )


def bias_epilogue(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
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
    return Derived("bias epilogue", rule, ffma=0, fmul=0, fadd=fadd)


def _tiling(launch: Launch, work: Work, tile: tuple[int, int, int]) -> Tiling | None:
    """Return how a kernel of cuBLAS cuts up the work; a convolution is a plain product only if its
    grid fits that."""
    shape, grid, sides = work.shape, launch.grid, tile[:2]
    scale = launch.scale / slices_of(launch.name) if launch.scale else None
    if (
        grid is not None
        and grid[2] == WINOGRAD_PRODUCTS
        and work.forward is not None
        and work.forward.kernel_h > 1
    ):
        return None
    if isinstance(shape, GemmShape):
        cut = next(tilings(shape, sides, grid, scale, "cutlass" in launch.name), None)
        return None if cut is None else replace(cut, step=tile[2])
    if not isinstance(shape, ConvShape) or shape.groups != 1 or grid is None or work.stride != 1:
        return None
    if grid[2] == WINOGRAD_PRODUCTS and shape.kernel_h > 1:
        return None
    # after im2col, or 1 x 1: all images at once, or one product per image
    image = GemmShape(shape.out_h * shape.out_w, shape.out_channels, shape.depth, shape.batch)
    cuts = (cut for product in (shape.product, image) for cut in tilings(product, sides, grid))
    return next((replace(cut, step=tile[2]) for cut in cuts if cut.parts == 1), None)


def _waits(launch: Launch, cut: Tiling) -> bool:
    """True where the parts of a sum wait in a workspace. Where the launch after it is not known: 4
    parts or more that fit."""
    if cut.parts == 1:
        return False
    if launch.reduced is not None:
        return launch.reduced
    outputs = cut.shape.batch * cut.shape.m * cut.shape.n
    return cut.parts >= _FEWEST_REDUCED and cut.parts * outputs <= WORKSPACE


def reduction(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``splitKreduce_kernel``: an FADD for each output and part, one more for a bias, and alpha
    once for each output."""
    match, shape = _REDUCE.search(launch.name.lower()), work.shape
    if match is None or launch.before is None or not isinstance(shape, GemmShape):
        return None
    before, tile = launch.before, recognise(launch.before.name).tile
    cut = (
        next(tilings(shape, tile[:2], before.grid, swizzled=True), None)
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
    more = " + 1 of the bias" if bias else ""
    return Derived(
        "splitKreduce",
        f"{outputs:,} outputs x ({parts} parts{more}) = {fadd:,} FADD",
        ffma=0,
        fmul=outputs,
        fadd=fadd,
    )


def small_columns(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``gemmSN_TN_kernel``: few rows, filled up to its columns; each of 16 threads scales and adds
    its part of the sum.

    Verified for the layout TN only: in other layouts FMUL and FADD are in no rule.
    """
    shape, match = work.shape, _SMALL.search(launch.name)
    if not isinstance(shape, GemmShape) or match is None:
        return None
    side = int(match[1])
    rows = up(shape.m, side)
    onto = shape.m * shape.n * work.onto
    ffma = shape.batch * (rows * shape.n * shape.k + onto)
    fadd = rows * shape.n * (16 + ceil(shape.k / 16)) - (rows - shape.m) * shape.n
    is_tn = "_tn_" in launch.name.lower()
    more = f" + {onto:,} of the bias" if onto else ""
    return Derived(
        "gemmSN" if is_tn else "gemmSN, other layouts",
        f"{shape.m} rows filled up to {rows} x {shape.n:,} x {shape.k:,}{more} = {ffma:,} FFMA",
        ffma=ffma,
        fmul=shape.batch * shape.m * up(shape.n, 8) * shape.k / 8 if is_tn else None,
        fadd=shape.batch * fadd if is_tn else None,
    )


def vector(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
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
    return Derived(
        "gemv",
        f"{outputs:,} outputs x {shape.k:,}{' + 1 of the bias' if work.onto else ''} = {ffma:,} "
        "FFMA",
        ffma=ffma,
        fmul=shape.batch * up(outputs, 4) * shape.k / 8,
        fadd=shape.batch * outputs * sums,
    )


def dot(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
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
    return Derived("dot", rule, ffma=shape.macs, fmul=0, fadd=fadd)


def convolution(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Implicit and explicit GEMM: outputs of all images by channels, in whole tiles.

    ``..._scudnn_MxN``: the sum in steps of 4, and FMUL and FADD of the epilogue for each value of
    the tiles. ``..._convolve_sgemm``: filters larger than 1 x 1 in steps of 8; only outputs that
    exist are scaled.
    The gradient of the input with stride 1 is a convolution with the channels exchanged, and runs
    on the same kernels. ``precomputed_``: 1 x 1 only; the grids of larger filters do not follow
    from their outputs. ``xmma_fprop_implicit_gemm_.._ffma`` on NCHW images: the sum over channels
    and taps in whole steps, FMUL and FADD for each value; counted on an H100 (cuDNN 9.19).
    """
    shape, name = work.shape, launch.name
    if (
        not isinstance(shape, ConvShape)
        or algorithm.tile is None
        or shape.groups != 1
        or algorithm.tensor_core
    ):
        return None
    if work.stride != 1 or algorithm.direction not in (None, work.direction, "forward"):
        return None
    gradient = ", gradient" if work.direction != "forward" else ""
    cut = Tiling(shape.product, algorithm.tile[:2])
    if _XMMA_FORWARD.search(name):
        if work.direction != "forward" or launch.grid not in (None, (*cut.blocks[::-1], 1)):
            return None
        return _in_tiles(
            "xmma implicit gemm",
            replace(cut, step=algorithm.tile[2]),
            _OUTPUTS,
            fmul=cut.values,
            fadd=cut.values,
        )
    if launch.grid is not None and launch.grid[:2] != cut.blocks:
        return None
    if re.search(r"_scudnn_\d+x\d+", name) and "winograd" not in name and "stridedB" not in name:
        return _in_tiles(
            f"scudnn{gradient}",
            replace(cut, step=_SCUDNN_STEP),
            _OUTPUTS,
            fmul=cut.values,
            fadd=cut.values,
        )
    if match := re.search(r"(\w+_convolve_sgemm)<float", name):
        larger = shape.kernel_h * shape.kernel_w > 1
        if larger and match[1].startswith("precomputed"):
            return None
        cut = replace(cut, step=STEP if larger else None)
        return _in_tiles(
            f"{match[1]}{gradient}", cut, _OUTPUTS, fmul=shape.pixels * shape.out_channels, fadd=0
        )
    return None


def input_gradient(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``scudnn_.._stridedB``: all inputs by channels, a sum over channels out and taps, at
    stride 1. ``dgrad_engine``: for each image all weights of a channel by the outputs, a sum over
    channels out; each sum is scaled and added to its input.

    The grids are those of a public trace of ResNet-50's training on a V100 (PyTorch 1.9). Counters
    of an H100 (cuDNN 9.19) verified ``dgrad_engine`` once; no counter verified ``scudnn``, whose
    epilogue is in no rule.
    """
    shape, forward, name, grid = work.shape, work.forward, launch.name, launch.grid
    if not isinstance(shape, ConvShape) or forward is None or shape.groups != 1 or grid is None:
        return None
    if (
        work.direction != "grad_input"
        or algorithm.direction not in (None, "grad_input")
        or not in_tiles(algorithm)
    ):
        return None
    m, n, _ = algorithm.tile or (1, 1, None)
    if _ENGINE.search(name):
        outputs = forward.out_h * forward.out_w
        image = GemmShape(forward.depth, outputs, forward.out_channels, forward.batch)
        cut = Tiling(image, (m, n))
        if grid != (*cut.blocks, forward.batch):
            return None
        return _in_tiles(
            "dgrad_engine",
            cut,
            (_WEIGHTS, "outputs"),
            fmul=forward.batch * image.m * image.n,
            fadd=0,
        )
    if not _strided_b(name) or "_splitK_" in name or work.stride != 1:
        return None
    cut = Tiling(shape.product, (m, n), step=_SCUDNN_STEP)
    if grid != (*cut.blocks, 1):
        return None
    return _in_tiles("scudnn, grad_input", cut, ("inputs", "channels"))


def weight_gradient(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """``scudnn_.._stridedB_splitK`` and ``wgrad_alg0_engine``: weights of a channel by channels
    out, a sum over all outputs. Winograd: 36 products of channels by channels, sums over tiles of 4
    x 4 outputs.

    The grids are those of the same trace. ``wgrad_alg0_engine``, which cuts each image's outputs
    into parts of whole steps and adds scaled sums to the weights, and Winograd's products by xmma
    were counted on an H100 (cuDNN 9.19). The other epilogues are in no rule.
    """
    forward, name, grid = work.forward, launch.name, launch.grid
    if work.direction != "grad_weight" or forward is None or forward.groups != 1 or grid is None:
        return None
    if algorithm.direction not in (None, "grad_weight") or not in_tiles(algorithm):
        return None
    m, n, _ = algorithm.tile or (1, 1, None)
    weights = GemmShape(forward.depth, forward.out_channels, forward.pixels)
    cut = Tiling(weights, (m, n))
    if _ENGINE.search(name):
        if grid[:2] != cut.blocks or grid[2] % forward.batch:
            return None
        image = GemmShape(weights.m, weights.n, forward.out_h * forward.out_w)
        # each image's outputs in parts of whole steps
        part = replace(cut, shape=image, parts=grid[2] // forward.batch, step=_SCUDNN_STEP)
        ffma = cut.values * forward.batch * part.depth
        rule = (
            f"{cut.describe(_WEIGHTS, 'channels')} x {forward.batch:,} images x {part.depth:,} "
            f"outputs in {part.parts} parts = {ffma:,} FFMA"
        )
        return Derived(
            "wgrad_alg0_engine", rule, ffma=ffma, fmul=grid[2] * weights.m * weights.n, fadd=0
        )
    if _strided_b(name) and "_splitK_" in name:
        parts = grid[2]
        if grid[:2] != cut.blocks or ceil(forward.pixels / parts) * (parts - 1) >= forward.pixels:
            return None
        cut = replace(cut, parts=parts, step=_SCUDNN_STEP)
        return _in_tiles("scudnn, grad_weight", cut, (_WEIGHTS, "channels"))
    three = (forward.kernel_h, forward.kernel_w) == (3, 3) and work.stride == 1
    if algorithm.family != "gemm" or not three or grid[2] != WINOGRAD_PRODUCTS:
        return None
    sums = winograd_product(forward).m
    sides = forward.in_channels, forward.out_channels
    for rows, columns in (sides, sides[::-1]):
        cut = Tiling(GemmShape(rows, columns, sums, WINOGRAD_PRODUCTS), (m, n), step=STEP)
        if grid[:2] == cut.blocks:
            whole = _in_tiles("winograd, grad_weight", cut, ("channels", "channels"))
            if "xmma_gemm_f32f32" not in name:
                return whole
            scaled = cut.multiplies + cut.values
            rule = f"{cut.describe()} x ({cut.depth:,} + 1 to scale each value) = {scaled:,} FFMA"
            return Derived("winograd, grad_weight, xmma", rule, ffma=scaled, fmul=0, fadd=0)
    return None


def in_tiles(algorithm: Algorithm) -> bool:
    """Whether it cuts its outputs into tiles on the CUDA cores."""
    return algorithm.tile is not None and not algorithm.tensor_core


def _strided_b(name: str) -> bool:
    return "scudnn" in name and "stridedB" in name


def _in_tiles(
    family: str,
    cut: Tiling,
    names: tuple[str, str],
    fmul: float | None = None,
    fadd: float | None = None,
) -> Derived:
    """Return the multiply-adds of all tiles; ``names`` of what their rows and columns cover."""
    parts = f" (a sum in {cut.parts} parts)" if cut.parts > 1 else ""
    rule = f"{cut.describe(*names)} x {cut.depth:,}{parts} = {cut.multiplies:,} FFMA"
    return Derived(family, rule, ffma=cut.multiplies, fmul=fmul, fadd=fadd)


def simt(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """CUTLASS's ``simt_s{fprop,dgrad,wgrad}``: whole tiles; the channels of each tap in whole
    steps, or all outputs of wgrad.

    After ``implicit_gemm_k_iterations`` and the tiles of ``implicit_gemm_problem_size`` in CUTLASS,
    stride 1 for dgrad. Each value of the tiles is scaled once. Not verified on silicon.
    """
    match, tile, shape = _SIMT.search(launch.name), algorithm.tile, work.shape
    if match is None or tile is None or work.direction != _SIMT_DIRECTIONS[match[1]]:
        return None
    step, grid = tile[2] or STEP, launch.grid
    if isinstance(shape, GemmShape):
        product = shape
    elif isinstance(shape, ConvShape) and work.stride == 1:
        taps = shape.kernel_h * shape.kernel_w
        product = replace(shape.product, k=taps * up(shape.in_channels, step))
    else:
        return None
    cut = Tiling(product, tile[:2], step=step)
    if product.batch > 1 or (
        grid is not None and (grid[2] > 1 or not covers(grid, *cut.blocks, swizzled=True))
    ):
        return None
    return _in_tiles("cutlass simt convolution", cut, _OUTPUTS, fmul=cut.values, fadd=0)


def transformed(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Winograd, and the products between its transforms: multiply-adds of whole blocks; its
    additions are in no rule."""
    shape = work.shape
    if (
        not isinstance(shape, ConvShape)
        or launch.grid is None
        or algorithm.family not in ("winograd", "gemm")
    ):
        return None
    if work.stride != 1 or algorithm.direction not in (None, work.direction):
        return None
    tiles = predict_tiles(replace(algorithm, direction=None), launch.grid, shape)
    if tiles is None or not tiles.tilings or algorithm.tensor_core or _COMPLEX.search(launch.name):
        return None
    cut = tiles.tilings[0]
    return Derived(tiles.family, cut.rule(shape.macs), ffma=cut.multiplies)


def fourier(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Products between Fourier transforms: a complex product for each point, 4 multiply-adds for
    each complex one. The transforms have no rule.

    ``gcgemm``: the grids are those of NeuSight's measurements, one launch for all images, or one
    for each place of a tile; the step along the channels is taken from real products, and nothing
    is verified on silicon. ``xmma_gemm_cf32cf32``: the tile's first side lies along x; two FFMA and
    two FMUL more for each value; counted on an H100 (cuDNN 9.19), gradients included.
    """
    tile, grid = algorithm.tile, launch.grid
    if not _COMPLEX.search(launch.name) or tile is None or grid is None or work.stride != 1:
        return None
    t = _POINTS.get(grid[2], 0)
    products = _points(work, grid[2], t)
    cuts = (cut for product in products for cut in tilings(product, tile[:2], grid))
    scaled = 2 if "cf32cf32" in launch.name else 0
    if scaled:
        cuts = (cut for cut in cuts if (tile[:2], grid[:2]) in _orders(cut))
    cut = next(cuts, None)
    if cut is None:
        return None
    deep = up(cut.shape.k, tile[2] or STEP)
    ffma = cut.values * (4 * deep + scaled)
    rule = (
        f"{grid[2]} points of {t} x {t} values: {cut.describe()} x ({deep:,} x 4"
        f"{f' + {scaled} to scale each value' if scaled else ''}) = {ffma:,} FFMA"
    )
    if not scaled:
        return Derived("products of FFT", rule, ffma=ffma)
    return Derived("products of FFT, xmma", rule, ffma=ffma, fmul=scaled * cut.values, fadd=0)


def _orders(cut: Tiling) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """Return tile and grid as a kernel has them whose x lies along the tile's first side, for both
    sides that may come first."""
    return (cut.sides, cut.blocks), (cut.sides[::-1], cut.blocks[::-1])


def _points(work: Work, points: int, t: int) -> Iterator[GemmShape]:
    """Yield the products that a point of a tile of t x t values may belong to: all images and
    places by channels, or places one after the other; of a weight's gradient channels by
    channels."""
    shape, forward = work.shape, work.forward
    if work.direction == "grad_weight" and forward is not None and forward.groups == 1:
        # one tile holds an image: the sum goes over the images
        if t >= max(forward.out_h + forward.kernel_h, forward.out_w + forward.kernel_w) - 1:
            yield GemmShape(forward.out_channels, forward.in_channels, forward.batch, points)
    elif (
        isinstance(shape, ConvShape)
        and shape.groups == 1
        and t >= max(shape.kernel_h, shape.kernel_w)
    ):
        places = ceil(shape.out_h / (t - shape.kernel_h + 1)) * ceil(
            shape.out_w / (t - shape.kernel_w + 1)
        )
        for images in dict.fromkeys((shape.batch * places, shape.batch)):
            yield GemmShape(images, shape.out_channels, shape.in_channels, points)


def direct(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """Kernels that fill no tiles: ``conv2d_grouped_direct_kernel``, and ``conv2d_c1_k1`` with one
    more for each output.

    ``dgrad2d_`` and ``wgrad2d_grouped_direct_kernel`` are taken to do what is on paper, too: not
    verified on silicon.
    """
    shape, name = work.shape, launch.name
    if (match := _GROUPED.search(name)) and work.direction == _GROUPED_DIRECTIONS[match[1]]:
        if isinstance(shape, ConvShape) and work.direction == "forward":
            outputs = shape.pixels * shape.out_channels
            rule = f"{outputs:,} outputs x {shape.depth:,} = {shape.macs:,} FFMA"
            return Derived("grouped direct", rule, ffma=shape.macs, fmul=outputs, fadd=0)
        # with another size of the image, exchanged channels have more taps than paper
        if work.direction == "grad_weight" or (isinstance(shape, ConvShape) and shape.same_size):
            return Derived(
                "grouped direct, gradient", f"as on paper: {shape.macs:,} FFMA", ffma=shape.macs
            )
    if "conv2d_c1_k1_" in name and isinstance(shape, ConvShape) and work.direction == "forward":
        outputs = shape.pixels * shape.out_channels
        ffma = outputs * (shape.depth + 1)
        rule = f"{outputs:,} outputs x ({shape.depth:,} + 1) = {ffma:,} FFMA"
        return Derived("conv2d_c1_k1", rule, ffma=ffma, fmul=outputs, fadd=0)
    return None


def depthwise(launch: Launch, algorithm: Algorithm, work: Work) -> Derived | None:
    """ATen's ``conv_depthwise2d``: one multiply-add for each tap on the image, none for padding
    (DepthwiseConv2d.cu).

    Not verified on silicon. The weight's gradient adds up the sums of its threads: that is in
    no rule.
    """
    match = _DEPTHWISE.search(launch.name)
    if match is None or work.inside is None or work.direction != _DEPTHWISE_DIRECTIONS[match[1]]:
        return None
    sums = None if match[1] == "grad_weight" else 0
    rule = f"taps that fall on the image: {work.inside:,} FFMA"
    return Derived("depthwise of ATen", rule, ffma=work.inside, fmul=0, fadd=sums)
