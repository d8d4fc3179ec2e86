"""Algorithms, by names as cuDNN, cuBLAS, CUTLASS, Triton, ATen and flash attention print them."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels import names
from perfctl.orchestrator.counts.kernels.names import Algorithm, family, of_layer, recognise

NAMES = Path(__file__).resolve().parents[2] / "data" / "names-algorithms" / "names.json"

SPACE = "at::native::(anonymous namespace)::"
FOREACH = (
    (
        (
            f"TensorListMetadata<2>, {SPACE}UnaryOpFunctor<long, 2, 1, 1>, at::native::Copy<long, "
            "long> >(x)"
        ),
        "copy",
    ),
    (
        (
            f"TensorListMetadata<2>, {SPACE}CopyFunctor<int, long, 2, 1, 1>, at::native::Copy<int, "
            "long> >(x)"
        ),
        "copy",
    ),
    (f"TensorListMetadata<1>, {SPACE}ZeroFunctor<float, 1, 1, 0> >(x)", "copy"),
    (
        f"FusedOptimizerTensorListMetadata<4>, {SPACE}FusedAdamMathFunctor<float, 4> >(x)",
        "optimizer",
    ),
    (f"TensorListMetadata<3>, {SPACE}FusedSgdMathFunctor<float, 3> >(x)", "optimizer"),
    (
        (
            f"TensorListMetadata<3>, {SPACE}TernaryOpScalarFunctor<float>, "
            "at::native::LerpFunctor<float> >(x)"
        ),
        "optimizer",
    ),
    (
        (
            f"TensorListMetadata<4>, {SPACE}PointwiseOpScalarFunctor<float, 4, 3, 0>, "
            "std::divides<float> >(x)"
        ),
        "optimizer",
    ),
)
"""Arguments of multi_tensor_apply_kernel -> family: it runs whatever its functor does on a list
of tensors."""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_scudnn_128x64_relu_xregs_large_nn_v1", "conv"),
        ("ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "winograd"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(...)", "winograd"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw", "conv"),
        ("void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false>(int)", "conv"),
        ("void fft2d_r2c_32x32<float, false, 1u, false>(float2*, float const*)", "fft"),
        ("void cudnn::cnn::conv2d_grouped_direct_kernel<float>", "depthwise"),
        ("volta_sgemm_128x64_tn", "gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "gemm"),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(Params)",
            "gemm",
        ),
        (
            (
                "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::Mma"
                "<Transpose>>>(T1)"
            ),
            "gemm",
        ),
        ("void splitKreduce_kernel<32, 16, int, float>(...)", "gemm"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float>", "layout"),
        ("void cask_cudnn::computeBOffsetsKernel(cask_cudnn::ComputeBOffsetsParams)", "layout"),
        (
            (
                "void at::native::vectorized_elementwise_kernel<4, "
                "at::native::FillFunctor<float>>(int)"
            ),
            "elementwise",
        ),
        (
            (
                "void at::native::elementwise_kernel<128, 2, "
                "at::native::direct_copy_kernel_cuda(x)::{lambda}>(int)"
            ),
            "copy",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)", "reduction"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "norm"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>", "pool"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "softmax"),
        ("void cunn_ClassNLLCriterion_updateOutput_kernel<float, float>(float*)", "softmax"),
        (
            (
                "void at::native::(anonymous namespace)::multi_tensor_apply_kernel"
                "<TensorListMetadata<4>>"
            ),
            "optimizer",
        ),
        *(
            (f"void {SPACE}multi_tensor_apply_kernel<{SPACE}{rest}", family)
            for rest, family in FOREACH
        ),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(Flash_fwd_params)",
            "attention",
        ),
        (
            (
                "fmha_cutlassB_f16_aligned_64x64_k64_sm80(PyTorchMemEffAttention::AttentionBackward"
                "Kernel)"
            ),
            "attention",
        ),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(x)", "copy"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", "copy"),
        ("RNN_blockPersist_fp_LSTM<float, float, float, 64>", "rnn"),
        (
            "void moe::dev::finalize::finalizeKernelVecLoad<KernelParams<cutlass::bfloat16_t>>(x)",
            "reduction",
        ),
        ("my_own_kernel(float*)", None),
        ("", None),
    ],
)
def test_a_kernel_name_tells_its_family(name: str, expected: str | None) -> None:
    assert family(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_poi_fused_convolution_relu_3", "elementwise"),
        ("triton_poi_fused_addmm_relu_1", "elementwise"),
        ("triton_poi_fused_max_pool2d_with_indices_4", "elementwise"),
        ("triton_red_fused_native_layer_norm_2", "norm"),
        ("triton_per_fused__softmax_5", "softmax"),
        ("triton_red_fused_sum_1", "reduction"),
        ("triton_tem_fused_addmm_relu_0", "gemm"),
        ("triton_tem_fused_convolution_2", "conv"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_mm", "gemm"),
    ],
)
def test_a_triton_kernel_is_what_its_shape_is_and_not_what_was_fused_into_it(
    name: str, expected: str
) -> None:
    assert family(name) == expected and recognise(name).library == "triton"


CASES = json.loads(NAMES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"][:60] for case in CASES])
def test_a_name_tells_method_tile_type_direction_and_chip(case: dict[str, object]) -> None:
    found = recognise(str(case.pop("name")))
    stated = {
        key: tuple(value) if isinstance(value, list) else value for key, value in case.items()
    }
    assert {key: getattr(found, key) for key in stated} == stated


def test_a_product_between_winograd_transforms_is_winograd() -> None:
    names = [
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(x)",
        "void cudnn::winograd_nonfused::winogradForwardFilter4x4<float, float>(x)",
        "volta_sgemm_128x64_nn",
        "void cudnn::winograd_nonfused::winogradForwardOutput4x4<float, float>(x)",
    ]
    assert of_layer(names).method == "winograd F(4x4,3x3) not fused"
    assert of_layer(names[2:3]).method == "gemm"


def test_a_layer_is_called_after_its_arithmetic_and_not_after_its_helpers() -> None:
    names = [
        "void cask_cudnn::computeOffsetsKernel<false, false>(x)",
        "volta_scudnn_128x64_relu_small_nn_v1",
        "void at::native::elementwise_kernel<128, 2, at::native::CUDAFunctor_add<float>>(int)",
    ]
    assert of_layer(names).method == of_layer(names[::-1]).method == "implicit gemm"
    assert of_layer([]) == Algorithm(None)


def test_a_kernel_beside_the_arithmetic_has_no_number_type() -> None:
    found = recognise(
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64>>(x)"
    )
    assert (found.role, found.math, found.tensor_core, found.split_k) == (
        "reduction",
        None,
        None,
        None,
    )


@pytest.mark.parametrize("table", ["names.csv", "operations.csv"])
def test_the_patterns_of_a_word_stand_together(table: str) -> None:
    lines = Path(names.__file__).with_name(table).read_text().splitlines()[1:]
    words = [word for word, _ in groupby(line.split(",")[:2] for line in lines)]
    assert len(words) == len({tuple(word) for word in words})


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "gemm_" * 20_000, "winograd_128x128_" * 6000, "_1x1" * 20_000]
)
def test_a_name_of_any_length_is_read_in_time(text: str) -> None:
    recognise(text)
