"""The file that carries the points of a bench."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.predict.bench import keep_fastest_points
from perfctl.parsers.own.bench import format_bench_file, read_bench_points
from perfctl.records.bench import BenchMachine, BenchPoint
from perfctl.records.errors import ReportError
from perfctl.workloads.models.plan import plan_model
from scripts.proof.accuracy.bench_steps import convert_bench_point

RECORDED = Path(__file__).resolve().parents[1] / "data" / "bench-cpu" / "bench.json"
POINT = BenchPoint(
    model="mlp:depth=2",
    batch=64,
    mode="train",
    precision="fp32",
    machine=BenchMachine("a CPU", "cpu", 1, "2.9.0"),
    steps=30,
    step_ns=(5_000_000, 4_900_000, 5_200_000),
    fastest_ns=4_700_000,
    phase_ns={"forward": 2_000_000, "backward": 2_500_000, "optimizer": 400_000},
    memory_bytes={"before": 10, "peak": 20},
    forward_ns={"flatten": 1_000, "fc1": 900_000},
    backward_ns={"fc1": 1_800_000, "act1": 20_500},
    features={"flops:forward": 52_000_000.0, "layers": 2.0},
)


def test_points_come_back_as_they_were_written(tmp_path):
    bare = replace(POINT, model="mlp", batch=1, forward_ns={}, backward_ns={}, memory_bytes={})
    path = tmp_path / "bench.json"
    path.write_text(format_bench_file([POINT, bare]))

    assert read_bench_points(path) == (POINT, bare)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "the JSON is incomplete"),
        ("{}", "no field perfctl_bench"),
        ('{"perfctl_bench": 99}', "version 99, but this perfctl reads 1"),
        (
            '{"perfctl_bench": 1, "machines": [], "layers": {}, "points": [{"model": "mlp"}]}',
            "missing or wrong",
        ),
    ],
)
def test_a_broken_file_is_said(tmp_path, text, said):
    path = tmp_path / "bench.json"
    path.write_text(text)

    with pytest.raises(ReportError, match=said):
        read_bench_points(path)


def test_what_is_fitted_on_has_the_points_times_in_seconds_and_the_plans_work():
    found = convert_bench_point(POINT, plan_model(POINT.model))

    assert (found.seconds, found.low, found.high) == (0.005, 0.0049, 0.0052)
    assert (found.forward, found.backward, found.optimizer) == (0.002, 0.0025, 0.0004)
    assert found.layer_seconds["fc1", "backward"] == 0.0018
    assert found.case.forward_macs_of_batch == 64 * (784 * 512 + 512 * 10)
    assert (found.case.optimizer, found.case.training, found.peak_bytes) == ("sgd", True, 20)


def test_of_several_runs_of_a_point_the_fastest_is_taken():
    fast = replace(POINT, step_ns=(4_000_000, 3_000_000, 6_000_000))
    other = replace(POINT, batch=65)

    assert keep_fastest_points([POINT, other, fast]) == [fast, other]


def test_the_recorded_points_are_whole_and_of_all_families():
    points = read_bench_points(RECORDED)

    assert {point.family for point in points} == {"vgg", "resnet", "inception", "mlp"}
    assert len({(point.model, point.batch) for point in points}) == len(points)
    for point in points:
        planned = plan_model(point.model)
        assert planned.spec == point.model
        assert point.features["flops:forward"] == 2 * point.batch * planned.forward_macs_per_sample
        assert point.features["parameters"] == planned.parameters
        named = {layer.name for layer in planned.layers} | {"(model)"}
        assert set(point.forward_ns) | set(point.backward_ns) <= named
        whole = sum(point.phase_ns.values())
        assert 0.5 * point.step_ns[0] < whole < 1.5 * point.step_ns[0]


def test_the_spread_is_between_the_quartiles_against_the_median():
    assert POINT.interquartile_over_median == (5_200_000 - 4_900_000) / 5_000_000
    assert replace(POINT, step_ns=(0, 0, 5)).interquartile_over_median == 0.0
    assert (POINT.family, replace(POINT, model="mlp").family) == ("mlp", "mlp")


def test_a_file_of_several_points_is_one_line_a_point_with_machines_and_layers_once(tmp_path):
    gpu = BenchMachine("a GPU", "gpu", None, None)
    later = replace(
        POINT,
        batch=128,
        machine=gpu,
        forward_ns={"fc1": 1_049, "act1": 1_051},
        backward_ns={},
        features={"x": 0.5},
    )
    path = tmp_path / "bench.json"
    path.write_text(format_bench_file([POINT, later, replace(POINT, model="mlp")]))

    content = json.loads(path.read_text())
    assert content["perfctl_bench"] == 1
    assert [machine["device"] for machine in content["machines"]] == ["a CPU", "a GPU"]
    assert content["layers"] == {
        "mlp:depth=2": ["flatten", "fc1", "act1"],
        "mlp": ["flatten", "fc1", "act1"],
    }
    assert [point["machine"] for point in content["points"]] == [0, 1, 0]
    first, second, _ = content["points"]
    assert first["forward_us"] == [1.0, 900.0, None]
    assert first["backward_us"] == [None, 1800.0, 20.5]
    assert first["features"] == {"flops:forward": 52_000_000, "layers": 2}
    assert '"layers":2}' in path.read_text()  # whole figures are written whole
    assert (second["forward_us"], second["backward_us"], second["features"]) == (
        [None, 1.0, 1.1],
        [],
        {"x": 0.5},
    )
    # a tenth of a microsecond
    assert read_bench_points(path)[1] == replace(later, forward_ns={"fc1": 1_000, "act1": 1_100})


@pytest.mark.parametrize(
    "broken", ['"forward_us":[1.0]', '"machine":7', '"step_ns":[1,2]', '"batch":"many"']
)
def test_a_point_that_does_not_fit_its_file_is_refused(tmp_path, broken):
    text = format_bench_file([replace(POINT, forward_ns={}, backward_ns={})])
    text = text.replace('"mlp:depth=2":[]', '"mlp:depth=2":["fc1","fc2"]')
    name = broken.partition(":")[0]
    start = text.index(name, text.index('"points"'))
    end = text.index("]" if text[start + len(name) + 1] == "[" else ",", start)
    path = tmp_path / "bench.json"
    path.write_text(text[:start] + broken.removesuffix("]") + text[end:])

    with pytest.raises(ReportError, match="a field is missing or wrong"):
        read_bench_points(path)
