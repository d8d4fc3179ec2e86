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
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse import efficiency_trees
from perfctl.orchestrator.analyse.efficiency_trees import Trees, exponential, total

if TYPE_CHECKING:
    pass

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
    moved = efficiency_trees.path(fitted.trees, row)
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
        "trees": efficiency_trees.to_json(fitted.trees),
        "spread": efficiency_trees.to_json(fitted.spread),
    }


def from_json(found: Mapping[str, Any]) -> Fitted:
    """Raises ValueError for another format or a damaged one, naming what is wrong."""
    if found.get("format") != FORMAT:
        raise ValueError(f"format is {found.get('format')!r}, not {FORMAT!r}: fit again")
    try:
        read: dict[str, Any] = {name: found[name] for name in PLAIN}
        read |= {name: tuple(found[name]) for name in ("features", "low", "high")}
        read |= {name: efficiency_trees.from_json(found[name]) for name in ("trees", "spread")}
        return Fitted(**read)
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is missing") from missing
