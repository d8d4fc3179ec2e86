"""The use that one run made of its GPUs: the time with a kernel running by device, stream and kind
of work, and the cause of each idle gap between kernels.

``RunUsage`` prepares a run once: kernels by device, the window that they are looked at in, and the
intervals in which they ran. Readings, memory and energy hang on it, too. Time of the ranges of a
run is on the GPU and on the host, which are not the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from perfctl.orchestrator.counts.kernels.names import recognise_family
from perfctl.orchestrator.ledger.timing import is_step_range_of_perfctl, walk_enclosing_ranges
from perfctl.orchestrator.ledger.usage.energy import Energy, compute_energy_per_gpu
from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    Timed,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
    sum_durations_ns,
)
from perfctl.orchestrator.ledger.usage.readings import (
    DeviceReadings,
    MemoryUse,
    UsageShare,
    UtilizationBySource,
    collect_memory_use,
    compute_utilization_by_source,
    summarize_readings_by_device,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import ALLOCATIONS, Kernel, OpCall, Range
from perfctl.records.run import Run

COMPUTE, COMMUNICATION, COPIES, IDLE = "compute", "communication", "copies", "idle"
PARTS = (COMPUTE, COMMUNICATION, COPIES, IDLE)
COLLECTIVE = "collective"
"""Family of the kernels that exchange data between GPUs (NCCL, RCCL), by their names."""
TRIED = {"conv", "fft", "winograd"}
"""Families of the algorithms that cuDNN's autotuning tries for one convolution."""
LARGEST_WAITS = 10
"""Waits of a device that are kept with their kernels."""
LAUNCH_MAX_NS = 10_000
"""A wait up to this long between two kernels is the time of one launch."""
COPY, DATA, START, EXCHANGE, ALLOCATE, SYNCHRONISE, LAUNCH, HOST = (
    "copy",
    "loading data",
    "start-up",
    "communication",
    "memory management",
    "synchronising",
    "launches one by one",
    "host",
)
CAUSES = (DATA, COPY, START, EXCHANGE, ALLOCATE, SYNCHRONISE, LAUNCH, HOST)
_CALL_NUMBERS = re.compile(r", (?:seq|op_id) = \d+|, input_op_ids = .*", re.DOTALL)
"""What differs between calls of one operator in emit_nvtx's names of ranges."""
_CAUSE_OF_NAME = {
    "memcpy": COPY,
    **dict.fromkeys(("dataloader", "data_loader", "__next__", "next_batch"), DATA),
    **dict.fromkeys(("warmup", "warm-up", "warm_up", "compile_", "compiling"), START),
    **dict.fromkeys(("moduleload", "libraryload"), START),
    **dict.fromkeys(("nccl", "rccl", "allreduce", "all_reduce"), EXCHANGE),
    **dict.fromkeys(("allgather", "all_gather"), EXCHANGE),
    **dict.fromkeys((name.lower() for name in ALLOCATIONS), ALLOCATE),
    **dict.fromkeys(("synchronize", "synchronise"), SYNCHRONISE),
}
"""Part of a name in lower case -> cause of the waits during ranges and calls of the host with it:
PyTorch's "enumerate(DataLoader)#...__next__". The first one counts."""
CAPTURE = "from the first kernel to the end of the last"
"""The span of a report without marked steps, in words."""
STEADY_TIME_SHARE = 0.95
"""Share of the time with a kernel that the steady part of a capture contains."""
STEADY_SPAN_SHARE_MAX = 0.5
"""A steady part that takes more of the capture is the capture itself."""


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Kinds of work of one run."""

    run: Run
    shares: Mapping[str, float]
    """Part of PARTS -> share (0..1) of the span; they add up to 1. Communication counts where no
    compute kernel runs, copies where no kernel runs: what is hidden costs no time. Compute and
    communication are the share with a kernel."""
    window: str
    """The span in words, as of ``BusyTime``."""
    gpus: int
    """GPUs that the shares are the plain mean of."""


@dataclass(frozen=True, slots=True)
class BusyTime:
    """One device or one stream of it, between two moments of a run."""

    run: Run
    device: int
    stream: int | None
    launches: int
    running_ns: float
    """Time in which at least one kernel ran."""
    window_ns: float
    window: str
    longest_wait_ns: float

    @property
    def busy_share(self) -> float | None:
        """running / window; None for an empty window."""
        return self.running_ns / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True)
class IdleGap:
    """One stretch of time without a kernel on a device."""

    start_ns: int
    length_ns: int
    cause: str
    """One of CAUSES; "host" where nothing tells more."""
    after: Kernel | None
    """The kernel that ended last before it; None at the beginning of the window."""
    before: Kernel | None
    """The kernel that ended it; None at the end of the window."""
    around: str | None
    """Innermost range of the host over the middle of it; None without ranges."""


@dataclass(frozen=True, slots=True)
class DeviceIdleTime:
    """All waits of one device of a run."""

    run: Run
    device: int
    window_ns: int
    window: str
    """The window in words, as of ``BusyTime``."""
    by_cause: dict[str, int]
    count: int
    explained: Intervals
    """Waits of another cause than LAUNCH and HOST."""
    largest: tuple[IdleGap, ...]
    """The LARGEST_WAITS longest, longest first."""


class Allocations(NamedTuple):
    """Calls that allocate, pin or free memory; times in ns."""

    by_name: Mapping[str, float]
    blocked_ns: int
    """Time in which at least one of them ran."""
    captured_ns: int
    """From the first kernel, copy or such call to the end of the last, or of the marked steps."""


@dataclass(frozen=True)
class KernelWindow:
    """The kernels of a run between two moments: the measured steps if they are marked."""

    by_device: Mapping[int, Sequence[Kernel]]
    """Empty under ncu, without kernels, and if one has no start or no duration."""
    start: int
    end: int
    words: str

    @property
    def length_ns(self) -> int:
        return self.end - self.start

    @cached_property
    def kernel_intervals_by_device(self) -> Mapping[int, Intervals]:
        """Device -> when any of its kernels ran."""
        return {
            device: Intervals.make_from_items(kernels) for device, kernels in self.by_device.items()
        }


def select_kernel_window(run: Run) -> KernelWindow:
    """Return the kernels of the run's measured steps, or of all of its time; none where counters
    were collected, because kernels then run one by one."""
    kernels = list(run.report.kernels)
    if (
        run.profiler == "ncu"
        or run.report.counters
        or not kernels
        or not all(map(has_start_and_duration, kernels))
    ):
        return KernelWindow({}, 0, 0, "")
    description = CAPTURE
    start, end = min(map(get_start_ns, kernels)), max(map(get_end_ns, kernels))
    timed_steps = {
        (step.start_ns, step.duration_ns) for step in run.report.steps if step.phase == "step"
    }
    steps = [
        item
        for item in run.report.ranges
        if is_step_range_of_perfctl(item) or (item.start_ns, item.duration_ns) in timed_steps
    ]
    if steps:
        first = min(steps, key=get_start_ns)
        # kernels that begin after the end of their step waited for others, maybe of no record
        if first.duration_ns is None or start < get_end_ns(first):
            start = get_start_ns(first)
        end = max(end, *map(get_end_ns, steps))
        description = "from the first step to the end of the last step or kernel"
    inside = (kernel for kernel in kernels if start <= get_start_ns(kernel) < end)
    by_device = group_by(inside, lambda kernel: kernel.device_index or 0)
    return KernelWindow(dict(sorted(by_device.items())), start, end, description)


@dataclass(frozen=True, eq=False, repr=False)
class RunUsage:
    """One run; every attribute is computed at its first use and kept as long as the object."""

    run: Run

    @cached_property
    def window(self) -> KernelWindow:
        return select_kernel_window(self.run)

    @cached_property
    def device_and_stream_busy_times(self) -> tuple[BusyTime, ...]:
        """Devices of the run, each followed by its streams if it has several."""
        rows = []
        for device, kernels in self.window.by_device.items():
            rows.append(
                self._build_busy_time(
                    device, None, len(kernels), self.window.kernel_intervals_by_device[device]
                )
            )
            streams = group_by(kernels, attrgetter("stream"))
            if len(streams) > 1:
                rows += [
                    self._build_busy_time(
                        device,
                        stream,
                        len(streams[stream]),
                        Intervals.make_from_items(streams[stream]),
                    )
                    for stream in sorted(streams, key=lambda number: (number is None, number or 0))
                ]
        return tuple(rows)

    @cached_property
    def busy_times_in_shortest_active_span(self) -> tuple[BusyTime, ...]:
        """The steady part of each device: the shortest span with STEADY_TIME_SHARE of the time with
        a kernel, without start-up and end. Empty if steps are marked, or if it is most of the
        capture."""
        parts = []
        for device, kernels in self.window.by_device.items():
            if window := self._find_shortest_active_window(device):
                start, end = window.start, window.end
                launches = sum(start <= get_start_ns(kernel) < end for kernel in kernels)
                running = window.kernel_intervals_by_device[device]
                parts.append(self._build_busy_time(device, None, launches, running, window))
        return tuple(parts)

    def _find_shortest_active_window(self, device: int) -> KernelWindow | None:
        running = self.window.kernel_intervals_by_device[device]
        start, end = running.find_shortest_span_with_coverage(STEADY_TIME_SHARE * running.total_ns)
        if self.window.words != CAPTURE or (
            end - start > STEADY_SPAN_SHARE_MAX * self.window.length_ns
        ):
            return None
        description = f"in the shortest span with {STEADY_TIME_SHARE:.0%} of the kernel time"
        return replace(self.window, start=start, end=end, words=description)

    def _build_busy_time(
        self,
        device: int,
        stream: int | None,
        launches: int,
        running: Intervals,
        window: KernelWindow | None = None,
    ) -> BusyTime:
        window = window or self.window
        gaps = running.find_uncovered_gaps(window.start, window.end)
        return BusyTime(
            run=self.run,
            device=device,
            stream=stream,
            launches=launches,
            running_ns=running.measure_covered_ns(window.start, window.end),
            window_ns=window.length_ns,
            window=window.words,
            longest_wait_ns=max((end - start for start, end in gaps), default=0),
        )

    @cached_property
    def idle_times(self) -> tuple[DeviceIdleTime, ...]:
        """Waits of each device that ran kernels. Those before its steady part are start-up."""
        if not self.window.by_device:
            return ()
        of_host, rows = _build_host_intervals_by_idle_cause(self.run), []
        for device in self.window.by_device:
            copies = Intervals([*of_host[COPY].pairs, *self._build_copy_intervals(device).pairs])
            explanations = of_host | {COPY: copies}
            if steady := self._find_shortest_active_window(device):
                before = (self.window.start, steady.start)
                explanations[START] = Intervals([*of_host[START].pairs, before])
            rows.append(
                _build_device_idle_time_by_cause(self.run, device, self.window, explanations)
            )
        return tuple(rows)

    @cached_property
    def recorded_ns(self) -> float:
        """GPU time of the window, of all GPUs; the sum of the kernels under ncu, which runs them
        one by one."""
        gpu_ns = self.window.length_ns * len(self.window.by_device)
        return gpu_ns or sum_durations_ns(self.run.report.kernels)

    @cached_property
    def kernels_by_family(self) -> Mapping[str, Sequence[Kernel]]:
        """Kernels that have a duration by family, by name where no pattern matches it; the family
        with the most time first. Time of collectives that computation hides does not count."""
        timed = (kernel for kernel in self.run.report.kernels if kernel.duration_ns is not None)
        families = group_by(timed, lambda kernel: recognise_family(kernel.name) or kernel.name)
        times = {family: self.measure_exposed_ns(family, same) for family, same in families.items()}
        return {family: families[family] for family in sorted(times, key=lambda key: -times[key])}

    def measure_exposed_ns(self, family: str, kernels: Sequence[Kernel]) -> float:
        """Return the summed time of a family; of collectives, the part that nothing hides."""
        if family != COLLECTIVE or self.time_breakdown is None:
            return sum_durations_ns(kernels)
        return self.time_breakdown.shares[COMMUNICATION] * self.recorded_ns

    @cached_property
    def allocations(self) -> Allocations:
        """Calls that allocate or free memory: of the measured steps if they are marked. Not the
        first one of a capture, which may create the context."""
        window, report = self.window, self.run.report
        calls = [call for call in report.waiting_calls if call.name in ALLOCATIONS]
        calls = sorted(filter(has_start_and_duration, calls), key=get_start_ns)
        captured = Intervals.make_from_items([*report.copies, *calls])
        if window.words == CAPTURE:
            calls = calls[1:]
        else:
            captured = Intervals(())
            calls = [call for call in calls if window.start <= get_start_ns(call) < window.end]
        captured = Intervals([(window.start, window.end), *captured.pairs])
        by_name = group_by(calls, attrgetter("name"))
        times = {name: sum_durations_ns(same) for name, same in by_name.items()}
        return Allocations(times, Intervals.make_from_items(calls).total_ns, captured.span_ns)

    def _build_copy_intervals(self, device: int) -> Intervals:
        """Return when a copy of the device ran, or one whose device is not known."""
        copies = self.run.report.copies
        return Intervals.make_from_items(
            copy for copy in copies if copy.device_index in (None, device)
        )

    @cached_property
    def time_breakdown(self) -> TimeBreakdown | None:
        """Kinds of work, as the mean of the GPUs; None without kernels that have times."""
        window = self.window
        if not window.by_device or window.length_ns <= 0:
            return None
        sums = dict.fromkeys(PARTS, 0)
        for device, kernels in window.by_device.items():
            names = {kernel.name for kernel in kernels}
            collectives = {name for name in names if recognise_family(name) == COLLECTIVE}
            computing = (kernel for kernel in kernels if kernel.name not in collectives)
            kernels_run = window.kernel_intervals_by_device[device]
            compute, running, working = (
                intervals.measure_covered_ns(window.start, window.end)
                for intervals in (
                    Intervals.make_from_items(computing) if collectives else kernels_run,
                    kernels_run,
                    Intervals([*kernels_run.pairs, *self._build_copy_intervals(device).pairs]),
                )
            )
            sums[COMPUTE] += compute
            sums[COMMUNICATION] += running - compute
            sums[COPIES] += working - running
            sums[IDLE] += window.length_ns - working
        gpus = len(window.by_device)
        shares = {part: length / (window.length_ns * gpus) for part, length in sums.items()}
        return TimeBreakdown(self.run, shares, window.words, gpus)

    @cached_property
    def utilization_by_source(self) -> UtilizationBySource:
        """Utilization of the run by every source."""
        devices = [
            row
            for row in self.device_and_stream_busy_times
            if row.stream is None and row.busy_share is not None
        ]
        if devices:
            over = f", mean of {len(devices)} GPUs" if len(devices) > 1 else ""
            mean = sum(row.busy_share or 0 for row in devices) / len(devices)
            by_kernels = UsageShare(mean, f"{devices[0].window}{over}", len(devices))
        elif self.run.profiler == "ncu":
            by_kernels = UsageShare(None, "ncu runs kernels one by one")
        elif self.run.report.counters:
            by_kernels = UsageShare(None, "kernels ran one by one, because counters were collected")
        else:
            by_kernels = UsageShare(None, "no kernels with start times")
        return compute_utilization_by_source(self.run, by_kernels)

    @cached_property
    def device_readings(self) -> tuple[DeviceReadings, ...]:
        """What the devices state about themselves."""
        return summarize_readings_by_device(self.run)

    @cached_property
    def device_energies(self) -> tuple[Energy, ...]:
        """Energy of the devices, by their power."""
        return compute_energy_per_gpu(self.run)

    @cached_property
    def memory_use(self) -> MemoryUse:
        """Estimated memory, and memory by every source that measured it."""
        return collect_memory_use(self.run)


def _build_device_idle_time_by_cause(
    run: Run, device: int, window: KernelWindow, intervals_by_cause: Mapping[str, Intervals]
) -> DeviceIdleTime:
    host = [item for item in run.report.ranges if item.duration_ns is not None]
    gaps = window.kernel_intervals_by_device[device].find_uncovered_gaps(window.start, window.end)
    waits: list[tuple[int, int, str]] = []
    by_cause = dict.fromkeys(CAUSES, 0)
    for start, end in gaps:
        # the first that covers at least half of the wait
        covering = (
            cause
            for cause, intervals in intervals_by_cause.items()
            if intervals.pairs and intervals.measure_covered_ns(start, end) >= (end - start) / 2
        )
        cause = next(covering, LAUNCH if end - start <= LAUNCH_MAX_NS else HOST)
        waits.append((start, end, cause))
        copied = intervals_by_cause[COPY].measure_covered_ns(start, end) if cause == HOST else 0
        by_cause[COPY] += copied
        by_cause[cause] += end - start - copied
    kernels = sorted(window.by_device[device], key=get_start_ns)
    by_end = sorted(kernels, key=get_end_ns)
    largest = []
    for start, end, cause in sorted(waits, key=lambda wait: wait[0] - wait[1])[:LARGEST_WAITS]:
        last = bisect_left(by_end, start + 1, key=get_end_ns) - 1
        after = by_end[last] if last >= 0 else None
        following = bisect_left(kernels, end, key=get_start_ns)
        before = kernels[following] if following < len(kernels) else None
        middle = (start + end) // 2
        over = [item for item in host if item.start_ns <= middle < get_end_ns(item)]
        enclosing = min(over, key=lambda item: item.duration_ns or 0).name if over else None
        largest.append(IdleGap(start, end - start, cause, after, before, enclosing))
    return DeviceIdleTime(
        run=run,
        device=device,
        window_ns=window.length_ns,
        window=window.words,
        by_cause={cause: length for cause, length in by_cause.items() if length},
        count=len(gaps),
        explained=Intervals(
            (start, end) for start, end, cause in waits if cause not in (LAUNCH, HOST)
        ),
        largest=tuple(largest),
    )


def _build_host_intervals_by_idle_cause(run: Run) -> dict[str, Intervals]:
    """Return cause -> when the host did it, by the names of its ranges and calls; the first cause
    that covers a wait counts."""
    during: dict[str, list[Timed]] = {cause: [] for cause in _CAUSE_OF_NAME.values()}
    during[DATA] += [item for item in run.report.ranges if item.phase == "data"]
    items: list[Range | OpCall] = [*run.report.ranges, *run.report.waiting_calls]
    for item in items:
        name = item.name.lower()
        cause = next((cause for part, cause in _CAUSE_OF_NAME.items() if part in name), None)
        if cause is not None:
            during[cause].append(item)
    of_host = {cause: Intervals.make_from_items(items) for cause, items in during.items()}
    of_host[START] = Intervals([*of_host[START].pairs, *_find_tuning_steps(run.report.kernels)])
    return of_host


def _find_tuning_steps(kernels: Iterable[Kernel]) -> list[tuple[int, int]]:
    """Return the kernels' span in each step in which cuDNN tried the algorithms of a convolution,
    as it does when it meets a shape for the first time: one pass of a layer ran them all."""
    families: dict[tuple[int | None, str, str | None], set[str | None]] = defaultdict(set)
    if {recognise_family(name) for name in {kernel.name for kernel in kernels}} >= TRIED:
        for kernel in kernels:
            if kernel.layer is not None and kernel.step is not None:
                key = (kernel.step, kernel.layer, kernel.direction)
                families[key].add(recognise_family(kernel.name))
    tuning = {step for (step, _, _), tried in families.items() if tried >= TRIED}
    in_steps = group_by((item for item in kernels if item.step in tuning), attrgetter("step"))
    return [
        (min(map(get_start_ns, same)), max(map(get_end_ns, same))) for same in in_steps.values()
    ]


@dataclass(frozen=True, slots=True)
class RangeTotal:
    """All ranges of one name and domain in one run, in nanoseconds."""

    run: Run
    name: str
    domain: str | None
    times: int
    gpu_ns: int | None
    """Of the kernels, copies and memsets that were launched inside, added up. None: the report does
    not say."""
    span_ns: int | None
    """From the first start to the last end of these in each range, added up: the projection of
    nsys' nvtx_gpu_proj_sum."""
    host_ns: int
    longest_ns: int


def sum_ranges_by_name(run: Run) -> tuple[RangeTotal, ...]:
    """Return every name once, without emit_nvtx's numbers of the call, in order of first
    appearance. Ranges without an end are left out; nested ones overlap."""
    ended = (item for item in run.report.ranges if item.duration_ns is not None)
    groups = group_by(ended, lambda item: (_CALL_NUMBERS.sub("", item.name), item.domain))
    totals = []
    for (name, domain), ranges in groups.items():
        host = [item.duration_ns or 0 for item in ranges]
        gpu = [item.gpu_ns for item in ranges if item.gpu_ns is not None]
        span = [item.gpu_span_ns for item in ranges if item.gpu_span_ns is not None]
        totals.append(
            RangeTotal(
                run=run,
                name=name,
                domain=domain,
                times=len(ranges),
                gpu_ns=sum(gpu) if gpu else None,
                span_ns=sum(span) if span else None,
                host_ns=sum(host),
                longest_ns=max(host),
            )
        )
    return tuple(totals)


@dataclass(frozen=True, slots=True)
class Projection:
    """Where one range's kernels ran on one GPU, those of the ranges inside it included."""

    range: Range
    device: int
    start_ns: int
    """Of the first kernel that was launched inside; ``end_ns`` of the last one. Copies are not in
    it: a report joins them to ranges for ``Range.gpu_span_ns``, and does not say which."""
    end_ns: int


def project_ranges_on_gpus(run: Run) -> tuple[Projection, ...]:
    """Return the ranges of a run on the GPU's time line, in their order, once for each GPU. Empty
    where no kernel names its range."""
    ranges = {item.number: item for item in run.report.ranges}
    timed = filter(has_start_and_duration, run.report.kernels)
    kernels_by_range = group_by(
        timed, lambda kernel: (kernel.range_number, kernel.device_index or 0)
    )
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for (innermost, device), kernels in kernels_by_range.items():
        first, last = min(map(get_start_ns, kernels)), max(map(get_end_ns, kernels))
        for item in walk_enclosing_ranges(innermost, ranges):
            start, end = spans.get((item.number, device), (first, last))
            spans[item.number, device] = min(start, first), max(end, last)
    return tuple(
        Projection(ranges[number], device, *span)
        for (number, device), span in sorted(spans.items())
    )
