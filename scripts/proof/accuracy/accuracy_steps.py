"""The comparison of predicted steps with held-out measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from accuracy_lines import percent

from perfctl.orchestrator.predict import efficiency
from perfctl.orchestrator.predict.fit import HEADROOM, StepTable, fit_part_costs_and_efficiency

Folds = Sequence[tuple[Any, Any]]
"""(places to learn from, places held out)."""


@dataclass
class Found:
    """Predictions for records that the fit did not see."""

    seconds: Any
    low: Any
    high: Any
    inside: Any
    """Within the range of all features of what was learned from."""

    def errors(self, measured: Any) -> Any:
        """Absolute, relative to what was measured."""
        return abs(self.seconds / measured - 1)

    def coverage(self, measured: Any) -> float:
        return float(np.mean((self.low <= measured) & (measured <= self.high)))


def only(given: StepTable, places: Any) -> StepTable:
    """The records at these places, and their layers."""
    order = {int(place): index for index, place in enumerate(places)}
    mine = np.isin(given.layer_of, places)
    return StepTable(
        given.parts[places],
        given.rows[places],
        given.seconds[places],
        tuple(given.groups[place] for place in places),
        np.array([order[int(place)] for place in given.layer_of[mine]], dtype=int),
        given.layer_parts[mine],
        given.layer_clock[mine],
        given.layer_seconds[mine],
        given.layer_weights[mine],
    )


def held_out(given: StepTable, folds: Folds) -> Found:
    """Each record predicted by a fit of the records of the other folds: costs, efficiency
    and interval."""
    count = len(given.seconds)
    found = Found(*(np.zeros(count) for _ in range(3)), np.ones(count, dtype=bool))
    for train, test in folds:
        costs, fitted = fit_part_costs_and_efficiency("held out", only(given, train))
        floors = np.maximum(given.parts[test] @ np.array(costs), 1e-9) * HEADROOM
        for place, one in zip(
            test, efficiency.predict_seconds(fitted, given.rows[test], floors), strict=True
        ):
            found.seconds[place], found.low[place], found.high[place] = (
                one.seconds,
                one.low,
                one.high,
            )
            found.inside[place] = not one.outside
    return found


def by_line(figures: Any, seconds: Any, folds: Folds) -> Any:
    """Errors of seconds = a * figure^b, least squares in logarithms, on the same split."""
    missed = np.zeros(len(seconds))
    for train, test in folds:
        slope, start = np.polyfit(np.log(figures[train]), np.log(seconds[train]), 1)
        missed[test] = abs(np.exp(start + slope * np.log(figures[test])) / seconds[test] - 1)
    return missed


def by_factor(figures: Any, seconds: Any, folds: Folds) -> Any:
    """Errors of seconds = a * figure, a the median ratio, on the same split."""
    missed = np.zeros(len(seconds))
    for train, test in folds:
        missed[test] = abs(
            figures[test] * np.median(seconds[train] / figures[train]) / seconds[test] - 1
        )
    return missed


def by_boosting(figures: Any, seconds: Any, folds: Folds, samples: Any) -> Any:
    """Errors of plain gradient boosting on the figures' logarithms, for the time of one sample."""
    from sklearn.ensemble import GradientBoostingRegressor

    missed = np.zeros(len(seconds))
    rows, wanted = np.log(figures), np.log(seconds / samples)
    for train, test in folds:
        model = GradientBoostingRegressor(
            n_estimators=300, max_depth=3, learning_rate=0.05, random_state=11
        )
        missed[test] = abs(
            np.exp(model.fit(rows[train], wanted[train]).predict(rows[test]) - wanted[test]) - 1
        )
    return missed


def leaving_out(names: Sequence[str]) -> Folds:
    """A fold for each name."""
    each = np.array(names)
    return [
        (np.flatnonzero(each != name), np.flatnonzero(each == name)) for name in sorted(set(names))
    ]


def spelled(errors: Any) -> str:
    """Median and 90th percentile."""
    return f"{percent(float(np.median(errors)))}, p90 {percent(float(np.quantile(errors, 0.9)))}"


def beside(parts: Iterable[tuple[str, Any]]) -> str:
    """Baselines on the same split: median errors."""
    return "; ".join(f"{name} {percent(float(np.median(errors)))}" for name, errors in parts)
