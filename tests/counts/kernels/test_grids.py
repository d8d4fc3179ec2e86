"""Tiles and multiplies from a kernel's name and its layer's shape; every number worked out
from the shape."""

from dataclasses import replace
from math import prod

from perfctl.orchestrator.counts.kernels.grids import (
    ConvShape,
    GemmShape,
    predict_forward_tiles,
)
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from tests.make.scripts import load
from tests.make.tables import table

IMPLICIT = "volta_scudnn_128x64_relu_xregs_large_nn_v1"
FUSED = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
MNIST_CONV2 = ConvShape(
    batch=64, in_channels=32, out_channels=64, out_h=24, out_w=24, kernel_h=3, kernel_w=3
)


def predict(name, grid, shape):
    prediction = predict_forward_tiles(recognise_kernel(name), grid, shape)
    assert prediction is not None
    return prediction


def matches(name, grid, shape):
    return bool(predict(name, grid, shape).tilings)


def tile(name, grid, shape):
    """Return the likeliest tiling; all that a recorded grid allows need as many multiplies."""
    prediction = predict(name, grid, shape)
    assert len({tiling.padded_macs for tiling in prediction.tilings}) == 1
    return prediction.tilings[0]


def blocks(tiling):
    return tiling.shape.batch * prod(tiling.tile_counts)


SGEMM = "volta_sgemm_128x64_{}"
XMMA = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize{}x16_stage4"
    "_warpsize2x2x1_g1"
)
XMMA_FFMA = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize128x32x8_g1_ffma__5x_cudnn"
CUTLASS = "cutlass_80_simt_sgemm_128x64_8x5_nn_align1"
NARROW = SGEMM.format("nn").replace("128x64", "128x32")
THIN = ConvShape(64, 3, 64, 24, 24, 3, 3)
DEEP, FEW = ConvShape(64, 128, 256, 24, 24, 3, 3), ConvShape(1, 128, 256, 24, 24, 3, 3)
ODD = ConvShape(32, 100, 96, 10, 13, 3, 3)
"""10 rows are 3 tiles of 4, 13 columns are 4."""
PIXELS, IMAGE = ConvShape(4, 64, 256, 16, 16, 1, 1), ConvShape(1, 64, 256, 16, 16, 1, 1)
LINEAR, TALL = GemmShape(m=128, n=256, k=100), GemmShape(m=300, n=100, k=9)
BATCHED = GemmShape(m=100, n=70, k=50, batch=3)


@table(
    "name grid shape multiplies blocks_and_parts",
    {
        "a block for every tile of outputs": (
            IMPLICIT,
            (288, 1, 1),
            MNIST_CONV2,
            64 * 24 * 24 * 64 * 288,
            (64 * 24 * 24 // 128, 1),
        ),
        "another batch": (IMPLICIT, (287, 1, 1), MNIST_CONV2, None, None),
        "a split sum in the depth": (
            IMPLICIT,
            (288, 1, 4),
            MNIST_CONV2,
            MNIST_CONV2.macs,
            (288, 1),
        ),
        "FFMA kernels have outputs along x": (IMPLICIT, (1, 288, 1), MNIST_CONV2, None, None),
        "twice the channels": (IMPLICIT, (288, 2, 1), MNIST_CONV2, None, None),
        **{
            f"a tensor-core kernel along {axis}": (
                XMMA.format("256x64"),
                grid,
                MNIST_CONV2,
                MNIST_CONV2.macs,
                (144, 1),
            )
            for axis, grid in (("x", (144, 1, 1)), ("y", (1, 144, 1)))
        },
        "a tensor-core kernel twice": (
            XMMA.format("256x64"),
            (144, 2, 1),
            MNIST_CONV2,
            None,
            None,
        ),
        "a tensor-core kernel in two columns": (
            XMMA.format("256x64"),
            (72, 2, 1),
            MNIST_CONV2,
            None,
            None,
        ),
        "xmma's FFMA has its channels in x": (
            XMMA_FFMA,
            (1, 676, 1),
            ConvShape(128, 1, 32, 26, 26, 3, 3),
            676 * 128 * 32 * 16,
            (676, 1),
        ),
        # 24 rows are 2 blocks of 16: four ninths of the multiplies, and padding
        "fused Winograd": (
            FUSED,
            (64 * 2, 3, 2),
            MNIST_CONV2,
            64 * 2 * 3 * 2 * 32 * 32 * 16 * 32,
            (16 * 64 * 2 * 3 * 2, 1),
        ),
        "36 products between transforms": (
            SGEMM.format("nn"),
            (256 // 128, 64 * 36 // 64, 36),
            DEEP,
            DEEP.macs // 4,
            (36 * 2 * 36, 1),
        ),
        "sixteen images at a time": (
            SGEMM.format("nn"),
            (2, 16 * 36 // 64, 36),
            FEW,
            FEW.macs // 4 * 16,
            (36 * 2 * 9, 1),
        ),
        "between transforms, along": (
            NARROW,
            (3, 3, 36),
            ODD,
            36 * 3 * 3 * 128 * 32 * 100,
            (36 * 9, 1),
        ),
        "between transforms, across": (
            NARROW,
            (1, 12, 36),
            ODD,
            36 * 12 * 128 * 32 * 100,
            (36 * 12, 1),
        ),
        "between transforms, neither": (NARROW, (2, 12, 36), ODD, None, None),
        "split-K multiplies no more": (SGEMM.format("tn"), (2, 2, 8), LINEAR, LINEAR.macs, (4, 8)),
        "pixels of all images": (SGEMM.format("nn"), (2, 16, 1), PIXELS, PIXELS.macs, (32, 1)),
        "pixels of an image": (SGEMM.format("nn"), (2, 4, 4), PIXELS, PIXELS.macs, (4 * 8, 1)),
        "pixels of neither": (SGEMM.format("nn"), (3, 3, 4), PIXELS, None, None),
        "pixels of one image": (SGEMM.format("nn"), (2, 4, 1), IMAGE, IMAGE.macs, (8, 1)),
        "pixels of another image": (SGEMM.format("nn"), (2, 5, 1), IMAGE, None, None),
        **{
            f"a batch of 3 in a depth of {depth}": (
                SGEMM.format("nn"),
                (1, 2, depth),
                BATCHED,
                parts and 6 * 128 * 64 * 50,
                parts and (3 * 1 * 2, parts),
            )
            for depth, parts in ((3, 1), (6, 2), (5, None), (2, None))
        },
        # two of 3 blocks sum ceil(50 / 3) = 17, padded to 24 in steps of 8; the last sums 16
        "a batch whose sum is shared": (
            CUTLASS,
            (2, 1, 9),
            BATCHED,
            6 * 128 * 64 * (24 + 24 + 16),
            (6, 3),
        ),
        **{
            f"300 rows by 100 in a grid of {grid[0]} x {grid[1]}": (
                SGEMM.format("nn"),
                grid,
                TALL,
                count and count * 128 * 64 * 9,
                count and (count, 1),
            )
            for grid, count in (
                ((2, 3, 1), 6),
                ((3, 2, 1), 6),
                ((1, 5, 1), 5),
                ((5, 1, 1), 5),
                ((6, 1, 1), 6),
                ((7, 1, 1), None),
            )
        },
    },
)
def test_a_grid_has_a_block_for_every_tile_or_does_not_fit(
    name, grid, shape, multiplies, blocks_and_parts
):
    assert matches(name, grid, shape) == (multiplies is not None)
    if multiplies is not None:
        tiling = tile(name, grid, shape)
        assert tiling.padded_macs == multiplies
        assert (blocks(tiling), tiling.parts) == blocks_and_parts


@table(
    "name grid shape rule",
    {
        "a tile wider than the channels": (
            IMPLICIT.replace("128x64", "128x128"),
            (288, 1, 1),
            MNIST_CONV2,
            "ceil(36,864 / 128) x ceil(64 / 128) tiles x 128 x 128 x 288 = 1,358,954,496 multiplies "
            "(estimated 679,477,248)",
        ),
        "a step that the name says": (
            XMMA.format("128x64"),
            (288, 1, 1),
            THIN,
            "ceil(36,864 / 128) x ceil(64 / 64) tiles x 128 x 64 x (sum of 27, padded to 32) = "
            f"{288 * 128 * 64 * 32:,} multiplies (estimated {THIN.macs:,})",
        ),
        "split-K": (
            SGEMM.format("tn"),
            (2, 2, 8),
            LINEAR,
            "ceil(128 / 64) x ceil(256 / 128) tiles x 64 x 128 x "
            "(sum of 100 in 8 parts) = 3,276,800 multiplies (estimated 3,276,800)",
        ),
        "products between transforms": (
            NARROW,
            (3, 3, 36),
            ODD,
            "36 products x ceil(384 / 128) x ceil(96 / 32) tiles x 128 x 32 x 100 = "
            f"{36 * 9 * 128 * 32 * 100:,} multiplies (estimated {ODD.macs:,})",
        ),
        "products of images": (
            SGEMM.format("nn"),
            (2, 4, 4),
            PIXELS,
            "4 products x ceil(256 / 64) x ceil(256 / 128) tiles x 64 x 128 x 64 = "
            f"{PIXELS.macs:,} multiplies (estimated {PIXELS.macs:,})",
        ),
    },
)
def test_a_rule_states_tiles_sum_and_multiplies(name, grid, shape, rule):
    assert tile(name, grid, shape).describe_arithmetic(shape.macs) == rule


@table(
    "name shape",
    [
        *(
            (name, MNIST_CONV2)
            for name in (
                "my_kernel",
                "void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)",
                "void fft2d_r2c_32x32<float>(float2*)",
                "void precomputed_convolve_sgemm<float, 1024, 5, 5, 4, 3, 3, 1, false>(int)",
                "sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x16_stage4",
                "void splitKreduce_kernel<32, 16, int, float>(x)",
            )
        ),
        (IMPLICIT, ConvShape(1, 8, 8, 4, 4, 3, 3, groups=8)),
        *((FUSED, replace(DEEP, kernel_h=h, kernel_w=w)) for h, w in ((3, 1), (1, 3), (5, 5))),
    ],
)
def test_what_has_no_formula_gets_no_number(name, shape):
    assert predict_forward_tiles(recognise_kernel(name), (1, 1, 1), shape) is None


@table(
    "name grid shape family",
    [
        (IMPLICIT, (288, 1, 4), MNIST_CONV2, "implicit gemm"),
        (SGEMM.format("nn"), (2, 36, 36), DEEP, "winograd not fused"),
        (SGEMM.format("nn"), (2, 36, 36), replace(DEEP, kernel_w=1), "gemm"),
    ],
)
def test_the_family_follows_from_name_grid_and_filter(name, grid, shape, family):
    assert predict(name, grid, shape).family == family


def test_tiles_in_x_and_y_are_likelier_than_tiles_in_z():
    tiling = tile(SGEMM.format("nn"), (1, 1, 2), GemmShape(m=128, n=64, k=100))
    assert (tiling.sides, tiling.parts) == ((128, 64), 2), "not two tiles of 64 x 128"


def test_a_long_sum_prints_the_logarithms_of_its_tile():
    name = "void sgemm_largek_lds64<(bool)1, (bool)0, (int)6, (int)3, (int)4, 5, 2, 66>(float *)"
    for spelled in (name, name.replace("(bool)", "").replace("(int)", "")):
        assert recognise_kernel(spelled).tile == (64, 8, None)


@table(
    "grid fits",
    [((128, 3, 2), True), ((128, 2, 3), False), ((127, 3, 2), False), ((64, 3, 2), False)],
)
def test_fused_winograd_needs_every_side_of_its_grid(grid, fits):
    prediction = predict(FUSED, grid, MNIST_CONV2)
    assert (bool(prediction.tilings), prediction.family) == (fits, "winograd fused")
    for tiling in prediction.tilings:
        assert tiling.describe_tiles() == (
            f"16 products x ceil({128 // 2 * 3 * 2 * 32:,} / 32) x ceil(64 / 32) tiles x 32 x 32"
        )


def test_public_measurements_have_the_predicted_grids_and_families(shared):
    script = load("proof/neusight.py")
    whole = script.together([script.tally(path) for path in script.files(shared)])
    assert whole.rows > 27_000
    assert whole.right >= script.FAMILIES_WANTED * whole.rows
    assert set(whole.predicted) == set(script.VERIFIED)
    for kind in script.VERIFIED:
        assert whole.matched[kind] >= script.GRIDS_WANTED * whole.predicted[kind] > 2000
        assert whole.multiplies[kind] > 0
