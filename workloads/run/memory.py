"""Memory of the process and the device at fixed moments of a run. Imports torch."""

from __future__ import annotations

from pathlib import Path

import torch

from perfctl.records.report import Gap, MemoryFigure

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
