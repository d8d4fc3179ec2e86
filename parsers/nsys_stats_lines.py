"""Reads the tables in the output of ``nsys stats`` and ``nsys profile --stats=true``, one row at a time.

CSV and console tables of any number of reports may follow each other, between progress bars, the program's output and lines that
say why a report is missing. Nothing is held but the row being read, so a file may be larger than memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.nsys_stats_cells import BoxTable, ColumnTable, CsvTable, TsvTable, box_spans, ruler_spans
from perfctl.parsers.nsys_stats_json import JsonRows, begins
from perfctl.parsers.nsys_stats_names import Column, columns_of, guess, new_name, of_title
from perfctl.parsers.text_lines import Lines, Log, open_text

_PROCESSING = re.compile(r"Processing \[(.*)\] with \[(.*)\]\.\.\.\s*")
_EXECUTING = re.compile(r"\[\d+/\d+\] Executing '([\w:-]+)' stats report\s*")
_NAMED = re.compile(r" ?\*\* .*\(([a-z0-9_]+)(?::[^)]*)?\):\s*")
_SKIPPED = re.compile(r"SKIPPED: (.*)")
_CONTAINS = re.compile(r".* does not contain (.*)")
_EMPTY = "Report was successfully run, but no data was returned."
_ERROR = re.compile(r"ERROR: (?:Report '([\w.-]+)')?(.*)")
_WARNING = re.compile(r"(?:WARNING|Warning): (.*)")
_VERSION = re.compile(r"nsight-systems[/-](?:cli/)?(\d{4}\.\d+\.\d+(?:\.\d+)?)/")
_HEADER = re.compile(r"[A-Z][^,\t]{0,60}(?:[,\t][^,\t]{1,60}){2}")
"""May be the header of a CSV or TSV table."""
_PIECE_LIMIT = 4000


class Start(NamedTuple):
    """A table begins."""

    report: str
    """Name in the spelling since 2023."""
    columns: list[Column]
    form: str
    """CSV, TSV, JSON or console text."""
    line: int
    """Where it, or the words that announce it, stands in the file, from 1; of an array, where that begins."""


class Note(NamedTuple):
    """A line that says something about a report instead of a table."""

    kind: str
    """skipped, empty, error, warning, input (text: the file that was read), version, unknown (text: the header of a
    table that was not understood)."""
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


AnyTable = CsvTable | TsvTable | ColumnTable | BoxTable
_FORMS = {CsvTable: "CSV", TsvTable: "TSV"}
Event = Start | Note | list[str]


def events(path: Path, trouble: Trouble) -> Iterator[Event]:
    """Tables and notes in the order of the file; a list is a row of the table that started last. Raises OSError."""
    with open_text(path) as file:
        yield from _Scan(path.name, trouble).run(Lines(file, trouble.log))


class _Scan:
    """The reader's position in the text."""

    def __init__(self, file_name: str, trouble: Trouble) -> None:
        self._file_name, self._trouble = file_name, trouble
        self._report: str | None = None
        self._unit = ""
        self._before = ""
        self._line = 0
        self._at = 0
        """The line that announces the report; of an array, where it begins."""
        self._table: AnyTable | None = None
        self._json: JsonRows | None = None
        self._keys: dict[str, None] = {}
        """Of the objects of the array that is being read."""

    def run(self, source: Iterator[str]) -> Iterator[Event]:
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
                yield from self._end_table()
            yield from self._outside(line)
        if self._table is not None:
            yield from self._end_table()
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
        return line.startswith(("Processing [", "SKIPPED: ", "[", " ** ", "** ", "Generating ")) and (
            any(pattern.match(line) for pattern in (_PROCESSING, _EXECUTING, _NAMED, _SKIPPED))
            or line.startswith("Generating CUDA")
        )

    def _outside(self, line: str) -> Iterator[Event]:
        """One line that is not inside a table; a progress bar's pieces, parted by CR, count each."""
        start = self._start(line)
        if isinstance(start, Start):
            yield start
            self._before = ""
            return
        if ruler_spans(line.rstrip()):
            yield from self._not_understood(self._before)
        for piece in line.rstrip("\r\n").split("\r"):
            if len(piece) < _PIECE_LIMIT and piece.strip():
                yield from self._note(piece)
                self._before = piece

    def _start(self, line: str) -> Start | None:
        """Does a table begin with this line? A console table does with its ruler, whose header was the line before."""
        text = line.rstrip()
        if self._table is None and (spans := ruler_spans(text)):
            header = ColumnTable(spans, self._before)
            return self._begin(header.header(), header)
        if text.startswith("| ") and (box := box_spans(self._before)):
            table = BoxTable(box, self._before)
            return self._begin(table.split(text), table)
        if "," in text and (text[:1].isalpha() or text[:1] in '"\ufeff') and (cells := CsvTable.header_cells(text)):
            return self._begin(cells, CsvTable(len(cells)))
        if "\t" in text and (cells := TsvTable.header_cells(text)):
            return self._begin(cells, TsvTable())
        return None

    def _begin(self, cells: list[str], table: AnyTable) -> Start | None:
        columns = columns_of(cells, self._unit)
        if columns is None:
            return None
        report, at = self._report or guess(columns, self._file_name), self._begun_at()
        if self._table is None:
            self._table = table
            table.know(columns, report)
            self._report, self._unit = None, ""
        return Start(report, columns, _FORMS.get(type(table), "console text"), at)

    def _begun_at(self) -> int:
        """The line at which the table that begins now was announced, or stands; lines that were too long count too."""
        return (self._at if self._report is not None else self._line) + self._trouble.log.cut_rows

    def _note(self, piece: str) -> Iterator[Note]:
        if match := _PROCESSING.fullmatch(piece):
            self._report, self._unit, self._at = new_name(match[2]), "", self._line
            yield Note("input", self._report, match[1])
            if version := _VERSION.search(match[2]):
                yield Note("version", None, version[1])
        elif match := _EXECUTING.fullmatch(piece) or _NAMED.fullmatch(piece):
            self._report, self._at = new_name(match[1]), self._line
        elif match := _SKIPPED.match(piece):
            contains = _CONTAINS.match(match[1])
            reason = f"the report does not contain {contains[1]}" if contains else match[1]
            yield Note("skipped", self._report, reason.strip().rstrip("."))
        elif piece.strip() == _EMPTY:
            yield Note("empty", self._report, "nsys stats ran this report and got no rows")
        elif match := _ERROR.match(piece):
            yield Note("error", new_name(match[1]) if match[1] else None, match[2].strip())
        elif match := _WARNING.match(piece):
            yield Note("warning", None, match[1].strip())
        elif titled := of_title(piece):
            (self._report, self._unit), self._at = titled, self._line
        elif _HEADER.match(piece):
            yield from self._not_understood(piece)
