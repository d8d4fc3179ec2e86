"""What is read besides plain files: several runs from one file, archives, and reports that give
no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfctl
from perfctl.orchestrator.errors import PartlyDone
from perfctl.orchestrator.ingest.ingest import ingest
from tests.cli.test_ingest import NCU
from tests.make.stored import execute, rows

SUM = "Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n100.0,{0},2,{0}.0,cudaFree\n"


def log(*totals: int) -> str:
    reports = [
        f"Processing [r{total}.sqlite] with [cuda_api_sum]...\n\n{SUM.format(total)}\n"
        for total in totals
    ]
    return "epoch 1\n".join(reports)


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
    execute(store, "DELETE FROM operation WHERE run_id = 3", "DELETE FROM run WHERE id = 3")
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


def test_a_report_that_is_recognised_and_gives_no_rows_is_a_warning_and_a_partial_run(
    heard: Any, tmp_path: Path
) -> None:
    header, row, _ = SUM.split("\n")
    swapped = ",".join(reversed(header.split(",")))
    (tmp_path / "swapped.csv").write_text(f"{swapped}\n{row.format(100)}\n")
    (tmp_path / "good.csv").write_text(NCU.format(count=1))
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
    whole = NCU.format(count=1)
    for name, value in (("a_b16.csv", 1), ("c_b16.csv", 2)):
        (tmp_path / name).write_text(NCU.format(count=value) + whole.splitlines()[1][:30])
    perfctl.ingest(tmp_path, tmp_path / "s.db")
    found = rows(tmp_path / "s.db", "SELECT batch_size, status, artifact FROM run ORDER BY id")
    assert found == [(16, "partial", "a_b16.csv"), (16, "partial", "c_b16.csv")]
