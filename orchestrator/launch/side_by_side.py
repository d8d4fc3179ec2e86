"""Run one batch size per place at the same time; a free place takes the next batch size.

One thread per place starts its processes on the place's cores. All calls to the caller, and so all writing to the store,
happen in the calling thread.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from perfctl.orchestrator.errors import Interrupted
from perfctl.orchestrator.launch import process
from perfctl.orchestrator.launch.devices import Place

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
    with process.stop_signals() as signals:
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
