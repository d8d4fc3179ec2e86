"""Parser of nvprof's output, text or ``--csv``: GPU trace, summary, API calls, unified memory and metrics.

Text has five digits a number ("195.89ms" is a start rounded to 10 us); CSV has them whole, in the units of a row below
the header. Sizes are in powers of 1024 since about CUDA 8 and were powers of 1000 before: throughput, which nvprof
works out from the same size, tells which ("38.147MB" in "6.4049ms" is "5.8163GB/s" only by 1024); where no copy of the
file does, sizes with a prefix stay unknown. Starts are on nvprof's own clock, from the start of the process.

Written from the layouts of CUDA 5 to 12 that are printed in public; no whole file of it was at hand.
"""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from perfctl.parsers.text.doubts import joined, not_understood, repeated
from perfctl.parsers.text.tool_text import ToolText, head_lines
from perfctl.records.errors import ReportError
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Report, Summary

TRACE, SUMMARY, UNIFIED, METRIC = "trace", "summary", "unified memory", "metric"
_WORDS = {TRACE: "GPU trace", SUMMARY: "summary", UNIFIED: "unified memory", METRIC: "metrics"}

_TOOL_LINE = re.compile(r"={8} (?P<text>.*)|==(?P<process>\d+)== (?P<said>.*)")
_ANYWHERE = re.compile(
    r"(?:={8}|==\d+==) (?:NVPROF is profiling|Profiling (?:application|result)|(?:Metric|Event) result)"
)
"""nvprof's first line may follow a program's last line without a line end ("Success!==9319== Profiling ...")."""
_MESSAGE = re.compile(r"(Warning|Error|Internal error)\s*:\s*(.*)", re.IGNORECASE)
_QUIET = ("NVPROF is profiling", "Profiling application", "Profiling result", "Generated result", "Metric result",
          "Event result", "Unified Memory profiling result", "OpenACC", "API calls")  # fmt: skip
_TEXT_HEADERS = (
    (TRACE, re.compile(r"\s*Start\s{2,}Duration\s{2,}.*\b(?:Name|Kernel)\b")),
    (SUMMARY, re.compile(r"\s*(?:Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name\s*$")),
    (UNIFIED, re.compile(r"\s*Count\s+Avg Size\s+Min Size\s+Max Size\s+Total Size\s+Total Time\s+Name\s*$")),
    (METRIC, re.compile(r"\s*Invocations\s+(?:Metric|Event) Name\s.*\bAvg\b")),
)
_CSV_MARKS = (
    (TRACE, {"Start", "Duration"}),
    (SUMMARY, {"Time(%)", "Calls", "Name"}),
    (UNIFIED, {"Avg Size", "Total Size", "Name"}),
    (METRIC, {"Invocations", "Kernel", "Avg"}),
)
_SUMMARY_ROW = re.compile(
    r"(?:(?P<Type>[A-Z][\w ()]{1,40}):)?\s*(?P<percent>[\d.]+)%\s+(?P<Time>\S+)\s+(?P<Calls>\d{1,18})\s+(?P<Avg>\S+)\s+"
    r"(?P<Min>\S+)\s+(?P<Max>\S+)\s\s?(?P<Name>\S.*)\Z"
)
_DEVICE = re.compile(r'\s*Device "(?P<name>.{0,200})"\s*\Z')
_KERNEL = re.compile(r"Kernel: (?P<name>.+)\Z")
_GAP = re.compile(r" {2,}")
_LINE_LIMIT = 1 << 20
_UNITS = {"", "%", "ns", "us", "ms", "s", "B", "KB", "MB", "GB", "TB", "B/s", "KB/s", "MB/s", "GB/s", "TB/s"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of one table."""

    kind: str
    cells: dict[str, str]
    """Column name, as nvprof prints it -> cell. Text: "Grid Size", "Regs*"; CSV: "Grid X", "Registers Per Thread"."""
    units: dict[str, str]
    """Column name -> unit below the header; empty for text, whose cells have their units."""
    group: str
    """"GPU activities", "API calls", ... of a summary; the kernel of a metric; the device of unified memory."""


def is_nvprof(head: bytes) -> bool:
    """Return whether a line of nvprof, or a header of its tables, is among these lines."""
    for line in head_lines(head):
        if len(line) > 4096:
            continue
        if _ANYWHERE.search(line) or any(header.match(line) for _, header in _TEXT_HEADERS[:2]):
            return True
        if line.startswith(
            ('"Start","Duration"', '"Type","Time(%)"', '"Time(%)","Time","Calls"', '"Device","Kernel","Invocations"')
        ):
            return True
    return False


class Lines:
    """Iterate once for the rows; then ``tables``, ``unread`` and ``diagnostics`` describe the file."""

    def __init__(self, path: Path) -> None:
        self.tables: list[str] = []
        self.unread = 0
        self.unknown: dict[str, None] = {}
        """Headers of unknown tables."""
        self.again: int | None = None
        """Line of the first table that repeats a row or trace of an earlier table of its process."""
        self.processes: dict[str, int] = {}
        """Process -> the line of its first table."""
        self._process = self._device = ""
        self._line = self._opened = 0
        self._first_tables: dict[tuple[str, ...], int] = {}
        """Rows and traces of a process -> the line of their table."""
        self._announced = False
        """Whether nvprof announced a table that has not begun yet."""
        self._text = ToolText(path, "nvprof")
        self._messages: Tally[tuple[str, str]] = Tally()
        self._kind: str | None = None
        self._names: list[str] = []
        self._units: dict[str, str] | None = None
        """None until the row below a CSV header was checked for units."""
        self._is_csv = False
        self._group = ""

    def __iter__(self) -> Iterator[Row]:
        row: Row | None = None
        for number, line in enumerate(self._text, 1):
            self._line = number
            if row is not None:
                self._meet(row)
                yield row
                row = None
            if len(line) > _LINE_LIMIT:
                self.unread += self._kind is not None
                continue
            at = _ANYWHERE.search(line)
            line = line[at.start() :] if at else line
            if tool := _TOOL_LINE.match(line):
                self._process = tool["process"] or ""
                self._tool_line(tool["text"] or tool["said"] or "")
            elif not self._begins(line):
                if self._kind is not None:
                    row = self._csv_row(line) if self._is_csv else self._text_row(line)
                elif self._announced and line.strip():
                    self._note_unknown(line)
        if row is not None and (self._text.ends_whole or line.endswith((")", "]", '"'))):
            self._meet(row)
            yield row
        elif row is not None:
            self.unread += 1  # the name at its end may be cut off

    def diagnostics(self) -> list[Diagnostic]:
        """nvprof's warnings and errors, and what was left out."""
        said = [Diagnostic(severity, "nvprof", text) for severity, text in self._messages]
        return said + self._text.diagnostics()

    def _tool_line(self, text: str) -> None:
        """A line of nvprof's own; a result line ends the table before it."""
        message = _MESSAGE.match(text)
        if message:
            severity = "warning" if message[1].lower() == "warning" else "error"
            if len(self._messages) < 100:
                self._messages[severity, message[2].strip()[:1000]] += 1
            return
        if not text.startswith(_QUIET) and text.strip() and len(self._messages) < 100:
            self._messages["info", text.strip()[:1000]] += 1
        self._kind, self._device = None, ""
        self._announced = text.rstrip().endswith("result:")
        self._group = "API calls" if text.startswith("API calls") else ""

    def _begins(self, line: str) -> bool:
        """Return whether it is the header of a table, or a line that names the device of the next table."""
        if not self._is_csv and (device := _DEVICE.match(line)):
            self._group = self._device = device["name"]
            return True
        for kind, header in _TEXT_HEADERS:
            if header.match(line):
                names = (
                    ["Invocations", "Name", "Description", "Min", "Max", "Avg"]
                    if kind == METRIC
                    else _GAP.split(line.strip())
                )
                if kind == UNIFIED and "Name" not in names:  # its columns do not stand two blanks apart
                    continue
                self._open(kind, names, is_csv=False)
                return True
        if line.startswith('"') and "," in line:
            names = _csv_cells(line)
            for kind, marks in _CSV_MARKS:
                if marks.issubset(names):
                    self._open(kind, names, is_csv=True)
                    return True
        return False

    def _open(self, kind: str, names: list[str], *, is_csv: bool) -> None:
        self._announced = False
        self._kind, self._names, self._is_csv = kind, names, is_csv
        self._units = None if is_csv and kind != METRIC else {}
        word = _WORDS[kind] if kind != TRACE or len(names) > 4 else "API trace"
        self.tables.append(f"{word}, {'CSV' if is_csv else 'text'}")
        self._opened = self._line
        self.processes.setdefault(self._process, self._line)
        if kind == TRACE:
            self._once(word)

    def _meet(self, row: Row) -> None:
        """A trace may appear once; a sum once for each device, group and name."""
        if row.kind != TRACE:
            names = (row.cells.get(name, "") for name in ("Device", "Name", "Metric Name", "Event Name"))
            self._once(row.kind, self._device, row.group, *names)

    def _once(self, *what: str) -> None:
        opened = self._first_tables.setdefault((self._process, *what), self._opened)
        if opened != self._opened and self.again is None:
            self.again = self._opened

    def _csv_row(self, line: str) -> Row | None:
        """A row below a CSV header; the first may be its units. A blank line ends the table."""
        if not line.strip():
            self._kind = None
            return None
        cells = _csv_cells(line)
        if self._units is None and len(cells) == len(self._names) and _UNITS.issuperset(cells):
            self._units = dict(zip(self._names, cells, strict=True))
            return None
        self._units = self._units or {}
        if len(cells) != len(self._names):
            self._stray(line)
            return None
        named = dict(zip(self._names, cells, strict=True))
        group = named.get("Type") or (
            named.get("Kernel", "") if self._kind == METRIC else named.get("Device", self._group)
        )
        return Row(str(self._kind), named, self._units, group or "GPU activities")

    def _text_row(self, line: str) -> Row | None:
        if not line.strip():
            self._kind = None if self._kind != METRIC else METRIC
            return None
        if self._kind == SUMMARY:
            match = _SUMMARY_ROW.match(line.strip())
            if match is None:
                self._stray(line)
                return None
            self._group = match["Type"] or self._group or "GPU activities"
            named = {key: value for key, value in match.groupdict().items() if value and key not in ("Type", "percent")}
            return Row(SUMMARY, named | {"Time(%)": match["percent"] + "%"}, {}, self._group)
        if kernel := _KERNEL.match(line.strip()):
            self._group = kernel["name"]
            return None
        cells = self._cells(line)
        if cells is None:
            self._stray(line)
            return None
        return Row(str(self._kind), dict(zip(self._names, cells, strict=True)), {}, self._group)

    def _cells(self, line: str) -> list[str] | None:
        """The cells of a row of text; None when they do not fit the header. Two blanks at least part them."""
        if self._kind == METRIC:
            parts = _GAP.split(line.strip())
            middle = len(parts) - 3  # a description has single blanks, but may be cut into the next column
            return [*parts[:2], " ".join(parts[2:middle]), *parts[middle:]] if len(parts) >= 6 else None
        parts = _GAP.split(line.strip(), maxsplit=len(self._names) - 1)
        return parts if len(parts) == len(self._names) else None

    def _note_unknown(self, line: str) -> None:
        """The first line below an announced table: a header in no list, unless it is a sentence."""
        self._announced = False
        if '","' in line or len(_GAP.split(line.strip())) > 2:
            self.unknown[line.strip()[:60]] = None

    def _stray(self, line: str) -> None:
        """Set aside a line inside a table that is not a row: notes below a trace, or the program's output."""
        if not line.startswith(("Regs:", "SSMem:", "DSMem:", "SrcMemType:", "DstMemType:", "Total CPU Page faults")):
            self.unread += 1
        self._text.stray(line)


def _csv_cells(line: str) -> list[str]:
    """Split a CSV line; [] for a line that is not CSV, or has a cell longer than any name."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


_NUMBER = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,9})?(?:e[+-]\d{1,2})?)\s*([A-Za-z%][A-Za-z/%]{0,5})?\Z")
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_GRID = re.compile(r"\((\d{1,10}) (\d{1,10}) (\d{1,10})\)\Z")
_ORDINAL = re.compile(r"(?P<name>.*\S)\s*\((?P<index>\d{1,4})\)\Z")
_CORRELATION = re.compile(r" \[\d{1,12}\]\Z")
_OPERATION = re.compile(r"\[(?:CUDA|Unified Memory) (?P<kind>.+)\]\Z")
_MEMCPY = re.compile(r"(?:memcpy|Memcpy) (?P<kind>\w+)\Z")
_MORE = (
    "Start", "Duration", "Grid Size", "Block Size", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z",
    "Regs*", "SSMem*", "DSMem*", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size", "Throughput",
    "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Name", "Kernel", "Correlation_ID", "Unified Memory",
    "Virtual Address", "Src Dev", "Src Ctx", "Dst Dev", "Dst Ctx", "Secondary Virtual Address", "Process",
)  # fmt: skip
"""Columns of the trace that are not metrics."""
_DEVICE_WIDTH = 15
_LARGEST = 2**63 - 1
_AXES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


class Sizes:
    """Bytes of a "KB" in one file: 1024 or 1000, or undecided."""

    def __init__(self, base: int | None) -> None:
        self.base = base
        self._undecided = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Sizes:
        """Decide by the first copies whose throughput has another prefix than their size; they must agree."""
        votes: Tally[int] = Tally()
        for number, row in enumerate(rows):
            if sum(votes.values()) >= 20 or (votes.total() and number > 2000):
                break
            size, throughput = _prefixed(row, "Size"), _prefixed(row, "Throughput")
            duration = time_ns(row.cells.get("Duration", ""), row.units.get("Duration", ""))
            if not (size and throughput and duration and size[0] and throughput[0]) or size[1] == throughput[1]:
                continue
            rate = float(size[0]) / (duration / 1e9)
            for base in (1000, 1024):
                expected = float(throughput[0]) * float(base) ** (throughput[1] - size[1])
                votes[base] += abs(rate / expected - 1) < 0.008  # 1024/1000 is 1.024; five digits round by 0.0001
        return cls(next((base for base in (1024, 1000) if votes[base] and not votes[2024 - base]), None))

    def bytes(self, text: str, unit: str) -> int | None:
        """Bytes of a printed size ("38.147MB", or a number in a column of that unit); None when it is none."""
        number = _number(text, unit)
        if number is None or not number[1].endswith("B") or number[1][:-1] not in _PREFIXES:
            return None
        power = _PREFIXES[number[1][:-1]]
        if power and number[0] and self.base is None:
            self._undecided += 1
            return None
        value = round(number[0] * (self.base or 1) ** power)
        return value if 0 <= value <= _LARGEST else None

    def gaps(self) -> list[Gap]:
        if not self._undecided:
            return []
        reason = f"{self._undecided} sizes: nothing in the file says whether a KB is 1000 or 1024 bytes"
        return [Gap("copy.bytes", "ambiguous", reason), Gap("kernel.shared_bytes", "ambiguous", reason)]


class Trace:
    """Collects the rows of a GPU trace, in order."""

    def __init__(self, sizes: Sizes) -> None:
        self.kernels: list[Kernel] = []
        self.counters: list[Counter] = []
        self.copies: list[Copy] = []
        self.unknown: dict[str, None] = {}
        """Unknown columns that are not spelled like metrics ("flop_count_sp")."""
        self._sizes = sizes
        self._devices: dict[str, int | None] = {}
        self._others: Tally[str] = Tally()
        self._times: Tally[str] = Tally()

    def take(self, row: Row) -> None:
        """One row: a kernel has a grid, a copy a bracketed name; all else is a call and is counted by name."""
        cells = row.cells
        name = cells.get("Name", cells.get("Kernel", "")).strip()
        start, duration = (time_ns(cells.get(key, ""), row.units.get(key, "")) for key in ("Start", "Duration"))
        operation = _OPERATION.match(name)
        copy = operation and _MEMCPY.match(operation["kind"])
        if operation and (copy or operation["kind"] in ("memset", "Memset")):
            size = self._sizes.bytes(*_cell(row, "Size", "Unified Memory"))
            device, stream = self._device(cells.get("Device", "")), whole(cells.get("Stream", ""))
            self.copies.append(Copy(copy["kind"] if copy else "memset", size, start, duration, None, device, stream))
        elif not operation and (grid := _axes(cells, "Grid")) is not None:
            self._kernel(row, name, grid, start, duration)
        elif name:
            self._others[name] += 1
            self._times[name] += duration or 0

    def _kernel(self, row: Row, name: str, grid: list[int | None], start: int | None, duration: int | None) -> None:
        cells = row.cells
        launch = len(self.kernels)
        block = _axes(cells, "Block") or [None, None, None]
        sizes: dict[str, Any] = dict(zip(_AXES, (*grid, *block), strict=True))
        self.kernels.append(
            Kernel(
                launch=launch,
                name=_CORRELATION.sub("", name),
                device_index=self._device(cells.get("Device", "")),
                stream=whole(cells.get("Stream", "")),
                registers=whole(_cell(row, "Regs*", "Registers Per Thread")[0]),
                static_shared_bytes=self._sizes.bytes(*_cell(row, "SSMem*", "Static SMem")),
                dynamic_shared_bytes=self._sizes.bytes(*_cell(row, "DSMem*", "Dynamic SMem")),
                start_ns=start,
                duration_ns=duration,
            )._replace(**sizes)
        )
        for metric, text in cells.items():
            if metric not in _MORE:
                if metric[:1].isupper() and " " in metric:
                    self.unknown[metric] = None
                number = _number(text, row.units.get(metric, ""))
                value = None if number is None else _whole(number[0])
                unit = number[1] or None if number else None
                self.counters.append(Counter(launch, metric, value, unit, text=None if number else text or None))

    def _device(self, text: str) -> int | None:
        """The ordinal in "Tesla T4 (0)"; None where the name alone is printed."""
        text = text.strip()
        if text in ("", "-"):
            return None
        match = _ORDINAL.match(text)
        self._devices[match["name"] if match else text] = int(match["index"]) if match else None
        return int(match["index"]) if match else None

    def devices(self) -> tuple[Device, ...]:
        """The GPUs that the rows name."""
        return tuple(Device(name, "gpu", index or 0) for name, index in self._devices.items())

    def gaps(self) -> list[Gap]:
        gaps = [
            Gap("device.name", "unreadable", f"nvprof cut the name to {_DEVICE_WIDTH} characters: '{name}'")
            for name, index in self._devices.items()
            if index is None and len(name) >= _DEVICE_WIDTH - 1
        ]
        if None in self._devices.values():
            gaps.append(Gap("kernel.device_index", "not_available", "the trace names the GPU without its number"))
        return gaps

    def summaries(self) -> list[Summary]:
        """Calls and page faults of the trace, by name."""
        found = []
        for name, count in self._others.items():
            label = name.strip("[]")
            found.append(Summary(f"{label}: Calls", float(count), None))
            found.append(Summary(f"{label}: Time", float(self._times[name]), "ns"))
        return found


def summary_figures(row: Row) -> list[Summary]:
    """ "GPU activities: name: Time", Calls, Avg, Min, Max and Time(%)."""
    label = f"{row.group}: {row.cells['Name'].strip()}"
    share, calls = row.cells.get("Time(%)", ""), row.cells.get("Calls", "")
    number = _number(share, "%")
    times = []
    for key in ("Time", "Avg", "Min", "Max"):
        text = row.cells.get(key, "")
        times.append(_figure(f"{label}: {key}", text, time_ns(text, row.units.get(key, "")), "ns"))
    first = _figure(f"{label}: Time(%)", share, None if number is None else float(number[0]), "%")
    return [first, times[0], _figure(f"{label}: Calls", calls, whole(calls), None), *times[1:]]


def unified_figures(row: Row, sizes: Sizes) -> list[Summary]:
    """Transfers of unified memory: how many, sizes and time, by direction and device."""
    label = f"Unified Memory, {row.group}: {row.cells['Name'].strip()}"
    found = [_figure(f"{label}: Count", row.cells.get("Count", ""), whole(row.cells.get("Count", "")), None)]
    for key in ("Avg Size", "Min Size", "Max Size", "Total Size"):
        text = row.cells.get(key, "-")
        if text.strip("- "):
            found.append(_figure(f"{label}: {key}", text, sizes.bytes(text, row.units.get(key, "")), "byte"))
    time = row.cells.get("Total Time", "")
    return [*found, _figure(f"{label}: Total Time", time, time_ns(time, row.units.get("Total Time", "")), "ns")]


def metric_figures(row: Row) -> list[Summary]:
    """Least, largest and mean value of a metric over the launches of a kernel, and how many those were."""
    cells = row.cells
    name = cells.get("Metric Name") or cells.get("Event Name") or cells.get("Name", "")
    label = f"{row.group}: {name}"
    count = cells.get("Invocations", "")
    found = [_figure(f"{label}: Invocations", count, whole(count), None)]
    for key in ("Min", "Max", "Avg"):
        if key in cells:
            number = _number(cells[key], "")
            value = None if number is None else float(number[0])
            found.append(_figure(f"{label}: {key}", cells[key], value, (number[1] or None) if number else None))
    return found


def _figure(name: str, text: str, value: int | float | None, unit: str | None) -> Summary:
    return Summary(name, None, unit, text) if value is None else Summary(name, float(value), unit)


def time_ns(text: str, unit: str) -> int | None:
    """Nanoseconds of "438.61ms", or of a number in a column of that unit; None for "-" and for what is no time."""
    number = _number(text, unit)
    if number is None or number[1] not in _TIMES:
        return None
    value = round(number[0] * _TIMES[number[1]])
    return value if abs(value) <= _LARGEST else None


def whole(text: str) -> int | None:
    """A count or ordinal; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _number(text: str, unit: str) -> tuple[Decimal, str] | None:
    """(number, its unit: the cell's own, else the column's)"""
    match = _NUMBER.match(text.strip())
    return (Decimal(match[1]), match[2] or unit) if match else None


def _whole(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() and abs(number) <= _LARGEST else float(number)


def _prefixed(row: Row, column: str) -> tuple[Decimal, int] | None:
    """(number, power of its prefix) of a size or a throughput."""
    number = _number(row.cells.get(column, ""), row.units.get(column, ""))
    prefix = number[1].removesuffix("/s").removesuffix("B") if number and "B" in number[1] else None
    return (number[0], _PREFIXES[prefix]) if number and prefix in _PREFIXES and prefix is not None else None


def _cell(row: Row, *names: str) -> tuple[str, str]:
    """(cell, unit of the column) of the first of these columns that the row has something in."""
    for name in names:
        text = row.cells.get(name, "")
        if text.strip() not in ("", "-"):
            return text, row.units.get(name, "")
    return "", ""


def _axes(cells: dict[str, str], what: str) -> list[int | None] | None:
    """The three sizes of a grid or block, "(39063 1 1)" or three columns; None when the row has none."""
    match = _GRID.match(cells.get(f"{what} Size", "").strip())
    if match:
        return [int(match[n]) for n in (1, 2, 3)]
    axes = [whole(cells.get(f"{what} {axis}", "")) for axis in "XYZ"]
    return axes if axes[0] is not None else None


TOOL = "nvprof"


def sniff(path: Path, head: bytes) -> bool:
    """Return whether there is a line of nvprof, or the header of one of its tables."""
    return is_nvprof(head)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no table of nvprof."""
    source = Lines(path)
    summaries: list[Summary] = []
    try:
        sizes = Sizes.of(row for row in Lines(path) if row.kind == TRACE)
        trace = Trace(sizes)
        for row in source:
            if row.kind == TRACE:
                trace.take(row)
            elif row.kind == SUMMARY:
                summaries += summary_figures(row)
            elif row.kind == UNIFIED:
                summaries += unified_figures(row, sizes)
            elif row.kind == METRIC:
                summaries += metric_figures(row)
    except OSError as error:
        raise ReportError(path, TOOL, f"it cannot be read ({error.strerror})", "Check its permissions") from error
    if not source.tables:
        messages = "; ".join(entry.text for entry in source.diagnostics()[:2]) or "nothing was profiled"
        raise ReportError(path, TOOL, f"it holds no table of nvprof ({messages[:300]})", "Check nvprof's messages")
    if source.again is not None:
        raise repeated(path, TOOL, "a table of one process", source.again)
    return Report(
        tool=TOOL,
        path=path,
        form="nvprof " + " and ".join(dict.fromkeys(source.tables)),
        devices=trace.devices(),
        kernels=trace.kernels,
        counters=trace.counters,
        copies=trace.copies,
        summaries=(*summaries, *trace.summaries()),
        gaps=(*_gaps(source, trace), *sizes.gaps(), *trace.gaps()),
        diagnostics=(
            *source.diagnostics(),
            *_rounding(source),
            *not_understood({"tables": source.unknown, "columns": trace.unknown}, "kept as metrics or left out"),
            *joined("the tables of further processes", [*source.processes.values()][1:]),
        ),
        duration_ns=None,
    )


def _gaps(source: Lines, trace: Trace) -> list[Gap]:
    gaps = []
    if not any(table.startswith("GPU trace") for table in source.tables):
        reason = "the file has only sums by name: run nvprof --print-gpu-trace for single launches"
        gaps.append(Gap("kernel", "not_collected", reason))
        gaps.append(Gap("copy", "not_collected", reason))
    elif not trace.kernels:
        gaps.append(Gap("kernel", "not_collected", "the GPU trace has no kernel"))
    if trace.kernels:
        reason = "nvprof's trace has no ranges, so no kernel can be assigned to a layer"
        gaps.append(Gap("kernel.layer", "not_available", reason))
    if source.unread:
        gaps.append(Gap("nvprof row", "unreadable", f"{source.unread} lines inside tables could not be read"))
    return gaps


def _rounding(source: Lines) -> list[Diagnostic]:
    if not any("text" in table for table in source.tables):
        return []
    text = "nvprof's text has five digits a number, so times and sizes are rounded (--csv prints all digits)"
    return [Diagnostic("info", "perfctl", text)]
