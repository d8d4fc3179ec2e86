"""Which way a step is predicted, and what is said about it. Times are made up, costs known."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from perfctl.orchestrator.predict.predict import ROOFLINE, WAYS, StepTime, predict
from perfctl.orchestrator.predict.step_parts import roofline
from tests.make.steps import CPU, GPU, fitted, measured, network

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="perfctl[predict]")
CASE = network(32, 4, 16)


def whole(found: StepTime) -> None:
    """What holds whatever the way."""
    assert 0 < found.low <= found.seconds <= found.high
    assert found.way in WAYS
    assert sum(share.seconds for share in found.shares) == pytest.approx(found.seconds)
    assert sum(share.share for share in found.shares) == pytest.approx(1.0)
    assert [share.seconds for share in found.shares] == sorted(
        (s.seconds for s in found.shares), reverse=True
    )
    assert found.samples_per_second == pytest.approx(found.case.batch / found.seconds)


def test_a_step_that_was_measured_here_is_taken_as_it_was() -> None:
    record = measured(CASE)
    found = predict(CASE, CPU, [record], [fitted()])
    whole(found)
    assert (found.way, found.seconds, found.low, found.high) == (
        "measured",
        record.seconds,
        record.low,
        record.high,
    )
    assert found.coverage is None
    assert found.why_not == ()
    assert found.phases["backward"] == record.backward


def test_a_fit_of_this_device_comes_next_and_says_at_which_batches_it_was_measured() -> None:
    found = predict(CASE, CPU, [measured(replace(CASE, batch=4))], [fitted()])
    whole(found)
    assert found.way == "fitted"
    assert found.coverage == 0.9
    assert found.why_not == (f"measured: {CASE.model} ran on Test CPU at batch 4, not at 16",)
    assert found.source == fitted().name
    assert found.outside == ()


def test_the_roofline_alone_has_the_range_that_was_seen_elsewhere() -> None:
    case = network(256, 6, 512, image=64)
    found = predict(case, GPU)
    low, middle, high = ROOFLINE["fp32"]
    floor = roofline(case, GPU)
    assert (found.low, found.seconds, found.high) == pytest.approx(
        (low * floor, middle * floor, high * floor)
    )
    assert found.floor == floor
    assert found.coverage is None
    assert found.phases == {}


def test_on_a_gpu_a_step_of_many_small_operations_takes_what_starting_them_takes() -> None:
    case = network(1, 30, 1, image=2)
    slow = predict(case, replace(GPU, launch_seconds=50e-6))
    whole(slow)
    assert slow.seconds == pytest.approx(3 * len(case.works) * 50e-6)


def test_a_family_and_an_optimizer_that_were_not_measured_are_said() -> None:
    case = replace(network(32, 4, 16, family="other"), optimizer="adam")
    said = predict(case, CPU, (), [fitted()]).outside
    assert any("no other was measured (plain)" in each for each in said)
    assert any(each == "adam was not measured (sgd)" for each in said)


def test_the_shares_name_layers_and_what_limits_them() -> None:
    shares = {share.layer: share for share in predict(CASE, CPU, (), [fitted()]).shares}
    assert shares["conv2"].kind == "conv"
    assert shares["conv2"].limit == "arithmetic"
    assert shares["act1"].limit in ("bytes", "operations")
    assert {"(optimizer)", "(step)"} <= set(shares)


def test_a_case_without_operations_is_refused() -> None:
    with pytest.raises(ValueError, match="no known operation"):
        predict(replace(CASE, works=()), CPU)


def test_a_batch_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="batch size must be at least 1, got 0"):
        predict(replace(CASE, batch=0), CPU)


def test_layers_and_phases_say_the_same_of_the_optimizer() -> None:
    record = measured(CASE)
    assert record.forward and record.backward and record.optimizer
    for found in (predict(CASE, CPU, (), [fitted()]), predict(CASE, CPU, [record], [fitted()])):
        optimizer = sum(share.seconds for share in found.shares if share.layer == "(optimizer)")
        part = found.phases["optimizer"] / sum(found.phases.values())
        assert optimizer == pytest.approx(found.seconds * part)
