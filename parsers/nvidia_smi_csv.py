"""``nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]``.

nvidia-smi quotes nothing and parts cells by ", ". Without units the header still has them ("utilization.gpu [%]");
without a header the columns are told by their units as far as only one reading makes sense
(:mod:`nvidia_smi_headless`). A header again, or a line that ``date`` printed, begins another round.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.monitor_text import Clock, Text
from perfctl.parsers.nvidia_smi_headless import guess, is_row
from perfctl.parsers.nvidia_smi_rows import Placer, Row, devices_of, environment_of
from perfctl.parsers.readings import (
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    SM_CLOCK,
    TEMPERATURE,
    UTILISATION,
    Column,
    Readings,
    read_cell,
)
from perfctl.parsers.records import Diagnostic, Gap, Report
from perfctl.parsers.timestamps import day_is_first, read_stamp

TOOL = "nvidia-smi"
_QUANTITY = {
    "utilization.gpu": UTILISATION,
    "memory.used": MEMORY_USED,
    "memory.total": MEMORY_TOTAL,
    "temperature.gpu": TEMPERATURE,
    "clocks.current.sm": SM_CLOCK,
    "clocks.sm": SM_CLOCK,
}
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
"""The first of them that a header has is the sample's power; power.draw is what older drivers have alone."""
_UNITS = {"temperature.gpu": "C", "temperature.memory": "C", "temperature.gpu.tlimit": "C"}
"""Columns that are printed without a unit, header and cell."""
_IDENTITY = {
    "timestamp",
    "index",
    "name",
    "gpu_name",
    "count",
    "pci.bus_id",
    "gpu_bus_id",
    "uuid",
    "gpu_uuid",
    "driver_version",
}
_KNOWN = {
    *_QUANTITY,
    *_POWER,
    "utilization.memory",
    "memory.free",
    "power.limit",
    "fan.speed",
    "pstate",
    "clocks.current.memory",
}
_CELLS_KNOWN = 100_000
_HEADER_CELL = re.compile(r"([a-z][a-z0-9_.]{1,60})(?: \[([^\]]{1,12})\])?\Z")


def read_header(line: str) -> tuple[Column, ...] | None:
    """The columns of a header line; None for any other line."""
    if "," not in line and "[" not in line:
        return None
    matches = [_HEADER_CELL.match(cell.strip().lstrip("\ufeff")) for cell in line.split(",")]
    cells = [(match[1], match[2] or "") for match in matches if match]
    names = [name for name, _ in cells]
    if len(cells) < len(matches) or not _KNOWN.intersection(names):
        return None
    power = next((name for name in _POWER if name in names), None)
    quantities = _QUANTITY | ({power: POWER} if power else {})
    return tuple(Column(name, unit or _UNITS.get(name, ""), quantities.get(name)) for name, unit in cells)


def recognise(found: list[str]) -> bool:
    """Is there a header among these lines, or does the text begin with rows of it?"""
    if any(read_header(line) for line in found if len(line) < 4096):
        return True
    rows = [line for line in found if line.strip() and read_stamp(line) is None][:3]
    return bool(rows) and all(is_row(line) for line in rows)


def parse(path: Path) -> Report:
    text = Text(path)
    rows, has_header, ends_in_row = _rows(text)
    guesses: list[Diagnostic] = []
    gaps: list[Gap] = []
    if not has_header:
        columns, guesses, gaps = guess([row.cells for row in rows], path)
        for row in rows:
            row.columns = columns
    if not rows:
        raise ReportError(path, TOOL, "there is a header and no whole row below it", "Let nvidia-smi run longer")
    if ends_in_row and not text.ends_whole:
        gaps += _drop_half_cell(rows[-1])
    return _report(text, rows, gaps, guesses)


def _rows(text: Text) -> tuple[list[Row], bool, bool]:
    """(the rows, whether a header told their columns, whether the last line is a row)"""
    rows: list[Row] = []
    columns: tuple[Column, ...] = ()
    date: str | None = None
    number = place = 0
    is_last = False
    known: dict[str, str] = {}  # most cells stand there again and again: one copy of each is enough
    for line in text:
        is_last = False
        header = read_header(line) if len(line) < 4096 else None
        if header:
            columns, number, place = header, number + 1, 0
            continue
        if read_stamp(line) is not None:
            date, number, place = line.strip(), number + 1, 0
            continue
        cells = [cell.strip() for cell in line.split(",")] if len(line) < 4096 else []
        wanted = len(columns) or (len(rows[0].cells) if rows else 0)
        if (cells and len(cells) == wanted) or (not wanted and is_row(line)):
            cells = [known.setdefault(cell, cell) if len(known) < _CELLS_KNOWN else cell for cell in cells]
            rows.append(Row(columns, cells, date, number, place))
            place += 1
            is_last = True
        elif line.strip():
            text.stray(line)
    return [row for row in rows if row.columns] or rows, bool(columns), is_last


def _drop_half_cell(row: Row) -> list[Gap]:
    """The file ends within a line: its last number may be half there, unless its unit follows it."""
    column = row.columns[-1]
    number, _ = read_cell(row.cells[-1], column.unit)
    if number is None or not row.cells[-1][-1].isdigit():
        return []
    row.cells[-1] = ""
    return [Gap(f"sample:{column.name}", "unreadable", "the file ends within its last number, which is left out")]


def _report(text: Text, rows: list[Row], gaps: list[Gap], told: list[Diagnostic]) -> Report:
    readings = Readings()
    clock = Clock(text.interval_ns)
    placer = Placer(rows)
    devices: dict[int | None, dict[str, str]] = {}
    day_first = day_is_first(shown for row in rows if (shown := row.date or row.cell("timestamp")))
    if day_first is None:
        gaps.append(
            Gap("sample.at_ns", "ambiguous", "'03-11-2026' was taken as month first: nothing in the file decides")
        )
    for row in rows:
        device, number = placer.place(row)
        stamp = read_stamp(row.cell("timestamp") or row.date or "", day_first=bool(day_first))
        facts = devices.setdefault(device, {})
        cells = []
        for column, cell in zip(row.columns, row.cells, strict=True):
            if column.name in _IDENTITY:
                facts.setdefault(column.name, cell)
            else:
                cells.append((column, cell))
        readings.add(clock.at(stamp, number), device, cells)
    return Report(
        tool=TOOL,
        path=text.path,
        form="nvidia-smi CSV" if not told else "nvidia-smi CSV, no header",
        devices=devices_of(devices, readings.samples),
        environment=environment_of(devices),
        samples=readings.samples,
        summaries=tuple(readings.summaries()),
        gaps=(*gaps, *clock.gaps(), *placer.gaps(), *readings.gaps()),
        diagnostics=(*told, *clock.diagnostics(), *placer.diagnostics(), *others(readings), *text.diagnostics()),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns,
    )


def others(readings: Readings) -> list[Diagnostic]:
    """Says which columns became summaries."""
    if not readings.others:
        return []
    text = f"kept as summaries, mean, min and max over the file: {', '.join(readings.others[:40])}"
    return [Diagnostic("info", "perfctl", text)]
