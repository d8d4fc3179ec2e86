"""Which kernels run each layer at each batch size, and where the algorithm changes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from perfctl.orchestrator.analyse.algorithms import Algorithm, of_layer
from perfctl.orchestrator.analyse.counted_work import NO_BYTES
from perfctl.orchestrator.analyse.figure import Figure, missing
from perfctl.orchestrator.analyse.ledger import Ledger
from perfctl.orchestrator.analyse.prepared import PreparedBatch, PreparedRun, PreparedStudy
from perfctl.orchestrator.analyse.timing import Key

NOT_COUNTED = missing("not_collected", "no counters at this batch size; 'perfctl ncu' collects them")


@dataclass(frozen=True, slots=True)
class KernelSet:
    """The kernels of one layer in one direction at one batch size."""

    batch: int
    algorithm: Algorithm
    kernels: tuple[str, ...]
    """Distinct kernel names in order of first launch, short where the report has a short form."""
    flops_per_sample: Figure
    """Counted FLOPs of a step / batch size."""
    bytes_per_sample: Figure
    """DRAM bytes of a step / batch size."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Two neighbouring batch sizes at which a layer runs on different kernels."""

    before: KernelSet
    after: KernelSet
    """``after.batch`` is the first batch size with the new kernels."""

    @property
    def algorithm_changed(self) -> bool:
        """False where only the tile or an auxiliary kernel differs."""
        old, new = self.before.algorithm, self.after.algorithm
        return (old.family, old.method, old.math, old.tensor_core) != (
            new.family,
            new.method,
            new.math,
            new.tensor_core,
        )

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
    """ "conv2 forward"."""
    sets: tuple[KernelSet, ...]
    """By batch size, ascending; batch sizes without a kernel of this layer are left out."""
    switches: tuple[Switch, ...]


def algorithm_changes(study: PreparedStudy, ledger: Ledger) -> tuple[LayerKernels, ...]:
    """Every layer and direction with kernels, in the ledger's order; nothing for a report without batch sizes."""
    by_batch = [_sets(batch) for batch in study.batches]
    rows = {(row.layer, row.direction): row.name for row in ledger.rows}
    found = []
    for (layer, direction), name in rows.items():
        sets = tuple(sets[layer, direction] for sets in by_batch if (layer, direction) in sets)
        if sets:
            switches = tuple(Switch(old, new) for old, new in pairwise(sets) if set(old.kernels) != set(new.kernels))
            found.append(LayerKernels(layer, direction, name, sets, switches))
    return tuple(found)


def describe(algorithm: Algorithm) -> str:
    """ "implicit gemm 128x64, tf32 tensor cores": what a table shows of an algorithm."""
    if algorithm.family is None:
        return "not recognised"
    tile = "x".join(str(side) for side in algorithm.tile[:2]) if algorithm.tile else None
    math = " ".join(filter(None, (algorithm.math, "tensor cores" if algorithm.tensor_core else None)))
    return ", ".join(filter(None, (" ".join(filter(None, (algorithm.method, tile))), math)))


def _sets(batch: PreparedBatch) -> dict[Key, KernelSet]:
    """Kernels of the counting run, else of the first run with kernels."""
    counting = batch.counting
    run = counting or next((item for item in batch.runs if item.run.report.kernels), None)
    if run is None:
        return {}
    work = counting.work_by_key if counting else {}
    found = {}
    for key, names in _names(run).items():
        mine = work.get(key)
        found[key] = KernelSet(
            batch.batch,
            of_layer(names),
            tuple(dict.fromkeys(short for short in names.values())),
            _per_sample(mine.total, batch.batch) if mine else NOT_COUNTED,
            _per_sample(mine.dram, batch.batch) if mine else NO_BYTES,
        )
    return found


def _names(run: PreparedRun) -> dict[Key, dict[str, str]]:
    """(layer, direction) -> whole name -> short name, in order of first launch in the measured steps."""
    found: dict[Key, dict[str, str]] = {}
    for kernel, key in run.launches:
        if key is not None:
            found.setdefault(key, {}).setdefault(kernel.name, kernel.short_name or kernel.name)
    return found


def _per_sample(figure: Figure, batch: int) -> Figure:
    return figure if figure.value is None else replace(figure, value=figure.value / batch)


def _factor(before: Figure, after: Figure) -> float | None:
    if not before.value or after.value is None or before.lower_bound or after.lower_bound:
        return None
    return after.value / before.value
