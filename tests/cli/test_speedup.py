"""perfctl speedup, as a user calls it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfctl.orchestrator.commands.speedup import make_labels_distinct, rebuild_workload_options
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.ways import (
    TrainingWay,
    parse_device_precision_variants,
    plan_training_sweep_of_variant,
)

SMALL = "--hidden 4 --length 6 --samples 32 --threads 1 --steps 10 --warmup 2"
CALL = f"speedup --workload lstm --devices cpu,cpu:bf16 --batches 8 --epochs 2 {SMALL}"


@pytest.mark.usefixtures("quick_sweeps", "bf16_lstm")
def test_two_precisions_leave_traces_results_and_a_page(perfctl, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = perfctl(f"{CALL} --charts charts").ok()
    for name, precision in (("lstm_cpu", "fp32"), ("lstm_cpu_bf16", "bf16")):
        (trace,) = Path("perfctl-runs", name).rglob("*.pt.trace.json.gz")
        with gzip.open(trace, "rt") as opened:
            assert "traceEvents" in json.load(opened)
        (run,) = json.loads(Path("perfctl-runs", name, "results.json").read_text())["runs"]
        assert (run["status"], run["precision"], run["batch_size"]) == ("ok", precision, 8)
        assert len(run["epochs"]) == 2
        assert run["total_ns"] == sum(epoch["ns"] for epoch in run["epochs"])
    # not of a speedup whose interval is too wide to be shown
    drawn = [*Path("charts").glob("s1-*.pdf")]
    assert drawn
    assert all(chart.read_bytes().startswith(b"%PDF") for chart in drawn)
    page = Path("lstm_speedup.html").read_text()
    for words in (
        "Speedup by layer",
        "95% interval",
        "Accuracy by training time",
        "Kinds of work",
        "Peak memory",
    ):
        assert words in page, words
    assert "cpu and cpu:bf16 differ in precision (fp32; bf16)" in " ".join(said.out.split())

    again = perfctl(f"{CALL} --json")
    assert again.err.count("already complete, skipped") == 2
    (study,) = again.json
    assert [arm["label"] for arm in study["arms"]] == ["cpu", "cpu:bf16"]
    plain, half = study["arms"]
    kept = 4 * (4 * 4 * (128 + 4) * 2 + 4 * 4 * (8 + 4) * 2 + 4 * 16 * 2 * 2 + 8 * 10 + 10)
    assert plain["estimated_memory"] >= 3 * kept + 4 * 8 * 6 * 128, (
        "parameters, Adam's two states, the letters"
    )
    assert plain["estimated_memory_reason"] is None
    assert plain["estimated_memory"] < plain["memory"]["peak host resident"]
    assert (half["estimated_memory"], "autocast" in half["estimated_memory_reason"]) == (None, True)
    for line in study["comparisons"][0]["lines"]:
        assert (line["gain"] is None) == (line["reason"] is not None)
        if line["gain"] is not None:
            assert line["gain"]["low"] <= line["gain"]["value"] <= line["gain"]["high"]
            assert line["gain"]["basis"]

    refused = perfctl("speedup --runs lstm_cpu,lstm_cpu_bf16").ends(
        1, "precision differs: lstm_cpu has fp32, lstm_cpu_bf16 has bf16"
    )
    assert "faster" not in refused.out.partition("Figures of each device")[2]
    assert perfctl("speedup --runs lstm_cpu,lstm_cpu_bf16 --allow precision").code == 0

    named = [chart["name"] for chart in perfctl("plot --list --json").json]
    for chart in (
        "training-loss-by-epoch",
        "test-loss-by-time",
        "accuracy-by-epoch",
        "epoch-time",
        "work",
        "operations-cpu",
        "operations-cpu-bf16",
        "memory",
    ):
        assert f"lstm-{chart}" in named, chart
    gains = [
        line["gain"]
        for line in study["comparisons"][0]["lines"]
        if line["level"] in ("epoch", "step", "phase")
    ]
    assert ("lstm-speedup" in named) == any(gains), (
        "a machine that is busy leaves no interval narrow enough to be shown"
    )
    texts = {}
    for name, option in (("bars", ""), ("pie", "--pie")):
        assert perfctl(f"plot lstm-work {option} --out {name}.svg").code == 0
        texts[name] = Path(f"{name}.svg").read_text(encoding="utf-8")
        assert ">RNN<" in texts[name]
        assert "_container" not in texts[name]
    assert (">cpu:bf16<" in texts["bars"], texts["bars"] != texts["pie"]) == (True, True)
    said = perfctl("plot lstm-epoch-time --pie")
    assert (said.code, "--pie does not apply" in said.err) == (2, True)
    said = perfctl("plot --list --json --runs lstm_cpu,lstm_cpu_bf16")
    assert "precision differs" in said.err
    assert "speedup" not in [chart["name"] for chart in said.json]
    said = perfctl("plot speedup --runs lstm_cpu,lstm_cpu_bf16 --allow precision")
    assert (said.code == 0) == Path("speedup.pdf").exists() == any(gains)
    assert not any(gains) or Path("speedup.pdf").read_bytes().startswith(b"%PDF")

    perfctl(f"{CALL[:-1]}3").ends(2, "perfctl-runs/lstm_cpu holds runs of another request")


def test_the_store_is_beside_the_runs_unless_it_is_named(tmp_path):
    asked = SweepOptions(out=tmp_path / "runs")
    assert asked.store_path == tmp_path / "perfctl.db", "as of every sweep"
    assert SweepOptions(out=asked.out, store=Path("mine.db")).store_path == Path("mine.db")


def test_a_list_of_devices_is_read():
    assert parse_device_precision_variants("cpu, cuda:tf32,cuda:compile") == (
        TrainingWay("cpu"),
        TrainingWay("cuda", "tf32"),
        TrainingWay("cuda", "compile"),
    )
    assert [
        way.precision for way in parse_device_precision_variants("cuda,cuda:bf16,cpu:compile")
    ] == [
        "fp32",
        "bf16",
        "fp32",
    ]


@pytest.mark.parametrize(
    ("devices", "device", "precision"),
    [
        ("cpu,cuda", "cuda", "fp32"),
        ("cpu,cuda:tf32", "cuda", "tf32"),
        ("cpu,cuda:bf16", "cuda", "bf16"),
        ("cuda,cpu:bf16", "cpu", "bf16"),
        ("cuda,cuda:compile", "cuda", "fp32"),
    ],
)
def test_every_arm_is_the_same_command_but_for_its_device_and_precision(
    devices, device, precision, monkeypatch
):
    monkeypatch.setattr(
        "perfctl.orchestrator.launch.sweep.plan.choose_cpu_or_cuda", lambda asked: asked
    )
    base, other = (_argv(way) for way in parse_device_precision_variants(devices))
    for name, value in (("--device", device), ("--precision", precision)):
        assert other[other.index(name) + 1] == value
    assert ("--compile" in other) == devices.endswith("compile")

    def rest(words):
        kept = [word for word in words if word != "--compile"]
        for name in ("--device", "--precision", "--trace", "--record"):
            place = kept.index(name)
            del kept[place : place + 2]
        return kept

    assert rest(base) == rest(other), (
        "seed, data, epochs, steps and the workload's own options are the same"
    )
    assert "--seed" in base


def _argv(way):
    from perfctl.orchestrator.launch.sweep import sweep

    asked = SweepOptions(workload="lstm", batches=(8,))
    ((_, command),) = sweep.list_sweep_commands(
        plan_training_sweep_of_variant(way, 2, asked, ("--hidden", "4", "--seed", "3"))
    )
    return [str(word) for word in command.argv]


def test_a_trace_of_another_machine_is_refused_for_what_it_does_not_say(perfctl, reports):
    cpu, gpu = (
        reports / "kineto" / name
        for name in (
            "hta_cpu_only_rank-34.pt.trace.json.gz",
            "kineto2021_resnet50_nw0_worker0.1623143089861.pt.trace.json.gz",
        )
    )
    for trace, batch in ((cpu, 32), (gpu, 16)):
        assert perfctl(f"ingest {trace} --workload resnet50 --batch {batch}").code == 0
    ask = "speedup --runs run:1,run:2 --store perfctl.db"
    perfctl(ask).ends(1, "variant differs: run 1 has rank 34 of 300")
    assert "batch differs: run 1 has 32, run 2 has 16" in perfctl(f"{ask} --allow variant").err


def test_compiling_without_a_compiler_is_refused_before_anything_runs(perfctl, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    perfctl("speedup --devices cpu,cpu:compile").ends(2, "cpu:compile needs a C++ compiler")
    assert not Path("perfctl-runs").exists()


def test_a_gpu_that_is_not_here_is_said(perfctl, monkeypatch):
    here = "perfctl.orchestrator.launch.sweep.ways.choose_cpu_or_cuda"
    monkeypatch.setattr(here, lambda asked: "cpu" if asked == "auto" else asked)
    perfctl("speedup --devices cpu,cuda:bf16").ends(2, "cuda:bf16: no NVIDIA GPU found")


def test_a_wrong_word_for_the_workload_starts_nothing(perfctl):
    perfctl("speedup --workload unet --devices cpu,cpu:bf16 --image-size 20").ends(
        2, "is not a multiple of 16"
    )
    with pytest.raises(UsageError):
        parse_device_precision_variants("")


def test_equally_named_sides_have_distinct_labels():
    assert make_labels_distinct(["b16", "b16", "b32"], ["old/b16", "new/b16", "b32"]) == [
        "old/b16",
        "new/b16",
        "b32",
    ]
    assert make_labels_distinct(["a", "a"], ["a", "a"]) == ["a (1)", "a (2)"]


def test_a_workloads_own_options_come_back_from_its_record_as_it_was_called():
    said = {"option:conv2": "[32, 64, 3, 1]", "option:epochs": "2"}
    run: Any = SimpleNamespace(workload="mnist_cnn", report=SimpleNamespace(environment=said))
    assert rebuild_workload_options(run) == ("--conv2=32,64,3,1",)
    run = SimpleNamespace(
        workload="unet", report=SimpleNamespace(environment={"option:base_width": "8"})
    )
    assert rebuild_workload_options(run) == ("--base-width=8",)
