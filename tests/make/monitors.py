"""Logs of monitors, as files."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers import parse
from perfctl.records.report import Report


def read(folder: Path, text: str) -> Report:
    path = folder / "monitor.txt"
    path.write_text(text)
    return parse(path)
