"""Turns the nested events of a Kineto trace into perfctl's records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from math import isnan, nan
from typing import Any

from perfctl.parsers.kineto.events import CommArgs, SortedEvents, ThreadTime
from perfctl.parsers.kineto.fused import get_dtype_bytes
from perfctl.parsers.kineto.nesting import NOWHERE, SpanContext, SpanNesting
from perfctl.records.bulk import ColumnChunks, ColumnRecords
from perfctl.records.ranges import parse_range_name
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

_COPY = re.compile(r"([HDP])(?:ost|evice)?[tT]o([HDP])")
"""Both sides of a copy: HtoD of CUDA, HostToDevice of ROCm."""
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
_COLLECTIVE = re.compile(
    r"(?:void )?(?:(?:nccl|rccl|msccl)\w*?kernel(?:_generic)?_?([^_\W\d]*)"
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


def link_launch_calls_and_spans(events: SortedEvents, nesting: SpanNesting) -> None:
    """Find the launch call and the CPU span of each kernel and copy: the span of its External id,
    or the one around its call if that was not running then."""
    for event in (*events.kernels, *events.copies):
        correlation = event.args.correlation
        event.place = origin = None if correlation is None else events.calls.get(correlation)
        index = events.by_external.get(event.args.external_id_or_minus_one(), -1)
        span = events.spans[index] if index >= 0 else None
        if span is None:
            is_inside = False
        elif origin is None:
            is_inside = event.start is not None and span.start <= event.start
        else:
            end = span.start if span.end is None else span.end
            is_inside = span.thread == origin.thread and span.start <= origin.at <= end
        if is_inside:
            event.span = index
        elif origin is not None:
            event.span = nesting.find_innermost_span(origin.thread, origin.at)


def make_kernels(events: SortedEvents, nesting: SpanNesting) -> Iterator[Kernel]:
    """Yield one record per launch, in the order of the trace."""
    for launch, event in enumerate(events.kernels):
        context = nesting.contexts[event.span] if event.span >= 0 else NOWHERE
        step, origin, args = context.step, event.place, event.args
        if step is None and origin:
            step = nesting.find_step_or_phase("step", context, origin)
        # Kineto gives static and dynamic shared memory as one sum
        share = 0 if args.shared == 0 else None
        yield Kernel(
            launch,
            event.name,
            None,
            context.layer,
            get_pass_direction(context),
            step,
            context.source,
            context.range_number,
            args.device,
            args.stream,
            *(args.grid or _UNKNOWN),
            *(args.block or _UNKNOWN),
            args.registers,
            share if args.static_shared is None else args.static_shared,
            share if args.dynamic_shared is None else args.dynamic_shared,
            event.start,
            event.duration,
            events.threads[origin.thread][0] if origin else None,
            args.context,
            args.graph,
            args.node,
            args.correlation,
            *_UNKNOWN,
            None if args.occupancy is None else args.occupancy / 100,
        )


def get_pass_direction(context: SpanContext) -> str | None:
    """Return that of a layer; the optimizer's work has this direction and no layer."""
    is_optimizer = context.layer is None and context.phase == "optimizer"
    return "optimizer" if is_optimizer else context.direction


def make_copies(events: SortedEvents, nesting: SpanNesting) -> Iterator[Copy]:
    """Yield memcpy and memset, in the order of the trace."""
    for event in events.copies:
        args = event.args
        peers = {args.from_device, args.to_device} - {args.device}
        peer = peers.pop() if len(peers) == 1 else None
        layer = nesting.contexts[event.span].layer if event.span >= 0 else None
        kind = event.name
        if kind.lower().startswith("memset"):
            kind = "memset"
        elif match := _COPY.search(kind):
            kind = f"{match[1]}to{match[2]}"
        memories = _MEMORIES.search(event.name)
        source, destination = map(_MEMORY.get, memories.groups()) if memories else (None, None)
        details = layer, args.device, args.stream, source, destination, peer
        yield Copy(kind, args.bytes, event.start, event.duration, *details)


def make_ranges(events: SortedEvents, nesting: SpanNesting) -> Iterator[Range]:
    """Yield all user annotations, in the order of the trace; their numbers are what kernels refer
    to."""
    for number, (index, meaning) in enumerate(nesting.meanings.items()):
        span, outside = events.spans[index], nesting.outside[index]
        context, begin = nesting.contexts[index], ThreadTime(span.thread, span.start)
        step, phase = (
            nesting.find_step_or_phase(mark, context, begin) for mark in ("step", "phase")
        )
        yield Range(
            number,
            span.name,
            None,
            span.start,
            span.duration,
            events.threads[span.thread][1],
            outside.depth,
            outside.range_number,
            "push_pop",
            meaning.layer,
            meaning.direction,
            step,
            phase,
        )


def make_steps(nesting: SpanNesting, ranges: Sequence[Range]) -> tuple[Step, ...]:
    """Return the ranges that are steps, and the phase ranges inside steps, in order of time."""
    records = []
    for record, meaning in zip(ranges, nesting.meanings.values(), strict=True):
        phase = parse_range_name(record.name).phase
        if record.step is not None and (meaning.step is not None or phase):
            times = record.start_ns, record.duration_ns
            records.append(Step(record.step, phase or "step", *times))
    return tuple(sorted(records, key=lambda step: (step.start_ns or 0, step.phase != "step")))


@dataclass(slots=True)
class _OperationSum:
    """A time that is not known makes the sum not a number."""

    calls: int = 0
    cpu: float = 0
    own: float = 0
    device: float = 0
    memory: int = 0


def sum_operations(
    events: SortedEvents, nesting: SpanNesting, device_ns: Sequence[float]
) -> list[Operation]:
    """Return CPU operations summed over (name, layer, direction), in order of first call.
    ``device_ns``: of ``sum_kernel_time_by_span``.

    ``cpu_ns``, ``device_ns`` and ``memory_bytes`` of a call include what its children took, as in
    torch's own tables; memory is host and device together. A sum that lacks the time of one of its
    calls is None. As in torch's tables, an operation that does nothing but call its namesake (an
    overload) is one call with it.
    """
    durations = [nan if span.end is None else span.end - span.start for span in events.spans]
    own_times = durations.copy()
    for duration, parent in zip(durations, nesting.parents, strict=True):
        if parent >= 0:
            own_times[parent] -= duration
    children = Counter(nesting.parents)
    sums: defaultdict[tuple[str, str | None, str | None], _OperationSum]
    sums = defaultdict(_OperationSum)
    for index, span in enumerate(events.spans):
        if span.is_range:
            continue
        context = nesting.contexts[index]
        total = sums[span.name, context.layer, get_pass_direction(context)]
        total.own += max(own_times[index], 0)
        parent = nesting.parents[index]
        if parent < 0 or children[parent] != 1 or events.spans[parent].name != span.name:
            total.calls += 1
            total.cpu += durations[index]
            total.device += device_ns[index]
            total.memory += nesting.memory[index]
    on_gpu = is_device_time_known(events)
    return [
        Operation(
            name,
            "cpu_op",
            total.calls,
            _nan_to_none(total.cpu),
            _nan_to_none(total.own),
            _nan_to_none(total.device) if on_gpu else None,
            total.memory if events.memory else None,
            None,
            layer,
            direction,
        )
        for (name, layer, direction), total in sums.items()
    ]


def is_device_time_known(events: SortedEvents) -> bool:
    """Return whether the launch call or the operator of at least one kernel is in the trace."""
    if not events.kernels:
        return bool(events.copies)
    return any(event.span >= 0 or event.place is not None for event in events.kernels)


def _nan_to_none(time: float) -> int | None:
    return None if isnan(time) else int(time)


def sum_kernel_time_by_span(events: SortedEvents, nesting: SpanNesting) -> list[float]:
    """Return the time of the kernels launched inside each span; not a number when one of them has
    no duration."""
    times: list[float] = [0] * len(events.spans)
    for event in events.kernels:
        if event.span >= 0:
            times[event.span] += nan if event.duration is None else event.duration
    for index in reversed(nesting.order):
        if (parent := nesting.parents[index]) >= 0:
            times[parent] += times[index]
    return times


def make_collectives(events: SortedEvents, nesting: SpanNesting) -> Iterator[Collective]:
    """Yield one row a kernel that talks to other GPUs, in the order of the trace.

    Its name is that of its arguments, else of the range that launched it (nccl:all_reduce), else of
    the kernel; ``bytes`` is known only with arguments.
    """
    matches = {name: _COLLECTIVE.match(name) for name in {event.name for event in events.kernels}}
    for index, event in enumerate(events.kernels):
        match, args = matches[event.name], events.comms.get(-1 - index)
        if match is None and args is None:
            continue
        kind = (match[1] or match[2] or "").lower() if match else ""
        name = _COLLECTIVES.get(kind, kind) or event.name
        if args is None:
            args = _find_collective_args(events, nesting, event.span) or CommArgs(name)
        size = get_dtype_bytes(args.dtype)
        total = None if size is None or args.elements is None else size * args.elements
        facts = (args.name or name, args.group or None, args.size, total, args.dtype or None)
        yield Collective(*facts, start_ns=event.start, duration_ns=event.duration)


def _find_collective_args(events: SortedEvents, nesting: SpanNesting, span: int) -> CommArgs | None:
    """Return the arguments of the operation that launched a collective, else the name that a range
    around the launch gives it."""
    from_range = None
    for index in nesting.iterate_enclosing_spans(span):
        if index in events.comms:
            return events.comms[index]
        name = events.spans[index].name
        if from_range is None and name.startswith("nccl:"):
            from_range = CommArgs(name.removeprefix("nccl:"))
    return from_range


def sum_api_calls(events: SortedEvents) -> list[ApiCall]:
    """Return sums by function of runtime and driver calls, waits and Python functions, the longest
    in all first."""
    rows = (
        ApiCall(
            *key, len(times), *(_UNKNOWN if -1 in times else (sum(times), min(times), max(times)))
        )
        for key, times in events.api.items()
    )
    return sorted(rows, key=lambda row: (row.domain, -(row.total_ns or 0), row.name))


def make_op_calls(
    events: SortedEvents, nesting: SpanNesting, device_ns: Sequence[float]
) -> ColumnRecords[OpCall]:
    """Return every operator of the trace in its order; records are made when they are read.
    ``device_ns``: ns of kernels inside each span.

    After them, as operators without shapes, come the calls that wait for the GPU.
    """
    # Not the events themselves, which need not stay until the operators are written.
    spans, threads = [*events.spans, *events.waits], events.threads
    on_gpu = is_device_time_known(events)
    times = [_nan_to_none(ns) if on_gpu else None for ns in device_ns]
    stacks = _find_python_stacks(events)

    def iterate_rows() -> Iterator[tuple[Any, ...]]:
        waits = repeat((NOWHERE, None))
        calls = chain(zip(nesting.contexts, times, strict=True), waits)
        for index, (span, (context, device)) in enumerate(zip(spans, calls, strict=False)):
            if not span.is_range:
                yield (
                    span.name,
                    span.start,
                    span.duration,
                    device,
                    *span.inputs,
                    context.layer,
                    get_pass_direction(context),
                    nesting.find_step_or_phase(
                        "step", context, ThreadTime(span.thread, span.start)
                    ),
                    threads[span.thread][1],
                    span.stack or stacks.get(index) or None,
                )

    def iterate_column_chunks() -> ColumnChunks:
        remaining = iterate_rows()
        while chunk := list(islice(remaining, _CHUNK)):
            yield list(zip(*chunk, strict=True))

    return ColumnRecords(OpCall, iterate_column_chunks)


def _find_python_stacks(events: SortedEvents) -> dict[int, str]:
    """Return the Python functions around each operator on its thread: innermost first, one a line.
    Operators are counted like spans, and the calls that wait behind them."""
    if not events.functions:
        return {}
    items = [
        (call.thread, call.start, -(call.end or 0), 0, index)
        for index, call in enumerate(events.functions)
    ]
    items += [
        (span.thread, span.start, -(span.end or span.start), 1, index)
        for index, span in enumerate((*events.spans, *events.waits))
        if not span.is_range
    ]
    stacks: dict[int, str] = {}
    texts: dict[tuple[str, str], str] = {}
    """(function, stack around it) -> the stack of both; equal stacks are one."""
    open_calls: list[tuple[int, int, str]] = []  # (thread, end, stack), outermost first
    for thread, start, minus_end, is_operator, index in sorted(items):
        while open_calls and (open_calls[-1][0] != thread or open_calls[-1][1] <= start):
            open_calls.pop()
        outer = open_calls[-1][2] if open_calls else ""
        if is_operator:
            stacks[index] = outer
        else:
            key = events.functions[index].name, outer
            text = texts.setdefault(key, "\n".join(filter(None, key)))
            open_calls.append((thread, -minus_end, text))
    return stacks
