"""nvprof's rows as records: times, sizes, grids, devices, metrics, and figures of its sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, parse, sniff
from perfctl.records.report import Report

PROCESS = "==5== Profiling result:\n"
TRACE_HEAD = "   Start  Duration  Grid Size  Device  Name\n"
SUM_HEAD = "Time(%)      Time     Calls       Avg       Min       Max  Name\n"
TYPED_HEAD = "            Type  " + SUM_HEAD
CSV_SUM = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n'
CSV_TRACE = '"Start","Duration","Grid X","Grid Y","Grid Z","Size","Device","Stream","Name"'


def read(folder: Path, text: str) -> Report:
    path = folder / "prof.txt"
    path.write_text(text)
    return parse(path)


def launch(name: str, duration: str = "2.0us") -> str:
    return f"1.0us  {duration}  (1 1 1)  T4 (0)  {name}\n"


def figures(report: Report) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in report.summaries}


@pytest.mark.parametrize(
    ("line", "is_nvprof"),
    [
        ("==5== NVPROF is profiling process 5, command: x", True),
        ("======== Profiling result:", True),
        ("done==5== Profiling application: x", True),
        ("==5== Metric result:", True),
        (TRACE_HEAD, True),
        (SUM_HEAD, True),
        (TYPED_HEAD, True),
        (CSV_TRACE, True),
        (CSV_SUM, True),
        ("Time(%),Time,Calls,Avg,Min,Max,Name", True),
        ("==5== hello", False),
        ("Profiling result:", False),
        ("Start Duration Name", False),
        ("Start,Duration,Name", False),
    ],
)
def test_nvprof_is_told_by_its_own_lines_and_headers(
    tmp_path: Path, line: str, is_nvprof: bool
) -> None:
    (tmp_path / "a.txt").write_text(f"something else\n{line}\n")
    parser = sniff(tmp_path / "a.txt")
    assert (parser is not None and parser.name == "nvprof text") is is_nvprof


def test_a_table_that_stands_twice_in_one_process_is_refused_with_the_line(tmp_path: Path) -> None:
    row = "100.0%  2.0us  2  1.0us  1.0us  1.0us  {}\n"
    first = PROCESS + SUM_HEAD + row.format("k")
    trace = PROCESS + TRACE_HEAD + launch("a")
    for table in (first, trace):
        with pytest.raises(
            ReportError, match=r"a table of one process appears twice \(again at line"
        ):
            read(tmp_path, table + table)
        read(tmp_path, table + table.replace("==5==", "==6=="))
    read(tmp_path, first + PROCESS + SUM_HEAD + row.format("m"))
