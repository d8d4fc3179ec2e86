"""Sweeps of a program that nobody edited, from the command line to the store."""

import gzip
import json
import shlex
import shutil
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.counts.kernels.replays import describe_replay_cost
from perfctl.orchestrator.errors import RunFailed
from perfctl.orchestrator.ingest.sweep import estimate_ncu_replay_cost
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.ncu import Ncu
from perfctl.orchestrator.launch.profilers.replay import Replay
from perfctl.orchestrator.launch.sweep.options import SweepOptions
from perfctl.orchestrator.launch.sweep.plan import plan_sweep
from tests.cli.conftest import sql

pytestmark = pytest.mark.xdist_group("nsys")


STEPS, WARMUP = 2, 1
SCRIPT = """
import argparse, os, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=int(os.environ.get("SIZE", "0")))
parser.add_argument("--note", default="")
given = parser.parse_args()
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc = nn.Linear(4 * 6 * 6, 10)
    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    x, y = torch.randn(given.batch_size, 1, 8, 8), torch.randint(10, (given.batch_size,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print("trained with", given.batch_size, given.note)
"""
LAYERS = {"model.conv", "model.fc"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A scratch folder with a space in its path, and the script in it."""
    made = tmp_path / "my models"
    made.mkdir()
    (made / "train.py").write_text(SCRIPT)
    return made


@pytest.fixture
def sweep(perfctl, folder, monkeypatch):
    """Calls a sweep of two batch sizes on the CPU, in the folder of the script."""
    monkeypatch.chdir(folder)
    options = f"--batches 2,4 --steps {STEPS} --warmup {WARMUP} --device cpu"

    def call(typed):
        profiler, _, others = typed.partition(" ")
        return perfctl(f"{profiler} {options} {others}")

    return call


def check_store(profiler):
    runs = sql(
        "SELECT profiler, workload, batch_size, mode, status, variant FROM run ORDER BY batch_size"
    )
    variant = "--batch-size {batch} --note a b"
    assert runs == [(profiler, "train.py", batch, "train", "ok", variant) for batch in (2, 4)]
    for batch in (2, 4):
        where = f"run_id = (SELECT id FROM run WHERE batch_size = {batch})"
        steps = sql(f"SELECT DISTINCT number FROM step WHERE phase = 'step' AND {where}")
        assert len(steps) == STEPS
        ranges = sql(f"SELECT layer, direction FROM range WHERE layer IS NOT NULL AND {where}")
        backward = ("backward", "grad_weight", "grad_input")
        assert {layer for layer, direction in ranges if direction == "forward"} >= LAYERS
        assert {layer for layer, direction in ranges if direction in backward} >= LAYERS, (
            "the first layer's backward is there, too"
        )
        query = (
            "SELECT layer, sum(macs) FROM layer_call WHERE direction = 'forward' AND {} GROUP BY 1"
        )
        macs = dict(sql(query.format(where)))
        outputs = {"model.conv": 4 * 6 * 6 * 9, "model.fc": 4 * 6 * 6 * 10}
        assert {layer: macs[layer] for layer in LAYERS} == {
            layer: batch * count for layer, count in outputs.items()
        }


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_an_unedited_script_is_swept_with_its_layers_directions_and_steps_in_the_store(
    sweep, folder, profiler, request
):
    torch = pytest.importorskip("torch")
    if profiler == "torch":  # test_another_interpreter starts one under it as a user does
        request.getfixturevalue("quick_sweeps")
    if profiler == "nsys" and (
        tools.find_program("nsys") is None or not hasattr(torch._C, "_nvtx")
    ):
        pytest.skip("needs nsys and a build of torch with NVTX")
    typed = f"{profiler} -- {sys.executable} train.py --batch-size {{batch}} --note 'a b'"
    said = sweep(typed).ok()
    check_store(profiler)
    (home,) = (folder / "perfctl-runs").iterdir()
    assert home.name.startswith(f"{profiler}-train.py-")
    is_stopped = profiler == "nsys"  # torch runs a script to its end
    trained = "trained with 4 a b" in (home / "b4" / "stdout.log").read_text().splitlines()
    notes = said.err.count("train.py stopped after")
    assert (trained, notes) == (not is_stopped, int(is_stopped)), "noted once for both batch sizes"
    again = sweep(typed)
    assert (again.code, again.err.count("already complete, skipped")) == (0, 2)


@pytest.mark.usefixtures("quick_sweeps")
def test_the_size_can_go_through_a_variable_and_a_script_that_raises_at_one_keeps_the_other(
    sweep, folder
):
    pytest.importorskip("torch")
    text = SCRIPT.replace("for _ in", "if given.batch_size == 4: raise KeyError('four')\nfor _ in")
    (folder / "train.py").write_text(text)
    said = sweep(f"torch --batch-env SIZE -- {sys.executable} train.py")
    assert said.code == 4
    assert sql("SELECT batch_size, status, exit_code FROM run ORDER BY 1") == [
        (2, "ok", 0),
        (4, "failed", 1),
    ]
    ((reason,),) = sql("SELECT reason FROM run WHERE batch_size = 4")
    assert "KeyError" in reason and "four" in reason
    (log,) = (folder / "perfctl-runs").glob("*/b2/stdout.log")
    assert "trained with 2" in log.read_text()


def test_a_dry_run_prints_each_size_ready_to_paste_and_starts_nothing(sweep, folder):
    marked = "--dry-run --step-marker optimizer:SGD"
    said = sweep(f"torch {marked} -- {sys.executable} train.py b={{batch}} {{x}}").ok()
    commands = [shlex.split(line) for line in said.out.splitlines()]
    assert [command[command.index("--") + 1 :] for command in commands] == [
        ["train.py", f"b={batch}", "{x}"] for batch in (2, 4)
    ]
    assert all(
        command[command.index("--step-marker") + 1] == "optimizer:SGD" for command in commands
    )
    assert [path.name for path in folder.iterdir()] == ["train.py"]


def test_another_interpreter_gets_what_runs_inside_as_one_file(perfctl, folder, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(folder)
    other = folder / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    program = f"-- '{other}' train.py --batch-size {{batch}}"
    said = perfctl(f"dlprof -b 2 --device cuda --dry-run {program}")
    command = shlex.split(said.out)
    at = command.index(str(other))
    assert (Path(command[at + 1]).name, *command[at + 2 : at + 4]) == (
        "annotator.pyz",
        "--batch",
        "2",
    )
    assert perfctl(f"torch -b 2 --device cpu --steps 2 --warmup 1 {program}").code == 0
    (made,) = (folder / "perfctl-runs").glob("torch-*/annotator.pyz")
    assert {
        op["layer"] for op in json.loads((made.parent / "b2" / "workload.json").read_text())["ops"]
    } >= LAYERS


def test_options_of_a_built_in_workload_may_still_follow_two_dashes(perfctl):
    said = perfctl("torch -w mnist_cnn -b 3 --dry-run -- --conv2 32,128,5,1").ok()
    assert "--conv2 32,128,5,1" in said.out


def test_what_ncu_was_told_to_leave_out_is_a_gap_and_no_zero(perfctl, tmp_path):
    """Synthetic counters of a sweep that was narrowed to conv2."""
    home = tmp_path / "b16"
    home.mkdir()
    table = home / "report.csv"
    shutil.copy(Path(__file__).resolve().parent.parent / "data" / "ncu-nvtx" / "layers.csv", table)
    record = {
        "perfctl_run": 1,
        "profiler": "ncu",
        "origin": "measured",
        "workload": "mnist_cnn",
        "batch_size": 16,
        "status": "ok",
        "reason": None,
        "exit_code": 0,
        "started_at": None,
        "duration_ns": None,
        "artifact": table.name,
        "artifact_bytes": table.stat().st_size,
        "commands": [],
        "profiler_options": {"layers": ["conv2"]},
    }
    (home / "run.json").write_text(json.dumps(record))
    assert perfctl("ingest", home).code == 0
    assert sql("SELECT value FROM environment WHERE key = 'ncu:layers'") == [("conv2",)]
    ((state, reason),) = sql("SELECT state, reason FROM gap WHERE quantity = 'kernel'")
    assert (state, "only in the layers of --layer: conv2" in reason) == ("not_collected", True)


def recorded_step(folder):
    """Synthetic: one step of four kernels under torch.profiler, as a recorded sweep."""
    batch = folder / "recorded" / "b16"
    batch.mkdir(parents=True)
    trace = Path(__file__).resolve().parent.parent / "data" / "kineto-synthetic" / "trace.json"
    with gzip.open(batch / "report.pt.trace.json.gz", "wb") as file:
        file.write(trace.read_bytes())
    said = {
        "profiler": "torch",
        "workload": "mnist_cnn",
        "device": "cuda",
        "batch_size": 16,
        "status": "ok",
    }
    (batch / "run.json").write_text(json.dumps(said))
    return Replay(folder / "recorded")


def test_the_cost_of_ncu_is_told_from_one_plain_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: True)
    asked = SweepOptions(batches=(16, 32), device="cuda", steps=5)
    step = plan_sweep(recorded_step(tmp_path), replace(asked, steps=1))

    def estimate(**options):
        return estimate_ncu_replay_cost(plan_sweep(Ncu(**options), asked), step)

    whole = estimate(metrics="fadd")
    assert (whole.batch_size, whole.layers, whole.cost.launches, whole.cost.replay_count) == (
        16,
        (),
        4,
        4 * 5,
    )
    part = estimate(metrics="fadd", layers=("conv1",))
    said = describe_replay_cost(part.cost, part.batch_size, part.layers)[0]
    assert " launches per step in conv1 (of 4) x 5 steps" in said
    with pytest.raises(RunFailed, match="`layer`: the step has no launch in nope"):
        estimate(layers=("nope",))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recorded"], (
        "nothing is left behind"
    )


def test_without_a_gpu_the_cost_cannot_be_told_and_one_line_says_so(perfctl, monkeypatch):
    monkeypatch.setattr(tools, "has_gpu_driver", lambda: False)
    for device in ("cpu", "cuda"):
        said = perfctl(f"ncu --estimate-cost -b 16 --device {device}")
        assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
        assert "NVIDIA GPU" in said.err
    assert list(Path().iterdir()) == []


def test_each_further_rank_is_a_run_of_its_own_that_is_never_read_with_rank_0(
    perfctl, recorded, tmp_path
):
    """A second rank is made from the first one's files."""
    home = tmp_path / "two ranks" / "b16"
    shutil.copytree(recorded / "torch" / "b16", home)
    shutil.copy(home / "workload.json", home / "workload.rank1.json")
    with (
        gzip.open(home / "report.pt.trace.json.gz") as file,
        gzip.open(home / "report.rank1.pt.trace.json.gz", "w") as out,
    ):
        out.write(file.read() + b"\n")
    assert perfctl("ingest", home).code == 0
    runs = sql("SELECT batch_size, status, variant FROM run ORDER BY id")
    assert runs == [(16, "ok", "rank 0 of 2"), (16, "ok", "rank 1 of 2")]
    facts = sql(
        "SELECT key, value FROM environment WHERE key IN ('rank', 'world_size') ORDER BY run_id, "
        "key"
    )
    assert facts == [("rank", "0"), ("world_size", "2"), ("rank", "1"), ("world_size", "2")]
    (first,), (second,) = sql("SELECT count(*) FROM range GROUP BY run_id")
    assert first == second
    perfctl("ingest", home)
    assert len(sql("SELECT id FROM run")) == 2, "the same folder twice gives no further runs"


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_rank_that_a_killed_ingest_left_out_comes_with_the_next(
    perfctl, recorded, tmp_path, jobs
):
    home = tmp_path / "two ranks" / "b16"
    shutil.copytree(recorded / "torch" / "b16", home)
    shutil.copy(home / "workload.json", home / "workload.rank1.json")
    words = f"ingest '{home}' {recorded / 'nsys' / 'b16'} --jobs {jobs}"
    assert perfctl(words).code == 0
    query = "SELECT sweep_id, profiler, variant, rank FROM run ORDER BY profiler, rank"
    before = sql(query)
    with closing(sqlite3.connect("perfctl.db")) as store:
        store.execute("PRAGMA foreign_keys = ON")
        store.execute("DELETE FROM run WHERE rank = 1")
        store.commit()
    for _ in range(2):
        assert perfctl(words).code == 0
        assert sql(query) == before, "once, and in the sweep of rank 0"


def test_a_broken_record_of_one_rank_does_not_lose_the_others(perfctl, recorded, tmp_path):
    home = tmp_path / "b16"
    shutil.copytree(recorded / "nsys" / "b16", home)
    (home / "workload.rank1.json").write_text('{"perfctl_workload_record": 1')
    shutil.copy(home / "workload.json", home / "workload.rank2.json")
    assert perfctl("ingest", home).code == 0
    runs = sql("SELECT status, variant FROM run ORDER BY id")
    assert runs == [("partial", "rank 0 of 3"), ("failed", "rank 1 of 3"), ("ok", "rank 2 of 3")]
    ((reason,),) = sql("SELECT reason FROM run WHERE status = 'partial'")
    assert "sums over the ranks" in reason, "one report of several ranks is no report of one"
    gaps = sql("SELECT quantity, state FROM gap WHERE reason LIKE '%ranks%' ORDER BY run_id")
    assert gaps == [("rank", "ambiguous"), ("kernel", "not_available")]
