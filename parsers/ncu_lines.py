"""Finds ncu's CSV among the other output in the same file.

ncu writes its CSV to the stdout it shares with the profiled program, between ``==PROF==`` lines and whatever the
program prints; PowerShell makes it UTF-16 or puts a BOM and CRLF. This module turns such a file into whole CSV
rows (a quoted cell may span lines) and a :class:`~perfctl.parsers.text_lines.Log` of the rest.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from perfctl.parsers.text_lines import Lines, Log

ROW_LIMIT = 8 * 2**20

_HEADER_STARTS = ('"ID","Process ID"', '"Process ID","Process Name"', "ID,Process ID", "Process ID,Process Name")
_ROW_START = re.compile(r'"[0-9]*","[0-9]+","')
_ROW_INSIDE = re.compile(r'"[0-9]+","[0-9]+","[^"]*","[^"]*","')


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

    def __init__(self, source: Lines, log: Log, *, quoted: bool = True) -> None:
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
    """Split one complete row of text into cells; None when it is not CSV.

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
