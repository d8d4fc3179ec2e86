"""Seconds from a floor and learned efficiency, with an interval: the fitted numbers and how they are evaluated.

``seconds = floor / efficiency`` with efficiency in (0, 1]. ``floor`` is the time below which the operation cannot go (the
larger of work/peak and bytes/bandwidth, plus what starting it takes). Trees learn the logarithm of the rest::

    inside  = min(max(floor, floor_low), floor_high)      the range the fit has seen
    learned = inside^(power/8) * exp(trees(row))
    seconds = max(learned * (floor / inside if floor > floor_high else 1), floor)

Trees grow with every feature that batch drives (``increasing``), the power of the floor grows, so seconds never fall
with batch. Beyond the range seen trees are constant and seconds follow the floor: efficiency stays what it was.

Interval: ``half = quantile * spread * wider`` in logarithms of seconds, ``spread`` from a second sum of trees (what the
first one usually misses by, there), ``wider = 1 + min(largest excess, 4)`` outside the range (excess 1: twice the largest
figure seen); ``low = max(seconds / exp(half), floor)``, ``high = seconds * exp(half)``.

JSON of :class:`Fitted`, numbers and strings only, see :func:`to_json`::

    {"format": "perfctl efficiency 1", "name": "...", "features": ["rows", ...], "low": [...], "high": [...],
     "power": 6, "floor_low": 1e-5, "floor_high": 0.2, "trees": {...}, "spread": {...}, "spread_low": 0.01,
     "spread_high": 1.0, "quantile": 1.9, "coverage": 0.9, "rows": 4000, "error": 0.05}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, ldexp, sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


LEAF = -1
"""In ``feature``: the node is a leaf."""

LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
"""ln 2 in two parts: multiples of the first by small whole numbers are exact."""

INVERSES = tuple(1.0 / place for place in range(1, 15))
"""1/1 .. 1/14: terms of the exponential's series."""


@dataclass(frozen=True, slots=True)
class Trees:
    """A sum of trees. Nodes of all trees lie in one row of arrays; ``left`` and ``right`` are places in it.

    JSON: ``{"start": 0.1, "roots": [0, 3], "feature": [2, -1, -1, ...], "threshold": [...], "left": [...],
    "right": [...], "value": [...]}``.
    """

    start: float
    """What the sum begins with."""
    roots: tuple[int, ...]
    """First node of each tree, in the order in which the trees are added."""
    feature: tuple[int, ...]
    """Place of the feature a node asks about; -1 for a leaf."""
    threshold: tuple[float, ...]
    """A row goes left when ``row[feature] <= threshold``. 0 for a leaf."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    """What a leaf adds. 0 for a node that is none."""


def total(trees: Trees, row: Sequence[float]) -> float:
    """``start`` plus one leaf of each tree, added in the order of ``roots``. ``row``: one figure a feature."""
    found = trees.start
    for root in trees.roots:
        node = root
        while trees.feature[node] != LEAF:
            smaller = row[trees.feature[node]] <= trees.threshold[node]
            node = trees.left[node] if smaller else trees.right[node]
        found += trees.value[node]
    return found


def path(trees: Trees, row: Sequence[float]) -> tuple[float, ...]:
    """What each feature moved the sum by, over all trees: the change of the mean below a node at each of its questions.

    A node's mean is that of its leaves, each counted once. The parts and the trees' own means add up to :func:`total`.
    """
    means = _means(trees)
    moved = [0.0] * len(row)
    for root in trees.roots:
        node = root
        while trees.feature[node] != LEAF:
            feature = trees.feature[node]
            below = trees.left[node] if row[feature] <= trees.threshold[node] else trees.right[node]
            moved[feature] += means[below] - means[node]
            node = below
    return tuple(moved)


def _means(trees: Trees) -> list[float]:
    """Children come after their parent, so one sweep from the end meets them first."""
    means = list(trees.value)
    for node in range(len(means) - 1, -1, -1):
        if trees.feature[node] != LEAF:
            means[node] = (means[trees.left[node]] + means[trees.right[node]]) / 2
    return means


def totals(trees: Trees, rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """:func:`total` of many rows at once, bit for bit. ``rows``: (rows, features)."""
    import numpy as np

    feature, threshold = np.asarray(trees.feature), np.asarray(trees.threshold)
    left, right, value = np.asarray(trees.left), np.asarray(trees.right), np.asarray(trees.value)
    found = np.full(len(rows), trees.start)
    every = np.arange(len(rows))
    for root in trees.roots:
        node = np.full(len(rows), root)
        while True:
            asked = feature[node]
            inner = asked != LEAF
            if not inner.any():
                break
            smaller = rows[every, np.maximum(asked, 0)] <= threshold[node]
            node = np.where(inner, np.where(smaller, left[node], right[node]), node)
        found += value[node]
    return found


def exponential(x: float) -> float:
    """e^x to about one unit in the last place, for -700 <= x <= 700; beyond that the nearer end's.

    x = n ln 2 + r with whole n and \\|r\\| <= ln 2 / 2; the series of e^r by Horner to r^14 / 14!, times 2^n.
    """
    x = min(max(x, -700.0), 700.0)
    turns = floor(x / (LN2_HIGH + LN2_LOW) + 0.5)
    rest = (x - turns * LN2_HIGH) - turns * LN2_LOW
    series = 1.0
    for inverse in reversed(INVERSES):
        series = 1.0 + (rest * inverse) * series
    return ldexp(series, turns)


def trees_to_json(trees: Trees) -> dict[str, Any]:
    """Plain lists and numbers."""
    return {
        "start": trees.start,
        "roots": list(trees.roots),
        "feature": list(trees.feature),
        "threshold": list(trees.threshold),
        "left": list(trees.left),
        "right": list(trees.right),
        "value": list(trees.value),
    }


def trees_from_json(found: Mapping[str, Any]) -> Trees:
    """Raises KeyError for a missing array, ValueError for arrays that are no trees (lengths, places, cycles)."""
    names = ("feature", "threshold", "left", "right", "value")
    arrays = {name: tuple(found[name]) for name in names}
    count = len(arrays["feature"])
    if any(len(array) != count for array in arrays.values()):
        raise ValueError("the arrays of the trees differ in length")
    roots = tuple(int(root) for root in found["roots"])
    for node, feature in enumerate(arrays["feature"]):
        below = (arrays["left"][node], arrays["right"][node])
        if feature != LEAF and not all(node < each < count for each in below):
            raise ValueError(f"node {node} of the trees points at {below}, not at later nodes")
    if any(not 0 <= root < count for root in roots):
        raise ValueError("a root lies outside of the trees")
    return Trees(float(found["start"]), roots, **arrays)


FORMAT = "perfctl efficiency 1"
WIDEST = 4.0
"""However far outside the range seen: an interval at most five times as wide."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was learned, as numbers."""

    name: str
    """What it predicts, from what: said wherever a prediction is shown."""
    features: tuple[str, ...]
    """Names of a row's figures, in order."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Range of each feature in what was learned from."""
    power: int
    """Eighths: 8 learns efficiency itself, 0 seconds without a floor; see the module."""
    floor_low: float
    floor_high: float
    """Range of the floors in seconds."""
    trees: Trees
    spread: Trees
    spread_low: float
    spread_high: float
    quantile: float
    """The spread times this covers ``coverage`` of rows that were held out."""
    coverage: float
    rows: int
    """How many were learned from."""
    error: float
    """Median absolute error of held-out rows, as a part of 1."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One time, in seconds."""

    seconds: float
    low: float
    high: float
    floor: float
    outside: tuple[str, ...] = ()
    """Features (or "floor") beyond the range that was learned from."""

    @property
    def efficiency(self) -> float:
        """In (0, 1]: the floor's part of the time."""
        return self.floor / self.seconds


def predict(fitted: Fitted, row: Sequence[float], floor: float) -> Prediction:
    """Seconds of one row of features over ``floor`` (seconds, > 0).

    Raises ValueError when the row has not one finite figure for each feature or the floor is not positive.
    """
    if len(row) != len(fitted.features) or not all(isfinite(figure) for figure in row):
        raise ValueError(f"{fitted.name}: needs {len(fitted.features)} finite figures, got {list(row)}")
    if not (floor > 0 and isfinite(floor)):
        raise ValueError(f"{fitted.name}: a floor of {floor} s is no time")
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
    half = sqrt(x)
    quarter = sqrt(half)
    eighth = sqrt(quarter)
    found = x if power == 8 else 1.0
    if power < 8:
        found *= half if power & 4 else 1.0
        found *= quarter if power & 2 else 1.0
        found *= eighth if power & 1 else 1.0
    return found


def _outside(fitted: Fitted, row: Sequence[float], floor: float) -> tuple[float, tuple[str, ...]]:
    """Largest excess over the range (1: twice the largest, or half the smallest), and which features have one."""
    excess, names = 0.0, []
    ranges = zip((*fitted.features, "floor"), (*row, floor), (*fitted.low, fitted.floor_low),
                 (*fitted.high, fitted.floor_high), strict=True)  # fmt: skip
    for name, figure, low, high in ranges:
        if figure > high:
            beyond = figure / high - 1.0 if high > 0 else WIDEST
        elif figure < low:
            beyond = low / figure - 1.0 if figure > 0 else WIDEST
        else:
            continue
        names.append(name)
        excess = max(excess, beyond)
    return excess, tuple(names)


def drivers(fitted: Fitted, row: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """(feature, factor on seconds), the strongest first: what each moved the learned part by, 1 is nothing."""
    moved = path(fitted.trees, row)
    order = sorted(range(len(moved)), key=lambda place: -abs(moved[place]))
    return tuple((fitted.features[place], exponential(moved[place])) for place in order)


PLAIN = (
    "name", "power", "floor_low", "floor_high", "spread_low", "spread_high", "quantile", "coverage", "rows", "error",
)  # fmt: skip


def to_json(fitted: Fitted) -> dict[str, Any]:
    """Plain numbers, strings and lists: ``json.dumps`` gives them back exactly."""
    return {
        "format": FORMAT,
        **{name: getattr(fitted, name) for name in PLAIN},
        "features": list(fitted.features),
        "low": list(fitted.low),
        "high": list(fitted.high),
        "trees": trees_to_json(fitted.trees),
        "spread": trees_to_json(fitted.spread),
    }


def from_json(found: Mapping[str, Any]) -> Fitted:
    """Raises ValueError for another format or a damaged one, naming what is wrong."""
    if found.get("format") != FORMAT:
        raise ValueError(f"format is {found.get('format')!r}, not {FORMAT!r}: fit again")
    try:
        read: dict[str, Any] = {name: found[name] for name in PLAIN}
        read |= {name: tuple(found[name]) for name in ("features", "low", "high")}
        read |= {name: trees_from_json(found[name]) for name in ("trees", "spread")}
        return Fitted(**read)
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is missing") from missing
