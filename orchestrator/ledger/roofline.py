"""Work under the roofs of its device: intensity, rate, what bounds it, and which rates are refused;
1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from statistics import fmean
from typing import NamedTuple

from perfctl.orchestrator.counts.counters.work import (
    LEVELS,
    NO_WORK,
    ON_A_CPU,
    CountedWork,
    find_peak_bytes_per_cycle,
)
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.counts.hardware.peaks import (
    PATH_OF,
    DevicePeaks,
    add_cache_and_rescale_peaks,
    find_peaks,
)
from perfctl.orchestrator.counts.kernels.pairing import pair_launches
from perfctl.orchestrator.ledger.expected import FORMULA
from perfctl.orchestrator.ledger.ledger import Ledger, LedgerRow
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun, Study
from perfctl.orchestrator.ledger.timing import KERNEL_BASIS, is_capture_treated_as_single_step
from perfctl.orchestrator.ledger.unattributed import NO_FORMULA
from perfctl.orchestrator.ledger.usage.inference import compute_image_inference_latency
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Point, Run, format_sweep_point

LAUNCH_NS = 5_000
"""About what it takes to launch a kernel; work whose launches are shorter than this on average
waits for the host."""
FAR = 0.3
"""Below this share of what is attainable, neither roof is what holds the work back."""
SATURATED = 0.8
"""From this share of the bandwidth on, memory holds the work back, however many FLOPs it has: above
it, ncu's rule SOLBottleneck calls a unit highly utilized."""

_CLOCK = "sm__cycles_elapsed.avg.per_second"
"""Counter of the clock of the SMs, in Hz."""
_COLD = (
    "ncu empties the caches before each kernel, so without ncu some of the counted bytes come "
    "from the L2 cache"
)
_MORE_BYTES = {
    "L1": "the counter also includes traffic that the peak excludes (shared memory, stores)",
    "L2": "the white paper states reads by the SMs; the counter also includes writes and fills",
    "DRAM": _COLD,
}
"""Level -> the likely cause of more bytes than it can move."""


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What one kernel name, one layer and direction, or a whole step did. Per step, or for the
    whole report."""

    level: str
    """run, layer or kernel."""
    name: str
    batch: Point
    layer: str | None
    direction: str | None
    paths: Mapping[str, Figure]
    """path -> executed FLOPs; tensor ones by input type. Empty when nothing was counted."""
    executed: Figure
    estimated: float | None
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
    """Why ``estimated`` is None though some of it is known; None otherwise."""
    busy: float | None = None
    """Whole steps: kernel time / time of the step; over 1 when kernels overlap. None when one was
    not timed."""
    caches: Mapping[str, Figure] = field(default_factory=dict)
    """"L1" and "L2" -> bytes, for levels that were counted."""
    kernels: tuple[str, ...] = ()
    """Names of its kernels, those with most launches first; empty for whole steps."""

    @property
    def seconds(self) -> float | None:
        return self.time_ns / 1e9 if self.time_ns else None

    def get_moved_bytes(self, memory_level: str) -> Figure | None:
        """Bytes of a level; None where nothing counted them."""
        figure = self.dram if memory_level == "DRAM" else self.caches.get(memory_level)
        return None if figure is None or figure.value is None else figure


@dataclass(frozen=True, slots=True)
class LevelRooflinePoint:
    """Work set against the roof of one memory level and its precision."""

    level: str
    """L1, L2 or DRAM."""
    moved: Figure
    """Bytes."""
    intensity: float | None
    """Executed FLOPs per byte of this level; None without FLOPs or bytes."""
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
    def bandwidth_share(self) -> float | None:
        """Bytes/s / bandwidth, 0..1; None when either is missing or the rate is refused."""
        is_known = self.bytes_per_second is not None and self.bandwidth and not self.refused
        return (self.bytes_per_second or 0) / (self.bandwidth or 1) if is_known else None


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """Work set against the roofs. A share over 1 is refused: ``refused`` says so, and the shares
    are None."""

    traffic: MeasuredWork
    flops: float | None
    source: str
    """State of the executed FLOPs, or "paper" (estimated): which FLOPs ``achieved`` is made of."""
    path: str | None
    """The roof: the path with the most FLOPs, or the one that the precision asks for."""
    peak: float | None
    intensity: float | None
    """Executed FLOPs per DRAM byte."""
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
    """Estimated FLOPs / time / peak, 0..1; hfu: executed FLOPs."""
    hfu: float | None
    refused: str | None = None
    """Why a share over 100% is not shown, with the likely cause."""
    mfu_reason: str | None = None
    """Why there is no model utilization although the executed rate is sound: it would be over
    100%."""
    over: str | None = None
    """What is over 100%: peak (then no rate is shown) or bandwidth (then only what rests on the
    bytes is not)."""
    levels: tuple[LevelRooflinePoint, ...] = ()
    """One for each memory level whose bytes were counted, from the SMs outwards."""


class _AchievedRates(NamedTuple):
    """Work and its bytes on one memory level, over its time."""

    intensity: float | None
    bytes_per_second: float | None
    attainable: float | None
    """The smaller of the peak and FLOPs per byte x bandwidth; None if either is not known."""


def _compute_achieved_rates(
    traffic: MeasuredWork, moved_bytes: float | None, peak: float | None, bandwidth: float | None
) -> _AchievedRates:
    flops, seconds = traffic.executed.value, traffic.seconds
    if flops is None and traffic.dram.state == "estimated":  # both are of a formula
        flops = traffic.estimated
    intensity = flops / moved_bytes if flops and moved_bytes else None
    return _AchievedRates(
        intensity,
        moved_bytes / seconds if moved_bytes is not None and seconds else None,
        min(peak, intensity * bandwidth) if peak and intensity and bandwidth else None,
    )


def build_roofline_point(traffic: MeasuredWork, peaks: DevicePeaks) -> RooflinePoint:
    """Set ``traffic`` under ``peaks``."""
    path = find_dominant_flops_path(traffic)
    peak = peaks.flops.get(path) if path else None
    ridge = peaks.compute_ridge_point(path) if path else None
    counted, seconds = traffic.executed.value, traffic.seconds
    flops = counted if counted is not None else traffic.estimated
    achieved = flops / seconds if flops and seconds else None
    mfu = traffic.estimated / seconds / peak if traffic.estimated and seconds and peak else None
    hfu = counted / seconds / peak if counted and seconds and peak else None
    dram = _compute_achieved_rates(traffic, traffic.dram.value, peak, peaks.bandwidth)
    refused, over = _explain_rate_over_peak_or_bandwidth(
        traffic, peaks, path, achieved, dram.bytes_per_second
    )
    mfu_reason = None
    if over != "peak" and mfu and mfu > 1:
        cause = _explain_rate_over_peak(
            traffic, peaks, mfu * (peak or 0), uses_estimated_flops=True
        )
        mfu_reason = f"the estimated FLOPs would need {mfu * 100:.0f}% of the {path} peak: {cause}"
    attainable = dram.attainable or peak
    reached = achieved / attainable if achieved and attainable and not refused else None
    return RooflinePoint(
        traffic=traffic,
        flops=flops,
        source=traffic.executed.state if counted is not None else "paper",
        path=path,
        peak=peak,
        intensity=dram.intensity,
        ridge=ridge,
        achieved=achieved,
        bytes_per_second=dram.bytes_per_second,
        attainable=attainable,
        reached=reached,
        bound=None if refused else _classify_bound(traffic, dram, ridge, reached, peaks.bandwidth),
        mfu=None if over == "peak" or mfu_reason else mfu,
        hfu=None if over == "peak" else hfu,
        refused=refused,
        mfu_reason=mfu_reason,
        over=over,
        levels=tuple(
            _list_memory_level_points(traffic, peaks, peak, refused if over == "peak" else None)
        ),
    )


def _list_memory_level_points(
    traffic: MeasuredWork, peaks: DevicePeaks, peak: float | None, over_peak_reason: str | None
) -> Iterator[LevelRooflinePoint]:
    """Yield the work under the roof of each memory level. ``over_peak_reason``: why the rate itself
    is refused."""
    counted, seconds = traffic.executed.value, traffic.seconds
    achieved = counted / seconds if counted and seconds else None
    for level in LEVELS:
        if (moved := traffic.get_moved_bytes(level)) is None:
            continue
        bandwidth = peaks.bandwidth
        if level != "DRAM":
            cache = peaks.find_cache_peak(level, moved.rule)
            bandwidth = cache.bandwidth if cache else None
        rates = _compute_achieved_rates(traffic, moved.value, peak, bandwidth)
        refused, stream = over_peak_reason, rates.bytes_per_second
        if refused is None and stream and bandwidth and stream > bandwidth:
            refused = (
                f"{stream / bandwidth * 100:.0f}% of the {level} bandwidth of the {peaks.device}: "
                f"{_describe_launch_count_mismatch(traffic) or _MORE_BYTES[level]}"
            )
        bound = reached = None
        if rates.intensity and peak and bandwidth and not refused:
            bound = _find_ridge_side(traffic, moved, rates.intensity, peak / bandwidth, level)
        if achieved and rates.attainable and not refused:
            reached = achieved / rates.attainable
        yield LevelRooflinePoint(
            level=level,
            moved=moved,
            intensity=rates.intensity,
            bytes_per_second=stream,
            bandwidth=bandwidth,
            attainable=rates.attainable,
            reached=reached,
            bound=bound,
            refused=refused,
        )


def find_dominant_flops_path(traffic: MeasuredWork) -> str | None:
    """The path with the most executed FLOPs; without a count, what the precision asks for; None for
    no FLOPs at all."""
    flops_by_path = {path: figure.value for path, figure in traffic.paths.items() if figure.value}
    if flops_by_path:
        return max(flops_by_path, key=flops_by_path.__getitem__)
    return (
        PATH_OF.get(traffic.precision or "")
        if traffic.executed.value is None and traffic.estimated
        else None
    )


def _find_ridge_side(
    traffic: MeasuredWork, moved: Figure, intensity: float, ridge: float, level: str
) -> str | None:
    """Return on which side of the ridge the work is; None if a lower bound leaves it open."""
    if intensity >= ridge:
        return None if moved.lower_bound else "compute"
    return None if traffic.executed.lower_bound else level


def _classify_bound(
    traffic: MeasuredWork,
    dram: _AchievedRates,
    ridge: float | None,
    reached: float | None,
    bandwidth: float | None,
) -> str | None:
    """Return launch where launches are too short (or a step mostly waits) and no roof is near, or
    the lower roof."""
    stream = dram.bytes_per_second
    moved = stream / bandwidth if stream and bandwidth else 0
    if traffic.level == "run":
        waits = traffic.busy is not None and traffic.busy < 0.5
    else:
        is_short = bool(
            traffic.launches and traffic.time_ns and traffic.time_ns / traffic.launches < LAUNCH_NS
        )
        waits = is_short and max(reached or 0, moved) < FAR
    if waits:
        return "launch"
    side = None
    if dram.intensity is not None and ridge is not None:
        side = _find_ridge_side(traffic, traffic.dram, dram.intensity, ridge, "memory")
    has_no_flops = traffic.executed.value == 0 and moved
    return "memory" if has_no_flops or (side is None and moved >= SATURATED) else side


def _explain_rate_over_peak_or_bandwidth(
    traffic: MeasuredWork,
    peaks: DevicePeaks,
    path: str | None,
    achieved: float | None,
    bytes_per_second: float | None,
) -> tuple[str, str] | tuple[None, None]:
    """(how far a rate is over its roof and the likely cause, "peak" or "bandwidth"); (None, None)
    when none is."""
    peak = peaks.flops.get(path) if path else None
    if achieved and peak and achieved > peak:
        share = f"{achieved / peak * 100:.0f}% of the {path} peak of the {peaks.device}"
        return f"{share}: {_explain_rate_over_peak(traffic, peaks, achieved)}", "peak"
    if bytes_per_second and peaks.bandwidth and bytes_per_second > peaks.bandwidth:
        share = (
            f"{bytes_per_second / peaks.bandwidth * 100:.0f}% of the memory bandwidth of "
            f"the {peaks.device}"
        )
        return f"{share}: {_describe_launch_count_mismatch(traffic) or _COLD}", "bandwidth"
    return None, None


def _explain_rate_over_peak(
    traffic: MeasuredWork, peaks: DevicePeaks, rate: float, *, uses_estimated_flops: bool = False
) -> str:
    """The likely cause of a rate over the peak, the most telling first."""
    if mismatch := _describe_launch_count_mismatch(traffic):
        return mismatch
    if traffic.busy and traffic.busy > 1:
        return (
            "the sum of its kernel times exceeds the step time of the CPU timer, which did not "
            "wait for them"
        )
    if peaks.kind == "derived":
        return "the recorded clock differs from the actual clock"
    if peaks.kind == "measured":
        return (
            "the peak measurement had fewer threads than the run, or shared the machine; delete "
            "its file and measure again"
        )
    if (
        uses_estimated_flops
        and traffic.executed.value is not None
        and traffic.estimated
        and traffic.executed.value < 0.9 * traffic.estimated
    ):
        return (
            "the kernels executed fewer than the estimated FLOPs; see the share of executed FLOPs"
        )
    if traffic.executed.value is None:
        if traffic.precision == "fp32" and rate <= peaks.flops.get("tensor tf32", 0):
            return (
                "TF32 is likely on (torch enables it for cuDNN by default); 'perfctl ncu' "
                "measures it"
            )
        return (
            "the kernels may have executed fewer than the estimated FLOPs (Winograd), or the "
            "time lacks kernels"
        )
    return "the wrong device, a clock above the published one, or launches without a time"


def _describe_launch_count_mismatch(traffic: MeasuredWork) -> str | None:
    counted, timed = traffic.counted_launches, traffic.launches
    if counted and timed and abs(counted - timed) > 0.01 * counted:
        return f"{timed:g} launches have a time and {counted:g} have counters, so the work differs"
    return None


@dataclass(frozen=True)
class Roofline:
    """Every point of a study, and the roofs over them."""

    peaks: DevicePeaks
    above_kernels: tuple[RooflinePoint, ...]
    """Points of each batch size: the complete step, then the layers' rows."""
    make_kernels: Sequence[Callable[[], Iterable[MeasuredWork]]]
    """One for each batch size. Kernels are many, and the rows of the ledger do not need them."""

    @cached_property
    def kernel_points(self) -> tuple[RooflinePoint, ...]:
        """Points of kernels, made at their first use."""
        return tuple(
            build_roofline_point(work, self.peaks) for make in self.make_kernels for work in make()
        )

    @property
    def points(self) -> tuple[RooflinePoint, ...]:
        return (*self.above_kernels, *self.kernel_points)

    @cached_property
    def points_by_ledger_row(self) -> Mapping[tuple[Point, str | None, str | None], RooflinePoint]:
        """(batch, layer, direction) -> the point of that ledger row."""
        return {
            (point.traffic.batch, point.traffic.layer, point.traffic.direction): point
            for point in self.select_points_by_work_level("layer")
        }

    def select_points_by_work_level(self, level: str) -> tuple[RooflinePoint, ...]:
        """Return the points of a level: run, layer or kernel."""
        if level == "kernel":
            return self.kernel_points
        return tuple(point for point in self.above_kernels if point.traffic.level == level)

    @property
    def counted_memory_levels(self) -> tuple[str, ...]:
        """Memory levels whose bytes were counted, from the SMs outwards."""
        present = {item.level for point in self.points for item in point.levels}
        return tuple(level for level in LEVELS if level in present)

    @property
    def missing_memory_levels_sentence(self) -> str | None:
        """Which memory levels are not drawn, and what would collect them, in one sentence; None
        where all are.

        None, too, where no FLOPs were counted.
        """
        if not any(point.traffic.executed.value is not None for point in self.points):
            return None
        missing = [level for level in LEVELS if level not in self.counted_memory_levels]
        with_bandwidth = {
            item.level for point in self.points for item in point.levels if item.bandwidth
        }
        unknown = [level for level in self.counted_memory_levels if level not in with_bandwidth]
        reasons = []
        if missing:
            reasons.append(
                f"{' and '.join(missing)} bytes were not collected; use --set roofline of ncu or "
                "perfctl ncu"
            )
        if unknown:
            reasons.append(
                f"the bandwidth of {' and '.join(unknown)} of the {self.peaks.device} is unknown"
            )
        text = "; ".join(reasons)
        return f"{text[:1].upper()}{text[1:]}." if text else None

    def get_ledger_row_point(
        self, batch: Point, layer: str, direction: str
    ) -> RooflinePoint | None:
        """Return the point of a ledger row."""
        return self.points_by_ledger_row.get((batch, layer, direction))


def _compute_mean_sm_clock_hz(study: Study) -> float | None:
    """Return the clock of the SMs in Hz, mean by time of the launches; None where another profiler
    than ncu timed some of the work, or a launch does not state it."""
    cycles = total_ns = 0.0
    for item in study.prepared_runs:
        for kernel in item.run.report.kernels:
            clock = item.values.get(kernel.launch, {}).get(_CLOCK)
            if item.run.profiler != "ncu" or not clock or not kernel.duration_ns:
                return None
            cycles += clock * kernel.duration_ns
            total_ns += kernel.duration_ns
    return cycles / total_ns if total_ns else None


def build_roofline(
    study: Study, ledger: Ledger, measured_peaks: Sequence[DevicePeaks] = ()
) -> Roofline:
    """The points of a study; ``measured_peaks`` take the place of published ones for devices of the
    same name."""
    recorded = next((run.device for run in study.runs if run.device), None)
    device = recorded or next(iter(study.runs[0].devices), None)
    per_cycle = find_peak_bytes_per_cycle(
        values
        for item in study.prepared_runs
        if item.run.profiler == "ncu"
        for values in item.values.values()
    )
    peaks = add_cache_and_rescale_peaks(
        find_peaks(device, measured_peaks), device, per_cycle, _compute_mean_sm_clock_hz(study)
    )
    if not study.has_ledger:
        return Roofline(
            peaks,
            (),
            [
                partial(_build_measured_work_by_kernel_name, run, run, None, None)
                for run in study.prepared_runs
            ],
        )
    rows = group_by(ledger.rows, lambda row: row.batch)
    precision = study.precision
    works = []
    for batch in study.prepared_batches:
        of_batch = rows.get(batch.batch, [])
        by_key = (
            batch.counted_or_derived_run.counted_work_by_layer_direction
            if batch.counted_or_derived_run
            else {}
        )
        nothing = ON_A_CPU if batch.on_cpu else NO_WORK
        works.append(_build_step_measured_work(batch, of_batch, nothing, precision))
        works += [
            _build_row_measured_work(
                row, by_key.get((row.layer, row.direction), nothing), precision
            )
            for row in of_batch
            if row.complete_estimated_flops or row.executed.value or row.time
        ]
    return Roofline(
        peaks,
        tuple(build_roofline_point(work, peaks) for work in works),
        [
            partial(
                _build_measured_work_by_kernel_name,
                batch.counted_or_derived_run,
                batch.timing_run,
                batch.batch,
                precision,
            )
            for batch in study.prepared_batches
        ],
    )


def _build_row_measured_work(
    row: LedgerRow, work: CountedWork, precision: str | None
) -> MeasuredWork:
    return MeasuredWork(
        level="layer",
        name=row.name,
        batch=row.batch,
        layer=row.layer,
        direction=row.direction,
        paths=work.paths,
        executed=row.executed,
        estimated=row.complete_estimated_flops,
        dram=work.dram if work.dram.value is not None else _get_user_formula_bytes(row, work.dram),
        time_ns=row.time.median if row.time else None,
        basis=row.basis,
        trusted=row.trusted,
        launches=sum(use.per_step for use in row.kernels) or None,
        counted_launches=work.launches or None,
        precision=precision,
        paper_why=_describe_incomplete_estimate([row]),
        caches=work.caches,
        kernels=tuple(use.name for use in row.kernels),
    )


def _get_user_formula_bytes(row: LedgerRow, uncounted: Figure) -> Figure:
    """Return the bytes that formulas of the user's give for a row, as an estimate; ``uncounted`` if
    there are none."""
    sizes = [call.read_bytes for call in row.calls if row.kind == FORMULA]
    if not sizes or None in sizes:
        return uncounted
    reason = "bytes of the formula; no counter measured them"
    return Figure(sum(size or 0 for size in sizes), "estimated", reason)


def get_step_time_without_image_wait(run: PreparedRun) -> tuple[float, str] | None:
    """Return the time of a step and its basis; without the wait for images where that is known,
    since the device does not wait."""
    if run.step_time is None:
        return None
    step, basis = run.step_time
    answers = compute_image_inference_latency(run.run)
    if answers and (median := answers.percentiles[50]) is not None:
        return median, f"{basis}, without the wait for images"
    return step.median, basis


def _describe_incomplete_estimate(rows: Sequence[LedgerRow]) -> str | None:
    """Return what the estimated FLOPs of rows do not include: "at least 1,024 estimated FLOPs; not
    included: fft (forward)"."""
    names = dict.fromkeys(
        f"{call.kind or 'an operation'} ({call.direction})"
        for row in rows
        for call in row.calls
        if call.flops is None
    )
    if not names:
        return None
    known_flops = sum(int(row.estimated.value or 0) for row in rows)
    least = f"at least {known_flops:,} estimated FLOPs; " if known_flops else ""
    return f"{least}not included: {', '.join(names)}"


def _build_step_measured_work(
    batch: PreparedBatch,
    rows: Sequence[LedgerRow],
    work_without_counts: CountedWork,
    precision: str | None,
) -> MeasuredWork:
    """Return a complete step: time of the step where it was timed, or else the kernels' time."""
    partly = _describe_incomplete_estimate(rows)
    counting = batch.counted_or_derived_run or batch.timing_run
    if partly is None and any(row.kind == FORMULA for row in rows) and counting is not None:
        is_whole = all(key is not None for _, key in counting.measured_launches)
        partly = None if is_whole else f"not included: {NO_FORMULA}"
    known_flops = [row.estimated.value for row in rows if row.estimated.value is not None]
    work = (
        batch.counted_or_derived_run.counted_step_work if batch.counted_or_derived_run else None
    ) or work_without_counts
    name = "complete step"
    if batch.batch is not None:
        name += f", {format_sweep_point(batch.batch)}"
    if batch.timing_run and is_capture_treated_as_single_step(batch.timing_run.run):
        name = "all kernels of the capture"
    times, inside = batch.layer_times, None
    if times is not None and times.basis in KERNEL_BASIS.values() and times.trusted:
        inside = times.total.median
    time_ns, basis = inside, times.basis if times and inside is not None else None
    busy = None
    if batch.timing_run and (wall := get_step_time_without_image_wait(batch.timing_run)):
        time_ns, basis = wall
        busy = inside / time_ns if inside and time_ns else None
    return MeasuredWork(
        level="run",
        name=name,
        batch=batch.batch,
        layer=None,
        direction=None,
        paths=work.paths,
        executed=work.total,
        estimated=sum(known_flops) if known_flops and partly is None else None,
        dram=work.dram,
        time_ns=time_ns,
        basis=basis,
        trusted=True,
        precision=precision,
        paper_why=partly,
        busy=busy,
        caches=work.caches,
    )


def _build_measured_work_by_kernel_name(
    counting: PreparedRun | None,
    timing: PreparedRun | None,
    batch: Point,
    precision: str | None,
) -> list[MeasuredWork]:
    """By kernel name. Time is that of the same launches in ``timing``; where it has none of them,
    under ncu."""
    if counting is None or not counting.values:
        return []
    own_times = {kernel.launch: kernel.duration_ns for kernel in counting.run.report.kernels}
    means, timed_means = (
        _compute_mean_launch_ns_by_kernel_name(counting.run, own_times),
        dict[str, float](),
    )
    if timing is not None and timing.run is not counting.run:
        clock = {kernel.launch: kernel.duration_ns for kernel in timing.run.report.kernels}
        pairs = pair_launches(counting.run, timing.run).pairs
        timed_means = _compute_mean_launch_ns_by_kernel_name(
            counting.run, {pair.counted: clock.get(pair.timed) for pair in pairs}
        )
    traffic = []
    for name, work in counting.counted_work_by_kernel_name.items():
        is_timed = timing is not None and name in timed_means
        timed_run = (timing if timing is not None and is_timed else counting).run
        source = timed_run.profiler
        basis = "; ".join(
            filter(None, (KERNEL_BASIS.get(source, source), timed_run.time_derivation))
        )
        mean = timed_means.get(name, means.get(name))
        traffic.append(
            MeasuredWork(
                level="kernel",
                name=name,
                batch=batch,
                layer=None,
                direction=None,
                paths=work.paths,
                executed=work.total,
                estimated=None,
                dram=work.dram,
                time_ns=mean * work.launches if mean else None,
                basis=basis if mean else None,
                trusted=source != "ncu",
                launches=work.launches,
                counted_launches=work.launches,
                precision=precision,
                caches=work.caches,
                kernels=(name,),
            )
        )
    return traffic


def _compute_mean_launch_ns_by_kernel_name(
    run: Run, ns_by_launch: Mapping[int, float | None]
) -> dict[str, float]:
    """Return kernel name -> mean nanoseconds per launch; ``ns_by_launch`` are those of its
    launches."""
    timed = (item for item in run.report.kernels if ns_by_launch.get(item.launch) is not None)
    return {
        name: fmean(ns_by_launch[kernel.launch] or 0 for kernel in kernels)
        for name, kernels in group_by(timed, attrgetter("name")).items()
    }
