"""perfctl.sweep and perfctl.replay as Python users call them: records in, a record out, errors that
name fields."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.actions.sweep.request import sweep_request
from perfctl.orchestrator.actions.sweep.sweep import SweepListener, planned
from perfctl.orchestrator.cli import commands
from perfctl.orchestrator.cli.measure import profilers
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.launch.profilers.nsys import Nsys
from perfctl.orchestrator.launch.sweep.request import SweepRequest


def test_a_replay_stores_every_recorded_batch_size_and_says_how_each_went(
    recorded: Path, tmp_path: Path
) -> None:
    sizes = sorted(int(folder.name[1:]) for folder in recorded.glob("b*"))
    heard: list[Any] = []

    @contextmanager
    def listening(request: SweepRequest) -> Iterator[SweepListener]:
        heard.append(request.options.batches)
        yield SweepListener(finished=lambda result: heard.append(result.batch_size))

    done = perfctl.replay(
        recorded, perfctl.SweepOptions(out=tmp_path / "perfctl-runs"), listening=listening
    )
    assert [(run.batch_size, run.status) for run in done.runs] == [(size, "ok") for size in sizes]
    assert heard == [tuple(sizes), *sizes]
    assert done.store == tmp_path / "perfctl.db", "beside the folder of the sweeps"
    assert [(run.batch_size, run.origin) for run in perfctl.runs(done.store)] == [
        (size, "recorded") for size in sizes
    ]
    done.check()
    with closing(sqlite3.connect(done.store)) as connection:
        ((command,),) = connection.execute("SELECT command FROM sweep").fetchall()
    assert command.startswith(f"perfctl.replay('{recorded}', SweepOptions(out=")


def test_a_batch_size_that_was_not_recorded_fails_and_the_others_are_kept(
    recorded: Path, tmp_path: Path
) -> None:
    asked = perfctl.SweepOptions(
        batches=(16, 7), out=tmp_path / "perfctl-runs", store=tmp_path / "own.db"
    )
    done = perfctl.replay(recorded, asked, all_batches=False)
    assert [(run.batch_size, run.status) for run in done.runs] == [(16, "ok"), (7, "failed")]
    assert [run.batch_size for run in done.not_whole] == [7]
    assert done.store == tmp_path / "own.db"
    with pytest.raises(PartlyDone, match=r"1 of 2 batch sizes failed or are partial \(7\)"):
        done.check()


def test_what_would_run_can_be_seen_beforehand(tmp_path: Path) -> None:
    asked = perfctl.SweepOptions(batches=(4, 8), steps=3, device="cpu", out=tmp_path)
    starting = planned(sweep_request(Nsys(), asked, ("--conv2", "32,64,5,1"), None))
    profiled = [one.command.argv for one in starting if one.command.stage == "profile"]
    assert [argv[argv.index("--batch") + 1] for argv in profiled] == ["4", "8"]
    assert all(argv[argv.index("--steps") + 1] == "3" and "--conv2" in argv for argv in profiled)


def test_every_option_of_a_sweep_has_one_on_the_command_line_with_the_same_default() -> None:
    declared = commands.declared_by(perfctl.SweepOptions)
    given = {one.name: one.default for one in commands.parameters_of(declared)}
    assert {field.name for field in fields(perfctl.SweepOptions)} - {"command_line"} == set(given)
    asked = profilers.sweep_options(declared, given)
    assert asked == perfctl.SweepOptions(command_line=asked.command_line)
