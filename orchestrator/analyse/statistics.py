"""Is a difference between two sets of times more than their spread? Student's t on logarithms, and Holm's step-down.

Times spread by factors, so everything is done on logarithms and an interval is one of a ratio. Sources: B. L. Welch,
Biometrika 34 (1947), for unequal spreads; the incomplete beta function by its continued fraction, DLMF 8.17.22;
S. Holm, Scandinavian Journal of Statistics 6 (1979), for many comparisons at once; the variance of a mean of values
with lag-1 autocorrelation r is s^2/n x (1 + r)/(1 - r) for long series (G. V. Bayley, J. M. Hammersley, Supplement to
the Journal of the Royal Statistical Society 8 (1946)).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

CONFIDENCE = 0.95
FEWEST_STEPS = 10
"""Of one run: with fewer, its spread and how its steps hang together are not known well enough."""
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A, with how sure it is."""

    low: float
    """Ends of the 95 % interval of B/A."""
    high: float
    p: float
    """Chance of a difference as large where there is none; of this one comparison alone."""
    basis: str
    """What the spread was computed from, in words."""


@dataclass(frozen=True, slots=True)
class _Mean:
    """A mean of logarithms."""

    value: float
    variance: float
    """Of the mean."""
    freedom: float


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the typical value of several runs (Student's t on logarithms); None for one, or with a 0."""
    if len(values) < 2 or min(values) <= 0:
        return None
    mean = _of_runs(values)
    reach = t_quantile(CONFIDENCE, mean.freedom) * math.sqrt(mean.variance)
    return math.exp(mean.value - reach), math.exp(mean.value + reach)


def ratio(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Ratio | str:
    """Compare B with A; each is a list of runs, and a run is the list of its steps. A text says why it cannot be done.

    Runs are independent, so several runs are compared by their medians. One run against one is compared by the steps
    in them, which hang together and say nothing about the next run.
    """
    medians_a, medians_b = ([statistics.median(run) for run in side] for side in (a, b))
    if not medians_a or not medians_b:
        return "on one side only"
    single = len(a) == 1 and len(b) == 1
    if min((*a[0], *b[0]) if single else (*medians_a, *medians_b)) <= 0:
        return "a 0 is among the figures, and nothing is a share of 0"
    if single:
        return _by_steps(a[0], b[0])
    if len(a) == 1 or len(b) == 1:
        return _one_against_several(medians_a, medians_b)
    first, second = _of_runs(medians_a), _of_runs(medians_b)
    if first.variance + second.variance == 0:
        return "every repeat gave the same figure, so there is no spread to judge by"
    return _welch(first, second, f"{len(a)} and {len(b)} runs")


def _of_runs(values: Sequence[float]) -> _Mean:
    logs = [math.log(value) for value in values]
    return _Mean(statistics.fmean(logs), statistics.variance(logs) / len(logs), len(logs) - 1)


def _one_against_several(a: Sequence[float], b: Sequence[float]) -> Ratio | str:
    """Student's test with the spread of the side that has one."""
    several = _of_runs(a if len(a) > 1 else b)
    one = math.log(a[0] if len(a) == 1 else b[0])
    if several.variance == 0:
        return "every repeat gave the same figure, so there is no spread to judge by"
    single = _Mean(one, several.variance * (several.freedom + 1), several.freedom)
    pair = (single, several) if len(a) == 1 else (several, single)
    which = "A" if len(a) == 1 else "B"
    basis = f"{len(a)} and {len(b)} runs; {which} is one run, assumed to spread as the others do"
    return _student(pair[0], pair[1], several.freedom, basis)


def _by_steps(a: Sequence[float], b: Sequence[float]) -> Ratio | str:
    fewest = min(len(a), len(b))
    if fewest < 2:
        where = "it" if len(a) == len(b) else ("A" if len(a) < len(b) else "B")
        return f"one run each and one figure in {where}, so there is no spread to judge by; --repeat 5 gives one"
    if fewest < FEWEST_STEPS:
        return (
            f"one run each, and of {fewest} steps: at least {FEWEST_STEPS} are needed for a spread within a run, "
            "or repeats (--repeat 5)"
        )
    first, second = _of_steps(a), _of_steps(b)
    if first.variance + second.variance == 0:
        return "every step took the same time, so there is no spread to judge by"
    basis = f"{len(a)} and {len(b)} steps of one run each: what differs from run to run is not in it"
    return _welch(first, second, basis)


def _of_steps(values: Sequence[float]) -> _Mean:
    """Steps follow on one another: they count for fewer than there are."""
    logs = [math.log(value) for value in values]
    alike = autocorrelation(logs)
    worth = max(len(logs) * (1 - alike) / (1 + alike), 2.0)
    return _Mean(statistics.fmean(logs), statistics.variance(logs) / worth, worth - 1)


def autocorrelation(values: Sequence[float]) -> float:
    """Of each value with the next, 0 to 0.95; what a short series leaves out, (1 + 4 r)/n, is put back."""
    mean, count = statistics.fmean(values), len(values)
    off = [value - mean for value in values]
    whole = sum(each * each for each in off)
    if whole == 0:
        return 0.0
    found = sum(left * right for left, right in pairwise(off)) / whole
    return min(max(found + (1 + 4 * found) / count, 0.0), 0.95)


def _welch(a: _Mean, b: _Mean, basis: str) -> Ratio:
    """Degrees of freedom after Welch and Satterthwaite."""
    below = sum(mean.variance**2 / mean.freedom for mean in (a, b))
    return _student(a, b, (a.variance + b.variance) ** 2 / below, basis)


def _student(a: _Mean, b: _Mean, freedom: float, basis: str) -> Ratio:
    change, error = b.value - a.value, math.sqrt(a.variance + b.variance)
    reach = t_quantile(CONFIDENCE, freedom) * error
    return Ratio(_exp(change - reach), _exp(change + reach), t_two_sided(change / error, freedom), basis)


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


def holm(chances: Mapping[K, float]) -> dict[K, float]:
    """Chances made larger so that of all of them together one in 20 is below 0.05 where nothing differs."""
    found: dict[K, float] = {}
    reached = 0.0
    for rank, (key, chance) in enumerate(sorted(chances.items(), key=lambda item: item[1])):
        reached = max(reached, min(chance * (len(chances) - rank), 1.0))
        found[key] = reached
    return found


def t_two_sided(t: float, freedom: float) -> float:
    """Chance of a Student's t at least as far from 0."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(confidence: float, freedom: float) -> float:
    """The t that ``confidence`` of all lie within, on both sides of 0; by bisection."""
    low, high = 0.0, 1.0
    while t_two_sided(high, freedom) > 1 - confidence and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if high - low <= 1e-13 * high:
            break
        low, high = (middle, high) if t_two_sided(middle, freedom) > 1 - confidence else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised: I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a * _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d1/(1 + d2/(1 + ...))) from front to back (Lentz), with the d of DLMF 8.17.22."""
    tiny = 1e-300
    whole, c, d = 1.0, 1.0, 0.0
    for place in range(500):
        half = place // 2
        if place == 0:
            term = 1.0
        elif place % 2 == 0:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        whole *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return whole - 1
