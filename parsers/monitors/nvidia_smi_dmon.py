"""The rolling lists ``nvidia-smi dmon`` and ``nvidia-smi pmon``, as text or ``--format csv``.

Columns depend on -s and the driver and are found by the line "# gpu ...", which is repeated every few rows;
the line below it has the units. -o D, T puts the date and the time first. "-" is no value. fb and the other MB columns
are 2**20 bytes (NVML's figures, divided by 1024 twice). Layouts from 390 to 580 were seen in print, not as real files.

pmon lists processes: their figures become summaries by process name, and the sm column, added up over the processes
of a GPU, the sample's utilisation; above 100 % that sum means nothing and stays empty.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import Clock, Column, MonitorText, Readings, is_nothing, read_cell
from perfctl.parsers.text.doubts import not_understood, others
from perfctl.parsers.text.numbers import Stamp, read_stamp
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report

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


@dataclass(frozen=True, slots=True)
class _Header:
    names: tuple[str, ...]
    """Lower case; "gpu" is one of them."""
    by_comma: bool

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
    clock = Clock(text.interval_ns)
    moments = _Moments(clock)
    is_pmon = rows[-1][0].is_pmon
    # columns in no list: dmon's become figures without a unit, pmon's are left out
    unknown = [
        name for header in dict.fromkeys(header for header, _ in rows) for name in others(header.names, _UNITS, _CODES)
    ]
    summed = "gpu_utilisation is the sum of pmon's sm over the processes of a GPU; it is empty for a GPU without such a process"
    groups: list[tuple[int, int | None, list[tuple[_Header, list[str]]]]] = []
    for header, cells in rows:
        device = _index(cells[header.names.index("gpu")])
        at_ns = moments.at(header, cells, device)
        if groups and groups[-1][:2] == (at_ns, device) and header.is_pmon:
            groups[-1][2].append((header, cells))
        else:
            groups.append((at_ns, device, [(header, cells)]))
    for at_ns, device, members in groups:
        readings.add(at_ns, device, _processes(members) if members[0][0].is_pmon else _cells(*members[0]))
    return Report(
        tool=TOOL,
        path=path,
        form="nvidia-smi pmon" if is_pmon else "nvidia-smi dmon",
        samples=readings.samples,
        summaries=tuple(readings.summaries()),
        gaps=(
            *clock.gaps(),
            *readings.gaps(),
            Gap("device", "not_available", "dmon and pmon do not print device names"),
        ),
        diagnostics=(
            *clock.diagnostics(),
            *([Diagnostic("info", "perfctl", summed)] if is_pmon else ()),
            *readings.diagnostics(),
            *text.diagnostics(),
            *not_understood({"columns": unknown}, "kept without a unit, if at all"),
        ),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns,
    )


def _rows(text: MonitorText) -> list[tuple[_Header, list[str]]]:
    """Every row below a header that has all its cells; a command may have blanks."""
    rows: list[tuple[_Header, list[str]]] = []
    header: _Header | None = None
    last_is_row = False
    for line in text:
        last_is_row = False
        if found := _header(line):
            header = found
            continue
        if line.lstrip().startswith("#"):
            continue
        cells = _split(line, header.by_comma) if header and len(line) <= _LINE_LIMIT else []
        if header and header.names[-1] == "command" and len(cells) > len(header.names):
            last = len(header.names) - 1
            cells = [*cells[:last], " ".join(cells[last:])]
        if header and len(cells) == len(header.names) and _index(cells[header.names.index("gpu")]) is not None:
            rows.append((header, cells))
            last_is_row = True
        elif line.strip():
            text.stray(line)
    if last_is_row and not text.ends_whole and rows[-1][1][-1].isdigit():
        rows[-1][1][-1] = "-"  # the file ends within this number
    return rows


class _Moments:
    """``at_ns`` of rows: all GPUs of one round have the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._round = -1
        self._seen: set[tuple[int | None, str]] = set()
        self._days = 0
        self._last = 0

    def at(self, header: _Header, cells: list[str], device: int | None) -> int:
        key = (device, cells[header.names.index("pid")] if header.is_pmon else "")
        # a GPU with a lower number than one of this round begins the next: pmon lists processes that change
        is_earlier = device is not None and any(seen is not None and seen > device for seen, _ in self._seen)
        if key in self._seen or self._round < 0 or is_earlier:
            self._round += 1
            self._seen = set()
        self._seen.add(key)
        named = dict(zip(header.names, cells, strict=True))
        return self._clock.at(self._stamp(named.get("date"), named.get("time")), self._round)

    def _stamp(self, date: str | None, time: str | None) -> Stamp | None:
        if date:
            return read_stamp(f"{date} {time or '00:00:00'}")
        match = _TIME_OF_DAY.match(time or "")
        if match is None:
            return None
        self._clock.since_midnight = True
        ns = (int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3])) * 10**9
        if ns < self._last - _DAY_NS // 2:
            self._days += 1
        self._last = ns
        return Stamp(self._days * _DAY_NS + ns, zoned=False)


def _cells(header: _Header, cells: list[str]) -> list[tuple[Column, str]]:
    """A row of dmon. Codes 0 and 1 and counts of errors have no unit."""
    return [
        (Column(name, _UNITS.get(name, ""), _QUANTITY.get(name)), cell)
        for name, cell in zip(header.names, cells, strict=True)
        if name not in ("gpu", "date", "time")
    ]


def _processes(members: list[tuple[_Header, list[str]]]) -> list[tuple[Column, str]]:
    """The processes of one GPU at one moment: figures by process name, and the sum of their sm."""
    found: list[tuple[Column, str]] = []
    sums: list[float] = []
    for header, cells in members:
        named = dict(zip(header.names, cells, strict=True))
        command = named.get("command", "")
        if is_nothing(named["pid"]):
            continue
        share, _ = read_cell(named.get("sm", "-"), "%")
        if share is not None:
            sums.append(share)
        for name in ("sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "ccpm"):
            if name in named:
                found.append((Column(f"process {command}: {name}", _UNITS[name]), named[name]))
    if "sm" not in members[0][0].names:
        return found
    shown = f"{sum(sums):g}" if sums else "-"
    return [(Column("sm", "%", monitor.UTILISATION), shown), *found]


def _index(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
