"""Times and money with their ranges: "3.1 h (2.6 to 3.9 h)"."""

from __future__ import annotations

from perfctl.orchestrator.analyse.cost import HOUR, Span

_UNITS = (
    (1e-3, 1e-6, "µs"), (1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (2 * HOUR, 60.0, "min"), (96 * HOUR, HOUR, "h"),
    (float("inf"), 24 * HOUR, "d"),
)  # fmt: skip
"""(seconds up to which, seconds of one, unit): the middle figure decides for its range."""


def digits(value: float) -> str:
    """Three significant ones, thousands grouped: 0.0123, 3.14, 27.5, 104, 12,346."""
    if value == 0:
        return "0"
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
    if span.low == span.high:
        return f"{digits(span.value)}{tail}"
    return f"{digits(span.value)}{tail} ({digits(span.low)} to {digits(span.high)}{tail})"


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


def short(span: Span) -> str:
    """A duration's middle figure alone."""
    return duration(Span(span.value, span.value, span.value))


def dollars(span: Span) -> str:
    """ "$12.3 ($10.1 to $15.2)"."""
    if span.low == span.high:
        return money(span.value)
    return f"{money(span.value)} ({money(span.low)} to {money(span.high)})"


def money(value: float) -> str:
    """Cents where they matter; what rounds to nothing says that it is more."""
    if 0 < value < 0.005:
        return "< $0.01"
    return f"${value:,.2f}" if value < 100 else f"${value:,.0f}"


def gigabytes(count: float) -> str:
    """Bytes in GB of 10^9; small ones in MB."""
    return f"{digits(count / 1e9)} GB" if count >= 1e9 else f"{digits(count / 1e6)} MB"
