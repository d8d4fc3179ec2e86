"""Parser of nvprof's output, text or ``--csv``: GPU trace, summary, API calls, unified memory
and metrics.

Text has five digits a number; CSV has them whole, in the units of a row below the header. Sizes are
in powers of 1024 since about CUDA 8 and were powers of 1000 before: throughput, which nvprof works
out from the same size, tells which ("38.147MB" in "6.4049ms" is "5.8163GB/s" only by 1024), and
else sizes with a prefix stay unknown. Starts count from the start of the process. Written from
layouts of CUDA 5 to 12 that are printed in public; no whole file was at hand.
"""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.nvprof_sums import Sums
from perfctl.parsers.text.doubts import joined, not_understood, repeated, several
from perfctl.parsers.text.tool_text import ToolText, head_lines
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Report, Summary

TOOL = "nvprof"
TRACE, SUMMARY, UNIFIED, METRIC = "GPU trace", "summary", "unified memory", "metrics"
_TOOL_LINE = re.compile(r"={8} (?P<text>.*)|==(?P<process>\d+)== (?P<said>.*)")
_ANYWHERE = re.compile(
    r"(?:={8}|==\d+==) (?:NVPROF is profiling|Profiling (?:application|result)|(?:Metric|Event) "
    "result)"
)
"""nvprof's first line may follow a program's last line without a line end ("Success!==9319==
Profiling ...")."""
_MESSAGE = re.compile(r"(Warning|Error|Internal error)\s*:\s*(.*)", re.IGNORECASE)
_QUIET = (
    "NVPROF is profiling",
    "Profiling application",
    "Profiling result",
    "Generated result",
    "Metric result",
    "Event result",
    "Unified Memory profiling result",
    "OpenACC",
    "API calls",
)
_AT_ITS_END = ("Profiling application", "Generated result")
_KINDS = (
    (
        TRACE,
        re.compile(r"\s*Start\s{2,}Duration\s{2,}.*\b(?:Name|Kernel)\b"),
        {"Start", "Duration"},
    ),
    (
        SUMMARY,
        re.compile(r"\s*(?:Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name\s*$"),
        {"Time(%)", "Calls", "Name"},
    ),
    (
        UNIFIED,
        re.compile(
            r"\s*Count\s+Avg Size\s+Min Size\s+Max Size\s+Total Size\s+Total Time\s+Name\s*$"
        ),
        {"Avg Size", "Total Size", "Name"},
    ),
    (
        METRIC,
        re.compile(r"\s*Invocations\s+(?:Metric|Event) Name\s.*\bAvg\b"),
        {"Invocations", "Kernel", "Avg"},
    ),
)
"""(kind of table, its header in text, columns that it has in CSV)"""
_CSV_HEADERS = (
    '"Start","Duration"',
    '"Type","Time(%)"',
    '"Time(%)","Time","Calls"',
    '"Device","Kernel","Invocations"',
)
_BARE_HEADERS = ("Type,Time(%),Time,Calls,", "Time(%),Time,Calls,Avg,")
"""Of sums that another program saved again: nothing is quoted (names hold commas), and units stand
in the cells."""
_WORDS = ("NVPROF is", "Profiling ", " result", "Duration", "Time(%)", '"Invocations"')
"""One of them is in each line that ``sniff`` looks for."""
_GLUED = re.compile(r"\d%,\d[\d.]*[num]?s,\d+,\d")
"""A row of such sums inside of a name: the line end before it is lost."""
_IN_CELLS = "CSV with units in its cells"
_SUMMARY_ROW = re.compile(
    r"(?:(?P<Type>[A-Z][\w ()]{1,40}):)?\s*(?P<percent>[\d.]+)%\s+(?P<Time>\S+)\s+(?P<Calls>\d{1,"
    r"18})\s+(?P<Avg>\S+)\s+(?P<Min>\S+)\s+(?P<Max>\S+)\s\s?(?P<Name>\S.*)\Z"
)
_DEVICE = re.compile(r'\s*Device "(?P<name>.{0,200})"\s*\Z')
_KERNEL = re.compile(r"Kernel: (?P<name>.+)\Z")
_GAP = re.compile(r" {2,}")
_METRIC_COLUMNS = ["Invocations", "Name", "Description", "Min", "Max", "Avg"]
_LINE_LIMIT = 1 << 20
_UNITS = {
    "",
    "%",
    "ns",
    "us",
    "ms",
    "s",
    "B",
    "KB",
    "MB",
    "GB",
    "TB",
    "B/s",
    "KB/s",
    "MB/s",
    "GB/s",
    "TB/s",
}

_NUMBER = re.compile(
    r"([+-]?\d{1,18}(?:\.\d{1,9})?(?:e[+-]\d{1,2})?)\s*([A-Za-z%][A-Za-z/%]{0,5})?\Z"
)
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_GRID = re.compile(r"\((\d{1,10}) (\d{1,10}) (\d{1,10})\)\Z")
_ORDINAL = re.compile(r"(?P<name>.*\S)\s*\((?P<index>\d{1,4})\)\Z")
_CORRELATION = re.compile(r" \[\d{1,12}\]\Z")
_OPERATION = re.compile(r"\[(?:CUDA|Unified Memory) (?P<kind>.+)\]\Z")
_MEMCPY = re.compile(r"(?:memcpy|Memcpy) (?P<kind>\w+)\Z")
_MORE = (
    "Start",
    "Duration",
    "Grid Size",
    "Block Size",
    "Grid X",
    "Grid Y",
    "Grid Z",
    "Block X",
    "Block Y",
    "Block Z",
    "Regs*",
    "SSMem*",
    "DSMem*",
    "Registers Per Thread",
    "Static SMem",
    "Dynamic SMem",
    "Size",
    "Throughput",
    "SrcMemType",
    "DstMemType",
    "Device",
    "Context",
    "Stream",
    "Name",
    "Kernel",
    "Correlation_ID",
    "Unified Memory",
    "Virtual Address",
    "Src Dev",
    "Src Ctx",
    "Dst Dev",
    "Dst Ctx",
    "Secondary Virtual Address",
    "Process",
)
"""Columns of the trace that are not metrics."""
_DEVICE_WIDTH = 15
_LARGEST = 2**63 - 1
_FIGURES: dict[str, dict[str, str | None]] = {
    SUMMARY: {"Time(%)": "%", "Time": "ns", "Calls": None, "Avg": "ns", "Min": "ns", "Max": "ns"},
    UNIFIED: {
        "Count": None,
        **dict.fromkeys(("Avg Size", "Min Size", "Max Size", "Total Size"), "byte"),
        "Total Time": "ns",
    },
    METRIC: {"Invocations": None, "Min": "", "Max": "", "Avg": ""},
}
"""Kind of table -> its columns that become figures -> their unit; None for a count, "" for that of
the cell."""


class Row(NamedTuple):
    """One row of one table."""

    kind: str
    cells: dict[str, str]
    """Column name, as nvprof prints it -> cell. Text: "Grid Size", "Regs*"; CSV: "Grid X",
    "Registers Per Thread"."""
    units: dict[str, str]
    """Column name -> unit below the header; empty for text, whose cells have their units."""
    group: str
    """"GPU activities", "API calls", ... of a summary; the kernel of a metric; the device of
    unified memory."""

    def cell(self, *names: str) -> tuple[str, str]:
        """(cell, unit of the column) of the first of these columns that the row has
        something in."""
        name = next(
            (name for name in names if self.cells.get(name, "").strip() not in ("", "-")), ""
        )
        return self.cells.get(name, ""), self.units.get(name, "")


class Lines:
    """Iterate once for the rows; then ``tables``, ``unread`` and ``diagnostics`` describe
    the file."""

    def __init__(self, path: Path) -> None:
        self.tables: list[str] = []
        self.unread = 0
        self.cut_message = ""
        """The file's last line, where it is no row and has no line end."""
        self.unknown: dict[str, None] = {}
        """Headers of tables."""
        self.again: int | None = None
        """Line of the first table that repeats a row or trace of an earlier table of
        its process."""
        self.processes: dict[str, int] = {}
        """Process -> the line of its first table."""
        self.starts: list[int] = []
        """Lines at which nvprof began again after it had printed what it had of all
        processes before."""
        self._open_processes: set[str] = set()
        """Processes that nvprof said it profiles and has printed nothing of."""
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
        self._is_csv = self._is_bare = False
        self._group = ""

    def __iter__(self) -> Iterator[Row]:
        row: Row | None = None
        for number, line in enumerate(self._text, 1):
            self._line = number
            if row is not None:
                yield self._met(row)
                row = None
            if len(line) > _LINE_LIMIT:
                self.unread += self._kind is not None
                continue
            at = _ANYWHERE.search(line)
            line = line[at.start() :] if at else line
            if tool := _TOOL_LINE.match(line):
                self._process = tool["process"] or ""
                self._begin_run(tool["text"] or tool["said"] or "")
                self._tool_line(tool["text"] or tool["said"] or "")
            elif not self._begins(line):
                if self._kind is not None:
                    row = self._csv_row(line) if self._is_csv else self._text_row(line)
                elif self._announced and line.strip():
                    self._note_unknown(line)
        if row is not None and (self._text.ends_whole or line.endswith((")", "]", '"'))):
            yield self._met(row)
        elif row is not None:
            self.unread += 1  # the name at its end may be cut off
        elif self._line and not self._text.ends_whole:
            self.cut_message = line.strip()

    @property
    def opened(self) -> int:
        """The line at which the table at hand began."""
        return self._opened

    def diagnostics(self) -> list[Diagnostic]:
        """nvprof's warnings and errors, and what was left out."""
        return [
            *(Diagnostic(severity, TOOL, text) for severity, text in self._messages),
            *self._text.diagnostics(),
        ]

    def _begin_run(self, text: str) -> None:
        """Does a further output of nvprof begin with this line? One of a process and its children
        begins once."""
        if text.startswith("NVPROF is profiling"):
            if self.tables and not self._open_processes:
                self.starts.append(self._line)
            self._open_processes.add(self._process)
        elif (
            text.rstrip().endswith("result:")
            or text.startswith(_AT_ITS_END)
            or _MESSAGE.match(text)
        ):
            self._open_processes.discard(self._process)

    def _tool_line(self, text: str) -> None:
        """A line of nvprof's own; a result line ends the table before it."""
        message = _MESSAGE.match(text)
        said = (
            None if text.startswith(_QUIET) or not text.strip() else ("info", text.strip()[:1000])
        )
        if message:
            said = (
                "warning" if message[1].lower() == "warning" else "error",
                message[2].strip()[:1000],
            )
        if said and len(self._messages) < 100:
            self._messages[said] += 1
        if message:
            return
        self._kind, self._device = None, ""
        self._announced = text.rstrip().endswith("result:")
        self._group = "API calls" if text.startswith("API calls") else ""

    def _begins(self, line: str) -> bool:
        if not self._is_csv and (device := _DEVICE.match(line)):
            self._group = self._device = device["name"]
            return True
        for kind, header, _ in _KINDS:
            if header.match(line):
                names = _METRIC_COLUMNS if kind == METRIC else _GAP.split(line.strip())
                # else its columns do not stand two blanks apart
                if kind != UNIFIED or "Name" in names:
                    return self._open(kind, names, is_csv=False)
        is_bare = line.startswith(_BARE_HEADERS)
        names = _csv_cells(line) if is_bare or (line.startswith('"') and "," in line) else []
        kind = next((kind for kind, _, marks in _KINDS if marks.issubset(names)), "")
        return bool(kind) and self._open(kind, names, is_csv=True, is_bare=is_bare)

    def _open(self, kind: str, names: list[str], *, is_csv: bool, is_bare: bool = False) -> bool:
        self._announced = False
        self._kind, self._names, self._is_csv, self._is_bare = kind, names, is_csv, is_bare
        self._units = None if is_csv and kind != METRIC else {}
        word = kind if kind != TRACE or len(names) > 4 else "API trace"
        form = _IN_CELLS if is_bare else "CSV" if is_csv else "text"
        self.tables.append(f"{word}, {form}")
        self._opened = self._line
        self.processes.setdefault(self._process, self._line)
        if kind == TRACE:
            self._once(word)
        return True

    def _met(self, row: Row) -> Row:
        """A trace may appear once; a sum once for each device, group and name."""
        if row.kind != TRACE:
            names = (
                row.cells.get(name, "") for name in ("Device", "Name", "Metric Name", "Event Name")
            )
            self._once(row.kind, self._device, row.group, *names)
        return row

    def _once(self, *what: str) -> None:
        opened = self._first_tables.setdefault((self._process, *what), self._opened)
        if opened != self._opened and self.again is None:
            self.again = self._opened

    def _csv_row(self, line: str) -> Row | None:
        """A row below a CSV header; the first may be its units. A blank line ends the table."""
        cells = (
            line.rstrip().split(",", len(self._names) - 1) if self._is_bare else _csv_cells(line)
        )
        if not line.strip():
            self._kind = None
        elif self._units is None and len(cells) == len(self._names) and _UNITS.issuperset(cells):
            self._units = dict(zip(self._names, cells, strict=True))
        else:
            self._units = self._units or {}
            if len(cells) == len(self._names) and not (self._is_bare and _GLUED.search(cells[-1])):
                named = dict(zip(self._names, cells, strict=True))
                other = (
                    named.get("Kernel", "")
                    if self._kind == METRIC
                    else named.get("Device", self._group)
                )
                return Row(
                    str(self._kind),
                    named,
                    self._units,
                    named.get("Type") or other or "GPU activities",
                )
            self._stray(line)
        return None

    def _text_row(self, line: str) -> Row | None:
        stripped = line.strip()
        if not stripped:
            self._kind = None if self._kind != METRIC else METRIC
        elif self._kind == SUMMARY and (match := _SUMMARY_ROW.match(stripped)):
            self._group = match["Type"] or self._group or "GPU activities"
            named = {
                key: value
                for key, value in match.groupdict().items()
                if value and key not in ("Type", "percent")
            }
            return Row(SUMMARY, named | {"Time(%)": match["percent"] + "%"}, {}, self._group)
        elif self._kind != SUMMARY and (kernel := _KERNEL.match(stripped)):
            self._group = kernel["name"]
        elif self._kind != SUMMARY and (cells := self._cells(stripped)):
            return Row(str(self._kind), dict(zip(self._names, cells, strict=True)), {}, self._group)
        else:
            self._stray(line)
        return None

    def _cells(self, line: str) -> list[str]:
        """The cells of a row of text; [] when they do not fit the header. Two blanks at least
        part them."""
        if self._kind == METRIC:
            parts = _GAP.split(line)
            # a description has single blanks, but may be cut into the next column
            middle = len(parts) - 3
            return (
                [*parts[:2], " ".join(parts[2:middle]), *parts[middle:]] if len(parts) >= 6 else []
            )
        parts = _GAP.split(line, maxsplit=len(self._names) - 1)
        return parts if len(parts) == len(self._names) else []

    def _note_unknown(self, line: str) -> None:
        """The first line below an announced table: a header in no list, unless it is a sentence."""
        self._announced = False
        if '","' in line or len(_GAP.split(line.strip())) > 2:
            self.unknown[line.strip()[:60]] = None

    def _stray(self, line: str) -> None:
        """Set aside a line inside a table that is not a row: notes below a trace, or the
        program's output."""
        if not line.startswith(
            ("Regs:", "SSMem:", "DSMem:", "SrcMemType:", "DstMemType:", "Total CPU Page faults")
        ):
            self.unread += 1
        self._text.stray(line)


def _csv_cells(line: str) -> list[str]:
    """Split a CSV line; [] for a line that is not CSV, or has a cell longer than any name."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


class Sizes:
    """Bytes of a "KB" in one file: 1024 or 1000, or undecided."""

    def __init__(self, base: int | None) -> None:
        self.base = base
        self._undecided = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Sizes:
        """Decide by the first copies whose throughput has another prefix than their size; they
        must agree."""
        votes: Tally[int] = Tally()
        for number, row in enumerate(rows):
            if sum(votes.values()) >= 20 or (votes.total() and number > 2000):
                break
            size, throughput = _prefixed(row, "Size"), _prefixed(row, "Throughput")
            duration = time_ns(*row.cell("Duration"))
            if (
                not (size and throughput and duration and size[0] and throughput[0])
                or size[1] == throughput[1]
            ):
                continue
            rate = float(size[0]) / (duration / 1e9)
            for base in (1000, 1024):
                expected = float(throughput[0]) * float(base) ** (throughput[1] - size[1])
                # 1024/1000 is 1.024; five digits round by 0.0001
                votes[base] += abs(rate / expected - 1) < 0.008
        return cls(
            next((base for base in (1024, 1000) if votes[base] and not votes[2024 - base]), None)
        )

    def bytes(self, text: str, unit: str) -> int | None:
        """Bytes of a printed size ("38.147MB", or a number in a column of that unit); None when it
        is none."""
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
        reason = (
            f"{self._undecided} sizes: nothing in the file says whether a KB is 1000 or 1024 bytes"
        )
        gaps = [Gap(what, "ambiguous", reason) for what in ("copy.bytes", "kernel.shared_bytes")]
        return gaps if self._undecided else []


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
        """One row: a kernel has a grid, a copy a bracketed name; all else is a call and is counted
        by name."""
        cells = row.cells
        name = cells.get("Name", cells.get("Kernel", "")).strip()
        times = (time_ns(*row.cell("Start")), time_ns(*row.cell("Duration")))
        place = (self._device(cells.get("Device", "")), whole(cells.get("Stream", "")))
        operation = _OPERATION.match(name)
        copy = operation and _MEMCPY.match(operation["kind"])
        if operation and (copy or operation["kind"] in ("memset", "Memset")):
            size = self._sizes.bytes(*row.cell("Size", "Unified Memory"))
            self.copies.append(Copy(copy["kind"] if copy else "memset", size, *times, None, *place))
        elif not operation and (grid := _axes(cells, "Grid")) is not None:
            launch = len(self.kernels)
            registers = whole(row.cell("Regs*", "Registers Per Thread")[0])
            shared = [
                self._sizes.bytes(*row.cell(*names))
                for names in (("SSMem*", "Static SMem"), ("DSMem*", "Dynamic SMem"))
            ]
            numbers = [
                None,
                *place,
                *grid,
                *(_axes(cells, "Block") or [None] * 3),
                registers,
                *shared,
                *times,
            ]
            self.kernels.append(
                Kernel(launch, _CORRELATION.sub("", name), None, None, None, None, None, *numbers)  # type: ignore[arg-type]
            )
            self._metrics(launch, row)
        elif name:
            self._others[name] += 1
            self._times[name] += times[1] or 0

    def _metrics(self, launch: int, row: Row) -> None:
        for metric, text in row.cells.items():
            if metric not in _MORE:
                if metric[:1].isupper() and " " in metric:
                    self.unknown[metric] = None
                number = _number(text, row.units.get(metric, ""))
                value, unit = (_whole(number[0]), number[1] or None) if number else (None, None)
                self.counters.append(
                    Counter(launch, metric, value, unit, text=None if number else text or None)
                )

    def _device(self, text: str) -> int | None:
        """The ordinal in "Tesla T4 (0)"; None where the name alone is printed."""
        text = text.strip()
        match = _ORDINAL.match(text)
        index = int(match["index"]) if match else None
        if text not in ("", "-"):
            self._devices[match["name"] if match else text] = index
        return index

    def devices(self) -> tuple[Device, ...]:
        """The GPUs that the rows name."""
        return tuple(Device(name, "gpu", index or 0) for name, index in self._devices.items())

    def gaps(self) -> list[Gap]:
        gaps = [
            Gap(
                "device.name",
                "unreadable",
                f"nvprof cut the name to {_DEVICE_WIDTH} characters: '{name}'",
            )
            for name, index in self._devices.items()
            if index is None and len(name) >= _DEVICE_WIDTH - 1
        ]
        if None in self._devices.values():
            gaps.append(
                Gap(
                    "kernel.device_index",
                    "not_available",
                    "the trace names the GPU without its number",
                )
            )
        return gaps

    def summaries(self) -> list[Summary]:
        """Calls and page faults of the trace, by name."""
        calls = (
            (name.strip("[]"), float(count), float(self._times[name]))
            for name, count in self._others.items()
        )
        return [
            figure
            for label, count, time in calls
            for figure in (
                Summary(f"{label}: Calls", count, None),
                Summary(f"{label}: Time", time, "ns"),
            )
        ]


def figures(row: Row, sizes: Sizes) -> list[Summary]:
    """Figures of a sum by name: "GPU activities: name: Time", "Unified Memory, device: direction:
    Count", a metric's Avg."""
    cells = row.cells
    name = cells.get("Metric Name") or cells.get("Event Name") or cells.get("Name", "")
    label = (
        f"{row.group}: {name}" if row.kind == METRIC else f"{row.group}: {cells['Name'].strip()}"
    )
    found = []
    for key, stated in _FIGURES[row.kind].items():
        text, unit = cells.get(key, ""), row.units.get(key, "")
        if (stated == "byte" and not text.strip("- ")) or (stated == "" and key not in cells):
            continue
        number = _number(text, unit)
        value: float | None = float(number[0]) if number else None
        if stated == "ns":
            value = time_ns(text, unit)
        elif stated == "byte":
            value = sizes.bytes(text, unit)
        elif stated is None:
            value = whole(text)
        elif stated == "":
            stated = (number[1] or None) if number else None
        prefix = "Unified Memory, " if row.kind == UNIFIED else ""
        known = (None, stated, text) if value is None else (float(value), stated)
        found.append(Summary(f"{prefix}{label}: {key}", *known))
    return found


def time_ns(text: str, unit: str) -> int | None:
    """Nanoseconds of "438.61ms", or of a number in a column of that unit; None for "-" and for
    anything that is not a time."""
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
    return (
        int(number)
        if number == number.to_integral_value() and abs(number) <= _LARGEST
        else float(number)
    )


def _prefixed(row: Row, column: str) -> tuple[Decimal, int] | None:
    """(number, power of its prefix) of a size or a throughput."""
    number = _number(*row.cell(column))
    prefix = number[1].removesuffix("/s").removesuffix("B") if number and "B" in number[1] else None
    return (
        (number[0], _PREFIXES[prefix])
        if number and prefix in _PREFIXES and prefix is not None
        else None
    )


def _axes(cells: dict[str, str], what: str) -> list[int | None] | None:
    """The three sizes of a grid or block, "(39063 1 1)" or three columns; None when the row
    has none."""
    match = _GRID.match(cells.get(f"{what} Size", "").strip())
    if match:
        return [int(match[n]) for n in (1, 2, 3)]
    axes = [whole(cells.get(f"{what} {axis}", "")) for axis in "XYZ"]
    return axes if axes[0] is not None else None


def sniff(path: Path, head: bytes) -> bool:
    """Return whether there is a line of nvprof, or the header of one of its tables."""
    lines = [line for line in head_lines(head) if len(line) <= 4096]
    text = "\n".join(lines)
    return any(word in text for word in _WORDS) and any(
        _ANYWHERE.search(line)
        or any(header.match(line) for _, header, _ in _KINDS[:2])
        or line.startswith((*_CSV_HEADERS, *_BARE_HEADERS))
        for line in lines
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no table of nvprof."""
    source = Lines(path)
    summaries: list[Summary] = []
    with readable(path, TOOL):
        sizes = Sizes.of(row for row in Lines(path) if row.kind == TRACE)
        trace, sums = Trace(sizes), Sums(time_ns)
        for row in source:
            if row.kind == TRACE:
                trace.take(row)
            else:
                summaries += figures(row, sizes)
                if row.kind == SUMMARY:
                    sums.add(source.opened, row.group, row.cells, row.units)
                elif row.kind == UNIFIED:
                    sums.add_unified(row.group, row.cells, row.units)
    if not source.tables:
        messages = (
            "; ".join(entry.text for entry in source.diagnostics()[:2]) or "nothing was profiled"
        )
        raise ReportError(
            path, TOOL, f"it holds no table of nvprof ({messages[:300]})", "Check nvprof's messages"
        )
    if source.starts:
        raise several(path, TOOL, source.starts)
    if source.again is not None:
        raise repeated(path, TOOL, "a table of one process", source.again)
    rounded = (
        "nvprof printed five digits a number, so times and sizes are rounded (--csv prints all "
        "digits)"
    )
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
            *(
                [Diagnostic("info", "perfctl", rounded)]
                if any(table.endswith(("text", _IN_CELLS)) for table in source.tables)
                else ()
            ),
            *not_understood(
                {"tables": source.unknown, "columns": trace.unknown}, "kept as metrics or left out"
            ),
            *sums.doubts(),
            *joined("the tables of further processes", [*source.processes.values()][1:]),
        ),
    )


def _gaps(source: Lines, trace: Trace) -> Iterator[Gap]:
    if not any(table.startswith(TRACE) for table in source.tables):
        reason = "the file has only sums by name: run nvprof --print-gpu-trace for single launches"
        yield Gap("kernel", "not_collected", reason)
        yield Gap("copy", "not_collected", reason)
    elif not trace.kernels:
        yield Gap("kernel", "not_collected", "the GPU trace has no kernel")
    if trace.kernels:
        reason = "nvprof's trace has no ranges, so no kernel can be assigned to a layer"
        yield Gap("kernel.layer", "not_available", reason)
    if source.cut_message:
        reason = (
            f"the last line, '{source.cut_message[:60]}', has no line end: what stood below it may "
            "be cut off"
        )
        yield Gap("nvprof row", "unreadable", reason)
    if source.unread:
        yield Gap(
            "nvprof row", "unreadable", f"{source.unread} lines inside tables could not be read"
        )
