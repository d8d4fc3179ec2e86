"""Receiver of what goes on while a command works: the command line prints it, the Python API does
not."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Events(Protocol):
    """Receiver of lines, and of how far the work is."""

    def note(self, text: str) -> None:
        """Report what is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """Report what the user should know before using the result."""

    def error(self, text: str) -> None:
        """Report what went wrong with a part of the work, which goes on."""

    def ask(self, question: str, default: str) -> str | None:
        """Return what the user answers; None if no one can."""

    @property
    def command_line(self) -> str | None:
        """Return what the user typed, which the database keeps; None from Python."""

    def progress(self, label: str, done: int, total: int, path: Path | None = None) -> None:
        """Report what is being done now, the parts done before it, and how many there are (0: not
        known yet). ``path``: the file that is being read."""


class SilentEvents:
    """Receiver that drops everything."""

    command_line = None

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...
    def progress(self, label: str, done: int, total: int, path: Path | None = None) -> None: ...
    def ask(self, question: str, default: str) -> None: ...


SILENT = SilentEvents()
