"""A report that fails costs its run alone in sweeps, gather, bench and compare; the store keeps
the rest."""

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.inputs import good, long_string
from tests.make.stored import execute, rows

Perfctl = Callable[..., Any]


TESTS = os.getpid()


def killed():
    assert os.getpid() != TESTS, "the report is read by the process that the user called"
    os.kill(os.getpid(), signal.SIGKILL)


def fault():
    raise IndexError("no such column")


SAID = {
    fault: r"reference [0-9a-f]{8}\. To report it, send (\S+)",
    killed: "was killed by signal 9",
}
HOW = pytest.mark.parametrize("how", [fault, killed], ids=["fault", "killed"])


def stored(path="perfctl.db"):
    return rows(path, "SELECT batch_size, status FROM run ORDER BY batch_size")


def is_said(err, how):
    found = re.search(SAID[how], " ".join(err.split()))
    assert found is not None, err
    assert "Traceback" not in err
    if how is fault:
        assert "IndexError: no such column" in Path(found[1]).read_text()


@HOW
def test_a_sweep_keeps_its_other_runs(perfctl, recorded, break_parser, how):
    break_parser("/b32", how)
    said = perfctl("replay", recorded / "torch")
    assert said.code == 4
    assert "/b32" in said.err
    is_said(said.err, how)
    assert stored() == [(16, "ok")]


@HOW
def test_gather_says_it_in_a_failed_run_that_a_later_whole_one_replaces(
    perfctl, recorded, break_parser, how
):
    perfctl("replay", recorded / "torch", "--store", "other.db")
    broken = [True]
    break_parser("/b32", lambda: broken and how())
    said = perfctl("slurm", "gather", "perfctl-runs")
    assert said.code == 4
    assert "torch at batch 32" in said.err
    is_said(said.err, how)
    assert stored() == [(16, "ok"), (32, "failed")]
    broken.clear()
    assert perfctl("slurm", "gather", "perfctl-runs").code == 0
    assert stored() == [(16, "ok"), (32, "ok")]


@HOW
def test_compare_leaves_out_one_report_of_a_folder(perfctl, break_parser, how):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        good(Path(folder, "x_b1.csv"), 3)
        good(Path(folder, "bad_b2.csv"), 4)
    break_parser("b/bad", how)
    said = perfctl("compare", "a", "b", "--anyway")
    assert said.code == 4, said.err
    assert "b/bad_b2.csv" in said.err
    is_said(said.err, how)
    alone = perfctl("compare", "a", "b/bad_b2.csv", "--anyway")
    assert alone.code == 1
    assert "Traceback" not in alone.err


def test_no_empty_store_is_left_where_the_only_report_ends_its_process(perfctl, break_parser):
    good(Path("bad_b1.csv"), 1)
    break_parser("bad", killed)
    assert perfctl("ingest", "bad_b1.csv").code == 1
    assert [path.name for path in Path().iterdir() if "perfctl" in path.name] == []


def test_the_limit_of_every_command_is_an_environment_variable(perfctl, monkeypatch):
    long_string(Path("long_b1.json"), 24_000_000)
    monkeypatch.setenv("PERFCTL_MEMORY_LIMIT", "48M")
    said = perfctl("ingest", "long_b1.json")
    assert said.code == 1
    assert "long_b1.json: parsing needs more than 48 MiB of memory" in said.err
    monkeypatch.setenv("PERFCTL_MEMORY_LIMIT", "much")
    said = perfctl("ingest", "long_b1.json")
    assert said.code == 2
    assert "invalid value 'much' for PERFCTL_MEMORY_LIMIT" in said.err


def test_a_store_with_texts_that_are_no_utf8_is_shown_whole(perfctl, replayed):
    shutil.copy(replayed, "perfctl.db")
    execute(
        "perfctl.db",
        "UPDATE layer_call SET layer = CAST(x'fffe41' AS TEXT) WHERE run_id = 1",
        "UPDATE run SET workload = CAST(x'fffe41' AS TEXT) WHERE id = 1",
    )
    for words in (("runs",), ("show", 1), ("ledger",), ("report", "--out", "p.html")):
        said = perfctl(*words)
        assert said.code == 0, said.err
        assert "Traceback" not in said.err
