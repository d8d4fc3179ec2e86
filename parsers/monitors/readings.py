"""Collects readings of devices column by column: samples for the fields that Sample has, summaries
for the rest.

Used by every parser of a monitoring tool (nvidia-smi, DCGM). Cells are printed texts; a cell that
is no number ("[N/A]", "[Not Supported]", "-") leaves the field empty, with one Gap per quantity.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

from perfctl.parsers.common.doubts import SOURCE
from perfctl.parsers.common.lines import ToolTextFile
from perfctl.parsers.common.numbers import (
    LARGEST,
    Number,
    Timestamp,
    format_utc_iso,
    is_not_available_text,
    parse_quantity_in_base_units,
)
from perfctl.parsers.common.tables import FieldColumn
from perfctl.records.report import Device, Diagnostic, Gap, Report, Sample, Summary, pluralize_count

UTILIZATION, MEMORY_USED, MEMORY_TOTAL = (
    "gpu_utilisation",
    "memory_used_bytes",
    "memory_total_bytes",
)
POWER, TEMPERATURE, SM_CLOCK = "power_w", "temperature_c", "sm_clock_hz"
QUANTITIES = {
    UTILIZATION: "%",
    MEMORY_USED: "byte",
    MEMORY_TOTAL: "byte",
    POWER: "W",
    TEMPERATURE: "C",
    SM_CLOCK: "Hz",
}
"""Field of Sample -> unit that its column must have once it is in base units."""
TEXTS_KEPT = 50
"""Distinct texts of one column that are counted singly; the rest are counted together."""
_CODES = ("reason", "uuid", "serial", "version", "pid")
"""Parts of the names of columns whose numbers are codes: their mean is meaningless."""
_FEWEST_READINGS, _REGULAR_SHARE, _NEAR = 8, 0.8, 0.25
"""Readings from which on a log has a rhythm, the share of its intervals that must be near the usual
one, and how near."""
_ORDINAL = re.compile(r"[0-9]{1,5}")
_INTERVAL = re.compile(
    r"nvidia-smi\s(?:[^|;]*\s)?(?P<which>dmon|pmon|--query-gpu)\S*\s(?:[^|;]*\s)?"
    r"(?P<option>-d|--delay=?|-lms|--loop-ms=?|-l|--loop=?)[ =]?(?P<value>\d{1,7})\b"
    r"|dcgmi dmon\s(?:[^|;]*\s)?(?:-d|--delay)[ =](?P<dcgm>\d{1,7})\b"
)

Cells = list[tuple[FieldColumn, str]]
_ONLY_SAMPLES = tuple(
    Gap(table, "not_available", "the file has samples of devices only")
    for table in ("kernel", "copy", "range", "operation")
)
"""Why a monitor's report has no rows of these tables: it does not mean that none ran."""


@dataclass(slots=True)
class _ColumnFigures:
    count: int = 0
    total: float = 0.0
    low: float = inf
    high: float = -inf
    unit: str | None = None
    texts: Tally[str] = field(default_factory=Tally)


class DeviceReadings:
    """Takes readings in the order of the file. Their times are from timestamps, else from the
    stated interval, else from their order alone."""

    def __init__(self, interval_ns: int | None = None) -> None:
        self.samples: list[Sample] = []
        self.since_midnight = False
        """Set by readers of times of day without a date."""
        self._interval_ns = interval_ns
        self._is_zoned = True
        self._is_counted = False
        self._span: tuple[int, int] | None = None
        """Times of the first and the last reading."""
        self._seen: set[str] = set()
        self._missing: defaultdict[str, Tally[str]] = defaultdict(Tally)
        self._figures: defaultdict[tuple[int | None, str], _ColumnFigures] = defaultdict(
            _ColumnFigures
        )

    def add_reading(
        self, stamp: Timestamp | None, round_number: int, device: int | None, cells: Cells
    ) -> None:
        """Add one reading of one device. Cells without a field in Sample make no sample.
        ``round_number``: of the round, from 0."""
        if stamp is None:
            self._is_counted = True
            at_ns = round_number * (self._interval_ns or 1)
        else:
            at_ns = stamp.ns
            self._is_zoned &= stamp.zoned
            first, last = self._span or (at_ns, at_ns)
            self._span = min(first, at_ns), max(last, at_ns)
        values: dict[str, Any] = {}
        for column, text in cells:
            if column.field is None:
                self._add_to_column_statistics(device, column, text)
            else:
                self._seen.add(column.field)
                values[column.field] = self._read_quantity_value(column.field, column.unit, text)
        if values:
            fields = dict.fromkeys(QUANTITIES) | values
            self.samples.append(Sample(at_ns, **fields, device_index=device))

    def _read_quantity_value(self, quantity: str, unit: str, text: str) -> Number | None:
        """Return the cell in the unit of its quantity; None, with a note, if it is no such
        number."""
        number, base = parse_quantity_in_base_units(text, unit)
        low = -LARGEST if quantity == TEMPERATURE else 0
        high = 100 if quantity == UTILIZATION else LARGEST
        if number is None or base != QUANTITIES[quantity] or not low <= number <= high:
            printed = text.strip() if number is not None else text.strip("[] ") or "an empty cell"
            self._missing[quantity][printed[:60]] += 1
            return None
        if quantity == UTILIZATION:
            return number / 100
        return number if quantity in (POWER, TEMPERATURE) else round(number)

    def _add_to_column_statistics(self, device: int | None, column: FieldColumn, text: str) -> None:
        figures = self._figures[device, column.name]
        number, unit = parse_quantity_in_base_units(text, column.unit)
        is_code = any(part in column.name for part in _CODES)
        if number is None or is_code or (figures.count and unit != figures.unit):
            text = "not available" if is_not_available_text(text) else text.strip()
            is_kept = text in figures.texts or len(figures.texts) < TEXTS_KEPT
            figures.texts[text if is_kept else "(others)"] += 1
            return
        figures.unit = unit
        figures.count += 1
        figures.total += number
        figures.low, figures.high = min(figures.low, number), max(figures.high, number)

    @property
    def summary_column_names(self) -> list[str]:
        """Return the columns that samples have no field for, in order of appearance."""
        return list(dict.fromkeys(name for _, name in self._figures))

    def make_devices(self, facts: Mapping[int | None, Mapping[str, str]]) -> Iterator[Device]:
        """Yield the devices by what the file says of each (name or gpu_name, driver_version) and
        by their memory, if all samples agree on it."""
        sizes: dict[int | None, set[int | None]] = {}
        for sample in self.samples:
            sizes.setdefault(sample.device_index, set()).add(sample.memory_total_bytes)
        for index in sorted(facts, key=lambda index: -1 if index is None else index):
            stated, totals = facts[index], sizes.get(index, set()) - {None}
            size = totals.pop() if len(totals) == 1 else None
            name, driver = stated.get("name", stated.get("gpu_name")), stated.get("driver_version")
            if name or driver or size:
                yield Device(name, "gpu", index or 0, memory_bytes=size, driver_version=driver)

    def summarize_non_sample_columns(self) -> Iterator[Summary]:
        """Yield mean, least and largest of the other columns by device; how often each text
        stood in them."""
        devices = {device for device, _ in self._figures}
        devices |= {sample.device_index for sample in self.samples}
        for (device, name), figures in self._figures.items():
            label = f"GPU {device}: {name}" if len(devices) > 1 and device is not None else name
            if figures.count:
                mean = figures.total / figures.count
                for part, value in (("mean", mean), ("min", figures.low), ("max", figures.high)):
                    yield Summary(f"{label} {part}", value, figures.unit)
            elif len(figures.texts) == 1:
                yield Summary(label, None, None, *figures.texts)
                continue
            for text, count in figures.texts.items():
                yield Summary(f"{label}: {text}", float(count), "reading")

    @property
    def first_and_last_ns(self) -> tuple[int, int] | None:
        """Return the times of the first and the last reading, ns; None unless all have
        timestamps."""
        return None if self._is_counted else self._span

    @property
    def started_at(self) -> str | None:
        """Return the time of the first reading, UTC; None where its zone or date is unknown."""
        is_known = self._is_zoned and not self.since_midnight
        return (
            format_utc_iso(self.first_and_last_ns[0])
            if self.first_and_last_ns and is_known
            else None
        )

    def describe_missing_data(self) -> Iterator[Gap]:
        """Yield one if the times are none, and one for each quantity that is absent from the file
        or from some readings."""
        reason = ""
        if self._is_counted and self._interval_ns:
            reason = (
                "no timestamps: perfctl counted times from the first sample with the stated "
                f"interval of {self._interval_ns} ns"
            )
        elif self._is_counted:
            reason = "no timestamps: the value is the number of the sample, not a time"
        elif self.since_midnight:
            reason = "times of day without a date: times count from the first midnight"
        if reason:
            yield Gap("sample.at_ns", "not_available", reason)
        for quantity in QUANTITIES:
            if quantity not in self._seen:
                reason = "the file has no column for it"
                yield Gap(f"sample.{quantity}", "not_collected", reason)
            elif tally := self._missing.get(quantity):
                printed = ", ".join(
                    f"'{text}' {count} times" for text, count in tally.most_common(3)
                )
                is_number = any(re.search(r"\d", text) for text in tally)
                state = "unreadable" if is_number else "not_available"
                yield Gap(f"sample.{quantity}", state, f"printed instead: {printed}")

    def make_diagnostics(self) -> Iterator[Diagnostic]:
        """Yield what was assumed, which columns became figures, and how many readings are
        missing."""
        if not self._is_zoned and not self.since_midnight:
            text = "the timestamps have no time zone; perfctl read them as UTC"
            yield Diagnostic("warning", "perfctl", text)
        if names := self.summary_column_names:
            text = f"kept as summaries, mean, min and max over the file: {', '.join(names[:40])}"
            yield Diagnostic("info", "perfctl", text)
        times: dict[int | None, list[int]] = {}
        for sample in self.samples if self.first_and_last_ns else ():
            times.setdefault(sample.device_index, []).append(sample.at_ns)
        for device in sorted(times, key=str):
            if text := describe_missing_readings(times[device]):
                label = f"GPU {device}: " if len(times) > 1 and device is not None else ""
                yield Diagnostic("warning", SOURCE, label + text)


class RoundCounter:
    """Counts rounds, in each of which every device (of pmon: process) is read once."""

    def __init__(self) -> None:
        self._number = -1
        self._seen: set[object] = set()

    def assign_round_number(self, device: object, *, starts_new_round: bool = False) -> int:
        """Return the number of the device's round, from 0; a device that the current round has
        begins another."""
        if starts_new_round or not self._seen or device in self._seen:
            self._number += 1
            self._seen.clear()
        self._seen.add(device)
        return self._number


def describe_missing_readings(times_ns: list[int]) -> str:
    """Return how many readings (times in ns) are missing from a log that is otherwise regular;
    "" if none is. A pause below 1.75 times the usual interval is none."""
    steps = [later - earlier for earlier, later in pairwise(times_ns)]
    ahead = sorted(step for step in steps if step > 0)
    usual = ahead[len(ahead) // 2] if ahead else 0
    regular = sum(abs(step - usual) <= usual * _NEAR for step in ahead)
    if len(times_ns) < _FEWEST_READINGS or regular < _REGULAR_SHARE * len(ahead):
        return ""
    pauses = [index for index, step in enumerate(steps) if step > usual * (2 - _NEAR)]
    if not pauses:
        return ""
    total = sum(max(round(steps[index] / usual) - 1, 1) for index in pauses)
    start, end = ((times_ns[pauses[0] + next_] - times_ns[0]) / 1e9 for next_ in (0, 1))
    span = f"between {start:.1f} s and {end:.1f} s"
    if len(pauses) > 1:
        span = f"in {len(pauses)} pauses, the first {span}"
    count = pluralize_count(total, "sample", "is", "are")
    return (
        f"{count} missing {span} (one is usual every {usual / 1e9:.3g} s): the tool was late or "
        "stopped, or lines were lost"
    )


def parse_ordinal(text: str) -> int | None:
    """Return a number of at most five digits; None for any other text."""
    return int(text) if _ORDINAL.fullmatch(text) else None


def make_truncated_last_cell_gap(name: str) -> Gap:
    """Return the gap for the cell at the end of a file without a line end."""
    reason = "the file ends without a line end: perfctl skipped its last number, which may go on"
    return Gap(f"sample:{name}", "not_available", reason)


class MonitorTextFile(ToolTextFile):
    """The lines of one file of a monitoring tool."""

    interval_ns: int | None = None
    """Time between readings, from a line of the file that shows the command with its interval."""

    def record_stray_line(self, line: str) -> None:
        """Set aside a line that is not the tool's; it may be the command that started the tool."""
        if self.interval_ns is None and len(line) < 500 and (match := _INTERVAL.search(line)):
            scale = 10**6 if match["dcgm"] or "ms" in match["option"] else 10**9
            self.interval_ns = int(match["dcgm"] or match["value"]) * scale or None
        super().record_stray_line(line)

    def make_report(
        self,
        form: str,
        readings: DeviceReadings,
        gaps: Iterable[Gap] = (),
        leading_diagnostics: Iterable[Diagnostic] = (),
        trailing_diagnostics: Iterable[Diagnostic] = (),
        missing_devices_reason: str = "",
        **fields: Any,
    ) -> Report:
        """Return the report of the readings, with further ``fields``. ``leading_diagnostics`` and
        ``trailing_diagnostics`` stand before and behind the diagnostics of readings and lines;
        ``missing_devices_reason`` is the reason why the file names no device."""
        unnamed = (
            [Gap("device", "not_available", missing_devices_reason)]
            if missing_devices_reason
            else []
        )
        span = readings.first_and_last_ns
        return Report(
            tool=self._tool,
            path=self.path,
            form=form,
            samples=readings.samples,
            summaries=tuple(readings.summarize_non_sample_columns()),
            gaps=(
                *gaps,
                *readings.describe_missing_data(),
                *self.find_unwritten_part_gaps("sample"),
                *unnamed,
                *_ONLY_SAMPLES,
            ),
            diagnostics=(
                *leading_diagnostics,
                *readings.make_diagnostics(),
                *self.make_skipped_lines_diagnostics(),
                *trailing_diagnostics,
            ),
            started_at=readings.started_at,
            duration_ns=span[1] - span[0] or None if span else None,
            **fields,
        )
