"""An error that perfctl did not expect costs the file or the run it is of: a line, a number, a log;
the rest goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import UsageError
from tests.cli.conftest import Break, Said
from tests.ingest.inputs import good, long_string, no_shapes

Perfctl = Callable[..., Said]
# a child that waits for ever is a fault, and need not take 300 s to be named
pytestmark = pytest.mark.timeout(100)
REFERENCE = re.compile(r"reference ([0-9a-f]{8})\. To report it, send (\S+)")


def logged(said: Said) -> str:
    """The traceback that the line names."""
    found = REFERENCE.search(" ".join(said.err.split()))
    assert found is not None, said.err
    assert Path(found[2]).name == f"{found[1]}.txt"
    return Path(found[2]).read_text()


@pytest.mark.parametrize("limit", ["1G", "0"])
def test_a_fault_of_a_parser_costs_one_file_and_its_traceback_is_kept(
    perfctl: Perfctl, break_parser: Break, limit: str
) -> None:
    token = "hf_" + "a1" * 17
    break_parser("bad_", lambda: [][int(bool(token))])
    for name in ("a_b1.csv", "bad_b2.csv", "c_b3.csv"):
        good(Path(name), len(name))
    said = perfctl("ingest", "a_b1.csv", "bad_b2.csv", "c_b3.csv", "--memory-limit", limit)
    assert said.code == 4
    assert [line.split(":")[0] for line in said.out.splitlines()[:2]] == ["a_b1.csv", "c_b3.csv"]
    assert "Traceback" not in said.err
    assert "perfctl: bad_b2.csv: unexpected error (IndexError: list index out of range)" in said.err
    text = logged(said)
    assert "Traceback (most recent call last)" in text
    assert token not in text


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_library_that_ends_the_process_costs_one_file(
    perfctl: Perfctl, break_parser: Break, number: signal.Signals
) -> None:
    break_parser("bad_", lambda: os.kill(os.getpid(), number))
    for name in ("a_b1.csv", "bad_b2.csv", "c_b3.csv"):
        good(Path(name), len(name))
    said = perfctl("ingest", "a_b1.csv", "bad_b2.csv", "c_b3.csv", "--memory-limit", "1G")
    assert said.code == 4
    assert f"bad_b2.csv: the process that read it was killed by signal {int(number)}" in said.err
    assert [line.split(":")[0] for line in said.out.splitlines()[:2]] == ["a_b1.csv", "c_b3.csv"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_report_that_needs_more_memory_is_refused_in_one_line_and_the_others_go_in(
    perfctl: Perfctl, jobs: int
) -> None:
    long_string(Path("long.json"), 24_000_000)
    good(Path("a_b1.csv"), 1)
    good(Path("z_b2.csv"), 2)
    said = perfctl(
        "ingest", "a_b1.csv", "long.json", "z_b2.csv", "--jobs", jobs, "--memory-limit", "48M"
    )
    assert said.code == 4
    assert (
        "perfctl: long.json: parsing needs more than 48 MiB of memory. If the file is "
        "valid, raise --memory-limit" in said.err.splitlines()
    )
    assert [line.split(":")[0] for line in said.out.splitlines()[:2]] == ["a_b1.csv", "z_b2.csv"]


def test_a_limit_is_a_size_and_the_default_is_at_most_two_gibibytes() -> None:
    sizes = {
        "2G": 2 << 30,
        "2GiB": 2 << 30,
        "700M": 700 << 20,
        "0": 0,
        "33554432": 32 << 20,
        "1.5g": 3 << 29,
    }
    assert {text: memory.bytes_of(text) for text in sizes} == sizes
    assert 512 << 20 <= memory.bytes_of(None) <= 2 << 30
    for wrong in ("much", "-1", "1M", "2Q", ""):
        with pytest.raises(UsageError, match="`memory_limit`"):
            memory.bytes_of(wrong)


def test_a_run_that_makes_no_sense_costs_itself_in_every_command(
    perfctl: Perfctl, replayed: Path
) -> None:
    shutil.copy(replayed, "s.db")
    no_shapes(Path("s.db"), 1)
    damaged = re.compile(r"run 1\b.* cannot be analysed: ")
    for words in (
        ("report", "--out", "p.html"),
        ("ledger",),
        ("export", "--out", "e.csv"),
        ("runs",),
        ("show", 2),
    ):
        said = perfctl(*words, "--store", "s.db")
        assert said.code in (0, 4), (words, said.err)
        assert "Traceback" not in said.err
        if said.code == 4:
            assert damaged.search(" ".join(said.err.split())), said.err
    shown = perfctl("show", 1, "--store", "s.db")
    assert shown.code == 4
    assert damaged.search(" ".join(shown.err.split())), shown.err
    assert perfctl("report", "--out", "p.html", "--store", "s.db").code == 4
    assert Path("p.html").stat().st_size > 10_000, "the other run is on the page"


def test_times_beyond_what_there_can_be_are_not_stored(perfctl: Perfctl) -> None:
    ten_years = 10 * 365 * 24 * 3600 * 10**9
    event = (
        '{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": {}}}'
    )
    for name, microseconds in (("in.json", ten_years // 1000), ("out.json", ten_years // 1000 + 1)):
        Path(name).write_text(
            '{"schemaVersion": 1, "traceEvents": [' + event.format(microseconds) + "]}"
        )
        perfctl("ingest", name)
    with closing(sqlite3.connect("perfctl.db")) as store:
        spent = [ns for (ns,) in store.execute("SELECT cpu_ns FROM operation ORDER BY run_id")]
        gaps = store.execute(
            "SELECT run_id, reason FROM gap WHERE quantity = 'operation.cpu_ns'"
        ).fetchall()
    assert spent == [ten_years, None]
    assert gaps == [(2, f"1 value is above the maximum of {ten_years:,}")]
