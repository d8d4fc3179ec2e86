"""Numbers as text: three significant digits with an SI prefix, every digit, ranges, money."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.predict.cost import Span

DASH = "–"
HOUR = 3600.0
SMALLEST, LARGEST = -4, 6
PREFIXES = "pnµm kMGTPE"
"""Of the powers of 1000 from SMALLEST to LARGEST."""
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (2 * HOUR, 60.0, "min"),
    (96 * HOUR, HOUR, "h"),
    (float("inf"), 24 * HOUR, "d"),
)
"""(seconds up to which, seconds of one, unit): the middle figure decides for its range."""


NO_BREAK = "\u00a0"
_BEFORE_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:[kMGTPE]|[kMGTPEmµnp]?(?:FLOPs?(?:/s)?|i?B(?:/s)?|s|W|J|Hz|min|h))(?!\w))"
)


def hold_units(text: str) -> str:
    """Return ``text`` with no break between a number and its unit."""
    return _BEFORE_UNIT.sub(NO_BREAK, text)


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits without exponent: 1.36, 24.7, 105; 0 is 0; whole numbers below 1000
    stay whole."""
    if value == 0:
        return "0"
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    for decimals in range(digits - 1, -1, -1):
        text = f"{value:.{decimals}f}"
        if len(text.lstrip("-").replace(".", "").lstrip("0" if abs(value) < 1 else "")) <= digits:
            return text
    return f"{value:.0f}"


def si(value: float, unit: str = "") -> str:
    """``1358954496, "FLOP"`` -> "1.36 GFLOP"; without a unit "1.36 G"."""
    magnitude, step = abs(value), 0
    if magnitude >= 1:
        while step < LARGEST and magnitude / 1000**step >= 999.5:
            step += 1
    elif magnitude:
        while step > SMALLEST and magnitude * 1000**-step < 0.9995:
            step -= 1
    scaled = value if not step else value / 1000**step if step > 0 else value * 1000**-step
    return f"{significant(scaled)} {PREFIXES[step - SMALLEST].strip()}{unit}".rstrip()


def per_second(value: float) -> str:
    """ "1.36 k", "0.508"; below 1 without a prefix, for "508 m" a second would be read
    as millions."""
    return f"{value:.3g}" if 1e-4 <= value < 0.9995 else si(value)


def short(text: str) -> str:
    """Without trailing zeros, for ticks: "1.50 µs" -> "1.5 µs", "250 ms" stays."""
    number, space, tail = text.partition(" ")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + space + tail


def time(ns: float) -> str:
    """Nanoseconds as "41.2 µs"."""
    if 0 < ns < 1:
        return f"{significant(float(ns))} ns"
    return si(float(ns) / 1e9, "s") if ns else "0 s"


def size(count: float) -> str:
    """Bytes with decimal prefixes: "9.44 MB"."""
    return si(count, "B")


def percent(share: float) -> str:
    """0.0342 -> "3.4%"; "< 0.1%" and "> 99.9%" instead of 0 and 100 for a part."""
    if 0 < share < 0.0005:
        return "< 0.1%"
    if 0.9995 <= share < 1:
        return "> 99.9%"
    return f"{share * 100:.1f}%"


def full(value: float, unit: str = "") -> str:
    """Every digit of a whole number, six of any other, grouped by commas: "1,358,954,496 FLOP"."""
    value = rounded(value)
    text = f"{value:,}" if isinstance(value, int) or abs(value) >= 1e-4 else f"{value:g}"
    return f"{text} {unit}".rstrip()


def rounded(value: float) -> float:
    """Whole numbers as they are, others to six significant digits."""
    if isinstance(value, int) or not isfinite(value):
        return value
    if value.is_integer():
        return int(value)
    close = float(f"{value:.6g}")
    return int(close) if close.is_integer() else close


def ratio(value: float) -> str:
    """Two decimals; "< 0.01" instead of 0.00 for more than nothing."""
    if 0 < value < 0.005:
        return "< 0.01"
    return f"{value:.2f}" if value < 1000 else si(value)


def digits(value: float) -> str:
    """Three significant ones, thousands grouped: 0.0123, 3.14, 27.5, 104, 12,346. Below a
    millionth: "< 0.000001"."""
    if value == 0:
        return "0"
    if 0 < value < 1e-6:
        return "< 0.000001"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def duration(span: Span, *, is_short: bool = False) -> str:
    """Seconds in the unit that suits the middle figure, for all three."""
    _, one, unit = next(row for row in _UNITS if span.value < row[0])
    return with_range(span.times(1 / one), unit, is_short=is_short)


def with_range(span: Span, unit: str = "", *, is_short: bool = False) -> str:
    """ "3.1 h (2.6 to 3.9 h)", in a column "3.1 h (2.6-3.9)"; without a range where it is none."""
    tail = f" {unit}" if unit else ""
    value, low, high = map(digits, (span.value, span.low, span.high))
    if low == high:
        return f"{value}{tail}"
    return f"{value}{tail} ({low}-{high})" if is_short else f"{value}{tail} ({low} to {high}{tail})"


def dollars(span: Span, *, is_short: bool = False) -> str:
    """ "$12.3 ($10.1 to $15.2)", in a column "$12.3 ($10.1-15.2)"."""
    value, low, high = map(money, (span.value, span.low, span.high))
    if low == high:
        return value
    return f"{value} ({low}-{high.removeprefix('$')})" if is_short else f"{value} ({low} to {high})"


def money(value: float) -> str:
    """Cents where they matter; "< $0.01" instead of $0.00 for more than nothing."""
    if 0 < value < 0.005:
        return "< $0.01"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def gigabytes(count: float) -> str:
    """Bytes in GB of 10^9; small ones in MB."""
    return f"{digits(count / 1e9)} GB" if count >= 1e9 else f"{digits(count / 1e6)} MB"
