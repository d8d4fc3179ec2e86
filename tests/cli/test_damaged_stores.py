"""Stores that an earlier perfctl, or somebody else, left with values that cannot be: no command
prints a traceback."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator.launch.sweep.study import SEEDS
from tests.cli.conftest import sql

pytestmark = pytest.mark.usefixtures("own_log")
DAMAGE = {
    "an endless loss": "UPDATE step SET loss = 9e999 WHERE run_id = 1",
    "a negative time": "UPDATE step SET duration_ns = -5 WHERE run_id = 1",
    "a negative batch size": "UPDATE run SET batch_size = -16 WHERE id = 1",
    "a record that is none": "UPDATE op_shape SET record = '[1, {' WHERE run_id = 1",
}
COMMANDS = (
    *("runs", "show 1", "ledger", "ledger --json", "export --out e.csv --force", "compare 1 2"),
    *("plot --list", "trace 1 --out t.json --force", "query 'SELECT * FROM run'"),
)


def spoil(whole, damage):
    """A copy of the store, s.db, in which the damage was done."""
    shutil.copy(whole, "s.db")
    with closing(sqlite3.connect("s.db")) as store:
        store.executescript(damage)


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_reading_command_names_the_run_or_copes(perfctl, replayed, damage):
    spoil(replayed, DAMAGE[damage])
    for typed in COMMANDS:
        said = perfctl(f"{typed} --store s.db")
        assert "Traceback" not in said.err, typed
        if "cannot be analysed" in said.err:
            assert "run 1" in said.err, (typed, said.err)
            assert said.code == 4 or typed.startswith("compare"), (typed, said.err)
        else:
            assert said.code in (0, 1), (typed, said.err)


@pytest.mark.parametrize(
    "damage, said_of_it",
    [
        ("UPDATE op_shape SET record = '[1, {' WHERE run_id = 1", "op_shape.record at position"),
        ("UPDATE run SET command = '{' WHERE id = 1", "run.command is not a JSON list"),
    ],
)
def test_what_is_wrong_with_a_run_is_named_by_its_column(perfctl, replayed, damage, said_of_it):
    spoil(replayed, damage)
    perfctl("show 1 --store s.db").ends(
        4, f"run 1 cannot be analysed: {said_of_it}", "Ingest its report again into a new database"
    )
    assert perfctl("show 2 --store s.db").code == 0


def test_a_run_whose_sweep_is_gone_is_still_listed_and_shown(perfctl, replayed):
    spoil(replayed, "PRAGMA foreign_keys = OFF; DELETE FROM sweep")
    assert len(perfctl("runs --json --store s.db").json) == 2
    assert perfctl("show 1 --store s.db").code == 0


def test_a_damaged_page_costs_its_run_and_says_so(perfctl, replayed):
    shutil.copy(replayed, "s.db")
    ((root,),) = sql("SELECT rootpage FROM sqlite_master WHERE name = 'operation'", "s.db")
    ((size,),) = sql("PRAGMA page_size", "s.db")
    with Path("s.db").open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    perfctl("show 1 --store s.db").ends(4, "run 1 cannot be analysed: the store is damaged")


def test_a_reason_of_six_million_letters_is_cut_where_it_is_shown(perfctl, replayed):
    spoil(replayed, "UPDATE gap SET reason = printf('%.*c', 6000000, 'x') WHERE run_id = 1")
    said = perfctl("show 1 --store s.db").ok()
    assert "xxx" in said.out
    assert len(said.out) < 3_000_000 and "x" * 70_000 not in said.out


@pytest.mark.parametrize("study", SEEDS)
def test_a_study_of_a_file_that_cannot_be_read_leaves_no_folder(perfctl, study):
    Path("perfctl.db").write_bytes(b"SQLite format 3\0" + bytes(3000))
    said = perfctl(f"study {study} --from perfctl.db --out made")
    assert said.code in (1, 4), said.err
    assert "perfctl.db" in said.err and "no results database found" not in said.err
    assert not Path("made").exists()


def test_ledger_and_plot_still_show_the_other_run(perfctl, replayed):
    spoil(replayed, DAMAGE["a record that is none"])
    said = perfctl("ledger --json --store s.db")
    assert (said.code, {row["batch"] for row in said.json["rows"]}) == (4, {32})
    assert "training-loss" in perfctl("plot --list --store s.db").out


@pytest.mark.parametrize(
    "typed",
    [
        *("runs --store", "ingest none.json --store", "ingest", "scrub"),
        *(f"study {name} --from" for name in SEEDS),
    ],
)
def test_a_named_pipe_is_refused_and_never_waited_for(perfctl, typed):
    os.mkfifo("pipe.db")
    said = perfctl(f"{typed} pipe.db")
    assert said.code in (1, 2, 4), said.err
    assert "pipe.db: this is a named pipe" in said.err and "Traceback" not in said.err
