"""Products whose tiles, parts and sums onto their output FMUL tells, for kernels made by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise
from perfctl.orchestrator.ledger.causes.breakdown import Breakdown, breakdown
from perfctl.orchestrator.ledger.causes.judge import confirm, unexplained_share
from perfctl.orchestrator.ledger.causes.row_rules import (
    layout_and_epilogue,
    split_k,
    tile_padding,
)
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.ledger.causes.window_rules import find_window
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import by_place, call, case, work

SGEMM = Algorithm("gemm", "gemm", tile=(128, 32, None))


def sgemm(ffma: float, fmul: float, name: str = "ampere_sgemm_128x32_tn", **more: Any) -> Any:
    return work(name, SGEMM, more.pop("grid", None), ffma=ffma, fmul=fmul, **more)


def row(shape: GemmShape, kernel: Any) -> Any:
    paper = call(shape.m, macs=shape.n * shape.k)
    return case(shape.m, kernel, forward=shape, calls=(paper,), counted=kernel.flops.value)


def of(shape: GemmShape, kernel: Any) -> Breakdown:
    return breakdown(row(shape, kernel), None)


def test_each_part_of_a_split_sum_is_padded_by_itself_and_added_to_the_output() -> None:
    # 7 parts: six of 72, padded from 72 and the last of 68, padded to 72
    shape = GemmShape(m=128, n=96, k=500)
    area, deep = 128 * 96, 6 * 72 + 72
    for onto in (0, 6, 7):
        found = of(shape, sgemm(area * (deep + onto), 7 * area))
        assert (found.base, found.onto, found.extra) == (
            2 * area * deep,
            2 * area * onto,
            7 * area + 2 * area * onto,
        )
        assert found.seen == found.base
    shorter = GemmShape(m=128, n=96, k=2048)  # 410 padded to 416, four times, and 408
    found = of(shorter, sgemm(area * (4 * 416 + 408), 5 * area))
    assert f"(sum of 2,048 in 5 parts, padded to {4 * 416 + 408:,}) =" in " ".join(found.rules)


def test_beta_adds_each_value_of_the_tiles_once() -> None:
    shape = GemmShape(m=34, n=64, k=2)
    area, deep = 64 * 128, 8
    found = of(shape, sgemm(area * (deep + 1), area))
    assert (found.base, found.onto) == (2 * area * deep, 2 * area)
    said = layout_and_epilogue(RuleInput(row(shape, sgemm(area * 9, area)), by_place()))
    assert said is not None
    assert "(scaling, sums onto its output)" in describe_cause(said)
    # 2,048 rows of 128 are within 2% of 2,080, which 2,050 rows need
    nearly = GemmShape(m=2000, n=256, k=128)
    assert " ".join(of(nearly, sgemm(2080 * 256 * 128, 2080 * 256)).rules) == "", (
        "FMUL speaks against it"
    )
    other = of(shape, sgemm(area * (deep + 1.5), area))
    assert (" ".join(other.rules), other.onto) == ("", 0), "no whole number of values"


def test_fmul_says_along_which_side_the_tile_lies() -> None:
    shape = GemmShape(m=600, n=1024, k=1024)
    area, deep = 608 * 1024, 6 * 152 + 144  # 32 rows a tile: 7 parts of 147, the last of 142
    found = of(shape, sgemm(area * (deep + 7), 7 * area))
    assert found.base == 2 * area * deep
    assert " ".join(found.rules).startswith("ceil(600 / 32) x ceil(1,024 / 128) tiles x 32 x 128")


def test_each_slice_of_a_block_scales_its_part() -> None:
    shape = GemmShape(m=64, n=512, k=8208)
    area, deep = 64 * 512, 27 * 320  # 27 parts of 304, in steps of 4 x 8
    sliced = sgemm(
        area * deep, 4 * 27 * area, "ampere_sgemm_128x32_sliced1x4_tn", fadd=3 * 27 * area
    )
    found = of(shape, sliced)
    assert (found.base, found.onto) == (2 * area * deep, 0)
    assert f"(sum of 8,208 in 27 parts, padded to {deep:,}) =" in " ".join(found.rules)


@pytest.mark.parametrize(
    ("grid", "fits"), [((16, 1, 4), True), ((4, 4, 4), True), ((16, 2, 2), False), (None, True)]
)
def test_a_recorded_grid_has_to_agree_with_fmul(
    grid: tuple[int, int, int] | None, fits: bool
) -> None:
    shape = GemmShape(m=128, n=512, k=256)
    area = 128 * 512
    found = of(shape, sgemm(area * (256 + 3), 4 * area, grid=grid))
    assert (found.onto == 2 * 3 * area) is fits


def test_two_parts_of_a_small_gap_are_told_though_each_is_half_a_percent_of_paper_at_most() -> None:
    # 215 x 32 = 6,880 rows: 0.3% more, and a scale of 1 / 256: 0.4%
    shape = GemmShape(m=6860, n=384, k=128)
    area = 6880 * 384
    given = RuleInput(row(shape, sgemm(area * 128, area)), by_place())
    padded, scaled = tile_padding(given), layout_and_epilogue(given)
    assert padded is not None
    assert scaled is not None
    assert padded.factor == pytest.approx(6880 / 6860)
    assert scaled.factor == pytest.approx(1 + 1 / 256)
    assert unexplained_share(given.ratio, confirm(given, [padded, scaled])) == pytest.approx(
        0, abs=1e-9
    )
    assert not given.is_worth_naming(1.0005), "a fourteenth of the gap"
    whole = replace(given, evidence=row(shape, sgemm(6860 * 384 * 128, 0)))
    assert not whole.is_worth_naming(1.004), "no gap"


def test_a_count_that_stays_because_each_batch_fits_one_tile_is_no_wrong_window() -> None:
    def at(batch: int, number: int) -> Any:  # 12,800 of 12,544: 20 parts of 628, padded to 640
        area = number * 32 * 1024
        sliced = work(
            "ampere_sgemm_32x32_sliced1x4_tn",
            replace(SGEMM, tile=(32, 32, None)),
            None,
            ffma=area * 12_800,
            fmul=80 * area,
            fadd=60 * area,
        )
        return row(GemmShape(m=batch, n=1024, k=12_544), sliced)

    assert find_window(by_place(at(6, 1), at(10, 1)), {}) is None
    window = find_window(by_place(at(6, 60), at(10, 60)), {})
    assert window is not None, "60 tiles in a row are no batch of 10"


@pytest.mark.parametrize("of", ["tiles", "outputs"])
@pytest.mark.parametrize("parts", [3, 4])
def test_a_kernel_that_adds_up_the_parts_of_its_split_sum_itself_is_split_k(
    parts: int, of: str
) -> None:
    """Each part but the first is added to every value, and each is rounded up to steps of 32
    by itself."""
    shape = GemmShape(m=200, n=120, k=60)
    tiled, padded = (
        ceil(200 / 64) * ceil(120 / 64) * 64 * 64,
        parts * ceil(ceil(60 / parts) / 32) * 32,
    )
    sums = (parts - 1) * (tiled if of == "tiles" else 200 * 120)
    kernel = work(
        "cutlass_simt_sgemm_64x64_32x5_nn",
        Algorithm("gemm", "gemm", (64, 64, 32)),
        (4, 2, parts),
        ffma=tiled * padded,
        fadd=sums,
    )
    given = RuleInput(row(shape, kernel), by_place(row(shape, kernel)))
    said = split_k(given)
    assert said is not None and said.factor == pytest.approx(1 + sums / (2 * tiled * padded))
    assert f"into {parts} slices and adds the slices up itself" in describe_cause(said)
    padding = tile_padding(given)
    assert padding is not None and padding.factor == pytest.approx(
        tiled * padded / (200 * 120 * 60)
    )
    assert layout_and_epilogue(given) is None
    other = row(shape, replace(kernel, counts={"ffma": tiled * padded, "fadd": sums // 7}))
    assert split_k(replace(given, evidence=other)) is None, "it adds something else"


def test_a_filters_gradient_split_over_the_outputs_fills_tiles_too() -> None:
    """48 filters of 20 channels x 3 x 3 over 10 images of 14 x 14 outputs, in tiles of 128 x 64 and
    6 parts of steps of 16."""
    shape = ConvShape(10, 20, 48, 14, 14, 3, 3)
    tiles = ceil(20 * 9 / 128) * ceil(48 / 64)
    multiplies = tiles * 128 * 64 * 6 * ceil(ceil(10 * 14 * 14 / 6) / 16) * 16
    wgrad = Algorithm(
        "conv", "implicit gemm", (128, 64, None), split_k=True, direction="grad_weight"
    )
    kernel = work(
        "volta_scudnn_128x64_stridedB_splitK_interior_nn_v1", wgrad, (tiles, 1, 6), ffma=multiplies
    )
    calls = (call(10, "grad_weight", macs=shape.macs // 10, kind="Conv2d"),)
    one = case(
        10,
        kernel,
        direction="backward",
        calls=calls,
        forward=shape,
        counted=2 * multiplies,
        kind="Conv2d",
    )
    said = tile_padding(RuleInput(one, by_place(one)))
    assert said is not None and said.factor == pytest.approx(multiplies / shape.macs)
    unknown = replace(one, kernels=(replace(kernel, grid=(5, 5, 6)),))
    named = split_k(RuleInput(unknown, by_place(unknown)))
    assert named is not None and (named.factor, named.confidence) == (None, "plausible")


@pytest.mark.parametrize(
    ("m", "n", "tile", "told"),
    [(200, 300, (64, 128), True), (50, 100, (64, 64), True), (50, 100, (256, 64), False)],
)
def test_a_triton_kernels_tile_follows_from_its_grid_where_one_filling_fits(
    m: int, n: int, tile: tuple[int, int], told: bool
) -> None:
    """Inductor shrinks a tile to the next power of two of what it covers, so 256 rows are none
    for 50."""
    shape = GemmShape(m, n, 100)
    blocks = ceil(m / tile[0]) * ceil(n / tile[1])
    multiplies = blocks * tile[0] * tile[1] * ceil(100 / 32) * 32
    kernel = work(
        "triton_tem_fused_mm_3", recognise("triton_tem_fused_mm_3"), (blocks, 1, 1), ffma=multiplies
    )
    one, other = (
        row(shape, kernel),
        case(7, work(ffma=7000), layer="b", counted=14_000, calls=(call(7, layer="b"),)),
    )
    said = tile_padding(
        RuleInput(one, by_place(one, replace(other, row=replace(other.row, batch=m))))
    )
    assert (said is not None) is told
    if said is not None:
        assert said.factor == pytest.approx(multiplies / shape.macs)
        assert said.confidence == "plausible", "the count chose among the tiles that fit the grid"
    elsewhere = row(shape, replace(kernel, grid=(blocks + 1000, 1, 1)))
    assert tile_padding(RuleInput(elsewhere, by_place(elsewhere))) is None
