"""Learned efficiency (floor / seconds) with an interval, by scikit-learn's gradient boosting. A
floor is the least time::

    inside  = min(max(floor, floor_low), floor_high)      the range of the fit
    learned = inside^(power/8) * exp(model(row))
    seconds = max(learned * (floor / inside if floor > floor_high else 1), floor)

The model grows with the features that grow with batch, so seconds never fall with it; outside the
range they are constant. ``half = quantile * spread * wider`` in logarithms of seconds; ``spread``
is a second model (the usual error of the first), ``wider = 1 + min(largest excess, 4)`` outside the
range (excess 1: twice the largest figure of the fit).

Boosting: Friedman, "Greedy function approximation", 2001. The interval is split-conformal over
folds (Vovk, "Cross-conformal predictors", 2015): residuals of held-out groups, divided by what the
second model expects there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, exp, isfinite
from typing import TYPE_CHECKING, Any, Protocol

from perfctl.orchestrator.errors import ToolMissing, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST = 20
WIDEST = 4.0
"""Largest excess that counts: an interval is at most five times as wide outside the range."""


class Regressor(Protocol):
    """A model that scikit-learn fitted."""

    def predict(self, X: Any, /) -> Any:
        """Return one number per row of ``X``: (rows, features)."""
        ...


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Settings of a fit. The defaults suit a few hundred to some thousand rows."""

    power: int = 6
    """Eighths: 8 learns efficiency, 0 seconds without a floor."""
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
class FitSample:
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


@dataclass(frozen=True, slots=True)
class FittedEfficiency:
    """A fit, in memory."""

    name: str
    """What it predicts, from what."""
    features: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    middle: tuple[float, ...]
    """Median of each feature."""
    power: int
    """Eighths; see :class:`FitSettings`."""
    floor_low: float
    floor_high: float
    model: Regressor
    spread: Regressor
    spread_low: float
    spread_high: float
    quantile: float
    """The spread times this covers ``coverage`` of held-out rows."""
    coverage: float
    rows: int
    error: float
    """Median, absolute, relative, of held-out rows."""


@dataclass(frozen=True, slots=True)
class TimePrediction:
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


def raise_if_scikit_learn_missing() -> None:
    """Raise ToolMissing without scikit-learn."""
    if find_spec("sklearn") is None:
        raise ToolMissing("fitted predictions need scikit-learn: pip install 'perfctl[predict]'")


def fit_efficiency(
    label: str, sample: FitSample, settings: FitSettings | None = None
) -> FittedEfficiency:
    """Learn efficiency from measured seconds.

    Raises ToolMissing without scikit-learn, UsageError for too few rows or figures that are
    not finite.
    """
    import numpy as np

    settings = settings or FitSettings()
    rows, floors, _, _ = _validate_and_convert_sample(label, sample, settings)
    seconds, predicted_logs = (
        np.asarray(sample.seconds, dtype=float),
        predict_cross_validated_log_seconds(sample, settings),
    )
    spread, low, high, quantile = fit_error_model_and_quantile(
        rows, abs(predicted_logs - np.log(seconds)), sample.groups, settings
    )
    least, most, middle = (
        tuple(each(rows, axis=0).tolist()) for each in (np.min, np.max, np.median)
    )
    return FittedEfficiency(
        label,
        sample.features,
        least,
        most,
        middle,
        settings.power,
        float(floors.min()),
        float(floors.max()),
        fit_efficiency_regressor(sample, settings),
        spread,
        low,
        high,
        quantile,
        settings.coverage,
        len(rows),
        float(np.median(abs(np.exp(predicted_logs) / seconds - 1.0))),
    )


def predict_cross_validated_log_seconds(sample: FitSample, settings: FitSettings) -> Floats:
    """Logarithm of the seconds predicted for each row by a fit that did not see its group."""
    import numpy as np

    rows, floors, base, targets = _validate_and_convert_sample("held out", sample, settings)
    logs = np.zeros(len(rows))
    for train, test in split_groups_into_folds(sample.groups, settings.folds, settings.seed):
        logs[test] = (
            _fit_boosted_trees(rows[train], targets[train], settings, sample).predict(rows[test])
            + base[test]
        )
    return np.maximum(logs, np.log(floors))


def split_groups_into_folds(
    groups: Sequence[Any], fold_count: int, seed: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """(rows to learn from, rows held out), each held out once, whole groups together. Raises
    UsageError with a single group."""
    import numpy as np

    names = sorted({str(group) for group in groups})
    if len(names) < 2:
        raise UsageError(
            "an interval needs rows of at least two groups", "Measure more than one model or shape"
        )
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[position]: index % fold_count for index, position in enumerate(order)}
    fold_numbers = np.array([fold_of[str(group)] for group in groups])
    for fold in range(min(fold_count, len(names))):
        yield np.flatnonzero(fold_numbers != fold), np.flatnonzero(fold_numbers == fold)


def fit_efficiency_regressor(sample: FitSample, settings: FitSettings) -> Regressor:
    """Return the model of :func:`fit_efficiency`, without range and interval: exp(model) times the
    floor's power is seconds."""
    rows, _, _, targets = _validate_and_convert_sample("model", sample, settings)
    return _fit_boosted_trees(rows, targets, settings, sample)


def _validate_and_convert_sample(
    name: str, sample: FitSample, settings: FitSettings
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (rows, floors, logarithms of the floors' powers, what the model learns)."""
    import numpy as np

    raise_if_scikit_learn_missing()
    rows = np.asarray(sample.rows, dtype=float)
    floors, seconds = (np.asarray(each, dtype=float) for each in (sample.floors, sample.seconds))
    if len(rows) < FEWEST:
        raise UsageError(
            f"{name}: {len(rows)} measured rows are too few to learn from",
            f"Measure at least {FEWEST}",
        )
    if rows.shape[1] != len(sample.features) or not np.isfinite(rows).all():
        raise UsageError(
            f"{name}: rows need one finite figure for each of {len(sample.features)} features"
        )
    if not all((each > 0).all() and np.isfinite(each).all() for each in (floors, seconds)):
        raise UsageError(f"{name}: floors and measured seconds must be greater than 0")
    if unknown := [feature for feature in sample.increasing if feature not in sample.features]:
        raise UsageError(f"{name}: no feature is called {unknown[0]}")
    base = np.log(floors) * (settings.power / 8)
    return rows, floors, base, np.log(seconds) - base


def _fit_boosted_trees(
    rows: Floats, targets: Floats, settings: FitSettings, sample: FitSample
) -> Regressor:
    return _fit_single_threaded_boosting(
        rows,
        targets,
        loss="absolute_error" if settings.absolute else "squared_error",
        max_iter=settings.rounds,
        learning_rate=settings.rate,
        max_leaf_nodes=settings.leaves,
        min_samples_leaf=settings.least,
        l2_regularization=settings.ridge,
        max_features=settings.part,
        monotonic_cst=[int(name in sample.increasing) for name in sample.features],
        random_state=settings.seed,
    )


def _fit_single_threaded_boosting(rows: Floats, targets: Floats, **options: Any) -> Regressor:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import ThreadpoolController

    threads = ThreadpoolController()
    with threads.limit(limits=1):
        return OneThreadRegressor(
            HistGradientBoostingRegressor(early_stopping=False, **options).fit(rows, targets),
            threads,
        )


@dataclass(frozen=True, slots=True)
class OneThreadRegressor:
    """A model that predicts on one thread: rows are few, so threads would wait for each other
    longer than they work."""

    model: Regressor
    threads: Any

    def predict(self, X: Any, /) -> Any:
        with self.threads.limit(limits=1):
            return self.model.predict(X)


def fit_error_model_and_quantile(
    rows: Floats, abs_log_errors: Floats, groups: Sequence[Any], settings: FitSettings
) -> tuple[Regressor, float, float, float]:
    """Return a model of the usual error, its bounds, and the quantile that covers.

    ``abs_log_errors``: (n,) errors of held-out rows, in logarithms.
    """
    import numpy as np

    low = float(max(np.quantile(abs_log_errors, 0.2), 1e-4))
    high = float(max(np.quantile(abs_log_errors, 0.98), low))
    expected = np.zeros(len(abs_log_errors))
    for train, test in split_groups_into_folds(groups, settings.folds, settings.seed + 1):
        expected[test] = _fit_error_model(rows[train], abs_log_errors[train], settings).predict(
            rows[test]
        )
    scores = np.sort(abs_log_errors / np.clip(expected, low, high))
    rank = min(ceil((len(scores) + 1) * settings.coverage), len(scores)) - 1
    return _fit_error_model(rows, abs_log_errors, settings), low, high, float(scores[rank])


def _fit_error_model(rows: Floats, abs_log_errors: Floats, settings: FitSettings) -> Regressor:
    least = max(5, min(40, len(rows) // 10))
    return _fit_single_threaded_boosting(
        rows,
        abs_log_errors,
        max_iter=30,
        max_leaf_nodes=6,
        min_samples_leaf=least,
        random_state=settings.seed,
    )


def predict_seconds(
    fitted: FittedEfficiency, rows: Sequence[Sequence[float]], floor_seconds: Sequence[float]
) -> list[TimePrediction]:
    """Return the seconds of each row of features over its floor (seconds, > 0).

    Raises ValueError if a row does not have one finite figure for each feature or a floor is
    not positive.
    """
    import numpy as np

    for row, floor in zip(rows, floor_seconds, strict=True):
        if len(row) != len(fitted.features) or not all(isfinite(figure) for figure in row):
            raise ValueError(
                f"{fitted.name}: needs {len(fitted.features)} finite figures, got {list(row)}"
            )
        if not (floor > 0 and isfinite(floor)):
            raise ValueError(f"{fitted.name}: floor must be positive, got {floor:g} s")
    figures = np.asarray(rows, dtype=float)
    logarithms, spreads = (
        model.predict(figures).tolist() for model in (fitted.model, fitted.spread)
    )
    return [
        _build_time_prediction(fitted, *each)
        for each in zip(rows, floor_seconds, logarithms, spreads, strict=True)
    ]


def _build_time_prediction(
    fitted: FittedEfficiency,
    row: Sequence[float],
    floor: float,
    predicted_log: float,
    spread: float,
) -> TimePrediction:
    inside = min(max(floor, fitted.floor_low), fitted.floor_high)
    learned = inside ** (fitted.power / 8) * exp(predicted_log)
    seconds = max(learned * (floor / inside if floor > fitted.floor_high else 1.0), floor)
    excesses = compute_fit_range_excess(fitted, row, floor)
    spread = min(max(spread, fitted.spread_low), fitted.spread_high)
    factor = exp(
        fitted.quantile * spread * (1.0 + min(max(excesses.values(), default=0.0), WIDEST))
    )
    return TimePrediction(
        seconds, max(seconds / factor, floor), seconds * factor, floor, tuple(excesses)
    )


def compute_fit_range_excess(
    fitted: FittedEfficiency, row: Sequence[float], floor: float
) -> dict[str, float]:
    """Return feature (or "floor") outside the range of the fit -> its excess: 1 for twice the
    largest or half the smallest."""
    beyond = {}
    ranges = zip(
        (*fitted.features, "floor"),
        (*row, floor),
        (*fitted.low, fitted.floor_low),
        (*fitted.high, fitted.floor_high),
        strict=True,
    )
    for name, figure, low, high in ranges:
        if not low <= figure <= high:
            larger, less = (figure, high) if figure > high else (low, figure)
            beyond[name] = larger / less - 1.0 if less > 0 else WIDEST
    return beyond


def compute_feature_time_factors(
    fitted: FittedEfficiency, row: Sequence[float]
) -> dict[str, float]:
    """Return (feature, factor on seconds against the feature's median in the fit), the
    strongest first."""
    import numpy as np

    features = len(row)
    figures = np.tile(np.asarray(row, dtype=float), (features + 1, 1))
    figures[range(features), range(features)] = fitted.middle
    *without_feature, complete = fitted.model.predict(figures).tolist()
    moved = sorted(
        zip(fitted.features, (complete - other for other in without_feature), strict=True),
        key=lambda pair: -abs(pair[1]),
    )
    return {name: exp(change) for name, change in moved}
