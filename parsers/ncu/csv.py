"""Parser of Nsight Compute's CSV: long (``--csv``), wide (``--page raw --csv``) and summary.
Console text goes to :mod:`perfctl.parsers.ncu.text`; a file with neither raises ReportError with
what ncu's own messages say about it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from perfctl.parsers.ncu import csv_pages
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.csv_pages import VALUE, Columns
from perfctl.parsers.ncu.launches import Finished, Table
from perfctl.parsers.ncu.log import (
    CONNECTED,
    EXPORT,
    Rows,
    has_header,
    header_at,
    skip_to_header,
    why_no_csv,
)
from perfctl.parsers.text.doubts import not_understood, repeated, several
from perfctl.parsers.text.lines import Lines, Log, ends_of, open_text, readable
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

_TOOL_LINE = re.compile(r"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)
_PIVOTED = re.compile(r'\ufeff*"?Metric Name"?,"?[a-z0-9]+__')
_CONSOLE = re.compile(r"^ +Section: .+\n +-{20,}", re.MULTILINE)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's CSV, a log of ncu, or ncu's console text (which ``parse`` passes
    to ncu_text)."""
    return any(map(_is_ncu, ends_of(path, head)))


def _is_ncu(text: str) -> bool:
    return bool(
        _TOOL_LINE.search(text) or _PIVOTED.match(text) or _CONSOLE.search(text)
    ) or has_header(text)


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of ncu."""
    log, table = Log(), Table(path)
    with readable(path, "ncu"), open_text(path) as file:
        source = Lines(file, log)
        first = skip_to_header(source, log)
        if first is None and log.console_lines:
            return ncu_text.parse(path)
        if first is None:
            raise ReportError(path, "ncu", *why_no_csv(log))
        header = _header(path, first)
        reader = Rows(source, log, quoted=first.startswith('"'))
        if csv_pages.is_summary(header):
            return _summary_report(path, reader, header, log)
        if VALUE in header:
            is_whole = csv_pages.read_long(reader, header, table, log)
        else:
            is_whole = csv_pages.read_wide(reader, header, table, log)
        if not is_whole:
            raise several(path, "ncu", _starts(path))
    if not table.launches:
        reason, remedy = (
            why_no_csv(log)
            if log.tool_lines
            else ("the CSV ends after its header", "Profile again")
        )
        raise ReportError(path, "ncu", f"the CSV has a header but no rows: {reason}", remedy)
    form = f"ncu CSV, {'long' if VALUE in header else 'wide'}, {len(header)} columns"
    notes = not_understood({"columns": Columns(header).unknown()})
    return Finished(table).report(form, log, notes)


def _starts(path: Path) -> list[int]:
    """The lines at which outputs of ncu after the first begin: with its first message, else with
    the header."""
    log, starts, connected, is_below = Log(), list[int](), 0, False
    with open_text(path) as file:
        for number, line in enumerate(Lines(file, log), 1):
            if header_at(line) >= 0:
                starts += [connected or number + log.cut_rows] if is_below else []
                connected, is_below = 0, True
            elif is_below and not connected and line.startswith(CONNECTED):
                connected = number + log.cut_rows
    return [*starts, connected] if connected else starts


def _header(path: Path, line: str) -> list[str]:
    """The column names, or ReportError when the line is cut or is the header of a page
    without metrics."""
    try:
        header = next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        reason = "the CSV is cut off inside its header"
        raise ReportError(path, "ncu", reason, "Copy it again or profile again") from error
    if csv_pages.is_summary(header):
        return header
    missing = ", ".join(Columns(header).missing())
    if missing or not ("Metric Name" in header or csv_pages.metric_columns(header)):
        lacking = f"column {missing}" if missing else "metric columns"
        reason = f"the CSV has no {lacking} (it is cut off, or from another page of ncu)"
        raise ReportError(path, "ncu", reason, EXPORT)
    return header


def _summary_report(path: Path, reader: Rows, header: list[str], log: Log) -> Report:
    rows = csv_pages.read_summary(reader, header, log)
    if rows is None:
        starts = _starts(path)
        raise repeated(path, "ncu", "a page of ncu", starts[0], starts)
    if not rows:
        raise ReportError(
            path, "ncu", "the CSV has a header but no rows", "Export the report again"
        )
    notes = not_understood({"columns": csv_pages.unknown(header)})
    return csv_pages.summary_report(
        path, f"ncu CSV, summary, {len(header)} columns", rows, log, notes
    )
