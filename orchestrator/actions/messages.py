"""How an action says what is going on while it works."""

from __future__ import annotations

from typing import Protocol


class Messages(Protocol):
    """Receives one line at a time. The command line prints them to stderr; the Python API drops them by default."""

    def note(self, text: str) -> None:
        """What is going on: "measuring peaks, about 20 s"."""

    def warning(self, text: str) -> None:
        """What the user should know before using the result."""


class Silent:
    """Drops every line."""

    def note(self, text: str) -> None: ...
    def warning(self, text: str) -> None: ...


SILENT: Messages = Silent()
