"""What the processes of a run take of the host: cores kept busy and resident memory, through psutil."""

from __future__ import annotations

import os
import time

from perfctl.orchestrator.launch import guard

SCAN_S = 0.1
"""Between two looks for new processes of the run, at least."""
SCAN_SHARE = 0.0015
"""Of a core that may go into looking for them."""
_LOOKS = 2
"""At each process: one that is just being replaced (exec) has no environment to tell it by."""


class HostLoad:
    """The processes that carry ``mark`` and what descends from them; ``first`` is the one that was started."""

    def __init__(self, mark: str, first: int) -> None:
        import psutil

        self._psutil = psutil
        self._mark = mark
        self._looks = {pid: _LOOKS for pid in _all() if pid < first}  # they were there before it
        """Process id of others -> how often it was looked at."""
        self._known: dict[int, psutil.Process] = {}
        self._spent: dict[int, float] = {}
        """Process id -> CPU seconds at the last reading."""
        self._at = time.monotonic()
        self._next_scan = 0.0
        self.scan_s = 0.0
        """CPU seconds that the last reading spent on looking for new processes: those have a share of their own."""
        self._add(first)
        self.read()  # a reading is a rate since the one before: what was done before this one is no part of the next

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._known)

    def read(self) -> tuple[float, int] | None:
        """(cores kept busy since the last reading, resident bytes); None when none is left that has memory.

        A process found only now counts from now: what it did before the look that found it is left out.
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
        return (busy / elapsed, resident) if resident and elapsed > 0 else None  # one that is ending has no memory

    def _scan(self) -> None:
        if time.monotonic() < self._next_scan:
            return
        before = time.thread_time()
        there = _all()
        looks = {pid: count for pid, count in self._looks.items() if pid in there}
        for pid in sorted(there - set(self._known)):
            count = looks.get(pid, 0)
            if count < _LOOKS:
                looks[pid] = count + 1
                if self._is_own(pid):
                    self._add(pid)
        self._looks = looks
        self.scan_s = time.thread_time() - before
        self._next_scan = time.monotonic() + max(SCAN_S, self.scan_s / SCAN_SHARE)

    def _is_own(self, pid: int) -> bool:
        told = guard.parent_and_start(str(pid))
        if told is None or pid == os.getpid():
            return False
        return told[0] in self._known or guard.is_marked(str(pid), self._mark)

    def _add(self, pid: int) -> None:
        try:
            self._known[pid] = self._psutil.Process(pid)
        except self._psutil.Error:
            return


def _all() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdecimal()}  # noqa: PTH208 - half the time of iterdir
