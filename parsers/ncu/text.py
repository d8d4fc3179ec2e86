"""Parser of Nsight Compute's console text: details page, raw page and summaries. Up to 2022.3 a
launch has its date, and tables have no header row; later it has grid, block, device and capability,
and tables have one. Numbers are rounded as printed; launches are numbered in the order of the text,
which has no IDs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfctl.parsers.common.doubts import joined, not_understood, several
from perfctl.parsers.common.lines import Lines, Log, ends_of, open_text, readable
from perfctl.parsers.ncu import summary
from perfctl.parsers.ncu.builder import NO_VALUE, Launch, ReportBuilder
from perfctl.parsers.ncu.log import (
    CONNECTED,
    EXPORT,
    gaps,
    has_header,
    why_no_csv,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

METRIC_COLUMNS = ("Metric Name", "Metric Unit", "Metric Value")
SUMMARY_COLUMNS = ("Metric Name", "Metric Unit", *summary.FIGURES)

_RULER = re.compile(r" *-{3,}(?: -{3,})+\s*")
_NUMBER = re.compile(r"[0-9.,+-]+")
_RULER_MAX = 4000
Spans = Sequence[tuple[int, int]]

_LAUNCH = re.compile(
    r" {1,8}(?P<name>\S.*?)(?: \((?P<grid>\d+, \d+, \d+)\)x\((?P<block>\d+, \d+, \d+)\))?"
    r"(?:, \d{4}-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d)?"
    r", Context (?P<context>\d+)(?:, Stream (?P<stream>\d+))?(?:, Device (?P<device>\d+))?(?:, CC "
    r"(?P<capability>[\d.]+))?(?:, (?:Series ID|Combination) [^,]{1,100})*\s*"
)
_SUMMARY = re.compile(
    r" {0,8}(?P<name>\S.*?)(?:, Block Size (?P<block>[^,]+|\([^)]*\)), Grid Size "
    r"(?P<grid>[^,]+|\([^)]*\))| \((?P<new_grid>\d+, \d+, \d+)\)x\((?P<new_block>\d+, \d+, \d+)\))"
    r"(?:, Device \d+)?(?:, CC [\d.]+)?(?:, (?P<count>\d+) invocations?|, Invocations "
    r"(?P<new_count>\d+))\s*"
)
_PROCESS = re.compile(r"\[(\d+)\] \S.*@\S+\s*")
_SECTION = re.compile(r" {0,8}Section: (\S.*)")
_RULE = re.compile(r" {2,8}([A-Z]{3}) {1,3}(\S.*)")
_RULE_MORE = re.compile(r" {8,14}\S")
_STACK = re.compile(r" {2,8}NVTX (?:(Push/Pop) Stack for Thread \d+|Start/End Ranges):\s*")
_RANGE = re.compile(r" {6,12}<\d+, ?(.*)>\s*")
_STATES = "== NVTX State =="
_OF_STACK = re.compile(r" {5,14}\S")
"""A domain, or an attribute of the range above (RGB, payload, registered name)."""
_SIGNATURE = re.compile(
    r"^ {0,8}Section: \S.*\n *(?:-{3,}|Metric Name|[A-Z]{3}  )|^ +-{20,} -{3,} -{3,}\s*$|"
    r"^ +Metric Name +Metric Unit +Metric Value\s*$",
    re.MULTILINE,
)
_ADVICE_COLUMNS = 2
"""Some rules put their advice into a box of two columns: kind and text."""


def spans_of(line: str) -> Spans:
    """Columns (from, to) of a ruler; empty for any other line."""
    if len(line) > _RULER_MAX or "---" not in line or not _RULER.fullmatch(line):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", line))


class TextTable:
    """Takes the lines below a ruler until the table ends."""

    def __init__(
        self, spans: Spans, ruler: str, *, open_above: bool = False, by_left: bool = False
    ) -> None:
        self._spans, self._ruler = spans, ruler
        self._closes = not open_above
        """Whether a second ruler ends the table; one whose header is above its only ruler ends with
        a blank line."""
        self._by_left = by_left
        self._cells: list[list[str]] = []
        self._header = self._closed = False
        self.broken = 0
        """Rows that were cut off or do not fit the columns."""

    def take(self, line: str) -> bool:
        """Take in one line; False when the table ended before it."""
        text, whole = line.rstrip(), line.endswith("\n")
        if text == self._ruler and not self._closed:
            between = self._header and not self._cells  # the ruler between header and rows
            self._closes, self._closed = self._closes or between, not between
            return True
        # a tool's line, a new section, or text left of the table ends it; a blank line without its
        # line end may be a cut row
        self._closed |= (
            text.startswith("==")
            or text.lstrip().startswith("Section: ")
            or bool(text[: self._spans[0][0]].strip())
            or (whole and not text)
        )
        if text and not self._closed:
            self._take_row(text, whole=whole)
        return not self._closed

    def unclosed(self) -> bool:
        """Return whether the text ended in the middle of this table."""
        return self._closes and not self._closed

    def _take_row(self, text: str, *, whole: bool) -> None:
        cells = [text[start:end] for start, end in self._spans]
        if [cell.strip() for cell in cells[:2]] == ["Metric Name", "Metric Unit"]:
            self._header = True
            return
        # else a name that continues, or a metric without a value
        if not self._by_left and cells[-1].strip():
            whole = len(text) == self._spans[-1][1]
        between = "".join(text[end : end + 1] for _, end in self._spans)
        if whole and not between.strip():
            self._cells.append(cells)
        else:
            self.broken += 1

    def rows(self) -> list[list[str]]:
        """Return the rows with their broken cells put together again."""
        rows: list[list[str]] = []
        start, end = self._spans[0]
        # columns are as wide as their cells on the raw page, and after 2022.3: a full one does not
        # go on in the next line there
        breaks_names = self._closes and not self._header
        is_full = False
        for line_cells in self._cells:
            name, unit, *values = cells = [cell.strip() for cell in line_cells]
            goes_on = not (name or unit) or (is_full and not (unit or any(values)))
            if rows and goes_on and not self._by_left:
                *names, value = rows[-1]  # values are broken between words, names anywhere
                names = [old + new for old, new in zip(names, cells, strict=False)]
                rows[-1] = [*names, " ".join(filter(None, (value, cells[-1])))]
            else:
                rows.append(cells)
            is_full = breaks_names and len(line_cells[0].rstrip()) >= end - start - 1
        if rows and not self._closed and (is_full or not _NUMBER.fullmatch(rows[-1][-1])):
            del rows[-1]  # the text ends here: the rest of this row may be missing
            self.broken += 1
        self.broken += sum(not row[0] for row in rows)
        return [row for row in rows if row[0]]


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's console text, and holds no CSV."""
    for text in ends_of(path, head):
        if has_header(text):
            return False
        if _SIGNATURE.search(text):
            return True
    return False


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no launch and no summary of ncu."""
    reader = _Reader(path)
    with readable(path, "ncu"), open_text(path) as file:
        for line in Lines(file, reader.log):
            reader.take(line)
    reader.finish()
    log, builder = reader.log, reader.builder
    if reader.starts:
        raise several(path, "ncu", reader.starts)
    further = [*reader.processes.values()][1:]
    notes = (
        *not_understood({"parts": reader.unknown}),
        *joined("the launches of further processes", further),
    )
    if not builder.launches and not builder.summary_rows:
        if log.tool_lines:
            raise ReportError(path, "ncu", *why_no_csv(log))
        reason = "ncu's console text has no launch (it is cut off, or from the source page)"
        raise ReportError(path, "ncu", reason, EXPORT)
    kind = "with grids" if any(launch.grid for launch in builder.launches) else "up to 2022.3"
    if builder.summary_rows:
        kind = "summary"
    return builder.report(f"ncu console text, {kind}", gaps(log, "text"), notes, log)


class _Reader:
    """Takes the lines of a text: those of launches, sections, tables, rules and ranges go to the
    builder, others to the log."""

    def __init__(self, path: Path) -> None:
        self.log, self.builder = Log(), ReportBuilder(path)
        self.processes: dict[str, int] = {}
        """Line that names a process before its launches -> its number in the file."""
        self.starts: list[int] = []
        """Lines at which ncu began again, after the launches of an output."""
        self.unknown: list[str] = []
        self._process = ""
        self._launch = -1
        self._read_before = 0
        """Launches and rows of summaries that are of earlier outputs."""
        self._stack: tuple[str, list[str]] | None = None
        """Field of Launch and the ranges so far of the NVTX stack that is being read."""
        self._section: str | None = None
        self._summary: dict[str, str] | None = None
        """Cells of the summary's kernel whose tables follow; None below a launch."""
        self._previous, self._number = "", 0
        """The line before, and the number of this one."""
        self._table: TextTable | None = None
        self._rule: list[str] = []

    def take(self, line: str) -> None:
        """Take in one line, with its line end."""
        self._number += 1
        if self._table is not None:
            if self._table.take(line):
                return
            self._end_table(self._table)
        self._take_outside(line.rstrip("\r\n"), is_whole=line.endswith("\n"))

    def finish(self) -> None:
        """Take in that the text ended."""
        if self._table is not None:
            self.log.cut_rows += self._table.unclosed()
            self._end_table(self._table)
        self._end_parts()

    def _take_outside(self, line: str, *, is_whole: bool) -> None:
        if self._rule and _RULE_MORE.match(line):
            self._rule.append(line.strip())
            return
        if self._stack is not None and _OF_STACK.match(line) and not _SECTION.match(line):
            if match := _RANGE.fullmatch(line):
                self._stack[1].append(match[1])
            return
        self._end_parts()
        is_below = self._summary is not None or self._launch >= 0
        spans = spans_of(line)
        if spans and (spans[0][0] or self._summary is not None):
            columns = METRIC_COLUMNS if self._summary is None else SUMMARY_COLUMNS
            if is_below and len(spans) == len(columns):
                self._table = TextTable(
                    spans,
                    line.rstrip(),
                    open_above=self._previous.split()[:2] == ["Metric", "Name"],
                    by_left=self._summary is not None,
                )
            elif self._section is not None and is_below and len(spans) != _ADVICE_COLUMNS:
                self.unknown.append(f"a table of {len(spans)} columns in section {self._section}")
        elif match := _SECTION.fullmatch(line):
            self._section = match[1].strip()
        elif (match := _STACK.fullmatch(line)) and self._launch >= 0:
            self._stack = ("push_pop" if match[1] else "start_end", [])
        elif (match := _RULE.fullmatch(line)) and is_below:
            self._rule = [match[1], match[2].strip()]
        elif is_whole and ", Context " in line and (match := _LAUNCH.fullmatch(line)):
            self._section = self._summary = None
            order, identity = len(self.builder.launches), match.groupdict("")
            launch = Launch(order, process=self._process, **identity)  # type: ignore[arg-type]
            self._launch = self.builder.add_launch(launch)
        elif is_whole and "nvocation" in line and (match := _SUMMARY.fullmatch(line)):
            self._section = None
            self._summary = {
                "Kernel Name": match["name"],
                "Grid Size": match["grid"] or f"({match['new_grid']})",
                "Block Size": match["block"] or f"({match['new_block']})",
                "Invocations": match["count"] or match["new_count"],
            }
        elif line.lstrip().startswith("Warning: ") and is_below:
            self.log.add(f"==WARNING== {line.strip().removeprefix('Warning: ')}")
        elif line.rstrip() == _STATES:
            self.unknown.append("NVTX states of a summary (its kernels are separated by name only)")
        elif match := _PROCESS.fullmatch(line):
            self._process = match[1]
            if line.strip() in self.processes:
                self._begin_output()
            self.processes.setdefault(line.strip(), self._number)
        else:
            if line.startswith(CONNECTED):
                self._begin_output()
            self.log.add(line)
        self._previous = line

    def _begin_output(self) -> None:
        """Take in that an output of ncu begins here, unless nothing was read of the one before."""
        read = len(self.builder.launches) + len(self.builder.summary_rows)
        if read > self._read_before:
            self.starts.append(self._number)
            self.processes.clear()
            self._read_before = read

    def _end_table(self, table: TextTable) -> None:
        self._table = None
        for row in table.rows():
            if self._summary is not None:
                cells = dict(zip(SUMMARY_COLUMNS, row, strict=True))
                self.builder.summary_rows.append(self._summary | cells)
                continue
            name, unit, value = row
            if (bare := value.removeprefix("(!) ")).lower() in NO_VALUE:
                value = bare  # the mark of a metric that could not be collected: n/a, nan
            metric = self.builder.number_metric(name, unit, self._section)
            self.builder.add_values(self._launch, [metric], [value])
        self.log.cut_rows += table.broken

    def _end_parts(self) -> None:
        """Keep the rule and the ranges that end here. The text does not name a rule, so its section
        stands for it."""
        if self._rule and self._summary is None:
            kind, *texts = self._rule
            rules, section = self.builder.rules, self._section or ""
            rules.add_printed(self._launch, section, kind, " ".join(texts))
        self._rule = []
        if self._stack is not None:
            field, names = self._stack
            if names:
                launch = self.builder.launches[self._launch]
                launch = launch._replace(**{field: tuple(names)})  # type: ignore[arg-type]
                self.builder.launches[self._launch] = launch
            self._stack = None
