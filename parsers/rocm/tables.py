"""CSV files of AMD's profilers as rows of named cells, one at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.rocm.records import AGAIN
from perfctl.parsers.text.doubts import repeated
from perfctl.parsers.text.lines import encoding_of
from perfctl.records.errors import ReportError, readable

_LONGEST_CELL = 1 << 20
"""Characters; names of kernels in Composable Kernel have some ten thousand."""


class Cells(NamedTuple):
    """One row: cells in the order of the header, and where each column stands."""

    row: list[str]
    at: Mapping[str, int]

    def text(self, *names: str) -> str:
        """The cell of the first of these columns that the file has; "" for none."""
        for name in names:
            if name in self.at:
                return self.row[self.at[name]]
        return ""


@lru_cache(maxsize=2)
def header_of(head: bytes) -> list[str]:
    """Names of the columns, from the first bytes of a file; [] where the first line is no CSV."""
    line = head.decode(encoding_of(head), "replace").splitlines()[:1]
    try:
        return next(csv.reader(line, strict=True), [])
    except csv.Error:
        return []


def read_header(path: Path) -> list[str]:
    """The same of a file; its first line may be long."""
    with path.open("rb") as file:
        return header_of(file.read(1 << 18))


def rows_of(path: Path, tool: str) -> Iterator[Cells]:
    """Every row below the header. Raises ReportError, with the line, for a row that does not fit the header."""
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    with readable(path, tool), path.open("rb") as raw:
        encoding = encoding_of(raw.read(4096))
        raw.seek(-1, 2)
        whole = raw.read() in (b"\n", b"\r", b'"', b"\0")
    with readable(path, tool), path.open(encoding=encoding, errors="replace", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            at: dict[str, int] = {}
            for position, name in enumerate(header):
                at.setdefault(name.strip(), position)
            for row in reader:
                if len(row) != len(header):
                    if not any(cell.strip() for cell in row):
                        continue
                    reason = f"line {reader.line_num} has {len(row)} of {len(header)} columns: the file is cut off or damaged"
                    raise ReportError(path, tool, reason, AGAIN)
                if row == header:
                    raise repeated(path, tool, "the header", reader.line_num)
                yield Cells(row, at)
            if not whole:  # else a number that was cut short would pass for another one
                reason = f"line {reader.line_num}, the last, has no end: the file is cut off"
                raise ReportError(path, tool, reason, AGAIN)
        except csv.Error as error:
            reason = f"line {reader.line_num} is no complete CSV ({error}): the file is cut off or damaged"
            raise ReportError(path, tool, reason, AGAIN) from error
