"""Parser of Nsight Compute's CSV: long (``--csv``), wide (``--page raw --csv``) and summary.
Headers of 12, 15 (two kinds), 20 and 21 columns are known, each with or without two NVTX columns,
so columns are found by name. Console text goes to :mod:`perfctl.parsers.ncu.text`; a file with
neither raises ReportError with what ncu's own messages say about it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from perfctl.parsers.common.doubts import not_understood, others, several
from perfctl.parsers.common.lines import Lines, Log, ends_of, open_text, readable
from perfctl.parsers.common.tables import split_csv
from perfctl.parsers.ncu import summary
from perfctl.parsers.ncu import text as ncu_text
from perfctl.parsers.ncu.advice import percent
from perfctl.parsers.ncu.builder import Launch, ReportBuilder, is_whole
from perfctl.parsers.ncu.facts import range_names
from perfctl.parsers.ncu.log import (
    CONNECTED,
    EXPORT,
    gaps,
    has_header,
    header_at,
    why_no_csv,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Gap, Report

ROW_LIMIT = 8 * 2**20
"""Characters of a row, whose cells may span lines, after which it is given up."""
NOT_USED = frozenset(("Process Name", "Host Name", "Kernel Time", "Device Id", "Invocations"))
"""Known columns that are skipped."""
_NEEDED = ("ID", "Process ID", "Kernel Name")
_RANGES = ("Push/Pop_Range", "Start/Stop_Range")
"""Parts of the names of the columns with NVTX ranges."""
_LAUNCH = {
    "Kernel Name": "name",
    "Stream": "stream",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device",
    "CC": "capability",
    "Process ID": "process",
    "Context": "context",
}
"""Column -> field of Launch."""
_METRIC = ("Metric Name", "Metric Unit", "Metric Value")
_VARYING = ("Section Name", "Body Item Label", *_METRIC)
_RULE = (
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup",
    "Estimated Speedup Type",
)
USED = frozenset((*_NEEDED, *_LAUNCH, *_VARYING, *_RULE, *summary.FIGURES))
_NEVER = "\n"
"""A text that no row begins with."""

_TOOL_LINE = re.compile(r"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)
_PIVOTED = re.compile(r'\ufeff*"?Metric Name"?,"?[a-z0-9]+__')
_CONSOLE = re.compile(r"^ +Section: .+\n +-{20,}", re.MULTILINE)
_ROW_START = re.compile(r'"[0-9]*","[0-9]+","')
_ROW_INSIDE = re.compile(r'"[0-9]+","[0-9]+","[^"]*","[^"]*","')


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's CSV, a log of ncu, or ncu's console text (which ``parse`` passes
    to the parser of that)."""
    return any(
        _TOOL_LINE.search(text) or _PIVOTED.match(text) or _CONSOLE.search(text) or has_header(text)
        for text in ends_of(path, head)
    )


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no table of ncu."""
    log, builder = Log(), ReportBuilder(path)
    with readable(path, "ncu"), open_text(path) as file:
        lines = Lines(file, log)
        first = skip_to_header(lines, log)
        if first is None and log.console_lines:
            return ncu_text.parse(path)
        if first is None:
            raise ReportError(path, "ncu", *why_no_csv(log))
        columns = _read_header(path, first)
        rows = Rows(path, lines, log, quoted=first.startswith('"'))
        if columns.form == "summary":
            last = len(columns.header) - 1
            split_rows = (rows.split(row, last) for row in rows)
            builder.summary_rows = [
                dict(zip(columns.header, cells, strict=False)) for cells in split_rows if cells
            ]
        elif columns.form == "long":
            _LongPage(columns, builder, rows).read()
        else:
            _read_wide(columns, builder, rows)
    if not builder.launches and not builder.summary_rows:
        reason, remedy = "the CSV ends after its header", "Profile again"
        if log.tool_lines:
            reason, remedy = why_no_csv(log)
        raise ReportError(path, "ncu", f"the CSV has a header but no rows: {reason}", remedy)
    form = f"ncu CSV, {columns.form}, {len(columns.header)} columns"
    missing, notes = gaps(log), not_understood({"columns": columns.unknown()})
    ids = {launch.order for launch in builder.launches}
    if ids and (count := max(ids) + 1 - len(ids)):
        reason = f"{count:,} IDs of launches are not in the file: left out when it was exported"
        missing.append(Gap("kernel", "not_collected", f"{reason}, or lost"))
    return builder.report(form, missing, notes, log)


def _find_starts(path: Path) -> list[int]:
    """Return the lines at which outputs of ncu after the first begin: with its first message, else
    with the header."""
    log, starts, connected, is_below = Log(), list[int](), 0, False
    with open_text(path) as file:
        for number, line in enumerate(Lines(file, log), 1):
            if header_at(line) >= 0:
                starts += [connected or number + log.cut_rows] if is_below else []
                connected, is_below = 0, True
            elif is_below and not connected and line.startswith(CONNECTED):
                connected = number + log.cut_rows
    return [*starts, connected] if connected else starts


def _read_header(path: Path, line: str) -> Columns:
    """Return the columns. Raises ReportError when the line is cut or is the header of a page
    without metrics."""
    columns = Columns(split_csv(line))
    missing = ", ".join(columns.missing())
    if missing or not ("Metric Name" in columns or columns.metrics):
        lacking = f"column {missing}" if missing else "metric columns"
        reason = f"the CSV has no {lacking} (it is cut off, or from another page of ncu)"
        raise ReportError(path, "ncu", reason, EXPORT)
    return columns


class Columns(dict[str, int]):
    """Positions of the columns of one header by their names; -1 for a missing column."""

    def __init__(self, header: list[str]) -> None:
        super().__init__({name: index for index, name in reversed(list(enumerate(header)))})
        self.header = header
        self.form = "long" if "Metric Value" in self else "wide"
        if summary.FIGURE_COLUMNS.issubset(header):
            self.form = "summary"
        for kind in _RANGES:
            self[kind] = next((index for index, name in enumerate(header) if kind in name), -1)
        self.metrics = [
            index
            for index, name in enumerate(header)
            if " " not in name
            and ("_" in name or "." in name)
            and not any(kind in name for kind in _RANGES)
        ]
        """Columns of the wide page that are metrics: names without spaces, with an underscore or a
        point."""
        self.last = max(self[name] for name in ("ID", "Process ID", *_VARYING))
        """The last column that a metric's row must have; the value, unless somebody put the columns
        in another order."""

    def __missing__(self, name: str) -> int:
        return -1

    def missing(self) -> list[str]:
        """Return required columns that the header lacks."""
        if self.form == "summary":
            return []
        of_metric = _METRIC if "Metric Name" in self or "Metric Value" in self else ()
        return [name for name in (*_NEEDED, *of_metric) if name not in self]

    def unknown(self) -> list[str]:
        """Return unknown names; NVTX columns and the metrics of the wide page are not among
        them."""
        metrics = () if "Metric Name" in self else [self.header[at] for at in self.metrics]
        names = others(self.header, USED, NOT_USED, metrics)
        return [name for name in names if not any(kind in name for kind in _RANGES)]

    def first_of_metric(self) -> int:
        """Return the first column that is not the same for all rows of a launch, when all such
        columns come last; else 0."""
        first = min(self[name] for name in _VARYING if name in self)
        identity = (*_NEEDED, *_LAUNCH, *_RANGES)
        return first if max(self[name] for name in identity) < first else 0

    def launch(self, cells: list[str]) -> Launch:
        """Return the launch that a row's cells identify."""
        identity = {field: self.cell(cells, name) for name, field in _LAUNCH.items()}
        ranges = [range_names(self.cell(cells, kind)) for kind in _RANGES]
        return Launch(int(cells[self["ID"]]), push_pop=ranges[0], start_end=ranges[1], **identity)

    def cell(self, cells: list[str], name: str) -> str:
        """Return "" where the header or the row has no such column."""
        return cells[index] if 0 <= (index := self[name]) < len(cells) else ""


def skip_to_header(lines: Iterator[str], log: Log) -> str | None:
    """Return the header line, or None when the file ends without one; what comes before goes to
    the log."""
    for line in lines:
        at = header_at(line)
        log.add(line if at < 0 else line[:at])
        if at >= 0:
            return line[at:]
    return None


class Rows:
    """Whole CSV rows as text, header rows of further tables included; everything else goes to the
    log. A reader that knows a line for a whole row may take it from ``lines`` itself, and give the
    others to ``feed``."""

    def __init__(self, path: Path, lines: Lines, log: Log, *, quoted: bool = True) -> None:
        """``quoted`` says that cells are quoted, as ncu writes them; a table that was saved again
        by another program may have bare cells, and then every line with a comma counts as a row."""
        self.lines, self.log = lines, log
        self.pending: list[str] = []
        """The lines so far of a row whose last cell goes on in the next line."""
        self._pending_size = 0
        self._path, self._quoted = path, quoted

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            if row := self.feed(line):
                yield row
        self.end()

    def feed(self, line: str) -> str:
        """Return the row that this line completes, "" when it completes none."""
        if self.pending and (_ROW_START.match(line) or self._pending_size > ROW_LIMIT):
            self.end()
        is_row = self.pending or line.startswith('"')
        if not is_row and (self._quoted or "," not in line or line.startswith("==")):
            line = self._row_inside(line)
        is_open = line.count('"') % 2 != bool(self.pending)
        if not self.pending and not is_open:
            return line
        self.pending.append(line)
        self._pending_size += len(line)
        if is_open:
            return ""
        row = "".join(self.pending)
        self.pending, self._pending_size = [], 0
        return row

    def _row_inside(self, line: str) -> str:
        """Return the CSV row that begins within a line of program output, or "" ."""
        at = header_at(line)
        if at < 0 and (match := _ROW_INSIDE.search(line)):
            at = match.start()
        self.log.add(line[:at] if at > 0 else line)
        return line[at:] if at > 0 else ""

    def end(self) -> None:
        """Give up a row that is not whole; to be called when the lines have ended."""
        self.log.cut_rows += bool(self.pending)
        self.pending, self._pending_size = [], 0

    def split(self, row: str, last: int) -> list[str]:
        """Return the cells of a whole row; none, and count it, where it ends before the column
        ``last``. Raises Joined where the row is the header of a further table, as in a file to
        which several runs were appended."""
        cells = split_row(row)
        if is_header(cells):
            raise several(self._path, "ncu", _find_starts(self._path))
        if len(cells) <= last:
            self.log.cut_rows += 1
            return []
        return cells


def split_row(row: str) -> list[str]:
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


def is_header(cells: list[str]) -> bool:
    """Return whether these are the first columns of a table of ncu."""
    return cells[:2] in (["ID", "Process ID"], ["Process ID", "Process Name"])


class _LongPage:
    """Reads a long page. Files of a million rows are common: the rows of a launch begin with the
    same identity cells, so what follows these comes many rows at a time (``Lines.run``), and rows
    whose metric has been seen before are not split into cells. Metric rows of a header with rule
    columns end after the value and one comma; rows of rules have no metric, and the stream of the
    rule engine ("1") instead of the launch's (seen in 2022.3)."""

    def __init__(self, columns: Columns, builder: ReportBuilder, rows: Rows) -> None:
        self._columns, self._builder, self._rows = columns, builder, rows
        self._metric_at = columns.first_of_metric()
        self._start = _NEVER
        """What all rows of the launch begin with."""
        self._launch = -1
        self._launches: dict[tuple[str, str], int] = {}
        """Process and ID of a launch -> its number."""
        self._known: dict[str, int] = {}
        """Text of a row between ``_start`` and the value -> number of the metric."""

    def read(self) -> None:
        """Read the page to its end."""
        rows = self._rows
        for line in rows.lines:
            if row := rows.feed(line):
                self._take_row(row)
            while not rows.pending and (rests := rows.lines.run(self._start)):
                if not self._take_known(rests):
                    for rest in rests:
                        if row := rows.feed(f"{self._start}{rest}\n"):
                            self._take_row(row)
        rows.end()

    def _take_known(self, rests: list[str]) -> bool:
        """Take in rows of the launch, without ``_start``; False where not all of them are of
        metrics seen before, or end otherwise than the first with a value without quotes."""
        pieces = [rest.rpartition('","') for rest in rests]
        endings = "\n".join([ending for _, _, ending in pieces])
        close = '"' + pieces[0][2].partition('"')[2]
        *values, after = f"{endings}\n".split(f"{close}\n")
        is_plain = not after and len(values) == endings.count('"') == len(rests)
        if not is_plain or close.strip(",\r") != '"':
            return False
        try:
            metrics = [self._known[before] for before, _, _ in pieces]
        except KeyError:
            return False
        self._builder.add_values(self._launch, metrics, values)
        return True

    def _take_row(self, row: str) -> None:
        columns, builder = self._columns, self._builder
        cells = self._rows.split(row, columns.last)
        if not cells:
            return
        if not is_whole(cells[columns["ID"]]):
            self._rows.log.cut_rows += 1
            return
        name, unit, value = (cells[columns[column]] for column in _METRIC)
        if not row.startswith(self._start):
            self._find_launch(cells, is_rule=not name)
        if not name:
            rule, kind, text, speedup, scope = (columns.cell(cells, column) for column in _RULE)
            if rule:
                builder.rules.add(self._launch, rule, kind, text, percent(speedup), scope)
            return
        section = columns.cell(cells, "Section Name") if "Section Name" in columns else None
        if label := columns.cell(cells, "Body Item Label"):
            section = f"{section}: {label}"
        metric = builder.number_metric(name, unit, section)
        builder.add_values(self._launch, [metric], [value])
        is_plain = row.count('"') == 2 * len(cells) and len(cells) == columns["Metric Value"] + 1
        if is_plain and row.startswith(self._start):
            self._known[row[len(self._start) :].rpartition('","')[0]] = metric

    def _find_launch(self, cells: list[str], *, is_rule: bool) -> None:
        """Go on with the launch of these cells; one first seen in the row of a rule gets its stream
        from its first metric row."""
        columns, builder = self._columns, self._builder
        identity = (cells[columns["Process ID"]], cells[columns["ID"]])
        launch = columns.launch(cells)
        if is_rule:
            launch = launch._replace(stream="", context="")
        if identity not in self._launches:
            self._launches[identity] = builder.add_launch(launch)
        self._launch = self._launches[identity]
        if launch.stream and not builder.launches[self._launch].stream:
            builder.launches[self._launch] = launch
        if self._metric_at:
            self._start = '"' + '","'.join(cells[: self._metric_at]) + '",'


def _read_wide(columns: Columns, builder: ReportBuilder, rows: Rows) -> None:
    """Read one wide table to its end. A file that another program stripped of its units row is read
    with unknown units (as ncu prints a report of a version it does not know)."""
    header, log = columns.header, rows.log
    metrics: list[int] | None = None
    for row in rows:
        cells = rows.split(row, columns["Kernel Name"])
        if not cells:
            continue
        has_id = cells[columns["ID"]] != ""
        if metrics is None:
            units = [""] * len(header) if has_id else cells + [""] * len(header)
            log.has_no_units = has_id
            metrics = [builder.number_metric(header[at], units[at], None) for at in columns.metrics]
            if not has_id:
                continue
        if not is_whole(cells[columns["ID"]]):
            log.cut_rows += 1
            continue
        log.cut_rows += len(cells) < len(header)
        launch = builder.add_launch(columns.launch(cells))
        # a row that was cut off gives the cells it has
        values = [cells[at] for at in columns.metrics if at < len(cells)]
        builder.add_values(launch, metrics[: len(values)], values)
