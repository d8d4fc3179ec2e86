"""Where a GPU waits: the time between kernels, and what went on around each wait.

A report says when kernels and copies ran and which ranges were open on the host; it keeps no times of launch calls.
So a wait in which nothing was copied and no images were loaded is the host's: launches came late, or it waited itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from perfctl.orchestrator.analyse.usage.busy import spans, union, window_of
from perfctl.records.report import Kernel, Range
from perfctl.records.run import Run

SHOWN = 10
LAUNCH_NS = 10_000
"""A wait up to this long between two kernels is what one launch takes: the host hands over one after the other."""
COPY, DATA, SYNCHRONISE, LAUNCH, HOST = "copy", "loading data", "synchronising", "launches one by one", "host"
CAUSES = (DATA, COPY, SYNCHRONISE, LAUNCH, HOST)
_HALF = 0.5
_SYNCHRONISE = ("synchronize", "synchronise")


@dataclass(frozen=True, slots=True)
class Wait:
    """One stretch of time without a kernel on a device."""

    start_ns: int
    """On the report's clock."""
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
class Idle:
    """All waits of one device of a run."""

    run: Run
    device: int
    window_ns: int
    by_cause: dict[str, int]
    """Nanoseconds; they add up to the time without a kernel."""
    count: int
    largest: tuple[Wait, ...]
    """The SHOWN longest, longest first."""


def idle(run: Run) -> tuple[Idle, ...]:
    """Each device that ran kernels; empty under ncu and without start times, as ``busy`` is."""
    kernels = list(run.report.kernels)
    if run.profiler == "ncu" or not kernels or any(k.start_ns is None or k.duration_ns is None for k in kernels):
        return ()
    start, end, _ = window_of(run, kernels)
    devices: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if start <= (kernel.start_ns or 0) < end:
            devices[kernel.device_index or 0].append(kernel)
    return tuple(_idle(run, device, group, (start, end)) for device, group in sorted(devices.items()))


def _idle(run: Run, device: int, kernels: list[Kernel], window: tuple[int, int]) -> Idle:
    kernels.sort(key=lambda kernel: kernel.start_ns or 0)
    _, waits = union(*spans(kernels), window)
    by_end = sorted(kernels, key=_end)
    starts, ends = [kernel.start_ns or 0 for kernel in kernels], [_end(kernel) for kernel in by_end]
    copies = [(item.start_ns, item.start_ns + item.duration_ns) for item in run.report.copies
              if item.start_ns is not None and item.duration_ns is not None
              and item.device_index in (None, device)]  # fmt: skip
    explanations = _Explanations(_merged(copies), _ranges(run, "data"), _named(run, _SYNCHRONISE))
    found: list[tuple[int, int, str]] = []
    by_cause: dict[str, int] = dict.fromkeys(CAUSES, 0)
    for begin, stop in waits:
        cause = explanations.cause(begin, stop)
        by_cause[cause] += stop - begin
        found.append((begin, stop, cause))
    largest = sorted(found, key=lambda wait: wait[0] - wait[1])[:SHOWN]
    all_ranges = [item for item in run.report.ranges if item.duration_ns is not None]
    made = []
    for begin, stop, cause in largest:
        last, following = bisect_left(ends, begin + 1) - 1, bisect_left(starts, stop)
        made.append(
            Wait(
                begin, stop - begin, cause, by_end[last] if last >= 0 else None,
                kernels[following] if following < len(kernels) else None,
                _innermost(all_ranges, (begin + stop) // 2),
            )
        )  # fmt: skip
    kept = {cause: length for cause, length in by_cause.items() if length}
    return Idle(run, device, window[1] - window[0], kept, len(waits), tuple(made))


@dataclass(frozen=True, slots=True)
class _Explanations:
    """Spans, ascending, of what may explain a wait."""

    copies: list[tuple[int, int]]
    data: list[tuple[int, int]]
    synchronising: list[tuple[int, int]]

    def cause(self, start: int, end: int) -> str:
        """What covers at least half of it, the first in this order."""
        half = (end - start) * _HALF
        for name, known in ((COPY, self.copies), (DATA, self.data), (SYNCHRONISE, self.synchronising)):
            if known and _overlap(known, start, end) >= half:
                return name
        return LAUNCH if end - start <= LAUNCH_NS else HOST


def _end(kernel: Kernel) -> int:
    return (kernel.start_ns or 0) + round(kernel.duration_ns or 0)


def _ranges(run: Run, phase: str) -> list[tuple[int, int]]:
    return _merged(
        (item.start_ns, item.start_ns + item.duration_ns)
        for item in run.report.ranges
        if item.duration_ns is not None and item.phase == phase
    )


def _named(run: Run, words: tuple[str, ...]) -> list[tuple[int, int]]:
    """Ranges whose name says that the host waits for the device."""
    return _merged(
        (item.start_ns, item.start_ns + item.duration_ns)
        for item in run.report.ranges
        if item.duration_ns is not None and any(word in item.name.lower() for word in words)
    )


def _merged(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    return made


def _overlap(known: list[tuple[int, int]], start: int, end: int) -> int:
    """Of [start, end) with spans that ascend and do not overlap."""
    total = 0
    place = max(bisect_left(known, (start, start)) - 1, 0)
    while place < len(known) and known[place][0] < end:
        total += max(min(known[place][1], end) - max(known[place][0], start), 0)
        place += 1
    return total


def _innermost(ranges: list[Range], at: int) -> str | None:
    over = [item for item in ranges if item.start_ns <= at < item.start_ns + (item.duration_ns or 0)]
    found = min(over, key=lambda item: item.duration_ns or 0, default=None)
    return found.name if found is not None else None
