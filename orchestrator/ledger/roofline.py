"""Work under the roofs of its device: intensity, rate, what bounds it, and which rates are refused;
1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean

from perfctl.orchestrator.counts.counters.work import (
    LEVELS,
    NO_WORK,
    ON_A_CPU,
    CountedWork,
    bytes_per_cycle,
)
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.hardware.peaks import PATH_OF, Peaks, peaks_of, with_caches
from perfctl.orchestrator.counts.kernels.pairing import match
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun, PreparedStudy
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS, covers_capture
from perfctl.orchestrator.ledger.usage.inference import latency
from perfctl.records.run import Run

LAUNCH_NS = 5_000
"""About what it takes to launch a kernel; work whose launches are shorter than this on average
waits for the host."""
FAR = 0.3
"""Below this share of what is attainable, neither roof is what holds the work back."""

_COLD = (
    "ncu empties the caches before a kernel, so some of the counted bytes come from the L2 cache "
    "when it runs alone"
)
_MORE_BYTES = {
    "L1": "the counter also has traffic that the roof's figure leaves out (shared memory, stores)",
    "L2": "the white paper's figure is for reads by the SMs; the counter also has writes and fills",
    "DRAM": _COLD,
}
"""Level -> the likely cause of more bytes than it can move."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one kernel name, one layer and direction, or a whole step did. Per step, or for the
    whole report."""

    level: str
    """run, layer or kernel."""
    name: str
    batch: int | None
    layer: str | None
    direction: str | None
    paths: Mapping[str, Figure]
    """path -> counted FLOPs; tensor ones by input type. Empty when nothing was counted."""
    counted: Figure
    paper: float | None
    dram: Figure
    """Bytes read and written, counted by ncu."""
    time_ns: float | None
    basis: str | None
    trusted: bool
    """False for times under ncu."""
    launches: float | None = None
    counted_launches: float | None = None
    """Launches that were counted; a difference means that time and counts are not of the
    same work."""
    precision: str | None = None
    paper_why: str | None = None
    """Why ``paper`` is None though some of it is known; None otherwise."""
    busy: float | None = None
    """Whole steps: kernel time / time of the step; over 1 when kernels overlap. None when one was
    not timed."""
    caches: Mapping[str, Figure] = field(default_factory=dict)
    """"L1" and "L2" -> bytes, for levels that were counted."""
    kernels: tuple[str, ...] = ()
    """Names of its kernels, those with most launches first; empty for whole steps."""

    def moved(self, level: str) -> Figure | None:
        """Bytes of a level; None where nothing counted them."""
        figure = self.dram if level == "DRAM" else self.caches.get(level)
        return None if figure is None or figure.value is None else figure


@dataclass(frozen=True, slots=True)
class LevelPoint:
    """Work set against the roof of one memory level and its precision."""

    level: str
    """L1, L2 or DRAM."""
    moved: Figure
    """Bytes."""
    intensity: float | None
    """Counted FLOPs per byte of this level; None without FLOPs or bytes."""
    bytes_per_second: float | None
    bandwidth: float | None
    """None where it is not known."""
    attainable: float | None
    """The smaller of the peak and FLOPs per byte x bandwidth, FLOP/s."""
    reached: float | None
    """achieved / attainable, 0..1."""
    bound: str | None
    """compute, or the level: whose roof is lower at this intensity."""
    refused: str | None = None
    """Why its share is not shown: a rate over its roof, with the likely cause."""

    @property
    def busy(self) -> float | None:
        """Bytes/s / bandwidth, 0..1; None when either is missing or the rate is refused."""
        known = self.bytes_per_second is not None and self.bandwidth and not self.refused
        return (self.bytes_per_second or 0) / (self.bandwidth or 1) if known else None


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Work set against the roofs. A share over 1 is refused: ``refused`` says so, and the shares
    are None."""

    traffic: Traffic
    flops: float | None
    source: str
    """counted, estimated, or paper: which FLOPs ``achieved`` is made of."""
    path: str | None
    """The roof: the path with the most FLOPs, or the one that the precision asks for."""
    peak: float | None
    intensity: float | None
    """Counted FLOPs per DRAM byte."""
    ridge: float | None
    achieved: float | None
    bytes_per_second: float | None
    attainable: float | None
    """The smaller of the path's peak and FLOPs per DRAM byte x DRAM bandwidth."""
    reached: float | None
    """achieved / attainable (or / peak where the bytes are not known), 0..1."""
    bound: str | None
    """compute, memory or launch; None when the numbers do not say."""
    mfu: float | None
    """Paper FLOPs / time / peak, 0..1; hfu: counted FLOPs."""
    hfu: float | None
    refused: str | None = None
    """Why a share over 100 % is not shown, with the likely cause."""
    mfu_refused: str | None = None
    """Why there is no model utilisation although the counted rate is sound: it would be over
    100 %."""
    over: str | None = None
    """What is over 100 %: peak (then no rate is shown) or bandwidth (then only what rests on the
    bytes is not)."""
    levels: tuple[LevelPoint, ...] = ()
    """One for each memory level whose bytes were counted, from the SMs outwards."""


def place(traffic: Traffic, peaks: Peaks) -> RooflinePoint:
    """Set ``traffic`` under ``peaks``."""
    path = roof(traffic)
    peak = peaks.flops.get(path) if path else None
    counted, dram = traffic.counted.value, traffic.dram.value
    flops = counted if counted is not None else traffic.paper
    seconds = traffic.time_ns / 1e9 if traffic.time_ns else None
    achieved = flops / seconds if flops and seconds else None
    stream = dram / seconds if dram is not None and seconds else None
    intensity = counted / dram if counted and dram else None
    attainable = (
        min(peak, intensity * peaks.bandwidth) if peak and intensity and peaks.bandwidth else peak
    )
    mfu = traffic.paper / seconds / peak if traffic.paper and seconds and peak else None
    hfu = counted / seconds / peak if counted and seconds and peak else None
    refused, over = _refused(traffic, peaks, path, achieved, stream)
    mfu_refused = None
    if over != "peak" and mfu and mfu > 1:
        cause = _why(traffic, peaks, mfu * (peak or 0), paper=True)
        mfu_refused = f"paper FLOPs would take {mfu * 100:.0f} % of the {path} peak: {cause}"
    reached = achieved / attainable if achieved and attainable and not refused else None
    ridge = peaks.ridge(path) if path else None
    return RooflinePoint(
        traffic,
        flops,
        traffic.counted.state if counted is not None else "paper",
        path,
        peak,
        intensity,
        ridge,
        achieved,
        stream,
        attainable,
        reached,
        None if refused else _bound(traffic, intensity, ridge, reached, stream, peaks.bandwidth),
        None if over == "peak" or mfu_refused else mfu,
        None if over == "peak" else hfu,
        refused,
        mfu_refused,
        over,
        tuple(
            _levels(
                traffic,
                peaks,
                path,
                peak,
                achieved if counted is not None else None,
                refused if over == "peak" else None,
            )
        ),
    )


def _levels(
    traffic: Traffic,
    peaks: Peaks,
    path: str | None,
    peak: float | None,
    achieved: float | None,
    over_peak: str | None,
) -> Iterator[LevelPoint]:
    """``achieved``: counted FLOP/s. ``over_peak``: why the rate itself is refused."""
    seconds, counted = traffic.time_ns / 1e9 if traffic.time_ns else None, traffic.counted.value
    for level in LEVELS:
        if (moved := traffic.moved(level)) is None:
            continue
        roof_of = peaks.cache(level, moved.rule) if level != "DRAM" else None
        bandwidth = roof_of.bandwidth if roof_of else peaks.bandwidth if level == "DRAM" else None
        intensity = counted / moved.value if counted and moved.value else None
        stream = moved.value / seconds if moved.value is not None and seconds else None
        attainable = min(peak, intensity * bandwidth) if peak and intensity and bandwidth else None
        refused = over_peak
        if refused is None and stream and bandwidth and stream > bandwidth:
            share = (
                f"{stream / bandwidth * 100:.0f} % of the {level} bandwidth of the {peaks.device}"
            )
            refused = f"{share}: {_mismatch(traffic) or _MORE_BYTES[level]}"
        bound = None
        if intensity and peak and bandwidth and not refused:
            bound = "compute" if intensity >= peak / bandwidth else level
        reached = achieved / attainable if achieved and attainable and not refused else None
        yield LevelPoint(
            level, moved, intensity, stream, bandwidth, attainable, reached, bound, refused
        )


def roof(traffic: Traffic) -> str | None:
    """The path with the most counted FLOPs; without a count, what the precision asks for; None for
    no FLOPs at all."""
    known = {path: figure.value for path, figure in traffic.paths.items() if figure.value}
    if known:
        return max(known, key=known.__getitem__)
    return (
        PATH_OF.get(traffic.precision or "")
        if traffic.counted.value is None and traffic.paper
        else None
    )


def _bound(
    traffic: Traffic,
    intensity: float | None,
    ridge: float | None,
    reached: float | None,
    stream: float | None,
    bandwidth: float | None,
) -> str | None:
    """Launch-bound where launches are too short (or a step mostly waits) and no roof is near; else
    the lower roof."""
    moved = stream / bandwidth if stream and bandwidth else 0
    if traffic.level == "run":
        waits = traffic.busy is not None and traffic.busy < 0.5
    else:
        short = (
            traffic.launches and traffic.time_ns and traffic.time_ns / traffic.launches < LAUNCH_NS
        )
        waits = bool(short) and max(reached or 0, moved) < FAR
    if waits:
        return "launch"
    if intensity is not None and ridge is not None:
        return "compute" if intensity >= ridge else "memory"
    return "memory" if traffic.counted.value == 0 and moved else None


def _refused(
    traffic: Traffic, peaks: Peaks, path: str | None, achieved: float | None, stream: float | None
) -> tuple[str, str] | tuple[None, None]:
    """(how far a rate is over its roof and the likely cause, "peak" or "bandwidth"); (None, None)
    when none is."""
    peak = peaks.flops.get(path) if path else None
    if achieved and peak and achieved > peak:
        share = f"{achieved / peak * 100:.0f} % of the {path} peak of the {peaks.device}"
        return f"{share}: {_why(traffic, peaks, achieved)}", "peak"
    if stream and peaks.bandwidth and stream > peaks.bandwidth:
        share = (
            f"{stream / peaks.bandwidth * 100:.0f} % of the memory bandwidth of the {peaks.device}"
        )
        return f"{share}: {_mismatch(traffic) or _COLD}", "bandwidth"
    return None, None


def _why(traffic: Traffic, peaks: Peaks, rate: float, *, paper: bool = False) -> str:
    """The likely cause of a rate over the peak, the most telling first."""
    if mismatch := _mismatch(traffic):
        return mismatch
    if traffic.busy and traffic.busy > 1:
        return (
            "its kernels add up to more time than the step took by the host's clock, which did not "
            "wait for them"
        )
    if peaks.kind == "derived":
        return "the clock in the run's record is not the one it ran at"
    if peaks.kind == "measured":
        return (
            "the measurement had fewer threads than the run, or shared the machine; delete its "
            "file and measure again"
        )
    if (
        paper
        and traffic.counted.value is not None
        and traffic.paper
        and traffic.counted.value < 0.9 * traffic.paper
    ):
        return "fewer FLOPs were executed than are on paper; see the counted share"
    if traffic.counted.value is None:
        if traffic.precision == "fp32" and rate <= peaks.flops.get("tensor tf32", 0):
            return (
                "TF32 is likely on (torch lets cuDNN use it by default); 'perfctl ncu' would count "
                "it"
            )
        return (
            "fewer FLOPs may have been executed than are on paper (Winograd), or the time lacks "
            "kernels"
        )
    return "the wrong device, a clock above the published one, or launches that were not timed"


def _mismatch(traffic: Traffic) -> str | None:
    counted, timed = traffic.counted_launches, traffic.launches
    if counted and timed and abs(counted - timed) > 0.01 * counted:
        return f"{timed:g} launches were timed and {counted:g} were counted: not the same work"
    return None


@dataclass(frozen=True, slots=True)
class Works:
    """The points of one batch size. Those of the whole step and of kernels are made when somebody
    asks for them: the rows of the ledger need neither."""

    step: Callable[[], Iterable[Traffic]]
    rows: tuple[RooflinePoint, ...]
    kernels: Callable[[], Iterable[Traffic]]


@dataclass(frozen=True)
class Roofline:
    """Every point of a study, and the roofs over them."""

    peaks: Peaks
    works: tuple[Works, ...]

    @cached_property
    def points(self) -> tuple[RooflinePoint, ...]:
        """Of each batch size: the whole step, the layers' rows, the kernels."""
        return tuple(
            point
            for works in self.works
            for some in (
                map(self._placed, works.step()),
                works.rows,
                map(self._placed, works.kernels()),
            )
            for point in some
        )

    def _placed(self, traffic: Traffic) -> RooflinePoint:
        return place(traffic, self.peaks)

    @cached_property
    def by_row(self) -> Mapping[tuple[int | None, str | None, str | None], RooflinePoint]:
        """(batch, layer, direction) -> the point of that ledger row."""
        rows = (point for works in self.works for point in works.rows)
        return {
            (point.traffic.batch, point.traffic.layer, point.traffic.direction): point
            for point in rows
        }

    @cached_property
    def above_kernels(self) -> tuple[RooflinePoint, ...]:
        """The points of steps and rows; those of kernels, which are many, are not made for them."""
        return tuple(
            point
            for works in self.works
            for some in (map(self._placed, works.step()), works.rows)
            for point in some
        )

    def at(self, level: str) -> tuple[RooflinePoint, ...]:
        points = self.points if level == "kernel" else self.above_kernels
        return tuple(point for point in points if point.traffic.level == level)

    @property
    def levels(self) -> tuple[str, ...]:
        """Memory levels whose bytes were counted, from the SMs outwards."""
        seen = {one.level for point in self.points for one in point.levels}
        return tuple(level for level in LEVELS if level in seen)

    @property
    def lacking(self) -> str | None:
        """Which memory levels are not drawn, and what would collect them, in one sentence; None
        where all are.

        None, too, where no FLOPs were counted.
        """
        if not any(point.traffic.counted.value is not None for point in self.points):
            return None
        missing = [level for level in LEVELS if level not in self.levels]
        known = {one.level for point in self.points for one in point.levels if one.bandwidth}
        unknown = [level for level in self.levels if level not in known]
        said = []
        if missing:
            said.append(
                f"{' and '.join(missing)} bytes were not collected; --set roofline of ncu and of "
                "perfctl ncu collects them"
            )
        if unknown:
            said.append(
                f"the bandwidth of {' and '.join(unknown)} of the {self.peaks.device} is not known"
            )
        text = "; ".join(said)
        return f"{text[:1].upper()}{text[1:]}." if text else None

    def of(self, batch: int | None, layer: str, direction: str) -> RooflinePoint | None:
        return self.by_row.get((batch, layer, direction))


def roofline(study: PreparedStudy, ledger: Ledger, measured: Sequence[Peaks] = ()) -> Roofline:
    """The points of a study; ``measured`` peaks take the place of published ones for devices of the
    same name."""
    runs = study.study.runs
    device = next(
        (run.device for run in runs if run.device),
        next(iter(runs[0].devices), None) if runs else None,
    )
    per_cycle = bytes_per_cycle(
        values
        for item in study.runs
        if item.run.profiler == "ncu"
        for values in item.values.values()
    )
    peaks = with_caches(peaks_of(device, measured), device, per_cycle)
    if not study.study.on_paper:
        works = [Works(tuple, (), partial(_kernels, item, item, None, None)) for item in study.runs]
    else:
        rows: dict[int | None, list[LedgerRow]] = defaultdict(list)
        for row in ledger.rows:
            rows[row.batch].append(row)
        works = [
            _at_batch(batch, rows[batch.batch], study.study.precision, peaks)
            for batch in study.batches
        ]
    return Roofline(peaks, tuple(works))


def _at_batch(
    prepared: PreparedBatch, rows: Sequence[LedgerRow], precision: str | None, peaks: Peaks
) -> Works:
    counting, batch = prepared.counting, prepared.batch
    by_key = counting.work_by_key if counting else {}
    nothing = ON_A_CPU if prepared.on_cpu else NO_WORK
    found = []
    for row in (row for row in rows if row.whole_paper or row.counted.value or row.time):
        mine = by_key.get((row.layer, row.direction), nothing)
        launches = sum(use.per_step for use in row.kernels) or None
        found.append(
            Traffic(
                "layer",
                row.name,
                batch,
                row.layer,
                row.direction,
                mine.paths,
                row.counted,
                row.whole_paper,
                mine.dram,
                row.time.median if row.time else None,
                row.basis,
                row.trusted,
                launches,
                mine.launches or None,
                precision,
                _partly([row]),
                caches=mine.caches,
                kernels=tuple(use.name for use in row.kernels),
            )
        )
    return Works(
        lambda: (_step(prepared, rows, nothing, precision),),
        tuple(place(traffic, peaks) for traffic in found),
        partial(_kernels, counting, prepared.timing, batch, precision),
    )


def wall_time(run: PreparedRun) -> tuple[float, str] | None:
    """Time of a step and its basis; without the wait for images where that is known, since the
    device does not wait."""
    timed, answered = run.step_time, latency(run.run)
    if timed is None:
        return None
    without = answered.percentiles[50] if answered else None
    return (
        (timed[0].median, timed[1])
        if without is None
        else (without, f"{timed[1]}, without waiting for images")
    )


def _partly(rows: Sequence[LedgerRow]) -> str | None:
    """Why the paper FLOPs of rows are not known whole: "at least 1,024 FLOP on paper: fft (forward)
    not counted"."""
    names = dict.fromkeys(
        f"{call.kind or 'an operation'} ({call.direction})"
        for row in rows
        for call in row.calls
        if call.flops is None
    )
    if not names:
        return None
    known = sum(int(row.paper.value or 0) for row in rows)
    return f"{f'at least {known:,} FLOP on paper: ' if known else ''}{', '.join(names)} not counted"


def _whole(batch: PreparedBatch) -> str:
    if batch.timing and covers_capture(batch.timing.run):
        return "all kernels of the capture"
    return "whole step" if batch.batch is None else f"whole step, batch {batch.batch}"


def _step(
    batch: PreparedBatch, rows: Sequence[LedgerRow], nothing: CountedWork, precision: str | None
) -> Traffic:
    """A whole step: time of the step where it was timed, else the kernels' time."""
    known, partly = [row.paper.value for row in rows if row.paper.value is not None], _partly(rows)
    paper = sum(known) if known and partly is None else None
    whole = (batch.counting.whole_work if batch.counting else None) or nothing
    times = batch.times
    wall = wall_time(batch.timing) if batch.timing else None
    kernels = times is not None and times.basis in KERNEL_BASIS.values() and times.trusted
    inside = times.total.median if times and kernels else None
    time_ns, basis = wall if wall else (inside, times.basis if times and kernels else None)
    busy = inside / wall[0] if inside and wall and wall[0] else None
    return Traffic(
        "run",
        _whole(batch),
        batch.batch,
        None,
        None,
        whole.paths,
        whole.total,
        paper,
        whole.dram,
        time_ns,
        basis,
        True,
        precision=precision,
        paper_why=partly,
        busy=busy,
        caches=whole.caches,
    )


def _kernels(
    counting: PreparedRun | None,
    timing: PreparedRun | None,
    batch: int | None,
    precision: str | None,
) -> list[Traffic]:
    """By kernel name. Time is that of the same launches in ``timing``; where it has none of them,
    under ncu."""
    if counting is None or not counting.values:
        return []
    own = _means(
        counting.run, {kernel.launch: kernel.duration_ns for kernel in counting.run.report.kernels}
    )
    other: dict[str, float] = {}
    if timing is not None and timing is not counting:
        clock = {kernel.launch: kernel.duration_ns for kernel in timing.run.report.kernels}
        pairs = match(counting.run, timing.run).pairs
        other = _means(counting.run, {pair.counted: clock.get(pair.timed) for pair in pairs})
    found = []
    for name, mine in counting.work_by_name.items():
        source = (timing.run if timing is not None and name in other else counting.run).profiler
        each = other.get(name, own.get(name))
        found.append(
            Traffic(
                "kernel",
                name,
                batch,
                None,
                None,
                mine.paths,
                mine.total,
                None,
                mine.dram,
                each * mine.launches if each else None,
                KERNEL_BASIS.get(source, source) if each else None,
                source != "ncu",
                mine.launches,
                mine.launches,
                precision,
                caches=mine.caches,
                kernels=(name,),
            )
        )
    return found


def _means(run: Run, times: Mapping[int, float | None]) -> dict[str, float]:
    """kernel name -> mean nanoseconds a launch; ``times`` are those of its launches."""
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in run.report.kernels:
        if (took := times.get(kernel.launch)) is not None:
            found[kernel.name].append(took)
    return {name: fmean(values) for name, values in found.items()}
