from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Perfctl = Callable[..., Any]
"""The fixture ``perfctl``: call a command, get its exit code and what it said."""


@pytest.mark.parametrize(
    "word", ["--batch", "--batch=7", "--record", "--annotate", "--window", "--trace"]
)
def test_options_that_perfctl_sets_itself_are_not_passed_on(perfctl: Perfctl, word: str) -> None:
    said = perfctl("torch", "--batches", "4", word, "7")
    assert said.code == 2
    assert word.partition("=")[0] in said.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batches", "x"], "invalid value 'x' for --batches"),
        (["--batches", "16,16"], "repeats a size"),
        (["--batches", "0"], "at least 1"),
        (["--workload", "nope"], "known: mnist_cnn"),
        (["--mode", "bogus"], "invalid choice"),
        (["--conv2", "33,64,3,1"], "must begin with 32"),
        (["--bathces", "16"], "--bathces"),
        (["--device", "tpu"], "Choose cpu, cuda or auto"),
        (["--timeout", "-1"], "--timeout"),
        (["mnist_cnn"], "Use --workload mnist_cnn"),
        (["mnist_cnn:conv2=32,128,5,1"], "Use --workload mnist_cnn:conv2=32,128,5,1"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_one_line_before_anything_runs(
    perfctl: Perfctl, words: list[str], said: str
) -> None:
    answer = perfctl("torch", *words)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert list(Path().iterdir()) == []


def test_a_dry_run_prints_one_command_a_batch_size_and_starts_nothing(perfctl: Perfctl) -> None:
    said = perfctl(
        "torch", "--batches", "16,32", "--device", "cpu", "--conv2", "32,128,5,1", "--dry-run"
    )
    assert said.code == 0
    commands = [shlex.split(line) for line in said.out.splitlines()]
    assert [command[command.index("--batch") + 1] for command in commands] == ["16", "32"]
    assert all(command[command.index("--conv2") + 1] == "32,128,5,1" for command in commands)
    assert list(Path().iterdir()) == []


def test_a_dry_run_ends_as_the_run_would_where_there_is_no_folder_for_the_store(
    perfctl: Perfctl,
) -> None:
    words = ("torch", "--batches", "16", "--device", "cpu", "--out", "before/runs")
    planned, ran = perfctl(*words, "--dry-run"), perfctl(*words)
    assert "folder before not found" in planned.err
    assert (planned.code, planned.out, planned.err) == (ran.code, "", ran.err)
    assert perfctl(*words, "--store", "here.db", "--dry-run").code == 0
    assert list(Path().iterdir()) == []


def test_an_out_folder_that_is_a_file_is_one_line(perfctl: Perfctl, recorded: Path) -> None:
    Path("taken").touch()
    said = perfctl("replay", recorded / "torch", "--out", "taken")
    assert said.code == 1
    assert "taken" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("columns", ["abc", "0", ""])
def test_a_strange_number_of_columns_is_ignored(
    perfctl: Perfctl, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    said = perfctl("doctor")
    assert said.code == 0
    assert "perfctl torch" in said.out
