"""What is told while a command works: the command line prints it, the Python API drops it."""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Hears what goes on while a command works."""

    def note(self, text: str) -> None:
        """What is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""

    def progress(self, what: str, done: int, total: int) -> None:
        """What is being done now, the parts done before it, and how many there are."""


class Silent:
    """Drops everything."""

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int) -> None: ...


SILENT: Events = Silent()
