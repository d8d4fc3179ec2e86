"""Refuses a report that appears twice in one file, as when outputs were joined: all of it would count twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import Diagnostic
from perfctl.parsers.unknown import SOURCE

_SHOWN = 5


def repeated(path: Path, tool: str, what: str, line: int) -> ReportError:
    """Return the error for a file in which ``what`` begins again at ``line`` (from 1)."""
    reason = f"{what} appears twice (again at line {line}); counting both would double the totals"
    remedy = f"Split the file there (head -n {line - 1} and tail -n +{line}) and pass each part separately"
    return ReportError(path, tool, reason, remedy)


def joined(what: str, lines: Sequence[int]) -> tuple[Diagnostic, ...]:
    """Return a warning where parts that may be separate runs were read as one; they begin at ``lines``."""
    if not lines:
        return ()
    shown = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
    text = f"{what} begin at line {shown} and were read as one run. If they are separate runs, split the file there"
    return (Diagnostic("warning", SOURCE, text),)
