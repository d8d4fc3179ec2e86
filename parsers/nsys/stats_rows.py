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
    Column,
)
from perfctl.parsers.nsys.tables import COPY_LABELS
from perfctl.parsers.text.numbers import AmbiguousNumber, DecimalStyle, read_number, to_base
from perfctl.records.ranges import read_range_name
from perfctl.records.report import Copy, Kernel, Operation, Range, Summary

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


class Shape:
    """The columns of one table by their labels; of two columns with one label the first counts."""

    def __init__(self, columns: Sequence[Column], style: DecimalStyle) -> None:
        self.columns, self.style = columns, style
        self.at: dict[str, int] = {}
        for index, column in enumerate(columns):
            self.at.setdefault(column.label, index)


class Cells(NamedTuple):
    """One row with its columns, read in the decimal style of its file."""

    row: list[str]
    shape: Shape

    def text(self, *labels: str) -> str:
        """Return the cell of the first of these columns that there is; "" for none and where nsys
        prints None."""
        at = next((self.shape.at[label] for label in labels if label in self.shape.at), None)
        return "" if at is None or self.row[at] == "None" else self.row[at]

    def integer(self, *labels: str) -> int | None:
        """Return that cell in base units, rounded; None where it is empty, no number, ambiguous,
        rounded away to 0, or beyond 64 bits, which no report has."""
        at = next((self.shape.at[label] for label in labels if label in self.shape.at), None)
        if at is None:
            return None
        return round_figure(read_figure(self.row[at], self.shape.columns[at], self.shape.style))

    def is_scaled(self, label: str) -> bool:
        """Return whether the column is in a larger unit than its base unit."""
        at = self.shape.at.get(label)
        unit = None if at is None else self.shape.columns[at].unit
        return unit is not None and unit.scale != 1

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
    is_mixed = report == MIXED_SUM
    if calls is None or not (is_mixed or report in DEVICE_SUMS or report in HOST_SUMS):
        return None
    on_host = row.text("Category") == _HOST_CATEGORY if is_mixed else report in HOST_SUMS
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
    for label in row.shape.at:
        if label in TEXTS and label not in NAMES and row.text(label):
            about += f" ({_SHOWN.get(label, label)} {' '.join(row.text(label).split())})"
    for label, at in row.shape.at.items():
        text, column = row.row[at], row.shape.columns[at]
        if label in TEXTS or label == "Time" or text in ("", "None"):
            continue
        value = read_figure(text, column, row.shape.style)
        unit = column.unit.name if column.unit else None
        yield Summary(f"{report}:{about}:{label}", value, unit, text if value is None else None)


def read_kernel(row: Cells, launch: int) -> Kernel | None:
    """Return a row of cuda_gpu_trace or cuda_kern_exec_trace; None when it is a copy's."""
    grid = row.triple("GridXYZ", "GrdX", "GrdY", "GrdZ")
    block = row.triple("BlockXYZ", "BlkX", "BlkY", "BlkZ")
    if grid[0] is None and _OPERATION.match(row.text(*NAMES)):
        return None
    shared = (
        None if row.is_scaled(label) else row.integer(label) for label in ("StcSMem", "DymSMem")
    )
    fields: dict[str, int | None] = {name: row.integer(*of) for name, of in OF_KERNEL.items()}
    fields |= dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True))
    fields |= dict(zip(("block_x", "block_y", "block_z"), block, strict=True))
    fields |= dict(zip(("static_shared_bytes", "dynamic_shared_bytes"), shared, strict=True))
    name = row.text("Kernel Name", "Name")
    return Kernel(launch, name, device_index=read_device(row)[0], **fields)  # type: ignore[arg-type]


def read_copy(row: Cells, number: int) -> Copy | None:
    """Return a copy or memory setting in cuda_gpu_trace; None when the row is a kernel's, and for
    its size where too few digits of that are printed."""
    match = _OPERATION.fullmatch(row.text("Name"))
    if match is None:
        return None
    label = match[2] or ""
    kind = "memset" if match[1] == "memset" else COPY_LABELS.get(label, label or match[1])
    digits = len(re.sub(r"[^0-9]", "", row.text("Bytes")).lstrip("0"))
    is_rounded = row.is_scaled("Bytes") and digits < _FEWEST_DIGITS
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
