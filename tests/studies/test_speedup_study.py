"""perfctl study speedup, as a user calls it, and the speed-ups that it judges."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.cli.main import run_command_line
from perfctl.orchestrator.commands.study import resolve_devices_and_list_missing, run_study
from perfctl.orchestrator.compare import speedup as compared
from perfctl.orchestrator.compare.speedup import (
    ArmComparison,
    Gain,
    GainKey,
    GainLine,
    NetworkSpeedup,
    UncertainGain,
)
from perfctl.orchestrator.launch.sweep.study import split_study_into_parts
from perfctl.orchestrator.ledger.arm_figures import compute_figures_of_newest_run
from perfctl.orchestrator.report.page.records import LONGEST
from perfctl.orchestrator.report.speedup import (
    WHICH,
    build_speedup_finding,
    build_time_speedup_interval_cells,
    list_speedup_notes,
)
from tests.make.synthetic import make_run
from tests.studies.asking import ask

SMALL = (
    *("--quick", "--devices", "cpu,cpu:bf16", "--batches", "4", "--steps", "10", "--epochs", "2"),
    *(
        "--unet",
        "--base-width 2 --image-size 16 --samples 16",
        "--lstm",
        "--hidden 4 --length 6 --samples 32",
    ),
)


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Other programs beside the tests are no matter of the study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compared, "explain_cpu_contention", lambda runs: None)
        yield


@pytest.fixture(scope="module")
def made(bf16_lstm, quick_sweeps_of_module, tmp_path_factory):
    """A whole study of two tiny networks, made once."""
    folder = tmp_path_factory.mktemp("study")
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run_command_line(["study", "speedup", *SMALL, "--out", "st"]) == 0
    finally:
        os.chdir(before)
    return folder / "st"


def test_one_call_trains_both_networks_and_leaves_everything_in_one_folder(made):
    page, summary = (made / "study.html").read_text(), (made / "summary.md").read_text()
    for words in (
        "U-Net, batch 4",
        "BiLSTM, batch 4",
        "Dice by epoch",
        "Accuracy by training time",
        "as pies",
        "Amdahl",
        "The most expensive on cpu:bf16",
        "there is no NVIDIA GPU here",
    ):
        assert words in page, words
    assert "## How many times faster" in summary
    charts = {path.name for path in (made / "charts").iterdir()}
    assert {"unet-dice-by-time.png", "pies-1-work.png", "pies-2-work.png"} <= charts
    studies = json.loads((made / "results.json").read_text())
    assert [(one["workload"], one["batch"]) for one in studies] == [("unet", 4), ("lstm", 4)]
    for study in studies:
        proven = any(
            line["gain"] is not None and line["level"] in ("epoch", "step", "phase")
            for line in study["comparisons"][0]["lines"]
        )
        is_drawn = f"{study['workload']}-speedup.png" in charts
        assert is_drawn == proven, "a busy machine proves no ratio, and then none is drawn"
    for way in ("unet_cpu", "unet_cpu_bf16", "lstm_cpu", "lstm_cpu_bf16"):
        (run_,) = json.loads((made / "perfctl-runs" / way / "results.json").read_text())["runs"]
        assert run_["status"] == "ok"
        assert len(list((made / "perfctl-runs" / way).rglob("*.pt.trace.json.gz"))) == 1
    assert json.loads((made / "speedup.ipynb").read_text())["nbformat"] == 4
    assert len(list((made / "tables").glob("*.csv"))) > 10


def test_recorded_runs_give_the_same_figures_as_the_study_that_made_them(made, tmp_path):
    done = run_study(ask("speedup", tmp_path / "again", source=made))
    assert (tmp_path / "again" / "results.json").read_text() == (made / "results.json").read_text()
    (files,) = (one for one in done.page.chapters if one.key == "files")
    (runs,) = files.tables
    assert runs is not None
    assert (len(runs.rows), done.problems) == (4, ())


def test_a_gpu_that_is_not_here_is_said_and_ways_of_the_cpu_are_compared(made, tmp_path, capsys):
    nowhere = str(tmp_path / "nowhere")
    assert (
        run_command_line(["study", "speedup", "--from", nowhere, "--out", str(tmp_path / "x")]) == 2
    )
    assert f"--from: {nowhere} does not exist" in capsys.readouterr().err
    asked = ask("speedup", tmp_path, quick=True, devices="cpu,cuda")
    request, _ = resolve_devices_and_list_missing(asked, runs_on_other_machines=True)
    labels = [label for label, _ in split_study_into_parts(request).parts]
    assert labels == ["unet on cpu", "unet on cuda", "lstm on cpu", "lstm on cuda"], (
        "commands for a machine with a GPU"
    )


def speedup_of(*lines):
    other = ArmComparison("cuda", (), (), lines, ())
    arms = tuple(compute_figures_of_newest_run(label, (make_run(),)) for label in ("cpu", "cuda"))
    return NetworkSpeedup("unet", 16, "cpu", arms, (other,), ()), other


STEP = GainLine(
    GainKey("step", "step"),
    113.0,
    10.0,
    gain=Gain(11.3, 9.8, 12.9, "9 and 8 steps of one run each"),
)
LOADING = GainLine(GainKey("phase", "data"), 4.0, 4.1)
BACKWARD = GainLine(GainKey("phase", "backward"), 60.0, 4.5)


WIDE = UncertainGain(Gain(2.0, 0.5, 8.0, "10 and 10 steps of one run each"), 4, "steps")
UNCERTAIN = replace(STEP, gain=None, reason=WIDE.wide_interval.reason, uncertain=WIDE)


def line(level, low, high):
    return GainLine(
        GainKey(level, level), 80.0, 10.0, gain=Gain((low * high) ** 0.5, low, high, "5 and 5 runs")
    )


FASTER = "is 11.30 times faster than CPU by steps (9.80 to 12.90, 9 and 8 steps)"
SLOWER = "is 2.24 times slower than CPU by steps (2.00 to 2.50, 5 and 5 runs)"
EQUAL = "shows no difference from CPU by steps (0.80 to 1.20, 5 and 5 runs)"
EPOCHS = "is 8.14 times faster than CPU by complete epochs (7.70 to 8.60, 5 and 5 runs)"
LITTLE = "is 1.16 times faster than CPU by complete epochs (1.12 to 1.21, 5 and 5 runs)"


@pytest.mark.parametrize(
    ("lines", "text", "is_warning"),
    [
        pytest.param(
            (STEP, LOADING, BACKWARD),
            f"{FASTER}; data loading then takes 41.0% of a step",
            False,
            id="it then waits for data",
        ),
        pytest.param(
            (STEP, BACKWARD), f"{FASTER}; backward then takes 45.0% of a step", False, id="a phase"
        ),
        pytest.param((line("step", 0.4, 0.5),), SLOWER, False, id="slower"),
        pytest.param((line("step", 0.8, 1.2),), EQUAL, False, id="no difference"),
        pytest.param(
            (STEP, line("epoch", 7.7, 8.6)),
            f"{EPOCHS}; steps under the profiler give 11.30 (9.80 to 12.90)",
            True,
            id="steps and epochs disagree",
        ),
        pytest.param(
            (line("step", 0.94, 1.15), line("epoch", 1.12, 1.21)),
            f"{LITTLE}; steps under the profiler give 1.04 (0.94 to 1.15)",
            False,
            id="the steps are too noisy to disagree",
        ),
        pytest.param(
            (UNCERTAIN,),
            "against CPU is unknown: the 95% interval is wider than a factor of 3; about 4 more "
            "steps would suffice",
            True,
            id="the interval is too wide",
        ),
    ],
)
def test_a_headline_states_the_factor_and_what_follows(lines, text, is_warning):
    found = build_speedup_finding(*speedup_of(*lines), "unet")
    assert (found.text, found.warning) == (f"U-Net: GPU {text}.", is_warning)


def test_one_sentence_says_which_of_steps_and_epochs_answers_which_question():
    study, _ = speedup_of(line("step", 0.94, 1.15), line("epoch", 1.12, 1.21))
    assert WHICH in list_speedup_notes(study)
    assert WHICH not in list_speedup_notes(speedup_of(STEP)[0]), "nothing to choose from"


def test_a_headline_has_at_most_140_characters_and_a_warning_stays_complete():
    study, other = speedup_of(line("step", 0.94, 1.15), line("epoch", 1.12, 1.21))
    long = replace(
        other, label="cuda:bf16 (NVIDIA GeForce RTX 4090 Laptop GPU of a very long product name)"
    )
    assert len(build_speedup_finding(study, long, "unet").text) <= LONGEST
    reason = "word " * 60 + "end"
    assert build_speedup_finding(study, replace(long, reasons=(reason,)), "unet").text.endswith(
        f"{reason}."
    )


def test_cells_of_an_uncertain_gain_state_what_it_needs_and_not_its_ends():
    texts = [cell.text for cell in build_time_speedup_interval_cells(UNCERTAIN)]
    assert texts[1:] == ["unknown", "needs about 4 more steps"]
