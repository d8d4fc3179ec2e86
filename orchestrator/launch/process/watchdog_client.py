"""Start the watchdog of a run, and tell it which unmarked processes belong to the run."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfctl.orchestrator.launch.process import watchdog as guard

_lock = threading.RLock()
_runs: list[str] = []
"""Marks of the runs of this process, one per thread."""
_own: set[int] = set()
"""Children that are not orphans: those perfctl started, and those from before the first run."""


@contextmanager
def adopt_orphans(run_mark: str) -> Iterator[None]:
    """Receive the orphans of the run ``run_mark`` during the block, and reap those that ended
    after it."""
    with _lock:
        if not _runs:
            _own.clear()
            _own.update(_list_own_children())
            _set_subreaper(True)
        _runs.append(run_mark)
    try:
        yield
    finally:
        with _lock:
            reap_and_find_orphans(run_mark)
            _runs.remove(run_mark)
            if not _runs:
                _set_subreaper(False)


@contextmanager
def exempt_started_children_from_orphans() -> Iterator[set[int]]:
    """Yields the set to which the process ids started in the block are added, so that they are not
    taken for orphans."""
    with _lock:
        yield _own


def reap_and_find_orphans(run_mark: str) -> dict[int, int]:
    """Running orphans of the run ``run_mark``: process id -> start time. Those that ended are
    reaped. An orphan without any mark is assigned to the run only while no other run is under
    way."""
    with _lock:
        while True:
            start_times: dict[int, int] = {}
            reaped = False
            for pid in _list_own_children() - _own:
                with suppress(ProcessLookupError, ChildProcessError):  # it is gone
                    if os.getsid(pid) == os.getsid(0):
                        # every run has its own sessions: another part of perfctl started this one
                        continue
                    stat = guard.read_parent_and_start_ticks(str(pid))
                    if stat is None:
                        reaped |= os.waitpid(pid, os.WNOHANG)[0] == pid
                    elif _runs == [run_mark] or guard.has_mark_in_environment(str(pid), run_mark):
                        start_times[pid] = stat[1]
            if not reaped:  # else its own children may have arrived since
                return start_times


def _list_own_children() -> set[int]:
    """Children of this process; empty where the kernel does not list them
    (CONFIG_PROC_CHILDREN)."""
    pids: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            pids.update(map(int, (thread / "children").read_text().split()))
    return pids


def _set_subreaper(enable: bool) -> None:
    """Without kernel support, only marked orphans are found."""
    ctypes.CDLL(None).prctl(36, int(enable), 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@contextmanager
def start_watchdog(run_mark: str, folder: Path) -> Iterator[Callable[..., None]]:
    """Run a watchdog that ends the run if perfctl dies: it reads a pipe that only perfctl holds
    open. Yields a function that tells it of the run's orphans, and of its first process when called
    with that id."""
    with exempt_started_children_from_orphans() as own_children:
        process = subprocess.Popen(
            (sys.executable, "-I", "-S", guard.__file__, run_mark, str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != guard.VARIABLE},
        )
        own_children.add(process.pid)
    reported: set[int] = set()

    def report_processes_to_watchdog(first_pid: int | None = None) -> None:
        start_times = reap_and_find_orphans(run_mark)
        if (
            first_pid is not None
            and (stat := guard.read_parent_and_start_ticks(str(first_pid))) is not None
        ):
            start_times = {first_pid: stat[1], **start_times}
        lines = b"".join(
            b"%d %d\n" % (pid, start) for pid, start in start_times.items() if pid not in reported
        )
        reported.update(start_times)
        if lines and process.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed the watchdog
                process.stdin.write(lines)
                process.stdin.flush()

    with process:
        try:
            yield report_processes_to_watchdog
        finally:
            process.kill()
