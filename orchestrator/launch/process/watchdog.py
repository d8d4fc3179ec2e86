"""The watchdog: find and end every process of a run, even after perfctl itself was killed.

They are found through /proc by the mark in their environment: nsys 2022.4 starts its target and its
agent in sessions of their own. As a program (``python watchdog.py MARK TMPDIR``) this starts
without site-packages: standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

VARIABLE = "PERFCTL_RUN_ID"
"""Marks of the runs that a process belongs to, outermost first, separated by ':' (perfctl
under perfctl)."""

_PAUSE_S = 0.02


class RunProcesses:
    """The processes of one run. A process once found stays a member, even when its parent
    is gone."""

    def __init__(
        self,
        mark: str,
        orphans: Callable[[], dict[int, int]] = dict,
        known_pids: dict[int, int] | None = None,
    ) -> None:
        """Members without a mark: ``known_pids``, and what ``orphans`` finds. Process id -> start
        time, which tells a later process with the same id."""
        self._mark, self._orphans, self._known = mark, orphans, known_pids or {}

    def find_living_processes_of_run(self) -> set[int]:
        """Members that run now: marked, found before, or descended from one of these. Never
        this process."""
        parents: dict[int, int] = {}
        starts: dict[int, int] = {}
        members: set[int] = set()
        orphans = self._orphans()
        self._known |= orphans
        # half the time of iterdir
        for entry in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
            if stat := read_parent_and_start_ticks(entry):
                pid = int(entry)
                parents[pid], starts[pid] = stat
                if self._known.get(pid) == starts[pid] or has_mark_in_environment(
                    entry, self._mark
                ):
                    members.add(pid)
        while children := {pid for pid, parent in parents.items() if parent in members} - members:
            members |= children
        # one that just ended may have left a child
        self._known = {pid: starts[pid] for pid in members} | orphans
        self._known.pop(os.getpid(), None)
        return set(self._known)

    def kill_all(self, *, limit_s: float, quiet_s: float = 0.0) -> set[int]:
        """SIGKILL members until none is left; returns those still alive after ``limit_s``.
        ``quiet_s``: seconds without any member before it is done. Above 0 where one may be between
        fork and exec, and so not marked yet."""
        end = time.monotonic() + limit_s
        quiet_since: float | None = None
        while True:
            remaining = self.find_living_processes_of_run()
            now = time.monotonic()
            if remaining:
                quiet_since = None
                for pid in remaining:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            elif quiet_since is None:
                quiet_since = now
            if quiet_since is not None and now - quiet_since >= quiet_s:
                return set()
            if now >= end:
                return remaining
            time.sleep(_PAUSE_S)


def read_parent_and_start_ticks(pid: str) -> tuple[int, int] | None:
    """Return (parent's process id, start time in clock ticks); None for a process that is gone or
    a zombie."""
    try:
        stat = Path("/proc", pid, "stat").read_bytes()
    except OSError:
        return None
    # "pid (name) state ppid ... starttime ...": the name may hold spaces and brackets.
    fields = stat[stat.rindex(b")") + 1 :].split()
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))


def has_mark_in_environment(pid: str, run_mark: str) -> bool:
    """Return whether its initial environment holds the mark; False for another user's process,
    which cannot be read."""
    try:
        environment = Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return False
    prefix = f"{VARIABLE}=".encode()
    values = (
        entry[len(prefix) :] for entry in environment.split(b"\0") if entry.startswith(prefix)
    )
    return any(run_mark.encode() in value.split(b":") for value in values)


def kill_run_when_stdin_closes(run_mark: str, tmpdir: Path) -> None:
    """Wait for standard input to close, end the run, and remove the short link to its TMPDIR if it
    has one.

    It closes however perfctl ends (SIGKILL too). Each line names a process by id and start time:
    first the one that perfctl started, which leads its group, then unmarked ones. SIGTERM comes
    first: an nsys killed while it starts leaves a lock in shared memory that blocks every nsys of
    the machine (2022.4).
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # a line without an end: perfctl died while writing it
    with open(0, "rb", closefd=False) as lines:
        started_pids = {
            int(pid): int(start)
            for pid, start in (line.split() for line in lines if line.endswith(b"\n"))
        }
    members = RunProcesses(run_mark, known_pids=dict(started_pids))
    first = next(iter(started_pids), None)
    if first is not None and first in members.find_living_processes_of_run():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(first, signal.SIGTERM)
            until = time.monotonic() + 1.5
            while members.find_living_processes_of_run() and time.monotonic() < until:
                time.sleep(_PAUSE_S)
    members.kill_all(limit_s=60.0, quiet_s=0.5)
    if tmpdir.is_symlink():
        tmpdir.unlink()
        tmpdir.parent.rmdir()


if __name__ == "__main__":
    kill_run_when_stdin_closes(sys.argv[1], Path(sys.argv[2]))
