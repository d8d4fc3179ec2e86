"""Verdicts as page, terminal and exports show them: the same sentence, its numbers, what
stays open."""

import json
import re
from dataclasses import replace

import pytest

from perfctl.frames import ledger as frame
from perfctl.orchestrator.ledger.causes.judge import RowCauses, StudyCauses
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.report.ledger.cause_sentences import FIXES, SENTENCES
from perfctl.orchestrator.report.ledger.causes import (
    describe_cause,
    describe_causes_by_rule,
    describe_fix,
    describe_unexplained_difference_share,
)
from perfctl.orchestrator.report.ledger.page import build_ledger_view
from perfctl.orchestrator.report.ledger.rows import list_ledger_rows, list_sweep_causes
from perfctl.orchestrator.report.terminal import LedgerViewOptions, build_run_group_views
from perfctl.orchestrator.report.view import View, draw_view_on_terminal
from tests.make import synthetic
from tests.report.outline import analysed, printed


def judged():
    """conv2 forward has a made-up reason at batch 16 and 64; the sweep has one of its own."""

    def winograd(batch, factor):
        row = f"conv2 forward at batch {batch}"
        masked = Cause("skipped border", factor, explained=0.9, confidence="observed", row=row)
        return RowCauses((masked,), 0.1 if batch == 16 else 0.3)

    rows = {
        (16, "conv2", "forward"): winograd(16, 0.44),
        (64, "conv2", "forward"): winograd(64, 0.46),
    }
    sweep = (Cause("other GPU", None, {"gpus": ("A", "B"), "runs": "ncu; nsys"}),)
    return replace(analysed(*synthetic.gpu_sweep(16, 64)), judgement=StudyCauses(rows, sweep))


def test_one_reason_a_rule_tells_the_other_batch_sizes_and_rows_that_nobody_judged_say_nothing():
    found = judged()
    rows = [row for row in found.ledger.rows if row.name == "conv2 forward"]
    (reason,) = describe_causes_by_rule(rows, found.judgement)
    assert (
        reason.sentence
        == "conv2 forward at batch 16 skips the filter taps that fall on the padding: 0.440 "
        "times the estimated multiply-adds."
    )
    assert reason.numbers == "predicts 0.440 times the estimate, explains 90.0% of the difference"
    assert reason.elsewhere == "also at batch 64 (predicts 0.440 to 0.460)"
    assert (
        describe_unexplained_difference_share(rows, found.judgement)
        == "Unexplained: 10.0% to 30.0% of the difference."
    )
    rows = [row for row in found.ledger.rows if row.name == "fc1 forward"]
    assert (
        describe_causes_by_rule(rows, found.judgement) == ()
        and describe_unexplained_difference_share(rows, found.judgement) is None
    )


def test_the_terminal_numbers_the_verdicts_and_the_page_groups_carry_the_same_words():
    text = printed(
        draw_view_on_terminal(
            View(chapters=build_run_group_views(judged(), LedgerViewOptions(is_explained=True))), 80
        )
    )
    assert max(map(len, text.splitlines())) <= 80
    line = next(line for line in text.splitlines() if re.match("conv2 +forward", line))
    assert line.split()[-2:] == ["skipped", "bord…"]
    flat = " ".join(text.split())
    assert (
        "2 conv2 forward at batch 16 skips the filter taps that fall on the padding: 0.440 times "
        "the estimated multiply-adds. Skipped border: predicts 0.440 times the estimate" in flat
    )
    assert "of the difference (observed)" in flat
    assert (
        "→ Expected: the estimate includes every tap of every output." in flat
        and "unexplained: 10.0% to 30.0% of the difference" in flat
    )
    view = build_ledger_view(judged())
    assert view is not None
    (group,) = (
        group for group in view.groups if (group.layer, group.direction) == ("conv2", "forward")
    )
    assert [item.rule for item in group.causes] == ["skipped border"] and group.unexplained
    assert [item.sentence for item in view.sweep] == [
        "Parts of this study ran on different GPUs (A, B), so their times cannot be compared. "
        "Runs, in the same order: ncu; nsys."
    ]


def test_the_terminal_prints_outside_of_layers_in_full():
    calls = synthetic.layer_calls(16)
    calls = (*calls, calls[0]._replace(layer=""))
    runs = (replace(run, layer_calls=calls) for run in synthetic.gpu_pair(1, 16))
    shape = LedgerViewOptions(has_all_rows=True)
    text = printed(
        draw_view_on_terminal(View(chapters=build_run_group_views(analysed(*runs), shape)), 80)
    )
    assert re.search("^outside of layers +forward", text, re.MULTILINE)


def test_rows_for_programs_hold_full_values_and_null_for_unknown():
    found = judged()
    rows = list(list_ledger_rows([found]))
    (row,) = (
        row
        for row in rows
        if (row["batch"], row["layer"], row["direction"]) == (64, "conv2", "forward")
    )
    assert row["estimated_flops"] == 2 * 64 * 64 * 24 * 24 * 288 and row["ratio"] == 0.5
    assert row["causes"][0]["confidence"] == "observed"
    assert row["causes"][0]["factor"] == 0.46 and row["unexplained"] == 0.3
    assert row["peak"] == "fp32" and row["dram_bytes"] is None and row["flops_per_byte"] is None
    rest = [row for row in rows if row["layer"] == "not attributed"]
    assert [row["batch"] for row in rest] == [16, 64] and all(
        set(row) == set(rows[0]) for row in rest
    )
    assert list_sweep_causes([found])[0].cause.rule == "other GPU"
    assert json.loads(json.dumps(rows))[0]["batch"] == 16


def test_the_data_frame_has_the_rows_and_nan_for_unknown():
    runs = synthetic.gpu_pair(1, 64)
    table = frame(runs)
    line = table[(table.layer == "conv2") & (table.direction == "forward")].iloc[0]
    assert (
        line.estimated_flops == 2 * 64 * 64 * 24 * 24 * 288
        and line.executed_flops == line.estimated_flops / 2
    )
    cpu = frame([synthetic.cpu_run(1, 16)])
    assert cpu.executed_flops.isna().all() and set(cpu.executed_state.dropna()) == {"not_available"}
    assert frame([]).empty


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        (
            {"flops": 640, "extra": 0.01, "kernel": "sum", "slices": 4},
            "conv splits its K dimension into 4 slices and adds the slices up in sum: 640 FLOP "
            "more, 1.0%.",
        ),
        (
            {"flops": 640, "extra": 0.01},
            "conv splits its K dimension and adds the slices up itself: 640 FLOP more, 1.0%.",
        ),
    ],
)
def test_a_part_whose_fact_is_missing_is_left_out(facts, sentence):
    cause = Cause("split-K", 1.01, facts, row="conv")
    assert describe_cause(cause) == sentence


def test_brackets_in_the_name_of_a_kernel_stay():
    facts = {"kernel": "f<a[2]>{}"}
    cause = Cause("split-K", None, facts, variant="by its name", row="conv")
    assert "according to the name of f<a[2]>{}. The counters" in describe_cause(cause)


@pytest.mark.parametrize(("ours", "advised"), [(False, True), (True, False)])
def test_perfctl_ncu_is_advice_unless_it_made_the_run(ours, advised):
    cause = Cause("wrong window", 2.0, {"seen": 32}, row="conv", ours=ours)
    assert ("'perfctl ncu' does" in describe_fix(cause)) is advised


@pytest.mark.parametrize("rule", ["TF32", "tensor cores"])
def test_tensor_kernels_whose_flops_no_rule_derives_are_named(rule):
    facts = {"math": "fp16"}
    cause = Cause(rule, None, facts, variant="not derived", row="conv")
    assert describe_cause(cause) == (
        "conv runs tensor-core kernels in fp16, according to their names; perfctl has no rule "
        "for their FLOPs."
    )
    assert describe_fix(cause) == "Run 'perfctl ncu' to measure them."


def test_every_rule_with_a_sentence_has_a_fix_and_no_other_rule():
    rules = {key.partition(": ")[0] for key in SENTENCES}
    assert rules == {key.partition(": ")[0] for key in FIXES}


def test_optional_parts_are_closed_and_not_nested():
    for text in (*SENTENCES.values(), *FIXES.values()):
        depth = 0
        for letter in text:
            depth += {"[": 1, "]": -1}.get(letter, 0)
            assert depth in (0, 1), text
        assert depth == 0, text
