"""What a row's count is made of, for kernels made by hand: each part, and how near a prediction
must be."""

from dataclasses import replace
from math import ceil

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise_kernel
from perfctl.orchestrator.ledger.causes.breakdown import break_down_executed_flops
from perfctl.orchestrator.ledger.causes.judge import (
    compute_unexplained_gap_share,
    drop_refuted_and_rank_causes,
)
from perfctl.orchestrator.ledger.causes.matching import (
    can_grids_fit_shape,
    has_tiling_for_row_batch,
    list_tiles_fitting_count,
)
from perfctl.orchestrator.ledger.causes.row_rules import (
    detect_layout_and_epilogue,
    detect_split_k,
    detect_tile_padding,
)
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import (
    BOTH,
    GEMM,
    HALF,
    PAPER,
    backward,
    call,
    case,
    convolution,
    linear,
    measured,
    seen_with,
    work,
)
from tests.make.tables import table

TILED = Algorithm("gemm", "gemm", tile=(128, 64, None))
FC = GemmShape(m=32, n=10, k=100)
TILE = 128 * 64 * 100
"""Multiply-adds of the one tile that 32 x 10 outputs lie in."""


def gemm(ffma, *, grid=(1, 1, 1), algorithm=TILED, **more):
    return work("gemm", algorithm, grid, ffma=ffma, **more)


def split(*kernels, **more):
    return break_down_executed_flops(case(32, *kernels, **{"forward": FC, **more}), None)


@table(
    "grid counted is_predicted",
    [
        *(((1, 1, 1), counted, True) for counted in (1, 1.19, 0.84)),
        *(((1, 1, 1), counted, False) for counted in (1.21, 0.82)),
        *((None, counted, True) for counted in (1, 1.019)),
        *((None, counted, False) for counted in (0.979, 1.5)),
    ],
)
def test_a_forward_product_is_the_predicted_one_within_a_fifth_and_2_percent_without_a_grid(
    grid, counted, is_predicted
):
    parts = split(gemm(round(TILE * counted), grid=grid))
    assert parts.base == (2 * TILE if is_predicted else PAPER)
    assert bool(parts.rules) is is_predicted
    assert (parts.estimated, parts.seen) == (PAPER, 2 * round(TILE * counted))
    assert (parts.method, parts.family) == ("gemm", "gemm")


@table(
    "kernel shape",
    {
        "another grid": (gemm(TILE, grid=(2, 1, 1)), FC),
        "two launches": (gemm(TILE, launches=2), FC),
        "no count": (gemm(0), FC),
        "no tile": (gemm(TILE, algorithm=Algorithm("gemm")), FC),
        "no shape": (gemm(TILE), None),
        # FMUL: 2,048 rows of 128 are within 2% of 2,080, which 2,050 rows need
        "FMUL of other tiles": (
            work("sgemm", TILED, ffma=2080 * 256 * 128, fmul=2080 * 256),
            GemmShape(2000, 256, 128),
        ),
    },
)
def test_nothing_is_predicted_without_what_a_prediction_needs(kernel, shape):
    parts = split(kernel, forward=shape)
    assert (parts.base, parts.rules) == (PAPER, ())


@table("launches calls", [(2, 1), (3, 1), (4, 2), (2, 2)])
def test_launches_beyond_the_calls_of_a_step_are_a_part_of_their_own(launches, calls):
    kernel = gemm(launches * TILE, launches=launches)
    row = case(32, kernel, calls=(call(32, macs=1000 * calls),))
    parts = break_down_executed_flops(replace(row, forward=FC, calls=calls), None)
    assert (parts.base, parts.called) == (2 * TILE * calls, 2 * TILE * (launches - calls))
    assert parts.compute_flop_factor_of_part("called") == launches / calls


def test_both_gradients_of_a_linear_layer_have_a_tile_each():
    # 32 x 100 of depth 10: one tile of 64 x 128 or 128 x 64 twice; 10 x 100 of depth 32 likewise
    kernels = [gemm(128 * 64 * 10), gemm(128 * 64 * 32)]
    parts = split(*kernels, direction="backward", calls=BOTH)
    assert parts.base == 2 * 128 * 64 * (10 + 32)
    assert len(parts.rules) == 2
    # one of two products is no gradient of the weight, and which one is unknown
    assert not split(*kernels, direction="grad_weight", calls=BOTH[1:]).rules


@table(
    "sizes share rule",
    [
        ((2, 3), 16 / 36, "4^2 multiplies in place of 2^2 x 3^2"),
        ((4, 3), 36 / 144, "6^2 multiplies in place of 4^2 x 3^2"),
        ((9, 5), 169 / 2025, "13^2 multiplies in place of 9^2 x 5^2"),
    ],
)
def test_winograd_without_a_grid_that_fits_has_its_multiplies_by_theory(sizes, share, rule):
    fused = Algorithm("winograd", "winograd", winograd=sizes)
    kernel = work("volta_scudnn_winograd_128x128_nt_v1", fused, ffma=14_000, fadd=900)
    name = "cudnn::winograd::generateWinogradTilesKernel"
    transform = work(name, Algorithm("winograd", role="transform"), fadd=100)
    parts = split(kernel, transform, kind="Conv2d", forward=None)
    assert (parts.base, parts.rules) == (pytest.approx(PAPER * share), (rule,))
    assert (parts.transforms, parts.extra, parts.transforming) == (100 + 900, 0, (transform,))
    half = break_down_executed_flops(backward(kernel), None)
    assert half.base == pytest.approx(2 * PAPER * (0.5 + 0.5 * share)), "one of two gradients"


def test_winograd_without_a_grid_counts_the_tiles_at_the_edge():
    shape = ConvShape(2, 8, 8, 20, 20, 5, 5)
    kernel = work("winograd9x9_5x5", Algorithm("winograd", "winograd", winograd=(9, 5)), ffma=5)
    parts = break_down_executed_flops(convolution(shape, kernel), None)
    assert parts.base == pytest.approx(2 * 2 * ceil(20 / 9) ** 2 * 13**2 * 8 * 8)
    assert parts.base / parts.estimated > 169 / 2025 and "edge" in " ".join(parts.rules)


def test_a_convolution_next_to_transforms_is_not_the_product_between_them():
    shape = ConvShape(2, 8, 8, 20, 20, 3, 3)
    transform = "cudnn::winograd_nonfused::winogradForwardData4x4<float, float>"
    for name, family in (
        ("volta_scudnn_128x128_relu_medium_nn_v1", "conv"),
        ("volta_sgemm_128x128_nn", "winograd"),
    ):
        product = work(name, recognise_kernel(name), (7, 1, 1), ffma=shape.macs)
        row = convolution(shape, product, work(transform, recognise_kernel(transform), ffma=64))
        assert break_down_executed_flops(row, None).family == family


@table(
    "out filters tile tiles",
    [
        ((10, 10), (5, 5), 16, 2),
        ((24, 13), (5, 5), 16, 2 * 2 * 2),
        ((12, 12), (5, 5), 16, 2),
        ((30, 60), (3, 3), 32, 2 * 2),
        ((10, 10), (17, 5), 16, None),
        ((10, 10), (5, 17), 16, None),
        ((1, 1), (16, 16), 16, 2),
    ],
)
def test_a_product_of_fourier_transforms_covers_the_outputs_in_tiles(out, filters, tile, tiles):
    name = f"void fft2d_r2c_{tile}x{tile}<float>(float2*)"
    kernel = work(name, Algorithm("fft", "fft"), ffma=5)
    parts = break_down_executed_flops(
        convolution(ConvShape(2, 8, 16, *out, *filters), kernel), None
    )
    if tiles is None:
        assert (parts.base, parts.rules) == (parts.estimated, ())
        return
    assert parts.base == 2 * tiles * 8 * 16 * tile * (tile // 2 + 1) * 4
    points = f"{tile} x {tile} points, {tile} x {tile // 2 + 1} complex products each"
    assert parts.rules == (f"{tiles:,} tiles of {points}",)


def test_fouriers_blocks_are_complete_at_another_batch_too():
    """24 channels in a block of 32, 40 tiles in 2 of them: at half the batch one block ran."""
    shape = ConvShape(10, 64, 24, 56, 56, 5, 5)
    transform = work("fft2d_r2c_32x32<float>", Algorithm("fft", "fft", role="transform"), fadd=1000)
    block = 32 * 32 * 544 * 4 * 64
    tile = Algorithm("gemm", "gemm", (32, 32, None))
    product = work("gcgemm_32x32_nt", tile, (1, 1, 544), ffma=block)
    parts = break_down_executed_flops(convolution(shape, transform, product), None)
    assert parts.base == 2 * 2 * block


@table(
    "area fills",
    [
        (64 * 64, True),
        (64 * 64 * 1.019, True),
        (64 * 64 * 1.04, True),
        (64 * 64 * 1.075, False),
        (32 * 10, True),
        (5000, False),
        (0, False),
        (256 * 256, True),
        (192 * 128, True),
        (512 * 512, False),
    ],
)
def test_a_product_of_unknown_tile_may_fill_complete_tiles(area, fills):
    kernel = gemm(100 * area, algorithm=Algorithm("gemm"))
    assert bool(list_tiles_fitting_count(case(32, kernel, forward=FC))) is fills
    assert not list_tiles_fitting_count(case(32, kernel)), "of no known shape"
    assert not list_tiles_fitting_count(case(32, gemm(100 * area), forward=FC)), "its tile is known"
    assert not list_tiles_fitting_count(case(32, forward=FC))


FITTING, OTHER, UNKNOWN = gemm(5), gemm(5, grid=(3, 3, 1)), gemm(5, algorithm=Algorithm("gemm"))
TRANSFORM = work("t", Algorithm("winograd", role="transform"))


@table(
    "kernels fits fills",
    [
        ((FITTING,), True, True),
        ((OTHER,), False, False),
        ((OTHER, FITTING), True, True),
        ((UNKNOWN,), True, False),
        ((), True, False),
        ((gemm(5, grid=None),), True, False),
        # transforms follow the batch more closely
        ((FITTING, TRANSFORM), True, False),
    ],
)
def test_whether_grids_agree_with_a_shape(kernels, fits, fills):
    row = case(32, *kernels, forward=FC)
    assert (can_grids_fit_shape(row), has_tiling_for_row_batch(row)) == (fits, fills)


def named(name, ffma=32_000, grid=(1, 1, 1)):
    return work(name, GEMM, grid, ffma=ffma)


@table(
    "kernels is_repeated",
    [
        ((named("f"), named("g"), named("h")), True),
        ((named("f", grid=(2, 1, 1)), named("g"), named("h")), False),
        ((named("f"), named("g")), False),  # it may be one of the two gradients
        ((named("f"), named("g"), named("h", 7_600)), False),  # less than 0.24 of a gradient
        ((named("f"), named("g"), named("h", 7_700)), True),
    ],
)
def test_forward_that_ran_again_has_its_names_and_grids(kernels, is_repeated):
    forward = case(32, named("f"))
    parts = break_down_executed_flops(case(32, *kernels, direction="backward", calls=BOTH), forward)
    assert [kernel.name for kernel in parts.repeating] == (["f"] if is_repeated else [])
    assert parts.repeated == (64_000 if is_repeated else 0)
    assert break_down_executed_flops(forward, forward).repeating == (), "forward itself"


SGEMM = Algorithm("gemm", "gemm", tile=(128, 32, None))


def scaled(shape, ffma, fmul, name="", **more):
    """A row whose kernel scales each value of its tiles once for each part of the sum."""
    name, grid = name or "ampere_sgemm_128x32_tn", more.pop("grid", None)
    return linear(shape, work(name, SGEMM, grid, ffma=ffma, fmul=fmul, **more))


AREA = 128 * 96
SIDES = 608 * 1024
SLICED = 64 * 512


@table(
    "row area depth onto rule",
    {
        # 7 parts: six of 72, padded from 72 and the last of 68, padded to 72
        **{
            f"7 parts, {onto} of them onto the output": (
                scaled(GemmShape(128, 96, 500), AREA * (7 * 72 + onto), 7 * AREA),
                AREA,
                7 * 72,
                onto,
                "(sum of 500 in 7 parts",
            )
            for onto in (0, 6, 7)
        },
        # 410 padded to 416, four times, and 408
        "a shorter last part": (
            scaled(GemmShape(128, 96, 2048), AREA * (4 * 416 + 408), 5 * AREA),
            AREA,
            4 * 416 + 408,
            0,
            f"(sum of 2,048 in 5 parts, padded to {4 * 416 + 408:,}) =",
        ),
        "beta": (
            scaled(GemmShape(34, 64, 2), 64 * 128 * (8 + 1), 64 * 128),
            64 * 128,
            8,
            1,
            "padded to 8",
        ),
        # 32 rows per tile: 7 parts of 147, the last of 142
        "the tile across": (
            scaled(GemmShape(600, 1024, 1024), SIDES * (6 * 152 + 144 + 7), 7 * SIDES),
            SIDES,
            6 * 152 + 144,
            7,
            "ceil(600 / 32) x ceil(1,024 / 128) tiles x 32 x 128",
        ),
        # 27 parts of 304, in steps of 4 x 8
        "four slices of each block": (
            scaled(
                GemmShape(64, 512, 8208),
                SLICED * 27 * 320,
                4 * 27 * SLICED,
                "ampere_sgemm_128x32_sliced1x4_tn",
                fadd=3 * 27 * SLICED,
            ),
            SLICED,
            27 * 320,
            0,
            f"(sum of 8,208 in 27 parts, padded to {27 * 320:,}) =",
        ),
    },
)
def test_fmul_says_tiles_parts_and_sums_onto_the_output(row, area, depth, onto, rule):
    parts = break_down_executed_flops(row, None)
    assert (parts.base, parts.onto) == (2 * area * depth, 2 * area * onto)
    assert parts.seen == parts.base
    assert rule in " ".join(parts.rules)


@table("activation text", [("gelu", "(activation, epilogue"), ("relu", "(scaling, epilogue")])
def test_multiply_adds_of_a_tensor_core_kernel_are_not_sums_onto_its_output(activation, text):
    name = f"cutlass_80_tensorop_bf16_s16816gemm_{activation}_bf16_128x128_32x4_tn_align8"
    kernel = work(name, HALF, tensor=64_000, ffma=8 * 320, fmul=320)
    cause = detect_layout_and_epilogue(seen_with(linear(GemmShape(32, 10, 100), kernel)))
    assert cause is not None and text in describe_cause(cause)


def test_sums_onto_the_output_are_epilogue_and_a_whole_number_of_values():
    shape, area = GemmShape(34, 64, 2), 64 * 128
    cause = detect_layout_and_epilogue(seen_with(scaled(shape, area * 9, area)))
    assert cause is not None and "(scaling, sums onto its output)" in describe_cause(cause)
    other = break_down_executed_flops(scaled(shape, area * (8 + 1.5), area), None)
    assert (other.rules, other.onto) == ((), 0)


@table("grid fits", [((16, 1, 4), True), ((4, 4, 4), True), ((16, 2, 2), False), (None, True)])
def test_a_recorded_grid_has_to_agree_with_fmul(grid, fits):
    area = 128 * 512
    row = scaled(GemmShape(128, 512, 256), area * (256 + 3), 4 * area, grid=grid)
    assert (break_down_executed_flops(row, None).onto == 2 * 3 * area) is fits


def test_two_parts_of_a_small_gap_are_causes_though_each_is_half_a_percent_of_it_at_most():
    # 215 x 32 = 6,880 rows: 0.3% more, and a scale of 1 / 256: 0.4%
    area = 6880 * 384
    given = seen_with(scaled(GemmShape(6860, 384, 128), area * 128, area))
    causes = [detect_tile_padding(given), detect_layout_and_epilogue(given)]
    factors = [cause and cause.factor for cause in causes]
    assert factors == pytest.approx([6880 / 6860, 1 + 1 / 256])
    confirmed = drop_refuted_and_rank_causes(given, filter(None, causes))
    assert compute_unexplained_gap_share(given.ratio, confirmed) == pytest.approx(0, abs=1e-9)
    assert not given.is_factor_significant(1.0005), "a fourteenth of the gap"
    exact = seen_with(scaled(GemmShape(6860, 384, 128), 6860 * 384 * 128, 0))
    assert not exact.is_factor_significant(1.004), "no gap"


@table("values", ["tiles", "outputs"])
@table("parts", [3, 4])
def test_a_kernel_that_adds_up_the_parts_of_its_split_sum_itself_is_split_k(parts, values):
    """Each part but the first is added to every value, and each is rounded up to steps of 32
    by itself."""
    shape = GemmShape(m=200, n=120, k=60)
    tiled = ceil(200 / 64) * ceil(120 / 64) * 64 * 64
    padded = parts * ceil(ceil(60 / parts) / 32) * 32
    sums = (parts - 1) * (tiled if values == "tiles" else 200 * 120)
    tile = Algorithm("gemm", "gemm", (64, 64, 32))

    def row(fadd):
        name = "cutlass_simt_sgemm_64x64_32x5_nn"
        return seen_with(
            linear(shape, work(name, tile, (4, 2, parts), ffma=tiled * padded, fadd=fadd))
        )

    cause, padding = detect_split_k(row(sums)), detect_tile_padding(row(sums))
    assert cause is not None and cause.factor == pytest.approx(1 + sums / (2 * tiled * padded))
    assert f"into {parts} slices and adds the slices up itself" in describe_cause(cause)
    assert padding is not None and padding.factor == pytest.approx(tiled * padded / shape.macs)
    assert detect_layout_and_epilogue(row(sums)) is None
    assert detect_split_k(row(sums // 7)) is None, "it adds something else"


def test_a_filters_gradient_split_over_the_outputs_fills_tiles_too():
    """48 filters of 20 channels x 3 x 3 over 10 images of 14 x 14 outputs, in tiles of 128 x 64 and
    6 parts of steps of 16."""
    shape = ConvShape(10, 20, 48, 14, 14, 3, 3)
    tiles = ceil(20 * 9 / 128) * ceil(48 / 64)
    multiplies = tiles * 128 * 64 * 6 * ceil(ceil(10 * 14 * 14 / 6) / 16) * 16
    tile = (128, 64, None)
    wgrad = Algorithm("conv", "implicit gemm", tile, split_k=True, direction="grad_weight")
    calls = (call(10, "grad_weight", macs=shape.macs // 10, kind="Conv2d"),)

    def row(grid):
        name = "volta_scudnn_128x64_stridedB_splitK_interior_nn_v1"
        kernel = work(name, wgrad, grid, ffma=multiplies)
        return seen_with(
            measured(10, kernel, direction="backward", calls=calls, forward=shape, kind="Conv2d")
        )

    padding, unknown = detect_tile_padding(row((tiles, 1, 6))), detect_split_k(row((5, 5, 6)))
    assert padding is not None and padding.factor == pytest.approx(multiplies / shape.macs)
    assert unknown is not None and (unknown.factor, unknown.confidence) == (None, "plausible")


@table(
    "m n tile is_padding",
    [(200, 300, (64, 128), True), (50, 100, (64, 64), True), (50, 100, (256, 64), False)],
)
def test_a_triton_kernels_tile_follows_from_its_grid_if_one_filling_fits(m, n, tile, is_padding):
    """Inductor shrinks a tile to the next power of two of what it covers, so 256 rows are none
    for 50."""
    shape = GemmShape(m, n, 100)
    blocks = ceil(m / tile[0]) * ceil(n / tile[1])
    multiplies = blocks * tile[0] * tile[1] * ceil(100 / 32) * 32
    other = measured(m, work(ffma=1000 * m), layer="b", calls=(call(m, layer="b"),))

    def padding(grid):
        name = "triton_tem_fused_mm_3"
        kernel = work(name, recognise_kernel(name), (grid, 1, 1), ffma=multiplies)
        return detect_tile_padding(seen_with(linear(shape, kernel), other))

    cause = padding(blocks)
    assert (cause is not None) is is_padding
    if cause is not None:
        assert cause.factor == pytest.approx(multiplies / shape.macs)
        assert cause.confidence == "plausible", "the count chose among the tiles that fit the grid"
    assert padding(blocks + 1000) is None
