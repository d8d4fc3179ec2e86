"""By which rule a counted figure is made of counters: said wherever the figure is."""

from __future__ import annotations

import perfctl
from perfctl.orchestrator.counts.figure import Figure, total_of
from perfctl.orchestrator.ledger.analysis import analyse
from perfctl.orchestrator.ledger.prepared import PreparedRun, studies
from perfctl.orchestrator.report.findings import report_findings
from perfctl.orchestrator.report.ledger.page import ledger_view
from perfctl.orchestrator.report.ledger.rows import column_facts
from perfctl.orchestrator.report.tables import figure_cell, reason_of
from scripts.proof.verdicts import scenarios

PLAIN = "fp32: FADD + FMUL + 2 FFMA"
CORES = "tensor: 512 x tensor instructions (HMMA.884, fp32 accumulation)"


def test_a_counted_figure_names_each_rule_once() -> None:
    figure = Figure(1000, "counted", rule=PLAIN)
    assert reason_of(figure) == f"rule: {PLAIN}"
    assert PLAIN in (figure_cell(figure, "FLOP").title or "")
    estimated = Figure(512, "estimated", CORES.partition(": ")[2], rule=f"{PLAIN}; {CORES}")
    assert reason_of(estimated) == f"{CORES.partition(': ')[2]}; rule: {PLAIN}"
    both = Figure(3, "counted", rule=f"{PLAIN}; {CORES}")
    assert total_of([Figure(1, "counted", rule=PLAIN), both, both]).rule == f"{PLAIN}; {CORES}"


def test_the_ledger_names_the_rules_below_the_table_and_in_every_row() -> None:
    runs = scenarios.make_runs(scenarios.Scenario(forward={"conv2": "fp16"}, batches=(16, 32)))
    (study,) = studies(runs)
    view = ledger_view(analyse(study))
    assert view is not None
    assert f"Rules of the executed FLOPs: {PLAIN}; {CORES}." in view.notes
    frame = perfctl.ledger(runs)
    counted = frame[frame["executed_flops"] > 0]
    assert len(counted) and counted["executed_rule"].notna().all()
    assert set(frame.columns) - {"explanation"} <= set(column_facts())


def test_instructions_that_only_move_constants_are_named_where_there_are_no_layers() -> None:
    scenario = scenarios.Scenario(forward={"fc1": "phantom"}, batches=(16,))
    run = scenarios.make_runs(scenario)[0]
    # 4 a warp, 8 warps a block, a block for 256 of 16 x 128 outputs
    moves = 4 * 8 * -(-16 * 128 // 256)
    (said,) = (
        item.text
        for item in report_findings([PreparedRun(run)], {}, {})
        if "constants" in item.text
    )
    halves, pipe = (
        int("".join(filter(str.isdigit, part))) for part in said.split(" in ")[0].split(" and ")
    )
    assert (halves, pipe) == (scenarios.STEPS * 32 * moves, scenarios.STEPS * moves)
    assert f"in {scenarios.STEPS} launches" in said
    plain = scenarios.make_runs(scenarios.Scenario(batches=(16,)))[0]
    assert not any(
        "constants" in item.text for item in report_findings([PreparedRun(plain)], {}, {})
    )
