"""Layers of a graph's kernels from the trace of its capture: found, refused, and in public traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers.kineto import captures
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.errors import ReportError
from tests.make.kineto import (
    WHERE,
    capturing,
    executing,
    kernel,
    written,
)


def test_the_capture_beside_a_trace_is_found_by_the_server_s_list(tmp_path: Path) -> None:
    run, folder = executing(tmp_path / "run.json"), tmp_path / "capture_traces"
    assert {one.layer for one in kineto_trace.parse(run).kernels} == {None}
    folder.mkdir()
    capturing(folder / "large.json", ["embed", *["other"] * 4], size=64)
    capturing(folder / "small.json")
    listed = [
        {"file": name, "batch_size": size, "mode": "FULL"}
        for name, size in (("large.json", 64), ("small.json", 8))
    ]
    (folder / captures.DETAILS).write_text(json.dumps(listed))
    assert [path.name for path in captures.find_captures(run, [8])] == ["small.json", "large.json"]
    assert [one.layer for one in kineto_trace.parse(run).kernels] == list(WHERE)


def test_a_capture_that_cannot_help_is_refused_in_one_line(tmp_path: Path) -> None:
    run, capture = executing(tmp_path / "run.json"), capturing(tmp_path / "graphs.json")
    eager = written(tmp_path / "eager.json", kernel("a", 1, 1))
    smi = tmp_path / "smi.csv"
    smi.write_text("timestamp, name, utilization.gpu [%]\n2026/01/01 00:00:00.000, A, 22 %\n")
    for trace, given, why in (
        (run, run, "captures no graph"),
        (eager, capture, "no graph launch"),
        (smi, capture, "another kind"),
    ):
        with pytest.raises(ReportError, match=why):
            parsers.parse(trace, capture=given)
