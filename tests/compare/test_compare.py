"""Two sides with known changes: what was changed is found, and nothing else is. All runs here
are synthetic."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from perfctl.orchestrator.compare.compare import Comparison, Pair, Side, compare
from perfctl.orchestrator.compare.compared import (
    DIFFERS,
    EQUAL,
    FASTER,
    GONE,
    NEW,
    NOT_JUDGED,
    SLOWER,
    WITHIN,
    WORSE,
    Row,
)
from perfctl.records.run import Run
from tests.make import synthetic
from tests.make.synthetic import with_report
from tests.make.two_sides import TIMES, make_side


def the_row(found: Comparison, name: str, quantity: str = "time") -> Row:
    (row,) = (
        row
        for pair in found.pairs
        for row in pair.rows
        if row.name == name and row.key.quantity == quantity
    )
    return row


def names(found: Comparison) -> set[str]:
    return {row.name for _, row in found.regressions}


@pytest.mark.parametrize("count", [3, 5])
def test_a_kernel_that_became_a_fifth_slower_is_found_and_nothing_else_below_it(count: int) -> None:
    dice = random.Random(1)
    found = compare(
        make_side("A", count, dice), make_side("B", count, dice, slower={"conv_b": 1.2})
    )
    assert names(found) == {
        "step",
        "kernels of a step",
        "conv2 forward",
        "conv2 forward: conv_b<float>",
    }
    row = the_row(found, "conv2 forward: conv_b<float>")
    assert row.result == SLOWER
    assert row.change == pytest.approx(0.2, abs=0.03)
    assert row.interval is not None
    assert row.interval[0] < 0.2 < row.interval[1]
    assert the_row(found, "step").change == pytest.approx(0.2 * 80 / 134, abs=0.02)
    assert not found.improvements
    assert the_row(found, "samples per second", "throughput").result == SLOWER


def test_samples_per_second_are_not_judged_as_the_step_if_the_batch_sizes_differ() -> None:
    """Twice the samples in 1.5 times the time: a longer step, and more samples per second."""
    dice = random.Random(3)
    slower = dict.fromkeys((kernel for _, kernel in TIMES), 1.5)
    b = make_side("B", 5, dice, slower=slower, batch_size=128)
    found = compare(make_side("A", 5, dice, batch_size=64), b, anyway=True)
    step, rate = the_row(found, "step"), the_row(found, "samples per second", "throughput")
    assert (step.result, rate.result) == (SLOWER, NOT_JUDGED)
    assert rate.change == pytest.approx(2 / 1.5 - 1, abs=0.05)
    assert rate.interval is not None and rate.interval[0] < rate.change < rate.interval[1]
    assert "batch sizes differ" in rate.reason


def test_a_faster_kernel_is_an_improvement_and_no_regression() -> None:
    dice = random.Random(2)
    found = compare(make_side("A", 5, dice), make_side("B", 5, dice, slower={"gemm": 0.7}))
    assert not found.regressions
    assert {"fc forward", "fc forward: gemm<float>"} <= {row.name for _, row in found.improvements}
    assert the_row(found, "fc forward").result == FASTER


def test_a_change_that_is_certain_and_smaller_than_the_gate_does_not_count() -> None:
    dice = random.Random(3)
    a, b = (
        make_side("A", 5, dice, noise=0.001),
        make_side("B", 5, dice, noise=0.001, slower={"conv_b": 1.03}),
    )
    row = the_row(compare(a, b), "conv2 forward")
    assert (row.result, row.change) == (WITHIN, pytest.approx(0.03, abs=0.005))
    assert the_row(compare(a, b, gate=0.01), "conv2 forward").result == SLOWER


def test_of_100_comparisons_of_noise_no_more_than_one_in_20_says_anything() -> None:
    dice = random.Random(4)
    said = 0
    for _ in range(100):
        found = compare(
            make_side("A", 3, dice, noise=0.1), make_side("B", 3, dice, noise=0.1), gate=0.0
        )
        said += bool(found.regressions or found.improvements)
    assert said <= 100 * 0.05 + 3 * (100 * 0.05 * 0.95) ** 0.5
    quiet = [compare(make_side("A", 3, dice), make_side("B", 3, dice)) for _ in range(25)]
    assert not any(found.regressions or found.improvements for found in quiet)


def test_one_run_each_of_few_steps_is_never_judged_and_says_why() -> None:
    dice = random.Random(5)
    found = compare(make_side("A", 1, dice), make_side("B", 1, dice, slower={"conv_b": 3.0}))
    assert not found.regressions
    assert found.judged == 0
    row = the_row(found, "conv2 forward")
    assert row.result == NOT_JUDGED
    assert row.change == pytest.approx(2.0, abs=0.1)
    assert "5 repeats" in row.reason


def test_new_and_gone_kernels_show_with_the_runs_they_are_in() -> None:
    dice = random.Random(6)
    other = {
        (("conv2", "winograd") if key == ("conv2", "conv_b") else key): took
        for key, took in TIMES.items()
    }
    found = compare(make_side("A", 3, dice), make_side("B", 3, dice, times=other))
    gone, new = (
        the_row(found, "conv2 forward: conv_b<float>"),
        the_row(found, "conv2 forward: winograd<float>"),
    )
    assert (gone.result, gone.after, gone.reason) == (
        GONE,
        None,
        "in 3 of 3 runs of A, in none of 3 runs of B",
    )
    assert (new.result, new.before, new.reason) == (
        NEW,
        None,
        "in 3 of 3 runs of B, in none of 3 runs of A",
    )
    assert {row.name for _, row in found.news} == {gone.name, new.name}
    assert the_row(found, "conv2 forward").before is not None


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_counted_flops_are_exact_and_any_difference_is_news(share: float) -> None:
    counted = [run for run in synthetic.gpu_pair(1, 64) if run.profiler == "ncu"]
    other = [
        replace(
            run,
            id=200,
            report=replace(
                run.report,
                counters=[
                    c._replace(value=share * (c.value or 0))
                    if c.name.endswith("ffma_pred_on.sum")
                    else c
                    for c in run.report.counters
                ],
            ),
        )
        for run in counted
    ]
    found = compare(Side("A", tuple(counted)), Side("B", tuple(other)))
    row = the_row(found, "fc1 forward", "flops")
    assert row.before is not None
    assert row.before.median == 2 * synthetic.macs("fc1", 64)
    assert row.result == (EQUAL if share == 1 else DIFFERS)
    assert row.result not in WORSE
    assert the_row(found, "conv2 forward").result == NOT_JUDGED, "ncu's times are not judged"


def test_fewer_flops_by_one_in_a_billion_are_news_too() -> None:
    (run,) = (run for run in synthetic.gpu_pair(1, 64) if run.profiler == "ncu")
    first = next(c for c in run.report.counters if c.name.endswith("ffma_pred_on.sum"))
    moved = [c._replace(value=first.value + 3) if c is first else c for c in run.report.counters]
    found = compare(Side("A", (run,)), Side("B", (with_report(run, counters=moved),)))
    # of the layer and of the step
    assert [row.result for _, row in found.news] == [DIFFERS, DIFFERS]
    row = the_row(found, "executed FLOPs", "flops")
    assert row.before is not None
    assert row.after is not None
    assert row.after.median - row.before.median == 2  # 3 more FFMA over 3 steps


def test_gradients_told_apart_on_one_side_only_are_added_up_on_both() -> None:
    dice = random.Random(17)

    def turned(found: Side, directions: tuple[str, ...]) -> Side:
        def part(run: Run) -> Run:
            kernels = [
                kernel._replace(direction=directions[place % len(directions)])
                for place, kernel in enumerate(run.report.kernels)
            ]
            return with_report(run, kernels=kernels)

        return Side(found.label, tuple(map(part, found.runs)))

    a, b = make_side("A", 3, dice), make_side("B", 3, dice)
    found = compare(turned(a, ("backward",)), turned(b, ("grad_input", "grad_weight")))
    assert {(row.key.layer, row.key.direction) for row in layers(found.pairs[0])} == {
        (layer, "backward") for layer in ("conv1", "conv2", "fc")
    }
    assert not found.news


def layers(pair: Pair) -> list[Row]:
    return [row for row in pair.rows if row.key.level == "layer"]
