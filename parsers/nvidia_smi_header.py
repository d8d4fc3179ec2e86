"""The header of ``--query-gpu`` and what its columns are."""

from __future__ import annotations

import re

from perfctl.parsers.readings import (
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    SM_CLOCK,
    TEMPERATURE,
    UTILISATION,
    Column,
)

_QUANTITY = {
    "utilization.gpu": UTILISATION,
    "memory.used": MEMORY_USED,
    "memory.total": MEMORY_TOTAL,
    "temperature.gpu": TEMPERATURE,
    "clocks.current.sm": SM_CLOCK,
    "clocks.sm": SM_CLOCK,
}
_POWER = ("power.draw", "power.draw.instant", "power.draw.average")
"""The first of them that a header has is the sample's power; power.draw is what older drivers have alone."""
_UNITS = {"temperature.gpu": "C", "temperature.memory": "C", "temperature.gpu.tlimit": "C"}
"""Columns that are printed without a unit, header and cell."""
UNITS = frozenset(
    ("", "%", "W", "mW", "C", "MHz", "KiB", "MiB", "GiB", "MB", "MB/s", "KB/s", "ms", "us", "s", "mJ", "J")
)
"""In headers of --query-gpu."""
_BUS = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")
_IDENTITY = {"timestamp", "index", "name", "gpu_name", "count", "driver_version", *_BUS}
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
        self.bus = next((places[name] for name in _BUS if name in places), None)
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
    quantities = _QUANTITY | ({power: POWER} if power else {})
    return Layout(tuple(Column(name, unit or _UNITS.get(name, ""), quantities.get(name)) for name, unit in cells))
