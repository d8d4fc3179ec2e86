"""Convolutions and their gradients on the CUDA cores in fp32: cuDNN, CUTLASS and ATen.

Forward rules were read off counters of an A100 (CUDA 11.4) with known shapes, stride 1 and no
padding, and of an H100 (cuDNN 9.19); ``scripts/proof/silicon`` repeats the comparison. Rules for
gradients follow from a sister kernel or from open source unless they name a counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from perfctl.orchestrator.counts.derived.records import DerivedInstructions, Launch, LaunchWork
from perfctl.orchestrator.counts.kernels.grids import (
    STEP,
    WINOGRAD_PRODUCTS,
    ConvShape,
    GemmShape,
    Tiling,
    convert_to_unfused_winograd_gemm,
    has_block_per_tile,
    list_tilings,
    predict_forward_tiles,
    round_up,
)
from perfctl.orchestrator.counts.kernels.names import Algorithm

_SCUDNN_STEP = 4
_XMMA_FORWARD = re.compile(r"xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_\w*_ffma")
_OUTPUTS = "output positions", "channels"
_WEIGHTS = "weights of a channel"
_ENGINE = re.compile(r"(dgrad|wgrad)_(?:alg\d_)?(?:nd_float_)?engine<float")
_SIMT = re.compile(r"cutlass_\w*simt_s(fprop|dgrad|wgrad)_")
_POINTS = {t * (t // 2 + 1): t for t in (16, 32, 64)}
"""Points of a transformed tile of t x t real values (the rest mirrors them) -> t: the z of the
product's grid."""
COMPLEX_PRODUCT = re.compile(r"cgemm|xmma_gemm_cf32cf32", re.IGNORECASE)
"""A product of transformed tiles: its values are complex."""
_GROUPED = re.compile(r"(conv|dgrad|wgrad)2d_grouped_direct_kernel")
_DEPTHWISE = re.compile(r"conv_depthwise2d_(forward|backward|grad_weight)_kernel<[^>]*?float")
_DIRECTIONS = {
    **dict.fromkeys(("fprop", "conv", "forward"), "forward"),
    **dict.fromkeys(("dgrad", "backward"), "grad_input"),
    **dict.fromkeys(("wgrad", "grad_weight"), "grad_weight"),
}
"""Word in a kernel's name -> direction."""


def derive_cuda_core_gemm_convolution(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Implicit and explicit GEMM: outputs of all images by channels, in whole tiles.

    ``..._scudnn_MxN``: the sum in steps of 4, and FMUL and FADD of the epilogue for each value of
    the tiles. ``..._convolve_sgemm``: filters larger than 1 x 1 in steps of 8; only outputs that
    exist are scaled.
    The gradient of the input with stride 1 is a convolution with the channels exchanged, and runs
    on the same kernels. ``precomputed_``: 1 x 1 only; the grids of larger filters do not follow
    from their outputs. ``xmma_fprop_implicit_gemm_.._ffma`` on NCHW images: the sum over channels
    and taps in whole steps, FMUL and FADD for each value; counted on an H100 (cuDNN 9.19).
    """
    shape, tile, name = work.shape, algorithm.tile, launch.name
    if not isinstance(shape, ConvShape) or tile is None or algorithm.tensor_core:
        return None
    is_forward = work.direction == "forward"
    if (
        shape.groups != 1
        or work.stride != 1
        or algorithm.direction not in (None, work.direction, "forward")
    ):
        return None
    cut = Tiling(shape.implicit_gemm, tile[:2])
    scaled: tuple[int, int] = cut.values, cut.values
    if _XMMA_FORWARD.search(name):
        if not is_forward or launch.grid not in (None, (*cut.tile_counts[::-1], 1)):
            return None
        return _derive_padded_tile_multiply_adds(
            "xmma implicit gemm", replace(cut, step=tile[2]), *_OUTPUTS, *scaled
        )
    if launch.grid is not None and launch.grid[:2] != cut.tile_counts:
        return None
    family, step = "scudnn", _SCUDNN_STEP
    if match := re.search(r"(\w+_convolve_sgemm)<float", name):
        family, scaled = match[1], (shape.output_positions * shape.out_channels, 0)
        step = STEP if shape.kernel_h * shape.kernel_w > 1 else 0
        if step and family.startswith("precomputed"):
            return None
    elif not re.search(r"_scudnn_\d+x\d+", name) or "winograd" in name or "stridedB" in name:
        return None
    family += "" if is_forward else ", gradient"
    return _derive_padded_tile_multiply_adds(
        family, replace(cut, step=step or None), *_OUTPUTS, *scaled
    )


def derive_input_gradient(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
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
    if work.direction != "grad_input" or algorithm.direction not in (None, "grad_input"):
        return None
    if algorithm.tile is None or algorithm.tensor_core:
        return None
    sides = algorithm.tile[:2]
    if _ENGINE.search(name):
        outputs = forward.out_h * forward.out_w
        cut = Tiling(
            GemmShape(forward.macs_per_output, outputs, forward.out_channels, forward.batch), sides
        )
        if grid != (*cut.tile_counts, forward.batch):
            return None
        scaled = forward.batch * forward.macs_per_output * outputs
        return _derive_padded_tile_multiply_adds(
            "dgrad_engine", cut, _WEIGHTS, "outputs", scaled, 0
        )
    cut = Tiling(shape.implicit_gemm, sides, step=_SCUDNN_STEP)
    if not _is_strided_b_kernel(name) or "_splitK_" in name or work.stride != 1:
        return None
    if grid != (*cut.tile_counts, 1):
        return None
    return _derive_padded_tile_multiply_adds("scudnn, grad_input", cut, "inputs", "channels")


def derive_weight_gradient(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
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
    if algorithm.direction not in (None, "grad_weight") or algorithm.tile is None:
        return None
    weights = GemmShape(forward.macs_per_output, forward.out_channels, forward.output_positions)
    cut = Tiling(weights, algorithm.tile[:2])
    if _ENGINE.search(name):
        if grid[:2] != cut.tile_counts or grid[2] % forward.batch:
            return None
        image = GemmShape(weights.m, weights.n, forward.out_h * forward.out_w)
        # each image's outputs in parts of whole steps
        part = replace(cut, shape=image, parts=grid[2] // forward.batch, step=_SCUDNN_STEP)
        ffma = cut.values * forward.batch * part.padded_k
        rule = (
            f"{cut.describe_tiles(_WEIGHTS, 'channels')} x {forward.batch:,} images x "
            f"{part.padded_k:,} "
            f"outputs in {part.parts} parts = {ffma:,} FFMA"
        )
        scaled = grid[2] * weights.m * weights.n
        return DerivedInstructions("wgrad_alg0_engine", rule, ffma, scaled, 0)
    if _is_strided_b_kernel(name) and "_splitK_" in name:
        parts = grid[2]
        if (
            grid[:2] != cut.tile_counts
            or ceil(forward.output_positions / parts) * (parts - 1) >= forward.output_positions
        ):
            return None
        cut = replace(cut, parts=parts, step=_SCUDNN_STEP)
        return _derive_padded_tile_multiply_adds("scudnn, grad_weight", cut, _WEIGHTS, "channels")
    if algorithm.family != "gemm" or not forward.is_3_by_3 or work.stride != 1:
        return None
    if grid[2] != WINOGRAD_PRODUCTS:
        return None
    sums = convert_to_unfused_winograd_gemm(forward).m
    sides = forward.in_channels, forward.out_channels
    for rows_columns in (sides, sides[::-1]):
        product = GemmShape(*rows_columns, sums, WINOGRAD_PRODUCTS)
        cut = replace(cut, shape=product, step=STEP)
        if grid[:2] == cut.tile_counts:
            if "xmma_gemm_f32f32" not in name:
                return _derive_padded_tile_multiply_adds(
                    "winograd, grad_weight", cut, "channels", "channels"
                )
            ffma = cut.padded_macs + cut.values
            rule = (
                f"{cut.describe_tiles()} x ({cut.padded_k:,} + 1 to scale each value) = "
                f"{ffma:,} FFMA"
            )
            return DerivedInstructions("winograd, grad_weight, xmma", rule, ffma, 0, 0)
    return None


def _is_strided_b_kernel(name: str) -> bool:
    return "scudnn" in name and "stridedB" in name


def _derive_padded_tile_multiply_adds(
    family: str,
    cut: Tiling,
    row_label: str,
    column_label: str,
    fmul: float | None = None,
    fadd: float | None = None,
) -> DerivedInstructions:
    """Return the multiply-adds of all tiles; ``row_label`` and ``column_label``: what these
    cover."""
    parts = f" (a sum in {cut.parts} parts)" if cut.parts > 1 else ""
    rule = (
        f"{cut.describe_tiles(row_label, column_label)} x {cut.padded_k:,}{parts} = "
        f"{cut.padded_macs:,} FFMA"
    )
    return DerivedInstructions(family, rule, cut.padded_macs, fmul, fadd)


def derive_simt_convolution(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """CUTLASS's ``simt_s{fprop,dgrad,wgrad}``: whole tiles; the channels of each tap in whole
    steps, or all outputs of wgrad.

    After ``implicit_gemm_k_iterations`` and the tiles of ``implicit_gemm_problem_size`` in CUTLASS,
    stride 1 for dgrad. Each value of the tiles is scaled once. Not verified on silicon.
    """
    match, tile, shape = _SIMT.search(launch.name), algorithm.tile, work.shape
    if match is None or tile is None or work.direction != _DIRECTIONS[match[1]]:
        return None
    step, grid = tile[2] or STEP, launch.grid
    if isinstance(shape, GemmShape):
        product = shape
    elif isinstance(shape, ConvShape) and work.stride == 1:
        taps = shape.kernel_h * shape.kernel_w
        product = replace(shape.implicit_gemm, k=taps * round_up(shape.in_channels, step))
    else:
        return None
    cut = Tiling(product, tile[:2], step=step)
    if product.batch > 1:
        return None
    if grid is not None and not (grid[2] <= 1 and has_block_per_tile(grid, *cut.tile_counts, True)):
        return None
    return _derive_padded_tile_multiply_adds(
        "cutlass simt convolution", cut, *_OUTPUTS, cut.values, 0
    )


def derive_winograd_products(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Winograd, and the products between its transforms: multiply-adds of whole blocks; its
    additions are in no rule."""
    shape = work.shape
    if not isinstance(shape, ConvShape) or launch.grid is None or work.stride != 1:
        return None
    if algorithm.family not in ("winograd", "gemm") or COMPLEX_PRODUCT.search(launch.name):
        return None
    if algorithm.direction not in (None, work.direction):
        return None
    tiles = predict_forward_tiles(replace(algorithm, direction=None), launch.grid, shape)
    if tiles is None or not tiles.tilings:
        return None
    cut = tiles.tilings[0]
    return DerivedInstructions(tiles.family, cut.describe_arithmetic(shape.macs), cut.padded_macs)


def derive_fft_products(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Products between Fourier transforms: a complex product for each point, 4 multiply-adds for
    each complex one. The transforms have no rule.

    ``gcgemm``: the grids are those of NeuSight's measurements, one launch for all images, or one
    for each place of a tile; the step along the channels is taken from real products, and nothing
    is verified on silicon. ``xmma_gemm_cf32cf32``: the tile's first side lies along x; two FFMA and
    two FMUL more for each value; counted on an H100 (cuDNN 9.19), gradients included.
    """
    tile, grid = algorithm.tile, launch.grid
    if not COMPLEX_PRODUCT.search(launch.name) or tile is None or grid is None or work.stride != 1:
        return None
    t = _POINTS.get(grid[2], 0)
    products = _list_fft_point_products(work, grid[2], t)
    cuts = (cut for product in products for cut in list_tilings(product, tile[:2], grid))
    scaled = 2 if "cf32cf32" in launch.name else 0
    if scaled:  # x lies along the tile's first side, whichever of the two it is
        ways = (tile[:2], grid[:2]), (tile[1::-1], grid[1::-1])
        cuts = (cut for cut in cuts if (cut.sides, cut.tile_counts) in ways)
    cut = next(cuts, None)
    if cut is None:
        return None
    deep = round_up(cut.shape.k, tile[2] or STEP)
    ffma = cut.values * (4 * deep + scaled)
    rule = (
        f"{grid[2]} points of {t} x {t} values: {cut.describe_tiles()} x ({deep:,} x 4"
        f"{f' + {scaled} to scale each value' if scaled else ''}) = {ffma:,} FFMA"
    )
    if not scaled:
        return DerivedInstructions("products of FFT", rule, ffma)
    return DerivedInstructions("products of FFT, xmma", rule, ffma, scaled * cut.values, 0)


def _list_fft_point_products(work: LaunchWork, points: int, tile_side: int) -> Iterator[GemmShape]:
    """Yield the products that a point of a tile of t x t values may belong to: all images and
    places by channels, or places one after the other; of a weight's gradient channels by
    channels."""
    shape, forward = work.shape, work.forward
    if work.direction == "grad_weight" and forward is not None and forward.groups == 1:
        # one tile holds an image: the sum goes over the images
        if tile_side >= max(forward.out_h + forward.kernel_h, forward.out_w + forward.kernel_w) - 1:
            yield GemmShape(forward.out_channels, forward.in_channels, forward.batch, points)
    elif (
        isinstance(shape, ConvShape)
        and shape.groups == 1
        and tile_side >= max(shape.kernel_h, shape.kernel_w)
    ):
        places = ceil(shape.out_h / (tile_side - shape.kernel_h + 1)) * ceil(
            shape.out_w / (tile_side - shape.kernel_w + 1)
        )
        for images in dict.fromkeys((shape.batch * places, shape.batch)):
            yield GemmShape(images, shape.out_channels, shape.in_channels, points)


def derive_direct_convolution(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """Kernels that fill no tiles: ``conv2d_grouped_direct_kernel``, and ``conv2d_c1_k1`` with one
    more for each output.

    ``dgrad2d_`` and ``wgrad2d_grouped_direct_kernel`` execute the estimated FLOPs, too: not
    verified on silicon.
    """
    shape, name = work.shape, launch.name
    if (match := _GROUPED.search(name)) and work.direction == _DIRECTIONS[match[1]]:
        if isinstance(shape, ConvShape) and work.direction == "forward":
            outputs = shape.output_positions * shape.out_channels
            rule = f"{outputs:,} outputs x {shape.macs_per_output:,} = {shape.macs:,} FFMA"
            return DerivedInstructions("grouped direct", rule, shape.macs, outputs, 0)
        # with another size of the image, exchanged channels have more taps than paper
        if work.direction == "grad_weight" or (isinstance(shape, ConvShape) and shape.same_size):
            rule = f"as estimated: {shape.macs:,} FFMA"
            return DerivedInstructions("grouped direct, gradient", rule, shape.macs)
    if "conv2d_c1_k1_" in name and isinstance(shape, ConvShape) and work.direction == "forward":
        outputs = shape.output_positions * shape.out_channels
        ffma = outputs * (shape.macs_per_output + 1)
        rule = f"{outputs:,} outputs x ({shape.macs_per_output:,} + 1) = {ffma:,} FFMA"
        return DerivedInstructions("conv2d_c1_k1", rule, ffma, outputs, 0)
    return None


def derive_depthwise_convolution(
    launch: Launch, algorithm: Algorithm, work: LaunchWork
) -> DerivedInstructions | None:
    """ATen's ``conv_depthwise2d``: one multiply-add for each tap on the image, none for padding
    (DepthwiseConv2d.cu).

    Not verified on silicon. The weight's gradient adds up the sums of its threads: that is in
    no rule.
    """
    match = _DEPTHWISE.search(launch.name)
    if match is None or work.inside is None or work.direction != _DIRECTIONS[match[1]]:
        return None
    sums = None if match[1] == "grad_weight" else 0
    rule = f"taps that fall on the image: {work.inside:,} FFMA"
    return DerivedInstructions("depthwise of ATen", rule, work.inside, 0, sums)
