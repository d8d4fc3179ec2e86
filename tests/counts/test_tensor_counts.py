"""Operations of the tensor cores: by type, without doubles, and from instructions only where their
shape is known."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.counts.counters.work import kernel_flops
from perfctl.orchestrator.counts.figure import Figure

PATH = "sm__ops_path_tensor_src_"
PIPE = "sm__inst_executed_pipe_tensor.sum"
NONE = {f"{PATH}{kind}_dst_fp32.sum": 0 for kind in ("fp16", "bf16", "tf32")}
SASS = {
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 0
    for op in ("fadd", "fmul", "ffma", "dadd", "dmul", "dfma", "hadd", "hmul", "hfma")
}
AMPERE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"


def test_types_are_told_apart_and_summed() -> None:
    values = NONE | {
        f"{PATH}tf32_dst_fp32.sum": 800,
        f"{PATH}fp16_dst_fp32.sum": 20,
        f"{PATH}fp16_dst_fp16.sum": 3,
    }
    found = kernel_flops(values, "8.0")
    assert {kind: figure.value for kind, figure in found.tensor_types} == {
        "tf32": 800,
        "fp16": 23,
        "bf16": 0,
    }
    assert found.tensor == Figure(823, "counted")
    assert found.tensor.rule == "sm__ops_path_tensor_src: bf16 + fp16 + tf32"


def test_a_sum_and_its_parts_are_not_added() -> None:
    values = NONE | {
        f"{PATH}fp16.sum": 100,
        f"{PATH}fp16_dst_fp16.sum": 60,
        f"{PATH}fp16_dst_fp32.sum": 40,
    }
    assert kernel_flops(values, "8.0").tensor == Figure(100, "counted")


def test_sparse_and_dense_parts_make_the_whole_where_nothing_else_is_there() -> None:
    parts = {
        f"{PATH}{kind}_dst_fp32_sparsity_{part}.sum": 0
        for kind in ("fp16", "tf32")
        for part in ("on", "off")
    }
    parts |= {
        f"{PATH}bf16_dst_fp32_sparsity_on.sum": 300,
        f"{PATH}bf16_dst_fp32_sparsity_off.sum": 500,
    }
    assert kernel_flops(parts, "9.0").tensor == Figure(800, "counted")


def test_one_part_alone_is_a_lower_bound() -> None:
    values = NONE | {f"{PATH}fp8_sparsity_off.sum": 500}
    found = kernel_flops(values, "9.0").tensor
    assert (
        found.value == 500
        and found.lower_bound
        and found.missing == ("tensor fp8 with sparsity on",)
    )


def test_the_operations_of_one_instruction_are_not_all_operations() -> None:
    """``op_hmma`` reads 0 where the work is done by other instructions (wgmma)."""
    assert (
        kernel_flops({"sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32.sum": 0}, "9.0").tensor.value
        is None
    )


def test_a_type_that_was_not_asked_for_leaves_a_lower_bound() -> None:
    found = kernel_flops({f"{PATH}bf16_dst_fp32.sum": 10}, "8.0").tensor
    assert found.value == 10 and found.missing == ("tensor fp16", "tensor tf32")
    nothing = kernel_flops({f"{PATH}bf16_dst_fp32.sum": 0}, "8.0").tensor
    assert nothing.value is None and nothing.state == "not_collected"
    assert "fp16, tf32" in (nothing.reason or "")


def test_a_kernel_that_says_fp8_needs_the_counter_of_fp8() -> None:
    found = kernel_flops(NONE, "9.0", name="nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT").tensor
    assert found.value is None and "fp8" in (found.reason or "")


def test_integer_operations_are_no_flops() -> None:
    found = kernel_flops(SASS | NONE | {f"{PATH}int8.sum": 4096}, "8.0")
    assert (found.tensor.value, found.total.value, found.integer.value) == (0, 0, 4096)


def test_only_integer_types_say_nothing_about_flops() -> None:
    assert kernel_flops({f"{PATH}int8.sum": 4096}, "8.0").tensor.value is None


@pytest.mark.parametrize(
    ("name", "capability", "each"),
    [
        (AMPERE, "8.0", 4096),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn", "8.6", 4096),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(Params)",
            "8.0",
            2048,
        ),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn", "7.5", 2048),
        ("volta_h884gemm_256x64_ldg8_tn", "7.0", 1024),
        ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "7.0", 512),
    ],
)
def test_a_name_that_states_the_shape_turns_instructions_into_an_estimate(
    name: str, capability: str, each: int
) -> None:
    found = kernel_flops(SASS | {PIPE: 1000}, capability, name=name)
    assert (found.tensor.value, found.tensor.state) == (each * 1000, "estimated")
    assert f"{each} x tensor instructions" in (found.tensor.rule or "")
    assert found.total.state == "estimated" and not found.total.lower_bound


def test_a_name_without_a_shape_leaves_instructions_instructions() -> None:
    found = kernel_flops(
        {PIPE: 1000}, "9.0", name="nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN"
    ).tensor
    assert (found.value, found.state) == (None, "not_available")


def test_instructions_that_move_constants_are_taken_out_first() -> None:
    moves = {"sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum": 40}
    found = kernel_flops(SASS | {PIPE: 1040} | moves, "8.0", name=AMPERE).tensor
    assert found.value == 4096 * 1000 and "without 40 that move constants" in (found.rule or "")


@pytest.mark.parametrize("unit", ["sm", "smsp"])
def test_ncu_itself_tells_constant_moves_apart_where_it_has_the_counter(unit: str) -> None:
    values = SASS | {
        PIPE: 200,
        f"{unit}__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum": 200,
        "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": 3000,
    }
    found = kernel_flops(values, "9.0", name="void fill(float *, int)")
    assert (found.tensor.value, found.fp16.value, found.total.value) == (0, 0, 0)


WGMMA = (
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x256x64_1x2x1_0_tnn_align8"
    "_warpspecialized"
)


@pytest.mark.parametrize(
    ("name", "each"),
    [
        (WGMMA, 2 * 64 * 128 * 16 // 4),
        (
            WGMMA.replace("64x128x16", "64x256x32").replace("f16_f16_f32", "e4m3_e4m3_f32"),
            2 * 64 * 256 * 32 // 4,
        ),
        (
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x32_gmmastage2_hgmma64x128x8",
            2 * 64 * 128 * 8 // 4,
        ),
        ("cutlass_tensorop_c1688gemm_128x64_16x3_nn_align1", 2 * 16 * 8 * 8),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", 2 * 16 * 8 * 8),
    ],
)
def test_wgmma_complex_and_three_products_are_estimated_by_their_instruction(
    name: str, each: int
) -> None:
    """A warpgroup's four warps count one instruction each, so each of them does a quarter of it."""
    found = kernel_flops(SASS | {PIPE: 1000}, "9.0", name=name)
    assert (found.tensor.value, found.tensor.state) == (each * 1000, "estimated")
    assert found.total.state == "estimated" and not found.total.lower_bound


def test_an_instruction_that_the_type_cannot_have_gives_no_flops() -> None:
    """A TF32 wgmma takes 8 elements of the sum at a time, not 16."""
    wrong = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x32_hgmma64x128x16"
    assert kernel_flops(SASS | {PIPE: 1000}, "9.0", name=wrong).tensor.value is None


@pytest.mark.parametrize("tensor", [{}, {PIPE: None}])
def test_without_tensor_counters_a_tensor_kernel_has_no_counted_total(
    tensor: dict[str, None],
) -> None:
    fp32 = {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum": 100
        for op in ("fadd", "fmul", "ffma")
    }
    found = kernel_flops(SASS | fp32 | tensor, "8.0", name=AMPERE).total
    assert (found.value, found.state, found.missing) == (400, "estimated", ("tensor",))
    assert "partly known" in (found.reason or "")
    assert (
        kernel_flops(SASS | fp32 | tensor, "8.0", name="ampere_sgemm_128x64_tn").total.state
        == "counted"
    )


def test_a_tensor_kernel_whose_pipe_counted_nothing_did_not_do_nothing() -> None:
    found = kernel_flops(SASS | {PIPE: 0}, "9.0", name="nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN")
    assert found.tensor.value is None and "wgmma" in (found.tensor.reason or "")
    assert kernel_flops(SASS | {PIPE: 0}, "9.0", name="ampere_sgemm_128x64_tn").tensor.value == 0


@pytest.mark.parametrize(("hfma", "bounded"), [(32 * 10, False), (32 * 100, True)])
def test_half_precision_beside_tensor_work_bounds_what_is_left(hfma: int, bounded: bool) -> None:
    """Up to a 32nd of HFMA2 may be on the tensor pipe: what is surely HMMA is a lower bound, with
    the upper one beside it."""
    values = SASS | {PIPE: 1000, "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": hfma}
    found = kernel_flops(values, "8.6", name=AMPERE).tensor
    assert (found.value, found.lower_bound) == (4096 * (1000 - hfma // 32), bounded)
    assert f"up to {4096 * (hfma // 32):,} FLOPs more" in (found.reason or "")


def test_a_tensor_kernel_with_as_many_halves_as_tensor_instructions_is_not_called_constant_moves() -> (
    None
):
    values = SASS | {PIPE: 100, "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": 3200}
    found = kernel_flops(values, "8.0", name=AMPERE).tensor
    assert found.value is None and f"0 to {4096 * 100:,} FLOPs" in (found.reason or "")


def test_half_precision_beside_constant_moves_is_a_lower_bound() -> None:
    """Real half work uses the same instruction: what it added is not known."""
    values = SASS | {
        PIPE: 100,
        "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": 3200,
        "smsp__sass_thread_inst_executed_op_hadd_pred_on.sum": 50,
    }
    found = kernel_flops(values, "8.0").fp16
    assert found.value == 50 and found.missing == ("fp16 multiply-adds",)


def test_integer_instructions_are_no_flops_either() -> None:
    found = kernel_flops(
        SASS | {PIPE: 10},
        "7.5",
        name="turing_int8_i8816cudnn_int8_256x128_ldg16_relu_interior_nt_v1",
    )
    assert (found.tensor.value, found.integer.value) == (0, 2048 * 10)


@pytest.mark.parametrize(("version", "weight"), [("2022.3.0", 1), ("2025.1.0.0", 2), (None, 1)])
def test_half_precision_is_weighed_as_the_version_of_ncu_does(
    version: str | None, weight: int
) -> None:
    names = ("hadd", "hmul", "hfma")
    values = {f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": 10 for name in names} | {
        PIPE: 0
    }
    found = kernel_flops(values, "7.0", version=version).fp16
    assert (found.value, found.state) == (weight * (10 + 10 + 20), "estimated")


def test_the_reports_own_derived_metric_says_more_than_its_version() -> None:
    values = {
        f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": 10
        for name in ("hadd", "hmul", "hfma")
    }
    derived = {"derived__sm__sass_thread_inst_executed_op_hfma_pred_on_x4": 55296}
    assert kernel_flops(values | derived | {PIPE: 0}, "7.0", version="2023.1").fp16.value == 80


SUBPIPE = "sm__inst_executed_pipe_tensor_subpipe_"


def test_blackwells_tensor_pipe_is_the_sum_of_its_parts() -> None:
    """It has no counter of the whole pipe. Without imma nothing says that the rest of the pipe
    was idle."""
    zeros = SASS | {f"{SUBPIPE}hmma.sum": 0, f"{SUBPIPE}imma.sum": 0, f"{SUBPIPE}dmma.sum": 0}
    assert kernel_flops(zeros, "12.0").tensor.value == 0
    some = SASS | {f"{SUBPIPE}hmma.sum": 1000, f"{SUBPIPE}imma.sum": 0}
    assert kernel_flops(some, "12.0", name=AMPERE).tensor.value == 4096 * 1000
    assert kernel_flops(SASS | {f"{SUBPIPE}hmma.sum": 0}, "12.0").tensor.value is None


@pytest.mark.parametrize(
    ("total", "expected"), [(2 * 4096**3, 2 * 4096**3), (0, 2 * 4096**3), (640, 2 * 4096**3 + 640)]
)
def test_operations_of_tensor_memory_count_once_whether_the_total_has_them_or_not(
    total: int, expected: int
) -> None:
    """On a B300, 4096^3 in FP8 counts 2 x multiply-adds in op_utcqmma (a measurement published with
    DCGM's issue 252)."""
    path = "sm__ops_path_tensor_"
    values = SASS | {
        f"{path}op_utcqmma_src_fp8_dst_fp32.sum": 2 * 4096**3,
        f"{path}src_fp8_dst_fp32.sum": total,
    }
    assert dict(kernel_flops(values, "10.3").tensor_types)["fp8"].value == expected
