"""Boosted trees as plain numbers, and their evaluation, the same to the last digit on every machine.

Only ``+ - * /``, comparisons and square roots are used, which IEEE 754 rounds alike everywhere; the exponential is worked
out here because libraries differ in the last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, ldexp
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


def to_json(trees: Trees) -> dict[str, Any]:
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


def from_json(found: Mapping[str, Any]) -> Trees:
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
