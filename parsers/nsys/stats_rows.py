"""Rows of ``nsys stats`` tables as records. Sums become operations (category: the report's name)
and, figure by figure, summaries named "<report>:<row>:<column>", but for Time (%), a share of the
table. Traces become kernels, copies and ranges. A figure that is printed as 0.000 of a large unit
is not known to be 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from perfctl.parsers.nsys.stats_columns import (
    COUNTS,
    DEVICE_SUMS,
    HOST_SUMS,
    MIXED_SUM,
    NAMES,
    TEXTS,
    UNKNOWN,
    Column,
)
from perfctl.parsers.nsys.tables import COPY_LABELS
from perfctl.parsers.text.numbers import AmbiguousNumber, DecimalStyle, read_number, to_base
from perfctl.records.ranges import read_range_name
from perfctl.records.report import Copy, Kernel, Operation, Range, Summary

_DEVICE = re.compile(r"(.*) \((\d+)\)")
_OPERATION = re.compile(r"\[CUDA (memcpy|memset)(?: (.*))?\]")
_SURELY_64_BIT = 19
_LARGEST = 2**63 - 1
_FEWEST_DIGITS = 3
"""A size that was rounded to fewer digits than this is not passed on."""
_HOST_CATEGORY = "CUDA_API"


class Shape:
    """The columns of one table by their labels; of two columns with one label the first counts."""

    __slots__ = ("at", "columns", "style")

    def __init__(self, columns: Sequence[Column], style: DecimalStyle) -> None:
        self.columns, self.style = columns, style
        self.at: dict[str, int] = {}
        for index, column in enumerate(columns):
            self.at.setdefault(column.label, index)

    def of(self, row: list[str]) -> Cells:
        """One row of the table."""
        return Cells(row, self)


class Cells(NamedTuple):
    """One row with its columns, read in the decimal style of its file."""

    row: list[str]
    shape: Shape

    def text(self, *labels: str) -> str:
        """The cell of the first of these columns that there is; "" for none and where nsys
        prints None."""
        for label in labels:
            at = self.shape.at.get(label)
            if at is not None:
                return "" if self.row[at] == "None" else self.row[at]
        return ""

    def number(self, *labels: str) -> int | float | None:
        """That cell in base units; None where it is empty, no number, ambiguous, or rounded away
        to 0."""
        for label in labels:
            at = self.shape.at.get(label)
            if at is not None:
                return figure(self.row[at], self.shape.columns[at], self.shape.style)
        return None

    def is_scaled(self, label: str) -> bool:
        """Is the column in a larger unit than its base unit?"""
        at = self.shape.at.get(label)
        unit = None if at is None else self.shape.columns[at].unit
        return unit is not None and unit.scale != 1

    def whole(self, *labels: str) -> int | None:
        """That number rounded to an integer of at most 64 bits; None for a larger one, which no
        report has."""
        return whole(self.number(*labels))

    def size(self, label: str) -> int | None:
        """A number of bytes, None where too few digits of it are printed."""
        if (
            self.is_scaled(label)
            and len(re.sub(r"[^0-9]", "", self.text(label)).lstrip("0")) < _FEWEST_DIGITS
        ):
            return None
        return self.whole(label)

    def exact(self, label: str) -> int | None:
        """A number that must not be rounded: None where its column is in a larger unit than its
        base unit."""
        return None if self.is_scaled(label) else self.whole(label)

    def triple(self, label: str, *parts: str) -> tuple[int | None, int | None, int | None]:
        """Three dimensions from one cell "1024    1    1", else from three columns."""
        one = self.text(label).split()
        if len(one) == 3 and all(part.isdecimal() and len(part) < 12 for part in one):
            return int(one[0]), int(one[1]), int(one[2])
        x, y, z = (self.whole(part) for part in parts) if parts else (None, None, None)
        return x, y, z


def whole(value: float | None) -> int | None:
    """A figure as an integer of at most 64 bits; None where it is none."""
    return None if value is None or not -_LARGEST < value < _LARGEST else round(value)


def figure(text: str, column: Column, style: DecimalStyle) -> int | float | None:
    """A printed figure in the base unit of its column."""
    scale = column.unit.scale if column.unit else 1
    if scale == 1 and len(text) < _SURELY_64_BIT and text.isdecimal() and text.isascii():
        return int(text)
    if not text or text == "None":
        return None
    try:
        number = read_number(text, style)
    except AmbiguousNumber:
        return None
    if number is None or (scale > 1 and number.decimals and number.digits == 0):
        return None
    return to_base(number, scale)


def is_broken(row: Cells) -> bool:
    """Return whether a count or time in the row of a sum is negative, which no real one is."""
    return any((row.whole(*labels) or 0) < 0 for labels in (COUNTS, ("Total Time",)))


def operation(report: str, row: Cells) -> Operation | None:
    """The row of a sum; None for a report whose side is not known, and where the count cannot
    be read."""
    if report == MIXED_SUM:
        on_device = row.text("Category") != _HOST_CATEGORY
    elif report in DEVICE_SUMS or report in HOST_SUMS:
        on_device = report in DEVICE_SUMS
    else:
        return None
    calls, total = row.whole(*COUNTS), row.whole("Total Time")
    if calls is None:
        return None
    host, device = (None, total) if on_device else (total, None)
    return Operation(row.text(*NAMES), report, calls, host, None, device, None, None)


def merged(operations: list[Operation]) -> list[Operation]:
    """One operation a name and report: up to 2022.4 kernels stand once for each grid. Clipped names
    are not joined."""
    found: dict[object, Operation] = {}
    for number, one in enumerate(operations):
        key: object = (
            number if one.name.endswith("…") else (one.name, one.category, one.cpu_ns is None)
        )
        if old := found.get(key):
            calls = min(old.calls + one.calls, _LARGEST)
            cpu, device = _sum(old.cpu_ns, one.cpu_ns), _sum(old.device_ns, one.device_ns)
            one = old._replace(calls=calls, cpu_ns=cpu, device_ns=device)
        found[key] = one
    return list(found.values())


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else whole(first + second)


def summaries(report: str, row: Cells) -> Iterator[Summary]:
    """Every figure of the row but its share."""
    name = row.text(*NAMES)
    others = [
        label for label in row.shape.at if label in TEXTS and label not in NAMES and row.text(label)
    ]
    shown = {"GridXYZ": "grid", "BlockXYZ": "block"}
    extra = [f"{shown.get(label, label)} {' '.join(row.text(label).split())}" for label in others]
    about = " ".join([name, *(f"({part})" for part in extra)])
    for label, at in row.shape.at.items():
        text, column = row.row[at], row.shape.columns[at]
        if label in TEXTS or label == "Time" or text in ("", "None"):
            continue
        value = figure(text, column, row.shape.style)
        unit = column.unit.name if column.unit else None
        yield Summary(f"{report}:{about}:{label}", value, unit, text if value is None else None)


def kernel(row: Cells, launch: int) -> Kernel | None:
    """A row of cuda_gpu_trace or cuda_kern_exec_trace; None when it is a copy's."""
    grid = row.triple("GridXYZ", "GrdX", "GrdY", "GrdZ")
    block = row.triple("BlockXYZ", "BlkX", "BlkY", "BlkZ")
    if grid[0] is None and _OPERATION.match(row.text(*NAMES)):
        return None
    name, place = row.text("Kernel Name", "Name"), (device_index(row), row.whole("Strm"))
    registers, shared = row.whole("Reg/Trd"), (row.exact("StcSMem"), row.exact("DymSMem"))
    times = (row.whole("Kernel Start", "Start"), row.whole("Kernel Dur", "Duration"))
    return Kernel(
        launch,
        name,
        None,
        None,
        None,
        None,
        None,
        None,
        *place,
        *grid,
        *block,
        registers,
        *shared,
        *times,
    )


def copy(row: Cells) -> Copy | None:
    """A copy or memory setting in cuda_gpu_trace; None when the row is a kernel's."""
    match = _OPERATION.fullmatch(row.text("Name"))
    if match is None:
        return None
    kind = (
        "memset" if match[1] == "memset" else COPY_LABELS.get(match[2] or "", match[2] or match[1])
    )
    return Copy(
        kind,
        row.size("Bytes"),
        row.whole("Start"),
        row.whole("Duration"),
        None,
        device_index(row),
        row.whole("Strm"),
    )


def device_index(row: Cells) -> int | None:
    """From "Tesla T4 (0)" or the column DevId."""
    match = _DEVICE.fullmatch(row.text("Device"))
    return int(match[2]) if match and len(match[2]) < 9 else row.whole("DevId")


def device_name(row: Cells) -> str | None:
    """From "Tesla T4 (0)"."""
    match = _DEVICE.fullmatch(row.text("Device"))
    return match[1] if match else None


def nvtx_range(row: Cells, number: int, numbers: dict[str, int]) -> Range | None:
    """A row of nvtx_pushpop_trace or nvtx_gpu_proj_trace; ``numbers`` maps RangeId to the numbers
    given so far."""
    start = row.whole("Orig Start", "Start")
    if start is None:
        return None
    numbers[row.text("RangeId")] = number
    name = row.text("Name")
    found = read_range_name(name)
    kind = "start_end" if row.text("Style") == "StartEnd" else "push_pop"
    depth = row.whole("Lvl") if kind == "push_pop" else None
    duration, parent = row.whole("Orig Duration", "Duration"), numbers.get(row.text("ParentId"))
    label = (found.layer, found.direction, found.step, found.phase)
    return Range(number, name, None, start, duration, row.whole("TID"), depth, parent, kind, *label)


def api_report(report: str, names: set[str]) -> str:
    """cuda_api_sum or osrt_sum for an unannounced table of calls, whose columns are the same."""
    if report != UNKNOWN:
        return report
    return (
        "cuda_api_sum" if any(re.match(r"(?:cuda|cu)[A-Z]", name) for name in names) else "osrt_sum"
    )
