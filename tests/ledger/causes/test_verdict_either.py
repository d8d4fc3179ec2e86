"""Where the evidence fits two causes both are named, or none; and evidence that shows another
layer, or another batch."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.breakdown import breakdown
from perfctl.orchestrator.ledger.causes.call_rules import extra_calls, whole_steps
from perfctl.orchestrator.ledger.causes.evidence import KernelGroup, RowEvidence
from perfctl.orchestrator.ledger.causes.judge import ROW_RULES, confirm
from perfctl.orchestrator.ledger.causes.rule import Cause, RuleInput
from perfctl.orchestrator.ledger.causes.window_rules import find_window
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import by_place, call, case, work

PAPER = 64_000
BOTH = (call(32, "grad_input"), call(32, "grad_weight"))
DGRAD, WGRAD = (
    Algorithm("conv", "c", direction="grad_input"),
    Algorithm("conv", "c", direction="grad_weight"),
)
FPROP, PLAIN = Algorithm("conv", "c", direction="forward"), Algorithm("gemm", "gemm")
TILE = Algorithm("gemm", "gemm", (128, 64, None))


def rules(one: RowEvidence, *others: RowEvidence) -> dict[str, Cause]:
    given = RuleInput(one, by_place(one, *others))
    said = [found for rule in ROW_RULES if (found := rule(given)) is not None]
    return {found.rule: found for found in confirm(given, said)}


def backward(*works: KernelGroup, calls: Any = BOTH, **more: Any) -> RowEvidence:
    counted = sum(kernel.executed for kernel in works)
    return case(
        32, *works, direction="backward", calls=calls, counted=counted, **{"kind": "Conv2d", **more}
    )


def convolution(shape: ConvShape, *works: KernelGroup) -> RowEvidence:
    calls = (call(shape.batch, macs=shape.macs // shape.batch, kind="Conv2d"),)
    counted = sum(kernel.executed for kernel in works)
    return case(shape.batch, *works, kind="Conv2d", calls=calls, forward=shape, counted=counted)


def part(one: RowEvidence) -> RowEvidence:
    """The same with some launches that were not counted."""
    counted = replace(one.row.counted, launches=1, of_launches=2)
    return replace(one, row=replace(one.row, counted=counted))


def test_a_half_filled_tile_may_be_a_larger_batch_unless_another_row_shows_the_batch() -> None:
    kernel = work("k", TILE, (1, 1, 1), ffma=64 * 128 * 100)
    one = case(
        64,
        kernel,
        calls=(call(64, macs=64 * 100),),
        counted=2 * kernel.counts["ffma"],
        forward=GemmShape(64, 64, 100),
    )
    said = rules(one)["tile padding"]
    assert (said.factor, said.confidence) == (
        2,
        "plausible",
    ) and "The batch may also be larger: 128 samples" in describe_cause(said)
    exact = case(64, work("e", PLAIN, ffma=64_000), layer="other", counted=128_000)
    sure = rules(one, exact)["tile padding"]
    assert sure.confidence == "predicted and matched" and "The batch may" not in describe_cause(
        sure
    )
    sparse = replace(exact, kernels=(replace(exact.kernels[0], name="s16832spgemm"),))
    assert "The batch may also" in describe_cause(rules(one, sparse)["tile padding"]), (
        "half of twice as much is 1 as well"
    )


def test_parts_of_a_grouped_convolution_are_no_further_calls() -> None:
    """4 groups of 8 channels in tiles of 32, the batch of 8 in 4 launches: 4 times the multiplies
    and 4 launches."""
    shape = ConvShape(8, 32, 32, 16, 16, 3, 3, groups=4)
    tile = Algorithm("conv", "implicit gemm", (128, 32, 8))
    kernel = work("k", tile, (4, 1, 4), ffma=4 * shape.macs, launches=4)
    found = rules(convolution(shape, kernel))
    assert found["tile padding"].factor == 4 and "in 4 launches" in describe_cause(
        found["tile padding"]
    )
    assert "extra calls" not in found


def test_launches_that_fill_the_columns_half_may_be_halves_of_the_rows() -> None:
    tile = Algorithm("gemm", "gemm", (128, 256, 16))
    kernel = work(
        "void gemm_any<float>(float*)", tile, (4, 1, 1), ffma=2 * 512 * 128 * 64, launches=2
    )
    one = case(
        512,
        kernel,
        calls=(call(512, macs=128 * 64),),
        counted=4 * 512 * 128 * 64,
        forward=GemmShape(512, 128, 64),
    )
    said = extra_calls(RuleInput(one, by_place(one)))
    assert said is not None and said.factor is None


def test_a_capture_that_left_launches_out_claims_no_calls() -> None:
    one = case(
        32, work("void gemm_any<float>(float*)", PLAIN, ffma=PAPER, launches=2), counted=2 * PAPER
    )
    assert rules(one)["extra calls"].factor == 2
    assert "extra calls" not in rules(replace(one, left_out="ncu was asked to leave launches out"))


def test_trials_of_which_some_were_not_counted_have_no_factor() -> None:
    one = case(
        32,
        work("small", TILE, (1, 1, 1), ffma=128 * 64 * 100),
        work("large", TILE, (1, 1, 2), ffma=128 * 64 * 100),
        calls=(call(32, macs=64 * 400),),
        counted=4 * 128 * 64 * 100,
        forward=GemmShape(128, 64, 100),
    )
    assert rules(one)["several algorithms"].factor is not None
    assert rules(part(one))["several algorithms"].factor is None


def test_forward_again_in_a_layer_whose_input_needs_no_gradient_may_be_that_gradient() -> None:
    forward = case(32, work("f", PLAIN, (1, 1, 1), ffma=32_000), counted=PAPER)
    works = [work(name, PLAIN, (1, 1, 1), ffma=32_000) for name in "fg"]
    one = backward(*works, calls=BOTH[1:], kind="Linear", forward=GemmShape(32, 10, 100))
    said = rules(one, forward)["recomputation"]
    assert (
        said.factor == 2
        and said.confidence == "plausible"
        and "the gradient of its input" in describe_cause(said)
    )


def test_which_of_attentions_products_ran_again_is_not_known_where_the_rest_is_too_much() -> None:
    """Two products forward and four in backward: the two that came again may be gradients, and the
    larger ones forward."""
    forward = case(
        32,
        work("f", PLAIN, (1, 1, 1), ffma=32_000),
        work("g", PLAIN, (1, 1, 1), ffma=32_000),
        counted=2 * PAPER,
    )
    forward = replace(forward, row=replace(forward.row, paper=Figure(2 * PAPER, "counted")))
    gradients = (call(32, "grad_input", macs=4000),)
    rest = [work(name, PLAIN, (1, 1, 1), ffma=32_000) for name in "hijk"]
    sure = rules(backward(*forward.kernels, *rest, calls=gradients), forward)["recomputation"]
    assert sure.factor == 1.5
    rest[0] = work("h", PLAIN, (1, 1, 1), ffma=64_000)
    assert (
        rules(backward(*forward.kernels, *rest, calls=gradients), forward)["recomputation"].factor
        is None
    )


def test_a_forward_kernel_in_backward_may_be_a_trial_unless_the_flag_is_off() -> None:
    forward = case(32, work("first", FPROP, (9, 9, 1), ffma=32_000), counted=PAPER, kind="Conv2d")
    again = backward(
        *(
            work(name, of, (3, 3, 1), ffma=32_000)
            for name, of in (("s", FPROP), ("w", WGRAD), ("d", DGRAD))
        )
    )
    said = rules(again, forward)["recomputation"]
    assert said.confidence == "plausible" and "cuDNN may also have tried" in describe_cause(said)
    off = rules(replace(again, environment={"cudnn_benchmark": "off"}), forward)["recomputation"]
    assert off.confidence == "predicted and matched" and "tried" not in describe_cause(off)


@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_a_forward_that_is_as_far_off_speaks_against_zeros_and_needless_gradients(
    ratio: float,
) -> None:
    forward = case(32, work("f", FPROP, ffma=32_000 * ratio), counted=PAPER * ratio, kind="Conv2d")
    works = work("d", DGRAD, ffma=4 * 32_000), work("w", WGRAD, ffma=32_000)
    found = rules(backward(*works, upsampled=4.0 * PAPER), forward)
    assert ("zeros inserted" in found) is (ratio == 1)
    near = case(
        32,
        work("f", FPROP, ffma=32_000 * (1 + ratio / 40)),
        counted=PAPER * (1 + ratio / 40),
        kind="Conv2d",
    )
    works = work("d", DGRAD, ffma=35_200), work("w", WGRAD, ffma=35_200)
    assert "needless gradient" not in rules(backward(*works, calls=BOTH[1:]), near)


def test_blocks_for_each_group_are_no_dense_product() -> None:
    shape = ConvShape(4, 64, 64, 8, 8, 3, 3, groups=4)
    kernel = work("k", Algorithm("conv", "implicit gemm"), (7, 1, 1), ffma=4 * shape.macs)
    assert rules(convolution(shape, kernel))["groups run as dense"].factor == 4
    assert "groups run as dense" not in rules(convolution(shape, replace(kernel, grid=(7, 1, 4))))


def nonfused(
    shape: ConvShape, tiles: int, tile: tuple[int, int], channels: int | None = None
) -> list[KernelGroup]:
    """F(4x4,3x3) of a shape, with so many tiles: its transform and its 36 products, the tile's
    first side along the tiles."""
    grid = (ceil(tiles / tile[0]), ceil(shape.out_channels / tile[1]), 36)
    macs = grid[0] * grid[1] * 36 * tile[0] * tile[1] * (channels or shape.in_channels)
    transform = Algorithm(
        "winograd", "winograd F(4x4,3x3) not fused", role="transform", winograd=(4, 3)
    )
    return [
        work("winograd_nonfused::winogradForwardData4x4", transform, fadd=1000),
        work(
            f"sgemm_{tile[0]}x{tile[1]}", Algorithm("gemm", "gemm", (*tile, None)), grid, ffma=macs
        ),
    ]


def test_winograds_tile_lies_as_the_side_of_the_grid_with_the_channels_shows() -> None:
    """64 channels in 2 blocks of 32, whichever batch ran: the other orientation would fill 64
    of 128."""
    shape = ConvShape(128, 512, 64, 13, 13, 3, 3)
    factor = 36 * 2048 * 64 * 512 / shape.macs  # 128 images of 4 x 4 tiles
    for tiles in (2048, 256):
        said = rules(convolution(shape, *nonfused(shape, tiles, (128, 32))))["Winograd"]
        assert said.factor == pytest.approx(factor, rel=0.01)
    narrow = replace(shape, out_channels=8)  # one block of 32 or of 128
    assert "Winograd" not in rules(convolution(narrow, *nonfused(narrow, 256, (128, 32))))


def test_winograd_of_other_channels_or_without_its_product_is_not_this_layers() -> None:
    shape = ConvShape(16, 64, 128, 8, 8, 3, 3)
    works = nonfused(shape, 64, (64, 64))
    assert "Winograd" in rules(convolution(shape, *works))
    assert "Winograd" not in rules(convolution(shape, *nonfused(shape, 64, (64, 64), channels=160)))
    assert "Winograd" not in rules(convolution(shape, works[0]))


def test_fouriers_blocks_are_whole_at_another_batch_too() -> None:
    """24 channels in a block of 32, 40 tiles in 2 of them: at half the batch one block ran."""
    shape = ConvShape(10, 64, 24, 56, 56, 5, 5)
    transform = work("fft2d_r2c_32x32<float>", Algorithm("fft", "fft", role="transform"), fadd=1000)
    gemm = work(
        "gcgemm_32x32_nt",
        Algorithm("gemm", "gemm", (32, 32, None)),
        (1, 1, 544),
        ffma=32 * 32 * 544 * 4 * 64,
    )
    one = convolution(shape, transform, gemm)
    base = breakdown(one, None).base
    assert base == 2 * 64 * 32 * 544 * 4 * 64
    other = replace(gemm, grid=(2, 7, 544), counts={"ffma": 14 * gemm.counts["ffma"]})
    assert "FFT" not in rules(convolution(shape, transform, other)), "2 or 7 blocks of channels"


def test_kernels_that_were_tried_once_each_are_no_steps() -> None:
    def given(*works: KernelGroup) -> Any:
        rows = [
            case(32, work("k", PLAIN, ffma=96_000, launches=3), layer=name, counted=3 * PAPER)
            for name in "ab"
        ]
        rows.append(case(32, *works, layer="c", counted=3 * PAPER))
        return [(RuleInput(one, by_place(*rows)), []) for one in rows]

    same = work("k", PLAIN, ffma=96_000, launches=3)
    assert whole_steps(given(same))[32][0].factor == 3
    assert not whole_steps(given(same.part(2), work("other", PLAIN, ffma=32_000)))


def staying(name: str, algorithm: Algorithm = PLAIN, **more: Any) -> list[RowEvidence]:
    """The count of 5 samples at batch 16 and 64."""
    kernel = work(
        name,
        algorithm,
        more.pop("grid", None),
        ffma=more.pop("ffma", 5000),
        launches=more.pop("launches", 1),
    )
    rows = [case(batch, kernel, counted=2 * kernel.counts["ffma"], **more) for batch in (16, 64)]
    return [replace(one, forward=GemmShape(one.row.batch, 10, 100)) for one in rows]


def test_a_recurrent_layer_or_one_row_of_tiles_is_no_wrong_window() -> None:
    assert find_window(by_place(*staying("k")), {}) is not None
    assert find_window(by_place(*staying("k", kind="LSTM")), {}) is None
    half = staying(
        "k", Algorithm("gemm", "gemm", (128, 64, None)), grid=(1, 1, 1), ffma=64 * 128 * 50
    )
    assert find_window(by_place(*half), {}) is None, (
        "2:4 sparsity counts half of a tile that both batches fit"
    )


def test_a_window_names_no_batch_where_all_ran_twice_or_where_not_all_was_counted() -> None:
    once, twice = (
        find_window(by_place(*staying("k", launches=runs, ffma=6000)), {}) for runs in (1, 2)
    )
    assert once is not None and once.batch == 6
    assert twice is not None and twice.batch is None, "6 samples once, or 3 twice"
    partly = find_window(by_place(*map(part, staying("k"))), {})
    assert partly is not None and partly.batch is None


def test_additions_of_an_epilogue_propose_no_batch_beside_multiply_adds() -> None:
    rows = [case(batch, work("k", ffma=5000, fadd=150), counted=10_150) for batch in (16, 64)]
    found = find_window(by_place(*rows), {})
    assert found is not None and found.batch == 5
