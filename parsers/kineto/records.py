"""Turns the nested events of a Kineto trace into perfctl's records."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from perfctl.parsers.kineto.events import PROFILER_STEP, CommArgs, DeviceEvent, Events, Place
from perfctl.parsers.kineto.fused import element_bytes
from perfctl.parsers.kineto.nesting import NOWHERE, Context, Nesting
from perfctl.records.bulk import Columns
from perfctl.records.ranges import read_range_name
from perfctl.records.report import (
    ApiCall,
    Collective,
    Copy,
    Kernel,
    OpCall,
    Operation,
    Range,
    Step,
)

_COPY = re.compile(r"\b(HtoD|DtoH|DtoD|HtoH|PtoP)\b")
_MEMORIES = re.compile(r"\((\w+)(?: Static)? -> (\w+)(?: Static)?\)\Z")
_MEMORY = {
    "Pageable": "pageable",
    "Pinned": "pinned",
    "Device": "device",
    "Array": "device",
    "Managed": "managed",
}
"""Kind of memory in a copy's name, "Memcpy HtoD (Pageable -> Device)" -> the word of the
record."""
_ROCM_COPY = re.compile(r"(Host|Device)To(Host|Device)")
_COLLECTIVE = re.compile(
    r"(?:void )?(?:(?:nccl|rccl|msccl)\w*?kernel(?:_generic)?_?([^_\W]*)"
    r"|(?:dpsk::ep|deep_ep)::(?:internode|intranode)\w*::(\w+))",
    re.IGNORECASE,
)
"""Kernels of NCCL and RCCL, with what they do behind ("ncclDevKernel_AllReduce_Sum_f32_RING_LL");
of DeepEP."""
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
}
_UNKNOWN = (None, None, None)
_CHUNK = 1000
"""Operators at a time."""


class Launches:
    """The CPU span that launched each kernel and copy.

    ``resolve`` must follow once the nesting is known: launches that no External id settles are
    looked up by time, as ``probes`` of the sweep.
    """

    def __init__(self, events: Events) -> None:
        self.probes: list[Place] = []
        self._events = events
        self.kernel_spans = list(map(self._find_launcher, events.kernels))
        self.copy_spans = list(map(self._find_launcher, events.copies))

    def resolve(self, nesting: Nesting) -> None:
        """Fill in the results of the probes. After this, -1 is a launch outside all spans or at an
        unknown place."""
        for spans in (self.kernel_spans, self.copy_spans):
            spans[:] = [span if span >= -1 else nesting.probed[-2 - span] for span in spans]

    def place(self, event: DeviceEvent) -> Place | None:
        """Return thread and time of the launch call; None when the trace has no such call, or
        several."""
        correlation = event.args.correlation
        return None if correlation is None else self._events.calls.get(correlation)

    def _find_launcher(self, event: DeviceEvent) -> int:
        """Return the position of the span; -1 for none; -2 - n when probe n will find it."""
        index = self._events.by_external.get(event.args.external_id(), -1)
        place = self.place(event)
        if index >= 0:
            span = self._events.spans[index]
            if place is None:
                return index if event.start is not None and span.start <= event.start else -1
            end = span.start if span.end is None else span.end
            if span.thread == place.thread and span.start <= place.at <= end:
                return index
        if place is None:
            return -1
        self.probes.append(place)
        return -1 - len(self.probes)


def kernels(events: Events, nesting: Nesting, launches: Launches) -> list[Kernel]:
    """Return one record per launch, in the order of the trace."""
    records = []
    for launch, (event, span) in enumerate(zip(events.kernels, launches.kernel_spans, strict=True)):
        context = nesting.contexts[span] if span >= 0 else NOWHERE
        step, place = context.step, launches.place(event)
        if step is None and place:
            step = nesting.step_at(context, place)
        args = event.args
        # Kineto gives static and dynamic shared memory as one sum
        share = 0 if args.shared == 0 else None
        fields = (
            *(launch, event.name, None, context.layer, direction_of(context), step),
            *(context.source, context.range_number, args.device, args.stream),
            *(args.grid or _UNKNOWN),
            *(args.block or _UNKNOWN),
            *(args.registers, share, share, event.start, event.duration),
            *(events.threads[place.thread][0] if place else None, args.context),
            *(args.graph, args.node, args.correlation, None, None, None),
            *(None if args.occupancy is None else args.occupancy / 100, None),
        )
        records.append(Kernel._make(fields))
    return records


def direction_of(context: Context) -> str | None:
    """Return that of a layer; the optimizer's work has this direction and no layer."""
    is_optimizer = context.layer is None and context.phase == "optimizer"
    return "optimizer" if is_optimizer else context.direction


def copies(events: Events, nesting: Nesting, launches: Launches) -> list[Copy]:
    """Return memcpy and memset, in the order of the trace."""
    records = []
    for event, span in zip(events.copies, launches.copy_spans, strict=True):
        args = event.args
        peers = {args.from_device, args.to_device} - {args.device}
        peer = peers.pop() if len(peers) == 1 else None
        layer = nesting.contexts[span].layer if span >= 0 else None
        kind = event.name
        if kind.lower().startswith("memset"):
            kind = "memset"
        elif match := _COPY.search(kind):
            kind = match[1]
        elif match := _ROCM_COPY.search(kind):
            kind = f"{match[1][0]}to{match[2][0]}"
        memories = _MEMORIES.search(event.name)
        source, destination = map(_MEMORY.get, memories.groups()) if memories else (None, None)
        place = layer, args.device, args.stream, source, destination, peer
        records.append(Copy(kind, args.bytes, event.start, event.duration, *place))
    return records


def ranges(events: Events, nesting: Nesting) -> list[Range]:
    """Return all user annotations, in the order of the trace; their numbers are what kernels refer
    to."""
    records = []
    for number, (index, meaning) in enumerate(nesting.meanings.items()):
        span, around = events.spans[index], nesting.outside[index]
        context, begin = nesting.contexts[index], Place(span.thread, span.start)
        step, phase = nesting.step_at(context, begin), nesting.phase_at(context, begin)
        duration = None if span.end is None else span.end - span.start
        thread = events.threads[span.thread][1]
        place = (thread, around.depth, around.range_number, "push_pop")
        names = (meaning.layer, meaning.direction, step, phase)
        records.append(Range(number, span.name, None, span.start, duration, *place, *names))
    return records


def steps(ranges: list[Range], served: Collection[int] = ()) -> tuple[Step, ...]:
    """Return step ranges, and the phase ranges inside them, in order of time. ProfilerStep#N only
    where perfctl names no step.

    ``served``: numbers of the ranges that are steps of a server.
    """
    names = {span.name: read_range_name(span.name) for span in ranges}
    own_steps = any(name.step is not None for name in names.values())
    records = []
    for span in ranges:
        name = names[span.name]
        opens_step = name.step is not None or (
            span.number in served if served else not own_steps and PROFILER_STEP.match(span.name)
        )
        if span.step is not None and (opens_step or name.phase):
            records.append(Step(span.step, name.phase or "step", span.start_ns, span.duration_ns))
    return tuple(sorted(records, key=lambda step: (step.start_ns or 0, step.phase != "step")))


@dataclass(slots=True)
class _OperationSum:
    """A time that is not known makes the sum not a number."""

    calls: int = 0
    cpu: float = 0
    own: float = 0
    device: float = 0
    memory: int = 0


def operations(events: Events, nesting: Nesting, device_ns: Sequence[float]) -> list[Operation]:
    """Return CPU operations summed over (name, layer, direction), in order of first call.
    ``device_ns``: of ``device_times``.

    ``cpu_ns``, ``device_ns`` and ``memory_bytes`` of a call include what its children took, as in
    torch's own tables; memory is host and device together. A sum that lacks the time of one of its
    calls is None. As in torch's tables, an operation that does nothing but call its namesake (an
    overload) is one call with it.
    """
    durations = [nan if span.end is None else span.end - span.start for span in events.spans]
    own = durations.copy()
    for index in nesting.order:
        if (parent := nesting.parents[index]) >= 0:
            own[parent] -= durations[index]
    children = Counter(nesting.parents)
    sums: defaultdict[tuple[str, str | None, str | None], _OperationSum]
    sums = defaultdict(_OperationSum)
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
            total.device += device_ns[index]
            total.memory += nesting.memory[index]
    on_gpu = bool(events.kernels or events.copies)
    return [
        Operation(
            name,
            "cpu_op",
            total.calls,
            _known_ns(total.cpu),
            _known_ns(total.own),
            _known_ns(total.device) if on_gpu else None,
            total.memory if events.memory else None,
            None,
            layer,
            direction,
        )
        for (name, layer, direction), total in sums.items()
    ]


def _known_ns(time: float) -> int | None:
    return None if isnan(time) else int(time)


def device_times(events: Events, nesting: Nesting, launches: Launches) -> list[float]:
    """Return the time of the kernels launched inside each span; not a number when one of them has
    no duration."""
    times: list[float] = [0] * len(events.spans)
    for event, span in zip(events.kernels, launches.kernel_spans, strict=True):
        if span >= 0:
            times[span] += nan if event.duration is None else event.duration
    for index in reversed(nesting.order):
        if (parent := nesting.parents[index]) >= 0:
            times[parent] += times[index]
    return times


def collectives(events: Events, nesting: Nesting, launches: Launches) -> list[Collective]:
    """Return one row a kernel that talks to other GPUs, in the order of the trace.

    Its name is that of its arguments, else of the range that launched it (nccl:all_reduce), else of
    the kernel; ``bytes`` is known only with arguments.
    """
    records = []
    matches = {name: _COLLECTIVE.match(name) for name in {event.name for event in events.kernels}}
    for index, (event, span) in enumerate(zip(events.kernels, launches.kernel_spans, strict=True)):
        match, args = matches[event.name], events.comms.get(-1 - index)
        if match is None and args is None:
            continue
        word = (match[1] or match[2] or "").lower() if match else ""
        name = event.name if not word or word.isdecimal() else _COLLECTIVES.get(word, word)
        if args is None:
            args = _find_comm_args(events, nesting, span) or CommArgs(name)
        size, elements, total = element_bytes(args.dtype), args.elements, None
        if size is not None and elements is not None and elements >= 0:
            total = size * elements
        facts = (args.name or name, args.group or None, args.size, total, args.dtype or None)
        records.append(Collective(*facts, start_ns=event.start, duration_ns=event.duration))
    return records


def _find_comm_args(events: Events, nesting: Nesting, span: int) -> CommArgs | None:
    """Return the arguments of the operation that launched a collective, else the name that a range
    around the launch gives it."""
    named = None
    for around in nesting.spans_around(span):
        if around in events.comms:
            return events.comms[around]
        name = events.spans[around].name
        if named is None and name.startswith("nccl:"):
            named = CommArgs(name.removeprefix("nccl:"))
    return named


def api_calls(events: Events) -> list[ApiCall]:
    """Return sums by function of runtime and driver calls, waits and Python functions, the longest
    in all first."""
    rows = []
    for key, times in events.api.items():
        sums = (None, None, None) if -1 in times else (sum(times), min(times), max(times))
        rows.append(ApiCall(*key, len(times), *sums))
    return sorted(rows, key=lambda row: (row.domain, -(row.total_ns or 0), row.name))


def op_calls(
    events: Events, nesting: Nesting, device_ns: Sequence[float]
) -> Columns[OpCall] | tuple[()]:
    """Return every operator of the trace in its order; records are made when they are read.
    ``device_ns``: ns of kernels inside each span.

    After them, as operators without shapes, come the calls that wait for the GPU. Empty where
    single operators were not wanted.
    """
    if events.signatures is None:
        return ()
    # Not the events themselves, which need not stay until the operators are written.
    spans = [*events.spans, *events.waits]
    no_waits = [0] * len(events.waits)
    contexts = [*nesting.contexts, *(NOWHERE for _ in no_waits)]
    signatures = [*events.signatures, *no_waits]
    times = [*map(_known_ns, device_ns), *(None for _ in no_waits)]
    arguments, threads = events.arguments, [thread for _, thread in events.threads]
    on_gpu = bool(events.kernels or events.copies)
    stacks = _find_stacks(events)
    calls = [index for index, span in enumerate(spans) if not span.is_range]

    def chunks() -> Iterator[Sequence[Sequence[Any]]]:
        for first in range(0, len(calls), _CHUNK):
            part = calls[first : first + _CHUNK]
            chosen = [(spans[index], contexts[index]) for index in part]
            shapes, types = zip(*(arguments[signatures[index]] for index in part), strict=True)
            yield (
                [span.name for span, _ in chosen],
                [span.start for span, _ in chosen],
                [None if span.end is None else span.end - span.start for span, _ in chosen],
                [times[index] if on_gpu else None for index in part],
                shapes,
                types,
                [context.layer for _, context in chosen],
                [direction_of(context) for _, context in chosen],
                [
                    nesting.step_at(context, Place(span.thread, span.start))
                    for span, context in chosen
                ],
                [threads[span.thread] for span, _ in chosen],
                [stacks.get(index) for index in part],
            )

    return Columns(OpCall, chunks)


def _find_stacks(events: Events) -> dict[int, str]:
    """Return the call stack of each operator that has one: innermost first, one frame a line.

    Operators are counted like spans, and the calls that wait behind them. Their stacks are as they
    have them, else the Python functions around them on their thread.
    """
    if not events.functions:
        return events.stacks
    stacks: dict[int, str] = {}
    threads: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for index, call in enumerate(events.functions):
        threads[call.thread].append((call.start, -(call.end or 0), 0, index))
    for index, span in enumerate((*events.spans, *events.waits)):
        if not span.is_range and span.thread in threads:
            threads[span.thread].append((span.start, -(span.end or span.start), 1, index))
    texts: dict[tuple[str, str], str] = {}
    """(function, stack around it) -> the stack of both; equal stacks are one."""
    for items in threads.values():
        ends, around = [sys.maxsize], [""]
        for start, minus_end, is_operator, index in sorted(items):
            while ends[-1] <= start:
                ends.pop()
                around.pop()
            if not is_operator:
                key = events.functions[index].name, around[-1]
                if key not in texts:
                    texts[key] = "\n".join(filter(None, key))
                ends.append(-minus_end)
                around.append(texts[key])
            elif len(around) > 1:
                stacks[index] = around[-1]
    return stacks | events.stacks
