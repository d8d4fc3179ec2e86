"""The table that plain ``nvidia-smi`` prints, once or many times in one file.

Two lines (a third with MIG, since 450) a GPU inside three cells; the first line of each pair has the index, the name
(cut off with "..." by older drivers) and the bus id. ``Thu Jun 22 18:56:56 2023`` above a table is its time. Seen:
570.133; the layouts of 390 to 560, which differ in widths, are read by what stands in the cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import Column, MonitorText, Readings, report
from perfctl.parsers.text.doubts import not_understood, others, words
from perfctl.parsers.text.numbers import Stamp, read_stamp
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Report

TOOL = "nvidia-smi"
_TITLE = re.compile(
    r"\|\s*NVIDIA-SMI (?P<smi>[\w.]+)\s+(?:KMD|Driver) Version: (?P<driver>[\w.]+)(?:\s+CUDA (?:UMD )?Version: (?P<cuda>[\w./]+))?"
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
    r"(?P<index>\d{1,4})\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d{1,10})\s+(?P<type>C\+G|M\+C|[CGM])\s+"
    r"(?P<name>\S.*?)\s+(?P<memory>\d{1,9}MiB|N/A)\Z"
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
    "GPU Name Persistence-M TCC/WDDM Driver-Model Bus-Id Disp.A Volatile Uncorr. ECC Fan Temp Perf Pwr:Usage/Cap"
    " Memory-Usage GPU-Util Compute M. MIG Processes: PID Type Process name Memory GI CI ID Usage No running processes"
    " found Not Supported devices: devices Dev Shared Vol SM Unc CE ENC DEC OFA JPG BAR1-Usage Memory"
)
_ROW = re.compile(r"\d+\s")
"""Begins a row of a process that has no figure."""
_MIG_STATES = frozenset(("", "N/A", "Enabled", "Enabled*", "Disabled", "Disabled*", "ERR!"))
_MOST_STRANGE = 100
_ENVIRONMENT = {"driver_version": "driver", "cuda_driver": "cuda"}
_LINE_LIMIT = 300
"""Longest line that can be part of the table (its lines are 79 or 91 wide): a bound for the patterns above."""


def recognise(found: list[str]) -> bool:
    """Return whether the title of the table is among these lines."""
    return any(_TITLE.match(line) for line in found if len(line) < _LINE_LIMIT)


def parse(path: Path) -> Report:
    """Raises ReportError when there is no GPU in any table."""
    text = MonitorText(path, TOOL)
    tables = _Tables(text)
    for line in text:
        tables.take(line.strip() if len(line) < _LINE_LIMIT else "")
    tables.end_pair()
    readings, versions = tables.readings, tables.versions
    if not readings.samples:
        raise ReportError(path, TOOL, "nvidia-smi's table has no complete row of a GPU", "Copy the file again")
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
        notes=[Diagnostic("info", "perfctl", "nvidia-smi's table rounds to whole watts, percent and degrees")],
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
        cells = [cell.strip() for cell in line.split("|")[1:-1]] if line[:1] == "|" == line[-1:] else []
        if title := _TITLE.match(line):
            self.end_pair()
            self.table, self.is_below = self.table + 1, False
            self.versions = {key: value for key, value in title.groupdict().items() if value} | self.versions
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
                self._gpu(self.pending, values.groupdict() | (memory.groupdict() if memory else {}) | work.groupdict())
        elif len(cells) == 1 and (process := _PROCESS.match(cells[0])):
            column = Column(f"process {process['name']}: memory")
            self.readings.add(0, int(process["index"]), [(column, process["memory"])])
        elif len(self.unknown_words) < _MOST_STRANGE:
            self._note_unknown(cells)

    def _note_unknown(self, cells: list[str]) -> None:
        """A line that gives no reading: are its words those of a header, of a third line (MIG) or of a process table?"""
        if len(cells) == 1 or not self.is_below:
            if not _ROW.match(cells[0]):
                parts = " ".join(cells).replace("=+", "=").replace("=", " ").split()
                self.unknown_words |= dict.fromkeys(others(parts, _HEADER_WORDS))
        elif len(cells) == 3 and self.pending is None and (any(cells[:2]) or cells[2] not in _MIG_STATES):
            self.unknown_words[" | ".join(cells)] = None

    def _gpu(self, pending: tuple[int, str, str], values: dict[str, str]) -> None:
        index, name, ecc = pending
        self.pending = None
        cells = [(column, values.get(key, "N/A")) for key, column in _COLUMNS.items()]
        at_ns = self.readings.clock.at(self.stamp, self.table)
        self.readings.add(at_ns, index, [*cells, (Column("ecc.errors.uncorrected.volatile"), ecc)])
        self.names.setdefault(index, name)
