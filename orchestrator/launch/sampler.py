"""Sample the GPUs and processes of a run while it is under way, into ``samples.csv`` in its folder.

A thread of perfctl takes the readings, never the profiled process. Times are from the monotonic clock, as those of the
steps. When a reading costs more than its share of time, readings become less frequent.
"""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.launch import tools
from perfctl.orchestrator.launch.host_load import HostLoad
from perfctl.orchestrator.launch.nvidia_smi_log import SmiLog
from perfctl.orchestrator.launch.nvml import GpuReading, Nvml, NvmlMissing

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
