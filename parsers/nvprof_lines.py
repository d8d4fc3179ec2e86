"""Reads the rows of nvprof's tables, text and CSV, among nvprof's messages and the program's output."""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfctl.parsers.records import Diagnostic
from perfctl.parsers.text.tool_text import ToolText, head_lines

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
