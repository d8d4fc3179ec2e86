"""Rows of ``--query-gpu``, and the devices that they are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfctl.parsers.readings import Column
from perfctl.parsers.records import Device, Diagnostic, Gap, Sample


@dataclass(slots=True)
class Row:
    """One row, and where it stands."""

    columns: tuple[Column, ...]
    cells: list[str]
    date: str | None
    """The line of ``date`` above it."""
    round: int
    """How many headers and dates came before."""
    place: int
    """Which row of its round it is, from 0."""

    def cell(self, name: str) -> str | None:
        """The cell of a column; None without such a column."""
        return next((cell for column, cell in zip(self.columns, self.cells, strict=True) if column.name == name), None)


class Placer:
    """Which device a row is about, and which round of readings it belongs to."""

    def __init__(self, rows: list[Row]) -> None:
        self._numbered = any(row.cell("index") is not None for row in rows)
        bus = dict.fromkeys(_bus(row) for row in rows)
        self._bus = {key: n for n, key in enumerate(bus)} if None not in bus else {}
        self._by_place = (
            not self._numbered and not self._bus and all(row.date and row.cell("timestamp") is None for row in rows)
        )
        self._round = -1
        self._met: set[object] = set()
        self._last_round: int | None = None

    def place(self, row: Row) -> tuple[int | None, int]:
        """(device, number of the round): call it once a row, in order."""
        device = self._device(row)
        is_again = not self._by_place and (device in self._met or device is None)
        if row.round != self._last_round or is_again:
            self._round += 1
            self._met = set()
        self._last_round = row.round
        self._met.add(device)
        return device, self._round

    def _device(self, row: Row) -> int | None:
        if self._numbered:
            index = row.cell("index") or ""
            return int(index) if index.isascii() and index.isdigit() and len(index) < 6 else None
        if self._bus:
            return self._bus[_bus(row)]
        return row.place if self._by_place else None

    def gaps(self) -> list[Gap]:
        if self._numbered or self._bus or self._by_place:
            return []
        reason = "no column tells devices apart: ask nvidia-smi for index or uuid too"
        return [Gap("sample.device_index", "not_collected", reason)]

    def diagnostics(self) -> list[Diagnostic]:
        if self._by_place:
            text = "no device column: the rows below each date are counted as GPU 0, 1, ..."
            return [Diagnostic("warning", "perfctl", text)]
        if self._bus and not self._numbered:
            text = "no index column: devices are numbered in the order in which the file names them"
            return [Diagnostic("info", "perfctl", text)]
        return []


def _bus(row: Row) -> str | None:
    for name in ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"):
        cell = row.cell(name)
        if cell:
            return cell
    return None


def devices_of(facts: dict[int | None, dict[str, str]], samples: Iterable[Sample]) -> tuple[Device, ...]:
    """What the rows say about each device; its memory where all samples agree on it."""
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
    drivers = {known["driver_version"] for known in facts.values() if known.get("driver_version")}
    return {"driver_version": drivers.pop()} if len(drivers) == 1 else {}
