"""How much of the time a kernel was running, per device and stream; what a GPU did with the time of
a run (compute, communicate, copy, or nothing); and what a device said about itself.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from perfctl.orchestrator.counts.kernels.names import family
from perfctl.records.report import Copy, Kernel, Sample
from perfctl.records.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


COMPUTE, COMMUNICATION, COPIES, IDLE = "compute", "communication", "copies", "idle"
PARTS = (COMPUTE, COMMUNICATION, COPIES, IDLE)
COLLECTIVE = "collective"
"""Family of the kernels that exchange data between GPUs (NCCL, RCCL), by their names."""
T = TypeVar("T", int, float)

BUSY = 0.9
"""Share of time from which a GPU counts as busy."""
OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active",)
TENSOR_PIPE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_subpipe_hmma_cycles_active.avg.pct_of_peak_sustained_active",
)
"""The last is of Blackwell: all types but int8 and fp64."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """One run."""

    run: Run
    shares: Mapping[str, float]
    """Part of PARTS -> share (0..1) of the span; they add up to 1. Communication counts where no
    compute kernel runs, copies where no kernel runs: what is hidden costs no time. Compute and
    communication are the share with a kernel."""
    window: str
    """The span in words, as of ``busy``."""
    gpus: int
    """GPUs that the shares are the plain mean of."""


def breakdown(run: Run) -> Breakdown | None:
    """None under ncu, without kernels, and where one has no start or no duration."""
    devices, window, words = kernels_in_window(run)
    span = window[1] - window[0]
    if not devices or span <= 0:
        return None
    found = [
        _of_device(kernels, _copies(run, device), window) for device, kernels in devices.items()
    ]
    shares = {part: sum(one[part] for one in found) / (span * len(found)) for part in PARTS}
    return Breakdown(run, shares, words, len(found))


def _copies(run: Run, device: int) -> list[Copy]:
    return [item for item in run.report.copies if item.device_index in (None, device)]


def _of_device(
    kernels: Sequence[Kernel], copies: Iterable[Copy], window: tuple[int, int]
) -> dict[str, int]:
    """Part -> nanoseconds."""
    compute = _covered([one for one in kernels if family(one.name) != COLLECTIVE], window)
    running = _covered(kernels, window)
    working = _covered([*kernels, *copies], window)
    return {
        COMPUTE: compute,
        COMMUNICATION: running - compute,
        COPIES: working - running,
        IDLE: window[1] - window[0] - working,
    }


def _covered(items: Sequence[Kernel | Copy], window: tuple[int, int]) -> int:
    return union(*spans(items), window)[0]


@dataclass(frozen=True, slots=True)
class Busy:
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
    def share(self) -> float | None:
        """running / window; None for an empty window."""
        return self.running_ns / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True)
class Readings:
    """Samples of one device in one run: means over time of utilisation and power (W), largest
    memory (bytes) and temperature, smallest clock (Hz). None: not in any sample, or in none of the
    measured steps for a mean."""

    run: Run
    device: int | None
    count: int
    utilisation: float | None
    """Mean over time, 0..1; the tool's own: share of time with any kernel, sampled."""
    memory_used: int | None
    memory_total: int | None
    power: float | None
    temperature: float | None
    """Largest, degrees Celsius."""
    clock: int | None
    span: str
    """What the mean utilisation is over, or why there is none."""


class Running:
    """The kernels of a run between two moments, as of :func:`kernels_in_window`, and when any of
    them ran."""

    def __init__(self, run: Run) -> None:
        self.devices, self.window, self.words = kernels_in_window(run)

    @cached_property
    def union(self) -> Mapping[int, tuple[int, list[tuple[int, int]]]]:
        """Device -> :func:`union` of its kernels."""
        return {
            device: union(*spans(kernels), self.window) for device, kernels in self.devices.items()
        }


def busy(run: Run, known: Running | None = None) -> tuple[Busy, ...]:
    """Devices of a run, each followed by its streams where there are several. Empty under ncu and
    without start times."""
    known = known or Running(run)
    devices, window, words = known.devices, known.window, known.words
    found = []
    for device, kernels in devices.items():
        streams = sorted(
            {kernel.stream for kernel in kernels}, key=lambda number: (number is None, number or 0)
        )
        groups = [
            (stream, [one for one in kernels if one.stream == stream])
            for stream in streams
            if len(streams) > 1
        ]
        for stream, mine in ((None, kernels), *groups):
            running, waits = known.union[device] if mine is kernels else union(*spans(mine), window)
            longest = max((end - start for start, end in waits), default=0)
            found.append(
                Busy(run, device, stream, len(mine), running, window[1] - window[0], words, longest)
            )
    return tuple(found)


def kernels_in_window(run: Run) -> tuple[dict[int, list[Kernel]], tuple[int, int], str]:
    """(device -> its kernels between two moments, these moments, the same in words): the measured
    steps if marked.

    No device under ncu, without kernels, or where one has no start or no duration.
    """
    kernels = list(run.report.kernels)
    if (
        run.profiler == "ncu"
        or not kernels
        or any(k.start_ns is None or k.duration_ns is None for k in kernels)
    ):
        return {}, (0, 0), ""
    words = "from the first kernel to the end of the last"
    start, end = min(kernel.start_ns or 0 for kernel in kernels), max(map(end_of, kernels))
    steps = [
        item
        for item in run.report.ranges
        if item.step is not None and item.name.startswith("perfctl:step:")
    ]
    if steps:
        start = min(item.start_ns for item in steps)
        words = "from the first step to the end of the last step or kernel"
        end = max(end, *(item.start_ns + (item.duration_ns or 0) for item in steps))
    devices: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if start <= (kernel.start_ns or 0) < end:
            devices[kernel.device_index or 0].append(kernel)
    return dict(sorted(devices.items())), (start, end), words


def end_of(kernel: Kernel | Copy) -> int:
    """Nanoseconds, on the report's clock."""
    return (kernel.start_ns or 0) + round(kernel.duration_ns or 0)


def spans(kernels: Iterable[Kernel | Copy]) -> tuple[IntArray, IntArray]:
    """(starts, ends) of kernels, or of copies, in nanoseconds, by start; those without either are
    left out."""
    import numpy as np

    known = [
        (one.start_ns, end_of(one))
        for one in kernels
        if one.start_ns is not None and one.duration_ns is not None
    ]
    pairs = np.array(known, dtype=np.int64).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def union(
    starts: IntArray, ends: IntArray, window: tuple[int, int]
) -> tuple[int, list[tuple[int, int]]]:
    """(length of the union of intervals, what it leaves of ``window`` in pieces);
    ``starts`` ascend.

    What of an interval lies outside of the window does not count.
    """
    import numpy as np

    low, high = window
    starts, ends = np.clip(starts, low, high), np.clip(ends, low, high)
    reached = np.maximum.accumulate(np.concatenate(([low], ends)))
    free = np.concatenate((starts, [high])) - reached
    places = np.flatnonzero(free > 0)
    waits = [(int(reached[place]), int(reached[place] + free[place])) for place in places]
    return high - low - int(free[places].sum()), waits


def joined(pairs: Iterable[tuple[T, T]]) -> list[tuple[T, T]]:
    """(start, end) ascending, those that touch as one."""
    found: list[tuple[T, T]] = []
    for start, end in sorted(pairs):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def by_device(run: Run) -> dict[int | None, list[Sample]]:
    groups: dict[int | None, list[Sample]] = defaultdict(list)
    for sample in run.report.samples:
        if not is_host(sample) and not is_allocator(sample):
            groups[sample.device_index].append(sample)
    return groups


def is_host(sample: Sample) -> bool:
    """A reading of the run's processes, and of no GPU."""
    return sample.host_cpu is not None or sample.host_memory_bytes is not None


def is_allocator(sample: Sample) -> bool:
    """A reading of PyTorch's allocator, and of nothing that the device says itself."""
    return sample.allocated_bytes is not None or sample.reserved_bytes is not None


def readings(run: Run) -> tuple[Readings, ...]:
    return tuple(_readings(run, device, samples) for device, samples in by_device(run).items())


def _readings(run: Run, device: int | None, samples: list[Sample]) -> Readings:
    def known(field: str) -> list[Any]:
        return [value for sample in samples if (value := getattr(sample, field)) is not None]

    (share, span), (watts, _) = (
        _mean(run, samples, "gpu_utilisation"),
        _mean(run, samples, "power_w"),
    )
    return Readings(
        run,
        device,
        len(samples),
        share,
        max(known("memory_used_bytes"), default=None),
        max(known("memory_total_bytes"), default=None),
        watts,
        max(known("temperature_c"), default=None),
        min(known("sm_clock_hz"), default=None),
        span,
    )


@dataclass(frozen=True, slots=True)
class UsageShare:
    """A share, 0..1, or why there is none."""

    value: float | None
    reason: str
    gpus: int = 1
    """GPUs that the value is the plain mean of."""


@dataclass(frozen=True, slots=True)
class Ways:
    """One run."""

    run: Run
    kernels: UsageShare
    nvml: UsageShare
    dlprof: UsageShare
    dlprof_tensor: UsageShare
    """Share of kernel time in kernels that use tensor cores, as DLProf has it."""
    occupancy: UsageShare
    """Warps on an SM over the most it can hold, mean by time of kernels (ncu)."""
    tensor_pipe: UsageShare
    """Cycles with the tensor pipe at work, mean by time of kernels (ncu)."""
    host_cores: float | None
    """Cores that the run's processes kept busy in its steps, mean by time."""
    host_reason: str

    @property
    def anything(self) -> bool:
        shares = (
            self.kernels,
            self.nvml,
            self.dlprof,
            self.dlprof_tensor,
            self.occupancy,
            self.tensor_pipe,
        )
        return self.host_cores is not None or any(share.value is not None for share in shares)


def ways(run: Run, busy: Sequence[Busy]) -> Ways:
    """Utilisation of one run by every source; ``busy`` is the result of ``utilisation.busy`` for
    the same run."""
    host, why = _mean(run, [sample for sample in run.report.samples if is_host(sample)], "host_cpu")
    tensor = _labelled(run, "Tensor Core (?:Kernel )?Utili[sz]ation")
    return Ways(
        run,
        _kernels(run, busy),
        _nvml(run),
        _dlprof(run),
        _unrounded(run, tensor),
        _pipe(run, OCCUPANCY),
        _pipe(run, TENSOR_PIPE),
        host,
        why,
    )


def _kernels(run: Run, busy: Sequence[Busy]) -> UsageShare:
    found = [item for item in busy if item.stream is None and item.share is not None]
    if not found:
        why = (
            "ncu runs kernels one by one"
            if run.profiler == "ncu"
            else "no kernels with start times"
        )
        return UsageShare(None, why)
    over = f", mean of {len(found)} GPUs" if len(found) > 1 else ""
    return UsageShare(
        sum(item.share or 0 for item in found) / len(found), f"{found[0].window}{over}", len(found)
    )


def _nvml(run: Run) -> UsageShare:
    """Of the device that did the work, where samples tell devices apart; else of all."""
    devices = by_device(run)
    index = run.device.index if run.device is not None else 0
    groups = [devices[index]] if run.workload and index in devices else [*devices.values()] or [[]]
    found = [_mean(run, group, "gpu_utilisation") for group in groups]
    known = [value for value, _ in found if value is not None]
    over = f", mean of {len(known)} GPUs" if len(known) > 1 else ""
    sampled = (
        "GR Active as nsys sampled it, "
        if known and run.profiler == "nsys" and run.origin == "ingested"
        else ""
    )
    return UsageShare(
        sum(known) / len(known) if known else None, sampled + found[0][1] + over, len(known) or 1
    )


def _mean(run: Run, samples: Sequence[Sample], field: str) -> tuple[float | None, str]:
    points = [
        (sample.at_ns, value) for sample in samples if (value := getattr(sample, field)) is not None
    ]
    if not points:
        return None, next(
            (gap.reason for gap in run.report.gaps if gap.quantity == f"sample.{field}"),
            "not sampled",
        )
    window = measured_window(run)
    if window is None:
        return mean_over_time(
            points
        ), f"mean over time of {len(points)} readings, from the first to the last"
    value = mean_over_time(points, window)
    if value is None:
        return None, f"none of {len(points)} readings covers the measured steps"
    return value, "mean over time, from the first measured step to the end of the last"


def measured_window(run: Run) -> tuple[int, int] | None:
    """From the first measured step to the end of the last, on the steps' clock; None where steps
    have no times."""
    known = [
        (item.start_ns, item.start_ns + item.duration_ns)
        for item in run.report.steps
        if item.phase == "step" and item.start_ns is not None and item.duration_ns is not None
    ]
    return (min(start for start, _ in known), max(end for _, end in known)) if known else None


def mean_over_time(
    points: Iterable[tuple[int, float]], window: tuple[int, int] | None = None
) -> float | None:
    """Each reading covers the time since the one before, as samplers report it.

    None where no reading covers any of the window. Without a window, from the first reading to the
    last; of several readings at one time the last counts.
    """
    means = dict(points)
    order = sorted(means)
    if window is None and len(order) == 1:
        return means[order[0]]
    low, high = window if window is not None else (order[0], order[-1])
    weight = total = 0.0
    for before, moment in pairwise(order):
        part = max(min(moment, high) - max(before, low), 0)
        weight += part
        total += part * means[moment]
    return total / weight if weight else None


def _dlprof(run: Run) -> UsageShare:
    found, idle = _labelled(run, "GPU Utili[sz]ation"), _labelled(run, "GPU Idle").value
    if found.value is None and idle is not None:
        found = UsageShare(1 - idle, "1 - GPU Idle")
    return _unrounded(run, found)


def _unrounded(run: Run, found: UsageShare) -> UsageShare:
    """No value where DLProf's CSV, which rounds to a tenth of a percent, rounded it to nothing."""
    if found.value is None or found.value >= 0.0005 or not run.report.form.startswith("DLProf CSV"):
        return found
    reason = (
        "DLProf's CSV rounds: 0.0 % is anything below 0.05 %. Its database (dlprof_dldb.sqlite) "
        "has it"
    )
    return UsageShare(None, reason)


def _labelled(run: Run, words: str) -> UsageShare:
    """Mean over domains where DLProf tells several apart."""
    label = re.compile(rf"(?:.*: )?{words}(?: ?%)?\Z", re.IGNORECASE)
    found = [
        item for item in run.report.summaries if item.value is not None and label.match(item.name)
    ]
    if not found:
        why = "DLProf has no line for it" if run.profiler == "dlprof" else "not a report of DLProf"
        return UsageShare(None, why)
    return UsageShare(
        sum(item.value or 0 for item in found) / len(found) / 100, f"DLProf: {found[0].name}"
    )


def _pipe(run: Run, metrics: Sequence[str]) -> UsageShare:
    if not any(True for _ in run.report.counters):
        return UsageShare(None, "no counters were collected")
    times = {
        kernel.launch: kernel.duration_ns for kernel in run.report.kernels if kernel.duration_ns
    }
    for metric in metrics:
        known = [
            (times[item.launch], item.value)
            for item in run.report.counters
            if item.name == metric and item.value is not None and item.launch in times
        ]
        if known:
            share = (
                sum(time * value for time, value in known) / sum(time for time, _ in known) / 100
            )
            return UsageShare(share, f"{metric}, {len(known)} launches")
    return UsageShare(None, f"{metrics[0]} was not collected")


def busy_from(found: Sequence[Ways], threshold: float = BUSY) -> tuple[int, bool] | None:
    """(smallest batch size from which on the GPU is busy, True), or (largest measured, False) where
    it never is.

    By kernels where they are known, else by NVML; None where nothing is known of any batch size.
    """
    for way in ("kernels", "nvml"):
        known = [(item.run.batch_size, getattr(item, way).value) for item in reversed(found)]
        shares = {batch: share for batch, share in known if batch is not None and share is not None}
        if shares:
            busy = [
                batch
                for batch in shares
                if all(share >= threshold for at, share in shares.items() if at >= batch)
            ]
            return (min(busy), True) if busy else (max(shares), False)
    return None
