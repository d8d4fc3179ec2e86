"""perfctl predict from the command line's side."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.analyse.step_parts import roofline
from perfctl.orchestrator.cli.predict_subject import find_subject

NET = "vgg:depth=6,stages=3,width=16,image=32,hidden=64"
SIZES = ("1", "2", "8", "64", "512")
SPEC = "name=X1,fp32_tflops=8.1408,bandwidth_gbs=320,memory_gb=16,tensor_fp16_tflops=65,sms=40,clock_mhz=1590,l2_mb=4"

pytestmark = pytest.mark.filterwarnings("ignore:CUDA initialization:UserWarning")


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No price table of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def runs() -> ModuleType:
    path = Path(__file__).with_name("plain_runs.py")
    spec = importlib.util.spec_from_file_location("cli_plain_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ask(call: Callable[..., Any], *words: object) -> Any:
    said = call("predict", "--model", NET, "--json", *words)
    assert said.code == 0, said.err
    return said.json


def test_epoch_training_and_cost_follow_from_the_step_by_arithmetic(perfctl: Callable[..., Any]) -> None:
    found = ask(perfctl, "--batch", 64, "--device", "T4", "--dataset-size", 1001, "--epochs", 3)
    (point,) = found["batches"]
    step = point["step_s"]
    assert 0 < step["low"] < step["value"] < step["high"]
    assert point["steps_per_epoch"] == 16  # 15.6 full batches
    for edge in ("value", "low", "high"):
        assert point["epoch_s"][edge] == pytest.approx(16 * step[edge])
        assert point["training_s"][edge] == pytest.approx(3 * 16 * step[edge])
    offer = next(one for one in point["offers"] if one["instance"] == "g4dn.xlarge")
    assert offer["on_demand_usd"]["high"] == pytest.approx(
        3 * 16 * step["high"] / 3600 * offer["on_demand_usd_per_hour"]
    )
    assert offer["date"]
    assert point["samples_per_s"]["value"] == pytest.approx(64 / step["value"])
    assert point["samples_per_s"]["low"] == pytest.approx(64 / step["high"])


def test_without_any_run_the_roofline_is_used_and_every_better_way_says_why_it_was_not(
    perfctl: Callable[..., Any],
) -> None:
    (point,) = ask(perfctl, "--batch", 64, "--device", "T4")["batches"]
    assert point["way"] == "roofline"
    assert [why.partition(":")[0] for why in point["why_not_better"]] == ["measured", "fitted", "transferred"]
    assert point["roofline_s"] < point["step_s"]["low"]


def test_the_text_shows_ranges_units_dates_and_what_the_numbers_rest_on(perfctl: Callable[..., Any]) -> None:
    said = perfctl("predict", "--model", NET, "--batch", 64, "--device", "V100", "--dataset-size", 50000, "--epochs", 9,
                   "--tariff", 0.3, "--explain")  # fmt: skip
    assert said.code == 0, said.err
    text = " ".join(said.out.split())
    (point,) = ask(perfctl, "--batch", 64, "--device", "V100")["batches"]
    middle, low, high = (f"{point['step_s'][edge] * 1e6:,.0f}" for edge in ("value", "low", "high"))
    assert f"step {middle} µs ({low} to {high} µs)" in text
    assert "the roofline alone" in text
    assert "'V100' may be several: V100 SXM2 16 GB taken" in text
    assert "prices of 2025-04" in text
    assert "300 W a GPU, board power of the data sheet" in text
    assert "at the tariff" in text
    assert "driven by" in text


def test_peaks_by_hand_that_are_those_of_a_board_give_its_times(perfctl: Callable[..., Any]) -> None:
    by_hand = ask(perfctl, "--batch", 64, "--device-spec", SPEC)["batches"][0]
    named = ask(perfctl, "--batch", 64, "--device", "T4")["batches"][0]
    assert by_hand["step_s"] == pytest.approx(named["step_s"])
    assert by_hand["memory"] == named["memory"]
    assert by_hand["offers"] == []


def test_a_step_measured_on_this_device_is_taken_without_the_time_its_data_took(
    perfctl: Callable[..., Any], tmp_path: Path, runs: ModuleType
) -> None:
    rows = [runs.Row(NET, 64, (10.0, 12.0, 14.0), data_ms=2.0), runs.Row(NET, 64, (100.0, 120.0, 140.0))]
    runs.store(tmp_path / "perfctl.db", rows)
    (point,) = ask(perfctl, "--batch", 64, "--device", "T4", "--optimizer", "sgd")["batches"]
    assert point["way"] == "measured"
    assert point["step_s"] == pytest.approx({"value": 0.010, "low": 0.009, "high": 0.011})  # quartiles of 8, 10, 12 ms
    assert point["phases_s"]["backward"] == pytest.approx(0.005)
    (same,) = ask(perfctl, "--batch", 64, "--device", "T4", "--optimizer", "momentum")["batches"]
    assert same["way"] == "roofline"
    (other,) = ask(perfctl, "--batch", 32, "--device", "T4", "--optimizer", "sgd")["batches"]
    assert other["way"] == "roofline"
    assert "at batch 64, not at 32" in other["why_not_better"][0]


def test_power_that_was_measured_stands_before_the_data_sheets(
    perfctl: Callable[..., Any], tmp_path: Path, runs: ModuleType
) -> None:
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 64, (10.0, 10.0), watts=55.0)])
    words = ("--batch", 64, "--device", "T4", "--dataset-size", 64_000, "--optimizer", "sgd")
    energy = ask(perfctl, *words, "--tariff", 0.4)["batches"][0]["energy"]
    assert energy["watts"] == 55.0
    assert "measured in 1 runs of this model" in energy["source"]
    assert energy["kwh"]["value"] == pytest.approx(55.0 * 1000 * 0.010 / 3.6e6)
    assert energy["cost"]["value"] == pytest.approx(0.4 * energy["kwh"]["value"])
    assert ask(perfctl, *words, "--power", 60)["batches"][0]["energy"]["watts"] == 60.0


def bench(runs: ModuleType, slower: float = 1.0) -> list[Any]:
    """Steps that take twice their roofline, of networks of two families at four batch sizes."""
    from perfctl.orchestrator.analyse.machines import named

    machine, rows = named("T4").machine, []
    for width in (16, 24, 32, 48):
        for family in ("vgg:depth=6,stages=3,image=32,hidden=64", "resnet:depth=8,stages=2,image=32"):
            subject = find_subject(f"{family},width={width}", optimizer="sgd")
            for batch in (16, 32, 64, 128):
                length = 2000 * slower * roofline(subject.case(batch, "fp32"), machine)
                rows.append(runs.Row(subject.model, batch, (length, length * 1.01, length * 0.99)))
    return rows


def test_runs_of_ones_own_are_fitted_once_and_fitted_anew_when_they_change(
    perfctl: Callable[..., Any], tmp_path: Path, runs: ModuleType
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'perfctl[predict]'")
    runs.store(tmp_path / "perfctl.db", bench(runs))
    words = ("predict", "--model", "vgg:depth=6,stages=3,width=40,image=32,hidden=64", "--batch", 48, "--device", "T4",
             "--optimizer", "sgd", "--json")  # fmt: skip
    first = perfctl(*words)
    assert first.code == 0, first.err
    assert "fitting 32 steps measured on T4" in first.err
    (point,) = first.json["batches"]
    assert point["way"] == "fitted"
    assert point["coverage"] is not None
    assert point["step_s"]["value"] == pytest.approx(2 * point["roofline_s"], rel=0.35)
    again = perfctl(*words)
    assert "fitting" not in again.err
    assert again.json == first.json
    kept = json.loads((tmp_path / "perfctl-fit.json").read_text())
    assert kept["format"] == "perfctl fits 1"
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 256, (50.0,))])
    assert "fitting 33 steps" in perfctl(*words).err


def test_a_damaged_file_of_fits_or_one_of_other_runs_is_passed_over(tmp_path: Path) -> None:
    from perfctl.orchestrator.cli.predict_sources import FORMAT, _kept

    file = tmp_path / "perfctl-fit.json"
    assert _kept(file, "token") is None
    whole = json.dumps({"format": FORMAT, "runs": "token", "fits": [], "notes": ["none"]})
    for text in (whole[:-5], "[]", "3", whole.replace("[]", "[3]"), whole.replace("token", "other")):
        file.write_text(text)
        assert _kept(file, "token") is None, text
    file.write_text(whole)
    assert _kept(file, "token") == ((), ("none",))


def test_a_step_that_does_not_fit_says_by_how_much_and_the_largest_batch_that_does(perfctl: Callable[..., Any]) -> None:
    model = "resnet:depth=50,width=64,image=224,classes=1000"
    said = perfctl("predict", "--model", model, "--batch", 512, "--device", "T4", "--json", "--dataset-size", 1000)
    memory = said.json["batches"][0]["memory"]
    assert memory["fits"] is False
    assert memory["lacking_bytes"] == memory["needed_bytes"] - 16e9 > 0
    largest = memory["largest_batch"]
    edges = perfctl("predict", "--model", model, "--batches", f"{largest},{largest + 1}", "--device", "T4", "--json")
    assert [point["memory"]["fits"] for point in edges.json["batches"]] == [True, False]
    text = " ".join(
        perfctl("predict", "--model", model, "--batch", 512, "--device", "T4", "--dataset-size", 1000).out.split()
    )
    assert f"does not fit in 16 GB, {memory['lacking_bytes'] / 1e9:.3g} GB are missing" in text
    assert f"the largest batch that fits is {largest}" in text
    assert "Cost of" not in text


def test_gradients_of_all_parameters_go_over_the_link_of_the_board(perfctl: Callable[..., Any]) -> None:
    found = ask(perfctl, "--batch", 64, "--device", "V100 SXM2 32 GB", "--gpus", 4)
    (point,) = found["batches"]
    moved = 2 * 3 / 4 * 4 * found["parameters"]
    assert point["parallel"]["moved_bytes"] == pytest.approx(moved)
    assert point["parallel"]["link_gbs"] == 150
    assert point["step_s"]["value"] == pytest.approx(point["step_one_gpu_s"]["value"] + moved / 150e9)
    assert point["samples_per_s"]["value"] == pytest.approx(4 * 64 / point["step_s"]["value"])
    slower = ask(perfctl, "--batch", 64, "--device", "V100 SXM2 32 GB", "--gpus", 4, "--interconnect", 1)["batches"][0]
    assert slower["parallel"]["communication"] == pytest.approx(moved / 1e9)
    said = ask(perfctl, "--batch", 64, "--device", "V100 SXM2 32 GB", "--gpus", 4, "--efficiency", 0.8)["batches"][0]
    assert said["step_s"]["value"] == pytest.approx(point["step_one_gpu_s"]["value"] / 0.8)


def test_several_batch_sizes_are_a_table_and_larger_ones_never_take_less_time(perfctl: Callable[..., Any]) -> None:
    words = ("--batches", ",".join(SIZES), "--device", "A100-SXM4-80GB", "--dataset-size", 10_000)
    found = ask(perfctl, *words)
    steps = [point["step_s"]["value"] for point in found["batches"]]
    assert steps == sorted(steps)
    table = perfctl("predict", "--model", NET, *words)
    assert table.code == 0, table.err
    assert all(len(line) <= 80 for line in table.out.splitlines())
    assert sum(line.split()[:1] == [size] for line in table.out.splitlines() for size in SIZES) == len(SIZES)


def test_the_frontier_is_beaten_by_no_offer_and_names_what_does_not_fit(perfctl: Callable[..., Any]) -> None:
    model = "resnet:depth=50,width=64,image=224,classes=1000"
    words = ("--model", model, "--batches", "32,256", "--dataset-size", 100_000, "--device", "T4", "--frontier")
    best = perfctl("predict", *words, "--json").json["frontier"]
    times = [choice["training_s"]["value"] for choice in best["choices"]]
    costs = [choice["on_demand_usd"]["value"] for choice in best["choices"]]
    assert times == sorted(times)
    assert costs == sorted(costs, reverse=True)
    assert best["too_large"] > 0  # batch 256 on a T4
    assert best["compared"] > 60
    assert "do not fit in memory" in " ".join(perfctl("predict", *words).out.split())


def test_a_price_table_of_ones_own_is_used_and_named(perfctl: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "provider,instance,gpu,count,on_demand_usd_per_hour,spot_usd_per_hour,region,date,source\n"
        "Basement,rack,T4,1,0.36,,home,2026-11-20,invoice\n"
    )
    assert perfctl("prices", "update", "mine.csv").code == 0
    found = ask(perfctl, "--batch", 64, "--device", "T4", "--dataset-size", 64_000)
    (offer,) = found["batches"][0]["offers"]
    assert offer["on_demand_usd"]["value"] == pytest.approx(found["batches"][0]["epoch_s"]["value"] / 3600 * 0.36)
    assert "your own table" in found["prices"]
    text = " ".join(
        perfctl("predict", "--model", NET, "--batch", 64, "--device", "T4", "--dataset-size", 64_000).out.split()
    )
    assert "prices of 2026-11-20, your own table" in text


MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
"""


def test_a_model_in_a_file_is_traced_and_its_memory_is_that_of_an_estimate_at_any_batch(
    perfctl: Callable[..., Any], tmp_path: Path
) -> None:
    from perfctl.estimation import Request, Session

    (tmp_path / "net.py").write_text(MODEL)
    words = ("predict", "--model", "net.py:net", "--input", "3x8x8", "--batch", 37, "--device", "T4", "--json")
    said = perfctl(*words)
    assert said.code == 0, said.err
    exact = Session(Request("net.py:net", ("3x8x8",), "train", "momentum", memory=True)).at(37)
    assert exact.memory is not None
    assert said.json["batches"][0]["memory"]["needed_bytes"] == exact.memory.peak.bytes
    assert said.json["optimizer"] == "momentum"
    assert said.json["parameters"] == 8 * 27 + 8 + 288 * 10 + 10
    inference = perfctl(*words, "--infer").json["batches"][0]
    assert inference["step_s"]["value"] < said.json["batches"][0]["step_s"]["value"]
    assert inference["memory"]["needed_bytes"] < exact.memory.peak.bytes


def test_this_machines_cpu_is_measured_once_and_its_runs_are_found_by_name_and_threads(
    perfctl: Callable[..., Any], tmp_path: Path, runs: ModuleType
) -> None:
    from perfctl.orchestrator.launch.environment import host_facts

    name = host_facts()["cpu"]
    record = {"device": name, "kind": "cpu", "at": "2026-11-20T10:00:00Z", "threads": 2, "torch": "2.5",
              "flops": {"fp32": 1e11, "fp64": 5e10}, "bandwidth_bps": 2e10, "rounds": 3}  # fmt: skip
    (tmp_path / "perfctl.peaks.json").write_text(json.dumps([record]))
    other, mine = (
        runs.Row(NET, 8, (length,), device=name, threads=threads) for length, threads in ((9.0, 1), (5.0, 2))
    )
    runs.store(tmp_path / "perfctl.db", [other, mine])
    found = ask(perfctl, "--batch", 8, "--device", "cpu", "--optimizer", "sgd")
    assert found["device"]["name"] == f"{name}, 2 threads"
    assert found["batches"][0]["way"] == "measured"
    assert found["batches"][0]["step_s"]["value"] == pytest.approx(0.005)
    assert found["batches"][0]["memory"]["limit_bytes"] > 0


def test_from_python_the_same_answer_comes_as_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = perfctl.predict(NET, batch=64, device="T4", dataset_size=1000, epochs=2, optimizer="sgd")
    assert answer.step.low < answer.step.seconds < answer.step.high
    assert answer.training.whole is not None
    assert answer.training.whole.value == pytest.approx(2 * 16 * answer.step.seconds)
    assert answer.training.rentals[0].on_demand is not None
    with pytest.raises(Exception, match="not in the table of devices"):
        perfctl.predict(NET, batch=64, device="A10G")


def test_a_cpu_with_other_threads_is_another_machine_that_is_named(
    perfctl: Callable[..., Any], tmp_path: Path, runs: ModuleType
) -> None:
    from perfctl.orchestrator.launch.environment import host_facts

    cpu = host_facts()["cpu"]
    runs.store(tmp_path / "perfctl.db", [runs.Row(NET, 64, (10.0, 10.0), device=cpu, threads=1)])
    whole = {"device": cpu, "kind": "cpu", "at": "2026-11-20T10:00:00Z", "threads": 7, "flops": {"fp32": 9e10},
             "bandwidth_bps": 2e10}  # fmt: skip
    records = [whole, {**whole, "threads": 1, "threads_asked": 1, "flops": {"fp32": 4e10}}]
    (tmp_path / "perfctl.peaks.json").write_text(json.dumps(records))
    words = ("--batch", 64, "--device", "cpu", "--optimizer", "sgd")
    every, one = ask(perfctl, *words), ask(perfctl, *words, "--threads", 1)
    assert (every["device"]["name"], one["device"]["name"]) == (f"{cpu}, 7 threads", f"{cpu}, 1 thread")
    assert (every["batches"][0]["way"], one["batches"][0]["way"]) == ("roofline", "measured")
    assert (
        f"the store has runs on {cpu}, 1 thread, which is another machine here: --threads 1 asks for it"
        in every["notes"]
    )
    assert one["batches"][0]["step_s"]["value"] == 0.010
    said = perfctl("predict", "--model", NET, "--batch", 64, "--device", "T4", "--threads", 1)
    assert said.code == 2 and "--threads without --device cpu" in said.err


def test_what_is_null_has_its_reason(perfctl: Callable[..., Any]) -> None:
    (bare,) = ask(perfctl, "--batch", 64, "--device", "T4")["batches"]
    (full,) = ask(perfctl, "--batch", 64, "--device", "T4", "--dataset-size", 1000, "--epochs", 2, "--gpus", 2,
                  "--interconnect", 5, "--tariff", 0.3)["batches"]  # fmt: skip
    for point in (bare, full):
        empty = {name for name, value in point.items() if value in (None, [], {}) and name != "beyond_the_data"}
        assert {name for name in point["gaps"] if "." not in name} == empty
    assert bare["gaps"]["epoch_s"] == "no --dataset-size"
    assert "energy.cost" not in full["gaps"]


def test_the_memory_of_a_familys_forward_pass_is_that_of_the_trace(perfctl: Callable[..., Any]) -> None:
    from perfctl.estimation import Request, Session

    model = "resnet:width=16,image=32"
    found = perfctl("predict", "--model", model, "--batch", 8, "--device", "T4", "--infer", "--json").json
    traced = Session(Request(model, mode="infer", memory=True)).at(8).memory
    assert traced is not None
    assert found["batches"][0]["memory"]["needed_bytes"] == pytest.approx(traced.peak.bytes, rel=1e-3)
