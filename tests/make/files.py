"""Files with a given content."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers import parse
from perfctl.records.report import Report


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    """Return the path of the file, which holds the text with the line ends that it has."""
    path.write_bytes(content.encode(encoding) if isinstance(content, str) else content)
    return path


def read(folder: Path, content: str | bytes, name: str = "report.txt") -> Report:
    """Return the report in a file of this content."""
    return parse(write(folder / name, content))
