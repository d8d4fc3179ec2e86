"""Time limits as Slurm writes them, and how long before the limit a profiler is told to stop."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfctl.orchestrator.errors import UsageError

SLOW_WRITERS = ("nsys", "ncu", "dlprof")
"""Profilers that need minutes to write a large report."""
STOP_BEFORE_S = 300
"""Seconds before the time limit at which one of SLOW_WRITERS is told to stop."""
STOP_BEFORE_QUICK_S = 60
"""Seconds before the time limit at which any other profiler is told to stop. Slurm checks about twice a minute: its signal
comes up to a minute early, never late."""
_SHORTEST_S = 10


def minutes(text: str) -> int:
    """Slurm's time limits (MINUTES, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS) in minutes, seconds rounded up.
    Raises UsageError."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if found is None:
        raise UsageError(f"`time`: '{text}' is not a time limit", "For example 00:30:00")
    days, hours, mins, seconds = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        hours, mins, seconds = 0, hours, mins
    return days * 1440 + hours * 60 + mins + (seconds > 0)


def stop_before(asked: int | None, time: str | None, profilers: Iterable[str]) -> int:
    """Seconds before the time limit ``time`` at which the profiler is told to stop; by default what the slowest of
    ``profilers`` needs to write, and at most a quarter of the limit.

    Raises UsageError when ``asked`` is not shorter than the limit: the scheduler would stop each task at its start.
    """
    limit = None if time is None or not re.match(r"\d", time) else minutes(time) * 60
    if asked is None:
        usual = STOP_BEFORE_S if set(profilers) & set(SLOW_WRITERS) else STOP_BEFORE_QUICK_S
        return usual if limit is None else max(min(usual, limit // 4), _SHORTEST_S)
    if limit is not None and asked >= limit:
        said = f"`stop_before`: {asked} s leave nothing of a time limit of {limit} s"
        raise UsageError(said, "Ask for a longer `time`, or stop later")
    return asked


def grace(stop_before_s: int) -> int:
    """Seconds of these for the profiler to write its report; the rest, at least 10 s, is for exporting it."""
    return max(stop_before_s - max(stop_before_s // 4, 10), 3)
