"""Causes of simulated sweeps: every reason that is there is found, with its number, and none that
is not."""

from perfctl.orchestrator.ledger.causes.judge import StudyCauses, find_study_flop_gap_causes
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.causes import (
    build_ledger_headlines,
    describe_cause,
    describe_fix,
)
from scripts.proof.verdicts import scenarios as sim
from tests.make import synthetic
from tests.make.tables import table
from tests.sample import sample

Scenario = sim.Scenario


def judge_runs(runs):
    (study,) = group_into_studies(runs)
    entries = build_ledger(study)
    return find_study_flop_gap_causes(study, entries), entries


def names_of(judgement):
    """Return the causes of rows, and of the sweep."""
    rows = {key: {cause.rule for cause in row.causes} for key, row in judgement.rows.items()}
    return rows, {cause.rule for cause in judgement.sweep}


SCENARIOS = {
    "nothing": Scenario(),
    "TF32 under an old ncu": Scenario(forward={"block.conv_a": "tf32"}, counters="old ncu"),
    "shared kernel": Scenario(shared=("block.conv_a", "block.conv_b")),
    "algorithm switch": Scenario(switch=("conv2", "winograd2", 64)),
    "host time": Scenario(host_time=True),
    "wrong window of a batch in the sweep": Scenario(window=64),
    "padding in the wrong window": Scenario(
        forward={"conv1": "padding", "conv2": "padding"}, window=1000
    ),
    "tensor cores by name only": Scenario(forward={"block.conv_a": "fp16"}, counters="no tensor"),
    "padding that looks like a batch of 1,024": Scenario(
        forward=dict.fromkeys(list(sim.BY_NAME)[1:], "padding"),
        missing="all",
        window=1000,
        batches=(16, 32),
    ),
    "FADD alone in the wrong window": Scenario(
        forward={"conv1": "epilogue"}, counters="fadd", window=1000
    ),
    "shared kernel in the wrong window": Scenario(
        shared=("block.conv_a", "block.conv_b"), window=1000
    ),
    "everything at once": Scenario(
        forward={
            "conv1": "padding",
            "conv2": "winograd4",
            "block.conv_a": "fft",
            "proj": "splitk",
            "fc2": "padding",
        },
        recompute=("block.conv_b",),
        missing="first",
        window=1000,
        host_time=True,
    ),
}
MIXES = {f"mix {seed}": sim.draw_scenario(seed) for seed in sample(range(120), 5)}


@table("scenario", SCENARIOS | MIXES)
def test_the_reasons_of_a_sweep_are_found_and_no_others_and_explain_its_ratios(scenario):
    """In a row that recomputes, the window may be a cause of the sweep only."""
    judgement, entries = judge_runs(sim.make_runs(scenario))
    rows, sweep = names_of(judgement)
    expected, expected_sweep = sim.find_rules(scenario)
    for key, rules in expected.items():
        if {"recomputation", "wrong window"} <= rules:
            rows[key].add("wrong window")
    assert (rows, sweep) == (expected, expected_sweep)
    is_mix = scenario in MIXES.values()
    assert is_mix or all((row.unexplained or 0) < 0.01 for row in judgement.rows.values())
    for cause in (
        *judgement.sweep,
        *(item for row in judgement.rows.values() for item in row.causes),
    ):
        assert any(letter.isdigit() for letter in describe_cause(cause)) and describe_fix(cause)
    assert judgement.rows or judgement.sweep or not build_ledger_headlines(judgement, entries)


def test_one_factor_of_all_rows_is_one_headline():
    """A clean sweep whose counters at batch 64 have twice their values."""
    runs = sim.make_runs(Scenario(batches=(64, 512)))
    runs[0].report.counters[:] = [
        counter._replace(value=2 * (counter.value or 0)) for counter in runs[0].report.counters
    ]
    (headline,) = build_ledger_headlines(*judge_runs(runs))
    assert headline.rules == ("whole step",)
    assert "a batch of 128 may have run" in headline.sentence


def test_headlines_put_the_sweep_first_and_gaps_of_less_than_a_hundredth_of_the_time_last():
    forward = {
        "conv1": "padding",
        "conv2": "winograd2",
        "block.conv_a": "winograd4",
        "fc2": "padding",
    }
    judgement, entries = judge_runs(sim.make_runs(Scenario(forward=forward, missing="first")))
    lines = build_ledger_headlines(judgement, entries)
    assert [line.place and line.place[1] for line in lines] == [
        None,
        "block.conv_a",
        "conv2",
        "fc2",
    ]
    most = {
        layer: max(row.share or 0 for row in entries.rows if row.name == f"{layer} forward")
        for layer in ("conv2", "fc2")
    }
    assert most["conv2"] > 0.01 > most["fc2"], "51 times the estimate, in 0.08% of the time"


def test_a_report_without_estimated_layers_has_no_cause():
    assert judge_runs([synthetic.foreign_run(1)])[0] == StudyCauses()
