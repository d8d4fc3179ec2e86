"""``nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]``.

nvidia-smi quotes nothing and parts cells by ", ". Without units the header still has them ("utilization.gpu [%]");
rows without a header are refused but for one form (:mod:`nvidia_smi_headless`). A header again, or a line that
``date`` printed, begins another round.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import Clock, Column, MonitorText, Readings, is_nothing, read_cell
from perfctl.parsers.text.doubts import not_understood
from perfctl.parsers.text.numbers import day_is_first, is_stamp, read_stamp
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Report, Sample

_QUANTITY = {
    "utilization.gpu": monitor.UTILISATION, "memory.used": monitor.MEMORY_USED, "memory.total": monitor.MEMORY_TOTAL,
    "temperature.gpu": monitor.TEMPERATURE, "clocks.current.sm": monitor.SM_CLOCK, "clocks.sm": monitor.SM_CLOCK,
}  # fmt: skip
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
"""The first of them that a header has is the sample's power; power.draw is what older drivers have alone."""
_UNITS = {"temperature.gpu": "C", "temperature.memory": "C", "temperature.gpu.tlimit": "C"}
"""Columns that are printed without a unit, header and cell."""
UNITS = frozenset(
    ("", "%", "W", "mW", "C", "MHz", "KiB", "MiB", "GiB", "MB", "MB/s", "KB/s", "ms", "us", "s", "mJ", "J")
)
"""In headers of --query-gpu."""
_BUS_COLUMN = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_IDENTITY = {"timestamp", "index", "name", "gpu_name", "count", "driver_version", *_BUS_COLUMN}
_KNOWN = {
    *_QUANTITY, *_POWER, "utilization.memory", "memory.free", "power.limit", "fan.speed", "pstate",
    "clocks.current.memory",
}  # fmt: skip
_HEADER_CELL = re.compile(r"([a-z][a-z0-9_.]{1,60})(?: \[([^\]]{1,12})\])?\Z")


class Layout:
    """Positions of the cells of a row."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        places = {column.name: n for n, column in reversed(list(enumerate(columns)))}
        self.columns = columns
        self.timestamp = places.get("timestamp")
        self.index = places.get("index")
        self.bus = next((places[name] for name in _BUS_COLUMN if name in places), None)
        """Position of the uuid or bus id."""
        self.identity = [(column.name, n) for n, column in enumerate(columns) if column.name in _IDENTITY]
        self.measured = [(column, n) for n, column in enumerate(columns) if column.name not in _IDENTITY]


def read_header(line: str) -> Layout | None:
    """The layout of a header line; None for any other line."""
    line = line.strip().lstrip("\ufeff")
    if not line or not "a" <= line[0] <= "z" or ("," not in line and "[" not in line):
        return None
    matches = [_HEADER_CELL.match(cell.strip()) for cell in line.split(",")]
    cells = [(match[1], match[2] or "") for match in matches if match]
    names = [name for name, _ in cells]
    if len(cells) < len(matches) or not _KNOWN.intersection(names):
        return None
    power = next((name for name in _POWER if name in names), None)
    quantities = _QUANTITY | ({power: monitor.POWER} if power else {})
    return Layout(tuple(Column(name, unit or _UNITS.get(name, ""), quantities.get(name)) for name, unit in cells))


_HEADER = "utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, power.draw [W]"
_UNITS_HEADLESS = ("%", "MiB", "MiB", "", "W")
_UNIT = re.compile(r"-?\d{1,12}(?:\.\d{1,6})? (%|MiB|W|MHz)\Z")
_QUERY_STAMP = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}\.\d{3}\Z")
_REMEDY = (
    "Put the header line above the rows ('timestamp, index, utilization.gpu [%], ...'), or record without noheader"
)


def is_row(line: str) -> bool:
    """Is it a row of nvidia-smi's CSV: two cells with units, or its timestamp and another cell?"""
    cells = [cell.strip() for cell in line[:4096].split(", ")]
    units = sum(_UNIT.match(cell) is not None for cell in cells)
    return units >= 2 or (len(cells) >= 2 and _QUERY_STAMP.match(cells[0]) is not None)


def layout_of(rows: list[list[str]], path: Path) -> tuple[Layout, Diagnostic]:
    """The layout of rows without a header, and a warning that names it. Raises ReportError for any other rows."""
    if not rows:
        raise ReportError(path, "nvidia-smi", "the file has no complete row", "Let nvidia-smi run longer")
    layout = read_header(_HEADER)
    if layout is None or not all(_fits(cells) for cells in rows):
        raise ReportError(path, "nvidia-smi", "the rows have no header that says what their columns are", _REMEDY)
    text = f"the rows have no header; by their units they were read as {_HEADER}"
    return layout, Diagnostic("warning", "perfctl", text)


def _fits(cells: list[str]) -> bool:
    """Has each cell the unit of its column, and is no more memory used than there is?"""
    if len(cells) != len(_UNITS_HEADLESS):
        return False
    for cell, unit in zip(cells, _UNITS_HEADLESS, strict=True):
        match = _UNIT.match(cell)
        if not is_nothing(cell) and (match[1] if match else "") != unit:
            return False
    used, total = (read_cell(cell, "")[0] for cell in cells[1:3])
    return used is None or total is None or used <= total


LINE_LIMIT = 4096
_CHECKED = 20_000
"""Rows without a header whose units are checked."""
_DATES_KEPT = 100_000


@dataclass(slots=True)
class Row:
    """One row and its position."""

    layout: Layout | None
    """None above the first header."""
    cells: list[str]
    date: str | None
    """The line of ``date`` above it."""
    round: int
    """How many headers and dates came before."""
    place: int
    """Position of the row in its round, from 0."""
    is_cut: bool = False
    """The file ends with this row, without a line end."""


def rows(text: MonitorText) -> Iterator[Row]:
    """All rows; lines of others are set aside in ``text``."""
    layout: Layout | None = None
    date: str | None = None
    number = place = width = 0
    row: Row | None = None
    for line in text:
        if row is not None:
            yield row
            row = None
        if len(line) > LINE_LIMIT:
            text.stray(line)
        elif header := read_header(line):
            layout, width, number, place = header, len(header.columns), number + 1, 0
        elif "," not in line and is_stamp(line):
            date, number, place = line.strip(), number + 1, 0
        else:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == width if width else is_row(line):
                row = Row(layout, cells, date, number, place)
                width = len(cells)
                place += 1
            elif line.strip():
                text.stray(line)
    if row is not None:
        row.is_cut = not text.ends_whole
        yield row


@dataclass(slots=True)
class Survey:
    """Facts about all rows of a file."""

    first: Layout | None = None
    """The first header."""
    count: int = 0
    headless: list[list[str]] = field(default_factory=list)
    """Cells of rows above any header."""
    is_numbered: bool = False
    """Some row has an index."""
    has_bus: bool = True
    """Every row has the uuid or bus id of its device."""
    by_date: bool = True
    """Every row is below a ``date`` line and has no timestamp."""
    dates: dict[str, None] = field(default_factory=dict)
    """Different timestamps in which month and day may be mistaken for each other."""

    def take(self, layout: Layout, cells: list[str], date: str | None) -> None:
        """Note what one row of this layout says."""
        self.is_numbered |= layout.index is not None
        self.has_bus &= layout.bus is not None and cells[layout.bus] != ""
        self.by_date &= layout.timestamp is None and date is not None
        self.note(date if layout.timestamp is None else cells[layout.timestamp])

    def note(self, stamp: str | None) -> None:
        """Keep a date that does not begin with the year."""
        if stamp and not {"-", "/"}.isdisjoint(stamp[1:3]) and len(self.dates) < _DATES_KEPT:
            self.dates[stamp] = None

    def finish(self, layout: Layout) -> None:
        """Rows above any header are of this layout: the first header's, or the one form without a header."""
        for cells in self.headless:
            if len(cells) == len(layout.columns):
                self.take(layout, cells, date="" if self.by_date else None)


def survey(text: MonitorText) -> Survey:
    """One pass over the file."""
    found = Survey()
    for row in rows(text):
        found.count += 1
        if row.layout is not None:
            found.first = found.first or row.layout
            found.take(row.layout, row.cells, row.date)
            continue
        found.by_date &= row.date is not None
        found.note(row.date)
        if len(found.headless) < _CHECKED:
            found.headless.append(row.cells)
    return found


_WHOLE = re.compile(
    r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z|[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\Z"
)
"""A uuid or a bus id in full."""


class Placer:
    """Finds the device of a row: by index, else uuid or bus id, else position below a date."""

    def __init__(self, survey: Survey) -> None:
        self._numbered = survey.is_numbered
        self._by_bus = survey.has_bus and not survey.is_numbered
        self._by_place = survey.by_date and not self._by_bus and not self._numbered
        self._bus: dict[str, int] = {}
        self._round = -1
        self._seen: set[object] = set()
        self._last_round: int | None = None

    def place(self, row: Row, layout: Layout) -> tuple[int | None, int]:
        """(device, number of the round of readings): call it once a row, in order."""
        device = self._device(row, layout)
        is_again = not self._by_place and (device in self._seen or device is None)
        if row.round != self._last_round or is_again:
            self._round += 1
            self._seen = set()
        self._last_round = row.round
        self._seen.add(device)
        return device, self._round

    def _device(self, row: Row, layout: Layout) -> int | None:
        if self._numbered:
            index = "" if layout.index is None else row.cells[layout.index]
            return int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None
        if self._by_bus and layout.bus is not None:
            return self._bus.setdefault(row.cells[layout.bus], len(self._bus))
        return row.place if self._by_place else None

    def is_half(self, bus: str) -> bool:
        """Return whether a uuid or bus id at the cut end of a file may be incomplete."""
        return self._by_bus and bus not in self._bus and _WHOLE.match(bus) is None

    def gaps(self) -> list[Gap]:
        if self._numbered or self._by_bus or self._by_place:
            return []
        reason = "no column names the device: add index or uuid to --query-gpu"
        return [Gap("sample.device_index", "not_collected", reason)]

    def diagnostics(self) -> list[Diagnostic]:
        by_place = "no device column: the rows below each date were counted as GPU 0, 1, ..."
        by_bus = "no index column: devices are numbered in the order of their first rows"
        if self._by_place:
            return [Diagnostic("warning", "perfctl", by_place)]
        return [Diagnostic("info", "perfctl", by_bus)] if self._by_bus else []


def devices_of(facts: dict[int | None, dict[str, str]], samples: Iterable[Sample]) -> tuple[Device, ...]:
    """Build the devices from facts in the rows; memory where all samples agree on it."""
    sizes: dict[int | None, set[int | None]] = {}
    for sample in samples:
        sizes.setdefault(sample.device_index, set()).add(sample.memory_total_bytes)
    found = []
    for index, known in sorted(facts.items(), key=lambda item: -1 if item[0] is None else item[0]):
        stated = sizes.get(index, set()) - {None}
        name = known.get("name", known.get("gpu_name"))
        driver = known.get("driver_version")
        size = stated.pop() if len(stated) == 1 else None
        if name or driver or size:
            found.append(Device(name, "gpu", index or 0, memory_bytes=size, driver_version=driver))
    return tuple(found)


def environment_of(facts: dict[int | None, dict[str, str]]) -> dict[str, str]:
    """The driver, where all devices have the same."""
    drivers = {known["driver_version"] for known in facts.values() if known.get("driver_version")}
    return {"driver_version": drivers.pop()} if len(drivers) == 1 else {}


TOOL = "nvidia-smi"


def recognise(found: list[str]) -> bool:
    """Return whether these lines have a header, or begin with rows of the CSV."""
    if any(read_header(line) for line in found if len(line) < LINE_LIMIT):
        return True
    first = [line for line in found if line.strip() and not is_stamp(line)][:3]
    return bool(first) and all(is_row(line) for line in first)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete row, or no header for its rows."""
    known = survey(MonitorText(path, TOOL))
    if not known.count and known.first is None:
        raise ReportError(path, TOOL, "the header has no complete row below it", "Let nvidia-smi run longer")
    warnings: list[Diagnostic] = []
    layout = known.first
    if layout is None:
        layout, *warnings = layout_of(known.headless, path)
    known.finish(layout)
    text = MonitorText(path, TOOL)
    rounds = _Rounds(known)
    for row in rows(text):
        row_layout = row.layout or layout
        if len(row.cells) != len(row_layout.columns):  # above the first header, and not of its kind
            text.stray(", ".join(row.cells))
        else:
            rounds.add(row, row_layout, text.interval_ns)
    if not rounds.devices:
        raise ReportError(path, TOOL, "no complete row fits the header", "Let nvidia-smi run longer")
    return _report(rounds, layout, text, warnings)


class _Rounds:
    """Turns the rows of a file into readings of devices over time."""

    def __init__(self, known: Survey) -> None:
        self.readings = Readings()
        self.clock = Clock()
        self.placer = Placer(known)
        self.devices: dict[int | None, dict[str, str]] = {}
        """Facts about each device other than readings: name, driver version."""
        self._halves: list[Gap] = []
        self._day_first = day_is_first(known.dates)

    def add(self, row: Row, layout: Layout, interval_ns: int | None) -> None:
        last = len(layout.columns) - 1
        if row.is_cut and layout.bus == last and self.placer.is_half(row.cells[last]):
            reason = "the file ends inside this cell, which names the device; its row was left out"
            self._halves.append(Gap(f"sample:{layout.columns[last].name}", "unreadable", reason))
            return
        if row.is_cut and (half := _half_cell(row, layout)):
            self._halves.append(half)
            if layout.timestamp == last:
                return
        device, number = self.placer.place(row, layout)
        self.clock.interval_ns = interval_ns
        stamp = row.date if layout.timestamp is None else row.cells[layout.timestamp]
        at_ns = self.clock.at(read_stamp(stamp or "", day_first=bool(self._day_first)), number)
        facts = self.devices.setdefault(device, {})
        for name, place in layout.identity:
            facts.setdefault(name, row.cells[place])
        self.readings.add(at_ns, device, [(column, row.cells[place]) for column, place in layout.measured])

    def gaps(self) -> tuple[Gap, ...]:
        """Gaps for cells that could not be read reliably."""
        reason = "dates such as '03-11-2026' were read with the month first; nothing in the file says which comes first"
        dates = [Gap("sample.at_ns", "ambiguous", reason)] if self._day_first is None else []
        return (*self._halves, *dates, *self.clock.gaps(), *self.placer.gaps(), *self.readings.gaps())


def _report(rounds: _Rounds, first: Layout, text: MonitorText, warnings: list[Diagnostic]) -> Report:
    readings, clock, placer = rounds.readings, rounds.clock, rounds.placer
    return Report(
        tool=TOOL,
        path=text.path,
        form="nvidia-smi CSV" if not warnings else "nvidia-smi CSV, no header",
        devices=devices_of(rounds.devices, readings.samples),
        environment=environment_of(rounds.devices),
        samples=readings.samples,
        summaries=tuple(readings.summaries()),
        gaps=rounds.gaps(),
        diagnostics=(
            *warnings,
            *clock.diagnostics(),
            *placer.diagnostics(),
            *readings.diagnostics(),
            *text.diagnostics(),
            *unknown_units(first),
        ),
        started_at=clock.started_at,
        duration_ns=clock.duration_ns,
    )


def unknown_units(layout: Layout) -> tuple[Diagnostic, ...]:
    """Diagnostics for columns with an unknown unit, which keep that unit. Column names may be any."""
    strange = [f"{column.name} [{column.unit}]" for column, _ in layout.measured if column.unit not in UNITS]
    return not_understood({"units of": strange}, "kept as printed")


def _half_cell(row: Row, layout: Layout) -> Gap | None:
    """Clear the last number of a cut line, which may be incomplete unless its unit follows; return the gap."""
    name, cell = layout.columns[-1].name, row.cells[-1]
    if not cell[-1:].isdigit() or (name != "timestamp" and read_cell(cell, "")[0] is None):
        return None
    row.cells[-1] = ""
    return Gap(f"sample:{name}", "unreadable", "the file ends inside its last number, which was left out")
