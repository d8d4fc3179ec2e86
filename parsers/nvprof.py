"""Parser of nvprof's output, text or ``--csv``: GPU trace, summary, API calls and metrics.

Text has five digits per number; CSV has all, in the units of a row below the header. A KB is 1000
bytes to nvprof of CUDA 7 and before, and 1024 to later ones. Starts count from the start of the
process. Written from layouts of CUDA 5 to 12 that are printed in public.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import joined, not_understood, repeated, several
from perfctl.parsers.common.lines import ToolText, head_lines
from perfctl.parsers.common.numbers import read_quantity
from perfctl.parsers.common.tables import Column, read_object, split_csv
from perfctl.records.errors import ReportError, readable
from perfctl.records.report import Copy, Counter, Device, Diagnostic, Gap, Kernel, Report, Summary

TOOL = "nvprof"
TRACE, METRICS = "GPU trace", "metrics"
_KINDS = {
    TRACE: {"Start", "Duration"},
    "summary": {"Time(%)", "Calls", "Name"},
    METRICS: {"Invocations", "Avg"},
}
"""Kind of table -> columns that only it has together."""
_FIGURES = {
    "Time(%)": "%",
    "Time": "ns",
    "Calls": None,
    "Invocations": None,
    **dict.fromkeys(("Avg", "Min", "Max"), "ns"),
}
"""Columns of sums -> their unit; metrics have units of their own."""
_LAUNCH = (
    *(Column(f"Grid {axis.upper()}", field=f"grid_{axis}") for axis in "xyz"),
    *(Column(f"Block {axis.upper()}", field=f"block_{axis}") for axis in "xyz"),
    Column("Registers Per Thread", field="registers", also=("Regs*",)),
    Column("Stream", field="stream"),
)
_SHARED_MEMORY = (
    ("static_shared_bytes", "SSMem*", "Static SMem"),
    ("dynamic_shared_bytes", "DSMem*", "Dynamic SMem"),
)
"""Fields of a kernel, and their columns in text and CSV."""
_INSIDE_LINE = re.compile(
    r"(?:={8}|==\d+==) (?:NVPROF is|Profiling (?:application|result)|(?:Metric|Event) result)"
)
"""nvprof's line may follow a program's last line without a line end ("Success!==9319== ...")."""
_TOOL_LINE = re.compile(r"(?:={8}|==(?P<process>\d+)==) (?P<text>.*)")
_MESSAGE = re.compile(r"(?:Internal )?(Warning|Error)\s*:\s*(.*)", re.IGNORECASE)
_NOTES = ("Regs:", "SSMem:", "DSMem:", "SrcMemType:", "DstMemType:", "Total CPU Page faults")
_SUMMARY_ROW = re.compile(
    r"(?:(?P<Type>[A-Z][\w ()]{1,40}):)?\s*([\d.]+%)\s+(\S+)\s+(\d{1,18})\s+(\S+)\s+(\S+)\s+(\S+)"
    r"\s\s?(\S.*)"
)
_BLANKS = re.compile(r" {2,}")
_DEVICE = re.compile(r"(?P<name>.*?\S)(?:\s*\((?P<index>\d{1,4})\))?\Z")
_OPERATION = re.compile(r"\[(?:CUDA|Unified Memory) (?:[Mm]emcpy (?P<kind>\w+)|[Mm]emset)\]")
_CORRELATION = re.compile(r" \[\d{1,12}\]\Z")
_PREFIX = re.compile(r"([KMGT])B")
_PREFIXES = ["", "K", "M", "G", "T"]
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<prefix>[KMGT]?)B(?:/s)?\Z")
_TOLERANCE = 5
"""How far 1000 and 1024 may be off when they are worked out from numbers of five digits."""
_LINE_LIMIT, _MESSAGES_KEPT = 1 << 20, 100


class Row(NamedTuple):
    """One row of one table: its group ("GPU activities", "API calls", the kernel of a metric), its
    cells and the units below the header by column; cells of text have their units."""

    kind: str
    group: str
    cells: dict[str, str]
    units: dict[str, str]

    def print_cell(self, name: str) -> str:
        """Return the cell with its unit: "10.000MB"; "" if it is not filled."""
        cell = self.cells.get(name, "").strip(" -")
        return cell and f"{cell}{self.units.get(name, '')}"

    def read(self, name: str, kilo: int | None) -> tuple[int | float | None, str | None]:
        """Return (number, base unit) of a column. ``kilo``: how many bytes a KB is, 1000 or 1024;
        if it is None, a size with a prefix has the base unit alone."""
        cell, unit = self.cells.get(name, ""), self.units.get(name, "")
        if kilo == 1024:
            cell, unit = _PREFIX.sub(r"\1iB", cell), _PREFIX.sub(r"\1iB", unit)
        number, base = read_quantity(cell, unit)
        is_unknown = kilo is None and _PREFIX.search(cell + unit) is not None
        return (None if is_unknown and number else number), base

    def read_time(self, name: str) -> int | None:
        """Return a time in ns."""
        number, base = self.read(name, None)
        return round(number) if number is not None and base == "ns" else None


def find_kilo(rows: Iterable[Row]) -> int | None:
    """Return how many bytes a KB is in these rows: 1000, 1024, or None if they do not show it.

    A copy of 10 MB in 2 ms at 4.8828 GB/s shows that it is 1024; so do columns of CUDA 8 and later.
    """
    is_recent = False
    for row in rows:
        is_recent = is_recent or "SrcMemType" in row.cells
        size, rate = (_SIZE.match(row.print_cell(name)) for name in ("Size", "Throughput"))
        duration_ns = row.read_time("Duration")
        if not size or not rate or not duration_ns:
            continue
        steps = _PREFIXES.index(rate["prefix"]) - _PREFIXES.index(size["prefix"])
        speed = float(size["number"]) * 1e9 / duration_ns
        if steps > 0 and speed and float(rate["number"]):
            kilo = (speed / float(rate["number"])) ** (1 / steps)
            for known in (1000, 1024):
                if abs(kilo - known) < _TOLERANCE:
                    return known
    return 1024 if is_recent else None


class Output:
    """The rows of a file, and what nvprof printed around them: its messages, the lines at which it
    began again after its tables, and the line of the first table that repeats another one."""

    def __init__(self, path: Path) -> None:
        self.rows: list[Row] = []
        self.tables: list[str] = []
        self.unread = 0
        self.has_unified_memory = False
        self.starts: list[int] = []
        self.again = 0
        self.processes: dict[str, int] = {}  # the line of its first table
        self.unknown: list[str] = []  # headers below an announced table
        self.messages: dict[tuple[str, str], None] = {}
        self.text = ToolText(path, TOOL)
        self._kind = self._group = self._device = self._process = self._quote = ""
        self._names: list[str] = []
        self._units: dict[str, str] | None = {}  # None until the row below a CSV header was checked
        self._opened = 0
        self._is_announced = False
        self._waiting: set[str] = set()  # processes that nvprof has printed nothing of
        self._first: dict[tuple[str, ...], int] = {}
        line, count = "", 0
        for line in self.text:
            count = len(self.rows)
            self._read_line(line)
        is_cut = len(self.rows) == count or not line.endswith((")", "]", '"'))
        if is_cut and not self.text.ends_whole:
            del self.rows[count:]  # the name at the end of the last row may be cut off
            self.unread += 1

    def _read_line(self, line: str) -> None:
        glued = _INSIDE_LINE.search(line[:_LINE_LIMIT])
        if match := _TOOL_LINE.match(line[glued.start() :] if glued else line):
            self._process = match["process"] or ""
            self._read_tool_line(match["text"])
        elif len(line) > _LINE_LIMIT:
            self.unread += bool(self._kind)
        elif self._quote != '"' and line.lstrip().startswith('Device "'):
            self._group = self._device = line.strip()[len('Device "') : -1]
        elif not self._open_table(line) and self._kind:
            self._read_row(line.strip())
        elif self._is_announced and not self._kind and line.strip():
            self._is_announced = False
            if '","' in line or len(_BLANKS.split(line.strip())) > 2:
                self.unknown.append(line.strip()[:60])

    def _read_tool_line(self, text: str) -> None:
        """Read a line of nvprof's own; one that is no message ends the table before it."""
        message, is_result = _MESSAGE.match(text), text.rstrip().endswith("result:")
        if text.startswith("NVPROF is profiling"):
            if self.tables and not self._waiting:
                self.starts.append(self.text.line)
            self._waiting.add(self._process)
        elif message or is_result or text.startswith(("Profiling application", "Generated result")):
            self._waiting.discard(self._process)
        if message and len(self.messages) < _MESSAGES_KEPT:
            self.messages[message[1].lower(), message[2].strip()[:1000]] = None
        self.has_unified_memory |= text.startswith("Unified Memory profiling result")
        if not message:
            self._kind = self._device = ""
            self._is_announced = is_result and not self.has_unified_memory
            self._group = "API calls" if text.startswith("API calls") else ""

    def _open_table(self, line: str) -> bool:
        """Begin a table if the line is its header."""
        kind, names, quote = read_table_header(line)
        if kind:
            self._kind, self._names, self._quote, self._is_announced = kind, names, quote, False
            self.processes.setdefault(self._process, self.text.line)
            self._units, self._opened = None if quote and kind != METRICS else {}, self.text.line
            form = {"": "text", '"': "CSV", ",": "CSV with units in its cells"}[quote]
            self.tables.append(f"{kind}, {form}")
            if kind == TRACE:
                self._check_repeated(kind)
        return bool(kind)

    def _check_repeated(self, *key: str) -> None:
        """Note the line if an earlier table of the process has the same trace or row."""
        opened = self._first.setdefault((self._process, self._device, *key), self._opened)
        if opened != self._opened and not self.again:
            self.again = self._opened

    def _read_row(self, line: str) -> None:
        if not line:
            self._kind = METRICS if self._kind == METRICS and not self._quote else ""
        elif line.startswith("Kernel: ") and not self._quote:
            self._group = line.removeprefix("Kernel: ")
        elif cells := self._split_row(line):
            named = dict(zip(self._names, cells, strict=True))
            if self._units is None and not re.search(r"\d", line):
                self._units = named
                return
            self._units = self._units or {}
            self._group = named.pop("Type", "") or self._group
            group = named.get("Kernel" if self._kind == METRICS else "Device") or self._group
            row = Row(self._kind, group or "GPU activities", named, self._units)
            self.rows.append(row)
            if row.kind != TRACE:
                self._check_repeated(row.kind, row.group, named.get("Device", ""), _name_of(row))
        else:
            self.unread += not line.startswith(_NOTES)
            self.text.stray(line)

    def _split_row(self, line: str) -> list[str]:
        """Return one cell per column; [] for a line that is no row."""
        width = len(self._names)
        if self._quote:
            cells = line.split(",", width - 1) if self._quote == "," else split_csv(line)
        elif self._kind == "summary":
            match = _SUMMARY_ROW.match(line)
            cells = [cell or "" for cell in match.groups()][-width:] if match else []
        elif self._kind == METRICS:
            cells = _BLANKS.split(line)
            # a description has single blanks, but may be cut into the next column
            cells = [*cells[:2], " ".join(cells[2:-3]), *cells[-3:]] if len(cells) > 5 else []
        else:
            cells = _BLANKS.split(line, maxsplit=width - 1)
        return cells if len(cells) == width else []


def read_table_header(line: str) -> tuple[str, list[str], str]:
    """Return (kind, names of columns, quote): the kind is "" for other lines; the quote is "" for
    text, '"' for CSV, "," for CSV that another program saved without quotes, in which names hold
    commas."""
    quote = "" if line[:1] == " " or "," not in line else '"' if line[0] == '"' else ","
    names = split_csv(line) if quote else _BLANKS.split(line.strip())
    kind = next((kind for kind, marks in _KINDS.items() if marks.issubset(names)), "")
    return "" if quote == "," and kind != "summary" else kind, names, quote


def _name_of(row: Row) -> str:
    keys = ("Metric Name", "Event Name", "Name", "Kernel")
    return next((row.cells[key].strip() for key in keys if row.cells.get(key)), "")


class Records:
    """The records of the rows, in order."""

    def __init__(self, rows: list[Row]) -> None:
        self.kernels: list[Kernel] = []
        self.counters: list[Counter] = []
        self.copies: list[Copy] = []
        self.summaries: list[Summary] = []
        self.devices: dict[str, int | None] = {}
        self.others = 0  # rows of a trace that are neither kernel nor copy
        self.kilo = find_kilo(row for row in rows if row.kind == TRACE)
        self.ambiguous: dict[str, int] = {}  # quantity -> values that depend on an unknown kilo
        for row in rows:
            if row.kind == TRACE:
                self._add_event(row)
            else:
                self._add_figures(row)

    def _add_event(self, row: Row) -> None:
        """Add a row of a trace: a kernel has a grid, a copy a bracketed name."""
        cells, name = dict(row.cells), _name_of(row)
        for what in ("Grid", "Block"):  # "(39063 1 1)" in text, three columns in CSV
            sizes = cells.get(f"{what} Size", "").strip(" ()").split()
            cells |= {f"{what} {axis}": size for axis, size in zip("XYZ", sizes, strict=False)}
        fields = read_object(_LAUNCH, cells)
        times: dict[str, Any] = {
            "start_ns": row.read_time("Start"),
            "duration_ns": row.read_time("Duration"),
        }
        match = _DEVICE.match(cells.get("Device", "").strip(" -"))
        device = int(match["index"]) if match and match["index"] else None
        if match:
            self.devices[match["name"]] = device
        if operation := _OPERATION.fullmatch(name):
            size = self._read_size("copy.bytes", row, "Size", "Unified Memory")
            kind, stream = operation["kind"] or "memset", fields["stream"]
            self.copies.append(Copy(kind, size, **times, device_index=device, stream=stream))
        elif fields["grid_x"] is not None and not name.startswith("["):
            for field, *names in _SHARED_MEMORY:
                fields[field] = self._read_size(f"kernel.{field}", row, *names)
            kernel = Kernel(len(self.kernels), _CORRELATION.sub("", name), device_index=device)
            for metric in filter(str.islower, row.cells):  # "flop_count_sp"; others begin large
                value, unit = row.read(metric, self.kilo)
                text = None if value is not None else row.cells[metric] or None
                self._count_ambiguous("counter", value, unit)
                self.counters.append(Counter(kernel.launch, metric, value, unit, text=text))
            self.kernels.append(kernel._replace(**fields, **times))
        else:
            self.others += 1

    def _add_figures(self, row: Row) -> None:
        """Add the figures of a sum by name: "GPU activities: name: Time"."""
        for key, stated in _FIGURES.items():
            if key not in row.cells:
                continue
            number, unit = row.read(key, self.kilo)
            label, text = f"{row.group}: {_name_of(row)}: {key}", None
            if number is None or (row.kind != METRICS and unit != stated):
                self._count_ambiguous("summary", number, unit)
                number, text = None, row.cells[key]
                unit = None if row.kind == METRICS else stated
            value = None if number is None else float(number)
            self.summaries.append(Summary(label, value, unit, text))

    def _count_ambiguous(self, quantity: str, number: float | None, unit: str | None) -> None:
        if number is None and unit is not None:
            self.ambiguous[quantity] = self.ambiguous.get(quantity, 0) + 1

    def _read_size(self, quantity: str, row: Row, *names: str) -> int | None:
        """Return bytes, of the first of these columns that the row has filled."""
        filled = [name for name in names if row.print_cell(name)]
        number, base = row.read(filled[0], self.kilo) if filled else (None, None)
        self._count_ambiguous(quantity, number, base)
        return round(number) if base == "byte" and number is not None else None


def sniff(path: Path, head: bytes) -> bool:
    """Return whether there is a line of nvprof, or the header of one of its tables."""
    lines = [line for line in head_lines(head) if len(line) <= 4096]
    return any(_INSIDE_LINE.search(line) or read_table_header(line)[0] for line in lines)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no table of nvprof, or the outputs of several
    runs."""
    with readable(path, TOOL):
        output = Output(path)
    if not output.tables:
        messages = "; ".join(text for _, text in [*output.messages][:2]) or "nothing was profiled"
        reason = f"it holds no table of nvprof ({messages[:300]})"
        raise ReportError(path, TOOL, reason, "Check nvprof's messages")
    if output.starts:
        raise several(path, TOOL, output.starts)
    if output.again:
        raise repeated(path, TOOL, "a table of one process", output.again)
    records = Records(output.rows)
    notes = [Diagnostic(severity, TOOL, text) for severity, text in output.messages]
    if any(not table.endswith("CSV") for table in output.tables):
        text = "nvprof printed five digits a number, so times and sizes are rounded (see --csv)"
        notes.append(Diagnostic("info", "perfctl", text))
    return Report(
        tool=TOOL,
        path=path,
        form="nvprof " + " and ".join(dict.fromkeys(output.tables)),
        devices=tuple(Device(name, "gpu", index or 0) for name, index in records.devices.items()),
        kernels=records.kernels,
        counters=records.counters,
        copies=records.copies,
        summaries=tuple(records.summaries),
        gaps=tuple(_gaps(output, records)),
        diagnostics=(
            *notes,
            *output.text.diagnostics(),
            *not_understood({"tables": output.unknown}),
            *joined("the tables of further processes", [*output.processes.values()][1:]),
        ),
    )


def _gaps(output: Output, records: Records) -> Iterator[Gap]:
    if records.kernels:
        reason = "nvprof's trace has no ranges, so no kernel can be assigned to a layer"
        yield Gap("kernel.layer", "not_available", reason)
    else:
        reason = "the file has no kernel: run nvprof --print-gpu-trace for single launches"
        yield Gap("kernel", "not_collected", reason)
        if not any(table.startswith(TRACE) for table in output.tables):
            yield Gap("copy", "not_collected", reason)
    if output.has_unified_memory:
        yield Gap("summary", "not_available", "sums of unified memory are not read")
    if records.others:
        reason = f"calls and page faults in a trace are not read: {records.others:,} rows"
        yield Gap("api_call", "not_available", reason)
    if output.unread:
        reason = f"{output.unread} lines inside tables could not be read, or are cut off"
        yield Gap("nvprof row", "unreadable", reason)
    for quantity, count in records.ambiguous.items():
        reason = (
            "a KB of nvprof is 1000 bytes up to CUDA 7 and 1024 from CUDA 8 on, and nothing in the "
            f"file shows which: {count:,} values are left out"
        )
        yield Gap(quantity, "ambiguous", reason)
    if None in records.devices.values():
        reason = "the trace names the GPU without its number, in 15 characters at most"
        yield Gap("kernel.device_index", "not_available", reason)
