"""Casts, chains of elementwise kernels, recomputation and unused tensor cores: when they are named,
with which number, and when they are not."""

import json
from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.causes.timeline.kernels import (
    compute_max_elementwise_elements,
    compute_min_elementwise_write_bytes,
    parse_float_cast,
)
from perfctl.records.paper import OpShape
from perfctl.records.report import Copy, Device, OpCall
from tests.make import synthetic
from tests.make.tables import table
from tests.make.timelines import US, find_verdict, in_a_row, kernel, make_run, verdicts_of

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int)"
)
TO_FLOAT = (
    "void at::native::vectorized_elementwise_kernel<4, "
    "at::native::bfloat16tofloat32_copy_kernel_cuda(x)>"
)
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)"
BLOCKS = {"grid_x": 1000, "grid_y": 1, "grid_z": 1, "block_x": 128}


def cast(source, target, device_us, *shape):
    types = json.dumps([target, source, "Scalar"])
    return OpCall("aten::copy_", 0, 50, device_us * US, json.dumps([shape, shape, []]), types)


SAME, INTEGERS = cast("float", "float", 50, 64), cast("long int", "float", 50, 64)


@table(
    "kernels calls kinds",
    [
        (
            [("gemm", 60), ("copy", 20), ("copy", 20)],
            (cast("float", "c10::BFloat16", 20, 512, 1024), cast("float", "float", 30, 512, 1024)),
            f" {512 * 1024 * (4 + 2) / 1e6:.3g} MB, most of it float to bfloat16.",
        ),
        ([("gemm", 80), (TO_FLOAT, 20)], (), "only converts between floating-point types."),
    ],
)
def test_casts_are_found_by_their_types_or_by_the_names_of_kernels(kernels, calls, kinds):
    verdict = find_verdict("dtype casts", in_a_row(*kernels), waiting_calls=calls)
    assert verdict is not None and verdict.share == pytest.approx(20 / 100)
    assert verdict.sentence.endswith(kinds)
    assert verdict.kernels == (() if calls else (TO_FLOAT,))


@table(
    "kernels calls",
    {
        "within a type, integers": ([("gemm", 50), ("copy", 50)], (SAME, INTEGERS)),
        "a few casts": ([("gemm", 97), (TO_FLOAT, 3)], ()),
    },
)
def test_other_copies_and_a_few_casts_are_no_storm(kernels, calls):
    assert find_verdict("dtype casts", in_a_row(*kernels), waiting_calls=calls) is None


def test_a_copy_without_recorded_types_is_no_known_cast():
    unknown = OpCall("aten::copy_", 0, 5, 5, "[[4]]", None)
    assert [parse_float_cast(call) for call in (SAME, INTEGERS, unknown)] == [None] * 3


def test_a_chain_of_elementwise_kernels_saves_a_write_and_a_read_per_pass():
    kernels = in_a_row(("gemm", 60), (NORM, 20), (ADD, 10), (ADD, 10), **BLOCKS)
    verdict = find_verdict("memory-bound chain", kernels)
    assert verdict is not None and verdict.confidence == "plausible"
    assert verdict.share == pytest.approx((40 - 20) / 100), "without the chain's longest kernel"
    # complete blocks of 128 threads with 4 floats; the norm's size is in no name
    least = (1000 - 1) * 128 * 4 * 4
    assert "1 chain of 3" in verdict.sentence
    assert f"{2 * least / 1e6:.3g} MB less traffic (1 of known size)" in verdict.sentence


FIRST = kernel(0, 20, ADD, **BLOCKS)
COPY = Copy("HtoD", 64, 20 * US, 1, device_index=0, stream=7)


@table(
    "kernels copies is_chain",
    {
        "a GEMM between": (in_a_row((ADD, 20), ("gemm", 40), (ADD, 20)), (), False),
        "short kernels": (in_a_row(*[(ADD, 4)] * 3, ("gemm", 30)), (), False),
        "times four apart": (in_a_row((ADD, 40), (NORM, 10)), (), False),
        "half as many elements": (
            [FIRST, kernel(20, 20, ADD, **{**BLOCKS, "grid_x": 500})],
            (),
            False,
        ),
        "150 us between them": ([FIRST, kernel(20 + 150, 20, ADD)], (), False),
        "5 us between them": ([FIRST, kernel(25, 20, ADD)], (), True),
        "a copy between them": ([FIRST, kernel(25, 20, ADD)], (COPY,), False),
        "the optimizer's": (in_a_row((ADD, 20), (ADD, 20), direction="optimizer"), (), False),
    },
)
def test_kernels_that_may_read_what_the_former_wrote_are_a_chain(kernels, copies, is_chain):
    verdict = find_verdict("memory-bound chain", kernels, copies=copies)
    assert (verdict is not None) is is_chain


@table(
    "name number size",
    [
        (ADD, 1000 * 128 * 4, 999 * 512 * 4),
        (ADD.replace("float", "c10::BFloat16"), 1000 * 128 * 4, 999 * 512 * 2),
        ("void elementwise_kernel<128, 2, F<float>>(int)", 1000 * 128 * 2, 999 * 256 * 4),
        (NORM, None, None),
    ],
)
def test_elements_and_bytes_of_a_grid(name, number, size):
    only = FIRST._replace(name=name)
    assert (compute_max_elementwise_elements(only), compute_min_elementwise_write_bytes(only)) == (
        number,
        size,
    )


B, I, O = 8, 64, 128  # noqa: E741 - samples, inputs and outputs of a linear layer


def addmm(direction):
    return OpShape("fc", "Linear", "aten.addmm", direction, ((O,), (B, I), (I, O)), ((B, O),))


def mm(*inputs, direction="backward"):
    return OpShape("fc", "Linear", "aten.mm", direction, inputs, ((inputs[0][0], inputs[1][1]),))


GRADIENTS = (mm((B, O), (O, I)), mm((O, B), (B, I)))
OTHER = OpShape("g", "Linear", "aten.addmm", "backward", ((I,), (B, O), (O, I)), ((B, I),))


def test_a_forward_operator_that_runs_again_in_backward_is_recomputation():
    run = synthetic.make_run(ops=(addmm("forward"), addmm("backward"), *GRADIENTS))
    verdict = verdicts_of(run)["recomputed forward"]
    assert verdict.share == pytest.approx(1 / 3), "one more GEMM next to forward and two gradients"
    flops = 2 * B * I * O  # 1 multiply-add is 2 FLOPs
    assert f"{flops / 1e3:.3g} kFLOP" in verdict.sentence and "checkpoint" in verdict.todo


@table(
    "ops",
    {
        "gradients": (addmm("forward"), *GRADIENTS),
        "may be a gradient": (mm((B, I), (I, O), direction="forward"), mm((B, I), (I, O))),
        "other shapes": (addmm("forward"), OTHER, *GRADIENTS),
    },
)
def test_gradients_and_operators_of_other_shapes_are_no_recomputation(ops):
    assert not verdicts_of(synthetic.make_run(ops=ops))


SIMT, TF32 = "ampere_sgemm_128x64_tn", "cutlass_80_tensorop_s1688gemm_128x128_16x4_tn_align4"
HALVES, FP16 = "volta_hgemm_128x64_nn", "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn"
A100, V100, P100 = "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "Tesla P100-PCIE-16GB"
GEMV = "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>"


def unused(run):
    return verdicts_of(run).get("unused tensor cores")


def unused_on(gpu, *named, **more):
    device = None if gpu is None else Device(name=gpu, kind="gpu", index=0, **more)
    run = make_run(in_a_row(*named), devices=(device,) if device else ())
    return unused(replace(run, device=device))


@table(
    "gpu named share phrases todo",
    [
        # peaks of the data sheet: TF32 156 TFLOP/s, fp32 19.5
        (
            A100,
            [(SIMT, 60), (TF32, 40)],
            0.6,
            [
                "8 times that peak in TF32 (156 TFLOP/s against 19.5)",
                f"at most {60 * (1 - 1 / (156 / 19.5)):.1f}% of the kernel time",
            ],
            "set_float32_matmul_precision('high')",
        ),
        # it has no TF32
        (V100, [("volta_sgemm_128x64_nn", 60), (FP16, 40)], 0.6, ["in fp16"], "GradScaler"),
        (V100, [(HALVES, 100)], 1, ["convolutions and GEMMs in fp16 on"], "multiples of 8"),
        # 256 FLOPs of an SM per cycle in fp32 and in TF32, 512 in bf16 with sums in fp32
        (
            "NVIDIA GeForce RTX 3090",
            [(SIMT, 100)],
            1,
            ["2 times that peak in bf16", "at most 50.0% of the kernel time"],
            "bf16",
        ),
        # a GPU without a row has the peaks of its compute capability
        ("NVIDIA A100-PG509-200", [(SIMT, 100)], 1, ["8 times that peak in TF32,"], "TF32"),
    ],
)
def test_products_on_the_cuda_cores_leave_the_fastest_fitting_tensor_cores_unused(
    gpu, named, share, phrases, todo
):
    verdict = unused_on(gpu, *named, compute_capability="8.0" if "PG509" in gpu else None)
    assert verdict is not None and verdict.share == pytest.approx(share)
    assert all(phrase in verdict.sentence for phrase in (*phrases, f"cores of the {gpu}"))
    assert todo in verdict.todo
    assert ("TF32" in verdict.sentence + verdict.todo) is ("A100" in gpu)


@table(
    "gpu kernels",
    {
        "TF32 is on tensor cores": (A100, [(TF32, 100)]),
        "fp16 is on tensor cores": (V100, [(FP16, 100)]),
        "Pascal has none": (P100, [("maxwell_sgemm_128x64_nn", 100)]),
        "nor has this Turing": ("NVIDIA GeForce GTX 1660", [("turing_sgemm_128x64_nn", 100)]),
        "an unknown GPU": ("Some GPU", [(SIMT, 100)]),
        "no GPU": (None, [(SIMT, 100)]),
        "a small share": (A100, [(SIMT, 9), (TF32, 91)]),
        "launches, not work": (A100, [(SIMT, 4)] * 50),
        "bound by memory": (A100, [(GEMV, 100)]),
        "fp64 was chosen": (A100, [("ampere_dgemm_64x64_nn", 100)]),
        "matrix cores multiply fp32": (
            "AMD Instinct MI250X",
            [("Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x2x1", 100)],
        ),
    },
)
def test_tensor_cores_that_ran_or_that_the_gpu_lacks_are_not_unused(gpu, kernels):
    capability = "7.5" if gpu and "GTX" in gpu else None
    assert unused_on(gpu, *kernels, compute_capability=capability) is None
