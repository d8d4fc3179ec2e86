"""perfctl.torch and its like, perfctl.sweep and perfctl.replay as Python users call them: records in,
a record out, errors that name fields."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

import perfctl
from perfctl.orchestrator.commands import profile
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.ingest.sweep import Swept


class Heard:
    """What was told."""

    def __init__(self):
        self.steps: list[tuple[str, int, int]] = []
        self.notes: list[str] = []

    def note(self, text):
        self.notes.append(text)

    def warning(self, text):
        self.notes.append(text)

    def progress(self, what, done, total):
        self.steps.append((what, done, total))


def test_a_replay_stores_every_recorded_batch_size_and_says_how_each_went(recorded, tmp_path):
    sizes = sorted(int(folder.name[1:]) for folder in recorded.glob("b*"))
    heard = Heard()
    done = profile.replay_or_plan(
        profile.ReplayOptions(recorded, out=tmp_path / "perfctl-runs"), heard
    )
    assert isinstance(done, Swept)
    assert [(run.batch_size, run.status) for run in done.runs] == [(size, "ok") for size in sizes]
    assert heard.steps == [
        (f"batch {size}: replay", number, len(sizes)) for number, size in enumerate(sizes)
    ]
    assert [note.partition(" in ")[0] for note in heard.notes] == [
        f"batch {size}: ok" for size in sizes
    ]
    assert done.store == tmp_path / "perfctl.db", "beside the folder of the sweeps"
    assert [(run.batch_size, run.origin) for run in perfctl.runs(done.store)] == [
        (size, "recorded") for size in sizes
    ]
    done.check()
    with closing(sqlite3.connect(done.store)) as connection:
        ((command,),) = connection.execute("SELECT command FROM sweep").fetchall()
    assert command.startswith(f"perfctl.replay(out='{tmp_path}/perfctl-runs', folder='{recorded}'")


def test_a_batch_size_that_was_not_recorded_fails_and_the_others_are_kept(recorded, tmp_path):
    done = perfctl.replay(
        recorded, batches=(16, 7), out=tmp_path / "perfctl-runs", store=tmp_path / "own.db"
    )
    assert isinstance(done, Swept)
    assert [(run.batch_size, run.status) for run in done.runs] == [(16, "ok"), (7, "failed")]
    assert [run.batch_size for run in done.failed_or_partial_runs] == [7]
    assert done.store == tmp_path / "own.db"
    with pytest.raises(PartlyDone, match=r"1 of 2 batch sizes failed or are incomplete \(7\)"):
        done.check()


def test_what_would_run_can_be_seen_beforehand(tmp_path):
    starting = perfctl.nsys(
        batches=(4, 8),
        steps=3,
        device="cpu",
        out=tmp_path,
        arguments=("--conv2", "32,64,5,1"),
        dry_run=True,
    )
    assert isinstance(starting, list)
    profiled = [one.command.argv for one in starting if one.command.stage == "profile"]
    assert [argv[argv.index("--batch") + 1] for argv in profiled] == ["4", "8"]
    assert all(argv[argv.index("--steps") + 1] == "3" and "--conv2" in argv for argv in profiled)
