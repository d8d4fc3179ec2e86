"""Parser of Nsight Compute's CSV: long (``--csv``), wide (``--page raw --csv``) and summary.
Headers of 12, 15 (two kinds), 20 and 21 columns are known, each with or without two NVTX columns,
so columns are found by name. A file without a table raises ReportError with what ncu's own
messages say about it."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from perfctl.parsers.common.doubts import (
    list_unknown_names,
    make_several_runs_error,
    make_unknown_names_warning,
)
from perfctl.parsers.common.lines import (
    LineReader,
    SurroundingLines,
    open_undecorated_text,
    read_beginning_and_end,
)
from perfctl.parsers.common.tables import split_csv_line
from perfctl.parsers.ncu.advice import parse_percent
from perfctl.parsers.ncu.builder import FIGURES, LaunchIdentity, ReportBuilder
from perfctl.parsers.ncu.facts import (
    is_storable_integer_text,
    parse_launch_identity,
    parse_nvtx_range_names,
)
from perfctl.parsers.ncu.log import (
    CONNECTED,
    EXPORT,
    HEADER,
    explain_missing_csv,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Advice, Gap, Report

ROW_LIMIT = 8 * 2**20
"""Characters of a row, whose cells may span lines, after which it is given up."""
_NEEDED = ("ID", "Process ID", "Kernel Name")
_LAUNCH = {
    "Stream": "stream",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device_index",
    "CC": "capability",
    "Process ID": "process",
    "Context": "context",
}
"""Column -> fact of a launch's identity."""
_METRIC = ("Metric Name", "Metric Unit", "Metric Value")
_VARYING = ("Section Name", "Body Item Label", *_METRIC)
_RULE = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type")
_SUMMARY = frozenset(("Kernel Name", "Invocations", "Metric Name", "Metric Unit", *FIGURES))
"""Columns that every per-kernel summary has; Grid Size and Block Size may come with them."""
_SKIPPED = ("Process Name", "Host Name", "Kernel Time", "Device Id")
_KINDS_OF_RANGES = ("Push/Pop_Range", "Start/Stop_Range")
"""Parts of the names of the columns with NVTX ranges, which stand for the names here."""
_KNOWN = {
    *_NEEDED,
    *_LAUNCH,
    *_VARYING,
    *_RULE,
    "Estimated Speedup",
    *_SUMMARY,
    *_SKIPPED,
    *_KINDS_OF_RANGES,
}
_NEVER = "\n"
"""A text that no row begins with."""

_ROW_ENDS = frozenset(('"', '",', '"\r', '",\r'))
"""What ends the row of a metric behind the value."""
_ROW_START = re.compile(r'"[0-9]*","[0-9]+","')
_ROW_INSIDE = re.compile(HEADER.pattern + r'|"[0-9]+","[0-9]+","[^"]*","[^"]*","')
_SIGNS = re.compile(
    HEADER.pattern + r'|^==(?:PROF|ERROR|WARNING)== |\A\ufeff*"?Metric Name"?,"?[a-z0-9]+__',
    re.MULTILINE,
)
"""A table of ncu, one of its messages, or a table that another program made from ncu's."""


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's CSV or a log of ncu."""
    return any(map(_SIGNS.search, read_beginning_and_end(path, head)))


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of ncu."""
    builder = ReportBuilder(path)
    log = builder.log
    with open_undecorated_text(path) as read:
        lines = LineReader(read, log)
        first = skip_to_header_line(lines, log)
        if first is None:
            raise ReportError(path, "ncu", *explain_missing_csv(log))
        columns = HeaderColumns(split_csv_line(first))
        if columns.missing:
            column = columns.missing
            reason = (
                f"the CSV has no column {column} (it is truncated, or from another page of ncu)"
            )
            raise ReportError(path, "ncu", reason, EXPORT)
        rows = CsvRows(builder, lines, columns, quoted=first.startswith('"'))
        if columns.form == "long":
            _LongPageReader(rows).read_page()
        elif columns.form == "wide":
            _read_wide_table(rows)
        else:
            for row in rows:
                if cells := rows.split_and_pad_row(row):
                    builder.add_summary_row(dict(zip(columns.header, cells, strict=False)))
    if not builder.launches and not builder.is_summary:
        reason, remedy = "the CSV ends after its header", "Profile again"
        if log.cut_rows:
            reason = f"none of its {log.cut_rows:,} rows fits the header: the file is damaged"
            remedy = EXPORT
        elif log.tool_lines:
            reason, remedy = explain_missing_csv(log)
        raise ReportError(path, "ncu", f"the CSV has a header but no rows: {reason}", remedy)
    form = f"ncu CSV, {columns.form}, {len(columns.header)} columns"
    missing = []
    if columns.ids and (count := max(columns.ids) + 1 - len(columns.ids)):
        reason = f"{count:,} IDs of launches are not in the file: excluded from the export"
        missing.append(Gap("kernel", "not_collected", f"{reason}, or lost"))
    return builder.make_report(
        form, missing, make_unknown_names_warning({"columns": columns.unknown})
    )


def _find_appended_run_start_lines(path: Path) -> list[int]:
    """Return the lines at which outputs of ncu after the first begin: with its first message, else
    with the header."""
    log, starts, connected, is_below = SurroundingLines(), list[int](), 0, False
    with open_undecorated_text(path) as read:
        for number, line in enumerate(LineReader(read, log), 1):
            if HEADER.search(line):
                starts += [connected or number + log.cut_rows] if is_below else []
                connected, is_below = 0, True
            elif is_below and not connected and line.startswith(CONNECTED):
                connected = number + log.cut_rows
    return [*starts, connected] if connected else starts


class HeaderColumns(dict[str, int]):
    """Positions of the columns of one header by their names; -1 for a missing column."""

    def __init__(self, cells: list[str]) -> None:
        kinds = {cell: kind for cell in cells for kind in _KINDS_OF_RANGES if kind in cell}
        self.header = [kinds.get(cell, cell) for cell in cells]
        super().__init__({name: index for index, name in reversed(list(enumerate(self.header)))})
        self.ids: set[int] = set()
        """IDs of the launches so far."""
        self.unknown = list_unknown_names(self.header, _KNOWN)
        self.metrics: list[int] = []
        """Columns of the wide page that are metrics: names without spaces, with an underscore or a
        point."""
        self.form = "long"
        needed: Collection[str] = (*_NEEDED, *_METRIC)
        needed_in_rows: Collection[str] = (*_NEEDED, *_VARYING)
        if _SUMMARY.issubset(self):
            self.form, needed, needed_in_rows = "summary", (), self
        elif self.keys().isdisjoint(("Metric Name", "Metric Value")):
            self.form, needed, needed_in_rows = "wide", _NEEDED, self
            metrics = [
                name for name in self.unknown if " " not in name and ("_" in name or "." in name)
            ]
            self.unknown = list_unknown_names(self.unknown, metrics)
            self.metrics = [index for index, name in enumerate(self.header) if name in metrics]
        self.missing = ", ".join(name for name in needed if name not in self)
        """Columns, in words, without which no row can be read; "" when there are all."""
        if self.form == "wide" and not self.missing and not self.metrics:
            self.missing = "with metrics"
        self.last = max((self[name] for name in needed_in_rows), default=-1)
        """The last column that a whole row has."""

    def __missing__(self, name: str) -> int:
        return -1

    def read_launch(self, cells: list[str]) -> LaunchIdentity:
        """Return the launch of a row, and keep its ID. A row of a rule has the stream of the rule
        engine ("1") instead of the launch's (seen in 2022.3)."""
        identity = {fact: cells[self[name]] for name, fact in _LAUNCH.items()}
        if self.form == "long" and not cells[self["Metric Name"]]:
            identity |= {"stream": "", "context": ""}
        self.ids.add(int(cells[self["ID"]]))
        push_pop, start_end = (
            parse_nvtx_range_names(cells[self[kind]]) for kind in _KINDS_OF_RANGES
        )
        facts, name = parse_launch_identity(identity), cells[self["Kernel Name"]]
        return LaunchIdentity(name, facts, push_pop, start_end)


def skip_to_header_line(lines: Iterator[str], log: SurroundingLines) -> str | None:
    """Return the header line, or None when the file ends without one; what comes before goes to
    the log."""
    for line in lines:
        match = HEADER.search(line)
        log.add_non_csv_line(line[: match.start()] if match else line)
        if match:
            return line[match.start() :]
    return None


class CsvRows:
    """Whole CSV rows as text, header rows of further tables included; everything else goes to the
    log. A reader that knows a line for a whole row may take it from ``lines`` itself, and give the
    others to ``assemble_multiline_row``."""

    def __init__(
        self, builder: ReportBuilder, lines: LineReader, columns: HeaderColumns, *, quoted: bool
    ) -> None:
        """``quoted`` says that cells are quoted, as ncu writes them; a table that was saved again
        by another program may have bare cells, and then every line with a comma counts as a row."""
        self.builder, self.lines, self.columns = builder, lines, columns
        self.log = builder.log
        self.pending: list[str] = []
        """The lines so far of a row whose last cell goes on in the next line."""
        self._pending_size = 0
        self._quoted = quoted

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            if row := self.assemble_multiline_row(line):
                yield row
        self._discard_pending_row()

    def assemble_multiline_row(self, line: str) -> str:
        """Return the row that this line completes, "" when it completes none."""
        if self.pending and (_ROW_START.match(line) or self._pending_size > ROW_LIMIT):
            self._discard_pending_row()
        is_row = self.pending or line.startswith('"')
        if not is_row and (self._quoted or "," not in line or line.startswith("==")):
            # a row may begin within a line of program output
            match = _ROW_INSIDE.search(line)
            start = match.start() if match else len(line)
            self.log.add_non_csv_line(line[:start])
            line = line[start:]
        self.pending.append(line)
        self._pending_size += len(line)
        if line.count('"') % 2 != (len(self.pending) > 1):
            return ""
        row = "".join(self.pending)
        self.pending, self._pending_size = [], 0
        return row

    def _discard_pending_row(self) -> None:
        self.log.cut_rows += bool(self.pending)
        self.pending, self._pending_size = [], 0

    def split_and_pad_row(self, row: str) -> list[str]:
        """Return the cells of a row, and further empty ones up to one more than the header has:
        that is the cell of a missing column. Return none, and count it, for a row that is cut off.
        Raises SeveralRunsError if the row is the header of a further table, as in a file to which
        several runs were appended."""
        cells = split_csv_row(row)
        if cells[:2] in (["ID", "Process ID"], ["Process ID", "Process Name"]):
            path = self.builder.path
            raise make_several_runs_error(path, "ncu", _find_appended_run_start_lines(path))
        if len(cells) <= self.columns.last:
            self.log.cut_rows += 1
            return []
        return cells + [""] * (len(self.columns.header) + 1 - len(cells))


def split_csv_row(row: str) -> list[str]:
    """Return the cells of one complete row of text; none when it is not CSV. ncu quotes every cell,
    so a row without quotes inside cells is split at '","' (the number of quotes proves it), which
    takes a third of the time of the csv module."""
    # A comma at the end is no further cell: ncu ends metric rows so when the header has
    # rule columns.
    text = row.rstrip("\r\n,") if row.startswith('"') else row
    cells = text[1:-1].split('","')
    if text.count('"') == 2 * len(cells) and text[0] == text[-1] == '"':
        return cells
    try:
        return next(csv.reader([text]))  # not strict: a cell with an odd quote costs no launch
    except (csv.Error, StopIteration):
        return []


class _LongPageReader:
    """Reads a long page. Files of a million rows are common: the rows of a launch begin with the
    same identity cells, so what follows these comes many rows at a time
    (``LineReader.pop_suffixes_after_prefix``), and rows whose metric has been seen before are not
    split into cells. Metric rows of a header with rule
    columns end after the value and one comma; rows of rules have no metric."""

    def __init__(self, rows: CsvRows) -> None:
        self._builder, self._rows, columns = rows.builder, rows, rows.columns
        self._identity = min(columns[name] for name in _VARYING if name in columns)
        """Columns before those of the metric: at least ID and process, with which a header
        begins."""
        self._start = _NEVER
        """What all rows of the launch begin with."""
        self._launch = -1
        self._launches: dict[tuple[str, str], int] = {}
        """Process and ID of a launch -> its number."""
        self._known: dict[str, int] = {}
        """Text of a row between ``_start`` and the value -> number of the metric."""

    def read_page(self) -> None:
        """Read the page to its end."""
        rows = self._rows
        for row in rows:
            self._add_row(row)
            while not rows.pending and (rests := rows.lines.pop_suffixes_after_prefix(self._start)):
                if not self._try_add_repeated_metric_rows(rests):
                    for ending in rests:
                        if row_text := rows.assemble_multiline_row(f"{self._start}{ending}\n"):
                            self._add_row(row_text)

    def _try_add_repeated_metric_rows(self, row_suffixes: list[str]) -> bool:
        """Take in rows of the launch, without ``_start``; False if one is not of a metric seen
        before, or does not end with a value in quotes."""
        pieces = [ending.rpartition('","') for ending in row_suffixes]
        metrics = [self._known.get(before, -1) for before, _, _ in pieces]
        ends = [end.partition('"') for _, _, end in pieces]
        if -1 in metrics or not _ROW_ENDS.issuperset([quote + after for _, quote, after in ends]):
            return False
        self._builder.add_metric_values(self._launch, metrics, [value for value, _, _ in ends])
        return True

    def _add_row(self, row: str) -> None:
        columns, builder, log = self._rows.columns, self._builder, self._rows.log
        cells = self._rows.split_and_pad_row(row)
        if not cells:
            return
        if not is_storable_integer_text(cells[columns["ID"]]):
            log.cut_rows += 1
            return
        name, unit, value = (cells[columns[column]] for column in _METRIC)
        if not row.startswith(self._start):
            launch = columns.read_launch(cells)
            identity = (cells[columns["Process ID"]], cells[columns["ID"]])
            if identity not in self._launches:
                self._launches[identity] = builder.add_launch(launch)
            self._launch = self._launches[identity]
            if name:
                builder.launches[self._launch] = launch
            self._start = '"' + '","'.join(cells[: self._identity]) + '",'
        if not name:
            rule, kind, text, scope = (cells[columns[column]] or None for column in _RULE)
            if rule and "Rule Description" in columns:
                speedup = parse_percent(cells[columns["Estimated Speedup"]])
                builder.add_rule_result(Advice(self._launch, rule, kind, text, speedup, scope))
            return
        section = cells[columns["Section Name"]] if "Section Name" in columns else None
        if label := cells[columns["Body Item Label"]]:
            section = f"{section}: {label}"
        metric = builder.assign_metric_index(name, unit, section)
        builder.add_metric_values(self._launch, [metric], [value])
        is_plain = row.count('"') == 2 * (columns["Metric Value"] + 1)
        if is_plain and row.startswith(self._start):
            self._known[row[len(self._start) :].rpartition('","')[0]] = metric


def _read_wide_table(rows: CsvRows) -> None:
    """Read one wide table to its end. A file that another program stripped of its units row is read
    with unknown units (as ncu prints a report of a version it does not know)."""
    builder, columns, metrics = rows.builder, rows.columns, list[int]()
    for row in rows:
        cells = rows.split_and_pad_row(row)
        if not cells:
            continue
        is_launch = is_storable_integer_text(cells[columns["ID"]])
        if not metrics:
            rows.log.has_no_units = is_launch
            units = [""] * len(cells) if is_launch else cells
            for index in columns.metrics:
                metrics.append(
                    builder.assign_metric_index(columns.header[index], units[index], None)
                )
        elif not is_launch:
            rows.log.cut_rows += 1
        if is_launch:
            launch = builder.add_launch(columns.read_launch(cells))
            builder.add_metric_values(launch, metrics, [cells[index] for index in columns.metrics])
