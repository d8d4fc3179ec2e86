"""Collects readings of devices column by column: samples for the fields that Sample has, summaries
for the rest.

Used by every parser of a monitoring tool (nvidia-smi, DCGM). Cells are printed texts; a cell that
is no number ("[N/A]", "[Not Supported]", "-") leaves the field empty, with one Gap a quantity.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from perfctl.parsers.text.doubts import SOURCE, contradictions, interrupted
from perfctl.parsers.text.numbers import Stamp, base_unit, iso_utc
from perfctl.parsers.text.tool_text import ToolText
from perfctl.records.report import Diagnostic, Gap, Report, Sample, Summary

UTILISATION, MEMORY_USED, MEMORY_TOTAL = (
    "gpu_utilisation",
    "memory_used_bytes",
    "memory_total_bytes",
)
POWER, TEMPERATURE, SM_CLOCK = "power_w", "temperature_c", "sm_clock_hz"
QUANTITIES = {
    UTILISATION: "%",
    MEMORY_USED: "byte",
    MEMORY_TOTAL: "byte",
    POWER: "W",
    TEMPERATURE: "C",
    SM_CLOCK: "Hz",
}
"""Field of Sample -> unit that its column must have once it is in base units."""

MEMORY_FREE, _MIB = "memory.free", 1 << 20
_FEWEST, _FEW = 8, 0.1
"""Readings from which on something counts as usual, and the share that may differ; where more do,
nothing is usual."""

TEXTS_KEPT = 50
"""Distinct texts of one column that are counted singly; the rest are counted together."""

_CELL = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,2})?) ?([A-Za-z%/]{0,12})\Z")
_NOTHING = {
    "",
    "-",
    "--",
    "N/A",
    "Not Supported",
    "Unknown Error",
    "ERR!",
    "Insufficient Permissions",
}
_LARGEST = 2**63 - 1

_INTERVAL = re.compile(
    r"nvidia-smi\s(?:[^|;]*\s)?(?P<which>dmon|pmon|--query-gpu)\S*\s(?:[^|;]*\s)?"
    r"(?P<option>-d|--delay=?|-lms|--loop-ms=?|-l|--loop=?)[ =]?(?P<value>\d{1,7})\b"
    r"|dcgmi dmon\s(?:[^|;]*\s)?(?:-d|--delay)[ =](?P<dcgm>\d{1,7})\b"
)


class Column(NamedTuple):
    """One column of a monitoring tool."""

    name: str
    """As the tool prints it, without the unit."""
    unit: str = ""
    """As the header prints it; "" where it does not. A unit in the cell goes before it."""
    quantity: str | None = None
    """The field of Sample that it fills, if there is one."""


Cells = list[tuple[Column, str]]


@dataclass(slots=True)
class _Figures:
    count: int = 0
    total: float = 0.0
    low: float = 0.0
    high: float = 0.0
    unit: str | None = None
    texts: Tally[str] = field(default_factory=Tally)


class Readings:
    """Takes readings in the order of the file."""

    def __init__(self, *, in_turn: bool = True) -> None:
        """``in_turn``: the tool reads every GPU in each round; DCGM leaves out what has no
        new value."""
        self._in_turn = in_turn
        self.samples: list[Sample] = []
        self.clock = Clock()
        self._seen: set[str] = set()
        self._missing: dict[str, Tally[str]] = {}
        self._figures: dict[tuple[int | None, str], _Figures] = {}
        self._units: Tally[tuple[str, str, str]] = Tally()
        """Column, its unit, and another one in a cell."""
        self._decimals: Tally[int] = Tally()
        """Of the power, as printed."""
        self._sums: dict[int | None, Tally[int]] = {}
        """Device -> memory in use and free together, in MiB."""

    def add(self, at_ns: int, device: int | None, cells: Cells) -> None:
        """Add one reading of one device. Cells without a field in Sample make no sample."""
        values: dict[str, int | float | None] = {}
        free: int | float | None = None
        for column, text in cells:
            if column.unit and not text[-1:].isdigit() and not text.endswith(f" {column.unit}"):
                printed = _CELL.match(text.strip())
                if printed and printed[2] and printed[2] != column.unit:
                    self._units[column.name, column.unit, printed[2]] += 1
            if column.name == MEMORY_FREE:
                free = read_cell(text, column.unit)[0]
            if column.quantity is None:
                self._take(device, column, text)
            else:
                self._seen.add(column.quantity)
                values[column.quantity] = self._value(column, text)
        if values:
            used, total, clock = map(_whole, map(values.get, (MEMORY_USED, MEMORY_TOTAL, SM_CLOCK)))
            share, power, degrees = map(values.get, (UTILISATION, POWER, TEMPERATURE))
            if used is not None and free is not None:
                self._sums.setdefault(device, Tally())[round((used + free) / _MIB)] += 1
            self.samples.append(Sample(at_ns, share, used, total, power, degrees, clock, device))

    def _value(self, column: Column, text: str) -> int | float | None:
        """The cell in the unit of its quantity; None, with a note, when it is no such number."""
        quantity = str(column.quantity)
        number, unit = read_cell(text, column.unit)
        if quantity == POWER and number is not None and (printed := _CELL.match(text.strip())):
            self._decimals[len(printed[1].partition(".")[2])] += 1
        low, high = (
            (-_LARGEST if quantity == TEMPERATURE else 0),
            (100 if quantity == UTILISATION else _LARGEST),
        )
        if number is not None and unit == QUANTITIES[quantity] and low <= number <= high:
            return number / 100 if quantity == UTILISATION else number
        shown = (
            text.strip()[:60] if number is not None else text.strip("[] ")[:60] or "an empty cell"
        )
        self._missing.setdefault(quantity, Tally())[shown] += 1
        return None

    def _take(self, device: int | None, column: Column, text: str) -> None:
        figures = self._figures.setdefault((device, column.name), _Figures())
        number, unit = read_cell(text, column.unit)
        is_code = any(
            part in column.name for part in ("reason", "uuid", "serial", "version", "pid")
        )
        if number is None or is_code:  # a mean of codes is meaningless
            text = "not available" if is_nothing(text) else text.strip()
            is_kept = text in figures.texts or len(figures.texts) < TEXTS_KEPT
            figures.texts[text if is_kept else "(others)"] += 1
            return
        if not figures.count:
            figures.low = figures.high = number
            figures.unit = unit
        if unit != figures.unit:
            figures.texts[text.strip()] += 1
            return
        figures.count += 1
        figures.total += number
        figures.low, figures.high = min(figures.low, number), max(figures.high, number)

    @property
    def others(self) -> list[str]:
        """The columns that samples have no field for, in order of appearance."""
        return list(dict.fromkeys(name for _, name in self._figures))

    def diagnostics(self) -> list[Diagnostic]:
        """Names the columns that became summaries."""
        text = f"kept as summaries, mean, min and max over the file: {', '.join(self.others[:40])}"
        return [Diagnostic("info", "perfctl", text)] if self.others else []

    def sizes(self) -> dict[int | None, int]:
        """Device -> its memory in bytes, where all samples agree on it."""
        found: dict[int | None, set[int]] = {}
        for sample in self.samples:
            if sample.memory_total_bytes is not None:
                found.setdefault(sample.device_index, set()).add(sample.memory_total_bytes)
        return {device: sizes.pop() for device, sizes in found.items() if len(sizes) == 1}

    def doubts(self) -> list[Diagnostic]:
        """Readings that are missing, and figures that contradict each other."""
        times: dict[int | None, list[int]] = {}
        sizes: dict[int | None, Tally[int]] = {}
        found = []
        for one in self.samples:
            times.setdefault(one.device_index, []).append(one.at_ns)
            if one.memory_total_bytes is None:
                continue
            sizes.setdefault(one.device_index, Tally())[one.memory_total_bytes] += 1
            if one.memory_used_bytes is not None and one.memory_used_bytes > one.memory_total_bytes:
                used, total = one.memory_used_bytes >> 20, one.memory_total_bytes >> 20
                found.append(f"{_gpu(one.device_index)}{used} MiB used of {total} MiB")
        for device, counts in sizes.items():
            if len(counts) > 1:
                shown = ", ".join(
                    f"{size >> 20} MiB {times} times" for size, times in counts.most_common(3)
                )
                found.append(f"{_gpu(device)}the memory in all differs between readings ({shown})")
        for (name, unit, other), cells in self._units.items():
            found.append(f"{name} is in {unit}, but in {other} in {cells} cells")
        found += self._unequal()
        named = len(times) > 1
        pauses = {
            Diagnostic(said.severity, said.source, f"{_gpu(device) if named else ''}{said.text}")
            for device, at in times.items()
            for said in (interrupted(at) if self.clock.has_times else ())
        }
        return [
            *sorted(pauses, key=lambda said: said.text),
            *self._out_of_turn(),
            *contradictions(found),
        ]

    def _unequal(self) -> Iterator[str]:
        """What is in use and what is free are the memory less what the driver keeps, which stays
        the same: to 1 MiB, since both are rounded. Some devices share the memory of the host, where
        this differs from reading to reading. The power is printed with as many decimals in
        all readings."""
        if len(self._decimals) > 1:
            usual, times = self._decimals.most_common(1)[0]
            other = self._decimals.total() - times
            # where zeros at the end are left out, a tenth differs
            if 40 * other <= self._decimals.total():
                yield (
                    f"the power has {usual} decimals, but other ones in {other} of "
                    f"{self._decimals.total()} readings"
                )
        for device, counts in self._sums.items():
            usual, _ = counts.most_common(1)[0]
            apart = {size: times for size, times in counts.items() if abs(size - usual) > 1}
            if counts.total() >= _FEWEST and 0 < sum(apart.values()) <= _FEW * counts.total():
                yield (
                    f"{_gpu(device)}memory in use and free memory are {usual} MiB together, but "
                    f"{next(iter(apart))} MiB in {sum(apart.values())} of {counts.total()} readings"
                )

    def _out_of_turn(self) -> Iterator[Diagnostic]:
        """Where devices are read in turn, a reading of each is followed by one of the same
        other device."""
        follow: dict[int | None, Tally[int | None]] = {}
        for one, two in pairwise(self.samples):
            follow.setdefault(one.device_index, Tally())[two.device_index] += 1
        usual = {device: counts.most_common(1)[0] for device, counts in follow.items()}
        if (
            not self._in_turn
            or len(follow) < 2
            or any(device == after for device, (after, _) in usual.items())
        ):
            return  # one device, or one after the other
        total = sum(counts.total() for counts in follow.values())
        other = total - sum(times for _, times in usual.values())
        if total >= 2 * _FEWEST and 0 < other <= _FEW * total:
            text = (
                f"GPUs are read in turn, but {other} of {total + 1} readings follow that of "
                "another GPU than usual"
            )
            yield Diagnostic("warning", SOURCE, f"{text}: readings were lost, copied or moved")

    def summaries(self) -> list[Summary]:
        """Mean, least and largest of the other columns by device; how often each text stood
        in them."""
        several = (
            len(
                {device for device, _ in self._figures}
                | {sample.device_index for sample in self.samples}
            )
            > 1
        )
        found = []
        for (device, name), figures in self._figures.items():
            label = f"GPU {device}: {name}" if several and device is not None else name
            if figures.count:
                mean = figures.total / figures.count
                parts = (("mean", mean), ("min", figures.low), ("max", figures.high))
                found += [Summary(f"{label} {part}", value, figures.unit) for part, value in parts]
            if not figures.count and len(figures.texts) == 1:
                found.append(Summary(label, None, None, *figures.texts))
            else:
                found += [
                    Summary(f"{label}: {text}", float(count), "reading")
                    for text, count in figures.texts.items()
                ]
        return found

    def gaps(self) -> list[Gap]:
        """One for each quantity that is absent from the file, or from some of its readings."""
        gaps = []
        for quantity in QUANTITIES:
            if quantity not in self._seen:
                gaps.append(
                    Gap(f"sample.{quantity}", "not_collected", "the file has no column for it")
                )
            elif tally := self._missing.get(quantity):
                shown = ", ".join(f"'{text}' {count} times" for text, count in tally.most_common(3))
                state = (
                    "unreadable"
                    if any(re.search(r"\d", text) for text in tally)
                    else "not_available"
                )
                gaps.append(Gap(f"sample.{quantity}", state, f"printed instead: {shown}"))
        return gaps


@lru_cache(maxsize=65536)
def read_cell(text: str, unit: str) -> tuple[int | float | None, str | None]:
    """(number in base units, base unit) of a printed cell; (None, None) when it is none.

    "841 MiB" is 881852416 byte, "7 %" stays 7 %, "22" in a column [W] is 22 W. NVIDIA's MB is 2**20
    bytes where the caller says "MiB"; here a unit means what it says.
    """
    match = _CELL.match(text.strip())
    if match is None:
        return None, None
    printed = match[2] or unit
    base, scale = (printed or None, 1) if printed in ("", "%", "W", "C") else base_unit(printed)
    is_whole = match[1].lstrip("+-").isdigit()
    value: int | float = int(match[1]) * scale if is_whole else float(match[1]) * scale
    if printed in ("mW", "mJ", "mC"):
        value, base = value / 1000, printed[1]
    return (None, None) if abs(value) > _LARGEST else (value, base)


def _gpu(device: int | None) -> str:
    return "" if device is None else f"GPU {device}: "


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def is_nothing(text: str) -> bool:
    """Return whether the cell is a printed form of "no value"."""
    return text.strip("[] ") in _NOTHING


def ordinal(text: str, digits: int = 5) -> int | None:
    """A number of a few digits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def half(name: str) -> Gap:
    """The gap for the cell at the end of a file without a line end."""
    return Gap(
        f"sample:{name}", "unreadable", "the file ends inside its last number, which was left out"
    )


class MonitorText(ToolText):
    """The lines of one file of a monitoring tool."""

    interval_ns: int | None = None
    """Time between readings, from a line of the file that shows the command with its interval."""

    def stray(self, line: str) -> None:
        """Set aside a line that is not the tool's; it may be the command that started the tool."""
        if self.interval_ns is None and len(line) < 500 and (match := _INTERVAL.search(line)):
            scale = 10**6 if match["dcgm"] or "ms" in match["option"] else 10**9
            self.interval_ns = int(match["dcgm"] or match["value"]) * scale or None
        super().stray(line)


class Clock:
    """Times of readings: from their timestamps, else from the stated interval, else from their
    order alone."""

    def __init__(self, interval_ns: int | None = None) -> None:
        self.interval_ns = interval_ns
        """Stated time between readings."""
        self._zoned: set[bool] = set()
        self._counted = False
        self._first: int | None = None
        self._last: int | None = None
        self.since_midnight = False
        """Set by readers of times of day without a date."""

    def at(self, stamp: Stamp | None, number: int) -> int:
        """``at_ns`` of reading number ``number`` (from 0; all devices of one round have
        the same)."""
        if stamp is None:
            self._counted = True
            return number * (self.interval_ns or 1)
        self._zoned.add(stamp.zoned)
        self._first = stamp.ns if self._first is None else min(self._first, stamp.ns)
        self._last = stamp.ns if self._last is None else max(self._last, stamp.ns)
        return stamp.ns

    @property
    def has_times(self) -> bool:
        """Whether all readings have timestamps."""
        return not self._counted and self._first is not None

    @property
    def started_at(self) -> str | None:
        """Time of the first reading, UTC; None where its zone or date is unknown."""
        known = self._zoned == {True} and not self._counted and not self.since_midnight
        return iso_utc(self._first) if known and self._first is not None else None

    @property
    def duration_ns(self) -> int | None:
        """Time from the first reading to the last; None without timestamps."""
        if self._counted or self._first is None or self._last is None:
            return None
        return self._last - self._first

    def gaps(self) -> list[Gap]:
        """Gaps where ``at_ns`` is not wall-clock time."""
        reason = (
            "times of day without a date: times count from the first midnight"
            if self.since_midnight
            else ""
        )
        if self._counted and self.interval_ns:
            reason = (
                "no timestamps: times were counted from the first reading with the stated "
                f"interval of {self.interval_ns} ns"
            )
        elif self._counted:
            reason = "no timestamps: the value is the number of the reading, not a time"
        return [Gap("sample.at_ns", "not_available", reason)] if reason else []

    def diagnostics(self) -> list[Diagnostic]:
        note = Diagnostic(
            "warning", "perfctl", "the timestamps have no time zone and were read as UTC"
        )
        return [note] if False in self._zoned and not self.since_midnight else []


def report(
    tool: str,
    form: str,
    text: MonitorText,
    readings: Readings,
    *,
    gaps: Iterable[Gap] = (),
    device_gaps: Iterable[Gap] = (),
    no_devices: str = "",
    warnings: Iterable[Diagnostic] = (),
    notes: Iterable[Diagnostic] = (),
    unknown: Iterable[Diagnostic] = (),
) -> Report:
    """What every monitoring tool's report has. ``no_devices``: why it names none."""
    clock, unnamed = readings.clock, Gap("device", "not_available", no_devices)
    known = (*readings.diagnostics(), *text.diagnostics(), *readings.doubts())
    return Report(
        tool=tool,
        path=text.path,
        form=form,
        samples=readings.samples,
        summaries=tuple(readings.summaries()),
        gaps=(
            *gaps,
            *clock.gaps(),
            *device_gaps,
            *readings.gaps(),
            *([unnamed] if no_devices else ()),
        ),
        diagnostics=(*warnings, *clock.diagnostics(), *notes, *known, *unknown),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns,
    )
