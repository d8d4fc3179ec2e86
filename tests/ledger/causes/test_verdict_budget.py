"""What a row's count is made of, for kernels made by hand: each part, and how near a prediction
must be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.breakdown import Breakdown, breakdown
from perfctl.orchestrator.ledger.causes.matching import fills_tiles, fits_grids, unknown_tiles
from tests.make.rows import call, case, work

TILED = Algorithm("gemm", "gemm", tile=(128, 64, None))
FC = GemmShape(m=32, n=10, k=100)
PAPER = 2 * 32 * 10 * 100
TILE = 128 * 64 * 100
"""Multiply-adds of the one tile that 32 x 10 outputs lie in."""


def gemm(ffma: float, *, grid: tuple[int, int, int] | None = (1, 1, 1), **more: Any) -> Any:
    return work("gemm", more.pop("algorithm", TILED), grid, ffma=ffma, **more)


def test_a_part_makes_those_before_it_grow() -> None:
    found = Breakdown(
        100, 200, "", None, None, (), 0, transforms=50, repeated=250, summed=100, extra=60
    )
    assert {part: found.grown(part) for part in ("transforms", "repeated", "summed", "extra")} == {
        "transforms": 1 + 50 / 200,
        "repeated": 1 + 250 / 250,
        "summed": 1 + 100 / 500,
        "extra": 1 + 60 / 600,
    }
    assert Breakdown(0, 0, "", None, None, (), 0, extra=60).grown("extra") == 1
    with pytest.raises(ValueError):
        found.grown("base")


@pytest.mark.parametrize(
    ("counted", "predicted"), [(1, True), (1.19, True), (1.21, False), (0.84, True), (0.82, False)]
)
def test_a_forward_product_is_the_predicted_one_within_a_fifth(
    counted: float, predicted: bool
) -> None:
    found = breakdown(case(32, gemm(round(TILE * counted)), forward=FC), None)
    assert found.base == (2 * TILE if predicted else PAPER)
    assert " ".join(found.rules).startswith("ceil(32 / " if predicted else "")
    assert (found.paper, found.seen, found.method, found.family) == (
        PAPER,
        2 * round(TILE * counted),
        "gemm",
        "gemm",
    )


def test_nothing_is_predicted_without_a_grid_that_matches_or_for_several_launches() -> None:
    for seen in (
        gemm(round(TILE * 1.5), grid=None),
        gemm(TILE, grid=(2, 1, 1)),
        gemm(TILE, launches=2),
        gemm(0),
        gemm(TILE, algorithm=Algorithm("gemm")),
    ):
        assert (
            breakdown(case(32, seen, forward=FC), None).base,
            " ".join(breakdown(case(32, seen, forward=FC), None).rules),
        ) == (
            PAPER,
            "",
        )
    assert " ".join(breakdown(case(32, gemm(TILE)), None).rules) == "", (
        "a layer whose shape is not known"
    )


@pytest.mark.parametrize(
    ("counted", "predicted"), [(1, True), (1.019, True), (0.979, False), (1.5, False)]
)
def test_without_a_grid_the_tile_and_the_shape_predict_what_the_count_must_match(
    counted: float, predicted: bool
) -> None:
    found = breakdown(case(32, gemm(round(TILE * counted), grid=None), forward=FC), None)
    assert found.base == (2 * TILE if predicted else PAPER)


@pytest.mark.parametrize(("launches", "calls"), [(2, 1), (3, 1), (4, 2), (2, 2)])
def test_launches_beyond_the_calls_of_a_step_are_a_part_of_their_own(
    launches: int, calls: int
) -> None:
    said = (call(32, macs=1000 * calls),)
    seen = replace(
        case(32, gemm(launches * TILE, launches=launches), calls=said), forward=FC, calls=calls
    )
    found = breakdown(seen, None)
    assert (found.base, found.called) == (2 * TILE * calls, 2 * TILE * (launches - calls))
    assert found.grown("called") == launches / calls


@pytest.mark.parametrize("parts", [2, 4])
def test_a_batch_split_over_launches_is_one_call(parts: int) -> None:
    shape = ConvShape(8, 16, 64, 32, 32, 3, 3)
    calls = (call(8, macs=shape.macs // 8, kind="Conv2d"),)
    tiled = Algorithm("conv", "implicit gemm", tile=(128, 128, None))
    rows = 8 // parts * 32 * 32 // 128
    kernel = work(
        "c", tiled, (rows, 1, 1), launches=parts, ffma=parts * rows * 128 * 128 * shape.depth
    )
    found = breakdown(case(8, kernel, kind="Conv2d", calls=calls, forward=shape), None)
    assert (found.base, found.called) == (2 * 2 * shape.macs, 0), "64 channels in a tile of 128"


@pytest.mark.parametrize(
    ("depth", "padded"), [(100, None), (104, 104), (112, 112), (128, 128), (113, 112), (108, None)]
)
def test_a_sum_is_padded_to_a_step_that_the_name_does_not_say(
    depth: int, padded: int | None
) -> None:
    found = breakdown(case(32, gemm(128 * 64 * depth), forward=FC), None)
    assert found.base == 2 * 128 * 64 * (padded or 100)
    assert (
        f"(sum of 100, padded to {padded}) = {128 * 64 * (padded or 0):,} multiplies"
        in " ".join(found.rules)
    ) is (padded is not None)


@pytest.mark.parametrize("depth", [100, 104, 112])
def test_a_step_that_the_name_says_is_the_one_that_pads(depth: int) -> None:
    stepped = replace(TILED, tile=(128, 64, 8))
    found = breakdown(case(32, gemm(128 * 64 * depth, algorithm=stepped), forward=FC), None)
    assert (found.base, "padded to 104)" in " ".join(found.rules)) == (2 * 128 * 64 * 104, True)


def test_both_gradients_of_a_linear_layer_have_a_tile_each() -> None:
    calls = (call(32, "grad_input"), call(32, "grad_weight"))
    # 32 x 100 of depth 10: one tile of 64 x 128 or 128 x 64 twice; 10 x 100 of depth 32 likewise.
    seen = [gemm(128 * 64 * 10), gemm(128 * 64 * 32)]
    found = breakdown(case(32, *seen, direction="backward", calls=calls, forward=FC), None)
    assert found.base == 2 * 128 * 64 * (10 + 32)
    assert " ".join(found.rules).count("multiplies") == 2
    one = breakdown(case(32, *seen, direction="grad_weight", calls=calls[1:], forward=FC), None)
    assert " ".join(one.rules) == "", (
        "one of two products is no gradient of the weight, and which one is unknown"
    )
    far = breakdown(
        case(
            32,
            gemm(round(128 * 64 * 32 * 1.1)),
            direction="grad_weight",
            calls=calls[1:],
            forward=FC,
        ),
        None,
    )
    assert " ".join(far.rules) == "" or "padded" in " ".join(far.rules)


def test_work_beside_the_products_is_told_apart_by_what_it_does() -> None:
    def other(name: str, role: str, family: str = "gemm", fadd: float = 40) -> Any:
        return work(name, Algorithm(family, role=role), fadd=fadd)

    found = breakdown(
        case(
            32,
            gemm(32_000, grid=None, fadd=320),
            other("sum", "reduction"),
            other("nchw", "layout", "layout", 7),
            other("offsets", "offsets", fadd=3),
        ),
        None,
    )
    assert (found.base, found.seen) == (PAPER, PAPER)
    assert (found.summed, [item.name for item in found.summing]) == (40, ["sum"])
    assert (found.extra, [item.name for item in found.extras]) == (
        320 + 7 + 3,
        ["nchw", "offsets", "gemm"],
    )
    assert (found.transforms, found.repeated, found.transforming, found.repeating) == (0, 0, (), ())


@pytest.mark.parametrize(
    ("sizes", "share", "rule"),
    [
        ((2, 3), 16 / 36, "4^2 multiplies in place of 2^2 x 3^2"),
        ((4, 3), 36 / 144, "6^2 multiplies in place of 4^2 x 3^2"),
        ((9, 5), 169 / 2025, "13^2 multiplies in place of 9^2 x 5^2"),
    ],
)
def test_winograd_without_a_grid_that_fits_is_taken_by_theory(
    sizes: tuple[int, int], share: float, rule: str
) -> None:
    name = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    kernel = work(
        name, Algorithm("winograd", "winograd", winograd=sizes), None, ffma=14_000, fadd=900
    )
    transform = work(
        "cudnn::winograd::generateWinogradTilesKernel",
        Algorithm("winograd", role="transform"),
        fadd=100,
    )
    found = breakdown(case(32, kernel, transform, kind="Conv2d"), None)
    assert (found.base, " ".join(found.rules)) == (pytest.approx(PAPER * share), rule)
    assert (found.transforms, found.extra, found.transforming) == (100 + 900, 0, (transform,))
    half = breakdown(
        case(
            32,
            kernel,
            direction="backward",
            kind="Conv2d",
            calls=(call(32, "grad_input"), call(32, "grad_weight")),
        ),
        None,
    )
    assert half.base == pytest.approx(2 * PAPER * (0.5 + 0.5 * share)), "one of two gradients"


@pytest.mark.parametrize(
    ("out", "filters", "tile", "tiles"),
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
def test_a_product_of_fourier_transforms_covers_the_outputs_in_tiles(
    out: tuple[int, int], filters: tuple[int, int], tile: int, tiles: int | None
) -> None:
    shape = ConvShape(2, 8, 16, *out, *filters)
    kernel = work(
        f"void fft2d_r2c_{tile}x{tile}<float>(float2*)", Algorithm("fft", "fft"), None, ffma=5
    )
    found = breakdown(case(2, kernel, kind="Conv2d", forward=shape), None)
    if tiles is None:
        assert (found.base, " ".join(found.rules)) == (found.paper, "")
        return
    assert found.base == 2 * tiles * 8 * 16 * tile * (tile // 2 + 1) * 4
    assert " ".join(found.rules) == (
        f"{tiles:,} tiles of {tile} x {tile} points, {tile} x {tile // 2 + 1} complex products each"
    )


@pytest.mark.parametrize(
    ("area", "fills"),
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
def test_a_product_of_unknown_tile_may_fill_whole_tiles(area: float, fills: bool) -> None:
    seen = gemm(100 * area, algorithm=Algorithm("gemm"))
    assert bool(unknown_tiles(case(32, seen, forward=FC))) is fills
    assert not unknown_tiles(case(32, seen)), "of no known shape"
    assert not unknown_tiles(case(32, gemm(100 * area), forward=FC)), "its tile is known"
    assert not unknown_tiles(case(32, forward=FC))


def test_whether_grids_speak_for_or_against_a_shape() -> None:
    fitting, other, unknown = gemm(5), gemm(5, grid=(3, 3, 1)), gemm(5, algorithm=Algorithm("gemm"))
    for works, fits, fills in (
        ((fitting,), True, True),
        ((other,), False, False),
        ((other, fitting), True, True),
        ((unknown,), True, False),
        ((), True, False),
        ((gemm(5, grid=None),), True, False),
    ):
        seen = case(32, *works, forward=FC)
        assert (fits_grids(seen), fills_tiles(seen)) == (fits, fills)
    transform = work("t", Algorithm("winograd", role="transform"))
    assert not fills_tiles(case(32, fitting, transform, forward=FC)), (
        "transforms follow the batch more closely"
    )


def test_forward_that_ran_again_is_told_by_names_and_grids() -> None:
    def named(name: str, ffma: float, grid: tuple[int, int, int] = (1, 1, 1)) -> Any:
        return work(name, Algorithm("gemm", "gemm"), grid, ffma=ffma)

    forward = case(32, named("f", 32_000))
    calls = (call(32, "grad_input"), call(32, "grad_weight"))
    for works, again in (
        ((named("f", 32_000), named("g", 32_000), named("h", 32_000)), True),
        ((named("f", 32_000, (2, 1, 1)), named("g", 32_000), named("h", 32_000)), False),
        ((named("f", 32_000), named("g", 32_000)), False),  # it may be one of the two gradients
        # less than 0.24 of a gradient
        ((named("f", 32_000), named("g", 32_000), named("h", 7_600)), False),
        ((named("f", 32_000), named("g", 32_000), named("h", 7_700)), True),
    ):
        found = breakdown(case(32, *works, direction="backward", calls=calls), forward)
        assert [item.name for item in found.repeating] == (["f"] if again else [])
        assert found.repeated == (64_000 if again else 0)
    assert breakdown(case(32, *forward.kernels), forward).repeating == (), "forward itself"


@pytest.mark.parametrize(("split", "step"), [(7, 32), (6, 16), (5, 32)])
def test_fmul_says_over_how_many_blocks_a_sum_is_split(split: int, step: int) -> None:
    deep = -(-100 // split)
    padded = -(-deep // step) * step
    area = 128 * 64
    seen = gemm(area * split * padded, grid=None, fmul=area * split)
    found = breakdown(case(32, seen, forward=FC), None)
    assert found.base == 2 * area * split * padded
    assert f"(sum of 100 in {split} parts, padded to {split * padded:,}) =" in " ".join(found.rules)
    odd = gemm(area * split * padded, grid=None, fmul=area * split + 100)
    assert " parts" not in " ".join(breakdown(case(32, odd, forward=FC), None).rules)
