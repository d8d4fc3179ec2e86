"""Numbers as text: three significant digits with an SI prefix, every digit, ranges, money."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.ledger.timing import TimeSpread
    from perfctl.orchestrator.predict.cost import Span

WriteNumber = Callable[[float], str]
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
"""(seconds up to which, seconds per unit, unit): the middle figure decides for its range."""
NO_BREAK = "\u00a0"
_BEFORE_UNIT = re.compile(
    r"(?<=[0-9]) (?=(?:[kMGTPE]|[kMGTPEmµnp]?(?:FLOPs?(?:/s)?|i?B(?:/s)?|s|W|J|Hz|min|h))(?!\w))"
)


def insert_no_break_before_units(text: str) -> str:
    """Return ``text`` with no break between a number and its unit."""
    return _BEFORE_UNIT.sub(NO_BREAK, text)


def format_significant(value: float, digits: int = 3) -> str:
    """Return three significant digits without exponent: 1.36, 24.7, 105; 0 is 0; integers below
    1000 stay as they are. Fractions have two decimals, unless these would be zeros."""
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return f"{Decimal(f'{value:.{digits}g}'):f}"
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    for decimals in range(digits - 1, -1, -1):
        text = f"{value:.{decimals}f}"
        if len(text.lstrip("-").replace(".", "").lstrip("0" if abs(value) < 1 else "")) <= digits:
            return text
    return f"{value:.0f}"


def format_si(value: float, unit: str = "") -> str:
    """Return ``1358954496, "FLOP"`` as "1.36 GFLOP"; without a unit "1.36 G"."""
    first = SMALLEST if 0 < abs(value) < 1 else 0
    powers = (power for power in range(first, LARGEST) if abs(value) < 999.5 * 1000.0**power)
    power = next(powers, LARGEST)
    scaled = value / 1000.0**power if power else value
    return f"{format_significant(scaled)} {PREFIXES[power - SMALLEST].strip()}{unit}".rstrip()


def format_rate(value: float) -> str:
    """Return "1.36 k" or "0.508": below 1 without a prefix, because a reader may take "508 m" per
    second for millions."""
    return f"{value:.3g}" if 1e-4 <= value < 0.9995 else format_si(value)


def drop_trailing_zeros(text: str) -> str:
    """Return a text without trailing zeros, for ticks: "1.50 µs" -> "1.5 µs", "250 ms" stays."""
    number, space, tail = text.partition(" ")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + space + tail


def format_time(ns: float) -> str:
    """Return nanoseconds as "41.2 µs"; from 1,000 s on in minutes, hours or days."""
    if 0 < ns < 1:
        return f"{format_significant(float(ns))} ns"
    # one division: of 5.855 ms, a second one makes 5.8549999
    power = next((power for power in range(3) if abs(ns) < 999.5 * 1000.0**power), 3)
    if power == 3:
        seconds = abs(ns) / 1e9
        scale, unit = 1.0, "s"
        if seconds >= 999.5:
            scale, unit = next(row[1:] for row in _UNITS[3:] if seconds < row[0])
        return f"{format_significant(ns / 1e9 / scale)} {unit}"
    return f"{format_significant(ns / 1000.0**power)} {('ns', 'µs', 'ms')[power]}" if ns else "0 s"


def format_step_times(spread: TimeSpread, samples_per_step: float = 1) -> str:
    """Return a median time over ``samples_per_step``, with the fastest and slowest step: "57.8 ms
    (16.1 ms to 61.0 ms in 3 steps)"; of a single step only its time."""
    middle, low, high = (
        format_time(ns / samples_per_step) for ns in (spread.median, spread.low, spread.high)
    )
    return f"{middle} ({low} to {high} in {spread.count} steps)" if spread.count > 1 else middle


def format_bytes(count: float) -> str:
    """Return bytes with decimal prefixes: "9.44 MB"."""
    return format_si(count, "B")


def format_bytes_binary_prefix(count: float) -> str:
    """Return bytes of a device's memory with binary prefixes, as nvidia-smi counts: "40.0 GiB"."""
    power = next((power for power in range(4) if abs(count) < 999.5 * 1024.0**power), 4)
    return f"{format_significant(count / 1024**power)} {('', 'Ki', 'Mi', 'Gi', 'Ti')[power]}B"


def format_percent(share: float) -> str:
    """Return 0.0342 as "3.4%"; "< 0.1%" and "> 99.9%" instead of 0 and 100 for a part."""
    if 0 < share < 0.0005:
        return "< 0.1%"
    if 0.9995 <= share < 1:
        return "> 99.9%"
    return f"{share * 100:.1f}%"


def format_integer_or_six_digits(value: float, unit: str = "") -> str:
    """Return every digit of an integer, six of any other number, grouped by commas:
    "1,358,954,496 FLOP"."""
    value = round_to_six_significant_digits(value)
    text = f"{value:,}" if isinstance(value, int) or abs(value) >= 1e-4 else f"{value:g}"
    return f"{text} {unit}".rstrip()


def round_to_six_significant_digits(value: float) -> float:
    """Return integers as they are, other numbers with six significant digits."""
    if isinstance(value, int) or not isfinite(value):
        return value
    if value.is_integer():
        return int(value)
    close = float(f"{value:.6g}")
    return int(close) if close.is_integer() else close


def format_ratio(value: float) -> str:
    """Return two decimals; "< 0.01" instead of 0.00 for more than nothing."""
    if 0 < value < 0.005:
        return "< 0.01"
    return f"{value:.2f}" if value < 1000 else format_si(value)


def format_three_significant_digits(value: float) -> str:
    """Return three significant digits, thousands grouped: 0.0123, 3.14, 27.5, 104, 12,346. Below a
    millionth: "< 0.000001"."""
    if value == 0:
        return "0"
    if 0 < value < 1e-6:
        return "< 0.000001"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def format_seconds_with_range(span: Span, *, is_short: bool = False) -> str:
    """Return seconds in the unit that suits the middle figure, for all three."""
    _, scale, unit = next(row for row in _UNITS if span.value < row[0])
    return format_value_with_range(span.scale(1 / scale), unit, is_short=is_short)


def format_value_with_range(
    span: Span,
    unit: str = "",
    *,
    is_short: bool = False,
    format_number: WriteNumber = format_three_significant_digits,
) -> str:
    """Return "3.1 h (2.6 to 3.9 h)", in a column "3.1 h (2.6–3.9)"; only the value if its range is
    empty. ``format_number``: makes a text of a number, by default three significant digits."""
    tail = f" {unit}" if unit else ""
    value, low, high = map(format_number, (span.value, span.low, span.high))
    if low == high:
        return f"{value}{tail}"
    if is_short:
        return f"{value}{tail} ({low}–{high.removeprefix('$')})"
    return f"{value}{tail} ({low} to {high}{tail})"


def format_dollars_with_range(span: Span, *, is_short: bool = False) -> str:
    """Return "$12.3 ($10.1 to $15.2)", in a column "$12.3 ($10.1–15.2)"."""
    return format_value_with_range(span, is_short=is_short, format_number=format_dollars)


def format_dollars(value: float) -> str:
    """Return cents if they matter; "< $0.01" instead of $0.00 for more than nothing."""
    if 0 < value < 0.005:
        return "< $0.01"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"
