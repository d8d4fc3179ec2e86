"""Sample the GPUs and processes of a run while it is under way, into ``samples.csv`` in its folder.

A thread of perfctl takes the readings, on the monotonic clock as the steps. Costly readings become
less frequent. NVIDIA's GPUs are read through the management library (nvidia-ml-py, the
extra ``nvml``).
"""

from __future__ import annotations

import csv
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process import watchdog, watchdog_client

REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
"""Bits of nvmlClocksEventReasons (nvml.h, driver 550)."""
PROCESSES_EVERY = 10
"""Readings per query of the process list, which takes longer than everything else."""
_SM, _MEMORY, _CHIP = 1, 2, 0
"""NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU."""
SCAN_S = 0.1
"""Shortest time between two scans for new processes of the run."""
SCAN_SHARE = 0.0015
"""Share of a core that the scans may use."""
_CHECKS = 2
"""Of each process: one in the middle of exec has no environment to recognise it by."""

FIELDS = (
    "timestamp",
    "index",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "power.draw",
    "temperature.gpu",
    "clocks.sm",
    "clocks.mem",
)
"""In every nvidia-smi since 2016; an unknown field would make it print nothing else."""
NVML_INTERVAL_MIN_S = 0.02
END_S = 2.0

FORMAT = "# perfctl samples 1"


COLUMNS = (
    "at_ns",
    "device_index",
    "gpu_utilisation",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_w",
    "temperature_c",
    "sm_clock_hz",
    "memory_clock_hz",
    "energy_j",
    "throttle_reasons",
    "process_memory_bytes",
    "process_utilisation",
    "host_cpu",
    "host_memory_bytes",
)
"""Fields of ``perfctl.records.report.Sample``. A reading is a dictionary of some of them;
None where the driver has no value."""


class NvmlUnavailable(Exception):
    """NVML cannot be used; the text says why."""


class NvmlReader:
    """The GPUs in ``visible`` (the value of CUDA_VISIBLE_DEVICES), in its order; all for None.
    ``library`` is the module pynvml, or one with the same functions. Raises NvmlUnavailable."""

    def __init__(self, visible: str | None, library: Any = None) -> None:
        try:
            self._library: Any = library or import_module("pynvml")
        except ImportError as error:
            raise NvmlUnavailable(
                "nvidia-ml-py is not installed (pip install 'perfctl[nvml]')"
            ) from error
        try:
            self._library.nvmlInit()
            self._handles = self._find_gpu_handles(visible)
        except self._library.NVMLError as error:
            raise NvmlUnavailable(f"NVML does not respond ({error})") from error
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

    def read_gpus(self, pids: Collection[int]) -> list[dict[str, Any]]:
        """Return all GPUs now; ``pids`` are the run's processes."""
        with_processes = self._turn % PROCESSES_EVERY == 0
        self._turn += 1
        return [
            self._read_gpu(index, gpu, pids if with_processes else None)
            for index, gpu in enumerate(self._handles)
        ]

    def _read_gpu(self, index: int, handle: Any, pids: Collection[int] | None) -> dict[str, Any]:
        nvml = self._library
        # renamed in nvidia-ml-py 12.535
        newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        questions: dict[str, Callable[[], Any]] = {
            "gpu_utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            "energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "sm_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _SM) * 1_000_000,
            "memory_clock_hz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _MEMORY) * 1_000_000,
            "throttle_reasons": lambda: describe_clock_limit_reasons(
                (newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle)
            ),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _CHIP),
        }
        answers = {
            quantity: self._query_or_none(quantity, call) for quantity, call in questions.items()
        }
        memory = answers.pop("memory_used_bytes")
        if memory is not None:
            answers["memory_used_bytes"] = int(memory.used)
            answers["memory_total_bytes"] = int(memory.total)
        if pids is not None:
            answers["process_memory_bytes"] = self._read_memory_of_run(handle, pids)
            answers["process_utilisation"] = self._read_utilization_of_run(index, handle, pids)
        return {"device_index": index, **answers}

    def _read_memory_of_run(self, handle: Any, pids: Collection[int]) -> int | None:
        """Bytes; None when the driver lists no process of the run: inside containers process
        ids differ."""
        quantity = "process_memory_bytes"
        listed = self._query_or_none(
            quantity, lambda: self._library.nvmlDeviceGetComputeRunningProcesses(handle)
        )
        used = [process.usedGpuMemory for process in listed or () if process.pid in pids]
        if listed and not used:
            self.problems.setdefault(
                quantity, "the driver lists no process of the run under an id that is known here"
            )
        return sum(used) if used and None not in used else None

    def _read_utilization_of_run(
        self, index: int, handle: Any, pids: Collection[int]
    ) -> float | None:
        try:
            listed = self._library.nvmlDeviceGetProcessUtilization(handle, self._seen[index])
        except self._library.NVMLError as error:
            # no process used the GPU since: not a problem
            if "not found" not in str(error).lower():
                self.problems.setdefault("process_utilisation", str(error))
            return None
        samples = sorted(listed, key=lambda sample: sample.timeStamp)
        self._seen[index] = max([self._seen[index], *(sample.timeStamp for sample in samples)])
        newest = {sample.pid: sample.smUtil for sample in samples if sample.pid in pids}
        return min(sum(newest.values()) / 100, 1.0) if newest else None

    def _query_or_none(self, quantity: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._library.NVMLError as error:
            self.problems.setdefault(quantity, str(error))
            return None

    def _find_gpu_handles(self, visible_devices: str | None) -> list[Any]:
        nvml = self._library
        every = list(map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount())))
        if visible_devices is None:
            return every
        handles = {str(number): handle for number, handle in enumerate(every)}
        for handle in every:
            uuid = nvml.nvmlDeviceGetUUID(handle)
            handles[uuid.decode() if isinstance(uuid, bytes) else uuid] = handle
        chosen = []
        for entry in filter(None, map(str.strip, visible_devices.split(","))):
            uuids = [uuid for uuid in handles if uuid.startswith(entry) and not uuid.isdecimal()]
            if entry in handles or uuids:
                chosen.append(handles[entry if entry in handles else uuids[0]])
            elif entry.startswith("MIG-"):
                chosen.append(nvml.nvmlDeviceGetHandleByUUID(entry))
            else:
                break  # as in CUDA: entries after an invalid one are ignored
        return chosen


def describe_clock_limit_reasons(bits: int) -> str:
    """Return the names of the reasons joined by "+"; "none" for 0; unnamed bits as a number."""
    names = [name for bit, name in REASONS.items() if bits & bit]
    if unnamed := bits & ~sum(REASONS):
        names.append(f"{unnamed:#x}")
    return "+".join(names) or "none"


def build_smi_command(program: str, every_s: float, visible_devices: str | None) -> tuple[str, ...]:
    """Return the argument list; ``visible_devices`` is the value of CUDA_VISIBLE_DEVICES."""
    interval = f"--loop-ms={round(max(every_s, NVML_INTERVAL_MIN_S) * 1000)}"
    selection = ("-i", visible_devices) if visible_devices else ()
    return (program, f"--query-gpu={','.join(FIELDS)}", "--format=csv", interval, *selection)


class NvidiaSmiLog:
    """Runs until ``close``. If perfctl is killed, nvidia-smi ends at its next line, which
    nobody reads."""

    def __init__(self, path: Path, every_s: float, visible: str | None, program: str) -> None:
        self.first_ns: int | None = None
        """Monotonic clock when the first reading arrived."""
        self._path = path
        with watchdog_client.exempt_started_children_from_orphans() as own_pids:
            self._process = subprocess.Popen(
                build_smi_command(program, every_s, visible),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            own_pids.add(self._process.pid)
        self._thread = threading.Thread(
            target=self._copy_output_to_file, name="perfctl-nvidia-smi", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(END_S)

    def _copy_output_to_file(self) -> None:
        assert self._process.stdout is not None
        # kept if perfctl is killed
        with self._process.stdout as output, self._path.open("wb", buffering=0) as file:
            for number, line in enumerate(output):
                if number == 1:  # the first is the header
                    self.first_ns = time.monotonic_ns()
                file.write(line)


class HostLoadReader:
    """The processes that carry ``mark`` and what descends from them; ``first`` is the one that
    was started."""

    def __init__(self, mark: str, first: int) -> None:
        import psutil

        self._psutil = psutil
        self._mark = mark
        self._checks = {
            pid: _CHECKS for pid in _list_process_ids() if pid < first
        }  # older than the run
        """Process id of others -> how often it was checked."""
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}
        """Process id -> CPU seconds at the last reading."""
        self._at = time.monotonic()
        self._next_scan = 0.0
        self.scan_s = 0.0
        """CPU seconds that the last reading spent on scanning, which has its own limit
        (SCAN_SHARE)."""
        self._watch_process(first)
        # readings are rates: this one starts the first interval
        self.read_busy_cores_and_resident_bytes()

    @property
    def process_ids(self) -> frozenset[int]:
        return frozenset(self._known)

    def read_busy_cores_and_resident_bytes(self) -> tuple[float, int] | None:
        """Return (cores busy since the last reading, resident bytes); None when no process has
        memory any more. A new process counts from the scan that found it; its CPU time before that
        is left out."""
        self.scan_s = 0.0
        self._find_new_run_processes()
        now = time.monotonic()
        busy, resident = 0.0, 0
        for pid, process in list(self._known.items()):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except self._psutil.Error:
                self._known.pop(pid)
                self._spent.pop(pid, None)
                continue
            spent = times.user + times.system
            busy += max(spent - self._spent.get(pid, spent), 0.0)
            self._spent[pid] = spent
            resident += memory.rss
        elapsed, self._at = now - self._at, now
        # an ending process has no memory
        return (busy / elapsed, resident) if resident and elapsed > 0 else None

    def _find_new_run_processes(self) -> None:
        if time.monotonic() < self._next_scan:
            return
        before = time.thread_time()
        running = _list_process_ids()
        checks = {pid: count for pid, count in self._checks.items() if pid in running}
        for pid in sorted(running - set(self._known)):
            count = checks.get(pid, 0)
            if count < _CHECKS:
                checks[pid] = count + 1
                stat = (
                    watchdog.read_parent_and_start_ticks(str(pid)) if pid != os.getpid() else None
                )
                if stat and (
                    stat[0] in self._known or watchdog.has_mark_in_environment(str(pid), self._mark)
                ):
                    self._watch_process(pid)
        self._checks = checks
        self.scan_s = time.thread_time() - before
        self._next_scan = time.monotonic() + max(SCAN_S, self.scan_s / SCAN_SHARE)

    def _watch_process(self, pid: int) -> None:
        with suppress(self._psutil.Error):
            self._known[pid] = self._psutil.Process(pid)


def _list_process_ids() -> set[int]:
    # half the time of iterdir
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}  # noqa: PTH208


FILE, SMI_FILE = "samples.csv", "samples.nvidia-smi.csv"
SHORTEST_S, LONGEST_S = 0.005, 3600.0
SHARE = 0.005
"""Share of one core that readings may use."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """What to sample during one run."""

    every_s: float
    folder: Path
    gpu: bool
    """The run uses GPUs."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the run; None when it is not set."""


def parse_sampling_interval(text: str) -> float | None:
    """Return seconds from text such as "50ms" or "0.1s"; None for "off". Raises UsageError for
    anything else."""
    lower = text.strip().lower()
    if lower == "off":
        return None
    number, scale = (lower[:-2], 1e-3) if lower.endswith("ms") else (lower[:-1], 1.0)
    try:
        seconds = float(number if lower.endswith("s") else "") * scale
    except ValueError as error:
        problem = f"`sample`: expected a time or off, got '{text}'"
        raise UsageError(problem, "For example 50ms") from error
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(
            f"`sample` must be between 5ms and 3600s, got {text}", "For example 50ms, or off"
        )
    return seconds


@contextmanager
def sample_in_background(
    sampling: SamplingSettings | None, run_mark: str, first_pid: int
) -> Iterator[None]:
    """Sample during the block. ``first_pid``: id of the run's first process; ``run_mark``: the mark
    of all its processes. Problems are noted in the file and never affect the run."""
    if sampling is None:
        yield
        return
    ended, path = threading.Event(), sampling.folder / FILE

    def sample_until_end() -> None:
        # OSError: a full disk or a removed folder harms no run
        with suppress(OSError), path.open("w", newline="", encoding="utf-8") as file:
            _sample_to_file(sampling, HostLoadReader(run_mark, first_pid), ended, file)

    thread = threading.Thread(target=sample_until_end, name="perfctl-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5.0)


def _sample_to_file(
    sampling: SamplingSettings, load: HostLoadReader, ended: threading.Event, file: IO[str]
) -> None:
    reader, source = _open_gpu_source_and_describe(sampling)
    gpus, log = (None, reader) if isinstance(reader, NvidiaSmiLog) else (reader, None)
    try:
        file.write(f"{FORMAT}\n# gpu: {source}\n# every_s: {sampling.every_s:g}\n")
        count, rows = _write_samples_until_end(sampling.every_s, load, gpus, ended, file)
    finally:
        if reader is not None:
            reader.close()
    notes: dict[str, object] = {"readings": count, "cost_ns": time.thread_time_ns(), "rows": rows}
    if gpus is not None:
        notes |= {
            f"missing {quantity}": " ".join(reason.split())
            for quantity, reason in gpus.problems.items()
        }
    if log is not None and log.first_ns is not None:
        notes["nvidia_smi_first_ns"] = log.first_ns
    file.writelines(f"# {key}: {value}\n" for key, value in notes.items())


def _write_samples_until_end(
    every_s: float,
    load: HostLoadReader,
    gpus: NvmlReader | None,
    ended: threading.Event,
    file: IO[str],
) -> tuple[int, int]:
    """Return how many readings, and how many rows of them, were written until the run ended."""
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    count, rows, cost, flushed = 0, 0, 0.0, time.monotonic()
    due = time.monotonic() + every_s
    while not ended.wait(max(due - time.monotonic(), 0.0)):
        before, at_ns = time.thread_time(), time.monotonic_ns()
        readings = gpus.read_gpus(load.process_ids) if gpus is not None else []
        if (host := load.read_busy_cores_and_resident_bytes()) is not None:
            readings.insert(0, {"host_cpu": f"{host[0]:.4f}", "host_memory_bytes": host[1]})
        writer.writerows({"at_ns": at_ns, **reading} for reading in readings)
        rows += len(readings)
        count += 1
        now = time.monotonic()
        if now - flushed > 1.0:
            file.flush()
            flushed = now
        took = time.thread_time() - before - load.scan_s
        cost = took if count < 3 else cost + (took - cost) / 8  # the first readings include set-up
        due = max(due + max(every_s, cost / SHARE), now)
    return count, rows


def _open_gpu_source_and_describe(
    sampling: SamplingSettings,
) -> tuple[NvmlReader | NvidiaSmiLog | None, str]:
    """Return (what reads the GPUs, its description)."""
    if not sampling.gpu:
        return None, "none, the run used no GPU"
    try:
        gpus = NvmlReader(sampling.visible)
    except NvmlUnavailable as error:
        program = tools.find_program("nvidia-smi")
        if program is None:
            return None, f"none, {error}, and there is no nvidia-smi"
        return NvidiaSmiLog(
            sampling.folder / SMI_FILE, sampling.every_s, sampling.visible, program
        ), f"nvidia-smi, {error}"
    return gpus, gpus.name
