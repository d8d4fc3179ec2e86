"""Bytes that a launch moved through L1 and L2, and the most of them that its chip moves in a cycle.

Nsight Compute's hierarchical roofline sections read other counters from version to version: ``l1tex__t_bytes`` and
``lts__t_bytes`` up to 2022.3; cycles of write-back, of 128 bytes in L1 and 32 in L2, in 2024.1. They do not count the same
traffic (the latter is what the SMs read, the former has writes and fills too), so the roof of a level is the peak of the
very counter that its bytes come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfctl.orchestrator.analyse.counters.sums import Values
from perfctl.orchestrator.analyse.figure import Figure

LEVELS = ("L1", "L2", "DRAM")
"""From the SMs outwards."""
CACHES = LEVELS[:2]
SECTOR = 32
"""Bytes of a sector."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """A counter of one level's traffic and the bytes of one of it."""

    counter: str
    bytes_each: int = 1


_READINGS = {
    "L1": (
        *(_Reading(f"l1tex__lsu_writeback_active{tail}", 128) for tail in ("_mem_lgds", "_mem_lg", "")),
        _Reading("l1tex__t_bytes"), _Reading("l1tex__t_sectors", SECTOR),
    ),
    "L2": (
        _Reading("lts__lts2xbar_cycles_active", 32), _Reading("lts__t_bytes"), _Reading("lts__t_sectors", SECTOR),
    ),
}  # fmt: skip
"""Level -> counters, the newest section's first: then the points are those that Nsight Compute draws."""
_READ = frozenset(
    f"{reading.counter}.sum{tail}"
    for readings in _READINGS.values()
    for reading in readings
    for tail in ("", ".per_second")
)


def cache_bytes(values: Values) -> dict[str, Figure]:
    """Level -> bytes in one launch, counted, or from a rate where nothing counted them; ``rule`` names the counter.

    Levels without a counter are left out.
    """
    found: dict[str, Figure] = {}
    if _READ.isdisjoint(values):
        return found
    for level, readings in _READINGS.items():
        figures = (_bytes(values, reading) for reading in readings)
        if (figure := next((one for one in figures if one is not None), None)) is not None:
            found[level] = figure
    return found


def _bytes(values: Values, reading: _Reading) -> Figure | None:
    total = values.get(f"{reading.counter}.sum")
    if total is not None:
        return Figure(total * reading.bytes_each, "counted", rule=reading.counter)
    rate, time_ns = values.get(f"{reading.counter}.sum.per_second"), values.get("gpu__time_duration.sum")
    if rate is None or time_ns is None:
        return None
    said = f"{reading.counter}.sum.per_second x gpu__time_duration"
    return Figure(rate * reading.bytes_each * time_ns / 1e9, "estimated", said, rule=reading.counter)


def bytes_per_cycle(launches: Iterable[Values]) -> dict[str, float]:
    """Counter -> the most bytes that the chip moves in a cycle, where a report says so; the largest of its launches.

    Either as ``.sum.peak_sustained``, or from a sum, its share of the peak and the cycles of its unit.
    """
    found: dict[str, float] = {}
    for values in launches:
        for readings in _READINGS.values():
            for reading in readings:
                if (peak := _peak(values, reading.counter)) is not None:
                    most = peak * reading.bytes_each
                    found[reading.counter] = max(most, found.get(reading.counter, 0.0))
    return found


def _peak(values: Values, counter: str) -> float | None:
    stated = values.get(f"{counter}.sum.peak_sustained")
    if stated:
        return stated
    total, share = values.get(f"{counter}.sum"), values.get(f"{counter}.sum.pct_of_peak_sustained_elapsed")
    cycles = values.get(f"{counter.partition('__')[0]}__cycles_elapsed.avg")
    # a share that is printed with two decimals is near enough from 1 % on
    return float(f"{total / (share / 100) / cycles:.3g}") if total and share and share >= 1 and cycles else None
