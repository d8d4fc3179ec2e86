"""Sample the GPUs and processes of a run while it is under way, into ``samples.csv`` in its folder.

A thread of perfctl takes the readings, never the profiled process. Times are from the monotonic clock, as those of the
steps. When a reading costs more than its share of time, readings become less frequent.
"""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process import watchdog
from perfctl.orchestrator.launch.sampling.nvml import GpuReading, Nvml, NvmlMissing, SmiLog

SCAN_S = 0.1
"""Shortest time between two scans for new processes of the run."""
SCAN_SHARE = 0.0015
"""Share of a core that the scans may use."""
_CHECKS = 2
"""Of each process: one in the middle of exec has no environment to recognise it by."""


class HostLoad:
    """The processes that carry ``mark`` and what descends from them; ``first`` is the one that was started."""

    def __init__(self, mark: str, first: int) -> None:
        import psutil

        self._psutil = psutil
        self._mark = mark
        self._checks = {pid: _CHECKS for pid in _all() if pid < first}  # older than the run
        """Process id of others -> how often it was checked."""
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}
        """Process id -> CPU seconds at the last reading."""
        self._at = time.monotonic()
        self._next_scan = 0.0
        self.scan_s = 0.0
        """CPU seconds that the last reading spent on scanning, which has its own limit (SCAN_SHARE)."""
        self._add(first)
        self.read()  # readings are rates: this one starts the first interval

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._known)

    def read(self) -> tuple[float, int] | None:
        """(cores busy since the last reading, resident bytes); None when no process has memory any more.

        A new process counts from the scan that found it; its CPU time before that is left out.
        """
        self.scan_s = 0.0
        self._scan()
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
        return (busy / elapsed, resident) if resident and elapsed > 0 else None  # an ending process has no memory

    def _scan(self) -> None:
        if time.monotonic() < self._next_scan:
            return
        before = time.thread_time()
        running = _all()
        checks = {pid: count for pid, count in self._checks.items() if pid in running}
        for pid in sorted(running - set(self._known)):
            count = checks.get(pid, 0)
            if count < _CHECKS:
                checks[pid] = count + 1
                if self._is_own(pid):
                    self._add(pid)
        self._checks = checks
        self.scan_s = time.thread_time() - before
        self._next_scan = time.monotonic() + max(SCAN_S, self.scan_s / SCAN_SHARE)

    def _is_own(self, pid: int) -> bool:
        stat = watchdog.parent_and_start(str(pid))
        if stat is None or pid == os.getpid():
            return False
        return stat[0] in self._known or watchdog.is_marked(str(pid), self._mark)

    def _add(self, pid: int) -> None:
        try:
            self._known[pid] = self._psutil.Process(pid)
        except self._psutil.Error:
            return


def _all() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}  # noqa: PTH208 - half the time of iterdir


FORMAT = "# perfctl samples 1"
COLUMNS = ("at_ns", *GpuReading._fields, "host_cpu", "host_memory_bytes")
FILE, SMI_FILE = "samples.csv", "samples.nvidia-smi.csv"
SHORTEST_S, LONGEST_S = 0.005, 3600.0
SHARE = 0.005
"""Share of one core that readings may use."""
_FLUSH_S = 1.0
_END_S = 5.0


class Gpus(Protocol):
    """Reads GPUs: NVML, or a stand-in in tests."""

    problems: dict[str, str]
    """Quantity -> why the driver does not provide it."""

    @property
    def name(self) -> str: ...

    def read(self, pids: Any) -> list[GpuReading]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """What to sample during one run."""

    every_s: float
    folder: Path
    gpu: bool
    """The run uses GPUs."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the run; None when it is not set."""


def interval(text: str) -> float | None:
    """Seconds from text such as "50ms" or "0.1s"; None for "off". Raises UsageError for anything else."""
    lower = text.strip().lower()
    if lower == "off":
        return None
    for unit, scale in (("ms", 1e-3), ("s", 1.0)):
        if lower.endswith(unit):
            try:
                seconds = float(lower.removesuffix(unit)) * scale
            except ValueError:
                break
            if SHORTEST_S <= seconds <= LONGEST_S:
                return seconds
            raise UsageError(f"`sample` must be between 5ms and 3600s, got {text}", "For example 50ms, or off")
    raise UsageError(f"`sample`: expected a time or off, got '{text}'", "For example 50ms")


@contextmanager
def beside(wanted: Sampling | None, mark: str, first: int) -> Iterator[None]:
    """Sample during the block. ``first``: id of the run's first process; ``mark``: the mark of all its processes."""
    if wanted is None:
        yield
        return
    sampler = Sampler(wanted, mark, first)
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()


class Sampler:
    """Samples one run. Its problems are noted in the file and never affect the run."""

    def __init__(self, wanted: Sampling, mark: str, first: int) -> None:
        self._wanted, self._mark, self._first = wanted, mark, first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="perfctl-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the file is complete."""
        self._stop.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        try:
            with (self._wanted.folder / FILE).open("w", newline="", encoding="utf-8") as file:
                self._sample(file)
        except OSError:  # a full disk, a removed folder: the run matters more than its samples
            return

    def _sample(self, file: IO[str]) -> None:
        gpus, log, source = self._source()
        try:
            file.write(f"{FORMAT}\n# gpu: {source}\n# every_s: {self._wanted.every_s:g}\n")
            load = HostLoad(self._mark, self._first)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            count = self._rounds(file, writer, load, gpus)
        finally:
            if gpus is not None:
                gpus.close()
            if log is not None:
                log.close()
        problems = gpus.problems if gpus is not None else {}
        notes: dict[str, object] = {"readings": count, "cost_ns": time.thread_time_ns()}
        notes |= {f"missing {quantity}": " ".join(reason.split()) for quantity, reason in problems.items()}
        if log is not None and log.first_ns is not None:
            notes["nvidia_smi_first_ns"] = log.first_ns
        file.writelines(f"# {key}: {value}\n" for key, value in notes.items())

    def _rounds(self, file: IO[str], writer: Any, load: HostLoad, gpus: Gpus | None) -> int:
        every, count, flushed = self._wanted.every_s, 0, time.monotonic()
        cost = 0.0
        due = time.monotonic() + every
        while not self._stop.wait(max(due - time.monotonic(), 0.0)):
            before = time.thread_time()
            _write(writer, load, gpus)
            count += 1
            now = time.monotonic()
            if now - flushed > _FLUSH_S:
                file.flush()
                flushed = now
            took = time.thread_time() - before - load.scan_s
            cost = took if count < 3 else cost + (took - cost) / 8  # the first readings include set-up
            due = max(due + max(every, cost / SHARE), now)
        return count

    def _source(self) -> tuple[Gpus | None, SmiLog | None, str]:
        """(NVML, nvidia-smi, description): at most one of the first two."""
        wanted = self._wanted
        if not wanted.gpu:
            return None, None, "none, the run used no GPU"
        try:
            gpus = open_gpus(wanted.visible)
        except NvmlMissing as error:
            program = tools.find("nvidia-smi")
            if program is None:
                return None, None, f"none, {error}, and there is no nvidia-smi"
            log = SmiLog(wanted.folder / SMI_FILE, wanted.every_s, wanted.visible, program)
            return None, log, f"nvidia-smi, {error}"
        return gpus, None, gpus.name


def open_gpus(visible: str | None) -> Gpus:
    """A reader of the GPUs in ``visible``. Raises NvmlMissing."""
    return Nvml(visible)


def _write(writer: Any, load: HostLoad, gpus: Gpus | None) -> None:
    at = time.monotonic_ns()
    host = load.read()
    if host is not None:
        writer.writerow((at, *[""] * len(GpuReading._fields), f"{host[0]:.4f}", host[1]))
    for reading in gpus.read(load.pids) if gpus is not None else ():
        writer.writerow((at, *("" if value is None else value for value in reading), "", ""))
