"""The cost of ncu from one step, made up: every figure follows from the number of launches."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.analyse.replay_cost import cost_lines, passes, replay_cost
from perfctl.parsers.records import Kernel

STEP = [
    Kernel(number, "k", layer=layer, duration_ns=1_000_000)
    for number, layer in enumerate(["model.conv1", "model.conv2", "model.conv2", None])
]


def test_launches_times_steps_times_passes_are_the_replays() -> None:
    cost = replay_cost(STEP, layers=(), steps=10, counters=13)
    assert (cost.launches, cost.passes, cost.replays) == (4, 8, 4 * 10 * 8)


def test_a_layer_makes_it_less() -> None:
    cost = replay_cost(STEP, layers=("conv2",), steps=10, counters=1)
    assert (cost.launches, cost.all_launches, cost.replays) == (2, 4, 2 * 10 * 1)
    assert "2 launches a step in conv2 (of 4) x 10 steps x 1 passes = 20 replays" in cost_lines(cost, 64, ["conv2"])[0]


def test_the_time_is_that_of_the_kernels_and_of_ncu_for_each_replay() -> None:
    cost = replay_cost(STEP, layers=(), steps=2, counters=1)
    kernels_s = 4 * 0.001
    assert cost.seconds == pytest.approx((2 * (kernels_s + 4 * 0.002), 2 * (3 * kernels_s + 4 * 0.02)))


def test_what_is_assumed_is_said() -> None:
    said = " ".join(cost_lines(replay_cost(STEP, layers=(), steps=1, counters=5), 16, ()))
    assert "batch 16" in said
    assert "Assumed: 3 passes" in said


@pytest.mark.parametrize(("counters", "times"), [(1, 1), (5, 3), (13, 8), (0, 1)])
def test_passes_grow_with_the_counters_as_in_the_log_they_are_taken_from(counters: int, times: int) -> None:
    assert passes(counters) == times
