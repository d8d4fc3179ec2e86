"""The time between kernels on a GPU, and the cause of each wait.

A report has the times of kernels, copies and host ranges, and none of launch calls. So a wait without a copy or loading
of images is the host's: launches came late, or the host waited itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfctl.orchestrator.analyse.usage.busy import kernels_in_window, spans, union
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run

SHOWN = 10
LAUNCH_NS = 10_000
"""A wait up to this long between two kernels is the time of one launch."""
COPY, DATA, SYNCHRONISE, LAUNCH, HOST = "copy", "loading data", "synchronising", "launches one by one", "host"
CAUSES = (DATA, COPY, SYNCHRONISE, LAUNCH, HOST)
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
    devices, window, _ = kernels_in_window(run)
    return tuple(_idle(run, device, kernels, window) for device, kernels in devices.items())


def _idle(run: Run, device: int, kernels: list[Kernel], window: tuple[int, int]) -> Idle:
    kernels.sort(key=lambda kernel: kernel.start_ns or 0)
    by_end = sorted(kernels, key=_end)
    starts, ends = [kernel.start_ns or 0 for kernel in kernels], [_end(kernel) for kernel in by_end]
    host = [item for item in run.report.ranges if item.duration_ns is not None]
    explanations = {
        COPY: _merged(item for item in run.report.copies if item.device_index in (None, device)),
        DATA: _merged(item for item in host if item.phase == "data"),
        SYNCHRONISE: _merged(item for item in host if any(word in item.name.lower() for word in _SYNCHRONISE)),
    }
    _, waits = union(*spans(kernels), window)
    by_cause = dict.fromkeys(CAUSES, 0)
    found: list[tuple[int, int, str]] = []
    for begin, stop in waits:
        found.append((begin, stop, _cause(explanations, begin, stop)))
        by_cause[found[-1][2]] += stop - begin
    made = []
    for begin, stop, cause in sorted(found, key=lambda wait: wait[0] - wait[1])[:SHOWN]:
        last, following = bisect_left(ends, begin + 1) - 1, bisect_left(starts, stop)
        made.append(
            Wait(
                begin, stop - begin, cause, by_end[last] if last >= 0 else None,
                kernels[following] if following < len(kernels) else None, _innermost(host, (begin + stop) // 2),
            )
        )  # fmt: skip
    kept = {cause: length for cause, length in by_cause.items() if length}
    return Idle(run, device, window[1] - window[0], kept, len(waits), tuple(made))


def _cause(explanations: Mapping[str, list[tuple[int, int]]], start: int, end: int) -> str:
    """What covers at least half of the wait, the first in the order of ``explanations``."""
    for name, known in explanations.items():
        if known and _overlap(known, start, end) >= (end - start) / 2:
            return name
    return LAUNCH if end - start <= LAUNCH_NS else HOST


def _end(kernel: Kernel) -> int:
    return (kernel.start_ns or 0) + round(kernel.duration_ns or 0)


def _merged(items: Iterable[Range | Copy]) -> list[tuple[int, int]]:
    """Spans of what has a start and a duration, ascending, those that touch joined."""
    made: list[tuple[int, int]] = []
    known = ((item.start_ns, item.start_ns + item.duration_ns) for item in items
             if item.start_ns is not None and item.duration_ns is not None)  # fmt: skip
    for start, end in sorted(known):
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
