"""How one run used its machine: kernels running, waits, readings of the device, memory. Each is worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from perfctl.orchestrator.analyse.usage.breakdown import Breakdown, breakdown
from perfctl.orchestrator.analyse.usage.busy import Busy, Readings, Running, Ways, busy, readings, ways
from perfctl.orchestrator.analyse.usage.energy import Energy, energy
from perfctl.orchestrator.analyse.usage.idle import Idle, idle
from perfctl.orchestrator.analyse.usage.memory import MemoryUse, memory_use
from perfctl.records.run import Run


@dataclass(frozen=True, eq=False, repr=False)
class RunUsage:
    """One run; every attribute is computed at the first question and kept as long as the object.

    busy: time with a kernel running, by device and stream; idle: without one, by device; breakdown: by kind of work; ways:
    utilisation by every source; readings: what the devices said about themselves; energy: by their power; memory: on paper and
    by every source that measured it.
    """

    run: Run

    @cached_property
    def _running(self) -> Running:
        return Running(self.run)

    @cached_property
    def busy(self) -> tuple[Busy, ...]:
        return busy(self.run, self._running)

    @cached_property
    def idle(self) -> tuple[Idle, ...]:
        return idle(self.run, self._running)

    @cached_property
    def breakdown(self) -> Breakdown | None:
        return breakdown(self.run)

    @cached_property
    def ways(self) -> Ways:
        return ways(self.run, self.busy)

    @cached_property
    def readings(self) -> tuple[Readings, ...]:
        return readings(self.run)

    @cached_property
    def energy(self) -> tuple[Energy, ...]:
        return energy(self.run)

    @cached_property
    def memory(self) -> MemoryUse:
        return memory_use(self.run)
