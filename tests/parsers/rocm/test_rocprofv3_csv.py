"""CSV files of rocprofv3: files of one process, cut ones, and real ones read a second time with
csv alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.orchestrator.ingest.ingest import ingest
from perfctl.parsers import ReportError, reports

PROCESS = Path(__file__).resolve().parents[2] / "data" / "rocm" / "csv" / "process"
"""What one process leaves: two launches, counters, a copy, calls and two GPUs."""
SUMS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs"\n'


def test_files_given_one_by_one_are_still_one_run(tmp_path: Path) -> None:
    done = ingest(sorted(PROCESS.glob("77_*.csv")), tmp_path / "store.db")
    assert [path.name for path, _ in done.taken] == ["77_kernel_trace.csv"]


def test_a_header_that_appears_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    path.write_text(SUMS + SUMS + "a(),2,300,150,100.0,150,150\n")
    with pytest.raises(ReportError, match="the header appears twice"):
        parsers.parse(path)


@pytest.mark.parametrize("end", [40, 500, -8])
def test_a_cut_off_file_is_one_clear_error_and_nothing_of_it_is_stored(
    end: int, tmp_path: Path
) -> None:
    whole = (PROCESS / "77_kernel_trace.csv").read_bytes()
    path = tmp_path / "77_kernel_trace.csv"
    path.write_bytes(whole[:end])
    with pytest.raises(ReportError):
        parsers.parse(path)
    done = ingest(path, tmp_path / "store.db")
    assert done.taken == ()
    assert len(done.failed) == 1
    assert "\n" not in done.failed[0]


def test_two_tables_of_calls_in_one_file_are_read_one_by_one(tmp_path: Path) -> None:
    header = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    (file := tmp_path / "api.csv").write_text(
        f"{header}MARKER_CORE_API,step 1,7,7,1,10,20\n{header}MARKER_CORE_API,step 2,7,7,2,30,45\n",
        encoding="utf-8",
    )
    names = [[one.name for one in part.report.ranges] for part in reports(file)]
    assert names == [["step 1"], ["step 2"]]
