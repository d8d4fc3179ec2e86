"""What one run shows of each quantity: times, throughput, memory, FLOPs and energy by step, layer
and kernel. FLOPs: 1 multiply-add = 2."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from perfctl.orchestrator.counts.figure import Figure, sum_figures
from perfctl.orchestrator.ledger.ledger import OUTSIDE, ledger
from perfctl.orchestrator.ledger.prepared import PreparedRun, group_into_studies
from perfctl.orchestrator.ledger.sweep import read_memory_peaks
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS
from perfctl.records.report import Kernel

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
    return observe_times(run) | _observe_energy(run) | observe_memory(run) | observe_flops(run)


def observe_memory(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return memory as the run recorded it, and how many kernels it launched."""
    observed = {
        QuantityKey("step", "memory", name): ObservedQuantity(
            (float(size),), "memory as the run recorded it"
        )
        for name, size in read_memory_peaks(run.run).items()
    }
    if run.launches:
        count = len({kernel.launch for kernel, _ in run.launches}) / (run.steps or 1)
        observed[LAUNCHES] = ObservedQuantity((count,), "launches of kernels", bool(run.steps))
    return observed


def observe_times(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the times of steps, phases, layers and kernels, and samples per second."""
    return dict(
        (*_observe_step_times(run), *_observe_layer_times(run), *_observe_kernel_times(run))
    )


def observe_flops(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the executed FLOPs of a step, by layer and direction and in all."""
    if not run.run.report.counters:
        return {}
    (study,) = group_into_studies([run.run])
    entries = ledger(replace(study, prepared=(run,)))
    figures = {(row.layer, row.direction): row.executed for row in entries.rows}
    if any(key is None for _, key in run.launches):  # else there is nothing to count of no layer
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


def _observe_energy(run: PreparedRun) -> dict[QuantityKey, ObservedQuantity]:
    """Return the energy of a step of all GPUs, and times the step's time, if all are known."""
    energies = run.usage.energy
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
    steps, profiler = run.steps or 1, run.run.profiler
    groups: dict[QuantityKey, list[Kernel]] = defaultdict(list)
    timed_steps: dict[int | None, None] = {}
    for kernel, row_key in run.launches:
        if kernel.duration_ns is not None:
            key = QuantityKey("kernel", "time", "", *(row_key or (UNATTRIBUTED, "")), kernel.name)
            groups[key].append(kernel)
            timed_steps[kernel.step] = None
    basis = KERNEL_BASIS.get(profiler, f"kernels, {profiler}") if run.steps else PER_REPORT
    for key, kernels in groups.items():
        times: dict[int | None, float] = dict.fromkeys(timed_steps, 0.0)
        grids: Counter[str] = Counter()
        for kernel in kernels:
            times[kernel.step] += (kernel.duration_ns or 0.0) / (1 if run.numbered else steps)
            if kernel.grid_x is not None:
                sides = (kernel.grid_x, kernel.grid_y, kernel.grid_z)
                grids["x".join(str(side or 1) for side in sides)] += 1
        shapes = tuple(sorted(grids, key=lambda grid: (-grids[grid], grid)))
        values = tuple(times.values())
        yield key, ObservedQuantity(values, basis, profiler != "ncu", shapes, len(kernels) / steps)
