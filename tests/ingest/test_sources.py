"""What is read besides plain files: several runs from one file, archives, and reports that give
no rows."""

from __future__ import annotations

import gzip
import io
import sqlite3
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.errors import PartlyDone, PerfctlError
from perfctl.orchestrator.ingest import archives
from perfctl.orchestrator.ingest.ingest import ingest
from tests.ingest.test_batches import CSV

SUM = "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,{0},2,{0}.0,cudaFree\n"


def rows(store: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(store)) as connection:
        return connection.execute(query).fetchall()


def log(*totals: int) -> str:
    reports = [
        f"Processing [r{total}.sqlite] with [cuda_api_sum]...\n\n{SUM.format(total)}\n"
        for total in totals
    ]
    return "epoch 1\n".join(reports)


def tar(path: Path, files: dict[str, str], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_log_of_several_runs_goes_in_once_run_by_run(tmp_path: Path) -> None:
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(log(100, 200, 300))
    first = perfctl.ingest(path, store)
    assert [(written.new, written.operations) for _, written in first.taken] == [(True, 1)] * 3
    assert rows(store, "SELECT cpu_ns FROM operation ORDER BY run_id") == [(100,), (200,), (300,)]
    (digest,) = {sha.partition("#")[0] for (sha,) in rows(store, "SELECT artifact_sha256 FROM run")}
    assert rows(store, "SELECT artifact_sha256 FROM run ORDER BY id") == [
        (f"{digest}#{number}",) for number in (1, 2, 3)
    ]
    again = perfctl.ingest(path, store)
    assert [(one.run_id, one.new) for _, one in again.taken] == [
        (one.run_id, False) for _, one in first.taken
    ]
    path.write_text(log(100, 200, 300, 400))
    assert [written.new for _, written in perfctl.ingest(path, store).taken] == [True] * 4, (
        "another file"
    )


def test_what_an_ingest_that_was_stopped_left_out_of_a_log_is_taken_by_the_next(
    tmp_path: Path,
) -> None:
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(log(100, 200, 300))
    perfctl.ingest(path, store)
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM operation WHERE run_id = 3")
        connection.execute("DELETE FROM run WHERE id = 3")
    assert [written.new for _, written in perfctl.ingest(path, store).taken] == [False, False, True]


def test_a_broken_run_in_a_log_is_a_failed_run_and_one_that_comes_twice_is_left_out(
    heard: Any, tmp_path: Path
) -> None:
    store, path = tmp_path / "s.db", tmp_path / "job.log"
    path.write_text(
        f"{log(100)}{log(200)}{log(100)}Processing [c.sqlite] with [osrt_sum]...\nERROR: no room\n"
    )
    ingest(path, store, listener=heard)
    found = rows(store, "SELECT status, reason FROM run ORDER BY id")
    assert [status for status, _ in found] == ["ok", "ok", "failed"]
    assert "nsys stats stopped with an error" in found[2][1]
    assert any(line.endswith("run 3 repeats run 1 and was skipped") for line in heard.lines)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz", "zip"])
def test_the_reports_in_an_archive_are_read_and_the_other_files_named(
    suffix: str, heard: Any, tmp_path: Path
) -> None:
    files = {
        "job/ncu_b16.csv": CSV.format(1),
        "job/b32/ncu.csv": CSV.format(2),
        "job/README": "hello",
        "job/._x.csv": "x",
    }
    path = tmp_path / f"job.{suffix}"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        packed = {"tar": "w", "tar.bz2": "w:bz2", "tar.xz": "w:xz"}.get(suffix, "w:gz")
        tar(path, files, packed)
    store = tmp_path / "s.db"
    done = ingest(path, store, listener=heard)
    assert [taken for taken, _ in done.taken] == [
        path / "job/b32/ncu.csv",
        path / "job/ncu_b16.csv",
    ]
    assert rows(store, "SELECT batch_size, artifact FROM run ORDER BY id") == [
        (32, f"job.{suffix}/job/b32/ncu.csv"),
        (16, f"job.{suffix}/job/ncu_b16.csv"),
    ]
    assert f"{path}: skipped 1 file that is not a report: README" in heard.lines
    (tmp_path / "plain.csv").write_text(CSV.format(1))
    assert [one.new for _, one in perfctl.ingest(tmp_path / "plain.csv", store).taken] == [False], (
        "the same report"
    )


def test_an_archive_in_a_folder_or_an_archive_is_walked_too(tmp_path: Path) -> None:
    inner = tar(tmp_path / "inner.tar", {"a.csv": CSV.format(1)}, "w")
    (tmp_path / "folder").mkdir()
    with tarfile.open(tmp_path / "folder" / "outer.tgz", "w:gz") as archive:
        archive.add(inner, "inner.tar")
    (tmp_path / "folder" / "b.csv").write_text(CSV.format(2))
    done = perfctl.ingest(tmp_path / "folder", tmp_path / "s.db")
    assert [taken.relative_to(tmp_path).as_posix() for taken, _ in done.taken] == [
        "folder/b.csv",
        "folder/outer.tgz/inner.tar/a.csv",
    ]


def test_an_archive_writes_nothing_elsewhere_and_a_bomb_or_a_damaged_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = tar(
        tmp_path / "evil.tar", {"../out.csv": CSV, "/out.csv": CSV, "good.csv": CSV.format(1)}, "w"
    )
    assert len(perfctl.ingest(evil, tmp_path / "s.db").taken) == 1
    assert not (tmp_path / "out.csv").exists()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(
        tar(tmp_path / "whole.tar.gz", {"a.csv": CSV.format(range(9999))}).read_bytes()[:-40]
    )
    done = perfctl.ingest(cut, tmp_path / "s.db")
    assert done.taken == ()
    assert "cut.tar.gz: the archive cannot be unpacked" in done.failed[0]
    with pytest.raises(PerfctlError, match="no reports ingested"):
        done.check()
    monkeypatch.setattr(archives, "_SMALL", 1000)  # in this process, as a worker has its own
    bomb = tar(tmp_path / "bomb.tgz", {"zeros.csv": "0" * 1_000_000})
    with pytest.raises(perfctl.ReportError, match="it unpacks to more than 200 times its size"):
        archives.unpack(bomb, tmp_path, archives.Room(bomb.stat().st_size))
    with pytest.raises(perfctl.ReportError, match=r"it is an archive\. Pass it to perfctl ingest"):
        perfctl.parse(evil)


def test_a_report_that_is_recognised_and_gives_no_rows_is_a_warning_and_a_partial_run(
    heard: Any, tmp_path: Path
) -> None:
    header, row, _ = SUM.split("\n")
    swapped = ",".join(reversed(header.split(",")))
    (tmp_path / "swapped.csv").write_text(f"{swapped}\n{row.format(100)}\n")
    (tmp_path / "good.csv").write_text(CSV.format(1))
    done = ingest(
        [tmp_path / "good.csv", tmp_path / "swapped.csv"], tmp_path / "s.db", listener=heard
    )
    assert [path.name for path in done.empty] == ["swapped.csv"]
    ((status, reason),) = rows(
        tmp_path / "s.db", "SELECT status, reason FROM run WHERE artifact = 'swapped.csv'"
    )
    assert (status, reason.partition(":")[0]) == ("partial", "no rows were read")
    assert any("swapped.csv: no rows were read: " in line for line in heard.lines)
    with pytest.raises(PartlyDone, match="1 of 2 gave no rows"):
        done.check()


def test_two_broken_reports_of_one_batch_size_are_both_kept(tmp_path: Path) -> None:
    whole = CSV.format(1)
    for name, value in (("a_b16.csv", 1), ("c_b16.csv", 2)):
        (tmp_path / name).write_text(CSV.format(value) + whole.splitlines()[1][:30])
    perfctl.ingest(tmp_path, tmp_path / "s.db")
    found = rows(tmp_path / "s.db", "SELECT batch_size, status, artifact FROM run ORDER BY id")
    assert found == [(16, "partial", "a_b16.csv"), (16, "partial", "c_b16.csv")]


def test_a_report_in_an_archive_and_beside_it_is_taken_once_also_gzipped(
    heard: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    texts = {f"in{number}.csv": SUM.format(1000 + number) for number in range(3)}
    tar(folder / "all.tar.gz", texts)
    (folder / "other-name.csv").write_text(texts["in0.csv"])
    trace = (
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", '
        '"ts": 1, "dur": 2}]}'
    )
    (folder / "trace.json.gz").write_bytes(gzip.compress(trace.encode()))
    tar(folder / "traces.tar", {"trace.json": trace}, "w")
    for again in (False, True):
        store = tmp_path / f"{again}.db"
        ingest(folder, store, again=again, listener=heard)
        taken = [
            Path(artifact).name
            for (artifact,) in rows(store, "SELECT artifact FROM run ORDER BY id")
        ]
        assert taken == ["in1.csv", "in2.csv", "other-name.csv", "trace.json.gz"]
    said = [text for text in heard.lines if "ingests the content once" in text]
    assert said[0].startswith(f"{folder / 'all.tar.gz'}: 1 report is also in other files")
    assert said[1].startswith(f"{folder / 'traces.tar'}: 1 report is also in other files")
