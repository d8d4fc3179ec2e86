"""Stands in for the module pynvml: the same functions, answering from rows that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

QUANTITIES = {
    "nvmlDeviceGetPowerUsage": "milliwatt",
    "nvmlDeviceGetTotalEnergyConsumption": "millijoule",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "reasons",
}


class FakeError(Exception):
    """What pynvml.NVMLError is."""


@dataclass
class FakeNvml:
    """``rows``: for each GPU, a list of readings; every look at utilisation takes the next, the
    last stays.

    A quantity that a reading lacks raises, as NVML does for what a GPU does not support.
    """

    rows: list[list[dict[str, Any]]]
    processes: dict[int, int | None] = field(default_factory=dict)
    """Process id -> bytes on each GPU."""
    broken: bool = False
    NVMLError: type[FakeError] = FakeError
    closed: int = 0

    def __post_init__(self) -> None:
        self._at = [-1] * len(self.rows)

    def _get(self, handle: int, name: str) -> Any:
        row = self.rows[handle][min(max(self._at[handle], 0), len(self.rows[handle]) - 1)]
        if name not in row:
            raise FakeError("Not Supported")
        return row[name]

    def nvmlInit(self) -> None:
        if self.broken:
            raise FakeError("NVML Shared Library Not Found")

    def nvmlShutdown(self) -> None:
        self.closed += 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550.54.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.rows)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}{handle}{handle}{handle}-aaaa"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._at[handle] += 1
        return SimpleNamespace(gpu=self._get(handle, "percent"))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=self._get(handle, "used"), total=self._get(handle, "total"))

    def __getattr__(self, name: str) -> Callable[[int], int]:
        if name not in QUANTITIES:
            raise AttributeError(name)
        return lambda handle: int(self._get(handle, QUANTITIES[name]))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0, "the chip"
        return int(self._get(handle, "celsius"))

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return int(self._get(handle, {1: "sm_mhz", 2: "memory_mhz"}[kind]))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in self.processes.items()
        ]

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Any]:
        if not self.processes:
            raise FakeError("Not Found")
        return [SimpleNamespace(pid=pid, timeStamp=since + 5, smUtil=40) for pid in self.processes]
