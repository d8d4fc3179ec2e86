"""By which rule a counted figure is made of counters: said wherever the figure is."""

import perfctl
from perfctl.orchestrator.counts.figure import Figure, sum_figures
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.prepared import PreparedRun, group_into_studies
from perfctl.orchestrator.report.findings import list_findings_without_layers
from perfctl.orchestrator.report.ledger.page import build_ledger_view
from perfctl.orchestrator.report.ledger.rows import read_ledger_column_definitions
from perfctl.orchestrator.report.tables import explain_figure_state, figure_cell
from scripts.proof.verdicts import scenarios

PLAIN = "fp32: FADD + FMUL + 2 FFMA"
CORES = "tensor: 512 x tensor instructions (HMMA.884, fp32 accumulation)"


def test_a_counted_figure_names_each_rule_once():
    figure = Figure(1000, "counted", rule=PLAIN)
    assert explain_figure_state(figure) == f"rule: {PLAIN}"
    assert PLAIN in (figure_cell(figure, "FLOP").title or "")
    estimated = Figure(512, "estimated", CORES.partition(": ")[2], rule=f"{PLAIN}; {CORES}")
    assert explain_figure_state(estimated) == f"{CORES.partition(': ')[2]}; rule: {PLAIN}"
    both = Figure(3, "counted", rule=f"{PLAIN}; {CORES}")
    assert sum_figures([Figure(1, "counted", rule=PLAIN), both, both]).rule == f"{PLAIN}; {CORES}"


def test_the_ledger_names_the_rules_below_the_table_and_in_every_row():
    runs = scenarios.make_runs(scenarios.Scenario(forward={"conv2": "fp16"}, batches=(16, 32)))
    (study,) = group_into_studies(runs)
    view = build_ledger_view(analyse_study(study))
    assert view is not None
    assert f"Rules of the executed FLOPs: {PLAIN}; {CORES}." in view.notes
    frame = perfctl.ledger(runs)
    counted = frame[frame["executed_flops"] > 0]
    assert len(counted) and counted["executed_rule"].notna().all()
    assert set(frame.columns) - {"explanation"} <= set(read_ledger_column_definitions())


def test_instructions_that_only_move_constants_are_named_where_there_are_no_layers():
    scenario = scenarios.Scenario(forward={"fc1": "phantom"}, batches=(16,))
    run = scenarios.make_runs(scenario)[0]
    (said,) = (
        item.text
        for item in list_findings_without_layers([PreparedRun(run)], {}, {})
        if "constants" in item.text
    )
    assert f"instructions of {scenarios.STEPS} launches only moved constants" in said
    plain = scenarios.make_runs(scenarios.Scenario(batches=(16,)))[0]
    assert not any(
        "constants" in item.text
        for item in list_findings_without_layers([PreparedRun(plain)], {}, {})
    )
