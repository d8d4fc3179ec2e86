"""An error that perfctl did not expect costs the file or the run it is of: a line, a number, a log;
the rest goes on."""

import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from perfctl.orchestrator import memory
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.faults import describe_and_save_exception
from tests.cli.conftest import Said
from tests.ingest.inputs import good, long_string
from tests.make.stored import execute

Perfctl = Callable[..., Said]
# a child that waits for ever is a fault, and need not take 300 s to be named
pytestmark = pytest.mark.timeout(100)
REFERENCE = re.compile(r"reference ([0-9a-f]{8})\. To report it, send (\S+)")


def logged(said):
    """The traceback that the line names."""
    found = REFERENCE.search(" ".join(said.err.split()))
    assert found is not None, said.err
    assert Path(found[2]).name == f"{found[1]}.txt"
    return Path(found[2]).read_text()


def test_a_log_folder_that_is_a_link_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"perfctl-log-{os.getuid()}").symlink_to(elsewhere)
    assert "could not save the traceback" in describe_and_save_exception("r.csv", ValueError("why"))
    assert not list(elsewhere.iterdir())


TOKEN = "hf_" + "a1" * 17


@pytest.mark.parametrize("limit", ["1G", "0"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            lambda: [][int(bool(TOKEN))],
            "unexpected error (IndexError: list index out of range)",
        ),
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "the process that read it was killed by signal 9",
        ),
    ],
    ids=["a fault", "a killed process"],
)
def test_what_goes_wrong_in_a_parser_costs_one_file(perfctl, break_parser, how, why, limit):
    names = ("a_b1.csv", "bad_b2.csv", "c_b3.csv")
    break_parser("bad_", how)
    for name in names:
        good(Path(name), len(name))
    said = perfctl("ingest", *names, "--memory-limit", limit)
    assert said.code == 4
    assert [line.split(":")[0] for line in said.out.splitlines()[:2]] == ["a_b1.csv", "c_b3.csv"]
    assert "Traceback" not in said.err
    assert f"perfctl: bad_b2.csv: {why}" in said.err
    if "unexpected" in why:
        text = logged(said)
        assert "Traceback (most recent call last)" in text
        assert TOKEN not in text


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_report_that_needs_more_memory_is_refused_in_one_line_and_the_others_go_in(perfctl, jobs):
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


def test_a_limit_is_a_size_and_the_default_is_at_most_two_gibibytes():
    sizes = {
        "2G": 2 << 30,
        "2GiB": 2 << 30,
        "700M": 700 << 20,
        "0": 0,
        "33554432": 32 << 20,
        "1.5g": 3 << 29,
    }
    assert {text: memory.parse_memory_limit(text) for text in sizes} == sizes
    assert 512 << 20 <= memory.parse_memory_limit(None) <= 2 << 30
    for wrong in ("much", "-1", "1M", "2Q", ""):
        with pytest.raises(UsageError, match="`memory_limit`"):
            memory.parse_memory_limit(wrong)


def test_a_run_that_makes_no_sense_costs_itself_in_every_command(perfctl, replayed):
    shutil.copy(replayed, "s.db")
    execute("s.db", "UPDATE op_shape SET record = '[]' WHERE run_id = 1")
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
