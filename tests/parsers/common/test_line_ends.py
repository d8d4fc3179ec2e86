"""Reports that went through other systems: CR alone ends their lines, or JSON is UTF-16."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfctl.parsers import parse
from perfctl.records.report import Report
from tests.make.texts import ONCE

SMI = "timestamp, index, utilization.gpu [%]\n" + "".join(
    f"2024/03/05 10:00:0{n}.250, 0, {n} %\n" for n in range(5)
)
TEXTS = {**ONCE, "nvidia-smi": SMI, "dmon": "# gpu sm\n0 5\n0 6\n"}
TRACE = {
    "schemaVersion": 1,
    "traceEvents": [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::\u00e9",
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 9,
            "args": {"External id": 7},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "ts": 20,
            "dur": 5,
            "args": {"External id": 7, "correlation": 3},
        },
    ],
}


def held(report: Report) -> Report:
    """The report with its rows as lists and without its place."""
    rows: dict[str, Any] = {
        name: list(getattr(report, name))
        for name in ("kernels", "counters", "copies", "operations", "samples", "op_calls")
    }
    return replace(report, path=Path(), **rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("form", TEXTS)
def test_lines_that_end_with_cr_alone_read_as_lines(
    form: str, encoding: str, tmp_path: Path
) -> None:
    (tmp_path / "report.csv").write_text(TEXTS[form], newline="")
    plain = held(parse(tmp_path / "report.csv"))
    (tmp_path / "report.csv").write_text(
        TEXTS[form].replace("\n", "\r"), encoding=encoding, newline=""
    )
    assert held(parse(tmp_path / "report.csv")) == plain


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_trace_in_another_encoding_reads_as_in_utf_8(
    encoding: str, zipped: bool, tmp_path: Path
) -> None:
    text = json.dumps(TRACE, ensure_ascii=False)
    (tmp_path / "trace.json").write_text(text, encoding="utf-8")
    plain = held(parse(tmp_path / "trace.json"))
    assert [one.name for one in plain.operations] == ["aten::\u00e9"]
    data = text.encode(encoding)
    (tmp_path / "trace.json").write_bytes(gzip.compress(data) if zipped else data)
    assert held(parse(tmp_path / "trace.json")) == plain
