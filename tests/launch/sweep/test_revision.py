"""The commit of the user's code, asked of a real git."""

import os
import shutil
import subprocess

import pytest

from perfctl.orchestrator.launch.sweep.request import read_git_revision

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
MOMENT = "2026-01-02T03:04:05+00:00"


def git(folder, *words):
    who = {
        f"GIT_{one}_{what}": "a@b.example"
        for one in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment = os.environ | who | {"GIT_COMMITTER_DATE": MOMENT, "GIT_CONFIG_GLOBAL": os.devnull}
    return subprocess.run(
        ["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def code(tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_commit_is_named_with_its_time_and_whether_the_script_is_the_committed_one(code):
    facts = {"commit": git(code, "rev-parse", "HEAD"), "commit_time": MOMENT}
    (code / "untracked.py").write_text("print(3)\n")
    for script, changes in (("train.py", "no"), ("untracked.py", "yes")):
        assert read_git_revision(code, code / script) == facts | {"uncommitted_changes": changes}
    (code / "train.py").write_text("print(2)\n")
    assert read_git_revision(code, code / "train.py") == facts | {"uncommitted_changes": "yes"}


def test_a_folder_without_repository_or_commit_has_no_commit(tmp_path):
    assert read_git_revision(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert read_git_revision(tmp_path) == {}


def test_no_program_of_the_repository_is_started(code):
    trap = code / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {code}/sprung\n")
    trap.chmod(0o755)
    git(code, "config", "core.fsmonitor", str(trap))
    assert read_git_revision(code)["uncommitted_changes"] == "no"
    assert not (code / "sprung").exists()
