"""The work of a study for the roofline: by kernel name, by layer and direction, and for whole steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from perfctl.orchestrator.analyse.counted_work import NOTHING, ON_A_CPU, CountedWork
from perfctl.orchestrator.analyse.latency import latency
from perfctl.orchestrator.analyse.ledger import Ledger
from perfctl.orchestrator.analyse.match import match
from perfctl.orchestrator.analyse.peaks import Peaks, peaks_of
from perfctl.orchestrator.analyse.prepared import PreparedBatch, PreparedRun, PreparedStudy
from perfctl.orchestrator.analyse.roofline import RooflinePoint, Traffic, place
from perfctl.orchestrator.analyse.timing import KERNEL_BASIS
from perfctl.parsers.stored import Run


@dataclass(frozen=True, slots=True)
class Roofline:
    """Every point of a study, and the roofs they stand under."""

    peaks: Peaks
    points: tuple[RooflinePoint, ...]
    by_row: Mapping[tuple[int | None, str | None, str | None], RooflinePoint]
    """(batch, layer, direction) -> the point of that ledger row."""

    def at(self, level: str) -> tuple[RooflinePoint, ...]:
        """The points of one level: run, layer or kernel."""
        return tuple(point for point in self.points if point.traffic.level == level)

    def of(self, batch: int, layer: str, direction: str) -> RooflinePoint | None:
        """The point of one ledger row; None when it has none."""
        return self.by_row.get((batch, layer, direction))


def roofline(study: PreparedStudy, ledger: Ledger, measured: Sequence[Peaks] = ()) -> Roofline:
    """The points of a study; ``measured`` peaks take the place of published ones for devices of the same name."""
    runs = study.study.runs
    device = next(
        (run.device for run in runs if run.device), next((run.devices[0] for run in runs[:1] if run.devices), None)
    )
    peaks = peaks_of(device, measured)
    works: list[Traffic] = []
    if study.study.foreign:
        works += [traffic for item in study.runs for traffic in _kernels(item, item, None, None)]
    else:
        for batch in study.batches:
            works += _at_batch(batch, ledger, study.study.precision)
    points = tuple(place(traffic, peaks) for traffic in works)
    by_row = {(p.traffic.batch, p.traffic.layer, p.traffic.direction): p for p in points if p.traffic.level == "layer"}
    return Roofline(peaks, points, by_row)


def _at_batch(prepared: PreparedBatch, ledger: Ledger, precision: str | None) -> list[Traffic]:
    counting, batch = prepared.counting, prepared.batch
    by_key = counting.work_by_key if counting else {}
    nothing = ON_A_CPU if prepared.on_cpu else NOTHING
    rows = [row for row in ledger.rows if row.batch == batch]
    paper = [row.paper.value for row in rows if row.paper.value is not None]
    found = [_step(prepared, sum(paper) if paper else None, nothing, precision)]
    launches = {(row.layer, row.direction): sum(use.per_step for use in row.kernels) or None for row in rows}
    for row in rows:
        if not (row.paper.value or row.counted.value or row.time):
            continue
        key = (row.layer, row.direction)
        mine = by_key.get(key, nothing)
        found.append(
            Traffic(
                "layer", row.name, batch, row.layer, row.direction, mine.paths, row.counted, row.paper.value, mine.dram,
                row.time.median if row.time else None, row.basis, row.trusted, launches[key], mine.launches or None,
                precision,
            )
        )  # fmt: skip
    return [*found, *_kernels(counting, prepared.timing, batch, precision)]


def wall_time(run: PreparedRun) -> tuple[float, str] | None:
    """Time of a step and its basis, without the wait for images where it is known: that is no work of the device's."""
    timed, answered = run.step_time, latency(run.run)
    if timed is None:
        return None
    without = answered.percentiles[50] if answered else None
    return (timed[0].median, timed[1]) if without is None else (without, f"{timed[1]}, without waiting for images")


def _step(batch: PreparedBatch, paper: float | None, nothing: CountedWork, precision: str | None) -> Traffic:
    """A whole step: time of the step where it was timed, else the kernels' time."""
    whole = (batch.counting.whole_work if batch.counting else None) or nothing
    times = batch.times
    wall = wall_time(batch.timing) if batch.timing else None
    kernels = times is not None and times.basis in KERNEL_BASIS.values() and times.trusted
    inside = times.total.median if times and kernels else None
    time_ns, basis = wall if wall else (inside, times.basis if times and kernels else None)
    busy = inside / wall[0] if inside and wall and wall[0] else None
    return Traffic(
        "run", f"whole step, batch {batch.batch}", batch.batch, None, None, whole.paths, whole.total, paper,
        whole.dram, time_ns, basis, True, precision=precision, busy=busy,
    )  # fmt: skip


def _kernels(
    counting: PreparedRun | None, timing: PreparedRun | None, batch: int | None, precision: str | None
) -> list[Traffic]:
    """By kernel name. Time is that of the same launches in ``timing``; where it has none of them, under ncu."""
    if counting is None or not any(True for _ in counting.run.report.counters):
        return []
    own = _means(counting.run, {})
    other: dict[str, float] = {}
    if timing is not None and timing is not counting:
        clock = {kernel.launch: kernel.duration_ns for kernel in timing.run.report.kernels}
        pairs = match(counting.run, timing.run).pairs
        other = _means(counting.run, {pair.counted: clock.get(pair.timed) for pair in pairs})
    found = []
    for name, mine in counting.work_by_name.items():
        source = timing.run if timing is not None and name in other else counting.run
        each = other[name] if name in other else own.get(name)
        found.append(
            Traffic(
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
