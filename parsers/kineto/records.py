"""Turns the nested events of a Kineto trace into perfctl's records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isnan, nan

from perfctl.parsers.kineto.events import PROFILER_STEP, DeviceEvent, Events, Place
from perfctl.parsers.kineto.nesting import NOWHERE, Context, Nesting
from perfctl.records.ranges import read_range_name
from perfctl.records.report import Copy, Kernel, Operation, Range, Step

_COPY = re.compile(r"\b(HtoD|DtoH|DtoD|HtoH|PtoP)\b")
_ROCM_COPY = re.compile(r"(Host|Device)To(Host|Device)")


class Launches:
    """The CPU span that launched each kernel and copy.

    ``resolve`` must follow once the nesting is known: launches that no External id settles are
    looked up by time, as ``probes`` of the sweep.
    """

    def __init__(self, events: Events) -> None:
        self.probes: list[Place] = []
        self._events = events
        self.kernel_spans = [self._launcher(event) for event in events.kernels]
        self.copy_spans = [self._launcher(event) for event in events.copies]

    def resolve(self, nesting: Nesting) -> None:
        """Fill in the results of the probes. After this, -1 is a launch outside all spans or at an
        unknown place."""
        for spans in (self.kernel_spans, self.copy_spans):
            spans[:] = [span if span >= -1 else nesting.probed[-2 - span] for span in spans]

    def place(self, event: DeviceEvent) -> Place | None:
        """Thread and time of the launch call; None when the trace has no such call, or several."""
        return None if event.correlation is None else self._events.calls.get(event.correlation)

    def _launcher(self, event: DeviceEvent) -> int:
        """Position of the span; -1 for none; -2 - n when probe n will find it."""
        number = self._events.by_external.get(event.external, -1)
        place = self.place(event)
        if number >= 0:
            span = self._events.spans[number]
            if place is None:
                return number if event.start is not None and span.start <= event.start else -1
            end = span.start if span.end is None else span.end
            if span.thread == place.thread and span.start <= place.at <= end:
                return number
        if place is None:
            return -1
        self.probes.append(place)
        return -1 - len(self.probes)


def kernels(events: Events, nesting: Nesting, launches: Launches) -> list[Kernel]:
    """Return one record per launch, in the order of the trace."""
    found = []
    for launch, (event, span) in enumerate(zip(events.kernels, launches.kernel_spans, strict=True)):
        context = nesting.contexts[span] if span >= 0 else NOWHERE
        step, place = context.step, launches.place(event)
        if step is None and place:
            step, _ = nesting.step_and_phase(context, place)
        *numbers, shared, cuda_context, graph, node, occupancy = event.args
        # Kineto gives static and dynamic shared memory as one sum
        share = 0 if shared == 0 else None
        numbers += [share, share, event.start, event.duration]
        named = (
            None,
            context.layer,
            direction_of(context),
            step,
            context.source,
            context.range_number,
        )
        process = events.threads[place.thread][0] if place else None
        rest = (
            process,
            cuda_context,
            graph,
            node,
            event.correlation,
            None,
            None,
            None,
            occupancy,
            None,
        )
        found.append(Kernel._make((launch, event.name, *named, *numbers, *rest)))
    return found


def direction_of(context: Context) -> str | None:
    """Of a layer; the optimizer's work has this direction and no layer."""
    return (
        "optimizer" if context.layer is None and context.phase == "optimizer" else context.direction
    )


def copies(events: Events, nesting: Nesting, launches: Launches) -> list[Copy]:
    """Memcpy and memset, in the order of the trace."""
    found = []
    for event, span in zip(events.copies, launches.copy_spans, strict=True):
        device, stream, size = event.args
        layer = nesting.contexts[span].layer if span >= 0 else None
        found.append(
            Copy(_copy_kind(event.name), size, event.start, event.duration, layer, device, stream)
        )
    return found


def ranges(events: Events, nesting: Nesting) -> list[Range]:
    """All user annotations, in the order of the trace; their numbers are what kernels refer to."""
    found = []
    for number, (index, meaning) in enumerate(nesting.meanings.items()):
        span, around = events.spans[index], nesting.outside[index]
        said = nesting.step_and_phase(nesting.contexts[index], Place(span.thread, span.start))
        duration = None if span.end is None else span.end - span.start
        place = (events.threads[span.thread][1], around.depth, around.range_number, "push_pop")
        names = (meaning.layer, meaning.direction, *said)
        found.append(Range(number, span.name, None, span.start, duration, *place, *names))
    return found


def steps(found: list[Range], served: Collection[int] = ()) -> tuple[Step, ...]:
    """Step ranges, and the phase ranges inside them, in order of time. ProfilerStep#N only where
    perfctl names no step.

    ``served``: numbers of the ranges that are steps of a server.
    """
    names = {span.name: read_range_name(span.name) for span in found}
    own_steps = any(name.step is not None for name in names.values())
    wanted = []
    for span in found:
        name = names[span.name]
        opens_step = name.step is not None or (
            span.number in served if served else not own_steps and PROFILER_STEP.match(span.name)
        )
        if span.step is not None and (opens_step or name.phase):
            wanted.append(Step(span.step, name.phase or "step", span.start_ns, span.duration_ns))
    return tuple(sorted(wanted, key=lambda step: (step.start_ns or 0, step.phase != "step")))


def operations(events: Events, nesting: Nesting, device: Sequence[float]) -> list[Operation]:
    """CPU operations summed over (name, layer, direction), in order of first call. ``device``: of
    ``device_times``.

    ``cpu_ns``, ``device_ns`` and ``memory_bytes`` of a call include what its children took, as in
    torch's own tables; memory is host and device together. A sum that lacks the time of one of its
    calls is None. As in torch's tables, an operation that does nothing but call its namesake (an
    overload) is one call with it.
    """
    durations = [nan if span.end is None else span.end - span.start for span in events.spans]
    own = _own_times(durations, nesting)
    children = Counter(nesting.parents)
    sums: defaultdict[tuple[str, str | None, str | None], _Sum] = defaultdict(_Sum)
    for index, span in enumerate(events.spans):
        if span.is_range:
            continue
        context = nesting.contexts[index]
        total = sums[span.name, context.layer, direction_of(context)]
        total.own += max(own[index], 0)
        parent = nesting.parents[index]
        if parent < 0 or children[parent] != 1 or events.spans[parent].name != span.name:
            total.calls += 1
            total.cpu += durations[index]
            total.device += device[index]
            total.memory += nesting.memory[index]
    on_gpu = bool(events.kernels or events.copies)
    found = []
    for (name, layer, direction), total in sums.items():
        on_device, memory = (
            _known(total.device) if on_gpu else None,
            total.memory if events.memory else None,
        )
        times = (_known(total.cpu), _known(total.own), on_device)
        found.append(Operation(name, "cpu_op", total.calls, *times, memory, None, layer, direction))
    return found


@dataclass(slots=True)
class _Sum:
    """A time that is not known makes the sum not a number."""

    calls: int = 0
    cpu: float = 0
    own: float = 0
    device: float = 0
    memory: int = 0


def _known(time: float) -> int | None:
    return None if isnan(time) else int(time)


def _own_times(durations: list[float], nesting: Nesting) -> list[float]:
    """Time of each span without its children; not a number when its end, or a child's,
    is unknown."""
    own = durations.copy()
    for index in nesting.order:
        if (parent := nesting.parents[index]) >= 0:
            own[parent] -= durations[index]
    return own


def device_times(events: Events, nesting: Nesting, launches: Launches) -> list[float]:
    """Time of the kernels launched inside each span; not a number when one of them has
    no duration."""
    times: list[float] = [0] * len(events.spans)
    for event, span in zip(events.kernels, launches.kernel_spans, strict=True):
        if span >= 0:
            times[span] += nan if event.duration is None else event.duration
    for index in reversed(nesting.order):
        if (parent := nesting.parents[index]) >= 0:
            times[parent] += times[index]
    return times


def _copy_kind(name: str) -> str:
    if name.lower().startswith("memset"):
        return "memset"
    if match := _COPY.search(name):
        return match[1]
    if match := _ROCM_COPY.search(name):
        return f"{match[1][0]}to{match[2][0]}"
    return name
