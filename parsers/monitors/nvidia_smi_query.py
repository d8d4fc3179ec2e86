"""``nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]``.

nvidia-smi quotes nothing and parts cells by ", ". Without units the header still has them
("utilization.gpu [%]"); rows without a header are refused but for one form
(:func:`layout_of`). A header again, or a line that ``date`` printed, begins another round.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from perfctl.parsers.common.doubts import not_understood, several
from perfctl.parsers.common.numbers import (
    base_unit,
    day_is_first,
    is_nothing,
    is_stamp,
    read_quantity,
    read_stamp,
)
from perfctl.parsers.common.tables import Column
from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import MonitorText, Readings, half, ordinal, report
from perfctl.records.errors import ReportError
from perfctl.records.report import Device, Diagnostic, Gap, Report

TOOL = "nvidia-smi"
_QUANTITY = {
    "utilization.gpu": monitor.UTILISATION,
    "memory.used": monitor.MEMORY_USED,
    "memory.total": monitor.MEMORY_TOTAL,
    "temperature.gpu": monitor.TEMPERATURE,
    "clocks.current.sm": monitor.SM_CLOCK,
    "clocks.sm": monitor.SM_CLOCK,
}
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
"""Columns of power, of which the first that a header has is the sample's; power.draw is what older
drivers have alone."""
_UNITS = {"temperature.gpu": "C", "temperature.memory": "C", "temperature.gpu.tlimit": "C"}
"""Columns that are printed without a unit, header and cell."""
_DEFAULT_UNITS = (
    ("memory.", "MiB"),
    ("utilization.", "%"),
    ("power.", "W"),
    ("clocks.", "MHz"),
    ("temperature.", "C"),
    ("fan.speed", "%"),
)
"""Beginning of a column's name -> the unit in which nvidia-smi prints it [nvidia-smi
--help-query-gpu]."""
_ORDINALS = ("index", "gpu", "gpu_index", "gpu_id", "device")
"""Columns that may number the GPUs: nvidia-smi's own, then what programs around it write."""
_MOST_GPUS = 64
_PLAIN_UNITS = ("", "%", "W", "mW", "C", "J", "mJ")
"""Units in headers that are no multiple of a base unit of :func:`base_unit`."""
_BUS_COLUMN = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_IDENTITY = {"timestamp", "index", "name", "gpu_name", "count", "driver_version", *_BUS_COLUMN}
_FACTS = {"name", "gpu_name", "driver_version"}
"""Columns that say something of a device, not of a moment."""
_KNOWN = {
    *_QUANTITY,
    *_POWER,
    "utilization.memory",
    "memory.free",
    "power.limit",
    "fan.speed",
    "pstate",
    "clocks.current.memory",
}
_HEADER_CELL = re.compile(r"([a-z][a-z0-9_.]{1,60})(?: \[([^\]]{1,12})\])?\Z")

_HEADER = (
    "utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, power.draw [W]"
)
_UNITS_HEADLESS = ("%", "MiB", "MiB", "", "W")
_UNIT = re.compile(r"-?\d{1,12}(?:\.\d{1,6})? (%|MiB|W|MHz)\Z")
_QUERY_STAMP = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}\.\d{3}\Z")
_REMEDY = (
    "Put the header line above the rows ('timestamp, index, utilization.gpu [%], ...'), or record "
    "without noheader"
)

LINE_LIMIT = 4096
_CHECKED = 20_000
"""Rows without a header whose units are checked."""
_DATES_KEPT = 100_000

_WHOLE = re.compile(
    r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z|"
    r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\Z"
)
"""A uuid or a bus id in full."""

_MONTH_FIRST = (
    "dates such as '03-11-2026' were read with the month first; nothing in the file says which "
    "comes first"
)
_UNPLACED = Gap(
    "sample.device_index",
    "not_collected",
    "no column names the device: add index or uuid to --query-gpu",
)
_BY_PLACE = "no device column: the rows below each date were counted as GPU 0, 1, ..."
_BY_BUS = "no index column: devices are numbered in the order of their first rows"
_PLACED = {
    "place": Diagnostic("warning", "perfctl", _BY_PLACE),
    "bus": Diagnostic("info", "perfctl", _BY_BUS),
}


class Layout:
    """Positions of the cells of a row."""

    def __init__(self, columns: tuple[Column, ...], bare: tuple[str, ...] = ()) -> None:
        self.columns = columns
        self.bare = bare
        """Columns whose header has no unit, and whose unit is therefore nvidia-smi's default."""
        self.places = {column.name: n for n, column in reversed(list(enumerate(columns)))}
        self.timestamp = self.places.get("timestamp")
        self.ordinals = {name: self.places[name] for name in _ORDINALS if name in self.places}
        """Position of each column that may number the GPUs."""
        buses = [self.places[name] for name in _BUS_COLUMN if name in self.places]
        self.bus = buses[0] if buses else None
        """Position of the uuid or bus id."""
        self.measured = [
            (column, n) for n, column in enumerate(columns) if column.name not in _IDENTITY
        ]


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
    quantities = _QUANTITY | dict.fromkeys(
        [name for name in _POWER if name in names][:1], monitor.POWER
    )
    bare = [name for name, unit in cells if not unit and name not in _UNITS and _default_unit(name)]
    columns = [
        Column(name, unit or _UNITS.get(name, "") or _default_unit(name), quantities.get(name))
        for name, unit in cells
    ]
    return Layout(tuple(columns), tuple(bare))


def _default_unit(name: str) -> str:
    return next((unit for start, unit in _DEFAULT_UNITS if name.startswith(start)), "")


def is_row(line: str) -> bool:
    """Is it a row of nvidia-smi's CSV: two cells with units, or its timestamp and another cell?"""
    cells = [cell.strip() for cell in line[:4096].split(", ")]
    units = sum(_UNIT.match(cell) is not None for cell in cells)
    return units >= 2 or (len(cells) >= 2 and _QUERY_STAMP.match(cells[0]) is not None)


def layout_of(rows: list[list[str]], path: Path) -> tuple[Layout, Diagnostic]:
    """The layout of rows without a header, and a warning that names it. Raises ReportError for any
    other rows."""
    layout = read_header(_HEADER)
    if layout is None or not all(_fits(cells) for cells in rows):
        raise ReportError(
            path, TOOL, "the rows have no header that says what their columns are", _REMEDY
        )
    text = f"the rows have no header; by their units they were read as {_HEADER}"
    return layout, Diagnostic("warning", "perfctl", text)


def _fits(cells: list[str]) -> bool:
    """Has each cell the unit of its column, and is no more memory used than there is?"""
    if len(cells) != len(_UNITS_HEADLESS):
        return False
    units = ["" if match is None else match[1] for match in map(_UNIT.match, cells)]
    used, total = (read_quantity(cell, "")[0] for cell in cells[1:3])
    known = zip(cells, units, _UNITS_HEADLESS, strict=True)
    fits = all(unit == wanted or is_nothing(cell) for cell, unit, wanted in known)
    return fits and (used is None or total is None or used <= total)


@dataclass(slots=True)
class Row:
    """One row, and where it stands."""

    layout: Layout | None
    """None above the first header."""
    cells: list[str]
    date: str | None
    """The line of ``date`` above it."""
    round: int
    """How many headers and dates came before."""
    place: int
    """In its round, from 0."""
    begun: int | None
    """Of the first row below a header: the line at which another log may begin, because another
    program's output stands above that header, or it has other columns than the one before."""
    is_cut: bool
    """The file ends with this row, without a line end."""


def rows(text: MonitorText) -> Iterator[Row]:
    """Yield all rows; lines of others are set aside in ``text``."""
    layout: Layout | None = None
    date: str | None = None
    number = place = width = 0
    other_line: int | None = None
    begun: int | None = None
    for line in text:
        if len(line) > LINE_LIMIT:
            text.stray(line)
        elif header := read_header(line):
            is_other = layout is not None and header.columns != layout.columns
            begun = other_line or (text.line if is_other else None)
            layout, width, number, place = header, len(header.columns), number + 1, 0
        elif "," not in line and is_stamp(line):
            date, number, place = line.strip(), number + 1, 0
        else:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == width if width else is_row(line):
                yield Row(layout, cells, date, number, place, begun, not text.ends_whole)
                width, place = len(cells), place + 1
                other_line = begun = None
            elif line.strip():
                other_line = other_line or text.line
                text.stray(line)


class Survey:
    """Facts about all rows of a file, from a first pass. Raises ReportError when it has no row, or
    no header for them. The first header is also that of rows above it."""

    def __init__(self, path: Path) -> None:
        self._ordinals: defaultdict[str, Tally[int | None]] = defaultdict(Tally)
        """Column that may number the GPUs -> how often each number stands in it; None for what is
        no number."""
        self._bare: dict[str, str] = {}
        """Column without a unit -> its first cell without one."""
        self._has_bus = self._by_date = True
        """Whether every row has the uuid or bus id of its device; is below a ``date`` line and has
        no timestamp."""
        self._dates: dict[str, None] = {}
        """Different timestamps in which month and day may be mistaken for each other."""
        layouts: list[Layout] = []
        headless: list[list[str]] = []
        logs = _Logs()
        row: Row | None = None
        for row in rows(MonitorText(path, TOOL)):
            logs.add(row)
            if row.layout is not None:
                layouts = layouts or [row.layout]
                self._take(row.layout, row.cells, row.date)
                continue
            self._by_date &= row.date is not None
            self._note(row.date)
            if len(headless) < _CHECKED:
                headless.append(row.cells)
        if row is None:
            reason = "the header has no complete row below it"
            raise ReportError(path, TOOL, reason, "Let nvidia-smi run longer")
        if logs.starts:
            raise several(path, TOOL, logs.starts)
        self.warnings: list[Diagnostic] = []
        if layouts:
            self.layout = layouts[0]
        else:
            self.layout, warning = layout_of(headless, path)
            self.warnings.append(warning)
        for cells in headless:
            if len(cells) == len(self.layout.columns):
                self._take(self.layout, cells, date="" if self._by_date else None)
        self.index = self._find_index()
        """The column that numbers the GPUs; None where there is none."""
        self.numbers = {
            name
            for name, counts in self._ordinals.items()
            if self.index and counts == self._ordinals[self.index]
        }
        """Columns that only repeat which GPU a row is about, so that they measure nothing."""
        self.way = "bus" if self._has_bus else "place" if self._by_date else None
        """How the device of a row is found: by the column ``index``, else by uuid or bus id, else
        by its position below a date."""
        if self.index is not None:
            self.way = "index"
        self.day_first = day_is_first(self._dates)
        """None if the file does not decide."""

    def notes(self) -> Iterator[Diagnostic]:
        """Yield what was assumed about columns that nvidia-smi itself would print otherwise."""
        if self.way in _PLACED:
            yield _PLACED[self.way]
        if self.index not in (None, "index"):
            text = f"the GPUs are numbered by the column {self.index}"
            if "index" in self._ordinals:
                text += "; the column index is the same in all rows"
            yield Diagnostic("warning", "perfctl", text)
        if self._bare:
            columns = ", ".join(f"{name} ({_default_unit(name)})" for name in self._bare)
            text = (
                f"no unit stands in the header or in cells such as "
                f"'{next(iter(self._bare.values()))}': nvidia-smi's own units were taken for "
                f"{columns}"
            )
            yield Diagnostic("warning", "perfctl", text)

    def _find_index(self) -> str | None:
        """Return the column that numbers the GPUs: index, unless it is the same in all rows and
        another one counts GPUs; None without any."""
        counting = [name for name, counts in self._ordinals.items() if _numbers_gpus(counts)]
        best = max(counting, key=lambda name: len(self._ordinals[name]), default=None)
        if "index" not in self._ordinals:
            return best
        is_same = len(self._ordinals["index"]) == 1
        has_other = best is not None and len(self._ordinals[best]) > 1
        return best if is_same and has_other else "index"

    def _take(self, layout: Layout, cells: list[str], date: str | None) -> None:
        for name, place in layout.ordinals.items():
            self._ordinals[name][ordinal(cells[place])] += 1
        for name in layout.bare:
            if (cell := cells[layout.places[name]])[-1:].isdigit():
                self._bare.setdefault(name, cell)
        self._has_bus &= layout.bus is not None and cells[layout.bus] != ""
        self._by_date &= layout.timestamp is None and date is not None
        self._note(date if layout.timestamp is None else cells[layout.timestamp])

    def _note(self, stamp: str | None) -> None:
        """Keep a date that does not begin with the year."""
        if stamp and not {"-", "/"}.isdisjoint(stamp[1:3]) and len(self._dates) < _DATES_KEPT:
            self._dates[stamp] = None


def _numbers_gpus(counts: Tally[int | None]) -> bool:
    """Return whether these are the numbers of GPUs that are read in turn, and not a utilisation:
    small, and each about as often."""
    most, least = max(counts.values()), min(counts.values())
    are_small = all(number is not None and number < _MOST_GPUS for number in counts)
    return are_small and most - least <= 1 + most // 5


class _Logs:
    """Finds where another log begins: with a header below a program's output or of other columns,
    where the log before reads its GPUs again and again. One header for each reading is what a loop
    prints that starts nvidia-smi each time."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._rolls = False
        """The rows since the last such header have a GPU twice below one header or date."""
        self._seen: set[tuple[object, ...]] = set()

    def add(self, row: Row) -> None:
        if row.begun is not None:
            if self._rolls:
                self.starts.append(row.begun)
            self._rolls = False
            self._seen.clear()
        if self._rolls or row.layout is None:
            return
        places = [*row.layout.ordinals.values(), row.layout.bus]
        gpu = (row.round, *(row.cells[place] for place in places if place is not None))
        self._rolls = gpu in self._seen
        self._seen.add(gpu)


def devices_of(
    facts: Mapping[int | None, dict[str, str]], sizes: Mapping[int | None, int]
) -> tuple[Device, ...]:
    """Return the devices by what the rows say of each: name, driver version; and by their memory
    in bytes."""
    devices = []
    for index in sorted(facts, key=lambda index: -1 if index is None else index):
        known, size = facts[index], sizes.get(index)
        name, driver = known.get("name", known.get("gpu_name")), known.get("driver_version")
        if name or driver or size:
            devices.append(
                Device(name, "gpu", index or 0, memory_bytes=size, driver_version=driver)
            )
    return tuple(devices)


def environment_of(facts: dict[int | None, dict[str, str]]) -> dict[str, str]:
    """The driver, where all devices have the same."""
    drivers = {known["driver_version"] for known in facts.values() if known.get("driver_version")}
    return {"driver_version": drivers.pop()} if len(drivers) == 1 else {}


def recognise(found: list[str]) -> bool:
    """Return whether these lines have a header, or begin with rows of the CSV."""
    if any(read_header(line) for line in found if len(line) < LINE_LIMIT):
        return True
    first = [line for line in found if line.strip() and not is_stamp(line)][:3]
    return bool(first) and all(is_row(line) for line in first)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete row, or no header for its rows."""
    survey = Survey(path)
    text = MonitorText(path, TOOL)
    readings = Readings()
    devices: dict[int | None, dict[str, str]] = {}
    gaps = [Gap("sample.at_ns", "ambiguous", _MONTH_FIRST)] if survey.day_first is None else []
    buses: dict[str, int] = {}
    number, last_round = -1, -1
    seen: set[int | None] = set()
    for row in rows(text):
        layout = row.layout or survey.layout
        if len(row.cells) != len(layout.columns):  # above the first header, and not of its kind
            text.stray(", ".join(row.cells))
            continue
        if row.is_cut:
            is_bus = survey.way == "bus" and layout.bus == len(row.cells) - 1
            if cut := _find_half_cell(row.cells[-1], layout, buses if is_bus else None):
                gaps.insert(0, cut)
                row.cells[-1] = ""
                if is_bus or layout.timestamp == len(row.cells) - 1:
                    continue
        device: int | None = None
        if survey.way == "index":
            place = layout.ordinals.get(survey.index or "")
            device = None if place is None else ordinal(row.cells[place])
        elif survey.way == "place":
            device = row.place
        elif survey.way == "bus" and layout.bus is not None:
            device = buses.setdefault(row.cells[layout.bus], len(buses))
        is_again = survey.way != "place" and (device in seen or device is None)
        if row.round != last_round or is_again:
            number, last_round = number + 1, row.round
            seen.clear()
        seen.add(device)
        readings.clock.interval_ns = text.interval_ns
        stamp = row.date if layout.timestamp is None else row.cells[layout.timestamp]
        moment = read_stamp(stamp or "", day_first=bool(survey.day_first))
        facts = devices.setdefault(device, {})
        for name in _FACTS & layout.places.keys():
            facts.setdefault(name, row.cells[layout.places[name]])
        cells = [
            (col, row.cells[n]) for col, n in layout.measured if col.name not in survey.numbers
        ]
        readings.add(readings.clock.at(moment, number), device, cells)
    if not devices:
        reason = "no complete row fits the header"
        raise ReportError(path, TOOL, reason, "Let nvidia-smi run longer")
    return replace(
        report(
            TOOL,
            "nvidia-smi CSV, no header" if survey.warnings else "nvidia-smi CSV",
            text,
            readings,
            gaps=[*gaps, *([_UNPLACED] if survey.way is None else ())],
            notes=(*survey.warnings, *survey.notes()),
            unknown=unknown_units(survey.layout),
        ),
        devices=devices_of(devices, readings.sizes()),
        environment=environment_of(devices),
    )


def _find_half_cell(cell: str, layout: Layout, buses: Mapping[str, int] | None) -> Gap | None:
    """Return the gap for the last cell of a file that ends without a line end, if it may be
    incomplete: a name of a device (``buses``: those before it) that is not whole, or a number
    without its unit."""
    name = layout.columns[-1].name
    if buses is not None:
        if cell in buses or _WHOLE.match(cell):
            return None
        reason = "the file ends inside this cell, which names the device; its row was left out"
        return Gap(f"sample:{name}", "unreadable", reason)
    is_number = name == "timestamp" or read_quantity(cell, "")[0] is not None
    return half(name) if cell[-1:].isdigit() and is_number else None


def unknown_units(layout: Layout) -> tuple[Diagnostic, ...]:
    """Return diagnostics for columns with an unknown unit, which keep that unit."""
    strange = [
        f"{column.name} [{column.unit}]"
        for column, _ in layout.measured
        if column.unit not in _PLAIN_UNITS and base_unit(column.unit) == (column.unit, 1)
    ]
    return not_understood({"units of": strange}, "kept as printed")
