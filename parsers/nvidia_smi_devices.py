"""Finds the device of each row of ``--query-gpu``, and facts about each device."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfctl.parsers.nvidia_smi_header import Layout
from perfctl.parsers.nvidia_smi_rows import Row, Survey
from perfctl.parsers.records import Device, Diagnostic, Gap, Sample

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
        if self._by_place:
            text = "no device column: the rows below each date were counted as GPU 0, 1, ..."
            return [Diagnostic("warning", "perfctl", text)]
        if self._by_bus:
            text = "no index column: devices are numbered in the order of their first rows"
            return [Diagnostic("info", "perfctl", text)]
        return []


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
