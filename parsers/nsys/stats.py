"""Parser of ``nsys stats`` and ``nsys profile --stats=true`` output, CSV and console, with report
names since 2019. The file is read once for its sums, number format and gaps; kernels, copies and
ranges of traces are read from it again while they are iterated, as often as asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.common.doubts import newer, not_understood, repeated, several
from perfctl.parsers.common.lines import ends_of, readable
from perfctl.parsers.common.numbers import (
    AmbiguousNumber,
    DecimalStyle,
    StyleEvidence,
    read_number,
    to_base,
)
from perfctl.parsers.nsys.stats_tables import (
    API_TRACE,
    COUNTS,
    DEVICE_SUMS,
    GPU_TRACE,
    HOST_SUMS,
    KERNEL_TRACE,
    MIXED_SUM,
    NAMES,
    PROJECTED_TRACE,
    RANGE_TRACE,
    REPORTS,
    TRACES,
    UNKNOWN,
    Column,
    Note,
    Start,
    Trouble,
    has_table,
    read_events,
    read_unit,
    unknown_labels,
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
_LINE = re.compile(
    r"^(?:Processing \[.+\] with \[.+\]\.\.\.|SKIPPED: .* does not contain .+| \*\* .+ "
    r"\([a-z0-9_:]+\):|\[\d+/\d+\] Executing '[\w:-]+' stats report)\s*$",
    re.MULTILINE,
)
_MOST_DEVICES = 1000
CHUNK = 256
"""Records of a trace turned to columns at a time."""

_DEVICE = re.compile(r"(.*) \((\d{1,8})\)")
_OPERATION = re.compile(r"\[CUDA (memcpy|memset)(?: (.*))?\]")
_SURELY_64_BIT = 19
_LARGEST = 2**63 - 1
_FEWEST_DIGITS = 3
"""A size that was rounded to fewer digits than this is not passed on."""
_HOST_CATEGORY = "CUDA_API"
_SHOWN = {"GridXYZ": "grid", "BlockXYZ": "block"}

OF_KERNEL = {
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
class Survey:
    """Results of the first pass over the file."""

    trouble: Trouble = field(default_factory=Trouble)
    evidence: StyleEvidence = field(default_factory=StyleEvidence)
    tables: list[tuple[Start, list[list[str]]]] = field(default_factory=list)
    """All tables, those of sums with their rows."""
    api_calls: dict[str, list[str]] = field(default_factory=dict)
    """Name of a call -> its durations as printed, of an API trace."""
    notes: dict[Note, None] = field(default_factory=dict)
    devices: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    """Cell of the column Device -> ordinal and name."""
    clipped: int = 0
    """Cells that nsys clipped to the width of their column."""
    rounded_sizes: bool = False
    """Whether the GPU trace states sizes in a larger unit than byte."""
    forms: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    @property
    def traces(self) -> set[str]:
        """The reports that list every kernel, copy, range or call."""
        return {start.report for start, _ in self.tables}.intersection(TRACES)

    @property
    def version(self) -> str | None:
        """Of nsys, where the file says it."""
        return next((note.text for note in self.notes if note.kind == "version"), None)

    @property
    def style(self) -> DecimalStyle:
        """The decimal style of the file. nsys follows its shell's locale on the console only."""
        return self.evidence.decide() if "console text" in self.forms else DecimalStyle.POINT


def sniff(path: Path, head: bytes) -> bool:
    """Return whether nsys stats' lines or table headers are at the beginning or, after a program's
    output, at the end."""
    for text in ends_of(path, head):
        text = text.replace("\r", "\n").lstrip("\ufeff")
        if _LINE.search(text) is not None or has_table(text):
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
    devices = {index: name for index, name in reversed(survey.devices.values()) if name}

    def read_trace(
        record: type[Any], reports: Sequence[str], begin: Callable[[], Make]
    ) -> Columns[Any] | tuple[()]:
        report = next((report for report in reports if report in survey.traces), None)
        if report is None:
            return ()
        return Columns(record, partial(_read_chunks, path, report, survey.style, begin))

    return Report(
        tool=TOOL,
        path=path,
        form=f"nsys stats, {' and '.join(sorted(survey.forms)) or 'no tables'}",
        tool_version=survey.version,
        devices=tuple(
            Device(name, "gpu", index)
            for index, name in sorted(devices.items())
            if index is not None
        ),
        kernels=read_trace(Kernel, (GPU_TRACE, KERNEL_TRACE), lambda: read_kernel),
        copies=read_trace(Copy, (GPU_TRACE,), lambda: read_copy),
        ranges=read_trace(
            Range, (RANGE_TRACE, PROJECTED_TRACE), lambda: partial(read_range, numbers={})
        ),
        operations=operations,
        summaries=tuple(summaries),
        gaps=tuple(_find_gaps(survey, summaries)),
        diagnostics=tuple(_find_diagnostics(survey)),
    )


def _survey(path: Path) -> Survey:
    """Read the file once: sums are kept, rows of traces only looked at."""
    survey = Survey()
    start: Start | None = None
    kept: list[list[str]] = []
    figures: list[int] = []
    shape = Shape((), DecimalStyle.POINT)
    for event in read_events(path, survey.trouble):
        if isinstance(event, Note):
            survey.notes[event] = None
        elif isinstance(event, Start):
            start, kept, shape = event, [], Shape(event.columns, DecimalStyle.POINT)
            survey.forms.add(event.form)
            survey.unknown += [f"{event.report}.{label}" for label in unknown_labels(event.columns)]
            figures = [at for at, column in enumerate(event.columns) if column.is_figure]
            survey.tables.append((event, kept))
            if event.report in TRACES:
                survey.rounded_sizes |= shape.is_scaled("Bytes") or shape.is_scaled("StcSMem")
        elif start is not None:
            for index in figures:
                survey.evidence.add(event[index])
            survey.clipped += "".join(event).count("…")
            if start.report not in TRACES:
                kept.append(event)
                continue
            row = Cells(event, shape)
            device = row.text("Device")
            if device and device not in survey.devices and len(survey.devices) < _MOST_DEVICES:
                survey.devices[device] = read_device(row)
            if start.report == API_TRACE and {"Name", "Duration"} <= shape.at.keys():
                durations = survey.api_calls.setdefault(event[shape.at["Name"]], [])
                durations.append(event[shape.at["Duration"]])
    return survey


def _read_sums(survey: Survey) -> tuple[list[Operation], list[Summary]]:
    """Return what all sums say; calls of an API trace are added up where there is no sum of them. A
    row with a negative count or time, which no real one is, is left out and counted."""
    operations: list[Operation] = []
    summaries: list[Summary] = []
    for number, (start, kept) in enumerate(survey.tables):
        shape = Shape(start.columns, survey.style)
        report = start.report
        if report == UNKNOWN and {"Total Time", "Name"} <= shape.at.keys():
            # tables of calls all have the same columns: their names tell
            names = (row[shape.at["Name"]] for row in kept)
            of_cuda = any(re.match(r"(?:cuda|cu)[A-Z]", name) for name in names)
            report = "cuda_api_sum" if of_cuda else "osrt_sum"
            survey.tables[number] = (start._replace(report=report), kept)
        for row in (Cells(cells, shape) for cells in kept):
            if min(row.integer(*COUNTS) or 0, row.integer("Total Time") or 0) < 0:
                survey.trouble.rows += 1
                continue
            if operation := read_operation(report, row):
                operations.append(operation)
            summaries.extend(read_summaries(report, row))
    if not any(start.report == "cuda_api_sum" for start, _ in survey.tables):
        column = Column("Duration", read_unit("ns"))
        for name, printed in survey.api_calls.items():
            values = [read_figure(text, column, survey.style) for text in printed]
            known = [value for value in values if value is not None]
            total = round_figure(sum(known)) if len(known) == len(values) else None
            operations.append(
                Operation(name, API_TRACE, len(values), total, None, None, None, None)
            )
    return merge_operations(operations), summaries


def _read_chunks(
    path: Path, report: str, style: DecimalStyle, begin: Callable[[], Make]
) -> Iterator[Sequence[Sequence[Any]]]:
    """Yield the records of one trace as columns. ``begin`` gives what makes a record, or None, of a
    row and of how many records there are so far."""
    make, number, chunk = begin(), 0, list[Any]()
    shape: Shape | None = None
    with readable(path, TOOL, reason="it can no longer be read"):
        for event in read_events(path, Trouble()):
            if isinstance(event, Start):
                shape = Shape(event.columns, style) if event.report == report else None
            elif shape is not None and isinstance(event, list):
                record = make(Cells(event, shape), number)
                if record is not None:
                    chunk.append(record)
                    number += 1
            if len(chunk) == CHUNK:
                yield list(zip(*chunk, strict=True))
                chunk.clear()
    if chunk:
        yield list(zip(*chunk, strict=True))


def _refuse_several(path: Path, survey: Survey) -> None:
    """Raise ReportError, naming the lines, when the file holds several runs: a report again, or
    another recording."""
    lines: list[tuple[int, str, frozenset[str]]] = []
    for start, kept in survey.tables:
        labels = [column.label for column in start.columns]
        named = [index for index, label in enumerate(labels) if label in NAMES][:1]
        names = frozenset(row[at] for row in kept for at in named)
        lines.append((start.line, start.report, names))
    with_table, announced = {line for line, *_ in lines}, dict(survey.trouble.announced)
    lines += [
        (line, report, frozenset())
        for line, report in survey.trouble.announced
        if line not in with_table
    ]
    lines += [(line, "", frozenset()) for line in survey.trouble.recordings]
    starts: list[int] = []
    again: str | None = None
    recorded: int | None = None
    seen: dict[str, tuple[int, frozenset[str]]] = {}
    last = ""
    """The report named last, while it has no table: nsys may name one twice before its table, in a
    line and a title."""
    for line, report, names in sorted(lines, key=lambda entry: entry[:2]):
        if not report:
            recorded = line if recorded is None else recorded
            continue
        before, others = seen.get(report, (line, names))
        shares_names = report not in _LIKE_OTHERS or line in announced or bool(names & others)
        is_again = before != line and report != last and shares_names
        if seen and (is_again or recorded is not None):
            again = again or (report if recorded is None else "")
            starts.append(line if recorded is None else recorded)
            seen, others = {}, names
        seen[report] = (line, names | others)
        last = "" if line in with_table else report
        recorded = None
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
            reason = note.text if note.kind == "empty" else f"nsys stats: {note.text}"
            yield Gap(quantity, "not_collected", reason, note.report)
        elif note.kind == "error" and note.report:
            reason = f"nsys stats failed on this report: {note.text[:300]}"
            yield Gap(f"operation:{note.report}", "unreadable", reason, note.report)
    for quantity, needed, what, report in _SINGLE:
        if not survey.traces & needed and quantity not in missing:
            remedy = f"add 'nsys stats --report {report}', or pass the report itself"
            yield Gap(quantity, "not_available", f"sums do not show {what}: {remedy}")
    yield from _find_unread_figures(survey, summaries)
    for report in dict.fromkeys(start.report for start, _ in survey.tables):
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
    if survey.rounded_sizes:
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
    yield from not_understood({"tables": tables, "columns": survey.unknown})
    yield from newer("nsys", survey.version, NEWEST)


class Shape:
    """The columns of one table by their labels; of two columns with one label the first counts."""

    def __init__(self, columns: Sequence[Column], style: DecimalStyle) -> None:
        self.columns, self.style = columns, style
        self.at: dict[str, int] = {}
        for index, column in enumerate(columns):
            self.at.setdefault(column.label, index)

    def find(self, *labels: str) -> int | None:
        """Return the position of the first of these columns that there is."""
        return next((self.at[label] for label in labels if label in self.at), None)

    def is_scaled(self, label: str) -> bool:
        """Return whether the column is in a larger unit than its base unit."""
        unit = self.columns[self.at[label]].unit if label in self.at else None
        return unit is not None and unit.scale != 1


class Cells(NamedTuple):
    """One row with its columns, read in the decimal style of its file."""

    row: list[str]
    shape: Shape

    def text(self, *labels: str) -> str:
        """Return the cell of the first of these columns that there is; "" for none and where nsys
        prints None."""
        at = self.shape.find(*labels)
        return "" if at is None or self.row[at] == "None" else self.row[at]

    def integer(self, *labels: str) -> int | None:
        """Return that cell in base units, rounded; None where it is empty, no number, ambiguous,
        rounded away to 0, or beyond 64 bits, which no report has."""
        at = self.shape.find(*labels)
        if at is None:
            return None
        return round_figure(read_figure(self.row[at], self.shape.columns[at], self.shape.style))

    def triple(self, label: str, *parts: str) -> tuple[int | None, ...]:
        """Return three dimensions from one cell "1024    1    1", else from three columns."""
        cells = self.text(label).split()
        if len(cells) == 3 and all(cell.isdecimal() and len(cell) < 12 for cell in cells):
            return tuple(map(int, cells))
        return tuple(self.integer(part) for part in parts)


def round_figure(value: float | None) -> int | None:
    """Return a figure as an integer of at most 64 bits; None where it is none."""
    return None if value is None or not -_LARGEST < value < _LARGEST else round(value)


def read_figure(text: str, column: Column, style: DecimalStyle) -> int | float | None:
    """Return a printed figure in the base unit of its column; None as for ``Cells.integer``."""
    scale = column.unit.scale if column.unit else 1
    if scale == 1 and len(text) < _SURELY_64_BIT and text.isdecimal() and text.isascii():
        return int(text)
    if not text or text == "None":
        return None
    try:
        number = read_number(text, style)
    except AmbiguousNumber:
        return None
    if number is None or (scale > 1 and number == 0 and number.as_tuple().exponent):
        return None
    return to_base(number, scale)


def read_operation(report: str, row: Cells) -> Operation | None:
    """Return the row of a sum; None for a report whose side is not known, and where the count
    cannot be read."""
    calls, total = row.integer(*COUNTS), row.integer("Total Time")
    if calls is None or report not in {MIXED_SUM, *DEVICE_SUMS, *HOST_SUMS}:
        return None
    on_host = report in HOST_SUMS or row.text("Category") == _HOST_CATEGORY
    host, device = (total, None) if on_host else (None, total)
    return Operation(row.text(*NAMES), report, calls, host, None, device, None, None)


def merge_operations(operations: Sequence[Operation]) -> list[Operation]:
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


def read_summaries(report: str, row: Cells) -> Iterator[Summary]:
    """Yield every figure of the row but its share."""
    about = row.text(*NAMES)
    for label, at in row.shape.at.items():
        if not row.shape.columns[at].is_figure and label not in NAMES and row.text(label):
            about += f" ({_SHOWN.get(label, label)} {' '.join(row.text(label).split())})"
    for label, at in row.shape.at.items():
        text, column = row.row[at], row.shape.columns[at]
        if not column.is_figure or label == "Time" or text in ("", "None"):
            continue
        value = read_figure(text, column, row.shape.style)
        unit = column.unit.name if column.unit else None
        yield Summary(f"{report}:{about}:{label}", value, unit, text if value is None else None)


def read_kernel(row: Cells, launch: int) -> Kernel | None:
    """Return a row of cuda_gpu_trace or cuda_kern_exec_trace; None when it is a copy's."""
    fields = {name: row.integer(*labels) for name, labels in OF_KERNEL.items()}
    for kind, *labels in _DIMENSIONS:
        for axis, size in zip("xyz", row.triple(*labels), strict=True):
            fields[f"{kind}_{axis}"] = size
    if fields["grid_x"] is None and _OPERATION.match(row.text(*NAMES)):
        return None
    for name, label in _SHARED.items():
        fields[name] = None if row.shape.is_scaled(label) else row.integer(label)
    device, _ = read_device(row)
    return Kernel(launch, row.text("Kernel Name", "Name"), device_index=device, **fields)  # type: ignore[arg-type]


def read_copy(row: Cells, number: int) -> Copy | None:
    """Return a copy or memory setting in cuda_gpu_trace; None when the row is a kernel's, and for
    its size where too few digits of that are printed."""
    match = _OPERATION.fullmatch(row.text("Name"))
    if match is None:
        return None
    label = match[2] or ""
    kind = "memset" if match[1] == "memset" else COPY_LABELS.get(label, label or match[1])
    digits = len(re.sub(r"[^0-9]", "", row.text("Bytes")).lstrip("0"))
    is_rounded = row.shape.is_scaled("Bytes") and digits < _FEWEST_DIGITS
    size = None if is_rounded else row.integer("Bytes")
    device, _ = read_device(row)
    times = row.integer("Start"), row.integer("Duration")
    return Copy(kind, size, *times, None, device, row.integer("Strm"))


def read_device(row: Cells) -> tuple[int | None, str | None]:
    """Return ordinal and name, from "Tesla T4 (0)" or the column DevId."""
    match = _DEVICE.fullmatch(row.text("Device"))
    return (int(match[2]), match[1]) if match else (row.integer("DevId"), None)


def read_range(row: Cells, number: int, numbers: dict[str, int]) -> Range | None:
    """Return a row of nvtx_pushpop_trace or nvtx_gpu_proj_trace; ``numbers`` maps RangeId to the
    numbers given so far."""
    start = row.integer("Orig Start", "Start")
    if start is None:
        return None
    numbers[row.text("RangeId")] = number
    name = row.text("Name")
    label = read_range_name(name)
    kind = "start_end" if row.text("Style") == "StartEnd" else "push_pop"
    return Range(
        number,
        name,
        None,
        start,
        row.integer("Orig Duration", "Duration"),
        row.integer("TID"),
        row.integer("Lvl") if kind == "push_pop" else None,
        numbers.get(row.text("ParentId")),
        kind,
        label.layer,
        label.direction,
        label.step,
        label.phase,
    )


Make = Callable[[Cells, int], Kernel | Copy | Range | None]
