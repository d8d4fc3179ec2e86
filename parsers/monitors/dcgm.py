"""Output of DCGM's monitors: ``dcgmi dmon`` as text, and the long CSV
"GPUId,TimeStampUs,Field,Values".

The CSV has one row per field and time (microseconds since the epoch), GPU by GPU: samples are
assembled by GPU and time, and sorted by time. dcgmi's text has short names, a line of units below
them and no timestamps; the header is repeated every few rows. Framebuffer sizes are MiB in both.
The fields gpu_utilization and GPUTL are NVML's utilization; activities such as SMACT (0 to 1)
measure something else and become summaries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from perfctl.parsers.common.doubts import list_unknown_names, make_unknown_names_warning
from perfctl.parsers.common.lines import decode_head_lines
from perfctl.parsers.common.numbers import YEARS, Timestamp
from perfctl.parsers.common.tables import FieldColumn
from perfctl.parsers.monitors.readings import (
    Cells,
    DeviceReadings,
    MonitorTextFile,
    RoundCounter,
    make_truncated_last_cell_gap,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

TOOL = "dcgm"
_KNOWN: Any = json.loads(Path(__file__).with_name("dcgm.json").read_text())
"""Names in DCGM's list of fields -> (unit, the field of Sample that it fills); dcgmi's short names;
others, without a unit."""
_CSV_HEADER = re.compile(
    r"[\s\ufeff]*GPUId *, *TimeStampUs *, *Field *, *Values\s*\Z", re.IGNORECASE
)
_CSV_ROW = re.compile(r"\s*(\d{1,5})\s*,\s*(\d{1,19})\s*,\s*([^,]*?)\s*,\s*(\S.*?)\s*\Z", re.ASCII)
_TEXT_HEADER = re.compile(r"\s*#\s*Entity\s+\S", re.IGNORECASE)
_ENTITY = re.compile(r"\s*GPU[ -]?(\d{1,5})\s+(\S.*)\Z")
_UNITS_LINE = re.compile(r"[\s#]*I[Dd]\b")
_LINE_LIMIT = 4096
_MICROSECONDS = range(
    (YEARS.start - 1970) * 365 * 86_400 * 10**6, (YEARS.stop - 1970) * 365 * 86_400 * 10**6
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether one of the two headers is among the first lines."""
    lines = [line for line in decode_head_lines(head) if len(line) < _LINE_LIMIT]
    return any(_CSV_HEADER.match(line) or _TEXT_HEADER.match(line) for line in lines)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when no complete reading follows the header."""
    moments: dict[tuple[Timestamp | None, int, int], Cells] = {}
    gaps = []
    text = MonitorTextFile(path, TOOL)
    for moment, cells in _read_timestamped_cells(text):
        if not text.ends_whole and cells[-1][1][-1].isdigit():
            gaps.append(make_truncated_last_cell_gap(cells.pop()[0].name))
        moments.setdefault(moment, []).extend(cells)
    readings = DeviceReadings(text.interval_ns)
    for (stamp, number, device), cells in moments.items():
        if cells:
            readings.add_reading(stamp, number, device, cells)
    if not readings.samples and not readings.summary_column_names:
        reason = "the DCGM header has no complete sample below it"
        raise ReportError(path, TOOL, reason, "Run dcgmi longer")
    readings.samples.sort(key=lambda sample: sample.at_ns)
    fields = list_unknown_names(
        readings.summary_column_names, _KNOWN["fields"], _KNOWN["without_unit"]
    )
    return text.make_report(
        "DCGM CSV" if readings.first_and_last_ns else "dcgmi dmon",
        readings,
        gaps,
        missing_devices_reason="DCGM's output does not name the devices",
        trailing_diagnostics=make_unknown_names_warning({"fields": fields}, "kept without a unit"),
    )


def _read_timestamped_cells(
    text: MonitorTextFile,
) -> Iterator[tuple[tuple[Timestamp | None, int, int], Cells]]:
    """Yield each cell of the CSV, whose GPU and time may be those of cells before it, and each row
    of the text: time, number of the round and GPU, and cells."""
    columns: list[FieldColumn] = []
    rounds = RoundCounter()
    for line in text:
        start = line[:_LINE_LIMIT]
        is_long = len(line) >= _LINE_LIMIT
        entity, cell = (None if is_long else form.match(line) for form in (_ENTITY, _CSV_ROW))
        cells = entity[2].split() if entity else []
        if _TEXT_HEADER.match(start) and not is_long:
            names = line.replace("#", " ", 1).split()[1:]
            columns = [_make_field_column(_KNOWN["short_names"].get(name, name)) for name in names]
        elif entity and len(cells) == len(columns):
            device = int(entity[1])
            row = list(zip(columns, cells, strict=True))
            yield (None, rounds.assign_round_number(device), device), row
        elif cell and int(cell[2]) in _MICROSECONDS:
            stamp = Timestamp(int(cell[2]) * 1000, zoned=True)
            yield (stamp, 0, int(cell[1])), [(_make_field_column(cell[3]), cell[4])]
        elif line.strip() and not _UNITS_LINE.match(start) and not _CSV_HEADER.match(start):
            text.record_stray_line(line)


@lru_cache(maxsize=1024)
def _make_field_column(name: str) -> FieldColumn:
    unit, quantity = _KNOWN["fields"].get(name, ("", None))
    return FieldColumn(name, unit, quantity)
