"""What AMD's kernel names state. Names as rocBLAS, hipBLASLt, MIOpen, Composable Kernel, aiter,
vLLM and llama.cpp print them."""

from __future__ import annotations

from collections import defaultdict

from perfctl import parsers
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from tests.make.tables import table

TENSILE = "Cijk_Alik_Bljk_{}_MT128x64x32_{}SN_LDSB0"
CK = (
    "void ck_tile::kentry<1, ck_tile::BatchedGemmKernel<ck_tile::TileGemmShape<ck_tile::sequence"
    "<256, 128, 64>, {}, float>>>"
)
OLD_CK = (
    "void ck::kernel_grouped_conv_{}_xdl_cshuffle<ck::GridwiseGemm_xdl_cshuffle<{}, float>>(int)"
)


@table(
    "types math",
    [
        ("HHS_BH", "fp16"),
        ("HB", "fp16"),
        ("BBS_BH_Bias_HA_S_SAV_UserArgs", "bf16"),
        ("SB", "fp32"),
        ("DB", "fp64"),
        ("I8II_BH", "int8"),
        ("F8BS_BH_UserArgs", "fp8"),
        ("B8F8S_BH", "fp8"),
    ],
)
def test_tensile_states_its_type_its_macro_tile_and_whether_matrix_cores_multiply(types, math):
    matrix, vector = (
        recognise_kernel(TENSILE.format(types, more)) for more in ("MI16x16x1_", "TT8_8_")
    )
    assert (matrix.family, matrix.tile, matrix.math, matrix.tensor_core) == (
        "gemm",
        (128, 64, 32),
        math,
        True,
    )
    assert (vector.math, vector.tensor_core) == (math, False)
    assert matrix.library == ("hipblaslt" if "UserArgs" in types else "rocblas")


@table(
    "name said",
    [
        (
            "igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x128x32_wt16x64x4_ws1x1",
            ("conv", "forward", "bf16", True, (32, 128, 32)),
        ),
        ("igemm_bwd_gtc_nchw_fp32_bt64x64x8_x", ("conv", "grad_input", "fp32", None, (64, 64, 8))),
        (
            "naive_conv_ab_nonpacked_fwd_nchw_float_double_float",
            ("conv", "forward", "fp32", False, None),
        ),
        (
            "naive_conv_packed_wrw_nhwc_half_double_half",
            ("conv", "grad_weight", "fp16", False, None),
        ),
        (
            "miopenSp3AsmConv_v21_1_3_gfx9_fp32_f2x3_stride1",
            ("winograd", None, "fp32", False, None),
        ),
        (CK.format("_Float16"), ("gemm", None, "fp16", True, (256, 128, 64))),
        (CK.format("ck_tile::bhalf_t"), ("gemm", None, "bf16", True, (256, 128, 64))),
        (OLD_CK.format("bwd_weight", "_Float16"), ("conv", "grad_weight", "fp16", True, None)),
    ],
)
def test_convolutions_and_products_state_direction_type_and_tile(name, said):
    found = recognise_kernel(name)
    assert (found.family, found.direction, found.math, found.tensor_core, found.tile) == said


@table(
    "name family library",
    [
        ("__amd_rocclr_fillBufferAligned", "copy", "rocclr"),
        ("batched_transpose_16x64_pack_1x4_ediv_1x2_half", "layout", "miopen"),
        ("Im2d2Col", "layout", "miopen"),
        ("MIOpenBatchNormFwdTrainSpatial", "norm", "miopen"),
        ("MIOpenConvUni", "conv", "miopen"),
        ("_ZN5aiter22fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E", "gemm", "aiter"),
        ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelE", "attention", "ck"),
        ("void mul_mat_vec_q<(ggml_type)13, 1, false, false>(void const*)", "gemm", None),
    ],
)
def test_the_families_of_amd_s_other_kernels(name, family, library):
    found = recognise_kernel(name)
    assert (found.family, found.library) == (family, library)


def test_the_sum_after_a_split_product_is_a_reduction_and_f2x3_is_winograd_of_3x3_filters():
    assert (
        recognise_kernel("Cijk_SB_MT64_PostGSU").role,
        recognise_kernel("Cijk_SB_MT64_PostGSU").math,
    ) == (
        "reduction",
        None,
    )
    assert recognise_kernel("miopenSp3AsmConv_v30_gfx9_fp16_f2x3_stride1").winograd == (2, 3)


@table(
    "trace",
    [
        "tracelens_mi210_gpu_only.json.gz",
        "llm/sglang_qwen3_prefilldecode.json.gz",
        "llm/vllm_prefilldecode_piecewise/execution.json.gz",
    ],
)
def test_of_the_kernel_time_of_real_rocm_traces_98_percent_has_a_family(trace, shared):
    times: dict[str | None, float] = defaultdict(float)
    report = parsers.parse(shared / "reports/kineto" / trace)
    for kernel in report.kernels:
        times[recognise_kernel(kernel.name).family] += kernel.duration_ns or 0
    assert times[None] < 0.02 * sum(times.values()), {
        k.name[:60] for k in report.kernels if recognise_kernel(k.name).family is None
    }
    assert all(
        copy.kind in ("HtoD", "DtoH", "DtoD", "memset") and copy.bytes is not None
        for copy in report.copies
    )
    listed = {device.index for device in report.devices}
    used = {kernel.device_index for kernel in report.kernels}
    ambiguous = any(gap.quantity == "kernel.device_index" for gap in report.gaps)
    assert used <= listed or ambiguous
