"""Launches, counters and operations that are missing from reports of rocprofv3, DLProf and torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.records.errors import ReportError

SUMS = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs"\n'


def test_a_header_that_stands_again_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "1_kernel_stats.csv"
    path.write_text(SUMS + SUMS + "a(),2,300,150,100.0,150,150\n")
    with pytest.raises(ReportError, match="the header appears twice"):
        parsers.parse(path)
