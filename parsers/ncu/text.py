"""Parser of Nsight Compute's console text: details page and raw page. Up to 2022.3 a
launch has its date, and tables have no header row; later it has grid, block, device and capability,
and tables have one. Numbers are rounded as printed; launches are numbered in the order of the text,
which has no IDs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perfctl.parsers.common.doubts import (
    make_joined_parts_warning,
    make_several_runs_error,
    make_unknown_names_warning,
)
from perfctl.parsers.common.lines import (
    LineReader,
    open_undecorated_text,
    read_beginning_and_end,
)
from perfctl.parsers.ncu.advice import split_off_speedup_and_scope
from perfctl.parsers.ncu.builder import NO_VALUE, LaunchIdentity, ReportBuilder
from perfctl.parsers.ncu.facts import parse_launch_identity
from perfctl.parsers.ncu.log import (
    CONNECTED,
    EXPORT,
    HEADER,
    explain_missing_csv,
)
from perfctl.records.errors import ReportError
from perfctl.records.report import Advice, Report

_RULER = re.compile(r" *-{3,}(?: -{3,})+\s*")
_NUMBER = re.compile(r"[0-9.,+-]+")
Spans = Sequence[tuple[int, int]]

_LAUNCH = re.compile(
    r" {1,8}(?P<name>\S.*?)(?: \((?P<grid>\d+, \d+, \d+)\)x\((?P<block>\d+, \d+, \d+)\))?"
    r"(?:, \d{4}-[A-Z][a-z]{2}-\d\d \d\d:\d\d:\d\d)?"
    r", Context (?P<context>\d+)(?:, Stream (?P<stream>\d+))?(?:, Device (?P<device_index>\d+))?"
    r"(?:, CC (?P<capability>[\d.]+))?(?:, (?:Series ID|Combination) [^,]{1,100})*\s*"
)
_PROCESS = re.compile(r"\[(\d+)\] \S.*@\S+\s*")
_SECTION = re.compile(r" {0,8}Section: (\S.*)")
_RULE = re.compile(r" {2,8}([A-Z]{3}) {1,3}(\S.*)")
_RULE_MORE = re.compile(r" {8,14}\S")
_STACK = re.compile(r" {2,8}NVTX (?:(Push/Pop) Stack for Thread \d+|Start/End Ranges):\s*")
_RANGE = re.compile(r" {6,12}<\d+, ?(.*)>\s*")
_OF_STACK = re.compile(r" {5,14}\S")
"""A domain, or an attribute of the range above (RGB, payload, registered name)."""
_SIGNATURE = re.compile(
    r"^ {0,8}Section: \S.*\n *(?:-{3,}|Metric Name|[A-Z]{3}  )|^ +-{20,} -{3,} -{3,}\s*$|"
    r"^ +Metric Name +Metric Unit +Metric Value\s*$",
    re.MULTILINE,
)
_COLUMNS, _ADVICE_COLUMNS = 3, 2
"""A table has name, unit and value; some rules put their advice into a box: kind and text."""


def find_ruler_columns(line: str) -> Spans:
    """Columns (from, to) of a ruler; empty for any other line."""
    rulers = re.finditer("-+", line) if _RULER.fullmatch(line) else ()
    return tuple(match.span() for match in rulers)


def sniff(path: Path, head: bytes) -> bool:
    """Return whether it is ncu's console text, and holds no CSV."""
    for text in read_beginning_and_end(path, head):
        if HEADER.search(text):
            return False
        if _SIGNATURE.search(text):
            return True
    return False


def parse(path: Path) -> Report:
    """Read the file. Raises ReportError when it holds no launch and no summary of ncu."""
    builder = ReportBuilder(path)
    with open_undecorated_text(path) as read:
        reader = _TextReader(builder, LineReader(read, builder.log))
        reader.read_text()
    if reader.starts:
        raise make_several_runs_error(path, "ncu", reader.starts)
    if not builder.launches:
        if builder.log.tool_lines:
            raise ReportError(path, "ncu", *explain_missing_csv(builder.log))
        reason = "ncu's console text has no launch (it is truncated, a summary, or the source page)"
        raise ReportError(path, "ncu", reason, EXPORT)
    has_grids = any("grid_x" in launch.identity for launch in builder.launches)
    kind = "with grids" if has_grids else "up to 2022.3"
    notes = (
        *make_unknown_names_warning({"parts": reader.unknown}),
        *make_joined_parts_warning(
            "the launches of further processes", [*reader.processes.values()][1:]
        ),
    )
    return builder.make_report(f"ncu console text, {kind}", extra_diagnostics=notes)


class _TextReader:
    """Reads a text part by part: launches, sections, tables, rules and ranges go to the builder,
    other lines to the log."""

    def __init__(self, builder: ReportBuilder, lines: LineReader) -> None:
        self.processes: dict[str, int] = {}
        """Line that names a process before its launches -> its number in the file."""
        self.starts: list[int] = []
        """Lines at which ncu began again, after the launches of an output."""
        self.unknown: list[str] = []
        self._builder, self._lines, self._log = builder, lines, builder.log
        self._line, self._number = "", 0
        """The next line, with its line end ("" when the text has ended), and its number."""
        self._process = ""
        self._launch = -1
        self._section: str | None = None

    def read_text(self) -> None:
        """Read the text to its end."""
        above = self._advance_line()
        while self._line:
            above = self._read_next_part(above)

    def _advance_line(self) -> str:
        """Return the next line and go on to the one after it."""
        line, self._line = self._line, next(self._lines, "")
        self._number += 1
        return line

    def _read_next_part(self, previous_part_line: str) -> str:
        """Read the part that begins at the next line, which is returned. ``previous_part_line``:
        the line with which the part before began."""
        number, builder = self._number, self._builder
        is_below = self._launch >= 0
        line = self._advance_line()
        is_whole, text = line.endswith("\n"), line.rstrip("\r\n")
        spans = find_ruler_columns(text)
        if spans and spans[0][0]:
            if is_below and len(spans) == _COLUMNS:
                is_open = previous_part_line.split()[:2] == ["Metric", "Name"]
                self._read_metric_table(spans, text.rstrip(), ends_with_blank_line=is_open)
            elif self._section is not None and is_below and len(spans) != _ADVICE_COLUMNS:
                self.unknown.append(f"a table of {len(spans)} columns in section {self._section}")
        elif match := _SECTION.fullmatch(text):
            self._section = match[1].strip()
        elif (match := _STACK.fullmatch(text)) and is_below:
            self._read_nvtx_range_stack(is_nested=bool(match[1]))
        elif (match := _RULE.fullmatch(text)) and is_below:
            self._read_rule(*match.groups())
        elif is_whole and ", Context " in text and (match := _LAUNCH.fullmatch(text)):
            self._section = None
            cells = match.groupdict("") | {"process": self._process}
            self._launch = builder.add_launch(
                LaunchIdentity(cells.pop("name"), parse_launch_identity(cells))
            )
        elif match := _PROCESS.fullmatch(text):
            self._process = match[1]
            if text.strip() in self.processes:
                self._record_appended_run_start(number)
            self.processes.setdefault(text.strip(), number)
        else:
            if text.startswith(CONNECTED):
                self._record_appended_run_start(number)
            self._log.add_non_csv_line(text)
        return line

    def _record_appended_run_start(self, line_number: int) -> None:
        """An output of ncu begins at this line, unless nothing was read of the one before."""
        if self._launch >= 0:
            self.starts.append(line_number)
            self.processes.clear()
            self._launch = -1

    def _read_rule(self, kind: str, text: str) -> None:
        """Read the further lines of a rule. The text does not name it, so its section stands for
        it."""
        texts = [text.strip()]
        while _RULE_MORE.match(self._line):
            texts.append(self._advance_line().strip())
        advice = split_off_speedup_and_scope(" ".join(texts))
        self._builder.add_rule_result(Advice(self._launch, self._section or "", kind, *advice))

    def _read_nvtx_range_stack(self, *, is_nested: bool) -> None:
        """Read the NVTX ranges around the launch: push/pop ranges if they nest, else start/end."""
        names = []
        while _OF_STACK.match(self._line) and not _SECTION.match(self._line):
            if match := _RANGE.fullmatch(self._advance_line()):
                names.append(match[1])
        launches, ranges = self._builder.launches, tuple(names)
        launch = launches[self._launch]
        launches[self._launch] = (
            launch._replace(push_pop=ranges) if is_nested else launch._replace(start_end=ranges)
        )

    def _read_metric_table(self, spans: Spans, ruler: str, *, ends_with_blank_line: bool) -> None:
        """Read the rows below a ruler until the table ends. ``ends_with_blank_line``: its header is
        above its only ruler, and it ends with a blank line instead of a further ruler."""
        rows: list[list[str]] = []
        has_header = is_full = False
        while line := self._line:
            text, is_whole = line.rstrip(), line.endswith("\n")
            if text == ruler:
                self._advance_line()
                if rows or not has_header:
                    break
                continue  # the ruler between header and rows
            # a tool's line, a new section, or text left of the table ends it; a blank line without
            # its line end may be a cut row
            is_left = bool(text[: spans[0][0]].strip())
            if text.startswith("==") or text.lstrip().startswith("Section: ") or is_left:
                break
            if is_whole and not text:
                break
            self._advance_line()
            cells = [text[start:end].strip() for start, end in spans]
            if cells[:2] == ["Metric Name", "Metric Unit"]:
                has_header = True
                continue
            # else a name that continues, or a metric without a value
            if cells[-1]:
                is_whole = len(text) == spans[-1][1]
            if not is_whole or "".join(text[end : end + 1] for _, end in spans).strip():
                self._log.cut_rows += bool(text)
                continue
            goes_on = not (cells[0] or cells[1]) or (is_full and not any(cells[1:]))
            if rows and goes_on:
                name, unit, value = rows[-1]  # values are broken between words, names anywhere
                value = " ".join(filter(None, (value, cells[-1])))
                rows[-1] = [name + cells[0], unit + cells[1], value]
            else:
                rows.append(cells)
            # columns are as wide as their cells on the raw page, and after 2022.3: a full one does
            # not go on in the next line there
            name = text[: spans[0][1]].rstrip()
            is_full = not (ends_with_blank_line or has_header) and len(name) >= spans[0][1] - 1
        if not line:  # the text ends here: the rest of the last row may be missing
            self._log.cut_rows += not ends_with_blank_line
            if rows and (is_full or not _NUMBER.fullmatch(rows[-1][-1])):
                del rows[-1]
                self._log.cut_rows += 1
        for name, unit, value in rows:
            if (bare := value.removeprefix("(!) ")).lower() in NO_VALUE:
                value = bare  # the mark of a metric that could not be collected: n/a, nan
            if name:
                metric = self._builder.assign_metric_index(name, unit, self._section)
                self._builder.add_metric_values(self._launch, [metric], [value])
            else:
                self._log.cut_rows += 1
