"""As many batch sizes at a time as there are places, each place taking the next that waits.

One thread a place starts the processes, on the place's cores; what is told to the caller (and so what goes into the
store) is told from the thread that called, one after the other.
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
"""Hands a call to the thread that waits."""


Item = TypeVar("Item")
Result = TypeVar("Result")


def run(
    items: tuple[Item, ...],
    places: tuple[Place, ...],
    work: Callable[[Item, Place, Post], Result],
    tick: Callable[[float], None],
) -> list[Result]:
    """``work`` on every item; the results in the items' order. ``tick`` hears the seconds gone by.

    The first error stops all and is raised once all have ended; so does a signal, as Interrupted.
    """
    with process.stop_signals() as asked:
        shift = _Shift(items, work, asked.numbers)
        threads = [threading.Thread(target=partial(shift.serve, place), name=place.label) for place in places]
        for thread in threads:
            thread.start()
        try:
            _listen(threads, shift.calls, tick)
        except BaseException:
            asked.numbers.append(signal.SIGTERM)
            raise
        finally:
            for thread in threads:
                thread.join()
    _raise_first(shift.errors)
    if asked.numbers:
        number = asked.numbers[0]
        raise Interrupted(f"stopped by {signal.Signals(number).name}", number)
    return [shift.results[number] for number in range(len(items))]


class _Shift(Generic[Item, Result]):
    """What the threads share: the items that wait, what came of them, and the calls for the thread that waits."""

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
        """Take the next item, until none waits or a signal or an error stops all."""
        if place.cores:
            os.sched_setaffinity(0, place.cores)  # of this thread alone, and of what it starts
        while not self._signals:
            try:
                number, item = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self.results[number] = self._work(item, place, self.calls.put)
            except BaseException as error:  # raised again by run, in the thread that waits
                self.errors.append(error)
                self._signals.append(signal.SIGTERM)


def _listen(
    threads: list[threading.Thread], calls: queue.SimpleQueue[Callable[[], None]], tick: Callable[[float], None]
) -> None:
    """Make the calls that the threads post, until none of them runs and nothing is left."""
    started = told = time.monotonic()
    while True:
        ended = not any(thread.is_alive() for thread in threads)
        try:
            calls.get(timeout=0 if ended else _PAUSE_S)()
        except queue.Empty:
            if ended:
                return
        now = time.monotonic()
        if now - told >= 1:
            told = now
            tick(now - started)


def _raise_first(errors: list[BaseException]) -> None:
    """The error that came first; those that only say "stopped" came of it."""
    real = [error for error in errors if not isinstance(error, Interrupted)]
    for error in (*real, *errors):
        raise error
