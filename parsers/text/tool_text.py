"""The text that a tool printed, line by line, with lines of other programs set aside and counted.
Such files are grown by ``>>`` in loops, cut off by ``kill``, redirected by PowerShell (UTF-16, BOM,
CRLF), and shared with whatever else the script prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from perfctl.parsers.text.doubts import repeated
from perfctl.parsers.text.lines import Lines, Log, encoding_of, open_text
from perfctl.records.errors import ReportError
from perfctl.records.report import Diagnostic

HEAD_BYTES = 65536
"""Bytes of a file's beginning that ``head_lines`` needs."""
LINES = 1_000_000
"""Of a file: with one reading a line some 350 MB. A GPU read once a second has so many in
eleven days."""
_OPENING, _LONGEST_OPENING = 3, 12
_STAMP = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d{16}\b")
_KEPT = 5
_SHOWN = 160


class ToolText:
    """The lines of one file. Raises ReportError when the same log begins again, or there are too
    many lines."""

    def __init__(self, path: Path, tool: str) -> None:
        self.path, self._tool = path, tool
        self.ends_whole = True
        """False once the last line has been seen without its end."""
        self.line = 0
        """Number of the line that was read last, from 1."""
        self._log = Log()
        self._strays: list[str] = []
        self._stray_count = 0

    def __iter__(self) -> Iterator[str]:
        """Lines without their ends; blank lines too. Lines with NUL bytes are strays."""
        opening = _Opening()
        with open_text(self.path) as file:
            for number, line in enumerate(Lines(file, self._log), 1):
                self.line, self.ends_whole = number, line.endswith("\n")
                line = line.rstrip("\r\n")
                if (again := opening.again(line, number)) is not None:
                    raise repeated(self.path, self._tool, "one log", again)
                if number > LINES:
                    reason = f"it has more than {LINES:,} lines, which do not fit into memory"
                    remedy = "Pass the part that matters (head, tail) or every tenth reading"
                    raise ReportError(self.path, self._tool, reason, remedy)
                if "\0" in line:
                    self.stray(line)
                else:
                    yield line

    def stray(self, line: str) -> None:
        """Set aside a line that is not the tool's."""
        self._stray_count += 1
        if len(self._strays) < _KEPT:
            self._strays.append(
                "".join(c if c.isprintable() else "?" for c in line.strip()[:_SHOWN])
            )

    def diagnostics(self) -> list[Diagnostic]:
        """What was left out."""
        found = []
        if count := self._stray_count:
            shown = "; ".join(f"'{line}'" for line in self._strays)
            found.append(
                Diagnostic(
                    "info",
                    "perfctl",
                    f"{count} of {max(self.line, count)} lines are not readings, for example "
                    f"{shown}",
                )
            )
        if count := self._log.cut_rows:
            text = f"{count} lines longer than 4 million characters were left out"
            found.append(Diagnostic("warning", "perfctl", text))
        return found


class _Opening:
    """Detects when the first lines of a log, up to its first time, appear again later."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._stamp: str | None = None
        self._is_whole = self._is_past = False
        self._matched = self._since = 0

    def again(self, line: str, number: int) -> int | None:
        """Return the line, from 1, where the opening began again, once it repeated after other
        times; else None."""
        if not line.strip():
            return None
        if not self._is_whole:
            self._open(line)
        elif self._stamp is not None:
            if not self._is_past:
                match = _STAMP.search(line[:_SHOWN])
                self._is_past = match is not None and match[0] != self._stamp
            elif line == self._lines[self._matched]:
                self._since = self._since if self._matched else number
                self._matched += 1
            else:
                self._since, self._matched = number, int(line == self._lines[0])
            if self._matched == len(self._lines):
                return self._since
        return None

    def _open(self, line: str) -> None:
        self._lines.append(line)
        if self._stamp is None and (match := _STAMP.search(line[:_SHOWN])):
            self._stamp = match[0]
        enough = len(self._lines) >= _OPENING and self._stamp is not None
        self._is_whole = enough or len(self._lines) == _LONGEST_OPENING


@lru_cache(maxsize=2)
def head_lines(head: bytes) -> list[str]:
    """The first lines of a file, for sniffing; lines with NUL bytes are left out. One parser after
    another asks for them."""
    text = head.decode(encoding_of(head), "replace")
    return [line for line in text.splitlines()[:400] if "\0" not in line]
