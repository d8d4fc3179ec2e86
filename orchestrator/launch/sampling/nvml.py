"""Read the GPUs of a run through NVIDIA's management library (nvidia-ml-py, the extra ``nvml``)."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.orchestrator.launch.process import watchdog_client

REASONS = {
    0x1: "idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal", 0x40: "hw_thermal", 0x80: "hw_power_brake", 0x100: "display_clocks",
}  # fmt: skip
"""Bits of nvmlClocksEventReasons (nvml.h, driver 550)."""
PROCESSES_EVERY = 10
"""Readings per query of the process list, which takes longer than everything else."""
_SM, _MEMORY, _CHIP = 1, 2, 0
"""NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU."""


class GpuReading(NamedTuple):
    """One GPU at one moment, with the fields of ``perfctl.records.report.Sample``; None where the driver has no value."""

    device_index: int
    gpu_utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    energy_j: float | None = None
    throttle_reasons: str | None = None
    process_memory_bytes: int | None = None
    process_utilisation: float | None = None


class NvmlMissing(Exception):
    """NVML cannot be used; the text says why."""


class Nvml:
    """The GPUs in ``visible`` (the value of CUDA_VISIBLE_DEVICES), in its order; all for None. ``library`` is the
    module pynvml, or one with the same functions. Raises NvmlMissing."""

    def __init__(self, visible: str | None, library: Any = None) -> None:
        try:
            self._library: Any = library or import_module("pynvml")
        except ImportError as error:
            raise NvmlMissing("nvidia-ml-py is not installed (pip install 'perfctl[nvml]')") from error
        try:
            self._library.nvmlInit()
            self._handles = self._find(visible)
        except self._library.NVMLError as error:
            raise NvmlMissing(f"NVML does not answer ({error})") from error
        self.problems: dict[str, str] = {}
        """Quantity -> why the driver does not provide it."""
        self._turn = 0
        self._seen = [0] * len(self._handles)
        """The driver's time stamp of the newest process sample of each GPU, in microseconds."""

    @property
    def name(self) -> str:
        """ "NVML, driver 550.54"."""
        try:
            version = self._library.nvmlSystemGetDriverVersion()
        except self._library.NVMLError:
            return "NVML"
        return f"NVML, driver {version.decode() if isinstance(version, bytes) else version}"

    def close(self) -> None:
        try:
            self._library.nvmlShutdown()
        except self._library.NVMLError:
            return

    def read(self, pids: Collection[int]) -> list[GpuReading]:
        """All GPUs now; ``pids`` are the run's processes."""
        with_processes = self._turn % PROCESSES_EVERY == 0
        self._turn += 1
        return [self._read(place, gpu, pids if with_processes else None) for place, gpu in enumerate(self._handles)]

    def _read(self, place: int, handle: Any, pids: Collection[int] | None) -> GpuReading:
        nvml = self._library
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # renamed in nvidia-ml-py 12.535
        questions: dict[str, Callable[[], Any]] = {
            "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "sm_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM) * 1_000_000,
            "memory_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY) * 1_000_000,
            "throttle_reasons": lambda: words((newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _CHIP),
        }
        answers = {quantity: self._ask(quantity, call) for quantity, call in questions.items()}
        memory = answers.pop("memory_used_bytes")
        return GpuReading(
            device_index=place,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            process_memory_bytes=None if pids is None else self._memory_of(handle, pids),
            process_utilisation=None if pids is None else self._utilisation_of(place, handle, pids),
            **answers,
        )

    def _memory_of(self, handle: Any, pids: Collection[int]) -> int | None:
        """Bytes; None when the driver lists no process of the run: inside containers process ids differ."""
        quantity = "process_memory_bytes"
        listed = self._ask(quantity, lambda: self._library.nvmlDeviceGetComputeRunningProcesses(handle))
        own = [one.usedGpuMemory for one in listed or () if one.pid in pids]
        if listed and not own:
            self.problems.setdefault(quantity, "the driver lists no process of the run under an id that is known here")
        return sum(own) if own and None not in own else None

    def _utilisation_of(self, place: int, handle: Any, pids: Collection[int]) -> float | None:
        try:
            listed = self._library.nvmlDeviceGetProcessUtilization(handle, self._seen[place])
        except self._library.NVMLError as error:
            if "not found" not in str(error).lower():  # no process used the GPU since: not a problem
                self.problems.setdefault("process_utilisation", str(error))
            return None
        self._seen[place] = max([self._seen[place], *(one.timeStamp for one in listed)])
        newest = {one.pid: one for one in sorted(listed, key=lambda one: one.timeStamp) if one.pid in pids}
        return min(sum(one.smUtil for one in newest.values()) / 100, 1.0) if newest else None

    def _ask(self, quantity: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as error:
            self.problems.setdefault(quantity, str(error))
            return None

    def _find(self, visible: str | None) -> list[Any]:
        nvml = self._library
        every = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
        if visible is None:
            return every
        uuids = map(nvml.nvmlDeviceGetUUID, every)
        names = [uuid.decode() if isinstance(uuid, bytes) else uuid for uuid in uuids]
        found = []
        for entry in filter(None, (piece.strip() for piece in visible.split(","))):
            place = _place(entry, names)
            if place is not None:
                found.append(every[place])
            elif entry.startswith("MIG-"):
                found.append(nvml.nvmlDeviceGetHandleByUUID(entry))
            else:
                break  # as in CUDA: entries after an invalid one are ignored
        return found


def words(bits: int) -> str:
    """Names of the reasons joined by "+"; "none" for 0; unnamed bits as a number."""
    names = [name for bit, name in REASONS.items() if bits & bit]
    if rest := bits & ~sum(REASONS):
        names.append(f"{rest:#x}")
    return "+".join(names) or "none"


def _place(entry: str, names: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(names) else None
    return next((place for place, name in enumerate(names) if name.startswith(entry)), None)


FIELDS = (
    "timestamp", "index", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu",
    "clocks.sm", "clocks.mem",
)  # fmt: skip
"""In every nvidia-smi since 2016; an unknown field would make it print nothing else."""
SHORTEST_S = 0.02
END_S = 2.0


def command(program: str, every_s: float, visible: str | None) -> tuple[str, ...]:
    """The argument list; ``visible`` is the value of CUDA_VISIBLE_DEVICES."""
    chosen = ("-i", visible) if visible else ()
    milliseconds = round(max(every_s, SHORTEST_S) * 1000)
    return (program, f"--query-gpu={','.join(FIELDS)}", "--format=csv", f"--loop-ms={milliseconds}", *chosen)


class SmiLog:
    """Runs until ``close``. If perfctl is killed, nvidia-smi ends at its next line, which nobody reads."""

    def __init__(self, path: Path, every_s: float, visible: str | None, program: str) -> None:
        self.first_ns: int | None = None
        """Monotonic clock when the first reading arrived."""
        self._path = path
        with watchdog_client.starting() as own:
            self._process = subprocess.Popen(
                command(program, every_s, visible), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            own.add(self._process.pid)
        self._thread = threading.Thread(target=self._copy, name="perfctl-nvidia-smi", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_S)

    def _copy(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said, self._path.open("wb", buffering=0) as file:  # kept if perfctl is killed
            for number, line in enumerate(said):
                if number == 1:  # the first is the header
                    self.first_ns = time.monotonic_ns()
                file.write(line)
