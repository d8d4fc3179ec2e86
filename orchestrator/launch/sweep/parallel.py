"""Run one batch size per place at the same time; a free place takes the next batch size. Read the
state of sweeps.

One thread per place starts its processes. All calls to the caller, so all writing to the store, are
in its own thread.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from perfctl.orchestrator.errors import Interrupted
from perfctl.orchestrator.launch.machine.devices import DevicePlacement
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.sweep.folders import (
    SweepSetting,
    parse_run_folder_name,
    read_json_object,
    read_run_record,
    read_sweep_setting,
)

Post = Callable[[Callable[[], None]], None]
"""Queues a call for the calling thread."""
Item = TypeVar("Item")
Result = TypeVar("Result")

FRESH_S = 120.0
"""Where locks are not visible, a run counts as under way if its folder changed within this time."""


def run_items_on_placements(
    items: tuple[Item, ...],
    placements: tuple[DevicePlacement, ...],
    work: Callable[[Item, DevicePlacement, Post], Result],
) -> list[Result]:
    """Return the results of ``work`` on every item, in the items' order. The first error stops
    everything and is raised when all threads have ended; a signal does the same, as
    Interrupted."""
    waiting = deque(enumerate(items))
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run_waiting_items_on_placement(placement: DevicePlacement) -> None:
        """Work on the next item until none is left, or a signal or an error stops everything."""
        if placement.cores:
            os.sched_setaffinity(0, placement.cores)  # this thread and the processes that it starts
        while not signals:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                results[number] = work(item, placement, calls.put)
            except BaseException as error:  # raised again below, in the calling thread
                errors.append(error)
                signals.append(signal.SIGTERM)

    with process_run.collect_stop_signals() as signals:
        threads = [
            threading.Thread(
                target=partial(run_waiting_items_on_placement, device), name=device.label
            )
            for device in placements
        ]
        for thread in threads:
            thread.start()
        try:
            _execute_posted_calls(threads, calls)
        except BaseException:
            signals.append(signal.SIGTERM)
            raise
        finally:
            for thread in threads:
                thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, Interrupted)):
        raise error  # the first that is not Interrupted: the others result from it
    if signals:
        raise Interrupted(f"stopped by {signal.Signals(signals[0]).name}", signals[0])
    return [results[number] for number in range(len(items))]


def _execute_posted_calls(
    threads: list[threading.Thread], calls: queue.SimpleQueue[Callable[[], None]]
) -> None:
    """Make the calls that the threads post, until all threads have ended and no call is left."""
    while True:
        ended = not any(thread.is_alive() for thread in threads)
        try:
            calls.get(timeout=0 if ended else 0.2)()
        except queue.Empty:
            if ended:
                return


@dataclass(frozen=True, slots=True)
class SweepRunState:
    """One setting of a sweep, at one attempt."""

    setting: SweepSetting
    attempt: str
    """Empty for the first, "2", "3", ... for repetitions."""
    status: str
    """ok, partial, failed, running, or "interrupted"."""
    reason: str | None
    started_at: str | None
    duration_ns: int | None


@dataclass(frozen=True, slots=True)
class SweepFolderState:
    """One sweep's folder."""

    name: str
    command: str | None
    host: str | None
    running: bool
    runs: tuple[SweepRunState, ...]


def list_sweep_states(folder: Path) -> list[SweepFolderState]:
    """Return the sweeps in ``folder`` and in perfctl-runs below it, newest first. Does not
    follow links."""
    parents = [
        parent
        for parent in (folder, folder / "perfctl-runs")
        if parent.is_dir() and not parent.is_symlink()
    ]
    folders = (path for parent in parents for path in parent.iterdir() if not path.is_symlink())
    dates = {
        path: record.stat().st_mtime_ns
        for path in folders
        if (record := path / "sweep.json").is_file()
    }
    return [
        _read_sweep_state(path)
        for path in sorted(dates, key=lambda path: (-dates[path], path.name))
    ]


def _read_sweep_state(folder: Path) -> SweepFolderState:
    record = read_json_object(folder / "sweep.json") or {}
    command, host = (
        text if isinstance(text := record.get(key), str) else None for key in ("command", "host")
    )
    is_locked = _is_sweep_locked(folder)
    runs = [
        run for path in folder.iterdir() if (run := _read_run_state(path, is_locked)) is not None
    ]
    runs.sort(key=lambda run: (run.setting.sort_key, run.attempt))
    is_running = is_locked or any(run.status == "running" for run in runs)
    return SweepFolderState(folder.name, command, host, is_running, tuple(runs))


def _read_run_state(folder: Path, is_locked: bool) -> SweepRunState | None:
    name = parse_run_folder_name(folder.name)
    if name is None or folder.is_symlink() or not folder.is_dir():
        return None
    setting, attempt = name
    record = read_run_record(folder) or {}
    if record.get("parameters"):
        setting = read_sweep_setting(record)
    if attempt == "part":
        status = "running" if is_locked or _changed_recently(folder) else "interrupted"
        return SweepRunState(setting, "", status, record.get("reason"), None, None)
    facts = [record.get(key) for key in ("reason", "started_at", "duration_ns")]
    return SweepRunState(setting, attempt, record.get("status") or "interrupted", *facts)


def _changed_recently(folder: Path) -> bool:
    try:
        newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:  # the run was completed and renamed meanwhile
        return True
    return time.time() - newest < FRESH_S


def _is_sweep_locked(folder: Path) -> bool:
    """Return whether a process of this machine holds a lock of the sweep. Read from /proc: taking
    the lock would stop others."""
    try:
        numbers = {str(file.stat().st_ino) for file in folder.glob(".*lock")}
        lines = Path("/proc/locks").read_text().splitlines() if numbers else []
    except OSError:
        return False
    inodes = (
        line.split()[5].rpartition(":")[2]
        for line in lines
        if " FLOCK " in line and "->" not in line
    )
    return any(number in numbers for number in inodes)
