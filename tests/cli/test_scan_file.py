"""The SHA-256 of a report and the names of secrets in it: the same for small and large files, and
no process left."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfctl.orchestrator.ingest import scan_file
from perfctl.orchestrator.ingest.scan_file import FileScan, sha256
from tests.parsers import nsys_secrets

Perfctl = Callable[..., Any]
HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Section '
    'Name","Metric Name","Metric Unit","Metric Value"\n'
)
ROW = (
    '"0","1","app","host","gemm","1","7","Command line profiler '
    'metrics","m{number:06d}","inst","5"\n'
)
SECRET = "the program says HF_TOKEN=abcdefgh\n"


def large(path: Path) -> bytes:
    """An ncu report just over LARGE, with a secret in the program's output before the table."""
    rows = scan_file.LARGE // len(ROW.format(number=0)) + 1
    content = (
        SECRET + HEADER + "".join(ROW.format(number=number % 100) for number in range(rows))
    ).encode()
    path.write_bytes(content)
    assert len(content) > scan_file.LARGE
    return content


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@pytest.mark.parametrize("cores", [1, 2])
def test_a_large_file_is_looked_through_to_the_same_end_on_one_core_and_on_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    content = large(tmp_path / "report.csv")
    before = children()
    with FileScan(tmp_path / "report.csv") as now:
        assert len(children() - before) == cores - 1
        assert now.digest() == hashlib.sha256(content).hexdigest()
        assert now.secrets() == ["HF_TOKEN"]
        assert now.secrets() == ["HF_TOKEN"], "asked once more"
    assert children() <= before


def test_of_a_database_a_few_tables_are_read_here(tmp_path: Path) -> None:
    nsys_secrets.with_environment(tmp_path / "report.sqlite", "2024.2")
    with (tmp_path / "report.sqlite").open("ab") as file:
        file.truncate(scan_file.LARGE)
    before = children()
    with FileScan(tmp_path / "report.sqlite") as now:
        assert children() <= before
        assert now.secrets() == ["DB_PASSWORD", "FAKE_TOKEN"]


def test_where_no_process_can_be_started_or_it_fails_the_names_are_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(tmp_path / "report.csv")
    for program in (tmp_path / "missing", "/bin/false"):
        monkeypatch.setattr(sys, "executable", str(program))
        with FileScan(tmp_path / "report.csv") as now:
            assert now.secrets() == ["HF_TOKEN"]


def test_a_look_that_is_not_waited_for_ends_with_its_block(tmp_path: Path) -> None:
    large(tmp_path / "report.csv")
    before = children()
    with pytest.raises(ZeroDivisionError), FileScan(tmp_path / "report.csv"):
        _ = 1 / 0
    assert children() <= before


def test_the_process_ends_when_whoever_started_it_has_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")  # to open it takes as long as nobody writes to it
    command = (sys.executable, "-P", "-m", scan_file.WORKER, str(tmp_path / "never"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate(timeout=600)
    assert (process.returncode, said) == (1, b"")


def test_a_module_that_lies_in_the_folder_one_is_in_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(tmp_path / "report.csv")
    for name in ("json", "re", "perfctl"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with FileScan(Path("report.csv")) as now:
        assert now.secrets() == ["HF_TOKEN"]
    assert not (tmp_path / "ran").exists()


def test_of_a_folder_names_and_contents_count_and_what_is_missing_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "dlprof"
    folder.mkdir()
    (folder / "b.csv").write_bytes(b"two")
    (folder / "a.csv").write_bytes(b"one")
    expected = hashlib.sha256(b"a.csv\0oneb.csv\0two").hexdigest()
    with FileScan(folder) as now:
        assert (now.digest(), now.secrets()) == (expected, [])
    (folder / "b.csv").rename(folder / "c.csv")
    assert sha256(folder) != expected
    with pytest.raises(FileNotFoundError):
        FileScan(tmp_path / "missing")


def test_ingest_warns_of_a_large_file_and_knows_it_again(perfctl: Perfctl, tmp_path: Path) -> None:
    content = large(tmp_path / "report.csv")
    first = perfctl("ingest", "report.csv")
    assert first.code == 0
    assert "HF_TOKEN" in first.err and "perfctl scrub report.csv" in first.err
    assert "abcdefgh" not in first.out + first.err
    (run,) = perfctl("query", "SELECT artifact_sha256 FROM run", "--json").json
    assert run == {"artifact_sha256": hashlib.sha256(content).hexdigest()}
    again = perfctl("ingest", "report.csv")
    assert "in the store already, as run 1" in again.out
    assert "HF_TOKEN" in again.err, "said each time"


def test_a_large_file_that_is_no_report_leaves_no_process(perfctl: Perfctl, tmp_path: Path) -> None:
    with (tmp_path / "zeros.csv").open("wb") as file:
        file.truncate(scan_file.LARGE * 40)
    before = children()
    said = perfctl("ingest", "zeros.csv")
    assert said.code != 0
    assert "zeros.csv" in said.err
    assert children() <= before
