"""The Kineto parser on tests/data/kineto-synthetic (written by hand)."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.kineto import trace as kineto_trace
from perfctl.records.report import Report

TRACE = Path(__file__).resolve().parents[2] / "data" / "kineto-synthetic" / "trace.json"


@pytest.fixture(scope="module")
def report() -> Report:
    return kineto_trace.parse(TRACE)


def test_gzip_and_plain_give_the_same_report(tmp_path: Path, report: Report) -> None:
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(TRACE.read_bytes()))
    found = kineto_trace.parse(packed)
    assert kineto_trace.sniff(packed, packed.read_bytes()[:65536])
    assert (list(found.kernels), list(found.operations)) == (
        list(report.kernels),
        list(report.operations),
    )


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (b'\n {"schemaVersion": 1, "traceEvents": [', True),
        (b'{"traceEvents": [', True),
        (b'{"schemaVersion": 1, "job": "...', False),
        (b'\xef\xbb\xbf{"schemaVersion": 1, "deviceProperties": [], "job": "...', True),
        (b'{"schemaVersion": 1, "deviceProperties": [], "distributedInfo": {}, "job": "...', True),
        (b'["traceEvents", "schemaVersion", "deviceProperties"]', False),
        (b'{"format": "perfctl workload"}', False),
        (b"\x1f\x8b broken", False),
        (b"", False),
    ],
)
def test_a_trace_is_recognised_by_content(head: bytes, is_one: bool) -> None:
    assert kineto_trace.sniff(Path("x"), head) is is_one


def test_a_chrome_trace_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "v8", "ts": 1, "dur": 1}]}')
    with pytest.raises(ReportError, match=r"without any event of torch\.profiler"):
        kineto_trace.parse(path)
