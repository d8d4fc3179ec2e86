"""Processes of a run that lost their parent become children of perfctl, which so finds those that lost their mark, too.

A daemon that starts with an empty environment does not carry ``PERFCTL_RUN_ID``, and a title set over it hides it
(setproctitle). Linux hands orphans to the nearest ancestor that asked for them (PR_SET_CHILD_SUBREAPER, prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfctl.orchestrator.launch import guard

_PR_SET_CHILD_SUBREAPER = 36

_lock = threading.RLock()
_runs: list[str] = []
"""Marks of the runs under way in this process, one a thread."""
_own: set[int] = set()
"""Children that are no orphans: those perfctl started, and those that were there before the first run."""


@contextmanager
def during(mark: str) -> Iterator[None]:
    """Orphans come to perfctl while the block runs, and those that ended are cleared away after it."""
    with _lock:
        if not _runs:
            _own.clear()
            _own.update(_children())
            _ask_for_orphans(True)
        _runs.append(mark)
    try:
        yield
    finally:
        with _lock:
            living(mark)
            _runs.remove(mark)
            if not _runs:
                _ask_for_orphans(False)


@contextmanager
def starting() -> Iterator[set[int]]:
    """Put into the set what is started in the block, by its process id; nobody takes it for an orphan meanwhile."""
    with _lock:
        yield _own


def living(mark: str) -> dict[int, int]:
    """Orphans of the run ``mark`` that run now: process id -> start time. Those that ended are cleared away.

    An orphan without any mark is the run's where no other is under way: the last of several finds it.
    """
    with _lock:
        while True:
            found, cleared = _look(mark)
            if not cleared:  # else what it left may have come since
                return found


def _look(mark: str) -> tuple[dict[int, int], bool]:
    """(orphans that run, was there one that had ended?)"""
    found: dict[int, int] = {}
    cleared = False
    for pid in _children() - _own:
        if _session(pid) == os.getsid(0):
            continue  # each run has sessions of its own: this one perfctl started elsewhere
        told = guard.parent_and_start(str(pid))
        if told is None:
            cleared = _clear_away(pid) or cleared
        elif guard.is_marked(str(pid), mark) or (len(_runs) == 1 and not _of_others(pid, mark)):
            found[pid] = told[1]
    return found, cleared


def _of_others(pid: int, mark: str) -> bool:
    return any(guard.is_marked(str(pid), other) for other in _runs if other != mark)


def _clear_away(pid: int) -> bool:
    """Was it there, and had it ended?"""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def _children() -> set[int]:
    """Of this process; empty where the system does not list them (CONFIG_PROC_CHILDREN)."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (thread / "children").read_text().split()))
        except OSError:
            continue
    return found


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _ask_for_orphans(wanted: bool) -> None:
    """Where the system does not know the request, orphans are found by their mark alone."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)
