"""How a study changes with the batch size: time per step and per sample, memory, failures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from perfctl.orchestrator.counts.counters.work import NO_BYTES
from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.counts.kernels.names import Algorithm, choose_main_layer_algorithm
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun, Study
from perfctl.orchestrator.ledger.timing import (
    Key,
    TimeSpread,
    compute_time_spread,
    list_complete_step_durations_ns,
    rank_profiler_clock,
)
from perfctl.orchestrator.ledger.usage.readings import compute_max_ignoring_none
from perfctl.orchestrator.statistics import compute_geometric_mean_95_interval
from perfctl.records.report import INPUT_SHAPE
from perfctl.records.run import (
    USE_BATCH_SIZE,
    Point,
    Run,
    UnusedBatchSizes,
    find_ignored_batch_sizes,
)

MEMORY_LINES = (
    ("peak", "allocated"),
    ("peak", "reserved"),
    ("peak", "host_resident"),
    ("after", "allocated"),
    ("after", "reserved"),
    ("after", "host_resident"),
)
"""Memory figures that a chart shows, the ones that matter first; "after" only without a "peak"."""

NOT_COUNTED = make_missing_figure(
    "not_collected", "no counters at this batch size; 'perfctl ncu' collects them"
)

NO_SAMPLES = make_missing_figure("not_available", "the samples of a step are unknown")


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One batch size of a study, or values of other parameters."""

    batch: Point
    step: TimeSpread | None
    basis: str | None
    memory: Mapping[str, int]
    """"peak allocated" -> bytes; only what was collected. "device in use" is the highest sample."""
    problems: tuple[str, ...]
    samples: float | None = None
    """Samples a step: the batch size, or those of all batches of an accumulated step. None:
    unknown, or without a step."""
    batches: float = 1.0
    """Batches a step, above 1 with gradient accumulation."""
    repeats: tuple[float, ...] = ()
    """Median step of each repeat, the newest last; empty where the sweep was not repeated. ``step``
    is then their median, with the fastest and the slowest step of all, as in ``compare``."""
    is_complete: bool = True
    """Whether the run of ``step`` ended as asked; one that did not is not ranked."""

    @property
    def step_confidence_interval_ns(self) -> tuple[float, float] | None:
        """95% interval of the step over repeats, in nanoseconds; None without any."""
        return compute_geometric_mean_95_interval(self.repeats)

    @property
    def step_ns_per_sample(self) -> float | None:
        return self.step.median / self.samples if self.step and self.samples else None


def list_batch_points(study: Study) -> tuple[BatchPoint, ...]:
    """Return one point per batch size, ascending, or per value of other parameters; a failed one
    too, without figures."""
    unused = find_batch_sizes_ignored_by_program(study)
    points = (
        _build_batch_point(batch, study.list_runs_at(batch), study.step_clock_profiler)
        for batch in study.points
    )
    return tuple(
        replace(point, samples=None) if unused and point.batch in unused.requested else point
        for point in points
    )


def find_batch_sizes_ignored_by_program(study: Study) -> UnusedBatchSizes | None:
    """Return the batch sizes of the study that its program did not use; None if it used all."""
    return find_ignored_batch_sizes(
        (run.batch_size, run.report.environment.get(INPUT_SHAPE))
        for run in study.runs
        if run.status == "ok"
    )


def describe_ignored_batch_sizes(study: Study) -> Iterator[str]:
    """Yield that the program did not use its batch sizes, if so, and what to do."""
    if (unused := find_batch_sizes_ignored_by_program(study)) is not None:
        remedy = USE_BATCH_SIZE.replace("`batch_env`", "--batch-env")
        yield f"{study.workload} {unused} in each step, so times per sample are unknown. {remedy}."


def _build_batch_point(
    batch: Point, runs: Sequence[PreparedRun], preferred_profiler: str | None
) -> BatchPoint:
    ranked = sorted(
        runs,
        key=lambda item: (
            item.run.status != "ok",
            rank_profiler_clock(item.run.profiler, preferred_profiler),
            -item.run.id,
        ),
    )
    memory = next(
        (figures for item in ranked if (figures := read_memory_bytes_by_label(item.run))), {}
    )
    problems = tuple(
        f"{item.run.profiler}: {item.run.status}, {item.run.reason or 'no reason given'}"
        for item in runs
        if item.run.status != "ok"
    )
    for item in ranked:
        if item.step_time is not None:
            step, basis = item.step_time
            repeats = [
                *filter(None, map(list_complete_step_durations_ns, item.run.repeats)),
                step.values,
            ]
            medians = tuple(map(statistics.median, repeats))
            if len(medians) > 1:
                steps = compute_time_spread(list(chain.from_iterable(repeats)))
                step = replace(steps, median=statistics.median(medians))
            return BatchPoint(
                batch,
                step,
                basis,
                memory,
                problems,
                samples=item.run.samples_per_step,
                batches=item.run.batches_per_step,
                repeats=medians if len(medians) > 1 else (),
                is_complete=item.run.status == "ok",
            )
    return BatchPoint(batch, None, None, memory, problems)


def read_memory_bytes_by_label(run: Run) -> dict[str, int]:
    """Return "peak allocated" -> bytes, of what the run recorded; "device in use" is the highest
    sample."""
    recorded = {(figure.moment, figure.quantity): figure.bytes for figure in run.report.memory}
    figures = {
        f"{moment} {quantity.replace('_', ' ')}": recorded[moment, quantity]
        for moment, quantity in MEMORY_LINES
        if (moment, quantity) in recorded
        and not (moment == "after" and ("peak", quantity) in recorded)
    }
    used = compute_max_ignoring_none(sample.memory_used_bytes for sample in run.report.samples)
    return figures if used is None else figures | {"device in use": used}


@dataclass(frozen=True, slots=True)
class LayerKernelSet:
    """The kernels of one layer in one direction at one batch size."""

    batch: int
    algorithm: Algorithm
    kernels: tuple[str, ...]
    """Distinct kernel names in order of first launch."""
    flops_per_sample: Figure
    bytes_per_sample: Figure


@dataclass(frozen=True, slots=True)
class KernelSwitch:
    """Two neighbouring batch sizes at which a layer runs on different kernels."""

    before: LayerKernelSet
    after: LayerKernelSet
    """``after.batch`` is the first batch size with the new kernels."""

    @property
    def changes_algorithm(self) -> bool:
        """False where only the tile or an auxiliary kernel differs."""
        old, new = (
            (item.family, item.method, item.math, item.tensor_core)
            for item in (self.before.algorithm, self.after.algorithm)
        )
        return old != new

    @property
    def flops_per_sample_factor(self) -> float | None:
        """FLOPs per sample after / before; None without both, or where they are lower bounds."""
        return _compute_after_to_before_ratio(
            self.before.flops_per_sample, self.after.flops_per_sample
        )

    @property
    def dram_bytes_per_sample_factor(self) -> float | None:
        """DRAM bytes per sample after / before; None without both."""
        return _compute_after_to_before_ratio(
            self.before.bytes_per_sample, self.after.bytes_per_sample
        )


@dataclass(frozen=True, slots=True)
class LayerKernelSweep:
    """One layer in one direction along the sweep."""

    layer: str
    direction: str
    name: str
    sets: tuple[LayerKernelSet, ...]

    @property
    def switches(self) -> tuple[KernelSwitch, ...]:
        pairs = pairwise(self.sets)
        return tuple(
            KernelSwitch(old, new) for old, new in pairs if set(old.kernels) != set(new.kernels)
        )


def list_layer_kernels_along_sweep(study: Study, ledger: Ledger) -> tuple[LayerKernelSweep, ...]:
    """Return every layer and direction with kernels, in the ledger's order; nothing for a report
    without batch sizes."""
    by_batch = [
        _collect_layer_kernel_sets(batch, batch.batch)
        for batch in study.prepared_batches
        if isinstance(batch.batch, int)
    ]
    names = {(row.layer, row.direction): row.name for row in ledger.rows}
    return tuple(
        LayerKernelSweep(*key, name, sets)
        for key, name in names.items()
        if (sets := tuple(of_batch[key] for of_batch in by_batch if key in of_batch))
    )


def describe_algorithm(algorithm: Algorithm) -> str:
    """ "implicit gemm 128x64, tf32 tensor cores": what a table shows of an algorithm."""
    if algorithm.family is None:
        return "not recognised"
    tile = "x".join(str(side) for side in algorithm.tile[:2]) if algorithm.tile else None
    parts = (
        (algorithm.method, tile),
        (algorithm.math, "tensor cores" if algorithm.tensor_core else None),
    )
    return ", ".join(filter(None, (" ".join(filter(None, part)) for part in parts)))


def _collect_layer_kernel_sets(batch: PreparedBatch, batch_size: int) -> dict[Key, LayerKernelSet]:
    run = batch.counted_or_derived_run or next(
        (item for item in batch.runs if item.run.report.kernels), None
    )
    if run is None:
        return {}
    names: dict[Key, dict[str, None]] = defaultdict(dict)  # in order of first launch
    for kernel, key in run.measured_launches:
        if key is not None:
            names[key][kernel.name] = None
    work = (
        batch.counted_or_derived_run.counted_work_by_layer_direction
        if batch.counted_or_derived_run
        else {}
    )
    samples = run.run.samples_per_step
    sets = {}
    for key, kernels in names.items():
        figures = (work[key].total, work[key].dram) if key in work else (NOT_COUNTED, NO_BYTES)
        per_sample = (
            figure
            if figure.value is None
            else replace(figure, value=figure.value / samples)
            if samples
            else NO_SAMPLES
            for figure in figures
        )
        sets[key] = LayerKernelSet(
            batch_size, choose_main_layer_algorithm(kernels), tuple(kernels), *per_sample
        )
    return sets


def _compute_after_to_before_ratio(before: Figure, after: Figure) -> float | None:
    if not before.value or after.value is None or before.lower_bound or after.lower_bound:
        return None
    return after.value / before.value
