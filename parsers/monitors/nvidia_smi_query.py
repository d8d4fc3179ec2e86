"""``nvidia-smi --query-gpu=... --format=csv[,noheader][,nounits]``.

nvidia-smi quotes nothing and parts cells by ", ". Without units the header still has them
("utilization.gpu [%]"); rows without a header are refused but for one form
(:func:`infer_layout_without_header`). A header again, or a line that ``date`` printed, begins
another round.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import NamedTuple

from perfctl.parsers.common.doubts import make_several_runs_error, make_unknown_names_warning
from perfctl.parsers.common.numbers import (
    is_day_before_month,
    is_not_available_text,
    is_timestamp,
    parse_quantity_in_base_units,
    parse_timestamp,
    parse_unit,
)
from perfctl.parsers.common.tables import FieldColumn
from perfctl.parsers.monitors import readings as monitor
from perfctl.parsers.monitors.readings import (
    DeviceReadings,
    MonitorTextFile,
    RoundCounter,
    make_truncated_last_cell_gap,
    parse_ordinal,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Gap, Report

TOOL = "nvidia-smi"
_QUANTITY = {
    "utilization.gpu": monitor.UTILIZATION,
    "memory.used": monitor.MEMORY_USED,
    "memory.total": monitor.MEMORY_TOTAL,
    "temperature.gpu": monitor.TEMPERATURE,
    "clocks.current.sm": monitor.SM_CLOCK,
    "clocks.sm": monitor.SM_CLOCK,
}
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
"""Columns of power, of which the first that a header has is the sample's; power.draw is what older
drivers have alone."""
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
"""Units in headers that are no multiple of a base unit of :func:`parse_unit`."""
_BUS_COLUMN = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_FACTS = {"name", "gpu_name", "driver_version"}
"""Columns that say something of a device, not of a moment."""
_IDENTITY = {"timestamp", "index", "count", *_FACTS, *_BUS_COLUMN}
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
_WHOLE = re.compile(
    r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z|"
    r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\Z"
)
"""A uuid or a bus id in full."""
_MONTH_FIRST = Gap(
    "sample.at_ns",
    "ambiguous",
    "dates such as '03-11-2026' were read with the month first, because the file does not state "
    "the order",
)
_UNPLACED = Gap(
    "sample.device_index",
    "not_collected",
    "no column names the device. Add index or uuid to --query-gpu",
)
_BY_PLACE = "no device column: the rows below each date were counted as GPU 0, 1, ..."
_BY_BUS = "no index column: devices are numbered in the order of their first rows"


_BUS, _PLACE = "uuid or bus id", "place below a date"


class HeaderLayout(NamedTuple):
    """The columns of a header."""

    columns: tuple[FieldColumn, ...]
    places: dict[str, int]
    """By name; of two columns with one name the first counts."""
    measured: list[tuple[FieldColumn, int]]
    """The columns that say something of a moment, and their places."""
    bare: list[str]
    """Columns whose header has no unit, and whose unit is therefore nvidia-smi's default;
    temperatures never have one."""


_NO_LAYOUT = HeaderLayout((), {}, [], [])


class QueryRow(NamedTuple):
    """One row, and where it stands."""

    layout: HeaderLayout
    """Without columns above the first header."""
    cells: list[str]
    date: str | None
    """The line of ``date`` above it."""
    round: int
    """How many headers and dates came before."""
    place: int
    """In its round, from 0."""
    begun: int
    """Of the first row below a header: the line at which another log may begin, because another
    program's output stands above that header, or it has other columns than the one before; else
    0."""
    is_cut: bool
    """The file ends with this row, without a line end."""

    def get_first_available_cell(self, *names: str) -> str | None:
        """Return the cell of the first of these columns that there is."""
        places = self.layout.places
        return next((self.cells[places[name]] for name in names if name in places), None)

    @property
    def timestamp_text(self) -> str:
        """Return when it was read: its timestamp, or the date above it."""
        stamp = self.get_first_available_cell("timestamp")
        return (self.date or "") if stamp is None else stamp


def parse_query_header(line: str) -> HeaderLayout | None:
    """Return the layout of a header line; None for any other line."""
    line = line.strip().lstrip("\ufeff")
    if not line or not "a" <= line[0] <= "z" or ("," not in line and "[" not in line):
        return None
    matches = [_HEADER_CELL.match(cell.strip()) for cell in line.split(",")]
    cells = [(match[1], match[2] or "") for match in matches if match]
    names = [name for name, _ in cells]
    if len(cells) < len(matches) or not _KNOWN.intersection(names):
        return None
    power = [name for name in _POWER if name in names][:1]
    quantities = _QUANTITY | dict.fromkeys(power, monitor.POWER)
    columns = tuple(
        FieldColumn(name, unit or _get_default_unit(name), quantities.get(name))
        for name, unit in cells
    )
    return HeaderLayout(
        columns,
        {name: index for index, name in reversed(list(enumerate(names)))},
        [(column, index) for index, column in enumerate(columns) if column.name not in _IDENTITY],
        [name for name, unit in cells if not unit and _get_default_unit(name) not in ("", "C")],
    )


def _get_default_unit(name: str) -> str:
    return next((unit for start, unit in _DEFAULT_UNITS if name.startswith(start)), "")


def is_query_csv_row(line: str) -> bool:
    """Return whether it is a row of nvidia-smi's CSV: two cells with units, or its timestamp and
    another cell."""
    cells = [cell.strip() for cell in line[:LINE_LIMIT].split(", ")]
    units = sum(_UNIT.match(cell) is not None for cell in cells)
    return units >= 2 or (len(cells) >= 2 and _QUERY_STAMP.match(cells[0]) is not None)


def has_query_header_or_rows(lines: list[str]) -> bool:
    """Return whether these lines have a header, or begin with rows of the CSV."""
    if any(parse_query_header(line) for line in lines if len(line) < LINE_LIMIT):
        return True
    first = [line for line in lines if line.strip() and not is_timestamp(line)][:3]
    return bool(first) and all(is_query_csv_row(line) for line in first)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it has no complete row, or no header for its rows."""
    text = MonitorTextFile(path, TOOL)
    rows, notes = read_rows_with_layouts(text)
    first = rows[0].layout if rows else _NO_LAYOUT
    way, repeated = find_device_id_column_and_duplicates(rows)
    gaps = drop_cut_last_cell(rows, way)
    if not rows:
        raise ReportError(path, TOOL, "no complete row fits the header", "Run nvidia-smi longer")
    stamps = [row.timestamp_text for row in rows]
    # a date that does not begin with the year
    day_first = is_day_before_month(stamp for stamp in stamps if set("-/").intersection(stamp[1:3]))
    if day_first is None:
        gaps.append(_MONTH_FIRST)
    if way is None:
        gaps.append(_UNPLACED)
    readings, rounds, last_round = DeviceReadings(text.interval_ns), RoundCounter(), -1
    buses: dict[str, int] = {}
    facts: dict[int | None, dict[str, str]] = {}
    for row, printed in zip(rows, stamps, strict=True):
        device = find_device_number(row, way, buses)
        begins = row.round != last_round or device is None
        last_round = row.round
        device_facts = facts.setdefault(device, {})
        for name in _FACTS & row.layout.places.keys():
            device_facts.setdefault(name, row.cells[row.layout.places[name]])
        cells = [
            (column, row.cells[index])
            for column, index in row.layout.measured
            if column.name not in repeated
        ]
        stamp = parse_timestamp(printed, day_first=bool(day_first))
        readings.add_reading(
            stamp, rounds.assign_round_number(device, starts_new_round=begins), device, cells
        )
    drivers = {stated.get("driver_version", "") for stated in facts.values()} - {""}
    return text.make_report(
        f"nvidia-smi CSV{', no header' if notes else ''}",
        readings,
        gaps,
        leading_diagnostics=(*notes, *describe_device_and_unit_assumptions(rows, way)),
        trailing_diagnostics=make_unknown_unit_warnings(first),
        devices=tuple(readings.make_devices(facts)),
        environment={"driver_version": drivers.pop()} if len(drivers) == 1 else {},
    )


def read_rows_with_layouts(text: MonitorTextFile) -> tuple[list[QueryRow], list[Diagnostic]]:
    """Return the rows with their layouts, and a warning if no header names their columns. The first
    header is also that of rows above it. Raises ReportError for rows of several logs, and without a
    layout."""
    rows = list(iterate_query_rows(text))
    if not rows:
        reason = "the header has no complete row below it"
        raise ReportError(text.path, TOOL, reason, "Run nvidia-smi longer")
    if starts := list(find_log_start_lines(rows)):
        raise make_several_runs_error(text.path, TOOL, starts)
    notes: list[Diagnostic] = []
    layout = next((row.layout for row in rows if row.layout.columns), _NO_LAYOUT)
    if not layout.columns:
        layout, warning = infer_layout_without_header([row.cells for row in rows], text.path)
        notes = [warning]
    rows = [row if row.layout.columns else row._replace(layout=layout) for row in rows]
    for row in rows:
        if len(row.cells) != len(row.layout.columns):
            text.record_stray_line(", ".join(row.cells))
    return [row for row in rows if len(row.cells) == len(row.layout.columns)], notes


def iterate_query_rows(text: MonitorTextFile) -> Iterator[QueryRow]:
    """Yield all rows; set aside lines of other programs."""
    layout = _NO_LAYOUT
    date: str | None = None
    number = row_index = width = other_line = begun = 0
    for line in text:
        if len(line) > LINE_LIMIT:
            text.record_stray_line(line)
        elif header := parse_query_header(line):
            is_other = layout.columns not in ((), header.columns)
            begun = other_line or (text.line if is_other else 0)
            layout, width, number, row_index = header, len(header.columns), number + 1, 0
        elif "," not in line and is_timestamp(line):
            date, number, row_index = line.strip(), number + 1, 0
        else:
            # most cells repeat: kept once, they take half the memory
            cells = [intern(cell.strip()) for cell in line.split(",")]
            if len(cells) == width if width else is_query_csv_row(line):
                yield QueryRow(layout, cells, date, number, row_index, begun, not text.ends_whole)
                width, row_index, other_line, begun = len(cells), row_index + 1, 0, 0
            elif line.strip():
                other_line = other_line or text.line
                text.record_stray_line(line)


def find_log_start_lines(rows: list[QueryRow]) -> Iterator[int]:
    """Yield the lines at which other logs begin: with a header below a program's output or of
    other columns, where the log before reads its GPUs again and again below one header or date.
    One header for each reading is what a loop prints that starts nvidia-smi each time."""
    rolls = False
    gpus: set[tuple[object, ...]] = set()
    for row in rows:
        if row.begun:
            if rolls:
                yield row.begun
            rolls = False
            gpus.clear()
        if row.layout.columns and not rolls:
            gpu = (
                row.round,
                *map(row.get_first_available_cell, _ORDINALS),
                row.get_first_available_cell(*_BUS_COLUMN),
            )
            rolls = gpu in gpus
            gpus.add(gpu)


def infer_layout_without_header(
    rows: list[list[str]], path: Path
) -> tuple[HeaderLayout, Diagnostic]:
    """Return the layout of rows without a header, and a warning that names it. Raises ReportError
    for any other rows."""
    layout = parse_query_header(_HEADER)
    if layout is None or not all(_fits_headerless_default_columns(cells) for cells in rows):
        raise ReportError(path, TOOL, "the rows have no header that names their columns", _REMEDY)
    text = f"the rows have no header; perfctl read them by their units as {_HEADER}"
    return layout, Diagnostic("warning", "perfctl", text)


def _fits_headerless_default_columns(cells: list[str]) -> bool:
    """Return whether each cell has the unit of its column, and no more memory is used than there
    is."""
    if len(cells) != len(_UNITS_HEADLESS):
        return False
    units = ["" if match is None else match[1] for match in map(_UNIT.match, cells)]
    used, total = (parse_quantity_in_base_units(cell, "")[0] for cell in cells[1:3])
    columns = zip(cells, units, _UNITS_HEADLESS, strict=True)
    fits = all(unit == expected or is_not_available_text(cell) for cell, unit, expected in columns)
    return fits and (used is None or total is None or used <= total)


def find_device_id_column_and_duplicates(rows: list[QueryRow]) -> tuple[str | None, set[str]]:
    """Return how the device of a row is found: by the column that numbers the GPUs, else by uuid or
    bus id (_BUS), else by its position below a date (_PLACE); and the columns that only repeat
    which GPU a row is about.

    The column is index, unless that is the same in all rows and another one counts GPUs.
    """
    counts = {
        name: Tally(
            parse_ordinal(row.cells[row.layout.places[name]])
            for row in rows
            if name in row.layout.places
        )
        for name in _ORDINALS
    }
    counts = {name: tally for name, tally in counts.items() if tally}
    counting = [name for name, tally in counts.items() if _are_gpu_numbers(tally)]
    index = max(counting, key=lambda name: len(counts[name]), default=None)
    if "index" in counts and (len(counts["index"]) > 1 or index is None or len(counts[index]) == 1):
        index = "index"
    if index is not None:
        return index, {name for name, tally in counts.items() if tally == counts[index]}
    if all(row.get_first_available_cell(*_BUS_COLUMN) for row in rows):
        return _BUS, set()
    is_dated = all(
        row.date is not None and row.get_first_available_cell("timestamp") is None for row in rows
    )
    return _PLACE if is_dated else None, set()


def _are_gpu_numbers(counts: Tally[int | None]) -> bool:
    """Return whether these are the numbers of GPUs that are read in turn, and not a utilization:
    small, and each about as often."""
    most, least = max(counts.values()), min(counts.values())
    are_small = all(number is not None and number < _MOST_GPUS for number in counts)
    return are_small and most - least <= 1 + most // 5


def find_device_number(
    row: QueryRow, identified_by: str | None, number_by_bus: dict[str, int]
) -> int | None:
    """Return the number of the row's device. ``number_by_bus``: those of the rows before, in
    order."""
    if identified_by == _PLACE:
        return row.place
    if identified_by == _BUS:
        return number_by_bus.setdefault(
            row.get_first_available_cell(*_BUS_COLUMN) or "", len(number_by_bus)
        )
    return (
        parse_ordinal(row.get_first_available_cell(identified_by) or "") if identified_by else None
    )


def describe_device_and_unit_assumptions(
    rows: list[QueryRow], identified_by: str | None
) -> Iterator[Diagnostic]:
    """Yield what was assumed about columns that nvidia-smi itself would print otherwise."""
    if identified_by == _PLACE:
        yield Diagnostic("warning", "perfctl", _BY_PLACE)
    elif identified_by == _BUS:
        yield Diagnostic("info", "perfctl", _BY_BUS)
    elif identified_by not in (None, "index"):
        text = f"the GPUs are numbered by the column {identified_by}"
        if any("index" in row.layout.places for row in rows):
            text += "; the column index is the same in all rows"
        yield Diagnostic("warning", "perfctl", text)
    bare: dict[str, str] = {}
    for row in rows:
        for name in row.layout.bare:
            if (cell := row.cells[row.layout.places[name]])[-1:].isdigit():
                bare.setdefault(name, cell)
    if bare:
        columns = ", ".join(f"{name} ({_get_default_unit(name)})" for name in bare)
        text = (
            "neither the header nor the cells state a unit, such as "
            f"'{next(iter(bare.values()))}': perfctl assumed nvidia-smi's own units for {columns}"
        )
        yield Diagnostic("warning", "perfctl", text)


def drop_cut_last_cell(rows: list[QueryRow], identified_by: str | None) -> list[Gap]:
    """Leave out the last cell of a file that ends without a line end, if it may be incomplete: a
    number without its unit; a time or the name of a new device, without which the row goes too.
    Return its gap."""
    if not rows or not rows[-1].is_cut:
        return []
    *earlier, row = rows
    name, cell = row.layout.columns[-1].name, row.cells[-1]
    is_bus = identified_by == _BUS and name in _BUS_COLUMN
    if is_bus and (
        _WHOLE.match(cell) or any(cell == other.get_first_available_cell(name) for other in earlier)
    ):
        return []
    if is_bus or name == "timestamp":
        rows.pop()
        reason = "the file ends inside this cell; its row was skipped"
        return [Gap(f"sample:{name}", "unreadable", reason)]
    if not cell[-1:].isdigit() or parse_quantity_in_base_units(cell, "")[0] is None:
        return []
    row.cells[-1] = ""
    return [make_truncated_last_cell_gap(name)]


def make_unknown_unit_warnings(layout: HeaderLayout) -> tuple[Diagnostic, ...]:
    """Return diagnostics for columns with an unknown unit, which keep that unit."""
    strange = [
        f"{column.name} [{column.unit}]"
        for column, _ in layout.measured
        if column.unit not in _PLAIN_UNITS and parse_unit(column.unit) == (column.unit, 1)
    ]
    return make_unknown_names_warning({"units of": strange}, "kept as printed")
