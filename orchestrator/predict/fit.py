"""Seconds of a whole step from a fitted step model, and how the model is learned from measured
steps: costs of the parts, efficiency over the rest, then the interval.

base    = sum(costs[i] * parts[i]) in the order of PARTS
    seconds = efficiency.predict_seconds(fit.fitted, [features], [base * HEADROOM])[0].seconds

Seconds never fall with batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.errors import UsageError
from perfctl.orchestrator.predict import efficiency, step_parts
from perfctl.orchestrator.predict.efficiency import (
    FEWEST,
    FitSample,
    FitSettings,
    FittedEfficiency,
    TimePrediction,
    fit_efficiency,
    predict_cross_validated_log_seconds,
    raise_if_scikit_learn_missing,
    split_groups_into_folds,
)
from perfctl.orchestrator.predict.operations import StepMeasurement, StepSpec
from perfctl.orchestrator.predict.step_parts import (
    PARTS,
    PHASES,
    add_left_to_right,
    compute_step_features,
    sum_step_part_seconds,
)
from perfctl.records.report import Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


HEADROOM = 0.25
"""The correction may not go below this share of the sum of parts."""
SETTINGS = FitSettings(
    power=8, rounds=200, leaves=15, rate=0.05, least=6, ridge=2.0, part=0.5, absolute=True
)
"""For few rows whose parts explain most of the time: small trees, a low rate, absolute errors
because of outliers."""
FEW = 400
"""Records below which trees are kept smaller still."""
SMALL = replace(SETTINGS, rounds=80, leaves=6)
LAYERS = 0.5
"""Weight of layers' times, against 1 for a step's: clocks around layers take time."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """A fit to steps measured on one machine."""

    name: str
    """The measured steps, in words."""
    machine: Machine
    precision: str
    training: bool
    costs: tuple[float, ...]
    """Of each part, >= 0: seconds per second at the machine's peaks, the reciprocal of
    an efficiency."""
    phases: Mapping[str, tuple[float, ...]]
    """Phase -> costs of the parts. Empty: phases were not measured."""
    fitted: FittedEfficiency
    """Efficiency over the sum of parts and its interval; its floor is the sum times
    :data:`HEADROOM`."""
    families: tuple[str, ...]
    optimizers: tuple[str, ...]


def predict_step_times(fit: StepFit, cases: Iterable[StepSpec]) -> list[TimePrediction]:
    """Return the times of steps on the fit's machine. Raises ValueError without a peak for
    the precision."""
    rows, floors = zip(*(_compute_features_and_floor(fit, case) for case in cases), strict=True)
    return efficiency.predict_seconds(fit.fitted, rows, floors)


def predict_one_step(fit: StepFit, case: StepSpec) -> TimePrediction:
    """Return the step's time on the fit's machine. Raises ValueError without a peak for
    the precision."""
    return predict_step_times(fit, [case])[0]


def list_features_outside_fit_range(fit: StepFit, case: StepSpec) -> tuple[str, ...]:
    """Return the features of a step (or "floor") outside the range of the fit."""
    return tuple(
        efficiency.compute_fit_range_excess(fit.fitted, *_compute_features_and_floor(fit, case))
    )


def _compute_features_and_floor(fit: StepFit, case: StepSpec) -> tuple[Sequence[float], float]:
    """Return (features, floor)."""
    part_seconds = sum_step_part_seconds(case, fit.machine)
    return compute_step_features(case, part_seconds), sum_weighted_parts(
        fit.costs, part_seconds
    ) * HEADROOM


def sum_weighted_parts(costs: tuple[float, ...], part_seconds: tuple[float, ...]) -> float:
    return add_left_to_right(
        cost * seconds for cost, seconds in zip(costs, part_seconds, strict=True)
    )


def split_seconds_into_phases(fit: StepFit, case: StepSpec, seconds: float) -> dict[str, float]:
    """Seconds of forward, backward and optimizer, which add up to ``seconds``; empty when the fit
    had no phases."""
    part_seconds = sum_step_part_seconds(case, fit.machine)
    each = {name: sum_weighted_parts(costs, part_seconds) for name, costs in fit.phases.items()}
    total = add_left_to_right(each.values())
    return {name: seconds * (value / total) for name, value in each.items()} if total > 0 else {}


def compute_step_feature_factors(fit: StepFit, case: StepSpec) -> dict[str, float]:
    return efficiency.compute_feature_time_factors(
        fit.fitted, compute_step_features(case, sum_step_part_seconds(case, fit.machine))
    )


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured steps as arrays."""

    parts: Floats
    """(n, parts) seconds at the machine's peaks."""
    rows: Floats
    seconds: Floats
    groups: tuple[str, ...]
    """(n,) rows of a group are held out together."""
    layer_of: Any
    """(m,) record of each row of layers: all timed layers of one kind in one direction."""
    layer_parts: Floats
    layer_clock: Floats
    """(m,) microseconds, one for each layer that had a clock around it."""
    layer_seconds: Floats
    layer_weights: Floats


def build_fit_arrays(
    records: Sequence[StepMeasurement], machine: Machine, groups: Sequence[str] | None = None
) -> StepTable:
    """Parts and features of each record. ``groups``: of each record, by default its model."""
    import numpy as np

    parts_of_records = [
        step_parts.sum_step_part_seconds(record.case, machine) for record in records
    ]
    rows = [
        step_parts.compute_step_features(record.case, record_parts)
        for record, record_parts in zip(records, parts_of_records, strict=True)
    ]
    group_names = (
        tuple(groups) if groups is not None else tuple(record.case.model for record in records)
    )
    timed = [
        (row_index, *row)
        for row_index, record in enumerate(records)
        for row in build_layer_fit_rows(record, machine)
    ]
    places, layers, *layer_columns = zip(*timed, strict=True) if timed else ((), (), (), (), ())
    return StepTable(
        np.array(parts_of_records),
        np.array(rows),
        np.array([record.seconds for record in records]),
        group_names,
        np.array(places, dtype=int),
        np.array(layers).reshape(-1, len(PARTS)),
        *map(np.array, layer_columns),
    )


def build_layer_fit_rows(
    record: StepMeasurement, machine: Machine
) -> list[tuple[list[float], float, float, float]]:
    """Return (parts, clocks, seconds, weight) of all timed layers of one kind in one direction, of
    one record.

    The weight is that of the layers' part of the step, and :data:`LAYERS` at most.
    """
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for work in record.case.works:
        layer_parts = step_parts.list_operation_part_seconds(work, record.case, machine)
        for phase in ("forward", "backward"):
            seconds = record.layer_seconds.get((work.layer, phase))
            if seconds is not None and work.layer:
                row = sums[step_parts.classify_operation(work), phase]
                row["clocks"] += step_parts.MICROSECOND
                row["seconds"] += seconds
                for name, part in layer_parts:
                    row[name] += part if name.endswith(phase) else 0.0
    total_seconds = sum(row["seconds"] for row in sums.values())
    rows = build_phase_fit_rows(record, machine)
    for row in (row for row in sums.values() if row["seconds"] > 0):
        weight = LAYERS * (row["seconds"] / total_seconds) ** 0.5
        rows.append(([row[name] for name in PARTS], row["clocks"], row["seconds"], weight))
    return rows


def build_phase_fit_rows(
    record: StepMeasurement, machine: Machine
) -> list[tuple[list[float], float, float, float]]:
    """The same of each phase that was measured; what belongs to a step as a whole is in none
    of them."""
    seconds_by_part = dict(
        zip(PARTS, step_parts.sum_step_part_seconds(record.case, machine), strict=True)
    ) | {"step forward": 0.0}
    phases = {phase: getattr(record, phase) for phase in PHASES if record.case.training}
    return [
        (
            [part if name.endswith(phase) else 0.0 for name, part in seconds_by_part.items()],
            0.0,
            seconds,
            LAYERS * (min(seconds / record.seconds, 1.0)) ** 0.5,
        )
        for phase, seconds in phases.items()
        if seconds
    ]


def fit_step_time_model(
    label: str,
    records: Sequence[StepMeasurement],
    machine: Machine,
    settings: FitSettings | None = None,
) -> StepFit:
    """Learn from steps of one machine, precision and direction; those of a model are held
    out together.

    Raises UsageError for too few steps or steps of several kinds; ToolMissing without scikit-learn.
    """
    raise_if_scikit_learn_missing()
    if len(records) < FEWEST:
        problem = f"{label}: {len(records)} measured steps are too few to learn from"
        raise UsageError(problem, f"Measure at least {FEWEST}, of several models: perfctl bench")
    cases = [record.case for record in records]
    for noun, values in (
        ("machines", {record.machine for record in records}),
        ("precisions", {case.precision for case in cases}),
        ("modes (training, inference)", {str(case.training) for case in cases}),
    ):
        if len(values) > 1:
            raise UsageError(
                f"{label}: steps of several {noun}: {', '.join(sorted(values))}",
                "Fit each separately",
            )
    rows = build_fit_arrays(records, machine)
    costs, fitted = fit_part_costs_and_efficiency(label, rows, settings)
    return StepFit(
        label,
        machine,
        cases[0].precision,
        cases[0].training,
        costs,
        _fit_phase_costs(records, rows),
        fitted,
        tuple(sorted({case.family for case in cases})),
        tuple(sorted({case.optimizer for case in cases})),
    )


def fit_part_costs_and_efficiency(
    name: str, rows: StepTable, settings: FitSettings | None = None
) -> tuple[tuple[float, ...], FittedEfficiency]:
    """Costs of the parts, and a model that learns from sums whose costs did not see the
    row's group."""
    settings = settings or _choose_fit_settings(rows)
    return _round_costs(fit_part_costs(rows)), fit_efficiency(
        name, _build_fit_sample(rows, settings), settings
    )


@dataclass(frozen=True, slots=True)
class LeftOutErrors:
    """The errors of a fit: each network's steps as predicted by a fit that saw no step of
    this network."""

    fit: StepFit
    rows: tuple[tuple[StepMeasurement, float], ...]
    """(what was measured, predicted seconds)."""


def cross_validate_by_network(fit: StepFit, records: Sequence[StepMeasurement]) -> LeftOutErrors:
    """Leave each network out once. records: those that ``fit`` was learned from. Raises as
    :func:`fit_step_time_model`."""
    import numpy as np

    rows = build_fit_arrays(records, fit.machine)
    one_group_folds = replace(_choose_fit_settings(rows), folds=len(set(rows.groups)))
    seconds = np.exp(
        predict_cross_validated_log_seconds(
            _build_fit_sample(rows, one_group_folds), one_group_folds
        )
    ).tolist()
    return LeftOutErrors(fit, tuple(zip(records, seconds, strict=True)))


def _choose_fit_settings(rows: StepTable) -> FitSettings:
    return SMALL if len(rows.seconds) < FEW else SETTINGS


def _build_fit_sample(rows: StepTable, settings: FitSettings) -> FitSample:
    """Return what the model learns from: floors are sums whose costs did not see the row's
    group."""
    import numpy as np

    base = np.zeros(len(rows.seconds))
    for train, test in split_groups_into_folds(rows.groups, settings.folds, settings.seed + 1):
        base[test] = rows.parts[test] @ fit_part_costs(rows, train)
    floors = np.maximum(base, 1e-9) * HEADROOM
    names, grows = step_parts.FEATURES, step_parts.INCREASING
    return FitSample(names, rows.rows, floors, rows.seconds, rows.groups, grows)  # type: ignore[arg-type]


def fit_part_costs(rows: StepTable, row_indices: Any = None, ridge: float = 0.01) -> Floats:
    """Costs >= 0 of the parts, with the least squared relative errors (active sets: Lawson and
    Hanson, 1974).

    ``row_indices``: places of the records to learn from, all by default. ``ridge``: weight of a
    cost twice as large as its class's, in steps that are predicted as 0. The less the data tells
    parts apart, the closer their costs are to their class's (arithmetic, bytes, operations).
    Outliers get less weight (Huber, at twice the median error).
    """
    import numpy as np

    places = np.arange(len(rows.seconds)) if row_indices is None else np.asarray(row_indices)
    inside = np.isin(rows.layer_of, places)
    layers = np.column_stack([rows.layer_parts[inside], rows.layer_clock[inside]])
    shares = rows.parts[places] / rows.seconds[places, None]
    prior, scale = _estimate_prior_costs_and_deviations(shares)
    columns = np.vstack(
        [
            np.column_stack([shares, np.zeros(len(places))]),
            layers / rows.layer_seconds[inside, None],
        ]
    )
    fixed = np.concatenate([np.ones(len(places)), rows.layer_weights[inside]])
    pull = np.append(np.sqrt(ridge) / scale, 1e-3)
    return _solve_robust_nnls(
        columns, fixed, np.diag(pull), pull * np.append(prior, 0.0), len(places)
    )[:-1]


def _solve_robust_nnls(
    columns: Floats,
    base_weights: Floats,
    regularization: Floats,
    targets: Floats,
    step_row_count: int,
) -> Floats:
    """Non-negative least squares of ``columns @ x = 1`` and ``pull @ x = targets``; the first
    ``step_row_count`` rows are steps."""
    import numpy as np
    from scipy.optimize import nnls

    weights, solution = base_weights, np.zeros(columns.shape[1])
    for _ in range(4):
        system = np.vstack([columns * weights[:, None], regularization])
        solution, _ = nnls(
            system, np.concatenate([weights, targets]), maxiter=100 * columns.shape[1]
        )
        missed = abs(columns @ solution - 1.0)
        weights = base_weights.copy()
        for rows in (slice(0, step_row_count), slice(step_row_count, None)):
            if len(missed[rows]):
                edge = max(2.0 * float(np.median(missed[rows])), 1e-6)
                weights[rows] *= np.sqrt(np.minimum(1.0, edge / np.maximum(missed[rows], 1e-12)))
    return solution


def _estimate_prior_costs_and_deviations(shares: Floats) -> tuple[Floats, Floats]:
    """Return (cost, size of a usual deviation) of each part, from one cost for each class of parts.
    shares: (n, parts)."""
    import numpy as np

    extra = [name.split(" ")[0] in step_parts.EXTRA for name in PARTS]  # their expected cost is 0
    classes = [step_parts.CLASS_OF[name] for name in PARTS]
    counted = ["" if beside else name for name, beside in zip(classes, extra, strict=True)]
    names = [name for name in dict.fromkeys(counted) if name]
    sums = np.column_stack(
        [shares[:, [each == name for each in counted]].sum(axis=1) for name in names]
    )
    pull = np.diag(
        np.where(sums.mean(axis=0) > 0, 1e-3 * np.maximum(sums.mean(axis=0), 1e-12), 1.0)
    )
    solution = _solve_robust_nnls(sums, np.ones(len(sums)), pull, np.zeros(len(names)), len(sums))
    # A class whose cost came out as 0 counts as a hundredth of the steps.
    least = 0.01 / np.maximum(sums.mean(axis=0), 1e-9)
    by_class = dict(
        zip(names, np.maximum(solution, np.where(sums.mean(axis=0) > 0, least, 1.0)), strict=True)
    )
    scale = np.array([by_class[each] for each in classes])
    return np.where(extra, 0.0, scale), scale


def _fit_phase_costs(
    records: Sequence[StepMeasurement], rows: StepTable
) -> dict[str, tuple[float, ...]]:
    import numpy as np

    costs_by_phase: dict[str, tuple[float, ...]] = {}
    for phase in PHASES if records[0].case.training else PHASES[:1]:
        seconds: list[Any] = [getattr(record, phase) for record in records]
        if any(value is None or value <= 0 for value in seconds):
            return {}
        is_of_phase = np.array([name.endswith(phase) for name in PARTS])
        layers = rows.layer_parts * is_of_phase
        phase_rows_only = replace(
            rows,
            parts=rows.parts * is_of_phase,
            seconds=np.array(seconds),
            layer_parts=layers,
            layer_of=np.where((layers > 0).any(axis=1), rows.layer_of, -1),
        )
        costs_by_phase[phase] = _round_costs(fit_part_costs(phase_rows_only) * is_of_phase)
    return costs_by_phase


def _round_costs(costs: Floats) -> tuple[float, ...]:
    """Ten digits are more than is known, and keep pages small."""
    return tuple(float(f"{cost:.10g}") for cost in costs)


def list_step_ns_without_data_loading(steps: Iterable[Step]) -> list[int]:
    """Nanoseconds of each timed step, in order, without the phases that bring its samples."""
    waited: Counter[int] = Counter()
    durations = []
    for step in steps:
        if step.phase in ("data", "copy") and step.duration_ns is not None:
            waited[step.number] += step.duration_ns
        elif step.phase == "step" and step.duration_ns:
            durations.append((step.duration_ns, step.number))
    return [length - waited[number] for length, number in durations]
