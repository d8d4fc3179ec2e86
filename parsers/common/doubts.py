"""Warns about parts of a report that its parser does not know, once per file: formats newer than
known are read as far as their columns allow. Each parser has a list of what it reads and one of
what it knows and skips; anything in neither is named in the warning.

Also reports what is missing from numbers that count up, and that a file holds several outputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic

SOURCE = "perfctl parser"
"""Of the diagnostics made here; ``perfctl ingest`` prints the warnings among them."""
SHOWN, _LINES_SHOWN = 8, 5
_LONGEST = 80

LOST = "excluded from the export, or lost"


def not_understood(
    found: Mapping[str, Iterable[str]], effect: str = "left out"
) -> tuple[Diagnostic, ...]:
    """Return one warning that names everything in ``found``, or nothing. ``found``: kind
    ("columns") -> names in order."""
    parts = []
    for what, names in found.items():
        if distinct := list(dict.fromkeys(names)):
            shown = ", ".join(map(_shown, distinct[:SHOWN]))
            more = f" and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
            parts.append(f"{what} {shown}{more}")
    return (
        (Diagnostic("warning", SOURCE, f"not understood and {effect}: {'; '.join(parts)}"),)
        if parts
        else ()
    )


def others(names: Iterable[str], *known: Collection[str]) -> list[str]:
    """Return the names in none of the lists, without blank names."""
    return [name for name in names if name.strip() and not any(name in some for some in known)]


def words(text: str) -> frozenset[str]:
    """Split a text of names separated by blanks."""
    return frozenset(text.split())


def newer(what: str, version: str | None, newest: str) -> tuple[Diagnostic, ...]:
    """One note when ``version`` is newer than the newest that was tested; as many parts count as
    ``newest`` has."""
    found, tested = _parts(version or ""), _parts(newest)
    if found[: len(tested)] <= tested:
        return ()
    newer_than = f"is newer than the newest tested version ({newest})"
    return (
        Diagnostic(
            "info",
            SOURCE,
            f"{what} {_shown(version or '')} {newer_than}: perfctl read all known parts",
        ),
    )


def _parts(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d{1,9}", version)]


def _shown(name: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in name[: _LONGEST + 1]).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class Joined(ReportError):
    """The file holds the outputs of several runs: ``perfctl.parsers.reports`` reads them one
    by one.

    ``starts``: the lines, from 1, at which outputs after the first begin; the first of them
    at least.
    """

    def __init__(
        self, path: Path, tool: str, reason: str, remedy: str, starts: Sequence[int] = ()
    ) -> None:
        super().__init__(path, tool, reason, remedy)
        self.args = (path, tool, reason, remedy, starts)
        self.starts = tuple(starts)


def repeated(path: Path, tool: str, what: str, line: int, starts: Sequence[int] = ()) -> Joined:
    """Return the error for a file in which ``what`` begins again at ``line`` (from 1). ``starts``:
    all such lines."""
    reason = f"{what} appears twice (again at line {line}); both together would double the totals"
    remedy = (
        f"Split the file there (head -n {line - 1} and tail -n +{line}) and pass each part "
        "separately"
    )
    return Joined(path, tool, reason, remedy, tuple(starts) or (line,))


def several(path: Path, tool: str, starts: Sequence[int]) -> Joined:
    """Return the error for a file that holds several runs, the second of which begins at the first
    of these lines."""
    reason = f"it holds {len(starts) + 1} runs; the second begins at line {starts[0]}"
    return Joined(
        path,
        tool,
        reason,
        "Pass it to perfctl ingest, which reads each of them as a separate run",
        starts,
    )


def joined(what: str, lines: Sequence[int]) -> tuple[Diagnostic, ...]:
    """Return a warning where parts that may be separate runs were read as one; they begin
    at ``lines``."""
    if not lines:
        return ()
    shown = ", ".join(map(str, lines[:_LINES_SHOWN])) + (
        ", ..." if len(lines) > _LINES_SHOWN else ""
    )
    text = (
        f"{what} begin at line {shown} and were read as one run. If they are separate runs, split "
        "the file there"
    )
    return (Diagnostic("warning", SOURCE, text),)


def numbering(
    what: str, numbers: Collection[int], *, first: int | None = None, why: str = LOST
) -> tuple[Diagnostic, ...]:
    """Return a warning if ``numbers`` ("IDs of launches"), which count up by 1, leave some out;
    a note if most are missing, because a filter chose the others then. ``first``: the number that
    a complete report begins with; None if that may be any."""
    distinct = sorted(set(numbers))
    if not distinct:
        return ()
    before = distinct[0] - 1 if first is None else min(first, distinct[0]) - 1
    lost = [
        (earlier + 1, later - 1)
        for earlier, later in pairwise([before, *distinct])
        if later - earlier > 1
    ]
    if not lost:
        return ()
    total = sum(end - start + 1 for start, end in lost)
    stretches = [str(start) if start == end else f"{start} to {end}" for start, end in lost]
    shown = ", ".join(stretches[:SHOWN])
    more = f" and {len(stretches) - SHOWN} more" if len(stretches) > SHOWN else ""
    is_one = len(stretches) == 1 and " " not in shown
    text = f"{what} {shown}{more} {'is' if is_one else 'are'} missing"
    text += f" ({total:,} in all): {why}" if len(lost) > 1 else f": {why}"
    return (Diagnostic("warning" if total < len(distinct) else "info", SOURCE, text),)
