"""Products and convolutions on tensor cores, in whole tiles: values worked out from
the dimensions."""

from dataclasses import replace
from math import ceil

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.derived.run import (
    collect_layer_work,
    convert_instructions_to_counter_values,
    convert_instructions_to_flops,
)
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.records.paper import OpShape
from tests.make.tables import table

S16816 = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
FLAT = S16816.replace("128x64", "256x64")
XMMA = (
    "sm80_xmma_{}_implicit_gemm_indexed_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4"
    "_warpsize2x2x1_g1_tensor16x8x16"
)
SM90 = "sm90_xmma_gemm_{}_tn_n_tilesize128x128x{}_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
TF32 = SM90.format("f32f32_tf32f32_f32", 32)
CUTLASS3 = (
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_void_f16_128x128x64_{}_0_tnn_align8"
    "_warpspecialized"
)
INT8 = "turing_int8_i8816gemm_int8_128x128_ldg16_stages_64x1_tn"
BF16 = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8>"
NO_STEP = "cutlass_75_tensorop_f16_s1688gemm_f16_128x64_tn_align1"
NVJET = "nvjet_hsh_128x256_64x4_{}_v_bz_coopA_TNN"
TALL = "nvjet_sm90_tst_128x64_64x8_4x1_v_bz_NNT"
WMMA = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_a2>"
PERSISTENT = (132, 1, 1)
"""As many blocks as an H100 has multiprocessors, whatever the number of tiles."""


def product(name, sizes, grid, cluster=None):
    """FLOPs of the tensor cores; ``sizes`` are m, n, k and the batch."""
    derived = derive_instructions(
        Launch(name, grid, cluster=cluster), LaunchWork(GemmShape(*sizes))
    )
    return derived and derived.tensor


def whole(length, step):
    return ceil(length / step) * step


@table(
    "name sizes grid macs",
    {
        # along the first side of a tile lie outputs, as cuBLAS does, or rows
        "outputs along the tile": (
            S16816,
            (100, 1000, 100),
            (8, 2, 1),
            whole(1000, 128) * whole(100, 64) * whole(100, 64),
        ),
        "rows along the tile": (
            S16816,
            (100, 1000, 100),
            (1, 16, 1),
            whole(100, 128) * whole(1000, 64) * whole(100, 64),
        ),
        "no grid, as many either way": (S16816, (100, 200, 100), None, 256 * 128 * 128),
        "no grid, one way": (FLAT, (256, 256, 64), None, 256**2 * 64),
        "no grid, two ways": (FLAT, (64, 300, 64), None, None),
        # 33,554,432,000 steps of HMMA.884 were counted on a V100
        "Volta, fp16": (
            "cutlass_70_tensorop_s884gemm_f16_128x128_nn_align8",
            (20480, 20480, 20480),
            (1280, 20, 1),
            33_554_432_000 * 512 // 2,
        ),
        "a step of 16": (
            "cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4",
            (512, 128, 100),
            (2, 2, 1),
            512 * 128 * whole(100, 16),
        ),
        "a step of 32": (
            "volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn",
            (128, 64, 33),
            (1, 1, 1),
            128 * 64 * 64,
        ),
        "Volta, fp16 sums": (
            "volta_h884gemm_256x64_ldg8_tn",
            (256, 256, 64),
            (1, 4, 1),
            256**2 * 64,
        ),
        "TF32 on Hopper": (TF32, (512, 512, 4096), PERSISTENT, 512**2 * 4096),
        "nvjet": (NVJET.format("2x1"), (4096, 4096, 1000), PERSISTENT, 4096**2 * 1024),
        "clusters of 2 x 1": (CUTLASS3.format("2x1x1"), (512, 512, 128), PERSISTENT, 512**2 * 128),
        # 3 tiles of 128 rows become 4
        "clusters of 2 x 2": (CUTLASS3.format("2x2x1"), (384, 512, 128), PERSISTENT, 512**2 * 128),
        "int8": (INT8, (256, 256, 128), (2, 2, 1), 256**2 * 128),
        "fp8": (SM90.format("e4m3bf16_e4m3f32_f32", 128), (256, 256, 256), (4, 1, 1), 256**3),
        "another grid": (S16816, (100, 1000, 100), (5, 5, 1), None),
        "another grid of one tile": (S16816, (128, 64, 64), (7, 7, 1), None),
        # 10 rows fill up to 128 or to 256
        "a persistent kernel, two ways": (NVJET.format("1x1"), (10, 4096, 4096), PERSISTENT, None),
        **{
            f"a sum in {grid[0] * grid[1] * grid[2] // 16} parts": (
                S16816,
                (128, 1024, 64 * 6),  # every part is in whole steps
                grid,
                128 * 1024 * 64 * 6,
            )
            for grid in ((8, 2, 3), (2, 8, 1), (16, 1, 2))
        },
        # 288 steps in 10 parts: 9 of 29 and one of 27, not 10 of 29
        "CUTLASS cuts parts at whole steps": (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4>",
            (64, 128, 9216),
            (2, 1, 10),
            64 * 128 * 9216,
        ),
        # 144 steps in 7 parts of 21; the grid has 4 tiles for each part
        "parts of nvjet take as many steps": (
            "nvjet_sm90_tst_64x32_64x16_2x2_h_bz_splitK_bias_TNT",
            (64, 128, 144 * 64),
            (4, 7, 1),
            64 * 128 * (7 * 21 * 64),
        ),
        # 100 in 4 parts: 4 x 64 evenly, 2 x 64 in whole steps
        "parts padded in two ways": (S16816, (128, 1024, 100), (8, 2, 4), None),
        # along 9,216 outputs lie 72 tiles of 128 or 144 of 64, whose other side has 64 rows or 128
        "tiles of 64 rows": (TALL, (64, 9216, 128), (4, 18, 1), 64 * 9216 * 128),
        "tiles of 128 rows": (TALL, (64, 9216, 128), (4, 36, 1), 128 * 9216 * 128),
        # only with 128 rows are there more tiles than the blocks of a full GPU
        "a full GPU": (TALL, (64, 9216, 128), (2, 66, 1), 128 * 9216 * 128),
        "no full GPU": (TALL, (64, 9216, 128), (4, 40, 1), None),
        # two by four tiles are 8 blocks in x; four by one are 4, never 8
        "columns of tiles side by side": (WMMA, (64, 128, 10), (8, 1, 1), 64 * 128 * 128),
        "too few columns": (WMMA, (10, 128, 64), (8, 1, 1), None),
        # 788 x 768, seen on an H100: 13 x 6 tiles fill a grid of 13 x 8; 7 x 12 fit into none
        "a swizzled grid": (
            BF16,
            (788, 768, 768),
            (104, 1, 1),
            whole(788, 64) * whole(768, 128) * 768,
        ),
        "a swizzled grid for both ways": (BF16, (788, 768, 768), (7 * 13 * 12 * 6, 1, 1), None),
        "each product of a batch": (S16816, (100, 100, 64, 12), (1, 2, 12), 12 * 128 * 128 * 64),
        "no step, a sum that any fills": (NO_STEP, (128, 64, 256), (1, 1, 1), 128 * 64 * 256),
        "no step": (NO_STEP, (128, 64, 100), (1, 1, 1), None),
        "three TF32 products": (
            "void cutlass::Kernel<Gemm<GemmShape<128, 64, 16>, float, tensorop, OpMultiplyAddFastF32>>",
            (128, 64, 64),
            (1, 1, 1),
            3 * 128 * 64 * 64,
        ),
        "complex": (
            "cutlass_tensorop_c1688gemm_128x64_16x3_nn_align1",
            (128, 128, 128),
            (1, 1, 1),
            None,
        ),
        "sparse": (
            "cutlass3x_sm100_sptensorop_s128x128x32gemm_f16_f16_f32_f16_f16_128x128x64_1x1x1_0_tnn",
            (128, 128, 128),
            (1, 1, 1),
            None,
        ),
        "grouped": (
            "void cutlass::device_kernel<gemmuniversal<groupproblemshape<x>, tensorop, "
            "cute::c<128>, cute::c<128>, cute::c<64>>>",
            (128, 128, 128),
            (1, 1, 1),
            None,
        ),
    },
)
def test_a_product_fills_tiles_and_steps_or_has_no_rule(name, sizes, grid, macs):
    assert product(name, sizes, grid) == (macs and 2 * macs)


@table(
    "name m n cluster tiles",
    {
        "none": (TF32, 640, 640, None, 5 * 5),
        "1 x 1": (TF32, 640, 640, (1, 1), 5 * 5),
        "2 x 1, as many either way": (TF32, 640, 640, (2, 1), 6 * 5),
        "1 x 2": (TF32, 640, 640, (1, 2), 5 * 6),
        "2 x 2": (TF32, 640, 640, (2, 2), 6 * 6),
        "full already": (TF32, 512, 1024, (2, 1), 4 * 8),
        "2 x 5 tiles or 1 x 6": (TF32, 128, 640, (2, 1), None),
        "the name has another": (CUTLASS3.format("2x1x1"), 640, 640, (4, 1), 6 * 5),
    },
)
def test_tiles_fill_the_cluster_of_the_name_else_of_the_launch(name, m, n, cluster, tiles):
    expected = tiles and 2 * tiles * 128 * 128 * 256
    assert product(name, (m, n, 256), PERSISTENT, cluster) == expected


def test_integer_products_are_operations_and_no_flops():
    derived = derive_instructions(Launch(INT8, (2, 2, 1)), LaunchWork(GemmShape(256, 256, 128)))
    assert derived is not None
    assert convert_instructions_to_flops(derived).tensor.value == 0
    counter = "sm__ops_path_tensor_src_int8.sum"
    assert convert_instructions_to_counter_values(derived) == {counter: 2 * 256 * 256 * 128}, (
        "as if it had been collected"
    )


CONV = ConvShape(8, 64, 128, 14, 14, 3, 3, same_size=True)
PIXELS = 8 * 14 * 14
FEW = ConvShape(8, 3, 64, 32, 32, 7, 7)
NARROW = ConvShape(8, 1, 32, 27, 27, 3, 3)
LARGER = ConvShape(64, 32, 64, 24, 24, 3, 3)
"""Without padding: 26 x 26 inputs, 24 x 24 outputs."""
SQUARE = ConvShape(8, 64, 64, 19, 19, 3, 3, same_size=True)
CUTLASS_WGRAD = (
    "cutlass::Kernel<conv::ImplicitGemmConvolution<conv::ImplicitGemmMultistage<gemm::GemmShape<64, "
    "64, 64>, conv::Conv2dWgradOutputGradientTileAccessIteratorOptimized<MatrixShape<64, 64>, "
    "cutlass::bfloat16_t, cutlass::AlignedArray<cutlass::bfloat16_t, {}, 16>, TensorOp>>>>"
)
SM90_CONV = (
    "sm90_xmma_{}_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize{}_warpgroupsize1x1x1_g1"
    "_execute_segment_k_{}_kernel__5x_cudnn"
)
DGRAD, FPROP, WGRAD = (XMMA.format(kind) for kind in ("dgrad", "fprop", "wgrad"))


def forward(shape):
    return LaunchWork(shape)


def of_input(shape, **sizes):
    turned = replace(shape.input_gradient_for_equal_sizes, **sizes)
    return LaunchWork(turned, direction="grad_input", forward=shape)


def of_weight(shape):
    return LaunchWork(shape, direction="grad_weight", forward=shape)


@table(
    "name work grid cluster macs",
    {
        "pixels by channels": (
            FPROP,
            forward(CONV),
            (ceil(PIXELS / 128), 2, 1),
            None,
            whole(PIXELS, 128) * 128 * 64 * 9,
        ),
        "the gradient of the input swaps the channels": (
            DGRAD,
            of_input(CONV),
            (ceil(PIXELS / 128), 1, 1),
            None,
            whole(PIXELS, 128) * 64 * 128 * 9,
        ),
        "with a stride": (
            DGRAD,
            replace(of_input(CONV), stride=2),
            (ceil(PIXELS / 128), 1, 1),
            None,
            None,
        ),
        "all taps of each input that is larger than the output": (
            DGRAD,
            of_input(LARGER, out_h=26, out_w=26),
            (ceil(64 * 26 * 26 / 128), 1, 1),
            None,
            whole(64 * 26 * 26, 128) * 64 * (64 * 9),
        ),
        # 128 channels by 64 x 9 weights, over 1,568 pixels in 7 parts of 7 steps
        "the gradient of the weight sums over pixels": (
            WGRAD,
            of_weight(CONV),
            (1, 9, 7),
            None,
            128 * (64 * 9) * 1568,
        ),
        # one channel and 9 taps; the last of 7 parts takes as many steps as the others
        **{
            f"CUTLASS fills channels to loads of {load} and parts to whole steps": (
                CUTLASS_WGRAD.format(load),
                of_weight(NARROW),
                (blocks, 1, 7),
                None,
                64 * whole(9 * load, 64) * (7 * whole(ceil(8 * 27 * 27 / 7), 64)),
            )
            for load, blocks in ((8, 2), (1, 1))
        },
        # 9 positions of 32 channels, which fill half a tile each; a cluster of 5 lies along them
        "each position of a filter has tiles of its own on Hopper": (
            SM90_CONV.format("wgrad_indexed", "64x64x64", "on"),
            of_weight(LARGER),
            (110, 1, 1),
            (5, 1),
            64 * (10 * 64) * (64 * 24 * 24),
        ),
        # 12 tiles of positions by one of channels
        **{
            f"a cluster of {across} x {down} lies where there are tiles for it": (
                SM90_CONV.format("dgrad", "256x64x32", "off"),
                of_input(SQUARE),
                (14, 1, 1),
                (across, down),
                (14 * 256) * 64 * (64 * 9),
            )
            for across, down in ((7, 1), (1, 7))
        },
        "a kernel of a gradient for forward": (WGRAD, forward(CONV), None, None, None),
        "a kernel of forward for a gradient": (FPROP, of_weight(CONV), None, None, None),
        "CUTLASS fills the channels of each position": (
            "cutlass_tensorop_f16_s16816fprop_optimized_f16_256x64_32x4_nhwc_align8",
            forward(FEW),
            (32, 1, 1),
            None,
            (8 * 32 * 32) * 64 * (7 * 7 * 32),
        ),
        "cuDNN does not say": (FPROP, forward(FEW), None, None, None),
    },
)
def test_a_convolution_is_a_product_in_whole_tiles_or_has_no_rule(name, work, grid, cluster, macs):
    derived = derive_instructions(Launch(name, grid, cluster=cluster), work)
    assert (derived and derived.tensor) == (macs and 2 * macs)


@table("stride same", [([1, 1], True), ([2, 2], False)])
def test_a_traced_gradient_gives_its_kernels_the_shape_of_forward(stride, same):
    shapes = ((8, 128, 14, 14), (8, 64, 14, 14), (128, 64, 3, 3))
    op = OpShape(
        "conv",
        "Conv2d",
        "aten.convolution_backward",
        "backward",
        shapes,
        shapes[1:],
        attributes={"groups": 1, "transposed": False, "stride": stride},
    )
    works = collect_layer_work([op]).products
    assert [work.direction for work in works] == ["grad_input", "grad_weight"]
    assert {work.forward for work in works} == {replace(CONV, same_size=same)}
