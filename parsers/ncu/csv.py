"""Parser of Nsight Compute's CSV: long (``--csv``), wide (``--page raw --csv``) and summary.

The launches are read into a list; metric cells stay in compact columns until :attr:`Report.counters` is iterated,
which may be done more than once. Console text goes to :mod:`perfctl.parsers.ncu.text`; a file with neither raises ReportError with
what ncu's own messages say about it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from perfctl.parsers.ncu import csv_pages
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.csv_pages import VALUE, Columns, Rules
from perfctl.parsers.ncu.launches import Finished, Table
from perfctl.parsers.ncu.log import (
    EXPORT,
    Rows,
    diagnostics,
    first_words,
    gaps,
    header_at,
    kernel_gaps,
    rounding,
    skip_to_header,
    why_no_csv,
)
from perfctl.parsers.text.doubts import joined, not_understood, others, repeated
from perfctl.parsers.text.lines import Lines, Log, encoding_of, open_text, tail_of
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic, Report

_TOOL_LINE = re.compile(r"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)
_PIVOTED = re.compile(r'"?Metric Name"?,"?[a-z0-9]+__')
_CONSOLE = re.compile(r"^ +Section: .+\n +-{20,}", re.MULTILINE)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's CSV, a log of ncu, or ncu's console text (which ``parse`` passes to ncu_text).

    Where the program printed more than ``head`` before ncu's first line, the end of the file is checked too.
    """
    if not head or (encoding_of(head) == "utf-8" and b"\0" in head[:512]):
        return False
    encoding = encoding_of(head)
    return _is_ncu(head.decode(encoding, "replace")) or _is_ncu(tail_of(path, head))


def _is_ncu(text: str) -> bool:
    text = text.replace("\r\n", "\n")
    if _TOOL_LINE.search(text) or _PIVOTED.match(text.lstrip("\ufeff")) or _CONSOLE.search(text):
        return True
    return '"ID","Process ID"' in text or any(header_at(line) == 0 for line in text.splitlines())


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of ncu."""
    log, rules, table = Log(), Rules(), Table(path)
    try:
        with open_text(path) as file:
            source = Lines(file, log)
            first = skip_to_header(source, log)
            if first is None and log.console_lines:
                return ncu_text.parse(path)
            if first is None:
                raise ReportError(path, "ncu", *why_no_csv(log))
            header = _header(path, first)
            reader = Rows(source, log, quoted=first.startswith('"'))
            if csv_pages.is_summary(header):
                return _summary_report(path, iter(reader), header, log)
            form, unknown = _read_tables(path, reader, header, table, rules, log)
            further = _further(path, table)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        raise ReportError(path, "ncu", reason, "Check the path and its permissions") from error
    if not table.launches:
        reason, remedy = why_no_csv(log) if log.tool_lines else ("the CSV ends after its header", "Profile again")
        raise ReportError(path, "ncu", f"the CSV has a header but no rows: {reason}", remedy)
    notes = (*not_understood({"columns": unknown}), *joined("further tables of ncu", further))
    return _report(path, form, table.finish(), rules, log, notes)


def _further(path: Path, table: Table) -> list[int]:
    """The lines at which tables after the first begin. Raises ReportError when one has launches of an earlier one."""
    last = max((launch.order[0] for launch in table.launches), default=0)
    at = _header_lines(path) if last else []
    if table.again is not None:
        process, launch, number = table.again
        raise repeated(path, "ncu", f"launch {launch} of process {process}", at[min(number, len(at) - 1)] if at else 1)
    return at[1:]


def _header_lines(path: Path) -> list[int]:
    """The lines of the file, from 1, at which tables begin."""
    with open_text(path) as file:
        return [number for number, line in enumerate(Lines(file, Log()), 1) if header_at(line) >= 0]


def _header(path: Path, line: str) -> list[str]:
    """The column names, or ReportError when the line is cut or is the header of a page without metrics."""
    try:
        header = next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration) as error:
        reason = "the CSV is cut off inside its header"
        raise ReportError(path, "ncu", reason, "Copy it again or profile again") from error
    if not csv_pages.is_summary(header):
        missing = Columns(header).missing()
        if missing:
            reason = f"the CSV has no column {', '.join(missing)}"
            raise ReportError(path, "ncu", f"{reason} (it is cut off, or from another page of ncu)", EXPORT)
        if "Metric Name" not in header and not csv_pages.metric_columns(header):
            reason = "the CSV has no metric columns (it is cut off, or from another page of ncu)"
            raise ReportError(path, "ncu", reason, EXPORT)
    return header


def _read_tables(
    path: Path, reader: Rows, header: list[str], table: Table, rules: Rules, log: Log
) -> tuple[str, list[str]]:
    """Read all tables of the file (several when runs were appended to it): form of the first, unknown columns of all."""
    form = f"ncu CSV, {'long' if VALUE in header else 'wide'}, {len(header)} columns"
    number, following = 0, header
    unknown: list[str] = []
    while True:
        unknown += _unknown(following)
        if VALUE in following:
            found = csv_pages.read_long(reader, following, table, rules, log, number)
        else:
            found = csv_pages.read_wide(iter(reader), following, table, log, number)
        if found is None:
            return form, unknown
        if Columns(found).missing():
            reason = f"the header of table {number + 2} in the file lacks columns"
            raise ReportError(path, "ncu", reason, "Split the file at its headers and read the parts")
        number, following = number + 1, found


def _unknown(header: list[str]) -> list[str]:
    """Unknown columns of a table."""
    names = Columns(header).unknown()
    return names if VALUE in header else others(names, {header[at] for at in csv_pages.metric_columns(header)})


def _report(path: Path, form: str, found: Finished, rules: Rules, log: Log, notes: tuple[Diagnostic, ...]) -> Report:
    kernels = found.kernels()
    return Report(
        tool="ncu",
        path=path,
        form=form,
        devices=found.devices(),
        kernels=kernels,
        counters=found.counters(),
        gaps=(*found.gaps(), *kernel_gaps(kernels), *gaps(log)),
        diagnostics=(*diagnostics(log), *_rule_diagnostics(rules), *rounding(found.scaled()), *notes),
    )


def _summary_report(path: Path, reader: Iterator[str], header: list[str], log: Log) -> Report:
    found = csv_pages.read_summary(reader, header, log)
    if found is None:
        raise repeated(path, "ncu", "a page of ncu", _header_lines(path)[-1])
    summaries, missing = found
    if not summaries:
        raise ReportError(path, "ncu", "the CSV has a header but no rows", "Export the report again")
    return Report(
        tool="ncu",
        path=path,
        form=f"ncu CSV, summary, {len(header)} columns",
        summaries=tuple(summaries),
        gaps=(*missing, *gaps(log)),
        diagnostics=(*diagnostics(log), *not_understood({"columns": csv_pages.unknown(header)})),
    )


def _rule_diagnostics(rules: Rules) -> Iterator[Diagnostic]:
    for (rule, kind), count in rules.launches.items():
        text = first_words([rules.examples[rule, kind]])
        yield Diagnostic("info", f"ncu rule {rule}", f"{kind} in {count} launches; the first: {text}")
