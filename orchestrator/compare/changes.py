"""Where a series of points changed its level: candidates by ruptures, each then tested against
series without a change.

Candidates: PELT with an exact search of the squared error of logarithms (R. Killick, P. Fearnhead,
I. A. Eckley, Journal of the American Statistical Association 107 (2012)), as ruptures' KernelCPD
with a linear kernel (S. Arlot, A. Celisse, Z. Harchaoui, Journal of Machine Learning Research 20
(2019)); penalty 2 s^2 ln n, s from the differences of successive points. Test: the best split of
the two segments around a candidate, against the best splits of series without a change: the same
noise in other orders, each point as like the one before it as in the line (autocorrelation of the
first order, drawn anew for each series with the error that it is known with). How noise is
distributed is not assumed. A line that drifts slowly for fewer than about 50 points still looks
like one with a change: docs/explanation/noise.md has the measured share of false alarms. Where it
was: the splits whose squared error is within 7.35 s^2 of the best (95%; B. E. Hansen, Econometrica
68 (2000)).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.compare.causes import RankedDifference
from perfctl.orchestrator.statistics import RatioInterval, compute_b_over_a_interval

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

ALPHA = 0.02
"""Chance that anything at all is claimed of a line in which nothing changed; steps and layers have
a half each."""
SHORTEST = 3
"""Points of a level at least."""
ORDERS = 9_999
"""Most orders that a candidate is compared with."""
_FIRST = 199
"""Orders after which a hopeless candidate is given up."""
_HANSEN = 7.35
_BIAS = 3
"""Times (1 + 4 r)/n that the autocorrelation r of a line of n points is found too small: once for
its mean (M. G. Kendall, Biometrika 41 (1954)), twice more for the two levels of the best split,
which is chosen for leaving little."""


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A level that changed between two points of a series. Points are indexes of its values."""

    JSON_KEYS = ("after", "earliest", "latest", "change", "interval", "p", "differences")

    after: int
    """The first point of the new level; the one before it is the last of the old one."""
    change: float | None
    """New level over old, less 1; None: the old level is 0."""
    interval: tuple[float, float] | None
    """95% interval of the change; None for an exact count."""
    p: float | None
    """Among all series of its kind; None for an exact count."""
    earliest: int
    """With 95%, the first point of the new level is not before this one."""
    latest: int
    """With 95%, the first point of the new level is not after this one."""
    before_points: int
    """Points of the old level."""
    after_points: int
    differences: tuple[RankedDifference, ...] = ()
    """What else differs between the points before and after, the likeliest first."""


def is_ruptures_installed() -> bool:
    return find_spec("ruptures") is not None


def compute_min_points_for_change(series_count: int = 1) -> int:
    """Points that can show a change at all, where so many series are judged together."""
    count = 2 * SHORTEST
    while 2 / math.comb(count, count // 2) >= ALPHA / 2 / series_count:
        count += 1
    return count


def _iterate_neighboring_segments(edges: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the start, the split and the end of each two neighbouring segments."""
    return zip(edges, edges[1:], edges[2:], strict=False)


def find_every_value_change(values: Sequence[float]) -> list[LevelChange]:
    """Every change of a count that does not jitter."""
    edges = [
        0,
        *(split for split in range(1, len(values)) if values[split] != values[split - 1]),
        len(values),
    ]
    return [
        LevelChange(
            split,
            values[split] / values[split - 1] - 1 if values[split - 1] else None,
            None,
            None,
            split,
            split,
            split - start,
            right - split,
        )
        for start, split, right in _iterate_neighboring_segments(edges)
    ]


def find_significant_changes(
    values: Sequence[float], *, series_count: int = 1, min_relative_change: float = 0.0
) -> list[LevelChange]:
    """Changes of level that are significant among ``series_count`` series, and larger than
    ``min_relative_change`` (0.05 is 5%), oldest first.

    values: one a point, above 0. The same values give the same answer: orders are drawn from
    one seed.
    """
    if len(values) < compute_min_points_for_change(series_count) or min(values) <= 0:
        return []
    import numpy as np

    logs = np.log(np.asarray(values, dtype=float))
    edges = [0, *_find_candidate_splits(logs), len(logs)]
    threshold = ALPHA / 2
    weight = series_count * max(len(edges) - 2, 1)
    chances: dict[tuple[int, int, int], float] = {}
    while len(edges) > 2:
        splits = list(_iterate_neighboring_segments(edges))
        for split in splits:
            if split not in chances:
                chance = _compute_split_p_value(logs[split[0] : split[2]], threshold / weight)
                chances[split] = min(weight * chance, 1.0)
        worst = max(
            splits, key=lambda split: (chances[split], -abs(_compute_log_shift(logs, split)))
        )
        if chances[worst] < threshold:
            break
        edges.remove(worst[1])
    changes = []
    for start, middle, right in _iterate_neighboring_segments(edges):
        before, after = values[start:middle], values[middle:right]
        test = compute_b_over_a_interval(
            [[value] for value in before], [[value] for value in after]
        )
        change = math.expm1(_compute_log_shift(logs, (start, middle, right)))
        if abs(change) <= min_relative_change:
            continue
        interval = (
            (test.low - 1, test.high - 1) if isinstance(test, RatioInterval) else (change, change)
        )
        earliest, latest = _find_split_confidence_range(logs[start:right], middle - start)
        p = chances[start, middle, right]
        changes.append(
            LevelChange(
                middle,
                change,
                interval,
                p,
                start + earliest,
                start + latest,
                middle - start,
                right - middle,
            )
        )
    return changes


def _compute_log_shift(logs: Array, split: tuple[int, int, int]) -> float:
    start, middle, right = split
    return float(logs[middle:right].mean() - logs[start:middle].mean())


def _find_candidate_splits(logs: Array) -> list[int]:
    import numpy as np
    from ruptures import KernelCPD

    steps = np.diff(logs)
    spread = float(np.median(np.abs(steps - np.median(steps)))) / 0.6745 / math.sqrt(2)
    spread = max(spread, float(np.std(steps)) / 10)
    if spread == 0:
        return []
    scaled = ((logs - logs.mean()) / spread).reshape(-1, 1)
    edges = (
        KernelCPD(kernel="linear", min_size=SHORTEST)
        .fit(scaled)
        .predict(pen=2 * math.log(len(logs)))
    )
    return [int(edge) for edge in edges[:-1]]


def _compute_split_gains(rows: Array) -> Array:
    """Squared error that each split of each row saves; splits from SHORTEST to n - SHORTEST."""
    import numpy as np

    count = rows.shape[1]
    sums = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[
        :, SHORTEST - 1 : count - SHORTEST
    ]
    sizes = np.arange(SHORTEST, count - SHORTEST + 1)
    gains: Array = sums**2 * count / (sizes * (count - sizes))
    return gains


def _compute_best_split_statistic(rows: Array) -> Array:
    """Best split of each row: squared error that it saves over the error that remains; no unit."""
    import numpy as np

    best = _compute_split_gains(rows).max(axis=1)
    total = ((rows - rows.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    statistic: Array = best / np.maximum(total - best, 1e-12 * total + 1e-300)
    return statistic


def _compute_split_p_value(points: Array, early_stop_p_value: float) -> float:
    """p-value of the best split of these points; not worked out further where it is hopeless to be
    below ``early_stop_p_value``."""
    import numpy as np

    observed = float(_compute_best_split_statistic(points[None])[0]) * (1 - 1e-9)
    dice = np.random.default_rng(0)
    exceeding, drawn = 0, 0
    for count in (_FIRST, ORDERS - _FIRST):
        exceeding += int(
            (
                _compute_best_split_statistic(_sample_null_series(dice, points, count)) >= observed
            ).sum()
        )
        drawn += count
        if (exceeding + 1) / (drawn + 1) > max(4 * early_stop_p_value, 0.05):
            break
    return (exceeding + 1) / (drawn + 1)


def _sample_null_series(random_generator: Any, points: Array, row_count: int) -> Array:
    """So many series with the noise of these points and without a change, each of them with its own
    autocorrelation."""
    import numpy as np

    count = len(points)
    best = int(_compute_split_gains(points[None]).argmax()) + SHORTEST
    residuals = np.concatenate(
        [points[:best] - points[:best].mean(), points[best:] - points[best:].mean()]
    )
    energy = float((residuals**2).sum())
    biased = float((residuals[1:] * residuals[:-1]).sum()) / energy if energy else 0.0
    correlation = biased + _BIAS * (1 + 4 * biased) / count
    error = math.sqrt(max(1 - correlation**2, 0.05) / count)
    drawn = random_generator.normal(correlation, error, row_count).clip(0.0, 0.98)
    correlation = min(max(correlation, 0.0), 0.98)
    first = residuals[:1] * math.sqrt(1 - correlation**2)
    shocks = np.concatenate([first, residuals[1:] - correlation * residuals[:-1]])
    rows: Array = random_generator.permuted(np.tile(shocks, (row_count, 1)), axis=1)
    rows[:, 0] /= np.sqrt(1 - drawn**2)
    for column in range(1, count):
        rows[:, column] += drawn * rows[:, column - 1]
    return rows


def _find_split_confidence_range(points: Array, split: int) -> tuple[int, int]:
    """Return the first and the last split that is almost as good as ``split``."""
    gains = _compute_split_gains(points[None])[0]
    inside = [*(points[:split] - points[:split].mean()), *(points[split:] - points[split:].mean())]
    variance = sum(value * value for value in inside) / max(len(points) - 2, 1)
    near = [
        index + SHORTEST
        for index, gain in enumerate(gains)
        if gains[split - SHORTEST] - gain <= _HANSEN * variance
    ]
    return min(near, default=split), max(near, default=split)
