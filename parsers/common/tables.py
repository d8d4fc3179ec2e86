"""The builder of records from tables, which every format of rows and columns shares.

A :class:`FieldColumn` declares which column of a tool fills which field of a record: names, unit,
and how a cell is read. A :class:`RowReader` finds the declared columns in the header of one file
and reads its rows. Cells are texts (CSV, console), or the values of JSON and SQL.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from perfctl.parsers.common.lines import decode_head_lines, guess_encoding
from perfctl.parsers.common.numbers import parse_integer
from perfctl.records.errors import ReportError, convert_os_errors

CELL_LIMIT = 1 << 24
"""Characters of a cell; the longest are stack traces and kernel names, below a million."""


def nonempty_text_or_none(value: object) -> str | None:
    """Return a text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


class FieldColumn(NamedTuple):
    """One column of a tool."""

    name: str
    """As the tool prints it, without the unit."""
    unit: str = ""
    """As the header prints it or the tool documents it; a unit in the cell goes before it."""
    field: str | None = None
    """The field of the record that it fills; None if it becomes a figure by its name."""
    read: Callable[[Any], Any] = parse_integer
    also: tuple[str, ...] = ()
    """Other names of the column, in other versions."""


class RowReader:
    """The declared columns in the header of one file."""

    def __init__(self, columns: Iterable[FieldColumn], header: Sequence[str]) -> None:
        indices = {name.strip(): index for index, name in reversed(list(enumerate(header)))}
        self._readers: list[tuple[str, int, Callable[[Any], Any]]] = []
        self._absent: dict[str, None] = {}
        for column in columns:
            field = column.field or column.name
            matches = [indices[name] for name in (column.name, *column.also) if name in indices]
            if matches:
                self._readers.append((field, matches[0], column.read))
            else:
                self._absent[field] = None

    def convert_row(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return field -> value; None for missing columns, and for cells that cannot be read."""
        values: dict[str, Any] = {field: read(row[index]) for field, index, read in self._readers}
        return values | self._absent if self._absent else values


def iterate_csv_rows(path: Path, tool: str, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of all rows that are not blank. Raises ReportError, with the line, for
    what is no CSV, and for a line longer than any cell before it fills the memory."""
    csv.field_size_limit(max(csv.field_size_limit(), CELL_LIMIT))
    with convert_os_errors(path, tool):
        with path.open("rb") as head:
            encoding = guess_encoding(head.read(4096))
        with path.open(encoding=encoding, errors="replace", newline="") as file:
            reader = csv.reader(_iterate_limited_lines(file, path, tool, remedy), strict=True)
            try:
                for cells in reader:
                    if any(cell.strip() for cell in cells):
                        yield reader.line_num, cells
            except csv.Error as error:
                is_cut = "unexpected end" in str(error)
                reason = f"line {reader.line_num} is no complete CSV ({error})"
                if is_cut:
                    reason = f"the file ends inside a quoted cell (line {reader.line_num})"
                raise ReportError(path, tool, reason, remedy) from error


def _iterate_limited_lines(file: TextIO, path: Path, tool: str, remedy: str) -> Iterator[str]:
    for line in iter(partial(file.readline, CELL_LIMIT), ""):
        if len(line) == CELL_LIMIT and not line.endswith(("\n", "\r")):
            reason = f"a line is longer than {CELL_LIMIT:,} characters"
            raise ReportError(path, tool, reason, remedy)
        yield line


def split_csv_line(line: str) -> list[str]:
    """Return the cells of one line; [] if it is no CSV."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def read_csv_header(head: bytes) -> tuple[str, ...]:
    """Return the cells of a CSV file's first line, from its first bytes; () if it is no CSV."""
    return tuple(cell for line in decode_head_lines(head)[:1] for cell in split_csv_line(line))


def has_complete_last_line(path: Path, *ends: bytes) -> bool:
    """Return whether the file's last line is complete: it ends with a line end, or one of
    ``ends``."""
    with path.open("rb") as file:
        file.seek(-min(4, path.stat().st_size), 2)
        # UTF-16 may have a NUL behind it
        return file.read().rstrip(b"\0")[-1:] in (b"\r", b"\n", *ends)


def read_json_fields(columns: Iterable[FieldColumn], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return field -> value of a JSON object. A name such as "grid_size.x" leads into the objects
    inside it; the first name that leads to a readable value counts."""
    values: dict[str, Any] = {}
    for column in columns:
        value_read = None
        for name in (column.name, *column.also):
            value: Any = record
            for key in name.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if (value_read := column.read(value)) is not None:
                break
        values[column.field or column.name] = value_read
    return values
