"""The rolling lists ``nvidia-smi dmon`` and ``nvidia-smi pmon``, as text or ``--format csv``.

Columns depend on -s and the driver and are found by the line "# gpu ...", which is repeated every few rows, with units
below it. -o D, T puts the date and the time first. "-" is no value; MB is 2**20 bytes. Layouts from 390 to 580 were seen
in print, not as real files. pmon lists processes: their figures become summaries by process name, and the sm column,
added up over the processes of a GPU, the sample's utilisation; above 100 % that sum means nothing and stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import Cells, Clock, Column, MonitorText, Readings, ordinal, report
from perfctl.parsers.text.doubts import not_understood, several
from perfctl.parsers.text.doubts import others as unlisted
from perfctl.parsers.text.numbers import Stamp, read_stamp
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

TOOL = "nvidia-smi"
_QUANTITY = {
    "pwr": monitor.POWER, "gtemp": monitor.TEMPERATURE, "temp": monitor.TEMPERATURE, "sm": monitor.UTILISATION,
    "pclk": monitor.SM_CLOCK, "fb": monitor.MEMORY_USED,
}  # fmt: skip
_UNITS = {
    "pwr": "W", "gtemp": "C", "temp": "C", "mtemp": "C", "sm": "%", "mem": "%", "enc": "%", "dec": "%", "jpg": "%",
    "ofa": "%", "pclk": "MHz", "mclk": "MHz", "fb": "MiB", "bar1": "MiB", "ccpm": "MiB", "pviol": "%", "rxpci": "MB/s",
    "txpci": "MB/s",
}  # fmt: skip
"""Units by the tool's own manual, for files that do not have the line of units; they are the same in all versions."""
_CODES = frozenset(("gpu", "date", "time", "idx", "pid", "type", "command", "tviol", "sbecc", "dbecc", "pci"))
"""Columns without a unit."""
_HEADER = re.compile(
    r"\s*#\s*(?:date|time|gpu)\b.*\b(?:sm|mem|pid|pwr|gtemp|temp|mclk|fb|pviol|rxpci|sbecc)\b", re.IGNORECASE
)
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})\Z")
_DAY_NS = 86_400 * 10**9
_LINE_LIMIT = 4096
_ROUNDS = 8
"""dmon prints its header again after more rounds than this: a header below fewer, and below another program's output,
begins another log."""
_INTERRUPT = re.compile(r"\s*(?:(?:\^C|\x03)\s*)+")
"""What a terminal shows of Ctrl-C; a last row may follow in the same line."""


class _Header(NamedTuple):
    names: tuple[str, ...]
    """Lower case; "gpu" is one of them."""
    by_comma: bool

    @property
    def gpu(self) -> int:
        """The place of its column."""
        return self.names.index("gpu")

    @property
    def is_pmon(self) -> bool:
        return "pid" in self.names


def recognise(found: list[str]) -> bool:
    """Return whether there is a line "# gpu ..." with columns of dmon or pmon."""
    return any(_header(line) for line in found)


def _header(line: str) -> _Header | None:
    if len(line) > _LINE_LIMIT or _HEADER.match(line) is None:
        return None
    by_comma = "," in line
    names = tuple(name.lower() for name in _split(line.lstrip(" #"), by_comma))
    known = sum(name in _UNITS or name in ("pid", "type", "command") for name in names)
    return _Header(names, by_comma) if "gpu" in names and known >= 1 else None


def _split(line: str, by_comma: bool) -> list[str]:
    return [cell.strip() for cell in line.split(",")] if by_comma else line.split()


def parse(path: Path) -> Report:
    """Raises ReportError when no row follows a header."""
    text = MonitorText(path, TOOL)
    rows = _rows(text)
    if not rows:
        raise ReportError(path, TOOL, "the header of dmon or pmon has no complete row below it", "Let it run longer")
    readings = Readings()
    readings.clock.interval_ns = text.interval_ns
    is_pmon = rows[-1][0].is_pmon
    headers = dict.fromkeys(header for header, _ in rows)
    # columns in no list: dmon's become figures without a unit, pmon's are left out
    unknown = [name for header in headers for name in unlisted(header.names, _UNITS, _CODES)]
    summed = "gpu_utilisation is the sum of pmon's sm over the processes of a GPU; it is empty for a GPU without such a process"
    for (at_ns, device, row), members in groupby(_moments(rows, readings.clock), key=lambda moment: moment[:3]):
        of_gpu = [named for *_, named in members]
        readings.add(at_ns, device, _processes(of_gpu) if row is None else _cells(of_gpu[0]))
    return report(
        TOOL,
        "nvidia-smi pmon" if is_pmon else "nvidia-smi dmon",
        text,
        readings,
        no_devices="dmon and pmon do not print device names",
        notes=[Diagnostic("info", "perfctl", summed)] if is_pmon else (),
        unknown=not_understood({"columns": unknown}, "kept without a unit, if at all"),
    )


def _rows(text: MonitorText) -> list[tuple[_Header, list[str]]]:
    """Every row below a header that has all its cells; a command may have blanks. Raises ReportError for several logs."""
    rows: list[tuple[_Header, list[str]]] = []
    starts: list[int] = []
    begun, others = 0, 0
    """Rows before the last header; the line at which another program's output begins below the last row, or 0."""
    header: _Header | None = None
    last_is_row = False
    for line in text:
        last_is_row = False
        if interrupt := _INTERRUPT.match(line):
            line = line[interrupt.end() :]
        if found := _header(line):
            if others and 0 < _rounds(rows[begun:]) < _ROUNDS:
                starts.append(others)
            header, begun, others = found, len(rows), 0
            continue
        if line.lstrip().startswith("#"):
            continue
        cells = _split(line, header.by_comma) if header and len(line) <= _LINE_LIMIT else []
        if header and header.names[-1] == "command" and len(cells) > len(header.names):
            last = len(header.names) - 1
            cells = [*cells[:last], " ".join(cells[last:])]
        if header and len(cells) == len(header.names) and ordinal(cells[header.gpu]) is not None:
            rows.append((header, cells))
            last_is_row, others = True, 0
        elif line.strip():
            others = others or (text.line if rows else 0)
            text.stray(line)
    if starts:
        raise several(text.path, TOOL, starts)
    if last_is_row and not text.ends_whole and rows[-1][1][-1].isdigit():  # the file ends within this number
        if rows[-1][0].gpu == len(rows[-1][1]) - 1:
            rows.pop()
            text.stray(line)
        else:
            rows[-1][1][-1] = "-"
    return rows


def _rounds(rows: list[tuple[_Header, list[str]]]) -> int:
    """How often the GPU that is read most often was read."""
    gpus = [cells[header.gpu] for header, cells in rows]
    return max(map(gpus.count, set(gpus)), default=0)


def _moments(
    rows: list[tuple[_Header, list[str]]], clock: Clock
) -> Iterator[tuple[int, int | None, int | None, dict[str, str]]]:
    """(time, GPU, number of a row of dmon, cells by name) of each row; all GPUs of one round have the same time."""
    number, days, last = -1, 0, 0
    seen: set[tuple[int, str]] = set()
    for row, (header, cells) in enumerate(rows):
        named = dict(zip(header.names, cells, strict=True))
        device = int(cells[header.gpu])
        key = (device, named.get("pid", ""))
        # a GPU with a lower number than one of this round begins the next: pmon lists processes that change
        if key in seen or number < 0 or any(earlier > device for earlier, _ in seen):
            number, seen = number + 1, set()
        seen.add(key)
        date, time = named.get("date"), named.get("time", "")
        stamp = read_stamp(f"{date} {time or '00:00:00'}") if date else None
        if not date and (match := _TIME_OF_DAY.match(time)):
            clock.since_midnight = True
            ns = (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])) * 10**9
            days += ns < last - _DAY_NS // 2
            last = ns
            stamp = Stamp(days * _DAY_NS + ns, zoned=False)
        yield clock.at(stamp, number), device, None if header.is_pmon else row, named


def _cells(named: dict[str, str]) -> Cells:
    """A row of dmon. Codes 0 and 1 and counts of errors have no unit."""
    return [
        (Column(name, _UNITS.get(name, ""), _QUANTITY.get(name)), cell)
        for name, cell in named.items()
        if name not in ("gpu", "date", "time")
    ]


def _processes(members: list[dict[str, str]]) -> Cells:
    """The processes of one GPU at one moment: figures by process name, and the sum of their sm."""
    running = [named for named in members if not monitor.is_nothing(named["pid"])]
    figures = ("sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "ccpm")
    found = [
        (Column(f"process {named.get('command', '')}: {name}", _UNITS[name]), named[name])
        for named in running
        for name in figures
        if name in named
    ]
    if "sm" not in members[0]:
        return found
    shares = [share for named in running if (share := monitor.read_cell(named.get("sm", "-"), "%")[0]) is not None]
    return [(Column("sm", "%", monitor.UTILISATION), f"{sum(shares):g}" if shares else "-"), *found]
