"""What a fitted step, its phases and its layers' shares come out at, worked out by hand; and the
roofline alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict.fit import drivers, phases_of, predict_step, weighed
from perfctl.orchestrator.predict.predict import predict, shares
from perfctl.orchestrator.predict.step_parts import FEATURES, LIMIT_OF, features, parts
from tests.make.made_fits import CONV, CPU, Linear, case_of, fit_of


def test_a_step_is_its_parts_at_their_costs() -> None:
    fit = fit_of({"conv forward": 2.0, "step forward": 5.0})
    case = case_of(CONV)
    here = 2 * 2 * 2 * 360000 / 100e9 + 5e-3
    found = predict_step(fit, case)
    # a quarter as floor, and a model that says four times that
    assert found.seconds == pytest.approx(here)
    assert found.high == pytest.approx(here * math.exp(0.1))


def test_phases_have_their_part_of_the_step() -> None:
    fit = fit_of(
        {},
        {
            "forward": {"step forward": 1.0},
            "backward": {"step forward": 2.0},
            "optimizer": {"step forward": 5.0},
        },
    )
    assert phases_of(fit, case_of(CONV), 4.0) == pytest.approx(
        {"forward": 0.5, "backward": 1.0, "optimizer": 2.5}
    )
    assert phases_of(fit_of({}), case_of(CONV), 4.0) == {}
    assert phases_of(fit_of({}, {"forward": {}}), case_of(CONV), 4.0) == {}
    assert weighed((2.0, 3.0), (5.0, 7.0)) == 31.0


@pytest.mark.parametrize(
    ("part", "limit"),
    [
        ("conv forward", "arithmetic"),
        ("narrow backward", "arithmetic"),
        ("shallow forward", "arithmetic"),
        ("conv bytes forward", "bytes"),
        ("norm bytes backward", "bytes"),
        ("weights forward", "bytes"),
        ("window forward", "bytes"),
        ("spilled forward", "bytes"),
        ("overflow optimizer", "bytes"),
        ("adam optimizer", "bytes"),
        ("fresh backward", "bytes"),
        ("bytes optimizer", "bytes"),
        ("operations forward", "operations"),
        ("tensors optimizer", "operations"),
        ("step forward", "operations"),
    ],
)
def test_what_a_part_is_limited_by(part: str, limit: str) -> None:
    assert LIMIT_OF[part] == limit


def rows_of(shares: Any) -> dict[str, tuple[float, float, str]]:
    return {share.layer: (share.seconds, share.share, share.limit) for share in shares}


def test_shares_are_scaled_to_the_step_longest_first_and_limited_by_their_largest_part() -> None:
    fit = fit_of(
        {
            "conv forward": 1.0,
            "conv bytes forward": 10.0,
            "bytes optimizer": 1000.0,
            "step forward": 1.0,
        }
    )
    case = case_of(CONV, replace(CONV, layer="d", macs=100 * CONV.macs))
    arithmetic, moved = 2 * 2 * 360000 / 100e9, 10 * 2 * 1200 * 4 / 20e9
    c, d, optimizer, step = arithmetic + moved, 100 * arithmetic + moved, 1e-3, 1e-3
    whole = c + d + optimizer + step
    found = shares(fit, case, CPU, 8.0)
    scaled = {
        name: (8 * each / whole, each / whole)
        for name, each in (("c", c), ("d", d), ("(optimizer)", optimizer), ("(step)", step))
    }
    rows = rows_of(found)
    for name, pair in scaled.items():
        assert rows[name][:2] == pytest.approx(pair)
    assert {name: row[2] for name, row in rows.items()} == {
        "c": "arithmetic" if arithmetic > moved else "bytes",
        "d": "arithmetic",
        "(optimizer)": "bytes",
        "(step)": "operations",
    }
    assert [share.seconds for share in found] == sorted(
        (share.seconds for share in found), reverse=True
    )
    assert {share.layer: share.kind for share in found} == {
        "c": "conv",
        "d": "conv",
        "(optimizer)": "optimizer",
        "(step)": "overhead",
    }


def test_measured_phases_decide_how_much_each_directions_rows_are() -> None:
    fit = fit_of({"conv forward": 1.0, "conv backward": 1.0, "bytes optimizer": 1.0})
    case = case_of(CONV)
    rows = rows_of(
        shares(fit, case, CPU, 10.0, {"forward": 1.0, "backward": 5.0, "optimizer": 4.0})
    )
    assert rows["c"][0] == pytest.approx(6.0) and rows["(optimizer)"][0] == pytest.approx(4.0)
    twice = rows_of(
        shares(fit, case, CPU, 20.0, {"forward": 1.0, "backward": 5.0, "optimizer": 4.0})
    )
    assert twice["(optimizer)"][:2] == pytest.approx((8.0, 0.4))
    # One phase is not known: nothing is said by phase.
    lacking = rows_of(shares(fit, case, CPU, 10.0, {"forward": 1.0, "backward": 5.0}))
    arithmetic = 2 * 2 * 360000 / 100e9
    assert lacking["(optimizer)"][1] == pytest.approx(1e-6 / (3 * arithmetic + 1e-6))


def test_the_rooflines_shares_leave_out_what_is_no_floor() -> None:
    rows = rows_of(shares(None, case_of(CONV, training=False), CPU, 1.0))
    assert set(rows) == {"c"} and rows["c"][:2] == pytest.approx((1.0, 1.0))
    assert shares(fit_of({}), case_of(CONV), CPU, 1.0) == ()


def test_the_roofline_alone_has_a_wider_range_for_other_precisions_and_starts_operations_in_10_microseconds() -> (
    None
):
    heavy = replace(CONV, macs=1e12)
    gpu = Machine("Test GPU", "gpu", {"fp32": 10e12, "tensor fp16": 80e12}, 800e9)
    floor = 3 * 2 * 2 * 1e12 / 10e12
    found = predict(case_of(heavy), gpu)
    assert (found.low, found.seconds, found.high) == pytest.approx(
        (1.1 * floor, 1.5 * floor, 2.2 * floor), rel=1e-4
    )
    assert "1.1 to 2.2 times the roofline" in found.source
    half = predict(case_of(heavy, precision="fp16"), gpu)
    assert (half.low, half.seconds, half.high) == pytest.approx(
        (1.5 * floor / 8, 2.2 * floor / 8, 3.7 * floor / 8), rel=1e-4
    )
    light = replace(CONV, macs=1.0, calls=7)
    assert predict(case_of(light), gpu).seconds == pytest.approx(3 * 7 * 10e-6)
    assert predict(case_of(light), gpu).high == pytest.approx(9 * 7 * 10e-6)
    assert predict(case_of(light, training=False), gpu).seconds == pytest.approx(7 * 10e-6)


def test_what_drove_a_step_is_named_by_its_features_on_the_machine_of_the_fit() -> None:
    batch, arithmetic = FEATURES.index("batch"), FEATURES.index("arithmetic")
    made = fit_of({})
    model, case = Linear(0.0, {batch: 0.25, arithmetic: 1e5}), case_of(CONV)
    found = drivers(replace(made, fitted=replace(made.fitted, model=model)), case)
    own = features(case, parts(case, CPU))[arithmetic]
    strongest, second, *rest = found.items()
    assert strongest == ("arithmetic", pytest.approx(math.exp(1e5 * own)))
    assert second == ("batch", pytest.approx(math.exp(0.5)))
    assert {factor for _, factor in rest} == {1.0} and len(found) == len(FEATURES)


def test_a_batch_of_one_is_one() -> None:
    assert predict(case_of(CONV, batch=1), CPU).samples_per_second > 0
