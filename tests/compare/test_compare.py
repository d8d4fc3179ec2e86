"""Two sides with known changes: what was changed is found, and nothing else is. All runs here
are synthetic."""

import random
from dataclasses import replace
from itertools import cycle

import pytest

from perfctl.orchestrator.compare.compare import ComparisonSide, compare_two_sides
from perfctl.orchestrator.compare.quantities import DIFFERS, EQUAL, NOT_JUDGED, SLOWER
from perfctl.records.report import CPU_OTHERS, CPU_WAIT, Summary
from tests.make import synthetic
from tests.make.synthetic import gpu_pair, with_report
from tests.make.tables import table
from tests.make.two_sides import H200, TIMES, make_side, map_kernels, map_runs


def the_row(found, name, quantity="time"):
    (row,) = (
        row
        for pair in found.pairs
        for row in pair.rows
        if row.name == name and row.key.quantity == quantity
    )
    return row


@table("count", [3, 5])
def test_a_kernel_that_became_a_fifth_slower_is_found_and_nothing_else_below_it(count):
    dice = random.Random(1)
    found = compare_two_sides(
        make_side("A", count, dice), make_side("B", count, dice, slower={"conv_b": 1.2})
    )
    assert {row.name for _, row in found.regressions} == {
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


def test_samples_per_second_are_not_judged_as_the_step_if_the_batch_sizes_differ():
    """Twice the samples in 1.5 times the time: a longer step, and more samples per second."""
    dice = random.Random(3)
    slower = dict.fromkeys((kernel for _, kernel in TIMES), 1.5)
    b = make_side("B", 5, dice, slower=slower, batch_size=128)
    found = compare_two_sides(make_side("A", 5, dice, batch_size=64), b, is_forced=True)
    step, rate = the_row(found, "step"), the_row(found, "samples per second", "throughput")
    assert (step.result, rate.result) == (SLOWER, NOT_JUDGED)
    assert rate.change == pytest.approx(2 / 1.5 - 1, abs=0.05)
    assert rate.interval is not None and rate.interval[0] < rate.change < rate.interval[1]
    assert "batch sizes differ" in rate.reason


@table("anyway result", [(False, NOT_JUDGED), (True, SLOWER)])
def test_times_of_a_cpu_that_other_programs_kept_busy_are_judged_only_if_asked(anyway, result):
    dice, cpu = random.Random(1), replace(H200, kind="cpu")
    shares = (Summary(CPU_WAIT, 0.7, "ratio"), Summary(CPU_OTHERS, 0.9, "ratio"))
    slower = dict.fromkeys((kernel for _, kernel in TIMES), 1.5)
    b = map_runs(
        make_side("B", 5, dice, slower=slower, device=cpu),
        lambda run: with_report(run, summaries=shares),
    )
    found = compare_two_sides(make_side("A", 5, dice, device=cpu), b, is_forced=anyway)
    step = the_row(found, "step")
    assert step.result == result
    assert ("threads waited for a core in 70%" in step.reason) is not anyway


def test_of_60_comparisons_of_noise_no_more_than_one_in_20_says_anything():
    dice = random.Random(4)
    said = 0
    for _ in range(60):
        found = compare_two_sides(
            make_side("A", 3, dice, noise=0.1), make_side("B", 3, dice, noise=0.1), gate=0.0
        )
        said += bool(found.regressions or found.improvements)
    assert said <= 60 * 0.05 + 3 * (60 * 0.05 * 0.95) ** 0.5
    quiet = [compare_two_sides(make_side("A", 3, dice), make_side("B", 3, dice)) for _ in range(15)]
    assert not any(found.regressions or found.improvements for found in quiet)


@table("share", [1.0, 0.5])
def test_counted_flops_are_exact_and_any_difference_is_news(share):
    run = gpu_pair(1, 64)[1]
    counters = [
        c._replace(value=share * (c.value or 0)) if c.name.endswith("ffma_pred_on.sum") else c
        for c in run.report.counters
    ]
    found = compare_two_sides(
        ComparisonSide("A", (run,)), ComparisonSide("B", (with_report(run, counters=counters),))
    )
    row = the_row(found, "fc1 forward", "flops")
    assert row.before is not None
    assert row.before.median == 2 * synthetic.macs("fc1", 64)
    assert row.result == (EQUAL if share == 1 else DIFFERS)
    assert bool(found.new_gone_or_different_rows) is (share != 1)
    assert the_row(found, "conv2 forward").result == NOT_JUDGED, "ncu's times are not judged"


def test_gradients_told_apart_on_one_side_only_are_added_up_on_both():
    dice = random.Random(17)

    def turned(side, *directions):
        turns = cycle(directions)
        return map_kernels(side, lambda kernel: kernel._replace(direction=next(turns)), side.label)

    a, b = make_side("A", 3, dice), make_side("B", 3, dice)
    found = compare_two_sides(turned(a, "backward"), turned(b, "grad_input", "grad_weight"))
    rows = [row.key for row in found.pairs[0].rows if row.key.level == "layer"]
    assert {(key.layer, key.direction) for key in rows} == {
        (layer, "backward") for layer in ("conv1", "conv2", "fc")
    }
    assert not found.new_gone_or_different_rows
