"""Reads the tables in the output of ``nsys stats`` and ``nsys profile --stats=true``, one row at a
time. CSV, TSV, JSON and console tables of any number of reports may follow each other, between
progress bars, the program's output and lines that say why a report is missing. Nothing is held but
the row being read, so a file may be larger than memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.common.doubts import others, words
from perfctl.parsers.common.lines import Lines, Log, open_text
from perfctl.parsers.common.numbers import Unit, base_unit
from perfctl.parsers.nsys.tables import KNOWN

_KNOWN = KNOWN["stats"]
OLD_NAMES: dict[str, str] = _KNOWN["old_names"]
"""Spelling up to 2022 -> spelling since 2023, as the reports of 2022.4 and 2023.1
list themselves."""
DEVICE_SUMS = words("cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_gpu_sum")
HOST_SUMS = words(
    "cuda_api_sum mpi_event_sum nvtx_pushpop_sum nvtx_startend_sum nvtx_sum openacc_sum openmp_sum "
    "osrt_sum syscall_sum vulkan_api_sum"
)
MIXED_SUM = "cuda_api_gpu_sum"
"""Sums whose column Category says GPU or host."""
GPU_TRACE, KERNEL_TRACE = "cuda_gpu_trace", "cuda_kern_exec_trace"
RANGE_TRACE, PROJECTED_TRACE = "nvtx_pushpop_trace", "nvtx_gpu_proj_trace"
API_TRACE = "cuda_api_trace"
TRACES = (GPU_TRACE, KERNEL_TRACE, RANGE_TRACE, PROJECTED_TRACE, API_TRACE)
UNKNOWN = "unnamed report"
REPORTS = {*OLD_NAMES.values(), *DEVICE_SUMS, *HOST_SUMS, MIXED_SUM, *TRACES, UNKNOWN}
"""Reports whose rows are understood, or known to be kept as summaries."""

COUNTS = ("Instances", "Num Calls", "Calls", "Count", "Operations", "Range Instances")
NAMES = ("Name", "Operation", "Range", "Kernel Name")
TEXTS = frozenset((*NAMES, *_KNOWN["texts"]))
"""Columns that identify a row; all others are figures."""
_FIGURES = frozenset((*COUNTS, *_KNOWN["figures"]))
_NOT_USED = frozenset(_KNOWN["not_used"])
"""Other columns of the reports of nsys 2022.4 to 2025: known, kept as figures of sums, not used
of traces."""
_LABELS = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Median": "Med", "Time(%)": "Time"}
_STATISTICS = ("Avg", "Med", "Min", "Max", "StdDev")
_LEAST_KNOWN = 3
_LONGEST_HEADER = 4000
_TITLES = (
    (r"CUDA API Statistics", "cuda_api_sum"),
    (r"CUDA Kernel Statistics", "cuda_gpu_kern_sum"),
    (r"CUDA Memory Operation Statistics.*(?:by size|KiB|bytes)", "cuda_gpu_mem_size_sum"),
    (r"CUDA Memory Operation Statistics", "cuda_gpu_mem_time_sum"),
    (r"Operating System Runtime API Statistics", "osrt_sum"),
    (r"NVTX Push[-/]Pop Range Statistics", "nvtx_pushpop_sum"),
    (r"NVTX Start[-/]End Range Statistics", "nvtx_startend_sum"),
    (r"NVTX (?:Range )?Statistics", "nvtx_sum"),
)


_RULER = re.compile(r" ?-{2,}(?: +-{2,})+|\+(?:-{2,}\+){2,}")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,\u00a0\u202f' ]*(?:[eE][+-]?[0-9]+)?%?")
_FIGURE = re.compile(rf"(?:{_NUMBER.pattern}|None|0x.*|.*…)?", re.DOTALL)
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


class Column(NamedTuple):
    """One column of a table."""

    label: str
    """As nsys 2022.4 and later spell it, without the unit."""
    unit: Unit | None
    """None where the header states none."""

    @property
    def is_figure(self) -> bool:
        """Whether its cells are figures, which do not identify a row."""
        return self.label not in TEXTS


def rename_report(name: str) -> str:
    """Return the spelling since 2023 of a report name in any spelling, ".py" and arguments
    taken off."""
    name = name.rpartition("/")[2].removesuffix(".py").partition(":")[0]
    return OLD_NAMES.get(name, name)


def read_title(title: str) -> tuple[str, str] | None:
    """Return (report, unit of its figures) of a title from before reports had names; None for any
    other line. The unit stands in the title up to 2020 ("(nanoseconds)", "(KiB)", "(by size in
    KiB)"), else it is ""."""
    for pattern, name in _TITLES:
        if len(title) < 100 and re.fullmatch(rf"\s*{pattern}.*", title):
            unit = re.search(r"\((?:by \w+ in )?(nanoseconds|KiB|bytes)\)", title)
            return name, unit[1] if unit else ""
    return None


def read_columns(cells: Sequence[str], unit: str = "") -> list[Column] | None:
    """Return the columns of a header row; None when it is no header of nsys. ``unit`` is the one in
    the title."""
    if sum(map(len, cells)) > _LONGEST_HEADER:
        return None
    found = [_read_column(cell.strip(), unit) for cell in cells]
    labels = [column.label for column in found]
    known = sum(label in _FIGURES or label in TEXTS for label in labels)
    has_figures = not _FIGURES.isdisjoint(labels)
    is_of_ncu = labels[:1] == ["Metric Name"]
    if known < max(_LEAST_KNOWN, len(found) / 2) or not has_figures or is_of_ncu:
        return None
    # without a unit up to 2021.1: that of the total
    total = next((column.unit for column in found if column.label in ("Total Time", "Total")), None)
    return [
        column._replace(unit=column.unit or total) if column.label in _STATISTICS else column
        for column in found
    ]


def _read_column(text: str, unit: str) -> Column:
    text = _LABELS.get(text, text)
    match = re.fullmatch(r"(.*?) ?\(([^()]+)\)", text)
    if match is not None:
        return Column(_LABELS.get(match[1], match[1]), read_unit(match[2]))
    return Column(text, read_unit(unit) if unit and text in ("Total Time", "Total") else None)


def read_unit(text: str) -> Unit:
    """Return the base unit of a unit as nsys spells it: "MB" is 10**6 byte, "MBi" and "MiB" are
    2**20 [nsys stats --help-formats]."""
    return base_unit(_KNOWN["units"].get(text, text))


def unknown_labels(columns: Sequence[Column]) -> list[str]:
    """Return the labels of columns that are in no list."""
    return others((column.label for column in columns), _FIGURES, TEXTS, _NOT_USED)


def guess_report(columns: Sequence[Column], file_name: str) -> str:
    """Return the report of a table that is not announced: from the end of its file's name, else
    from columns that only this report has."""
    stem = file_name.rpartition(".")[0]
    for old, new in OLD_NAMES.items():
        if stem.endswith((f"_{old}", f"_{new}")) or stem in (old, new):
            return new
    labels = {column.label for column in columns}
    return next((name for name, needed in _KNOWN["shapes"] if labels.issuperset(needed)), UNKNOWN)


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
    """Return the columns (from, to) of a ruler of dashes, or of a box's "+----+---+"; empty for any
    other line."""
    if "--" not in text or len(text) > _LONGEST_RULER or not _RULER.fullmatch(text):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", text))


def has_figures(cells: list[str]) -> bool:
    """Return whether each is a number, nothing, None, or what was cut."""
    return all(_FIGURE.fullmatch(cell) for cell in cells)


def _find_other_rows(columns: list[Column], form: str) -> re.Pattern[str] | None:
    """Return what finds the figures of further rows in a name, whose line ends were lost; None
    where rows begin with too few figures to tell."""
    begin = takewhile(lambda column: column.is_figure or column.label.startswith("Corr"), columns)
    figures = min(len(list(begin)), _ROW_FIGURES[-1])
    if figures not in _ROW_FIGURES:
        return None
    number = r"\d+(?:[.,]\d+)*"
    if form == "console text":
        return re.compile(rf"\s{number}(?:\s+{number}){{{figures - 1}}}\s")
    parted = "\t" if form == "TSV" else ","
    # the first figure stands behind the name without anything between
    return re.compile(
        rf"\d(?:{parted}\d+(?:\.\d+)?){{2}}(?:{parted}[\d.]*){{{figures - 3}}}{parted}"
    )


class Table:
    """Rows of one table; counts those that do not fit, and holds back the last one, which may go on
    in the next line."""

    def __init__(
        self, columns: list[Column], report: str, split: Split, form: str, trouble: Trouble
    ) -> None:
        self._form, self._split, self._count = form, split, len(columns)
        self._trouble, self._is_ended = trouble, True
        self._figures = [at for at, column in enumerate(columns) if column.is_figure]
        has_name = columns[-1].label in NAMES
        # names of ranges may have several lines
        self._may_go_on = report.startswith("nvtx") and has_name
        self._other_row = _find_other_rows(columns, form) if has_name else None
        self._row: list[str] | None = None

    def take(self, line: str) -> Iterator[list[str]]:
        """Read one line of the table; yield the row before it."""
        if line.startswith("+-") and find_ruler(line.rstrip()):
            return
        cells = self._split(line)
        if len(cells) == self._count and has_figures([cells[at] for at in self._figures]):
            yield from self._flush()
            outside = _QUOTED.sub('""', cells[-1])
            if self._other_row and (others := self._other_row.findall(outside)):
                self._trouble.rows += 1 + len(others)
                return
            self._row = cells
        elif self._continues_name(line):
            assert self._row is not None
            self._row[-1] += "\n" + line.rstrip()
        else:
            self._trouble.rows += 1
            return
        self._is_ended = line.endswith("\n")

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
        self._trouble.unended += not self._is_ended
        if not self._is_ended and self._row is not None:
            name = self._row[-1]
            is_closed = name.count("(") == name.count(")") and name.count("[") == name.count("]")
            is_whole = bool(name) and is_closed and name.count('"') % 2 == 0
            if not is_whole and not name.endswith("…"):
                self._row = None
                self._trouble.rows += 1
        yield from self._flush()

    def _flush(self) -> Iterator[list[str]]:
        row, self._row = self._row, None
        if row is not None:
            name = row[-1].strip()
            if self._form == "CSV" and len(name) > 1 and name[0] == name[-1] == '"':
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
            if self._json is None and self._table is None and begins_array(line):
                self._json, self._keys, self._at = JsonRows(), [], self._begun_at()
            if self._json is not None:
                yield from self._take_json(line, self._json)
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

    def _take_json(self, line: str, rows: JsonRows) -> Iterator[Event]:
        """One line of an array of objects, which has the place of a table."""
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

    def _answer(self, kind: str, text: str) -> Note:
        """Return what became of the announced report instead of its table."""
        report, self._report = self._report, None
        return Note(kind, report, text)

    def _not_understood(self, header: str) -> Iterator[Note]:
        """The table of an announced report has columns that are not known; said once a report."""
        if self._report is not None:
            yield self._answer("unknown", header)

    def _end_table(self) -> Iterator[list[str]]:
        table, self._table = self._table, None
        if table is not None:
            yield from table.end()

    def _find_start(self, line: str) -> tuple[list[Column], Split, str] | None:
        """Columns, rows and form of the table that begins with this line. A console table begins
        with its ruler, whose header was the line before."""
        text, before = line.rstrip(), self._before
        cells: list[str] = []
        if self._table is None and (spans := find_ruler(text)):
            cells, form = slice_columns(before.rstrip(" |"), spans), "console text"
        elif "," in text and (text[:1].isalpha() or text[:1] in '"\ufeff'):
            cells, form = split_csv(text), "CSV"
        elif "\t" in text:
            cells, form = split_tabs(text), "TSV"
        columns = read_columns(cells, self._unit) if cells else None
        if columns is None:
            return None
        has_texts = sum(column.is_figure for column in columns) < len(columns) - 1
        labels = [column.label for column in columns]
        split: Split
        if text.startswith("+"):
            split = partial(split_boxed, spans=spans)
        elif form == "console text":
            is_padded = len(before) >= spans[-1][1]
            split = partial(split_ruled, spans=spans, has_texts=has_texts, is_padded=is_padded)
        elif form == "TSV":
            split = partial(split_tabs, count=len(columns))
        elif [label for label in labels if label in NAMES] == labels[-1:]:
            split = partial(split_nsys_csv, count=len(columns))
        else:
            split = split_csv
        return columns, split, form

    def _begin(self, columns: list[Column], split: Split, form: str) -> Start:
        report, line = self._report or guess_report(columns, self._file_name), self._begun_at()
        self._table = Table(columns, report, split, form, self._trouble)
        self._report, self._unit, self._before = None, "", ""
        return Start(report, columns, form, line)

    def _begun_at(self) -> int:
        """The line at which the table that begins now was announced, or stands; lines that were too
        long count too."""
        return self._place(self._line if self._report is None else self._at)

    def _place(self, line: int) -> int:
        return line + self._trouble.log.cut_rows

    def _take_notes(self, line: str) -> Iterator[Note]:
        """One line that is not inside a table; a progress bar's pieces, parted by CR,
        count each."""
        if not line.startswith("+") and find_ruler(line.rstrip()):
            yield from self._not_understood(self._before)
        for piece in line.rstrip("\r\n").split("\r"):
            if len(piece) < _LONGEST_NOTE and piece.strip():
                self._trouble.rows += _ROW.match(piece) is not None
                yield from self._take_note(piece)
                self._before = piece

    def _take_note(self, piece: str) -> Iterator[Note]:
        if _RECORDED.match(piece):
            self._trouble.recordings.append(self._place(self._line))
        elif piece.rstrip() == "Generated:":
            yield from self._end_report()
        elif match := _PROCESSING.fullmatch(piece):
            if self._input not in (None, stem := Path(match[1]).stem):
                self._trouble.recordings.append(self._place(self._line))
            self._input, self._unit = stem, ""
            yield from self._announce(rename_report(match[2]))
            if version := _VERSION.search(match[2]):
                yield Note("version", None, version[1])
        elif match := _EXECUTING.fullmatch(piece) or _NAMED.fullmatch(piece):
            yield from self._announce(rename_report(match[1]))
        elif match := _SKIPPED.match(piece):
            contains = _CONTAINS.match(match[1])
            reason = f"the report does not contain {contains[1]}" if contains else match[1]
            yield self._answer("skipped", reason.strip().rstrip("."))
        elif piece.strip() == _EMPTY:
            yield self._answer("empty", _NO_ROWS)
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

    def _announce(self, report: str) -> Iterator[Note]:
        if report != self._report:
            yield from self._end_report()
        self._report, self._at = report, self._line
        self._trouble.announced.append((self._place(self._line), report))

    def _end_report(self) -> Iterator[Note]:
        """What was announced is over; a report that nothing followed had no rows (nsys profile then
        prints nothing)."""
        if self._report is not None:
            yield self._answer("empty", _NO_ROWS)
