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
"""Nothing is shown of what is done by then."""
BAR_S = 0.25
_MB = 1_000_000
_FEWEST_BYTES = 1 << 16


class _Shown:
    """A line about what is going on, with percent and time left, on a terminal only; from a thread
    of its own."""

    total = 0
    """Parts of the work; 0 while that is not known."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self._stopped = threading.Event()

    def line(self) -> str:
        raise NotImplementedError

    def part(self) -> float:
        """Parts done, with the share of the current one."""
        raise NotImplementedError

    def how_far(self) -> str:
        """ "42%, about 12 s left  "; nothing while that is not known."""
        part = self.part()
        if not self.total or not 0 < part <= self.total:
            return ""
        spent = time.monotonic() - self.start
        left = _clock(spent * (self.total / part - 1))
        return f"{part / self.total * 100:.0f}%, about {left} left  "

    def stop(self) -> None:
        """Show no more."""
        self._stopped.set()

    def show(self) -> None:
        """Runs in a thread of its own until ``stop``."""
        if self._stopped.wait(AFTER_S) or not sys.stderr.isatty():
            return
        with console.bar() as bar:
            task: Any = bar.add_task("", total=self.total)
            while not self._stopped.wait(BAR_S):
                said = console.safe(self.how_far() + self.line())
                bar.update(task, description=said, completed=self.part(), total=self.total or None)


def _clock(seconds: float) -> str:
    """ "12 s", "3 min 20 s"."""
    whole = max(round(seconds), 1)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


class Steps(_Shown):
    """The parts of a calculation, or the files that are read; made by ``working``. It is called
    with each."""

    def __init__(self) -> None:
        super().__init__()
        self._what, self._done = "starting", 0
        self._path: Path | None = None
        self._began = time.monotonic()

    def __call__(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        """``path``: the file that is read, whose position says how far it is."""
        if path != self._path:
            self._began = time.monotonic()
        self._what, self._done, self._path, self.total = what, done, path, total

    def line(self) -> str:
        """ "12 of 80: tracing torchvision:vgg16", "2 of 5: trace.json: reading, 41 of 111 MB, 3
        s"."""
        number = f"{min(self._done + 1, self.total)} of {self.total}: " if self.total > 1 else ""
        if self._path is None:
            return f"{number}{self._what}"
        position, size = position_in(self._path)
        read = f", {position / _MB:,.0f} of {size / _MB:,.0f} MB" if position else ""
        seconds = f"{time.monotonic() - self._began:.0f} s"
        return f"{number}{self._path.name}: {self._what}{read}, {seconds}"

    def part(self) -> float:
        """Parts done, the share of the file that is read counted."""
        position, size = position_in(self._path) if self._path else (0, 0)
        return self._done + (min(position / size, 1.0) if size else 0.0)


@contextmanager
def working() -> Iterator[Steps]:
    """Show on stderr how far a calculation is that tells its parts, if it takes over two seconds
    and stderr is a terminal."""
    now = Steps()
    with _showing(now):
        yield now


@contextmanager
def _showing(now: _Shown) -> Iterator[None]:
    thread = threading.Thread(target=now.show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        now.stop()
        thread.join()


def position_in(path: Path) -> tuple[int, int]:
    """(bytes of it that this process has read, its size); 0 where that cannot be told."""
    try:
        size = path.stat().st_size if path.is_file() else 0
        places = [
            _place(opened.name) for opened in Path("/proc/self/fd").iterdir() if _is(opened, path)
        ]
    except OSError:
        return 0, 0
    place = min(places, default=0)  # what hashes it meanwhile is far ahead
    return (place, size) if place >= _FEWEST_BYTES else (0, size)


def _is(opened: Path, path: Path) -> bool:
    try:
        return opened.samefile(path)
    except OSError:  # closed in the meantime
        return False


def _place(number: str) -> int:
    try:
        text = Path(f"/proc/self/fdinfo/{number}").read_text()
    except OSError:
        return 0
    return next((int(line[4:]) for line in text.splitlines() if line.startswith("pos:")), 0)
