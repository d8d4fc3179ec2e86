"""CPU and memory use of a run's processes, through psutil."""

from __future__ import annotations

import os
import time

from perfctl.orchestrator.launch import guard

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
        stat = guard.parent_and_start(str(pid))
        if stat is None or pid == os.getpid():
            return False
        return stat[0] in self._known or guard.is_marked(str(pid), self._mark)

    def _add(self, pid: int) -> None:
        try:
            self._known[pid] = self._psutil.Process(pid)
        except self._psutil.Error:
            return


def _all() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}  # noqa: PTH208 - half the time of iterdir
