"""rocprof's sums, database and trace: synthetic ones written here, and real ones that agree with each other."""

from __future__ import annotations

import csv
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError
from perfctl.records.report import Copy

HEADER = '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n'
WORK = '("BeginNs" INTEGER, "EndNs" INTEGER, "dev-id" INTEGER, "Name" TEXT, "stream-id" INTEGER, "Index" INTEGER)'


def database(path: Path) -> Path:
    """Two kernels (the later one first), a barrier and a copy, with the calls that started them."""
    launch = "( numBlocks({z(1) y(3) x(40}) dimBlocks({z(1) y(2) x(256}) sharedMemBytes(128) stream(1))"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE KERN ("Index" INTEGER, "KernelName" TEXT)')
        connection.execute(f"CREATE TABLE OPS {WORK}")
        connection.execute(f"CREATE TABLE COPY {WORK}")
        connection.execute(
            'CREATE TABLE HIP ("BeginNs" INTEGER, "EndNs" INTEGER, "Name" TEXT, "args" TEXT, "Index" INTEGER)'
        )
        rows = [
            (900, 950, 2, "add(int*)", 1, 8),
            (500, 540, 2, "mul(int*).kd", 1, 7),
            (600, 601, 2, "<barrier packet>", 1, 0),
        ]
        connection.executemany("INSERT INTO OPS VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.execute("INSERT INTO COPY VALUES (100, 400, 2, 'CopyHostToDevice', 0, 6)")
        calls = [(90, 410, "hipMemcpy", "( sizeBytes(4096) kind(1))", 6), (450, 460, "hipLaunchKernel", launch, 7),
                 (800, 830, "hipLaunchKernel", "()", 8)]  # fmt: skip
        connection.executemany("INSERT INTO HIP VALUES (?, ?, ?, ?, ?)", calls)
    return path


def test_work_of_the_database_is_ordered_by_time_and_takes_its_sizes_from_its_call(tmp_path: Path) -> None:
    report = parsers.parse(database(tmp_path / "results.db"))
    first, second = report.kernels
    assert (first.name, first.start_ns, first.duration_ns) == ("mul(int*)", 500, 40)
    assert (first.grid_x, first.grid_y, first.block_x, first.block_y) == (40, 3, 256, 2), "these are blocks already"
    assert first.dynamic_shared_bytes == 128
    assert (second.name, second.grid_x, second.device_index) == ("add(int*)", None, 2)
    assert list(report.copies) == [Copy("HtoD", 4096, 100, 300, None, 2, 0)]
    assert {one.name: (one.calls, one.cpu_ns) for one in report.operations} == {
        "hipMemcpy": (1, 320), "hipLaunchKernel": (2, 10 + 30)
    }  # fmt: skip
    assert "1 barriers and markers" in next(gap.reason for gap in report.gaps if gap.quantity == "barrier")


def test_calls_whose_kernel_or_copy_is_missing_are_counted(tmp_path: Path) -> None:
    path = database(tmp_path / "results.db")

    def said(*statements: str) -> list[str]:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
        return [gap.reason for gap in parsers.parse(path).gaps if "calls that start" in gap.reason]

    assert said() == []
    assert said("DELETE FROM COPY") == [], "the CPU itself may have moved 4,096 bytes"
    assert said("UPDATE HIP SET args = '( sizeBytes(4000000) kind(1))' WHERE \"Index\" = 6")[0].startswith(
        "1 of 1 calls that start a copy have none in the file"
    )
    assert said("DELETE FROM OPS WHERE Name = 'add(int*)'")[0].startswith("1 of 2 calls that start a kernel have none")


@pytest.mark.parametrize(
    ("file", "names", "kind"),
    [
        ("results.stats.csv", ("mul(int)", "add"), "kernel"), ("results.hip_stats.csv", ("odd", "names"), "hip_api"),
        ("results.stats.csv", ("hipMalloc", "__hipPushCallConfiguration"), "hip_api"), ("x.hsa_stats.csv", ("a",), "hsa_api"),
        ("results.copy_stats.csv", ("CopyHostToDevice",), "copy"),
    ],
)  # fmt: skip
def test_the_kind_of_a_sum_is_told_by_the_file_s_name_else_by_the_names_in_it(
    file: str, names: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_text(HEADER + "".join(f'"{name}",2,300,150,50.0\n' for name in names))
    found = list(parsers.parse(path).operations)
    host = kind.endswith("_api")
    assert [(one.name, one.category, one.calls) for one in found] == [(name, kind, 2) for name in names]
    assert {(one.cpu_ns, one.device_ns) for one in found} == {(300, None) if host else (None, 300)}


@pytest.mark.parametrize("text", [HEADER + '"mul",2', HEADER + '"mul",2,x,150,50.0\n', HEADER + '"mul,2,300',
                                  HEADER + '"mul",2,300,150,50.'])  # fmt: skip
def test_a_broken_sum_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results.stats.csv"
    path.write_text(text)
    with pytest.raises(ReportError):
        parsers.parse(path)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_real_database_trace_and_sums_of_one_run_agree(shared: Path) -> None:
    folder = shared / "reports/rocm/rocprof_v1"
    stored, traced = (parsers.parse(folder / f"shashankparsi_results.{ending}") for ending in ("db", "json"))
    (row,) = rows_of(folder / "shashankparsi_results.stats.csv")
    events = json.loads((folder / "shashankparsi_results.json").read_text())["traceEvents"]
    calls = [event["args"] for event in events if event.get("ph") == "X" and event["pid"] == "2"]
    (sums,) = parsers.parse(folder / "shashankparsi_results.stats.csv").operations
    for report in (stored, traced):
        (kernel,) = report.kernels
        assert (kernel.name, kernel.duration_ns, kernel.device_index) == (row["Name"], int(row["TotalDurationNs"]), 4)
        assert sum(one.calls for one in report.operations) == len(calls) == 13
        assert sum(one.cpu_ns or 0 for one in report.operations) == sum(int(call["DurationNs"]) for call in calls)
        assert sum(copy.duration_ns or 0 for copy in report.copies) == sum(
            int(event["args"]["DurationNs"]) for event in events if event.get("ph") == "X" and event["pid"] == "1"
        )
    assert (sums.name, sums.calls, sums.device_ns) == (row["Name"], 1, int(row["TotalDurationNs"]))
    assert {copy.bytes for copy in stored.copies} == {4_000_000_000}, "its hipMemcpy says so"
    (kernel,) = stored.kernels
    assert (kernel.grid_x or 0) * (kernel.block_x or 0) * 4 == 4_000_000_000, "a thread for each float of the copies"
    assert {copy.bytes for copy in traced.copies} == {None}


@pytest.mark.parametrize(("name", "kind"), [("hgliu_results.stats", "kernel"), ("hgliu_results.hip_stats", "hip_api")])
def test_the_real_sums_agree_with_their_rows(name: str, kind: str, shared: Path) -> None:
    path = shared / f"reports/rocm/rocprof_v1/{name}.csv"
    rows = rows_of(path)
    found = list(parsers.parse(path).operations)
    assert [(one.name, one.calls, one.cpu_ns or one.device_ns, one.category) for one in found] == [
        (row["Name"], int(row["Calls"]), int(row["TotalDurationNs"]), kind) for row in rows
    ]
