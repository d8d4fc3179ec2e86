"""One report twice in one file, as when outputs were joined or appended: read as one, all of it would count twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import Diagnostic
from perfctl.parsers.unknown import SOURCE

_SHOWN = 5


def repeated(path: Path, tool: str, what: str, line: int) -> ReportError:
    """The error for a file in which ``what`` begins once more at ``line`` (from 1)."""
    reason = f"{what} stands in it twice, the second time from line {line}: read as one, both would be added up"
    remedy = f"Split the file there (head -n {line - 1} and tail -n +{line}) and give each part by itself"
    return ReportError(path, tool, reason, remedy)


def joined(what: str, lines: Sequence[int]) -> tuple[Diagnostic, ...]:
    """One warning where parts that may be runs of their own were read as one; ``lines`` are those they begin at."""
    if not lines:
        return ()
    shown = ", ".join(map(str, lines[:_SHOWN])) + (", ..." if len(lines) > _SHOWN else "")
    text = f"{what} begin at line {shown}: they count as one run. Split the file there if they are runs of their own"
    return (Diagnostic("warning", SOURCE, text),)
