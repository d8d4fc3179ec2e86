"""A tool that could not start just then, and says so, is started once more."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from perfctl.orchestrator.launch import evidence, process
from perfctl.orchestrator.launch.profiler import Command, Outcome, RunRequest

PAUSE_S = (1.0, 3.0)
"""Least and most, drawn anew each time: what collided would collide again."""


def run(command: Command, asked: RunRequest, start: Callable[[str], Outcome]) -> Outcome:
    """What ``start``, told a name for the stage, comes to; the second time, where the first had no chance.

    The run's log says so. Raises Stopped when a signal comes between the two.
    """
    outcome = start(command.stage)
    if not _had_no_chance(command, asked, outcome):
        return outcome
    cleared = command.clear() if command.clear is not None else None
    with outcome.stderr.open("a", encoding="utf-8") as log:
        log.write("perfctl: the profiler could not start just then (see above), and is started once more\n")
        log.write(f"perfctl: {cleared}\n" if cleared else "")
    with process.stop_signals() as stop:
        until = time.monotonic() + random.uniform(*PAUSE_S)  # noqa: S311  # nosec B311
        while time.monotonic() < until and not stop.numbers:
            time.sleep(0.1)
    if stop.numbers:
        number = stop.numbers[0]
        said = f"stopped by {signal.Signals(number).name} before {command.stage}"
        raise process.Stopped(said, number, "Give the same command to go on", outcome)
    return start(f"{command.stage}-again")


def _had_no_chance(command: Command, asked: RunRequest, outcome: Outcome) -> bool:
    """Did it fail before the program could leave a record, with the words that the tool has for it?"""
    if command.once_more is None or not outcome.exit_code or asked.paths.workload_record.exists():
        return False
    return any(evidence.find_lines(log, command.once_more, 1) for log in (outcome.stdout, outcome.stderr))
