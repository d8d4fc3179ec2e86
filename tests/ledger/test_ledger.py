"""The ledger: paper from the dimensions, counts from ncu, time from elsewhere, and nothing
made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow, ledger
from perfctl.orchestrator.ledger.prepared import (
    PreparedBatch,
    PreparedRun,
)
from perfctl.records.paper import LayerCall
from perfctl.records.report import Kernel
from tests.make import synthetic
from tests.make.synthetic import study_of, with_report


def row(entries: Ledger, layer: str, direction: str, batch: int) -> LedgerRow:
    (found,) = (
        r for r in entries.rows if (r.layer, r.direction, r.batch) == (layer, direction, batch)
    )
    return found


@pytest.fixture
def gpu() -> Ledger:
    runs = [
        run
        for number, batch in enumerate(synthetic.BATCHES, 1)
        for run in synthetic.gpu_pair(number, batch)
    ]
    study = study_of(*runs)
    return ledger(study)


@pytest.mark.parametrize("batch", [16, 32, 64, 128, 256])
def test_conv2_forward_on_paper_follows_from_its_dimensions(gpu: Ledger, batch: int) -> None:
    assert row(gpu, "conv2", "forward", batch).paper.value == 2 * batch * 64 * 24 * 24 * 288


def test_backward_is_both_gradients_and_the_first_layer_has_one(gpu: Ledger) -> None:
    forward = 2 * 64 * 64 * 24 * 24 * 288
    assert row(gpu, "conv2", "backward", 64).paper.value == 2 * forward
    assert row(gpu, "conv1", "backward", 64).paper.value == 2 * 64 * 32 * 26 * 26 * 9
    assert not [r for r in gpu.rows if r.direction.startswith("grad")]


def test_counts_are_per_step_and_set_against_paper(gpu: Ledger) -> None:
    found = row(gpu, "conv2", "forward", 64)
    assert found.counted.value == 64 * 64 * 24 * 24 * 288
    assert found.ratio == 0.5
    assert row(gpu, "fc1", "backward", 256).ratio == 1


def test_time_is_from_nsys_although_counts_are_from_ncu(gpu: Ledger) -> None:
    found = row(gpu, "fc1", "forward", 64)
    expected = int(2000 + synthetic.macs("fc1", 64) / 5000)
    assert (
        found.basis == "kernels, nsys" and found.time is not None and found.time.median == expected
    )
    assert found.achieved == pytest.approx(2 * 64 * 9216 * 128 / expected * 1e9)


def test_on_a_cpu_counts_are_not_available_and_have_no_value() -> None:
    study = study_of(synthetic.cpu_run(1, 64))
    entries = ledger(study)
    assert {r.counted.state for r in entries.rows} == {"not_available"}
    assert {r.counted.value for r in entries.rows} == {None} == {r.ratio for r in entries.rows}


def test_a_hole_in_the_counters_makes_a_lower_bound() -> None:
    _, ncu = synthetic.gpu_pair(1, 64)
    # conv2 forward of step 0
    kept = [counter for counter in ncu.report.counters if counter.launch != 2]
    study = study_of(with_report(ncu, counters=kept))
    found = row(ledger(study), "conv2", "forward", 64).counted
    assert found.lower_bound and (found.launches, found.of_launches) == (2, 3)


def test_an_ncu_time_is_shown_as_one_not_to_trust_and_gives_no_rate() -> None:
    study = study_of(*synthetic.gpu_pair(1, 64)[1:])
    found = row(ledger(study), "conv2", "forward", 64)
    assert found.time is not None and not found.trusted and found.achieved is None


def test_shares_add_up_although_steps_differ() -> None:
    run = synthetic.make_run(
        profiler="nsys",
        device=synthetic.V100,
        kernels=[
            Kernel(n, "k", layer=layer, direction="forward", step=step, duration_ns=ns)
            for n, (layer, step, ns) in enumerate(
                [("a", 0, 1), ("b", 0, 9), ("a", 1, 9), ("b", 1, 1), ("a", 2, 5), (None, 2, 9)]
            )
        ],
    )
    study = study_of(run)
    entries = ledger(study)
    assert [r.share for r in entries.rows] == [pytest.approx(15 / 34), pytest.approx(10 / 34)]
    assert entries.unattributed[0].share == pytest.approx(9 / 34)


def test_gradients_seen_by_one_run_fold_into_the_backward_that_another_saw() -> None:
    nsys, ncu = synthetic.gpu_pair(1, 64)
    by_node = [
        kernel._replace(
            direction="grad_weight"
            if (kernel.layer, kernel.direction) == ("conv2", "backward")
            else kernel.direction
        )
        for kernel in ncu.report.kernels
    ]
    study = study_of(nsys, with_report(ncu, kernels=by_node))
    found = ledger(study)
    assert row(found, "conv2", "backward", 64).ratio == 1
    assert not [r for r in found.rows if r.layer == "conv2" and r.direction.startswith("grad")]


def test_a_first_layer_with_its_weight_gradient_alone_meets_the_paper_of_that_direction() -> None:
    runs = [
        with_report(
            run,
            kernels=[
                kernel._replace(
                    direction="grad_weight"
                    if (kernel.layer, kernel.direction) == ("conv1", "backward")
                    else kernel.direction
                )
                for kernel in run.report.kernels
            ],
        )
        for run in synthetic.gpu_pair(1, 64)
    ]
    study = study_of(*runs)
    found = row(ledger(study), "conv1", "grad_weight", 64)
    assert found.paper.value == 2 * 64 * 32 * 26 * 26 * 9 and found.ratio == 1


def test_a_guessed_layer_makes_an_estimate_and_says_so() -> None:
    runs = [
        with_report(
            run,
            kernels=[
                kernel._replace(layer_source="guessed" if kernel.layer == "fc2" else "range")
                for kernel in run.report.kernels
            ],
        )
        for run in synthetic.gpu_pair(1, 64)
    ]
    study = study_of(*runs)
    found = ledger(study)
    guess = row(found, "fc2", "forward", 64)
    assert (
        guess.guessed == 1
        and guess.counted.state == "estimated"
        and "guessed" in (guess.counted.reason or "")
    )
    sure = row(found, "fc1", "forward", 64)
    assert sure.guessed == 0 and sure.counted.state == "counted"


def call(
    layer: str, direction: str, position: int | None, flops: int | None = 10, kind: str = "Linear"
) -> LayerCall:
    macs = None if flops is None else flops // 2
    return LayerCall(
        layer, kind, direction, macs, flops, None, None, None, None, None, position=position
    )


def test_rows_follow_the_network_then_the_direction_and_the_optimizer_is_last() -> None:
    calls = (
        call("b", "forward", 1),
        call("a", "forward", 0),
        call("a", "optimizer", 0, 3),
        call("b", "grad_weight", 1),
        call("a", "grad_weight", 0),
        call("b", "grad_input", 1),
        call("", "forward", 7_000_000),
        call("b", "optimizer", 1, 4),
    )
    seen = Kernel(0, "k", layer="unknown", direction="forward", step=0, duration_ns=5)
    run = synthetic.make_run(
        layer_calls=calls, profiler="nsys", device=synthetic.V100, kernels=[seen]
    )
    study = study_of(run)
    rows = ledger(study).rows
    assert [found.name for found in rows] == [
        "a forward",
        "a grad_weight",
        "b forward",
        "b grad_input",
        "b grad_weight",
        "outside of layers forward",
        "unknown forward",
        "optimizer",
    ]
    last, unknown = rows[-1], rows[-2]
    assert (last.paper.value, len(last.calls), last.kind) == (7, 2, None)
    assert (unknown.kind, unknown.paper.reason) == (
        None,
        "no formula, because its shapes are unknown",
    )
    assert [(found.kind, found.time_reason) for found in rows[:2]] == [
        ("Linear", "the report has no range or kernel of it")
    ] * 2
    assert (unknown.time_reason, unknown.share, unknown.whole) == (
        None,
        1,
        "kernel time of all steps",
    )
    assert (rows[0].whole, rows[0].basis, rows[0].share, rows[0].trusted) == (
        None,
        None,
        None,
        True,
    )


def test_an_optimizer_that_was_seen_layer_by_layer_has_rows_of_its_own() -> None:
    seen = Kernel(0, "k", layer="fc", direction="optimizer", step=0, duration_ns=5)
    run = synthetic.make_run(
        layer_calls=(call("fc", "optimizer", 0, 3), call("b", "optimizer", 1, 4)),
        profiler="nsys",
        kernels=[seen],
    )
    study = study_of(run)
    assert [(found.layer, found.name, found.paper.value) for found in ledger(study).rows] == [
        ("fc", "fc optimizer", 3),
        ("", "optimizer", 7),
    ]


def test_a_bias_s_gradient_is_in_the_weight_s_row_and_a_part_without_a_formula_makes_the_sum_a_lower_bound() -> (
    None
):
    def rows(direction: str, *calls: LayerCall) -> list[tuple[str, float | None, str | None]]:
        seen = Kernel(0, "k", layer="fc", direction=direction, step=0, duration_ns=5)
        study = study_of(synthetic.make_run(layer_calls=calls, profiler="nsys", kernels=[seen]))
        return [
            (found.direction, found.paper.value, found.paper.reason) for found in ledger(study).rows
        ]

    weight, bias, inner = (
        call("fc", "grad_weight", 0),
        call("fc", "grad_bias", 0, 2),
        call("fc", "grad_input", 0, 20),
    )
    assert rows("grad_weight", weight, bias) == [("grad_weight", 10, None)]
    assert rows("forward", weight, bias)[1:] == [("grad_weight", 10, None), ("grad_bias", 2, None)]
    assert rows("backward", weight, bias, inner) == [("backward", 32, None)]
    odd = call("fc", "grad_input", 0, None, "Odd")
    assert rows("backward", weight, odd) == [("backward", 10, "no formula for Odd (grad_input)")]
    assert rows("backward", odd) == [("backward", None, "no formula for Odd (grad_input)")]
    # beside the gradients, as the engine names what has no formula
    other = call("fc", "backward", 0, None, "other")
    assert rows("backward", weight, other) == [("backward", 10, "no formula for other (backward)")]
    apart = [
        ("forward", None, "no formula, because its shapes are unknown"),
        ("grad_weight", 10, None),
    ]
    assert rows("forward", weight, call("fc", "backward", 0, 8)) == [*apart, ("backward", 8, None)]
    assert rows("backward", call("fc", "backward", 0, 8)) == [("backward", 8, None)]
    nameless = call("fc", "backward", 0, None, "")
    assert rows("backward", nameless) == [
        ("backward", None, "no formula for this operation (backward)")
    ]


def test_of_counting_runs_a_whole_one_then_one_of_all_layers_then_the_newest_counts() -> None:
    ncu = synthetic.gpu_pair(1, 64)[1]

    def made(number: int, status: str = "ok", layers: str | None = None) -> Any:
        said = {"ncu:layers": layers} if layers else {}
        return replace(ncu, id=number, status=status, report=replace(ncu.report, environment=said))

    whole, newer, narrowed, broken = (
        made(1),
        made(2),
        made(3, layers="conv2"),
        made(4, status="partial"),
    )
    above = made(5, status="zzz")

    def counting(*runs: Any) -> Any:
        found = PreparedBatch(8, tuple(map(PreparedRun, runs)), None).counting
        return found and found.run

    assert counting(whole, newer, narrowed, broken, above) is newer
    assert counting(narrowed, broken, above) is narrowed
    assert counting(above, broken) is above
    assert counting(with_report(ncu, counters=[])) is None
    study = study_of(
        replace(narrowed, layer_calls=(*narrowed.layer_calls, call("late", "forward", 9)))
    )
    late = row(ledger(study), "late", "forward", 64).counted
    assert (late.state, late.reason) == ("not_collected", "ncu measured conv2 only (--layer)")
    study = study_of(replace(whole, layer_calls=(*whole.layer_calls, call("late", "forward", 9))))
    assert (
        row(ledger(study), "late", "forward", 64).counted.reason == "ncu recorded no kernel of it"
    )


def test_why_nothing_was_counted() -> None:
    _, ncu = synthetic.gpu_pair(1, 64)
    bare = with_report(ncu, kernels=[], counters=[])

    def reason(*runs: Any) -> str | None:
        study = study_of(*runs)
        return ledger(study).rows[0].counted.reason

    assert (
        reason(replace(bare, status="failed", reason="no right."))
        == "the ncu run has no counters: no right"
    )
    assert (
        reason(replace(bare, status="failed", reason=None)) == "the ncu run has no counters: failed"
    )
    none, dlprof = replace(bare, profiler="none"), replace(bare, profiler="dlprof")
    assert reason(none) == reason(dlprof) == "no ncu run at this batch size; run 'perfctl ncu'"
    stepless = with_report(
        ncu, kernels=[kernel._replace(step=None) for kernel in ncu.report.kernels]
    )
    assert (
        reason(stepless)
        == "ncu measured its kernels, but the report does not state its number of steps"
    )
    adds = [one for one in stepless.report.counters if "_fadd_" in one.name]
    assert adds and reason(with_report(stepless, counters=adds)) == (
        "ncu measured FADD only, and the report does not state its number of steps"
    )


def test_kernels_outside_of_the_steps_are_not_counted_into_them() -> None:
    _, ncu = synthetic.gpu_pair(1, 64)
    kernels = list(ncu.report.kernels)
    first = next(
        place
        for place, kernel in enumerate(kernels)
        if (kernel.layer, kernel.direction) == ("conv2", "forward")
    )
    kernels[first] = kernels[first]._replace(step=None)
    study = study_of(with_report(ncu, kernels=kernels))
    # Two of three launches, over three steps: each executed half of the paper's 2 FLOPs a
    # multiply-add.
    assert row(ledger(study), "conv2", "forward", 64).counted.value == pytest.approx(
        2 / 3 * synthetic.macs("conv2", 64)
    )
