"""How long a step takes: measured, fitted to own runs, from published measurements, or from the
roofline alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from perfctl.orchestrator.counts.hardware.machines import Machine
from perfctl.orchestrator.predict import published as shipped
from perfctl.orchestrator.predict import step_parts
from perfctl.orchestrator.predict.fit import (
    PHASES,
    StepFitted,
    drivers,
    phases_of,
    predict_step,
)
from perfctl.orchestrator.predict.operations import HEAVY, Measured, StepSpec
from perfctl.orchestrator.predict.published import OnMachine, Published
from perfctl.orchestrator.predict.step_parts import PARTS

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
WAYS = ("measured", "fitted", "published", "roofline")
"""The best first: a measured step on this device; a fit of own runs on it; the fit to what others
published, which ships with perfctl; peaks alone."""

ROOFLINE = {"fp32": (1.1, 1.5, 2.2), "other": (1.5, 2.2, 3.7)}
"""Measured time over the roofline's: low, middle, high; see docs of ``perfctl predict``.

fp32: 80 whole networks on NVIDIA GPUs published with NeuSight (Lee et al., ASPLOS 2025), 5th
percentile, median and 95th.
other: training with automatic mixed precision, 800 networks of timm on an RTX 3090.
"""
HOST = 10e-6
"""Seconds to start one operation, if the machine does not state them."""


@dataclass(frozen=True, slots=True)
class Share:
    """One layer's part of the step's time."""

    layer: str
    """Dotted module path; "" if unknown (the loss, operations between modules)."""
    kind: str
    seconds: float
    part: float
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
    )
    JSON_NAMES: ClassVar = {
        "host": "host_s",
        "gpu": "gpu_s",
        "outside": "beyond_the_data",
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
    """One of :data:`WAYS`, the best possible."""
    source: str
    """In words: which measured steps, fit or peaks."""
    floor: float
    """Seconds at the machine's peaks: the roofline's."""
    coverage: float | None = None
    """Share of held-out steps between low and high. None: low to high is a spread of measured
    steps, or from literature."""
    why_not: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """What the fit has not seen, in words."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of forward, backward, optimizer; they add up to ``seconds``. Empty: not known."""
    shares: tuple[Share, ...] = ()
    """By layer, the longest first; the optimizer and the step's own overhead have their
    own rows."""
    drivers: tuple[tuple[str, float], ...] = ()
    """(feature, factor on the time), the strongest first; empty without a fit."""
    nearest: str = ""
    """The published step that is most like this one, in words; "" if the prediction does not rest
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


OPTIMIZER, STEP = "(optimizer)", "(step)"


def _costs(fit: StepFitted | OnMachine | None) -> dict[str, float]:
    if fit is None:
        return {name: 0.0 if name.startswith(step_parts.BESIDE) else 1.0 for name in PARTS}
    # Each part belongs to one phase; the others' costs of it are 0.
    costs = (
        [sum(each) for each in zip(*fit.phases.values(), strict=True)] if fit.phases else fit.costs
    )
    return dict(zip(PARTS, costs, strict=True))


def fitted_amounts(
    fit: StepFitted | OnMachine, case: StepSpec, machine: Machine
) -> Iterator[tuple[str, str, float]]:
    """(group of work, part, seconds before they are scaled to the step) of every operation, the
    optimizer and the step.

    The groups are those of ``step_parts.group_of``, and "optimizer" and "overhead".
    """
    for (_, kind), group, part, seconds in _amounts(_costs(fit), case, machine):
        yield group or kind, part, seconds


def amounts_of(case: StepSpec, machine: Machine) -> Iterator[tuple[str, str, float]]:
    """As :func:`fitted_amounts`, with a cost of 1 for every part."""
    for (_, kind), group, part, amount in _amounts(dict.fromkeys(PARTS, 1.0), case, machine):
        yield group or kind, part, amount


def shares(
    fit: StepFitted | OnMachine | None,
    case: StepSpec,
    machine: Machine,
    seconds: float,
    phases: Mapping[str, float] | None = None,
) -> tuple[Share, ...]:
    """By the fit's costs of each part, else by arithmetic and bytes at the machine's peaks, scaled
    to ``seconds``.

    ``phases``: measured seconds of each phase; None: predicted.
    """
    amounts = list(_amounts(_costs(fit), case, machine))
    by_phase: dict[str, float] = defaultdict(float)
    for _, _, part, amount in amounts:
        by_phase[_phase_of(part)] += amount
    total = sum(by_phase.values())
    if total <= 0:
        return ()
    factors = dict.fromkeys(by_phase, seconds / total)
    if phases and all(phases.get(name, 0.0) > 0 or not amount for name, amount in by_phase.items()):
        known = {name: phases[name] for name, amount in by_phase.items() if amount}
        factors |= {
            name: seconds * known[name] / sum(known.values()) / by_phase[name] for name in known
        }
    rows: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for key, _, part, amount in amounts:
        rows[key][limit_of(part)] += amount * factors[_phase_of(part)]
    wholes = {key: sum(row.values()) for key, row in rows.items()}
    found = (
        Share(*key, whole, whole / seconds, max(row := rows[key], key=row.__getitem__))
        for key, whole in sorted(wholes.items(), key=lambda item: -item[1])
        if whole > 0
    )
    return tuple(found)


def _amounts(
    costs: Mapping[str, float], case: StepSpec, machine: Machine
) -> Iterator[tuple[tuple[str, str], str, str, float]]:
    """((layer, kind), group or "", part, how much of it) of each operation, the optimizer and
    the step."""
    optimizer = (OPTIMIZER, "optimizer")
    for work in case.works:
        for name, part in step_parts.parts_of_work(work, case, machine):
            ends = _phase_of(name) == "optimizer"
            key = optimizer if ends else (work.layer, work.kind)
            yield key, "" if ends else step_parts.group_of(work), name, costs[name] * part
    whole = dict(zip(PARTS, step_parts.parts(case, machine), strict=True))
    for name in ("bytes optimizer", "adam optimizer", "overflow optimizer"):
        yield optimizer, "", name, costs[name] * whole[name]
    yield (STEP, "overhead"), "", "step forward", costs["step forward"] * whole["step forward"]


def _phase_of(part: str) -> str:
    return part.rpartition(" ")[2]


def limit_of(part: str) -> str:
    """arithmetic, bytes or operations, from the name of a part."""
    kind = step_parts.class_of(part)
    return "operations" if kind == "step" else kind


@dataclass(frozen=True, slots=True)
class Basis:
    """What a step's time is predicted from, and why each better way was not possible."""

    way: str
    record: Measured | None
    fit: StepFitted | None
    why_not: tuple[str, ...]
    published: Published | None = None
    """The fit that ships, where it is the way."""


def predict(
    case: StepSpec,
    machine: Machine,
    measured: Sequence[Measured] = (),
    fits: Sequence[StepFitted] = (),
    published: Published | None = None,
) -> StepTime:
    """The step's time on ``machine``, by the best possible way. ``published``: the fit that ships,
    if it may be used.

    Raises ValueError for a case without operations, a batch below 1, or a machine without a peak
    for the precision.
    """
    basis = basis_of(case, machine, measured, fits, published)
    found, own = time_from(basis, case, machine), basis.record is not None
    costs = (
        shipped.on_machine(basis.published, case, machine)
        if basis.published is not None
        else basis.fit
    )
    by_layer = shares(costs, case, machine, found.seconds, found.phases if own else None)
    near = (
        shipped.nearest_words(basis.published, case, machine) if basis.published is not None else ""
    )
    return replace(
        found,
        nearest=near,
        shares=by_layer,
        drivers=() if own or basis.fit is None else drivers(basis.fit, case),
    )


def basis_of(
    case: StepSpec,
    machine: Machine,
    measured: Sequence[Measured] = (),
    fits: Sequence[StepFitted] = (),
    published: Published | None = None,
) -> Basis:
    """The best basis for this step. Raises ValueError as :func:`predict` does."""
    if not case.works:
        raise ValueError(f"{case.model}: no operation is known, so nothing can be predicted")
    if case.batch < 1:
        raise ValueError(f"{case.model}: batch size must be at least 1, got {case.batch}")
    step_parts.peak_of(machine, case.precision)
    shipped_fit = (
        published if published is not None and shipped.covers(published, case, machine) else None
    )
    if case.compiled:
        return _compiled(case, machine, shipped_fit)
    mine, missing = _own(case, machine, measured)
    own = [fit for fit in fits if fit.machine.name == machine.name]
    fit = _best(
        case,
        [fit for fit in own if (fit.precision, fit.training) == (case.precision, case.training)],
    )
    if mine is not None:
        return Basis("measured", mine, fit, ())
    if fit is not None:
        return Basis("fitted", None, fit, (missing,))
    others = "other precisions or directions only" if own else "none"
    what = f"{'training' if case.training else 'inference'} in {case.precision}"
    reason = f"fitted: no bench runs of {what} on {machine.name} to learn from ({others})"
    way = "published" if shipped_fit is not None else "roofline"
    return Basis(way, None, None, (missing, reason), shipped_fit)


def _compiled(case: StepSpec, machine: Machine, published: Published | None) -> Basis:
    """Runs and fits to them are eager ones. Raises ValueError for what nobody published."""
    if case.training or published is None:
        what = (
            f"{'training' if case.training else f'inference in {case.precision}'} on {machine.name}"
        )
        raise ValueError(
            f"no times of {what} under torch.compile were published that perfctl may learn from"
        )
    mine = (
        "measured and fitted: runs of the store are of eager mode, or perfctl does not know that "
        "they are not"
    )
    return Basis("published", None, None, (mine,), published)


def _best(case: StepSpec, fits: Sequence[StepFitted]) -> StepFitted | None:
    """A fit of the same family first, then the one of most rows."""
    return max(fits, key=lambda fit: (case.family in fit.families, fit.fitted.rows), default=None)


def _own(
    case: StepSpec, machine: Machine, measured: Sequence[Measured]
) -> tuple[Measured | None, str]:
    model = [
        record
        for record in measured
        if (record.machine, record.case.model) == (machine.name, case.model)
    ]
    alike = [record for record in model if _kind(record.case) == _kind(case)]
    same = [record for record in alike if record.case.batch == case.batch]
    if same:
        return min(same, key=lambda record: (record.high - record.low) / record.seconds), ""
    if alike:
        batches = ", ".join(map(str, sorted({record.case.batch for record in alike})))
        return (
            None,
            f"measured: {case.model} ran on {machine.name} at batch {batches}, not at {case.batch}",
        )
    if model:
        return None, f"measured: {case.model} ran on {machine.name}, but not {_kind(case)}"
    return None, f"measured: no run of {case.model} on {machine.name}"


def _kind(case: StepSpec) -> str:
    return (
        f"training in {case.precision} with {case.optimizer}"
        if case.training
        else f"inference in {case.precision}"
    )


def time_from(basis: Basis, case: StepSpec, machine: Machine) -> StepTime:
    """The step's time without shares and drivers."""
    floor, record, fit = step_parts.roofline(case, machine), basis.record, basis.fit
    if record is not None:
        seconds, source = record.seconds, f"median of the steps measured on {machine.name}"
        known = {name: value for name in PHASES if (value := getattr(record, name)) is not None}
        least, most = min(record.low, seconds), max(record.high, seconds)
        return StepTime(
            case, machine, seconds, least, most, "measured", source, floor, phases=known
        )
    if fit is not None:
        found = predict_step(fit, case)
        return StepTime(
            case,
            machine,
            found.seconds,
            found.low,
            found.high,
            basis.way,
            fit.name,
            floor,
            fit.fitted.coverage,
            basis.why_not,
            (*beyond_range(found.outside), *beyond_fit(fit, case)),
            phases_of(fit, case, found.seconds),
        )
    if basis.published is not None:
        return _from_published(basis, basis.published, case, machine)
    low, _, high = ROOFLINE.get(case.precision, ROOFLINE["other"])
    source = (
        f"peaks of {machine.name} alone; measured steps of whole networks took {low:g} to {high:g} "
        "times the roofline"
    )
    host = started(case, machine)
    times, middle = (
        around_roofline(floor, case.precision, host),
        around_roofline(floor, case.precision, 0.0)[0],
    )
    return StepTime(
        case,
        machine,
        *times,
        "roofline",
        source,
        floor,
        why_not=basis.why_not,
        host=host,
        gpu=middle,
    )


def _from_published(basis: Basis, fit: Published, case: StepSpec, machine: Machine) -> StepTime:
    """Under torch.compile the roofline is that of the products: the rest is merged, so its bytes
    are no bound."""
    bounded = (
        replace(case, works=tuple(work for work in case.works if work.kind in HEAVY))
        if case.compiled
        else case
    )
    floor = step_parts.roofline(bounded, shipped.as_computed(machine, case.precision))
    found, costs = shipped.predict(fit, case, machine), shipped.on_machine(fit, case, machine)
    source, coverage, outside = published_words(fit, case, machine)
    host, gpu = shipped.host_seconds(fit, case), shipped.gpu_seconds(fit, case, machine)
    return StepTime(
        case,
        machine,
        found.seconds,
        found.low,
        found.high,
        basis.way,
        source,
        floor,
        coverage,
        basis.why_not,
        outside,
        shipped.phases_of(costs, case, found.seconds),
        host=host,
        gpu=gpu,
    )


def published_words(
    fit: Published, case: StepSpec, machine: Machine
) -> tuple[str, float | None, tuple[str, ...]]:
    """(source, coverage, what was not measured) of a step by the fit that ships: the same at every
    batch size."""
    known = shipped.is_measured(fit, case, machine)
    return (
        shipped.words(fit),
        shipped.COVERED if known else None,
        shipped.outside(fit, case, machine),
    )


def beyond_range(features: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name} is outside the measured range" for name in features)


def beyond_fit(fit: StepFitted, case: StepSpec) -> tuple[str, ...]:
    """Sentences about what the fit has not seen at any batch size: family, optimizer."""
    said = []
    if case.family not in fit.families:
        said.append(
            f"no {case.family or 'network of this family'} was measured ({', '.join(fit.families)})"
        )
    if case.training and case.optimizer not in fit.optimizers:
        said.append(f"{case.optimizer} was not measured ({', '.join(fit.optimizers)})")
    return tuple(said)


def started(case: StepSpec, machine: Machine) -> float:
    """Seconds that the host needs to start all operations of a step, one after the other."""
    launch = machine.launch_seconds if machine.launch_seconds is not None else HOST
    return launch * sum(work.calls for work in case.works) * (3 if case.training else 1)


def around_roofline(floor: float, precision: str, host: float) -> tuple[float, float, float]:
    """(seconds, low, high) of a step from its roofline and the seconds of the host, which may
    be longer."""
    low, middle, high = ROOFLINE.get(precision, ROOFLINE["other"])
    return max(middle * floor, host), low * floor, max(high * floor, 3 * host)
