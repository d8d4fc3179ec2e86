"""The cost of ncu from one step, made up: every figure follows from the number of launches."""

import pytest

from perfctl.orchestrator.counts.kernels.replays import (
    ReplayCost,
    describe_replay_cost,
    estimate_pass_count,
    estimate_replay_cost,
)
from perfctl.records.report import Kernel
from tests.make.tables import table

STEP = [
    Kernel(number, "k", layer=layer, duration_ns=1_000_000)
    for number, layer in enumerate(["model.conv1", "model.conv2", "model.conv2", None])
]


@table("layers steps counters launches passes", [((), 10, 13, 4, 8), (("conv2",), 10, 1, 2, 1)])
def test_launches_of_the_layers_times_steps_times_passes_are_the_replays(
    layers, steps, counters, launches, passes
):
    cost = estimate_replay_cost(STEP, layers=layers, steps=steps, counter_count=counters)
    assert (cost.launches, cost.all_launches, cost.passes) == (launches, 4, passes)
    assert cost.replay_count == launches * steps * passes


def test_the_time_is_that_of_the_kernels_and_of_ncu_for_each_replay():
    cost = estimate_replay_cost(STEP, layers=(), steps=2, counter_count=1)
    kernels_s = 4 * 0.001
    assert cost.seconds == pytest.approx(
        (2 * (kernels_s + 4 * 0.002), 2 * (3 * kernels_s + 4 * 0.02))
    )


@table("counters times", [(1, 1), (5, 3), (13, 8), (0, 1)])
def test_passes_grow_with_the_counters_as_in_the_log_they_are_taken_from(counters, times):
    assert estimate_pass_count(counters) == times


@table(
    "seconds said",
    [
        ((0.2, 0.9), "about 1 s to 1 s longer"),
        ((1.6, 89.4), "about 2 s to 89 s longer"),
        ((89.9, 90.0), "about 90 s to 2 min longer"),
        ((120.0, 5399.0), "about 2 min to 90 min longer"),
        ((5400.0, 9000.0), "about 1.5 h to 2.5 h longer"),
    ],
)
def test_a_duration_is_said_in_the_unit_that_fits_it(seconds, said):
    assert said in describe_replay_cost(ReplayCost(4, 4, 1, 1, seconds), "batch 8", ())[0]


def test_a_run_of_thousands_of_launches_is_said_in_full():
    cost = ReplayCost(launches=1200, all_launches=3400, steps=3, passes=2, seconds=(14.4, 144.0))
    assert describe_replay_cost(cost, "batch 32", ["conv1", "fc1"]) == [
        (
            "batch 32: 1,200 launches per step in conv1, fc1 (of 3,400) x 3 steps x 2 passes = "
            "7,200 replays, about 14 s to 2 min longer than without ncu"
        ),
        (
            "perfctl counted the launches in one plain step under torch.profiler. It assumes 2 "
            "passes (in a public log, 5 counters needed 3; ncu prints the true number) and an "
            "overhead of 2 to 20 ms per replay"
        ),
        f"Counts repeat from step to step: 10 steps would take {1200 * 10 * 2:,} replays",
    ]
    assert " in " not in describe_replay_cost(cost, "batch 32", ())[0].partition(" x ")[0], (
        "all layers need no list of layers"
    )


def test_a_launch_without_a_time_costs_what_ncu_adds_to_it_alone():
    cost = estimate_replay_cost(
        [Kernel(0, "k"), Kernel(1, "k")], layers=(), steps=5, counter_count=2
    )
    assert cost.passes == 2
    assert cost.seconds == pytest.approx((5 * 2 * 2 * 0.002, 5 * 2 * 2 * 0.02))


def test_what_repeats_is_said_with_the_replays_that_remain():
    cost = ReplayCost(
        launches=1000, all_launches=1000, steps=1, passes=8, seconds=(2.0, 20.0), repeated=750
    )
    assert describe_replay_cost(cost, "batch 8", ())[0].startswith(
        "batch 8: 1,000 launches per step x 1 step x 8 passes = 8,000 replays, "
    )
    assert describe_replay_cost(cost, "batch 8", ())[3] == (
        "750 launches repeat another with the same kernel, grid and layer shapes: --launches "
        "distinct needs only 2,000 replays, 75% fewer"
    )
    assert len(describe_replay_cost(ReplayCost(4, 4, 10, 8, (1.0, 2.0)), "batch 8", ())) == 2, (
        "ten steps save nothing"
    )
