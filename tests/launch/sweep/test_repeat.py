"""--repeat: every batch size so many times, in turns, and a later call goes on where this one ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.sweep import sweep
from perfctl.orchestrator.launch.sweep.request import Listener, SweepRequest
from tests.launch.small_profiler import Small

WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('a report')"


def asked(tmp_path: Path, repeat: int, program: str = WRITES, batches: tuple[int, ...] = (16, 32)) -> SweepRequest:
    request = SweepRequest(Small(program), "mnist_cnn", (), batches, "cpu", tmp_path / "runs", "perfctl small", "host")
    return replace(request, repeat=repeat)


def run(request: SweepRequest) -> tuple[list[int], list[sweep.RunResult]]:
    """(batch sizes in the order in which processes started, results)."""
    started: list[int] = []
    return started, sweep.run(request, Listener(started=lambda batch, stage: started.append(batch)))


def test_batch_sizes_take_turns_so_that_a_drift_touches_each_alike(tmp_path: Path) -> None:
    started, results = run(asked(tmp_path, 3))
    assert started == [16, 32, 16, 32, 16, 32]
    assert [(result.batch_size, result.repeat) for result in results] == [
        (16, 1), (32, 1), (16, 2), (32, 2), (16, 3), (32, 3),
    ]  # fmt: skip
    assert [result.folder.name for result in results] == ["b16", "b32", "b16.2", "b32.2", "b16.3", "b32.3"]


def test_more_repeats_add_to_those_that_are_there_and_fewer_run_nothing(tmp_path: Path) -> None:
    run(asked(tmp_path, 2))
    started, results = run(asked(tmp_path, 3))
    assert started == [16, 32]
    assert [result.skipped for result in results] == [True] * 4 + [False] * 2
    assert [result.folder.name for result in results] == ["b16", "b32", "b16.2", "b32.2", "b16.3", "b32.3"]
    assert run(asked(tmp_path, 1))[0] == []


def test_a_sweep_with_repeats_has_the_name_of_the_one_without(tmp_path: Path) -> None:
    assert asked(tmp_path, 5).name == asked(tmp_path, 1).name


def test_what_failed_is_not_repeated_and_the_same_command_tries_again(tmp_path: Path) -> None:
    switch = tmp_path / "fail"
    switch.touch()
    fails = WRITES + f"; sys.exit(3 if sys.argv[2] == '32' and pathlib.Path({str(switch)!r}).exists() else 0)"
    started, results = run(asked(tmp_path, 3, fails))
    assert started == [16, 32, 16, 16]
    assert [(r.batch_size, r.status) for r in results] == [(16, "ok"), (32, "failed"), (16, "ok"), (16, "ok")]
    switch.unlink()
    started, results = run(asked(tmp_path, 3, fails))
    assert started == [32, 32, 32]
    assert all(result.status == "ok" for result in results)
    assert sorted(path.name for path in asked(tmp_path, 3, fails).folder.glob("b*")) == [
        "b16", "b16.2", "b16.3", "b32", "b32.2", "b32.3",
    ]  # fmt: skip


def test_again_with_repeats_makes_as_many_new_ones(tmp_path: Path) -> None:
    run(asked(tmp_path, 2, batches=(16,)))
    started, results = run(replace(asked(tmp_path, 2, batches=(16,)), again=True))
    assert started == [16, 16]
    assert [result.folder.name for result in results] == ["b16.3", "b16.4"]


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_dry_run_shows_every_process(tmp_path: Path, repeat: int) -> None:
    planned = [batch for batch, _ in sweep.commands(asked(tmp_path, repeat))]
    assert planned == [16, 32] * repeat
