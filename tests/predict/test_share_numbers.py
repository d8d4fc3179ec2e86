"""What a fitted step, its phases and its layers' shares come out at, worked out by hand; and the
roofline alone."""

import math
from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict.fit import (
    compute_step_feature_factors,
    predict_one_step,
    split_seconds_into_phases,
    sum_weighted_parts,
)
from perfctl.orchestrator.predict.operations import StepMeasurement
from perfctl.orchestrator.predict.predict import (
    predict_from_best_source,
    split_time_by_layer,
)
from perfctl.orchestrator.predict.step_parts import (
    FEATURES,
    compute_step_features,
    sum_step_part_seconds,
)
from tests.make.made_fits import CONV, CPU, Linear, case_of, fit_of


def test_a_step_is_its_parts_at_their_costs():
    fit = fit_of({"conv forward": 2.0, "step forward": 5.0})
    case = case_of(CONV)
    here = 2 * 2 * 2 * 360000 / 100e9 + 5e-3
    found = predict_one_step(fit, case)
    # a quarter as floor, and a model that says four times that
    assert found.seconds == pytest.approx(here)
    assert found.high == pytest.approx(here * math.exp(0.1))


def test_phases_have_their_part_of_the_step():
    def split(phases):
        return split_seconds_into_phases(fit_of({}, phases), case_of(CONV), 4.0)

    costs = {"forward": 1.0, "backward": 2.0, "optimizer": 5.0}
    assert split({phase: {"step forward": cost} for phase, cost in costs.items()}) == pytest.approx(
        {phase: 4.0 * cost / 8.0 for phase, cost in costs.items()}
    )
    assert split(None) == split({"forward": {}}) == {}
    assert sum_weighted_parts((2.0, 3.0), (5.0, 7.0)) == 2 * 5 + 3 * 7


COSTS = {"conv forward": 1.0, "conv backward": 1.0, "bytes optimizer": 1.0}
EACH_ONCE = fit_of(COSTS, {name.split(" ")[1]: {name: cost} for name, cost in COSTS.items()})
ARITHMETIC = 2 * 2 * 360000 / 100e9
"""Seconds of the convolution's forward pass at a cost of 1."""


def rows_of(shares):
    return {share.layer: (share.seconds, share.share) for share in shares}


def test_shares_are_scaled_to_the_step_longest_first_and_limited_by_their_largest_part():
    fit = fit_of(
        {
            "conv forward": 1.0,
            "conv bytes forward": 10.0,
            "bytes optimizer": 1000.0,
            "step forward": 1.0,
        }
    )
    case = case_of(CONV, CONV._replace(layer="d", macs=100 * CONV.macs))
    moved = 10 * 2 * 1200 * 4 / 20e9
    expected = {
        ("d", "conv", "arithmetic"): 100 * ARITHMETIC + moved,
        ("(optimizer)", "optimizer", "bytes"): 1e-3,
        ("(step)", "overhead", "operations"): 1e-3,
        ("c", "conv", "arithmetic"): ARITHMETIC + moved,
    }
    whole = sum(expected.values())
    found = split_time_by_layer(fit, case, CPU, 8.0)
    for share in found:
        part = expected[share.layer, share.kind, share.limit] / whole
        assert (share.seconds, share.share) == pytest.approx((8 * part, part))
    assert len(found) == len(expected)
    assert [share.seconds for share in found] == sorted(
        (share.seconds for share in found), reverse=True
    )


def test_measured_phases_decide_how_much_each_directions_rows_are():
    phases = {"forward": 1.0, "backward": 5.0, "optimizer": 4.0}

    def rows(seconds, phases):
        return rows_of(split_time_by_layer(EACH_ONCE, case_of(CONV), CPU, seconds, phases))

    assert rows(10.0, phases)["c"][0] == pytest.approx(6.0)
    assert rows(10.0, phases)["(optimizer)"] == pytest.approx((4.0, 0.4))
    assert rows(20.0, phases)["(optimizer)"] == pytest.approx((8.0, 0.4))
    # One phase is not known: nothing is said by phase.
    del phases["optimizer"]
    assert rows(10.0, phases)["(optimizer)"][1] == pytest.approx(1e-6 / (3 * ARITHMETIC + 1e-6))


def test_layers_and_phases_say_the_same_of_the_optimizer():
    case = case_of(CONV)
    record = StepMeasurement(
        case, CPU.name, 10.0, 9.0, 11.0, forward=1.0, backward=5.0, optimizer=4.0
    )
    for records in ((), (record,)):
        found = predict_from_best_source(case, CPU, records, [EACH_ONCE])
        assert rows_of(found.shares)["(optimizer)"][0] == pytest.approx(found.phases["optimizer"])
        assert sum(found.phases.values()) == pytest.approx(found.seconds)


def test_the_rooflines_shares_leave_out_what_is_no_floor():
    found = split_time_by_layer(None, case_of(CONV, training=False), CPU, 1.0)
    assert rows_of(found) == {"c": pytest.approx((1.0, 1.0))}
    assert split_time_by_layer(fit_of({}), case_of(CONV), CPU, 1.0) == ()


def test_the_roofline_alone_has_a_wider_range_for_other_precisions_and_starts_operations_in_10_microseconds():
    heavy = CONV._replace(macs=1e12)
    gpu = Machine("Test GPU", "gpu", {"fp32": 10e12, "tensor fp16": 80e12}, 800e9)
    floor = 3 * 2 * 2 * 1e12 / 10e12
    found = predict_from_best_source(case_of(heavy), gpu)
    assert (found.low, found.seconds, found.high) == pytest.approx(
        (1.1 * floor, 1.5 * floor, 2.2 * floor), rel=1e-4
    )
    assert "1.1 to 2.2 times the roofline" in found.source
    half = predict_from_best_source(case_of(heavy, precision="fp16"), gpu)
    assert (half.low, half.seconds, half.high) == pytest.approx(
        (1.5 * floor / 8, 2.2 * floor / 8, 3.7 * floor / 8), rel=1e-4
    )
    light = CONV._replace(macs=1.0, calls=7)
    assert predict_from_best_source(case_of(light), gpu).seconds == pytest.approx(3 * 7 * 10e-6)
    assert predict_from_best_source(case_of(light), gpu).high == pytest.approx(9 * 7 * 10e-6)
    assert predict_from_best_source(case_of(light, training=False), gpu).seconds == pytest.approx(
        7 * 10e-6
    )


def test_what_drove_a_step_is_named_by_its_features_on_the_machine_of_the_fit():
    batch, arithmetic = FEATURES.index("batch"), FEATURES.index("arithmetic")
    made = fit_of({})
    model, case = Linear(0.0, {batch: 0.25, arithmetic: 1e5}), case_of(CONV)
    found = compute_step_feature_factors(
        replace(made, fitted=replace(made.fitted, model=model)), case
    )
    own = compute_step_features(case, sum_step_part_seconds(case, CPU))[arithmetic]
    strongest, second, *rest = found.items()
    assert strongest == ("arithmetic", pytest.approx(math.exp(1e5 * own)))
    assert second == ("batch", pytest.approx(math.exp(0.5)))
    assert {factor for _, factor in rest} == {1.0} and len(found) == len(FEATURES)
