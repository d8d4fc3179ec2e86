"""Sample the GPUs and processes of a run while it is under way, into ``samples.csv`` in its folder.

A thread of perfctl takes the readings, on the monotonic clock as the steps. Costly readings become less frequent.
"""

from __future__ import annotations

import csv
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.process import watchdog
from perfctl.orchestrator.launch.sampling.nvml import GpuReading, Nvml, NvmlMissing, SmiLog
from perfctl.records import checksum

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
        """(cores busy since the last reading, resident bytes); None when no process has memory any more. A new process
        counts from the scan that found it; its CPU time before that is left out."""
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
                stat = watchdog.parent_and_start(str(pid)) if pid != os.getpid() else None
                if stat and (stat[0] in self._known or watchdog.is_marked(str(pid), self._mark)):
                    self._add(pid)
        self._checks = checks
        self.scan_s = time.thread_time() - before
        self._next_scan = time.monotonic() + max(SCAN_S, self.scan_s / SCAN_SHARE)

    def _add(self, pid: int) -> None:
        with suppress(self._psutil.Error):
            self._known[pid] = self._psutil.Process(pid)


def _all() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}  # noqa: PTH208 - half the time of iterdir


FORMAT = "# perfctl samples 1"
COLUMNS = ("at_ns", *GpuReading._fields, "host_cpu", "host_memory_bytes")
FILE, SMI_FILE = "samples.csv", "samples.nvidia-smi.csv"
SHORTEST_S, LONGEST_S = 0.005, 3600.0
SHARE = 0.005
"""Share of one core that readings may use."""


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
    found = re.fullmatch(r"(.*?)(m?)s", lower)
    try:
        seconds = float(found[1]) * (1e-3 if found[2] else 1.0) if found else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise UsageError(f"`sample`: expected a time or off, got '{text}'", "For example 50ms")
    if not SHORTEST_S <= seconds <= LONGEST_S:
        raise UsageError(f"`sample` must be between 5ms and 3600s, got {text}", "For example 50ms, or off")
    return seconds


@contextmanager
def beside(wanted: Sampling | None, mark: str, first: int) -> Iterator[None]:
    """Sample during the block. ``first``: id of the run's first process; ``mark``: the mark of all its processes.
    Problems are noted in the file and never affect the run."""
    if wanted is None:
        yield
        return
    ended = threading.Event()
    work = partial(_work, wanted, mark, first, ended)
    thread = threading.Thread(target=work, name="perfctl-sampler", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5.0)


def _work(wanted: Sampling, mark: str, first: int, ended: threading.Event) -> None:
    with suppress(OSError), (wanted.folder / FILE).open("w", newline="", encoding="utf-8") as file:
        _sample(wanted, HostLoad(mark, first), ended, file)  # OSError: a full disk or a removed folder harms no run


def _sample(wanted: Sampling, load: HostLoad, ended: threading.Event, file: IO[str]) -> None:
    reader, source = _source(wanted)
    gpus, log = (None, reader) if isinstance(reader, SmiLog) else (reader, None)
    try:
        file.write(f"{FORMAT}\n# gpu: {source}\n# every_s: {wanted.every_s:g}\n")
        rows = _Rows(file)
        count = _rounds(wanted.every_s, load, gpus, ended, rows)
    finally:
        if reader is not None:
            reader.close()
    notes: dict[str, object] = {"readings": count, "cost_ns": time.thread_time_ns()}
    notes |= {"rows": rows.count - 1, checksum.FIELD: rows.checksum}
    if gpus is not None:
        notes |= {f"missing {quantity}": " ".join(reason.split()) for quantity, reason in gpus.problems.items()}
    if log is not None and log.first_ns is not None:
        notes["nvidia_smi_first_ns"] = log.first_ns
    file.writelines(f"# {key}: {value}\n" for key, value in notes.items())


class _Rows:
    """Writes lines, counts them, and makes their checksum, by which a reader notices that some are missing or changed."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.count, self.checksum = 0, "0"

    def write(self, line: str) -> None:
        self._file.write(line)
        self.count += 1
        self.checksum = checksum.of_text(line, self.checksum)

    def flush(self) -> None:
        self._file.flush()


def _rounds(every_s: float, load: HostLoad, gpus: Nvml | None, ended: threading.Event, file: _Rows) -> int:
    """Number of readings written until the run ended."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    count, cost, flushed = 0, 0.0, time.monotonic()
    due = time.monotonic() + every_s
    while not ended.wait(max(due - time.monotonic(), 0.0)):
        before, at = time.thread_time(), time.monotonic_ns()
        host = load.read()
        if host is not None:
            writer.writerow((at, *[""] * len(GpuReading._fields), f"{host[0]:.4f}", host[1]))
        for reading in gpus.read(load.pids) if gpus is not None else ():
            writer.writerow((at, *("" if value is None else value for value in reading), "", ""))
        count += 1
        now = time.monotonic()
        if now - flushed > 1.0:
            file.flush()
            flushed = now
        took = time.thread_time() - before - load.scan_s
        cost = took if count < 3 else cost + (took - cost) / 8  # the first readings include set-up
        due = max(due + max(every_s, cost / SHARE), now)
    return count


def _source(wanted: Sampling) -> tuple[Nvml | SmiLog | None, str]:
    """(what reads the GPUs, its description)."""
    if not wanted.gpu:
        return None, "none, the run used no GPU"
    try:
        gpus = Nvml(wanted.visible)
    except NvmlMissing as error:
        program = tools.find("nvidia-smi")
        if program is None:
            return None, f"none, {error}, and there is no nvidia-smi"
        return SmiLog(wanted.folder / SMI_FILE, wanted.every_s, wanted.visible, program), f"nvidia-smi, {error}"
    return gpus, gpus.name
