"""Reports that went through other systems: CR alone ends their lines, or JSON is UTF-16."""

from __future__ import annotations

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
