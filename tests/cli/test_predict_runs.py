"""perfctl predict with runs of one's own in the store."""

import json

import pytest

from perfctl.orchestrator.predict.answer import Question
from perfctl.orchestrator.predict.models.subjects import plan_or_trace_model
from perfctl.orchestrator.predict.step_parts import compute_step_floor_seconds
from perfctl.orchestrator.predict.training import build_step_spec
from tests.cli import plain_runs as runs
from tests.cli.predict_calls import NET, ask

pytestmark = [
    pytest.mark.usefixtures("own_configuration"),
    pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning"),
]


def test_power_that_was_measured_stands_before_the_data_sheets(perfctl, tmp_path):
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 64, (10.0, 10.0), watts=55.0)])
    words = "--batch 64 --device T4 --dataset-size 64000 --optimizer sgd"
    energy = ask(perfctl, f"{words} --tariff 0.4")["batches"][0]["energy"]
    assert energy["watts"] == 55.0
    assert "measured in 1 runs of this model" in energy["source"]
    assert energy["kwh"]["value"] == pytest.approx(55.0 * 1000 * 0.010 / 3.6e6)
    assert energy["cost"]["value"] == pytest.approx(0.4 * energy["kwh"]["value"])
    assert ask(perfctl, f"{words} --power 60")["batches"][0]["energy"]["watts"] == 60.0


def bench(slower=1.0):
    """Steps that take twice their roofline, of networks of two families at four batch sizes."""
    from perfctl.orchestrator.counts.hardware.machines import find_device

    machine, rows = find_device("T4").machine, []
    for width in (16, 24, 32, 48):
        for family in (
            "vgg:depth=6,stages=3,image=32,hidden=64",
            "resnet:depth=8,stages=2,image=32",
        ):
            question = Question(f"{family},width={width}", batch=1, optimizer="sgd")
            subject = plan_or_trace_model(question)
            for batch in (16, 32, 64, 128):
                length = (
                    2000
                    * slower
                    * compute_step_floor_seconds(build_step_spec(question, subject, batch), machine)
                )
                rows.append(runs.Row(subject.model, batch, (length, length * 1.01, length * 0.99)))
    return rows


def test_runs_of_ones_own_are_fitted(perfctl, tmp_path):
    pytest.importorskip(
        "sklearn", reason="scikit-learn is not installed: pip install 'perfctl[predict]'"
    )
    runs.store(tmp_path / "perfctl.db", bench())
    words = (
        "predict vgg:depth=6,stages=3,width=40,image=32,hidden=64 --batch 48 "
        "--device T4 --optimizer sgd --json"
    )
    first = perfctl(words).ok()
    assert "fitting 32 steps measured on T4" in first.err
    (point,) = first.json["batches"]
    assert point["basis"] == "fitted"
    assert point["coverage"] is not None
    assert point["step_s"]["value"] == pytest.approx(2 * point["roofline_s"], rel=0.35)
    again = perfctl(words)
    assert again.json == first.json
    assert not list(tmp_path.glob("*fit*"))
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 256, (50.0,))])
    assert "fitting 33 steps" in perfctl(words).err


def test_without_scikit_learn_one_note_says_so_and_the_next_way_is_taken(
    perfctl, tmp_path, monkeypatch
):
    from perfctl.orchestrator.predict import efficiency

    monkeypatch.setattr(efficiency, "find_spec", lambda name: None)
    runs.store(tmp_path / "perfctl.db", bench())
    found = ask(perfctl, "--batch 48 --device T4 --optimizer sgd")
    assert found["batches"][0]["basis"] == "published"
    said = [note for note in found["notes"] if "scikit-learn" in note]
    assert said == ["fitted predictions need scikit-learn: pip install 'perfctl[predict]'"]


def test_a_cpu_with_other_threads_is_another_machine_that_is_named(perfctl, tmp_path):
    from perfctl.orchestrator.launch.machine.doctor import collect_host_facts

    cpu = collect_host_facts()["cpu"]
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 64, (10.0, 10.0), device=cpu, threads=1)])
    whole = {
        "device": cpu,
        "kind": "cpu",
        "at": "2026-11-20T10:00:00Z",
        "threads": 7,
        "flops": {"fp32": 9e10},
        "bandwidth_bps": 2e10,
    }
    records = [whole, {**whole, "threads": 1, "threads_asked": 1, "flops": {"fp32": 4e10}}]
    (tmp_path / "perfctl.peaks.json").write_text(json.dumps(records))
    words = "--batch 64 --device cpu --optimizer sgd"
    every, one = ask(perfctl, f"{words}"), ask(perfctl, f"{words} --threads 1")
    assert (every["device"]["name"], one["device"]["name"]) == (
        f"{cpu}, 7 threads",
        f"{cpu}, 1 thread",
    )
    assert (every["batches"][0]["basis"], one["batches"][0]["basis"]) == ("roofline", "measured")
    assert (
        f"the results database has runs on {cpu}, 1 thread, which counts as another machine. Run 'perfctl "
        "predict --threads 1' to use them" in every["notes"]
    )
    assert one["batches"][0]["step_s"]["value"] == 0.010
    said = perfctl(f"predict {NET} --batch 64 --device T4 --threads 1")
    assert said.code == 2 and "--threads needs --device cpu" in said.err
