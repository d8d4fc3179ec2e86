"""perfctl scrub, and what perfctl ingest says of a report with secrets in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.ingest.scan_file import scrubbed_name
from tests.parsers.rocm.rocpd_builder import made

VALUE = "correct-horse-battery"
TRACE = (
    '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": '
    '1, "tid": 1, "ts": 1, "dur": 2, "args": {}}], "host": {"DB_PASSWORD": "%s"}}'
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(TRACE % VALUE)
    return path


def test_the_copy_is_written_beside_the_report_and_names_are_said(
    perfctl: Callable[..., Any], trace: Path
) -> None:
    said = perfctl("scrub", "trace.json")
    assert said.code == 0
    assert "DB_PASSWORD" in said.out
    assert "Wrote trace.scrubbed.json. Next: perfctl ingest trace.scrubbed.json" in said.out
    assert VALUE not in said.out + said.err
    assert VALUE not in (trace.parent / "trace.scrubbed.json").read_text()
    assert VALUE in trace.read_text()


def test_a_log_that_is_no_report_is_copied_and_not_offered_to_ingest(
    perfctl: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text("loss 0.1\n")
    said = perfctl("scrub", "run.log")
    assert (said.code, said.out.splitlines()[-1]) == (0, "Wrote run.scrubbed.log.")


def test_a_copy_that_is_there_is_replaced_only_by_force(
    perfctl: Callable[..., Any], trace: Path
) -> None:
    (trace.parent / "copy.json").write_text("mine")
    said = perfctl("scrub", "trace.json", "--out", "copy.json")
    assert said.code == 2
    assert "--force" in said.err
    assert (trace.parent / "copy.json").read_text() == "mine"
    assert perfctl("scrub", "trace.json", "--out", "copy.json", "--force").code == 0


def test_the_report_itself_is_never_the_target(perfctl: Callable[..., Any], trace: Path) -> None:
    assert perfctl("scrub", "trace.json", "--out", trace, "--force").code == 2
    assert VALUE in trace.read_text()


@pytest.mark.parametrize(
    ("file", "out"), [("missing.json", None), ("trace.json", "no/such/folder/x.json")]
)
def test_a_call_that_makes_no_sense_is_refused(
    file: str, out: str | None, perfctl: Callable[..., Any], trace: Path
) -> None:
    assert perfctl("scrub", file, *(["--out", out] if out else [])).code == 2


def test_a_binary_report_says_what_to_do(perfctl: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "r.nsys-rep").write_bytes(b"\0" * 100)
    said = perfctl("scrub", "r.nsys-rep")
    assert said.code == 1
    assert "nsys export --type sqlite" in said.err


def test_ingest_warns_once_by_name_and_keeps_the_value_out(
    perfctl: Callable[..., Any], trace: Path, tmp_path: Path
) -> None:
    said = perfctl("ingest", "trace.json")
    warnings = [line for line in said.err.splitlines() if line.startswith("warning:")]
    assert warnings == [
        "warning: trace.json: holds what looks like secrets (DB_PASSWORD): perfctl scrub trace.json"
    ]
    assert VALUE not in said.out + said.err
    with closing(sqlite3.connect(tmp_path / "perfctl.db")) as connection:
        assert VALUE not in "\n".join(connection.iterdump())


def test_a_scrubbed_report_is_taken_in_without_a_warning(
    perfctl: Callable[..., Any], trace: Path
) -> None:
    perfctl("scrub", "trace.json")
    said = perfctl("ingest", "trace.scrubbed.json")
    assert said.code == 0
    assert "secrets" not in said.err


def test_scrub_says_what_it_removed_of_a_rocpd_database_and_what_it_cannot_know(
    perfctl: Callable[..., Any], tmp_path: Path
) -> None:
    made(tmp_path / "r.db")
    said = perfctl("scrub", "r.db")
    assert said.code == 0
    assert "1 row emptied (process environments)" in said.out
    assert "1 row emptied (names of hosts)" in said.out
    assert "Nothing looked like a secret" not in said.out
    assert "Not known to perfctl: passwords that are ordinary words" in said.out
    assert "secret0123" not in said.out
    assert b"node17" not in (tmp_path / "r.scrubbed.db").read_bytes()


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("report.sqlite", "report.scrubbed.sqlite"),
        ("r.pt.trace.json.gz", "r.pt.trace.scrubbed.json.gz"),
        ("log", "log.scrubbed"),
    ],
)
def test_the_name_of_the_copy_keeps_its_endings(name: str, copy: str) -> None:
    assert scrubbed_name(Path("somewhere", name)) == Path("somewhere", copy)
