"""Refuses a file in which a report of ``nsys stats`` appears twice: joined outputs would be summed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from perfctl.parsers.nsys_stats_lines import Start
from perfctl.parsers.nsys_stats_names import NAMES, UNKNOWN
from perfctl.parsers.repeated import repeated

_LIKE_OTHERS = ("osrt_sum", UNKNOWN)
"""Sums of calls without a title all have the same columns: only a name that two of them share makes them one report."""


def check_once(path: Path, tool: str, traces: Iterable[Start], sums: Sequence[tuple[Start, list[list[str]]]]) -> None:
    """Raise ReportError, naming the line, when a report appears twice. Sums come with their rows."""
    found: dict[str, list[tuple[int, frozenset[str]]]] = {}
    tables = [*((start, frozenset[str]()) for start in traces), *((start, _names(start, rows)) for start, rows in sums)]
    for start, names in sorted(tables, key=lambda table: table[0].line):
        for line, others in found.get(start.report, ()):
            if line != start.line and (start.report not in _LIKE_OTHERS or names & others):
                raise repeated(path, tool, f"the report {start.report}", start.line)
        found.setdefault(start.report, []).append((start.line, names))


def _names(start: Start, rows: list[list[str]]) -> frozenset[str]:
    at = next((index for index, column in enumerate(start.columns) if column.label in NAMES), None)
    return frozenset() if at is None else frozenset(row[at] for row in rows)
