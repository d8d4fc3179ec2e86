"""Traces that nsys stats prints, a row a launch, copy, range or call."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from perfctl.parsers.nsys import stats

TRACE = Path(__file__).resolve().parents[2] / "data" / "nsys" / "stats_traces" / "old.txt"


def test_a_large_trace_is_read_in_little_memory_and_as_often_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    _, header, launch = TRACE.read_text().splitlines(keepends=True)[:3]
    path.write_text(header + launch * 8_000)
    tracemalloc.start()
    found = stats.parse(path)
    assert [sum(1 for _ in found.kernels) for _ in range(2)] == [8_000] * 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 2**20  # as records in a list they take twice as much
