"""dmon and pmon: units and quantities of columns, rounds, times of day, and processes added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import ReportError
from perfctl.parsers.monitors.nvidia_smi import recognise_lists
from tests.make.monitors import read


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("# gpu sm", True),
        ("#Date Time gpu fb", True),
        ("#Time, gpu, mclk", True),
        ("  # GPU PWR", True),
        ("# gpu", False),
        ("# time sm", False),
        ("gpu sm", False),
        ("# gpu name", False),
        ("# gpus sm", False),
        ("# gpu sm".ljust(4096), True),
        ("# gpu sm".ljust(4097), False),
    ],
)
def test_a_header_names_the_gpu_and_a_known_column(line: str, is_one: bool) -> None:
    assert recognise_lists(["0 1", line]) is is_one


@pytest.mark.parametrize("text", ["# gpu sm fb\n0 1\n", "# Time sm gpu\n10:00:01 60 1"])
def test_a_header_without_a_complete_row_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ReportError, match="header of dmon or pmon has no complete row below it"):
        read(tmp_path, text)
