"""rocprofv3's JSON, of which no real file was at hand: cut files."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl import parsers
from perfctl.parsers import ReportError

WHOLE = Path(__file__).resolve().parents[2] / "data" / "rocm" / "json" / "process.json"


@pytest.mark.parametrize("end", [30, 900, -3])
def test_a_cut_off_file_is_one_clear_error(end: int, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(WHOLE.read_bytes().rstrip()[:end])
    with pytest.raises(ReportError, match="the JSON is incomplete"):
        parsers.parse(path)
