"""How long a step takes, by the best of four sources: a step measured on this device, a fit to own
runs on it, the fit to published steps that ships with perfctl, or the roofline alone.

:func:`choose_best_time_source` asks the :data:`SOURCES` in this order; the first that knows the
step answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, Protocol, Self

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict import published as shipped
from perfctl.orchestrator.predict import step_parts
from perfctl.orchestrator.predict.fit import (
    StepFit,
    compute_step_feature_factors,
    predict_one_step,
    split_seconds_into_phases,
)
from perfctl.orchestrator.predict.operations import HEAVY, StepMeasurement, StepSpec
from perfctl.orchestrator.predict.published import FitOnMachine, ShippedFit
from perfctl.orchestrator.predict.step_parts import LIMIT_OF, PARTS, PHASE_OF, PHASES

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
ROOFLINE = {"fp32": (1.1, 1.5, 2.2), "other": (1.5, 2.2, 3.7)}
"""Measured time over the roofline's: low, middle, high; see docs of ``perfctl predict``.

fp32: 80 whole networks on NVIDIA GPUs published with NeuSight (Lee et al., ASPLOS 2025), 5th
percentile, median and 95th.
other: training with automatic mixed precision, 800 networks of timm on an RTX 3090.
"""
HOST = 10e-6
"""Seconds to start one operation, if the machine does not state them."""


@dataclass(frozen=True, slots=True)
class LayerShare:
    """One layer's part of the step's time."""

    layer: str
    """Dotted module path; "" if unknown (the loss, operations between modules)."""
    kind: str
    seconds: float
    share: float
    """Share of the step's time."""
    limit: str
    """The largest part of it: arithmetic, bytes, or operations (starting them)."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long one step takes."""

    JSON_KEYS = (
        "way",
        "source",
        "operations",
        "host",
        "gpu",
        "host_limits",
        "coverage",
        "outside",
        "floor",
        "phases",
        "shares",
        "nearest",
        "why_not",
        "drivers",
    )
    JSON_NAMES: ClassVar = {
        "way": "basis",
        "host": "host_s",
        "gpu": "gpu_s",
        "outside": "extrapolations",
        "why_not": "unused_sources",
        "floor": "roofline_s",
        "phases": "phases_s",
        "shares": "layers",
    }

    case: StepSpec
    machine: Machine
    seconds: float
    low: float
    high: float
    way: str
    """Name of the source, the best possible: one of :data:`WAYS`."""
    source: str
    """In words: which measured steps, fit or peaks."""
    floor: float
    """Seconds at the machine's peaks: the roofline's."""
    coverage: float | None = None
    """Share of held-out steps between low and high. None: low to high is a spread of measured
    steps, or from literature."""
    why_not: tuple[str, ...] = ()
    """Why each better source was not possible."""
    outside: tuple[str, ...] = ()
    """What the fit has not seen, in words."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of forward, backward, optimizer; they add up to ``seconds``. Empty: not known."""
    shares: tuple[LayerShare, ...] = ()
    """By layer, the longest first; the optimizer and the step's own overhead have their
    own rows."""
    drivers: Mapping[str, float] = field(default_factory=dict)
    """Feature -> factor on the time, the strongest first; empty without a fit."""
    nearest: str | None = None
    """The published step that is most like this one, in words; null if the prediction does not rest
    on published ones."""
    host: float | None = None
    """Seconds in which the host starts all operations. None where they are not apart from the
    GPU's: measured, fitted."""
    gpu: float | None = None
    """Seconds of the GPU, if it never waited for the host. None as ``host``."""

    @property
    def samples_per_second(self) -> float:
        return self.case.batch / self.seconds

    @property
    def operations(self) -> int:
        """Forward operations."""
        return sum(work.calls for work in self.case.works)

    @property
    def host_limits(self) -> bool | None:
        """Whether the GPU waits for the host. None: not known."""
        return None if self.host is None or self.gpu is None else self.host > self.gpu


def get_cost_by_part(fit: StepFit | FitOnMachine | None) -> dict[str, float]:
    """Return the cost of each part: by the fit, otherwise 1 for arithmetic and bytes and 0 for
    everything that adds to them."""
    if fit is None:
        return {name: 0.0 if name.startswith(step_parts.BESIDE) else 1.0 for name in PARTS}
    # Each part belongs to one phase; the others' costs of it are 0.
    costs = (
        [sum(each) for each in zip(*fit.phases.values(), strict=True)] if fit.phases else fit.costs
    )
    return dict(zip(PARTS, costs, strict=True))


def split_time_by_layer(
    fit: StepFit | FitOnMachine | None,
    case: StepSpec,
    machine: Machine,
    seconds: float,
    phases: Mapping[str, float] | None = None,
) -> tuple[LayerShare, ...]:
    """Return the layers' shares by :func:`get_cost_by_part`, scaled to ``seconds``.

    ``phases``: measured seconds of each phase; None: predicted.
    """
    amounts = list(step_parts.iterate_weighted_part_seconds(case, machine, get_cost_by_part(fit)))
    by_phase: dict[str, float] = defaultdict(float)
    for row in amounts:
        by_phase[PHASE_OF[row.part]] += row.amount
    total = sum(by_phase.values())
    if total <= 0:
        return ()
    factors = dict.fromkeys(by_phase, seconds / total)
    if phases and all(phases.get(name, 0.0) > 0 or not amount for name, amount in by_phase.items()):
        known_phases = {name: phases[name] for name, amount in by_phase.items() if amount}
        factors |= {
            name: seconds * known_phases[name] / sum(known_phases.values()) / by_phase[name]
            for name in known_phases
        }
    by_limit: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in amounts:
        limits = by_limit[row.layer, row.kind]
        limits[LIMIT_OF[row.part]] += row.amount * factors[PHASE_OF[row.part]]
    totals = {key: sum(limits.values()) for key, limits in by_limit.items()}
    return tuple(
        LayerShare(
            *key,
            part_seconds,
            part_seconds / seconds,
            max(by_limit[key], key=by_limit[key].__getitem__),
        )
        for key, part_seconds in sorted(totals.items(), key=lambda item: -item[1])
        if part_seconds > 0
    )


class PowerDraw(NamedTuple):
    """Mean power of one device in one measured run."""

    machine: str
    model: str | None
    watts: float
    readings: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a prediction may rest on, besides the peaks of the machine."""

    measured: Sequence[StepMeasurement] = ()
    fits: Sequence[StepFit] = ()
    published: ShippedFit | None = None
    """The fit that ships, if it may be used."""
    power: Sequence[PowerDraw] = ()
    notes: tuple[str, ...] = ()
    """Why there are measured steps and no fit."""


@dataclass(frozen=True, slots=True)
class SourceGrounds:
    """What a source's times rest on: the same at every batch size."""

    source: str
    coverage: float | None = None
    outside: tuple[str, ...] = ()


class TimeSource(Protocol):
    """A source of times for one step, named by its way in :data:`WAYS`."""

    way: ClassVar[str]
    meaning: ClassVar[str]
    """What the times rest on, in words."""

    @property
    def grounds(self) -> SourceGrounds:
        """What the times rest on."""
        ...

    @property
    def fit(self) -> StepFit | FitOnMachine | None:
        """The fit whose costs of the parts divide the step among layers; None for peaks."""
        ...

    @classmethod
    def find_source_or_reason(
        cls, case: StepSpec, machine: Machine, evidence: Evidence
    ) -> Self | str:
        """Return the source for this step, or the reason why there is none; "" for a reason that
        needs no words."""
        ...

    def predict_time(self, case: StepSpec, machine: Machine) -> StepTime:
        """Return the step's time without shares."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredSource:
    """The same step, measured on this machine."""

    way: ClassVar = "measured"
    meaning: ClassVar = "measured here on this device"
    record: StepMeasurement
    fit: StepFit | None
    grounds: SourceGrounds

    @classmethod
    def find_source_or_reason(
        cls, case: StepSpec, machine: Machine, evidence: Evidence
    ) -> Self | str:
        """Return the measured step with the smallest spread."""
        if case.compiled:
            return (
                "measured and fitted: the runs in the results database used eager mode, or do not "
                "state their mode"
            )
        runs = [
            record
            for record in evidence.measured
            if (record.machine, record.case.model) == (machine.name, case.model)
        ]
        alike = [
            record
            for record in runs
            if _describe_mode_and_precision(record.case) == _describe_mode_and_precision(case)
        ]
        same = [record for record in alike if record.case.batch == case.batch]
        if same:
            own_fit = OwnFitSource.find_source_or_reason(case, machine, evidence)
            return cls(
                min(same, key=lambda record: (record.high - record.low) / record.seconds),
                own_fit.fit if isinstance(own_fit, OwnFitSource) else None,
                SourceGrounds(f"median of the steps measured on {machine.name}"),
            )
        if not runs:
            return f"measured: no run of {case.model} on {machine.name}"
        ran = f"measured: {case.model} ran on {machine.name}"
        if not alike:
            return f"{ran}, but not {_describe_mode_and_precision(case)}"
        batches = ", ".join(map(str, sorted({record.case.batch for record in alike})))
        return f"{ran} at batch {batches}, not at {case.batch}"

    def predict_time(self, case: StepSpec, machine: Machine) -> StepTime:
        """Return the measured time with the spread of the steps."""
        record = self.record
        phases = {name: value for name in PHASES if (value := getattr(record, name)) is not None}
        return StepTime(
            case,
            machine,
            record.seconds,
            min(record.low, record.seconds),
            max(record.high, record.seconds),
            self.way,
            self.grounds.source,
            step_parts.compute_step_floor_seconds(case, machine),
            phases=phases,
        )


def _describe_mode_and_precision(case: StepSpec) -> str:
    return (
        f"training in {case.precision} with {case.optimizer}"
        if case.training
        else f"inference in {case.precision}"
    )


@dataclass(frozen=True, slots=True)
class OwnFitSource:
    """A fit to own runs on this machine."""

    way: ClassVar = "fitted"
    meaning: ClassVar = "fitted to your own runs on this device"
    fit: StepFit
    grounds: SourceGrounds
    """Which family or optimizer the fit has not seen at any batch size."""

    @classmethod
    def find_source_or_reason(
        cls, case: StepSpec, machine: Machine, evidence: Evidence
    ) -> Self | str:
        """Return the fit of the same family, otherwise that of most rows."""
        if case.compiled:
            return ""
        machine_fits = [fit for fit in evidence.fits if fit.machine.name == machine.name]
        mode = (case.precision, case.training)
        fits = [fit for fit in machine_fits if (fit.precision, fit.training) == mode]
        if not fits:
            suffix = " (other precisions or modes only)" if machine_fits else ""
            mode_text = f"{'training' if case.training else 'inference'} in {case.precision}"
            return f"fitted: no benchmark runs of {mode_text} on {machine.name}{suffix}"
        fit, outside = max(fits, key=lambda fit: (case.family in fit.families, fit.fitted.rows)), []
        if case.family not in fit.families:
            family = case.family or "network of this family"
            outside.append(f"no {family} was measured ({', '.join(fit.families)})")
        if case.training and case.optimizer not in fit.optimizers:
            outside.append(f"{case.optimizer} was not measured ({', '.join(fit.optimizers)})")
        return cls(fit, SourceGrounds(fit.name, fit.fitted.coverage, tuple(outside)))

    def predict_time(self, case: StepSpec, machine: Machine) -> StepTime:
        """Return the fit's time with its interval."""
        time, grounds = predict_one_step(self.fit, case), self.grounds
        return StepTime(
            case,
            machine,
            time.seconds,
            time.low,
            time.high,
            self.way,
            grounds.source,
            step_parts.compute_step_floor_seconds(case, machine),
            grounds.coverage,
            outside=(*describe_features_outside_fit_range(time.outside), *grounds.outside),
            phases=split_seconds_into_phases(self.fit, case, time.seconds),
            drivers=compute_step_feature_factors(self.fit, case),
        )


def describe_features_outside_fit_range(features: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each feature that is outside the range of a fit."""
    return tuple(f"{name} is outside the measured range" for name in features)


@dataclass(frozen=True, slots=True)
class PublishedSource:
    """The fit to published steps, which ships with perfctl."""

    way: ClassVar = "published"
    meaning: ClassVar = "fitted to published measurements"
    published: ShippedFit
    fit: FitOnMachine
    grounds: SourceGrounds

    @classmethod
    def find_source_or_reason(
        cls, case: StepSpec, machine: Machine, evidence: Evidence
    ) -> Self | str:
        """Return the fit if it covers such steps."""
        fit = evidence.published
        if fit is None or not shipped.can_use_fit(fit, case, machine):
            return ""
        if case.compiled and case.training:
            return ""
        is_measured = shipped.is_device_mode_measured(fit, case, machine)
        grounds = SourceGrounds(
            shipped.describe_fit_source(fit),
            shipped.COVERED if is_measured else None,
            shipped.list_fit_extrapolations(fit, case, machine),
        )
        return cls(fit, shipped.scale_fit_to_machine(fit, case, machine), grounds)

    def predict_time(self, case: StepSpec, machine: Machine) -> StepTime:
        """Return the fit's time. Under torch.compile the roofline is that of the products: the rest
        is merged, so its bytes are no bound."""
        fit, grounds = self.published, self.grounds
        works = tuple(work for work in case.works if work.kind in HEAVY or not case.compiled)
        computed = shipped.lift_half_precision_peak_to_fp32(machine, case.precision)
        time = shipped.predict_step_by_published_fit(fit, case, machine)
        return StepTime(
            case,
            machine,
            *time,
            self.way,
            grounds.source,
            coverage=grounds.coverage,
            outside=grounds.outside,
            phases=shipped.split_step_seconds_by_phase(self.fit, case, time.seconds),
            nearest=shipped.describe_nearest_step(fit, case, machine),
            host=shipped.predict_host_launch_seconds(fit, case),
            gpu=shipped.predict_device_step_seconds(fit, case, machine),
            floor=step_parts.compute_step_floor_seconds(replace(case, works=works), computed),
        )


@dataclass(frozen=True, slots=True)
class RooflineSource:
    """The peaks of the machine alone, and how far whole networks are from them."""

    way: ClassVar = "roofline"
    meaning: ClassVar = "the roofline only"
    grounds: SourceGrounds
    fit: None = None

    @classmethod
    def find_source_or_reason(
        cls, case: StepSpec, machine: Machine, evidence: Evidence
    ) -> Self | str:
        """Return the roofline, which every step has in eager mode. Raises ValueError under
        torch.compile."""
        if case.compiled:
            mode = "training" if case.training else f"inference in {case.precision}"
            raise ValueError(
                f"perfctl found no published times of {mode} on {machine.name} under torch.compile"
            )
        low, _, high = ROOFLINE.get(case.precision, ROOFLINE["other"])
        return cls(
            SourceGrounds(
                f"peaks of {machine.name} only; measured steps of whole networks took {low:g} to "
                f"{high:g} times the roofline"
            )
        )

    def predict_time(self, case: StepSpec, machine: Machine) -> StepTime:
        """Return the roofline's time, or that of the host where it takes longer."""
        floor, host = (
            step_parts.compute_step_floor_seconds(case, machine),
            compute_host_launch_seconds(case, machine),
        )
        return StepTime(
            case,
            machine,
            *compute_roofline_seconds_and_interval(floor, case.precision, host),
            self.way,
            self.grounds.source,
            floor,
            host=host,
            gpu=compute_roofline_seconds_and_interval(floor, case.precision, 0.0)[0],
        )


def compute_host_launch_seconds(case: StepSpec, machine: Machine) -> float:
    """Seconds that the host needs to start all operations of a step, one after the other."""
    launch = machine.launch_seconds if machine.launch_seconds is not None else HOST
    return launch * sum(work.calls for work in case.works) * (3 if case.training else 1)


def compute_roofline_seconds_and_interval(
    floor_seconds: float, precision: str, host_seconds: float
) -> tuple[float, float, float]:
    """Return (seconds, low, high) of a step from its roofline and the seconds of the host, which
    may be longer."""
    low, middle, high = ROOFLINE.get(precision, ROOFLINE["other"])
    return (
        max(middle * floor_seconds, host_seconds),
        low * floor_seconds,
        max(high * floor_seconds, 3 * host_seconds),
    )


SOURCES: tuple[type[TimeSource], ...] = (
    MeasuredSource,
    OwnFitSource,
    PublishedSource,
    RooflineSource,
)
"""Sources in the order in which they are asked."""
WAYS = {source.way: source.meaning for source in SOURCES}
"""Way -> what it means, in words."""


def choose_best_time_source(
    case: StepSpec, machine: Machine, evidence: Evidence
) -> tuple[TimeSource, tuple[str, ...]]:
    """Return the best source for this step, and why each better one was not possible. Raises
    ValueError as :func:`predict_from_best_source` does."""
    if not case.works:
        raise ValueError(f"{case.model}: no known operation, so perfctl cannot predict it")
    if case.batch < 1:
        raise ValueError(f"{case.model}: batch size must be at least 1, got {case.batch}")
    step_parts.get_peak_flops_or_raise(machine, case.precision)
    reasons: list[str] = []
    for source_type in SOURCES:
        source = source_type.find_source_or_reason(case, machine, evidence)
        if not isinstance(source, str):
            return source, tuple(filter(None, reasons))
        reasons.append(source)
    raise AssertionError("the roofline is always a source")


def predict_from_best_source(
    case: StepSpec,
    machine: Machine,
    measured: Sequence[StepMeasurement] = (),
    fits: Sequence[StepFit] = (),
    published: ShippedFit | None = None,
) -> StepTime:
    """Return the step's time on ``machine`` by the best source. ``published``: the fit that ships,
    if it may be used.

    Raises ValueError for a case without operations, a batch below 1, or a machine without a peak
    for the precision.
    """
    source, why_not = choose_best_time_source(case, machine, Evidence(measured, fits, published))
    time = source.predict_time(case, machine)
    phases = time.phases if source.way == MeasuredSource.way else None
    layers = split_time_by_layer(source.fit, case, machine, time.seconds, phases)
    return replace(time, why_not=why_not, shares=layers)
