"""Tiles and multiplies from a kernel's name and its layer's shape; every number worked out
from the shape."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.grids import (
    ConvShape,
    GemmShape,
    Grid,
    TilePrediction,
    Tiling,
    predict_tiles,
)
from perfctl.orchestrator.counts.kernels.names import recognise
from tests.make.scripts import load

IMPLICIT = "volta_scudnn_128x64_relu_xregs_large_nn_v1"
FUSED = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
MNIST_CONV2 = ConvShape(
    batch=64, in_channels=32, out_channels=64, out_h=24, out_w=24, kernel_h=3, kernel_w=3
)


def predict(name: str, grid: Grid, shape: ConvShape | GemmShape) -> TilePrediction:
    prediction = predict_tiles(recognise(name), grid, shape)
    assert prediction is not None
    return prediction


def matches(name: str, grid: Grid, shape: ConvShape | GemmShape) -> bool:
    return bool(predict(name, grid, shape).tilings)


def tile(name: str, grid: Grid, shape: ConvShape | GemmShape) -> Tiling:
    """Return the likeliest tiling; all that a recorded grid allows need as many multiplies."""
    prediction = predict(name, grid, shape)
    assert len({tiling.multiplies for tiling in prediction.tilings}) == 1
    return prediction.tilings[0]


def blocks(tiling: Tiling) -> int:
    return tiling.shape.batch * prod(tiling.blocks)


def test_an_implicit_product_has_a_block_for_every_tile_of_outputs() -> None:
    tiling = tile(IMPLICIT, (64 * 24 * 24 // 128, 1, 1), MNIST_CONV2)
    assert blocks(tiling) == 288
    assert tiling.multiplies == MNIST_CONV2.macs == 679_477_248
    assert not matches(IMPLICIT, (287, 1, 1), MNIST_CONV2), "another batch"


def test_a_tile_wider_than_the_channels_works_on_padding() -> None:
    tiling = tile("volta_scudnn_128x128_relu_small_nn_v1", (288, 1, 1), MNIST_CONV2)
    assert tiling.multiplies == 288 * 128 * 128 * 288 == 2 * MNIST_CONV2.macs
    assert tiling.rule(MNIST_CONV2.macs) == (
        "ceil(36,864 / 128) x ceil(64 / 128) tiles x 128 x 128 x 288 = 1,358,954,496 multiplies "
        "(estimated 679,477,248)"
    )


def test_the_step_along_the_sum_is_padded_where_the_name_says_it() -> None:
    name = (
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x16_stage4"
        "_warpsize2x2x1_g1"
    )
    shape = ConvShape(64, 3, 64, 24, 24, 3, 3)
    tiling = tile(name, (288, 1, 1), shape)
    assert tiling.multiplies == 288 * 128 * 64 * 32 and shape.depth == 27
    assert "(sum of 27, padded to 32)" in tiling.rule(shape.macs)


def test_fused_winograd_does_four_ninths_of_the_multiplies_and_its_padding() -> None:
    shape = ConvShape(64, 32, 64, 24, 24, 3, 3)
    tiling = tile(FUSED, (64 * 2, 3, 2), shape)
    assert tiling.multiplies == 64 * 2 * 3 * 2 * 32 * 32 * 16 * 32
    assert tiling.multiplies / shape.macs == pytest.approx((24 * 32) / (24 * 24) * 4 / 9)


def test_images_are_taken_sixteen_at_a_time_between_the_transforms() -> None:
    shape = ConvShape(1, 128, 256, 24, 24, 3, 3)
    tiling = tile("volta_sgemm_128x64_nn", (2, 16 * 36 // 64, 36), shape)
    assert tiling.multiplies / shape.macs == pytest.approx(0.25 * 16)


def test_split_k_is_read_off_the_grid_and_multiplies_no_more() -> None:
    shape = GemmShape(m=128, n=256, k=100)
    tiling = tile("volta_sgemm_128x64_tn", (2, 2, 8), shape)
    assert (tiling.parts, tiling.multiplies) == (8, 128 * 256 * 100)
    assert "(sum of 100 in 8 parts, padded to 100)" in tiling.rule(shape.macs)


def test_a_convolution_by_xmma_has_its_channels_in_x() -> None:
    name = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x32x8_g1_ffma"
    shape = ConvShape(128, 1, 32, 26, 26, 3, 3)
    assert tile(f"{name}__5x_cudnn", (1, 676, 1), shape).multiplies == 676 * 128 * 32 * 16


def test_a_long_sum_prints_the_logarithms_of_its_tile() -> None:
    name = "void sgemm_largek_lds64<(bool)1, (bool)0, (int)6, (int)3, (int)4, 5, 2, 66>(float *)"
    for spelled in (name, name.replace("(bool)", "").replace("(int)", "")):
        assert recognise(spelled).tile == (64, 8, None)


def test_tiles_in_x_and_y_are_likelier_than_tiles_in_z() -> None:
    shape = GemmShape(m=128, n=64, k=100)
    tiling = tile("volta_sgemm_128x64_nn", (1, 1, 2), shape)
    assert (tiling.sides, tiling.parts) == ((128, 64), 2), "not two tiles of 64 x 128"


@pytest.mark.parametrize(
    "name",
    [
        "my_kernel",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)",
        "void fft2d_r2c_32x32<float>(float2*)",
        "void precomputed_convolve_sgemm<float, 1024, 5, 5, 4, 3, 3, 1, false>(int)",
        "sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x16_stage4",
        "void splitKreduce_kernel<32, 16, int, float>(x)",
    ],
)
def test_what_has_no_formula_gets_no_number(name: str) -> None:
    assert predict_tiles(recognise(name), (1, 1, 1), MNIST_CONV2) is None


def test_grouped_convolutions_have_no_formula() -> None:
    grouped = ConvShape(1, 8, 8, 4, 4, 3, 3, groups=8)
    assert predict_tiles(recognise(IMPLICIT), (1, 1, 1), grouped) is None


def test_a_convolution_s_sizes() -> None:
    shape = ConvShape(2, 6, 10, 5, 7, 3, 4, groups=2)
    assert (shape.pixels, shape.depth, shape.macs) == (2 * 5 * 7, 3 * 3 * 4, 70 * 10 * 36)
    assert GemmShape(2, 3, 5, 7).macs == 210


def test_a_split_sum_of_an_implicit_product_is_in_the_grid_s_depth() -> None:
    assert predict(IMPLICIT, (288, 1, 4), MNIST_CONV2).family == "implicit gemm"
    assert tile(IMPLICIT, (288, 1, 4), MNIST_CONV2).multiplies == MNIST_CONV2.macs
    assert not matches(IMPLICIT, (1, 288, 1), MNIST_CONV2), "FFMA kernels have outputs along x"
    assert not matches(IMPLICIT, (288, 2, 1), MNIST_CONV2)


@pytest.mark.parametrize(
    ("grid", "fits"),
    [((144, 1, 1), True), ((1, 144, 1), True), ((144, 2, 1), False), ((72, 2, 1), False)],
)
def test_a_tensor_core_kernel_may_have_its_grid_either_way(grid: Grid, fits: bool) -> None:
    name = (
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize256x64x16_stage4"
        "_warpsize2x2x1_g1"
    )
    assert matches(name, grid, MNIST_CONV2) is fits


@pytest.mark.parametrize(
    ("grid", "fits"),
    [((128, 3, 2), True), ((128, 2, 3), False), ((127, 3, 2), False), ((64, 3, 2), False)],
)
def test_fused_winograd_needs_every_side_of_its_grid(grid: Grid, fits: bool) -> None:
    prediction = predict(FUSED, grid, MNIST_CONV2)
    assert (bool(prediction.tilings), prediction.family) == (fits, "winograd fused")
    for tiling in prediction.tilings:
        assert tiling.describe() == (
            f"16 products x ceil({128 // 2 * 3 * 2 * 32:,} / 32) x ceil(64 / 32) tiles x 32 x 32"
        )


def test_winograd_is_for_filters_of_three_by_three() -> None:
    for sides in ((3, 1), (1, 3), (5, 5)):
        shape = ConvShape(64, 128, 256, 24, 24, *sides)
        assert predict_tiles(recognise(FUSED), (1, 1, 1), shape) is None
        assert predict("volta_sgemm_128x64_nn", (2, 36, 36), shape).family == "gemm"


def test_products_between_transforms_say_how_their_tile_lies() -> None:
    shape = ConvShape(32, 100, 96, 10, 13, 3, 3)
    tiles = 32 * 3 * 4  # 10 rows are 3 tiles of 4, 13 columns are 4
    along = tile("volta_sgemm_128x32_nn", (tiles // 128, 96 // 32, 36), shape)
    across = tile("volta_sgemm_128x32_nn", (1, tiles // 32, 36), shape)
    assert predict("volta_sgemm_128x32_nn", (1, 12, 36), shape).family == "winograd not fused"
    assert along.multiplies == 36 * 3 * 3 * 128 * 32 * 100
    assert across.multiplies == 36 * 12 * 128 * 32 * 100
    assert along.describe() == "36 products x ceil(384 / 128) x ceil(96 / 32) tiles x 128 x 32"
    assert across.describe() == "36 products x ceil(384 / 32) x ceil(96 / 128) tiles x 32 x 128"
    assert not matches("volta_sgemm_128x32_nn", (2, 12, 36), shape)


def test_a_product_of_pixels_is_one_of_all_images_or_one_an_image() -> None:
    shape = ConvShape(4, 64, 256, 16, 16, 1, 1)
    whole = tile("volta_sgemm_128x64_nn", (2, 16, 1), shape)
    apart = tile("volta_sgemm_128x64_nn", (2, 4, 4), shape)
    assert (whole.shape.batch, blocks(whole)) == (1, 32)
    assert whole.multiplies == apart.multiplies == shape.macs
    assert apart.describe() == "4 products x ceil(256 / 64) x ceil(256 / 128) tiles x 64 x 128"
    assert blocks(apart) == 4 * 8
    assert not matches("volta_sgemm_128x64_nn", (3, 3, 4), shape)
    image = ConvShape(1, 64, 256, 16, 16, 1, 1)
    assert matches("volta_sgemm_128x64_nn", (2, 4, 1), image)
    assert not matches("volta_sgemm_128x64_nn", (2, 5, 1), image)


def test_a_batched_product_needs_its_batch_in_the_grid_and_the_rest_is_split_k() -> None:
    shape = GemmShape(m=100, n=70, k=50, batch=3)
    for depth, split in ((3, 1), (6, 2)):
        tiling = tile("volta_sgemm_128x64_nn", (1, 2, depth), shape)
        assert (tiling.parts, blocks(tiling)) == (split, 3 * 1 * 2)
    for depth in (5, 2):
        assert not matches("volta_sgemm_128x64_nn", (1, 2, depth), shape)
    shared_sum = tile("cutlass_80_simt_sgemm_128x64_8x5_nn_align1", (2, 1, 9), shape)
    # Two of 3 blocks sum ceil(50 / 3) = 17, padded to 24 in steps of 8; the last sums 16.
    assert shared_sum.multiplies == 6 * 128 * 64 * (24 + 24 + 16)
    assert shared_sum.rule(shape.macs).endswith(
        "(sum of 50 in 3 parts, padded to 64) = 3,145,728 multiplies (estimated 1,050,000)"
    )


@pytest.mark.parametrize(
    ("grid", "count", "sides"),
    [
        ((2, 3, 1), 6, (128, 64)),
        ((3, 2, 1), 6, (128, 64)),
        ((1, 5, 1), 5, (64, 128)),
        ((5, 1, 1), 5, (64, 128)),
        ((6, 1, 1), 6, (128, 64)),
        ((7, 1, 1), None, None),
    ],
)
def test_the_grid_tells_how_a_product_s_tile_lies(
    grid: Grid, count: int | None, sides: tuple[int, int] | None
) -> None:
    shape = GemmShape(m=300, n=100, k=9)
    if count is None:
        assert not matches("volta_sgemm_128x64_nn", grid, shape)
        return
    tiling = tile("volta_sgemm_128x64_nn", grid, shape)
    assert (tiling.sides, blocks(tiling)) == (sides, count)
    assert tiling.multiplies == count * 128 * 64 * 9


def test_public_measurements_have_the_predicted_grids_and_families(shared: Path) -> None:
    script = load("proof/neusight.py")
    whole = script.together([script.tally(path) for path in script.files(shared)])
    assert whole.rows > 27_000
    assert whole.right >= script.FAMILIES_WANTED * whole.rows
    assert set(whole.predicted) == set(script.VERIFIED)
    for kind in script.VERIFIED:
        assert whole.matched[kind] >= script.GRIDS_WANTED * whole.predicted[kind] > 2000
        assert whole.multiplies[kind] > 0


def test_a_wrong_rule_would_show_in_the_public_measurements(shared: Path) -> None:
    """The share that matches is no accident of the formula: one image more, and it falls."""
    script = load("proof/neusight.py")
    rows = [
        row for row in script.rows(script.files(shared)[0]) if isinstance(row.shape, ConvShape)
    ][:500]
    results = []
    for row in rows:
        larger = replace(row.shape, batch=2 * row.shape.batch)
        prediction = predict_tiles(recognise(row.longest), row.grid, larger)
        if prediction is not None:
            results.append(bool(prediction.tilings))
    assert sum(results) < 0.5 * len(results)
