"""Quantities of steps, layers and kernels: what one run shows of each, and both sides with the test
of the change and the result. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Annotated, ClassVar, Generic, NamedTuple, TypeVar

from perfctl.orchestrator.counts.figure import Figure, sum_figures
from perfctl.orchestrator.ledger.ledger import OUTSIDE, build_ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, group_into_studies
from perfctl.orchestrator.ledger.sweep import read_memory_bytes_by_label
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS
from perfctl.orchestrator.statistics import (
    RatioInterval,
    UntestedRatio,
    compute_b_over_a_interval,
    compute_geometric_mean_95_interval,
)
from perfctl.records.report import Kernel

K = TypeVar("K")
V = TypeVar("V")
LEVELS = ("step", "layer", "kernel")
"""Complete steps and memory; layers by direction; kernels by their full name inside them."""
PHASES = ("data", "copy", "forward", "backward", "optimizer", "inference")
UNATTRIBUTED = "not attributed"
KERNELS = "kernels of a step"
PER_REPORT = "sums over the complete report, whose number of steps is unknown"
ENERGIES = ("energy", "energy-delay product")
QUANTITIES = ("time", "throughput", "memory", *ENERGIES, "flops")


class QuantityKey(NamedTuple):
    """What a row is about; the same on both sides."""

    level: str
    quantity: str
    """time, throughput, memory, flops, energy or energy-delay product."""
    item: str
    """Of a step: "step", "forward", "peak allocated"; else ""."""
    layer: str = ""
    direction: str = ""
    kernel: str = ""
    """Whole name: short names are for people."""

    @property
    def name(self) -> str:
        """ "step", "conv2 forward", "conv2 forward: volta_sgemm_128x64_tn"."""
        if self.item:
            return self.item
        layer = self.layer or ("optimizer" if self.direction == "optimizer" else OUTSIDE)
        row = layer if layer == self.direction else f"{layer} {self.direction}".strip()
        return f"{row}: {self.kernel}" if self.kernel else row


STEP_TIME, KERNEL_TIME = QuantityKey("step", "time", "step"), QuantityKey("step", "time", KERNELS)
SAMPLE_RATE = QuantityKey("step", "throughput", "samples per second")
COUNTED_FLOPS = QuantityKey("step", "flops", "executed FLOPs")
LAUNCHES = QuantityKey("step", "launches", "launches")
PEAK_MEMORY = QuantityKey("step", "memory", "peak allocated")


@dataclass(frozen=True, slots=True)
class ObservedQuantity:
    """One quantity in one run."""

    values: tuple[float, ...]
    """One for each step, or one for the run. ns, bytes, FLOP (1 multiply-add = 2) or samples
    per second."""
    basis: str
    """Its source; rows of different sources are not judged."""
    trusted: bool = True
    grids: tuple[str, ...] = ()
    launches: float | None = None
    note: str | None = None
    """Why the figure is less than exact; None when it is exact."""
    is_bound: bool = False
    """A lower bound, which no count is compared with."""


def observe_all_quantities(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return every quantity of a run."""
    return (
        observe_times(run)
        | _observe_energy_and_delay_product(run)
        | observe_memory_and_launches(run)
        | observe_executed_flops(run)
    )


def observe_memory_and_launches(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return memory as the run recorded it, and how many kernels it launched."""
    observed = {
        QuantityKey("step", "memory", name): ObservedQuantity(
            (float(size),), "memory as the run recorded it"
        )
        for name, size in read_memory_bytes_by_label(run.run).items()
    }
    if run.measured_launches:
        count = len({kernel.launch for kernel, _ in run.measured_launches}) / (run.step_count or 1)
        observed[LAUNCHES] = ObservedQuantity((count,), "launches of kernels", bool(run.step_count))
    return observed


def observe_times(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the times of steps, phases, layers and kernels, and samples per second."""
    return dict(
        (*_observe_step_times(run), *_observe_layer_times(run), *_observe_kernel_times(run))
    )


def observe_executed_flops(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the executed FLOPs of a step, by layer and direction and in all."""
    if not run.run.report.counters:
        return {}
    (study,) = group_into_studies([run.run])
    entries = build_ledger(replace(study, prepared=(run,)))
    figures = {(row.layer, row.direction): row.executed for row in entries.rows}
    if any(
        key is None for _, key in run.measured_launches
    ):  # else there is nothing to count of no layer
        figures.update(
            ((UNATTRIBUTED, ""), unattributed.executed) for unattributed in entries.unattributed
        )
    observed = {
        QuantityKey("layer", "flops", "", *row_key): _observe_flop_figure(figure)
        for row_key, figure in figures.items()
        if figure.value is not None
    }
    if observed:
        observed[COUNTED_FLOPS] = _observe_flop_figure(sum_figures(figures.values()))
    return observed


def _observe_flop_figure(figure: Figure) -> ObservedQuantity:
    note, basis = None, "measured by ncu, per step"
    if figure.lower_bound:
        note = f"a lower bound: {figure.reason or 'a part is missing'}"
    elif figure.state != "counted":
        note = f"{figure.state}: {figure.reason}"
    if figure.state == "derived":
        basis = "derived from kernels and shapes, per step"
    return ObservedQuantity(
        (float(figure.value or 0),), basis, note=note, is_bound=bool(figure.lower_bound)
    )


def _observe_energy_and_delay_product(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the energy of a step of all GPUs, and times the step's time, if all are known."""
    energies = run.usage.device_energies
    joules = [energy.per_step for energy in energies if energy.per_step is not None]
    if not joules or len(joules) < len(energies):
        return {}
    note = f"sampling error up to {100 * max(energy.error or 0.0 for energy in energies):.2g}%"
    basis = " and ".join(dict.fromkeys(energy.source or "" for energy in energies))
    products = [energy.delay_product or 0.0 for energy in energies]
    return {
        QuantityKey("step", quantity, quantity): ObservedQuantity((sum(values),), basis, note=note)
        for quantity, values in zip(ENERGIES, (joules, products), strict=True)
    }


def _observe_step_times(run: PreparedRun) -> Iterator[tuple[QuantityKey, ObservedQuantity]]:
    if run.step_time is None:
        return
    spread, basis = run.step_time
    yield STEP_TIME, ObservedQuantity(spread.values, basis)
    samples = run.run.samples_per_step
    if samples and min(spread.values) > 0:
        rates = tuple(samples * 1e9 / value for value in spread.values)
        yield SAMPLE_RATE, ObservedQuantity(rates, basis)
    for phase in PHASES:
        sums: Counter[int] = Counter()
        for step in sorted(run.run.report.steps, key=attrgetter("number")):
            if step.phase == phase and step.duration_ns is not None:
                # a step copies twice: images to the device, labels too
                sums[step.number] += step.duration_ns
        if sums:
            yield (
                QuantityKey("step", "time", phase),
                ObservedQuantity(tuple(map(float, sums.values())), basis),
            )


def _observe_layer_times(run: PreparedRun) -> Iterator[tuple[QuantityKey, ObservedQuantity]]:
    times = run.layer_times
    if times is None:
        return
    spreads = {
        QuantityKey("layer", "time", "", layer, direction): spread
        for (layer, direction), spread in times.rows.items()
    }
    if run.run.report.kernels:
        spreads = {KERNEL_TIME: times.total, **spreads}
    if any(times.unattributed.values):
        spreads[QuantityKey("layer", "time", "", UNATTRIBUTED)] = times.unattributed
    for key, spread in spreads.items():
        yield key, ObservedQuantity(spread.values, times.basis, times.trusted)


def _observe_kernel_times(run: PreparedRun) -> Iterator[tuple[QuantityKey, ObservedQuantity]]:
    steps, profiler = run.step_count or 1, run.run.profiler
    groups: dict[QuantityKey, list[Kernel]] = defaultdict(list)
    timed_steps: dict[int | None, None] = {}
    for kernel, row_key in run.measured_launches:
        if kernel.duration_ns is not None:
            key = QuantityKey("kernel", "time", "", *(row_key or (UNATTRIBUTED, "")), kernel.name)
            groups[key].append(kernel)
            timed_steps[kernel.step] = None
    basis = KERNEL_BASIS.get(profiler, f"kernels, {profiler}") if run.step_count else PER_REPORT
    for key, kernels in groups.items():
        times: dict[int | None, float] = dict.fromkeys(timed_steps, 0.0)
        grids: Counter[str] = Counter()
        for kernel in kernels:
            times[kernel.step] += (kernel.duration_ns or 0.0) / (
                1 if run.has_numbered_steps else steps
            )
            if kernel.grid_x is not None:
                sides = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
                grids["x".join(str(side or 1) for side in sides)] += 1
        shapes = tuple(sorted(grids, key=lambda grid: (-grids[grid], grid)))
        values = tuple(times.values())
        yield key, ObservedQuantity(values, basis, profiler != "ncu", shapes, len(kernels) / steps)


SLOWER, FASTER, LARGER, SMALLER = "slower", "faster", "larger", "smaller"
NEW, GONE, DIFFERS = "new", "gone", "differs"
WITHIN, NOT_SHOWN, EQUAL, NOT_JUDGED = "within the gate", "not shown", "equal", "not judged"
WORSE, BETTER, NEWS = (SLOWER, LARGER), (FASTER, SMALLER), (NEW, GONE, DIFFERS)
MEANING = {
    SLOWER: "more time: above the gate, and significant",
    FASTER: "less time: above the gate, and significant",
    LARGER: "more memory, above the gate",
    SMALLER: "less memory, above the gate",
    NEW: "in B only",
    GONE: "in A only",
    DIFFERS: "a different exact count",
    WITHIN: "significant, and below the gate",
    NOT_SHOWN: "not significant: the spread is as large as the difference",
    EQUAL: "the same count",
    NOT_JUDGED: "no spread, values of different meaning, or sides that are not comparable",
}


@dataclass(frozen=True, slots=True)
class ComparedQuantity(Generic[K, V]):
    """One quantity before and after a change: of two sides, of a baseline and now, of two
    devices."""

    key: K
    """The quantity, and its layer, pass or kernel."""
    before: V | None
    after: V | None
    change: float | None = None
    """After over before, less 1; None where that is not defined."""
    interval: tuple[float, float] | None = None
    """95% interval of the change of this row; None if not judged by a spread."""
    test: RatioInterval | None = None
    """What the interval was made from; None if not judged by a spread."""
    result: str = NOT_JUDGED
    reason: str = ""
    """Why, or what changed: "+9,437,184 FLOP, +100%"."""


@dataclass(frozen=True, slots=True)
class SideFigure:
    """One side of a row."""

    median: float
    interval: tuple[float, float] | None
    """95% interval over runs; None with one run."""
    low: float
    high: float
    runs: int
    total_runs: int
    steps: int
    grids: tuple[str, ...] = ()
    launches: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedRow(ComparedQuantity[QuantityKey, SideFigure]):
    """One quantity of the runs of two sides."""

    JSON_KEYS = (
        "key",
        "name",
        "change",
        "interval",
        "p",
        "adjusted",
        "result",
        "reason",
        "basis",
        "before",
        "after",
    )
    JSON_NAMES: ClassVar = {"before": "a", "after": "b"}
    JSON_INLINED = ("key",)

    result: Annotated[str, MEANING] = NOT_JUDGED
    name: str = ""
    """ "step", "conv2 forward", "conv2 forward: volta_sgemm_128x64_tn"."""
    basis: str | None = None
    p: float | None = None
    adjusted: float | None = None
    needs_repeats: bool = False
    """Each side is one run with too few steps to show a spread."""

    @property
    def medians_of_both(self) -> tuple[float, float] | None:
        """Return the medians of both sides; None if a side lacks it."""
        if self.before is None or self.after is None:
            return None
        return self.before.median, self.after.median

    @property
    def distance_of_medians(self) -> float:
        """How far the medians are apart; what one side lacks counts as 0."""
        before, after = (side.median if side else 0.0 for side in (self.before, self.after))
        return abs(after - before)


def compare_quantities(
    a: Sequence[Mapping[QuantityKey, ObservedQuantity]],
    b: Sequence[Mapping[QuantityKey, ObservedQuantity]],
) -> list[ComparedRow]:
    """Return a row for each quantity of either side; what has a p-value is judged later, with all
    rows of its level."""
    keys = dict.fromkeys(key for run in (*a, *b) for key in run)
    return [
        _compare_quantity(key, *([run.get(key) for run in side] for side in (a, b))) for key in keys
    ]


def _compare_quantity(
    key: QuantityKey,
    runs_a: Sequence[ObservedQuantity | None],
    runs_b: Sequence[ObservedQuantity | None],
) -> ComparedRow:
    """``runs_a``, ``runs_b``: what each run of a side observed; None if it lacks the quantity."""
    a, b = ([run for run in side if run is not None] for side in (runs_a, runs_b))
    basis = " / ".join(dict.fromkeys(run.basis for run in (*a, *b))) or None
    before, after = _summarize_side(key, a, len(runs_a)), _summarize_side(key, b, len(runs_b))
    row = ComparedRow(key, before, after, name=key.name, basis=basis)
    if before and after:
        change = after.median / before.median - 1 if before.median else None
        return _judge_row_or_compute_p(replace(row, change=change), before, after, a, b)
    side, other, result = ("A", "B", GONE) if before else ("B", "A", NEW)
    number = before or after
    if key.level == "step" or number is None:
        return replace(row, reason=f"{other} did not record it")
    other_runs = len(runs_b if before else runs_a)
    in_runs = f"{number.runs} of {number.total_runs} runs" if number.total_runs > 1 else "the run"
    in_none = f"in none of {other_runs} runs" if other_runs > 1 else "not in the run"
    return replace(row, result=result, reason=f"in {in_runs} of {side}, {in_none} of {other}")


def _summarize_side(
    key: QuantityKey, runs: Sequence[ObservedQuantity], total_runs: int
) -> SideFigure | None:
    if not runs:
        return None

    def compute_median(values: Sequence[float]) -> float:
        if key.quantity == "throughput":  # that of the median time, whose mean is of two times
            return 1 / statistics.median(1 / value for value in values)
        return statistics.median(values)

    medians = [compute_median(run.values) for run in runs]
    launches = [run.launches for run in runs if run.launches is not None]
    return SideFigure(
        median=compute_median(medians),
        interval=compute_geometric_mean_95_interval(medians),
        low=min(medians),
        high=max(medians),
        runs=len(runs),
        total_runs=total_runs,
        steps=sum(len(run.values) for run in runs),
        grids=tuple(dict.fromkeys(grid for run in runs for grid in run.grids)),
        launches=statistics.median(launches) if launches else None,
    )


def _judge_row_or_compute_p(
    row: ComparedRow,
    before: SideFigure,
    after: SideFigure,
    a: Sequence[ObservedQuantity],
    b: Sequence[ObservedQuantity],
) -> ComparedRow:
    """Return a row of both sides with its result, or with the p-value that gives it."""
    both = (*a, *b)
    notes = "; ".join(dict.fromkeys(run.note for run in both if run.note))
    is_constant = before.low == before.high and after.low == after.high
    is_equal = is_constant and before.median == after.median
    if row.key.quantity in ENERGIES:
        return replace(row, reason=f"one value per run, not judged; {notes}")
    if row.key.quantity == "flops":
        return _compare_flop_counts(row, is_equal, is_constant, a, b)
    if row.key.quantity == "memory" and is_equal:
        return replace(row, result=EQUAL, reason="the same in every run")
    if row.key.quantity == "memory" and is_constant:
        return _judge_constant_memory_change(row, len(a), len(b))
    if len({run.basis for run in both}) > 1:
        return replace(row, reason=f"different clocks: {row.basis}")
    if not all(run.trusted for run in both):
        return replace(row, reason=f"{row.basis}; use times from nsys or torch")
    if before.runs < before.total_runs or after.runs < after.total_runs:
        in_runs = (
            f"{number.runs} of {number.total_runs} runs of {side}"
            for side, number in (("A", before), ("B", after))
        )
        return replace(row, reason=f"in {' and '.join(in_runs)}: not in every repeat")
    test = compute_b_over_a_interval([run.values for run in a], [run.values for run in b])
    if isinstance(test, UntestedRatio):
        return replace(row, reason=test.reason, needs_repeats=test.needs_repeats)
    ends = (test.low - 1, test.high - 1)
    return replace(row, interval=ends, test=test, p=test.p, reason=test.basis)


def _compare_flop_counts(
    row: ComparedRow,
    is_equal: bool,
    is_constant: bool,
    a: Sequence[ObservedQuantity],
    b: Sequence[ObservedQuantity],
) -> ComparedRow:
    notes_a, notes_b = ({run.note for run in side if run.note} for side in (a, b))
    notes = "; ".join(sorted(notes_a | notes_b))
    has_bound = any(run.is_bound for run in (*a, *b))
    if is_equal and (notes_a == notes_b or not has_bound):
        reason = f"the same count; {notes}" if notes else "the same count in every run"
        return replace(row, result=EQUAL, reason=reason)
    if has_bound:
        return replace(row, reason=notes)
    if not is_constant:
        return replace(row, reason="the count differs between the repeats of one side")
    reason = f"counts are exact, so the computation changed{'; ' + notes if notes else ''}"
    return replace(row, result=DIFFERS, reason=reason)


def _judge_constant_memory_change(row: ComparedRow, runs_a: int, runs_b: int) -> ComparedRow:
    """Return a row whose sides have another figure each, the same in all of its runs."""
    if min(runs_a, runs_b) < 2:
        single = f"{'A' if runs_a < runs_b else 'B'} is one run"
        if runs_a == runs_b:
            single = "one run each"
        reason = f"{single}, so the spread between runs is unknown; run 2 or more repeats"
        return replace(row, reason=reason)
    if row.change is None:
        return replace(row, reason="A is 0, so the change is undefined")
    reason = f"the same in all {runs_a} runs of A and in all {runs_b} of B"
    return replace(row, p=0.0, adjusted=0.0, reason=reason)


def judge_row_by_p_value(
    row: ComparedRow, adjusted_p: float, *, gate: float, alpha: float
) -> ComparedRow:
    """Return a row that has a p-value with its result: significant, and larger than the gate."""
    change = row.change or 0.0
    # The medians must move in the direction of the interval.
    is_same_side = row.interval is None or (change > 0) == (sum(row.interval) > 0)
    if adjusted_p >= alpha or not is_same_side:
        result = NOT_SHOWN
    elif abs(change) <= gate:
        result = WITHIN
    elif row.key.quantity == "memory":
        result = LARGER if change > 0 else SMALLER
    else:
        result = SLOWER if change > 0 else FASTER
    return replace(row, adjusted=adjusted_p, result=result)
