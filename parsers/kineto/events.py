"""Sorts the events of a Kineto trace into spans, launches, device work and memory, in one pass.

Spellings: category names were capitalised until 2021 (Operator, Kernel, Memcpy), GPU events then
carried "external id" in lower case, and thread ids were texts ("25738", "stream 7").
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from perfctl.parsers.allocator import AllocatorReading
from perfctl.parsers.common.doubts import split_words
from perfctl.parsers.kineto.fused import CompiledArgs, CompiledCall, derive_compiled_call
from perfctl.parsers.kineto.stream import Int64, TraceEvent, parse_int64, parse_microseconds_as_ns
from perfctl.parsers.operators import GRADIENT_OF, READERS, OperatorCall, parse_operator_call
from perfctl.records.ranges import RangeName, parse_range_name
from perfctl.records.report import ALLOCATIONS, WAITS, CounterSample

NOT_USED = split_words(
    "gpu_user_annotation ac2g async async_cpu_to_gpu async_gpu fwdbwd forward_backward overhead"
    " cuda_event cpu_instant_event mtia_ccp_events mtia_runtime mtia_insight glow_runtime hpu_op "
    "collective_comm gpu_pm_counter external_correlation python_gc xpu_driver privateuse1_runtime "
    "privateuse1_driver __metadata"
)
"""gpu_user_annotation is the user_annotation again, on the GPU's time line; ac2g, async and fwdbwd
are arrows."""
PHASES = frozenset("XBEbneiIMsftCPpSTFNODRcv()")
"""Kinds of event ("ph") of the Chrome format."""
MODULE = "nn.Module: "
"""How the name of a module's call begins ("nn.Module: Conv2d_3"), where the profiler ran with_stack
or with_modules."""
PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})\Z")
OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
"""Ranges that torch itself puts around an optimizer's work."""

_WAITS = frozenset((*WAITS, *ALLOCATIONS))
_OPERATORS = frozenset((*READERS, *GRADIENT_OF))
_OLD_RANGE = ("ProfilerStep", "enumerate(DataLoader)#", "Optimizer.")
"""Until 2021 record_function ranges had the category of operations; these names, and perfctl's,
show a range."""
_CAPTURING = {"StreamBeginCapture": "begin", "StreamEndCapture": "end"}
_TIMES_END = 4_102_444_800 * 10**9
"""ns, 1 January 2100: no event has a later time."""
_DOMAINS = {
    "cuda_runtime": "cuda",
    "cuda_driver": "cuda",
    "Runtime": "cuda",
    "hip_runtime": "hip",
    "xpu_runtime": "xpu",
}
"""Category of a runtime or driver call -> domain of the library."""


Inputs = tuple[str | None, str | None]
"""Shapes and types of an operator's inputs, as JSON."""


class Span(msgspec.Struct, gc=False):
    """One operation or range on a CPU thread."""

    thread: int
    """Number in ``SortedEvents.threads``."""
    start: int
    end: int | None
    """None when the event has no duration. All times here are ns."""
    external: int
    """Grows with the start within a process; -1 when not given."""
    name: str
    is_range: bool
    inputs: Inputs = (None, None)
    stack: str | None = None
    """Call stack, innermost first and one frame a line, where operators have one (2021)."""

    @property
    def duration(self) -> int | None:
        return None if self.end is None else self.end - self.start


class ThreadTime(msgspec.Struct, frozen=True, gc=False):
    """A time on a thread."""

    thread: int
    at: int


class CapturedCall(NamedTuple):
    """One runtime or driver call of a trace in which graphs are captured."""

    what: str
    """begin, end (of a capture) or launch (of a kernel)."""
    place: ThreadTime
    kernel: str | None = None
    """Name of the kernel that it launches (ROCm); None where the trace does not say."""
    node: int | None = None
    """Id of the graph's node that it made; None where the trace does not say."""


_COUNTER_GPU = re.compile(r"GPU (\d{1,9}) Counters")
_COUNTER_UNITS = {
    re.compile(r".*\.pct(?:_|\Z)"): "%",
    re.compile(r"\w*bytes\w*\.\w+\.per_second"): "byte/s",
    re.compile(r"\w*bytes\w*\.(?:sum|avg|min|max)\Z"): "byte",
}
"""How the name of a metric begins -> its unit."""
A = TypeVar("A")
_Three = tuple[Int64, Int64, Int64] | None


def json_field(name: str, default: Any = None) -> Any:
    """Return a field that the JSON calls ``name``."""
    return msgspec.field(name=name, default=default)


class _EventArgs(msgspec.Struct, gc=False):
    """Arguments of any event; None where they are not given, or not of their type."""

    external: Int64 = json_field("External id")
    old_external: Int64 = json_field("external id")
    correlation: Int64 = None

    def external_id_or_minus_one(self) -> int:
        """Return -1 when not given; it was spelled with a small letter until 2021."""
        external = self.external if self.external is not None else self.old_external
        return -1 if external is None or external < 0 else external


class _OperationArgs(_EventArgs, gc=False):
    """Arguments of an operation or range."""

    sequence: Int64 = json_field("Sequence number")
    forward_thread: Int64 = json_field("Fwd thread id")
    dims: Raw = json_field("Input Dims", Raw())
    old_dims: Raw = json_field("Input dims", Raw())
    types: Raw = json_field("Input type", Raw())
    values: Raw = json_field("Concrete Inputs", Raw())
    stack: str | None = json_field("Call stack")
    kernel_file: Any = None
    kernel_hash: Any = None


class _CallArgs(_EventArgs, gc=False):
    """Arguments of a runtime or driver call."""

    kernel: str | None = None
    node: Int64 = json_field("graph node id")


class DeviceArgs(_EventArgs, gc=False):
    """Arguments of a kernel, copy or memset."""

    device: Int64 = None
    from_device: Int64 = json_field("fromDevice")
    in_device: Int64 = json_field("inDevice")
    to_device: Int64 = json_field("toDevice")
    stream: Int64 = None
    bytes: Int64 = None
    grid: _Three = None
    block: _Three = None
    registers: Int64 = json_field("registers per thread")
    shared: Int64 = json_field("shared memory")
    static_shared: Int64 = json_field("static shared memory")
    """Of JAX traces; Kineto states the sum of static and dynamic shared memory."""
    dynamic_shared: Int64 = json_field("dynamic shared memory")
    """Of JAX traces."""
    context: Int64 = None
    graph: Int64 = json_field("graph id")
    node: Int64 = json_field("graph node id")
    occupancy: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = json_field(
        "est. achieved occupancy %"
    )
    collective: Any = json_field("Collective name")
    stack: tuple[str, ...] = ()
    """Python stacks of a fused kernel's origins."""
    name: str | None = None
    annotation: str | None = None
    autograd_phase: Any = None


class DeviceEvent(msgspec.Struct, gc=False):
    """One kernel, memcpy or memset."""

    name: str
    start: int | None
    duration: int | None
    args: DeviceArgs
    place: ThreadTime | None = None
    """Where its launch call began, once that is known; None when the trace has no such call, or
    several."""
    span: int = -1
    """Position of the CPU span that launched it, once that is known; -1 for none."""


class CommArgs(msgspec.Struct, gc=False):
    """Arguments of a collective, of its kernel or its operation (PyTorch 2.1 and later)."""

    name: str | None = json_field("Collective name")
    group: str | None = json_field("Process Group Name")
    size: Int64 = json_field("Group size")
    """Ranks in the group."""
    elements: Annotated[int, msgspec.Meta(ge=0, lt=1 << 60)] | None = json_field("In msg nelems")
    """Of this rank's input."""
    dtype: str | None = None
    ranks: str | None = json_field("Process Group Ranks")
    """Of the group, as a list; PyTorch cuts a long one: "[0, 1, ..., 63]"."""


class _MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of an allocation, or its end."""

    bytes: Int64 = json_field("Bytes")
    device_type: Int64 = json_field("Device Type")
    device: Int64 = json_field("Device Id")
    allocated: Int64 = json_field("Total Allocated")
    reserved: Int64 = json_field("Total Reserved")


class _CounterArgs(msgspec.Struct, gc=False):
    """The argument of a counter's sample, which has no name."""

    value: float | None = json_field("")


def decode_valid_members(kind: type[A], members: object) -> A:
    """Return a record of the members that fit; numbers may also be texts."""
    decode = msgspec.json.Decoder(kind, strict=False).decode
    fitting = {}
    for key, value in members.items() if isinstance(members, dict) else ():
        with suppress(msgspec.DecodeError):
            decode(msgspec.json.encode({key: value}))
            fitting[key] = value
    return decode(msgspec.json.encode(fitting))


def make_args_decoder(kind: type[A]) -> Callable[[TraceEvent], A]:
    """Return what decodes arguments; what is of another type is left out."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_args(event: TraceEvent) -> A:
        try:
            return decode(event.args)
        except msgspec.DecodeError:
            return decode_valid_members(kind, msgspec.json.decode(event.args))

    return decode_args


_read_operation_args = make_args_decoder(_OperationArgs)
_read_compiled_args = make_args_decoder(CompiledArgs)
_read_call_args = make_args_decoder(_CallArgs)
_read_device_args = make_args_decoder(DeviceArgs)
_read_memory_args = make_args_decoder(_MemoryArgs)
_read_comm_args = make_args_decoder(CommArgs)
_read_counter_args = make_args_decoder(_CounterArgs)


@lru_cache(maxsize=4096)
def _decode_shapes_and_types(dims: bytes, types: bytes) -> Inputs:
    """Return shapes and types in one spelling; a network repeats the same few calls."""
    shapes, kinds = (
        json.dumps(msgspec.json.decode(text)) if text else None for text in (dims, types)
    )
    return shapes, kinds


@lru_cache(maxsize=4096)
def _decode_operator_call(dims: bytes, types: bytes, values: bytes) -> OperatorCall | None:
    """Return the arguments that a formula needs."""
    return parse_operator_call(
        *(msgspec.json.decode(text or b"null") for text in (dims, types, values))
    )


class SortedEvents(msgspec.Struct):
    """The result of one pass over the events, which ``add_events`` sorts. Elements that are not
    used are skipped."""

    captures: bool = False
    """Whether ``captured`` is wanted."""
    threads: list[tuple[int | None, int | None]] = []
    """(process, thread id), None where the trace has a text instead of a number."""
    spans: list[Span] = []
    by_external: dict[int, int] = {}
    """External id -> position in ``spans``; -1 when several spans share it."""
    calls: dict[int, ThreadTime | None] = {}
    """Correlation id -> where the runtime or driver call began; None when several calls
    share it."""
    graphs: set[int] = set()
    """Correlation ids of calls that launch a graph."""
    waits: list[Span] = []
    """Calls that return when the GPU has done its work."""
    captured: list[CapturedCall] = []
    """Launches, and begins and ends of captures, in the order of the trace."""
    launches: list[int | None] = []
    """Correlation ids of the runtime and driver calls that launch a kernel or a graph."""
    kernels: list[DeviceEvent] = []
    copies: list[DeviceEvent] = []
    memory: list[tuple[int, int, int]] = []
    """(thread, at, bytes) of each allocation; negative when it was freed."""
    curves: dict[int, list[AllocatorReading]] = {}
    """GPU -> what its allocator held after each of its allocations."""
    sequences: list[tuple[int, int, bool]] = []
    """(position in ``spans``, autograd's sequence number, whether it is the backward side) of
    operations that have one."""
    operators: dict[int, OperatorCall | None] = {}
    """Position in ``spans`` of each operator that multiplies -> its arguments; None where the trace
    has no shapes."""
    window: tuple[int, int] | None = None
    """Begin and end of the capture, ns."""
    whole_microseconds: bool = True
    """No time has a fraction: traces until 2023."""
    known: int = 0
    """Events of a category that is read."""
    backwards: int = 0
    """Events with a negative duration: what Kineto writes for those that never ended."""
    unknown: Counter[str] = msgspec.field(default_factory=Counter)
    """Category or kind of event -> count."""
    timeless: int = 0
    """Operations and ranges without a start."""
    repeated: int = 0
    """Operations, ranges and device work that appeared before with the same id and times."""
    api: dict[tuple[str, str], array[int]] = msgspec.field(
        default_factory=lambda: defaultdict(lambda: array("q"))
    )
    """(domain, name) of runtime and driver calls, waits and Python functions -> ns of each call; -1
    where it has no duration."""
    comms: dict[int, CommArgs] = {}
    """Position in ``spans``, or -1 - position in ``kernels``, of each collective with arguments."""
    annotated: dict[int, tuple[str, bool]] = {}
    """Position in ``kernels`` of each that was annotated when its graph was captured -> the name,
    whether it is backward."""
    compiled: dict[int, CompiledCall] = {}
    """Position in ``spans`` of each call of a compiled kernel -> its work."""
    functions: list[Span] = []
    """Calls of Python functions."""
    counters: list[CounterSample] = []
    _device_work: set[int] = set()
    _texts: dict[str, str] = {}
    _thread_numbers: dict[tuple[object, object], int] = {}

    def add_events(self, block: Iterable[TraceEvent]) -> None:
        """Take events in the order of the trace."""
        handlers: dict[str | None, Callable[[TraceEvent], None]] = {
            **dict.fromkeys(("cpu_op", "Operator", "user_annotation"), self._add_span),
            **dict.fromkeys(_DOMAINS, self._add_runtime_call),
            **dict.fromkeys(("kernel", "Kernel"), self._add_kernel),
            **dict.fromkeys(("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"), self._add_copy),
            "Trace": self._extend_profiling_window,
            "python_function": self._add_python_function,
            "cuda_sync": self._add_synchronization,
        }
        for event in block:
            category = None if event.cat is None else str(event.cat)
            handler = handlers.get(category)
            if handler is not None and event.ph == "X":
                self.known += 1
                handler(event)
            elif category == "hardware_counters" and event.ph == "C" and type(event.name) is str:
                self.known += 1
                self._add_counter_sample(event)
            elif event.name == "[memory]":
                self._add_allocation(event)
            elif category in NOT_USED:
                continue
            elif isinstance(event.ph, str) and event.ph not in PHASES:
                self.unknown[f"ph {event.ph}"[:100]] += 1
            elif handler is None and category is not None:
                self.unknown[category[:100]] += 1

    def _read_name_and_times(self, event: TraceEvent) -> tuple[str, int | None, int | None]:
        """Return name, start, duration; a negative one is what Kineto writes for an event that
        never ended: None."""
        name, start, duration = event.name, event.ts, event.dur
        name = self._texts.setdefault(name, name) if type(name) is str else ""
        if type(start) in (float, str):
            self.whole_microseconds = False
        start, duration = parse_microseconds_as_ns(start), parse_microseconds_as_ns(duration)
        if start is not None and not -_TIMES_END < start < _TIMES_END:
            start = None
        if duration is not None and not 0 <= duration < _TIMES_END:
            self.backwards += duration < 0
            duration = None
        return name, start, duration

    def _add_span(self, event: TraceEvent) -> None:
        """Add an operation or a range."""
        name, start, duration = self._read_name_and_times(event)
        if start is None:
            self.timeless += 1
            return
        args = _read_operation_args(event)
        is_range = event.cat == "user_annotation" or (
            event.cat == "Operator"
            and (name.startswith(_OLD_RANGE) or parse_range_name(name) != RangeName())
        )
        external, index = args.external_id_or_minus_one(), len(self.spans)
        end = None if duration is None else start + duration
        dims, types = bytes(args.dims) or bytes(args.old_dims), bytes(args.types)
        span = Span(self._get_thread_number(event), start, end, external, name, is_range)
        if not is_range:
            span.inputs = _decode_shapes_and_types(dims, types)
            if args.stack:
                stack = args.stack.replace(";", "\n")
                span.stack = self._texts.setdefault(stack, stack)
        if external >= 0:
            earlier = self.by_external.setdefault(external, index)
            if earlier != index:
                if earlier >= 0 and self.spans[earlier] == span:
                    self.repeated += 1
                    return
                self.by_external[external] = -1
        self.spans.append(span)
        if args.sequence is not None and args.sequence >= 0:
            self.sequences.append((index, args.sequence, bool(args.forward_thread)))
        if name in _OPERATORS:
            self.operators[index] = _decode_operator_call(dims, types, bytes(args.values))
        if args.kernel_file is not None or args.kernel_hash is not None:
            self.compiled[index] = derive_compiled_call(name, _read_compiled_args(event))
        if name == "record_param_comms" and (comm := _read_comm_args(event)).name:
            self.comms[index] = comm

    def _add_python_function(self, event: TraceEvent) -> None:
        """Add a call of a module as a range; sum the calls of other functions."""
        name, start, duration = self._read_name_and_times(event)
        is_module = name.startswith(MODULE)
        if not is_module:
            self._record_call_duration("python", name, duration)
        if start is not None and duration is not None:
            thread = self._get_thread_number(event)
            call = Span(thread, start, start + duration, -1, name, is_module)
            self.functions.append(call)
            if is_module:
                self.spans.append(call)

    def _record_call_duration(self, domain: str, name: str, duration: int | None) -> None:
        """Count one call of a function."""
        self.api[domain, name].append(-1 if duration is None else duration)

    def _add_runtime_call(self, event: TraceEvent) -> None:
        """Add a call of the runtime or the driver."""
        name, start, duration = self._read_name_and_times(event)
        args = _read_call_args(event)
        correlation = args.correlation
        is_launch = "Launch" in name
        if is_launch:
            self.launches.append(correlation)
        if is_launch and correlation is not None and "GraphLaunch" in name:
            self.graphs.add(correlation)
        if start is not None:
            origin = ThreadTime(self._get_thread_number(event), start)
            if self.captures and "Graph" not in name:
                moment = next(
                    (moment for pattern, moment in _CAPTURING.items() if pattern in name), ""
                )
                if is_launch or moment:
                    captured = CapturedCall(moment or "launch", origin, args.kernel, args.node)
                    self.captured.append(captured)
            if correlation is not None:
                earlier = self.calls.setdefault(correlation, origin)
                if earlier is not origin and earlier == origin:
                    return  # the same call again
                if earlier != origin:
                    self.calls[correlation] = None
            if name in _WAITS and duration is not None:
                self.waits.append(Span(origin.thread, start, start + duration, -1, name, False))
        self._record_call_duration(
            "hip" if name.startswith("hip") else _DOMAINS[event.cat], name, duration
        )

    def _add_synchronization(self, event: TraceEvent) -> None:
        """Add a synchronization: of a stream, an event or a complete context."""
        name, _, duration = self._read_name_and_times(event)
        self._record_call_duration("sync", name, duration)

    def _add_kernel(self, event: TraceEvent) -> None:
        """Add one launch."""
        index = len(self.kernels)
        args = self._add_device_event(event, self.kernels)
        if args is None:
            return
        if not args.graph:  # 0: of no graph
            args.graph = args.node = None
        if args.collective is not None and (comm := _read_comm_args(event)).name:
            self.comms[-1 - index] = comm
        name = args.name or args.annotation  # of torch.cuda._graph_annotations.mark_kernels
        if name and args.node is not None:
            self.annotated[index] = name, args.autograd_phase == "backward"

    def _add_copy(self, event: TraceEvent) -> None:
        """Add a copy or memset."""
        self._add_device_event(event, self.copies)

    def _add_device_event(self, event: TraceEvent, work: list[DeviceEvent]) -> DeviceArgs | None:
        """Append it to ``work`` and return its arguments; None for work that is there already."""
        args = _read_device_args(event)
        name, start, duration = self._read_name_and_times(event)
        if args.correlation is not None and start is not None:
            key = hash((args.correlation, args.device, args.stream, start, duration, name))
            if key in self._device_work:
                self.repeated += 1
                return None
            self._device_work.add(key)
        if args.device is None:  # a copy between GPUs: it is of the one that copies
            args.device = args.in_device
        work.append(DeviceEvent(name, start, duration, args))
        return args

    def _extend_profiling_window(self, event: TraceEvent) -> None:
        """Extend the time in which the profiler ran."""
        _, start, duration = self._read_name_and_times(event)
        if start is not None and duration is not None:
            begin, end = self.window or (start, start)
            self.window = (min(begin, start), max(end, start + duration))

    def _add_allocation(self, event: TraceEvent) -> None:
        """Add an allocation, or its end."""
        args, (_, at_ns, _) = _read_memory_args(event), self._read_name_and_times(event)
        if at_ns is None or args.bytes is None:
            return
        self.memory.append((self._get_thread_number(event), at_ns, args.bytes))
        reading = AllocatorReading(at_ns, args.allocated, args.reserved)
        if args.device_type == 1 and args.device is not None and reading[1:] != (None, None):
            self.curves.setdefault(args.device, []).append(reading)

    def _add_counter_sample(self, event: TraceEvent) -> None:
        """Add one sample of one hardware counter."""
        name, at_ns, _ = self._read_name_and_times(event)
        if at_ns is None:
            self.timeless += 1
            return
        gpu = _COUNTER_GPU.fullmatch(str(event.pid))
        unit = next((unit for begin, unit in _COUNTER_UNITS.items() if begin.match(name)), None)
        value = _read_counter_args(event).value
        self.counters.append(CounterSample(int(gpu[1]) if gpu else None, name, at_ns, value, unit))

    def _get_thread_number(self, event: TraceEvent) -> int:
        """Return the number of a process' thread in ``threads``."""
        process, thread = event.pid, event.tid
        try:
            return self._thread_numbers[process, thread]
        except (KeyError, TypeError):  # new, or a list or object instead of an id
            key = (str(process), str(thread))
            number = self._thread_numbers.setdefault(key, len(self.threads))
            if number == len(self.threads):
                self.threads.append((parse_int64(process), parse_int64(thread)))
            with suppress(TypeError):
                self._thread_numbers[process, thread] = number
            return number


def classify_events(
    blocks: Iterable[list[TraceEvent]], *, collect_graph_captures: bool = False
) -> SortedEvents:
    """Return all events, sorted. ``collect_graph_captures``: keep what is launched while graphs are
    captured."""
    events = SortedEvents(collect_graph_captures)
    for block in blocks:
        events.add_events(block)
        block.clear()  # before the next one is decoded
    return events
