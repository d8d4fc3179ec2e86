"""Gradients of convolutions in fp32: launches as a public trace of ResNet-50's training on a V100
has them, by their grids."""

from __future__ import annotations

from math import ceil

import pytest

from perfctl.orchestrator.counts.derived.records import Derived, Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive
from perfctl.orchestrator.counts.derived.run import works_of
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.records.paper import OpShape

BATCH = 32
DGRAD = (
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float "
    "const*)"
)
WGRAD = (
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, {}, {}, 3, 3, 5, false, 512>(int, int, int, "
    "float const*)"
)
PARTS = 24 * 504 + 496
"""Outputs of an image of 112 x 112 in 25 parts of 502, each in whole steps of 4."""
SCUDNN = "volta_scudnn_128x{}_stridedB_{}small_nn_v1"


def backward(
    source: tuple[int, ...], weight: tuple[int, ...], sides: tuple[int, ...], **attributes: object
) -> OpShape:
    shapes = ((source[0], weight[0], *sides), source, weight)
    return OpShape("", "", "aten.convolution_backward", "backward", shapes, (), (), attributes)


def gradients(
    channels: int, side: int, outputs: int, *, window: int = 1, stride: int = 1
) -> tuple[Work, ...]:
    """Both gradients of a convolution, as a trace that states no stride gives them."""
    source, weight = (BATCH, channels, side, side), (outputs, channels, window, window)
    return works_of(backward(source, weight, (side // stride, side // stride)))


def derived(name: str, grid: tuple[int, int, int], works: tuple[Work, ...]) -> Derived | None:
    said = [found for work in works if (found := derive(Launch(name, grid), work)) is not None]
    assert len(said) < 2, "the grid fits one gradient"
    return said[0] if said else None


def forward(works: tuple[Work, ...]) -> ConvShape:
    (shape,) = {work.forward for work in works}
    assert shape is not None
    return shape


@pytest.mark.parametrize(
    ("grid", "shape"),
    [
        ((2, 25, 32), gradients(128, 28, 512)),
        ((18, 25, 32), gradients(128, 56, 128, window=3, stride=2)),
        ((8, 2, 32), gradients(512, 7, 2048)),
        ((4, 25, 32), gradients(256, 56, 512, stride=2)),
    ],
)
def test_dgrad_engine_works_image_by_image_in_tiles_of_64_by_32(
    grid: tuple[int, int, int], shape: tuple[Work, ...]
) -> None:
    found = derived(DGRAD, grid, shape)
    assert found is not None and found.family == "dgrad_engine"
    conv = forward(shape)
    positions = ceil(conv.out_h * conv.out_w / 32) * 32
    assert found.ffma == BATCH * conv.depth * positions * conv.out_channels >= conv.macs
    # each image's sums are scaled, then added in memory
    assert (found.fmul, found.fadd) == (BATCH * conv.depth * conv.out_h * conv.out_w, 0)


@pytest.mark.parametrize(
    ("sides", "grid", "shape", "fill"),
    [
        ((6, 7), (1, 2, 224), gradients(64, 56, 256), 1),
        ((6, 7), (4, 1, 224), gradients(256, 56, 64), 2),
        (
            (5, 5),
            (5, 2, 800),
            gradients(3, 224, 64, window=7, stride=2),
            160 / 147 * PARTS / 112**2,
        ),
    ],
)
def test_wgrad_engine_fills_tiles_of_weights_by_channels(
    sides: tuple[int, int], grid: tuple[int, int, int], shape: tuple[Work, ...], fill: float
) -> None:
    found = derived(WGRAD.format(*sides), grid, shape)
    assert found is not None and found.ffma == pytest.approx(forward(shape).macs * fill)


def test_winograd_of_both_gradients_is_told_apart_by_its_grid() -> None:
    shape = gradients(512, 7, 512, window=3)
    tiles = BATCH * 2 * 2  # 4 x 4 outputs each
    of_input, of_weight = (
        derived("volta_sgemm_64x64_nt", grid, shape) for grid in ((2, 8, 36), (8, 8, 36))
    )
    assert of_input is not None and of_input.ffma == 36 * tiles * 512 * 512
    assert of_weight is not None and of_weight.ffma == 36 * 512 * 512 * tiles
    assert of_weight.family == "winograd, grad_weight" != of_input.family


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        (DGRAD, (2, 24, 32)),
        (DGRAD, (2, 25, 16)),
        (WGRAD.format(6, 7), (2, 4, 33)),
        (SCUDNN.format(128, ""), (49, 4, 1)),
        (SCUDNN.format(128, "splitK_"), (4, 1, 7)),
        ("volta_sgemm_64x64_nt", (3, 5, 36)),
        ("somebodys_wgrad", (2, 4, 64)),
    ],
)
def test_another_grid_or_name_has_no_count(name: str, grid: tuple[int, int, int]) -> None:
    assert derived(name, grid, gradients(128, 28, 512)) is None


def test_an_input_gradient_with_stride_has_no_rule_in_implicit_products() -> None:
    assert derived(SCUDNN.format(128, ""), (784, 1, 1), gradients(128, 56, 128, stride=2)) is None


def test_groups_and_transposed_convolutions_have_no_rule_in_tiles() -> None:
    grouped = works_of(backward((32, 128, 28, 28), (512, 64, 1, 1), (28, 28), groups=2))
    assert [work.shape for work in grouped if isinstance(work.shape, GemmShape)] == [
        GemmShape(256, 64, 32 * 28 * 28, 2)
    ]
    assert derived(DGRAD, (1, 25, 32), grouped) is None
    assert works_of(backward((2, 8, 4, 4), (8, 16, 1, 1), (4, 4), transposed=True)) == ()


def test_one_dimension_counts_as_height_1() -> None:
    flat = works_of(backward((2, 8, 40), (16, 8, 3), (40,)))
    assert {work.forward for work in flat} == {ConvShape(2, 8, 16, 1, 40, 1, 3, same_size=True)}
