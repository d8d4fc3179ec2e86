"""Memory of the process and the device at fixed moments of a run. Imports torch."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from perfctl.records.report import Gap, MemoryFigure
from perfctl.workloads.run.record import WorkloadRecord
from perfctl.workloads.tracing.versions import read_free_total_gpu_bytes

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
            self.gaps += [
                Gap(f"memory:{name}", "not_available", reason) for name, reason in _CPU_GAPS.items()
            ]

    def record_memory_amounts(self, moment: str) -> None:
        """Read the current figures; ``moment``: start (no model yet), before (the first step) or
        after (all else)."""
        if self._cuda:
            torch.cuda.synchronize()
            amounts = (
                torch.cuda.memory_allocated(),
                torch.cuda.memory_reserved(),
                *read_free_total_gpu_bytes(),
            )
            for quantity, amount in zip(_CPU_GAPS, amounts):
                self._add_memory_amount(moment, quantity, amount)
        self._add_memory_amount(
            moment, "host_available", read_proc_bytes("/proc/meminfo", "MemAvailable")
        )
        self._add_memory_amount(
            moment, "host_resident", read_proc_bytes("/proc/self/status", "VmRSS")
        )

    def reset_peak(self) -> None:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        try:
            # "5" sets VmHWM back to VmRSS (Linux 4.0 and later; some containers forbid it).
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return
        self.host_peak_covers = "measured steps"

    def fill_record(self, record: WorkloadRecord) -> None:
        """Read the last figures, and put all into the record."""
        self.record_memory_amounts("after")
        record.memory = self.figures
        record.gaps += self.gaps

    def record_peak_memory(self) -> None:
        if self._cuda:
            self._add_memory_amount("peak", "allocated", torch.cuda.max_memory_allocated())
            self._add_memory_amount("peak", "reserved", torch.cuda.max_memory_reserved())
        self._add_memory_amount(
            "peak", "host_resident", read_proc_bytes("/proc/self/status", "VmHWM")
        )

    def _add_memory_amount(self, moment: str, quantity: str, amount: int | None) -> None:
        if amount is not None:
            self.figures.append(MemoryFigure(moment, quantity, amount))
        else:
            source = "/proc" if quantity.startswith("host") else "this version of torch"
            self.gaps.append(
                Gap(f"memory:{quantity}", "not_available", f"not in {source} ({moment})")
            )


def find_in_file(path: str, pattern: str) -> str | None:
    """Return what the pattern's last group matches in a file of /proc; None without a match."""
    try:
        match = re.search(pattern, Path(path).read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return match[match.re.groups] if match else None


def read_proc_bytes(path: str, key: str) -> int | None:
    """Return bytes of a "Key:   123 kB" line in a file of /proc; None without such a line."""
    kilobytes = find_in_file(path, rf"^{key}:\s*(\d+) kB$")
    return int(kilobytes) * 1024 if kilobytes else None
