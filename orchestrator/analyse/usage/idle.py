"""The time between kernels on a GPU, and the cause of each wait: the host's where no copy or loading of images covers it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfctl.orchestrator.analyse.usage.busy import Running, end_of, joined
from perfctl.records.report import Copy, Kernel, Range
from perfctl.records.run import Run

SHOWN = 10
LAUNCH_NS = 10_000
"""A wait up to this long between two kernels is the time of one launch."""
COPY, DATA, SYNCHRONISE, LAUNCH, HOST = "copy", "loading data", "synchronising", "launches one by one", "host"
CAUSES = (DATA, COPY, SYNCHRONISE, LAUNCH, HOST)


@dataclass(frozen=True, slots=True)
class Wait:
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
class Idle:
    """All waits of one device of a run."""

    run: Run
    device: int
    window_ns: int
    window: str
    """The window in words, as of :class:`Busy`."""
    by_cause: dict[str, int]
    count: int
    largest: tuple[Wait, ...]
    """The SHOWN longest, longest first."""


def idle(run: Run, known: Running | None = None) -> tuple[Idle, ...]:
    """Each device that ran kernels; empty under ncu and without start times, as ``busy`` is."""
    known = known or Running(run)
    return tuple(_idle(run, device, known) for device in known.devices)


def _idle(run: Run, device: int, known: Running) -> Idle:
    window, kernels = known.window, sorted(known.devices[device], key=_start_of)
    by_end = sorted(kernels, key=end_of)
    host = [item for item in run.report.ranges if item.duration_ns is not None]
    explanations = {
        COPY: _merged(item for item in run.report.copies if item.device_index in (None, device)),
        DATA: _merged(item for item in host if item.phase == "data"),
        SYNCHRONISE: _merged(item for item in host if re.search("synchroni[sz]e", item.name.lower())),
    }
    _, waits = known.union[device]
    found = [(begin, stop, _cause(explanations, begin, stop)) for begin, stop in waits]
    by_cause = {cause: sum(stop - begin for begin, stop, of in found if of == cause) for cause in CAUSES}
    made = []
    for begin, stop, cause in sorted(found, key=lambda wait: wait[0] - wait[1])[:SHOWN]:
        last = bisect_left(by_end, begin + 1, key=end_of) - 1
        at = bisect_left(kernels, stop, key=_start_of)
        following = kernels[at] if at < len(kernels) else None
        middle = (begin + stop) // 2
        over = [item for item in host if item.start_ns <= middle < item.start_ns + (item.duration_ns or 0)]
        innermost = min(over, key=lambda item: item.duration_ns or 0, default=None)
        around = innermost.name if innermost is not None else None
        made.append(Wait(begin, stop - begin, cause, by_end[last] if last >= 0 else None, following, around))
    kept = {cause: length for cause, length in by_cause.items() if length}
    return Idle(run, device, window[1] - window[0], known.words, kept, len(waits), tuple(made))


def _start_of(kernel: Kernel) -> int:
    return kernel.start_ns or 0


def _cause(explanations: Mapping[str, list[tuple[int, int]]], start: int, end: int) -> str:
    """What covers at least half of the wait, the first in the order of ``explanations``."""
    for name, known in explanations.items():
        if known and _overlap(known, start, end) >= (end - start) / 2:
            return name
    return LAUNCH if end - start <= LAUNCH_NS else HOST


def _merged(items: Iterable[Range | Copy]) -> list[tuple[int, int]]:
    return joined((item.start_ns, item.start_ns + item.duration_ns) for item in items
                  if item.start_ns is not None and item.duration_ns is not None)  # fmt: skip


def _overlap(known: list[tuple[int, int]], start: int, end: int) -> int:
    total = 0
    place = max(bisect_left(known, (start, start)) - 1, 0)
    while place < len(known) and known[place][0] < end:
        total += max(min(known[place][1], end) - max(known[place][0], start), 0)
        place += 1
    return total
