"""Cuts a text that holds the outputs of several runs into one text a run, and reads each."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from perfctl.records.errors import ReportError

if TYPE_CHECKING:
    from perfctl.parsers.common.doubts import SeveralRunsError
    from perfctl.records.report import Report

_A_DATE = 946_684_800 * 10**9
"""1 January 2000, in ns: a reading before it has no date."""


class RunInFile(NamedTuple):
    """One of the runs that a file holds: its report, or else why it has none."""

    number: int
    """From 1, in the order of the file."""
    report: Report | None
    is_of_several: bool = True
    error: ReportError | None = None
    twin: int | None = None
    """The earlier part that it repeats, to the nanosecond: the same output twice, so it is not
    a run."""


def parse_each_run_of_file(
    path: Path, several_runs_error: SeveralRunsError, parse: Callable[[Path], Report]
) -> Iterator[RunInFile]:
    """Yield the runs of ``path``, in which outputs after the first begin as ``several_runs_error``
    says. Raises OSError."""
    from perfctl.records.report import Diagnostic

    numbers: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="perfctl-parts-") as folder:
        pieces = _cut_file_at_lines(path, several_runs_error.starts, Path(folder))
        for number, (piece, lines) in enumerate(pieces, 1):
            try:
                report = parse(piece)
            except ReportError as error:
                fault = ReportError(path, error.tool, f"{lines}: {error.reason}", error.remedy)
                yield RunInFile(number, None, error=fault)
                continue
            times = _compute_duplicate_run_digest(report)
            if times and (twin := numbers.setdefault(times, number)) != number:
                yield RunInFile(number, None, twin=twin)
                continue
            note = Diagnostic("info", "perfctl", f"run {number} of those in this file: {lines}")
            diagnostics = (*report.diagnostics, note)
            yield RunInFile(number, replace(report, path=path, diagnostics=diagnostics))


def _compute_duplicate_run_digest(report: Report) -> str:
    """Return a digest of all its figures where there are times among them, which no two runs share;
    "" where there are none."""
    kernels, samples = list(report.kernels), list(report.samples)
    operations = list(report.operations)
    has_times = any(
        (
            *(kernel.duration_ns for kernel in kernels),
            *(operation.cpu_ns or operation.device_ns for operation in operations),
            *(figure.value for figure in report.summaries if figure.unit == "ns"),
            *(sample.at_ns > _A_DATE for sample in samples),
        )
    )
    if not has_times:
        return ""
    text = repr((kernels, samples, operations, report.summaries))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _cut_file_at_lines(
    path: Path, start_lines: Sequence[int], folder: Path
) -> Iterator[tuple[Path, str]]:
    """Yield each piece as a file of the same name, in UTF-8, and which lines it has; the file
    exists until the next is asked for."""
    from perfctl.parsers.common.lines import BLOCK, open_undecorated_text

    with open_undecorated_text(path) as read:
        line, text = 1, read(BLOCK)
        for number, end in enumerate([*start_lines, None]):
            part = folder / str(number) / path.name
            part.parent.mkdir(parents=True)
            first = line
            with part.open("w", encoding="utf-8", errors="replace", newline="") as piece:
                while text and (end is None or line < end):
                    cut = len(text) if end is None else _find_position_after_lines(text, end - line)
                    piece.write(text[:cut])
                    line += text.count("\n", 0, cut)
                    text = text[cut:] or read(BLOCK)
            yield part, f"lines {first:,} to {max(first, line - 1):,}"
            shutil.rmtree(part.parent, ignore_errors=True)


def _find_position_after_lines(text: str, count: int) -> int:
    """Position after so many line ends; the length of the text where it has fewer."""
    position = 0
    for _ in range(count):
        position = text.find("\n", position) + 1
        if not position:
            return len(text)
    return position
