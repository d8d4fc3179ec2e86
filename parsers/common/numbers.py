"""Numbers and units as profilers print them, in base units: ns, byte, Hz, byte/s, %, inst, ... A
*unit* belongs to one row or column; a *decimal style* to a whole file: "1.234" of ncu is 1.234
under LC_ALL=C and 1234 under de_DE. Where all numbers together do not decide, an ambiguous one
raises :class:`AmbiguousNumberError` rather than being guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

_SPACED = re.compile("(?<=[0-9])[\u00a0\u202f\u2009 '\u2019](?=[0-9]{3})")
_GROUPED_BY_COMMA = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{2,3})*,[0-9]{3}(?:\.([0-9]+))?")
_GROUPED_BY_POINT = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?")
_POINT = re.compile(r"[+-]?([0-9]*)\.([0-9]+)")
_COMMA = re.compile(r"[+-]?([0-9]*),([0-9]+)")
_POINT_NUMBER = re.compile(rf"{_GROUPED_BY_COMMA.pattern}|[+-]?(?:[0-9]*\.([0-9]+)|[0-9]+)")
_COMMA_NUMBER = re.compile(rf"{_GROUPED_BY_POINT.pattern}|[+-]?(?:[0-9]*,)?[0-9]+")
_GROUP_BEFORE = re.compile(r"[1-9][0-9]{0,2}")
_NUMERIC = "0123456789.,+-"
_CELL = re.compile(r"([+-]?\d{1,18}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,2})?) ?([A-Za-z%/]{0,12})\Z")
_NOTHING = {"", "-", "--", "N/A", "Not Supported", "Unknown Error", "ERR!"}
_NOTHING |= {"Insufficient Permissions"}
_POWER = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,2})")
_RAW_PAGE_DECIMALS = 6
_ENOUGH = 20000
"""After so many numbers with a separator the style is settled; one that does not fit is
then unreadable."""

_HOURS: dict[str | None, int] = {
    "UTC": 0,
    "GMT": 0,
    "Z": 0,
    "WET": 0,
    "WEST": 1,
    "CET": 1,
    "CEST": 2,
    "EET": 2,
    "EEST": 3,
    "MSK": 3,
    "SGT": 8,
    "HKT": 8,
    "AWST": 8,
    "JST": 9,
    "KST": 9,
    "AEST": 10,
    "AEDT": 11,
    "NZST": 12,
    "NZDT": 13,
    "EST": -5,
    "EDT": -4,
    "CDT": -5,
    "MST": -7,
    "MDT": -6,
    "PST": -8,
    "PDT": -7,
    "AKST": -9,
    "AKDT": -8,
    "HST": -10,
}
_STAMP = re.compile(
    r"(?P<date>.*?\S)[T ]+(?P<clock>\d{1,2}:\d{2}:\d{2})(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?: ?(?P<half>[AaPp][Mm]))?(?: *(?P<zone>Z|[+-]\d{2}:?\d{2}|[A-Z]{3,5}))?"
    r"(?P<year> +\d{4})?\Z"
)
_OWN_FORM = re.compile(r"(\d{4}/\d\d/\d\d \d\d:\d\d:)([0-5]\d)\.(\d{3})", re.ASCII)
"""nvidia-smi's own form."""
_EPOCH_STAMP = re.compile(r"([1-4]\d{9})(?:(\d{3}|\d{6}|\d{9})|\.(\d{1,9}))?")
"""Seconds since 1970, of 2001 to 2128, as ``date +%s`` prints them; milliseconds to nanoseconds."""
_YEAR_LAST = re.compile(r"\d{1,2}[-/]\d{1,2}[-/]\d{4}[T ]")
_DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%a %b %d %Y", "%a %d %b %Y", "%a, %d %b %Y")
_DATES_MONTH_FIRST = (*_DATES, "%m-%d-%Y", "%m/%d/%Y")
_DATES_DAY_FIRST = (*_DATES, "%d-%m-%Y", "%d/%m/%Y")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = range(1990, 2200)
"""Years that a report can be from; all of them fit into 64 bits of nanoseconds."""

Number = int | float
"""An integer where it can be one."""


class DecimalStyle(Enum):
    """The character between whole part and fraction in one file."""

    POINT = "point"
    """C, en_US, ...: 1234.5 or 1,234.5"""
    COMMA = "comma"
    """de_DE, fr_FR, ...: 1.234,5"""
    UNDECIDED = "undecided"
    """The numbers of the file fit both, or contradict each other."""


class AmbiguousNumberError(ValueError):
    """A number such as "1.234" in a file that does not show what the point means."""


class Unit(NamedTuple):
    """A base unit and how many of it one printed unit is."""

    name: str | None
    """Base unit; None for a plain ratio or count."""
    scale: int


_PREFIXES = {"K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIME = {
    "ns": 1,
    "nsecond": 1,
    "us": 10**3,
    "usecond": 10**3,
    "ms": 10**6,
    "msecond": 10**6,
    "s": 10**9,
    "second": 10**9,
}
_COUNTED = ("inst", "sector", "request", "warp", "thread", "block", "cycle", "flop", "FLOP", "pass")
_SPELLINGS: dict[str, str] = {
    **dict.fromkeys(("byte", "bytes", "B"), "byte"),
    **dict.fromkeys(("Hz", "hz", "HZ"), "Hz"),
    **{name: name for name in _COUNTED},
}
LARGEST = 2**63 - 1
"""Largest integer of a store."""
_LONGEST = 64
_SURELY_64_BIT = 19


@lru_cache(maxsize=4096)
def parse_unit(text: str) -> Unit:
    """The base unit of a printed unit: "Kbyte/block" -> (byte/block, 1000), "cycle/nsecond" -> (Hz,
    10**9). ncu's "Kbyte" is 1000 bytes (checked with 2022.3 against the same report in base units).
    A unit that is not known stays as printed with scale 1, so that it is never mistaken for a
    base unit."""
    text = text.strip()
    if not text:
        return Unit(None, 1)
    top, slash, bottom = text.partition("/")
    over = _parse_unit_without_slash(top)
    if not slash:
        return over
    if bottom in _TIME:
        # "per nanosecond" is 10**9 "per second"; 10**9 is divisible by every time unit up to
        # the second.
        per_second = 10**9 // _TIME[bottom]
        name = "Hz" if over.name == "cycle" else f"{over.name}/s"
        return Unit(name, over.scale * per_second)
    under = _parse_unit_without_slash(bottom)
    if under.scale != 1:
        return Unit(text, 1)
    return Unit(f"{over.name}/{under.name}", over.scale)


def _parse_unit_without_slash(text: str) -> Unit:
    if text in _TIME:
        return Unit("ns", _TIME[text])
    if text in _SPELLINGS:
        return Unit(_SPELLINGS[text], 1)
    for prefix, scale in (*_BINARY.items(), *_PREFIXES.items()):
        if text.startswith(prefix) and text[len(prefix) :] in _SPELLINGS:
            return Unit(_SPELLINGS[text[len(prefix) :]], scale)
    return Unit(text, 1)


class DecimalStyleEvidence:
    """Collects evidence from the numbers of one file for its decimal style."""

    def __init__(self) -> None:
        self._seen: set[DecimalStyle] = set()
        self._left = _ENOUGH

    def add_cell(self, text: str) -> None:
        """Look at one printed cell; cells that are no numbers say nothing."""
        if ("." not in text and "," not in text) or len(text) > _LONGEST or not self._left:
            return
        self._left -= 1
        self._seen.add(
            _guess_decimal_style(text if not text.strip(_NUMERIC) else _SPACED.sub("", text))
        )

    def decide_decimal_style(self) -> DecimalStyle:
        """The style of the file; UNDECIDED when nothing decides or the cells contradict
        each other."""
        decided = self._seen - {DecimalStyle.UNDECIDED}
        return decided.pop() if len(decided) == 1 else DecimalStyle.UNDECIDED


def _guess_decimal_style(text: str) -> DecimalStyle:
    commas, points = text.count(","), text.count(".")
    if commas + points > 1:
        if _GROUPED_BY_COMMA.fullmatch(text):
            return DecimalStyle.POINT
        return DecimalStyle.COMMA if _GROUPED_BY_POINT.fullmatch(text) else DecimalStyle.UNDECIDED
    single = (_COMMA if commas else _POINT).fullmatch(text)
    if single is None or (len(single[2]) == 3 and _GROUP_BEFORE.fullmatch(single[1])):
        return DecimalStyle.UNDECIDED
    if commas:
        return DecimalStyle.COMMA
    # ncu 2022.3's raw page prints floats with six decimals and a point under every locale, beside
    # integers that are grouped by the locale: six decimals say nothing about what "9.860" means.
    return DecimalStyle.UNDECIDED if len(single[2]) == _RAW_PAGE_DECIMALS else DecimalStyle.POINT


def parse_decimal(text: str, style: DecimalStyle) -> Decimal | None:
    """Return one printed number; None when it is none. Raises AmbiguousNumberError if ``style`` is
    undecided and the text alone does not decide ("1.234", "1,234")."""
    if not text or len(text) > _LONGEST:
        return None
    if text.isdigit() and text.isascii():
        return Decimal(text)
    if text.strip(_NUMERIC):
        text = _SPACED.sub("", text.strip())
        if _POWER.fullmatch(text):
            return Decimal(text)
    if style is DecimalStyle.UNDECIDED:
        style = _guess_decimal_style(text)
        if style is DecimalStyle.UNDECIDED:
            if _GROUPED_BY_COMMA.fullmatch(text) or _GROUPED_BY_POINT.fullmatch(text):
                raise AmbiguousNumberError(text)
            style = DecimalStyle.POINT
    if style is DecimalStyle.POINT:
        return Decimal(text.replace(",", "")) if _POINT_NUMBER.fullmatch(text) else None
    if _COMMA_NUMBER.fullmatch(text):
        return Decimal(text.replace(".", "").replace(",", "."))
    # the raw page's float with a point among integers grouped by points
    return Decimal(text) if _POINT.fullmatch(text) else None


def parse_number_fast(text: str, style: DecimalStyle) -> Number | None:
    """Return ``to_int_or_float(parse_decimal(text, style))``, with a fast path for usual numbers;
    None for what is not a number."""
    if len(text) < _SURELY_64_BIT and text.isdigit() and text.isascii():
        return int(text)
    match = (
        _POINT_NUMBER.fullmatch(text)
        if style is DecimalStyle.POINT and len(text) <= _LONGEST
        else None
    )
    if match:
        ungrouped, fraction = text.replace(",", ""), match[1] or match[2]
        if fraction and fraction.strip("0"):
            return float(ungrouped)
        if not fraction and len(ungrouped) < _SURELY_64_BIT:
            return int(ungrouped)
    number = parse_decimal(text, style)
    return None if number is None else to_int_or_float(number)


def to_int_or_float(number: Decimal | int, scale: int = 1) -> Number:
    """Return the value in base units: an int when it is whole, else the nearest float. Beyond 64
    bits always a float."""
    value = Decimal(number) * scale
    is_whole = value == int(value) and abs(value) <= LARGEST
    return int(value) if is_whole else float(value)


def scale_printed_number(
    text: str, value: Number | None, style: DecimalStyle, scale: int
) -> Number | None:
    """Return ``value``, which ``text`` was read as, times ``scale``: exact where the printed
    decimals allow it."""
    number = parse_decimal(text, style) if isinstance(value, float) else value
    return None if number is None else to_int_or_float(number, scale)


def is_not_available_text(text: str) -> bool:
    """Return whether the cell is a printed form of "not available"."""
    return text.strip("[] ") in _NOTHING


def parse_finite_decimal(value: object) -> Decimal | None:
    """Return a number without rounding to a float first; None for what is no finite number of
    64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value == "":
        return None
    try:
        number = Decimal(str(value)[:64].strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) <= LARGEST else None


def parse_integer(value: object) -> int | None:
    """Return an integer of 64 bits, also of "24576" and "16384.0"; None for anything else."""
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) < _SURELY_64_BIT:
        return int(value)
    number = parse_finite_decimal(value)
    return int(number) if number is not None and number == int(number) else None


def parse_real(value: object) -> Number | None:
    """Return a number, an int if it is whole; None for anything else."""
    number = parse_finite_decimal(value)
    return None if number is None else to_int_or_float(number)


@lru_cache(maxsize=65536)
def parse_quantity_in_base_units(text: str, unit: str) -> tuple[Number | None, str | None]:
    """Return (number in base units, base unit) of a printed cell; (None, None) if it is none.

    "841 MiB" is 881852416 byte, "7 %" stays 7 %, "22" in a column [W] is 22 W.
    """
    match = _CELL.match(text.strip())
    if match is None:
        return None, None
    printed = match[2] or unit
    base, scale = parse_unit(printed)
    number = Decimal(match[1]) * scale
    value = int(number) if match[1].lstrip("+-").isdigit() else float(number)
    if printed in ("mW", "mJ", "mC"):
        value, base = value / 1000, printed[1]
    return (None, None) if abs(value) > LARGEST else (value, base)


class Timestamp(NamedTuple):
    """One point in time."""

    ns: int
    zoned: bool


def parse_timestamp(text: str, *, day_first: bool = False) -> Timestamp | None:
    """One timestamp; None when it is none. ``day_first`` decides "03-11-2026"
    (:func:`is_day_before_month`)."""
    if own_form := _OWN_FORM.fullmatch(text):
        # sixty readings and more share the minute
        minute = _parse_minute_ns(own_form[1])
        if minute is not None:
            return Timestamp(
                minute + int(own_form[2]) * 10**9 + int(own_form[3]) * 10**6, zoned=False
            )
    text = text.strip()
    if epoch := _EPOCH_STAMP.fullmatch(text):
        integer, fraction = int(epoch[1]), (epoch[2] or epoch[3] or "").ljust(9, "0")
        return Timestamp(integer * 10**9 + int(fraction), zoned=True)
    match = _STAMP.match(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        return None
    printed = f"{match['date']}{match['year'] or ''} {match['clock']} {match['half'] or ''}"
    clock, zone = "%I:%M:%S %p" if match["half"] else "%H:%M:%S ", _parse_utc_offset(match["zone"])
    for date in _DATES_DAY_FIRST if day_first else _DATES_MONTH_FIRST:
        with suppress(ValueError):
            moment = datetime.strptime(printed, f"{date} {clock}").replace(tzinfo=zone or UTC)
            fraction = int((match["fraction"] or "0").ljust(9, "0"))
            seconds = (moment - _EPOCH) // timedelta(seconds=1)
            is_known = moment.year in YEARS
            return Timestamp(seconds * 10**9 + fraction, zone is not None) if is_known else None
    return None


def is_timestamp(text: str) -> bool:
    """Return whether it is a timestamp, with day or month first."""
    return parse_timestamp(text) is not None or parse_timestamp(text, day_first=True) is not None


@lru_cache(maxsize=1024)
def _parse_minute_ns(text: str) -> int | None:
    """Return the nanoseconds at the beginning of "2023/06/22 18:56:", or None if it is none."""
    stamp = parse_timestamp(text + "00")
    return stamp.ns if stamp else None


def is_day_before_month(texts: Iterable[str]) -> bool | None:
    """Whether dates such as "03-11-2026" begin with the day: None when the file does not decide.
    They do when only that makes dates of them, or when only that keeps them in order and closer
    together. All-digit dates with the year first, and files without such dates, need no
    decision: False."""
    distinct = dict.fromkeys(text.strip() for text in texts if len(text) <= _LONGEST)
    texts = list(filter(_YEAR_LAST.match, distinct))
    spans: dict[bool, tuple[bool, int]] = {}
    both: list[list[int]] = []
    for day_first in (False, True):
        stamps = [parse_timestamp(text, day_first=day_first) for text in texts]
        times = [stamp.ns for stamp in stamps if stamp]
        both.append(times)
        if texts and len(times) == len(texts):
            spans[day_first] = (times != sorted(times), max(times) - min(times))
    if len(spans) == 2 and spans[False] == spans[True]:
        return False if both[0] == both[1] else None
    return min(spans, key=spans.__getitem__, default=False)


def format_utc_iso(ns: int) -> str:
    """UTC, ISO 8601, to the second."""
    return (_EPOCH + timedelta(seconds=ns // 10**9)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parse_utc_offset(zone: str | None) -> timezone | None:
    """None for no zone, and for a name that means several."""
    if zone in _HOURS:
        return timezone(timedelta(hours=_HOURS[zone]))
    if not zone or zone[0] not in "+-":
        return None
    offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
    is_offset = offset < timedelta(days=1)
    return timezone(-offset if zone[0] == "-" else offset) if is_offset else None
