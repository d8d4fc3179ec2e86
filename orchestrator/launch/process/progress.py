"""Whether a run's files still change: how perfctl tells a profiler that works from one that waits
for ever.

A collective that ncu replays waits for peers that never come, and its process then uses a whole
core: only output and files tell it from work.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

BASE_S = 15.0
"""Grace of nsys and ncu, which write a report at their end: both need seconds for an empty one."""
PLAIN_S = 3.0
"""Grace of anything else."""
_WRITERS = re.compile(r"(?:.*/)?(?:nsys|ncu)|\[\"(?:nsys|ncu)\".*")
"""A word that starts such a tool, or the list of words with which each rank of a launcher does."""
BYTES_PER_S = 2 * 2**20
"""Assumed speed at which a tool turns what it recorded into a report, on a slow file system."""
LONGEST_S = 900.0
"""No grace is longer, however much there is to write, and none is extended further."""


@dataclass(slots=True)
class FileActivity:
    """When the files in these places last changed."""

    places: tuple[Path, ...]
    """Folders; what is in them counts at any depth."""
    without: tuple[Path, ...] = ()
    """Files that do not count."""
    by_date: bool = True
    """Whether a file that keeps its size but has a new date counts as changed."""
    last: float = field(default_factory=time.monotonic)
    _seen: tuple[int, int, int] = field(init=False, default=(0, 0, 0))

    def __post_init__(self) -> None:
        self._seen = self._measure_file_count_bytes_and_mtime()

    def measure_idle_seconds(self) -> float:
        """Return seconds since the last change that was seen; call it about once a second."""
        now = self._measure_file_count_bytes_and_mtime()
        if now != self._seen:
            self._seen, self.last = now, time.monotonic()
        return time.monotonic() - self.last

    @property
    def total_bytes(self) -> int:
        """Bytes in all files, when they were last looked at."""
        return self._seen[1]

    def _measure_file_count_bytes_and_mtime(self) -> tuple[int, int, int]:
        """Return (files, bytes, newest change in nanoseconds)."""
        files = total = newest = 0
        for root in self.places:
            for folder, _, names in os.walk(root):
                for path in {Path(folder, name) for name in names}.difference(self.without):
                    with suppress(OSError):
                        facts = path.stat(follow_symlinks=False)
                        files, total, newest = (
                            files + 1,
                            total + facts.st_size,
                            max(newest, facts.st_mtime_ns),
                        )
        return files, total, newest if self.by_date else 0


@dataclass(frozen=True, slots=True)
class StallRule:
    """When a run counts as stuck."""

    seconds: float
    """Without any change of the run's output or files."""
    after: bytes | None = None
    """Pattern in the output that starts the watch; None: from the start."""

    def is_watch_started(self, logs: Iterable[Path]) -> bool:
        """Return whether the pattern is in the logs."""
        return self.after is None or any(_log_tail_contains(log, self.after) for log in logs)


def _log_tail_contains(log: Path, pattern: bytes) -> bool:
    with suppress(OSError):
        return re.search(pattern, log.read_bytes()[-(1 << 20) :], re.MULTILINE) is not None
    return False


def choose_kill_grace_seconds(argv: tuple[str, ...], written_bytes: int) -> float:
    """Return seconds between SIGTERM and SIGKILL for a command that has left ``written_bytes`` so
    far. A report of 1 GiB takes nsys minutes: killed before its end, it leaves nothing."""
    if not any(map(_WRITERS.fullmatch, argv)):
        return PLAIN_S
    return min(BASE_S + written_bytes / BYTES_PER_S, LONGEST_S)
