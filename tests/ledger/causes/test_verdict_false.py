"""Rows whose obvious reason is false: nothing is claimed that shapes, names, grids or flags do
not say."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.kernels.grids import ConvShape, GemmShape
from perfctl.orchestrator.counts.kernels.names import Algorithm, recognise
from perfctl.orchestrator.ledger.causes.breakdown import breakdown, winograd_multiplies
from perfctl.orchestrator.ledger.causes.call_rules import (
    extra_calls,
    extra_gradients,
    launch_multiple,
    whole_steps,
)
from perfctl.orchestrator.ledger.causes.evidence import RowEvidence
from perfctl.orchestrator.ledger.causes.judge import (
    ROW_RULES,
    confirm,
    drop_refuted_causes,
    unexplained_share,
)
from perfctl.orchestrator.ledger.causes.matching import unknown_tiles
from perfctl.orchestrator.ledger.causes.missing_rules import not_collected, nothing_counted
from perfctl.orchestrator.ledger.causes.rule import Cause, RuleInput, ratio_of
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from tests.make.rows import by_place, call, case, work

PAPER = 64_000
"""FLOPs of 32 samples through 100 inputs and 10 outputs."""
PLAIN = Algorithm("gemm", "gemm")
HALF = Algorithm("gemm", "gemm", tensor_core=True, math="fp16")
GRADIENTS = (call(32, "grad_input"), call(32, "grad_weight"))


def rules(one: RowEvidence, *others: RowEvidence, loose: Any = ()) -> dict[str, Cause]:
    given = RuleInput(one, by_place(one, *others), tuple(loose))
    said = [found for rule in ROW_RULES if (found := rule(given)) is not None]
    return {found.rule: found for found in confirm(given, said)}


def named(name: str, macs: float = 32_000, launches: float = 1, **more: Any) -> Any:
    return work(
        name, recognise(name), more.pop("grid", (9, 9, 1)), ffma=macs, launches=launches, **more
    )


def claims(found: dict[str, Cause]) -> dict[str, float | None]:
    return {rule: said.factor for rule, said in found.items() if said.factor not in (None, 1)}


def claim(factor: float | None) -> Cause:
    return Cause("x", factor)


@pytest.mark.parametrize("ratio", [0.5, 0.562, 1.5, 2.0, 3.0, 3.56])
def test_a_tensor_kernel_of_unknown_tile_explains_no_ratio(ratio: float) -> None:
    kernel = work("cutlass::Kernel2", HALF, (3, 3, 1), tensor=PAPER * ratio, ffma=0)
    one = case(32, kernel, counted=PAPER * ratio, forward=GemmShape(32, 10, 100))
    found = rules(one)
    assert claims(found) == {} and found["tensor cores"].factor == 1
    assert unexplained_share(ratio_of(one), found.values()) == 1
    assert "Nothing is missing" not in describe_fix(found["tensor cores"])


@pytest.mark.parametrize(
    ("ratio", "factors", "left"),
    [
        (1.0, (1.5,), ()),
        (1.0, (2.0, 0.5), (2.0, 0.5)),
        (1.23, (1.5,), ()),
        (1.46, (0.46,), ()),
        (3.0, (1.5, 2.0), (1.5, 2.0)),
        (2.0, (3.9,), ()),
        (2.0, (1.9,), (1.9,)),
        (2.0, (2.0, 1.5), (2.0,)),
        (1.01, (1.01,), (1.01,)),
        (0.5, (2.0,), ()),
        (2.0, (1.0, None), (1.0, None)),
        (0.0, (2.0,), (2.0,)),
        (None, (2.0,), (2.0,)),
    ],
)
def test_a_factor_that_does_not_bring_the_product_nearer_to_the_ratio_is_dropped(
    ratio: float | None, factors: tuple[float | None, ...], left: tuple[float | None, ...]
) -> None:
    assert tuple(said.factor for said in drop_refuted_causes(ratio, map(claim, factors))) == left


def test_forwards_kernel_in_backward_at_a_ratio_of_1_is_no_checkpointing() -> None:
    forward = case(32, named("f"), counted=PAPER)
    works = [named("f"), named("g", 8_000), named("h", 24_000)]
    one = case(32, *works, direction="backward", calls=GRADIENTS, counted=2 * PAPER)
    assert "recomputation" not in rules(one, forward)


def test_checkpointing_beside_an_input_gradient_by_forwards_kernel_is_found() -> None:
    forward = case(32, work("f", PLAIN, (1, 1, 1), ffma=32_000), counted=PAPER)
    works = [
        work("f", PLAIN, (1, 1, 1), ffma=64_000, launches=2),
        work("h", PLAIN, (1, 1, 1), ffma=32_000),
    ]
    one = case(32, *works, direction="backward", calls=GRADIENTS, counted=3 * PAPER)
    assert rules(one, forward)["recomputation"].factor == pytest.approx(1.5)
    tries = replace(one, environment={"cudnn_benchmark": "on"})
    assert "recomputation" not in rules(tries, forward), "as well a trial of a gradient"


@pytest.mark.parametrize("weight", [2, 4])
def test_a_product_of_hfma2_has_no_epilogue(weight: int) -> None:
    flops = Figure(weight * 16_000, "estimated", "HADD + HMUL + HFMA")
    kernel = replace(work("hgemm", PLAIN, hfma=16_000), flops=flops, half_weight=weight)
    assert kernel.products == kernel.executed
    assert claims(rules(case(32, kernel, counted=weight * 16_000))) == {}


def test_maps_in_one_tile_of_unknown_size_say_nothing_about_the_batch() -> None:
    def at(batch: int) -> RowEvidence:
        # 4 rows an image: 8 and 32 images lie in 128 rows
        shape = ConvShape(batch, 64, 64, 2, 2, 3, 3)
        kernel = work("conv", Algorithm("conv"), None, ffma=128 * 64 * 576)
        calls = (call(batch, macs=shape.macs // batch, kind="Conv2d"),)
        return case(batch, kernel, kind="Conv2d", calls=calls, forward=shape)

    assert frozenset.intersection(*(unknown_tiles(at(batch)) for batch in (8, 16, 32)))
    assert not frozenset.intersection(*(unknown_tiles(at(batch)) for batch in (16, 512)))


def test_winograd_beside_a_full_product_explains_nothing_unless_trials_are_on() -> None:
    shape = ConvShape(4, 64, 64, 56, 56, 3, 3)
    winograd, plain = (
        "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "void conv2d_direct_kernel<float>(float*)",
    )
    multiplies = winograd_multiplies(shape, 2, 3)
    works = [named(winograd, multiplies, grid=None), named(plain, shape.macs)]
    counted = 2 * (multiplies + shape.macs)
    calls = (call(4, macs=shape.macs // 4, kind="Conv2d"),)
    one = case(4, *works, kind="Conv2d", calls=calls, counted=counted, forward=shape)
    assert claims(rules(one)) == {}
    tried = rules(replace(one, environment={"cudnn_benchmark": "on"}))
    assert claims(tried) == {"several algorithms": pytest.approx(1 + 16 / 36)}


def test_a_convolution_beside_transforms_is_not_the_product_between_them() -> None:
    shape = ConvShape(2, 8, 8, 20, 20, 3, 3)
    transform = named("cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", 64)
    tried = named("volta_scudnn_128x128_relu_medium_nn_v1", shape.macs, grid=(7, 1, 1))
    calls = (call(2, macs=shape.macs // 2, kind="Conv2d"),)
    one = case(2, tried, transform, kind="Conv2d", calls=calls, counted=9, forward=shape)
    assert breakdown(one, None).family == "conv" and "Winograd" not in rules(one)
    between = named("volta_sgemm_128x128_nn", shape.macs, grid=(7, 1, 1))
    other = replace(one, kernels=(between, transform))
    assert breakdown(other, None).family == "winograd"


def test_winograd_without_a_grid_counts_the_tiles_at_the_edge() -> None:
    shape = ConvShape(2, 8, 8, 20, 20, 5, 5)
    kernel = work(
        "winograd9x9_5x5", Algorithm("winograd", "winograd", winograd=(9, 5)), None, ffma=5
    )
    calls = (call(2, macs=shape.macs // 2, kind="Conv2d"),)
    found = breakdown(case(2, kernel, kind="Conv2d", calls=calls, forward=shape), None)
    assert found.base == pytest.approx(2 * 2 * ceil(20 / 9) ** 2 * 13**2 * 8 * 8)
    assert found.base / found.paper > 169 / 2025 and "edge" in " ".join(found.rules)


def test_a_neighbour_whose_kernel_may_lie_outside_of_layers_is_served_by_nobody() -> None:
    a = case(32, work("k", ffma=64_000), counted=2 * PAPER)
    b = case(32, layer="b", position=1)
    assert "shared kernel" in rules(a, b)
    assert "shared kernel" not in rules(a, b, loose=[work("loose", ffma=32_000)])
    assert "shared kernel" not in rules(a, replace(b, profiled=False)), "ncu was not to count there"


def test_counters_that_two_launches_lack_were_collected() -> None:
    whole = {"ffma": 5.0, "dfma": 0.0, "hfma": 0.0, "pipe": 0.0}
    works = (
        work("whole", launches=4, **whole),
        work("part", launches=2, ffma=5.0, hfma=0.0, pipe=0.0),
    )
    made = case(32, *works)
    row = replace(made.row, counted=Figure(0, "counted", None, 4, 6))
    said = not_collected(RuleInput(replace(made, row=row), by_place(made)))
    assert said is not None
    assert "were not collected" not in describe_cause(
        said
    ) and "part has no fp64 counters" in describe_cause(said)
    assert "no FLOPs" in describe_cause(said) and "at least 0" not in describe_cause(said)


def test_a_count_of_exactly_0_is_a_finding() -> None:
    one = case(32, work("copy", Algorithm("copy"), ffma=0), counted=0)
    said = nothing_counted(RuleInput(one, by_place(one)))
    assert said is not None and "executed no FLOPs, but the estimate is 64 kFLOP" in describe_cause(
        said
    )
    assert unexplained_share(ratio_of(one), [said]) == 1


def test_a_gap_that_no_rule_explains_is_open_as_a_whole_and_a_lower_bound_below_paper_is_none() -> (
    None
):
    open_, lower = (
        case(32, work(ffma=50_000), counted=1.5 * PAPER),
        case(32, work(ffma=16_000), counted=PAPER / 2),
    )
    assert unexplained_share(ratio_of(open_), ()) == 1
    figure = replace(lower.row.counted, missing=("tensor",))
    assert ratio_of(replace(lower, row=replace(lower.row, counted=figure))) is None


NETWORK = {"a": 1, "b": 2, "c": 3, "d": 4}


def network(factor: float, launches: float = 1, world: str | None = None) -> Any:
    """Four layers, forward and backward, that all executed ``factor`` times paper; d has a padded
    tile of its own, 1.25."""
    made = []
    for layer, size in NETWORK.items():
        for direction in ("forward", "backward"):
            calls = (call(32, direction, macs=1000 * size, layer=layer),)
            own = factor * (1.25 if (layer, direction) == ("d", "forward") else 1)
            macs = 32_000 * size * own
            kernel = work("k", PLAIN, ffma=macs, launches=launches)
            environment = {"world_size": world} if world else {}
            made.append(
                case(
                    32,
                    kernel,
                    layer=layer,
                    direction=direction,
                    calls=calls,
                    position=size,
                    counted=2 * macs,
                    environment=environment,
                )
            )
    table = by_place(*made)
    padded = Cause("tile padding", 1.25)
    return [
        (RuleInput(one, table), [padded] if one.place[1:] == ("d", "forward") else [])
        for one in made
    ]


@pytest.mark.parametrize(
    ("factor", "launches", "world", "cause", "confidence"),
    [
        (2, 2, None, "each GEMM ran 2 times", "predicted and matched"),
        (4, 1, None, "a batch of 128 fits", "plausible"),
        (0.5, 1, None, "one rank of 2, or a batch of 16", "plausible"),
        (0.25, 1, "4", "this is one rank of 4", "plausible"),
    ],
)
def test_a_factor_that_all_rows_share_has_one_cause(
    factor: float, launches: float, world: str | None, cause: str, confidence: str
) -> None:
    (step,) = whole_steps(network(factor, launches, world))[32]
    assert (step.factor, step.confidence) == (factor, confidence)
    assert cause in describe_cause(step.sweep_cause())


def test_n_launches_of_an_nth_of_the_work_are_the_estimated_work() -> None:
    assert not whole_steps(network(1, 4)), "micro-batches, or each GPU with its part"


@pytest.mark.parametrize(
    ("world", "rows", "told"), [("4", 4, True), ("2", 4, False), (None, 4, False), ("4", 2, False)]
)
def test_recorded_ranks_need_two_layers_only(world: str | None, rows: int, told: bool) -> None:
    few = network(0.25, 1, world)[:rows]
    assert len({case.evidence.row.layer for case, _ in few}) == rows // 2
    assert bool(whole_steps(few)) is told


@pytest.mark.parametrize("factor", [1, 1.05, 1.5, 0.7])
def test_a_factor_of_no_whole_number_is_nobodys(factor: float) -> None:
    assert whole_steps(network(factor)) == {}


def test_rows_that_differ_have_no_cause_in_common() -> None:
    mixed = [
        one if number % 2 else two
        for number, (one, two) in enumerate(zip(network(2), network(1), strict=True))
    ]
    assert whole_steps(mixed) == {}


@pytest.mark.parametrize(("size", "stays"), [(1.0, True), (1.3, True), (1.4, False), (2.0, False)])
def test_a_factor_may_overshoot_by_a_third_in_logarithms(size: float, stays: bool) -> None:
    assert bool(drop_refuted_causes(2.0, [claim(2.0**size)])) is stays


def ran(forward: float, backward: float, layers: str = "abcd") -> Any:
    """Layers whose products were launched so often, forward and backward."""
    made = []
    for layer in layers:
        for direction, launches in (("forward", forward), ("backward", backward)):
            kernel = work(
                f"void gemm_{direction}<float>(float*)",
                PLAIN,
                ffma=32_000 * launches,
                launches=launches,
            )
            calls = (call(32, direction, layer=layer),)
            made.append(
                case(
                    32,
                    kernel,
                    layer=layer,
                    direction=direction,
                    calls=calls,
                    counted=launches * PAPER,
                )
            )
    table = by_place(*made)
    return [(RuleInput(one, table), []) for one in made]


def test_gradients_launched_more_often_than_forward_have_a_factor_of_their_own() -> None:
    steps, again = whole_steps(ran(5, 10))[32]
    assert (steps.factor, steps.facts.of_gradients, again.factor, again.facts.of_gradients) == (
        5,
        False,
        2,
        True,
    )
    assert "double backward" in describe_cause(again.sweep_cause())


@pytest.mark.parametrize(
    ("forward", "backward", "layers"), [(2, 1, "abcd"), (2, 3, "abcd"), (2, 2, "a"), (1, 1, "abcd")]
)
def test_launches_that_another_row_speaks_against_are_no_whole_step(
    forward: float, backward: float, layers: str
) -> None:
    assert not any(
        step.launched > 1 for step in whole_steps(ran(forward, backward, layers)).get(32, ())
    )


def test_a_layer_and_its_gradients_that_ran_more_often_are_told_apart() -> None:
    forward, backward = (given for given, _ in ran(2, 6, "a"))
    assert (said := extra_calls(forward)) is not None and said.factor == 2
    assert (said := extra_calls(backward)) is not None and said.factor == 2
    assert (said := extra_gradients(backward)) is not None and said.factor == 3
    assert extra_gradients(forward) is None


def test_launches_of_a_recurrent_layer_may_be_steps_of_its_sequence() -> None:
    row = ran(6, 6, "a")[0][0].evidence
    assert launch_multiple(row, row.product_kernels) == 6
    recurrent = replace(row, row=replace(row.row, kind="LSTM"))
    assert launch_multiple(recurrent, recurrent.product_kernels) is None


def test_launches_that_may_be_parts_of_one_product_claim_no_factor() -> None:
    given = ran(2, 2, "a")[0][0]
    small = replace(given.evidence, forward=GemmShape(16, 100, 20))
    said = extra_calls(RuleInput(small, by_place(small)))
    assert (
        said is not None
        and said.factor is None
        and "split over the launches" in describe_cause(said)
    )
    large = replace(given.evidence, forward=GemmShape(1024, 1000, 256))
    said = extra_calls(RuleInput(large, by_place(large)))
    assert said is not None and said.factor == 2
