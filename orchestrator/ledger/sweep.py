"""How a study changes with the batch size: time per step and per sample, memory, failures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfctl.orchestrator.counts.counters.work import NO_BYTES
from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.counts.kernels.names import Algorithm, of_layer
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun, Study
from perfctl.orchestrator.ledger.timing import Key, Spread, preference, step_durations
from perfctl.orchestrator.ledger.usage.readings import max_known
from perfctl.orchestrator.statistics import interval
from perfctl.records.report import INPUT_SHAPE
from perfctl.records.run import (
    USE_BATCH_SIZE,
    Point,
    Run,
    UnusedBatchSizes,
    find_unused_batch_sizes,
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

NOT_COUNTED = missing(
    "not_collected", "no counters at this batch size; 'perfctl ncu' collects them"
)

NO_SAMPLES = missing("not_available", "the samples of a step are unknown")


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One batch size of a study, or values of other parameters."""

    batch: Point
    step: Spread | None
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
    """Median step of each repeat, the newest last; empty where the sweep was not repeated. Repeats
    are never averaged."""
    is_complete: bool = True
    """Whether the run of ``step`` ended as asked; one that did not is not ranked."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the step over repeats, in nanoseconds; None without any."""
        return interval(self.repeats)

    @property
    def per_sample(self) -> float | None:
        return self.step.median / self.samples if self.step and self.samples else None


def points(study: Study) -> tuple[BatchPoint, ...]:
    """Return one point per batch size, ascending, or per value of other parameters; a failed one
    too, without figures."""
    unused = unused_batch_sizes(study)
    points = (_point(batch, study.recorded(batch), study.step_clock) for batch in study.points)
    return tuple(
        replace(point, samples=None) if unused and point.batch in unused.requested else point
        for point in points
    )


def unused_batch_sizes(study: Study) -> UnusedBatchSizes | None:
    """Return the batch sizes of the study that its program did not use; None if it used all."""
    return find_unused_batch_sizes(
        (run.batch_size, run.report.environment.get(INPUT_SHAPE))
        for run in study.runs
        if run.status == "ok"
    )


def unused_batch_finding(study: Study) -> Iterator[str]:
    """Yield that the program did not use its batch sizes, if so, and what to do."""
    if (unused := unused_batch_sizes(study)) is not None:
        remedy = USE_BATCH_SIZE.replace("`batch_env`", "--batch-env")
        yield f"{study.workload} {unused} in each step, so times per sample are unknown. {remedy}."


def _point(batch: Point, runs: Sequence[PreparedRun], clock: str | None) -> BatchPoint:
    ranked = sorted(
        runs,
        key=lambda item: (
            item.run.status != "ok",
            preference(item.run.profiler, clock),
            -item.run.id,
        ),
    )
    memory = next((figures for item in ranked if (figures := memory_figures(item.run))), {})
    problems = tuple(
        f"{item.run.profiler}: {item.run.status}, {item.run.reason or 'no reason given'}"
        for item in runs
        if item.run.status != "ok"
    )
    for item in ranked:
        if item.step_time is not None:
            return BatchPoint(
                batch,
                *item.step_time,
                memory,
                problems,
                samples=item.run.samples_per_step,
                batches=item.run.batches_per_step,
                repeats=_repeats(item.run, item.step_time[0]),
                is_complete=item.run.status == "ok",
            )
    return BatchPoint(batch, None, None, memory, problems)


def _repeats(run: Run, newest: Spread) -> tuple[float, ...]:
    """Return the median step of each repeat, the newest last; nothing without repeats."""
    repeats = filter(None, map(step_durations, run.repeats))
    medians = [statistics.median(durations) for durations in repeats]
    return (*medians, newest.median) if medians else ()


def memory_figures(run: Run) -> dict[str, int]:
    """Return "peak allocated" -> bytes, of what the run recorded; "device in use" is the highest
    sample."""
    recorded = {(figure.moment, figure.quantity): figure.bytes for figure in run.report.memory}
    figures = {
        f"{moment} {quantity.replace('_', ' ')}": recorded[moment, quantity]
        for moment, quantity in MEMORY_LINES
        if (moment, quantity) in recorded
        and not (moment == "after" and ("peak", quantity) in recorded)
    }
    used = max_known(sample.memory_used_bytes for sample in run.report.samples)
    return figures if used is None else figures | {"device in use": used}


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The kernels of one layer in one direction at one batch size."""

    batch: int
    algorithm: Algorithm
    kernels: tuple[str, ...]
    """Distinct kernel names in order of first launch."""
    flops_per_sample: Figure
    bytes_per_sample: Figure


@dataclass(frozen=True, slots=True)
class Switch:
    """Two neighbouring batch sizes at which a layer runs on different kernels."""

    before: KernelSet
    after: KernelSet
    """``after.batch`` is the first batch size with the new kernels."""

    @property
    def algorithm_changed(self) -> bool:
        """False where only the tile or an auxiliary kernel differs."""
        old, new = (
            (item.family, item.method, item.math, item.tensor_core)
            for item in (self.before.algorithm, self.after.algorithm)
        )
        return old != new

    @property
    def flops_factor(self) -> float | None:
        """FLOPs per sample after / before; None without both, or where they are lower bounds."""
        return _factor(self.before.flops_per_sample, self.after.flops_per_sample)

    @property
    def bytes_factor(self) -> float | None:
        """DRAM bytes per sample after / before; None without both."""
        return _factor(self.before.bytes_per_sample, self.after.bytes_per_sample)


@dataclass(frozen=True, slots=True)
class LayerKernels:
    """One layer in one direction along the sweep."""

    layer: str
    direction: str
    name: str
    sets: tuple[KernelSet, ...]

    @property
    def switches(self) -> tuple[Switch, ...]:
        pairs = pairwise(self.sets)
        return tuple(Switch(old, new) for old, new in pairs if set(old.kernels) != set(new.kernels))


def algorithm_changes(study: Study, ledger: Ledger) -> tuple[LayerKernels, ...]:
    """Return every layer and direction with kernels, in the ledger's order; nothing for a report
    without batch sizes."""
    by_batch = [
        _kernel_sets(batch, batch.batch)
        for batch in study.prepared_batches
        if isinstance(batch.batch, int)
    ]
    names = {(row.layer, row.direction): row.name for row in ledger.rows}
    return tuple(
        LayerKernels(*key, name, sets)
        for key, name in names.items()
        if (sets := tuple(of_batch[key] for of_batch in by_batch if key in of_batch))
    )


def describe(algorithm: Algorithm) -> str:
    """ "implicit gemm 128x64, tf32 tensor cores": what a table shows of an algorithm."""
    if algorithm.family is None:
        return "not recognised"
    tile = "x".join(str(side) for side in algorithm.tile[:2]) if algorithm.tile else None
    parts = (
        (algorithm.method, tile),
        (algorithm.math, "tensor cores" if algorithm.tensor_core else None),
    )
    return ", ".join(filter(None, (" ".join(filter(None, part)) for part in parts)))


def _kernel_sets(batch: PreparedBatch, size: int) -> dict[Key, KernelSet]:
    run = batch.counting or next((item for item in batch.runs if item.run.report.kernels), None)
    if run is None:
        return {}
    names: dict[Key, dict[str, None]] = defaultdict(dict)  # in order of first launch
    for kernel, key in run.launches:
        if key is not None:
            names[key][kernel.name] = None
    work = batch.counting.work_by_key if batch.counting else {}
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
        sets[key] = KernelSet(size, of_layer(kernels), tuple(kernels), *per_sample)
    return sets


def _factor(before: Figure, after: Figure) -> float | None:
    if not before.value or after.value is None or before.lower_bound or after.lower_bound:
        return None
    return after.value / before.value
