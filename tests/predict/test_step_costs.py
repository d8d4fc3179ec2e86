"""Costs of parts from tables made by hand: sums of squares, the pull to a class's cost, outliers,
layers and phases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.predict.efficiency import FitSettings
from perfctl.orchestrator.predict.fit import (
    StepTable,
    _estimate_prior_costs_and_deviations,
    _fit_phase_costs,
    _round_costs,
    _solve_robust_nnls,
    build_fit_arrays,
    fit_part_costs,
    fit_part_costs_and_efficiency,
)
from perfctl.orchestrator.predict.step_parts import (
    CLASS_OF,
    EXTRA,
    FEATURES,
    PARTS,
    compute_step_features,
    sum_step_part_seconds,
)
from tests.make.steps import CPU, cases, costs, measured, network
from tests.make.works import by_part

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")


def row(given):
    return [given.get(name, 0.0) for name in PARTS]


def table_of(rows, seconds, layers=(), groups=()):
    """``layers``: (record, parts, clock, seconds, weight)."""
    return StepTable(
        np.array([row(each) for each in rows]),
        np.ones((len(rows), len(FEATURES))),
        np.array(seconds, dtype=float),
        tuple(groups) or tuple("m" for _ in rows),
        np.array([each[0] for each in layers], dtype=int),
        np.array([row(each[1]) for each in layers]).reshape(-1, len(PARTS)),
        *(np.array([each[at] for each in layers], dtype=float) for at in (2, 3, 4)),
    )


def solved(column, steps, fixed, pull=0.0, wanted=0.0):
    (found,) = _solve_robust_nnls(
        np.array(column)[:, None], np.array(fixed), np.array([[pull]]), np.array([wanted]), steps
    )
    return float(found)


def test_one_cost_is_the_least_squares_of_all_rows_and_of_what_it_is_pulled_to():
    # Three times (2x - 1)^2 and once (x - 1)^2: x = (3 * 2 + 1) / (3 * 4 + 1).
    assert solved([2.0] * 3, 3, [1.0] * 3, pull=1.0, wanted=1.0) == pytest.approx(7 / 13)
    # A weight of a half counts a fourth: (3 + 0.5 / 4) / (3 + 0.25 / 4), and the row alone is no
    # outlier of itself.
    assert solved([1.0, 1.0, 1.0, 0.5], 3, [1.0, 1.0, 1.0, 0.5]) == pytest.approx(50 / 49)
    assert solved([-1.0] * 3, 3, [1.0] * 3) == 0.0  # no cost is below 0


def test_a_row_beyond_twice_the_median_error_loses_weight_in_four_rounds():
    # Three rows want 1 and one wants 2. Rounds: 14/13, then its squared weight is 1/3: 38/37, 1/9:
    # 110/109, 1/27: 326/325.
    assert solved([1.0, 1.0, 1.0, 0.5], 4, [1.0] * 4) == pytest.approx(326 / 325, rel=1e-9)
    # Where it is no step, its error is compared with its own kind's: nobody is an outlier, 3.5
    # / 3.25.
    assert solved([1.0, 1.0, 1.0, 0.5], 3, [1.0] * 4) == pytest.approx(14 / 13, rel=1e-9)
    assert solved([0.5, 1.0, 1.0, 1.0], 1, [1.0] * 4) == pytest.approx(14 / 13, rel=1e-9)


def test_a_class_that_nothing_was_left_for_costs_as_if_it_were_a_hundredth_of_the_steps():
    seen = row({"conv forward": 1.0, "conv bytes forward": 0.1}), row({"linear backward": 1.0})
    prior, scale = (by_part(each) for each in _estimate_prior_costs_and_deviations(np.array(seen)))
    # arithmetic explains both alone
    assert scale["matmul forward"] == pytest.approx(1.0, rel=1e-4)
    assert scale["norm bytes forward"] == scale["window forward"] == pytest.approx(0.01 / 0.05)
    # neither was seen
    assert scale["operations forward"] == scale["step forward"] == 1.0
    for name, mine in prior.items():
        assert mine == (0.0 if name.split(" ")[0] in EXTRA else scale[name]), name


def test_what_lies_on_top_of_other_parts_is_no_part_of_its_classs_cost():
    _, scale = _estimate_prior_costs_and_deviations(
        np.array([row({"conv forward": 0.5, "narrow forward": 99.0})] * 2)
    )
    assert by_part(scale)["linear forward"] == pytest.approx(1 / 0.5, rel=1e-4)


def test_parts_that_were_not_seen_cost_what_their_class_does_and_extras_nothing():
    # Shares of 1/4 and 1/8 that nothing tells apart: half of the time is each's.
    found = fit_part_costs(table_of([{"conv forward": 2e-3, "step forward": 1e-3}] * 2, [8e-3] * 2))
    by_class = {"arithmetic": 2.0, "bytes": 1.0, "operations": 1.0, "step": 4.0}
    for name, cost in by_part(found).items():
        wanted = 0.0 if name.split(" ")[0] in EXTRA else by_class[CLASS_OF[name]]
        assert cost == pytest.approx(wanted, rel=1e-3, abs=1e-9), name


@pytest.mark.parametrize(
    ("options", "conv", "linear"),
    [
        ({}, 17424 / 17400, 8784 / 4440),
        ({"ridge": 0.01}, 17424 / 17400, 8784 / 4440),
        ({"ridge": 1.0}, 66 / 61, 24 / 17),
    ],
    ids=["usual", "the same, stated", "strong"],
)
def test_costs_of_one_class_are_drawn_together_by_the_ridge(options, conv, linear):
    # Shares 1 and 1/2: together (1 + 1/2) / (1 + 1/4) = 1.2. Each alone: (share + r / 1.2) /
    # (share^2 + r / 1.44).
    given = table_of([{"conv forward": 3.0}, {"linear forward": 1.0}], [3.0, 2.0])
    found = by_part(fit_part_costs(given, **options))
    assert found["conv forward"] == pytest.approx(conv, rel=1e-4)
    assert found["linear forward"] == pytest.approx(linear, rel=1e-4)


@pytest.mark.parametrize(
    ("clock", "weight", "cost"),
    [(0.0, 1.0, 0.755 / 0.315), (0.0, 0.5, 0.5675 / 0.268125), (1.0, 0.5, 2.0)],
    ids=["weight 1", "weight 1/2", "the clock takes the other two seconds"],
)
def test_a_layers_row_counts_by_its_weight_and_its_clock_takes_its_own_part(clock, weight, cost):
    # The step says 2, the layer 4, and 0.1 x / 2 is drawn to 0.1: with weight 1 it is
    # (1/2 + 1/4 + 0.005) / (1/4 + 1/16 + 0.0025), and with 1/2 a fourth of the layer's terms.
    step = {"conv forward": 1.0}
    found = by_part(fit_part_costs(table_of([step], [2.0], [(0, step, clock, 4.0, weight)])))
    assert found["conv forward"] == pytest.approx(cost, rel=1e-3 if clock else 1e-4)


def test_only_the_records_that_were_chosen_and_their_layers_count():
    one, other = {"conv forward": 1.0}, {"linear forward": 1.0}
    layers = [(0, one, 0.0, 4.0, 0.5), (1, other, 1e-6, 5.0, 0.25), (0, other, 2e-6, 6.0, 0.125)]
    given = table_of([one, other], [2.0, 3.0], layers, ("a", "b"))
    second = table_of([other], [3.0], [(0, *layers[1][1:])], ("b",))
    assert (
        fit_part_costs(given, [1]).tolist()
        == fit_part_costs(second).tolist()
        != fit_part_costs(given).tolist()
    )
    assert fit_part_costs(given, [0, 1]).tolist() == fit_part_costs(given).tolist()


def test_a_table_holds_parts_features_and_the_layers_of_each_record():
    bare: dict[str, Any] = {"forward": None, "backward": None, "optimizer": None}
    first, second = (replace(measured(network(8, 2, batch)), **bare) for batch in (4, 16))
    second = replace(second, layer_seconds={("conv0", "forward"): 0.75, ("act1", "backward"): 0.25})
    given = build_fit_arrays([first, second], CPU)
    own = sum_step_part_seconds(second.case, CPU)
    assert (tuple(given.parts[1]), tuple(given.rows[1])) == (
        own,
        compute_step_features(second.case, own),
    )
    assert given.seconds.tolist() == [first.seconds, second.seconds]
    assert given.groups == (first.case.model,) * 2
    assert build_fit_arrays([first, second], CPU, ["a", "b"]).groups == ("a", "b")
    assert (given.layer_of.tolist(), given.layer_clock.tolist()) == ([1, 1], [1e-6, 1e-6])
    assert given.layer_seconds.tolist() == [0.75, 0.25]
    assert given.layer_weights.tolist() == pytest.approx([0.5 * math.sqrt(0.75), 0.25])
    second_row = by_part(given.layer_parts[1])
    assert second_row["activation bytes backward"] > second_row["conv forward"] == 0.0


def test_each_phase_has_the_costs_of_its_own_parts_alone():
    records = [measured(case) for case in cases()]
    given = build_fit_arrays(records, CPU)
    found = _fit_phase_costs(records, given)
    assert list(found) == ["forward", "backward", "optimizer"]
    for phase, mine in found.items():
        assert {
            name for name, cost in by_part(mine).items() if cost and not name.endswith(phase)
        } == set()
        taken = np.array([getattr(record, phase) for record in records])
        assert np.median(abs(given.parts @ np.array(mine) / taken - 1)) < 0.03, phase
    assert by_part(found["optimizer"])["tensors optimizer"] == pytest.approx(
        by_part(costs())["tensors optimizer"], rel=0.05
    )


@pytest.mark.parametrize("value", [None, 0.0, -1.0])
def test_phases_that_one_record_lacks_are_not_learned(value):
    records = [measured(case) for case in cases()[:4]]
    given = build_fit_arrays(records, CPU)
    records[2] = replace(records[2], optimizer=value)
    assert _fit_phase_costs(records, given) == {}


def test_of_inference_only_the_forward_pass_is_a_phase():
    records = [measured(replace(case, training=False)) for case in cases()[:4]]
    assert list(_fit_phase_costs(records, build_fit_arrays(records, CPU))) == ["forward"]


def test_costs_are_written_with_ten_digits():
    assert _round_costs(np.array([1 / 3, 2.0])) == (0.3333333333, 2.0)


def test_the_model_learns_from_sums_whose_costs_did_not_see_the_group():
    pytest.importorskip("sklearn")
    # Ten steps cost 1 for their part and ten, of another model, 2. Each half's costs say the
    # other's: sums of 2 and 0.5.
    given = table_of(
        [{"conv forward": 1.0}] * 10 + [{"conv forward": 0.5}] * 10,
        [1.0] * 20,
        groups=["a"] * 10 + ["b"] * 10,
    )
    found, fitted = fit_part_costs_and_efficiency(
        "made up", given, FitSettings(power=8, rounds=1, folds=2)
    )
    # (1 + 1/2) / (1 + 1/4)
    assert by_part(found)["conv forward"] == pytest.approx(1.2, rel=1e-3)
    assert (fitted.name, fitted.features, fitted.rows) == ("made up", FEATURES, 20)
    assert (fitted.floor_low, fitted.floor_high) == pytest.approx((0.5 / 4, 2.0 / 4), rel=1e-3)
    assert fitted.model.predict(np.ones((1, len(FEATURES))))[0] == pytest.approx(
        math.log(4.0), rel=1e-3
    )  # between 2 and 8 times the floor
