"""Seconds from a floor (the least time) and learned efficiency (floor / seconds), with an interval. Trees learn its logarithm::

    inside  = min(max(floor, floor_low), floor_high)      the range of the fit
    learned = inside^(power/8) * exp(trees(row))
    seconds = max(learned * (floor / inside if floor > floor_high else 1), floor)

Trees grow with the features that grow with batch, so seconds never fall with it; outside the range they are constant.
``half = quantile * spread * wider`` in logarithms of seconds; ``spread`` is a second sum of trees (the usual error of the
first), ``wider = 1 + min(largest excess, 4)`` outside the range (excess 1: twice the largest figure of the fit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import floor, isfinite, ldexp, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


LEAF = -1
LN2_HIGH, LN2_LOW = 0.693147180369123816490, 1.90821492927058770002e-10
"""ln 2 in two parts: small integer multiples of the first are exact."""


@dataclass(frozen=True, slots=True)
class Trees:
    """A sum of trees. The nodes of all trees are in one set of arrays; ``left`` and ``right`` are indices into it."""

    start: float
    roots: tuple[int, ...]
    """First node of each tree."""
    feature: tuple[int, ...]
    """Index of the feature that a node compares; -1 for a leaf."""
    threshold: tuple[float, ...]
    """A row goes left when ``row[feature] <= threshold``."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]


def total(trees: Trees, row: Sequence[float]) -> float:
    """``start`` plus one leaf of each tree, added in the order of ``roots``. ``row``: one figure a feature."""
    found = trees.start
    for node in trees.roots:
        while (feature := trees.feature[node]) != LEAF:
            node = (trees.left if row[feature] <= trees.threshold[node] else trees.right)[node]
        found += trees.value[node]
    return found


def path(trees: Trees, row: Sequence[float]) -> tuple[float, ...]:
    """How much each feature moved the sum, over all trees: the change of the mean below a node at each of its comparisons."""
    means = list(trees.value)
    for node in range(len(means) - 1, -1, -1):  # children come after their parent
        if trees.feature[node] != LEAF:
            means[node] = (means[trees.left[node]] + means[trees.right[node]]) / 2
    moved = [0.0] * len(row)
    for node in trees.roots:
        while (feature := trees.feature[node]) != LEAF:
            below = (trees.left if row[feature] <= trees.threshold[node] else trees.right)[node]
            moved[feature] += means[below] - means[node]
            node = below
    return tuple(moved)


def totals(trees: Trees, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """:func:`total` of many rows. ``rows``: (rows, features)."""
    import numpy as np

    return np.array([total(trees, row) for row in rows.tolist()])


def exponential(x: float) -> float:
    """e^x to about one unit in the last place, the same on every machine; x is clipped to -700..700.

    x = n ln 2 + r with integer n and \\|r\\| <= ln 2 / 2; the series of e^r by Horner to r^14 / 14!, times 2^n.
    """
    x = min(max(x, -700.0), 700.0)
    turns = floor(x / (LN2_HIGH + LN2_LOW) + 0.5)
    rest = (x - turns * LN2_HIGH) - turns * LN2_LOW
    series = 1.0
    for place in range(14, 0, -1):
        series = 1.0 + (rest * (1.0 / place)) * series
    return ldexp(series, turns)


def trees_from_json(found: Mapping[str, Any]) -> Trees:
    """Raises KeyError for a missing array, ValueError for damaged arrays (lengths, indices, cycles)."""
    arrays = {name: tuple(found[name]) for name in ("feature", "threshold", "left", "right", "value")}
    count = len(arrays["feature"])
    if any(len(array) != count for array in arrays.values()):
        raise ValueError("the arrays of the trees differ in length")
    roots = tuple(int(root) for root in found["roots"])
    for node, (feature, *below) in enumerate(zip(arrays["feature"], arrays["left"], arrays["right"], strict=True)):
        if feature != LEAF and not all(node < each < count for each in below):
            raise ValueError(f"node {node} of the trees points at {tuple(below)}, not at later nodes")
    if any(not 0 <= root < count for root in roots):
        raise ValueError("a root lies outside of the trees")
    return Trees(float(found["start"]), roots, **arrays)


FORMAT = "perfctl efficiency 1"
WIDEST = 4.0
"""Largest excess that counts: an interval is at most five times as wide outside the range."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit, as numbers."""

    name: str
    """What it predicts, from what."""
    features: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    power: int
    """Eighths: 8 learns efficiency, 0 seconds without a floor."""
    floor_low: float
    floor_high: float
    trees: Trees
    spread: Trees
    spread_low: float
    spread_high: float
    quantile: float
    """The spread times this covers ``coverage`` of held-out rows."""
    coverage: float
    rows: int
    error: float
    """Median, absolute, relative, of held-out rows."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One time, in seconds."""

    seconds: float
    low: float
    high: float
    floor: float
    outside: tuple[str, ...] = ()
    """Features (or "floor") outside the range of the fit."""

    @property
    def efficiency(self) -> float:
        return self.floor / self.seconds


def predict(fitted: Fitted, row: Sequence[float], floor: float) -> Prediction:
    """Seconds of one row of features over ``floor`` (seconds, > 0).

    Raises ValueError when the row has not one finite figure for each feature or the floor is not positive.
    """
    if len(row) != len(fitted.features) or not all(isfinite(figure) for figure in row):
        raise ValueError(f"{fitted.name}: needs {len(fitted.features)} finite figures, got {list(row)}")
    if not (floor > 0 and isfinite(floor)):
        raise ValueError(f"{fitted.name}: floor must be positive, got {floor:g} s")
    inside = min(max(floor, fitted.floor_low), fitted.floor_high)
    learned = eighths(inside, fitted.power) * exponential(total(fitted.trees, row))
    seconds = max(learned * (floor / inside if floor > fitted.floor_high else 1.0), floor)
    excess, outside = _outside(fitted, row, floor)
    spread = min(max(total(fitted.spread, row), fitted.spread_low), fitted.spread_high)
    half = fitted.quantile * spread * (1.0 + min(excess, WIDEST))
    factor = exponential(half)
    return Prediction(seconds, max(seconds / factor, floor), seconds * factor, floor, outside)


def eighths(x: float, power: int) -> float:
    """x^(power/8) by square roots, which are exact to the last digit; power 0 to 8."""
    found, root = 1.0, x
    for bit in (8, 4, 2, 1):
        if power & bit:
            found *= root
        root = sqrt(root)
    return found


def _outside(fitted: Fitted, row: Sequence[float], floor: float) -> tuple[float, tuple[str, ...]]:
    """Largest excess over the range (1: twice the largest, or half the smallest), and which features have one."""
    beyond = {}
    ranges = zip((*fitted.features, "floor"), (*row, floor), (*fitted.low, fitted.floor_low),
                 (*fitted.high, fitted.floor_high), strict=True)  # fmt: skip
    for name, figure, low, high in ranges:
        if not low <= figure <= high:
            more, less = (figure, high) if figure > high else (low, figure)
            beyond[name] = more / less - 1.0 if less > 0 else WIDEST
    return max(beyond.values(), default=0.0), tuple(beyond)


def drivers(fitted: Fitted, row: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """(feature, factor on seconds), the strongest first; a factor of 1 changes nothing."""
    moved = path(fitted.trees, row)
    order = sorted(range(len(moved)), key=lambda place: -abs(moved[place]))
    return tuple((fitted.features[place], exponential(moved[place])) for place in order)


def to_json(fitted: Fitted) -> dict[str, Any]:
    """Numbers, strings and lists, which ``json.dumps`` keeps exactly: the fields of :class:`Fitted` and "format"."""
    return {"format": FORMAT, **asdict(fitted)}


def from_json(found: Mapping[str, Any]) -> Fitted:
    """Raises ValueError for another format or a damaged one, naming what is wrong."""
    if found.get("format") != FORMAT:
        raise ValueError(f"format is {found.get('format')!r}, not {FORMAT!r}: fit again")
    try:
        read = {each.name: found[each.name] for each in fields(Fitted)}
        read |= {name: tuple(read[name]) for name in ("features", "low", "high")}
        return Fitted(**read | {name: trees_from_json(read[name]) for name in ("trees", "spread")})
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is missing") from missing
