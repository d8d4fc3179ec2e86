"""What kernels make of matrix products: names as libraries give them, grids and counts by the
hardware's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, prod
from random import Random
from typing import NamedTuple

from scripts.proof.verdicts.networks import Conv, Layer, Product, Scene

FITS = 1.012
"""A tile that executes no more than this share of the product leaves it as good as exact."""
Grid = tuple[int, int, int]
Tile = tuple[int, int]


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
    step: int | None = 0
    device: int = 0
    process: int | None = None

    @property
    def flops(self) -> int:
        counts = self.counts
        core = counts.get("fadd", 0) + counts.get("fmul", 0) + 2 * counts.get("ffma", 0)
        return core + 4 * counts.get("hfma", 0) + counts.get("tensor", 0)


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels of one library for one path. The pattern takes {m} and {n} of the tile, {o} the
    order, {d} the direction, {t} the type."""

    pattern: str
    tiles: tuple[Tile, ...]
    step: int
    """Depth of one iteration of the main loop."""
    parts: tuple[str, ...] = ("forward", "dgrad", "wgrad", "hidden", "scores", "values")
    path: str = "fp32"
    each: int = 4096
    alpha: bool = False
    """The scale is a multiplication for each value of the tiles."""
    slices: int = 1
    grid: str = "tiles"
    """tiles: a block for each tile. swizzled, persistent: the grid says nothing about tiles."""


class Kernel(NamedTuple):
    """A family's kernel with one tile. ``flip``: the name's first number runs along the columns, as
    in column order."""

    family: Family
    tile: Tile
    flip: bool = False


CUBLAS_TILES = ((128, 64), (64, 64), (128, 128), (32, 128), (128, 32), (64, 32))
SLICED_TILES = ((32, 32), (64, 32))
CUDNN_TILES = ((128, 64), (128, 128), (128, 32))
WIDE_TILES = ((128, 128), (128, 64), (64, 64), (256, 128), (128, 256), (64, 128), (256, 64))
PRODUCT, DATA, BACK = ("forward",), ("forward", "dgrad"), ("dgrad", "wgrad")
XMMA = (
    "void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::{{d}}_indexed::Kernel_traits<"
    "xmma_cudnn::Ampere_hmma_{}_traits<unsigned {}, float>>>"
    "(xmma_cudnn::implicit_gemm::{{d}}_indexed::Params)"
)
SM80 = (
    "sm80_xmma_{}_implicit_gemm_{}_nhwckrsc_nhwc_tilesize{{m}}x{{n}}x{}_warpsize2x2x1_g1_tensor{}"
    "_execute_kernel__5x_cudnn"
)
CUTLASS = "void cutlass::Kernel2<cutlass_80_{0}>(cutlass_80_{0}::Params)"
CUTLASS_CUDNN = "void cutlass__5x_cudnn::Kernel<cutlass_{0}>(cutlass_{0}::Params)"
SIMT, HALF, TF32 = (
    "s{d}_optimized_{m}x{n}_8x5_nhwc_align1",
    "f16f16_f16f32_f32",
    "tf32f32_tf32f32_f32",
)
BF16 = "bf16bf16_bf16f32_f32"
FAMILIES: dict[str, tuple[Family, ...]] = {
    "volta fp32 gemm": (
        Family("volta_sgemm_{m}x{n}_{o}", CUBLAS_TILES, 8, alpha=True),
        Family("volta_sgemm_{m}x{n}_sliced1x4_{o}", SLICED_TILES, 32, alpha=True, slices=4),
    ),
    "volta fp32 conv": (
        Family("volta_scudnn_{m}x{n}_relu_medium_nn_v1", CUDNN_TILES, 8, PRODUCT, alpha=True),
        Family("volta_scudnn_{m}x{n}_relu_xregs_large_nn_v1", CUDNN_TILES, 8, PRODUCT, alpha=True),
        Family("volta_scudnn_{m}x{n}_relu_interior_nn_v1", CUDNN_TILES, 8, DATA, alpha=True),
        Family("volta_scudnn_{m}x{n}_stridedB_interior_nn_v1", CUDNN_TILES, 8, BACK),
        Family("volta_scudnn_{m}x{n}_stridedB_small_nn_v1", CUDNN_TILES, 8, BACK),
    ),
    "ampere fp32 gemm": (
        Family("ampere_sgemm_{m}x{n}_{o}", CUBLAS_TILES, 8, alpha=True),
        Family("ampere_sgemm_{m}x{n}_sliced1x4_{o}", SLICED_TILES, 32, alpha=True, slices=4),
        Family(CUTLASS.format("simt_sgemm_{m}x{n}_8x4_{o}_align1"), WIDE_TILES, 8, grid="swizzled"),
    ),
    "ampere fp32 conv": (
        Family(
            "cudnn_ampere_scudnn_{m}x{n}_relu_medium_nn_v1", CUDNN_TILES, 8, PRODUCT, alpha=True
        ),
        Family("cudnn_ampere_scudnn_{m}x{n}_relu_interior_nn_v1", CUDNN_TILES, 8, DATA, alpha=True),
        Family("cudnn_ampere_scudnn_{m}x{n}_stridedB_small_nn_v1", CUDNN_TILES, 8, BACK),
        Family(CUTLASS_CUDNN.format(f"simt_{SIMT}"), WIDE_TILES, 8, grid="swizzled"),
    ),
    "volta fp16 gemm": (
        Family("volta_fp16_s884gemm_fp16_{m}x{n}_ldg8_f2f_{o}", WIDE_TILES[:5], 32),
    ),
    "volta fp16 conv": (
        Family(
            "volta_fp16_s884cudnn_fp16_{m}x{n}_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1",
            WIDE_TILES[:5],
            32,
            PRODUCT,
        ),
        Family(
            "volta_s884cudnn_fp16_{m}x{n}_ldg8_{d}_exp_interior_nhwc_nt_v1",
            WIDE_TILES[:3],
            32,
            BACK,
        ),
    ),
    "turing fp16 gemm": (
        Family("turing_fp16_s1688gemm_fp16_{m}x{n}_ldg8_f2f_stages_32x1_{o}", WIDE_TILES[:5], 32),
    ),
    "turing fp16 conv": (
        Family(
            "turing_fp16_s1688cudnn_fp16_{m}x{n}_ldg8_relu_f2f_exp_medium_nhwc_tn_v1",
            WIDE_TILES[:5],
            32,
            PRODUCT,
        ),
        Family(
            "turing_s1688cudnn_fp16_{m}x{n}_ldg8_{d}_exp_interior_nhwc_nt_v1",
            WIDE_TILES[:3],
            32,
            BACK,
        ),
    ),
    "ampere fp16 gemm": (
        Family("ampere_fp16_s16816gemm_fp16_{m}x{n}_ldg8_f2f_stages_64x3_{o}", WIDE_TILES, 64),
        Family(
            CUTLASS.format("tensorop_f16_s16816gemm_relu_f16_{m}x{n}_32x4_{o}_align8"),
            WIDE_TILES,
            32,
            grid="swizzled",
        ),
    ),
    "ampere fp16 conv": (
        Family(XMMA.format("fp32", "short"), WIDE_TILES[:4], 32),
        Family(SM80.format("{d}", HALF, "32_stage4", "16x8x16"), WIDE_TILES, 32),
        Family(
            CUTLASS_CUDNN.format("tensorop_f16_s16816{d}_optimized_f16_{m}x{n}_64x4_nhwc_align8"),
            WIDE_TILES,
            64,
            grid="swizzled",
        ),
    ),
    "ampere bf16 gemm": (
        Family("ampere_bf16_s16816gemm_bf16_{m}x{n}_ldg8_f2f_stages_32x5_{o}", WIDE_TILES, 32),
        Family(
            CUTLASS.format("tensorop_bf16_s16816gemm_relu_bf16_{m}x{n}_64x4_{o}_align8"),
            WIDE_TILES,
            64,
            grid="swizzled",
        ),
    ),
    "ampere bf16 conv": (
        Family(XMMA.format("bf16", "short"), WIDE_TILES[:4], 32),
        Family(SM80.format("fprop", BF16, "32_stage4", "16x8x16"), WIDE_TILES, 32, DATA),
        Family(SM80.format("{d}", BF16, "64_stage3", "16x8x16"), WIDE_TILES, 64),
    ),
    "hopper gemm": (
        Family(
            "sm90_xmma_gemm_{t}{t}_{t}f32_f32_{o}_n_tilesize{m}x{n}x64_warpgroupsize1x1x1_execute"
            "_segment_k_off_kernel__5x_cublas",
            WIDE_TILES,
            64,
        ),
        Family(
            "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x"
            "<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
            "cutlass::gemm::collective::CollectiveMma, void>>>(int)",
            WIDE_TILES[:3],
            64,
        ),
        Family("nvjet_hsh_{m}x{n}_64x4_1x2_h_bz_coopA_{O}", WIDE_TILES, 64, grid="persistent"),
    ),
    "hopper conv": (),
    "ampere tf32 gemm": (
        Family(
            "sm80_xmma_gemm_f32f32_tf32f32_f32_{o}_n_tilesize{m}x{n}x16_stage4_warpsize2x2x1"
            "_tensor16x8x8_execute_kernel__5x_cublas",
            WIDE_TILES,
            16,
        ),
        Family(
            CUTLASS.format("tensorop_s1688tf32gemm_{m}x{n}_16x3_{o}_align4"),
            WIDE_TILES,
            16,
            grid="swizzled",
        ),
    ),
    "ampere tf32 conv": (
        Family(XMMA.format("tf32", "int"), WIDE_TILES[:4], 16),
        Family(SM80.format("fprop", TF32, "16_stage4", "16x8x8"), WIDE_TILES, 16, DATA),
        Family(
            "sm80_xmma_{d}_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize{m}x{n}x16"
            "_stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel_cudnn",
            WIDE_TILES,
            16,
        ),
        Family(
            "sm80_xmma_{d}_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc"
            "_tilesize{m}x{n}x32_stage3_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn",
            WIDE_TILES,
            32,
        ),
    ),
}
INSTRUCTION_FLOPS = {
    "volta fp16": 512,
    "turing fp16": 2048,
    "ampere tf32": 2048,
    "hopper": 2 * 64 * 128 * 16 // 4,
}
"""FLOPs of a warp's tensor instruction where it is not 4,096."""
ORDERS = {
    "forward": "tn",
    "scores": "tn",
    "values": "nn",
    "dgrad": "nn",
    "hidden": "nn",
    "wgrad": "nt",
}
ROLES = {"forward": "fprop", "dgrad": "dgrad", "wgrad": "wgrad"}
CORE_TYPES = {"fp16": "__half", "bf16": "__nv_bfloat16"}
"""Precision -> type in the names of kernels on the CUDA cores, where it is not float."""


@cache
def families(chip: str, path: str, kind: str) -> list[Family]:
    """Return the kernels that the libraries have for a path."""
    older = "turing" if chip == "75" and path != "fp32" else "volta"
    groups = [f"{'ampere' if int(chip) >= 80 else older} {path}"]
    if chip == "90" and path in ("fp16", "bf16"):
        groups.append("hopper")
    return [
        replace(family, path=path, each=INSTRUCTION_FLOPS.get(group, 4096))
        for group in groups
        for family in FAMILIES[f"{group} {kind}"]
    ]


def tiled(kernel: Kernel, product: Product, split: int = 1) -> Launch:
    """Return the launch that works the product out in complete tiles."""
    family, tile, flip = kernel
    along, across = tile[::-1] if flip else tile
    rows, columns = ceil(product.m / along), ceil(product.n / across)
    depth = ceil(ceil(product.k / split) / family.step) * family.step
    layers = split * product.count
    values = rows * columns * layers * prod(tile)
    work = values * depth
    is_core = family.path == "fp32"
    counts: dict[str, int] = {"ffma": work} if is_core else {"tensor": 2 * work}
    if family.alpha:
        # each slice scales its own sums
        counts["fmul"] = values * family.slices
        if "scudnn" in family.pattern:  # the scale, and the bias whether there is one or not
            counts["fadd"] = counts["fmul"]
    if family.slices > 1:
        counts["fadd"] = values * (family.slices - 1)
    grid = (columns, rows, layers) if flip else (rows, columns, layers)
    if family.grid == "swizzled":
        grid = (grid[0] * 4, ceil(grid[1] / 4), grid[2])
    elif family.grid == "persistent":
        grid = (132, 1, 1)
    order = ORDERS[product.part]
    name = family.pattern.format(
        m=tile[0],
        n=tile[1],
        o=order,
        O=order.upper(),
        d=ROLES.get(product.part, ""),
        t={"fp16": "f16"}.get(family.path, family.path),
    )
    return Launch(
        name,
        grid,
        counts,
        "" if is_core else family.path,
        family.each,
        scale=counts.get("fmul", 0) + counts.get("fadd", 0),
        filling=work / product.macs,
    )


def options(scene: Scene, layer: Layer, product: Product) -> Iterator[tuple[float, Kernel]]:
    """Yield executed / product, and the kernel, of every kernel that there is for it."""
    is_conv = isinstance(layer, Conv)
    for family in families(scene.chip, scene.path, "conv" if is_conv else "gemm"):
        for tile in family.tiles if product.part in family.parts else ():
            kernel = Kernel(family, tile, not is_conv)
            yield tiled(kernel, product).flops / (2 * product.macs), kernel


def select(scene: Scene, layer: Layer, product: Product, low: float, high: float) -> list[Kernel]:
    """Return the kernels whose tiles execute between ``low`` and ``high`` times the product."""
    return [kernel for factor, kernel in options(scene, layer, product) if low < factor < high]


def plain(scene: Scene, layer: Layer, product: Product, random: Random) -> Launch:
    """Return a kernel that executes the product and next to nothing beside it."""
    fitting = [kernel for factor, kernel in options(scene, layer, product) if factor <= FITS]
    if fitting and not (isinstance(layer, Conv) and layer.depthwise):
        launch = tiled(fitting[random.randrange(len(fitting))], product)
    else:
        launch = direct(layer, product, scene.precision)
    if int(scene.chip) in (80, 86, 89) and launch.counts.get("ffma") and random.random() < 0.2:
        launch.counts["moves"] = 9 * prod(launch.grid)
    return launch


def direct(layer: Layer, product: Product, precision: str) -> Launch:
    """Return a launch on the CUDA cores, without tiles in the name; the grid says nothing."""
    type_ = CORE_TYPES.get(precision, "float")
    outputs = product.m * product.n * product.count
    if isinstance(layer, Conv):
        types = f"int, {type_}, {type_}, {type_}, float, float, float>(cudnnTensorStruct"
        direct = f"2d_grouped_direct_kernel<false, true, false, false, 0, 0, {types}"
        wgrad = f"wgrad2d_grouped_direct_kernel<false, true, int, {type_}, float, float>(int"
        names = {"forward": f"conv{direct}, {type_} const*", "dgrad": f"dgrad{direct}"}
        name = f"void cudnn::cnn::{names.get(product.part, wgrad)})"
    elif product.n * product.count > 64 or product.m > 64:
        operand = f"cublasGemvTensorStridedBatched<{type_}"
        name = (
            f"void gemmSN_{ORDERS[product.part].upper()}_kernel<{type_}, 128, 16, 2, 4, 8, 9, "
            f"false, {operand} const>, {operand} const>, {operand}>>(int)"
        )
    else:
        name = (
            f"void gemv2T_kernel_val<int, int, {type_}, {type_}, {type_}, float, 128, 16, 4, 4, "
            "false, false>(int)"
        )
    return Launch(name, (max(1, ceil(outputs / 1024)), 1, 1), {"ffma": product.macs})
