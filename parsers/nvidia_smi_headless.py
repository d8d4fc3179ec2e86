"""Rows of ``--format=csv,noheader``: which column is what, as far as their units leave only one answer.

One "%" column is the GPU's utilisation, several are ambiguous (memory, fan and encoder are percentages too). The "MiB"
column that stays the same and that no other exceeds is the total, and the only other one what is used. A "W" column
is the draw unless all its cells are round (a limit is). A lone plain number between 5 and 120 is the temperature. All
else becomes a summary "column 3", and every assignment is named in a warning.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.nvidia_smi_header import UNITS
from perfctl.parsers.readings import (
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    QUANTITIES,
    TEMPERATURE,
    UTILISATION,
    Column,
    is_nothing,
    read_cell,
)
from perfctl.parsers.records import Diagnostic, Gap
from perfctl.parsers.timestamps import is_stamp
from perfctl.parsers.unknown import not_understood

_UNIT = re.compile(r"-?\d{1,12}(?:\.\d{1,6})? (%|MiB|W|MHz)\Z")
_ANY_UNIT = re.compile(r"-?\d{1,12}(?:\.\d{1,6})? ([A-Za-z%/*^0-9]{1,12})\Z")
_PLAIN = re.compile(r"-?\d{1,6}(?:\.\d{1,6})?\Z")
_BUS = re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d\Z")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{8,60}\Z")
_QUERY_STAMP = re.compile(r"\d{4}/\d{2}/\d{2} \d{2}:\d{2}:\d{2}\.\d{3}\Z")
_TEMPERATURES = range(5, 121)
_NAMES = {
    UTILISATION: "utilization.gpu",
    MEMORY_USED: "memory.used",
    MEMORY_TOTAL: "memory.total",
    POWER: "power.draw",
    TEMPERATURE: "temperature.gpu",
}
_REMEDY = (
    "Put the header line above the rows ('timestamp, index, utilization.gpu [%], ...'), or record without noheader"
)


def is_row(line: str) -> bool:
    """Is it a row of nvidia-smi's CSV: two cells with units, or its timestamp and another cell?"""
    cells = [cell.strip() for cell in line[:4096].split(", ")]
    units = sum(_UNIT.match(cell) is not None for cell in cells)
    return units >= 2 or (len(cells) >= 2 and _QUERY_STAMP.match(cells[0]) is not None)


def guess(rows: list[list[str]], path: Path) -> tuple[tuple[Column, ...], list[Diagnostic], list[Gap]]:
    """The columns of rows without a header. Raises ReportError when none can be told."""
    if not rows:
        raise ReportError(path, "nvidia-smi", "there is no whole row in it", "Let nvidia-smi run longer")
    cells = list(zip(*rows, strict=True))
    kinds = [_kind(column) for column in cells]
    quantities: dict[int, str] = {}
    percent = [n for n, kind in enumerate(kinds) if kind == "%"]
    if len(percent) == 1:
        quantities[percent[0]] = UTILISATION
    quantities |= _memory([n for n, kind in enumerate(kinds) if kind == "MiB"], cells)
    draws = [n for n, kind in enumerate(kinds) if kind == "W" and any(not _is_round(cell) for cell in cells[n])]
    if len(draws) == 1:
        quantities[draws[0]] = POWER
    plain = [n for n, kind in enumerate(kinds) if kind == "plain"]
    if len(plain) == 1 and all(_is_temperature(cell) for cell in cells[plain[0]]):
        quantities[plain[0]] = TEMPERATURE
    if not quantities:
        raise ReportError(path, "nvidia-smi", "the rows have no header, and units do not tell the columns", _REMEDY)
    return _columns(kinds, quantities), [_told(quantities), *_strange(kinds, cells)], _gaps(kinds, quantities)


def _strange(kinds: list[str], cells: list[tuple[str, ...]]) -> tuple[Diagnostic, ...]:
    """Columns of figures whose unit is in no list."""
    found = []
    for n, column in enumerate(cells):
        matches = [_ANY_UNIT.match(cell) for cell in column if not is_nothing(cell)] if kinds[n] == "text" else []
        units = {match[1] if match else "" for match in matches}
        if units and not units & UNITS:
            found.append(f"column {n + 1} [{', '.join(sorted(units))}]")
    return not_understood({"units of": found}, "kept as printed")


def _columns(kinds: list[str], quantities: dict[int, str]) -> tuple[Column, ...]:
    names = {"stamp": "timestamp", "bus": "pci.bus_id", "uuid": "uuid"}
    if kinds.count("text") == 1:
        names["text"] = "name"
    columns = []
    for n, kind in enumerate(kinds):
        quantity = quantities.get(n)
        unit = "C" if quantity == TEMPERATURE else ""
        columns.append(Column(_NAMES[quantity] if quantity else names.get(kind, f"column {n + 1}"), unit, quantity))
    return tuple(columns)


def _told(quantities: dict[int, str]) -> Diagnostic:
    shown = ", ".join(f"column {n + 1} as {_NAMES[quantity]}" for n, quantity in sorted(quantities.items()))
    return Diagnostic("warning", "perfctl", f"the rows have no header: by unit and size, {shown} was taken")


def _gaps(kinds: list[str], quantities: dict[int, str]) -> list[Gap]:
    """One for each quantity that has columns of its unit, and none that is surely it."""
    units = {UTILISATION: "%", MEMORY_USED: "MiB", MEMORY_TOTAL: "MiB", POWER: "W", TEMPERATURE: "plain"}
    open_ones = [quantity for quantity in QUANTITIES if quantity in units and quantity not in quantities.values()]
    reason = "without a header the columns of its unit cannot be told apart"
    return [Gap(f"sample.{quantity}", "ambiguous", reason) for quantity in open_ones if units[quantity] in kinds]


def _kind(column: tuple[str, ...]) -> str:
    """What all filled cells of a column are: a unit, "plain", "stamp", "bus", "uuid", or "text"."""
    filled = [cell for cell in column if not is_nothing(cell)]
    units = {match[1] for match in map(_UNIT.match, filled) if match}
    if filled and len(units) == 1 and all(map(_UNIT.match, filled)):
        return units.pop()
    tests = (("plain", _PLAIN.match), ("stamp", is_stamp), ("bus", _BUS.match), ("uuid", _UUID.match))
    return next((kind for kind, test in tests if filled and all(test(cell) for cell in filled)), "text")


def _memory(places: list[int], cells: list[tuple[str, ...]]) -> dict[int, str]:
    """The total and, when there is one other column, what is used; {} unless the rows leave no doubt."""
    values = {n: [read_cell(cell, "")[0] for cell in cells[n]] for n in places}
    if any(value is None for column in values.values() for value in column):
        return {}
    for n, column in values.items():
        rest = [other for m, other in values.items() if m != n]
        largest = all(value >= low for other in rest for value, low in zip(column, other, strict=True))  # type: ignore[operator]
        if rest and largest and len(set(column)) == 1 and all(len(set(other)) > 1 for other in rest):
            return {n: MEMORY_TOTAL} | ({m: MEMORY_USED for m in places if m != n} if len(rest) == 1 else {})
    return {}


def _is_round(cell: str) -> bool:
    number, _ = read_cell(cell, "W")
    return number is None or float(number).is_integer()


def _is_temperature(cell: str) -> bool:
    number, _ = read_cell(cell, "C")
    return is_nothing(cell) or (number is not None and round(number) in _TEMPERATURES)
