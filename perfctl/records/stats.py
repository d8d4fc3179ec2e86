"""Percentiles of times, and how many times each percentile needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

PERCENTILES = (50, 95, 99)


def count_values_needed_for_percentile(percent: int) -> int:
    """Values that a percentile needs so that at least one lies above it: 95 -> 20, 99 -> 100; 50
    -> 1."""
    return math.ceil(100 / (100 - percent)) if percent > 50 else 1


def compute_percentile(values: Sequence[float], percent: int) -> float | None:
    """The median, or the smallest value that ``percent`` % of all do not exceed (nearest rank);
    None of too few values."""
    if len(values) < count_values_needed_for_percentile(percent):
        return None
    if percent == 50:
        return statistics.median(values)
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]
