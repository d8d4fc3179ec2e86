"""Energy of a GPU over the measured steps: from the driver's counter of joules, else from power by
the trapezoid rule.

Readings of power are means over 25 to 100 ms, by the GPU (Yang, Adamek and Armour, "Part-time Power
Measurements", SC 2024), so a single short step is never measured: the energy of all steps is
divided by their number, and there is no figure where they are shorter than a few readings. The
sensor's own accuracy (5% by NVIDIA's documentation of nvidia-smi) comes on top of the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import ClassVar, TypeVar

from perfctl.orchestrator.ledger.usage.readings import (
    find_measured_steps_window_ns,
    format_ns_as_s_or_ms,
    group_gpu_samples_by_working_device,
    list_ns_and_value_of_field,
    sum_if_all_known,
)
from perfctl.records.report import Sample
from perfctl.records.run import Run

AVERAGING_MAX_NS = 100_000_000
"""Time that a GPU's reading of power is the mean of, at most."""
SPAN_PERIODS_MIN = 4
"""A span must be as long as this many sampling periods, or this many times AVERAGING_MAX_NS if that
is longer."""
COUNTER, POWER = "energy counter", "power readings"
Points = Sequence[tuple[int, float]]
"""(ns, value) by time, each time once."""
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Energy:
    """One GPU of a run. Joules; None where ``reason`` says why."""

    JSON_KEYS = (
        "device",
        "joules",
        "span_ns",
        "watts",
        "source",
        "error",
        "period_ns",
        "readings",
        "steps",
        "per_step",
        "per_sample",
        "per_token",
        "delay_product",
        "reason",
        "step_reason",
        "token_reason",
    )
    JSON_NAMES: ClassVar = {
        "device": "device_index",
        "readings": "samples",
        "watts": "mean_watts",
        "error": "sampling_error",
        "per_step": "joules_per_step",
        "per_sample": "joules_per_sample",
        "per_token": "joules_per_token",  # nosec B105  the name of a figure
        "delay_product": "energy_delay_js",
    }

    run: Run
    device: int | None
    joules: float | None
    """Over the span."""
    span_ns: int | None
    span: str
    """The span in words."""
    source: str | None
    """COUNTER or POWER."""
    error: float | None
    """0..1: by how much the joules of the span may be off because power was read, and averaged, now
    and then; without the sensor's own accuracy."""
    period_ns: int | None
    """Median time between readings."""
    readings: int
    steps: int | None
    tokens: int | None
    """Of all steps together, where a server's steps say so."""
    reason: str | None
    """Why there are no joules."""
    step_reason: str | None
    """Why there are none for a step."""
    token_reason: str | None = None

    @property
    def watts(self) -> float | None:
        """Mean over the span."""
        return None if self.joules is None or not self.span_ns else self.joules / self.span_ns * 1e9

    @property
    def per_step(self) -> float | None:
        """Mean of all steps, the time between them included."""
        if self.joules is None or not self.steps or self.step_reason:
            return None
        return self.joules / self.steps

    @property
    def per_sample(self) -> float | None:
        samples = self.run.samples_per_step
        return None if self.per_step is None or not samples else self.per_step / samples

    @property
    def per_token(self) -> float | None:
        if self.per_step is None or not self.tokens or self.joules is None:
            return None
        return self.joules / self.tokens

    @property
    def delay_product(self) -> float | None:
        """Energy-delay product of a step in joule-seconds: its joules times its mean time, the time
        between steps included."""
        if self.per_step is None or self.span_ns is None or not self.steps:
            return None
        return self.per_step * self.span_ns / self.steps / 1e9

    def split_step_joules_by_layer_time(
        self, step_ns_by_layer: Mapping[K, float]
    ) -> dict[K, float]:
        """Joules of a step by layer: its share of the step's time (``step_ns_by_layer``: ns a
        step). Shared, not measured: a layer that draws more power than another in the same time
        gets as much. Empty without joules of a step."""
        if self.per_step is None or not self.span_ns or not self.steps:
            return {}
        return {
            key: self.per_step * took * self.steps / self.span_ns
            for key, took in step_ns_by_layer.items()
        }


def compute_energy_per_gpu(run: Run) -> tuple[Energy, ...]:
    """Return the energy of the GPUs whose power was read; of perfctl's own runs, only that of the
    GPU that did the work."""
    return tuple(
        _compute_gpu_energy(run, device, samples)
        for device, samples in group_gpu_samples_by_working_device(run).items()
        if any(sample.power_w is not None or sample.energy_j is not None for sample in samples)
    )


def explain_missing_energy(run: Run) -> str:
    """Return why a run has no energy at all: what its report says about readings of power."""
    gaps = {gap.quantity: gap.reason for gap in run.report.gaps}
    for quantity in ("sample.power_w", "sample.energy_j", "sample.gpu_utilisation"):
        if quantity in gaps:
            return gaps[quantity]
    if run.device is not None and run.device.kind == "cpu":
        return "the run used a CPU, so there is no GPU power"
    return "the run has no power samples"


def _compute_gpu_energy(run: Run, device: int | None, samples: Sequence[Sample]) -> Energy:
    counter = list_ns_and_value_of_field(samples, "energy_j")
    power = list_ns_and_value_of_field(samples, "power_w")
    # a counter that went backwards was reset, by a reload of the driver
    is_counted = (
        len(counter) > 1
        and counter[0][1] < counter[-1][1]
        and all(before[1] <= after[1] for before, after in pairwise(counter))
    )
    points = counter if is_counted else power
    span = window = find_measured_steps_window_ns(run)
    steps = {step.number for step in run.report.steps if step.phase == "step"} if window else None
    period = None
    if len(points) > 1:
        span = window or (points[0][0], points[-1][0])
        period = round(median(after - before for (before, _), (after, _) in pairwise(points)))
    reason = _explain_unusable_readings(run, points, span, period)
    joules = error = None
    if reason is None and span is not None and period is not None:
        joules = (
            interpolate_reading(counter, span[1]) - interpolate_reading(counter, span[0])
            if is_counted
            else integrate_power_to_joules(power, span)
        )
        error = _estimate_relative_energy_error(
            points, span, period, joules, from_energy_counter=is_counted
        )
    # a step that is shown in part only has no tokens that its energy belongs to
    served = [None if step.may_be_partial else step.tokens for step in run.report.served_steps]
    tokens = sum_if_all_known(served) if served else None
    return Energy(
        run=run,
        device=device,
        joules=joules,
        span_ns=None if span is None else span[1] - span[0],
        span="from the first measured step to the end of the last"
        if window
        else "from the first sample to the last",
        source=COUNTER if is_counted else POWER,
        error=error,
        period_ns=period,
        readings=len(points),
        steps=None if steps is None else len(steps),
        tokens=tokens,
        reason=reason,
        step_reason=reason or (None if steps else "the run has no step marks"),
        token_reason=None if tokens else "the steps do not state their number of tokens",
    )


def _explain_unusable_readings(
    run: Run, points: Points, span: tuple[int, int] | None, period: int | None
) -> str | None:
    """Return why the readings do not give the energy of the span; None if they do."""
    clock = next((gap.reason for gap in run.report.gaps if gap.quantity == "sample.at_ns"), "")
    if "not a time" in clock:
        return f"perfctl cannot integrate samples without timestamps: {clock}"
    if span is None or period is None:
        return "the run has fewer than two power samples"
    if not any(value for _, value in points):
        return "every power sample is 0 W, which is impossible for a GPU in use"
    if points[0][0] > span[0] + period or points[-1][0] < span[1] - period:
        return "the samples do not cover the measured steps"
    unit = max(period, AVERAGING_MAX_NS)
    if span[1] - span[0] < SPAN_PERIODS_MIN * unit:
        is_measured = find_measured_steps_window_ns(run) is not None
        subject = "the steps take" if is_measured else "the samples span"
        return (
            f"{subject} {format_ns_as_s_or_ms(span[1] - span[0])} in total, less than "
            f"{SPAN_PERIODS_MIN} "
            f"times {format_ns_as_s_or_ms(unit)}: the power samples are "
            f"{format_ns_as_s_or_ms(period)} apart, "
            f"and each is the mean of up to {format_ns_as_s_or_ms(AVERAGING_MAX_NS)}. "
            f"{'Run more steps' if is_measured else 'Sample longer'}"
        )
    inside = [moment for moment, _ in points if span[0] - period <= moment <= span[1] + period]
    pause = max(after - before for before, after in pairwise(inside))
    if pause > SPAN_PERIODS_MIN * unit:
        return f"there is no power sample for {format_ns_as_s_or_ms(pause)} of the span"
    return None


def interpolate_reading(points: Points, moment: float) -> float:
    """Return the value at a moment, on the line between the readings around it; outside of them
    the nearest reading's."""
    if moment <= points[0][0]:
        return points[0][1]
    for (before, low), (after, high) in pairwise(points):
        if moment <= after:
            return low + (high - low) * (moment - before) / (after - before)
    return points[-1][1]


def integrate_power_to_joules(power: Points, span: tuple[int, int]) -> float:
    """Return the joules between two moments (ns): watts by the trapezoid rule, on straight lines
    between the readings."""
    inside = [(moment, watts) for moment, watts in power if span[0] < moment < span[1]]
    line = [
        (span[0], interpolate_reading(power, span[0])),
        *inside,
        (span[1], interpolate_reading(power, span[1])),
    ]
    areas = ((low + high) / 2 * (after - before) for (before, low), (after, high) in pairwise(line))
    return sum(areas) / 1e9


def _estimate_relative_energy_error(
    points: Points,
    span: tuple[int, int],
    period_ns: int,
    joules: float,
    *,
    from_energy_counter: bool,
) -> float | None:
    """Return by how much of the joules they may be off: at each end of the span, power is known
    only as a mean over the time between readings and the GPU's own averaging, and may be off by as
    much as it varied. Of a counter, which misses no time in between, by the power of one period.
    """
    if joules <= 0:
        return None
    length = span[1] - span[0]
    # times that were cut to whole seconds: each end may be off by one
    is_cut = not any(moment % 1_000_000_000 for moment, _ in points)
    cut = 1e9 / length if is_cut else 0.0
    if from_energy_counter:
        mean = joules / length
        return min(2 * mean * period_ns / joules + cut, 1.0)
    watts = [
        value for moment, value in points if span[0] - period_ns <= moment <= span[1] + period_ns
    ]
    varied = max(watts) - min(watts)
    return min(2 * (period_ns + AVERAGING_MAX_NS) / 1e9 * varied / joules + cut, 1.0)
