"""Gradients of convolutions in fp32: launches as a public trace of ResNet-50's training on a V100 has them, by their grids."""

from __future__ import annotations

from math import ceil

import pytest

from perfctl.orchestrator.analyse.derived.records import ConvGradients, Derived, Launch, Work
from perfctl.orchestrator.analyse.derived.rules import derive
from perfctl.orchestrator.analyse.derived.works import work_of
from perfctl.records.paper import OpShape

BATCH = 32
DGRAD = "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)"
WGRAD = "void cudnn::cnn::wgrad_alg0_engine<float, 128, {}, {}, 3, 3, 5, false, 512>(int, int, int, float const*)"
SCUDNN = "volta_scudnn_128x{}_stridedB_{}small_nn_v1"


def gradients(channels: int, side: int, outputs: int, *, window: int = 1, stride: int = 1) -> ConvGradients:
    return ConvGradients(BATCH, channels, outputs, side, side, side // stride, side // stride, window, window)


def derived(name: str, grid: tuple[int, int, int], shape: ConvGradients) -> Derived | None:
    return derive(Launch(name, grid), Work(shape))


def macs(shape: ConvGradients) -> int:
    return shape.out_pixels * shape.out_channels * shape.depth


@pytest.mark.parametrize(
    ("grid", "shape"),
    [((2, 25, 32), gradients(128, 28, 512)), ((18, 25, 32), gradients(128, 56, 128, window=3, stride=2)),
     ((8, 2, 32), gradients(512, 7, 2048)), ((4, 25, 32), gradients(256, 56, 512, stride=2))],
)  # fmt: skip
def test_dgrad_engine_works_image_by_image_in_tiles_of_64_by_32(
    grid: tuple[int, int, int], shape: ConvGradients
) -> None:
    found = derived(DGRAD, grid, shape)
    assert found is not None and found.family == "dgrad_engine"
    positions = ceil(shape.out_h * shape.out_w / 32) * 32
    assert found.ffma == BATCH * shape.depth * positions * shape.out_channels >= macs(shape)
    assert (found.fmul, found.fadd) == (None, None)  # of its epilogue nothing is known


@pytest.mark.parametrize(
    ("sides", "grid", "shape", "fill"),
    [((6, 7), (1, 2, 224), gradients(64, 56, 256), 1), ((6, 7), (4, 1, 224), gradients(256, 56, 64), 2),
     ((5, 5), (5, 2, 800), ConvGradients(BATCH, 3, 64, 224, 224, 112, 112, 7, 7), 160 / 147)],
)  # fmt: skip
def test_wgrad_engine_fills_tiles_of_weights_by_channels(
    sides: tuple[int, int], grid: tuple[int, int, int], shape: ConvGradients, fill: float
) -> None:
    found = derived(WGRAD.format(*sides), grid, shape)
    assert found is not None and found.ffma == pytest.approx(macs(shape) * fill)


def test_implicit_products_of_both_gradients() -> None:
    shape = gradients(512, 28, 256)
    found = derived(SCUDNN.format(64, ""), (196, 8, 1), shape)
    assert found is not None and found.ffma == macs(shape)  # all of it fits: 196 x 128 positions, 8 x 64 channels
    shape = gradients(2048, 7, 512)
    found = derived(SCUDNN.format(128, "splitK_"), (16, 4, 7), shape)
    part = ceil(BATCH * 49 / 7)
    assert found is not None and found.ffma == 2048 * 512 * 7 * ceil(part / 4) * 4


def test_winograd_of_both_gradients_is_told_apart_by_its_grid() -> None:
    shape = gradients(512, 7, 512, window=3)
    tiles = BATCH * 2 * 2  # 4 x 4 outputs each
    of_input, of_weight = (derived("volta_sgemm_64x64_nt", grid, shape) for grid in ((2, 8, 36), (8, 8, 36)))
    assert of_input is not None and of_input.ffma == 36 * tiles * 512 * 512
    assert of_weight is not None and of_weight.ffma == 36 * 512 * 512 * tiles
    assert of_weight.family == "winograd, grad_weight" != of_input.family


@pytest.mark.parametrize(
    ("name", "grid"),
    [(DGRAD, (2, 24, 32)), (DGRAD, (2, 25, 16)), (WGRAD.format(6, 7), (2, 4, 33)), (SCUDNN.format(128, ""), (49, 4, 1)),
     (SCUDNN.format(128, "splitK_"), (4, 1, 7)), ("volta_sgemm_64x64_nt", (3, 5, 36)), ("somebodys_wgrad", (2, 4, 64))],
)  # fmt: skip
def test_another_grid_or_name_has_no_count(name: str, grid: tuple[int, int, int]) -> None:
    assert derived(name, grid, gradients(128, 28, 512)) is None


def test_an_input_gradient_with_stride_has_no_rule_in_implicit_products() -> None:
    assert derived(SCUDNN.format(128, ""), (784, 1, 1), gradients(128, 56, 128, stride=2)) is None


def test_groups_and_transposed_convolutions_have_no_rule_and_one_dimension_counts_as_height_1() -> None:
    def backward(source: tuple[int, ...], weight: tuple[int, ...], **attributes: object) -> OpShape:
        grad = (source[0], weight[0], *source[2:])
        shapes = (grad, source, weight)
        return OpShape("", "", "aten.convolution_backward", "backward", shapes, (), (), attributes)

    assert work_of(backward((2, 8, 4, 4), (16, 4, 1, 1))) is None
    assert work_of(backward((2, 8, 4, 4), (16, 8, 1, 1), transposed=True)) is None
    assert work_of(backward((2, 8, 40), (16, 8, 3))) == Work(ConvGradients(2, 8, 16, 1, 40, 1, 40, 1, 3))
