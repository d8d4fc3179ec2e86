"""What a Kineto trace states more than once: its operations count up in "External id" and "Ev Idx",
each launch on the GPU has the correlation of its call, and each allocation its bytes and the total
after it. Looks at what was collected, not at events again."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from perfctl.parsers.kineto.events import Events
from perfctl.parsers.text.doubts import contradictions
from perfctl.records.report import Diagnostic, Gap

_RARE = 100
"""In 2021 to 2023 some traces numbered operations and ranges of each thread anew: then far more ids
are shared."""

_ARGUMENTS = {
    "device": 0,
    "stream": 1,
    "grid": 2,
    "block": 5,
    "registers": 8,
    "shared memory": 9,
    "context": 10,
}
"""What a kernel's arguments state -> where that stands in ``DeviceEvent.args``."""
_FEW = 10


def doubts(events: Events) -> Iterator[Diagnostic]:
    """A warning about operations that are missing, or stand in the trace with the number of
    another one."""
    found = []
    if lost := _lost(events):
        found.append(f"{lost:,} operations or ranges are missing: their numbers are left out")
    shared = sum(index < 0 for index in events.by_external.values())
    if shared and shared * _RARE < len(events.by_external):
        found.append(f"{shared:,} External ids stand at several operations")
    if breaks := _breaks(events):
        found.append(f"at {breaks:,} allocations the total is not the one before plus their bytes")
    yield from contradictions(found)


def _breaks(events: Events) -> int:
    """Allocations of GPUs whose total does not follow from the one before: one between them is
    missing, or a figure is wrong.

    0 where they are many: then what wrote the trace counts in another way (no trace that was seen
    does, 2023 to 2026).
    """
    last: dict[int, int] = {}
    steps = broken = 0
    for _, device, total, _, change in sorted(events.curve, key=itemgetter(0)):
        if total is None:
            continue
        if device in last:
            steps += 1
            broken += last[device] + change != total
        last[device] = total
    return broken if broken * _FEW <= steps or steps < _FEW else 0


def _lost(events: Events) -> int:
    """How many operations and ranges are surely missing.

    They have consecutive External ids, and consecutive indices where no Python function or
    allocation counts along. Traces of several processes or that a program filtered leave numbers
    out of one of them; none that was seen leaves them out of both (2021 to 2025).
    """
    ids = events.by_external
    known = []
    if len(ids) > 1:
        known.append(max(ids) - min(ids) + 1 - len(ids))
    if (
        events.indices
        and not events.functions.names
        and not events.memory
        and not _has_functions(events)
    ):
        known.append(events.last_index + 1 - events.indices)
    return max(0, min(known, default=0))


def _has_functions(events: Events) -> bool:
    return any(category == "python_function" for category, _ in events.api)


def launches_without_work(events: Events) -> Iterator[Gap]:
    """A gap where calls launched kernels that the trace does not have; several kernels of a graph
    have one call."""
    calls = events.calls
    launched = {event.correlation for event in events.kernels if event.correlation in calls}
    missing = events.launches - len(launched)
    if launched and missing > 0:
        reason = f"{missing:,} of {events.launches:,} launch calls have no kernel in the trace"
        yield Gap(
            "kernel",
            "not_available",
            f"{reason}: captured into a graph, ended after the profiler did, or lost",
        )


def work_without_launch(events: Events) -> Iterator[Gap]:
    """A gap where a few kernels name a launch call that the trace does not have, and all others
    have theirs."""
    calls = events.calls
    alone = sum(event.correlation not in calls for event in events.kernels)
    if 0 < alone * _FEW <= len(events.kernels):
        reason = (
            f"the launch calls of {alone:,} of {len(events.kernels):,} kernels are not in the trace"
        )
        yield Gap(
            "kernel.call", "not_available", f"{reason}: made before the profiler began, or lost"
        )


def arguments_missing(events: Events) -> Iterator[Gap]:
    """A gap where few launches and calls lack what all others state: a version of the profiler
    writes the same of each."""
    if 0 < events.uncorrelated * _FEW <= events.called:
        reason = (
            f"{events.uncorrelated:,} of {events.called:,} calls of the runtime state no "
            "correlation, which all others do"
        )
        yield Gap("api_call.correlation", "unreadable", reason)
    last, lost = max(_ARGUMENTS.values()) + 1, dict.fromkeys(_ARGUMENTS, 0)
    for event in events.kernels:
        if None in event.args[:last]:
            for name, at in _ARGUMENTS.items():
                lost[name] += event.args[at] is None
    for name, count in lost.items():
        if 0 < count * _FEW <= len(events.kernels):
            reason = (
                f"{count:,} of {len(events.kernels):,} launches state no {name}, which all others "
                "do"
            )
            yield Gap(f"kernel.{name.replace(' ', '_')}", "unreadable", reason)
