"""What kernel names state, name by name: tile, number type, tensor instruction, chip. Names as the
libraries print them."""

from perfctl.orchestrator.counts.kernels import names as details
from tests.make.tables import table

XMMA = (
    "sm80_xmma_fprop_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x64x32_stage4_warpsize2x2x1_g1"
    "_tensor16x8x8"
)


@table(
    "name tile",
    [
        ("cutlass::gemm::gemmshape<(int)64,(int)256,(int)16>", (64, 256, 16)),
        ("nvjet_sm100_tst_mma_256x240x64_3_2x1_tnt", (256, 240, 64)),
        (
            "void implicit_convolve_sgemm<float, float, 128, 5, 6, 3, 3, 3, 1, false>(int)",
            (32, 64, None),
        ),
        (
            "void explicit_convolve_sgemm<float, int, 1024, 6, 7, 3, 3, 3, 0, false>(int)",
            (64, 128, None),
        ),
        ("void implicit_convolve_sgemm<float, float, 256, 5, 6, 3, 3, 3, 1, false>(int)", None),
        ("my_kernel", None),
    ],
)
def test_the_tile_of_a_thread_block(name, tile):
    assert details.parse_tile_sizes(name) == tile


@table(
    "name chip",
    [
        ("void cudnn::ampere_scudnn_128x64", "ampere"),
        ("x_hopper_y", "hopper"),
        ("volta", None),
        ("sm8_x", None),
        ("sm8000", None),
        ("my_kernel", None),
        ("lavolta_x", None),
    ],
)
def test_the_chip_that_a_kernel_was_written_for(name, chip):
    assert details.parse_target_architecture(name) == chip


@table(
    "name math",
    [
        (XMMA.format("f32f32_f32f32_f32"), ("tf32", True)),
        (XMMA.format("f32f32_f32f32_f32").replace("_tensor16x8x8", "_ffma"), ("fp32", False)),
        (XMMA.format("i8i8_i8i32_f32"), ("int8", True)),
        (XMMA.format("f64f64_f64f64_f64").replace("_tensor16x8x8", "_ffma"), ("fp64", False)),
        ("turing_s1688gemm_128x64_tn", ("fp16", True)),
        ("s1688gemm_128x64_tn", (None, True)),
        ("ampere_s16816gemm_relu_bf16_128x64_tn", ("bf16", True)),
        ("volta_i8816gemm_256x64_nt", ("int8", True)),
        ("cutlass_x_s64x128x16gemm_bf16_y", ("bf16", True)),
        ("cutlass_x_s64x128x8gemm_f32_y", ("tf32", True)),
        ("nvjet_qqq_1", ("fp8", True)),
        ("nvjet_ccc_1", (None, True)),
        ("volta_dgemm_64x64_tn", ("fp64", False)),
        ("volta_hgemm_64x64_tn", ("fp16", False)),
        ("volta_zgemm_64x32_nt", ("fp64", False)),
        ("igemm_fwd_gtcx_nhwc_fp16_x", ("fp16", None)),
        ("void implicit_convolve_sgemm<__half, float, 128>(int)", (None, False)),
        ("cutlass::tensorop<tfloat32_t>", ("tf32", True)),
        ("cutlass::simt<half_t>", ("fp16", False)),
        ("gemv2t<double, 128>", (None, False)),
        ("gemm", (None, None)),
    ],
)
def test_the_numbers_that_are_multiplied_and_where(name, math):
    assert details.parse_math_type_and_tensor_use(name, "gemm") == math
    for family in ("elementwise", "norm", None):
        assert details.parse_math_type_and_tensor_use(name, family) == (None, None)


@table(
    "name math",
    [
        ("flash_fwd_kernel<float_e4m3>", ("fp8", True)),
        ("fmha_cutlassf_f32_aligned_64x64", ("fp32", None)),
        ("my_attention<half_t>", ("fp16", None)),
    ],
)
def test_attention_says_its_numbers_in_its_name(name, math):
    assert details.parse_math_type_and_tensor_use(name, "attention") == math


@table(
    "name instruction",
    [
        ("ampere_i8816gemm", "i8816"),
        (XMMA.format("f16f16_f16f16_f16"), "h1688"),
        (XMMA.format("f16f16_f16f32_f32"), "s1688"),
        ("volta_sgemm_128x64", None),
    ],
)
def test_the_tensor_instruction(name, instruction):
    assert details.read_tensor_instruction(name) == instruction


def test_the_tiles_of_fused_winograd():
    assert details.read_winograd_block(
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    ) == (1, 4, 8)
    assert details.read_winograd_block(
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile228n_nt_v1"
    ) == (2, 2, 8)
    assert details.read_winograd_block("volta_scudnn_winograd_64x64_tile148t_nt_v1") is None
