"""Whether two sets of times differ (Student's t on logarithms, Holm's step-down), intervals, and
how many more values an interval needs.

B. L. Welch, Biometrika 34 (1947), for unequal spreads; DLMF 8.17.22 for the incomplete beta
function; S. Holm, Scandinavian Journal of Statistics 6 (1979); the variance of a mean of values
with lag-1 autocorrelation r is s^2/n x (1 + r)/(1 - r) (G. V. Bayley, J. M. Hammersley, Supplement
to the Journal of the Royal Statistical Society 8 (1946)). How many values an interval of a given
width needs, from the spread seen so far, Student's t taken again for each number: NIST/SEMATECH
e-Handbook of Statistical Methods, 7.2.2.2. The interval of a correlation by its z = artanh r, with
a standard error of 1/sqrt(n - 3) (R. A. Fisher, Metron 1 (1921)), of ranks sqrt((1 + r^2/2)/(n -
3)) (D. G. Bonett, T. A. Wright, Psychometrika 65 (2000)).
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

CONFIDENCE = 0.95
NORMAL = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
"""Standard errors to each side of a normal distribution."""
FEWEST_STEPS = 10
"""Steps of one run that show its spread and autocorrelation; fewer do not."""
WIDEST, WIDEST_SHARE = 3.0, 0.5
"""Ends of an interval that are further apart say nothing: as a factor, and of a share (0..1) as
a difference."""
MANY = 1000
"""Further values that are counted at most: what spreads more has a cause that repeating does not
mend."""
SAME = "every repeat gave the same value"
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def group_by(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Return the items by their key, keys and items in order of appearance."""
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """B over A: its 95% interval and the p-value of the comparison."""

    low: float
    high: float
    p: float
    basis: str
    freedom: float
    """Degrees of freedom of the interval."""


@dataclass(frozen=True, slots=True)
class UntestedRatio:
    """Why two samples are not compared."""

    reason: str
    needs_repeats: bool = False
    """Each side is one run with too few steps to show a spread."""


@dataclass(frozen=True, slots=True)
class _LogMean:
    """A mean of logarithms."""

    value: float
    variance: float
    freedom: float


def compute_geometric_mean_95_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the geometric mean of several runs (Student's t on logarithms);
    None for one run, or a 0."""
    if len(values) < 2 or min(values) <= 0:
        return None
    mean = _compute_log_mean_over_runs(values)
    reach = compute_two_sided_t_quantile(CONFIDENCE, mean.freedom) * math.sqrt(mean.variance)
    return math.exp(mean.value - reach), math.exp(mean.value + reach)


def compute_wilson_interval(share: float, count: int) -> tuple[float, float]:
    """95% interval of a share (0..1) that was observed on ``count`` independent ones.

    E. B. Wilson, Journal of the American Statistical Association 22 (1927). Raises ValueError for a
    count below 1.
    """
    if count < 1:
        raise ValueError("a share of nothing has no interval")
    z2 = NORMAL**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count * count))) / (
        1 + z2 / count
    )
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


def compute_b_over_a_interval(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]
) -> RatioInterval | UntestedRatio:
    """Return B over A, each a list of runs of steps, or why it is unknown.

    Several runs are independent and compared by their medians. One run each is compared by its
    steps, which are autocorrelated and do not show the spread between runs. The degrees of freedom
    are those of Welch and Satterthwaite.
    """
    medians_a, medians_b = ([statistics.median(run) for run in side] for side in (a, b))
    if not medians_a or not medians_b:
        return UntestedRatio("on one side only")
    is_single = len(a) == 1 and len(b) == 1
    if min((*a[0], *b[0]) if is_single else (*medians_a, *medians_b)) <= 0:
        return UntestedRatio("one value is 0, so the ratio is undefined")
    if is_single:
        if (reason := _explain_too_few_steps(len(a[0]), len(b[0]))) is not None:
            return UntestedRatio(reason, needs_repeats=True)
        mean_a, mean_b = _compute_log_mean_over_steps(a[0]), _compute_log_mean_over_steps(b[0])
        counts = f"{len(a[0])} and {len(b[0])} steps"
        basis = f"{counts} of one run each; the spread between runs is unknown"
        same = "every step took the same time"
    else:
        mean_a = _compute_log_mean_over_runs(medians_a, medians_b)
        mean_b = _compute_log_mean_over_runs(medians_b, medians_a)
        basis, same = f"{len(a)} and {len(b)} runs", SAME
        if 1 in (len(a), len(b)):
            single = "A" if len(a) == 1 else "B"
            basis += f"; {single} is one run, assumed to spread like the others"
    variance = mean_a.variance + mean_b.variance
    if variance == 0:
        return UntestedRatio(f"{same}, so there is no spread")
    freedom = mean_a.freedom
    if is_single or min(len(a), len(b)) > 1:
        parts = (mean.variance**2 / mean.freedom for mean in (mean_a, mean_b))
        freedom = variance**2 / sum(parts)
    change, error = mean_b.value - mean_a.value, math.sqrt(variance)
    reach = compute_two_sided_t_quantile(CONFIDENCE, freedom) * error
    low, high = (math.exp(min(max(end, -700.0), 700.0)) for end in (change - reach, change + reach))
    return RatioInterval(
        low, high, compute_two_sided_t_p_value(change / error, freedom), basis, freedom
    )


def _explain_too_few_steps(steps_a: int, steps_b: int) -> str | None:
    """Return why two runs of this many steps are not compared."""
    fewest = min(steps_a, steps_b)
    if fewest < 2:
        side = "it" if steps_a == steps_b else "A" if steps_a < steps_b else "B"
        return (
            f"one run each and one value in {side}, so there is no spread. Repeat the runs 5 times"
        )
    if fewest < FEWEST_STEPS:
        return (
            f"one run each of {fewest} steps: a spread needs {FEWEST_STEPS} steps, or 5 repeats of "
            "the runs"
        )
    return None


def _compute_log_mean_over_runs(
    values: Sequence[float], spread_source: Sequence[float] = ()
) -> _LogMean:
    """Return the mean of runs; of a single one with the spread of ``spread_source``."""
    if len(values) == 1:
        several = _compute_log_mean_over_runs(spread_source)
        variance = several.variance * (several.freedom + 1)
        return _LogMean(math.log(values[0]), variance, several.freedom)
    logs = [math.log(value) for value in values]
    return _LogMean(statistics.fmean(logs), statistics.variance(logs) / len(logs), len(logs) - 1)


def _compute_log_mean_over_steps(values: Sequence[float]) -> _LogMean:
    """Return the mean of steps; autocorrelated ones count for fewer."""
    logs = [math.log(value) for value in values]
    correlation = compute_lag1_autocorrelation(logs)
    count = max(len(logs) * (1 - correlation) / (1 + correlation), 2.0)
    return _LogMean(statistics.fmean(logs), statistics.variance(logs) / count, count - 1)


def compute_lag1_autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next, 0 to 0.95, with the bias of a short
    series, (1 + 4 r)/n, corrected."""
    mean, count = statistics.fmean(values), len(values)
    deviations = [value - mean for value in values]
    squares = sum(deviation * deviation for deviation in deviations)
    products = sum(first * right for first, right in pairwise(deviations))
    biased = products / squares if squares else -1.0
    return min(max(biased + (1 + 4 * biased) / count, 0.0), 0.95)


@dataclass(frozen=True, slots=True)
class WideInterval:
    """Why an interval says nothing, and how many further values would settle it, if their spread
    stays as it is."""

    bound: str
    """What it is wider than: "a factor of 3"."""
    more: int
    """Further values (of each side, where two are compared); more than ``MANY`` stands for any
    such number."""
    unit: str
    """What they are: steps, epochs, runs, images."""

    @property
    def additional_values_text(self) -> str:
        """ "about 40 more steps"."""
        if self.more > MANY:
            return f"more than {MANY:,} more {self.unit}"
        return (
            f"about {self.more:,} more "
            f"{self.unit if self.more > 1 else self.unit.removesuffix('s')}"
        )

    @property
    def reason(self) -> str:
        return (
            f"unknown: its 95% interval is wider than {self.bound}; "
            f"{self.additional_values_text} would decide"
        )


def explain_wide_interval(
    compute_width: Callable[[int], float],
    count: int,
    unit: str,
    max_width: float,
    max_width_text: str,
) -> WideInterval | None:
    """Judge an interval: None where it is narrow enough to be shown. Speedups, repeats and shares
    go through here.

    compute_width: how wide it is with so many values, ``count`` of which there are. max_width: the
    widest that is shown, ``max_width_text`` in words.
    """
    if compute_width(count) <= max_width:
        return None
    low, high = count, 2 * count
    while compute_width(high) > max_width:
        low, high = high, high * 2
        if low - count > MANY:
            return WideInterval(max_width_text, low - count, unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if compute_width(middle) <= max_width else (middle, high)
    return WideInterval(max_width_text, high - count, unit)


def explain_wide_ratio_interval(
    ratio: RatioInterval, values_per_side: int, unit: str, max_factor: float = WIDEST
) -> WideInterval | None:
    """Return whether the interval of a comparison whose sides have ``values_per_side`` values says
    nothing: error and degrees of freedom change with their number alone.

    max_factor: how far apart the interval's ends may be.
    """
    error = (math.log(ratio.high) - math.log(ratio.low)) / compute_two_sided_t_quantile(
        CONFIDENCE, ratio.freedom
    )

    def compute_width(count: int) -> float:
        growth = count / values_per_side
        return (
            compute_two_sided_t_quantile(CONFIDENCE, ratio.freedom * growth)
            * error
            / math.sqrt(growth)
        )

    return explain_wide_interval(
        compute_width, values_per_side, unit, math.log(max_factor), f"a factor of {max_factor:g}"
    )


def explain_wide_run_interval(values: Sequence[float]) -> WideInterval | None:
    """Judge the interval that :func:`compute_geometric_mean_95_interval` gives for runs."""
    deviation = math.sqrt(_compute_log_mean_over_runs(values).variance * len(values))

    def compute_width(count: int) -> float:
        return (
            2 * compute_two_sided_t_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)
        )

    return explain_wide_interval(
        compute_width, len(values), "runs", math.log(WIDEST), f"a factor of {WIDEST:g}"
    )


def explain_wide_share_interval(share: float, count: int) -> WideInterval | None:
    """Judge the interval of a share (0..1) of ``count`` that ``compute_wilson_interval`` gives."""

    def compute_width(number: int) -> float:
        low, high = compute_wilson_interval(share, number)
        return high - low

    return explain_wide_interval(
        compute_width, count, "images", WIDEST_SHARE, f"{WIDEST_SHARE * 100:g} percentage points"
    )


def compute_fisher_interval(
    correlation: float, points: int, *, ranked: bool
) -> tuple[float, float] | None:
    """95% interval of a correlation coefficient; ``ranked``: of ranks (Spearman's). None for 3
    points, and for -1 and 1."""
    if points <= 3 or abs(correlation) >= 1 - 1e-12:
        return None
    spread = (1 + correlation**2 / 2 if ranked else 1.0) / (points - 3)
    reach = NORMAL * math.sqrt(spread)
    middle = math.atanh(correlation)
    return math.tanh(middle - reach), math.tanh(middle + reach)


def adjust_p_values_by_holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """p-values adjusted so that, where nothing differs, any of them is below 0.05 with a chance of
    5%."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    raised = (
        min(p_values[key] * remaining, 1.0)
        for key, remaining in zip(ordered, range(len(ordered), 0, -1), strict=True)
    )
    return dict(zip(ordered, accumulate(raised, max), strict=True))


def compute_two_sided_t_p_value(t: float, freedom: float) -> float:
    """Two-sided p-value of Student's t."""
    return _compute_regularized_incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def compute_two_sided_t_quantile(confidence: float, freedom: float) -> float:
    """The t with ``confidence`` between -t and t; by Newton's method, which comes from 0 and goes
    past nothing: the p-value falls ever more slowly."""
    log_height = (
        math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    )
    t = 0.0
    for _ in range(200):
        density = math.exp(log_height - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (compute_two_sided_t_p_value(t, freedom) - (1 - confidence)) / (2 * density)
        t += step
        if abs(step) <= 1e-8 * t or t >= 1e12:  # the next step would be the square of that
            break
    return t


def _compute_regularized_incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised: I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _compute_regularized_incomplete_beta(1 - x, b, a)
    front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return math.exp(front) / a * _evaluate_beta_continued_fraction(x, a, b)


def _evaluate_beta_continued_fraction(x: float, a: float, b: float) -> float:
    """1/(1 + d1/(1 + d2/(1 + ...))) from front to back (Lentz), with the d of DLMF 8.17.22."""
    tiny = 1e-300
    value, c, d = 2.0, 2.0, 1.0
    for index in range(1, 500):
        half = index // 2
        if index % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value - 1
