"""Parser of nvprof's output, text or ``--csv``: GPU trace, summary, API calls and metrics.

Text has five digits per number; CSV has all, in the units of a row below the header. A KB is 1000
bytes to nvprof of CUDA 7 and before, and 1024 to later ones. Starts count from the start of the
process. Written from layouts of CUDA 5 to 12 that are printed in public.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.common.doubts import (
    make_joined_parts_warning,
    make_repeated_part_error,
    make_several_runs_error,
    make_unknown_names_warning,
)
from perfctl.parsers.common.lines import ToolTextFile, decode_head_lines
from perfctl.parsers.common.numbers import Number, parse_quantity_in_base_units
from perfctl.parsers.common.tables import FieldColumn, read_json_fields, split_csv_line
from perfctl.records.errors import ReportError
from perfctl.records.report import (
    Copy,
    Counter,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    Report,
    Summary,
    pluralize_count,
)

TOOL = "nvprof"
TRACE, METRICS = "GPU trace", "metrics"
_KINDS = {
    TRACE: {"Start", "Duration"},
    "summary": {"Time(%)", "Calls", "Name"},
    METRICS: {"Invocations", "Avg"},
}
"""Kind of table -> columns that only it has together."""
_FORMS = {"": "text", '"': "CSV", ",": "CSV with units in its cells"}
_NAMES = ("Metric Name", "Event Name", "Name", "Kernel")
_FIGURES = {
    "Time(%)": "%",
    "Time": "ns",
    "Calls": None,
    "Invocations": None,
    **dict.fromkeys(("Avg", "Min", "Max"), "ns"),
}
"""Columns of sums -> their unit; metrics have units of their own."""
_SHARED_MEMORY = {
    "static_shared_bytes": ("SSMem*", "Static SMem"),
    "dynamic_shared_bytes": ("DSMem*", "Dynamic SMem"),
}
"""Fields of a kernel -> their columns in text and CSV."""
_TOOL_LINE = re.compile(r"(?:={8}|==(?P<process>\d+)==) (?P<text>.*)")
"""A line of nvprof. It may follow a program's last line without a line end ("Done==9319== ...")."""
_SURE_LINE = re.compile(
    r"(?:={8}|==\d+==) (?:NVPROF is|Profiling (?:application|result)|(?:Metric|Event) result)"
)
_MESSAGE = re.compile(r"(?:Internal )?(Warning|Error)\s*:\s*(.*)", re.IGNORECASE)
_SUMMARY_ROW = re.compile(
    r"(?:(?P<Type>[A-Z][\w ()]{1,40}):)?\s*([\d.]+%)\s+(\S+)\s+(\d{1,18})\s+(\S+)\s+(\S+)\s+(\S+)"
    r"\s\s?(\S.*)"
)
_BLANKS = re.compile(r" {2,}")
_DEVICE = re.compile(r"(?P<name>.*?\S)(?:\s*\((?P<index>\d{1,4})\))?\Z")
_OPERATION = re.compile(r"\[(?P<of>CUDA|Unified Memory) (?:[Mm]emcpy (?P<kind>\w+)|[Mm]emset)\]")
_CORRELATION = re.compile(r" \[\d{1,12}\]\Z")
_PREFIX = re.compile(r"([KMGT])B")
_MESSAGES_KEPT = 100
_FLOPS = ("flop_count_sp", "flop_count_dp", "flop_count_hp")
"""Metrics of the FLOPs of one launch, by precision; a multiply-add counts as two
[CUDA profiler user's guide]."""
_LAUNCH = (
    *(FieldColumn(f"Grid {axis.upper()}", field=f"grid_{axis}") for axis in "xyz"),
    *(FieldColumn(f"Block {axis.upper()}", field=f"block_{axis}") for axis in "xyz"),
    FieldColumn("Registers Per Thread", field="registers", also=("Regs*",)),
)


def parse_time_ns(cell: object) -> int | None:
    """Return a time in ns; None if the cell is no time with its unit."""
    number, unit = parse_quantity_in_base_units(str(cell), "")
    return round(number) if number is not None and unit == "ns" else None


_EVENT = (
    FieldColumn("Start", field="start_ns", read=parse_time_ns),
    FieldColumn("Duration", field="duration_ns", read=parse_time_ns),
    FieldColumn("Stream", field="stream"),
)


class PrintedTable(NamedTuple):
    """The header of a table."""

    kind: str
    names: list[str]
    quote: str
    """"" for text, '"' for CSV, "," for CSV that another program saved without quotes."""
    line: int

    def split_row(self, line: str) -> list[str]:
        """Return one cell per column; [] for a line that is no row."""
        width = len(self.names)
        if self.quote:
            # without quotes, the name at the end may hold commas
            cells = line.split(",", width - 1) if self.quote == "," else split_csv_line(line)
        elif self.kind == "summary":
            match = _SUMMARY_ROW.match(line)
            cells = [cell or "" for cell in match.groups()][-width:] if match else []
        elif self.kind == METRICS:
            cells = _BLANKS.split(line)
            # a description has single blanks, but may be cut into the next column
            cells = cells[:3] + cells[-3:] if len(cells) > 5 else []
        else:
            cells = _BLANKS.split(line, maxsplit=width - 1)
        return [cell.strip() for cell in cells] if len(cells) == width else []


def parse_table_header(line: str, line_number: int = 0) -> PrintedTable | None:
    """Return the table of which the line is the header; None for other lines."""
    quote = "" if line[:1] == " " or "," not in line else '"' if line[0] == '"' else ","
    names = split_csv_line(line) if quote else _BLANKS.split(line.strip())
    kind = next((kind for kind, marks in _KINDS.items() if marks.issubset(names)), "")
    is_table = kind == "summary" or (kind and quote != ",")
    return PrintedTable(kind, names, quote, line_number) if is_table else None


class NvprofOutput:
    """The records of a file, and what nvprof printed around them."""

    def __init__(self, path: Path) -> None:
        self.kernels: list[Kernel] = []
        self.counters: list[Counter] = []
        self.copies: list[Copy] = []
        self.summaries: list[Summary] = []
        self.flops: dict[str, dict[str, tuple[int, int]]] = {}
        """Kernel -> metric of FLOPs -> launches, and their FLOPs added up."""
        self.sums: list[Operation] = []
        self.devices: dict[str, int | None] = {}
        self.tables: list[PrintedTable] = []
        self.messages: dict[tuple[str, str], None] = {}
        self.starts: list[int] = []  # lines at which nvprof began again after its tables
        self.again = 0  # line of the first table that repeats another one
        self.processes: dict[str, int] = {}  # the line of its first table
        self.unknown: list[str] = []  # headers below an announced table
        self.ambiguous: Tally[str] = Tally()  # quantity -> values that depend on what a KB is
        self.others = 0  # rows of a trace that are neither kernel nor copy
        self.unread = 0
        self.has_unified_memory = False
        self.text = ToolTextFile(path, TOOL)
        self._table: PrintedTable | None = None
        self._units: dict[str, str] = {}
        self._group = self._process = self._header = ""
        self._is_announced = False
        self._waiting: set[str] = set()  # processes that nvprof has printed nothing of
        self._first: dict[tuple[str, ...], int] = {}
        self._row_count = count = 0
        for line in self.text:
            count = self._row_count
            self._read_line(line)
        self.unread += not self.text.ends_whole and self._row_count == count

    def _read_line(self, line: str) -> None:
        is_cut = not self.text.ends_whole and not line.endswith((")", "]", '"'))
        if match := _TOOL_LINE.search(line):
            self._process = match["process"] or ""
            self._read_message_line(match["text"])
        elif line.lstrip().startswith('Device "'):
            self._group = line.strip()[len('Device "') : -1]
        elif table := parse_table_header(line, self.text.line):
            self._table, self._units, self._is_announced = table, {}, False
            self.tables.append(table)
            self.processes.setdefault(self._process, table.line)
            if table.kind == TRACE:
                self._record_repeated_table_line(table)
            self._header = line.strip()
        elif self._table and line.endswith(self._header):
            reason = f"line {self.text.line} is a row and the header of another table in one"
            raise ReportError(self.text.path, TOOL, reason, "Pass each file that was joined here")
        elif self._table:
            if not is_cut:  # the name at the end of the row
                self._read_row(line.strip(), self._table)
        elif self._is_announced and line.strip():
            self._is_announced = False
            if '","' in line or len(_BLANKS.split(line.strip())) > 2:
                self.unknown.append(line.strip()[:60])

    def _read_message_line(self, text: str) -> None:
        """Read a line of nvprof's own; one that is no message ends the table before it."""
        message, is_result = _MESSAGE.match(text), text.rstrip().endswith("result:")
        if text.startswith("NVPROF is profiling"):
            if self.tables and not self._waiting:
                self.starts.append(self.text.line)
            self._waiting.add(self._process)
        elif message or is_result or text.startswith(("Profiling application", "Generated result")):
            self._waiting.discard(self._process)
        self.has_unified_memory |= text.startswith("Unified Memory profiling result")
        if not message:
            self._table = None
            self._is_announced = is_result and not self.has_unified_memory
            self._group = "API calls" if text.startswith("API calls") else ""
        elif len(self.messages) < _MESSAGES_KEPT:
            self.messages[message[1].lower(), message[2].strip()[:1000]] = None

    def _record_repeated_table_line(self, table: PrintedTable, *row: str) -> None:
        """Note the line if an earlier table of the process is the same trace or has the row."""
        key = (self._process, table.kind, *row)
        if self._first.setdefault(key, table.line) != table.line and not self.again:
            self.again = table.line

    def _read_row(self, line: str, table: PrintedTable) -> None:
        is_metrics = table.kind == METRICS
        if not line:
            self._table = table if is_metrics and not table.quote else None
        elif line.startswith("Kernel: ") and not table.quote:
            self._group = line.removeprefix("Kernel: ")
        elif not (cells := table.split_row(line)):
            self.unread += 1
            self.text.record_stray_line(line)
        elif table.quote and not re.search(r"\d", line):
            self._units = dict(zip(table.names, cells, strict=True))
        else:
            cells_by_name = {
                column: cell + self._units.get(column, "") if cell[-1:].isdigit() else cell
                for column, cell in zip(table.names, cells, strict=True)
            }
            self._group = cells_by_name.pop("Type", "") or self._group
            name = next(
                (cells_by_name[column] for column in _NAMES if cells_by_name.get(column)), ""
            )
            self._row_count += 1
            if table.kind == TRACE:
                self._add_traced_event(table, name, cells_by_name)
            else:
                group = cells_by_name.get("Kernel" if is_metrics else "Device") or self._group
                self._record_repeated_table_line(
                    table, group, cells_by_name.get("Device", ""), name
                )
                self._add_summed_row(table, group, name, cells_by_name)

    def _add_traced_event(self, table: PrintedTable, name: str, cells: dict[str, str]) -> None:
        """Add a row of a trace: a kernel has a grid, a copy a bracketed name."""
        for part in ("Grid", "Block"):  # "(39063 1 1)" in text, three columns in CSV
            sizes = cells.pop(f"{part} Size", "").strip("()").split()
            cells |= {f"{part} {axis}": size for axis, size in zip("XYZ", sizes, strict=False)}
        event, launch = read_json_fields(_EVENT, cells), read_json_fields(_LAUNCH, cells)
        if match := _DEVICE.match(cells.get("Device", "").strip("- ")):
            event["device_index"] = int(match["index"]) if match["index"] else None
            self.devices[match["name"]] = event["device_index"]
        if operation := _OPERATION.fullmatch(name):
            size = self._read_size_bytes(table, "copy.bytes", cells, "Size", "Unified Memory")
            kind = operation["kind"] or "memset"
            kind = f"unified {kind}" if operation["of"] != "CUDA" else kind
            self.copies.append(Copy(kind, size, **event))
        elif launch["grid_x"] is not None and not name.startswith("["):
            for field, columns in _SHARED_MEMORY.items():
                launch[field] = self._read_size_bytes(table, f"kernel.{field}", cells, *columns)
            number = len(self.kernels)
            for metric in filter(str.islower, cells):  # "flop_count_sp"; others begin large
                value, unit = self._read_number_and_unit(table, "counter", cells[metric])
                text = None if value is not None else cells[metric] or None
                self.counters.append(Counter(number, metric, value, unit, text=text))
            self.kernels.append(Kernel(number, _CORRELATION.sub("", name), **event, **launch))
        else:
            self.others += 1

    def _add_summed_row(
        self, table: PrintedTable, group: str, name: str, cells: dict[str, str]
    ) -> None:
        """Add the figures of a sum by name ("GPU activities: name: Time"), and the sum: of a
        kernel, a copy or a call, or of the FLOPs of a kernel's launches."""
        is_metric = table.kind == METRICS
        for key, stated in _FIGURES.items():
            if key in cells:
                number, unit = self._read_number_and_unit(table, "summary", cells[key])
                if not is_metric and unit != stated:
                    number, unit = None, stated
                text = cells[key] if number is None else None
                value = None if number is None else float(number)
                label = f"{group or 'GPU activities'}: {name}: {key}"
                self.summaries.append(Summary(label, value, unit, text))
        calls, mean = (
            parse_quantity_in_base_units(cells.get(key, ""), "")[0]
            for key in ("Invocations" if is_metric else "Calls", "Avg")
        )
        time = parse_time_ns(cells.get("Time"))
        if is_metric:
            # nvprof prints the mean as a whole number
            if name in _FLOPS and calls is not None and mean is not None:
                self.flops.setdefault(group, {})[name] = round(calls), round(calls * mean)
        elif calls is not None and time is not None:
            is_call, is_copy = group == "API calls", _OPERATION.fullmatch(name)
            category = "cuda_api" if is_call else "memory_copy" if is_copy else "kernel"
            host, device = (time, None) if is_call else (None, time)
            self.sums.append(
                Operation(name, category, round(calls), host, None, device, None, None)
            )
        else:
            self.unread += 1

    def _read_number_and_unit(
        self, table: PrintedTable, quantity: str, cell: str
    ) -> tuple[Number | None, str | None]:
        """Return (number, base unit) of a cell; count a size that depends on what a KB is."""
        number, unit = parse_quantity_in_base_units(_PREFIX.sub(r"\1iB", cell), "")
        # a column of CUDA 8 and later, to which a KB is 1024 bytes
        if number and "SrcMemType" not in table.names and _PREFIX.search(cell):
            self.ambiguous[quantity] += 1
            number = None
        return number, unit

    def _read_size_bytes(
        self, table: PrintedTable, quantity: str, cells: dict[str, str], *columns: str
    ) -> int | None:
        """Return bytes, of the first of these columns that the row has filled."""
        cell = next(filter(None, map(cells.get, columns)), "")
        number, unit = self._read_number_and_unit(table, quantity, cell)
        return round(number) if unit == "byte" and number is not None else None


def sniff(path: Path, head: bytes) -> bool:
    """Return whether there is a line of nvprof, or the header of one of its tables."""
    return any(
        _SURE_LINE.search(line) or parse_table_header(line) for line in decode_head_lines(head)
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no table of nvprof, or the outputs of several
    runs."""
    output = NvprofOutput(path)
    if not output.tables:
        messages = "; ".join(text for _, text in [*output.messages][:2]) or "nothing was profiled"
        reason = f"it contains no table of nvprof ({messages[:300]})"
        raise ReportError(path, TOOL, reason, "Check nvprof's messages")
    if output.starts:
        raise make_several_runs_error(path, TOOL, output.starts)
    if output.again:
        raise make_repeated_part_error(path, TOOL, "a table of one process", output.again)
    forms = (f"{table.kind}, {_FORMS[table.quote]}" for table in output.tables)
    notes = [Diagnostic(severity, TOOL, text) for severity, text in output.messages]
    if any(table.quote != '"' for table in output.tables):
        text = "nvprof printed five digits per number, so times and sizes are rounded (see --csv)"
        notes.append(Diagnostic("info", "perfctl", text))
    return Report(
        tool=TOOL,
        path=path,
        form=f"nvprof {' and '.join(dict.fromkeys(forms))}",
        devices=tuple(Device(name, "gpu", index or 0) for name, index in output.devices.items()),
        kernels=output.kernels,
        counters=output.counters,
        copies=output.copies,
        operations=[
            *output.sums,
            *(
                Operation(
                    kernel,
                    "kernel",
                    max(launches for launches, _ in counts.values()),
                    None,
                    None,
                    None,
                    None,
                    sum(flops for _, flops in counts.values()),
                )
                for kernel, counts in output.flops.items()
            ),
        ],
        summaries=tuple(output.summaries),
        gaps=tuple(_describe_missing_data(output)),
        diagnostics=(
            *notes,
            *output.text.make_skipped_lines_diagnostics(),
            *make_unknown_names_warning({"tables": output.unknown}),
            *make_joined_parts_warning(
                "the tables of further processes", [*output.processes.values()][1:]
            ),
        ),
    )


def _describe_missing_data(output: NvprofOutput) -> Iterator[Gap]:
    if output.kernels:
        reason = "nvprof's trace has no ranges, so perfctl cannot assign kernels to layers"
        yield Gap("kernel.layer", "not_available", reason)
    else:
        reason = "the file has no GPU trace. Run nvprof --print-gpu-trace for single launches"
        yield Gap("kernel", "not_collected", reason)
        if all(table.kind != TRACE for table in output.tables):
            yield Gap("copy", "not_collected", reason)
    if output.has_unified_memory:
        yield Gap("summary", "not_available", "perfctl does not read sums of unified memory")
    counted = {metric for counts in output.flops.values() for metric in counts}
    if counted and len(counted) < len(_FLOPS):
        missing = ", ".join(metric for metric in _FLOPS if metric not in counted)
        reason = f"FLOPs are those of {', '.join(sorted(counted))}: {missing} were not collected"
        yield Gap("operation.flops", "not_collected", reason)
    if output.others:
        reason = f"perfctl does not read calls and page faults in a trace: {output.others:,} rows"
        yield Gap("api_call", "not_available", reason)
    if output.unread:
        lines = pluralize_count(output.unread, "line", "is", "are")
        reason = f"{lines} unreadable or truncated inside tables"
        yield Gap("nvprof row", "unreadable", reason)
    yield from output.text.find_unwritten_part_gaps("nvprof row")
    for quantity, count in output.ambiguous.items():
        reason = (
            "a KB of nvprof is 1000 bytes up to CUDA 7 and 1024 from CUDA 8 on, and nothing in the "
            f"file shows which: {count:,} values are left out"
        )
        yield Gap(quantity, "ambiguous", reason)
    if None in output.devices.values():
        reason = "the trace names the GPU without its number, in 15 characters at most"
        yield Gap("kernel.device_index", "not_available", reason)
