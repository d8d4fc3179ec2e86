"""The table that plain ``nvidia-smi`` prints, once or many times in one file.

Two lines (a third with MIG, since 450) a GPU inside three cells; the first line of each pair has the index, the name
(cut off with "..." by older drivers) and the bus id. ``Thu Jun 22 18:56:56 2023`` above a table is its time. Seen:
570.133; the layouts of 390 to 560, which differ in widths, are read by what stands in the cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import Clock, Column, MonitorText, Readings
from perfctl.parsers.text.doubts import not_understood, words
from perfctl.parsers.text.doubts import others as others_of
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
_LINE_LIMIT = 300
"""Longest line that can be part of the table (its lines are 79 or 91 wide): a bound for the patterns above."""


@dataclass(slots=True)
class _State:
    """State of the reader."""

    text: MonitorText
    readings: Readings = field(default_factory=Readings)
    devices: dict[int, Device] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    stamp: Stamp | None = None
    table: int = -1
    """Number of the table, from 0."""
    pending: tuple[int, str, str] | None = None
    """(index, name, ECC cell) of a GPU whose second line is still to come."""
    unread: int = 0
    """Count of GPUs whose second line could not be read."""
    unknown_words: dict[str, None] = field(default_factory=dict)
    """Unknown words in headers and lines of the table."""
    is_below: bool = False
    """Whether a row of a GPU followed the title."""


def recognise(found: list[str]) -> bool:
    """Return whether the title of the table is among these lines."""
    return any(_TITLE.match(line) for line in found if len(line) < _LINE_LIMIT)


def parse(path: Path) -> Report:
    """Raises ReportError when there is no GPU in any table."""
    state = _State(MonitorText(path, TOOL))
    clock = Clock()
    for line in state.text:
        _take(state, line.strip() if len(line) < _LINE_LIMIT else "", clock)
    _end_pair(state)
    if not state.readings.samples:
        raise ReportError(path, TOOL, "nvidia-smi's table has no complete row of a GPU", "Copy the file again")
    gaps = (
        [Gap("sample", "unreadable", f"{state.unread} GPUs have lines that could not be read")] if state.unread else []
    )
    gaps += [
        Gap("device.name", "unreadable", f"nvidia-smi cut off the name: '{device.name}'", f"GPU {device.index}")
        for device in state.devices.values()
        if device.name and device.name.endswith("...")
    ]
    return Report(
        tool=TOOL,
        path=path,
        form="nvidia-smi table",
        tool_version=state.versions.get("smi"),
        devices=tuple(_sized(device, state.readings) for _, device in sorted(state.devices.items())),
        environment={
            key: state.versions[name]
            for key, name in (("driver_version", "driver"), ("cuda_driver", "cuda"))
            if name in state.versions
        },
        samples=state.readings.samples,
        summaries=tuple(state.readings.summaries()),
        gaps=(*gaps, *clock.gaps(), *state.readings.gaps()),
        diagnostics=(
            *clock.diagnostics(),
            Diagnostic("info", "perfctl", "nvidia-smi's table rounds to whole watts, percent and degrees"),
            *state.readings.diagnostics(),
            *state.text.diagnostics(),
            *not_understood({"parts": state.unknown_words}),
        ),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns if state.table > 0 else None,
    )


def _take(state: _State, line: str, clock: Clock) -> None:
    """One line of the file."""
    cells = [cell.strip() for cell in line.split("|")[1:-1]] if line[:1] == "|" == line[-1:] else []
    if title := _TITLE.match(line):
        _end_pair(state)
        state.table, state.is_below = state.table + 1, False
        for key, value in title.groupdict().items():
            if value:
                state.versions.setdefault(key, value)
    elif state.table >= 0 and cells:
        _cells(state, cells, clock)
    elif (stamp := read_stamp(line)) is not None:
        _end_pair(state)
        state.stamp = stamp
    elif line and line[0] not in "+|":
        state.text.stray(line)


def _cells(state: _State, cells: list[str], clock: Clock) -> None:
    """A line of the table: three cells for each line of a GPU, one for a process."""
    if len(cells) == 3 and (name := _NAME.match(cells[0])) and _BUS.match(cells[1]):
        _end_pair(state)
        state.pending, state.is_below = (int(name["index"]), name["name"], cells[2]), True
    elif len(cells) == 3 and state.pending and (values := _STATE.match(cells[0])):
        work = _WORK.match(cells[2])
        if work:
            memory = _MEMORY.match(cells[1])
            _gpu(state, values.groupdict() | (memory.groupdict() if memory else {}) | work.groupdict(), clock)
    elif len(cells) == 1 and (process := _PROCESS.match(cells[0])):
        column = Column(f"process {process['name']}: memory")
        state.readings.add(0, int(process["index"]), [(column, process["memory"])])
    elif len(state.unknown_words) < _MOST_STRANGE:
        _note_unknown(state, cells)


def _note_unknown(state: _State, cells: list[str]) -> None:
    """A line that gives no reading: are its words those of a header, of a third line (MIG) or of a process table?"""
    if len(cells) == 1 or not state.is_below:
        if not _ROW.match(cells[0]):
            state.unknown_words.update(
                dict.fromkeys(others_of(" ".join(cells).replace("=+", "=").replace("=", " ").split(), _HEADER_WORDS))
            )
    elif len(cells) == 3 and state.pending is None and not (cells[0] == cells[1] == "" and cells[2] in _MIG_STATES):
        state.unknown_words[" | ".join(cells)] = None


def _gpu(state: _State, values: dict[str, str], clock: Clock) -> None:
    if state.pending is None:
        return
    index, name, ecc = state.pending
    state.pending = None
    at_ns = clock.at(state.stamp, state.table)
    cells = [(column, values.get(key, "N/A")) for key, column in _COLUMNS.items()]
    state.readings.add(at_ns, index, [*cells, (Column("ecc.errors.uncorrected.volatile"), ecc)])
    state.devices.setdefault(index, Device(name, "gpu", index, driver_version=state.versions.get("driver")))


def _end_pair(state: _State) -> None:
    """A GPU whose first line was read and whose second was not is counted."""
    state.unread += state.pending is not None
    state.pending = None


def _sized(device: Device, readings: Readings) -> Device:
    sizes = {sample.memory_total_bytes for sample in readings.samples if sample.device_index == device.index} - {None}
    size = sizes.pop() if len(sizes) == 1 else None
    return Device(device.name, device.kind, device.index, memory_bytes=size, driver_version=device.driver_version)
