"""Rules about a row's kernels, each with kernels made by hand: its numbers, and where it
keeps silent."""

from __future__ import annotations

from typing import Any

import pytest

from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence
from perfctl.orchestrator.ledger.causes.gradient_rules import recomputation
from perfctl.orchestrator.ledger.causes.row_rules import (
    fourier,
    layout_and_epilogue,
    several_algorithms,
    shared_kernel,
    split_k,
    tile_padding,
    winograd,
)
from perfctl.orchestrator.ledger.causes.rule import RuleInput
from perfctl.orchestrator.report.ledger.causes import describe_cause
from tests.make.rows import by_place, call, case, work

PAPER = 64_000
"""FLOPs of 32 samples through 100 inputs and 10 outputs."""
PLAIN = Algorithm("gemm", "gemm")


def scene(one: RowEvidence, *others: RowEvidence) -> RuleInput:
    return RuleInput(one, by_place(one, *others))


def beside(name: str, role: str, fadd: float, family: str = "gemm") -> Any:
    return work(name, Algorithm(family, role=role), fadd=fadd)


def test_padding_is_said_with_what_was_counted_and_what_the_grid_predicts() -> None:
    tile = 128 * 64 * 100
    kernel = work("k", Algorithm("gemm", "gemm", tile=(128, 64, None)), (1, 1, 1), ffma=tile * 1.15)
    said = tile_padding(
        scene(case(32, kernel, counted=2 * tile * 1.15, forward=GemmShape(32, 10, 100)))
    )
    assert said is not None
    assert said.factor == 2 * tile / PAPER == 25.6
    assert describe_cause(said).startswith(
        "fc forward at batch 32 executes 25.60 times the estimated multiply-adds, because "
        "it computes complete tiles"
    )
    assert (
        f"= {tile:,} multiplies (estimated 32,000). The measured count is 1.150 times as large."
        in describe_cause(said)
    )
    assert tile_padding(scene(case(32, kernel, forward=GemmShape(32, 10, 100)))) is None, (
        "nothing was counted"
    )
    assert tile_padding(scene(case(32, kernel, counted=PAPER))) is None, "nothing is predicted"
    full = work("k", Algorithm("gemm", "gemm", tile=(32, 10, None)), (1, 1, 1), ffma=32_000)
    assert (
        tile_padding(scene(case(32, full, counted=PAPER, forward=GemmShape(32, 10, 100)))) is None
    ), "its tile is filled"


@pytest.mark.parametrize(
    ("grid", "slices"),
    [((1, 1, 4), " into 4 slices"), ((1, 1, 2), " into 2 slices"), ((4, 4, 1), ""), (None, "")],
)
def test_a_split_sum_says_its_slices_and_what_they_cost(
    grid: tuple[int, int, int] | None, slices: str
) -> None:
    one = case(
        32,
        work("k", PLAIN, grid, ffma=32_000),
        beside("sum", "reduction", 640),
        counted=PAPER + 640,
    )
    said = split_k(scene(one))
    assert said is not None
    assert describe_cause(said) == (
        f"fc forward at batch 32 splits its K dimension{slices} and adds the slices up in sum: 640 "
        "FLOP more, 1.0%."
    )
    assert (said.factor, said.kernels) == (pytest.approx(1.01), ("sum",))


@pytest.mark.parametrize("rule", [split_k, layout_and_epilogue])
def test_less_than_half_a_percent_is_not_worth_a_word(rule: Any) -> None:
    role = "reduction" if rule is split_k else "layout"
    for more, told in ((310, False), (330, True), (0, False)):
        works = (work("k", PLAIN, None, ffma=32_000), beside("other", role, more))
        assert (rule(scene(case(32, *works, counted=PAPER + more))) is not None) is told
        assert rule(scene(case(32, *works))) is None, "nothing was counted"


@pytest.mark.parametrize(
    ("others", "fadd", "who"),
    [
        ((), 1280, "bias, scaling or activation"),
        ((beside("nchw", "layout", 1280, "layout"),), 0, "layout transforms"),
        ((beside("o", "offsets", 1280),), 0, "offsets"),
        ((beside("e", "epilogue", 1280),), 0, "epilogues"),
        (
            (beside("nchw", "layout", 640, "layout"), beside("n2", "layout", 320, "layout")),
            320,
            "layout transforms, bias, scaling or activation",
        ),
    ],
)
def test_work_beside_the_products_says_what_does_it(
    others: tuple[Any, ...], fadd: float, who: str
) -> None:
    said = layout_and_epilogue(
        scene(case(32, work("k", PLAIN, ffma=32_000, fadd=fadd), *others, counted=PAPER + 1280))
    )
    assert said is not None
    assert describe_cause(said) == (
        f"fc forward at batch 32 executes 1.28 kFLOP in addition to its GEMMs ({who}), 2.0% more."
    )
    assert said.factor == pytest.approx(1.02)


def test_a_forward_pass_under_a_range_of_its_own_has_an_amount_and_no_factor() -> None:
    said = recomputation(scene(case(32, work(ffma=32_000), direction="recompute", counted=PAPER)))
    assert said is not None
    assert (describe_cause(said), said.factor) == (
        "fc runs its forward pass again during backward at batch 32: 64 kFLOP.",
        None,
    )
    assert recomputation(scene(case(32, work(ffma=32_000), direction="recompute"))) is None
    assert recomputation(scene(case(32, work(ffma=32_000), counted=PAPER))) is None


def row(layer: str, position: int, *works: Any, batch: int = 32) -> RowEvidence:
    return case(batch, *works, layer=layer, position=position, counted=1 if works else None)


@pytest.mark.parametrize(
    ("times", "served"),
    [
        (1.0, 0),
        (1.019, 0),
        (1.5, 0),
        (1.97, 1),
        (2.0, 1),
        (2.03, 1),
        (2.05, 0),
        (2.95, 2),
        (3.0, 2),
        (3.05, 2),
        (3.1, 0),
        (4.0, 0),
    ],
)
def test_a_kernel_serves_as_many_neighbours_as_its_count_has_room_for(
    times: float, served: int
) -> None:
    a, b, c = row("a", 0, work("k", ffma=32_000 * times)), row("b", 1), row("c", 2)
    d, before = row("d", 3, work("other", ffma=32_000)), row("before", -1)
    rows = by_place(d, c, b, a, before, row("elsewhere", 1, batch=64))
    said = {one.row.layer: shared_kernel(RuleInput(one, rows)) for one in (a, b, c, d, before)}
    assert [layer for layer, one in said.items() if one is not None] == ["a", "b", "c"][
        : served + 1 if served else 0
    ]
    if served:
        owner, first = said["a"], said["b"]
        assert owner is not None
        assert first is not None
        whose = ", ".join(f"{name} forward" for name in ("b", "c")[:served])
        assert owner.factor == served + 1
        assert describe_cause(owner) == (
            f"a forward at batch 32 executes {served + 1}.00 times its own estimate, because its "
            f"kernel also computes {whose}."
        )
        assert describe_cause(first) == (
            "b forward at batch 32 has no separate kernel: a kernel of a forward executes its 64 "
            "kFLOP."
        )
        assert (first.kernels, first.factor) == (("k",), None)


def test_a_neighbour_with_a_kernel_of_its_own_is_served_by_nobody() -> None:
    a, b, c = (
        row("a", 0, work("k", ffma=64_000)),
        row("b", 1, work("own", ffma=32_000)),
        row("c", 2),
    )
    rows = by_place(a, b, c)
    assert [shared_kernel(RuleInput(one, rows)) for one in (a, b, c)] == [None, None, None]


@pytest.mark.parametrize(("times", "served"), [(1.0, False), (1.02, False), (1.03, True)])
def test_a_small_neighbour_is_not_served_by_a_count_that_is_the_owners_alone(
    times: float, served: bool
) -> None:
    a = row("a", 0, work("k", ffma=32_000 * times))
    b = case(32, layer="b", position=1, calls=(call(32, macs=20, layer="b"),))
    assert (shared_kernel(RuleInput(a, by_place(a, b))) is not None) is served


def test_a_neighbour_of_half_the_size_makes_one_and_a_half() -> None:
    a = row("a", 0, work("k", ffma=48_000))
    b = case(32, layer="b", position=1, calls=(call(32, macs=500, layer="b"),))
    said = shared_kernel(RuleInput(a, by_place(a, b)))
    assert said is not None
    assert said.factor == 1.5
    assert "executes 1.500 times its own estimate" in describe_cause(said)


def test_kernels_that_each_do_the_whole_layer_are_counted_and_named() -> None:
    small = work("s" * 61, Algorithm("gemm", "gemm", tile=(32, 10, None)), (1, 1, 1), ffma=32_000)
    large = work("large", Algorithm("gemm", "gemm", tile=(64, 10, None)), (1, 1, 1), ffma=64_000)
    one = case(32, small, large, counted=3 * PAPER, forward=GemmShape(32, 10, 100))
    said = several_algorithms(scene(one))
    assert said is not None
    assert describe_cause(said) == (
        f"fc forward at batch 32 ran 2 kernels that each compute the complete layer ({'s' * 61}, "
        "large): together, 3.00 times the estimated FLOPs according to their shapes."
    )
    assert (said.rule, said.factor, said.kernels) == (
        "several algorithms",
        3,
        ("s" * 61, "large"),
    )
    assert (
        several_algorithms(scene(case(32, small, large, forward=GemmShape(32, 10, 100)))) is None
    ), "not counted"
    assert (
        several_algorithms(scene(case(32, small, counted=PAPER, forward=GemmShape(32, 10, 100))))
        is None
    )


WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"


def test_winograd_says_its_multiplies_its_transforms_and_both() -> None:
    kernel = work(
        WINOGRAD, Algorithm("winograd", "winograd", winograd=(2, 3)), ffma=14_000, fadd=900
    )
    tiles = work(
        "cudnn::winograd::generateWinogradTilesKernel",
        Algorithm("winograd", role="transform"),
        fadd=2300,
    )
    said = winograd(scene(case(32, kernel, tiles, kind="Conv2d", counted=31_200)))
    assert said is not None
    assert describe_cause(said) == (
        "fc forward at batch 32 runs as winograd F(2x2,3x3), which needs 0.444 times the "
        "estimated multiply-adds (4^2 multiplies in place of 2^2 x 3^2). Its transforms add 5.0% "
        "of the estimate, which makes 0.494 times together. The counters show 0.438 times in "
        "multiply-adds."
    )
    assert (said.rule, said.factor, said.kernels) == (
        "Winograd",
        pytest.approx(16 / 36 + 0.05),
        (kernel.name, tiles.name),
    )
    assert winograd(scene(case(32, kernel, kind="Conv2d"))) is None, "not counted"
    unknown = work("some_winograd", Algorithm("winograd"), ffma=14_000)
    assert winograd(scene(case(32, unknown, kind="Conv2d", counted=28_000))) is None, (
        "of no known tile"
    )
    assert winograd(scene(case(32, work("k", PLAIN, ffma=32_000), counted=PAPER))) is None
    assert fourier(scene(case(32, kernel, kind="Conv2d", counted=31_200))) is None


def test_fourier_says_its_tiles_and_its_transforms() -> None:
    shape = ConvShape(2, 8, 16, 10, 10, 5, 5)
    macs = 10 * 10 * 16 * 8 * 25
    kernel = work(
        "void fft2d_r2c_16x16<float>(float2*)", Algorithm("fft", "fft"), ffma=147_456, fadd=64_000
    )
    calls = (call(2, macs=macs, kind="Conv2d"),)
    # Each image fits one tile of 16: 2 x 8 x 16 x (16 x 9) x 4 = 147,456 of 640,000 multiply-adds.
    said = fourier(
        scene(case(2, kernel, kind="Conv2d", calls=calls, forward=shape, counted=358_912))
    )
    assert said is not None
    assert describe_cause(said) == (
        "fc forward at batch 2 runs as FFT, which needs 0.230 times the estimated multiply-adds "
        "(2 tiles of 16 x 16 points, 16 x 9 complex products each). Its transforms add 5.0% of the "
        "estimate, which makes 0.280 times together."
    )
    assert (said.rule, said.factor) == ("FFT", pytest.approx(147_456 / 640_000 + 0.05))
    assert fourier(scene(case(2, kernel, kind="Conv2d", calls=calls, forward=shape))) is None, (
        "not counted"
    )
    assert fourier(scene(case(2, kernel, kind="Conv2d", calls=calls, counted=5))) is None, (
        "of no known shape"
    )
    assert (
        winograd(scene(case(2, kernel, kind="Conv2d", calls=calls, forward=shape, counted=358_912)))
        is None
    )


def test_forward_that_ran_again_in_backward_has_its_flops_and_its_factor() -> None:
    forward = case(32, work("f", PLAIN, (1, 1, 1), ffma=32_000))
    names = [work(name, PLAIN, (1, 1, 1), ffma=32_000) for name in "fgh"]
    calls = (call(32, "grad_input"), call(32, "grad_weight"))
    said = recomputation(
        scene(case(32, *names, direction="backward", calls=calls, counted=3 * PAPER), forward)
    )
    assert said is not None
    assert describe_cause(said) == (
        "fc backward at batch 32 runs the kernels of the forward pass again: 64 kFLOP, 1.500 "
        "times the FLOPs of the gradients only."
    )
    assert (said.rule, said.factor, said.kernels) == (
        "recomputation",
        1.5,
        ("f",),
    )
    assert (
        recomputation(scene(case(32, *names, direction="backward", calls=calls), forward)) is None
    ), "not counted"
