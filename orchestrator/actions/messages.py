"""How an action says what is going on while it works."""

from __future__ import annotations

from collections.abc import Callable
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
