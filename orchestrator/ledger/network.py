"""One layer of a network at every batch size: estimated, executed, derived, and by two clocks.

A network may have run on several devices, and each of these is a study of its own; here they are
read together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from perfctl.orchestrator.counts.counters.sums import read_thread_counts_by_instruction
from perfctl.orchestrator.counts.derived.run import convert_instructions_to_flops
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.estimate.sheets.network import NetworkSheet, build_network_sheet
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, build_layer_sheet
from perfctl.orchestrator.ledger.analysis import Analysis, analyse_studies
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedBatch, group_into_studies
from perfctl.orchestrator.ledger.sweep import NOT_COUNTED
from perfctl.orchestrator.ledger.timing import (
    GRADIENTS,
    TimeSpread,
    compute_time_spread,
    list_reported_layer_host_times,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape, TracedModule
from perfctl.records.run import Run
from perfctl.workloads.models.mnist_cnn import CONV2

PARAMETER_BYTES = 4
"""Bytes of a parameter: autocast keeps them in fp32, too."""
MNIST_CNN = "mnist_cnn"
NO_BACKWARD = "the runs recorded forward shapes only"
_WEIGHTS = {"fadd": 1, "fmul": 1, "ffma": 2}
"""FLOPs of an fp32 instruction; 1 multiply-add = 2."""
_BACKWARD = (*GRADIENTS, "backward")


@dataclass(frozen=True, slots=True)
class ClockPair:
    """One piece of work by both clocks; None where one did not time it."""

    synchronised: TimeSpread | None
    """By a clock that waits for the device, with no profiler."""
    profiled: TimeSpread | None
    """By a profiler."""
    basis: str | None
    """Which profiler, and what of it."""

    @property
    def profiled_over_synchronised(self) -> float | None:
        """Profiled / synchronised medians; None without both."""
        if self.synchronised is None or self.profiled is None or not self.synchronised.median:
            return None
        return self.profiled.median / self.synchronised.median

    @property
    def slowest_over_fastest_step(self) -> float:
        """Slowest step / fastest step, of the clock where it is larger; 1 where nothing
        was timed."""
        both = [self.synchronised, self.profiled]
        return max((time.high / time.low for time in both if time and time.low), default=1.0)


class UnclaimedLaunches(NamedTuple):
    """Launches that no layer claims."""

    flops: float | None
    """FLOPs of collected fp32 instructions: a part of what they executed if not all instructions
    were collected."""
    names: tuple[str, ...]
    """Instructions that ``flops`` is made of."""
    derived: float | None
    """All FLOPs of these launches, if a rule completes what was collected."""


NO_LOOSE_WORK = UnclaimedLaunches(None, (), None)


@dataclass(frozen=True, slots=True)
class LayerAtBatch:
    """The layer's forward pass, and the whole step, at one batch size. FLOPs: 1
    multiply-add = 2."""

    batch: int
    estimated: Figure
    executed: Figure
    """By hardware counters; never a derived value."""
    derived: Figure
    """From kernel names, grids and shapes."""
    loose: UnclaimedLaunches
    """Only if the layer has no count."""
    row: LedgerRow | None
    """The ledger's row of ``executed``; None where no run saw the layer."""
    step_paper: Figure
    step_counted: Figure
    forward: ClockPair
    backward: ClockPair
    step: ClockPair
    host: tuple[tuple[str, float], ...]
    """(profiler of the run, ns) of each time that a report states for the layer by the host's
    clock, without waiting for the device; one a profiler, of its newest run."""


@dataclass(frozen=True)
class Network:
    """All runs of one network: a workload with its own options, under any profiler and on
    any device."""

    label: str
    analyses: tuple[Analysis, ...]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs, by batch size."""
        return tuple(
            sorted(
                (run for analysis in self.analyses for run in analysis.study.runs),
                key=lambda run: run.batch_size or 0,
            )
        )

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes of the runs, ascending."""
        sizes = {size for analysis in self.analyses for size in analysis.study.batches}
        return tuple(sorted(sizes))

    def get_recorded_ops(self, batch: int) -> Sequence[OpShape]:
        """Shapes that a run recorded at this batch size, with backward where any did; () where
        none did."""
        ops = [run.report.ops for run in self.runs if run.batch_size == batch]
        return max(ops, key=len, default=())

    def build_layer_calculation_sheet(self, batch: int, layer: str) -> Sheet | None:
        """The worked sheet of a layer; None where its shapes are not known."""
        return build_layer_sheet(self.get_recorded_ops(batch), layer)

    def build_network_calculation_sheet(self, batch: int) -> NetworkSheet:
        """A line for every layer that computes something, and the totals."""
        calls = [run.layer_calls for run in self.runs if run.batch_size == batch]
        return build_network_sheet(
            list_forward_layer_modules(self.get_recorded_ops(batch)),
            max(calls, key=len, default=()),
        )

    def compute_estimated_step_flops(self, batch: int) -> Figure:
        """Estimated FLOPs of a step; unknown if the backward pass of a training run was not
        recorded."""
        sheet, mode = self.build_network_calculation_sheet(batch), self.analyses[0].study.mode
        if not sheet.lines:
            return make_missing_figure("not_available", "no run recorded the shapes of the layers")
        if mode != "infer" and not sheet.backward:
            return make_missing_figure("not_available", NO_BACKWARD)
        parts = sheet.total.flops, sheet.total.backward_flops
        return Figure(sum(part or 0 for part in parts), "counted", missing=sheet.missing)

    def find_layer_with_most_forward_macs(self) -> str | None:
        """The layer with the most multiply-adds in forward; None where no shapes are known."""
        macs: Counter[str] = Counter()
        for batch in self.batches[-1:]:
            for line in self.build_network_calculation_sheet(batch).lines:
                macs[line.layer] += line.macs or 0
        return max(macs, key=macs.__getitem__, default=None)

    def list_layer_points_by_batch(self, layer: str) -> tuple[LayerAtBatch, ...]:
        """One a batch size."""
        return tuple(_build_layer_point(self, batch, layer) for batch in self.batches)


def group_workload_runs_into_networks(
    runs: Sequence[Run], workload: str | None = None
) -> tuple[Network, ...]:
    """Return the networks of one workload, that of the first run if none is named, each with the
    analyses of its runs."""
    candidates = [
        study
        for study in group_into_studies(runs)
        if not study.is_foreign and workload in (None, study.workload)
    ]
    shaped = [study for study in candidates if any(run.report.ops for run in study.runs)]
    if not shaped:
        return ()
    first = min(shaped, key=lambda study: (study.workload != MNIST_CNN, study.variant is not None))
    kind = attrgetter("workload", "mode", "precision")
    analyses = analyse_studies(study for study in candidates if kind(study) == kind(first))
    by_variant = group_by(analyses, lambda analysis: analysis.study.variant)
    variants = [first.variant, *(study.variant for study in shaped if kind(study) == kind(first))]
    return tuple(
        Network(
            _format_network_label(by_variant[variant][0].study.runs), tuple(by_variant[variant])
        )
        for variant in dict.fromkeys(variants)
    )


def _format_network_label(runs: Sequence[Run]) -> str:
    """Return "conv2 32,64,3,1" for mnist_cnn, whose runs record it; else the options that are not
    at their default."""
    first = runs[0]
    shapes = (run.report.environment.get("option:conv2") for run in runs)
    shape = next(filter(None, shapes), None)
    if shape is None and first.workload == MNIST_CNN and first.variant is None:
        shape = str(CONV2)
    if shape is not None:
        return f"conv2 {shape.strip('[]()').replace(' ', '')}"
    # not a program's arguments
    variant = first.variant if first.variant and not first.variant.startswith("-") else None
    return (variant or first.workload or "").replace("=", " ")


def list_forward_layer_modules(ops: Iterable[OpShape]) -> tuple[TracedModule, ...]:
    """The layers that ran an operation, with the shape of the last one's first output, in the
    network's order."""
    modules: dict[str, TracedModule] = {}
    for op in ops:
        if op.layer and op.direction == "forward":
            output = next((shape for shape in op.outputs if shape is not None), None)
            depth, count = op.layer.count(".") + 1, op.parameters
            size = PARAMETER_BYTES * count
            modules[op.layer] = TracedModule(
                op.layer, op.kind, depth, output, count, count, size, called=True
            )
    return tuple(modules.values())


def _build_layer_point(network: Network, batch: int, layer: str) -> LayerAtBatch:
    runs = [run for run in network.runs if run.batch_size == batch]
    batches = [
        item
        for analysis in network.analyses
        for item in analysis.study.prepared_batches
        if item.batch == batch
    ]
    rows = [
        row
        for analysis in network.analyses
        for row in analysis.ledger.rows
        if (row.batch, row.layer, row.direction) == (batch, layer, "forward")
    ]
    nothing = make_missing_figure("not_collected", "no run at this batch size recorded the layer")
    counted_rows = [
        row for row in rows if row.executed.value is not None and row.executed.state != "derived"
    ]
    row = next(iter([*counted_rows, *rows]), None)
    counted = row.executed if row is not None else nothing
    if counted.state == "derived":
        counted = NOT_COUNTED
    derived = [
        figure
        for row in rows
        for figure in (row.derived, row.executed)
        if figure and figure.state == "derived" and figure.value is not None
    ]
    loose = _sum_unattributed_fp32_flops(batches) if counted.value is None else NO_LOOSE_WORK
    reason = "the run recorded no kernel"
    if loose.names:
        reason = "its kernels belong to no layer"
    elif any(item.run.report.kernels for of_batch in batches for item in of_batch.runs):
        reason = "perfctl has no rule for its kernels"
    whole_works = [
        item.counted_run.counted_step_work for item in batches if item.counted_run is not None
    ]
    return LayerAtBatch(
        batch=batch,
        estimated=next((row.estimated for row in rows if row.estimated.value is not None), nothing),
        executed=counted,
        derived=next(iter(derived), make_missing_figure("not_available", reason)),
        loose=loose,
        row=row,
        step_paper=network.compute_estimated_step_flops(batch),
        step_counted=next(
            (work.total for work in whole_works if work is not None),
            counted if counted.value is None else nothing,
        ),
        forward=_read_layer_time_by_both_clocks(runs, batches, layer, ("forward",)),
        backward=_read_layer_time_by_both_clocks(runs, batches, layer, _BACKWARD),
        step=_read_step_time_by_both_clocks(batches),
        host=tuple(
            {
                time.run.profiler: time.nanoseconds
                for time in list_reported_layer_host_times(runs)
                if (time.layer, time.direction) == (layer, "forward")
            }.items()
        ),
    )


def _sum_unattributed_fp32_flops(batches: Iterable[PreparedBatch]) -> UnclaimedLaunches:
    for batch in batches:
        if batch.counted_run is None:
            continue
        launches = [
            kernel.launch for kernel, key in batch.counted_run.measured_launches if key is None
        ]
        counts = [
            read_thread_counts_by_instruction(batch.counted_run.values.get(launch, {}))
            for launch in launches
        ]
        names = tuple(dict.fromkeys(name.upper() for by_name in counts for name in by_name))
        if names:
            total = sum(
                _WEIGHTS[name] * value for by_name in counts for name, value in by_name.items()
            )
            completed = [
                flops
                for launch in launches
                if launch in batch.rule_completed_counts_by_launch
                and (
                    flops := convert_instructions_to_flops(
                        batch.rule_completed_counts_by_launch[launch]
                    ).fp32.value
                )
                is not None
            ]
            return UnclaimedLaunches(total, names, sum(completed) if completed else None)
    return NO_LOOSE_WORK


def _read_layer_time_by_both_clocks(
    runs: Sequence[Run], batches: Iterable[PreparedBatch], layer: str, directions: Sequence[str]
) -> ClockPair:
    synchronised: TimeSpread | None = None
    for run in runs:
        timed = [
            item
            for item in run.report.layer_times
            if item.layer == layer and item.direction in directions
        ]
        if timed:
            middle, low, high = (
                float(sum(map(attrgetter(field), timed)))
                for field in ("duration_ns", "low_ns", "high_ns")
            )
            synchronised = TimeSpread(middle, low, high, timed[0].steps, middle)
    for times in (batch.layer_times for batch in batches):
        if times is None or not times.trusted:
            continue
        parts = [
            part
            for (name, direction), part in times.rows.items()
            if name == layer and direction in directions
        ]
        if parts:
            # step by step: a median of sums is no sum of medians
            steps = zip(*(part.values for part in parts), strict=True)
            profiled = parts[0] if len(parts) == 1 else compute_time_spread(list(map(sum, steps)))
            return ClockPair(synchronised, profiled, times.basis)
    return ClockPair(synchronised, None, None)


def _read_step_time_by_both_clocks(batches: Iterable[PreparedBatch]) -> ClockPair:
    plain: TimeSpread | None = None
    profiled: tuple[TimeSpread, str] | tuple[None, None] = (None, None)
    for item in (item for batch in batches for item in batch.runs):
        if item.step_time is not None and item.run.profiler == "none":
            plain = item.step_time[0]
        elif item.step_time is not None:
            profiled = item.step_time
    return ClockPair(plain, *profiled)
