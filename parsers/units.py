"""Numbers and units as profilers print them, turned into base units: ns, byte, Hz, byte/s, %, inst, cycle, ...

Two steps that must not be mixed up. A *unit* belongs to one row or column and is always printed beside the
number. A *decimal style* belongs to a whole file: ncu prints with the locale of its shell, so "1.234" is 1.234
under C and 1234 under de_DE. The style is decided once from all numbers of the file (:class:`StyleEvidence`);
where they do not decide, an ambiguous number raises :class:`AmbiguousNumber` rather than being guessed.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class DecimalStyle(Enum):
    """The character between whole part and fraction in one file."""

    POINT = "point"
    """C, en_US, ...: 1234.5 or 1,234.5"""
    COMMA = "comma"
    """de_DE, fr_FR, ...: 1.234,5"""
    UNDECIDED = "undecided"
    """The numbers of the file fit both, or contradict each other."""


class AmbiguousNumber(ValueError):
    """A number such as "1.234" in a file that does not show what the point means."""


class Number(NamedTuple):
    """An exact decimal: ``digits / 10**decimals``."""

    digits: int
    decimals: int


class Unit(NamedTuple):
    """A base unit and how many of it one printed unit is."""

    name: str | None
    """Base unit; None for a plain ratio or count."""
    scale: int


_PREFIXES = {"K": 10**3, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_TIME = {
    "ns": 1, "nsecond": 1, "us": 10**3, "usecond": 10**3, "ms": 10**6, "msecond": 10**6,
    "s": 10**9, "second": 10**9,
}  # fmt: skip
_COUNTED = ("inst", "sector", "request", "warp", "thread", "block", "cycle", "flop", "FLOP", "pass")
_SPELLINGS: dict[str, str] = {
    **dict.fromkeys(("byte", "bytes", "B"), "byte"),
    **dict.fromkeys(("Hz", "hz", "HZ"), "Hz"),
    **{name: name for name in _COUNTED},
}
_LARGEST = 2**63 - 1
_LONGEST = 64
_SURELY_64_BIT = 19


@lru_cache(maxsize=4096)
def base_unit(text: str) -> Unit:
    """The base unit of a printed unit: "Kbyte/block" -> (byte/block, 1000), "cycle/nsecond" -> (Hz, 10**9).

    ncu's "Kbyte" is 1000 bytes (checked with 2022.3 against the same report in base units). A unit that is not
    known stays as printed with scale 1, so that it is never mistaken for a base unit.
    """
    text = text.strip()
    if not text:
        return Unit(None, 1)
    top, slash, bottom = text.partition("/")
    over = _simple(top)
    if not slash:
        return over
    if bottom in _TIME:
        # "per nanosecond" is 10**9 "per second"; 10**9 is divisible by every time unit up to the second.
        per_second = 10**9 // _TIME[bottom]
        name = "Hz" if over.name == "cycle" else f"{over.name}/s"
        return Unit(name, over.scale * per_second)
    under = _simple(bottom)
    if under.scale != 1:
        return Unit(text, 1)
    return Unit(f"{over.name}/{under.name}", over.scale)


def _simple(text: str) -> Unit:
    """A unit without a slash."""
    if text in _TIME:
        return Unit("ns", _TIME[text])
    if text in _SPELLINGS:
        return Unit(_SPELLINGS[text], 1)
    for prefix, scale in (*_BINARY.items(), *_PREFIXES.items()):
        if text.startswith(prefix) and text[len(prefix) :] in _SPELLINGS:
            return Unit(_SPELLINGS[text[len(prefix) :]], scale)
    return Unit(text, 1)


_SPACED = re.compile("(?<=[0-9])[\u00a0\u202f\u2009 '\u2019](?=[0-9]{3})")
_GROUPED_BY_COMMA = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{2,3})*,[0-9]{3}(?:\.([0-9]+))?")
_GROUPED_BY_POINT = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+(?:,[0-9]+)?")
_POINT = re.compile(r"[+-]?([0-9]*)\.([0-9]+)")
_COMMA = re.compile(r"[+-]?([0-9]*),([0-9]+)")
_POINT_NUMBER = re.compile(rf"{_GROUPED_BY_COMMA.pattern}|[+-]?(?:[0-9]*\.([0-9]+)|[0-9]+)")
_COMMA_NUMBER = re.compile(rf"{_GROUPED_BY_POINT.pattern}|[+-]?(?:[0-9]*,)?[0-9]+")
_GROUP_BEFORE = re.compile(r"[1-9][0-9]{0,2}")
_NUMERIC = "0123456789.,+-"
_POWER = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,2})")
_RAW_PAGE_DECIMALS = 6
_ENOUGH = 20000
"""After so many numbers with a separator the style is settled; one that does not fit is then unreadable."""


class StyleEvidence:
    """Collects evidence from the numbers of one file for its decimal style."""

    def __init__(self) -> None:
        self._point = False
        self._comma = False
        self._left = _ENOUGH

    def add(self, text: str) -> None:
        """Look at one printed cell; cells that are no numbers say nothing."""
        if ("." not in text and "," not in text) or len(text) > _LONGEST or not self._left:
            return
        self._left -= 1
        style = _style_of(text if not text.strip(_NUMERIC) else _SPACED.sub("", text))
        if style is DecimalStyle.POINT:
            self._point = True
        elif style is DecimalStyle.COMMA:
            self._comma = True

    def decide(self) -> DecimalStyle:
        """The style of the file; UNDECIDED when nothing decides or the cells contradict each other."""
        if self._point == self._comma:
            return DecimalStyle.UNDECIDED
        return DecimalStyle.POINT if self._point else DecimalStyle.COMMA


def _style_of(text: str) -> DecimalStyle:
    """The style that a single number shows."""
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
    # ncu 2022.3's raw page prints floats with six decimals and a point under every locale, beside integers
    # that are grouped by the locale: six decimals say nothing about what "9.860" means.
    return DecimalStyle.UNDECIDED if len(single[2]) == _RAW_PAGE_DECIMALS else DecimalStyle.POINT


def read_number(text: str, style: DecimalStyle) -> Number | None:
    """Read one printed number; None when it is not a number.

    Raises AmbiguousNumber when ``style`` is undecided and the text alone does not decide ("1.234", "1,234").
    """
    if not text or len(text) > _LONGEST:
        return None
    if text.isdigit() and text.isascii():
        return Number(int(text), 0)
    if style is DecimalStyle.POINT:  # the usual case, on a fast path
        match = _POINT_NUMBER.fullmatch(text)
        if match:
            return Number(int(text.replace(",", "").replace(".", "")), len(match[1] or match[2] or ""))
    if text.strip(_NUMERIC):
        text = _SPACED.sub("", text.strip())
        power = _POWER.fullmatch(text)
        if power:
            return _from_power(power[1], int(power[2]))
    if style is DecimalStyle.UNDECIDED:
        style = _own_style(text)
    if style is DecimalStyle.POINT:
        match = _POINT_NUMBER.fullmatch(text)
        return _from_parts(text.replace(",", ""), ".") if match else None
    if _COMMA_NUMBER.fullmatch(text):
        return _from_parts(text.replace(".", ""), ",")
    if _POINT.fullmatch(text):  # the raw page's float with a point among integers grouped by points
        return _from_parts(text, ".")
    return None


def read_value(text: str, style: DecimalStyle) -> int | float | None:
    """``to_base(read_number(text, style))`` with a fast path for usual numbers; None when it is not a number."""
    if len(text) < _SURELY_64_BIT and text.isdigit() and text.isascii():
        return int(text)
    match = _POINT_NUMBER.fullmatch(text) if style is DecimalStyle.POINT and len(text) <= _LONGEST else None
    if match:
        ungrouped, fraction = text.replace(",", ""), match[1] or match[2]
        if fraction and fraction.strip("0"):
            return float(ungrouped)
        if not fraction and len(ungrouped) < _SURELY_64_BIT:
            return int(ungrouped)
    number = read_number(text, style)
    return None if number is None else to_base(number)


def _own_style(text: str) -> DecimalStyle:
    """The style that one number shows by itself, in a file that shows none."""
    style = _style_of(text)
    if style is not DecimalStyle.UNDECIDED:
        return style
    if _GROUPED_BY_COMMA.fullmatch(text) or _GROUPED_BY_POINT.fullmatch(text):
        raise AmbiguousNumber(text)
    return DecimalStyle.POINT


def _from_parts(text: str, separator: str) -> Number:
    whole, _, fraction = text.partition(separator)
    return Number(int(whole + fraction), len(fraction))


def _from_power(mantissa: str, power: int) -> Number:
    number = _from_parts(mantissa, ".")
    decimals = number.decimals - power
    return Number(number.digits * 10 ** max(0, -decimals), max(0, decimals))


def to_base(number: Number, scale: int = 1) -> int | float:
    """The value in base units: an int when it is whole, else the nearest float. Beyond 64 bits always a float."""
    digits, decimals = number
    value = digits * scale
    if decimals:
        whole, rest = divmod(value, 10**decimals)
        if rest:
            return float(value / 10**decimals)
        value = int(whole)
    return value if -_LARGEST <= value <= _LARGEST else float(value)
