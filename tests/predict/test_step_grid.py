"""Times worked out ahead: few knots, close between them, and no jump or bend is smeared."""

import random
from itertools import pairwise

import pytest

from perfctl.orchestrator.counts.hardware import machines
from perfctl.orchestrator.counts.hardware.machines import BOARDS, Machine
from perfctl.orchestrator.predict import grid as step_grid
from perfctl.orchestrator.predict.grid import (
    LARGEST,
    TOLERANCE,
    CurveKnot,
    compute_training_time_grid,
    sample_curve_adaptively,
)
from perfctl.orchestrator.predict.operations import OPTIMIZERS, StepMeasurement
from perfctl.orchestrator.predict.predict import (
    PRECISIONS,
    predict_from_best_source,
    split_time_by_layer,
)
from tests.make.steps import plan_network
from tests.sample import sample

CPU = Machine("Desk CPU", "cpu", {"fp32": 4e11}, 4e10, 64e9, sms=16)


def between(curve, batch):
    """As the page does it: the straight line between the knots around a batch size."""
    left, right = next(pair for pair in pairwise(curve) if pair[0].batch <= batch <= pair[1].batch)
    part = (batch - left.batch) / (right.batch - left.batch)
    value, low, high = (a + part * (b - a) for a, b in zip(left[1:], right[1:], strict=True))
    return CurveKnot(batch, value, low, high)


def figure(of):
    return lambda batches: [(of(batch), of(batch) / 2, of(batch) * 2) for batch in batches]


def worst(curve, of, batches):
    return max(abs(between(curve, batch).value / of(batch) - 1) for batch in batches)


EVERY = [*range(1, 3000), *range(3000, LARGEST, 17), LARGEST]


def test_a_straight_line_needs_its_ends_alone():
    curve = sample_curve_adaptively(figure(lambda batch: 3.0 + 0.25 * batch))
    assert [knot.batch for knot in curve] == [1, LARGEST]
    assert worst(curve, lambda batch: 3.0 + 0.25 * batch, EVERY) < 1e-12


@pytest.mark.parametrize("bend", [2, 9, 37, 1000, 40_000])
def test_a_bend_is_kept(bend):
    def of(batch):
        return max(1.0, batch / bend)

    curve = sample_curve_adaptively(figure(of))
    assert worst(curve, of, EVERY) < 2 * TOLERANCE
    assert len(curve) <= 6


@pytest.mark.parametrize("jump", [3, 48, 777, 30_001])
def test_a_jump_lies_between_two_neighbours(jump):
    def of(batch):
        return 1.0 + (0.3 if batch >= jump else 0.0)

    curve = sample_curve_adaptively(figure(of))
    assert worst(curve, of, EVERY) < 2 * TOLERANCE
    sides = [knot.value for knot in curve if knot.batch in (jump - 1, jump)]
    assert sides == [1.0, 1.3]


@pytest.mark.parametrize(
    "spec", ["mlp", "inception", "vgg:batchnorm=yes", "resnet:depth=50,image=224,classes=1000"]
)
def test_off_the_knots_every_gpu_is_within_one_percent_of_the_prediction(spec):
    one, boards = (
        plan_network(spec),
        [machines.build_board_machine(board) for board in sample(BOARDS, 6)],
    )
    grid, rng, compared = compute_training_time_grid(one, boards), random.Random(spec), 0
    assert len(grid.cells) == len(boards) * len(PRECISIONS) * len(OPTIMIZERS)
    for place in rng.sample(range(len(grid.cells)), 60):
        cell = grid.cells[place]
        machine, rest = boards[place // 12], place % 12
        batch = round(2 ** rng.uniform(0, 16))
        case = one.make_step_spec(batch, PRECISIONS[rest // 3], OPTIMIZERS[rest % 3])
        if not cell.way:
            with pytest.raises(ValueError, match=r"has no (TF32|fast)"):
                predict_from_best_source(case, machine)
            continue
        compared += 1
        assert cell.curve is not None
        found, expected = (
            between(grid.curves[cell.curve], batch),
            predict_from_best_source(case, machine),
        )
        assert found[1:] == pytest.approx((expected.seconds, expected.low, expected.high), rel=0.01)
        assert (cell.source, cell.why_not) == (expected.source, expected.why_not)
        assert (cell.coverage, cell.outside) == (expected.coverage, expected.outside)
    assert compared > 30


def test_the_split_of_a_roofline_is_that_of_its_layers():
    one, machine = plan_network("resnet"), machines.build_board_machine(BOARDS[0])
    cell = compute_training_time_grid(one, [machine]).cells[1]
    assert cell.way
    assert cell.split is not None
    split = compute_training_time_grid(one, [machine]).splits[cell.split]
    for place, batch in enumerate(split.batches):
        case = one.make_step_spec(batch, "fp32", "momentum")
        whole = predict_from_best_source(case, machine).seconds
        found = split_time_by_layer(None, case, machine, whole)
        amounts = {"optimizer": sum(part.amounts[place] for part in split.optimizers["momentum"])}
        for part in split.parts:
            amounts[part.group] = amounts.get(part.group, 0.0) + part.amounts[place]
        total = sum(amounts.values())
        for group, kind in (
            ("optimizer", "optimizer"),
            ("norm", "norm"),
            ("activation", "activation"),
        ):
            expected = sum(share.share for share in found if share.kind == kind)
            assert amounts[group] / total == pytest.approx(expected, rel=1e-9), (group, batch)
        convolutions = sum(share.share for share in found if share.kind == "conv")
        assert (amounts["conv"] + amounts["pointwise"]) / total == pytest.approx(
            convolutions, rel=1e-9
        )


def test_what_was_measured_at_other_batches_is_said_without_one():
    one = plan_network("mlp")
    case = one.make_step_spec(32, "fp32", "sgd")
    measured = [StepMeasurement(case, CPU.name, 0.01, 0.009, 0.011)]
    cell = compute_training_time_grid(one, [CPU], measured).cells[0]
    assert cell.way == "roofline"
    assert cell.why_not[0] == f"measured: mlp ran on Desk CPU at batch 32, not at {step_grid.PROBE}"
