"""Convolutions and their gradients in fp32, from name, grid and shape: values worked out from the
dimensions. Launches of ResNet-50's training on a V100 are those of a public trace."""

from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions, describe_rule_error
from perfctl.orchestrator.counts.derived.run import list_gemm_conv_attention_work
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from tests.make.shapes import op
from tests.make.tables import table


def forward(*sizes):
    return (LaunchWork(ConvShape(*sizes)),)


def backward(source, weight, sides, **attributes):
    shapes = ((source[0], weight[0], *sides), source, weight)
    return list_gemm_conv_attention_work(
        op("aten.convolution_backward", shapes, (), direction="backward", **attributes)
    )


def gradients(source, weight, *, stride=1, padding=0, first=False):
    """Of a convolution without dilation, one group for each weight that lacks channels."""
    sides = tuple(
        (size + 2 * padding - taps) // stride + 1
        for size, taps in zip(source[2:], weight[2:], strict=True)
    )
    return backward(
        source,
        weight,
        sides,
        stride=[stride] * 2,
        padding=[padding] * 2,
        dilation=[1, 1],
        groups=source[1] // weight[1],
        output_mask=[not first, True, False],
    )


BATCH = 32


def traced(channels, side, outputs, *, window=1, stride=1):
    """Both gradients of a convolution of ResNet-50, as a trace that states no stride gives them."""
    source, weight = (BATCH, channels, side, side), (outputs, channels, window, window)
    return backward(source, weight, (side // stride, side // stride))


def derived(name, works, grid=None):
    found = [
        one for work in works if (one := derive_instructions(Launch(name, grid), work)) is not None
    ]
    assert len(found) < 2, "the grid fits one gradient"
    return found[0] if found else None


def macs(works):
    (shape,) = {work.forward for work in works}
    assert shape is not None
    return shape.macs


def positions(images, side):
    """Of all images, each of which fills tiles of 32."""
    return images * ceil(side**2 / 32) * 32


CONV = forward(64, 32, 64, 24, 24, 3, 3)
BACK = gradients((64, 32, 26, 26), (64, 32, 3, 3))
"""conv2 of the MNIST CNN: 32 channels of 26 x 26 to 64 of 24 x 24; its input needs a gradient."""
INPUTS, OUTPUTS = 64 * 26 * 26, 64 * 24 * 24
PART = ceil(OUTPUTS / 10)
LAST = OUTPUTS - 9 * PART
FOURIER = forward(64, 70, 94, 56, 56, 3, 3)
"""2 x 2 tiles of 30 x 30 outputs."""
PIXELS = forward(8, 100, 60, 14, 14, 1, 1)
DEPTHWISE = gradients((8, 16, 10, 10), (16, 1, 3, 3), padding=1)
LARGE, TINY, WIDE = traced(512, 28, 256), traced(2048, 7, 512), traced(128, 28, 512)
WINOGRAD = traced(512, 7, 512, window=3)
IMAGE = traced(3, 224, 64, window=7, stride=2)
PARTS = 24 * 504 + 496
"""Outputs of an image of 112 x 112 in 25 parts of 502, each in whole steps of 4."""
SCUDNN = "cudnn_ampere_scudnn_128x{}_nn_v1"
VOLTA = "volta_scudnn_128x{}_stridedB_{}small_nn_v1"
CONVOLVE = "void {}_convolve_sgemm<float, {}, 3, 3, {}>(int)"
GROUPED = "void cudnn::cnn::dgrad2d_grouped_direct_kernel<false, true, false, false, 0, 0>(X)"
GROUPED_FORWARD = "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(X)"
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, float const*)"
WGRAD = "void cudnn::cnn::wgrad_alg0_engine<float, 128, {}, {}, 3, 3, 5, false, 512>(int)"
FFT = "ampere_gcgemm_32x32_nt"


@table(
    "name works grid expected",
    {
        "conv2 at batch 1000 needs no padding": (
            "volta_scudnn_128x64_relu_interior_nn_v1",
            forward(1000, 32, 64, 24, 24, 3, 3),
            None,
            (1000 * 24 * 24 * 64 * 32 * 9, 1000 * 24 * 24 * 64),
        ),
        # 4 channels fill a tile of 32; what is not there is not scaled
        **{
            f"sums of {9 * channels} in steps of eight": (
                CONVOLVE.format("implicit", "float, (int)1024, (int)5, (int)5, (int)3", "(int)1"),
                forward(64, channels, 4, 5, 5, 3, 3),
                None,
                (64 * 25 * 32 * ceil(9 * channels / 8) * 8, 64 * 25 * 4),
            )
            for channels in (4, 8)
        },
        "a filter of one by one is summed as long as it is": (
            CONVOLVE.format("explicit", "int, (int)128, (int)6, (int)7, (int)3", "(int)0"),
            forward(64, 2, 2, 1, 1, 1, 1),
            None,
            64 * 128 * 2,
        ),
        "grouped, direct": (
            GROUPED_FORWARD,
            forward(64, 2, 2, 95, 95, 3, 3),
            None,
            64 * 95 * 95 * 2 * 18,
        ),
        "one channel, direct": (
            "void conv2d_c1_k1_nchw_hw_packed_kernel<float, 3>(X)",
            forward(64, 1, 1, 126, 126, 3, 3),
            None,
            64 * 126 * 126 * 10,
        ),
        "a tile more": (
            SCUDNN.format("64_relu_interior"),
            CONV,
            (OUTPUTS // 128 + 1, 1, 1),
            None,
        ),
        "precomputed indices": (
            CONVOLVE.format("precomputed", "(int)1024, (int)5, (int)5, (int)4", "(bool)0"),
            forward(64, 2048, 40, 2, 2, 1, 1),
            None,
            (256 * 64 * 2048, 256 * 40),
        ),
        "precomputed indices, larger filter": (
            CONVOLVE.format("precomputed", "(int)1024, (int)5, (int)5, (int)4", "(bool)0"),
            forward(64, 2048, 40, 2, 2, 3, 3),
            None,
            None,
        ),
        **{
            f"a complex product is four multiply-adds, {images} rows": (
                FFT,
                FOURIER,
                (images // 32, 3, 32 * 17),
                4 * 32 * 17 * images * 96 * 72,
            )
            for images in (64, 64 * 4)
        },
        "another complex product": (FFT, FOURIER, (2, 4, 32 * 17), None),
        "a plain product of all pixels": (
            "ampere_sgemm_128x64_nn",
            PIXELS,
            (13, 1, 1),
            (13 * 128) * 64 * 104,
        ),
        "a plain product for each image": (
            "ampere_sgemm_128x64_nn",
            PIXELS,
            (2, 1, 8),
            8 * (2 * 128) * 64 * 104,
        ),
        # 32 channels fill a tile of 64 by half
        "gradient of the input: channels exchanged": (
            SCUDNN.format("64_relu_interior"),
            BACK,
            (INPUTS // 128, 1, 1),
            (INPUTS * 64 * 64 * 9, INPUTS * 64),
        ),
        "gradient of the input: strided": (
            SCUDNN.format("32_stridedB_interior"),
            BACK,
            (INPUTS // 128, 1, 1),
            (INPUTS * 32 * 64 * 9, None),
        ),
        "gradient of the input: CUTLASS": (
            "void cutlass__5x_cudnn::Kernel<cutlass_simt_sdgrad_optimized_128x128_8x5_nhwc_align1>(P)",
            BACK,
            (INPUTS // 128 * 4, 1, 1),
            INPUTS * 128 * 64 * 9,
        ),
        "gradient of the weight: outputs in ten parts": (
            SCUDNN.format("64_stridedB_splitK_xregs_large"),
            BACK,
            (3, 1, 10),
            64 * (3 * 128) * (9 * ceil(PART / 4) * 4 + ceil(LAST / 4) * 4),
        ),
        "gradient of the weight: another grid": (
            SCUDNN.format("64_stridedB_splitK_xregs_large"),
            BACK,
            (4, 1, 10),
            None,
        ),
        "grouped gradient": (GROUPED, DEPTHWISE, None, 8 * 16 * 10 * 10 * 9),
        "grouped gradient with fewer taps": (
            GROUPED,
            gradients((8, 16, 10, 10), (16, 1, 3, 3)),
            None,
            None,
        ),
        # blocks, tiles, channels, multiplies, channels that are summed
        "fused Winograd for the gradient of the input": (
            "cudnn_infer_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148n_nt_v1",
            gradients((16, 64, 32, 32), (128, 64, 3, 3), padding=1),
            (32, 4, 2),
            32 * 4 * 2 * 32 * 32 * 16 * 128,
        ),
        # image by image in tiles of 64 by 32; each image's sums are scaled
        "dgrad engine": (
            DGRAD,
            WIDE,
            (2, 25, 32),
            (128 * positions(32, 28) * 512, 128 * 32 * 28**2),
        ),
        "dgrad engine with a stride, 3 x 3": (
            DGRAD,
            traced(128, 56, 128, window=3, stride=2),
            (18, 25, 32),
            (128 * 9 * positions(32, 28) * 128, 128 * 9 * 32 * 28**2),
        ),
        "dgrad engine of few pixels": (
            DGRAD,
            traced(512, 7, 2048),
            (8, 2, 32),
            (512 * positions(32, 7) * 2048, 512 * 32 * 49),
        ),
        "dgrad engine with a stride": (
            DGRAD,
            traced(256, 56, 512, stride=2),
            (4, 25, 32),
            (256 * positions(32, 28) * 512, 256 * 32 * 28**2),
        ),
        "wgrad engine": (
            WGRAD.format(6, 7),
            traced(64, 56, 256),
            (1, 2, 224),
            macs(traced(64, 56, 256)),
        ),
        "wgrad engine, half a tile": (
            WGRAD.format(6, 7),
            traced(256, 56, 64),
            (4, 1, 224),
            2 * macs(traced(256, 56, 64)),
        ),
        "wgrad engine of the first layer": (
            WGRAD.format(5, 5),
            IMAGE,
            (5, 2, 800),
            pytest.approx(macs(IMAGE) * 160 / 147 * PARTS / 112**2),
        ),
        # 196 x 128 positions, 8 x 64 channels
        "implicit product that fits": (VOLTA.format(64, ""), LARGE, (196, 8, 1), macs(LARGE)),
        "implicit product in seven parts": (
            VOLTA.format(128, "splitK_"),
            TINY,
            (16, 4, 7),
            2048 * 512 * 7 * ceil(ceil(BATCH * 49 / 7) / 4) * 4,
        ),
        # 4 x 4 outputs each: BATCH x 2 x 2 tiles
        "Winograd of the input": (
            "volta_sgemm_64x64_nt",
            WINOGRAD,
            (2, 8, 36),
            36 * (BATCH * 4) * 512 * 512,
        ),
        "Winograd of the weight": (
            "volta_sgemm_64x64_nt",
            WINOGRAD,
            (8, 8, 36),
            36 * 512 * 512 * (BATCH * 4),
        ),
        "dgrad engine, fewer columns": (DGRAD, WIDE, (2, 24, 32), None),
        "dgrad engine, fewer images": (DGRAD, WIDE, (2, 25, 16), None),
        "wgrad engine, another number of parts": (WGRAD.format(6, 7), WIDE, (2, 4, 33), None),
        "implicit product, another grid": (VOLTA.format(128, ""), WIDE, (49, 4, 1), None),
        "implicit product, other parts": (VOLTA.format(128, "splitK_"), WIDE, (4, 1, 7), None),
        "Winograd, another grid": ("volta_sgemm_64x64_nt", WIDE, (3, 5, 36), None),
        "another name": ("somebodys_wgrad", WIDE, (2, 4, 64), None),
        "implicit product of a strided gradient": (
            VOLTA.format(128, ""),
            traced(128, 56, 128, stride=2),
            (784, 1, 1),
            None,
        ),
        "groups in tiles": (
            DGRAD,
            backward((32, 128, 28, 28), (512, 64, 1, 1), (28, 28), groups=2),
            (1, 25, 32),
            None,
        ),
    },
)
def test_a_kernel_of_a_convolution_counts_by_its_grid_or_has_no_rule(name, works, grid, expected):
    """``expected``: FFMA, or FFMA and FMUL."""
    found = derived(name, works, grid)
    if found is None:
        assert expected is None
    else:
        counts = (found.ffma, found.fmul)
        assert (counts if isinstance(expected, tuple) else found.ffma) == expected
        assert found.fadd in (None, 0, found.fmul)


def test_depthwise_kernels_of_aten_leave_out_taps_on_the_padding():
    # along each side 10 outputs x 3 taps, of which one of the first and one of the last output are
    # on the padding
    inside = 8 * 16 * (10 * 3 - 2) ** 2
    name = "void at::native::(anonymous namespace)::conv_depthwise2d_{}_kernel<{}float, int>(X)"
    data = derived(name.format("backward", "3, "), DEPTHWISE)
    weight = derived(name.format("grad_weight", ""), DEPTHWISE)
    assert data is not None and (data.ffma, data.fp32_flops) == (inside, 2 * inside)
    assert weight is not None and (weight.ffma, weight.fp32_flops) == (inside, None)


def test_a_first_layer_has_no_gradient_of_its_input():
    assert [work.direction for work in BACK] == ["grad_input", "grad_weight"]
    first = gradients((64, 1, 28, 28), (32, 1, 3, 3), first=True)
    assert [work.direction for work in first] == ["grad_weight"]


def test_rules_of_gradients_say_that_no_counter_verified_them():
    found = derived(SCUDNN.format("64_relu_interior"), BACK, (INPUTS // 128, 1, 1))
    assert found is not None
    assert describe_rule_error(found.family) == "scudnn, gradient: not verified on silicon"


def test_groups_are_products_and_transposed_convolutions_have_no_works():
    grouped = backward((32, 128, 28, 28), (512, 64, 1, 1), (28, 28), groups=2)
    assert [work.shape for work in grouped if isinstance(work.shape, GemmShape)] == [
        GemmShape(256, 64, 32 * 28 * 28, 2)
    ]
    assert backward((2, 8, 4, 4), (8, 16, 1, 1), (4, 4), transposed=True) == ()


def test_one_dimension_counts_as_height_1():
    flat = backward((2, 8, 40), (16, 8, 3), (40,))
    assert {work.forward for work in flat} == {ConvShape(2, 8, 16, 1, 40, 1, 3, same_size=True)}
