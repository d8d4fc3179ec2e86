"""Algorithms, by names as cuDNN, cuBLAS, CUTLASS, Triton, ATen and flash attention print them."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels import names
from perfctl.orchestrator.counts.kernels.names import (
    Algorithm,
    choose_main_layer_algorithm,
    recognise_family,
    recognise_kernel,
)
from tests.make.tables import table

NAMES = Path(__file__).resolve().parents[2] / "data" / "names-algorithms" / "names.json"

SPACE = "at::native::(anonymous namespace)::"
ELEMENTWISE = "at::native::vectorized_elementwise_kernel"


@table(
    "name expected",
    [
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<float>", "depthwise"),
        (f"void {ELEMENTWISE}<4, at::native::FillFunctor<float>>(int)", "elementwise"),
        (
            "void at::native::elementwise_kernel<128, 2, "
            "at::native::direct_copy_kernel_cuda(x)::{lambda}>(int)",
            "copy",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)", "reduction"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "norm"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "softmax"),
        ("void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)", "softmax"),
        (f"void {SPACE}multi_tensor_apply_kernel<TensorListMetadata<4>>", "optimizer"),
        # it runs whatever its functor does on a list of tensors
        *(
            (f"void {SPACE}multi_tensor_apply_kernel<{SPACE}TensorListMetadata<2>, {functor}", kind)
            for functor, kind in (
                (f"{SPACE}UnaryOpFunctor<long, 2, 1>, at::native::Copy<long, long> >(x)", "copy"),
                (f"{SPACE}CopyFunctor<int, long, 2>, at::native::Copy<int, long> >(x)", "copy"),
                (f"{SPACE}ZeroFunctor<float, 1, 1, 0> >(x)", "copy"),
                (f"{SPACE}FusedAdamMathFunctor<float, 4> >(x)", "optimizer"),
            )
        ),
        (
            "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t>>(x)",
            "reduction",
        ),
        ("void nrm2_kernel<double, double, double, 0, 0, 128>(cublasNrm2Params<int>)", "reduction"),
        ("void asum_kernel<int, float, float>(cublasAsumParams<float>)", "reduction"),
        ("void axpy_kernel_val<float, float>(cublasAxpyParamsVal<float>)", "elementwise"),
        # a check of indices in the library FBGEMM
        ("void bounds_check_indices_kernel<long>(x, fbgemm_gpu::BoundsCheckMode)", None),
        ("my_own_kernel(float*)", None),
        ("", None),
    ],
)
def test_a_kernel_name_tells_its_family(name, expected):
    assert recognise_family(name) == expected


@table(
    "name expected",
    [
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_red_fused_native_layer_norm_2", "norm"),
        ("triton_per_fused__softmax_5", "softmax"),
        ("triton_tem_fused_addmm_relu_0", "gemm"),
        ("triton_tem_fused_convolution_2", "conv"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_mm", "gemm"),
    ],
)
def test_a_triton_kernel_is_what_its_shape_is_and_not_what_was_fused_into_it(name, expected):
    assert recognise_family(name) == expected and recognise_kernel(name).library == "triton"


CASES = json.loads(NAMES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"][:60] for case in CASES])
def test_a_name_tells_method_tile_type_direction_and_chip(case):
    found = recognise_kernel(str(case.pop("name")))
    stated = {
        key: tuple(value) if isinstance(value, list) else value for key, value in case.items()
    }
    assert {key: getattr(found, key) for key in stated} == stated


def test_a_product_between_winograd_transforms_is_winograd():
    names = [
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(x)",
        "void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>(x)",
        "volta_sgemm_128x64_nn",
        "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(x)",
    ]
    assert choose_main_layer_algorithm(names).method == "winograd F(4x4,3x3) not fused"
    assert choose_main_layer_algorithm(names[2:3]).method == "gemm"


def test_a_layer_is_called_after_its_arithmetic_and_not_after_its_helpers():
    names = [
        "void cask_cudnn::computeOffsetsKernel<false, false>(x)",
        "volta_scudnn_128x64_relu_small_nn_v1",
        "void at::native::elementwise_kernel<128, 2, at::native::CUDAFunctor_add<float>>(int)",
    ]
    assert (
        choose_main_layer_algorithm(names).method
        == choose_main_layer_algorithm(names[::-1]).method
        == "implicit gemm"
    )
    assert choose_main_layer_algorithm([]) == Algorithm(None)


def test_a_kernel_beside_the_arithmetic_has_no_number_type():
    found = recognise_kernel(
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(x)"
    )
    assert (found.role, found.math, found.tensor_core, found.split_k) == (
        "reduction",
        None,
        None,
        None,
    )


@table("table", ["names.csv", "operations.csv"])
def test_the_patterns_of_a_word_stand_together(table):
    lines = Path(names.__file__).with_name(table).read_text().splitlines()[1:]
    words = [word for word, _ in groupby(line.split(",")[:2] for line in lines)]
    assert len(words) == len({tuple(word) for word in words})


@table("text", ["x" * 100_000, "gemm_" * 20_000, "winograd_128x128_" * 6000, "_1x1" * 20_000])
def test_a_name_of_any_length_is_read_in_time(text):
    recognise_kernel(text)
