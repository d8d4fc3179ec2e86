"""The error for a report file that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class ReportError(Exception):
    """A profiler report that cannot be read.

    ``tool`` is the tool that wrote the file ("ncu", "nsys", ... or "unknown"). ``reason`` states
    the problem and its place (line, table or byte), ``remedy`` what to do next.
    """

    def __init__(self, path: Path, tool: str, reason: str, remedy: str) -> None:
        super().__init__(path, tool, reason, remedy)
        self.path, self.tool, self.reason, self.remedy = path, tool, reason, remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. {self.remedy}"


@contextmanager
def convert_os_errors(
    path: Path,
    tool: str,
    remedy: str = "Check the path and its permissions",
    reason: str = "it cannot be read",
) -> Iterator[None]:
    """Raise a ReportError about ``path`` for an OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise ReportError(path, tool, f"{reason} ({error.strerror or error})", remedy) from error
