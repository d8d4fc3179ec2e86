"""Rows of ``--format=csv,noheader``: refused, but for the one form whose units name its columns.

``--query-gpu=utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw --format=csv,noheader`` prints
"0 %, 7042 MiB, 46068 MiB, 32, 82.53 W". Rows like these are read under that header, with a warning. Other rows do not
say what their columns are (memory, fan and encoder are percentages, too), and guessing by size would store wrong figures.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.nvidia_smi_header import Layout, read_header
from perfctl.parsers.readings import is_nothing, read_cell
from perfctl.parsers.records import Diagnostic

_HEADER = "utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, power.draw [W]"
_UNITS = ("%", "MiB", "MiB", "", "W")
_UNIT = re.compile(r"-?\d{1,12}(?:\.\d{1,6})? (%|MiB|W|MHz)\Z")
_QUERY_STAMP = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}\.\d{3}\Z")
_REMEDY = (
    "Put the header line above the rows ('timestamp, index, utilization.gpu [%], ...'), or record without noheader"
)


def is_row(line: str) -> bool:
    """Is it a row of nvidia-smi's CSV: two cells with units, or its timestamp and another cell?"""
    cells = [cell.strip() for cell in line[:4096].split(", ")]
    units = sum(_UNIT.match(cell) is not None for cell in cells)
    return units >= 2 or (len(cells) >= 2 and _QUERY_STAMP.match(cells[0]) is not None)


def layout_of(rows: list[list[str]], path: Path) -> tuple[Layout, Diagnostic]:
    """The layout of rows without a header, and a warning that names it. Raises ReportError for any other rows."""
    if not rows:
        raise ReportError(path, "nvidia-smi", "the file has no complete row", "Let nvidia-smi run longer")
    layout = read_header(_HEADER)
    if layout is None or not all(_fits(cells) for cells in rows):
        raise ReportError(path, "nvidia-smi", "the rows have no header that says what their columns are", _REMEDY)
    return layout, Diagnostic(
        "warning", "perfctl", f"the rows have no header; by their units they were read as {_HEADER}"
    )


def _fits(cells: list[str]) -> bool:
    """Has each cell the unit of its column, and is no more memory used than there is?"""
    if len(cells) != len(_UNITS):
        return False
    for cell, unit in zip(cells, _UNITS, strict=True):
        match = _UNIT.match(cell)
        if not is_nothing(cell) and (match[1] if match else "") != unit:
            return False
    used, total = (read_cell(cell, "")[0] for cell in cells[1:3])
    return used is None or total is None or used <= total
