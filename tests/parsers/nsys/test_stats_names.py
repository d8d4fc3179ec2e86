"""Titles, columns, units and report names of ``nsys stats`` in the spellings of all years."""

from __future__ import annotations

import pytest

from perfctl.parsers.common.numbers import Unit
from perfctl.parsers.nsys.stats_tables import (
    Column,
    guess_report,
    read_columns,
    read_note,
    read_unit,
    rename_report,
)

NS, MS = Unit("ns", 1), Unit("ns", 10**6)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (" CUDA Kernel Statistics (nanoseconds)", ("cuda_gpu_kern_sum", "nanoseconds")),
        ("CUDA API Statistics", ("cuda_api_sum", "")),
        ("CUDA Memory Operation Statistics (by size in KiB)", ("cuda_gpu_mem_size_sum", "KiB")),
        ("CUDA Memory Operation Statistics (by time)", ("cuda_gpu_mem_time_sum", "")),
        ("NVTX Statistics", ("nvtx_sum", "")),
        ("NVTX Push-Pop Range Statistics", ("nvtx_pushpop_sum", "")),
        ("The CUDA API Statistics", None),
    ],
)
def test_titles_name_a_report_and_the_unit_of_its_figures(
    title: str, expected: tuple[str, str] | None
) -> None:
    note = read_note(title)
    assert (note and (note.report, note.text)) == expected


def test_columns_have_the_unit_of_their_header_of_their_total_or_of_the_title() -> None:
    assert read_columns(["Time(%)", "Total Time (ms)", "Average", "Name"]) == [
        Column("Time", Unit("%", 1)),
        Column("Total Time", MS),
        Column("Avg", MS),
        Column("Name"),
    ]
    assert read_columns(["Total", "Operations", "Operation"], "KiB") == [
        Column("Total", Unit("byte", 1024)),
        Column("Operations"),
        Column("Operation"),
    ]
    assert read_columns(["Total Time", "Name"]) is None, "two known columns are no table"
    assert read_columns(["Total Time", "Calls", "Name", "a", "b", "c"]) is not None, "three of six"
    assert read_columns(["Total Time", "Calls", "Name", "a", "b", "c", "d"]) is None
    assert read_columns(["Name", "Range", "PID"]) is None, "no figure"
    assert read_columns(["Metric Name", "Minimum", "Maximum", "Average"]) is None, (
        "a summary of ncu"
    )


def test_reports_and_units_of_all_spellings_are_known() -> None:
    assert rename_report("/opt/x/reports/gpukernsum.py") == "cuda_gpu_kern_sum"
    assert (rename_report("cuda_api_sum:base"), rename_report("own")) == ("cuda_api_sum", "own")
    assert [read_unit(text) for text in ("nsec", "MBi", "MiB", "KBps")] == [
        NS,
        Unit("byte", 2**20),
        Unit("byte", 2**20),
        Unit("byte/s", 1000),
    ]
    known = read_columns(["Total Time (ns)", "Instances", "Name"])
    assert known is not None
    assert [
        guess_report(known, name)
        for name in ("a_gpukernsum.csv", "gputrace.csv", "nvtx_sum.csv", "x.csv")
    ] == [
        "cuda_gpu_kern_sum",
        "cuda_gpu_trace",
        "nvtx_sum",
        "cuda_gpu_kern_sum",
    ]
    odd = read_columns(["Max (ns)", "Calls", "Style"])
    assert odd is not None
    assert guess_report(odd, "x.csv") == "unnamed report"
