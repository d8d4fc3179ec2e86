"""Parser of Nsight Compute's console text: details page, raw page and summaries. Up to 2022.3 a
launch has its date, and tables have no header row; later it has grid, block, device and capability,
and tables have one. Numbers are rounded as printed; launches are numbered in the order of the text,
which has no IDs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfctl.parsers.ncu import csv_pages
from perfctl.parsers.ncu.facts import cell_of
from perfctl.parsers.ncu.launches import NO_VALUE, Finished, Launch, Table
from perfctl.parsers.ncu.log import CONNECTED, EXPORT, has_header, why_no_csv
from perfctl.parsers.text.doubts import joined, not_understood, repeated, several
from perfctl.parsers.text.lines import Lines, Log, ends_of, open_text, readable
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

METRIC_COLUMNS = ("Metric Name", "Metric Unit", "Metric Value")
SUMMARY_COLUMNS = ("Metric Name", "Metric Unit", "Minimum", "Maximum", "Average")

_RULER = re.compile(r" *-{3,}(?: -{3,})+\s*")
_NUMBER = re.compile(r"[0-9.,+-]+")
_LONGEST_RULER = 4000
_MOST_LINES = 200_000
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
    if len(line) > _LONGEST_RULER or "---" not in line or not _RULER.fullmatch(line):
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
        # a blank line without its line end may be a cut row
        self._closed |= self._is_foreign(text) if text else whole
        if text and not self._closed:
            self._take_row(text, whole=whole)
        return not self._closed

    def unclosed(self) -> int:
        """1 when the text ended in the middle of this table."""
        return int(self._closes and not self._closed)

    def _is_foreign(self, text: str) -> bool:
        """Return whether the table has ended: a tool's line, a new section, or text left of
        the table."""
        left_of_table = text[: self._spans[0][0]]
        return (
            bool(left_of_table.strip())
            or text.startswith("==")
            or text.lstrip().startswith("Section: ")
        )

    def _take_row(self, text: str, *, whole: bool) -> None:
        cells = [text[start:end] for start, end in self._spans]
        if [cell.strip() for cell in cells[:2]] == ["Metric Name", "Metric Unit"]:
            self._header = True
            return
        # else a name that continues, or a metric without a value
        if not self._by_left and cells[-1].strip():
            whole = len(text) == self._spans[-1][1]
        between = "".join(text[end : end + 1] for _, end in self._spans)
        if whole and not between.strip() and len(self._cells) < _MOST_LINES:
            self._cells.append(cells)
        else:
            self.broken += 1

    def rows(self) -> list[list[str]]:
        """The rows with their broken cells put together again."""
        found: list[list[str]] = []
        full = False
        for cells in self._cells:
            if found and self._goes_on(cells, full=full):
                parts = zip(found[-1], cells, strict=True)
                found[-1] = [
                    _joined(old, new, words=index > 1) for index, (old, new) in enumerate(parts)
                ]
            else:
                found.append([cell.strip() for cell in cells])
            start, end = self._spans[0]
            full = len(cells[0].rstrip()) >= end - start - 1
        if (
            found
            and not self._closed
            and ((full and not self._fits()) or not _NUMBER.fullmatch(found[-1][-1]))
        ):
            del found[-1]  # the text ends here: the rest of this row may be missing
            self.broken += 1
        self.broken += sum(not row[0] for row in found)
        return [row for row in found if row[0]]

    def _goes_on(self, cells: list[str], *, full: bool) -> bool:
        """Return whether this line continues the row before: a name after a full column, a value
        where there is no name."""
        name, *others = (cell.strip() for cell in cells)
        goes_on = not (name or others[0]) or (full and not any(others) and not self._fits())
        return goes_on and not self._by_left

    def _fits(self) -> bool:
        """Return whether columns are as wide as their cells (raw page, and after 2022.3), so that a
        full one does not continue."""
        return self._header or not self._closes


def _joined(old: str, new: str, *, words: bool) -> str:
    """A broken cell: values are broken between words, names anywhere."""
    new = new.strip()
    return f"{old} {new}" if words and old and new else old + new


_MOST_RANGES, _MOST_RULE_LINES = 200, 200


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
    launches, starts = reader.table.launches, [*reader.processes.values()]
    if reader.starts and reader.is_again:
        raise repeated(path, "ncu", "the output of one process", reader.starts[0], reader.starts)
    if reader.starts:
        raise several(path, "ncu", reader.starts)
    further = joined("the launches of further processes", starts[1:])
    notes = (*not_understood({"parts": reader.unknown}), *further)
    if reader.summary_rows:
        form = "ncu console text, summary"
        return csv_pages.summary_report(path, form, reader.summary_rows, reader.log, notes, "text")
    if not launches:
        if reader.log.tool_lines:
            raise ReportError(path, "ncu", *why_no_csv(reader.log))
        reason = "ncu's console text has no launch (it is cut off, or from the source page)"
        raise ReportError(path, "ncu", reason, EXPORT)
    reader.table.cells.end(len(launches) - 1)
    form = f"ncu console text, {'with grids' if reader.headed else 'up to 2022.3'}"
    return Finished(reader.table).report(form, reader.log, notes, "text")


class _Reader:
    def __init__(self, path: Path) -> None:
        self.log, self.table = Log(), Table(path)
        self.summary_rows: list[dict[str, str]] = []
        self.processes: dict[str, int] = {}
        """Line that names a process before its launches -> its number in the file."""
        self._process = ""
        self.starts: list[int] = []
        """Lines at which ncu began again, after the launches of an output."""
        self.is_again = False
        """Whether the first of them is told by a process that comes again."""
        self._read_before = 0
        """Launches and rows of summaries that are of earlier outputs."""
        self.headed = False
        """Whether launches have their grid, as after 2022.3."""
        self.unknown: list[str] = []
        self._ranges: list[str] | None = None
        """Cells of the NVTX stack that is being read; None outside of one."""
        self._is_push_pop = False
        self._section: str | None = None
        self._summary: dict[str, str] | None = None
        self._before, self._line = "", 0
        self._body: TextTable | None = None
        self._rule: list[str] = []

    def take(self, line: str) -> None:
        """Take in one line, with its line end."""
        self._line += 1
        if self._body is not None:
            if self._body.take(line):
                return
            self._end_table()
        self._take_outside(line.rstrip("\r\n"), whole=line.endswith("\n"))

    def finish(self) -> None:
        """The text ended."""
        if self._body is not None:
            self.log.cut_rows += self._body.unclosed()
            self._end_table()
        self._end_rule()
        self._end_stack()

    def _take_outside(self, line: str, *, whole: bool) -> None:
        if self._rule and _RULE_MORE.match(line):
            if len(self._rule) < _MOST_RULE_LINES:
                self._rule.append(line.strip())
            return
        self._end_rule()
        if self._ranges is not None and _OF_STACK.match(line) and not _SECTION.match(line):
            if (found := _RANGE.fullmatch(line)) and len(self._ranges) < _MOST_RANGES:
                self._ranges.append(cell_of(found[1]))
            return
        self._end_stack()
        spans = spans_of(line)
        if spans and (spans[0][0] or self._summary is not None):
            columns = SUMMARY_COLUMNS if self._summary is not None else METRIC_COLUMNS
            if self._has_place() and len(spans) == len(columns):
                headed = self._before.split()[:2] == ["Metric", "Name"]
                self._body = TextTable(
                    spans, line.rstrip(), open_above=headed, by_left=self._summary is not None
                )
            elif self._section is not None and self._has_place() and len(spans) != _ADVICE_COLUMNS:
                self.unknown.append(f"a table of {len(spans)} columns in section {self._section}")
        elif match := _SECTION.fullmatch(line):
            self._section = match[1].strip()
        elif (match := _STACK.fullmatch(line)) and self.table.launches:
            self._ranges, self._is_push_pop = [], match[1] is not None
        elif (match := _RULE.fullmatch(line)) and self._has_place():
            self._rule = [match[1], match[2].strip()]
        elif whole and ", Context " in line and (match := _LAUNCH.fullmatch(line)):
            self._start_launch(match)
        elif whole and "nvocation" in line and (match := _SUMMARY.fullmatch(line)):
            self._start_summary(match)
        elif line.lstrip().startswith("Warning: ") and self._has_place():
            self.log.add(f"==WARNING== {line.strip().removeprefix('Warning: ')}")
        elif line.rstrip() == _STATES:
            self.unknown.append("NVTX states of a summary (its kernels are separated by name only)")
        elif (match := _PROCESS.fullmatch(line)) is None:
            if line.startswith(CONNECTED) and self._has_read():
                self._begin_output()
            self.log.add(line)
        else:
            self._process = match[1]
            if (
                self.processes.setdefault(line.strip(), self._line) != self._line
                and self._has_read()
            ):
                self.is_again |= not self.starts
                self._begin_output()
                self.processes[line.strip()] = self._line
        self._before = line

    def _has_read(self) -> bool:
        return len(self.table.launches) + len(self.summary_rows) > self._read_before

    def _begin_output(self) -> None:
        self.starts.append(self._line)
        self.processes.clear()
        self._read_before = len(self.table.launches) + len(self.summary_rows)

    def _has_place(self) -> bool:
        return self._summary is not None or bool(self.table.launches)

    def _start_launch(self, match: re.Match[str]) -> None:
        self._section = self._summary = None
        self.headed |= match["grid"] is not None
        self.table.cells.end(len(self.table.launches) - 1)
        number = len(self.table.launches)
        self.table.launches.append(Launch(number, process=self._process, **match.groupdict("")))

    def _end_stack(self) -> None:
        ranges, self._ranges = self._ranges, None
        if ranges:
            launch, cell = self.table.launches[-1], "".join(ranges)
            changed = (
                launch._replace(push_pop=cell)
                if self._is_push_pop
                else launch._replace(start_end=cell)
            )
            self.table.launches[-1] = changed

    def _start_summary(self, match: re.Match[str]) -> None:
        self._section = None
        self._summary = {
            "Kernel Name": match["name"],
            "Grid Size": match["grid"] or f"({match['new_grid']})",
            "Block Size": match["block"] or f"({match['new_block']})",
            "Invocations": match["count"] or match["new_count"],
        }

    def _end_table(self) -> None:
        body, self._body = self._body, None
        for row in body.rows() if body else ():
            if self._summary is not None:
                self.summary_rows.append(
                    self._summary | dict(zip(SUMMARY_COLUMNS, row, strict=True))
                )
                continue
            name, unit, value = row
            if (bare := value.removeprefix("(!) ")).lower() in NO_VALUE:
                value = bare  # the mark of a metric that could not be collected: n/a, nan
            key = self.table.key(name, unit, self._section)
            self.table.add(len(self.table.launches) - 1, [key], [self.table.cells.ids[value]])
        self.log.cut_rows += body.broken if body else 0

    def _end_rule(self) -> None:
        """Keep a rule's result. The text does not name the rule, so its section stands for it."""
        if self._rule:
            (kind, *texts), self._rule = self._rule, []
            if self._summary is None:
                self.table.rules.add_printed(
                    len(self.table.launches) - 1, self._section or "", kind, " ".join(texts)
                )
