"""Reads the tables in the output of ``nsys stats`` and ``nsys profile --stats=true``, one row at a
time. CSV and console tables of any number of reports may follow each other, between progress bars,
the program's output and lines that say why a report is missing. Nothing is held but the row being
read, so a file may be larger than memory."""

from __future__ import annotations

import csv
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.nsys.stats_columns import (
    NAMES,
    Column,
    columns_of,
    figures_of,
    guess,
    new_name,
    of_title,
)
from perfctl.parsers.text.lines import Lines, Log, open_text

_RULER = re.compile(r" ?-{2,}(?: +-{2,})+")
_BOX = re.compile(r"\+(?:-+\+){2,}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,\u00a0\u202f' ]*(?:[eE][+-]?[0-9]+)?%?")
_FIGURES_IN_NAME = re.compile(
    r"(?<![\w.,])\d(?:[\d,]*\d)?(?:\.\d+)?(?: +\d(?:[\d,]*\d)?(?:\.\d+)?){3} "
    r"|\d\.\d(?:,\d+(?:\.\d+)?){4},"
)
"""Figures of a row, with blanks or commas between; names of kernels and calls have none but for
"<128, 64, 32>"."""
_ROW_IN_RANGE = re.compile(r"\d\.\d(?:(?:,\d+(?:\.\d+)?){5},|(?: +\d[\d.,]*){5} )")
"""A share and five figures more; names of ranges may hold a few figures of their own."""
_LONGEST_RULER = 20_000
_LONGEST_NAME = 100_000
_NAMES_WITH_NEWLINES = "nvtx"
Spans = tuple[tuple[int, int], ...]

_LONGEST = 1 << 20
"""Characters that one object may have; nsys's longest are below ten thousand."""
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)

_PROCESSING = re.compile(r"Processing \[(.*)\] with \[(.*)\]\.\.\.\s*")
_EXECUTING = re.compile(
    r"\[(?P<step>\d{1,4})/(?P<steps>\d{1,4})\] Executing '(?P<report>[\w:-]+)' stats report\s*"
)
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
_HEADER = re.compile(r"[A-Z][^,\t]{0,60}(?:[,\t][^,\t]{1,60}){2}")
_ROW = re.compile(r" *\d{1,3}\.\d(?:(?:,\d+(?:\.\d+)?){6},|(?: +\d[\d.,]*){6} )")
"""The beginning of a row of sums: its share and six figures. Outside of a table it lacks
its header."""
_PIECE_LIMIT = 4000


def ruler_spans(text: str) -> Spans:
    """Columns (from, to) of a ruler of dashes; empty for any other line."""
    if "--" not in text or len(text) > _LONGEST_RULER or not _RULER.fullmatch(text):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", text))


def box_spans(text: str) -> Spans:
    """Columns between the plus signs of "+----+---+"; empty for any other line."""
    text = text.strip()
    if not text.startswith("+-") or len(text) > _LONGEST_RULER or not _BOX.fullmatch(text):
        return ()
    return tuple(
        (left + 1, right)
        for left, right in pairwise(match.start() for match in re.finditer(r"\+", text))
    )


class _Table(ABC):
    """Base of the three forms: counts rows that do not fit, and handles a last row that may be
    cut off."""

    def __init__(self) -> None:
        self.broken = 0
        """Rows that do not fit the columns."""
        self.unended = 0
        """1 when the file ended at the last row without a line end."""
        self._columns, self._figures = 0, list[int]()
        self._may_go_on = self._is_named_last = self._is_sum = False
        self._row: list[str] | None = None
        """The last row, which may continue in the next line."""

    def know(self, columns: list[Column], report: str) -> None:
        """Set the columns of the table; called once, before any row."""
        self._columns, self._figures = len(columns), figures_of(columns)
        self._is_named_last = columns[-1].label in NAMES
        self._is_sum = self._is_named_last and not report.endswith("_trace")
        self._may_go_on = report.startswith(_NAMES_WITH_NEWLINES) and self._is_named_last

    def take(self, line: str) -> Iterator[list[str]]:
        """Read one line of the table; return the row before it."""
        cells = self._split_row(line)
        if cells is not None and self._has_row(cells[-1]):
            self.broken += 1
        elif cells is not None:
            yield from self._flush()
            self._row = cells
            self.unended = int(not line.endswith("\n"))
        elif (
            self._may_go_on
            and self._row is not None
            and len(self._row[-1]) < _LONGEST_NAME
            and not self._was_row(line)
        ):
            self._row[-1] += "\n" + line.rstrip()
            self.unended = int(not line.endswith("\n"))
        else:
            self.broken += 1

    def _was_row(self, line: str) -> bool:
        """Does a line that is no row have half of a row's figures, so that it does not go on with
        the name above?"""
        cells = line.split(
            "," if line.count(",") >= len(self._figures) // 2 else None, self._columns
        )
        numbers = sum(_NUMBER.fullmatch(cell.strip()) is not None for cell in cells)
        return numbers >= max(3, len(self._figures) // 2)

    def _has_row(self, name: str) -> bool:
        """Do figures of a row of sums stand in a name, since the line end before them was lost?"""
        figures = _ROW_IN_RANGE if self._may_go_on else _FIGURES_IN_NAME
        return self._is_sum and figures.search(name) is not None

    def end(self) -> Iterator[list[str]]:
        """End the table; return its last row unless that is cut off."""
        if self.unended and self._row is not None and not _is_whole(self._row[-1]):
            self._row = None
            self.broken += 1
        yield from self._flush()

    def _flush(self) -> Iterator[list[str]]:
        if self._row is not None:
            yield self._finish(self._row)
        self._row = None

    def _finish(self, row: list[str]) -> list[str]:
        return row

    @abstractmethod
    def _split_row(self, line: str) -> list[str] | None:
        """The cells of one line; None where the line is no row of this table."""

    def _is_row(self, cells: list[str]) -> bool:
        """Are the cells of the figure columns numbers, empty, None or cut off?"""
        return all(_is_figure(cells[index]) for index in self._figures)


def _is_whole(name: str) -> bool:
    """Is every bracket and quote of the name closed? (One that was clipped by nsys ends with the
    mark of that.)"""
    closed = (
        all(name.count(left) == name.count(right) for left, right in ("()", "[]"))
        and name.count('"') % 2 == 0
    )
    return name.endswith("…") or (bool(name) and closed)


def _is_figure(cell: str) -> bool:
    is_word = cell in ("", "None") or cell.endswith("…") or cell.startswith("0x")
    return is_word or _NUMBER.fullmatch(cell) is not None


def _csv_cells(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


class CsvTable(_Table):
    """Rows of comma separated values."""

    @staticmethod
    def header_cells(text: str) -> list[str]:
        """The cells of a header row; empty when the line is none."""
        cells = _csv_cells(text)
        return cells if columns_of(cells) else []

    def know(self, columns: list[Column], report: str) -> None:
        """See the base class."""
        super().know(columns, report)
        self._name_is_last = self._is_named_last and not any(
            column.label in NAMES for column in columns[:-1]
        )

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip("\r\n")
        is_bare = self._name_is_last and not text.startswith('"')
        cells = text.split(",", self._columns - 1) if is_bare else _csv_cells(text)
        if len(cells) != self._columns:
            return None
        *others, name = cells
        cells = [*(cell.strip() for cell in others), name]
        return cells if self._is_row(cells) else None

    def _finish(self, row: list[str]) -> list[str]:
        name = row[-1].strip()
        if self._name_is_last and len(name) > 1 and name[0] == name[-1] == '"':
            name = name[1:-1]
            if '"' in name and '"' not in name.replace('""', ""):  # doubled as the csv module does
                name = name.replace('""', '"')
        return [*row[:-1], name]


class TsvTable(_Table):
    """Rows parted by tabs, nothing quoted."""

    @staticmethod
    def header_cells(text: str) -> list[str]:
        """The cells of a header row; empty when the line is none."""
        cells = text.lstrip("\ufeff").split("\t")
        return cells if columns_of(cells) else []

    def _split_row(self, line: str) -> list[str] | None:
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t", self._columns - 1)]
        return cells if len(cells) == self._columns and self._is_row(cells) else None


class ColumnTable(_Table):
    """Rows under a ruler; columns are two blanks apart (one in the oldest reports)."""

    def __init__(self, spans: Spans, header: str) -> None:
        super().__init__()
        self._spans, self._header = spans, header
        self._padded = len(header) >= spans[-1][1]

    def header(self) -> list[str]:
        """The cells of the line above the ruler."""
        return self._slice(self._header)

    def _slice(self, text: str) -> list[str]:
        *others, (start, _) = self._spans
        return [*(text[left:right].strip() for left, right in others), text[start:].strip()]

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip("\r\n")
        if not line.endswith("\n") and self._padded and len(text) < self._spans[-1][1]:
            return None  # rows are filled up with blanks: this one is cut
        gaps = "".join(text[right:left] for (_, right), (left, _) in pairwise(self._spans))
        cells = self._slice(text)
        if not gaps.strip() and not text[: self._spans[0][0]].strip() and self._is_row(cells):
            return cells
        if len(self._figures) < len(self._spans) - 1:
            return None
        cells = text.split(None, len(self._spans) - 1)  # edited by hand, or wider than its columns
        return cells if len(cells) == len(self._spans) and self._is_row(cells) else None

    def _finish(self, row: list[str]) -> list[str]:
        return [*row[:-1], row[-1].strip()]


class BoxTable(_Table):
    """Rows between bars."""

    def __init__(self, spans: Spans, ruler: str) -> None:
        super().__init__()
        self._spans, self._ruler = spans, ruler.strip()

    def split(self, text: str) -> list[str]:
        """The cells between the bars."""
        return [text[left:right].strip() for left, right in self._spans]

    def take(self, line: str) -> Iterator[list[str]]:
        """See the base class; the ruler lines of the box are no rows."""
        if line.strip() != self._ruler:
            yield from super().take(line)

    def _split_row(self, line: str) -> list[str] | None:
        text = line.rstrip()
        bars = [text[left - 1 : left] for left, _ in self._spans]
        if len(text) != self._spans[-1][1] + 1 or {*bars, text[-1:]} != {"|"}:
            return None
        cells = self.split(text)
        return cells if self._is_row(cells) else None


def begins(line: str) -> bool:
    """Return whether an array of objects may begin with this line."""
    text = line.strip().lstrip("\ufeff")
    return text.startswith("[") and text[1:].lstrip()[:1] in ("", "{")


class JsonRows:
    """Takes the lines of one array until it ends."""

    def __init__(self) -> None:
        self.done = self._opened = False
        self.broken = 0
        """1 when the text is not an array of objects, or ended inside one."""
        self._text = ""

    def take(self, line: str) -> Iterator[dict[str, str]]:
        """Take in one line; gives the objects that it completes."""
        self._text += line
        if line.rstrip()[-1:] not in ("}", ",", "]", "[") and len(self._text) < _LONGEST:
            return
        while not self.done:
            self._text = self._text.lstrip(" \t\r\n,\ufeff")
            if not self._opened and self._text.startswith("["):
                self._opened, self._text = True, self._text[1:]
            elif self._text.startswith("{"):
                if (found := self._object()) is None:
                    return
                yield found
            elif self._text:
                self.done, self.broken = True, int(not self._text.startswith("]"))
            else:
                return

    def end(self) -> None:
        """The text ended."""
        self.broken = max(self.broken, int(not self.done))

    def _object(self) -> dict[str, str] | None:
        """The object that the text begins with, taken off it; None while it is not whole."""
        try:
            found, end = _DECODER.raw_decode(self._text)
        except (ValueError, RecursionError):
            if len(self._text) >= _LONGEST:
                self.done, self.broken = True, 1
            return None
        self._text = self._text[end:]
        return {key: _text(value) for key, value in found.items()}


def _text(value: Any) -> str:
    """A value as the CSV prints it."""
    return (
        (value or "")
        if value is None or isinstance(value, str)
        else json.dumps(value, ensure_ascii=False)
    )


def has_table(text: str) -> bool:
    """Return whether a table of a report, or an array whose first object has the columns of one, is
    in the text."""
    if begins(text[:2000].strip().partition("\n")[0]):
        rows = JsonRows()
        first = next(
            (row for line in text[:20_000].splitlines(keepends=True) for row in rows.take(line)),
            None,
        )
        if first is not None and columns_of(list(first)):
            return True
    before = ""
    for line in text.split("\n"):
        spans = ruler_spans(line.rstrip()) if line.lstrip()[:2] == "--" else ()
        if spans and columns_of([before[left:right] for left, right in spans]):
            return True
        if (
            ("(ns)" in line or "(%)" in line or "(MB)" in line)
            and "," in line
            and CsvTable.header_cells(line)
        ):
            return True
        if "\t" in line and TsvTable.header_cells(line.rstrip()):
            return True
        before = line
    return False


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
    """skipped, empty, error, warning, input (text: the file that was read), version, unknown (text:
    the header of a table that was not understood)."""
    report: str | None
    text: str


@dataclass(slots=True)
class Trouble:
    """Parts of the file that could not be read."""

    log: Log = field(default_factory=Log)
    rows: int = 0
    """Rows that do not fit their table."""
    unended: int = 0
    """Tables at whose last row the file ends without a line end."""
    closed: int = 0
    """Tables with the blank line that nsys prints below each."""
    unclosed: int = 0
    """Tables without it, though another report follows."""
    announced: list[tuple[int, str]] = field(default_factory=list)
    """(line, report) wherever nsys names a report, whether a table follows or not."""
    steps: list[tuple[int, int]] = field(default_factory=list)
    """(number of a step, how many there are), where nsys runs a report."""
    processed: dict[str, None] = field(default_factory=dict)
    """Reports that nsys says it runs, in a line "Processing [...] with [...]"; likewise ``titled``,
    in titles of tables."""
    titled: dict[str, None] = field(default_factory=dict)
    untitled: int = 0
    """Tables that no line names, though lines name others."""
    folders: dict[str, None] = field(default_factory=dict)
    """Where nsys says that its reports are."""
    recordings: list[int] = field(default_factory=list)
    """Lines at which nsys says that what follows is of another recording."""


AnyTable = CsvTable | TsvTable | ColumnTable | BoxTable
_FORMS = {CsvTable: "CSV", TsvTable: "TSV"}
Event = Start | Note | list[str]


def events(path: Path, trouble: Trouble) -> Iterator[Event]:
    """Tables and notes in the order of the file; a list is a row of the table that started last.
    Raises OSError."""
    with open_text(path) as file:
        yield from _Scan(path.name, trouble).run(Lines(file, trouble.log))


class _Scan:
    def __init__(self, file_name: str, trouble: Trouble) -> None:
        self._file_name, self._trouble = file_name, trouble
        self._report: str | None = None
        self._unit = self._before = ""
        self._line = self._at = 0
        """The line that announces the report; of an array, where it begins."""
        self._table: AnyTable | None = None
        self._json: JsonRows | None = None
        self._keys: dict[str, None] = {}
        self._input: str | None = None

    def run(self, source: Iterator[str]) -> Iterator[Event]:
        line = ""
        for number, line in enumerate(source, 1):
            self._line = number
            if self._json is not None or (self._table is None and begins(line)):
                if not self._is_control(line) or self._json is None:
                    yield from self._take_json(line)
                    continue
                self._end_json(self._json)
            if self._table is not None:
                control = self._is_control(line)
                if line.strip() and not control and not isinstance(self._start(line), Start):
                    yield from self._table.take(line)
                    continue
                self._trouble.closed += not line.strip()
                self._trouble.unclosed += control and not line.startswith(
                    ("Generating ", "SKIPPED: ")
                )
                yield from self._end_table()
            yield from self._outside(line)
        yield from self._end_table()
        # the blanks before a row
        self._trouble.unended += line.isspace() and not line.endswith(("\n", "\r"))
        if self._json is not None:
            self._end_json(self._json)

    def _take_json(self, line: str) -> Iterator[Event]:
        """One line of an array of objects, which has the place of a table."""
        if self._json is None:
            self._json, self._keys = JsonRows(), {}
            self._at = self._begun_at()
        rows = self._json
        for row in rows.take(line):
            if row.keys() != self._keys.keys():
                columns = columns_of(list(row), self._unit)
                if columns is None:
                    yield from self._not_understood(", ".join(row))
                    continue
                self._keys = dict.fromkeys(row)
                report = self._report or guess(columns, self._file_name)
                yield Start(report, columns, "JSON", self._at)
            yield list(row.values())
        if rows.done:
            self._end_json(rows)

    def _end_json(self, rows: JsonRows) -> None:
        rows.end()
        self._trouble.rows += rows.broken if self._keys else 0
        self._json = None
        if self._keys:
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

    @staticmethod
    def _is_control(line: str) -> bool:
        return line.startswith(
            ("Processing [", "SKIPPED: ", "[", " ** ", "** ", "Generating ")
        ) and (
            any(pattern.match(line) for pattern in (_PROCESSING, _EXECUTING, _NAMED, _SKIPPED))
            or line.startswith("Generating CUDA")
        )

    def _outside(self, line: str) -> Iterator[Event]:
        """One line that is not inside a table; a progress bar's pieces, parted by CR,
        count each."""
        start = self._start(line)
        if isinstance(start, Start):
            yield start
            self._before = ""
            return
        if ruler_spans(line.rstrip()):
            yield from self._not_understood(self._before)
        for piece in line.rstrip("\r\n").split("\r"):
            if len(piece) < _PIECE_LIMIT and piece.strip():
                self._trouble.rows += _ROW.match(piece) is not None
                yield from self._note(piece)
                self._before = piece

    def _start(self, line: str) -> Start | None:
        """Does a table begin with this line? A console table does with its ruler, whose header was
        the line before."""
        text = line.rstrip()
        if self._table is None and (spans := ruler_spans(text)):
            header = ColumnTable(spans, self._before)
            return self._begin(header.header(), header)
        if text.startswith("| ") and (box := box_spans(self._before)):
            table = BoxTable(box, self._before)
            return self._begin(table.split(text), table)
        if (
            "," in text
            and (text[:1].isalpha() or text[:1] in '"\ufeff')
            and (cells := CsvTable.header_cells(text))
        ):
            return self._begin(cells, CsvTable())
        if "\t" in text and (cells := TsvTable.header_cells(text)):
            return self._begin(cells, TsvTable())
        return None

    def _begin(self, cells: list[str], table: AnyTable) -> Start | None:
        columns = columns_of(cells, self._unit)
        if columns is None:
            return None
        report, at = self._report or guess(columns, self._file_name), self._begun_at()
        if self._table is None:
            self._trouble.untitled += self._report is None and bool(self._trouble.announced)
            self._table = table
            table.know(columns, report)
            self._report, self._unit = None, ""
        return Start(report, columns, _FORMS.get(type(table), "console text"), at)

    def _begun_at(self) -> int:
        """The line at which the table that begins now was announced, or stands; lines that were too
        long count too."""
        return (self._at if self._report is not None else self._line) + self._trouble.log.cut_rows

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

    def _new_recording(self) -> None:
        self._trouble.recordings.append(self._line + self._trouble.log.cut_rows)

    def _note(self, piece: str) -> Iterator[Note]:
        if _RECORDED.match(piece):
            self._new_recording()
        elif piece.rstrip() == "Generated:":
            yield from self._end_report()
        elif match := _PROCESSING.fullmatch(piece):
            if self._input not in (None, stem := Path(match[1]).stem):
                self._new_recording()
            self._input, self._unit = stem, ""
            if folder := match[2].rpartition("/")[0]:
                self._trouble.folders[folder] = None
            yield from self._announce(new_name(match[2]))
            self._trouble.processed[new_name(match[2])] = None
            yield Note("input", self._report, match[1])
            if version := _VERSION.search(match[2]):
                yield Note("version", None, version[1])
        elif match := _EXECUTING.fullmatch(piece):
            self._trouble.steps.append((int(match["step"]), int(match["steps"])))
            yield from self._announce(new_name(match["report"]))
        elif match := _NAMED.fullmatch(piece):
            self._trouble.titled[new_name(match[1])] = None
            yield from self._announce(new_name(match[1]))
        elif match := _SKIPPED.match(piece):
            contains = _CONTAINS.match(match[1])
            reason = f"the report does not contain {contains[1]}" if contains else match[1]
            yield Note("skipped", self._report, reason.strip().rstrip("."))
            self._report = None
        elif piece.strip() == _EMPTY:
            yield Note("empty", self._report, _NO_ROWS)
            self._report = None
        elif match := _ERROR.match(piece):
            yield Note("error", new_name(match[1]) if match[1] else None, match[2].strip())
            self._report = None
        elif match := _WARNING.match(piece):
            yield Note("warning", None, match[1].strip())
        elif titled := of_title(piece):
            self._unit = titled[1]
            yield from self._announce(titled[0])
        elif _HEADER.match(piece):
            yield from self._not_understood(piece)
