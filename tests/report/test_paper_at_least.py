"""A layer that runs an operation without a formula has "at least" so many FLOPs on paper, with the
operation's name."""

import re
from dataclasses import replace

import pandas as pd
import pytest

import perfctl
from perfctl.orchestrator.report.findings import list_findings
from perfctl.orchestrator.report.ledger.page import build_ledger_view
from perfctl.orchestrator.report.ledger.rows import list_ledger_rows
from perfctl.orchestrator.report.numbers import format_integer_or_six_digits
from perfctl.orchestrator.report.page.about import build_missing_values_table
from perfctl.orchestrator.report.terminal import LedgerViewOptions, build_ledger_row_views
from perfctl.orchestrator.report.view import View, draw_view_on_terminal
from perfctl.records.paper import LayerCall
from tests.make import synthetic
from tests.report.outline import analysed, printed

BATCH = 64
KNOWN = {
    "forward": 2 * synthetic.macs("conv2", BATCH),
    "backward": 4 * synthetic.macs("conv2", BATCH),
}
WHY = "no formula for aten.linalg_matrix_exp (1 call)"


def odd(layer, direction):
    return LayerCall(layer, "linalg_matrix_exp", direction, None, None, 0, 8, 8, 8, WHY, position=1)


def runs(*more):
    return [
        replace(run, layer_calls=(*run.layer_calls, *more)) for run in synthetic.gpu_pair(1, BATCH)
    ]


@pytest.fixture(scope="module")
def found():
    return analysed(*runs(odd("conv2", "forward"), odd("conv2", "backward")))


def row(found, layer, direction):
    (one,) = [row for row in found.ledger.rows if (row.layer, row.direction) == (layer, direction)]
    return one


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_known_part_is_a_lower_bound_that_names_the_rest(found, direction):
    one = row(found, "conv2", direction)
    assert (one.estimated.value, one.estimated.lower_bound) == (KNOWN[direction], True)
    assert one.estimated.missing == (f"linalg_matrix_exp ({direction})",)
    assert one.estimated.reason == WHY


def test_no_ratio_rate_or_verdict_rests_on_a_lower_bound(found):
    one, whole = row(found, "conv2", "forward"), row(found, "fc1", "forward")
    assert (one.ratio, one.achieved, one.complete_estimated_flops) == (None, None, None)
    assert one.ratio_at_most == 0.5  # half of the known multiply-adds were executed
    assert found.judgement.get_row_causes(BATCH, "conv2", "forward").unexplained is None
    assert (whole.ratio, whole.ratio_at_most) == (1, None)
    # the same counts, and all of paper
    assert analysed(*runs()).judgement.get_row_causes(BATCH, "conv2", "forward").unexplained == 1


def test_the_utilisation_of_a_step_is_not_worked_out_from_a_part(found):
    (step,) = found.roofline.select_points_by_work_level("run")
    known = 6 * sum(
        synthetic.macs(layer, BATCH) for layer in synthetic.LAYERS
    ) - 2 * synthetic.macs("conv1", BATCH)
    names = "linalg_matrix_exp (forward), linalg_matrix_exp (backward)"
    assert (step.mfu, step.traffic.estimated) == (None, None)
    assert step.traffic.paper_why == f"at least {known:,} estimated FLOPs; not included: {names}"
    layer = found.roofline.get_ledger_row_point(BATCH, "conv2", "forward")
    assert layer is not None and layer.mfu is None and layer.hfu


def test_two_lower_bounds_make_no_ratio():
    timed, counted = runs(odd("conv2", "forward"))
    report = counted.report
    conv2 = {
        kernel.launch
        for kernel in report.kernels
        if (kernel.layer, kernel.direction) == ("conv2", "forward")
    }
    # one launch was not counted
    kept = [one for one in report.counters if one.launch != min(conv2)]
    partial = replace(counted, report=replace(report, counters=kept))
    one = row(analysed(timed, partial), "conv2", "forward")
    assert one.executed.lower_bound and one.estimated.lower_bound
    assert (one.ratio, one.ratio_at_most) == (None, None)


def test_the_page_and_the_terminal_say_at_least_and_at_most(found):
    view = build_ledger_view(found)
    assert view is not None
    (group,) = [
        group for group in view.groups if (group.layer, group.direction) == ("conv2", "forward")
    ]
    cells = group.lines[0].cells
    estimate, ratio, achieved = cells["estimate"], cells["ratio"], cells["estimate / time"]
    assert estimate.text.startswith("≥ ")
    assert format_integer_or_six_digits(KNOWN["forward"], "FLOP") in (estimate.title or "")
    assert "without linalg_matrix_exp (forward)" in (estimate.title or "")
    assert ratio.text == "≤ 0.50" and "at most" in (ratio.title or "")
    assert achieved.value is None and achieved.title == "the estimate is a lower bound"
    assert group.note == f"the estimate is a lower bound: {WHY}"
    assert group.lines[0].bar is None
    views = View(chapters=build_ledger_row_views(found, LedgerViewOptions()))
    text = printed(draw_view_on_terminal(views, 150), 150)
    (line,) = [line for line in text.splitlines() if re.match("conv2 +forward", line)]
    assert "≥ 1.36 G" in line and "≤ 0.50" in line


def test_the_findings_and_the_list_of_gaps_name_it(found):
    said = [item.text for item in list_findings(found) if item.warning]
    where = "The estimated FLOPs of conv2 forward, conv2 backward are lower bounds"
    assert f"{where}: they do not include linalg_matrix_exp." in said
    table = build_missing_values_table(found.study, found.ledger)
    assert table is not None
    shown = [[cell.text for cell in cells] for cells in table.rows]
    (row,) = [cells for cells in shown if cells[0] == "estimated FLOPs (lower bound)"]
    assert row[1:3] == [WHY, "conv2 forward, conv2 backward"]


def test_a_layer_of_which_nothing_is_known_has_no_figure_rather_than_0():
    found = analysed(*runs(odd("twist", "forward")))
    one = row(found, "twist", "forward")
    assert (one.estimated.value, one.estimated.state, one.estimated.reason) == (
        None,
        "not_available",
        WHY,
    )
    assert (
        "The estimated FLOPs of twist forward are unknown: they do not include linalg_matrix_exp."
        in [item.text for item in list_findings(found)]
    )


def test_json_and_data_frame_carry_the_bound_and_the_names(found):
    frame = perfctl.ledger(runs(odd("conv2", "forward"), odd("conv2", "backward")))
    for rows in (list(list_ledger_rows([found])), frame.to_dict("records")):
        (one,) = [row for row in rows if (row["layer"], row["direction"]) == ("conv2", "forward")]
        assert (one["estimated_flops"], one["estimated_is_lower_bound"]) == (KNOWN["forward"], True)
        assert one["estimated_reason"] == f"without linalg_matrix_exp (forward); {WHY}"
        assert (one["ratio_at_most"], pd.isna(one["ratio"])) == (0.5, True)
        (plain,) = [row for row in rows if (row["layer"], row["direction"]) == ("fc1", "forward")]
        assert (plain["estimated_is_lower_bound"], plain["ratio"]) == (False, 1)


@pytest.mark.parametrize("batch", [None, BATCH])
def test_the_terminal_shows_the_estimate_with_or_without_a_batch_size(batch):
    timed = replace(runs()[0], batch_size=batch)
    view = View(chapters=build_ledger_row_views(analysed(timed), LedgerViewOptions()))
    text = printed(draw_view_on_terminal(view, 150), 150)
    (line,) = [line for line in text.splitlines() if re.match("conv2 +forward", line)]
    assert "1.36 G" in line and "batch" not in text
