"""Parser of ``nsys stats`` and ``nsys profile --stats=true`` output, CSV and console, with report
names since 2019. The file is read once for its sums, number format and gaps; kernels, copies and
ranges of traces are read from it again while they are iterated, as often as asked."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import (
    make_newer_version_note,
    make_repeated_part_error,
    make_several_runs_error,
    make_unknown_names_warning,
)
from perfctl.parsers.common.lines import SurroundingLines, read_beginning_and_end
from perfctl.parsers.common.numbers import (
    AmbiguousNumberError,
    DecimalStyle,
    DecimalStyleEvidence,
    Number,
    Unit,
    parse_number_fast,
    scale_printed_number,
)
from perfctl.parsers.common.tables import FieldColumn as TableColumn
from perfctl.parsers.common.tables import RowReader
from perfctl.parsers.nsys.stats_tables import (
    ANALYSES,
    API_SYNC,
    API_TRACE,
    COUNTS,
    DEVICE_SUMS,
    EXECUTION_SUM,
    GPU_TRACE,
    HOST_SUMS,
    KERNEL_SUM,
    KERNEL_TRACE,
    LABELS,
    MIXED_SUM,
    NAMES,
    PROJECTED_TRACE,
    RANGE_TRACE,
    REPORTS,
    TRACES,
    UNKNOWN,
    LineSource,
    ReportNote,
    StatsColumn,
    TableStart,
    read_tables_and_notes,
    scan_tables_and_notes,
)
from perfctl.parsers.nsys.tables import COPY_LABELS, TOOL
from perfctl.records.bulk import ColumnChunks, ColumnRecords
from perfctl.records.errors import ReportError, convert_os_errors
from perfctl.records.ranges import parse_range_name
from perfctl.records.report import (
    Copy,
    Device,
    Diagnostic,
    Gap,
    Kernel,
    Operation,
    Range,
    Report,
    Summary,
    pluralize_count,
)

NEWEST = "2025.1"
_LIKE_OTHERS = ("osrt_sum", UNKNOWN)
"""Sums of calls without a title all have the same columns: only a name that two of them share makes
them one report."""
_ABOUT = {
    "cuda_gpu_kern_sum": "kernel",
    GPU_TRACE: "kernel",
    KERNEL_TRACE: "kernel",
    "cuda_gpu_mem_size_sum": "copy",
    "cuda_gpu_mem_time_sum": "copy",
    "nvtx_sum": "range",
    "nvtx_pushpop_sum": "range",
    RANGE_TRACE: "range",
}
"""Report -> what the capture has none of when the report has no rows."""
_QUANTITIES = {
    "CUDA kernel": "kernel",
    "GPU memory": "copy",
    "NVTX": "range",
    "CUDA trace": "operation:cuda_api_sum",
}
_SINGLE = (
    ("kernel", {GPU_TRACE, KERNEL_TRACE}, "single launches and copies", GPU_TRACE),
    ("copy", {GPU_TRACE}, "single launches and copies", GPU_TRACE),
    ("range", {RANGE_TRACE, PROJECTED_TRACE}, "single ranges", RANGE_TRACE),
)
_VERSION = re.compile(r"nsight-systems[/-](?:cli/)?(\d{4}\.\d+\.\d+(?:\.\d+)?)/")
_FILE = re.compile(r".*(?= does not contain )")
CHUNK = 256
"""Records of a trace turned to columns at a time."""

_DEVICE = re.compile(r"(.*) \((\d{1,8})\)")
_OPERATION = re.compile(r"\[CUDA (Unified Memory )?(memcpy|memset)(?: (.*))?\]")
_LARGEST = 2**63 - 1
_FEWEST_DIGITS = 3
"""A size that was rounded to fewer digits than this is not passed on."""
_HOST_CATEGORY = "CUDA_API"
_SHOWN = {"GridXYZ": "grid", "BlockXYZ": "block"}


@dataclass(slots=True)
class ReportSection:
    """A report that the file names, and its table."""

    line: int
    report: str | None
    """None where another recording begins."""
    is_announced: bool = False
    columns: list[StatsColumn] = field(default_factory=list)
    """Empty if no table follows."""
    form: str = ""
    rows: list[list[str]] = field(default_factory=list)
    """Rows of a table of sums."""

    def find_row_names(self) -> set[str]:
        """Return the names of the rows."""
        indices = [index for index, column in enumerate(self.columns) if column.label in NAMES]
        return {row[index] for row in self.rows for index in indices[:1]}


@dataclass(slots=True)
class StatsSurvey:
    """Results of the first pass over the file."""

    log: SurroundingLines = field(default_factory=SurroundingLines)
    evidence: DecimalStyleEvidence = field(default_factory=DecimalStyleEvidence)
    sections: list[ReportSection] = field(default_factory=list)
    notes: dict[ReportNote, None] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    """Ordinal -> name, of traces."""
    version: str | None = None
    """Of nsys, where the file says it."""
    clipped: int = 0
    """Cells that nsys clipped to the width of their column."""

    @property
    def sections_with_table(self) -> list[ReportSection]:
        """The sections that have a table."""
        return [section for section in self.sections if section.columns]

    @property
    def report_names(self) -> list[str]:
        """The reports of these tables."""
        return list(dict.fromkeys(str(section.report) for section in self.sections_with_table))

    @property
    def table_forms(self) -> set[str]:
        return {section.form for section in self.sections_with_table}

    @property
    def nsys_command(self) -> str:
        """The command of nsys that wrote the tables."""
        reports = {*self.report_names, *(note.report for note in self.notes if note.report)}
        return "nsys analyze" if reports and reports <= ANALYSES.keys() else "nsys stats"

    @property
    def decimal_style(self) -> DecimalStyle:
        """The decimal style of the file. nsys follows its shell's locale on the console only."""
        return (
            self.evidence.decide_decimal_style()
            if "console text" in self.table_forms
            else DecimalStyle.POINT
        )


def sniff(path: Path, head: bytes) -> bool:
    """Return whether nsys stats' lines or table headers are at the beginning or, after a program's
    output, at the end."""
    for text in read_beginning_and_end(path, head):
        lines = io.StringIO(text.replace("\r", "\n").lstrip("\ufeff"))
        for event in scan_tables_and_notes(LineSource(lines, SurroundingLines()), ""):
            # other tools write CSV with such columns, but without units
            if isinstance(event, TableStart):
                is_sure = event.form != "CSV" or any(column.unit.name for column in event.columns)
            else:
                is_sure = isinstance(event, ReportNote) and event.kind == "report"
            if is_sure:
                return True
    return False


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of nsys stats and no line that says
    why there is none, and, naming the lines, when it holds several runs."""
    survey = _survey_file(path)
    if not survey.sections_with_table and not any(
        note.kind in ("skipped", "empty") for note in survey.notes
    ):
        errors = (
            f"nsys stats stopped with an error: {note.text}"
            for note in survey.notes
            if note.kind == "error"
        )
        reason = next(errors, "it contains no complete table of nsys stats")
        command = "nsys stats --format csv --report cuda_gpu_kern_sum,cuda_api_sum REPORT"
        raise ReportError(path, TOOL, reason, f"Run '{command}' again, or pass the report itself")
    operations, summaries = _read_operations_and_summaries(survey)
    _raise_if_several_runs(path, survey)
    style = survey.decimal_style

    def read_trace_records(
        record: type[Any],
        make: Callable[[Iterator[dict[str, Any]]], Iterator[Any]],
        fields: Sequence[RecordField],
        *reports: str,
    ) -> ColumnRecords[Any] | tuple[()]:
        report = next((report for report in reports if report in survey.report_names), None)
        if report is None:
            return ()

        def read_columns() -> ColumnChunks:
            records = make(_iterate_trace_rows(path, report, fields, style))
            while rows := list(islice(records, CHUNK)):
                yield list(zip(*rows, strict=True))

        return ColumnRecords(record, read_columns)

    if API_TRACE in survey.report_names and "cuda_api_sum" not in survey.report_names:
        rows = _iterate_trace_rows(path, API_TRACE, CALL, style)
        operations += merge_operations_by_name(
            Operation(row["name"], API_TRACE, 1, row["cpu_ns"], None, None, None, None)
            for row in rows
        )
    return Report(
        tool=TOOL,
        path=path,
        form=f"{survey.nsys_command}, {' and '.join(sorted(survey.table_forms)) or 'no tables'}",
        tool_version=survey.version,
        devices=tuple(Device(name, "gpu", index) for index, name in sorted(survey.devices.items())),
        kernels=read_trace_records(
            Kernel, make_kernels_from_trace_rows, KERNEL, GPU_TRACE, KERNEL_TRACE
        ),
        copies=read_trace_records(Copy, make_copies_from_trace_rows, COPY, GPU_TRACE),
        ranges=read_trace_records(
            Range, make_ranges_from_trace_rows, RANGE, RANGE_TRACE, PROJECTED_TRACE
        ),
        operations=operations,
        summaries=tuple(summaries),
        gaps=tuple(_describe_missing_data(survey, summaries)),
        diagnostics=tuple(_collect_warnings_and_errors(survey)),
    )


def _survey_file(path: Path) -> StatsSurvey:
    """Read the file once: sums are kept, rows of traces only looked at."""
    survey = StatsSurvey()
    section = ReportSection(0, None)
    figures: list[int] = []
    device_at, source = 0, ""
    for event in read_tables_and_notes(path, survey.log):
        if isinstance(event, list):
            for index in figures:
                survey.evidence.add_cell(event[index])
            survey.clipped += "".join(event).count("…")
            if section.report not in TRACES:
                section.rows.append(event)
            elif match := _DEVICE.fullmatch(event[device_at]):
                survey.devices.setdefault(int(match[2]), match[1])
        elif isinstance(event, TableStart):
            if section.columns or (section.line, section.report) != (event.line, event.report):
                section = ReportSection(event.line, event.report)
                survey.sections.append(section)
            section.columns, section.form = event.columns, event.form
            figures = [index for index, column in enumerate(event.columns) if column.is_numeric]
            labels = [column.label for column in event.columns]
            device_at = labels.index("Device") if "Device" in labels else 0
        elif event.kind in ("recording", "report", "title"):
            if match := _VERSION.search(event.text):
                survey.version = survey.version or match[1]
            if event.kind == "report" and event.text:
                before, source = source, Path(event.text.partition("] with [")[0]).stem
                if before not in ("", source):
                    survey.sections.append(ReportSection(event.line, None))
            if section.columns or section.report != event.report:
                section = ReportSection(event.line, event.report, is_announced=True)
                survey.sections.append(section)
        else:
            survey.notes[event._replace(line=0)] = None
    return survey


def _read_operations_and_summaries(survey: StatsSurvey) -> tuple[list[Operation], list[Summary]]:
    """Return what all sums say. A row with a negative count or time, which no real one is, is left
    out and counted."""
    operations: list[Operation] = []
    summaries: list[Summary] = []
    for section in survey.sections_with_table:
        labels = {column.label for column in section.columns}
        if section.report == UNKNOWN and labels >= {"Total Time", "Name"}:
            # tables of calls all have the same columns: their names tell
            of_cuda = any(re.match(r"(?:cuda|cu)[A-Z]", name) for name in section.find_row_names())
            section.report = "cuda_api_sum" if of_cuda else "osrt_sum"
        report, columns, style = str(section.report), section.columns, survey.decimal_style
        table = bind_fields_to_columns(EVENT if report in ANALYSES else SUM, columns, style)
        # its rows are calls with their kernels: the sum of kernels where there is no other
        is_kernel_sum = report == EXECUTION_SUM and KERNEL_SUM not in survey.report_names
        for cells in section.rows:
            row = table.convert_row(cells)
            operation: Operation | None
            if report in ANALYSES:
                operation = make_analysis_operation(report, row)
            else:
                if is_kernel_sum and None not in (row["mean_ns"], row["calls"]):
                    row["time_ns"] = round(row["mean_ns"] * row["calls"])
                if min(row["calls"] or 0, row["time_ns"] or 0) < 0:
                    survey.log.broken_rows += 1
                    continue
                operation = make_summed_operation(KERNEL_SUM if is_kernel_sum else report, row)
            operations += [operation] if operation else []
            summaries.extend(make_row_summaries(report, columns, cells, style))
    return merge_operations_by_name(operations), summaries


def _iterate_trace_rows(
    path: Path, report: str, fields: Sequence[RecordField], style: DecimalStyle
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one trace."""
    table: RowReader | None = None
    with convert_os_errors(path, TOOL, reason="it is no longer readable"):
        for event in read_tables_and_notes(path, SurroundingLines()):
            if isinstance(event, TableStart):
                has_names = any(column.label in NAMES for column in event.columns)
                is_it = event.report == report and has_names
                table = bind_fields_to_columns(fields, event.columns, style) if is_it else None
            elif table and isinstance(event, list):
                yield table.convert_row(event)


def _raise_if_several_runs(path: Path, survey: StatsSurvey) -> None:
    """Raise ReportError, naming the lines, when the file holds several runs: a report again, or
    another recording."""
    starts: list[int] = []
    repeated_report = ""
    recorded = 0  # line at which another recording began
    lines_and_names: dict[str, tuple[int, set[str]]] = {}
    for section in survey.sections:
        if section.report is None:
            recorded = recorded or section.line
            continue
        names = section.find_row_names()
        earlier_line, earlier_names = lines_and_names.get(section.report, (section.line, names))
        is_alone = section.report not in _LIKE_OTHERS or section.is_announced
        is_again = earlier_line != section.line and (is_alone or bool(names & earlier_names))
        if lines_and_names and (is_again or recorded):
            repeated_report = repeated_report if starts or recorded else section.report
            starts.append(recorded or section.line)
            lines_and_names, earlier_names = {}, names
        lines_and_names[section.report] = section.line, names | earlier_names
        recorded = 0
    if repeated_report:
        raise make_repeated_part_error(
            path, TOOL, f"the report {repeated_report}", starts[0], starts
        )
    if starts:
        raise make_several_runs_error(path, TOOL, starts)


def _describe_missing_data(survey: StatsSurvey, summaries: Sequence[Summary]) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    missing = set()
    for note in survey.notes:
        if note.kind == "empty" and note.report in ANALYSES:
            continue  # no event breaks the rule
        if note.kind in ("skipped", "empty"):
            about = (quantity for part, quantity in _QUANTITIES.items() if part in note.text)
            quantity = next(about, "operation")
            if note.report:
                quantity = _ABOUT.get(note.report, f"operation:{note.report}")
            missing.add(quantity)
            reason = "nsys stats ran this report and found no rows"
            if note.kind == "skipped":
                text = _FILE.sub("the report", note.text, count=1).rstrip(".")
                reason = f"nsys stats: {text}"
            yield Gap(quantity, "not_collected", reason, note.report)
        elif note.kind == "error" and note.report:
            reason = f"nsys stats failed on this report: {note.text[:300]}"
            yield Gap(f"operation:{note.report}", "unreadable", reason, note.report)
    for quantity, needed, subject, report in _SINGLE:
        if needed.isdisjoint(survey.report_names) and quantity not in missing:
            remedy = f"add 'nsys stats --report {report}', or pass the report itself"
            reason = f"sums do not show {subject}: {remedy}"
            if survey.nsys_command == "nsys analyze":
                reason = "nsys analyze lists only events that break a rule: pass the report itself"
            yield Gap(quantity, "not_available", reason)
    yield from _describe_unreadable_numbers(survey, summaries)
    for report in survey.report_names:
        reason = f"perfctl does not know the nsys report '{report}'"
        if report == UNKNOWN:
            reason = "a table does not name its nsys report"
        if report == UNKNOWN or report not in REPORTS:
            consequence = "so perfctl stores its values as summaries"
            yield Gap("operation", "not_available", f"{reason}, {consequence}")
    if broken := survey.log.broken_rows + survey.log.cut_rows:
        rows = pluralize_count(broken, "truncated or broken row")
        yield Gap("operation", "unreadable", f"{rows} in the tables")
    if holes := survey.log.describe_nul_lines():
        yield Gap("operation", "unreadable", holes)
    if survey.log.unended:
        reason = "the last line has no line end, so the last name may be truncated"
        yield Gap("operation.name", "ambiguous", reason)


def _describe_unreadable_numbers(
    survey: StatsSurvey, summaries: Sequence[Summary]
) -> Iterator[Gap]:
    """Yield gaps for figures without a value: rounded to a large unit, as nsys does by default,
    ambiguous, or clipped."""
    sizes = [
        column.unit.scale != 1
        for section in survey.sections_with_table
        for column in section.columns
        if section.report in TRACES and column.label in ("Bytes", "StcSMem")
    ]
    if any(sizes):
        reason = "nsys stats rounds sizes to MB by default: use '--format csv:mem=B'"
        few = f"sizes with fewer than three digits were skipped; {reason}"
        yield Gap("copy.bytes", "not_available", few)
        for name in ("static", "dynamic"):
            yield Gap(f"kernel.{name}_shared_bytes", "not_available", reason)
    texts = [summary.text for summary in summaries if summary.value is None and summary.text]
    clipped = sum(text.endswith("…") for text in texts)
    rounded = sum(not text.strip("0.,") for text in texts)
    if rounded:
        values = pluralize_count(rounded, "value", "is", "are")
        reason = f"{values} printed as 0 in a large unit and may not be 0"
        remedy = "use '--format csv:mem=B,time=ns'"
        yield Gap("summary", "not_available", f"{reason}: {remedy}")
    unread_texts = len(texts) - clipped - rounded
    if survey.decimal_style is DecimalStyle.UNDECIDED:
        reason = f"{unread_texts} values may be whole numbers or fractions"
        if unread_texts:
            yield Gap("summary", "ambiguous", f"{reason}: print them again with LC_ALL=C")
    elif (unread := unread_texts - sum(text.startswith("0x") for text in texts)) > 0:
        values = pluralize_count(unread, "value")
        yield Gap("summary", "unreadable", f"{values} without a number")
    if clipped:
        values = pluralize_count(clipped, "value", "is", "are")
        reason = f"{values} clipped to the width of the column: use '--format csv'"
        yield Gap("summary", "unreadable", reason)


def _collect_warnings_and_errors(survey: StatsSurvey) -> Iterator[Diagnostic]:
    """Yield warnings and errors of nsys, and warnings about what is clipped or not known."""
    for note in survey.notes:
        if note.kind in ("warning", "error"):
            yield Diagnostic(note.kind, "nsys", f"{note.report or ''} {note.text}".strip()[:500])
    if survey.clipped:
        clipped = f"{survey.clipped} names or values were clipped by nsys"
        advice = "to the width of their column: use '--format csv' for complete values"
        yield Diagnostic("warning", "perfctl", f"{clipped} {advice}")
    tables = [
        f"{note.report} ({' '.join(note.text.split())[:60]})"
        for note in survey.notes
        if note.kind == "unknown"
    ]
    columns = [
        f"{section.report}.{column.label}"
        for section in survey.sections_with_table
        for column in section.columns
        if column.label and column.label not in LABELS
    ]
    yield from make_unknown_names_warning({"tables": tables, "columns": columns})
    yield from make_newer_version_note("nsys", survey.version, NEWEST)


def round_to_int64(value: float | None) -> int | None:
    """Return a figure as an integer of at most 64 bits; None where it is none."""
    return None if value is None or not -_LARGEST < value < _LARGEST else round(value)


class PrintedFormat(NamedTuple):
    """How the figures of a column are printed."""

    unit: Unit
    style: DecimalStyle


def parse_number_in_base_unit(printed: PrintedFormat, text: str) -> Number | None:
    """Return a figure in its base unit; None where it is empty, no number, ambiguous, or rounded
    away to 0."""
    try:
        value = parse_number_fast(text, printed.style)
    except AmbiguousNumberError:
        return None
    if value == 0 and printed.unit.scale != 1 and text.strip("0"):
        return None
    return scale_printed_number(text, value, printed.style, printed.unit.scale)


def parse_integer_in_base_unit(printed: PrintedFormat, text: str) -> int | None:
    """Return a figure rounded; None as for ``parse_number_in_base_unit``, and beyond 64 bits, which
    no report has."""
    return round_to_int64(parse_number_in_base_unit(printed, text))


def parse_launch_dimension(axis: int, printed: PrintedFormat, text: str) -> int | None:
    """Return a dimension from its own cell, or from the three in "1024    1    1"."""
    cells = text.split()
    return parse_integer_in_base_unit(printed, cells[axis] if len(cells) == 3 else text)


def parse_size_if_unscaled(printed: PrintedFormat, text: str) -> int | None:
    """Return a size; None where it is rounded to a larger unit."""
    return parse_integer_in_base_unit(printed, text) if printed.unit.scale == 1 else None


def parse_size_if_precise(printed: PrintedFormat, text: str) -> int | None:
    """Return a size; None where too few of its digits are printed."""
    digits = len(re.sub(r"[^0-9]", "", text).lstrip("0"))
    is_rounded = printed.unit.scale != 1 and digits < _FEWEST_DIGITS
    return None if is_rounded else parse_integer_in_base_unit(printed, text)


def parse_device_ordinal(printed: PrintedFormat, text: str) -> int | None:
    """Return the ordinal, from "Tesla T4 (0)" or its own column."""
    match = _DEVICE.fullmatch(text)
    return int(match[2]) if match else parse_integer_in_base_unit(printed, text)


def parse_text_or_blank(printed: PrintedFormat, text: str) -> str:
    """Return a text; "" where nsys prints None."""
    return "" if text == "None" else text


class RecordField(NamedTuple):
    """A field of a record, and how it is read from a table."""

    name: str
    labels: tuple[str, ...]
    """Columns that have it; the first that there is counts."""
    read: Callable[[PrintedFormat, str], Any] = parse_integer_in_base_unit


_NAME = RecordField("name", NAMES, parse_text_or_blank)
_EVENT = (
    _NAME,
    RecordField("start_ns", ("Kernel Start", "Start")),
    RecordField("duration_ns", ("Kernel Dur", "Duration")),
    RecordField("device_index", ("Device", "DevId"), parse_device_ordinal),
    RecordField("stream", ("Strm",)),
)
KERNEL = (
    *_EVENT,
    RecordField("registers", ("Reg/Trd",)),
    RecordField("static_shared_bytes", ("StcSMem",), parse_size_if_unscaled),
    RecordField("dynamic_shared_bytes", ("DymSMem",), parse_size_if_unscaled),
    *(
        RecordField(
            f"{part}_{axis}",
            (f"{label}{axis.upper()}", f"{part.title()}XYZ"),
            partial(parse_launch_dimension, at),
        )
        for part, label in (("grid", "Grd"), ("block", "Blk"))
        for at, axis in enumerate("xyz")
    ),
)
"""Of cuda_kern_exec_trace and cuda_gpu_trace."""
COPY = (*_EVENT, RecordField("bytes", ("Bytes",), parse_size_if_precise))
RANGE = (
    _NAME,
    RecordField("start_ns", ("Orig Start", "Start")),
    RecordField("duration_ns", ("Orig Duration", "Duration")),
    RecordField("thread", ("TID",)),
    RecordField("depth", ("Lvl",)),
    RecordField("kind", ("Style",), parse_text_or_blank),
    RecordField("id", ("RangeId",), parse_text_or_blank),
    RecordField("parent", ("ParentId",), parse_text_or_blank),
)
CALL = (_NAME, RecordField("cpu_ns", ("Duration",)))
SUM = (
    _NAME,
    RecordField("calls", COUNTS),
    RecordField("time_ns", ("Total Time",)),
    RecordField("mean_ns", ("KAvg",), parse_number_in_base_unit),
    RecordField("category", ("Category",), parse_text_or_blank),
)

EVENT = (
    RecordField("name", ("API Name",), parse_text_or_blank),
    RecordField("time_ns", ("Duration",)),
    RecordField("source", ("Src Kind", "Mem Kind", "Memory Kind"), parse_text_or_blank),
    RecordField("target", ("Dst Kind",), parse_text_or_blank),
)


def bind_fields_to_columns(
    fields: Iterable[RecordField], columns: Sequence[StatsColumn], style: DecimalStyle
) -> RowReader:
    """Return what reads these fields from the rows of a table, in the units of its header."""
    units = {column.label: column.unit for column in columns}
    bound = []
    for name, labels, read in fields:
        unit = next((units[label] for label in labels if label in units), Unit(None, 1))
        bound_read = partial(read, PrintedFormat(unit, style))
        bound.append(TableColumn(labels[0], field=name, read=bound_read, also=labels[1:]))
    return RowReader(bound, [column.label for column in columns])


def make_summed_operation(report: str, row: dict[str, Any]) -> Operation | None:
    """Return the row of a sum; None for a report whose side is not known, and where the count
    cannot be read."""
    if row["calls"] is None or not (report == MIXED_SUM or report in DEVICE_SUMS | HOST_SUMS):
        return None
    on_host = report in HOST_SUMS or row["category"] == _HOST_CATEGORY
    host, device = (row["time_ns"], None) if on_host else (None, row["time_ns"])
    return Operation(row["name"] or "", report, row["calls"], host, None, device, None, None)


def make_analysis_operation(report: str, row: dict[str, Any]) -> Operation:
    """Return one event that breaks a rule of ``nsys analyze``."""
    ends = " to ".join(filter(None, (row["source"], row["target"])))
    name = ", ".join(filter(None, (row["name"] or ANALYSES[report], ends)))
    host, device = (row["time_ns"], None) if report == API_SYNC else (None, row["time_ns"])
    return Operation(name, report, 1, host, None, device, None, None)


def merge_operations_by_name(operations: Iterable[Operation]) -> list[Operation]:
    """Return one operation a name and report: up to 2022.4 kernels stand once for each grid.
    Clipped names are not joined."""
    merged: dict[object, Operation] = {}
    for number, new in enumerate(operations):
        is_clipped = new.name.endswith("…")
        key = number if is_clipped else (new.name, new.category, new.cpu_ns is None)
        if old := merged.get(key):
            new = old._replace(
                calls=min(old.calls + new.calls, _LARGEST),
                cpu_ns=_add_or_none(old.cpu_ns, new.cpu_ns),
                device_ns=_add_or_none(old.device_ns, new.device_ns),
            )
        merged[key] = new
    return list(merged.values())


def _add_or_none(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else round_to_int64(first + second)


def make_row_summaries(
    report: str, columns: Sequence[StatsColumn], row: Sequence[str], style: DecimalStyle
) -> Iterator[Summary]:
    """Yield every figure of the row but its share."""
    name, about = "", ""
    for column, text in zip(columns, row, strict=True):
        if column.label in NAMES:
            name = name or text
        elif not column.is_numeric and text not in ("", "None"):
            about += f" ({_SHOWN.get(column.label, column.label)} {' '.join(text.split())})"
    for column, text in zip(columns, row, strict=True):
        if column.is_numeric and column.label != "Time" and text not in ("", "None"):
            value = parse_number_in_base_unit(PrintedFormat(column.unit, style), text)
            printed = text if value is None else None
            yield Summary(
                f"{report}:{name}{about}:{column.label}", value, column.unit.name, printed
            )


def make_kernels_from_trace_rows(rows: Iterator[dict[str, Any]]) -> Iterator[Kernel]:
    """Yield the launches in cuda_gpu_trace or cuda_kern_exec_trace, without its copies."""
    launch = 0
    for row in rows:
        if row["grid_x"] is not None or not _OPERATION.match(row["name"]):
            yield Kernel(launch, **row)
            launch += 1


def make_copies_from_trace_rows(rows: Iterator[dict[str, Any]]) -> Iterator[Copy]:
    """Yield the copies and memory settings in cuda_gpu_trace."""
    for row in rows:
        if match := _OPERATION.fullmatch(row.pop("name")):
            label = match[3] or ""
            kind = "memset" if match[2] == "memset" else COPY_LABELS.get(label, label or match[2])
            kind = f"unified {kind}" if match[1] else kind
            yield Copy(kind, **row)


def make_ranges_from_trace_rows(rows: Iterator[dict[str, Any]]) -> Iterator[Range]:
    """Yield the ranges in nvtx_pushpop_trace or nvtx_gpu_proj_trace."""
    numbers: dict[str, int] = {}  # RangeId -> number of the range
    for number, row in enumerate(row for row in rows if row["start_ns"] is not None):
        numbers[row.pop("id")] = number
        row["parent"] = numbers.get(row["parent"])
        row["kind"] = "start_end" if row["kind"] == "StartEnd" else "push_pop"
        if row["kind"] == "start_end":
            row["depth"] = None
        label = parse_range_name(row["name"])._asdict()
        yield Range(number, domain=None, **row, **label)
