"""Learns from measured times with scikit-learn; the results are plain numbers.

Trees: Friedman, "Greedy function approximation", 2001. The interval is split-conformal over folds (Vovk, "Cross-conformal
predictors", 2015): residuals of held-out groups, divided by what a second, small model expects there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.analyse.predict.trees import LEAF, Fitted, Trees, eighths, totals
from perfctl.orchestrator.errors import ToolMissing, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a fit. The defaults suit a few hundred to some thousand rows."""

    power: int = 6
    """Eighths; see ``trees``."""
    rounds: int = 300
    leaves: int = 15
    rate: float = 0.08
    least: int = 8
    ridge: float = 1.0
    part: float = 1.0
    """Share of the features considered in each split."""
    absolute: bool = False
    """Absolute instead of squared errors, for noise with outliers."""
    folds: int = 5
    coverage: float = 0.9
    seed: int = 11


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured rows to learn from."""

    features: tuple[str, ...]
    rows: Sequence[Sequence[float]]
    """(n, features), finite."""
    floors: Sequence[float]
    """(n,) seconds, > 0; measured ones too."""
    seconds: Sequence[float]
    groups: Sequence[Any]
    """(n,) rows with the same group are held out together: the model, the shape."""
    increasing: tuple[str, ...] = ()
    """Every feature that grows with batch: seconds never fall with them."""


def fit(name: str, sample: Sample, settings: Settings | None = None) -> Fitted:
    """Learn efficiency from measured seconds.

    Raises ToolMissing without scikit-learn, UsageError for too few rows or figures that are not finite.
    """
    import numpy as np

    settings = settings or Settings()
    rows, floors, _, _ = _checked(name, sample, settings)
    seconds, held = np.asarray(sample.seconds, dtype=float), held_out(sample, settings)
    trees = trees_of(sample, settings)
    spread, low, high, quantile = interval(rows, abs(held - np.log(seconds)), sample.groups, settings)
    return Fitted(
        name, sample.features, tuple(rows.min(axis=0).tolist()), tuple(rows.max(axis=0).tolist()), settings.power,
        float(floors.min()), float(floors.max()), trees, spread, low, high, quantile, settings.coverage,
        len(rows), float(np.median(abs(np.exp(held) / seconds - 1.0))),
    )  # fmt: skip


def held_out(sample: Sample, settings: Settings) -> Floats:
    """Logarithm of the seconds predicted for each row by a fit that did not see its group."""
    import numpy as np

    rows, floors, base, wanted = _checked("held out", sample, settings)
    held = np.zeros(len(rows))
    for train, test in folds(sample.groups, settings.folds, settings.seed):
        held[test] = totals(_boosted(rows[train], wanted[train], settings, sample), rows[test]) + base[test]
    return np.maximum(held, np.log(floors))


def folds(groups: Sequence[Any], count: int, seed: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(rows to learn from, rows held out), each held out once, whole groups together. Raises UsageError with a single group."""
    import numpy as np

    names = sorted({str(group) for group in groups})
    if len(names) < 2:
        raise UsageError("an interval needs rows of at least two groups", "Measure more than one model or shape")
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[place]: index % count for index, place in enumerate(order)}
    mine = np.array([fold_of[str(group)] for group in groups])
    for fold in range(min(count, len(names))):
        yield np.flatnonzero(mine != fold), np.flatnonzero(mine == fold)


def trees_of(sample: Sample, settings: Settings) -> Trees:
    """The trees of :func:`fit`, without range and interval: exp(trees) times the floor's power is seconds."""
    rows, _, _, wanted = _checked("trees", sample, settings)
    return _boosted(rows, wanted, settings, sample)


def _checked(name: str, sample: Sample, settings: Settings) -> tuple[Floats, Floats, Floats, Floats]:
    """(rows, floors, logarithms of the floors' powers, what trees learn)."""
    from importlib.util import find_spec

    import numpy as np

    if find_spec("sklearn") is None:
        remedy = "pip install 'perfctl[predict]'"
        raise ToolMissing("learning from measurements needs scikit-learn, which is not installed", remedy)
    rows = np.asarray(sample.rows, dtype=float)
    floors, seconds = (np.asarray(each, dtype=float) for each in (sample.floors, sample.seconds))
    if len(rows) < FEWEST:
        raise UsageError(f"{name}: {len(rows)} measured rows are too few to learn from", f"Measure at least {FEWEST}")
    if rows.shape[1] != len(sample.features) or not np.isfinite(rows).all():
        raise UsageError(f"{name}: rows need one finite figure for each of {len(sample.features)} features")
    if not all((each > 0).all() and np.isfinite(each).all() for each in (floors, seconds)):
        raise UsageError(f"{name}: floors and measured seconds must be greater than 0")
    if unknown := [feature for feature in sample.increasing if feature not in sample.features]:
        raise UsageError(f"{name}: no feature is called {unknown[0]}")
    base = np.log([eighths(float(floor), settings.power) for floor in floors])
    return rows, floors, base, np.log(seconds) - base


def _boosted(rows: Floats, wanted: Floats, settings: Settings, sample: Sample) -> Trees:
    return _learned(
        rows, wanted, loss="absolute_error" if settings.absolute else "squared_error",
        max_iter=settings.rounds, learning_rate=settings.rate, max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.least, l2_regularization=settings.ridge, max_features=settings.part,
        monotonic_cst=[int(name in sample.increasing) for name in sample.features], random_state=settings.seed,
    )  # fmt: skip


def _learned(rows: Floats, wanted: Floats, **options: Any) -> Trees:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingRegressor(early_stopping=False, **options)
    with threadpool_limits(1):  # rows are few: threads would wait for each other longer than they work
        return exported(model.fit(rows, wanted))


def exported(model: Any) -> Trees:
    """A fitted HistGradientBoostingRegressor as arrays; leaves to eight digits, which keeps pages small."""
    roots: list[int] = []
    nodes: list[tuple[int, float, int, int, float]] = []
    for (tree,) in model._predictors:
        roots.append(len(nodes))
        for node in tree.nodes:
            left, right = (roots[-1] + int(node[side]) for side in ("left", "right"))
            inner = (int(node["feature_idx"]), float(node["num_threshold"]), left, right, 0.0)
            nodes.append((LEAF, 0.0, 0, 0, float(f"{float(node['value']):.8g}")) if node["is_leaf"] else inner)
    feature, threshold, lefts, rights, value = zip(*nodes, strict=True)
    return Trees(float(model._baseline_prediction.ravel()[0]), tuple(roots), feature, threshold, lefts, rights, value)


def interval(
    rows: Floats, missed: Floats, groups: Sequence[Any], settings: Settings
) -> tuple[Trees, float, float, float]:
    """Trees for the usual error, its bounds, and the quantile that covers. ``missed``: (n,) errors of held-out rows, in logarithms."""
    import numpy as np

    low = float(max(np.quantile(missed, 0.2), 1e-4))
    high = float(max(np.quantile(missed, 0.98), low))
    expected = np.zeros(len(missed))
    for train, test in folds(groups, settings.folds, settings.seed + 1):
        expected[test] = totals(_small(rows[train], missed[train], settings), rows[test])
    scores = np.sort(missed / np.clip(expected, low, high))
    place = min(ceil((len(scores) + 1) * settings.coverage), len(scores)) - 1
    return _small(rows, missed, settings), low, high, float(scores[place])


def _small(rows: Floats, missed: Floats, settings: Settings) -> Trees:
    least = max(5, min(40, len(rows) // 10))
    return _learned(rows, missed, max_iter=30, max_leaf_nodes=6, min_samples_leaf=least, random_state=settings.seed)
