"""Who hears what goes on while a command works: the command line prints it, the Python API does
not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Progress = Callable[[str, int, int], None]
"""Takes what is being done now, the parts done before it, and how many there are."""


class Messages(Protocol):
    """Hears one line at a time."""

    def note(self, text: str) -> None:
        """What is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""


class Events(Messages, Protocol):
    """Hears lines, and how far the work is."""

    def progress(self, what: str, done: int, total: int) -> None:
        """What is being done now, the parts done before it, and how many there are."""


class Silent:
    """Drops everything."""

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int) -> None: ...


SILENT = Silent()


def no_progress(what: str, done: int, total: int) -> None:
    """Tells nobody."""
