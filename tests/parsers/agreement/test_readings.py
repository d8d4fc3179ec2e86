"""What logs of readings and perfctl's own records say twice."""

from __future__ import annotations

import io
from pathlib import Path

from perfctl import parsers
from perfctl.orchestrator.launch.sampling.sampler import _Rows
from perfctl.records import checksum
from perfctl.records.report import Report
from tests.parsers.monitor_logs import read

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


def samples(folder: Path, change: str = "", into: str = "") -> list[str]:
    """What is said about samples.csv with three readings."""
    text = io.StringIO()
    text.write("# perfctl samples 1\n# gpu: none, the run used no GPU\n")
    table = _Rows(text)
    for line in (
        "at_ns,host_cpu,host_memory_bytes\n",
        "1000,0.5,4096\n",
        "2000,0.5,4096\n",
        "3000,0.5,4096\n",
    ):
        table.write(line)
    text.write(f"# readings: 3\n# rows: {table.count - 1}\n# {checksum.FIELD}: {table.checksum}\n")
    path = folder / "samples.csv"
    path.write_text(text.getvalue().replace(change, into) if change else text.getvalue())
    return [gap.reason for gap in parsers.parse(path).gaps if gap.quantity == "sample"]


def test_rows_of_samples_that_are_missing_are_said(tmp_path: Path) -> None:
    assert samples(tmp_path) == []
    assert samples(tmp_path, "2000,0.5,4096\n") == [
        "the file has 2 rows of readings, and says that it has 3"
    ]
