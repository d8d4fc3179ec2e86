"""What library kernels execute follows from name, grid and shape: values worked out from
the dimensions."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive
from perfctl.orchestrator.counts.kernels.grids import GemmShape


def gemm(
    name: str, m: int, n: int, k: int, grid: tuple[int, int, int] | None = None, **more: object
) -> Derived | None:
    return derive(
        Launch(name, grid, scale=more.pop("scale", None)), Work(GemmShape(m, n, k), **more)
    )  # type: ignore[arg-type]


def test_an_sgemm_fills_tiles_and_steps_of_eight() -> None:
    found = gemm("ampere_sgemm_128x64_tn", 100, 200, 36)
    assert found is not None
    values = (2 * 128) * (2 * 64)  # ceil(200 / 128) tiles of 128 outputs, ceil(100 / 64) of 64 rows
    assert (found.ffma, found.fmul, found.fadd) == (values * 40, values, 0)
    assert found.fp32 == 2 * values * 40 + values


def test_a_bias_that_the_product_adds_is_a_multiply_add_for_each_value_of_its_tiles() -> None:
    with_bias, without = (
        gemm("ampere_sgemm_64x64_tn", 64, 64, 64, onto=onto) for onto in (True, False)
    )
    assert with_bias is not None and without is not None
    assert with_bias.ffma == (without.ffma or 0) + 64 * 64


SPLIT = Launch("ampere_sgemm_32x128_tn", (2, 8, 15))
"""983 x 49, a sum of 1,024 in 15 parts: 2 x 8 tiles of 32 x 128."""


def test_the_grid_says_how_often_a_sum_is_split_and_the_shorter_last_part_is_padded_by_itself() -> (
    None
):
    found = derive(replace(SPLIT, reduced=False), Work(GemmShape(983, 49, 1024)))
    assert found is not None
    part, last = 69, 1024 - 14 * 69
    deep = 14 * ceil(part / 8) * 8 + ceil(last / 8) * 8
    assert found.ffma == 64 * 1024 * (deep + 14)  # 14 further parts are added to what is there
    assert found.fmul == 64 * 1024 * 15


@pytest.mark.parametrize(
    ("reduced", "rows", "added"),
    [
        (True, 983, 0),  # a splitKreduce follows: it adds up the parts, and the bias
        (False, 983, 14 + 1),
        (None, 983, 0),  # 15 x 983 x 49 values fit into 4 MiB
        (None, 1004 * 2, 14 + 1),  # 15 x 2,008 x 49 do not
    ],
)
def test_parts_that_wait_in_a_workspace_are_not_added_by_the_product(
    reduced: bool | None, rows: int, added: int
) -> None:
    grid = (2, ceil(rows / 128), 15)
    found = derive(
        replace(SPLIT, grid=grid, reduced=reduced), Work(GemmShape(rows, 49, 1024), onto=True)
    )
    assert found is not None
    values, deep = 64 * ceil(rows / 128) * 128, 14 * 72 + 64
    assert found.ffma == values * (deep + added)


@pytest.mark.parametrize(
    ("flags", "more"), [("true, false, false", 0), ("(bool)1, (bool)1, (bool)0", 1)]
)
def test_a_reduction_adds_every_part_of_an_output_and_scales_it_once(flags: str, more: int) -> None:
    name = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, "
        f"{flags}>(cublasSplitKParams<float>)"
    )
    product = Launch("ampere_sgemm_32x32_sliced1x4_tn", (8, 2, 4))
    found = derive(Launch(name, (64, 1, 1), before=product), Work(GemmShape(40, 256, 256)))
    assert found is not None and (found.ffma, found.fmul, found.fadd) == (
        0,
        40 * 256,
        40 * 256 * (4 + more),
    )
    assert derive(Launch(name, (64, 1, 1)), Work(GemmShape(40, 256, 256))) is None, (
        "how many parts is not known"
    )
    assert (
        derive(Launch(name, (64, 1, 1), before=product), Work(GemmShape(80, 256, 256))) is None
    ), "of another product"


def test_thread_blocks_of_cutlass_may_lie_swizzled() -> None:
    name = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>(P)"
    shape = GemmShape(300, 500, 100)
    # 4 x 2 tiles; two and four rows of them beside each other
    for grid in ((4, 2, 1), (8, 1, 1), (16, 1, 1)):
        found = derive(Launch(name, grid), Work(shape))
        assert found is not None and found.ffma == (4 * 128) * (2 * 256) * 104
        assert found.fmul == (4 * 128) * (2 * 256)
    assert derive(Launch(name, (7, 1, 1)), Work(shape)) is None


XMMA = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_{}_n_tilesize{}x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4"
    "_execute_kernel__5x_cublas"
)


def test_an_xmma_kernel_whose_parts_wait_for_splitkreduce_has_a_lower_bound() -> None:
    launch = Launch(XMMA.format("tn", "64x64"), (2, 4, 3), reduced=True)
    found = derive(launch, Work(GemmShape(100, 200, 96)))
    assert found is not None and (found.ffma, found.fp32) == (128 * 256 * 96, None)


@pytest.mark.parametrize(
    "flags",
    [
        "{}, {}, false",
        "(bool){}, (bool){}, (bool)0",
        "false, float, float, float, true, {1}, false, false",
        "0, float, float, float, 1, {1}, 0, 0",
    ],
)
@pytest.mark.parametrize("bias", [False, True])
def test_the_parts_of_a_sum_are_added_up_with_the_bias_in_every_spelling(
    flags: str, bias: bool
) -> None:
    """16 rows of 128 outputs in 32 parts, counted on an H100 (the latter two spellings: CUDA 13)."""
    product = "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>(T1::Params)"
    words = (1, int(bias)) if "(bool)" in flags or flags[0] == "0" else ("true", str(bias).lower())
    types = "int, float, float, float, float"
    name = f"void cublasLt::splitKreduce_kernel<32, 16, {types}, {flags.format(*words)}>(P)"
    found = derive(
        Launch(name, (4, 1, 1), before=Launch(product, (2, 1, 32))), Work(GemmShape(16, 128, 9216))
    )
    assert found is not None and (found.fadd, found.fmul) == (16 * 128 * (32 + bias), 16 * 128)


@pytest.mark.parametrize("spelled", ["epilogue::", "cublasLt::epilogue::impl::"])
def test_a_bias_epilogue_adds_for_each_thread_of_whole_blocks(spelled: str) -> None:
    name = f"void {spelled}globalKernel<8, 32, float, float, float, true, true, 1>(int, int)"
    shape = GemmShape(64, 10, 128)
    found = derive(Launch(name, (2, 2, 1)), Work(shape, onto=True))
    assert found is not None and (found.ffma, found.fadd) == (0, 2 * 2 * 8 * 32)
    assert derive(Launch(name, (2, 3, 1)), Work(shape, onto=True)) is None
    assert derive(Launch(name, (2, 2, 1)), Work(shape)) is None, "no bias, no rule"


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
    found = gemm(
        "void gemmSN_TN_kernel_64addr<float, 128, 16, 2, 4, 6, 7, false, X>(Y)",
        11,
        98,
        1024,
        onto=True,
    )
    assert found is not None
    assert found.ffma == 12 * 98 * 1024 + 11 * 98
    assert found.fmul == 11 * 104 * 1024 / 8  # outputs in steps of 8
    assert found.fadd == 12 * 98 * (16 + 64) - 98


GEMV = "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false, false, X>(Y)"


@pytest.mark.parametrize(
    ("outputs", "depth", "parts"), [(101, 4096, 1), (512, 8192, 4)], ids=["whole", "split"]
)
def test_a_product_with_a_vector_is_not_padded_and_its_sum_may_be_split(
    outputs: int, depth: int, parts: int
) -> None:
    found = gemm(GEMV, 1, outputs, depth, None if parts == 1 else (outputs, 1, parts))
    assert found is not None and found.ffma == outputs * depth
    assert parts > 1 or found.fmul == ceil(outputs / 8) * 8 * depth / 8
    assert found.fadd == outputs * parts * (31 + 16 * (depth // parts // 512 - 1))


def test_additions_of_a_dot_product_are_known_from_its_blocks_only() -> None:
    found = gemm("void dot_kernel<float, 128, 0, X>(Y)", 1, 60, 512)
    assert found is not None
    assert (found.ffma, found.fadd, found.fp32) == (60 * 512, None, None)
    with_grid = gemm("void dot_kernel<float, 128, 0, X>(Y)", 1, 60, 512, (7, 1, 60))
    assert with_grid is not None and with_grid.fadd == 7 * 60 * 127
