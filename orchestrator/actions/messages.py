"""How an action says what is going on while it works. And who hears how an ingest goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Messages(Protocol):
    """Receives one line at a time. The command line prints them to stderr; the Python API drops
    them by default."""

    def note(self, text: str) -> None:
        """What is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""


class Silent:
    """Drops every line."""

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


SILENT: Messages = Silent()

Progress = Callable[[str, int, int], None]
"""Takes what is being done now, the parts done before it, and how many there are."""


def no_progress(what: str, done: int, total: int) -> None:
    """Tells nobody."""


class IngestListener(Messages, Protocol):
    """Hears how the reading goes."""

    def found(self, total: int) -> None:
        """So many files and folders will be read."""

    def begin(self, path: Path, what: str = "reading") -> None:
        """``what`` happens to ``path`` from now on."""

    def end(self) -> None:
        """The current file is done."""

    def failed(self, text: str) -> None:
        """One report could not be read, and why."""


class _SilentIngest(Silent):
    def found(self, total: int) -> None: ...
    def begin(self, path: Path, what: str = "reading") -> None: ...
    def end(self) -> None: ...
    def failed(self, text: str) -> None: ...


SILENT_INGEST: IngestListener = _SilentIngest()
"""Hears nothing."""
