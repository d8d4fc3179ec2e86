"""Completion is asked of real shells, as somebody who presses Tab asks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
NAME_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Environment in which the shell is named: these tests do not run in one."""
PRESS = """
words=($LINE); COMP_WORDS=("${words[@]}"); COMP_CWORD=$((${#words[@]} - 1))
_perfctl_completion perfctl; printf '%s\\n' "${COMPREPLY[@]}"
"""


def _run(home, *words, **environment):
    surroundings = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(home),
        **environment,
    }
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=surroundings, cwd=home
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which completion was installed for bash, twice."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".bashrc").write_text("alias ll='ls -l'\n")
    for _ in range(2):
        done = _run(
            folder, sys.executable, "-m", "perfctl", "--install-completion", "bash", **NAME_SHELL
        )
        assert done.returncode == 0, done.stderr
        assert str(folder / ".bash_completions" / "perfctl.sh") in done.stdout
    return folder


def _pressed(home, line):
    done = _run(
        home, "bash", "--noprofile", "--norc", "-c", f". {home}/.bashrc\n{PRESS}", LINE=line
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("perfctl rep", ["replay", "report"]),
        ("perfctl report --o", ["--out", "--open"]),
        ("perfctl torch --batches 16 --sampl", ["--sample"]),
        ("perfctl slurm can", ["cancel"]),
        ("perfctl bench ex", ["export"]),
        ("perfctl --show-c", ["--show-completion"]),
    ],
)
def test_bash_offers_the_commands_and_options_that_fit(home, line, offered):
    assert _pressed(home, line) == offered


def test_installing_twice_adds_one_line_and_leaves_the_others(home):
    lines = (home / ".bashrc").read_text().split("\n")
    assert [line for line in lines if line] == [
        "alias ll='ls -l'",
        f"source '{home}/.bash_completions/perfctl.sh'",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_in_the_language_of_its_shell(tmp_path, shell):
    words = (sys.executable, "-m", "perfctl", "--show-completion", shell)
    done = _run(tmp_path, *words, **NAME_SHELL)
    assert done.returncode == 0, done.stderr
    assert f"_PERFCTL_COMPLETE=complete_{shell}" in done.stdout
    assert "-m perfctl" not in done.stdout
    if found := shutil.which(shell):
        checked = subprocess.run(
            [found, "-n"], input=done.stdout, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_home_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / ".bash_completions").write_text("a file where the folder goes")
    words = (sys.executable, "-m", "perfctl", "--install-completion", "bash")
    done = _run(tmp_path, *words, **NAME_SHELL)
    assert done.returncode == 1
    assert done.stderr.startswith("perfctl: ")
    assert done.stderr.count("\n") == 1
