"""Progress of reading files and of calculations: percent and time left, on a terminal only. Quick
calls show nothing.

The position in the file comes from the kernel (/proc/self/fdinfo), not from the parser: that works
for every parser that reads from front to back, gzipped or not. SQLite reads anywhere in its file,
so for a database only the time is shown.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfctl.orchestrator.cli import console

AFTER_S = 2.0
"""Seconds after which a line is shown."""
BAR_S = 0.25
"""Seconds between two updates of the line."""
_MB = 1_000_000
_FEWEST_BYTES = 1 << 16


class ProgressSteps:
    """The parts of a calculation, or the files that are read, and a line about them on a terminal.
    :func:`show_progress` makes it. It is called with each part."""

    total = 0
    """Parts of the work; 0 while their number is missing."""

    def __init__(self) -> None:
        self._what, self._done = "starting", 0
        self._path: Path | None = None
        self._start = self._part_start = time.monotonic()

    def __call__(self, label: str, done: int, total: int, path: Path | None = None) -> None:
        """``path``: the file that is read, whose position says how far it is."""
        if path != self._path:
            self._part_start = time.monotonic()
        self._what, self._done, self._path, self.total = label, done, path, total

    def format_line(self) -> str:
        """Return "12 of 80: tracing torchvision:vgg16", "2 of 5: trace.json: reading, 41 of 111 MB,
        3 s"."""
        number = f"{min(self._done + 1, self.total)} of {self.total}: " if self.total > 1 else ""
        if self._path is None:
            return f"{number}{self._what}"
        position, size = measure_read_and_total_bytes(self._path)
        read = f", {position / _MB:,.0f} of {size / _MB:,.0f} MB" if position else ""
        seconds = f"{time.monotonic() - self._part_start:.0f} s"
        return f"{number}{self._path.name}: {self._what}{read}, {seconds}"

    def count_done_parts(self) -> float:
        """Return the parts done, with the share of the file that is read."""
        position, size = measure_read_and_total_bytes(self._path) if self._path else (0, 0)
        return self._done + (min(position / size, 1.0) if size else 0.0)

    def format_percent_and_time_left(self) -> str:
        """Return "42%, about 12 s left  "; nothing while that is not known."""
        part = self.count_done_parts()
        if not self.total or not 0 < part <= self.total:
            return ""
        spent = time.monotonic() - self._start
        time_left = _format_duration(spent * (self.total / part - 1))
        return f"{part / self.total * 100:.0f}%, about {time_left} left  "

    def show_until(self, stopped: threading.Event) -> None:
        """Show the line until ``stopped`` is set."""
        if stopped.wait(AFTER_S) or not sys.stderr.isatty():
            return
        with console.open_progress_bar() as bar:
            task: Any = bar.add_task("", total=self.total)
            while not stopped.wait(BAR_S):
                text = console.escape_control_characters(
                    self.format_percent_and_time_left() + self.format_line()
                )
                bar.update(
                    task,
                    description=text,
                    completed=self.count_done_parts(),
                    total=self.total or None,
                )


def _format_duration(seconds: float) -> str:
    """Return "12 s", or "3 min 20 s"."""
    rounded = max(round(seconds), 1)
    return f"{rounded} s" if rounded < 60 else f"{rounded // 60} min {rounded % 60} s"


@contextmanager
def show_progress() -> Iterator[ProgressSteps]:
    """Show on stderr how far a calculation is that reports its parts, if it takes over two seconds
    and stderr is a terminal."""
    steps, stopped = ProgressSteps(), threading.Event()
    thread = threading.Thread(target=steps.show_until, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield steps
    finally:
        stopped.set()
        thread.join()


def measure_read_and_total_bytes(path: Path) -> tuple[int, int]:
    """Return the bytes of a file that this process has read, and its size; 0 for what is
    unknown."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        positions = [
            _read_descriptor_position(handle.name)
            for handle in Path("/proc/self/fd").iterdir()
            if _is_same_file(handle, path)
        ]
    except OSError:
        return 0, 0
    position = min(positions, default=0)  # what hashes it meanwhile is far ahead
    return (position, size) if position >= _FEWEST_BYTES else (0, size)


def _is_same_file(handle: Path, path: Path) -> bool:
    try:
        return handle.samefile(path)
    except OSError:  # closed in the meantime
        return False


def _read_descriptor_position(number: str) -> int:
    try:
        text = Path(f"/proc/self/fdinfo/{number}").read_text()
    except OSError:
        return 0
    return next((int(line[4:]) for line in text.splitlines() if line.startswith("pos:")), 0)
