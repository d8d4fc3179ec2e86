"""One layer of a network at every batch size: on paper, counted, derived, and timed by two clocks.

A network may have run on several devices, and each of these is a study of its own; here they are
read together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from perfctl.orchestrator.counts.counters.sums import instructions
from perfctl.orchestrator.counts.derived.run import as_flops
from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.estimate.sheets.network import NetworkSheet, network_sheet
from perfctl.orchestrator.estimate.sheets.sheet import Sheet, sheet_for
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import GRADIENTS, Spread, spread
from perfctl.records.paper import ModuleSeen, OpShape
from perfctl.records.run import Run

PARAMETER_BYTES = 4
"""Bytes of a parameter: autocast keeps them in fp32, too."""
NO_BACKWARD = "the runs recorded the shapes of forward only"
_WEIGHTS = {"fadd": 1, "fmul": 1, "ffma": 2}
"""FLOPs of an fp32 instruction; 1 multiply-add = 2."""
_BACKWARD = (*GRADIENTS, "backward")


@dataclass(frozen=True, slots=True)
class Clocks:
    """One piece of work by both clocks; None where one did not time it."""

    synchronised: Spread | None
    """By a clock that waits for the device, with no profiler."""
    profiled: Spread | None
    """By a profiler."""
    basis: str | None
    """Which profiler, and what of it."""

    @property
    def factor(self) -> float | None:
        """Profiled / synchronised medians; None without both."""
        if self.synchronised is None or self.profiled is None or not self.synchronised.median:
            return None
        return self.profiled.median / self.synchronised.median

    @property
    def scatter(self) -> float:
        """Slowest step / fastest step, of the clock where it is larger; 1 where nothing
        was timed."""
        both = [one for one in (self.synchronised, self.profiled) if one is not None and one.low]
        return max((one.high / one.low for one in both), default=1.0)


@dataclass(frozen=True, slots=True)
class LayerPoint:
    """The layer's forward pass, and the whole step, at one batch size. FLOPs: 1
    multiply-add = 2."""

    batch: int
    paper: Figure
    counted: Figure
    """By hardware counters; never a derived value."""
    derived: Figure
    """From kernel names, grids and shapes."""
    loose: float | None
    """FLOPs of collected fp32 instructions in launches that no layer claims; only where the layer
    has no count. A part of what they executed where not all instructions were collected."""
    loose_names: tuple[str, ...]
    """Instructions that ``loose`` is made of."""
    loose_derived: float | None
    """All FLOPs of these launches, where a rule completes what was collected."""
    row: LedgerRow | None
    """The ledger's row that ``counted`` stands in; None where no run saw the layer."""
    step_paper: Figure
    step_counted: Figure
    forward: Clocks
    backward: Clocks
    step: Clocks
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
                (run for one in self.analyses for run in one.study.runs),
                key=lambda run: run.batch_size or 0,
            )
        )

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes of the runs, ascending."""
        return tuple(sorted({size for one in self.analyses for size in one.study.batches}))

    def ops(self, batch: int) -> Sequence[OpShape]:
        """Shapes that a run recorded at this batch size, with backward where any did; () where
        none did."""
        known = [run.report.ops for run in self.runs if run.batch_size == batch and run.report.ops]
        return max(known, key=len, default=())

    def sheet(self, batch: int, layer: str) -> Sheet | None:
        """The worked sheet of a layer; None where its shapes are not known."""
        return sheet_for(self.ops(batch), layer)

    def network_sheet(self, batch: int) -> NetworkSheet:
        """A line for every layer that computes something, and the totals."""
        calls = next((run.layer_calls for run in self._with_calls(batch)), ())
        return network_sheet(modules_of(self.ops(batch)), calls)

    def _with_calls(self, batch: int) -> list[Run]:
        known = [run for run in self.runs if run.batch_size == batch and run.layer_calls]
        return sorted(known, key=lambda run: -len(run.layer_calls))

    def step_paper(self, batch: int) -> Figure:
        """Paper FLOPs of a whole step; not known where a training's backward was not recorded."""
        sheet, mode = self.network_sheet(batch), self.analyses[0].study.mode
        if not sheet.lines:
            return missing("not_available", "no run recorded the shapes of the layers")
        if mode != "infer" and not sheet.backward:
            return missing("not_available", NO_BACKWARD)
        parts = sheet.total.flops, sheet.total.backward_flops
        return Figure(sum(part or 0 for part in parts), "counted", missing=sheet.unknown)

    def main_layer(self) -> str | None:
        """The layer with the most multiply-adds in forward; None where no shapes are known."""
        sums: dict[str, int] = {}
        for batch in self.batches[-1:]:
            for line in self.network_sheet(batch).lines:
                sums[line.layer] = sums.get(line.layer, 0) + (line.macs or 0)
        return max(sums, key=lambda layer: sums[layer], default=None)

    def points(self, layer: str) -> tuple[LayerPoint, ...]:
        """One a batch size."""
        return tuple(_point(self, batch, layer) for batch in self.batches)


def modules_of(ops: Iterable[OpShape]) -> tuple[ModuleSeen, ...]:
    """The layers that ran an operation, with the shape of the last one's first output, in the
    network's order."""
    found: dict[str, ModuleSeen] = {}
    for op in ops:
        if op.layer and op.direction == "forward":
            output = next((shape for shape in op.outputs if shape is not None), None)
            held, depth = op.parameters, op.layer.count(".") + 1
            found[op.layer] = ModuleSeen(
                op.layer, op.kind, depth, output, held, held, PARAMETER_BYTES * held, called=True
            )
    return tuple(found.values())


def _point(network: Network, batch: int, layer: str) -> LayerPoint:
    prepared = [
        item
        for one in network.analyses
        for item in one.study.prepared_batches
        if item.batch == batch
    ]
    rows = [
        row
        for one in network.analyses
        for row in one.ledger.rows
        if row.batch == batch and row.layer == layer and row.direction == "forward"
    ]
    nothing = missing("not_collected", "no run at this batch size saw the layer")
    counts = [
        row for row in rows if row.counted.value is not None and row.counted.state != "derived"
    ]
    row = next(iter(counts), rows[0] if rows else None)
    counted = row.counted if row is not None else nothing
    if counted.state == "derived":
        counted = missing(
            "not_collected", "no counters at this batch size; 'perfctl ncu' collects them"
        )
    derived = [
        found
        for one in rows
        for found in (one.derived, one.counted)
        if found and found.state == "derived"
    ]
    loose, names, completed = _loose(prepared) if counted.value is None else (None, (), None)
    why = (
        "no kernel was recorded"
        if not _any_kernel(prepared)
        else "no rule for the kernels that ran"
    )
    why = "its kernels belong to no layer" if names else why
    whole = [item.counted.whole_work for item in prepared if item.counted is not None]
    return LayerPoint(
        batch,
        next((one.paper for one in rows if one.paper.value is not None), nothing),
        counted,
        next((one for one in derived if one.value is not None), missing("not_available", why)),
        loose,
        names,
        completed,
        row,
        network.step_paper(batch),
        next(
            (work.total for work in whole if work is not None),
            counted if counted.value is None else nothing,
        ),
        _clocks(network, prepared, batch, layer, ("forward",)),
        _clocks(network, prepared, batch, layer, _BACKWARD),
        _step_clocks(prepared),
        _host(network, batch, layer),
    )


def _any_kernel(prepared: Iterable[PreparedBatch]) -> bool:
    return any(item.run.report.kernels for batch in prepared for item in batch.runs)


def _loose(prepared: Iterable[PreparedBatch]) -> tuple[float | None, tuple[str, ...], float | None]:
    """(FLOPs of collected instructions of no layer, the instructions, all FLOPs of these launches
    by their rules)."""
    for batch in prepared:
        if batch.counted is None:
            continue
        of_none = [kernel.launch for kernel, key in batch.counted.launches if key is None]
        found = [instructions(batch.counted.values.get(launch, {})) for launch in of_none]
        names = tuple(dict.fromkeys(name.upper() for one in found for name in one))
        if not names:
            continue
        total = sum(_WEIGHTS[name] * value for one in found for name, value in one.items())
        whole = [
            as_flops(batch.completed[launch]).fp32.value
            for launch in of_none
            if launch in batch.completed
        ]
        known = [value for value in whole if value is not None]
        return total, names, sum(known) if known else None
    return None, (), None


def _clocks(
    network: Network,
    prepared: Iterable[PreparedBatch],
    batch: int,
    layer: str,
    directions: Sequence[str],
) -> Clocks:
    timed = [
        [
            one
            for one in run.report.layer_times
            if one.layer == layer and one.direction in directions
        ]
        for run in network.runs
        if run.batch_size == batch
    ]
    own = next((found for found in reversed(timed) if found), ())
    synchronised: Spread | None = None
    if own:
        middle, low, high = (
            float(sum(getattr(one, name) for one in own))
            for name in ("duration_ns", "low_ns", "high_ns")
        )
        synchronised = Spread(middle, low, high, own[0].steps, middle)
    for item in prepared:
        times = item.times
        mine = (
            [one for (name, way), one in times.rows.items() if name == layer and way in directions]
            if times
            else []
        )
        if times is not None and mine and times.trusted:
            return Clocks(synchronised, _sum(mine), times.basis)
    return Clocks(synchronised, None, None)


def _sum(parts: Sequence[Spread]) -> Spread:
    """Of the parts of one direction, step by step: a median of sums is no sum of medians."""
    return (
        parts[0]
        if len(parts) == 1
        else spread([sum(step) for step in zip(*(one.values for one in parts), strict=True)])
    )


def _step_clocks(prepared: Iterable[PreparedBatch]) -> Clocks:
    plain: Spread | None = None
    profiled: tuple[Spread, str] | None = None
    for item in _runs(prepared):
        if item.step_time is None:
            continue
        if item.run.profiler == "none":
            plain = item.step_time[0]
        else:
            profiled = item.step_time
    return Clocks(plain, *(profiled or (None, None)))


def _runs(prepared: Iterable[PreparedBatch]) -> Iterator[PreparedRun]:
    for batch in prepared:
        yield from batch.runs


def _host(network: Network, batch: int, layer: str) -> tuple[tuple[str, float], ...]:
    name = f"host_time:{layer}:forward"
    found = {
        run.profiler: one.value
        for run in network.runs
        if run.batch_size == batch
        for one in run.report.summaries
        if one.name == name and one.value is not None
    }
    return tuple(found.items())
