"""Retry a profiler once if it reports a start-up failure."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from perfctl.orchestrator.launch import evidence, process
from perfctl.orchestrator.launch.profiler import Command, Outcome, RunRequest

PAUSE_S = (1.0, 3.0)
"""Shortest and longest wait, drawn at random so that two that collided do not collide again."""


def retry_start(command: Command, asked: RunRequest, start: Callable[[str], Outcome]) -> Outcome:
    """Call ``start`` with the name of the stage; a second time if the profiler could not start.

    The outcome is that of the last call. The run's log notes a retry. Raises Stopped when a signal arrives in between.
    """
    outcome = start(command.stage)
    if not _failed_to_start(command, asked, outcome):
        return outcome
    cleared = command.clear() if command.clear is not None else None
    with outcome.stderr.open("a", encoding="utf-8") as log:
        log.write("perfctl: the profiler could not start (see above); trying once more\n")
        log.write(f"perfctl: {cleared}\n" if cleared else "")
    with process.stop_signals() as stop:
        until = time.monotonic() + random.uniform(*PAUSE_S)  # noqa: S311  # nosec B311
        while time.monotonic() < until and not stop.numbers:
            time.sleep(0.1)
    if stop.numbers:
        number = stop.numbers[0]
        said = f"stopped by {signal.Signals(number).name} before {command.stage}"
        raise process.Stopped(said, number, "Repeat the same command to continue", outcome)
    return start(f"{command.stage}-again")


def _failed_to_start(command: Command, asked: RunRequest, outcome: Outcome) -> bool:
    """Whether it failed with the profiler's start-up message, before the program left a record."""
    if command.retry_on is None or not outcome.exit_code or asked.paths.workload_record.exists():
        return False
    return any(evidence.find_lines(log, command.retry_on, 1) for log in (outcome.stdout, outcome.stderr))
