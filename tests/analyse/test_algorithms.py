"""Algorithm families, by names as cuDNN, cuBLAS, CUTLASS and ATen print them."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.algorithms import FAMILIES, family


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
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x256_16x3_nt_align4>(Params)", "gemm"),
        ("void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::Mma<Transpose>>>(T1)", "gemm"),
        ("void splitKreduce_kernel<32, 16, int, float>(...)", "gemm"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float>", "layout"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(...)", "reduction"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>", "norm"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>", "pool"),
        ("void (anonymous namespace)::softmax_warp_forward<float>", "softmax"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>", "optimizer"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>(Flash_fwd_params)", "attention"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", "copy"),
        ("my_own_kernel(float*)", None),
        ("", None),
    ],
)
def test_a_kernel_name_tells_its_family(name: str, expected: str | None) -> None:
    assert family(name) == expected


def test_every_family_has_one_row() -> None:
    words = [word for word, _ in FAMILIES]
    assert len(words) == len(set(words))


def test_a_name_of_any_length_is_read_in_time() -> None:
    assert family("x" * 100_000) is None
