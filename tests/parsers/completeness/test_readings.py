"""Readings that are missing from logs and from perfctl's own records."""

from __future__ import annotations

from pathlib import Path

from perfctl.records.report import Report
from tests.make.monitors import read

HEADER = "timestamp, index, utilization.gpu [%], memory.used [MiB], memory.total [MiB]\n"


def warnings(report: Report) -> str:
    return " | ".join(said.text for said in report.diagnostics if said.severity == "warning")


def rows(*seconds: int, gpu: int = 0, used: int = 10, total: int = 100) -> str:
    return "".join(
        f"2026/01/02 10:00:{second:02d}.000, {gpu}, 5 %, {used} MiB, {total} MiB\n"
        for second in seconds
    )


def test_readings_that_are_missing_are_counted_for_each_gpu(tmp_path: Path) -> None:
    whole = "".join(rows(second) + rows(second, gpu=1) for second in range(20))
    assert "missing" not in warnings(read(tmp_path, HEADER + whole))
    lost = whole.replace(rows(7, gpu=1), "").replace(rows(8, gpu=1), "")
    assert "GPU 1: 2 readings are missing between 6.0 s and 9.0 s" in warnings(
        read(tmp_path, HEADER + lost)
    )
