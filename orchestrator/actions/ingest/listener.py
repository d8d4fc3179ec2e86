"""Who hears how an ingest goes."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from perfctl.orchestrator.actions.messages import Messages, Silent


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


class _Silent(Silent):
    def found(self, total: int) -> None: ...
    def begin(self, path: Path, what: str = "reading") -> None: ...
    def end(self) -> None: ...
    def failed(self, text: str) -> None: ...


SILENT: IngestListener = _Silent()
"""Hears nothing."""
