"""What library kernels execute follows from name, grid and shape: values worked out from the dimensions."""

from __future__ import annotations

from math import ceil

import pytest

from perfctl.orchestrator.analyse.derived.records import AttentionShape, Derived, Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive
from perfctl.orchestrator.analyse.kernels.grids import ConvShape, GemmShape


def gemm(name: str, m: int, n: int, k: int, grid: tuple[int, int, int] | None = None, **more: object) -> Derived | None:
    return derive(Launch(name, grid, scale=more.pop("scale", None)), Work(GemmShape(m, n, k), **more))  # type: ignore[arg-type]


def test_an_sgemm_fills_tiles_and_steps_of_eight() -> None:
    found = gemm("ampere_sgemm_128x64_tn", 100, 200, 36)
    assert found is not None
    values = (2 * 128) * (2 * 64)  # ceil(200 / 128) tiles of 128 outputs, ceil(100 / 64) of 64 rows
    assert (found.ffma, found.fmul, found.fadd) == (values * 40, values, 0)
    assert found.fp32 == 2 * values * 40 + values


def test_a_bias_that_the_product_adds_is_a_multiply_add_for_each_value_of_its_tiles() -> None:
    with_bias, without = (gemm("ampere_sgemm_64x64_tn", 64, 64, 64, onto=onto) for onto in (True, False))
    assert with_bias is not None and without is not None
    assert with_bias.ffma == (without.ffma or 0) + 64 * 64


def test_the_grid_says_how_often_a_sum_is_split_and_the_shorter_last_part_is_padded_by_itself() -> None:
    found = gemm("ampere_sgemm_32x128_tn", 983, 49, 1024, (2, 8, 15))
    assert found is not None
    part, last = 69, 1024 - 14 * 69
    deep = 14 * ceil(part / 8) * 8 + ceil(last / 8) * 8
    assert found.ffma == 64 * 1024 * (deep + 14)  # 14 further parts are added to what is there
    assert found.fmul == 64 * 1024 * 15


def test_fmul_says_the_same_where_a_report_has_no_grid() -> None:
    grid = gemm("ampere_sgemm_32x128_tn", 983, 49, 1024, (2, 8, 15))
    assert gemm("ampere_sgemm_32x128_tn", 983, 49, 1024, scale=64 * 1024 * 15.0) == grid


def test_slices_of_a_block_share_a_tile_and_are_added_up_at_the_end() -> None:
    found = gemm("ampere_sgemm_32x32_sliced1x4_tn", 26, 1024, 512, (32, 1, 5))
    assert found is not None
    values, part = 32 * 1024, ceil(512 / 5)
    assert found.ffma == values * 5 * ceil(part / 32) * 32
    assert (found.fmul, found.fadd) == (values * 4 * 5, values * 3 * 5)


def test_a_grid_of_another_shape_has_no_rule() -> None:
    assert gemm("ampere_sgemm_128x64_tn", 100, 200, 36, (7, 7, 1)) is None
    assert gemm("my_own_gemm", 100, 200, 36) is None


def test_few_rows_are_filled_up_to_the_columns_of_gemm_sn() -> None:
    found = gemm("void gemmSN_TN_kernel_64addr<float, 128, 16, 2, 4, 6, 7, false, X>(Y)", 11, 98, 1024, onto=True)
    assert found is not None
    assert found.ffma == 12 * 98 * 1024 + 11 * 98
    assert found.fmul == 11 * 104 * 1024 / 8  # outputs in steps of 8
    assert found.fadd == 12 * 98 * (16 + 64) - 98


def test_a_product_with_a_vector_is_not_padded() -> None:
    name = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, X>(Y)"
    found = gemm(name, 1, 101, 4096)
    assert found is not None
    assert (found.ffma, found.fmul) == (101 * 4096, 104 * 4096 / 8)
    assert found.fadd == 101 * (31 + 16 * (4096 // 512 - 1))


def test_a_dot_product_s_additions_are_unknown_and_so_is_its_total() -> None:
    found = gemm("void dot_kernel<float, 128, 0, X>(Y)", 1, 60, 512)
    assert found is not None
    assert (found.ffma, found.fadd, found.fp32) == (60 * 512, None, None)


CONV = ConvShape(64, 32, 64, 24, 24, 3, 3)
"""conv2 of the MNIST CNN: 32 channels of 26 x 26 to 64 of 24 x 24."""


def conv(name: str, shape: ConvShape = CONV, grid: tuple[int, int, int] | None = None) -> Derived | None:
    return derive(Launch(name, grid), Work(shape))


def test_the_study_s_conv2_at_batch_1000_needs_no_padding() -> None:
    shape = ConvShape(1000, 32, 64, 24, 24, 3, 3)
    found = conv("volta_scudnn_128x64_relu_interior_nn_v1", shape)
    assert found is not None and found.ffma == 1000 * 24 * 24 * 64 * 32 * 9 == 10_616_832_000
    assert found.fmul == found.fadd == 1000 * 24 * 24 * 64


@pytest.mark.parametrize(("channels", "deep"), [(4, 40), (8, 72)])
def test_larger_filters_are_summed_in_steps_of_eight(channels: int, deep: int) -> None:
    name = "void implicit_convolve_sgemm<float, float, (int)1024, (int)5, (int)5, (int)3, (int)3, (int)3, (int)1>(int)"
    found = conv(name, ConvShape(64, channels, 4, 5, 5, 3, 3))
    assert found is not None
    assert found.ffma == 64 * 25 * 32 * deep  # 4 channels fill a tile of 32
    assert found.fmul == 64 * 25 * 4  # what is not there is not scaled


def test_a_filter_of_one_by_one_is_summed_as_long_as_it_is() -> None:
    name = "void explicit_convolve_sgemm<float, int, (int)128, (int)6, (int)7, (int)3, (int)3, (int)5, (int)0>(int)"
    found = conv(name, ConvShape(64, 2, 2, 1, 1, 1, 1))
    assert found is not None and found.ffma == 64 * 128 * 2


def test_direct_convolutions_do_what_is_on_paper() -> None:
    grouped = conv("void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(X)", ConvShape(64, 2, 2, 95, 95, 3, 3))
    assert grouped is not None and grouped.ffma == 64 * 95 * 95 * 2 * 18
    single = conv("void conv2d_c1_k1_nchw_hw_packed_kernel<float, 3>(X)", ConvShape(64, 1, 1, 126, 126, 3, 3))
    assert single is not None and single.ffma == 64 * 126 * 126 * 10


def test_gradients_of_convolutions_have_no_rule() -> None:
    assert conv("volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1") is None


def test_tensor_products_are_computed_in_whole_tiles() -> None:
    found = gemm("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x3_tn", 100, 200, 100)
    assert found is not None and found.math == "fp16"
    assert found.tensor == 2 * 256 * 128 * 128
    assert (found.ffma, found.fp32) == (None, None)


def test_a_product_of_the_size_that_was_counted_on_a_v100() -> None:
    """HMMA.884 steps counted there: 33,554,432,000 of 512 FLOPs, for 20,480 cubed."""
    found = gemm(
        "void cutlass::Kernel<cutlass_70_tensorop_s884gemm_f16_128x128_nn_align8>(T1::Params)", 20480, 20480, 20480
    )
    assert found is not None and found.tensor == 33_554_432_000 * 512


def test_no_rule_where_the_way_a_tile_lies_decides_and_no_grid_says_it() -> None:
    assert gemm("ampere_fp16_s16816gemm_fp16_256x64_ldg8_f2f_stages_64x3_tn", 256, 256, 64) is not None
    lying = gemm("ampere_fp16_s16816gemm_fp16_256x64_ldg8_f2f_stages_64x3_tn", 64, 300, 64)
    assert lying is None


FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4, false, false, cutlass::half_t>, false, {}>(P)"


def test_a_causal_mask_skips_tiles_above_the_diagonal_only() -> None:
    both = [
        derive(Launch(FLASH.format(str(causal).lower())), Work(AttentionShape(2, 8, 256, 256, 64, 64, causal)))
        for causal in (False, True)
    ]
    tiles = [None if one is None else (one.tensor or 0) / (2 * 16 * 128 * 64 * 128) for one in both]
    assert tiles == [2 * 4, 2 + 4]  # of 2 rows of 4 tiles, the first row needs keys up to 128


def test_flash_backward_does_five_products_for_two() -> None:
    name = (
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 64, 128, 8, half_t>, false>(P)"
    )
    shape = AttentionShape(1, 4, 128, 128, 64, 64, backward=True)
    found = derive(Launch(name), Work(shape))
    assert found is not None and found.tensor == 2 * 4 * 128 * 128 * 64 * 5


def test_a_swizzled_grid_says_how_the_tiles_of_a_tensor_product_lie() -> None:
    """Seen on an H100: 788 x 768 in tiles of 128 x 64. 13 x 6 tiles fill a grid of 13 x 8; 7 x 12 fit into none of 104."""
    name = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>(int)"
    found = gemm(name, 788, 768, 768, (104, 1, 1))
    assert found is not None and found.tensor == 2 * ceil(788 / 64) * ceil(768 / 128) * 64 * 128 * 768
    assert gemm(name, 788, 768, 768, (7 * 13 * 12 * 6, 1, 1)) is None  # fits both ways
