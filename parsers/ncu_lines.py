"""Finding ncu's CSV among everything else that reaches the same file.

ncu writes its CSV to the stdout it shares with the profiled program, between ``==PROF==`` lines and whatever the
program prints; PowerShell makes it UTF-16 or puts a BOM and CRLF. This module turns such a file into whole CSV
rows (a quoted cell may span lines) and a :class:`Log` of the rest.
"""

from __future__ import annotations

import csv
import re
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

LINE_LIMIT = 4 * 2**20
"""Longest line that is looked at, in characters; ncu's widest rows are below 100 thousand."""
ROW_LIMIT = 8 * 2**20
TAIL_BYTES = 16384
"""How much of a file's end is looked at where its beginning is the program's."""

_TOOL_LINE = re.compile(r"==(PROF|ERROR|WARNING)== ?(.*)")
_CONSOLE_LINE = re.compile(r"\s+Section: \S|\s+-{20,} -{3,}")
_HEADER_STARTS = ('"ID","Process ID"', '"Process ID","Process Name"', "ID,Process ID", "Process ID,Process Name")
_ROW_START = re.compile(r'"[0-9]*","[0-9]+","')
_ROW_INSIDE = re.compile(r'"[0-9]+","[0-9]+","[^"]*","[^"]*","')
_KEPT_LINES = 1000


@dataclass(slots=True)
class Log:
    """What stood around the CSV."""

    tool_lines: Tally[tuple[str, str]] = field(default_factory=Tally)
    """(PROF, ERROR or WARNING; text) -> how often, in order of first appearance."""
    console_lines: int = 0
    """Lines that look like ncu's own console tables."""
    cut_rows: int = 0
    """CSV rows that were cut off or broken."""
    first_line: str = ""

    def add(self, line: str) -> None:
        """Take in one line that is not part of the CSV; a progress bar's pieces, parted by CR, count each."""
        for part in line.split("\r"):
            if part and not part.isspace():
                self._add(part)

    def _add(self, line: str) -> None:
        if not self.first_line:
            self.first_line = line[:1000].strip()
        match = _TOOL_LINE.match(line)
        if match is None:
            self.console_lines += _CONSOLE_LINE.match(line) is not None
            return
        key = (match[1], match[2].strip()[:2000])
        if key in self.tool_lines or len(self.tool_lines) < _KEPT_LINES:
            self.tool_lines[key] += 1


def encoding_of(head: bytes) -> str:
    """The encoding of a text file, from its first bytes."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if head.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    sample = head[:512]
    if len(sample) >= 4 and sample[1::2].count(0) > len(sample) // 3:
        return "utf-16-le"
    if len(sample) >= 4 and sample[::2].count(0) > len(sample) // 3:
        return "utf-16-be"
    return "utf-8"


def tail_of(path: Path, head: bytes) -> str:
    """The end of a file as text, where it is longer than ``head``, its beginning; "" where it is not, or not to be read."""
    try:
        size = path.stat().st_size
        if size <= len(head):
            return ""
        with path.open("rb") as file:
            file.seek(max(0, (size - TAIL_BYTES) & ~1))
            tail = file.read(TAIL_BYTES + 2)
    except OSError:
        return ""
    return tail.decode(encoding_of(head).removesuffix("-sig"), "replace")


def open_text(path: Path) -> TextIO:
    """The file as text; bytes that do not decode become U+FFFD. Lines end at "\\n" and keep a "\\r" before it."""
    with path.open("rb") as file:
        encoding = encoding_of(file.read(4096))
    return path.open(encoding=encoding, errors="replace", newline="\n")


def lines(file: TextIO, log: Log) -> Iterator[str]:
    """The lines of the file; one longer than LINE_LIMIT is dropped and counted, never held whole."""
    for line in iter(partial(file.readline, LINE_LIMIT), ""):
        if len(line) < LINE_LIMIT or line.endswith("\n"):
            yield line
            continue
        log.cut_rows += 1
        for rest in iter(partial(file.readline, LINE_LIMIT), ""):
            if len(rest) < LINE_LIMIT or rest.endswith("\n"):
                break


def header_at(line: str) -> int:
    """Where ncu's CSV header begins in the line (a program's last output may stand before it); -1 if it has none."""
    for start in _HEADER_STARTS:
        at = line.find(start)
        if at == 0 or (at > 0 and start.startswith('"')):
            return at
    return -1


def skip_to_header(source: Iterator[str], log: Log) -> str | None:
    """The header line, or None when the file ends without one; what comes before goes to the log."""
    for line in source:
        at = header_at(line)
        if at >= 0:
            if at:
                log.add(line[:at])
            return line[at:]
        log.add(line)
    return None


class Rows:
    """Whole CSV rows as text, header rows of further tables included; everything else goes to the log.

    A reader that knows a line for a whole row may take it from ``source`` itself, and give the others to ``feed``.
    """

    def __init__(self, source: Iterator[str], log: Log, *, quoted: bool = True) -> None:
        """``quoted`` says that cells are quoted, as ncu writes them; a table that was saved again by another program
        may have bare cells, and then every line with a comma counts as a row."""
        self.source = source
        self.pending: list[str] = []
        """The lines so far of a row whose last cell goes on in the next line."""
        self._size = 0
        self._log = log
        self._quoted = quoted

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            if row := self.feed(line):
                yield row
        self.end()

    def feed(self, line: str) -> str:
        """The row that this line completes, "" when it completes none."""
        if self.pending:
            if _ROW_START.match(line) or self._size > ROW_LIMIT:
                self._log.cut_rows += 1
                self.pending = []
            else:
                return self._go_on(line)
        if not line.startswith('"') and not (not self._quoted and "," in line and not line.startswith("==")):
            line = _row_inside(line, self._log)
        if line.count('"') & 1:
            self.pending, self._size = [line], len(line)
            return ""
        return line

    def _go_on(self, line: str) -> str:
        self.pending.append(line)
        self._size += len(line)
        if not line.count('"') & 1:
            return ""
        row = "".join(self.pending)
        self.pending = []
        return row

    def end(self) -> None:
        """To be called when the source has ended."""
        if self.pending:
            self._log.cut_rows += 1
            self.pending = []


def _row_inside(line: str, log: Log) -> str:
    """The CSV row that begins within a line of program output, or "" ."""
    at = header_at(line)
    if at < 0:
        match = _ROW_INSIDE.search(line) if '","' in line else None
        at = match.start() if match else -1
    if at > 0:
        log.add(line[:at])
        return line[at:]
    log.add(line)
    return ""


def cells(row: str) -> list[str] | None:
    """The cells of one whole row of text; None when it is no CSV.

    ncu quotes every cell, so a row without quotes inside cells is split at '","' (the number of quotes proves it),
    which takes a third of the time of the csv module.
    """
    # A comma at the end is no further cell: ncu ends metric rows so when the header has rule columns.
    text = row.rstrip("\r\n,") if row.startswith('"') else row
    found = text[1:-1].split('","')
    if text.count('"') == 2 * len(found) and text[0] == text[-1] == '"':
        return found
    try:
        return next(csv.reader([text]))
    except (csv.Error, StopIteration):
        return None
