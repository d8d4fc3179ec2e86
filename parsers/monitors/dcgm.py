"""Output of DCGM's monitors: ``dcgmi dmon`` as text, and the long CSV
"GPUId,TimeStampUs,Field,Values".

The CSV has one row per field and time (microseconds since the epoch), GPU by GPU: samples are
assembled by GPU and time, and sorted by time. dcgmi's text has short names, a line of units below
them and no timestamps; the header is repeated every few rows. Framebuffer sizes are MiB in both.
The fields gpu_utilization and GPUTL are NVML's utilisation; activities such as SMACT (0 to 1)
measure something else and become summaries.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from perfctl.parsers.monitors.readings import (
    Cells,
    MonitorText,
    Readings,
    half,
    ordinal,
    report,
)
from perfctl.parsers.text.doubts import not_understood, others
from perfctl.parsers.text.lines import HEAD_BYTES, head_lines
from perfctl.parsers.text.numbers import YEARS, Stamp
from perfctl.parsers.text.tables import Column
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Report

TOOL = "dcgm"
_KNOWN: Any = json.loads(Path(__file__).with_name("dcgm.json").read_text())
"""Names in DCGM's list of fields -> (unit, the field of Sample that it fills); dcgmi's short names;
others, without a unit."""
_CSV_HEADER = ("gpuid", "timestampus", "field", "values")
_TEXT_HEADER = re.compile(r"\s*#\s*Entity\s+\S", re.IGNORECASE)
_ENTITY = re.compile(r"\s*GPU[ -]?(\d{1,5})\s+(\S.*)\Z")
_UNITS_LINE = re.compile(r"[\s#]*I[Dd]\b")
_LINE_LIMIT = 4096
_MICROSECONDS = range(
    (YEARS.start - 1970) * 365 * 86_400 * 10**6, (YEARS.stop - 1970) * 365 * 86_400 * 10**6
)

Moments = dict[tuple[int, int], Cells]
"""(ns, or number of the round; GPU) -> cells, in the order of the file."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether one of the two headers is among the first lines."""
    return any(
        _is_csv_header(line) or _TEXT_HEADER.match(line)
        for line in head_lines(head)
        if len(line) < _LINE_LIMIT
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when no complete reading follows the header."""
    with readable(path, TOOL):
        with path.open("rb") as file:
            is_csv = any(map(_is_csv_header, head_lines(file.read(HEAD_BYTES))))
        text = MonitorText(path, TOOL)
        moments, last = _read_csv(text) if is_csv else _read_text(text)
    gaps = (
        [half(last.pop()[0].name)]
        if last and not text.ends_whole and last[-1][1][-1].isdigit()
        else []
    )
    readings = Readings()
    clock = readings.clock
    clock.interval_ns = text.interval_ns
    for (when, device), cells in moments.items():
        if cells:
            at_ns = clock.at(Stamp(when, zoned=True), 0) if is_csv else clock.at(None, when)
            readings.add(at_ns, device, cells)
    if not readings.samples and not readings.figure_names:
        raise ReportError(
            path, TOOL, "the DCGM header has no complete reading below it", "Let it run longer"
        )
    readings.samples.sort(key=lambda sample: sample.at_ns)
    fields = others(readings.figure_names, _KNOWN["fields"], _KNOWN["without_unit"])
    return report(
        TOOL,
        "DCGM CSV" if is_csv else "dcgmi dmon",
        text,
        readings,
        gaps=gaps,
        no_devices="DCGM's output does not name the devices",
        unknown=not_understood({"fields": fields}, "kept without a unit"),
    )


def _is_csv_header(line: str) -> bool:
    return tuple(cell.strip().lower().lstrip("\ufeff") for cell in line.split(",")) == _CSV_HEADER


def _read_csv(text: MonitorText) -> tuple[Moments, Cells | None]:
    """Cells grouped by GPU and time, and the group of the last line where that is a cell."""
    moments: Moments = {}
    columns: dict[str, Column] = {}
    last: Cells | None = None
    for line in text:
        cells = [cell.strip() for cell in line.split(",", 3)] if len(line) < _LINE_LIMIT else []
        gpu, at = (
            (ordinal(cells[0]), ordinal(cells[1], 19))
            if len(cells) == 4 and cells[3]
            else (None, None)
        )
        last = None
        if gpu is not None and at is not None and at in _MICROSECONDS:
            last = moments.setdefault((at * 1000, gpu), [])
            last.append((columns.setdefault(cells[2], _column(cells[2])), cells[3]))
        elif line.strip() and not _is_csv_header(line[:_LINE_LIMIT]):
            text.stray(line)
    return moments, last


def _read_text(text: MonitorText) -> tuple[Moments, Cells | None]:
    """Rows, and the last one where it is the last line. A GPU that the current round already has
    begins the next round."""
    columns: list[Column] = []
    moments: Moments = {}
    number = 0
    last: Cells | None = None
    for line in text:
        last = None
        if len(line) < _LINE_LIMIT and _TEXT_HEADER.match(line):
            columns = [
                _column(_KNOWN["short_names"].get(name, name))
                for name in line.replace("#", " ", 1).split()[1:]
            ]
            continue
        entity = _ENTITY.match(line) if len(line) < _LINE_LIMIT else None
        cells = entity[2].split() if entity else []
        if entity and len(cells) == len(columns):
            number += (number, int(entity[1])) in moments
            last = moments[number, int(entity[1])] = list(zip(columns, cells, strict=True))
        elif line.strip() and not _UNITS_LINE.match(line[:_LINE_LIMIT]):
            text.stray(line)
    return moments, last


def _column(name: str) -> Column:
    unit, quantity = _KNOWN["fields"].get(name, ("", None))
    return Column(name, unit, quantity)
