"""The ledger: paper from the dimensions, counts from ncu, time from elsewhere, and nothing
made up."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import (
    PreparedBatch,
    PreparedRun,
)
from perfctl.records.paper import LayerCall
from perfctl.records.report import Kernel
from tests.make import synthetic
from tests.make.synthetic import cpu_run, gpu_pair, make_run, study_of, with_kernels, with_report
from tests.make.tables import table


def row(entries, layer, direction, batch):
    (found,) = (
        r for r in entries.rows if (r.layer, r.direction, r.batch) == (layer, direction, batch)
    )
    return found


def ledger_of(*runs):
    return build_ledger(study_of(*runs))


@pytest.fixture(scope="module")
def gpu():
    """Each batch size timed and counted."""
    pairs = (gpu_pair(number, batch) for number, batch in enumerate(synthetic.BATCHES, 1))
    return ledger_of(*chain.from_iterable(pairs))


def test_backward_is_both_gradients_and_the_first_layer_has_one(gpu):
    forward = 2 * 64 * 64 * 24 * 24 * 288
    assert row(gpu, "conv2", "backward", 64).estimated.value == 2 * forward
    assert row(gpu, "conv1", "backward", 64).estimated.value == 2 * 64 * 32 * 26 * 26 * 9
    assert not [r for r in gpu.rows if r.direction.startswith("grad")]


def test_counts_are_ncus_per_step_and_times_are_of_nsys(gpu):
    found, other = row(gpu, "conv2", "forward", 64), row(gpu, "fc1", "backward", 256)
    assert (found.executed.value, found.ratio, other.ratio) == (64 * 64 * 24 * 24 * 288, 0.5, 1)
    expected = int(2000 + synthetic.macs("conv2", 64) / 5000)
    assert found.time is not None and (found.time.median, found.basis) == (
        expected,
        "kernels, nsys",
    )
    assert found.achieved == pytest.approx(2 * synthetic.macs("conv2", 64) / expected * 1e9)


def test_on_a_cpu_counts_are_not_available_and_have_no_value():
    found = {(r.executed.state, r.executed.value, r.ratio) for r in ledger_of(cpu_run(1, 64)).rows}
    assert found == {("not_available", None, None)}


def test_a_hole_in_the_counters_makes_a_lower_bound():
    ncu = gpu_pair(1, 64)[1]
    # conv2 forward of step 0
    kept = [counter for counter in ncu.report.counters if counter.launch != 2]
    found = row(ledger_of(with_report(ncu, counters=kept)), "conv2", "forward", 64).executed
    assert found.lower_bound and (found.launches, found.of_launches) == (2, 3)


def test_an_ncu_time_is_shown_as_one_not_to_trust_and_gives_no_rate():
    found = row(ledger_of(gpu_pair(1, 64)[1]), "conv2", "forward", 64)
    assert found.time is not None and not found.trusted and found.achieved is None


def test_shares_add_up_although_steps_differ():
    times = (("a", 0, 1), ("b", 0, 9), ("a", 1, 9), ("b", 1, 1), ("a", 2, 5), (None, 2, 9))
    kernels = [
        Kernel(n, "k", layer=layer, direction="forward", step=step, duration_ns=ns)
        for n, (layer, step, ns) in enumerate(times)
    ]
    entries = ledger_of(make_run(profiler="nsys", device=synthetic.V100, kernels=kernels))
    assert [r.share for r in entries.rows] == pytest.approx([15 / 34, 10 / 34])
    assert entries.unattributed[0].share == pytest.approx(9 / 34)


def test_a_guessed_layer_makes_an_estimate_and_says_so():
    def guess(kernel):
        return kernel._replace(layer_source="guessed" if kernel.layer == "fc2" else "range")

    found = ledger_of(*(with_kernels(run, guess) for run in gpu_pair(1, 64)))
    guessed, sure = (row(found, layer, "forward", 64) for layer in ("fc2", "fc1"))
    assert (guessed.guessed, guessed.executed.state) == (1, "estimated")
    assert "guessed" in (guessed.executed.reason or "")
    assert (sure.guessed, sure.executed.state) == (0, "counted")


UNKNOWN_SHAPES = "no formula, because the recorded shapes contain no operation of it"


def call(layer, direction, position, flops=10, kind="Linear"):
    macs = None if flops is None else flops // 2
    return LayerCall(
        layer, kind, direction, macs, flops, None, None, None, None, None, position=position
    )


def timed_call(layer, direction, *calls):
    """A run with these calls on paper, and one kernel."""
    seen = Kernel(0, "k", layer=layer, direction=direction, step=0, duration_ns=5)
    return make_run(layer_calls=calls, profiler="nsys", kernels=[seen])


def test_rows_follow_the_network_then_the_direction_and_the_optimizer_is_last():
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
    rows = ledger_of(timed_call("unknown", "forward", *calls)).rows
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
    first, second, *_, unknown, last = rows
    assert (last.estimated.value, len(last.calls), last.kind) == (3 + 4, 2, None)
    assert (unknown.kind, unknown.estimated.reason) == (None, UNKNOWN_SHAPES)
    for found in (first, second):
        assert found.kind == "Linear"
        assert found.time_reason == "the report has no range or kernel of it"
    assert (unknown.time_reason, unknown.share) == (None, 1)
    assert unknown.whole == "kernel time of all steps"
    assert (first.whole, first.basis, first.share, first.trusted) == (None, None, None, True)


def test_a_row_without_recorded_shapes_says_so_and_its_kind_is_of_the_most_flops():
    (unseen,) = ledger_of(timed_call("fc", "forward")).rows
    assert unseen.estimated.reason == "no formula, because its shapes are unknown"
    calls = (call("", "forward", 0, 0, "randn"), call("", "forward", 1, 10, "matmul"))
    found = ledger_of(timed_call("fc", "forward", *calls))
    assert row(found, "", "forward", 64).kind == "matmul"


def test_an_optimizer_that_was_seen_layer_by_layer_has_rows_of_its_own():
    calls = (call("fc", "optimizer", 0, 3), call("b", "optimizer", 1, 4))
    rows = ledger_of(timed_call("fc", "optimizer", *calls)).rows
    assert [(found.layer, found.name, found.estimated.value) for found in rows] == [
        ("fc", "fc optimizer", 3),
        ("", "optimizer", 3 + 4),
    ]


WEIGHT, BIAS, INNER = (
    call("fc", direction, 0, flops)
    for direction, flops in (("grad_weight", 10), ("grad_bias", 2), ("grad_input", 20))
)
ODD = call("fc", "grad_input", 0, None, "Odd")
"""Without a formula."""
OTHER = call("fc", "backward", 0, None, "other")
"""Beside the gradients, as the engine names what has no formula."""
BACKWARD = call("fc", "backward", 0, 8)
PaperRow = tuple[str, float | None, str | None]
FORWARD: PaperRow = ("forward", None, UNKNOWN_SHAPES)
WEIGHT_ROW: PaperRow = ("grad_weight", 10, None)


@table(
    "seen calls rows",
    [
        ("grad_weight", [WEIGHT, BIAS], [WEIGHT_ROW]),
        ("forward", [WEIGHT, BIAS], [FORWARD, WEIGHT_ROW, ("grad_bias", 2, None)]),
        ("backward", [WEIGHT, BIAS, INNER], [("backward", 10 + 2 + 20, None)]),
        ("backward", [WEIGHT, ODD], [("backward", 10, "no formula for Odd (grad_input)")]),
        ("backward", [ODD], [("backward", None, "no formula for Odd (grad_input)")]),
        ("backward", [WEIGHT, OTHER], [("backward", 10, "no formula for other (backward)")]),
        ("forward", [WEIGHT, BACKWARD], [FORWARD, WEIGHT_ROW, ("backward", 8, None)]),
        ("backward", [BACKWARD], [("backward", 8, None)]),
        (
            "backward",
            [OTHER._replace(kind="")],
            [("backward", None, "no formula for this operation (backward)")],
        ),
    ],
)
def test_a_bias_s_gradient_is_in_the_weight_s_row_and_a_part_without_a_formula_makes_the_sum_a_lower_bound(
    seen, calls, rows
):
    found = ledger_of(timed_call("fc", seen, *calls)).rows
    assert [(one.direction, one.estimated.value, one.estimated.reason) for one in found] == rows


def test_of_counting_runs_a_whole_one_then_one_of_all_layers_then_the_newest_counts():
    ncu = gpu_pair(1, 64)[1]

    def made(number, status="ok", **facts):
        return with_report(replace(ncu, id=number, status=status), environment=facts)

    whole, newer, broken, above = made(1), made(2), made(4, "partial"), made(5, "zzz")
    narrowed = made(3, **{"ncu:layers": "conv2"})

    def counting(*runs):
        found = PreparedBatch(8, tuple(map(PreparedRun, runs)), None).counted_or_derived_run
        return found and found.run

    assert counting(whole, newer, narrowed, broken, above) is newer
    assert counting(narrowed, broken, above) is narrowed
    assert counting(above, broken) is above
    assert counting(with_report(ncu, counters=[])) is None
    for run, reason in (
        (narrowed, "ncu measured conv2 only (--layer)"),
        (whole, "ncu recorded no kernel of it"),
    ):
        calls = (*run.layer_calls, call("late", "forward", 9))
        late = row(ledger_of(replace(run, layer_calls=calls)), "late", "forward", 64).executed
        assert (late.state, late.reason) == ("not_collected", reason)


def without_steps(run):
    return with_kernels(run, lambda kernel: kernel._replace(step=None))


NCU = gpu_pair(1, 64)[1]
BARE = with_report(NCU, kernels=[], counters=[])
ADDS = [counter for counter in NCU.report.counters if "_fadd_" in counter.name]


@table(
    "run reason",
    [
        (
            replace(BARE, status="failed", reason="no right."),
            "the ncu run has no counters: no right",
        ),
        (replace(BARE, status="failed"), "the ncu run has no counters: failed"),
        *(
            (
                replace(BARE, profiler=profiler),
                "no ncu run at this batch size; run 'perfctl ncu'",
            )
            for profiler in ("none", "dlprof")
        ),
        (
            without_steps(NCU),
            "ncu measured its kernels, but the report does not state its number of steps",
        ),
        (
            without_steps(with_report(NCU, counters=ADDS)),
            "ncu measured FADD only, and the report does not state its number of steps",
        ),
    ],
)
def test_why_nothing_was_counted(run, reason):
    assert ledger_of(run).rows[0].executed.reason == reason
