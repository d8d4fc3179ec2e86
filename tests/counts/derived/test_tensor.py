"""Products and convolutions on tensor cores, in whole tiles: values worked out from
the dimensions."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive, error_of
from perfctl.orchestrator.counts.derived.run import as_flops, layer_work
from perfctl.orchestrator.counts.derived.tensor_cores import parts
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape, Grid
from perfctl.records.paper import OpShape

S16816 = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
XMMA = (
    "sm80_xmma_{}_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4"
    "_warpsize2x2x1_g1_tensor16x8x16"
)
SM90 = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k"
    "_off_kernel__5x_cublas"
)


def product(
    name: str, m: int, n: int, k: int, grid: Grid | None = None, batch: int = 1
) -> Derived | None:
    return derive(Launch(name, grid), Work(GemmShape(m, n, k, batch)))


def whole(length: int, step: int) -> int:
    return ceil(length / step) * step


@pytest.mark.parametrize(
    ("name", "m", "n", "k", "grid", "tiles"),
    [  # (outputs along the tile's first side, as cuBLAS does), or rows along it
        (S16816, 100, 1000, 100, (8, 2, 1), whole(1000, 128) * whole(100, 64) * whole(100, 64)),
        (S16816, 100, 1000, 100, (1, 16, 1), whole(100, 128) * whole(1000, 64) * whole(100, 64)),
        (
            "cutlass_70_tensorop_s884gemm_f16_128x128_nn_align8",
            20480,
            20480,
            20480,
            (1280, 20, 1),
            20480**3,
        ),
        (
            "cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4",
            512,
            128,
            100,
            (2, 2, 1),
            512 * 128 * 112,
        ),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", 128, 64, 33, (1, 1, 1), 128 * 64 * 64),
        ("volta_h884gemm_256x64_ldg8_tn", 256, 256, 64, (1, 4, 1), 256 * 256 * 64),
        (SM90, 512, 512, 4096, (132, 1, 1), 512 * 512 * 4096),
        (
            "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
            4096,
            4096,
            1000,
            (132, 1, 1),
            4096 * 4096 * 1024,
        ),
        (
            (
                "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x128x64_2x1x1_0_tnn"
                "_align8_warpspecialized"
            ),
            512,
            512,
            128,
            (132, 1, 1),
            512 * 512 * 128,
        ),
        (
            "turing_int8_i8816gemm_int8_128x128_ldg16_stages_64x1_tn",
            256,
            256,
            128,
            (2, 2, 1),
            256 * 256 * 128,
        ),
        (
            (
                "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_warpgroupsize1x1x1"
                "_execute_segment_k_off_kernel__5x_cublas"
            ),
            256,
            256,
            256,
            (4, 1, 1),
            256**3,
        ),
    ],
)
def test_a_product_fills_tiles_and_steps(
    name: str, m: int, n: int, k: int, grid: Grid, tiles: int
) -> None:
    found = product(name, m, n, k, grid)
    assert found is not None and found.tensor == 2 * tiles


def test_a_grid_of_other_tiles_has_no_rule() -> None:
    assert product(S16816, 100, 1000, 100, (5, 5, 1)) is None
    assert product(S16816, 128, 64, 64, (7, 7, 1)) is None


def test_an_orientation_that_matters_and_is_not_known_has_no_rule() -> None:
    """10 rows fill up to 128 or to 256: nothing in the launch of a persistent kernel says which."""
    assert product("nvjet_hsh_128x256_64x4_1x1_v_bz_coopA_TNN", 10, 4096, 4096, (132, 1, 1)) is None


def test_tiles_of_cutlass_3_fill_their_cluster() -> None:
    """Tile sides along rows are 128, with clusters of two: 3 tiles of rows become 4."""
    name = (
        "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x128x64_2x2x1_0_tnn_align8"
        "_warpspecialized"
    )
    found = product(name, 384, 512, 128, (132, 1, 1))
    assert found is not None and found.tensor == 2 * 512 * 512 * 128


@pytest.mark.parametrize(
    ("m", "n", "cluster", "tiles"),
    [
        (640, 640, None, 5 * 5),
        (640, 640, (1, 1), 5 * 5),
        (640, 640, (2, 1), 6 * 5),  # along rows or columns: as many
        (640, 640, (1, 2), 5 * 6),
        (640, 640, (2, 2), 6 * 6),
        (512, 1024, (2, 1), 4 * 8),
        (128, 640, (2, 1), None),  # 2 x 5 tiles or 1 x 6: nothing says which
    ],
)
def test_tiles_fill_the_cluster_of_the_launch_where_the_name_has_none(
    m: int, n: int, cluster: tuple[int, int] | None, tiles: int | None
) -> None:
    launch = Launch(SM90, (132, 1, 1), cluster=cluster)
    found = derive(launch, Work(GemmShape(m, n, 256)))
    assert (found and found.tensor) == (tiles and 2 * tiles * 128 * 128 * 256)


def test_the_cluster_in_a_name_goes_before_that_of_the_launch() -> None:
    name = (
        "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x128x64_2x1x1_0_tnn_align8"
        "_warpspecialized"
    )
    found = derive(Launch(name, (132, 1, 1), cluster=(4, 1)), Work(GemmShape(640, 640, 128)))
    assert found is not None and found.tensor == 2 * (6 * 128) * (5 * 128) * 128


@pytest.mark.parametrize(("grid", "split"), [((8, 2, 3), 3), ((2, 8, 1), 1), ((16, 1, 2), 2)])
def test_the_grid_says_how_often_a_sum_is_split(grid: Grid, split: int) -> None:
    found = product(S16816, 128, 1024, 64 * 6, grid)  # every split is in whole steps
    assert found is not None and found.tensor == 2 * 128 * 1024 * 64 * 6
    assert parts(grid, 2, 8) == split


def test_parts_of_cutlass_are_cut_at_whole_steps() -> None:
    """288 steps in 10 parts: 9 of 29 and one of 27, not 10 of 29."""
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4>"
    found = product(name, 64, 128, 9216, (2, 1, 10))
    assert found is not None and found.tensor == 2 * 64 * 128 * 9216


def test_parts_of_nvjet_all_take_as_many_steps() -> None:
    """144 steps in 7 parts of 21; the grid has 4 tiles for each part."""
    name = "nvjet_sm90_tst_64x32_64x16_2x2_h_bz_splitK_bias_TNT"
    found = product(name, 64, 128, 144 * 64, (4, 7, 1))
    assert found is not None and found.tensor == 2 * 64 * 128 * (7 * 21 * 64)


@pytest.mark.parametrize(
    ("grid", "side"),
    [((4, 18, 1), 128), ((4, 36, 1), 64), ((2, 66, 1), None), ((4, 40, 1), None)],
)
def test_a_block_for_each_tile_says_how_they_lie(grid: Grid, side: int | None) -> None:
    """Along 9,216 outputs lie 72 tiles of 128 or 144 of 64, whose other side has 64 rows or 128.
    132 blocks are those of a full GPU, where only the second way has more tiles than blocks."""
    found = product("nvjet_sm90_tst_128x64_64x8_4x1_v_bz_NNT", 64, 9216, 128, grid)
    rows = {128: 64, 64: 128}
    if side is None:
        expected = 2 * 128 * 9216 * 128 if grid[0] * grid[1] == 132 else None
    else:
        expected = 2 * rows[side] * 9216 * 128
    assert (found and found.tensor) == expected


def test_columns_of_tiles_lie_side_by_side_from_a_number_on() -> None:
    """Two by four tiles are 8 blocks in x; four by one are 4, never 8."""
    name = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_a2>"
    found = product(name, 64, 128, 10, (8, 1, 1))
    assert found is not None and found.tensor == 2 * 64 * 128 * 128
    assert product(name, 10, 128, 64, (8, 1, 1)) is None


def test_parts_that_are_padded_apart_in_one_way_and_together_in_the_other_have_no_rule() -> None:
    """100 in 4 parts: 4 x 64 evenly, 2 x 64 in whole steps."""
    assert product(S16816, 128, 1024, 100, (8, 2, 4)) is None


def test_products_of_a_batch_are_padded_each() -> None:
    found = product(S16816, 100, 100, 64, (1, 2, 12), batch=12)
    assert found is not None and found.tensor == 2 * 12 * 128 * 128 * 64


def test_a_name_without_a_step_has_a_rule_where_any_step_is_filled() -> None:
    name = "cutlass_75_tensorop_f16_s1688gemm_f16_128x64_tn_align1"
    found = product(name, 128, 64, 256, (1, 1, 1))
    assert found is not None and found.tensor == 2 * 128 * 64 * 256
    assert product(name, 128, 64, 100, (1, 1, 1)) is None


@pytest.mark.parametrize(
    "name",
    [
        "cutlass_tensorop_c1688gemm_128x64_16x3_nn_align1",
        "cutlass3x_sm100_sptensorop_s128x128x32gemm_f16_f16_f32_f16_f16_128x128x64_1x1x1_0_tnn",
        (
            "void cutlass::device_kernel<gemmuniversal<groupproblemshape<x>, tensorop, "
            "cute::c<128>, cute::c<128>, cute::c<64>>>"
        ),
    ],
)
def test_complex_sparse_and_grouped_products_have_no_rule(name: str) -> None:
    assert product(name, 128, 128, 128, (1, 1, 1)) is None


def test_three_tf32_products_do_three_times_the_work() -> None:
    name = (
        "void cutlass::Kernel<Gemm<GemmShape<128, 64, 16>, float, tensorop, OpMultiplyAddFastF32>>"
    )
    found = product(name, 128, 64, 64, (1, 1, 1))
    assert found is not None and found.tensor == 3 * 2 * 128 * 64 * 64


def test_integer_products_are_operations_and_no_flops() -> None:
    found = product(
        "turing_int8_i8816gemm_int8_128x128_ldg16_stages_64x1_tn", 256, 256, 128, (2, 2, 1)
    )
    assert found is not None
    flops = as_flops(found)
    assert (flops.tensor.value, flops.integer.value) == (0, 2 * 256 * 256 * 128)


CONV = ConvShape(8, 64, 128, 14, 14, 3, 3, same_size=True)


def conv(
    name: str,
    forward: ConvShape,
    grid: Grid | None = None,
    direction: str = "forward",
    **launched: tuple[int, int] | None,
) -> Derived | None:
    gradient = None if direction == "forward" else forward
    shape = forward.input_gradient if direction == "grad_input" else forward
    work = Work(shape, direction=direction, forward=gradient)
    return derive(Launch(name, grid, **launched), work)


def test_a_forward_convolution_is_a_product_of_pixels_by_channels() -> None:
    pixels = 8 * 14 * 14
    found = conv(XMMA.format("fprop"), CONV, (ceil(pixels / 128), 2, 1))
    assert found is not None and found.tensor == 2 * whole(pixels, 128) * 128 * 64 * 9


def test_the_gradient_of_the_input_swaps_the_channels() -> None:
    pixels = 8 * 14 * 14
    found = conv(XMMA.format("dgrad"), CONV, (ceil(pixels / 128), 1, 1), "grad_input")
    assert found is not None and found.tensor == 2 * whole(pixels, 128) * 64 * 128 * 9
    strided = Work(CONV.input_gradient, direction="grad_input", forward=CONV, stride=2)
    assert derive(Launch(XMMA.format("dgrad"), (13, 1, 1)), strided) is None


def test_the_gradient_of_a_larger_input_sums_over_all_taps_of_each_input() -> None:
    """A 3 x 3 convolution without padding: 26 x 26 inputs, 24 x 24 outputs."""
    forward = ConvShape(64, 32, 64, 24, 24, 3, 3)
    shape = replace(forward.input_gradient, out_h=26, out_w=26)
    work = Work(shape, direction="grad_input", forward=forward)
    tiles = ceil(64 * 26 * 26 / 128)
    found = derive(Launch(XMMA.format("dgrad"), (tiles, 1, 1)), work)
    assert found is not None and found.tensor == 2 * (tiles * 128) * 64 * (64 * 9)


def test_the_gradient_of_the_weight_sums_over_pixels_in_parts() -> None:
    """128 channels by 64 x 9 weights, over 1,568 pixels in 7 parts of 7 steps."""
    found = conv(XMMA.format("wgrad"), CONV, (1, 9, 7), "grad_weight")
    assert found is not None and found.tensor == 2 * 128 * (64 * 9) * 1568


WGRAD_CUTLASS = (
    "cutlass::Kernel<conv::ImplicitGemmConvolution<conv::ImplicitGemmMultistage<gemm::GemmShape<64, "
    "64, 64>, conv::Conv2dWgradOutputGradientTileAccessIteratorOptimized<MatrixShape<64, 64>, "
    "cutlass::bfloat16_t, cutlass::AlignedArray<cutlass::bfloat16_t, {}, 16>, TensorOp>>>>"
)


@pytest.mark.parametrize(("load", "columns", "blocks"), [(8, 9 * 8, 2), (1, 9, 1)])
def test_cutlass_fills_the_channels_of_a_weight_to_whole_loads_and_each_part_to_whole_steps(
    load: int, columns: int, blocks: int
) -> None:
    """One channel and 9 taps; 8 x 27 x 27 outputs in 7 parts, of which the last takes as many
    steps as the others."""
    forward = ConvShape(8, 1, 32, 27, 27, 3, 3)
    found = conv(WGRAD_CUTLASS.format(load), forward, (blocks, 1, 7), "grad_weight")
    outputs = 7 * whole(ceil(8 * 27 * 27 / 7), 64)
    assert found is not None and found.tensor == 2 * 64 * whole(columns, 64) * outputs


SM90_CONV = (
    "sm90_xmma_{}_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}_warpgroupsize1x1x1_g1"
    "_execute_segment_k_{}_kernel__5x_cudnn"
)


def test_each_position_of_a_filter_has_tiles_of_its_own_on_hopper() -> None:
    """9 positions of 32 channels, which fill half a tile each; a cluster of 5 lies along them."""
    name, forward = (
        SM90_CONV.format("wgrad_indexed", "64x64x64", "on"),
        ConvShape(64, 32, 64, 24, 24, 3, 3),
    )
    found = conv(name, forward, (110, 1, 1), "grad_weight", cluster=(5, 1))
    assert found is not None and found.tensor == 2 * 64 * (10 * 64) * (64 * 24 * 24)


def test_a_cluster_of_a_convolution_lies_where_there_are_tiles_for_it() -> None:
    """12 tiles of positions by one of channels: a cluster of 7 fills them up to 14."""
    forward = ConvShape(8, 64, 64, 19, 19, 3, 3, same_size=True)
    for cluster in ((7, 1), (1, 7)):
        name = SM90_CONV.format("dgrad", "256x64x32", "off")
        found = conv(name, forward, (14, 1, 1), "grad_input", cluster=cluster)
        assert found is not None and found.tensor == 2 * (14 * 256) * 64 * (64 * 9)


def test_a_kernel_of_a_gradient_has_no_rule_for_forward_and_the_other_way_round() -> None:
    assert conv(XMMA.format("wgrad"), CONV) is None
    assert conv(XMMA.format("fprop"), CONV, direction="grad_weight") is None


def test_cutlass_fills_the_channels_of_each_position_and_cudnn_does_not_say() -> None:
    few = ConvShape(8, 3, 64, 32, 32, 7, 7)
    name = "cutlass_tensorop_f16_s16816fprop_optimized_f16_256x64_32x4_nhwc_align8"
    found = conv(name, few, (32, 1, 1))
    assert found is not None and found.tensor == 2 * (8 * 32 * 32) * 64 * (7 * 7 * 32)
    assert conv(XMMA.format("fprop"), few) is None


def test_what_no_counter_confirmed_says_so() -> None:
    assert "not verified on silicon" in error_of(["layer norm"])


@pytest.mark.parametrize(("stride", "same"), [([1, 1], True), ([2, 2], False)])
def test_a_traced_gradient_gives_its_kernels_the_shape_of_forward(
    stride: list[int], same: bool
) -> None:
    shapes = ((8, 128, 14, 14), (8, 64, 14, 14), (128, 64, 3, 3))
    op = OpShape(
        "conv",
        "Conv2d",
        "aten.convolution_backward",
        "backward",
        shapes,
        ((8, 64, 14, 14), (128, 64, 3, 3)),
        attributes={"groups": 1, "transposed": False, "stride": stride},
    )
    works = layer_work([op]).products
    assert [work.direction for work in works] == ["grad_input", "grad_weight"]
    assert {work.forward for work in works} == {replace(CONV, same_size=same)}
