"""How closely the time of a step goes with each figure of pen and paper: Pearson's and Spearman's coefficients.

On plain values, and on logarithms, where a power law is a straight line. Nothing is said of fewer than three points, or
of a figure that is the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfctl.parsers.bench_points import BenchPoint

ALL = "all"
"""What the families together are called."""
LEAST = 3


@dataclass(frozen=True, slots=True)
class Correlation:
    """One figure against the step's time, in one family."""

    family: str
    feature: str
    points: int
    pearson: float | None
    """-1..1, of the values. None: fewer than three points, or one value everywhere."""
    pearson_log: float | None
    """Of the logarithms of the points where the figure is above 0."""
    spearman: float | None
    """Of the ranks: any rising curve gives 1."""
    slope_log: float | None
    """Of the line through the logarithms: 1 where time is proportional to the figure."""


def correlations(points: Sequence[BenchPoint]) -> list[Correlation]:
    """Each family by itself, then all together; in each the closest figure (by rank) first."""
    families = list(dict.fromkeys(point.family for point in points))
    names = sorted({name for point in points for name in figures(point)})
    found = []
    for family in (*families, *([ALL] if len(families) > 1 else [])):
        mine = [point for point in points if family in (ALL, point.family)]
        rows = [correlation(family, name, mine) for name in names]
        known = [row for row in rows if row.spearman is not None]
        found += sorted(known, key=lambda row: -abs(row.spearman or 0.0))
    return found


def figures(point: BenchPoint) -> dict[str, float]:
    """What a point's time is set against: its features and its batch size."""
    return {**point.features, "batch": float(point.batch)}


def correlation(family: str, feature: str, points: Iterable[BenchPoint]) -> Correlation:
    """One figure; a point without it is left out."""
    pairs = [(figures(point)[feature], point.step_ns[0] / 1e9) for point in points if feature in figures(point)]
    logs = [(math.log(x), math.log(y)) for x, y in pairs if x > 0 and y > 0]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    return Correlation(
        family=family,
        feature=feature,
        points=len(pairs),
        pearson=pearson(xs, ys),
        pearson_log=pearson([x for x, _ in logs], [y for _, y in logs]),
        spearman=pearson(ranks(xs), ranks(ys)),
        slope_log=_slope(logs),
    )


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Of two columns of one length; None where it is not defined."""
    if len(xs) < LEAST:
        return None
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    across = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    along = math.sqrt(math.fsum((x - mean_x) ** 2 for x in xs)) * math.sqrt(math.fsum((y - mean_y) ** 2 for y in ys))
    if len(set(xs)) == 1 or len(set(ys)) == 1 or along == 0:
        return None
    return max(-1.0, min(1.0, across / along))


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of their places."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    found = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            found[place] = (start + end) / 2 + 1
        start = end + 1
    return found


def _slope(logs: Sequence[tuple[float, float]]) -> float | None:
    if len(logs) < LEAST or len({x for x, _ in logs}) == 1:
        return None
    mean = math.fsum(x for x, _ in logs) / len(logs)
    return math.fsum((x - mean) * y for x, y in logs) / math.fsum((x - mean) ** 2 for x, _ in logs)
