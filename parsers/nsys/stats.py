"""Parser of ``nsys stats`` and ``nsys profile --stats=true`` output, CSV and console, with report
names since 2019. The file is read once for its sums, number format and gaps; kernels, copies and
ranges of traces are read from it again while they are iterated, as often as asked."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import newer, not_understood, repeated, several
from perfctl.parsers.common.lines import Log, ends_of, readable
from perfctl.parsers.common.numbers import (
    AmbiguousNumber,
    DecimalStyle,
    StyleEvidence,
    Unit,
    read_value,
    scaled,
)
from perfctl.parsers.nsys.stats_tables import (
    API_TRACE,
    COUNTS,
    DEVICE_SUMS,
    GPU_TRACE,
    HOST_SUMS,
    KERNEL_TRACE,
    LABELS,
    MIXED_SUM,
    NAMES,
    PROJECTED_TRACE,
    RANGE_TRACE,
    REPORTS,
    TEXTS,
    TRACES,
    UNKNOWN,
    Column,
    Note,
    Source,
    Start,
    Trouble,
    read_events,
    scan,
)
from perfctl.parsers.nsys.tables import COPY_LABELS, TOOL
from perfctl.records.bulk import Columns
from perfctl.records.errors import ReportError
from perfctl.records.ranges import read_range_name
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
    ("kernel", {GPU_TRACE, KERNEL_TRACE}, "launches", GPU_TRACE),
    ("copy", {GPU_TRACE}, "single copies", GPU_TRACE),
    ("range", {RANGE_TRACE, PROJECTED_TRACE}, "single ranges", RANGE_TRACE),
)
_VERSION = re.compile(r"nsight-systems[/-](?:cli/)?(\d{4}\.\d+\.\d+(?:\.\d+)?)/")
_FILE = re.compile(r".*(?= does not contain )")
CHUNK = 256
"""Records of a trace turned to columns at a time."""

_DEVICE = re.compile(r"(.*) \((\d{1,8})\)")
_OPERATION = re.compile(r"\[CUDA (memcpy|memset)(?: (.*))?\]")
_LARGEST = 2**63 - 1
_FEWEST_DIGITS = 3
"""A size that was rounded to fewer digits than this is not passed on."""
_HOST_CATEGORY = "CUDA_API"
_SHOWN = {"GridXYZ": "grid", "BlockXYZ": "block"}

_KERNEL = {
    "stream": ("Strm",),
    "registers": ("Reg/Trd",),
    "start_ns": ("Kernel Start", "Start"),
    "duration_ns": ("Kernel Dur", "Duration"),
}
"""Field of Kernel -> columns of cuda_kern_exec_trace and cuda_gpu_trace."""
_DIMENSIONS = (
    ("grid", "GridXYZ", "GrdX", "GrdY", "GrdZ"),
    ("block", "BlockXYZ", "BlkX", "BlkY", "BlkZ"),
)
_SHARED = {"static_shared_bytes": "StcSMem", "dynamic_shared_bytes": "DymSMem"}


@dataclass(slots=True)
class Section:
    """A report that the file names, and its table."""

    line: int
    report: str | None
    """None where another recording begins."""
    is_announced: bool = False
    columns: list[Column] = field(default_factory=list)
    """Empty if no table follows."""
    form: str = ""
    rows: list[list[str]] = field(default_factory=list)
    """Those of sums."""

    def find_names(self) -> set[str]:
        """Return the names of the rows."""
        places = [at for at, column in enumerate(self.columns) if column.label in NAMES]
        return {row[at] for row in self.rows for at in places[:1]}


@dataclass(slots=True)
class Survey:
    """Results of the first pass over the file."""

    trouble: Trouble = field(default_factory=Trouble)
    evidence: StyleEvidence = field(default_factory=StyleEvidence)
    sections: list[Section] = field(default_factory=list)
    notes: dict[Note, None] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    """Ordinal -> name, of traces."""
    version: str | None = None
    """Of nsys, where the file says it."""
    clipped: int = 0
    """Cells that nsys clipped to the width of their column."""

    @property
    def tables(self) -> list[Section]:
        """The sections that have a table."""
        return [section for section in self.sections if section.columns]

    @property
    def reports(self) -> list[str]:
        """The reports of these tables."""
        return list(dict.fromkeys(str(section.report) for section in self.tables))

    @property
    def forms(self) -> set[str]:
        return {section.form for section in self.tables}

    @property
    def style(self) -> DecimalStyle:
        """The decimal style of the file. nsys follows its shell's locale on the console only."""
        return self.evidence.decide() if "console text" in self.forms else DecimalStyle.POINT


def sniff(path: Path, head: bytes) -> bool:
    """Return whether nsys stats' lines or table headers are at the beginning or, after a program's
    output, at the end."""
    for text in ends_of(path, head):
        lines = io.StringIO(text.replace("\r", "\n").lstrip("\ufeff"))
        for event in scan(Source(lines, Log()), "", Trouble()):
            # other tools write CSV with such columns, but without units
            if isinstance(event, Start):
                is_sure = event.form != "CSV" or any(column.unit.name for column in event.columns)
            else:
                is_sure = isinstance(event, Note) and event.kind == "report"
            if is_sure:
                return True
    return False


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of nsys stats and no line that says
    why there is none, and, naming the lines, when it holds several runs."""
    with readable(path, TOOL):
        survey = _survey(path)
    has_reason = any(note.kind in ("skipped", "empty") for note in survey.notes)
    if not survey.tables and not has_reason:
        errors = (note.text for note in survey.notes if note.kind == "error")
        error = next(errors, None)
        reason = f"nsys stats stopped with an error: {error}" if error is not None else None
        command = "nsys stats --format csv --report cuda_gpu_kern_sum,cuda_api_sum REPORT"
        raise ReportError(
            path,
            TOOL,
            reason or "it holds no complete table of nsys stats",
            f"Run '{command}' again, or pass the report itself",
        )
    operations, summaries = _read_sums(survey)
    _refuse_several(path, survey)
    style = survey.style

    def read_trace(
        record: type[Any],
        make: Callable[[Iterator[Row]], Iterator[Any]],
        *reports: str,
    ) -> Columns[Any] | tuple[()]:
        report = next((report for report in reports if report in survey.reports), None)
        if report is None:
            return ()
        return Columns(record, lambda: _chunk(make(_read_rows(path, report, style))))

    if API_TRACE in survey.reports and "cuda_api_sum" not in survey.reports:
        operations += read_calls(_read_rows(path, API_TRACE, style))
    return Report(
        tool=TOOL,
        path=path,
        form=f"nsys stats, {' and '.join(sorted(survey.forms)) or 'no tables'}",
        tool_version=survey.version,
        devices=tuple(Device(name, "gpu", index) for index, name in sorted(survey.devices.items())),
        kernels=read_trace(Kernel, read_kernels, GPU_TRACE, KERNEL_TRACE),
        copies=read_trace(Copy, read_copies, GPU_TRACE),
        ranges=read_trace(Range, read_ranges, RANGE_TRACE, PROJECTED_TRACE),
        operations=operations,
        summaries=tuple(summaries),
        gaps=tuple(_find_gaps(survey, summaries)),
        diagnostics=tuple(_find_diagnostics(survey)),
    )


def _survey(path: Path) -> Survey:
    """Read the file once: sums are kept, rows of traces only looked at."""
    survey = Survey()
    section = Section(0, None)
    figures: list[int] = []
    device_at, source = 0, ""
    for event in read_events(path, survey.trouble):
        if isinstance(event, list):
            for at in figures:
                survey.evidence.add(event[at])
            survey.clipped += "".join(event).count("…")
            if section.report not in TRACES:
                section.rows.append(event)
            elif match := _DEVICE.fullmatch(event[device_at]):
                survey.devices.setdefault(int(match[2]), match[1])
        elif isinstance(event, Start):
            if section.columns or (section.line, section.report) != (event.line, event.report):
                section = Section(event.line, event.report)
                survey.sections.append(section)
            section.columns, section.form = event.columns, event.form
            figures = [at for at, column in enumerate(event.columns) if column.is_figure]
            labels = [column.label for column in event.columns]
            device_at = labels.index("Device") if "Device" in labels else 0
        elif event.kind in ("recording", "report", "title"):
            if match := _VERSION.search(event.text):
                survey.version = survey.version or match[1]
            if event.kind == "report" and event.text:
                before, source = source, Path(event.text.partition("] with [")[0]).stem
                if before not in ("", source):
                    survey.sections.append(Section(event.line, None))
            if section.columns or section.report != event.report:
                section = Section(event.line, event.report, is_announced=True)
                survey.sections.append(section)
        else:
            survey.notes[event._replace(line=0)] = None
    return survey


def _read_sums(survey: Survey) -> tuple[list[Operation], list[Summary]]:
    """Return what all sums say. A row with a negative count or time, which no real one is, is left
    out and counted."""
    operations: list[Operation] = []
    summaries: list[Summary] = []
    for section in survey.tables:
        labels = {column.label for column in section.columns}
        if section.report == UNKNOWN and labels >= {"Total Time", "Name"}:
            # tables of calls all have the same columns: their names tell
            of_cuda = any(re.match(r"(?:cuda|cu)[A-Z]", name) for name in section.find_names())
            section.report = "cuda_api_sum" if of_cuda else "osrt_sum"
        for row in make_rows(section.columns, section.rows, survey.style):
            if min(row.integer(*COUNTS) or 0, row.integer("Total Time") or 0) < 0:
                survey.trouble.rows += 1
                continue
            if operation := read_operation(str(section.report), row):
                operations.append(operation)
            summaries.extend(read_summaries(str(section.report), row))
    return merge_operations(operations), summaries


def _read_rows(path: Path, report: str, style: DecimalStyle) -> Iterator[Row]:
    """Yield the rows of one trace."""
    columns: list[Column] = []
    with readable(path, TOOL, reason="it can no longer be read"):
        for event in read_events(path, Trouble()):
            if isinstance(event, Start):
                columns = event.columns if event.report == report else []
            elif columns and isinstance(event, list):
                yield from make_rows(columns, [event], style)


def _chunk(records: Iterator[Any]) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield the records as columns, CHUNK at a time."""
    while some := list(islice(records, CHUNK)):
        yield list(zip(*some, strict=True))


def _refuse_several(path: Path, survey: Survey) -> None:
    """Raise ReportError, naming the lines, when the file holds several runs: a report again, or
    another recording."""
    starts: list[int] = []
    again = ""
    recorded = 0  # line at which another recording began
    seen: dict[str, tuple[int, set[str]]] = {}
    for section in survey.sections:
        if section.report is None:
            recorded = recorded or section.line
            continue
        names = section.find_names()
        before, others = seen.get(section.report, (section.line, names))
        is_alone = section.report not in _LIKE_OTHERS or section.is_announced
        is_again = before != section.line and (is_alone or bool(names & others))
        if seen and (is_again or recorded):
            again = again if starts or recorded else section.report
            starts.append(recorded or section.line)
            seen, others = {}, names
        seen[section.report] = section.line, names | others
        recorded = 0
    if again:
        raise repeated(path, TOOL, f"the report {again}", starts[0], starts)
    if starts:
        raise several(path, TOOL, starts)


def _find_gaps(survey: Survey, summaries: Sequence[Summary]) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    missing = set()
    for note in survey.notes:
        if note.kind in ("skipped", "empty"):
            about = (quantity for part, quantity in _QUANTITIES.items() if part in note.text)
            quantity = next(about, "operation")
            if note.report:
                quantity = _ABOUT.get(note.report, f"operation:{note.report}")
            missing.add(quantity)
            reason = "nsys stats ran this report and got no rows"
            if note.kind == "skipped":
                text = _FILE.sub("the report", note.text, count=1).rstrip(".")
                reason = f"nsys stats: {text}"
            yield Gap(quantity, "not_collected", reason, note.report)
        elif note.kind == "error" and note.report:
            reason = f"nsys stats failed on this report: {note.text[:300]}"
            yield Gap(f"operation:{note.report}", "unreadable", reason, note.report)
    for quantity, needed, what, report in _SINGLE:
        if needed.isdisjoint(survey.reports) and quantity not in missing:
            remedy = f"add 'nsys stats --report {report}', or pass the report itself"
            yield Gap(quantity, "not_available", f"sums do not show {what}: {remedy}")
    yield from _find_unread_figures(survey, summaries)
    for report in survey.reports:
        reason = f"nsys has no report '{report}' that perfctl knows"
        if report == UNKNOWN:
            reason = "a table does not name its nsys report"
        if report == UNKNOWN or report not in REPORTS:
            kept = "so its figures are kept as summaries"
            yield Gap("operation", "not_available", f"{reason}, {kept}")
    if broken := survey.trouble.rows + survey.trouble.log.cut_rows:
        yield Gap("operation", "unreadable", f"{broken} rows of the tables are cut off or broken")
    if holes := survey.trouble.log.holes():
        yield Gap("operation", "unreadable", holes)
    if survey.trouble.unended:
        reason = "the last line has no line end, so the last name may be cut off"
        yield Gap("operation.name", "ambiguous", reason)


def _find_unread_figures(survey: Survey, summaries: Sequence[Summary]) -> Iterator[Gap]:
    """Yield gaps for figures without a value: rounded to a large unit, as nsys does by default,
    ambiguous, or clipped."""
    sizes = [
        column.unit.scale != 1
        for section in survey.tables
        for column in section.columns
        if section.report in TRACES and column.label in ("Bytes", "StcSMem")
    ]
    if any(sizes):
        reason = "nsys stats rounds sizes to MB by default: use '--format csv:mem=B'"
        few = f"sizes with fewer than three digits were left out; {reason}"
        yield Gap("copy.bytes", "not_available", few)
        for name in _SHARED:
            yield Gap(f"kernel.{name}", "not_available", reason)
    texts = [summary.text for summary in summaries if summary.value is None and summary.text]
    clipped = sum(text.endswith("…") for text in texts)
    rounded = sum(not text.strip("0.,") for text in texts)
    if rounded:
        reason = f"{rounded} figures are printed as 0 in a large unit and may not be 0"
        remedy = "use '--format csv:mem=B,time=ns'"
        yield Gap("summary", "not_available", f"{reason}: {remedy}")
    others = len(texts) - clipped - rounded
    if survey.style is DecimalStyle.UNDECIDED:
        reason = f"{others} figures may be whole numbers or fractions"
        if others:
            yield Gap("summary", "ambiguous", f"{reason}: print them again with LC_ALL=C")
    elif (unread := others - sum(text.startswith("0x") for text in texts)) > 0:
        yield Gap("summary", "unreadable", f"{unread} figures are no numbers")
    if clipped:
        reason = f"{clipped} figures are clipped to the width of their column: use '--format csv'"
        yield Gap("summary", "unreadable", reason)


def _find_diagnostics(survey: Survey) -> Iterator[Diagnostic]:
    """Yield warnings and errors of nsys, and warnings about what is clipped or not known."""
    for note in survey.notes:
        if note.kind in ("warning", "error"):
            yield Diagnostic(note.kind, "nsys", f"{note.report or ''} {note.text}".strip()[:500])
    if survey.clipped:
        clipped = f"{survey.clipped} names or figures were clipped by nsys"
        advice = "to the width of their column: use '--format csv' for whole ones"
        yield Diagnostic("warning", "perfctl", f"{clipped} {advice}")
    tables = [
        f"{note.report} ({' '.join(note.text.split())[:60]})"
        for note in survey.notes
        if note.kind == "unknown"
    ]
    columns = [
        f"{section.report}.{column.label}"
        for section in survey.tables
        for column in section.columns
        if column.label and column.label not in LABELS
    ]
    yield from not_understood({"tables": tables, "columns": columns})
    yield from newer("nsys", survey.version, NEWEST)


class Row(NamedTuple):
    """One row of a table by the labels of its columns."""

    cells: dict[str, str]
    """"" where nsys prints None."""
    units: dict[str, Unit]
    style: DecimalStyle

    def text(self, *labels: str) -> str:
        """Return the cell of the first of these columns that there is; "" for none."""
        return next((self.cells[label] for label in labels if label in self.cells), "")

    def integer(self, *labels: str) -> int | None:
        """Return that cell in base units, rounded; None where it is empty, no number, ambiguous,
        rounded away to 0, or beyond 64 bits, which no report has."""
        label = next((label for label in labels if label in self.cells), None)
        if label is None:
            return None
        return round_figure(read_figure(self.cells[label], self.units[label], self.style))

    def triple(self, label: str, *parts: str) -> tuple[int | None, ...]:
        """Return three dimensions from one cell "1024    1    1", else from three columns."""
        cells = self.text(label).split()
        if len(cells) == 3 and all(cell.isdecimal() and len(cell) < 12 for cell in cells):
            return tuple(map(int, cells))
        return tuple(self.integer(part) for part in parts)

    def is_scaled(self, label: str) -> bool:
        """Return whether the column is in a larger unit than its base unit."""
        return label in self.units and self.units[label].scale != 1


def make_rows(
    columns: Sequence[Column], rows: Iterable[list[str]], style: DecimalStyle
) -> Iterator[Row]:
    """Yield the rows of a table."""
    labels = [column.label for column in columns]
    units = {column.label: column.unit for column in columns}
    for row in rows:
        cells = ("" if cell == "None" else cell for cell in row)
        yield Row(dict(zip(labels, cells, strict=True)), units, style)


def round_figure(value: float | None) -> int | None:
    """Return a figure as an integer of at most 64 bits; None where it is none."""
    return None if value is None or not -_LARGEST < value < _LARGEST else round(value)


def read_figure(text: str, unit: Unit, style: DecimalStyle) -> int | float | None:
    """Return a printed figure in its base unit; None as for ``Row.integer``."""
    try:
        value = read_value(text, style)
    except AmbiguousNumber:
        return None
    if value == 0 and unit.scale != 1 and text.strip("0"):
        return None
    return scaled(text, value, style, unit.scale)


def read_operation(report: str, row: Row) -> Operation | None:
    """Return the row of a sum; None for a report whose side is not known, and where the count
    cannot be read."""
    calls, total = row.integer(*COUNTS), row.integer("Total Time")
    if calls is None or not (report == MIXED_SUM or report in DEVICE_SUMS | HOST_SUMS):
        return None
    on_host = report in HOST_SUMS or row.text("Category") == _HOST_CATEGORY
    host, device = (total, None) if on_host else (None, total)
    return Operation(row.text(*NAMES), report, calls, host, None, device, None, None)


def merge_operations(operations: Iterable[Operation]) -> list[Operation]:
    """Return one operation a name and report: up to 2022.4 kernels stand once for each grid.
    Clipped names are not joined."""
    merged: dict[object, Operation] = {}
    for number, new in enumerate(operations):
        is_clipped = new.name.endswith("…")
        key = number if is_clipped else (new.name, new.category, new.cpu_ns is None)
        if old := merged.get(key):
            new = old._replace(
                calls=min(old.calls + new.calls, _LARGEST),
                cpu_ns=_add(old.cpu_ns, new.cpu_ns),
                device_ns=_add(old.device_ns, new.device_ns),
            )
        merged[key] = new
    return list(merged.values())


def _add(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else round_figure(first + second)


def read_summaries(report: str, row: Row) -> Iterator[Summary]:
    """Yield every figure of the row but its share."""
    about = row.text(*NAMES)
    for label, text in row.cells.items():
        if label in TEXTS and label not in NAMES and text:
            about += f" ({_SHOWN.get(label, label)} {' '.join(text.split())})"
    for label, text in row.cells.items():
        if text and label not in TEXTS and label != "Time":
            value = read_figure(text, row.units[label], row.style)
            shown = text if value is None else None
            yield Summary(f"{report}:{about}:{label}", value, row.units[label].name, shown)


def read_calls(rows: Iterator[Row]) -> list[Operation]:
    """Return the calls of an API trace, added up by name."""
    return merge_operations(
        Operation(row.text("Name"), API_TRACE, 1, row.integer("Duration"), None, None, None, None)
        for row in rows
    )


def read_kernels(rows: Iterator[Row]) -> Iterator[Kernel]:
    """Yield the launches in cuda_gpu_trace or cuda_kern_exec_trace, without its copies."""
    launch = 0
    for row in rows:
        fields = {name: row.integer(*labels) for name, labels in _KERNEL.items()}
        for kind, *labels in _DIMENSIONS:
            for axis, size in zip("xyz", row.triple(*labels), strict=True):
                fields[f"{kind}_{axis}"] = size
        if fields["grid_x"] is None and _OPERATION.match(row.text(*NAMES)):
            continue
        for name, label in _SHARED.items():
            fields[name] = None if row.is_scaled(label) else row.integer(label)
        fields["device_index"], _ = read_device(row)
        yield Kernel(launch, row.text("Kernel Name", "Name"), **fields)  # type: ignore[arg-type]
        launch += 1


def read_copies(rows: Iterator[Row]) -> Iterator[Copy]:
    """Yield the copies and memory settings in cuda_gpu_trace, without the size of those of which
    too few digits are printed."""
    for row in rows:
        if match := _OPERATION.fullmatch(row.text("Name")):
            label = match[2] or ""
            kind = "memset" if match[1] == "memset" else COPY_LABELS.get(label, label or match[1])
            digits = len(re.sub(r"[^0-9]", "", row.text("Bytes")).lstrip("0"))
            is_rounded = row.is_scaled("Bytes") and digits < _FEWEST_DIGITS
            size = None if is_rounded else row.integer("Bytes")
            device, _ = read_device(row)
            times = row.integer("Start"), row.integer("Duration")
            yield Copy(kind, size, *times, None, device, row.integer("Strm"))


def read_device(row: Row) -> tuple[int | None, str | None]:
    """Return ordinal and name, from "Tesla T4 (0)" or the column DevId."""
    match = _DEVICE.fullmatch(row.text("Device"))
    return (int(match[2]), match[1]) if match else (row.integer("DevId"), None)


def read_ranges(rows: Iterator[Row]) -> Iterator[Range]:
    """Yield the ranges in nvtx_pushpop_trace or nvtx_gpu_proj_trace."""
    numbers: dict[str, int] = {}  # RangeId -> number of the range
    for row in rows:
        start = row.integer("Orig Start", "Start")
        if start is None:
            continue
        number = len(numbers)
        numbers[row.text("RangeId")] = number
        name = row.text("Name")
        label = read_range_name(name)
        is_nested = row.text("Style") != "StartEnd"
        yield Range(
            number,
            name,
            None,
            start,
            row.integer("Orig Duration", "Duration"),
            row.integer("TID"),
            row.integer("Lvl") if is_nested else None,
            numbers.get(row.text("ParentId")),
            "push_pop" if is_nested else "start_end",
            label.layer,
            label.direction,
            label.step,
            label.phase,
        )
