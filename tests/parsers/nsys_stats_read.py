"""Reads what nsys stats printed, and gives its records as plain tuples."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers import sniff
from perfctl.records.report import Report
from tests.parsers.nsys_stats_writer import header

GEMM = "void gemm<float, (int)128>(const float *, float *)"
KERNELS = [
    ["75.0", "300", "2", "150.0", "150.0", "100", "200", "70.7", GEMM],
    ["25.0", "100", "1", "100.0", "100.0", "100", "100", "0.0", "relu"],
]
SUM = header("Instances", "Name")


def read(tmp_path: Path, text: str, name: str = "stats.txt") -> Report:
    path = tmp_path / name
    path.write_text(text)
    parser = sniff(path)
    assert parser is not None
    assert parser.name == "nsys stats"
    return parser.parse(path)


def operations(report: Report) -> list[tuple[str, str | None, int, int | None, int | None]]:
    return [
        (one.name, one.category, one.calls, one.cpu_ns, one.device_ns) for one in report.operations
    ]


def summaries(report: Report) -> dict[str, tuple[float | None, str | None]]:
    return {one.name: (one.value, one.unit) for one in report.summaries}
