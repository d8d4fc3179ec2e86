"""How much of the time a kernel was running, per device and stream, and what a device said about itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfctl.parsers.records import Kernel, Sample
from perfctl.parsers.stored import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Busy:
    """One device or one stream of it, between two moments of a run."""

    run: Run
    device: int
    stream: int | None
    """None for all streams of the device together."""
    launches: int
    running_ns: float
    """Time in which at least one kernel ran."""
    window_ns: float
    window: str
    """From where to where, in words."""
    longest_wait_ns: float
    """Longest time inside the window without a kernel."""

    @property
    def share(self) -> float | None:
        """running / window; None for an empty window."""
        return self.running_ns / self.window_ns if self.window_ns else None


@dataclass(frozen=True, slots=True)
class Readings:
    """Samples of one device in one run: how many, and their means and extremes. None: not in any sample."""

    run: Run
    device: int | None
    count: int
    utilisation: float | None
    """Mean, 0..1; the tool's own: share of time with any kernel, sampled."""
    memory_used: int | None
    """Largest, bytes."""
    memory_total: int | None
    power: float | None
    """Mean, W."""
    temperature: float | None
    """Largest, degrees Celsius."""
    clock: int | None
    """Smallest, Hz."""


def busy(run: Run) -> tuple[Busy, ...]:
    """Devices of a run, each followed by its streams where there are several. Empty under ncu and without start times."""
    kernels = list(run.report.kernels)
    if run.profiler == "ncu" or not kernels or any(k.start_ns is None or k.duration_ns is None for k in kernels):
        return ()
    start, end, words = window_of(run, kernels)
    inside = [kernel for kernel in kernels if start <= (kernel.start_ns or 0) < end]
    groups: dict[int, dict[int | None, list[Kernel]]] = defaultdict(lambda: defaultdict(list))
    for kernel in inside:
        groups[kernel.device_index or 0][kernel.stream].append(kernel)
    found = []
    for device, streams in sorted(groups.items()):
        every = [kernel for group in streams.values() for kernel in group]
        found.append(_busy(run, device, None, every, (start, end), words))
        if len(streams) > 1:
            for stream in sorted(streams, key=lambda number: (number is None, number or 0)):
                found.append(_busy(run, device, stream, streams[stream], (start, end), words))
    return tuple(found)


def window_of(run: Run, kernels: Iterable[Kernel]) -> tuple[int, int, str]:
    """(start, end, in words): the measured steps where the report marks them."""
    last = max(int((kernel.start_ns or 0) + round(kernel.duration_ns or 0)) for kernel in kernels)
    steps = [item for item in run.report.ranges if item.step is not None and item.name.startswith("perfctl:step:")]
    if steps:
        ends = [item.start_ns + (item.duration_ns or 0) for item in steps]
        return (
            min(item.start_ns for item in steps),
            max(last, *ends),
            "from the first step's start to the last kernel's end",
        )
    return min(kernel.start_ns or 0 for kernel in kernels), last, "from the first kernel's start to the last one's end"


def _busy(
    run: Run, device: int, stream: int | None, kernels: Iterable[Kernel], window: tuple[int, int], words: str
) -> Busy:
    starts, ends = spans(kernels)
    running, waits = union(starts, ends, window)
    longest = max((end - start for start, end in waits), default=0)
    return Busy(run, device, stream, len(starts), running, window[1] - window[0], words, longest)


def spans(kernels: Iterable[Kernel]) -> tuple[IntArray, IntArray]:
    """(starts, ends) of kernels in nanoseconds, by start; those without either are left out."""
    import numpy as np

    known = [(item.start_ns, item.start_ns + round(item.duration_ns)) for item in kernels
             if item.start_ns is not None and item.duration_ns is not None]  # fmt: skip
    pairs = np.array(known, dtype=np.int64).reshape(-1, 2)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    return pairs[:, 0], pairs[:, 1]


def union(starts: IntArray, ends: IntArray, window: tuple[int, int]) -> tuple[int, list[tuple[int, int]]]:
    """(length of the union of intervals, what it leaves of ``window`` in pieces); ``starts`` ascend.

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


def readings(run: Run) -> tuple[Readings, ...]:
    """One line a device that was sampled."""
    groups: dict[int | None, list[Sample]] = defaultdict(list)
    for sample in run.report.samples:
        if not is_host(sample):
            groups[sample.device_index].append(sample)
    return tuple(_readings(run, device, group) for device, group in groups.items())


def is_host(sample: Sample) -> bool:
    """A reading of the run's processes, and of no GPU."""
    return sample.host_cpu is not None or sample.host_memory_bytes is not None


def _readings(run: Run, device: int | None, samples: list[Sample]) -> Readings:
    def known(field: str) -> list[float]:
        return [value for sample in samples if (value := getattr(sample, field)) is not None]

    def mean(values: list[float]) -> float | None:
        return sum(values) / len(values) if values else None

    used, total, clock = known("memory_used_bytes"), known("memory_total_bytes"), known("sm_clock_hz")
    return Readings(
        run, device, len(samples), mean(known("gpu_utilisation")), int(max(used)) if used else None,
        int(max(total)) if total else None, mean(known("power_w")), max(known("temperature_c"), default=None),
        int(min(clock)) if clock else None,
    )  # fmt: skip
