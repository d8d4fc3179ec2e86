"""ncu's wide CSV: which columns are metrics, the row of units, rows that are cut, and tables one
after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError, nvprof, reports
from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.csv import Columns
from perfctl.parsers.nsys import stats
from perfctl.records.report import Counter, Gap
from tests.make.ncu_csv import NVTX, line, read

HEADER = [
    "ID",
    "Process ID",
    "Kernel Name",
    "Grid Size",
    "launch__registers_per_thread",
    "dram__bytes.sum",
]
UNITS = ["", "", "", "", "register/thread", "Kbyte"]


def row(number: object, registers: object = 8, size: object = 3, process: int = 42) -> str:
    return line(number, process, "k", "(4, 1, 1)", registers, size)


def test_metrics_have_an_underscore_or_a_point_and_no_blank() -> None:
    names = [*HEADER, "Context", "a_b c", "x.y", "a_b", *NVTX, NVTX[0].partition(" ")[2], "plain"]
    assert Columns(names).metrics == [4, 5, 8, 9]


def test_the_row_of_units_is_the_first_without_an_id_and_may_be_missing(tmp_path: Path) -> None:
    report = read(tmp_path, line(*HEADER), line(*UNITS), row(0), row(1, 9, 5))
    assert list(report.counters) == [
        Counter(0, "launch__registers_per_thread", 8, "register/thread"),
        Counter(0, "dram__bytes.sum", 3000, "byte"),
        Counter(1, "launch__registers_per_thread", 9, "register/thread"),
        Counter(1, "dram__bytes.sum", 5000, "byte"),
    ]
    assert report.form == "ncu CSV, wide, 6 columns"
    bare = read(tmp_path, line(*HEADER), row(0), row(1, 9, 5))
    assert [(one.value, one.unit) for one in bare.counters] == [
        (8, None),
        (3, None),
        (9, None),
        (5, None),
    ]
    assert "no row of units" in " ".join(
        one.reason or "" for one in bare.gaps if one.quantity == "counter.unit"
    )
    assert not [one for one in report.gaps if one.quantity == "counter.unit"]
    short = read(tmp_path, line(*HEADER), line(*UNITS[:5]), row(0))
    assert [(one.value, one.unit) for one in short.counters] == [(8, "register/thread"), (3, None)]


def test_rows_that_are_no_launch_are_counted_and_left_out(tmp_path: Path) -> None:
    """A second row of units, one that ends before the kernel's name, one that ends behind it, and
    no CSV."""
    odd = (line(*UNITS), line(1, 42), line(2, 42, "k"), row("x"))
    report = read(tmp_path, line(*HEADER), line(*UNITS), row(0), *odd, row(3))
    assert [(one.launch, one.value) for one in report.counters] == [
        (0, 8),
        (0, 3000),
        (2, 8),
        (2, 3000),
    ]
    assert [(kernel.name, kernel.registers) for kernel in report.kernels] == [
        ("k", 8),
        ("k", None),
        ("k", 8),
    ]
    gap = Gap("counter", "unreadable", "4 rows of the CSV are cut off or broken")
    assert gap in report.gaps


def test_a_further_table_is_a_run_with_columns_and_units_of_its_own(tmp_path: Path) -> None:
    second = ["ID", "Process ID", "Kernel Name", "dram__bytes.sum"]
    other = (line(*second), line("", "", "", "Mbyte"), line(0, 42, "l", 7))
    path = tmp_path / "report.csv"
    path.write_text("".join((line(*HEADER), line(*UNITS), row(0), *other)))
    found = [part.report for part in reports(path) if part.report]
    assert [[(one.name, one.value) for one in report.counters] for report in found] == [
        [("launch__registers_per_thread", 8), ("dram__bytes.sum", 3000)],
        [("dram__bytes.sum", 7_000_000)],
    ]
    assert [(kernel.name, kernel.grid_x) for report in found for kernel in report.kernels] == [
        ("k", 4),
        ("l", None),
    ]


def test_files_that_are_not_there_are_refused_by_every_reader_of_text(tmp_path: Path) -> None:
    for parse, remedy in (
        (ncu_csv.parse, "Check the path and its permissions"),
        (ncu_text.parse, "Check the path and its permissions"),
        (nvprof.parse, "Check the path and its permissions"),
        (stats.parse, "Check the path and its permissions"),
    ):
        with pytest.raises(ReportError) as caught:
            parse(tmp_path / "absent")
        assert (caught.value.reason, caught.value.remedy) == (
            "it cannot be read (No such file or directory)",
            remedy,
        )
