"""Figures and lists of a comparison as text: quantities, changes, intervals, names."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.report.numbers import (
    format_rate,
    format_ratio,
    format_si,
    format_significant,
    format_time,
)

MINUS = "−"

FACTOR_MIN = 10
"""A change is a factor from here on, and a percentage below."""

ENERGY_UNITS = {"energy": "J", "energy-delay product": "J·s"}

UNITS = {"memory": "B", "flops": "FLOP", **ENERGY_UNITS}


def format_quantity(kind: str, value: float) -> str:
    """Return a figure of this kind: "4.12 ms", "18 MB", "1.36 GFLOP", "3.90 k samples/s"."""
    if kind in ("time", "step", "layer"):
        return format_time(value)
    if kind == "throughput":
        return f"{format_rate(value)} samples/s"
    return f"{value:,.5g}" if kind == "launches" else format_si(value, UNITS[kind])


def format_percent_change(change: float) -> str:
    """Return "+20.1%", "−3.0%", "0.0%"; from a factor of 10 on "10.5 times"."""
    if change >= FACTOR_MIN - 1:
        return f"{format_factor(change)} times"
    text = f"{abs(change) * 100:.1f}%"
    if text == "0.0%" and change:
        return "< 0.1%" if change > 0 else f"> {MINUS}0.1%"
    return text if not change else ("+" if change > 0 else MINUS) + text


def format_interval(ends: tuple[float, float] | None) -> str:
    """Return "+18.9% to +21.2%", or "0.012 to 3,240 times" if an end is a factor of 10 or more."""
    if ends is not None and max(ends) >= FACTOR_MIN - 1:
        return f"{' to '.join(map(format_factor, ends))} times"
    return "" if ends is None else " to ".join(map(format_percent_change, ends))


def format_factor(change: float) -> str:
    """Return a change of 0.38 as "1.38"; "< 0.01" for a factor that would be 0.00."""
    factor = float(change + 1)
    if factor >= 1000:
        return f"{factor:,.0f}"
    return format_significant(factor) if factor >= 1 else format_ratio(factor)


def join_first_names(names: Sequence[str]) -> str:
    """Return "torch, cuda, cudnn and 2 more"."""
    suffix = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + suffix


def format_as_sentence(text: str) -> str:
    is_name = not text.partition(" ")[0].islower()
    return f"{text[:1] if is_name else text[:1].upper()}{text[1:]}." if text else ""
