"""Reads the tables in the output of ``nsys stats`` and ``nsys profile --stats=true``, one row at a
time. CSV, TSV, JSON and console tables of any number of reports may follow each other, between
progress bars, the program's output and lines that say why a report is missing. Nothing is held but
the row being read, so a file may be larger than memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.nsys.stats_columns import (
    NAMES,
    TEXTS,
    Column,
    figure_positions,
    guess_report,
    read_columns,
    read_title,
    rename_report,
)
from perfctl.parsers.text.lines import Lines, Log, open_text

_RULER = re.compile(r" ?-{2,}(?: +-{2,})+")
_BOX = re.compile(r"\+(?:-+\+){2,}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,\u00a0\u202f' ]*(?:[eE][+-]?[0-9]+)?%?")
_LONGEST_RULER = 20_000
_LONGEST_NAME = 100_000
_LONGEST_OBJECT = 1 << 20
"""Characters that one JSON object may have; nsys's longest are below ten thousand."""
_LONGEST_NOTE = 4000
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)

_PROCESSING = re.compile(r"Processing \[(.*)\] with \[(.*)\]\.\.\.\s*")
_EXECUTING = re.compile(r"\[\d{1,4}/\d{1,4}\] Executing '([\w:-]+)' stats report\s*")
_NAMED = re.compile(r" ?\*\* .*\(([a-z0-9_]+)(?::[^)]*)?\):\s*")
_SKIPPED = re.compile(r"SKIPPED: (.*)")
_CONTAINS = re.compile(r".* does not contain (.*)")
_EMPTY = "Report was successfully run, but no data was returned."
_NO_ROWS = "nsys stats ran this report and got no rows"
_ERROR = re.compile(r"ERROR: (?:Report '([\w.-]+)')?(.*)")
_WARNING = re.compile(r"(?:WARNING|Warning): (.*)")
_VERSION = re.compile(r"nsight-systems[/-](?:cli/)?(\d{4}\.\d+\.\d+(?:\.\d+)?)/")
_RECORDED = re.compile(r"""(?:Generating|Saving temporary) ["'][^"']+\.qd\w+["']""")
"""Printed once a recording by nsys profile --stats=true, before its tables."""
_NOTES = ("Processing [", "[", " ** ", "** ", "SKIPPED: ", "Generating CUDA")
_ENDING = (_PROCESSING, _EXECUTING, _NAMED, _SKIPPED, re.compile("Generating CUDA"))
"""Lines that end a table, and how they begin."""
_HEADER = re.compile(r"[A-Z][^,\t]{0,60}(?:[,\t][^,\t]{1,60}){2}")
_ROW = re.compile(r" *\d{1,3}\.\d(?:(?:,\d+(?:\.\d+)?){6},|(?: +\d[\d.,]*){6} )")
"""The beginning of a row of sums: its share and six figures. Outside of a table it lacks
its header."""

_QUOTED = re.compile('"[^"]*"')
_ROW_FIGURES = range(4, 7)
"""Figures after one another that tell a row inside of a name: fewer may be part of it, and the
oldest sums have six."""

Spans = tuple[tuple[int, int], ...]
Split = Callable[[str], list[str]]
"""The cells of one line; fewer or more than the table has columns where it is no row."""


class Start(NamedTuple):
    """A table begins."""

    report: str
    """Name in the spelling since 2023."""
    columns: list[Column]
    form: str
    line: int
    """Where it, or the words that announce it, stands in the file, from 1; of an array, where
    that begins."""


class Note(NamedTuple):
    """A line that says something about a report instead of a table."""

    kind: str
    """skipped, empty, error, warning, version, unknown (text: the header of a table that was not
    understood)."""
    report: str | None
    text: str


@dataclass(slots=True)
class Trouble:
    """Parts of the file that could not be read, and where runs begin."""

    log: Log = field(default_factory=Log)
    rows: int = 0
    """Rows that do not fit their table."""
    unended: int = 0
    """Tables at whose last row the file ends without a line end."""
    announced: list[tuple[int, str]] = field(default_factory=list)
    """(line, report) wherever nsys names a report, whether a table follows or not."""
    recordings: list[int] = field(default_factory=list)
    """Lines at which nsys says that what follows is of another recording."""


Event = Start | Note | list[str]


def read_events(path: Path, trouble: Trouble) -> Iterator[Event]:
    """Yield tables and notes in the order of the file; a list is a row of the table that started
    last. Raises OSError."""
    with open_text(path) as file:
        yield from _Scan(path.name, trouble).run(Lines(file, trouble.log))


def has_table(text: str) -> bool:
    """Return whether a table of a report, or an array whose first object has the columns of one, is
    in the text."""
    if begins_array(text[:2000].strip().partition("\n")[0]):
        rows, lines = JsonRows(), text[:20_000].splitlines(keepends=True)
        first = next((row for line in lines for row in rows.take(line)), None)
        if first is not None and read_columns(list(first)):
            return True
    before = ""
    for line in text.split("\n"):
        spans = find_ruler(line.rstrip()) if line.lstrip()[:2] == "--" else ()
        if spans and read_columns([before[left:right] for left, right in spans]):
            return True
        has_unit = "(ns)" in line or "(%)" in line or "(MB)" in line
        if has_unit and "," in line and read_columns(split_csv(line)):
            return True
        if "\t" in line and read_columns(split_tabs(line)):
            return True
        before = line
    return False


# The four forms of a row


def split_csv(line: str) -> list[str]:
    """Return the cells of a line of comma separated values."""
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error:
        return []


def split_nsys_csv(line: str, count: int) -> list[str]:
    """Return the cells of a row whose name is last: up to 2022.4 nsys quotes a name with commas and
    leaves quotes in it as they are, so a bare name is all that follows the last figure."""
    text = line.rstrip("\r\n")
    cells = split_csv(text) if text.startswith('"') else text.split(",", count - 1)
    return [*(cell.strip() for cell in cells[:-1]), *cells[-1:]]


def split_tabs(line: str, count: int = 0) -> list[str]:
    """Return the cells of a line parted by tabs, in which nothing is quoted."""
    text = line.rstrip("\r\n").lstrip("\ufeff")
    return [cell.strip() for cell in text.split("\t", count - 1)]


def split_ruled(line: str, spans: Spans, *, has_texts: bool, is_padded: bool) -> list[str]:
    """Return the cells under a ruler; columns are two blanks apart (one in the oldest reports).
    ``is_padded``: rows are filled up with blanks, so a shorter last line is cut."""
    text = line.rstrip("\r\n")
    if is_padded and not line.endswith("\n") and len(text) < spans[-1][1]:
        return []
    between = "".join(text[right:left] for (_, right), (left, _) in pairwise(spans))
    is_aligned = not between.strip() and not text[: spans[0][0]].strip()
    cells = slice_columns(text, spans) if is_aligned else []
    if has_texts or (has_figures(cells[:-1]) and cells):
        return cells
    return text.split(None, len(spans) - 1)  # a figure is wider than its column


def slice_columns(text: str, spans: Spans) -> list[str]:
    """Return the cells between these places; the last one goes on to the end."""
    *others, (start, _) = spans
    return [*(text[left:right].strip() for left, right in others), text[start:].strip()]


def split_boxed(line: str, spans: Spans) -> list[str]:
    """Return the cells between bars; [] where a bar is missing."""
    text = line.rstrip()
    bars = [text[left - 1 : left] for left, _ in spans]
    if len(text) != spans[-1][1] + 1 or {*bars, text[-1:]} != {"|"}:
        return []
    return [text[left:right].strip() for left, right in spans]


def find_ruler(text: str) -> Spans:
    """Return the columns (from, to) of a ruler of dashes; empty for any other line."""
    if "--" not in text or len(text) > _LONGEST_RULER or not _RULER.fullmatch(text):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", text))


def find_box(text: str) -> Spans:
    """Return the columns between the plus signs of "+----+---+"; empty for any other line."""
    text = text.strip()
    if not text.startswith("+-") or len(text) > _LONGEST_RULER or not _BOX.fullmatch(text):
        return ()
    signs = [match.start() for match in re.finditer(r"\+", text)]
    return tuple((left + 1, right) for left, right in pairwise(signs))


def is_figure(cell: str) -> bool:
    """Return whether a figure's cell can hold this: a number, nothing, None, or what was cut."""
    is_word = cell in ("", "None") or cell.endswith("…") or cell.startswith("0x")
    return is_word or _NUMBER.fullmatch(cell) is not None


def has_figures(cells: list[str]) -> bool:
    """Return whether all of these are figures."""
    return all(map(is_figure, cells))


def _find_other_rows(columns: list[Column], form: str) -> re.Pattern[str] | None:
    """Return what finds the figures of further rows in a name, whose line ends were lost; None
    where rows begin with too few figures to tell."""
    labels = [column.label for column in columns]
    texts = (at for at, label in enumerate(labels) if label in TEXTS and not label.startswith("Corr"))
    figures = min(next(texts), _ROW_FIGURES[-1])
    if figures not in _ROW_FIGURES:
        return None
    number = r"\d+(?:[.,]\d+)*"
    if form == "console text":
        return re.compile(rf"\s{number}(?:\s+{number}){{{figures - 1}}}\s")
    parted = "\t" if form == "TSV" else ","
    # the first figure stands behind the name without anything between
    return re.compile(rf"\d(?:{parted}\d+(?:\.\d+)?){{2}}(?:{parted}[\d.]*){{{figures - 3}}}{parted}")


class Table:
    """Rows of one table; counts those that do not fit, and holds back the last one, which may go on
    in the next line."""

    def __init__(self, columns: list[Column], report: str, split: Split, form: str) -> None:
        self.broken = 0
        """Rows that do not fit the columns."""
        self.unended = 0
        """1 when the file ended at the last row without a line end."""
        self.form = form
        self._split, self._count = split, len(columns)
        self._figures = figure_positions(columns)
        has_name = columns[-1].label in NAMES
        # names of ranges may have several lines
        self._may_go_on = report.startswith("nvtx") and has_name
        self._other_row = _find_other_rows(columns, form) if has_name else None
        self._row: list[str] | None = None

    def take(self, line: str) -> Iterator[list[str]]:
        """Read one line of the table; yield the row before it."""
        if find_box(line):
            return
        cells = self._split(line)
        if len(cells) == self._count and has_figures([cells[at] for at in self._figures]):
            yield from self._flush()
            outside = _QUOTED.sub('""', cells[-1])
            if self._other_row and (others := self._other_row.findall(outside)):
                self.broken += 1 + len(others)
                return
            self._row = cells
        elif self._continues_name(line):
            assert self._row is not None
            self._row[-1] += "\n" + line.rstrip()
        else:
            self.broken += 1
            return
        self.unended = int(not line.endswith("\n"))

    def _continues_name(self, line: str) -> bool:
        """A line with half of a row's figures does not go on with the name above."""
        if not self._may_go_on or self._row is None or len(self._row[-1]) >= _LONGEST_NAME:
            return False
        half = len(self._figures) // 2
        cells = line.split("," if line.count(",") >= half else None, self._count)
        numbers = sum(_NUMBER.fullmatch(cell.strip()) is not None for cell in cells)
        return numbers < max(3, half)

    def end(self) -> Iterator[list[str]]:
        """End the table; yield its last row unless that is cut off: the file has no line end there,
        and a bracket or quote in the name is open."""
        if self.unended and self._row is not None:
            name = self._row[-1]
            is_closed = name.count("(") == name.count(")") and name.count("[") == name.count("]")
            is_whole = bool(name) and is_closed and name.count('"') % 2 == 0
            if not is_whole and not name.endswith("…"):
                self._row = None
                self.broken += 1
        yield from self._flush()

    def _flush(self) -> Iterator[list[str]]:
        row, self._row = self._row, None
        if row is not None:
            name = row[-1].strip()
            if self.form == "CSV" and len(name) > 1 and name[0] == name[-1] == '"':
                name = name[1:-1]
                if '"' in name and '"' not in name.replace('""', ""):
                    name = name.replace('""', '"')  # doubled, as the csv module does
            yield [*row[:-1], name]


def begins_array(line: str) -> bool:
    """Return whether an array of objects may begin with this line."""
    text = line.strip().lstrip("\ufeff")
    return text.startswith("[") and text[1:].lstrip()[:1] in ("", "{")


class JsonRows:
    """Takes the lines of one array of objects until it ends."""

    def __init__(self) -> None:
        self.done = self._opened = False
        self.broken = 0
        """1 when the text is not an array of objects, or ended inside one."""
        self._text = ""

    def take(self, line: str) -> Iterator[dict[str, str]]:
        """Take in one line; yield the objects that it completes, values as the CSV prints them."""
        self._text += line
        if line.rstrip()[-1:] not in ("}", ",", "]", "[") and len(self._text) < _LONGEST_OBJECT:
            return
        while not self.done:
            self._text = self._text.lstrip(" \t\r\n,\ufeff")
            if not self._opened and self._text.startswith("["):
                self._opened, self._text = True, self._text[1:]
            elif self._text.startswith("{"):
                try:
                    found, end = _DECODER.raw_decode(self._text)
                except (ValueError, RecursionError):  # it goes on in the next line
                    if len(self._text) >= _LONGEST_OBJECT:
                        self.done, self.broken = True, 1
                    return
                self._text = self._text[end:]
                yield {key: self._print(value) for key, value in found.items()}
            elif self._text:
                self.done, self.broken = True, int(not self._text.startswith("]"))
            else:
                return

    @staticmethod
    def _print(value: object) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        return json.dumps(value, ensure_ascii=False)


class _Scan:
    """Tells tables and notes from everything else, line by line."""

    def __init__(self, file_name: str, trouble: Trouble) -> None:
        self._file_name, self._trouble = file_name, trouble
        self._report: str | None = None
        """Announced, and its table not seen yet."""
        self._unit = self._before = ""
        self._line = self._at = 0
        """The line that announces the report; of an array, where it begins."""
        self._table: Table | None = None
        self._json: JsonRows | None = None
        self._keys: list[str] = []
        self._input: str | None = None

    def run(self, source: Iterator[str]) -> Iterator[Event]:
        line = ""
        for number, line in enumerate(source, 1):
            self._line = number
            is_note = line.startswith(_NOTES) and any(one.match(line) for one in _ENDING)
            if is_note or not line.strip():
                yield from self._end_table()
            if is_note and self._json is not None:
                self._end_json(self._json)
            if self._json is not None or (self._table is None and begins_array(line)):
                yield from self._take_json(line)
            elif (start := self._find_start(line)) is not None:
                yield from self._end_table()
                yield self._begin(*start)
            elif self._table is not None:
                yield from self._table.take(line)
            else:
                yield from self._take_notes(line)
        # a row of a console table that was cut at the blanks before it
        self._trouble.unended += line.isspace() and not line.endswith(("\n", "\r"))
        yield from self._end_table()
        if self._json is not None:
            self._end_json(self._json)

    def _take_json(self, line: str) -> Iterator[Event]:
        """One line of an array of objects, which has the place of a table."""
        if self._json is None:
            self._json, self._keys = JsonRows(), []
            self._at = self._begun_at()
        rows = self._json
        for row in rows.take(line):
            if list(row) != self._keys:
                columns = read_columns(list(row), self._unit)
                if columns is None:
                    yield from self._not_understood(", ".join(row))
                    continue
                self._keys = list(row)
                report = self._report or guess_report(columns, self._file_name)
                yield Start(report, columns, "JSON", self._at)
            yield list(row.values())
        if rows.done:
            self._end_json(rows)

    def _end_json(self, rows: JsonRows) -> None:
        self._json = None
        if self._keys:
            self._trouble.rows += rows.broken or int(not rows.done)
            self._report, self._unit = None, ""

    def _not_understood(self, header: str) -> Iterator[Note]:
        """The table of an announced report has columns that are not known; said once a report."""
        if self._report is not None:
            yield Note("unknown", self._report, header)
            self._report = None

    def _end_table(self) -> Iterator[list[str]]:
        table, self._table = self._table, None
        if table is not None:
            yield from table.end()
            self._trouble.rows += table.broken
            self._trouble.unended += table.unended

    def _find_start(self, line: str) -> tuple[list[Column], Split, str] | None:
        """Columns, rows and form of the table that begins with this line. A console table begins
        with its ruler, whose header was the line before."""
        text, before = line.rstrip(), self._before
        cells: list[str] = []
        if self._table is None and (spans := find_ruler(text)):
            cells, form = slice_columns(before, spans), "console text"
        elif text.startswith("| ") and (box := find_box(before)):
            cells, form = [text[left:right].strip() for left, right in box], "console text"
        elif "," in text and (text[:1].isalpha() or text[:1] in '"\ufeff'):
            cells, form = split_csv(text), "CSV"
        elif "\t" in text:
            cells, form = split_tabs(text), "TSV"
        columns = read_columns(cells, self._unit) if cells else None
        if columns is None:
            return None
        has_texts = len(figure_positions(columns)) < len(columns) - 1
        labels = [column.label for column in columns]
        split: Split
        if form == "console text" and not text.startswith("| "):
            is_padded = len(before) >= spans[-1][1]
            split = partial(split_ruled, spans=spans, has_texts=has_texts, is_padded=is_padded)
        elif form == "console text":
            split = partial(split_boxed, spans=box)
        elif form == "TSV":
            split = partial(split_tabs, count=len(columns))
        elif labels[-1] in NAMES and not any(label in NAMES for label in labels[:-1]):
            split = partial(split_nsys_csv, count=len(columns))
        else:
            split = split_csv
        return columns, split, form

    def _begin(self, columns: list[Column], split: Split, form: str) -> Start:
        report, line = self._report or guess_report(columns, self._file_name), self._begun_at()
        self._table = Table(columns, report, split, form)
        self._report, self._unit, self._before = None, "", ""
        return Start(report, columns, form, line)

    def _begun_at(self) -> int:
        """The line at which the table that begins now was announced, or stands; lines that were too
        long count too."""
        return (self._at if self._report is not None else self._line) + self._trouble.log.cut_rows

    def _take_notes(self, line: str) -> Iterator[Note]:
        """One line that is not inside a table; a progress bar's pieces, parted by CR,
        count each."""
        if find_ruler(line.rstrip()):
            yield from self._not_understood(self._before)
        for piece in line.rstrip("\r\n").split("\r"):
            if len(piece) < _LONGEST_NOTE and piece.strip():
                self._trouble.rows += _ROW.match(piece) is not None
                yield from self._take_note(piece)
                self._before = piece

    def _take_note(self, piece: str) -> Iterator[Note]:
        if _RECORDED.match(piece):
            self._begin_recording()
        elif piece.rstrip() == "Generated:":
            yield from self._end_report()
        elif match := _PROCESSING.fullmatch(piece):
            if self._input not in (None, stem := Path(match[1]).stem):
                self._begin_recording()
            self._input, self._unit = stem, ""
            yield from self._announce(rename_report(match[2]))
            if version := _VERSION.search(match[2]):
                yield Note("version", None, version[1])
        elif match := _EXECUTING.fullmatch(piece) or _NAMED.fullmatch(piece):
            yield from self._announce(rename_report(match[1]))
        elif match := _SKIPPED.match(piece):
            contains = _CONTAINS.match(match[1])
            reason = f"the report does not contain {contains[1]}" if contains else match[1]
            yield Note("skipped", self._report, reason.strip().rstrip("."))
            self._report = None
        elif piece.strip() == _EMPTY:
            yield Note("empty", self._report, _NO_ROWS)
            self._report = None
        elif match := _ERROR.match(piece):
            yield Note("error", rename_report(match[1]) if match[1] else None, match[2].strip())
            self._report = None
        elif match := _WARNING.match(piece):
            yield Note("warning", None, match[1].strip())
        elif title := read_title(piece):
            self._unit = title[1]
            yield from self._announce(title[0])
        elif _HEADER.match(piece):
            yield from self._not_understood(piece)

    def _begin_recording(self) -> None:
        self._trouble.recordings.append(self._line + self._trouble.log.cut_rows)

    def _announce(self, report: str) -> Iterator[Note]:
        if report != self._report:
            yield from self._end_report()
        self._report, self._at = report, self._line
        self._trouble.announced.append((self._line + self._trouble.log.cut_rows, report))

    def _end_report(self) -> Iterator[Note]:
        """What was announced is over; a report that nothing followed had no rows (nsys profile then
        prints nothing)."""
        if self._report is not None:
            yield Note("empty", self._report, _NO_ROWS)
        self._report = None
