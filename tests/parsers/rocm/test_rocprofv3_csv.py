"""CSV files of rocprofv3: files of one process, cut ones, and real ones read a second time with
csv alone."""

from __future__ import annotations

import csv
from collections import Counter as Tally
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


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("phase", "launches"), [("decode", 144), ("prefill", 1128)])
def test_the_real_traces_agree_with_a_reading_of_their_rows(
    phase: str, launches: int, shared: Path
) -> None:
    folder = shared / "reports/rocm/rocprofv3/jimw567_llm"
    rows, calls = (
        rows_of(folder / f"{phase}_kernel_trace.csv"),
        rows_of(folder / f"{phase}_hip_api_trace.csv"),
    )
    report = parsers.parse(folder / f"{phase}_kernel_trace.csv")
    kernels = list(report.kernels)
    assert len(kernels) == len(rows) == launches
    assert [kernel.duration_ns for kernel in kernels] == [
        int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows
    ]
    assert Tally(kernel.name for kernel in kernels) == Tally(row["Kernel_Name"] for row in rows)
    for axis in "XYZ":
        groups = [getattr(kernel, f"grid_{axis.lower()}") for kernel in kernels]
        assert groups == [
            -(-int(row[f"Grid_Size_{axis}"]) // int(row[f"Workgroup_Size_{axis}"])) for row in rows
        ]
    assert {one.name: one.calls for one in report.operations} == Tally(
        row["Function"] for row in calls
    )
    assert sum(one.cpu_ns or 0 for one in report.operations) == sum(
        int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in calls
    )


@pytest.mark.parametrize("name", ["decode_fetch", "decode_stall", "prefill_fetch", "prefill_stall"])
def test_the_real_counters_agree_with_a_reading_of_their_rows(name: str, shared: Path) -> None:
    path = shared / f"reports/rocm/rocprofv3/jimw567_llm/{name}_counter_collection.csv"
    rows = rows_of(path)
    report = parsers.parse(path)
    kernels, counters = (
        list(report.kernels),
        [one for one in report.counters if one.name != "Scratch_Size"],
    )
    times = {
        row["Dispatch_Id"]: int(row["End_Timestamp"]) - int(row["Start_Timestamp"]) for row in rows
    }
    assert [kernel.duration_ns for kernel in kernels] == list(times.values()), (
        "once for each launch, not for each row"
    )
    scale = {"FETCH_SIZE": 1024}
    assert [(one.name, one.value) for one in counters] == [
        (row["Counter_Name"], float(row["Counter_Value"]) * scale.get(row["Counter_Name"], 1))
        for row in rows
    ]


def test_the_real_folder_holds_six_reports(shared: Path) -> None:
    folder = shared / "reports/rocm/rocprofv3/jimw567_llm"
    kinds = ("fetch_counter_collection", "kernel_trace", "stall_counter_collection")
    assert [path.stem for path in parsers.find(folder)] == [
        f"{phase}_{kind}" for phase in ("decode", "prefill") for kind in kinds
    ]


def test_two_tables_of_calls_in_one_file_are_read_one_by_one(tmp_path: Path) -> None:
    header = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
    (file := tmp_path / "api.csv").write_text(
        f"{header}MARKER_CORE_API,step 1,7,7,1,10,20\n{header}MARKER_CORE_API,step 2,7,7,2,30,45\n",
        encoding="utf-8",
    )
    names = [[one.name for one in part.report.ranges] for part in reports(file)]
    assert names == [["step 1"], ["step 2"]]
