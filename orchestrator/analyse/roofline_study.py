"""The work of a study for the roofline: by kernel name, by layer and direction, and for whole steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeVar

from perfctl.orchestrator.analyse.algorithms import recognise
from perfctl.orchestrator.analyse.behind import with_whole_backward
from perfctl.orchestrator.analyse.counters import compute_capability, flops_by_launch, values_by_launch
from perfctl.orchestrator.analyse.counts_tensor import INTEGER
from perfctl.orchestrator.analyse.devices import TENSOR
from perfctl.orchestrator.analyse.figure import Figure, absent, add
from perfctl.orchestrator.analyse.grouping import Study, device_kind
from perfctl.orchestrator.analyse.latency import latency
from perfctl.orchestrator.analyse.ledger import NO_COUNTERS, NOT_COUNTED, Ledger, counting_run
from perfctl.orchestrator.analyse.match import match
from perfctl.orchestrator.analyse.peaks import Peaks, peaks_of
from perfctl.orchestrator.analyse.roofline import Point, Work, place
from perfctl.orchestrator.analyse.timing import (
    KERNEL_BASIS,
    LayerTimes,
    best_layer_times,
    kernel_keys,
    kernel_steps,
    layer_times,
    step_time,
    widest,
)
from perfctl.parsers.stored import Run

K = TypeVar("K", bound=Hashable)
PLAIN = ("fp32", "fp64", "fp16")
NO_BYTES = absent("not_collected", "DRAM bytes were not counted; 'perfctl ncu' collects them")


class Counts(NamedTuple):
    """Counted work of a group of launches."""

    paths: Mapping[str, Figure]
    total: Figure
    dram: Figure
    launches: float


NOTHING = Counts({}, absent("not_collected", NOT_COUNTED), NO_BYTES, 0)
NO_BYTES_ON_A_CPU = absent("not_available", "DRAM bytes are counted on NVIDIA GPUs only, by ncu")
ON_A_CPU = Counts({}, absent("not_available", NO_COUNTERS), NO_BYTES_ON_A_CPU, 0)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Every point of a study, and the roofs they stand under."""

    peaks: Peaks
    points: tuple[Point, ...]
    by_row: Mapping[tuple[int | None, str | None, str | None], Point]
    """(batch, layer, direction) -> the point of that ledger row."""

    def at(self, level: str) -> tuple[Point, ...]:
        """The points of one level: run, layer or kernel."""
        return tuple(point for point in self.points if point.work.level == level)

    def of(self, batch: int, layer: str, direction: str) -> Point | None:
        """The point of one ledger row; None when it has none."""
        return self.by_row.get((batch, layer, direction))


def roofline(study: Study, ledger: Ledger, measured: Sequence[Peaks] = ()) -> Roofline:
    """The points of a study; ``measured`` peaks take the place of published ones for devices of the same name."""
    device = next((run.device or next(iter(run.report.devices), None) for run in study.runs), None)
    device = next((run.device for run in study.runs if run.device), device)
    peaks = peaks_of(device, measured)
    works: list[Work] = []
    if study.foreign:
        works += [work for run in study.runs for work in _kernels(run, run, None, None)]
    else:
        first = widest(study.runs, layer_times) if len(study.batches) > 1 else None
        for batch in study.batches:
            works += _at_batch(study, ledger, batch, first)
    points = tuple(place(work, peaks) for work in works)
    by_row = {(p.work.batch, p.work.layer, p.work.direction): p for p in points if p.work.level == "layer"}
    return Roofline(peaks, points, by_row)


def _at_batch(study: Study, ledger: Ledger, batch: int, first: str | None) -> list[Work]:
    runs = with_whole_backward(study.at(batch))
    counting, timed = counting_run(runs), best_layer_times(runs, first)
    keys: list[object] = list(kernel_keys(counting)) if counting else []
    by_key = counts(counting, keys, study.precision) if counting else {}
    nothing = ON_A_CPU if {device_kind(run) for run in runs} - {None} == {"cpu"} else NOTHING
    found = [_step(study, ledger, batch, counting, timed, nothing)]
    launches = {(row.layer, row.direction): sum(use.per_step for use in row.kernels) or None
                for row in ledger.rows if row.batch == batch}  # fmt: skip
    for row in ledger.rows:
        if row.batch != batch or not (row.paper.value or row.counted.value or row.time):
            continue
        key = (row.layer, row.direction)
        mine = by_key.get(key, nothing)
        found.append(
            Work(
                "layer", row.name, batch, row.layer, row.direction, mine.paths, row.counted, row.paper.value, mine.dram,
                row.time.median if row.time else None, row.basis, row.trusted, launches[key], mine.launches or None,
                study.precision,
            )
        )  # fmt: skip
    return [*found, *_kernels(counting, timed[0] if timed else None, batch, study.precision)]


def wall_time(run: Run) -> tuple[float, str] | None:
    """Time of a step and its basis, without the wait for images where it is known: that is no work of the device's."""
    timed, answered = step_time(run), latency(run)
    if timed is None:
        return None
    without = answered.percentiles[50] if answered else None
    return (timed[0].median, timed[1]) if without is None else (without, f"{timed[1]}, without waiting for images")


def _step(
    study: Study,
    ledger: Ledger,
    batch: int,
    counting: Run | None,
    timed: tuple[Run, LayerTimes] | None,
    nothing: Counts,
) -> Work:
    """A whole step: time of the step where it was timed, else the kernels' time."""
    paper = [row.paper.value for row in ledger.rows if row.batch == batch and row.paper.value is not None]
    whole = counts(counting, [0] * len(list(counting.report.kernels)), study.precision).get(0) if counting else None
    whole = whole or nothing
    run, times = timed if timed else (None, None)
    wall = wall_time(run) if run else None
    kernels = times is not None and times.basis in KERNEL_BASIS.values() and times.trusted
    inside = times.total.median if times and kernels else None
    time_ns, basis = wall if wall else (inside, times.basis if times and kernels else None)
    busy = inside / wall[0] if inside and wall and wall[0] else None
    return Work(
        "run", f"whole step, batch {batch}", batch, None, None, whole.paths, whole.total, sum(paper) if paper else None,
        whole.dram, time_ns, basis, True, precision=study.precision, busy=busy,
    )  # fmt: skip


def _kernels(counting: Run | None, timing: Run | None, batch: int | None, precision: str | None) -> list[Work]:
    """By kernel name. Time is that of the same launches in ``timing``; where it has none of them, under ncu."""
    if counting is None or not any(True for _ in counting.report.counters):
        return []
    by_name = counts(counting, [kernel.name for kernel in counting.report.kernels], precision)
    own = _means(counting, {})
    other: dict[str, float] = {}
    if timing is not None and timing is not counting:
        clock = {kernel.launch: kernel.duration_ns for kernel in timing.report.kernels}
        other = _means(counting, {pair.counted: clock.get(pair.timed) for pair in match(counting, timing).pairs})
    found = []
    for name, mine in by_name.items():
        source = timing if timing is not None and name in other else counting
        each = other[name] if name in other else own.get(name)
        found.append(
            Work(
                "kernel", name, batch, None, None, mine.paths, mine.total, None, mine.dram,
                each * mine.launches if each else None, KERNEL_BASIS.get(source.profiler, source.profiler) if each else None,
                source.profiler != "ncu", mine.launches, mine.launches, precision,
            )
        )  # fmt: skip
    return found


def _means(run: Run, times: Mapping[int, float | None]) -> dict[str, float]:
    """kernel name -> mean nanoseconds a launch; by the run's own clock without ``times`` of its launches."""
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in run.report.kernels:
        took = times.get(kernel.launch) if times else kernel.duration_ns
        if took is not None:
            found[kernel.name].append(took)
    return {name: fmean(values) for name, values in found.items()}


def counts(run: Run, keys: Sequence[K], precision: str | None) -> dict[K, Counts]:
    """key -> counted work per step of its launches; ``keys`` stand in the order of the run's kernels."""
    steps = kernel_steps(run) or 1
    numbered = any(kernel.step is not None for kernel in run.report.kernels)
    flops, values = flops_by_launch(run), values_by_launch(run.report.counters)
    capability = compute_capability(run)
    paths: dict[K, dict[str, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    totals: dict[K, list[Figure]] = defaultdict(list)
    bytes_of: dict[K, list[Figure]] = defaultdict(list)
    for kernel, key in zip(run.report.kernels, keys, strict=True):
        if numbered and kernel.step is None:
            continue
        found, mine = flops.get(kernel.launch), values.get(kernel.launch, {})
        totals[key].append(found.total if found else NOTHING.total)
        bytes_of[key].append(dram_bytes(mine))
        if found:
            for path in PLAIN:
                paths[key][path].append(getattr(found, path))
            types = [item for item in found.tensor_types if item[0] not in INTEGER]
            for kind, figure in types or [(tensor_kind(kernel.name, capability, precision), found.tensor)]:
                paths[key][f"tensor {kind}"].append(figure)
    return {
        key: Counts(
            {path: add(figures, divide_by=steps) for path, figures in paths[key].items()},
            add(found_totals, divide_by=steps), add(bytes_of[key], divide_by=steps), len(found_totals) / steps,
        )
        for key, found_totals in totals.items()
    }  # fmt: skip


def dram_bytes(values: Mapping[str, float | None]) -> Figure:
    """Bytes between the GPU and its DRAM in one launch; from a rate only where nothing counted them."""
    whole = values.get("dram__bytes.sum")
    read, written = values.get("dram__bytes_read.sum"), values.get("dram__bytes_write.sum")
    if whole is not None:
        return Figure(whole, "counted")
    if read is not None and written is not None:
        return Figure(read + written, "counted")
    rate, time_ns = values.get("dram__bytes.sum.per_second"), values.get("gpu__time_duration.sum")
    if rate is not None and time_ns is not None:
        return Figure(rate * time_ns / 1e9, "estimated", "dram__bytes.sum.per_second x gpu__time_duration")
    return NO_BYTES


def tensor_kind(name: str, capability: str | None, precision: str | None) -> str:
    """Input type of tensor work that no counter tells apart: from the kernel's name, the chip, the run's precision."""
    said = recognise(name)
    if said.tensor_core and said.math:
        return said.math
    if capability == "7.0":
        return "fp16"
    return {"fp32": "tf32"}.get(precision or "", precision if precision in TENSOR else "of unknown type") or ""
