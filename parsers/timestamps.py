"""Converts wall-clock timestamps of monitoring tools and ``date`` to nanoseconds since the epoch.

A time without a zone is read as UTC and marked (``Stamp.zoned`` is False): the file does
not say more, and the result must not depend on the machine that reads it. Zone names that mean one offset only
(UTC, EST, CET, ...) count; those that mean several (CST, IST, BST) do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

_HOURS = {
    "UTC": 0, "GMT": 0, "Z": 0, "WET": 0, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3,
    "SGT": 8, "HKT": 8, "AWST": 8, "JST": 9, "KST": 9, "AEST": 10, "AEDT": 11, "NZST": 12, "NZDT": 13,
    "EST": -5, "EDT": -4, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "AKDT": -8, "HST": -10,
}  # fmt: skip
_MONTHS = {
    "jan": 1, "feb": 2, "mar": 3, "apr": 4, "may": 5, "jun": 6, "jul": 7, "aug": 8, "sep": 9, "oct": 10, "nov": 11,
    "dec": 12,
}  # fmt: skip
_TIME = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d{2}):(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?(?: ?(?P<half>[AaPp][Mm]))?"
)
_ZONE = r"(?: ?(?P<zone>Z|[+-]\d{2}:?\d{2}|[A-Z]{3,5}))?"
_YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})[-/](?P<month>\d{{1,2}})[-/](?P<day>\d{{1,2}})(?:[T ]+){_TIME}{_ZONE}\Z")
_PACKED = re.compile(rf"(?P<year>\d{{4}})(?P<month>\d{{2}})(?P<day>\d{{2}})[T ]+{_TIME}{_ZONE}\Z")
_YEAR_LAST = re.compile(rf"(?P<one>\d{{1,2}})[-/](?P<two>\d{{1,2}})[-/](?P<year>\d{{4}})[T ]+{_TIME}{_ZONE}\Z")
_DATE = re.compile(
    rf"[A-Z][a-z]{{2}},? +(?:(?P<name>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}})|(?P<day2>\d{{1,2}}) +(?P<name2>[A-Z][a-z]{{2}}))"
    rf"(?: +(?P<year2>\d{{4}}))? +{_TIME}(?: +(?P<zone>[A-Z]{{3,5}}|[+-]\d{{2}}:?\d{{2}}))?(?: +(?P<year>\d{{4}}))?\s*\Z"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 64
YEARS = range(1990, 2200)
"""Years that a report can be from; all of them fit into 64 bits of nanoseconds."""


class Stamp(NamedTuple):
    """One point in time."""

    ns: int
    """Since the epoch."""
    zoned: bool
    """The text says which zone it is in."""


def read_stamp(text: str, *, day_first: bool = False) -> Stamp | None:
    """One timestamp; None when it is none. ``day_first`` decides "03-11-2026" (:func:`day_is_first`)."""
    if len(text) == 23 and text[4] == text[7] == "/" and text[17:19].isdigit() and text[20:].isdigit():
        minute = _of_minute(text[:17])  # nvidia-smi's own form, in a loop: sixty readings and more share the minute
        if minute is not None and text[19] == "." and text.isascii() and text[17] < "6":
            return Stamp(minute + int(text[17:19]) * 10**9 + int(text[20:]) * 10**6, zoned=False)
    text = text.strip()
    if len(text) > _LONGEST or not text.isascii():
        return None
    match = _YEAR_FIRST.match(text) or _PACKED.match(text)
    if match:
        return _stamp(match, int(match["month"]), int(match["day"]), int(match["year"]))
    match = _YEAR_LAST.match(text)
    if match:
        one, two = int(match["one"]), int(match["two"])
        return _stamp(match, *((two, one) if day_first else (one, two)), int(match["year"]))
    match = _DATE.match(text)
    year = match and (match["year"] or match["year2"])
    if match and year:
        month = _MONTHS.get((match["name"] or match["name2"]).lower(), 0)
        return _stamp(match, month, int(match["day"] or match["day2"]), int(year))
    return None


def is_stamp(text: str) -> bool:
    """Return whether it is a timestamp, with day or month first."""
    return read_stamp(text) is not None or read_stamp(text, day_first=True) is not None


@lru_cache(maxsize=1024)
def _of_minute(text: str) -> int | None:
    """Nanoseconds at the beginning of "2023/06/22 18:56:"; None when that is no minute."""
    match = _YEAR_FIRST.match(text + "00")
    stamp = match and _stamp(match, int(match["month"]), int(match["day"]), int(match["year"]))
    return stamp.ns if stamp else None


def day_is_first(texts: Iterable[str]) -> bool | None:
    """Whether dates such as "03-11-2026" begin with the day: None when the file does not decide.

    They do when only that makes dates of them, or when only that keeps them in order and closer together. All-digit
    dates with the year first, and files without such dates, need no decision: False.
    """
    texts = list(dict.fromkeys(text.strip() for text in texts if len(text) <= _LONGEST))
    texts = [text for text in texts if _YEAR_LAST.match(text)]
    if not texts:
        return False
    spans = {}
    for day_first in (False, True):
        stamps = [stamp.ns for stamp in (read_stamp(text, day_first=day_first) for text in texts) if stamp]
        if len(stamps) == len(texts):
            spans[day_first] = (stamps != sorted(stamps), max(stamps) - min(stamps))
    if len(spans) == 2 and spans[False] == spans[True]:
        same = all(read_stamp(text) == read_stamp(text, day_first=True) for text in texts)
        return False if same else None
    return min(spans, key=lambda day_first: spans[day_first]) if spans else False


def iso_utc(ns: int) -> str:
    """UTC, ISO 8601, to the second."""
    return (_EPOCH + timedelta(seconds=ns // 10**9)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stamp(match: re.Match[str], month: int, day: int, year: int) -> Stamp | None:
    if year not in YEARS:
        return None
    hour = int(match["hour"])
    if match["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match["half"].lower() == "pm" else 0)
    zone = _offset(match["zone"])
    try:
        moment = datetime(year, month, day, hour, int(match["minute"]), int(match["second"]), tzinfo=zone or UTC)
    except ValueError:
        return None
    fraction = int((match["fraction"] or "0").ljust(9, "0"))
    return Stamp((moment - _EPOCH) // timedelta(seconds=1) * 10**9 + fraction, zone is not None)


def _offset(zone: str | None) -> timezone | None:
    """None for no zone, and for a name that means several."""
    if not zone:
        return None
    if zone in _HOURS:
        return timezone(timedelta(hours=_HOURS[zone]))
    if zone[0] not in "+-":
        return None
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes)) if minutes < 24 * 60 else None
