"""Scripts as people write them, run under perfctl as they are: nothing changes for them, and all
layers are found."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers.nsys import BUSY, WINDOW, remove_stale_nsys_lock
from perfctl.records.ranges import parse_range_name
from tests.launch.programs import run
from tests.workloads.started import start

pytestmark = pytest.mark.xdist_group("nsys")

torch = pytest.importorskip("torch")

SCRIPTS = Path(__file__).resolve().parents[2] / "data" / "scripts"
MODELS = {
    "mnist": {"": "model."},
    "gan": {"G": "netG.", "D": "netD."},
}
"""Script -> what the script calls its models, by the key under which it saves them."""
STEPS, WARMUP, BATCH = 3, 2, 4
OWN = ("-m", "perfctl.workloads", *f"--batch {BATCH} --steps {STEPS} --warmup {WARMUP}".split())
TRACE = [
    "--annotate",
    "record_function",
    "--window",
    "torch",
    "--trace",
    "trace.json",
    "--record",
    "record.json",
    "--",
]


def words(name):
    return str(SCRIPTS / f"{name}.py"), "--batch-size", str(BATCH), "--save", "model.pt"


def under_nsys(folder, name):
    """Started as a sweep starts it: no agent stays behind, and nsys that could not start has
    another try."""
    nsys = (
        "nsys profile --trace=nvtx,osrt --sample=none --cpuctxsw=none --capture-range=nvtx "
        f"--nvtx-capture={WINDOW} --capture-range-end=stop --wait=primary --output=report"
    )
    argv = (*nsys.split(), sys.executable, *OWN, "--annotate", "nvtx", "--", *words(name))
    for _ in range(3):
        outcome = run(folder, *argv, environment={"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"})
        said = outcome.stderr.read_text()
        if not outcome.exit_code or not re.search(BUSY, said.encode()):
            break
        remove_stale_nsys_lock()
    assert outcome.exit_code is not None
    export = "nsys export --type=sqlite --quiet=true --output=report.sqlite report.nsys-rep"
    start(folder, *export.split())
    return subprocess.CompletedProcess(argv, outcome.exit_code, outcome.stdout.read_text(), said)


class Runs:
    """Runs a script when a test first asks for it: alone, under perfctl with torch.profiler, or
    under nsys.

    "mnist" under perfctl and everything under nsys are started as a user would; the others are
    forked from a process that has torch.
    """

    def __init__(self, base, forks):
        self._base = base
        self._forks = forks
        self._done: dict[Path, Any] = {}

    def __call__(self, name, how):
        folder = self._base / f"{name}-{how}"
        if folder not in self._done:
            folder.mkdir()
            self._done[folder] = self._run_tool_command(folder, name, how)
        return self._done[folder], folder

    def _run_tool_command(self, folder, name, how):
        if how == "nsys":
            if tools.find_program("nsys") is None or not hasattr(torch._C, "_nvtx"):
                pytest.skip("nsys, or a torch that has NVTX, is not installed")
            return under_nsys(folder, name)
        argv = words(name) if how == "alone" else (*OWN, *TRACE, "python", *words(name))
        as_typed = name == "mnist" and how == "torch"
        return start(folder, sys.executable, *argv) if as_typed else self._forks.run(folder, *argv)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, forks):
    return Runs(tmp_path_factory.mktemp("runs"), forks)


def weights(folder):
    """Dotted path of each saved tensor, its model's name in front."""
    name = folder.name.rpartition("-")[0]
    saved = torch.load(folder / "model.pt", weights_only=True)
    parts = {"": saved} if "" in MODELS[name] else saved
    return {
        MODELS[name][key] + path: tensor
        for key, part in parts.items()
        for path, tensor in part.items()
    }


def layers(folder):
    """Modules with parameters."""
    return {
        path.rpartition(".")[0]
        for path, tensor in weights(folder).items()
        if tensor.is_floating_point() and "running_" not in path
    }


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in MODELS for how in ("torch", "nsys")],
)
def test_results_are_the_same_to_the_bit(runs, name, how):
    alone, folder = runs(name, "alone")
    done, other = runs(name, how)
    assert (alone.returncode, done.returncode) == (0, 0), done.stderr
    first, second = weights(folder), weights(other)
    assert list(first) == list(second)
    assert all(torch.equal(first[path], second[path]) for path in first)
    own = alone.stdout.splitlines()
    if how == "torch":
        assert done.stdout.splitlines() == own
    else:  # nsys prints, too, sometimes in front of a line
        at = [done.stdout.find(line) for line in own]
        assert min(at) >= 0 and at == sorted(at), done.stdout


@pytest.mark.parametrize("name", MODELS)
def test_the_record_says_what_ran(runs, name):
    done, folder = runs(name, "torch")
    assert "perfctl" not in done.stderr
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["mode"], record["precision"]) == ("ok", "train", "fp32")
    assert (record["workload"], record["batch_size"]) == (f"{name}.py", BATCH)
    assert record["variant"] == "--batch-size {batch} --save model.pt"
    assert [row["number"] for row in record["steps"] if row["phase"] == "step"] == list(
        range(STEPS)
    )
    seen = {row["phase"] for row in record["steps"]}
    assert seen == {"step", "forward", "backward", "optimizer", "zero_grad"} | (
        {"data"} if name == "mnist" else set()
    )
    directions = {op["direction"] for op in record["ops"]}
    assert directions == {"forward", "backward", "optimizer"}
    assert layers(folder) <= set(record["parameters"]) | {"model"}
    own = [
        t.numel()
        for p, t in weights(folder).items()
        if t.is_floating_point() and "running" not in p
    ]
    assert sum(record["parameters"].values()) == sum(own)
    assert not [gap for gap in record["gaps"] if not gap["quantity"].startswith("memory:")]


@pytest.mark.parametrize("name", MODELS)
def test_nsys_sees_forward_and_backward_of_every_layer(runs, name):
    _, folder = runs(name, "nsys")
    join = "NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id"
    query = f"SELECT coalesce(text, value), end FROM {join} WHERE eventType = 59 ORDER BY start"
    with closing(sqlite3.connect(folder / "report.sqlite")) as connection:
        rows = connection.execute(query).fetchall()
    assert all(end is not None for _, end in rows)
    names = [parse_range_name(text) for text, _ in rows]
    forward = {found.layer for found in names if found.direction == "forward"}
    backward = {
        found.layer
        for found in names
        if found.direction in ("backward", "grad_input", "grad_weight")
    }
    assert layers(folder) <= forward & backward
    assert [found.step for found in names if found.step is not None] == list(range(STEPS))
    assert [text for text, _ in rows].count(WINDOW) == 1
    assert rows[0][0] == WINDOW


def test_a_gan_ends_its_step_with_the_generator(runs):
    _, folder = runs("gan", "torch")
    record = json.loads((folder / "record.json").read_text())
    assert record["environment"]["step_ends_with"] == "the last of 2 optimizers' steps"
    updates = [op for op in record["ops"] if op["direction"] == "optimizer"]
    assert {op["layer"].split(".")[0] for op in updates} == {"netG", "netD"}
