"""A monitoring tool's text, line by line, with what does not belong to it set aside; and the moments of readings.

Such files are grown by ``>>`` in loops, cut off by ``kill``, redirected by PowerShell (UTF-16, BOM, CRLF), and shared
with whatever else the script prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from perfctl.parsers.errors import ReportError
from perfctl.parsers.records import Diagnostic, Gap
from perfctl.parsers.repeated import repeated
from perfctl.parsers.text_lines import Lines, Log, encoding_of, open_text
from perfctl.parsers.timestamps import Stamp, iso_utc

LINES = 1_000_000
"""Of a file: with one reading a line some 350 MB. A GPU read once a second has so many in eleven days."""
_OPENING, _LONGEST_OPENING = 3, 12
_STAMP = re.compile(r"\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d{16}\b")
_KEPT = 5
_SHOWN = 160
_INTERVAL = re.compile(
    r"nvidia-smi\s(?:[^|;]*\s)?(?P<which>dmon|pmon|--query-gpu)\S*\s(?:[^|;]*\s)?"
    r"(?P<option>-d|--delay=?|-lms|--loop-ms=?|-l|--loop=?)[ =]?(?P<value>\d{1,7})\b"
    r"|dcgmi dmon\s(?:[^|;]*\s)?(?P<milli>-d|--delay)[ =](?P<dcgm>\d{1,7})\b"
)


class Text:
    """The lines of one file. Raises ReportError where the same log begins once more, or there are too many lines."""

    def __init__(self, path: Path, tool: str) -> None:
        self.path = path
        self._tool = tool
        self.ends_whole = True
        """False once the last line has been seen without its end."""
        self.interval_ns: int | None = None
        """Time between readings, where a line of the file shows the command that asked for one."""
        self._log = Log()
        self._strays: list[str] = []
        self._stray_count = 0

    def __iter__(self) -> Iterator[str]:
        """Lines without their ends; blank lines too. Lines with NUL bytes are strays."""
        opening = _Opening()
        with open_text(self.path) as file:
            for number, line in enumerate(Lines(file, self._log), 1):
                self.ends_whole = line.endswith("\n")
                line = line.rstrip("\r\n")
                if (again := opening.again(line, number)) is not None:
                    raise repeated(self.path, self._tool, "one log", again)
                if number > LINES:
                    raise _too_long(self.path, self._tool)
                if "\0" in line:
                    self.stray(line)
                else:
                    yield line

    def stray(self, line: str) -> None:
        """Set aside a line that is not the tool's."""
        if self.interval_ns is None and len(line) < 500 and (match := _INTERVAL.search(line)):
            self.interval_ns = _interval(match)
        self._stray_count += 1
        if len(self._strays) < _KEPT:
            self._strays.append("".join(c if c.isprintable() else "?" for c in line.strip()[:_SHOWN]))

    def diagnostics(self) -> list[Diagnostic]:
        """What was left out."""
        found = []
        if self._stray_count:
            shown = "; ".join(f"'{line}'" for line in self._strays)
            found.append(
                Diagnostic("info", "perfctl", f"{self._stray_count} lines are no readings, among them {shown}")
            )
        if self._log.cut_rows:
            text = f"{self._log.cut_rows} lines longer than 4 million characters were left out"
            found.append(Diagnostic("warning", "perfctl", text))
        return found


class _Opening:
    """The first lines of a log, up to a time of day or a count of microseconds; do they come again later?"""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._stamp: str | None = None
        self._is_whole = self._is_past = False
        self._matched = self._since = 0

    def again(self, line: str, number: int) -> int | None:
        """The line, from 1, where the opening began again, once it has come again after other times."""
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


def _too_long(path: Path, tool: str) -> ReportError:
    reason = f"it has more than {LINES:,} lines, which do not fit into memory"
    return ReportError(path, tool, reason, "Give the part that matters (head, tail), or every tenth reading")


def _interval(match: re.Match[str]) -> int | None:
    if match["dcgm"]:
        return int(match["dcgm"]) * 10**6 or None
    scale = 10**6 if "ms" in match["option"] else 10**9
    return int(match["value"]) * scale or None


def head_lines(head: bytes) -> list[str]:
    """The first lines of a file, for sniffing; lines with NUL bytes are left out."""
    text = head.decode(encoding_of(head), "replace")
    return [line for line in text.splitlines()[:400] if "\0" not in line]


class Clock:
    """When readings were taken: by their timestamp, else by the stated interval, else by nothing but their order."""

    def __init__(self, interval_ns: int | None = None) -> None:
        self.interval_ns = interval_ns
        """Stated time between readings."""
        self._zoned: set[bool] = set()
        self._counted = False
        self._first: int | None = None
        self._last: int | None = None
        self.since_midnight = False
        """Set by who reads times of day without a date."""

    def at(self, stamp: Stamp | None, number: int) -> int:
        """``at_ns`` of reading number ``number`` (from 0; all devices of one round have the same)."""
        if stamp is None:
            self._counted = True
            return number * (self.interval_ns or 1)
        self._zoned.add(stamp.zoned)
        self._first = stamp.ns if self._first is None else min(self._first, stamp.ns)
        self._last = stamp.ns if self._last is None else max(self._last, stamp.ns)
        return stamp.ns

    @property
    def started_at(self) -> str | None:
        """Of the first reading; None where its zone, or its date, is not known."""
        known = self._zoned == {True} and not self._counted and not self.since_midnight
        return iso_utc(self._first) if known and self._first is not None else None

    @property
    def duration_ns(self) -> int | None:
        """From the first reading to the last; None without timestamps."""
        if self._counted or self._first is None or self._last is None:
            return None
        return self._last - self._first

    def gaps(self) -> list[Gap]:
        """Why ``at_ns`` is no moment of the world's clock."""
        if self._counted and self.interval_ns:
            reason = f"no timestamps: counted from the first reading by the stated interval of {self.interval_ns} ns"
            return [Gap("sample.at_ns", "not_available", reason)]
        if self._counted:
            return [
                Gap("sample.at_ns", "not_available", "no timestamps: the number is the order of the reading, no time")
            ]
        if self.since_midnight:
            return [
                Gap("sample.at_ns", "not_available", "times of day without a date: counted from the first midnight")
            ]
        return []

    def diagnostics(self) -> list[Diagnostic]:
        if False in self._zoned and not self.since_midnight:
            text = "the timestamps name no time zone: they were taken as written, as if they were UTC"
            return [Diagnostic("warning", "perfctl", text)]
        return []
