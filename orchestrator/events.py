"""Who hears what goes on while a command works: the command line prints it, the Python API does
not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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

    def error(self, text: str) -> None:
        """What went wrong with a part of the work, which goes on."""

    def ask(self, question: str, default: str) -> str | None:
        """Return what the user answers; None if nobody can."""

    @property
    def command_line(self) -> str | None:
        """What the user typed, which the store keeps; None from Python."""

    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None:
        """What is being done now, the parts done before it, and how many there are (0: not known
        yet). ``path``: the file that is being read."""


class Silent:
    """Drops everything."""

    command_line = None

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...
    def progress(self, what: str, done: int, total: int, path: Path | None = None) -> None: ...
    def ask(self, question: str, default: str) -> None: ...


SILENT = Silent()


def no_progress(what: str, done: int, total: int) -> None:
    """Tells nobody."""
