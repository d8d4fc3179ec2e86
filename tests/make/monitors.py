"""Logs of monitors written by tests, and what their reports say."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers import parse
from perfctl.records.report import Report


def read(folder: Path, text: str) -> Report:
    path = folder / "monitor.txt"
    path.write_text(text)
    return parse(path)


def placed(report: Report) -> list[tuple[int, int | None]]:
    return [(sample.at_ns, sample.device_index) for sample in report.samples]
