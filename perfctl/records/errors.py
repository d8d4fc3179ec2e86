"""The error for a report file that cannot be read."""

from __future__ import annotations

from pathlib import Path


class ReportError(Exception):
    """A report that cannot be read.

    ``tool`` is the tool that wrote the file ("ncu", "nsys", ... or "unknown"), ``reason`` says what is wrong and
    where (line, table or byte), ``remedy`` what to do next.
    """

    def __init__(self, path: Path, tool: str, reason: str, remedy: str) -> None:
        super().__init__(path, tool, reason, remedy)
        self.path = path
        self.tool = tool
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}. {self.remedy}"
