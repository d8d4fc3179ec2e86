"""Reads the tables in the output of ``nsys stats`` and ``nsys profile --stats=true``, one row at a
time. CSV, TSV, JSON and console tables of any number of reports may follow each other, between
progress bars, the program's output and lines that say why a report is missing. Nothing is held but
the row being read, so a file may be larger than memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.common.doubts import split_words
from perfctl.parsers.common.lines import LineReader, SurroundingLines, open_undecorated_text
from perfctl.parsers.common.numbers import Unit, parse_unit
from perfctl.parsers.nsys.tables import KNOWN

_KNOWN = KNOWN["stats"]
OLD_NAMES: dict[str, str] = _KNOWN["old_names"]
"""Spelling up to 2022 -> spelling since 2023, as the reports of 2022.4 and 2023.1
list themselves."""
DEVICE_SUMS = split_words("cuda_gpu_kern_sum cuda_gpu_mem_time_sum cuda_gpu_sum")
HOST_SUMS = split_words(
    "cuda_api_sum mpi_event_sum nvtx_pushpop_sum nvtx_startend_sum nvtx_sum openacc_sum openmp_sum "
    "osrt_sum syscall_sum vulkan_api_sum"
)
MIXED_SUM = "cuda_api_gpu_sum"
"""Sums whose column Category says GPU or host."""
GPU_TRACE, KERNEL_TRACE = "cuda_gpu_trace", "cuda_kern_exec_trace"
RANGE_TRACE, PROJECTED_TRACE = "nvtx_pushpop_trace", "nvtx_gpu_proj_trace"
API_TRACE = "cuda_api_trace"
KERNEL_SUM, EXECUTION_SUM = "cuda_gpu_kern_sum", "cuda_kern_exec_sum"
API_SYNC = "cuda_api_sync"
ANALYSES = {
    API_SYNC: "call",
    "cuda_memcpy_async": "copy",
    "cuda_memcpy_sync": "copy",
    "cuda_memset_sync": "memset",
    "gpu_gaps": "idle gap",
    "gpu_time_util": "period of low use",
}
"""Rule of ``nsys analyze`` -> the name of an event that breaks it, for rows without a name."""
TRACES = (GPU_TRACE, KERNEL_TRACE, RANGE_TRACE, PROJECTED_TRACE, API_TRACE)
UNKNOWN = "unnamed report"
REPORTS = {*OLD_NAMES.values(), *DEVICE_SUMS, *HOST_SUMS, MIXED_SUM, *TRACES, UNKNOWN, *ANALYSES}
"""Reports whose rows are understood, or known to be kept as summaries."""

COUNTS = ("Instances", "Num Calls", "Calls", "Count", "Operations", "Range Instances")
NAMES = ("Name", "Operation", "Range", "Kernel Name")
TEXTS = frozenset((*NAMES, *_KNOWN["texts"]))
"""Columns that identify a row; all others are figures."""
_FIGURES = frozenset((*COUNTS, *_KNOWN["figures"]))
LABELS = TEXTS | _FIGURES | frozenset(_KNOWN["not_used"])
"""All columns of the reports of nsys 2022.4 to 2025. Those not used are kept as figures of sums,
and left out of traces."""
_LABELS = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Median": "Med"}
_WITH_UNIT = re.compile(r"(.*?) ?\(([^()]+)\)", re.DOTALL)
_STATISTICS = ("Avg", "Med", "Min", "Max", "StdDev")
_LEAST_KNOWN = 3
_LONGEST_HEADER = 4000

_RULER = re.compile(r" ?-{2,}(?: +-{2,})+|\+(?:-{2,}\+){2,}")
_FIGURE = re.compile(
    r"(?:[+-]?[0-9][0-9.,\u00a0\u202f' ]*(?:[eE][+-]?[0-9]+)?%?|None|0x.*|.*…)?", re.DOTALL
)
_ARRAY_BEGIN = re.compile(r"\s*\ufeff*\[\s*(?:\{|\Z)")
"""What a line begins with that may begin an array of objects."""
_LONGEST_RULER = 20_000
_LONGEST_NAME = 100_000
_LONGEST_OBJECT = 1 << 20
"""Characters that one JSON object may have; nsys's longest are below ten thousand."""
_LONGEST_NOTE = 4000
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)

_UNIT = r"Statistics.*?(?:\((?:by \w+ in )?(?P<text>nanoseconds|KiB|bytes)\).*)?"
_NOTES = [
    (kind, report, re.compile(pattern, re.DOTALL))
    for kind, report, pattern in (
        ("recording", None, r"""(?:Generating|Saving temporary) ["'][^"']+\.qd\w+["'].*"""),
        ("end", None, r"Generat(?:ed:\s*|ing CUDA.*)"),
        ("report", None, r"Processing \[(?P<text>.*\] with \[(?P<report>.*))\]\.\.\.\s*"),
        ("report", None, r"\[\d{1,4}/\d{1,4}\] Executing '(?P<report>[\w:-]+)' stats report\s*"),
        ("report", None, r" ?\*\* .*\((?P<report>[a-z0-9_]+)(?::[^)]*)?\):\s*"),
        ("skipped", None, r"SKIPPED: (?P<text>.*)"),
        ("empty", None, r"\s*Report was successfully run, but no data was returned\.\s*"),
        ("error", None, r"ERROR: (?:Report '(?P<report>[\w.-]+)')?(?P<text>.*)"),
        ("warning", None, r"(?:WARNING|Warning): (?P<text>.*)"),
        # before reports had names; up to 2020 with the unit: "(nanoseconds)", "(by size in KiB)"
        ("title", "cuda_api_sum", rf"\s*CUDA API {_UNIT}"),
        ("title", "cuda_gpu_kern_sum", rf"\s*CUDA Kernel {_UNIT}"),
        (
            "title",
            "cuda_gpu_mem_size_sum",
            rf"\s*CUDA Memory Operation (?=.*(?:size|KiB|bytes)){_UNIT}",
        ),
        ("title", "cuda_gpu_mem_time_sum", rf"\s*CUDA Memory Operation {_UNIT}"),
        ("title", "osrt_sum", rf"\s*Operating System Runtime API {_UNIT}"),
        ("title", "nvtx_pushpop_sum", rf"\s*NVTX Push[-/]Pop Range {_UNIT}"),
        ("title", "nvtx_startend_sum", rf"\s*NVTX Start[-/]End Range {_UNIT}"),
        ("title", "nvtx_sum", rf"\s*NVTX (?:Range )?{_UNIT}"),
        ("unknown", None, r"(?P<text>[A-Z][^,\t]{0,60}(?:[,\t][^,\t]{1,60}){2}.*)"),
    )
]
"""Lines outside of tables: kind of note, the report of a title, and how the line reads."""
_NO_ROWS = "nsys stats ran this report and found no rows"
_BEGIN_NOTES = ("Processing [", "[", " ** ", "** ", "SKIPPED: ", "Generating CUDA")
"""What a line begins with that ends a table."""
_ROW = re.compile(r" *\d{1,3}\.\d(?:(?:,\d+(?:\.\d+)?){6},|(?: +\d[\d.,]*){6} )")
"""The beginning of a row of sums: its share and six figures. Outside of a table it lacks
its header."""
_ROWS_IN_NAME = {
    "CSV": re.compile(r"\d(?:,[\d.]*){5},"),
    "TSV": re.compile(r"\d(?:\t[\d.]*){5}\t"),
    "console text": re.compile(r"(?:\s+\d+(?:[.,]\d+)*){6}\s"),
}
"""Figures of further rows in a name, whose line ends were lost."""
_FIGURE_IN_LINE = re.compile(r"(?:^|[,\t ])[\d.]+(?=[,\t ])")
_SHORTEST_CUT = 40
"""Characters of a column of names, below which its width is that of the longest name."""
_FEWEST_FIGURES = 3
"""Figures of a line that is a damaged row, and not the second line of a name."""
_QUOTED = re.compile('"[^"]*"')

Spans = tuple[tuple[int, int], ...]
Split = Callable[[str], list[str]]
"""The cells of one line; fewer or more than the table has columns where it is no row."""


class StatsColumn(NamedTuple):
    """One column of a table."""

    label: str
    """As nsys 2022.4 and later spell it, without the unit."""
    unit: Unit = Unit(None, 1)

    @property
    def is_numeric(self) -> bool:
        """Whether its cells are figures, which do not identify a row."""
        return self.label not in TEXTS


class TableStart(NamedTuple):
    """A table begins."""

    report: str
    """Name in the spelling since 2023."""
    columns: list[StatsColumn]
    form: str
    line: int
    """Where it, or the words that announce it, stands in the file, from 1; of an array, where
    that begins."""
    name_width: int = 0
    """Characters to which the console tables of nsys up to 2021 cut their last column; else 0."""


class ReportNote(NamedTuple):
    """A line that says something about a report instead of a table."""

    kind: str
    """recording (nsys begins another), report or title (it names a report), end, skipped, empty,
    error, warning, unknown (text: the header of a table that was not understood)."""
    report: str | None
    text: str
    """Of a report, the file that nsys reads and the path of the report; of a title, the unit."""
    line: int = 0


Event = TableStart | ReportNote | list[str]


def normalize_report_name(name: str) -> str:
    """Return the spelling since 2023 of a report name in any spelling, ".py" and arguments
    taken off."""
    name = name.rpartition("/")[2].removesuffix(".py").partition(":")[0]
    return OLD_NAMES.get(name, name)


def parse_report_note(line: str) -> ReportNote | None:
    """Return what a line outside of tables says; None for a line that is not of nsys."""
    for kind, report, pattern in _NOTES if len(line) < _LONGEST_NOTE else ():
        if match := pattern.fullmatch(line):
            groups = match.groupdict(default="")
            if name := groups.get("report"):
                report = normalize_report_name(name)
            return ReportNote(kind, report, groups.get("text", "").strip())
    return None


def parse_header(cells: Sequence[str], unit: str = "") -> list[StatsColumn] | None:
    """Return the columns of a header row; None when it is no header of nsys. ``unit`` is the one in
    the title."""
    if sum(map(len, cells)) > _LONGEST_HEADER:
        return None
    columns = []
    # "MB" is 10**6 byte, "MBi" and "MiB" are 2**20 [nsys stats --help-formats]
    for cell in cells:
        match = _WITH_UNIT.fullmatch(cell.strip())
        label, stated = match.groups() if match else (cell.strip(), "")
        label = _LABELS.get(label, label)
        if label in ("Total Time", "Total"):
            unit = stated = stated or unit
        elif label in _STATISTICS:  # without a unit up to 2021.1: that of the total
            stated = stated or unit
        columns.append(StatsColumn(label, parse_unit(_KNOWN["units"].get(stated, stated))))
    labels = [column.label for column in columns]
    known_labels = sum(label in LABELS for label in labels)
    has_figures = not _FIGURES.isdisjoint(labels)
    is_of_ncu = labels[:1] == ["Metric Name"]
    is_known = known_labels >= max(_LEAST_KNOWN, len(labels) / 2) and has_figures and not is_of_ncu
    return columns if is_known else None


def guess_report_name(columns: Sequence[StatsColumn], file_name: str) -> str:
    """Return the report of a table that is not announced: from the end of its file's name, else
    from columns that only this report has."""
    stem = file_name.rpartition(".")[0]
    for old, new in OLD_NAMES.items():
        if f"_{stem}".endswith((f"_{old}", f"_{new}")):
            return new
    labels = {column.label for column in columns}
    return next((name for name, needed in _KNOWN["shapes"] if labels.issuperset(needed)), UNKNOWN)


class LineSource:
    """The lines of a file, one after another; the last one can be given back."""

    def __init__(self, lines: Iterator[str], log: SurroundingLines) -> None:
        self._lines, self.log = lines, log
        self.line, self._count, self._is_back = "", 0, False

    @property
    def line_number(self) -> int:
        """Number of the last line in the file, from 1; lines that were too long count too."""
        return self._count + self.log.cut_rows

    def read_line(self) -> str:
        """Return the next line; "" at the end."""
        if not self._is_back:
            self.line = next(self._lines, "")
            self._count += 1
        self._is_back = False
        return self.line

    def unread_line(self) -> None:
        """Let the last line be read again."""
        self._is_back = True


def read_tables_and_notes(path: Path, log: SurroundingLines) -> Iterator[Event]:
    """Yield tables and notes in the order of the file; a list is a row of the table that started
    last. Raises OSError."""
    with open_undecorated_text(path) as read:
        yield from scan_tables_and_notes(LineSource(LineReader(read, log), log), path.name)


def scan_tables_and_notes(source: LineSource, file_name: str) -> Iterator[Event]:
    """Tell tables and notes from everything else."""
    report: str | None = None  # announced, and its table not seen yet
    begin = 0  # the line that announced it
    unit = before = ""
    while line := source.read_line():
        # a row of a console table that was cut at the blanks before it
        source.log.unended += line.isspace() and not line.endswith(("\n", "\r"))
        if report is None:
            begin = source.line_number
        if table := recognize_table_columns_and_format(line, before, unit):
            columns, split, form = table
            is_old = form == "console text" and before.lstrip().startswith("Time(%)")
            spans = find_ruler_columns(line.rstrip()) if is_old else ()
            width = spans[-1][1] - spans[-1][0] if spans else 0
            start = TableStart(
                report or guess_report_name(columns, file_name), columns, form, begin, width
            )
            report, unit, before = None, "", ""
            yield start
            yield from read_table_rows(source, start, split)
        elif _ARRAY_BEGIN.match(line):
            keys: list[str] = []
            for row in read_json_rows(source):
                if list(row) != keys and (header := parse_header(list(row), unit)):
                    keys = list(row)
                    yield TableStart(
                        report or guess_report_name(header, file_name), header, "JSON", begin
                    )
                if list(row) == keys:
                    yield list(row.values())
                elif report is not None:
                    yield ReportNote("unknown", report, ", ".join(row))
                    report = None
            if keys:
                report, unit = None, ""
        else:
            if report and find_ruler_columns(line.rstrip()) and not line.startswith("+"):
                yield ReportNote("unknown", report, before)
                report = None
            for piece in filter(str.strip, line.rstrip("\r\n").split("\r")):
                source.log.broken_rows += _ROW.match(piece) is not None
                note, before = parse_report_note(piece), piece
                if note is None or (note.kind == "unknown" and not report):
                    continue
                if note.kind in ("report", "title", "end"):
                    if report and note.report != report:
                        # nsys profile prints nothing for a report without rows
                        yield ReportNote("empty", report, _NO_ROWS)
                    begin = begin if report == note.report else source.line_number
                    report, unit = note.report, note.text if note.kind == "title" else ""
                elif note.kind in ("skipped", "empty", "unknown"):
                    note, report = note._replace(report=report), None
                elif note.kind == "error":
                    report = None
                yield note._replace(line=source.line_number)


def recognize_table_columns_and_format(
    line: str, line_before: str, title_unit: str
) -> tuple[list[StatsColumn], Split, str] | None:
    """Return columns, rows and form of the table that begins with this line. A console table begins
    with its ruler, whose header was the line before."""
    text = line.rstrip()
    cells: list[str] = []
    if spans := find_ruler_columns(text):
        cells, form = slice_cells(line_before.rstrip(" |"), spans), "console text"
    elif text[:1].isalpha() or text[:1] in ('"', "\ufeff"):
        cells, form = (
            (split_csv_line(text), "CSV") if "," in text else (split_tsv_line(text), "TSV")
        )
    columns = parse_header(cells, title_unit) if len(cells) > 1 else None
    if columns is None:
        return None
    count, texts = len(columns), [column for column in columns if not column.is_numeric]
    split: Split
    if text.startswith("+"):
        split = partial(split_boxed_line, column_count=count)
    elif form == "console text":
        is_padded = len(line_before) >= spans[-1][1]
        split = partial(
            split_ruled_line, spans=spans, has_texts=len(texts) > 1, is_padded=is_padded
        )
    elif form == "TSV":
        split = partial(split_tsv_line, column_count=count)
    else:
        names = [column for column in texts if column.label in NAMES]
        split = partial(split_csv_line, column_count=count if names == columns[-1:] else 0)
    return columns, split, form


def read_table_rows(source: LineSource, start: TableStart, split: Split) -> Iterator[list[str]]:
    """Yield the rows of a table, up to a line that ends it; count those that do not fit."""
    figures = [index for index, column in enumerate(start.columns) if column.is_numeric]
    has_name = start.columns[-1].label in NAMES
    in_name = _ROWS_IN_NAME[start.form]
    # names of ranges may have several lines
    may_go_on = has_name and start.report.startswith("nvtx")
    row: list[str] = []
    is_ended = True
    while (line := source.read_line()) and not _is_table_end(line):
        if find_ruler_columns(line.rstrip()):
            continue
        cells = split(line)
        if len(cells) == len(start.columns) and are_numeric_or_missing_cells(
            [cells[index] for index in figures]
        ):
            if row:
                yield _unquote_and_mark_truncated_name(row, start)
            lost_rows = in_name.findall(_QUOTED.sub('""', cells[-1])) if has_name else []
            row = [] if lost_rows else cells
            source.log.broken_rows += 1 + len(lost_rows) if lost_rows else 0
        elif (
            may_go_on
            and row
            and len(row[-1]) < _LONGEST_NAME
            and len(_FIGURE_IN_LINE.findall(line)) < _FEWEST_FIGURES
        ):
            row[-1] += "\n" + line.rstrip()
        else:
            source.log.broken_rows += 1
            continue
        is_ended = line.endswith("\n")
    source.unread_line()
    source.log.unended += not is_ended
    if row and not is_ended and _is_truncated_name(row[-1]):
        source.log.broken_rows += 1
    elif row:
        yield _unquote_and_mark_truncated_name(row, start)


def _is_table_end(line: str) -> bool:
    is_note = line.startswith(_BEGIN_NOTES) and parse_report_note(line) is not None
    return (
        is_note or not line.strip() or recognize_table_columns_and_format(line, "", "") is not None
    )


def _is_truncated_name(name: str) -> bool:
    """Return whether a bracket or quote is open in the name at the end of a file."""
    is_closed = name.count("(") == name.count(")") and name.count("[") == name.count("]")
    is_whole = bool(name) and is_closed and name.count('"') % 2 == 0
    return not is_whole and not name.endswith("…")


def _unquote_and_mark_truncated_name(row: list[str], start: TableStart) -> list[str]:
    """Return the row with its name as it was: without the quotes of CSV, and with "…" where the
    width of the column cut it, which nsys up to 2021 does not mark."""
    name = row[-1].strip()
    has_open = name.count("(") > name.count(")") or name.count("<") > name.count(">")
    if has_open and len(name) == start.name_width > _SHORTEST_CUT:
        name += "…"
    if start.form == "CSV" and len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1]
        if '"' not in name.replace('""', ""):
            name = name.replace('""', '"')  # doubled, as the csv module does
    return [*row[:-1], name]


def read_json_rows(source: LineSource) -> Iterator[dict[str, str]]:
    """Yield the objects of the array that begins with the last line, values as the CSV prints
    them."""
    line, count = source.line, 0
    text = line.strip().lstrip("\ufeff")[1:]
    while True:
        text = text.lstrip(" \t\r\n,")
        while text.startswith("{") and "}" in line:
            try:
                row, end = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):  # it goes on in the next line
                break
            yield {key: _print_json_value(value) for key, value in row.items()}
            text, count = text[end:].lstrip(" \t\r\n,"), count + 1
        if text.startswith("]"):
            return
        may_go_on = text[:1] in ("", "{") and len(text) < _LONGEST_OBJECT
        line = source.read_line() if may_go_on else ""
        if not line or line.startswith(_BEGIN_NOTES):
            source.log.broken_rows += count > 0
            if line:
                source.unread_line()
            return
        text += line


def _print_json_value(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


# The forms of a row


def split_csv_line(line: str, column_count: int = 0) -> list[str]:
    """Return the cells of a line of comma separated values. ``column_count``: of a row whose name
    is last; up to 2022.4 nsys quotes a name with commas and leaves quotes in it as they are, so a
    bare name is all that follows the last figure."""
    text = line.rstrip("\r\n")
    if column_count and not text.startswith('"'):
        *figures, name = text.split(",", column_count - 1)
        return [*(cell.strip() for cell in figures), name]
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def split_tsv_line(line: str, column_count: int = 0) -> list[str]:
    """Return the cells of a line parted by tabs, in which nothing is quoted."""
    text = line.rstrip("\r\n").lstrip("\ufeff")
    return [cell.strip() for cell in text.split("\t", column_count - 1)]


def split_ruled_line(line: str, spans: Spans, *, has_texts: bool, is_padded: bool) -> list[str]:
    """Return the cells under a ruler; columns are two blanks apart (one in the oldest reports).
    ``is_padded``: rows are filled up with blanks, so a shorter last line is cut."""
    text = line.rstrip("\r\n")
    if is_padded and not line.endswith("\n") and len(text) < spans[-1][1]:
        return []
    between = "".join(text[end:start] for (_, end), (start, _) in pairwise(spans))
    is_aligned = not between.strip() and not text[: spans[0][0]].strip()
    cells = slice_cells(text, spans) if is_aligned else []
    if has_texts or (are_numeric_or_missing_cells(cells[:-1]) and cells):
        return cells
    return text.split(None, len(spans) - 1)  # a figure is wider than its column


def slice_cells(text: str, spans: Spans) -> list[str]:
    """Return the cells between these places; the last one goes on to the end."""
    *spans_before, (start, _) = spans
    return [*(text[begin:right].strip() for begin, right in spans_before), text[start:].strip()]


def split_boxed_line(line: str, column_count: int) -> list[str]:
    """Return the cells between bars; [] where the outer bars are missing."""
    text = line.strip()
    cells = text[1:-1].split("|", column_count - 1) if text[:1] == text[-1:] == "|" else []
    return [cell.strip() for cell in cells]


def find_ruler_columns(text: str) -> Spans:
    """Return the columns (from, to) of a ruler of dashes, or of a box's "+----+---+"; empty for any
    other line."""
    if "--" not in text or len(text) > _LONGEST_RULER or not _RULER.fullmatch(text):
        return ()
    return tuple((match.start(), match.end()) for match in re.finditer("-+", text))


def are_numeric_or_missing_cells(cells: list[str]) -> bool:
    """Return whether each is a number, nothing, None, or what was cut."""
    return all(_FIGURE.fullmatch(cell) for cell in cells)
