"""nvprof's output: known by its lines and headers; cut, broken and repeated tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, sniff
from tests.make.files import read

PROCESS = "==5== Profiling result:\n"
TRACE_HEAD = "   Start  Duration  Grid Size  Device  Name\n"
SUM_HEAD = "Time(%)      Time     Calls       Avg       Min       Max  Name\n"
TYPED_HEAD = "            Type  " + SUM_HEAD
CSV_SUM = '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,us,,us,us,us,\n'
CSV_TRACE = '"Start","Duration","Grid X","Grid Y","Grid Z","Size","Device","Stream","Name"'


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
def test_nvprof_is_told_by_its_own_lines_and_headers(tmp_path, line, is_nvprof):
    (tmp_path / "a.txt").write_text(f"something else\n{line}\n")
    parser = sniff(tmp_path / "a.txt")
    assert (parser is not None and parser.name == "nvprof text") is is_nvprof


def test_a_table_that_stands_twice_in_one_process_is_refused_with_the_line(tmp_path):
    row = "100.0%  2.0us  2  1.0us  1.0us  1.0us  {}\n"
    table = PROCESS + SUM_HEAD + row.format("k")
    with pytest.raises(ReportError, match=r"a table of one process appears twice \(again at line"):
        read(tmp_path, table * 2)
    for other in (table.replace("==5==", "==6=="), PROCESS + SUM_HEAD + row.format("m")):
        read(tmp_path, table + other)


SAVED = "Time(%),Time,Calls,Avg,Min,Max,Name\n{}100.00%,2.0us,2,1.0us,1.0us,1.0us,last"
"""A spreadsheet's file, whose last line has no end."""


def test_tables_joined_without_a_line_end_are_refused_because_their_totals_would_double(tmp_path):
    with pytest.raises(ReportError, match="line 2 is a row and the header of another table"):
        read(tmp_path, SAVED.format("") * 2 + "\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Time(%);Time;Calls;Avg;Min;Max;Name\n99,9%;2,0us;2;1,0us;1,0us;1,0us;k\n", "1 line is"),
        (SAVED.format("50.00%,2.0us,2,1.0us" + "\0" * 40 + "\n"), "1 line holds NUL bytes"),
    ],
)
def test_a_row_whose_time_is_lost_is_told(tmp_path, text, reason):
    report = read(tmp_path, text)
    assert all(one.device_ns == 2000 for one in report.operations)
    assert any(gap.reason.startswith(reason) for gap in report.gaps if gap.state == "unreadable")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "==9== NVPROF is profiling process 9, command: x\n"
            "==9== Warning: No CUDA application was profiled, exiting\n",
            "No CUDA application was profiled",
        ),
        (  # a fuzzer found it: columns that run together open no table
            PROCESS
            + 'Device "Tesla V100 (0)"\n'
            + "   Count  Avg Size  Min Size  Max Size  Total Size  Total Time Name\n"
            + "       2      256B      256B      256B        512B  50.00000us\n",
            "it contains no table of nvprof",
        ),
    ],
)
def test_a_run_without_a_table_is_refused_with_nvprofs_own_words(tmp_path, text, reason):
    with pytest.raises(ReportError, match=reason):
        read(tmp_path, text)


DATA = Path(__file__).resolve().parent.parent / "data" / "nvprof-synthetic"


def test_broken_rows_between_good_ones_are_counted_and_left_out(tmp_path):
    text = (DATA / "trace.csv").read_text()
    broken = '"a\rb"c,\r"x\n' + '"' + "y" * 200_000 + '",1\n' + "1,2,3\n"
    report = read(tmp_path, text + broken + text.splitlines()[-1] + "\n")
    assert [kernel.grid_x for kernel in report.kernels] == [39063, 39063]
    assert any(gap.reason.startswith("3 lines") for gap in report.gaps if gap.state == "unreadable")
