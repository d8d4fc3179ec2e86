"""perfctl compare --rev: the user's program at two revisions, run under the real PyTorch profiler
on the CPU."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.launch.programs import wait_until
from tests.launch.sweep.test_revision import git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
SWEEP = "-- torch --device cpu --batches 2 --steps 2 --warmup 1 -- python train.py {batch}"
PROGRAM = """
import sys
import torch
from layers import WIDTH

model = torch.nn.Linear(8, WIDTH)
optimizer = torch.optim.SGD(model.parameters())
for step in range(4):
    model(torch.ones(int(sys.argv[1]), 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A repository whose program imports a module beside it: 16 wide in its commit, 32 in the
    files here."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "layers.py").write_text("WIDTH = 16\n")
    (folder / ".gitignore").write_text("perfctl-runs/\n__pycache__/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    (folder / "layers.py").write_text("WIDTH = 32\n")
    monkeypatch.chdir(folder)
    return folder


def test_each_side_runs_its_own_files_and_git_is_left_as_it_was(perfctl, code):
    said = perfctl(f"compare --rev HEAD --repeat 1 --json {SWEEP}")
    commit = git(code, "rev-parse", "HEAD")[:12]
    (pair,) = said.json["pairs"]
    (differs,) = [one for one in pair["differences"] if one["fact"] == "commit"]
    assert (differs["a"], differs["b"]) == (commit, f"{commit} + changes")
    kept = code / "perfctl-runs" / f"compare-{commit}-1"
    wide = {
        name: perfctl(
            "query",
            "--store",
            kept / f"{name}.db",
            "--json",
            "select parameters from layer_call where layer = 'model' and direction = 'forward'",
        ).json
        for name in (commit, "here")
    }
    assert [one[0]["parameters"] for one in wide.values()] == [8 * 16 + 16, 8 * 32 + 32]
    assert git(code, "worktree", "list").count("\n") == 0
    assert git(code, "status", "--short") == "M layers.py"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (f"--rev no-such {SWEEP}", "the repository has no such revision"),
        (f"--rev --all {SWEEP}", "the repository has no such revision"),
        ("--rev HEAD", "--rev needs a sweep to run on both revisions, and got none"),
        ("--rev HEAD -- rm -rf x", "'rm' is not a sweep"),
        ("--rev HEAD -- torch --out x -- python train.py", "--rev chooses --out itself"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(perfctl, code, typed, said):
    perfctl(f"compare {typed}").ends(2, said)
    assert not (code / "perfctl-runs").exists()


def test_outside_of_a_repository_there_is_no_revision(perfctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    perfctl(f"compare --rev HEAD {SWEEP}").ends(2, "is not in a git repository")


def test_a_side_whose_program_fails_is_named_with_its_last_words(perfctl, code):
    (code / "layers.py").write_text("raise SystemExit('no layers today')\n")
    git(code, "commit", "-qam", "broken")
    (code / "layers.py").write_text("WIDTH = 32\n")
    answer = perfctl(f"compare --rev HEAD --repeat 1 {SWEEP}")
    assert answer.code not in (0, 3)
    assert f"the sweep of {git(code, 'rev-parse', 'HEAD')[:12]} ended with exit code" in answer.err
    assert "It has committed files only" in answer.err
    assert git(code, "worktree", "list").count("\n") == 0


def test_a_comparison_that_is_told_to_stop_leaves_no_process_and_no_worktree(code, tmp_path):
    started = code / "started"
    (code / "train.py").write_text(
        f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(600)\n"
    )
    git(code, "commit", "-qam", "sleeps")
    places = tmp_path / "places"
    places.mkdir()
    words = [sys.executable, "-m", "perfctl", "compare", "--rev", "HEAD", *SWEEP.split()]
    running = subprocess.Popen(
        words, cwd=code, env=os.environ | {"TMPDIR": str(places)}, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: started.exists() or running.poll() is not None)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said
    assert git(code, "worktree", "list").count("\n") == 0
    assert not list(places.glob("perfctl-revision-*"))
