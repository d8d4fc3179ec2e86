"""Calls, waiting, threads, payloads, memory kinds and tables that are not read, in synthetic
nsys exports."""

from __future__ import annotations

from pathlib import Path

from tests.make.nsys_sqlite import NsysBuilder, gap, read


def test_a_table_that_is_not_read_is_a_gap_with_its_rows_and_bookkeeping_is_not(
    tmp_path: Path,
) -> None:
    builder = NsysBuilder()
    for number in range(1234):
        builder.row("CUDA_GPU_MEMORY_USAGE_EVENTS", "start bytes", start=number, bytes=1)
    builder.row("SCHED_EVENTS", "start", start=0)
    builder.row("TARGET_INFO_CUDA_STREAM", "streamId", streamId=7)
    builder.row("ENUM_SOMETHING", "id", id=7)
    builder.table("COMPOSITE_EVENTS", "start")
    report = read(builder, tmp_path)
    assert [found.quantity for found in report.gaps if found.quantity.startswith("table:")] == [
        "table:CUDA_GPU_MEMORY_USAGE_EVENTS",
        "table:SCHED_EVENTS",
    ]
    said = "not_available: CUDA_GPU_MEMORY_USAGE_EVENTS: 1,234 rows are not read"
    assert gap(report, "table:CUDA_GPU_MEMORY_USAGE_EVENTS") == said
    assert gap(report, "table:SCHED_EVENTS") == "not_available: SCHED_EVENTS: 1 row is not read"
