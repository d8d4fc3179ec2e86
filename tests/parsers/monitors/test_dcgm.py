"""DCGM's two forms: tests/data/dcgm-synthetic (made up) and the real long CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors import dcgm
from tests.make.monitors import read


@pytest.mark.parametrize(
    "text",
    [
        "GPUId,TimeStampUs,Field,Values\n0,1709632800000000,gpu_temp,40\n{}\n",
        "#Entity TMPTR\nGPU 0 40\n{}\n",
    ],
)
def test_a_line_of_4096_characters_is_nobody_s_reading(tmp_path: Path, text: str) -> None:
    last = text.splitlines()[1]
    found = [
        list(read(tmp_path, text.format(last.replace("40", "50").ljust(length))).samples)
        for length in (4095, 4096)
    ]
    assert [samples[-1].temperature_c for samples in found] == [50, 40]
    assert len(list(read(tmp_path, text.format(last.ljust(5000))).samples)) == 1


def test_a_file_without_a_header_or_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("GPU 0 40\n")
    with pytest.raises(ReportError, match="the DCGM header has no complete sample below it"):
        dcgm.parse(path)
    with pytest.raises(ReportError, match=r"it cannot be read \(No such file or directory\)"):
        dcgm.parse(tmp_path / "absent.csv")
