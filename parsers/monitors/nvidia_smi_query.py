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

from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import MonitorText, Readings, half, ordinal, report
from perfctl.parsers.text.doubts import not_understood, several
from perfctl.parsers.text.numbers import (
    base_unit,
    day_is_first,
    is_nothing,
    is_stamp,
    read_quantity,
    read_stamp,
)
from perfctl.parsers.text.tables import Column
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
    "place": [Diagnostic("warning", "perfctl", _BY_PLACE)],
    "bus": [Diagnostic("info", "perfctl", _BY_BUS)],
}


class Layout:
    """Positions of the cells of a row."""

    def __init__(self, columns: tuple[Column, ...], bare: frozenset[str] = frozenset()) -> None:
        places = {column.name: n for n, column in reversed(list(enumerate(columns)))}
        self.columns = columns
        self.timestamp = places.get("timestamp")
        self.ordinals = {name: places[name] for name in _ORDINALS if name in places}
        """Position of each column that may number the GPUs."""
        self.bare = [(column.name, n) for n, column in enumerate(columns) if column.name in bare]
        """Columns whose header has no unit, and whose unit is therefore nvidia-smi's default."""
        self.bus = next((places[name] for name in _BUS_COLUMN if name in places), None)
        """Position of the uuid or bus id."""
        self.identity = [
            (column.name, n) for n, column in enumerate(columns) if column.name in _IDENTITY
        ]
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
    bare = frozenset(
        name for name, unit in cells if not unit and name not in _UNITS and _default_unit(name)
    )
    columns = [
        Column(name, unit or _UNITS.get(name, "") or _default_unit(name), quantities.get(name))
        for name, unit in cells
    ]
    return Layout(tuple(columns), bare)


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
    begun: int | None = None
    """Of the first row below a header: the line at which another log may begin, because another
    program's output stands above that header, or it has other columns than the one before."""
    is_cut: bool = False
    """The file ends with this row, without a line end."""


def rows(text: MonitorText) -> Iterator[Row]:
    """All rows; lines of others are set aside in ``text``."""
    layout: Layout | None = None
    date: str | None = None
    number = place = width = 0
    others: int | None = None
    above: int | None = None
    row: Row | None = None
    for line in text:
        if row is not None:
            yield row
            row = others = above = None
        if len(line) > LINE_LIMIT:
            text.stray(line)
        elif header := read_header(line):
            is_other = layout is not None and header.columns != layout.columns
            above = others or (text.line if is_other else None)
            layout, width, number, place = header, len(header.columns), number + 1, 0
        elif "," not in line and is_stamp(line):
            date, number, place = line.strip(), number + 1, 0
        else:
            cells = [cell.strip() for cell in line.split(",")]
            if len(cells) == width if width else is_row(line):
                row = Row(layout, cells, date, number, place, above)
                width = len(cells)
                place += 1
            elif line.strip():
                others = others or text.line
                text.stray(line)
    if row is not None:
        row.is_cut = not text.ends_whole
        yield row


class Survey:
    """Facts about all rows of a file, from a first pass. Raises ReportError when it has no row, or
    no header for them."""

    def __init__(self, path: Path) -> None:
        self._ordinals: defaultdict[str, Tally[int | None]] = defaultdict(Tally)
        """Column that may number the GPUs -> how often each number stands in it; None for what is
        no number."""
        self._bare: dict[str, str] = {}
        """Column without a unit -> its first cell without one."""
        self.has_bus = True
        """Every row has the uuid or bus id of its device."""
        self.by_date = True
        """Every row is below a ``date`` line and has no timestamp."""
        self.dates: dict[str, None] = {}
        """Different timestamps in which month and day may be mistaken for each other."""
        first: Layout | None = None
        headless: list[list[str]] = []
        row: Row | None = None
        logs = _Logs()
        for row in rows(MonitorText(path, TOOL)):
            logs.add(row)
            if row.layout is not None:
                first = first or row.layout
                self._take(row.layout, row.cells, row.date)
                continue
            self.by_date &= row.date is not None
            self._note(row.date)
            if len(headless) < _CHECKED:
                headless.append(row.cells)
        if row is None:
            raise ReportError(
                path, TOOL, "the header has no complete row below it", "Let nvidia-smi run longer"
            )
        if logs.starts:
            raise several(path, TOOL, logs.starts)
        self.warnings: list[Diagnostic] = []
        if first is None:
            first, *self.warnings = layout_of(headless, path)
        self.layout = first
        """The first header, or the one form without a header; of rows above any header, too."""
        for cells in headless:
            if len(cells) == len(self.layout.columns):
                self._take(self.layout, cells, date="" if self.by_date else None)
        self.index = self._find_index()
        """The column that numbers the GPUs; None where there is none."""

    def notes(self) -> Iterator[Diagnostic]:
        """Yield what was assumed about columns that nvidia-smi itself would print otherwise."""
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

    def is_number_of_gpu(self, name: str) -> bool:
        """Return whether the column only repeats which GPU a row is about, so that its numbers
        measure nothing."""
        counts = self._ordinals.get(name)
        return None not in (counts, self.index) and (
            name == self.index or counts == self._ordinals[str(self.index)]
        )

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
        for name, place in layout.bare:
            if name not in self._bare and cells[place][-1:].isdigit():
                self._bare[name] = cells[place]
        self.has_bus &= layout.bus is not None and cells[layout.bus] != ""
        self.by_date &= layout.timestamp is None and date is not None
        self._note(date if layout.timestamp is None else cells[layout.timestamp])

    def _note(self, stamp: str | None) -> None:
        """Keep a date that does not begin with the year."""
        if stamp and not {"-", "/"}.isdisjoint(stamp[1:3]) and len(self.dates) < _DATES_KEPT:
            self.dates[stamp] = None


def _numbers_gpus(counts: Tally[int | None]) -> bool:
    """Are these the numbers of GPUs that are read in turn, and not a utilisation: small, and each
    about as often?"""
    most, least = max(counts.values()), min(counts.values())
    return (
        all(number is not None and number < _MOST_GPUS for number in counts)
        and most - least <= 1 + most // 5
    )


class _Logs:
    """Finds where another log begins: with a header below a program's output or of other columns,
    where the log before reads its GPUs again and again. One header for each reading is what a loop
    prints that starts nvidia-smi each time."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self._rolls = False
        """The rows since the last such header have a GPU twice below one header or date."""
        self._seen: set[tuple[int, tuple[str, ...]]] = set()

    def add(self, row: Row) -> None:
        if row.begun is not None:
            if self._rolls:
                self.starts.append(row.begun)
            self._rolls = False
            self._seen.clear()
        if self._rolls or row.layout is None:
            return
        places = [
            *row.layout.ordinals.values(),
            *([] if row.layout.bus is None else [row.layout.bus]),
        ]
        gpu = (row.round, tuple(row.cells[place] for place in places))
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
    known = Survey(path)
    text = MonitorText(path, TOOL)
    rounds = _Rounds(known)
    for row in rows(text):
        layout = row.layout or known.layout
        if len(row.cells) != len(layout.columns):  # above the first header, and not of its kind
            text.stray(", ".join(row.cells))
        else:
            rounds.add(row, layout, text.interval_ns)
    if not rounds.devices:
        raise ReportError(
            path, TOOL, "no complete row fits the header", "Let nvidia-smi run longer"
        )
    found = report(
        TOOL,
        "nvidia-smi CSV, no header" if known.warnings else "nvidia-smi CSV",
        text,
        rounds.readings,
        gaps=rounds.gaps,
        device_gaps=[_UNPLACED] if rounds.way is None else (),
        warnings=known.warnings,
        notes=(*_PLACED.get(rounds.way or "", ()), *known.notes()),
        unknown=unknown_units(known.layout),
    )
    sizes = rounds.readings.sizes()
    return replace(
        found, devices=devices_of(rounds.devices, sizes), environment=environment_of(rounds.devices)
    )


class _Rounds:
    """Turns the rows of a file into readings of devices over time."""

    def __init__(self, known: Survey) -> None:
        self.readings = Readings()
        self.devices: dict[int | None, dict[str, str]] = {}
        """Facts about each device other than readings: name, driver version."""
        self._known = known
        self._numbers = {name for name in _ORDINALS if known.is_number_of_gpu(name)}
        self._measured: dict[Layout, list[tuple[Column, int]]] = {}
        """Columns that measure something, and their places."""
        self.way = (
            "index"
            if known.index is not None
            else "bus"
            if known.has_bus
            else "place"
            if known.by_date
            else None
        )
        """How the device of a row is found: by index, else uuid or bus id, else position below
        a date."""
        day_first = day_is_first(known.dates)
        self.gaps = [Gap("sample.at_ns", "ambiguous", _MONTH_FIRST)] if day_first is None else []
        self._day_first = bool(day_first)
        self._bus: dict[str, int] = {}
        self._round = -1
        self._seen: set[object] = set()
        self._last_round: int | None = None

    def add(self, row: Row, layout: Layout, interval_ns: int | None) -> None:
        name, cell = layout.columns[-1].name, row.cells[-1]
        if row.is_cut and layout.bus == len(row.cells) - 1 and self._is_half(cell):
            reason = "the file ends inside this cell, which names the device; its row was left out"
            self.gaps.insert(0, Gap(f"sample:{name}", "unreadable", reason))
            return
        # the last number of a cut line may be incomplete unless its unit follows
        if (
            row.is_cut
            and cell[-1:].isdigit()
            and (name == "timestamp" or read_quantity(cell, "")[0] is not None)
        ):
            row.cells[-1] = ""
            self.gaps.insert(0, half(name))
            if layout.timestamp == len(row.cells) - 1:
                return
        device = self._device(row, layout)
        is_again = self.way != "place" and (device in self._seen or device is None)
        if row.round != self._last_round or is_again:
            self._round, self._seen = self._round + 1, set()
        self._last_round = row.round
        self._seen.add(device)
        self.readings.clock.interval_ns = interval_ns
        stamp = row.date if layout.timestamp is None else row.cells[layout.timestamp]
        at_ns = self.readings.clock.at(
            read_stamp(stamp or "", day_first=self._day_first), self._round
        )
        facts = self.devices.setdefault(device, {})
        for fact, place in layout.identity:
            facts.setdefault(fact, row.cells[place])
        if layout not in self._measured:
            self._measured[layout] = [
                one for one in layout.measured if one[0].name not in self._numbers
            ]
        self.readings.add(
            at_ns, device, [(column, row.cells[place]) for column, place in self._measured[layout]]
        )

    def _device(self, row: Row, layout: Layout) -> int | None:
        if self.way == "index":
            place = layout.ordinals.get(self._known.index or "")
            return None if place is None else ordinal(row.cells[place])
        if self.way == "bus" and layout.bus is not None:
            return self._bus.setdefault(row.cells[layout.bus], len(self._bus))
        return row.place if self.way == "place" else None

    def _is_half(self, bus: str) -> bool:
        return self.way == "bus" and bus not in self._bus and _WHOLE.match(bus) is None


def unknown_units(layout: Layout) -> tuple[Diagnostic, ...]:
    """Return diagnostics for columns with an unknown unit, which keep that unit."""
    strange = [
        f"{column.name} [{column.unit}]"
        for column, _ in layout.measured
        if column.unit not in _PLAIN_UNITS and base_unit(column.unit) == (column.unit, 1)
    ]
    return not_understood({"units of": strange}, "kept as printed")
