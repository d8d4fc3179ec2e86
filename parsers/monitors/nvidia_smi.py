"""Parser of nvidia-smi's output, in every form that ends up in files.

``--query-gpu`` CSV (``nvidia_smi_query``: with and without header and units, header repeated by
loops, several GPUs in turn), the table that it prints without options, and the rolling lists
``dmon`` and ``pmon``. Timestamps are the local time of the machine without a zone: they are taken
as written, as if they were UTC, and a diagnostic says so.

The table has two lines (a third with MIG, since 450) a GPU inside three cells; the first line of
each pair has the index, the name (cut off with "..." by older drivers) and the bus id.
``Thu Jun 22 18:56:56 2023`` above a table is its time. Seen: 570.133; the layouts of 390 to 560,
which differ in widths, are read by what stands in the cells.

Columns of the lists depend on -s and the driver and are found by the line "# gpu ...", which is
repeated every few rows, with units below it. -o D, T puts the date and the time first. "-" is no
value; MB is 2**20 bytes. Layouts from 390 to 580 were seen in print, not as real files. pmon lists
processes: their figures become summaries by process name, and the sm column, added up over the
processes of a GPU, the sample's utilisation; above 100 % that sum means nothing and stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.monitors import nvidia_smi_query
from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import (
    Cells,
    Clock,
    MonitorText,
    Readings,
    ordinal,
    report,
)
from perfctl.parsers.text.doubts import not_understood, others, several, words
from perfctl.parsers.text.lines import HEAD_BYTES, head_lines
from perfctl.parsers.text.numbers import Stamp, is_nothing, read_quantity, read_stamp
from perfctl.parsers.text.tables import Column
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Device, Diagnostic, Gap, Report

TOOL = "nvidia-smi"
_TITLE = re.compile(
    r"\|\s*NVIDIA-SMI (?P<smi>[\w.]+)\s+(?:KMD|Driver) Version: (?P<driver>[\w.]+)(?:\s+CUDA "
    r"(?:UMD )?Version: (?P<cuda>[\w./]+))?"
)
_BUS = re.compile(r"(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d|N/A)\s+\S+\Z")
_NAME = re.compile(r"(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+\S+\Z")
_VALUE = r"(?:[\d.]+|N/A|ERR!|\[?Unknown Error\]?)"
_STATE = re.compile(
    rf"(?P<fan>{_VALUE}%?)\s+(?P<temperature>{_VALUE}C?)\s+(?P<perf>P\d+|N/A|ERR!)\s+"
    rf"(?P<draw>{_VALUE}W?)\s*/\s*(?P<limit>{_VALUE}W?)\Z"
)
_MEMORY = re.compile(rf"(?P<used>{_VALUE}(?:[KMG]iB)?)\s*/\s*(?P<total>{_VALUE}(?:[KMG]iB)?)\Z")
_WORK = re.compile(rf"(?P<gpu>{_VALUE}%?)\s+(?P<compute>\S.*)\Z")
_PROCESS = re.compile(
    r"(?P<index>\d{1,4})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d{1,10})\s+(?P<type>C\+G|M\+C|"
    r"[CGM])\s+(?P<name>\S.*?)\s+(?P<memory>\d{1,9}MiB|N/A)\Z"
)
_COLUMNS = {
    "gpu": Column("utilization.gpu", "%", monitor.UTILISATION),
    "used": Column("memory.used", "", monitor.MEMORY_USED),
    "total": Column("memory.total", "", monitor.MEMORY_TOTAL),
    "draw": Column("power.draw", "W", monitor.POWER),
    "temperature": Column("temperature.gpu", "C", monitor.TEMPERATURE),
    "fan": Column("fan.speed", "%"),
    "perf": Column("pstate"),
    "limit": Column("power.limit", "W"),
    "compute": Column("compute_mode"),
}
_HEADER_WORDS = words(
    "GPU Name Persistence-M TCC/WDDM Driver-Model Bus-Id Disp.A Volatile Uncorr. ECC Fan Temp Perf "
    "Pwr:Usage/Cap Memory-Usage GPU-Util Compute M. MIG Processes: PID Type Process name Memory GI "
    "CI ID Usage No running processes found Not Supported devices: devices Dev Shared Vol SM Unc "
    "CE ENC DEC OFA JPG BAR1-Usage Memory"
)
_ROW = re.compile(r"\d+\s")
"""Begins a row of a process that has no figure."""
_MIG_STATES = frozenset(("", "N/A", "Enabled", "Enabled*", "Disabled", "Disabled*", "ERR!"))
_MOST_STRANGE = 100
_ENVIRONMENT = {"driver_version": "driver", "cuda_driver": "cuda"}
_TABLE_LINE_LIMIT = 300
"""Longest line that can be part of the table (its lines are 79 or 91 wide): a bound for the
patterns above."""
_QUANTITY = {
    "pwr": monitor.POWER,
    "gtemp": monitor.TEMPERATURE,
    "temp": monitor.TEMPERATURE,
    "sm": monitor.UTILISATION,
    "pclk": monitor.SM_CLOCK,
    "fb": monitor.MEMORY_USED,
}
_UNITS = {
    "pwr": "W",
    "gtemp": "C",
    "temp": "C",
    "mtemp": "C",
    "sm": "%",
    "mem": "%",
    "enc": "%",
    "dec": "%",
    "jpg": "%",
    "ofa": "%",
    "pclk": "MHz",
    "mclk": "MHz",
    "fb": "MiB",
    "bar1": "MiB",
    "ccpm": "MiB",
    "pviol": "%",
    "rxpci": "MB/s",
    "txpci": "MB/s",
}
"""Units by the tool's own manual, for files that do not have the line of units; they are the same
in all versions."""
_CODES = frozenset(
    ("gpu", "date", "time", "idx", "pid", "type", "command", "tviol", "sbecc", "dbecc", "pci")
)
"""Columns without a unit."""
_HEADER = re.compile(
    r"\s*#\s*(?:date|time|gpu)\b.*\b(?:sm|mem|pid|pwr|gtemp|temp|mclk|fb|pviol|rxpci|sbecc)\b",
    re.IGNORECASE,
)
_TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})\Z")
_DAY_NS = 86_400 * 10**9
_LINE_LIMIT = 4096
_ROUNDS = 8
"""dmon prints its header again after more rounds than this: a header below fewer, and below another
program's output, begins another log."""
_INTERRUPT = re.compile(r"\s*(?:(?:\^C|\x03)\s*)+")
"""What a terminal shows of Ctrl-C; a last row may follow in the same line."""


def recognise_table(found: list[str]) -> bool:
    """Return whether the title of the table is among these lines."""
    return any(_TITLE.match(line) for line in found if len(line) < _TABLE_LINE_LIMIT)


def parse_table(path: Path) -> Report:
    """Raises ReportError when there is no GPU in any table."""
    text = MonitorText(path, TOOL)
    tables = _Tables(text)
    for line in text:
        tables.take(line.strip() if len(line) < _TABLE_LINE_LIMIT else "")
    tables.end_pair()
    readings, versions = tables.readings, tables.versions
    if not readings.samples:
        raise ReportError(
            path, TOOL, "nvidia-smi's table has no complete row of a GPU", "Copy the file again"
        )
    unread = Gap("sample", "unreadable", f"{tables.unread} GPUs have lines that could not be read")
    cut_names = [
        Gap("device.name", "unreadable", f"nvidia-smi cut off the name: '{name}'", f"GPU {index}")
        for index, name in tables.names.items()
        if name.endswith("...")
    ]
    found = report(
        TOOL,
        "nvidia-smi table",
        text,
        readings,
        gaps=[*([unread] if tables.unread else ()), *cut_names],
        notes=[
            Diagnostic(
                "info", "perfctl", "nvidia-smi's table rounds to whole watts, percent and degrees"
            )
        ],
        unknown=not_understood({"parts": tables.unknown_words}),
    )
    driver, sizes = versions.get("driver"), readings.sizes()
    return replace(
        found,
        tool_version=versions.get("smi"),
        devices=tuple(
            Device(name, "gpu", index, memory_bytes=sizes.get(index), driver_version=driver)
            for index, name in sorted(tables.names.items())
        ),
        environment={key: versions[name] for key, name in _ENVIRONMENT.items() if name in versions},
        duration_ns=found.duration_ns if tables.table > 0 else None,
    )


@dataclass(slots=True)
class _Tables:
    """Reads the lines of a file, one after another."""

    text: MonitorText
    readings: Readings = field(default_factory=Readings)
    names: dict[int, str] = field(default_factory=dict)
    """Of the GPUs, by index."""
    versions: dict[str, str] = field(default_factory=dict)
    stamp: Stamp | None = None
    table: int = -1
    """Number of the table, from 0."""
    pending: tuple[int, str, str] | None = None
    """(index, name, ECC cell) of a GPU whose second line is still to come."""
    unread: int = 0
    """Count of GPUs whose second line could not be read."""
    unknown_words: dict[str, None] = field(default_factory=dict)
    """Of headers and lines of the table."""
    is_below: bool = False
    """Whether a row of a GPU followed the title."""

    def take(self, line: str) -> None:
        """One line of the file."""
        cells = (
            [cell.strip() for cell in line.split("|")[1:-1]] if line[:1] == "|" == line[-1:] else []
        )
        if title := _TITLE.match(line):
            self.end_pair()
            self.table, self.is_below = self.table + 1, False
            self.versions = {
                key: value for key, value in title.groupdict().items() if value
            } | self.versions
        elif self.table >= 0 and cells:
            self._cells(cells)
        elif (stamp := read_stamp(line)) is not None:
            self.end_pair()
            self.stamp = stamp
        elif line and line[0] not in "+|":
            self.text.stray(line)

    def end_pair(self) -> None:
        """Count a GPU whose first line was read and whose second was not."""
        self.unread += self.pending is not None
        self.pending = None

    def _cells(self, cells: list[str]) -> None:
        """A line of the table: three cells for each line of a GPU, one for a process."""
        if len(cells) == 3 and (name := _NAME.match(cells[0])) and _BUS.match(cells[1]):
            self.end_pair()
            self.pending, self.is_below = (int(name["index"]), name["name"], cells[2]), True
        elif len(cells) == 3 and self.pending and (values := _STATE.match(cells[0])):
            if work := _WORK.match(cells[2]):
                memory = _MEMORY.match(cells[1])
                self._gpu(
                    self.pending,
                    values.groupdict() | (memory.groupdict() if memory else {}) | work.groupdict(),
                )
        elif len(cells) == 1 and (process := _PROCESS.match(cells[0])):
            column = Column(f"process {process['name']}: memory")
            self.readings.add(0, int(process["index"]), [(column, process["memory"])])
        elif len(self.unknown_words) < _MOST_STRANGE:
            self._note_unknown(cells)

    def _note_unknown(self, cells: list[str]) -> None:
        """A line that gives no reading: are its words those of a header, of a third line (MIG) or
        of a process table?"""
        if len(cells) == 1 or not self.is_below:
            if not _ROW.match(cells[0]):
                parts = " ".join(cells).replace("=+", "=").replace("=", " ").split()
                self.unknown_words |= dict.fromkeys(others(parts, _HEADER_WORDS))
        elif (
            len(cells) == 3
            and self.pending is None
            and (any(cells[:2]) or cells[2] not in _MIG_STATES)
        ):
            self.unknown_words[" | ".join(cells)] = None

    def _gpu(self, pending: tuple[int, str, str], values: dict[str, str]) -> None:
        index, name, ecc = pending
        self.pending = None
        cells = [(column, values.get(key, "N/A")) for key, column in _COLUMNS.items()]
        at_ns = self.readings.clock.at(self.stamp, self.table)
        self.readings.add(at_ns, index, [*cells, (Column("ecc.errors.uncorrected.volatile"), ecc)])
        self.names.setdefault(index, name)


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


def recognise_lists(found: list[str]) -> bool:
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


def parse_lists(path: Path) -> Report:
    """Raises ReportError when no row follows a header."""
    text = MonitorText(path, TOOL)
    rows = _rows(text)
    if not rows:
        raise ReportError(
            path,
            TOOL,
            "the header of dmon or pmon has no complete row below it",
            "Let it run longer",
        )
    readings = Readings()
    readings.clock.interval_ns = text.interval_ns
    is_pmon = rows[-1][0].is_pmon
    headers = dict.fromkeys(header for header, _ in rows)
    # columns in no list: dmon's become figures without a unit, pmon's are left out
    unknown = [name for header in headers for name in others(header.names, _UNITS, _CODES)]
    summed = (
        "gpu_utilisation is the sum of pmon's sm over the processes of a GPU; it is empty for a "
        "GPU without such a process"
    )
    for (at_ns, device, row), members in groupby(
        _moments(rows, readings.clock), key=lambda moment: moment[:3]
    ):
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
    """Every row below a header that has all its cells; a command may have blanks. Raises
    ReportError for several logs."""
    rows: list[tuple[_Header, list[str]]] = []
    starts: list[int] = []
    begun, others = 0, 0
    """Rows before the last header; the line at which another program's output begins below the last
    row, or 0."""
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
    # the file ends within this number
    if last_is_row and not text.ends_whole and rows[-1][1][-1].isdigit():
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
    """(time, GPU, number of a row of dmon, cells by name) of each row; all GPUs of one round have
    the same time."""
    number, days, last = -1, 0, 0
    seen: set[tuple[int, str]] = set()
    for row, (header, cells) in enumerate(rows):
        named = dict(zip(header.names, cells, strict=True))
        device = int(cells[header.gpu])
        key = (device, named.get("pid", ""))
        # a GPU with a lower number than one of this round begins the next: pmon lists processes
        # that change
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
    running = [named for named in members if not is_nothing(named["pid"])]
    figures = ("sm", "mem", "enc", "dec", "jpg", "ofa", "fb", "ccpm")
    found = [
        (Column(f"process {named.get('command', '')}: {name}", _UNITS[name]), named[name])
        for named in running
        for name in figures
        if name in named
    ]
    if "sm" not in members[0]:
        return found
    shares = [
        share
        for named in running
        if (share := read_quantity(named.get("sm", "-"), "%")[0]) is not None
    ]
    return [(Column("sm", "%", monitor.UTILISATION), f"{sum(shares):g}" if shares else "-"), *found]


_FORMS: tuple[tuple[Callable[[list[str]], bool], Callable[[Path], Report]], ...] = (
    (recognise_lists, parse_lists),
    (recognise_table, parse_table),
    (nvidia_smi_query.recognise, nvidia_smi_query.parse),
)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the first lines have one of nvidia-smi's headers, or rows of its CSV."""
    found = head_lines(head)
    return any(recognise(found) for recognise, _ in _FORMS)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete reading."""
    with readable(path, "nvidia-smi"):
        with path.open("rb") as file:
            found = head_lines(file.read(HEAD_BYTES))
        read = next((read for recognise, read in _FORMS if recognise(found)), None)
        if read is None:
            reason = "it holds no output of nvidia-smi"
            raise ReportError(path, "nvidia-smi", reason, "Pass the file that nvidia-smi wrote")
        return read(path)
