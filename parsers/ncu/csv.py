"""Parser of Nsight Compute's CSV: long (``--csv``), wide (``--page raw --csv``) and summary. Console text goes to
:mod:`perfctl.parsers.ncu.text`; a file with neither raises ReportError with what ncu's own messages say about it."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from perfctl.parsers.ncu import csv_pages
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.csv_pages import VALUE, Columns
from perfctl.parsers.ncu.launches import Finished, Table
from perfctl.parsers.ncu.log import EXPORT, Rows, has_header, header_at, skip_to_header, why_no_csv
from perfctl.parsers.text.doubts import joined, not_understood, repeated
from perfctl.parsers.text.lines import Lines, Log, ends_of, open_text, readable
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

_TOOL_LINE = re.compile(r"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)
_PIVOTED = re.compile(r'\ufeff*"?Metric Name"?,"?[a-z0-9]+__')
_CONSOLE = re.compile(r"^ +Section: .+\n +-{20,}", re.MULTILINE)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's CSV, a log of ncu, or ncu's console text (which ``parse`` passes to ncu_text)."""
    return any(map(_is_ncu, ends_of(path, head)))


def _is_ncu(text: str) -> bool:
    return bool(_TOOL_LINE.search(text) or _PIVOTED.match(text) or _CONSOLE.search(text)) or has_header(text)


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
        unknown = _read_tables(path, reader, header, table, log)
        further = _further(path, table)
    if not table.launches:
        reason, remedy = why_no_csv(log) if log.tool_lines else ("the CSV ends after its header", "Profile again")
        raise ReportError(path, "ncu", f"the CSV has a header but no rows: {reason}", remedy)
    form = f"ncu CSV, {'long' if VALUE in header else 'wide'}, {len(header)} columns"
    notes = (*not_understood({"columns": unknown}), *joined("further tables of ncu", further))
    return Finished(table).report(form, log, notes)


def _further(path: Path, table: Table) -> list[int]:
    """The lines at which tables after the first begin. Raises ReportError when one has launches of an earlier one."""
    last = max((launch.order[0] for launch in table.launches), default=0)
    at = _header_lines(path) if last else []
    if table.again is not None:
        process, launch, number = table.again
        raise repeated(path, "ncu", f"launch {launch} of process {process}", at[min(number, len(at) - 1)] if at else 1)
    return at[1:]


def _header_lines(path: Path) -> list[int]:
    with open_text(path) as file:
        return [number for number, line in enumerate(Lines(file, Log()), 1) if header_at(line) >= 0]


def _header(path: Path, line: str) -> list[str]:
    """The column names, or ReportError when the line is cut or is the header of a page without metrics."""
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


def _read_tables(path: Path, reader: Rows, header: list[str], table: Table, log: Log) -> list[str]:
    """Read all tables of the file (several when runs were appended to it): the unknown columns of all."""
    unknown: list[str] = []
    number, following = 0, header
    while True:
        unknown += Columns(following).unknown()
        if VALUE in following:
            found = csv_pages.read_long(reader, following, table, log, number)
        else:
            found = csv_pages.read_wide(reader, following, table, log, number)
        if found is None:
            return unknown
        if Columns(found).missing():
            reason = f"the header of table {number + 2} in the file lacks columns"
            raise ReportError(path, "ncu", reason, "Split the file at its headers and read the parts")
        number, following = number + 1, found


def _summary_report(path: Path, reader: Rows, header: list[str], log: Log) -> Report:
    rows = csv_pages.read_summary(reader, header, log)
    if rows is None:
        raise repeated(path, "ncu", "a page of ncu", _header_lines(path)[-1])
    if not rows:
        raise ReportError(path, "ncu", "the CSV has a header but no rows", "Export the report again")
    notes = not_understood({"columns": csv_pages.unknown(header)})
    return csv_pages.summary_report(path, f"ncu CSV, summary, {len(header)} columns", rows, log, notes)
