"""Run one batch size per place at the same time; a free place takes the next batch size.

One thread per place starts its processes on the place's cores. All calls to the caller, and so all writing to the store,
happen in the calling thread.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from perfctl.orchestrator.errors import Interrupted
from perfctl.orchestrator.launch.machine.devices import Place
from perfctl.orchestrator.launch.process import run as process_run
from perfctl.orchestrator.launch.sweep.folders import read_json, read_run_record

_PAUSE_S = 0.2

Post = Callable[[Callable[[], None]], None]
"""Queues a call for the calling thread."""


Item = TypeVar("Item")
Result = TypeVar("Result")


def run(
    items: tuple[Item, ...],
    places: tuple[Place, ...],
    work: Callable[[Item, Place, Post], Result],
    tick: Callable[[float], None],
) -> list[Result]:
    """Results of ``work`` on every item, in the items' order. ``tick`` gets the elapsed seconds.

    The first error stops everything and is raised when all threads have ended; a signal does the same, as Interrupted.
    """
    with process_run.stop_signals() as signals:
        shift = _Shift(items, work, signals.numbers)
        threads = [threading.Thread(target=partial(shift.serve, place), name=place.label) for place in places]
        for thread in threads:
            thread.start()
        try:
            _listen(threads, shift.calls, tick)
        except BaseException:
            signals.numbers.append(signal.SIGTERM)
            raise
        finally:
            for thread in threads:
                thread.join()
    _raise_first(shift.errors)
    if signals.numbers:
        number = signals.numbers[0]
        raise Interrupted(f"stopped by {signal.Signals(number).name}", number)
    return [shift.results[number] for number in range(len(items))]


class _Shift(Generic[Item, Result]):
    """State shared by the threads: waiting items, results, errors, and calls for the calling thread."""

    def __init__(
        self, items: tuple[Item, ...], work: Callable[[Item, Place, Post], Result], signals: list[int]
    ) -> None:
        self._waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
        for entry in enumerate(items):
            self._waiting.put(entry)
        self._work = work
        self._signals = signals
        self.results: dict[int, Result] = {}
        self.errors: list[BaseException] = []
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def serve(self, place: Place) -> None:
        """Work on the next item until none is left, or a signal or an error stops everything."""
        if place.cores:
            os.sched_setaffinity(0, place.cores)  # of this thread alone, and of what it starts
        while not self._signals:
            try:
                number, item = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.results[number] = self._work(item, place, self.calls.put)
            except BaseException as error:  # raised again by run, in the calling thread
                self.errors.append(error)
                self._signals.append(signal.SIGTERM)


def _listen(
    threads: list[threading.Thread], calls: queue.SimpleQueue[Callable[[], None]], tick: Callable[[float], None]
) -> None:
    """Make the calls that the threads post, until all threads have ended and no call is left."""
    started = last_tick = time.monotonic()
    while True:
        ended = not any(thread.is_alive() for thread in threads)
        try:
            calls.get(timeout=0 if ended else _PAUSE_S)()
        except queue.Empty:
            if ended:
                return
        now = time.monotonic()
        if now - last_tick >= 1:
            last_tick = now
            tick(now - started)


def _raise_first(errors: list[BaseException]) -> None:
    """Raise the first error that is not Interrupted: the others result from it."""
    real = [error for error in errors if not isinstance(error, Interrupted)]
    for error in (*real, *errors):
        raise error


FRESH_S = 120.0
"""Where locks are not visible, a run counts as under way if its folder changed within this time."""
_RUN = re.compile(r"b(\d+)(?:\.(\d+|part))?\Z")


@dataclass(frozen=True, slots=True)
class RunState:
    """One batch size of a sweep, at one attempt."""

    batch_size: int
    attempt: str
    """Empty for the first, "2", "3", ... for repetitions."""
    status: str
    """ok, partial, failed, running, or "cut off"."""
    reason: str | None
    started_at: str | None
    duration_ns: int | None


@dataclass(frozen=True, slots=True)
class SweepState:
    """One sweep's folder."""

    name: str
    command: str | None
    host: str | None
    running: bool
    runs: tuple[RunState, ...]


def sweeps(folder: Path) -> list[SweepState]:
    """The sweeps in ``folder`` and in perfctl-runs below it, newest first. Does not follow links."""
    found = []
    for parent in (folder, folder / "perfctl-runs"):
        if not parent.is_dir() or parent.is_symlink():
            continue
        for place in parent.iterdir():
            record = place / "sweep.json"
            if not place.is_symlink() and record.is_file():
                found.append((record.stat().st_mtime_ns, place))
    return [_sweep(place) for _, place in sorted(found, key=lambda item: (-item[0], item[1].name))]


def _sweep(folder: Path) -> SweepState:
    record = read_json(folder / "sweep.json") or {}
    held = _held(folder)
    runs = [run for place in folder.iterdir() if (run := _run(place, held)) is not None]
    runs.sort(key=lambda run: (run.batch_size, run.attempt))
    command, host = record.get("command"), record.get("host")
    return SweepState(
        folder.name,
        command if isinstance(command, str) else None,
        host if isinstance(host, str) else None,
        held or any(run.status == "running" for run in runs),
        tuple(runs),
    )


def _run(place: Path, held: bool) -> RunState | None:
    name = _RUN.match(place.name)
    if name is None or place.is_symlink() or not place.is_dir():
        return None
    batch = int(name[1])
    record = read_run_record(place) or {}
    if name[2] == "part":
        status = "running" if held or _fresh(place) else "cut off"
        return RunState(batch, "", status, _text(record.get("reason")), None, None)
    length = record.get("duration_ns")
    return RunState(
        batch,
        name[2] or "",
        _text(record.get("status")) or "cut off",
        _text(record.get("reason")),
        _text(record.get("started_at")),
        length if isinstance(length, int) else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _fresh(folder: Path) -> bool:
    try:
        newest = max(place.stat().st_mtime for place in (folder, *folder.iterdir()))
    except OSError:  # the run was completed and renamed meanwhile
        return True
    return time.time() - newest < FRESH_S


def _held(folder: Path) -> bool:
    """Whether a process of this machine holds a lock of the sweep. Read from /proc: taking the lock would stop others."""
    try:
        numbers = {str(file.stat().st_ino) for file in folder.glob(".*lock")}
        lines = Path("/proc/locks").read_text().splitlines() if numbers else []
    except OSError:
        return False
    return any(
        " FLOCK " in line and line.split()[5].rpartition(":")[2] in numbers for line in lines if "->" not in line
    )
