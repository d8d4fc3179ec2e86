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
from typing import TypeVar

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
    waiting: queue.SimpleQueue[tuple[int, Item]] = queue.SimpleQueue()
    for entry in enumerate(items):
        waiting.put(entry)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    with process.stop_signals() as asked:

        def serve(place: Place) -> None:
            if place.cores:
                os.sched_setaffinity(0, place.cores)  # of this thread alone, and of what it starts
            while not asked.numbers:
                try:
                    number, item = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    results[number] = work(item, place, calls.put)
                except BaseException as error:  # raised again below, in the thread that waits
                    errors.append(error)
                    asked.numbers.append(signal.SIGTERM)

        threads = [threading.Thread(target=partial(serve, place), name=place.label) for place in places]
        for thread in threads:
            thread.start()
        try:
            _listen(threads, calls, tick)
        except BaseException:
            asked.numbers.append(signal.SIGTERM)
            raise
        finally:
            for thread in threads:
                thread.join()
    _raise_first(errors)
    if asked.numbers:
        number = asked.numbers[0]
        raise Interrupted(f"stopped by {signal.Signals(number).name}", number)
    return [results[number] for number in range(len(items))]


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
