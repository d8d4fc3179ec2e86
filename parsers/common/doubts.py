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
from perfctl.records.report import Diagnostic, join_first_names

SOURCE = "perfctl parser"
"""Of the diagnostics made here; ``perfctl ingest`` prints the warnings among them."""
SHOWN, _LINES_SHOWN = 8, 5
_LONGEST = 80

LOST = "excluded from the export, or lost"


def make_unknown_names_warning(
    names_by_kind: Mapping[str, Iterable[str]], effect: str = "left out"
) -> tuple[Diagnostic, ...]:
    """Return one warning that names everything in ``names_by_kind`` ("columns" -> names in order),
    or nothing."""
    distinct = {
        kind: list(map(_shorten_name, dict.fromkeys(names)))
        for kind, names in names_by_kind.items()
    }
    parts = [
        f"{kind} {join_first_names(names, SHOWN)}" for kind, names in distinct.items() if names
    ]
    text = f"not understood and {effect}: {'; '.join(parts)}"
    return (Diagnostic("warning", SOURCE, text),) if parts else ()


def list_unknown_names(names: Iterable[str], *recognized_names: Collection[str]) -> list[str]:
    """Return the names in none of the lists, without blank names."""
    return [
        name
        for name in names
        if name.strip() and not any(name in names_known for names_known in recognized_names)
    ]


def split_words(text: str) -> frozenset[str]:
    """Split a text of names separated by blanks."""
    return frozenset(text.split())


def make_newer_version_note(
    subject: str, version: str | None, newest: str
) -> tuple[Diagnostic, ...]:
    """One note when ``version`` is newer than the newest that was tested; as many parts count as
    ``newest`` has."""
    stated, tested = (
        list(map(int, re.findall(r"\d{1,9}", text or ""))) for text in (version, newest)
    )
    if stated[: len(tested)] <= tested:
        return ()
    newer_than = f"is newer than the newest tested version ({newest})"
    text = f"{subject} {_shorten_name(version or '')} {newer_than}: perfctl read all known parts"
    return (Diagnostic("info", SOURCE, text),)


def _shorten_name(name: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in name[: _LONGEST + 1]).split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


class SeveralRunsError(ReportError):
    """The file holds the outputs of several runs: ``perfctl.parsers.parse_every_run`` reads them
    one by one.

    ``starts``: the lines, from 1, at which outputs after the first begin; the first of them
    at least.
    """

    def __init__(
        self, path: Path, tool: str, reason: str, remedy: str, starts: Sequence[int] = ()
    ) -> None:
        super().__init__(path, tool, reason, remedy)
        self.args = (path, tool, reason, remedy, starts)
        self.starts = tuple(starts)


def make_repeated_part_error(
    path: Path, tool: str, subject: str, line: int, start_lines: Sequence[int] = ()
) -> SeveralRunsError:
    """Return the error for a file in which ``subject`` begins again at ``line`` (from 1).
    ``start_lines``: all such lines."""
    reason = (
        f"{subject} appears twice (again at line {line}); both together would double the totals"
    )
    remedy = (
        f"Split the file there (head -n {line - 1} and tail -n +{line}) and pass each part "
        "separately"
    )
    return SeveralRunsError(path, tool, reason, remedy, tuple(start_lines) or (line,))


def make_several_runs_error(path: Path, tool: str, start_lines: Sequence[int]) -> SeveralRunsError:
    """Return the error for a file that holds several runs, the second of which begins at the first
    of these lines."""
    reason = f"it holds {len(start_lines) + 1} runs; the second begins at line {start_lines[0]}"
    return SeveralRunsError(
        path,
        tool,
        reason,
        "Pass it to perfctl ingest, which reads each of them as a separate run",
        start_lines,
    )


def make_joined_parts_warning(subject: str, start_lines: Sequence[int]) -> tuple[Diagnostic, ...]:
    """Return a warning where parts that may be separate runs were read as one; they begin
    at ``start_lines``."""
    dots = ["..."] if len(start_lines) > _LINES_SHOWN else []
    line_list = ", ".join([*map(str, start_lines[:_LINES_SHOWN]), *dots])
    text = (
        f"{subject} begin at line {line_list} and were read as one run. If they are separate "
        "runs, split "
        "the file there"
    )
    return (Diagnostic("warning", SOURCE, text),) if start_lines else ()


def make_missing_numbers_warning(
    subject: str, numbers: Collection[int], *, expected_first: int | None = None, reason: str = LOST
) -> tuple[Diagnostic, ...]:
    """Return a warning if ``numbers`` ("IDs of launches"), which count up by 1, leave some out;
    a note if most are missing, because a filter chose the others then. ``expected_first``: the
    number that a complete report begins with; None if that may be any."""
    distinct = sorted(set(numbers))
    bounds = (
        distinct if expected_first is None else [min([expected_first, *distinct]) - 1, *distinct]
    )
    lost = [range(before + 1, after) for before, after in pairwise(bounds) if after - before > 1]
    if not distinct or not lost:
        return ()
    total = sum(map(len, lost))
    stretches = [f"{part[0]} to {part[-1]}" if len(part) > 1 else str(part[0]) for part in lost]
    text = f"{subject} {join_first_names(stretches, SHOWN)} {'are' if total > 1 else 'is'} missing"
    text += f" ({total:,} in all): {reason}" if len(lost) > 1 else f": {reason}"
    return (Diagnostic("warning" if total < len(distinct) else "info", SOURCE, text),)
