"""The JSON record of a workload: what ran where, the times of its steps, the operations of its layers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from perfctl.records.paper import OpShape
from perfctl.records.report import Device, Gap, LayerTime, MemoryFigure, Step, Summary
from perfctl.workloads.run.options import as_flags
from perfctl.workloads.spec import Options, WorkloadError, first_line

FORMAT = 1


@dataclass(slots=True)
class Record:
    """Filled in while the workload runs. Rows have the field names of ``perfctl.records.report``."""

    workload: str
    batch_size: int | None
    """None, like the next three, when unknown for a user's script; a gap says why."""
    mode: str | None
    precision: str | None
    seed: int | None
    status: str = "failed"
    """ok, partial (some measured steps ended before a failure) or failed."""
    reason: str | None = "the process was killed or crashed before its steps ended"
    """Why it is not ok. The initial value remains when the process could not write a better one."""
    variant: str | None = None
    """The workload's own options not at their default ("conv2=32,128,5,1"); None when all are."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the workload by name, including defaults."""
    environment: dict[str, str] = field(default_factory=dict)
    device: Device | None = None
    started_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    """UTC, ISO 8601."""
    duration_ns: int | None = None
    """From the start of the first measured step to the end of the last; None when they did not end."""
    clock: str | None = None
    """device_events or monotonic; None without timed steps."""
    steps: list[Step] = field(default_factory=list)
    memory: list[MemoryFigure] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    """Figures of the whole run: top1, top5, loss, images_per_second, ..."""
    ops: list[OpShape] = field(default_factory=list)
    layer_times: list[LayerTime] = field(default_factory=list)
    """From extra steps after the measured ones; empty unless requested."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Elements of each layer's own parameters; a shared parameter counts once."""
    gaps: list[Gap] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The record in JSON types."""
        whole: dict[str, Any] = {"perfctl_workload_record": FORMAT}
        for item in dataclasses.fields(self):
            whole[item.name] = _json_value(getattr(self, item.name))
        return whole

    def write(self, path: Path) -> None:
        """Write the record to ``path`` atomically; creates its folder. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _json_value(value: Any) -> Any:
    """``value`` in JSON types: records as objects, paths as text, non-finite numbers as None."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _json_value(item) for key, item in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _json_value(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return str(value) if isinstance(value, Path) else value


class Kept:
    """Writes the record at the start, so that a killed process leaves one too, and at the end of the block.

    Exceptions pass through. Raises WorkloadError when the record cannot be written.
    """

    def __init__(self, record: Record, options: Options) -> None:
        self._record = record
        self._options = options

    def __enter__(self) -> Kept:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._record.status, self._record.reason = "ok", None
        else:
            some = any(row.phase == "step" for row in self._record.steps)
            self._record.status = "partial" if some else "failed"
            self._record.reason = explain(error, self._options)
        self._write()

    def _write(self) -> None:
        path = self._options.record
        if path is None:
            return
        try:
            self._record.write(path)
        except OSError as error:
            raise WorkloadError(f"cannot write the record {path}: {error.strerror or error}") from error


def explain(error: BaseException, options: Options) -> str:
    """The failure in one line, with advice when memory ran out; fields as options of this process."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, WorkloadError):
        return as_flags(str(error))
    text = first_line(error)
    if is_out_of_memory(error):
        return f"out of memory at batch size {options.batch_size}: {text} Try a smaller --batch."
    return f"{type(error).__name__}: {text}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the device or host ran out."""
    signs = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign.lower() in str(error).lower() for sign in signs)
    )


_CPU_GAPS = {
    "allocated": "torch has no allocator statistics for the CPU",
    "reserved": "torch has no allocator statistics for the CPU",
    "device_free": "the run used no GPU",
    "device_total": "the run used no GPU",
}


class MemoryWatch:
    """Figures in the order taken. Peaks cover the time since ``reset_peak``."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self.figures: list[MemoryFigure] = []
        self.gaps: list[Gap] = []
        self.host_peak_covers = "whole process"
        """What the host's peak covers: "measured steps" where the kernel can reset it."""
        if not self._cuda:
            self.gaps += [Gap(f"memory:{name}", "not_available", reason) for name, reason in _CPU_GAPS.items()]

    def take(self, moment: str) -> None:
        """Take the current figures; ``moment`` is before or after."""
        if self._cuda:
            torch.cuda.synchronize()
            free, total = torch.cuda.mem_get_info()
            self._add(moment, "allocated", torch.cuda.memory_allocated())
            self._add(moment, "reserved", torch.cuda.memory_reserved())
            self._add(moment, "device_free", free)
            self._add(moment, "device_total", total)
        self._add(moment, "host_available", _proc_bytes("/proc/meminfo", "MemAvailable"))
        self._add(moment, "host_resident", _proc_bytes("/proc/self/status", "VmRSS"))

    def reset_peak(self) -> None:
        """Reset the peaks."""
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            # "5" sets VmHWM back to VmRSS (Linux 4.0 and later; some containers forbid it).
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return
        self.host_peak_covers = "measured steps"

    def take_peak(self) -> None:
        """Take the peaks since ``reset_peak``."""
        if self._cuda:
            self._add("peak", "allocated", torch.cuda.max_memory_allocated())
            self._add("peak", "reserved", torch.cuda.max_memory_reserved())
        self._add("peak", "host_resident", _proc_bytes("/proc/self/status", "VmHWM"))

    def _add(self, moment: str, quantity: str, amount: int | None) -> None:
        if amount is not None:
            self.figures.append(MemoryFigure(moment, quantity, amount))
        else:
            self.gaps.append(Gap(f"memory:{quantity}", "not_available", f"not in /proc ({moment})"))


def _proc_bytes(file: str, key: str) -> int | None:
    """Bytes of a "Key:   123 kB" line in a /proc file; None without such a line."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == key and value.split()[-1:] == ["kB"]:
            return int(value.split()[0]) * 1024
    return None


def host_total() -> int | None:
    """Bytes of main memory; None when /proc does not contain it."""
    return _proc_bytes("/proc/meminfo", "MemTotal")
