"""The text of a monitoring tool, and the times of its readings."""

from __future__ import annotations

import re

from perfctl.parsers.records import Diagnostic, Gap
from perfctl.parsers.text.tool_text import ToolText
from perfctl.parsers.timestamps import Stamp, iso_utc

_INTERVAL = re.compile(
    r"nvidia-smi\s(?:[^|;]*\s)?(?P<which>dmon|pmon|--query-gpu)\S*\s(?:[^|;]*\s)?"
    r"(?P<option>-d|--delay=?|-lms|--loop-ms=?|-l|--loop=?)[ =]?(?P<value>\d{1,7})\b"
    r"|dcgmi dmon\s(?:[^|;]*\s)?(?P<milli>-d|--delay)[ =](?P<dcgm>\d{1,7})\b"
)


class MonitorText(ToolText):
    """The lines of one file of a monitoring tool."""

    interval_ns: int | None = None
    """Time between readings, from a line of the file that shows the command with its interval."""

    def stray(self, line: str) -> None:
        """Set aside a line that is not the tool's; it may be the command that started the tool."""
        if self.interval_ns is None and len(line) < 500 and (match := _INTERVAL.search(line)):
            self.interval_ns = _interval(match)
        super().stray(line)


def _interval(match: re.Match[str]) -> int | None:
    if match["dcgm"]:
        return int(match["dcgm"]) * 10**6 or None
    scale = 10**6 if "ms" in match["option"] else 10**9
    return int(match["value"]) * scale or None


class Clock:
    """Times of readings: from their timestamps, else from the stated interval, else from their order alone."""

    def __init__(self, interval_ns: int | None = None) -> None:
        self.interval_ns = interval_ns
        """Stated time between readings."""
        self._zoned: set[bool] = set()
        self._counted = False
        self._first: int | None = None
        self._last: int | None = None
        self.since_midnight = False
        """Set by readers of times of day without a date."""

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
        """Time of the first reading, UTC; None where its zone or date is unknown."""
        known = self._zoned == {True} and not self._counted and not self.since_midnight
        return iso_utc(self._first) if known and self._first is not None else None

    @property
    def duration_ns(self) -> int | None:
        """Time from the first reading to the last; None without timestamps."""
        if self._counted or self._first is None or self._last is None:
            return None
        return self._last - self._first

    def gaps(self) -> list[Gap]:
        """Gaps where ``at_ns`` is not wall-clock time."""
        if self._counted and self.interval_ns:
            reason = f"no timestamps: times were counted from the first reading with the stated interval of {self.interval_ns} ns"
            return [Gap("sample.at_ns", "not_available", reason)]
        if self._counted:
            return [
                Gap(
                    "sample.at_ns", "not_available", "no timestamps: the value is the number of the reading, not a time"
                )
            ]
        if self.since_midnight:
            return [
                Gap("sample.at_ns", "not_available", "times of day without a date: times count from the first midnight")
            ]
        return []

    def diagnostics(self) -> list[Diagnostic]:
        if False in self._zoned and not self.since_midnight:
            text = "the timestamps have no time zone and were read as UTC"
            return [Diagnostic("warning", "perfctl", text)]
        return []
