"""Kernels, copies, counters and figures from the rows of nvprof's tables (:mod:`nvprof_lines`)."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterable
from decimal import Decimal

from perfctl.parsers.nvprof_lines import Row
from perfctl.parsers.records import Copy, Counter, Device, Gap, Kernel, Summary

_NUMBER = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,9})?(?:e[+-]\d{1,2})?)\s*([A-Za-z%][A-Za-z/%]{0,5})?\Z")
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_PREFIXES = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_GRID = re.compile(r"\((\d{1,10}) (\d{1,10}) (\d{1,10})\)\Z")
_ORDINAL = re.compile(r"(?P<name>.*\S)\s*\((?P<index>\d{1,4})\)\Z")
_CORRELATION = re.compile(r" \[\d{1,12}\]\Z")
_OPERATION = re.compile(r"\[(?:CUDA|Unified Memory) (?P<kind>.+)\]\Z")
_MEMCPY = re.compile(r"(?:memcpy|Memcpy) (?P<kind>\w+)\Z")
_MORE = (
    "Start", "Duration", "Grid Size", "Block Size", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z",
    "Regs*", "SSMem*", "DSMem*", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size", "Throughput",
    "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Name", "Kernel", "Correlation_ID", "Unified Memory",
    "Virtual Address", "Src Dev", "Src Ctx", "Dst Dev", "Dst Ctx", "Secondary Virtual Address", "Process",
)  # fmt: skip
"""Columns of the trace that are not metrics."""
_DEVICE_WIDTH = 15
_LARGEST = 2**63 - 1


class Sizes:
    """Bytes of a "KB" in one file: 1024 or 1000, or undecided."""

    def __init__(self, base: int | None) -> None:
        self.base = base
        self._undecided = 0

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Sizes:
        """Decide by the first copies whose throughput has another prefix than their size; they must agree."""
        votes: Tally[int] = Tally()
        for number, row in enumerate(rows):
            if sum(votes.values()) >= 20 or (votes.total() and number > 2000):
                break
            size, throughput = _prefixed(row, "Size"), _prefixed(row, "Throughput")
            duration = time_ns(row.cells.get("Duration", ""), row.units.get("Duration", ""))
            if not (size and throughput and duration and size[0] and throughput[0]) or size[1] == throughput[1]:
                continue
            rate = float(size[0]) / (duration / 1e9)
            for base in (1000, 1024):
                expected = float(throughput[0]) * float(base) ** (throughput[1] - size[1])
                votes[base] += abs(rate / expected - 1) < 0.008  # 1024/1000 is 1.024; five digits round by 0.0001
        return cls(next((base for base in (1024, 1000) if votes[base] and not votes[2024 - base]), None))

    def bytes(self, text: str, unit: str) -> int | None:
        """Bytes of a printed size ("38.147MB", or a number in a column of that unit); None when it is none."""
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
        if not self._undecided:
            return []
        reason = f"{self._undecided} sizes: nothing in the file says whether a KB is 1000 or 1024 bytes"
        return [Gap("copy.bytes", "ambiguous", reason), Gap("kernel.shared_bytes", "ambiguous", reason)]


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
        """One row: a kernel has a grid, a copy a bracketed name; all else is a call and is counted by name."""
        cells = row.cells
        name = cells.get("Name", cells.get("Kernel", "")).strip()
        start, duration = (time_ns(cells.get(key, ""), row.units.get(key, "")) for key in ("Start", "Duration"))
        operation = _OPERATION.match(name)
        copy = operation and _MEMCPY.match(operation["kind"])
        if operation and (copy or operation["kind"] in ("memset", "Memset")):
            size = self._sizes.bytes(*_cell(row, "Size", "Unified Memory"))
            device, stream = self._device(cells.get("Device", "")), whole(cells.get("Stream", ""))
            self.copies.append(Copy(copy["kind"] if copy else "memset", size, start, duration, None, device, stream))
        elif not operation and (grid := _axes(cells, "Grid")) is not None:
            self._kernel(row, name, grid, start, duration)
        elif name:
            self._others[name] += 1
            self._times[name] += duration or 0

    def _kernel(self, row: Row, name: str, grid: list[int | None], start: int | None, duration: int | None) -> None:
        cells = row.cells
        launch = len(self.kernels)
        block = _axes(cells, "Block") or [None, None, None]
        self.kernels.append(
            Kernel(
                launch=launch,
                name=_CORRELATION.sub("", name),
                device_index=self._device(cells.get("Device", "")),
                stream=whole(cells.get("Stream", "")),
                registers=whole(_cell(row, "Regs*", "Registers Per Thread")[0]),
                static_shared_bytes=self._sizes.bytes(*_cell(row, "SSMem*", "Static SMem")),
                dynamic_shared_bytes=self._sizes.bytes(*_cell(row, "DSMem*", "Dynamic SMem")),
                start_ns=start,
                duration_ns=duration,
                grid_x=grid[0],
                grid_y=grid[1],
                grid_z=grid[2],
                block_x=block[0],
                block_y=block[1],
                block_z=block[2],
            )
        )
        for metric, text in cells.items():
            if metric not in _MORE:
                if metric[:1].isupper() and " " in metric:
                    self.unknown[metric] = None
                number = _number(text, row.units.get(metric, ""))
                value = None if number is None else _whole(number[0])
                unit = number[1] or None if number else None
                self.counters.append(Counter(launch, metric, value, unit, text=None if number else text or None))

    def _device(self, text: str) -> int | None:
        """The ordinal in "Tesla T4 (0)"; None where the name alone is printed."""
        text = text.strip()
        if text in ("", "-"):
            return None
        match = _ORDINAL.match(text)
        self._devices[match["name"] if match else text] = int(match["index"]) if match else None
        return int(match["index"]) if match else None

    def devices(self) -> tuple[Device, ...]:
        """The GPUs that the rows name."""
        return tuple(Device(name, "gpu", index or 0) for name, index in self._devices.items())

    def gaps(self) -> list[Gap]:
        gaps = [
            Gap("device.name", "unreadable", f"nvprof cut the name to {_DEVICE_WIDTH} characters: '{name}'")
            for name, index in self._devices.items()
            if index is None and len(name) >= _DEVICE_WIDTH - 1
        ]
        if None in self._devices.values():
            gaps.append(Gap("kernel.device_index", "not_available", "the trace names the GPU without its number"))
        return gaps

    def summaries(self) -> list[Summary]:
        """Calls and page faults of the trace, by name."""
        found = []
        for name, count in self._others.items():
            label = name.strip("[]")
            found.append(Summary(f"{label}: Calls", float(count), None))
            found.append(Summary(f"{label}: Time", float(self._times[name]), "ns"))
        return found


def summary_figures(row: Row) -> list[Summary]:
    """ "GPU activities: name: Time", Calls, Avg, Min, Max and Time(%)."""
    label = f"{row.group}: {row.cells['Name'].strip()}"
    share, calls = row.cells.get("Time(%)", ""), row.cells.get("Calls", "")
    number = _number(share, "%")
    times = []
    for key in ("Time", "Avg", "Min", "Max"):
        text = row.cells.get(key, "")
        times.append(_figure(f"{label}: {key}", text, time_ns(text, row.units.get(key, "")), "ns"))
    first = _figure(f"{label}: Time(%)", share, None if number is None else float(number[0]), "%")
    return [first, times[0], _figure(f"{label}: Calls", calls, whole(calls), None), *times[1:]]


def unified_figures(row: Row, sizes: Sizes) -> list[Summary]:
    """Transfers of unified memory: how many, sizes and time, by direction and device."""
    label = f"Unified Memory, {row.group}: {row.cells['Name'].strip()}"
    found = [_figure(f"{label}: Count", row.cells.get("Count", ""), whole(row.cells.get("Count", "")), None)]
    for key in ("Avg Size", "Min Size", "Max Size", "Total Size"):
        text = row.cells.get(key, "-")
        if text.strip("- "):
            found.append(_figure(f"{label}: {key}", text, sizes.bytes(text, row.units.get(key, "")), "byte"))
    time = row.cells.get("Total Time", "")
    return [*found, _figure(f"{label}: Total Time", time, time_ns(time, row.units.get("Total Time", "")), "ns")]


def metric_figures(row: Row) -> list[Summary]:
    """Least, largest and mean value of a metric over the launches of a kernel, and how many those were."""
    cells = row.cells
    name = cells.get("Metric Name") or cells.get("Event Name") or cells.get("Name", "")
    label = f"{row.group}: {name}"
    count = cells.get("Invocations", "")
    found = [_figure(f"{label}: Invocations", count, whole(count), None)]
    for key in ("Min", "Max", "Avg"):
        if key in cells:
            number = _number(cells[key], "")
            value = None if number is None else float(number[0])
            found.append(_figure(f"{label}: {key}", cells[key], value, (number[1] or None) if number else None))
    return found


def _figure(name: str, text: str, value: int | float | None, unit: str | None) -> Summary:
    return Summary(name, None, unit, text) if value is None else Summary(name, float(value), unit)


def time_ns(text: str, unit: str) -> int | None:
    """Nanoseconds of "438.61ms", or of a number in a column of that unit; None for "-" and for what is no time."""
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
    return int(number) if number == number.to_integral_value() and abs(number) <= _LARGEST else float(number)


def _prefixed(row: Row, column: str) -> tuple[Decimal, int] | None:
    """(number, power of its prefix) of a size or a throughput."""
    number = _number(row.cells.get(column, ""), row.units.get(column, ""))
    prefix = number[1].removesuffix("/s").removesuffix("B") if number and "B" in number[1] else None
    return (number[0], _PREFIXES[prefix]) if number and prefix in _PREFIXES and prefix is not None else None


def _cell(row: Row, *names: str) -> tuple[str, str]:
    """(cell, unit of the column) of the first of these columns that the row has something in."""
    for name in names:
        text = row.cells.get(name, "")
        if text.strip() not in ("", "-"):
            return text, row.units.get(name, "")
    return "", ""


def _axes(cells: dict[str, str], what: str) -> list[int | None] | None:
    """The three sizes of a grid or block, "(39063 1 1)" or three columns; None when the row has none."""
    match = _GRID.match(cells.get(f"{what} Size", "").strip())
    if match:
        return [int(match[n]) for n in (1, 2, 3)]
    axes = [whole(cells.get(f"{what} {axis}", "")) for axis in "XYZ"]
    return axes if axes[0] is not None else None
