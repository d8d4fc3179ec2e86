"""Operations of the tensor cores: by type, without doubles, and from instructions only where their
shape is known."""

from perfctl.orchestrator.counts.counters.work import compute_kernel_flops
from tests.make.metrics import PIPE, ZEROS, ops
from tests.make.tables import table

PATH = "sm__ops_path_tensor_"
MOVES = "inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
SUBPIPE = "sm__inst_executed_pipe_tensor_subpipe_{}.sum"
AMPERE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
FP32 = "ampere_sgemm_128x64_tn"
NVJET = "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"
XMMA = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize256x128x32_{}"
WGMMA = (
    "cutlass3x_sm90_tensorop_s64x{}gemm_{}_void_f16_128x256x64_1x2x1_0_tnn_align8_warpspecialized"
)


def paths(**operations):
    return {f"{PATH}src_{kind}.sum": number for kind, number in operations.items()}


NONE = paths(fp16_dst_fp32=0, bf16_dst_fp32=0, tf32_dst_fp32=0)


def test_types_are_told_apart_and_summed():
    values = NONE | paths(tf32_dst_fp32=800, fp16_dst_fp32=20, fp16_dst_fp16=3)
    flops = compute_kernel_flops(values, "8.0")
    types = {kind: figure.value for kind, figure in flops.tensor_types}
    assert types == {"tf32": 800, "fp16": 23, "bf16": 0}
    assert (flops.tensor.value, flops.tensor.state) == (823, "counted")
    assert flops.tensor.rule == "sm__ops_path_tensor_src: bf16 + fp16 + tf32"


@table(
    "values expected missing",
    {
        "a sum and its parts by result": (
            NONE | paths(fp16=100, fp16_dst_fp16=60, fp16_dst_fp32=40),
            100,
            (),
        ),
        "a sum and its parts by sparsity": (
            NONE
            | paths(bf16_dst_fp32=8, bf16_dst_fp32_sparsity_on=3, bf16_dst_fp32_sparsity_off=5),
            8,
            (),
        ),
        "parts by sparsity only": (
            paths(
                fp16_dst_fp32_sparsity_on=0,
                fp16_dst_fp32_sparsity_off=0,
                tf32_dst_fp32_sparsity_on=0,
                tf32_dst_fp32_sparsity_off=0,
                bf16_dst_fp32_sparsity_on=300,
                bf16_dst_fp32_sparsity_off=500,
            ),
            800,
            (),
        ),
        "one of two parts": (
            NONE | paths(fp8_sparsity_off=500),
            500,
            ("tensor fp8 with sparsity on",),
        ),
        "one of three types": (paths(bf16_dst_fp32=10), 10, ("tensor fp16", "tensor tf32")),
    },
)
def test_operations_are_added_once_and_what_was_not_counted_leaves_a_lower_bound(
    values, expected, missing
):
    tensor = compute_kernel_flops(values, "9.0").tensor
    assert (tensor.value, tensor.state, tensor.missing) == (expected, "counted", missing)
    assert tensor.lower_bound == bool(missing)


@table(
    "values capability name state reason",
    {
        # op_hmma reads 0 where other instructions (wgmma) do the work
        "operations of one instruction": (
            {f"{PATH}op_hmma_src_bf16_dst_fp32.sum": 0},
            "9.0",
            None,
            "not_collected",
            "",
        ),
        "zeros of one type": (paths(bf16_dst_fp32=0), "8.0", None, "not_collected", "fp16, tf32"),
        "integer operations": (paths(int8=4096), "8.0", None, "not_collected", ""),
        "a kernel of fp8 without its counter": (
            NONE,
            "9.0",
            "nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT",
            "not_collected",
            "fp8",
        ),
        **{
            f"instructions of CC {capability}": (
                {PIPE: 1000},
                capability,
                None,
                "not_available",
                "",
            )
            for capability in ("7.5", "8.6", "9.0", None)
        },
        "a name without a shape": ({PIPE: 1000}, "9.0", NVJET, "not_available", ""),
        # a TF32 wgmma takes 8 elements of the sum at a time, not 16
        "an instruction that the type cannot have": (
            {PIPE: 1000},
            "9.0",
            XMMA.format("hgmma64x128x16"),
            "not_available",
            "",
        ),
        "an idle pipe under a tensor kernel": ({PIPE: 0}, "9.0", NVJET, "not_available", "wgmma"),
        "Blackwell's pipe without imma": (
            {SUBPIPE.format("hmma"): 0},
            "12.0",
            None,
            "not_available",
            "",
        ),
        # as many halves as tensor instructions: no constant moves under a tensor kernel
        "halves that may be all tensor instructions": (
            {PIPE: 100} | ops(hfma=3200),
            "8.0",
            AMPERE,
            "not_available",
            f"0 to {4096 * 100:,} FLOPs",
        ),
    },
)
def test_what_gives_no_flops_of_tensor_cores_has_no_value(values, capability, name, state, reason):
    tensor = compute_kernel_flops(ZEROS | values, capability, kernel_name=name).tensor
    assert (tensor.value, tensor.state) == (None, state)
    assert reason in (tensor.reason or "")


@table(
    "values capability name",
    {
        "int8": (NONE | paths(int8=4096), "8.0", None),
        "instructions of integers": (
            {PIPE: 10},
            "7.5",
            "turing_int8_i8816cudnn_int8_256x128_ldg16_relu_interior_nt_v1",
        ),
        "an idle pipe": ({PIPE: 0}, "9.0", FP32),
        "Blackwell's idle parts": (
            {SUBPIPE.format(part): 0 for part in ("hmma", "imma", "dmma")}
            | ops(fadd2=0, fmul2=0, ffma2=0),
            "12.0",
            None,
        ),
        **{
            f"constant moves that {unit} counted": (
                {PIPE: 200, f"{unit}__{MOVES}": 200} | ops(hfma=3000),
                "9.0",
                "void fill(float *, int)",
            )
            for unit in ("sm", "smsp")
        },
    },
)
def test_integers_constant_moves_and_an_idle_pipe_are_0_flops(values, capability, name):
    flops = compute_kernel_flops(ZEROS | values, capability, kernel_name=name)
    assert (flops.tensor.value, flops.fp16.value, flops.total.value) == (0, 0, 0)


@table(
    "name capability each",
    {
        "ampere fp16": (AMPERE, "8.0", 4096),
        "ampere bf16": (
            "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
            "8.6",
            4096,
        ),
        "cutlass tf32": (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(Params)",
            "8.0",
            2048,
        ),
        "turing": ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn", "7.5", 2048),
        "volta, fp16 sums": ("volta_h884gemm_256x64_ldg8_tn", "7.0", 1024),
        "volta, fp32 sums": ("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn", "7.0", 512),
        # a warpgroup's four warps count one instruction each: each does a quarter of it
        "wgmma": (WGMMA.format("128x16", "f16_f16_f32"), "9.0", 2 * 64 * 128 * 16 // 4),
        "wgmma fp8": (WGMMA.format("256x32", "e4m3_e4m3_f32"), "9.0", 2 * 64 * 256 * 32 // 4),
        "hgmma": (XMMA.format("gmmastage2_hgmma64x128x8"), "9.0", 2 * 64 * 128 * 8 // 4),
        "complex": ("cutlass_tensorop_c1688gemm_128x64_16x3_nn_align1", "9.0", 2 * 16 * 8 * 8),
        "three products": ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "9.0", 2 * 16 * 8 * 8),
    },
)
def test_a_name_that_states_the_shape_turns_instructions_into_an_estimate(name, capability, each):
    flops = compute_kernel_flops(ZEROS | {PIPE: 1000}, capability, kernel_name=name)
    assert (flops.tensor.value, flops.tensor.state) == (each * 1000, "estimated")
    assert f"{each} x tensor instructions" in (flops.tensor.rule or "")
    assert flops.total.state == "estimated" and not flops.total.lower_bound


@table(
    "values capability rule",
    {
        "constant moves are taken out": (
            {PIPE: 1040, f"sm__{MOVES}": 40},
            "8.0",
            "without 40 that move constants",
        ),
        "Blackwell's pipe is the sum of its parts": (
            {SUBPIPE.format("hmma"): 1000, SUBPIPE.format("imma"): 0},
            "12.0",
            "",
        ),
    },
)
def test_the_instructions_of_the_tensor_cores_are_those_that_multiply(values, capability, rule):
    tensor = compute_kernel_flops(ZEROS | values, capability, kernel_name=AMPERE).tensor
    assert tensor.value == 4096 * 1000 and rule in (tensor.rule or "")


@table("tensor", [{}, {PIPE: None}])
def test_without_tensor_counters_a_tensor_kernel_has_no_counted_total(tensor):
    values = ZEROS | ops(fadd=100, fmul=100, ffma=100) | tensor
    total = compute_kernel_flops(values, "8.0", kernel_name=AMPERE).total
    assert (total.value, total.state, total.missing) == (400, "estimated", ("tensor",))
    assert "partly known" in (total.reason or "")
    assert compute_kernel_flops(values, "8.0", kernel_name=FP32).total.state == "counted"


@table("hfma bounded", [(32 * 10, False), (32 * 100, True)])
def test_half_precision_beside_tensor_work_bounds_what_is_left(hfma, bounded):
    """Up to a 32nd of HFMA2 may be on the tensor pipe: what is surely HMMA is a lower bound, with
    the upper one beside it."""
    tensor = compute_kernel_flops(
        ZEROS | {PIPE: 1000} | ops(hfma=hfma), "8.6", kernel_name=AMPERE
    ).tensor
    assert (tensor.value, tensor.lower_bound) == (4096 * (1000 - hfma // 32), bounded)
    assert f"up to {4096 * (hfma // 32):,} FLOPs more" in (tensor.reason or "")


@table("counted", [2 * 4096**3, 0, 640])
def test_operations_of_tensor_memory_count_once_whether_the_total_has_them_or_not(counted):
    """On a B300, 4096^3 in FP8 counts 2 x multiply-adds in op_utcqmma (a measurement published with
    DCGM's issue 252)."""
    product = 2 * 4096**3
    values = {f"{PATH}op_utcqmma_src_fp8_dst_fp32.sum": product} | paths(fp8_dst_fp32=counted)
    types = dict(compute_kernel_flops(ZEROS | values, "10.3").tensor_types)
    assert types["fp8"].value == product + counted % product
