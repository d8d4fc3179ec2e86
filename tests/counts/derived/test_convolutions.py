"""Convolutions and their gradients, from name, grid and shape: values worked out from
the dimensions."""

from __future__ import annotations

from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive, error_of
from perfctl.orchestrator.counts.derived.run import works_of
from perfctl.orchestrator.counts.kernels.grids import ConvShape
from perfctl.records.paper import OpShape

CONV = ConvShape(64, 32, 64, 24, 24, 3, 3)
"""conv2 of the MNIST CNN: 32 channels of 26 x 26 to 64 of 24 x 24."""


def conv(
    name: str, shape: ConvShape = CONV, grid: tuple[int, int, int] | None = None
) -> Derived | None:
    return derive(Launch(name, grid), Work(shape))


def gradients(
    source: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    first: bool = False,
) -> tuple[Work, ...]:
    """Of a convolution without dilation, one group for each weight that lacks channels."""
    out = [
        (size + 2 * padding - taps) // stride + 1
        for size, taps in zip(source[2:], weight[2:], strict=True)
    ]
    facts = {
        "stride": [stride] * 2,
        "padding": [padding] * 2,
        "dilation": [1, 1],
        "groups": source[1] // weight[1],
        "output_mask": [not first, True, False],
    }
    shapes = ((source[0], weight[0], *out), source, weight)
    op = OpShape(
        "conv",
        "Conv2d",
        "aten.convolution_backward",
        "backward",
        shapes,
        (source, weight),
        ("float32",) * 5,
        facts,
        0,
        1,
        0,
    )
    return works_of(op)


def derived(
    name: str, works: tuple[Work, ...], grid: tuple[int, int, int] | None = None
) -> list[Derived]:
    return [found for work in works if (found := derive(Launch(name, grid), work)) is not None]


def test_the_study_s_conv2_at_batch_1000_needs_no_padding() -> None:
    shape = ConvShape(1000, 32, 64, 24, 24, 3, 3)
    found = conv("volta_scudnn_128x64_relu_interior_nn_v1", shape)
    assert found is not None and found.ffma == 1000 * 24 * 24 * 64 * 32 * 9 == 10_616_832_000
    assert found.fmul == found.fadd == 1000 * 24 * 24 * 64


@pytest.mark.parametrize(("channels", "deep"), [(4, 40), (8, 72)])
def test_larger_filters_are_summed_in_steps_of_eight(channels: int, deep: int) -> None:
    name = (
        "void implicit_convolve_sgemm<float, float, (int)1024, (int)5, (int)5, (int)3, (int)3, "
        "(int)3, (int)1>(int)"
    )
    found = conv(name, ConvShape(64, channels, 4, 5, 5, 3, 3))
    assert found is not None
    assert found.ffma == 64 * 25 * 32 * deep  # 4 channels fill a tile of 32
    assert found.fmul == 64 * 25 * 4  # what is not there is not scaled


def test_a_filter_of_one_by_one_is_summed_as_long_as_it_is() -> None:
    name = (
        "void explicit_convolve_sgemm<float, int, (int)128, (int)6, (int)7, (int)3, (int)3, "
        "(int)5, (int)0>(int)"
    )
    found = conv(name, ConvShape(64, 2, 2, 1, 1, 1, 1))
    assert found is not None and found.ffma == 64 * 128 * 2


def test_direct_convolutions_do_what_is_on_paper() -> None:
    grouped = conv(
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true>(X)",
        ConvShape(64, 2, 2, 95, 95, 3, 3),
    )
    assert grouped is not None and grouped.ffma == 64 * 95 * 95 * 2 * 18
    single = conv(
        "void conv2d_c1_k1_nchw_hw_packed_kernel<float, 3>(X)", ConvShape(64, 1, 1, 126, 126, 3, 3)
    )
    assert single is not None and single.ffma == 64 * 126 * 126 * 10


def test_a_grid_of_another_convolution_has_no_rule() -> None:
    name, tiles = "cudnn_ampere_scudnn_128x64_relu_interior_nn_v1", 64 * 24 * 24 // 128
    assert conv(name, grid=(tiles, 1, 1)) is not None
    assert conv(name, grid=(tiles + 1, 1, 1)) is None


@pytest.mark.parametrize(("size", "known"), [(1, True), (3, False)])
def test_precomputed_indices_have_a_rule_for_filters_of_one_by_one_only(
    size: int, known: bool
) -> None:
    name = (
        "void precomputed_convolve_sgemm<float, (int)1024, (int)5, (int)5, (int)4, (int)3, (int)3, "
        "(int)1, (bool)0>(int)"
    )
    found = conv(name, ConvShape(64, 2048, 40, 2, 2, size, size))
    assert (found is not None) == known
    if found is not None:
        assert (found.ffma, found.fmul) == (256 * 64 * 2048, 256 * 40)


BACK = gradients((64, 32, 26, 26), (64, 32, 3, 3))
"""conv2 of the MNIST CNN at batch 64: its input needs a gradient of 26 x 26."""
INPUTS = 64 * 26 * 26


def test_the_gradient_of_the_input_is_a_convolution_with_the_channels_exchanged() -> None:
    tiles = INPUTS // 128
    (same,) = derived("cudnn_ampere_scudnn_128x64_relu_interior_nn_v1", BACK, (tiles, 1, 1))
    # 32 channels fill a tile of 64 by half
    assert (same.ffma, same.fmul) == (INPUTS * 64 * 64 * 9, INPUTS * 64)
    (strided,) = derived("cudnn_ampere_scudnn_128x32_stridedB_interior_nn_v1", BACK, (tiles, 1, 1))
    assert (strided.ffma, strided.fmul) == (INPUTS * 32 * 64 * 9, None)
    (cutlass,) = derived(
        "void cutlass__5x_cudnn::Kernel<cutlass_simt_sdgrad_optimized_128x128_8x5_nhwc_align1>(P)",
        BACK,
        (tiles * 4, 1, 1),
    )
    assert cutlass.ffma == INPUTS * 128 * 64 * 9


def test_the_gradient_of_the_weight_sums_over_all_outputs_in_the_parts_of_the_grid() -> None:
    name, outputs = "cudnn_ampere_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1", 64 * 24 * 24
    (found,) = derived(name, BACK, (3, 1, 10))
    part, last = ceil(outputs / 10), outputs - 9 * ceil(outputs / 10)
    assert found.ffma == 64 * (3 * 128) * (9 * ceil(part / 4) * 4 + ceil(last / 4) * 4)
    assert not derived(name, BACK, (4, 1, 10))


def test_a_first_layer_has_no_gradient_of_its_input() -> None:
    assert [work.direction for work in BACK] == ["grad_input", "grad_weight"]
    assert [work.direction for work in gradients((64, 1, 28, 28), (32, 1, 3, 3), first=True)] == [
        "grad_weight"
    ]


def test_grouped_direct_gradients_have_a_rule_where_paper_has_as_many_taps() -> None:
    name = (
        "void cudnn::cnn::dgrad2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, "
        "float, float, float>(X)"
    )
    (same,) = derived(name, gradients((8, 16, 10, 10), (16, 1, 3, 3), padding=1))
    assert (same.ffma, same.fp32) == (8 * 16 * 10 * 10 * 9, None)
    assert not derived(name, gradients((8, 16, 10, 10), (16, 1, 3, 3)))


def test_rules_of_gradients_say_that_no_counter_verified_them() -> None:
    found = derived("cudnn_ampere_scudnn_128x64_relu_interior_nn_v1", BACK, (INPUTS // 128, 1, 1))
    assert [error_of([one.family]) for one in found] == [
        "scudnn, gradient: not verified on silicon"
    ]


def test_depthwise_kernels_of_aten_leave_out_taps_on_the_padding() -> None:
    works = gradients((8, 16, 10, 10), (16, 1, 3, 3), padding=1)
    # along each side 10 outputs x 3 taps, of which one of the first and one of the last output are
    # on the padding
    inside = 8 * 16 * (10 * 3 - 2) ** 2
    name = "void at::native::(anonymous namespace)::conv_depthwise2d_{}_kernel<{}float, int>(X)"
    (data,) = derived(name.format("backward", "3, "), works)
    assert (data.ffma, data.fp32) == (inside, 2 * inside)
    (weight,) = derived(name.format("grad_weight", ""), works)
    assert (weight.ffma, weight.fp32) == (inside, None)


def test_fused_winograd_serves_the_gradient_of_the_input() -> None:
    works = gradients((16, 64, 32, 32), (128, 64, 3, 3), padding=1)
    (found,) = derived(
        "cudnn_infer_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148n_nt_v1",
        works,
        (32, 4, 2),
    )
    assert (
        found.ffma == 32 * 4 * 2 * 32 * 32 * 16 * 128
    )  # blocks, tiles, channels, multiplies, channels that are summed


@pytest.mark.parametrize("images", [64, 64 * 4])
def test_a_complex_product_between_fourier_transforms_is_four_multiply_adds(images: int) -> None:
    shape = ConvShape(64, 70, 94, 56, 56, 3, 3)  # 2 x 2 tiles of 30 x 30 outputs
    found = conv("ampere_gcgemm_32x32_nt", shape, (images // 32, 3, 32 * 17))
    assert found is not None and found.ffma == 4 * 32 * 17 * images * 96 * 72
    assert conv("ampere_gcgemm_32x32_nt", shape, (images // 32, 4, 32 * 17)) is None


def test_a_convolution_that_runs_as_a_plain_product_is_counted_as_one() -> None:
    shape = ConvShape(8, 100, 60, 14, 14, 1, 1)
    at_once, apart = (
        conv("ampere_sgemm_128x64_nn", shape, grid) for grid in ((13, 1, 1), (2, 1, 8))
    )
    assert at_once is not None and at_once.ffma == (13 * 128) * 64 * 104
    assert apart is not None and apart.ffma == 8 * (2 * 128) * 64 * 104
