"""perfctl bench, as a user calls it: tiny networks, really measured."""

from pathlib import Path

import pytest

from perfctl.orchestrator.commands.bench import parse_shard_or_slurm_task
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.options import parse_budget_seconds
from perfctl.parsers.own.bench import read_bench_points
from tests.cli.conftest import sql

pytest.importorskip("torch")

TINY = """
design = "grid"
batches = [2, 3]
threads = 1
steps = 5
warmup = 1
layer_steps = 2
device = "cpu"
[families.mlp]
width = [8]
image = [4]
[families.vgg]
width = [4]
image = [16, 32]
batches = [2]
"""


@pytest.mark.usefixtures("quick_sweeps")
def test_a_bench_is_measured_stored_shown_drawn_exported_and_never_measured_twice(perfctl):
    Path("grid.toml").write_text(TINY)
    perfctl("bench grid.toml --budget 0").ends(
        4, "3 points remain, from mlp:width=8,image=4, batch 2 on, because the budget is spent"
    )
    assert not Path("perfctl-runs").exists()

    part = perfctl("bench grid.toml --shard 1/2").ok()
    assert "2 of 2 points measured" in part.out
    assert sql("SELECT count(*) FROM run") == [(0,)]

    said = perfctl("bench grid.toml").ok()
    assert "3 of 3 points measured, 1 of them now" in said.out
    assert "image=16 is too small: stage5.pool" in said.err
    again = perfctl("bench grid.toml --json")
    assert [run["skipped"] for run in again.json["runs"]] == [True] * 3

    assert sql("SELECT variant, batch_size FROM run ORDER BY id") == [
        ("model=mlp:width=8,image=4", 2),
        ("model=mlp:width=8,image=4", 3),
        ("model=vgg:width=4,image=32", 2),
    ]
    macs = 16 * 8 + 8 * 8 + 8 * 10
    paper = "SELECT value, unit FROM feature WHERE name = 'flops:forward' ORDER BY run_id"
    assert sql(paper)[:2] == [(2 * 2 * macs, "FLOP"), (2 * 3 * macs, "FLOP")]
    timed = sql(
        "SELECT DISTINCT layer, kind FROM layer_time WHERE run_id = 1 AND direction = 'forward'"
    )
    assert {
        ("fc1", "Linear"),
        ("act1", "ReLU"),
        ("fc3", "Linear"),
        ("(model)", "Planned"),
    } <= set(timed)
    assert sql(
        "SELECT count(*) FROM layer_time WHERE low_ns > duration_ns OR duration_ns > high_ns"
    ) == [(0,)]

    told = perfctl("bench show --json").json
    assert next((one["model"], one["batch"], one["steps"]) for one in told["points"]) == (
        "mlp:width=8,image=4",
        2,
        5,
    )
    assert "correlation with the time of a step" in perfctl("bench show").out
    assert perfctl("bench show --family resnet").code == 2
    perfctl("plot bench-flops-forward --out time.svg").ok()
    assert "<svg" in Path("time.svg").read_text()
    written = perfctl("bench export --out bench.json")
    assert "3 points of 2 networks" in written.out
    assert [point.batch for point in read_bench_points(Path("bench.json"))] == [2, 3, 2]
    from_file = perfctl("bench show bench.json --json").json
    assert [one["step_ns"] for one in from_file["points"]] == [
        one["step_ns"] for one in told["points"]
    ]
    assert from_file["correlations"] == told["correlations"]
    steady = perfctl("bench grid.toml --steady 0 --budget 0")
    assert "3 points remain" in steady.err  # each varied a little, and would be measured again


def test_the_design_is_shown_without_measuring_anything(perfctl):
    Path("grid.toml").write_text(TINY)
    said = perfctl("bench grid.toml --dry-run").ok()

    assert any(line.startswith("vgg:width=4,image=32  ") for line in said.out.splitlines())
    assert "skipped: vgg:width=4,image=16: image=16 is too small" in said.out
    assert list(Path().iterdir()) == [Path("grid.toml")]


@pytest.mark.parametrize(
    ("text", "found"), [("30m", 1800.0), ("90s", 90.0), ("1.5h", 5400.0), ("0", 0.0)]
)
def test_a_budget_is_read_in_its_unit(text, found):
    assert parse_budget_seconds(text) == found


def test_a_budget_that_is_no_time_is_said():
    with pytest.raises(UsageError, match="invalid value 'soon' for `budget`"):
        parse_budget_seconds("soon")


def test_the_part_is_as_said_or_as_slurms_array_says():
    array = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}

    assert parse_shard_or_slurm_task("2/8", {}) == (2, 8)
    assert parse_shard_or_slurm_task(None, array) == (3, 4)
    assert parse_shard_or_slurm_task("1/2", array) == (1, 2)
    assert parse_shard_or_slurm_task(None, {}) is None
    with pytest.raises(UsageError, match="`shard`: expected I/N, got '9/8'"):
        parse_shard_or_slurm_task("9/8", {})
    with pytest.raises(UsageError, match="gaps"):
        parse_shard_or_slurm_task(None, {**array, "SLURM_ARRAY_TASK_ID": "99"})
