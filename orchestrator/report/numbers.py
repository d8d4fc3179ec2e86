"""Numbers as text: three significant digits with an SI prefix, every digit, ranges, money."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfctl.orchestrator.predict.cost import Span

DASH = "–"
HOUR = 3600.0
_UP = ("", "k", "M", "G", "T", "P", "E")
_DOWN = ("", "m", "µ", "n", "p")
_SIZES = tuple(1000**step for step in range(len(_UP)))
_UNITS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (2 * HOUR, 60.0, "min"),
    (96 * HOUR, HOUR, "h"),
    (float("inf"), 24 * HOUR, "d"),
)
"""(seconds up to which, seconds of one, unit): the middle figure decides for its range."""

MOST_DIGITS = 6
"""Before a column's unit, where there is a larger one."""

LEAST = 0.1
"""Of a column's unit: a smaller value would begin with zeros, and has its own unit."""


def significant(value: float, digits: int = 3) -> str:
    """Three significant digits without exponent: 1.36, 24.7, 105; 0 is 0; whole numbers below 1000
    stay whole."""
    if value == 0:
        return "0"
    if isinstance(value, int) and abs(value) < 1000:
        return str(value)
    most = digits - 1
    # one more would be too many in any case
    while most > 0 and abs(value) >= 10 ** (digits - most):
        most -= 1
    for decimals in range(most, -1, -1):
        text = f"{value:.{decimals}f}"
        if len(text.lstrip("-").replace(".", "").lstrip("0" if abs(value) < 1 else "")) <= digits:
            return text
    return f"{value:.0f}"


def si(value: float, unit: str = "") -> str:
    """``1358954496, "FLOP"`` -> "1.36 GFLOP"; without a unit "1.36 G"."""
    number, prefix = _scaled(value)
    tail = prefix + unit
    return f"{number} {tail}" if tail else number


def _scaled(value: float) -> tuple[str, str]:
    magnitude = abs(value)
    if magnitude == 0 or (isinstance(value, int) and magnitude < 1000):
        return significant(value), ""
    if magnitude >= 1:
        step = _step_up(magnitude)
        return significant(value / 1000**step), _UP[step]
    step = _step_down(magnitude)
    return significant(value * 1000**step), _DOWN[step]


def _step_up(magnitude: float) -> int:
    """Place in _UP of the prefix that leaves less than 1000, as it is written."""
    for step, size in enumerate(_SIZES):
        if magnitude / size < 999.5:
            return step
    return len(_UP) - 1


def _step_down(magnitude: float) -> int:
    """Place in _DOWN of the prefix that leaves 1 or more, as it is written."""
    for step, size in enumerate(_SIZES[: len(_DOWN)]):
        if magnitude * size >= 0.9995:
            return step
    return len(_DOWN) - 1


def column_unit(values: Iterable[float], unit: str = "", *, down: bool = True) -> tuple[float, str]:
    """(divisor, prefix and unit) for a column, chosen for the median of what is not 0: its values
    keep one unit.

    A larger one where the largest value would have more than MOST_DIGITS before it: 463 ms is no
    "463,000,000 ns". ``down`` False: no prefix below 1, for rates ("508 m" a second would be read
    as millions).
    """
    known = sorted(abs(value) for value in values if value)
    if not known:
        return 1.0, unit
    magnitude = known[(len(known) - 1) // 2]
    step = _step_up(magnitude) if magnitude >= 1 or not down else -_step_down(magnitude)
    last = 0 if unit == "s" else len(_UP) - 1  # no kiloseconds
    while step < last and float(f"{known[-1] / 1000.0**step:.3g}") >= 10**MOST_DIGITS:
        step += 1
    return 1000.0**step, (_UP[step] if step >= 0 else _DOWN[-step]) + unit


def unit_of(
    value: float, column: tuple[float, str], unit: str = "", *, down: bool = True
) -> tuple[float, str]:
    """(divisor, prefix and unit) of one value in a column: the column's, or its own below LEAST
    of it.

    "88.3 M" stands below "34.2 G", and 1,230 µs below 4.56 µs: large values keep the column's unit.
    ``unit`` and ``down`` as for :func:`column_unit`.
    """
    small = value and abs(value) < LEAST * column[0]
    return column_unit([value], unit, down=down) if small else column


def in_unit(value: float, divisor: float) -> str:
    """``value / divisor`` with three significant digits, thousands grouped: 0.0123, 1.36, 24.7,
    105, 12,300."""
    if not value:
        return "0"
    if divisor == 1 and isinstance(value, int) and abs(value) < 1000:
        return str(value)
    part = float(f"{value / divisor:.3g}")
    if abs(part) >= 100:
        return f"{part:,.0f}"
    if abs(part) < 1e-6:
        return "< 0.000001" if part > 0 else "> -0.000001"
    return f"{part:.{min(2 - floor(log10(abs(part))), 8)}f}"


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
    """0.0342 -> "3.4 %"; "< 0.1 %" and "> 99.9 %" instead of 0 and 100 for a part."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{share * 100:.1f} %"


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


def duration(span: Span) -> str:
    """Seconds in the unit that suits the middle figure, for all three."""
    _, one, unit = next(row for row in _UNITS if span.value < row[0])
    return with_range(span.times(1 / one), unit)


def with_range(span: Span, unit: str = "") -> str:
    """ "3.1 h (2.6 to 3.9 h)"; without a range where it is none."""
    tail = f" {unit}" if unit else ""
    spread = "" if span.low == span.high else f" ({digits(span.low)} to {digits(span.high)}{tail})"
    return f"{digits(span.value)}{tail}{spread}"


def compact(span: Span) -> str:
    """For a column: "3.1 h (2.6-3.9)"."""
    _, one, unit = next(row for row in _UNITS if span.value < row[0])
    value, low, high = (digits(part / one) for part in (span.value, span.low, span.high))
    return f"{value} {unit}" if low == high else f"{value} {unit} ({low}-{high})"


def compact_dollars(span: Span) -> str:
    """For a column: "$12 ($10-15)"."""
    if span.low == span.high or span.high < 0.01:
        return money(span.value)
    return f"{money(span.value)} ({money(span.low)}-{money(span.high).removeprefix('$')})"


def dollars(span: Span) -> str:
    """ "$12.3 ($10.1 to $15.2)"."""
    return money(span.value) + (
        "" if span.low == span.high else f" ({money(span.low)} to {money(span.high)})"
    )


def money(value: float) -> str:
    """Cents where they matter; "< $0.01" instead of $0.00 for more than nothing."""
    if 0 < value < 0.005:
        return "< $0.01"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def gigabytes(count: float) -> str:
    """Bytes in GB of 10^9; small ones in MB."""
    return f"{digits(count / 1e9)} GB" if count >= 1e9 else f"{digits(count / 1e6)} MB"
