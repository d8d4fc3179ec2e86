"""What kernels make of matrix products: names as libraries give them, grids and counts by the
hardware's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, prod
from random import Random

from networks import Conv, Layer, Product

FITS = 1.012
"""A tile that executes no more than this share of the product leaves it as good as exact."""
Grid = tuple[int, int, int]


@dataclass(slots=True)
class Launch:
    """One launch: name, grid, what it executed, and which layer it is attributed to."""

    name: str
    grid: Grid = (1, 1, 1)
    counts: dict[str, int] = field(default_factory=dict)
    """fadd, fmul, ffma, hfma (two lanes each), tensor (FLOPs), moves (constants moved on the tensor
    pipe, no FLOPs)."""
    kind: str = ""
    """Type of the tensor operations."""
    each: int = 4096
    """FLOPs of one tensor instruction of a warp."""
    layer: str | None = None
    direction: str | None = None
    part: str = ""
    """forward, dgrad, wgrad or other: what it was launched for, whoever it is attributed to."""
    scale: int = 0
    """Of its FLOPs, those of the epilogue: the scale of the result, sums of slices inside of
    a block."""
    filling: float = 1.0
    """What its tiles execute / the product that they were launched for."""
    counted: bool = True
    """False where the counters of this launch are missing."""

    @property
    def flops(self) -> int:
        found = self.counts
        core = found.get("fadd", 0) + found.get("fmul", 0) + 2 * found.get("ffma", 0)
        return core + 4 * found.get("hfma", 0) + found.get("tensor", 0)


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one library for one path. The pattern takes {m}, {n}, {k} of the tile, {o} the
    order, {d} the direction."""

    pattern: str
    tiles: tuple[tuple[int, int], ...]
    step: int
    """Depth of one turn of the main loop."""
    path: str = "ffma"
    each: int = 4096
    alpha: bool = False
    """The scale is a multiplication for each value of the tiles."""
    slices: int = 1
    grid: str = "tiles"
    """tiles: a block for each tile. swizzled, persistent: the grid says nothing about tiles."""
    only: str = ""
    """gemm, conv, or both when empty."""
    parts: tuple[str, ...] = ("forward", "dgrad", "wgrad", "hidden", "scores", "values")

    @property
    def named(self) -> bool:
        """True where the name states the tile."""
        return "{m}" in self.pattern


CUBLAS_TILES = ((128, 64), (64, 64), (128, 128), (32, 128), (128, 32), (64, 32))
CUDNN_TILES = ((128, 64), (128, 128), (128, 32))
WIDE_TILES = ((128, 128), (128, 64), (64, 64), (256, 128), (128, 256), (64, 128), (256, 64))
BACK = ("dgrad", "wgrad")
FAMILIES: dict[str, tuple[Family, ...]] = {
    "volta fp32": (
        Family("volta_sgemm_{m}x{n}_{o}", CUBLAS_TILES, 8, alpha=True, only="gemm"),
        Family(
            "volta_sgemm_{m}x{n}_sliced1x4_{o}",
            ((32, 32), (64, 32)),
            32,
            alpha=True,
            slices=4,
            only="gemm",
        ),
        Family(
            "volta_scudnn_{m}x{n}_relu_medium_nn_v1",
            CUDNN_TILES,
            8,
            alpha=True,
            only="conv",
            parts=("forward",),
        ),
        Family(
            "volta_scudnn_{m}x{n}_relu_xregs_large_nn_v1",
            CUDNN_TILES,
            8,
            alpha=True,
            only="conv",
            parts=("forward",),
        ),
        Family(
            "volta_scudnn_{m}x{n}_relu_interior_nn_v1",
            CUDNN_TILES,
            8,
            alpha=True,
            only="conv",
            parts=("forward", "dgrad"),
        ),
        Family(
            "volta_scudnn_{m}x{n}_stridedB_interior_nn_v1", CUDNN_TILES, 8, only="conv", parts=BACK
        ),
        Family(
            "volta_scudnn_{m}x{n}_stridedB_small_nn_v1", CUDNN_TILES, 8, only="conv", parts=BACK
        ),
    ),
    "ampere fp32": (
        Family("ampere_sgemm_{m}x{n}_{o}", CUBLAS_TILES, 8, alpha=True, only="gemm"),
        Family(
            "ampere_sgemm_{m}x{n}_sliced1x4_{o}",
            ((32, 32), (64, 32)),
            32,
            alpha=True,
            slices=4,
            only="gemm",
        ),
        Family(
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_{m}x{n}_8x4_{o}_align1>"
            "(cutlass_80_simt_sgemm_{m}x{n}_8x4_{o}_align1::Params)",
            WIDE_TILES,
            8,
            grid="swizzled",
            only="gemm",
        ),
        Family(
            "cudnn_ampere_scudnn_{m}x{n}_relu_medium_nn_v1",
            CUDNN_TILES,
            8,
            alpha=True,
            only="conv",
            parts=("forward",),
        ),
        Family(
            "cudnn_ampere_scudnn_{m}x{n}_relu_interior_nn_v1",
            CUDNN_TILES,
            8,
            alpha=True,
            only="conv",
            parts=("forward", "dgrad"),
        ),
        Family(
            "cudnn_ampere_scudnn_{m}x{n}_stridedB_small_nn_v1",
            CUDNN_TILES,
            8,
            only="conv",
            parts=BACK,
        ),
        Family(
            "void cutlass__5x_cudnn::Kernel<cutlass_simt_s{d}_optimized_{m}x{n}_8x5_nhwc_align1>"
            "(cutlass_simt_s{d}_optimized_{m}x{n}_8x5_nhwc_align1::Params)",
            WIDE_TILES,
            8,
            grid="swizzled",
            only="conv",
        ),
    ),
    "volta fp16": (
        Family(
            "volta_fp16_s884gemm_fp16_{m}x{n}_ldg8_f2f_{o}",
            WIDE_TILES[:5],
            32,
            "fp16",
            512,
            only="gemm",
        ),
        Family(
            "volta_fp16_s884cudnn_fp16_{m}x{n}_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
            WIDE_TILES[:5],
            32,
            "fp16",
            512,
            only="conv",
            parts=("forward",),
        ),
        Family(
            "volta_s884cudnn_fp16_{m}x{n}_ldg8_{d}_exp_interior_nhwc_nt_v1",
            WIDE_TILES[:3],
            32,
            "fp16",
            512,
            only="conv",
            parts=BACK,
        ),
    ),
    "turing fp16": (
        Family(
            "turing_fp16_s1688gemm_fp16_{m}x{n}_ldg8_f2f_stages_32x1_{o}",
            WIDE_TILES[:5],
            32,
            "fp16",
            2048,
            only="gemm",
        ),
        Family(
            "turing_fp16_s1688cudnn_fp16_{m}x{n}_ldg8_relu_f2f_exp_medium_nhwc_tn_v1",
            WIDE_TILES[:5],
            32,
            "fp16",
            2048,
            only="conv",
            parts=("forward",),
        ),
        Family(
            "turing_s1688cudnn_fp16_{m}x{n}_ldg8_{d}_exp_interior_nhwc_nt_v1",
            WIDE_TILES[:3],
            32,
            "fp16",
            2048,
            only="conv",
            parts=BACK,
        ),
    ),
    "ampere fp16": (
        Family(
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::{d}_indexed::Kernel_traits<"
            "xmma_cudnn::Ampere_hmma_fp32_traits<unsigned short, float>>>"
            "(xmma_cudnn::implicit_gemm::{d}_indexed::Params)",
            WIDE_TILES[:4],
            32,
            "fp16",
            4096,
            only="conv",
        ),
        Family(
            "ampere_fp16_s16816gemm_fp16_{m}x{n}_ldg8_f2f_stages_64x3_{o}",
            WIDE_TILES,
            64,
            "fp16",
            only="gemm",
        ),
        Family(
            "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_{m}x{n}_32x4_{o}"
            "_align8>(cutlass_80_tensorop_f16_s16816gemm_relu_f16_{m}x{n}_32x4_{o}_align8::Params)",
            WIDE_TILES,
            32,
            "fp16",
            grid="swizzled",
            only="gemm",
        ),
        Family(
            "sm80_xmma_{d}_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize{m}x{n}x32_stage4"
            "_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
            WIDE_TILES,
            32,
            "fp16",
            only="conv",
        ),
        Family(
            "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816{d}_optimized_f16_{m}x{n}"
            "_64x4_nhwc_align8>(cutlass_tensorop_f16_s16816{d}_optimized_f16_{m}x{n}_64x4_nhwc"
            "_align8::Params)",
            WIDE_TILES,
            64,
            "fp16",
            grid="swizzled",
            only="conv",
        ),
    ),
    "ampere bf16": (
        Family(
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::{d}_indexed::Kernel_traits<"
            "xmma_cudnn::Ampere_hmma_bf16_traits<unsigned short, float>>>"
            "(xmma_cudnn::implicit_gemm::{d}_indexed::Params)",
            WIDE_TILES[:4],
            32,
            "bf16",
            4096,
            only="conv",
        ),
        Family(
            "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{m}x{n}x32"
            "_stage4_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
            WIDE_TILES,
            32,
            "bf16",
            only="conv",
            parts=("forward", "dgrad"),
        ),
        Family(
            "ampere_bf16_s16816gemm_bf16_{m}x{n}_ldg8_f2f_stages_32x5_{o}",
            WIDE_TILES,
            32,
            "bf16",
            only="gemm",
        ),
        Family(
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{m}x{n}_64x4_{o}"
            "_align8>(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{m}x{n}_64x4_{o}"
            "_align8::Params)",
            WIDE_TILES,
            64,
            "bf16",
            grid="swizzled",
            only="gemm",
        ),
        Family(
            "sm80_xmma_{d}_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{m}x{n}x64"
            "_stage3_warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn",
            WIDE_TILES,
            64,
            "bf16",
            only="conv",
        ),
    ),
    "hopper": (
        Family(
            "sm90_xmma_gemm_{t}{t}_{t}f32_f32_{o}_n_tilesize{m}x{n}x64_warpgroupsize1x1x1_execute"
            "_segment_k_off_kernel__5x_cublas",
            WIDE_TILES,
            64,
            "half",
            2 * 64 * 128 * 16 // 4,
            only="gemm",
        ),
        Family(
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x"
            "<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
            "cutlass::gemm::collective::CollectiveMma, void>>>(int)",
            WIDE_TILES[:3],
            64,
            "half",
            2 * 64 * 128 * 16 // 4,
            only="gemm",
        ),
        Family(
            "nvjet_hsh_{m}x{n}_64x4_1x2_h_bz_coopA_{O}",
            WIDE_TILES,
            64,
            "half",
            2 * 64 * 128 * 16 // 4,
            grid="persistent",
            only="gemm",
        ),
    ),
    "tf32": (
        Family(
            "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::{d}_indexed::Kernel_traits<"
            "xmma_cudnn::Ampere_hmma_tf32_traits<unsigned int, float>>>"
            "(xmma_cudnn::implicit_gemm::{d}_indexed::Params)",
            WIDE_TILES[:4],
            16,
            "tf32",
            2048,
            only="conv",
        ),
        Family(
            "sm80_xmma_gemm_f32f32_tf32f32_f32_{o}_n_tilesize{m}x{n}x16_stage4_warpsize2x2x1"
            "_tensor16x8x8_execute_kernel__5x_cublas",
            WIDE_TILES,
            16,
            "tf32",
            2048,
            only="gemm",
        ),
        Family(
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688tf32gemm_{m}x{n}_16x3_{o}_align4>"
            "(cutlass_80_tensorop_s1688tf32gemm_{m}x{n}_16x3_{o}_align4::Params)",
            WIDE_TILES,
            16,
            "tf32",
            2048,
            grid="swizzled",
            only="gemm",
        ),
        Family(
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{m}x{n}x16"
            "_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn",
            WIDE_TILES,
            16,
            "tf32",
            2048,
            only="conv",
            parts=("forward", "dgrad"),
        ),
        Family(
            "sm80_xmma_{d}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize{m}x{n}x16"
            "_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn",
            WIDE_TILES,
            16,
            "tf32",
            2048,
            only="conv",
        ),
        Family(
            "sm80_xmma_{d}_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc"
            "_tilesize{m}x{n}x32_stage3_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn",
            WIDE_TILES,
            32,
            "tf32",
            2048,
            only="conv",
        ),
    ),
}
ORDERS = {
    "forward": "tn",
    "scores": "tn",
    "values": "nn",
    "dgrad": "nn",
    "hidden": "nn",
    "wgrad": "nt",
}
ROLES = {"forward": "fprop", "dgrad": "dgrad", "wgrad": "wgrad"}


def depthwise(layer: Conv, product: Product) -> Launch:
    """PyTorch's own kernels, which leave out taps outside of the image."""
    head = "void at::native::(anonymous namespace)::conv_depthwise2d_"
    kernel = {"forward": "forward", "dgrad": "backward", "wgrad": "grad_weight"}[product.part]
    size = f"{layer.kernel}, " if product.part != "wgrad" else ""
    name = (
        f"{head}{kernel}_kernel<{size}float, int>(at::GenericPackedTensorAccessor<float const, "
        "4ul, at::DefaultPtrTraits, int>)"
    )
    return Launch(
        name, (ceil(product.m * product.n * product.count / 1024), 1, 1), {"ffma": product.macs}
    )


def path_of(chip: str, precision: str) -> str:
    """fp32, tf32, fp16 or bf16: what the libraries compute in."""
    return precision if precision != "tf32" or int(chip) >= 80 else "fp32"


def families(chip: str, precision: str, layer: Layer, part: str) -> list[Family]:
    """Kernels that the libraries have for it."""
    path, number = path_of(chip, precision), int(chip)
    if path == "fp32":
        found = FAMILIES["volta fp32" if number < 80 else "ampere fp32"]
    elif path == "tf32":
        found = FAMILIES["tf32"]
    elif number < 80:
        found = FAMILIES["volta fp16" if number == 70 else "turing fp16"]
    else:
        found = FAMILIES["ampere fp16" if path == "fp16" else "ampere bf16"]
        if number == 90:
            half = tuple(replace(family, path=path) for family in FAMILIES["hopper"])
            found = (*found, *half)
    only = "conv" if isinstance(layer, Conv) else "gemm"
    return [family for family in found if family.only in ("", only) and part in family.parts]


def tiled(
    family: Family, tile: tuple[int, int], product: Product, flip: bool, split: int = 1
) -> Launch:
    """The product in whole tiles. ``flip``: the name's first number runs along the columns, as in
    column order."""
    along, across = (tile[1], tile[0]) if flip else tile
    rows, columns = ceil(product.m / along), ceil(product.n / across)
    turns = ceil(ceil(product.k / split) / family.step) * family.step
    blocks = rows * columns * split * product.count
    work = blocks * tile[0] * tile[1] * turns
    counts: dict[str, int] = {"ffma": work} if family.path == "ffma" else {"tensor": 2 * work}
    if family.alpha:
        # each slice scales its own sums
        counts["fmul"] = blocks * tile[0] * tile[1] * family.slices
        if "scudnn" in family.pattern:  # the scale, and the bias whether there is one or not
            counts["fadd"] = counts["fmul"]
    if family.slices > 1:
        counts["fadd"] = blocks * tile[0] * tile[1] * (family.slices - 1)
    layers = split * product.count
    grid = (columns, rows, layers) if flip else (rows, columns, layers)
    if family.grid == "swizzled":
        grid = (grid[0] * 4, ceil(grid[1] / 4), grid[2])
    elif family.grid == "persistent":
        grid = (132, 1, 1)
    words = {"fp16": "f16", "bf16": "bf16"}
    order = ORDERS[product.part]
    name = family.pattern.format(
        m=tile[0],
        n=tile[1],
        o=order,
        O=order.upper(),
        d=ROLES.get(product.part, ""),
        t=words.get(family.path, ""),
    )
    return Launch(
        name,
        grid,
        counts,
        "" if family.path == "ffma" else family.path,
        family.each,
        scale=counts.get("fmul", 0) + counts.get("fadd", 0),
        filling=work / product.macs,
    )


def options(
    chip: str, precision: str, layer: Layer, product: Product
) -> Iterator[tuple[float, Family, tuple[int, int], bool]]:
    """(executed / product, family, tile, flip) of every kernel there is for it."""
    for family in families(chip, precision, layer, product.part):
        for tile in family.tiles:
            flip = family.only == "gemm"
            yield tiled(family, tile, product, flip).flops / (2 * product.macs), family, tile, flip


def plain(chip: str, precision: str, layer: Layer, product: Product, random: Random) -> Launch:
    """A kernel that executes the product and next to nothing beside it."""
    fitting = [
        option[1:] for option in options(chip, precision, layer, product) if option[0] <= FITS
    ]
    if fitting and not (isinstance(layer, Conv) and layer.depthwise):
        family, tile, flip = fitting[random.randrange(len(fitting))]
        launch = tiled(family, tile, product, flip)
    else:
        launch = direct(layer, product, precision)
    if int(chip) in (80, 86, 89) and launch.counts.get("ffma") and random.random() < 0.2:
        launch.counts["moves"] = 9 * prod(launch.grid)
    return launch


def direct(layer: Layer, product: Product, precision: str) -> Launch:
    """CUDA cores, without tiles in the name; the grid says nothing."""
    type_ = {"fp16": "__half", "bf16": "__nv_bfloat16"}.get(precision, "float")
    blocks = (max(1, ceil(product.m * product.n * product.count / 1024)), 1, 1)
    part = product.part
    if isinstance(layer, Conv):
        name = {
            "forward": (
                "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, "
                f"int, {type_}, {type_}, {type_}, float, float, float>(cudnnTensorStruct, {type_} "
                "const*)"
            ),
            "dgrad": (
                "void cudnn::cnn::dgrad2d_grouped_direct_kernel<false, true, false, false, 0, 0, "
                f"int, {type_}, {type_}, {type_}, float, float, float>(cudnnTensorStruct)"
            ),
            "wgrad": (
                f"void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int, {type_}, float, "
                "float>(int)"
            ),
        }[part]
    elif product.n * product.count > 64 or product.m > 64:
        order = ORDERS[part].upper()
        name = (
            f"void gemmSN_{order}_kernel<{type_}, 128, 16, 2, 4, 8, 9, false, "
            f"cublasGemvTensorStridedBatched<{type_} const>, "
            f"cublasGemvTensorStridedBatched<{type_} const>, "
            f"cublasGemvTensorStridedBatched<{type_}>>(int)"
        )
    else:
        name = (
            f"void gemv2T_kernel_val<int, int, {type_}, {type_}, {type_}, float, 128, 16, 4, 4, "
            "false, false>(int)"
        )
    return Launch(name, blocks, {"ffma": product.macs})
