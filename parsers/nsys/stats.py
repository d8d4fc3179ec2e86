"""Parser of ``nsys stats`` and ``nsys profile --stats=true`` output, CSV and console, with report
names since 2019. The file is read once for its sums, number format and gaps; kernels, copies and
ranges of traces are read from it again while they are iterated, as often as asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from perfctl.parsers.nsys import stats_agreement
from perfctl.parsers.nsys import stats_rows as rows
from perfctl.parsers.nsys.stats_columns import (
    API_TRACE,
    GPU_TRACE,
    KERNEL_TRACE,
    NAMES,
    PROJECTED_TRACE,
    RANGE_TRACE,
    REPORTS,
    UNKNOWN,
    columns_of,
    figures_of,
    unknown_labels,
)
from perfctl.parsers.nsys.stats_tables import Note, Start, Trouble, events, has_table
from perfctl.parsers.nsys.tables import TOOL
from perfctl.parsers.text.doubts import contradictions, newer, not_understood, repeated, several
from perfctl.parsers.text.lines import ends_of, readable
from perfctl.parsers.text.numbers import DecimalStyle, StyleEvidence
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Operation, Report, Summary

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

NEWEST = "2025.1"
_LINE = re.compile(
    r"^(?:Processing \[.+\] with \[.+\]\.\.\.|SKIPPED: .* does not contain .+| \*\* .+ "
    r"\([a-z0-9_:]+\):|\[\d+/\d+\] Executing '[\w:-]+' stats report)\s*$",
    re.MULTILINE,
)
_MOST_DEVICES = 1000
_TRACES = (GPU_TRACE, KERNEL_TRACE, RANGE_TRACE, PROJECTED_TRACE, API_TRACE)
Record = TypeVar("Record")
Make = Callable[[rows.Cells, int], Record | None]


def _check_once(path: Path, found: Found) -> None:
    """Raise ReportError, naming the lines, when the file holds several runs: a report again, or
    another recording."""
    sums = [(start, _names(start, kept)) for start, kept in found.tables]
    tables = [(start.line, start.report, names) for start, names in sums]
    tables += [(start.line, start.report, frozenset[str]()) for start in found.begun]
    with_table, named = {line for line, *_ in tables}, {line for line, _ in found.trouble.announced}
    others = [
        (line, report, frozenset[str]())
        for line, report in found.trouble.announced
        if line not in with_table
    ]
    recordings = [(line, "", frozenset[str]()) for line in found.trouble.recordings]
    starts: list[int] = []
    again: str | None = None
    recorded: int | None = None
    seen: dict[str, tuple[int, frozenset[str]]] = {}
    last = ""
    """The report named last, while it has no table: nsys may name one twice before its table, in a
    line and a title."""
    for line, report, names in sorted(tables + others + recordings, key=lambda one: one[:2]):
        if not report:
            recorded = line if recorded is None else recorded
            continue
        before, others_names = seen.get(report, (line, names))
        is_again = (
            before != line
            and report != last
            and (report not in _LIKE_OTHERS or line in named or bool(names & others_names))
        )
        if seen and (is_again or recorded is not None):
            again = again or (report if recorded is None else "")
            starts.append(line if recorded is None else recorded)
            seen, others_names = {}, names
        seen[report] = (line, names | others_names)
        last = "" if line in with_table else report
        recorded = None
    if again:
        raise repeated(path, TOOL, f"the report {again}", starts[0], starts)
    if starts:
        raise several(path, TOOL, starts)


def _names(start: Start, rows: list[list[str]]) -> frozenset[str]:
    at = next((index for index, column in enumerate(start.columns) if column.label in NAMES), None)
    return frozenset() if at is None else frozenset(row[at] for row in rows)


def find_gaps(found: Found, summaries: list[Summary]) -> Iterator[Gap]:
    """Yield one Gap per reason."""
    missing = set()
    for note in dict.fromkeys(found.notes):
        if note.kind in ("skipped", "empty"):
            missing.add(quantity := _quantity(note))
            reason = note.text if note.kind == "empty" else f"nsys stats: {note.text}"
            yield Gap(quantity, "not_collected", reason, note.report)
        elif note.kind == "error" and note.report:
            reason = f"nsys stats failed on this report: {note.text[:300]}"
            yield Gap(f"operation:{note.report}", "unreadable", reason, note.report)
    for quantity, needed, what, report in _SINGLE:
        if not found.traces.keys() & needed and quantity not in missing:
            reason = (
                f"sums do not show {what}: add 'nsys stats --report {report}', or pass the report "
                "itself"
            )
            yield Gap(quantity, "not_available", reason)
    yield from _unread(found, summaries)
    if any(start.report == UNKNOWN for start, _ in found.tables):
        reason = "a table does not name its nsys report, so its figures are kept as summaries"
        yield Gap("operation", "not_available", reason)
    for report in dict.fromkeys(
        start.report for start, _ in found.tables if start.report not in REPORTS
    ):
        reason = (
            f"nsys has no report '{report}' that perfctl knows, so its figures are kept as "
            "summaries"
        )
        yield Gap("operation", "not_available", reason)
    if broken := found.trouble.rows + found.trouble.log.cut_rows:
        yield Gap("operation", "unreadable", f"{broken} rows of the tables are cut off or broken")
    if holes := found.trouble.log.holes():
        yield Gap("operation", "unreadable", holes)
    if found.trouble.closed and (unclosed := found.trouble.unclosed):
        tables = f"{unclosed} of {unclosed + found.trouble.closed} tables end"
        reason = (
            f"{tables} without the blank line that nsys prints below each: rows may be missing "
            "there"
        )
        yield Gap("operation", "unreadable", reason)
    if len(found.trouble.folders) > 1:
        folders = len(found.trouble.folders)
        reason = (
            f"its reports lie in {folders} folders, and nsys uses one: a part of the file may be "
            "lost"
        )
        yield Gap("operation", "ambiguous", reason)
    if untitled := found.trouble.untitled:
        what = "1 table has" if untitled == 1 else f"{untitled} tables have"
        yield Gap(
            "operation",
            "ambiguous",
            f"{what} no line with a name, as others have: lines before may be lost",
        )
    if found.trouble.processed and (
        alone := [*found.trouble.titled.keys() - found.trouble.processed.keys()]
    ):
        names = ", ".join(sorted(alone))
        reason = (
            f"no line 'Processing ...' stands before {names}, as before other reports: lines there "
            "may be lost"
        )
        yield Gap("operation", "ambiguous", reason)
    if lost := stats_agreement.left_out(list(found.trouble.processed)):
        reason = (
            f"nsys runs these reports between others that are there: {lost}. They were not asked "
            "for, or their lines are lost"
        )
        yield Gap("operation", "ambiguous", reason)
    if found.trouble.unended:
        yield Gap(
            "operation.name",
            "ambiguous",
            "the last line has no line end, so the last name may be cut off",
        )


def _quantity(note: Note) -> str:
    """Which table of the store stays empty for it."""
    if note.report:
        return _ABOUT.get(note.report, f"operation:{note.report}")
    return next(
        (quantity for part, quantity in _QUANTITIES.items() if part in note.text), "operation"
    )


def _unread(found: Found, summaries: list[Summary]) -> Iterator[Gap]:
    """Gaps for figures without a value: rounded to a large unit, as nsys does by default,
    ambiguous, or clipped."""
    if found.rounded_sizes:
        reason = "nsys stats rounds sizes to MB by default: use '--format csv:mem=B'"
        yield Gap(
            "copy.bytes",
            "not_available",
            f"sizes with fewer than three digits were left out; {reason}",
        )
        yield Gap("kernel.static_shared_bytes", "not_available", reason)
        yield Gap("kernel.dynamic_shared_bytes", "not_available", reason)
    texts = [one.text for one in summaries if one.value is None and one.text]
    clipped, rounded = (
        sum(text.endswith("…") for text in texts),
        sum(not text.strip("0.,") for text in texts),
    )
    if rounded:
        reason = (
            f"{rounded} figures are printed as 0 in a large unit and may not be 0: use '--format "
            "csv:mem=B,time=ns'"
        )
        yield Gap("summary", "not_available", reason)
    if found.style is DecimalStyle.UNDECIDED and (ambiguous := len(texts) - clipped - rounded):
        reason = (
            f"{ambiguous} figures may be whole numbers or fractions: print them again with LC_ALL=C"
        )
        yield Gap("summary", "ambiguous", reason)
    unread = len(texts) - clipped - rounded - sum(text.startswith("0x") for text in texts)
    if found.style is not DecimalStyle.UNDECIDED and unread > 0:
        yield Gap("summary", "unreadable", f"{unread} figures are no numbers")
    if clipped:
        reason = f"{clipped} figures are clipped to the width of their column: use '--format csv'"
        yield Gap("summary", "unreadable", reason)


def find_diagnostics(found: Found) -> Iterator[Diagnostic]:
    """Warnings and errors of nsys, warnings about figures that may be wrong, and about what is
    not known."""
    for note in dict.fromkeys(found.notes):
        if note.kind in ("warning", "error"):
            yield Diagnostic(note.kind, "nsys", f"{note.report or ''} {note.text}".strip()[:500])
    if found.clipped:
        advice = "use '--format csv' for whole ones"
        text = (
            f"{found.clipped} names or figures were clipped by nsys to the width of their column: "
            f"{advice}"
        )
        yield Diagnostic("warning", "perfctl", text)
    tables = [
        f"{note.report} ({' '.join(note.text.split())[:60]})"
        for note in found.notes
        if note.kind == "unknown"
    ]
    yield from not_understood({"tables": tables, "columns": found.unknown})
    yield from newer("nsys", found.version, NEWEST)
    yield from contradictions([*found.contradictions, *_steps(found.trouble.steps)])


def _steps(steps: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Reports are the last steps of nsys ("[7/8] Executing ..."): none of them is left out, from
    the first to the last."""
    every = {count for _, count in steps}
    lost = {
        number for count in every for number in range(min(step for step, _ in steps), count + 1)
    } - {one for one, _ in steps}
    if len(every) == 1 and lost:
        yield (
            f"nsys took {max(every)} steps, of which {', '.join(map(str, sorted(lost)[:8]))} are "
            "not in the file"
        )


def sniff(path: Path, head: bytes) -> bool:
    """Return whether nsys stats' lines or table headers are at the beginning or, after a program's
    output, at the end."""
    return any(map(_is_stats, ends_of(path, head)))


def _is_stats(text: str) -> bool:
    text = text.replace("\r", "\n").lstrip("\ufeff")
    return _LINE.search(text) is not None or has_table(text)


@dataclass(slots=True)
class Found:
    """Results of the first pass over the file."""

    trouble: Trouble = field(default_factory=Trouble)
    evidence: StyleEvidence = field(default_factory=StyleEvidence)
    tables: list[tuple[Start, list[list[str]]]] = field(default_factory=list)
    traces: dict[str, int] = field(default_factory=dict)
    begun: list[Start] = field(default_factory=list)
    api_calls: dict[str, list[str]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    """Cells of the column Device."""
    clipped: int = 0
    """Cells that nsys clipped to the width of their column."""
    rounded_sizes: bool = False
    """Does the GPU trace state sizes in a larger unit than byte?"""
    forms: dict[str, None] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    """Of the sums."""

    @property
    def version(self) -> str | None:
        """Of nsys, where the file says it."""
        return next((note.text for note in self.notes if note.kind == "version"), None)

    @property
    def style(self) -> DecimalStyle:
        """The decimal style of the file. nsys follows its shell's locale on the console only."""
        return self.evidence.decide() if "console text" in self.forms else DecimalStyle.POINT


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of nsys stats and no line that says
    why there is none."""
    with readable(path, TOOL):
        found = _survey(path)
    if (
        not found.tables
        and not found.traces
        and not any(note.kind in ("skipped", "empty") for note in found.notes)
    ):
        errors = (
            f"nsys stats stopped with an error: {note.text}"
            for note in found.notes
            if note.kind == "error"
        )
        reason = next(errors, "it holds no complete table of nsys stats")
        remedy = (
            "Run 'nsys stats --format csv --report cuda_gpu_kern_sum,cuda_api_sum REPORT' again"
        )
        raise ReportError(path, TOOL, reason, f"{remedy}, or pass the report itself")
    operations, summaries = _sums(found)
    _check_once(path, found)
    trace = GPU_TRACE if GPU_TRACE in found.traces else KERNEL_TRACE
    ranges = RANGE_TRACE if RANGE_TRACE in found.traces else PROJECTED_TRACE
    return Report(
        tool=TOOL,
        path=path,
        form=f"nsys stats, {' and '.join(sorted(found.forms)) or 'no tables'}",
        tool_version=found.version,
        devices=tuple(Device(name, "gpu", index) for index, name in sorted(found.devices.items())),
        kernels=_Rows(path, trace, found, lambda: rows.kernel) if trace in found.traces else (),
        copies=_Rows(path, GPU_TRACE, found, lambda: lambda row, _: rows.copy(row))
        if GPU_TRACE in found.traces
        else (),
        ranges=_Rows(path, ranges, found, lambda: partial(rows.nvtx_range, numbers={}))
        if ranges in found.traces
        else (),
        operations=operations,
        summaries=tuple(summaries),
        gaps=tuple(find_gaps(found, summaries)),
        diagnostics=tuple(find_diagnostics(found)),
    )


def _survey(path: Path) -> Found:
    """Read the file once: sums are kept, rows of traces are only counted."""
    found = Found()
    start: Start | None = None
    kept: list[list[str]] = []
    figures: list[int] = []
    shape = rows.Shape((), DecimalStyle.POINT)
    for event in events(path, found.trouble):
        if isinstance(event, Note):
            found.notes.append(event)
        elif isinstance(event, Start):
            start, kept, shape = event, [], rows.Shape(event.columns, DecimalStyle.POINT)
            found.forms[event.form] = None
            found.unknown += [f"{event.report}.{label}" for label in unknown_labels(event.columns)]
            if not all(column.label for column in event.columns):
                found.contradictions.append(f"{event.report}: a column has no header")
            figures = figures_of(event.columns)
            if event.report in _TRACES:
                found.traces.setdefault(event.report, 0)
                found.begun.append(event)
                sizes = [
                    column.unit for column in event.columns if column.label in ("Bytes", "StcSMem")
                ]
                found.rounded_sizes |= any(unit is not None and unit.scale > 1 for unit in sizes)
            else:
                found.tables.append((event, kept))
        elif start is not None:
            for index in figures:
                found.evidence.add(event[index])
            found.clipped += "".join(event).count("…")
            if start.report in _TRACES:
                _count_row(found, shape, start.report, event)
            else:
                kept.append(event)
    return found


def _count_row(found: Found, shape: rows.Shape, report: str, row: list[str]) -> None:
    found.traces[report] += 1
    device = shape.at.get("Device")
    if device is not None and row[device] not in found.seen and len(found.seen) < _MOST_DEVICES:
        found.seen.add(row[device])
        cells = shape.of(row)
        name, index = rows.device_name(cells), rows.device_index(cells)
        if name is not None and index is not None:
            found.devices.setdefault(index, name)
    if report == API_TRACE and "Name" in shape.at and "Duration" in shape.at:
        found.api_calls.setdefault(row[shape.at["Name"]], []).append(row[shape.at["Duration"]])


def _sums(found: Found) -> tuple[list[Operation], list[Summary]]:
    """(operations, summaries) of all sums; calls of an API trace are added up where there is no sum
    of them."""
    operations: list[Operation] = []
    summaries: list[Summary] = []
    style, tables = found.style, dict[str, list[rows.Cells]]()
    for number, (start, kept) in enumerate(found.tables):
        read = list(map(rows.Shape(start.columns, style).of, kept))
        is_of_calls = {"Total Time", "Name"} <= {column.label for column in start.columns}
        report = (
            rows.api_report(start.report, {row.text("Name") for row in read})
            if is_of_calls
            else start.report
        )
        found.tables[number] = (start._replace(report=report), kept)
        if not read:
            found.contradictions.append(
                f"{report}: a header stands without rows, which nsys never prints"
            )
        found.contradictions += stats_agreement.contradictions(report, read)
        tables.setdefault(report, []).extend(read)
        for row in read:
            if rows.is_broken(row):
                found.trouble.rows += 1
                continue
            if one := rows.operation(report, row):
                operations.append(one)
            summaries.extend(rows.summaries(report, row))
    found.contradictions += [*stats_agreement.of_units(tables), *stats_agreement.of_copies(tables)]
    if not any(start.report == "cuda_api_sum" for start, _ in found.tables):
        operations.extend(_api_calls(found))
    return rows.merged(operations), summaries


def _api_calls(found: Found) -> Iterator[Operation]:
    column = next(iter(columns_of(["Duration (ns)", "Start (ns)", "Name"]) or []))
    for name, printed in found.api_calls.items():
        values = [rows.figure(text, column, found.style) for text in printed]
        known = [value for value in values if value is not None]
        total = rows.whole(sum(known)) if len(known) == len(values) else None
        yield Operation(name, API_TRACE, len(values), total, None, None, None, None)


class _Rows(Generic[Record]):
    """Records of one trace, read from the file each time they are iterated."""

    def __init__(
        self, path: Path, report: str, found: Found, begin: Callable[[], Make[Record]]
    ) -> None:
        """``begin`` gives what makes a record, or None, of a row and of how many records there are
        so far."""
        self._path, self._report, self._style, self._begin = path, report, found.style, begin

    def __iter__(self) -> Iterator[Record]:
        shape: rows.Shape | None = None
        make, number = self._begin(), 0
        with readable(self._path, TOOL, reason="it can no longer be read"):
            for event in events(self._path, Trouble()):
                if isinstance(event, Start):
                    shape = (
                        rows.Shape(event.columns, self._style)
                        if event.report == self._report
                        else None
                    )
                elif (
                    shape is not None
                    and isinstance(event, list)
                    and (one := make(shape.of(event), number))
                ):
                    number += 1
                    yield one
