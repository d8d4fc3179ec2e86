"""What the gate holds of recorded runs, and what it does not call better or slower. Synthetic,
every number from dimensions."""

from dataclasses import replace
from itertools import pairwise

from perfctl.orchestrator.compare.gate import (
    BETTER,
    CHANGED,
    MISSING,
    NOT_JUDGED,
    TIME,
    WORSE,
    append_new_session_if_unchanged,
    judge_against_baseline,
)
from perfctl.orchestrator.compare.gate_quantities import collect_run_quantities
from perfctl.records.report import CPU_OTHERS, CPU_WAIT, Device, Step, Summary
from scripts.proof.gate_trials import MLP, ROWS, TILE, gpu_step
from tests.make import synthetic

STEP_NS = 5_000


def grid(run, layer, **sides):
    return synthetic.with_kernels(
        run, lambda kernel: kernel._replace(**sides) if kernel.layer == layer else kernel
    )


def on_cpu(took, model="", **shares):
    """A step without kernels; shares: of the summaries of :data:`CPU_WAIT` and
    :data:`CPU_OTHERS`."""
    run = gpu_step(False)
    said = tuple(Summary(name, share, "ratio") for name, share in shares.items())
    facts = run.report.environment | ({"cpu_model": model} if model else {})
    steps = (Step(0, "step", None, took),)
    report = replace(run.report, kernels=[], ops=(), steps=steps, summaries=said, environment=facts)
    return collect_run_quantities([replace(run, device=Device("AMD EPYC", "cpu"), report=report)])


def six_sessions(model="", **shares):
    """Of a step that takes from 5000 to 5005 ns."""
    held = on_cpu(STEP_NS, model, **shares)
    for more in range(1, 6):
        held = append_new_session_if_unchanged(held, on_cpu(STEP_NS + more, model, **shares), {})
    return held


def of_the_step(held, now):
    (row,) = (
        row for row in judge_against_baseline("net", held, now, {}).rows if row.quantity == TIME
    )
    return row


def times(found):
    return [values[TIME] for values in found.places.values() if TIME in values]


def test_counters_of_a_launch_are_held_by_layer_and_of_the_step():
    held = collect_run_quantities([gpu_step(True)]).places
    executed = [ROWS * out * (2 * inside + 1) for inside, out in pairwise(MLP)]
    moved = [4 * (ROWS * inside + inside * out + ROWS * out) for inside, out in pairwise(MLP)]
    of_layers = [values for place, values in held.items() if place.layer]
    (whole,) = (values for place, values in held.items() if not place.layer and not place.direction)
    assert [values["counted_flops"] for values in of_layers] == executed and whole[
        "counted_flops"
    ] == sum(executed)
    assert [values["dram_bytes"] for values in of_layers] == moved and whole["dram_bytes"] == sum(
        moved
    )
    assert [values["threads"] for values in of_layers] == [
        out // TILE[0] * (ROWS // TILE[1]) * 128 for out in MLP[1:]
    ]


def test_a_kernel_that_no_longer_fits_its_rule_is_unknown_and_not_better():
    """Its grid became twice as wide: what it executes cannot be derived, and its threads are twice
    as many."""
    run = gpu_step(False)
    before = collect_run_quantities([run])
    after = collect_run_quantities([grid(run, "fc2", grid_x=2 * MLP[2] // TILE[0])])
    verdicts = {
        row.quantity: row.result
        for row in judge_against_baseline("mlp", before, after, {}).rows
        if row.key.layer == "fc2"
    }
    assert verdicts["derived_flops"] == MISSING
    assert verdicts["threads"] == CHANGED
    assert not judge_against_baseline("mlp", before, after, {}).select_rows_with_results(BETTER)


def test_what_was_not_counted_is_said():
    run = gpu_step(True)
    without = [one for one in run.report.counters if "dram" in one.name]
    found = collect_run_quantities([synthetic.with_report(run, counters=without)])
    assert {name.rpartition(": ")[2] for name in found.unknown} == {"counted_flops"}


def test_times_of_a_cpu_that_others_kept_busy_are_not_judged_and_leave_the_sessions_as_they_are():
    held = six_sessions(**{CPU_WAIT: 0.01, CPU_OTHERS: 0.02})
    busy = on_cpu(8 * STEP_NS, **{CPU_WAIT: 0.87, CPU_OTHERS: 0.86})
    row = of_the_step(held, busy)
    assert row.result == NOT_JUDGED and "threads waited for a core in 87%" in row.reason
    assert not judge_against_baseline("net", held, busy, {}).undecided
    assert times(append_new_session_if_unchanged(held, busy, {})) == [
        tuple(STEP_NS + one for one in range(6))
    ]


def test_processors_of_one_name_are_not_one_machine():
    """A cloud calls all generations "AMD EPYC"; sessions of one say nothing of the time
    on another."""
    first, second = "family 25, model 17, stepping 1", "family 23, model 49, stepping 0"
    held, now = six_sessions(first), on_cpu(2 * STEP_NS, second)
    assert of_the_step(held, on_cpu(2 * STEP_NS, first)).result == WORSE
    for other, said in ((now, second), (on_cpu(2 * STEP_NS), "not recorded")):
        row = of_the_step(held, other)
        assert row.result == NOT_JUDGED
        assert f"cpu_model: {first} before, {said} now" in row.reason
    assert times(append_new_session_if_unchanged(held, now, {})) == [(2.0 * STEP_NS,)], (
        "sessions begin anew"
    )


def test_threads_that_wait_for_each_other_alone_and_runs_of_a_gpu_are_judged():
    crowded = on_cpu(8 * STEP_NS, **{CPU_WAIT: 0.5, CPU_OTHERS: 0.01})
    assert of_the_step(six_sessions(), crowded).result == WORSE
    run = gpu_step(False)
    said = (Summary(CPU_WAIT, 0.9, "ratio"), Summary(CPU_OTHERS, 0.9, "ratio"))
    assert times(collect_run_quantities([synthetic.with_report(run, summaries=said)]))
