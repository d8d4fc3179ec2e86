"""A time window of a program that does not end: each process that calls a model in it records it, and runs on."""

import gzip
import json

import pytest

from perfctl.workloads.spec import WATCH_VARIABLE

pytest.importorskip("torch")

BEGIN = """
import os, threading, time
from pathlib import Path
from perfctl.workloads.script.run import start_watching_current_process
os.environ["PERFCTL_START"] = str(time.monotonic())
start_watching_current_process()
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 2))
sgd = torch.optim.SGD(model.parameters(), lr=0.1)
def call():
    with torch.no_grad(): model(torch.ones(3, 4))
def train():
    model(torch.ones(3, 4)).sum().backward(); sgd.step(); sgd.zero_grad()
def is_written(name):
    return Path(name).exists() and '"status": "ok"' in Path(name).read_text()
def repeat(step, *names):
    until = time.monotonic() + 120
    while not all(map(is_written, names)) and time.monotonic() < until:
        step(); time.sleep(0.01)
"""


def run(forks, monkeypatch, folder, text, after=0):
    """Run a program with a window of 1 s."""
    options = (
        *("--record", str(folder / "workload.json"), "--trace", str(folder / "t.json.gz")),
        *("--annotate", "record_function", "--window", "torch", "--steps", "1"),
        *("--after", str(after), "--for", "1", "--", "-m", "server"),
    )
    monkeypatch.setenv(WATCH_VARIABLE, json.dumps(options))
    (folder / "server.py").write_text(BEGIN + text)
    return forks.run(folder, "server.py")


def ranges(trace):
    with gzip.open(trace) as file:
        events = json.load(file)["traceEvents"]
    return [row["name"] for row in events if row.get("cat") == "user_annotation"]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("sgd = None; repeat(call, 'workload.json')", "infer"),
        ("repeat(train, 'workload.json')", "train"),
        (
            "sgd = None\ndef aside():\n    thread = threading.Thread(target=call); thread.start(); "
            "thread.join()\nrepeat(aside, 'workload.json')",
            "infer",
        ),
        ("sgd = None; call(); call(); repeat(lambda: None, 'workload.json')", "infer"),
    ],
    ids=["calls", "a training loop", "a thread for each request", "idle after two requests"],
)
def test_the_window_closes_in_time_and_the_program_runs_on(
    text, mode, forks, monkeypatch, tmp_path
):
    ended = run(forks, monkeypatch, tmp_path, f"{text}\ncall(); print('still here')")
    assert (ended.returncode, ended.stdout) == (0, "still here\n"), ended.stderr
    record = json.loads((tmp_path / "workload.json").read_text())
    steps = [row for row in record["steps"] if row["phase"] == "step"]
    assert (record["status"], record["mode"]) == ("ok", mode)
    assert record["duration_ns"] < 60e9
    forward = ranges(tmp_path / "t.json.gz").count("model.0:forward")
    # the second call shows that the model's call ends a step: a first step has both
    assert forward - (mode == "infer") == len(steps) >= 1


def test_each_process_has_files_of_its_own_also_a_forked_one(forks, monkeypatch, tmp_path):
    names = "'workload.json', 'workload.rank1.json'"
    text = (
        f"sgd = None; child = os.fork(); repeat(call, {names})\n"
        "if child == 0: os._exit(0)\n"
        "os.waitpid(child, 0)"
    )
    assert run(forks, monkeypatch, tmp_path, text).returncode == 0
    records = [json.loads(path.read_text()) for path in tmp_path.glob("workload*.json")]
    assert len({record["options"]["process"] for record in records}) == 2
    for trace in ("t.json.gz", "t.rank1.json.gz"):
        assert "model.0:forward" in ranges(tmp_path / trace)


@pytest.mark.parametrize(
    ("text", "after"),
    [("[call() for _ in range(9)]", 3600), ("time.sleep(1.1); call()", 0)],
    ids=["before it", "after it"],
)
def test_calls_outside_of_the_window_leave_nothing(text, after, forks, monkeypatch, tmp_path):
    ended = run(forks, monkeypatch, tmp_path, text, after)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list(tmp_path.glob("*.json*")) == []


def test_a_program_that_ends_in_the_window_keeps_its_exit_code_and_trace(
    forks, monkeypatch, tmp_path
):
    assert run(forks, monkeypatch, tmp_path, "train(); raise SystemExit(3)").returncode == 3
    assert json.loads((tmp_path / "workload.json").read_text())["status"] == "ok"
    assert "model.0:forward" in ranges(tmp_path / "t.json.gz")
