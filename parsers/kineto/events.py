"""Sorts the events of a Kineto trace into spans, launches, device work and memory, in one pass.

Spellings: category names were capitalised until 2021 (Operator, Kernel, Memcpy), GPU events then
carried "external id" in lower case, and thread ids were texts ("25738", "stream 7").
"""

from __future__ import annotations

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from perfctl.parsers.allocator import Reading
from perfctl.parsers.common.doubts import not_understood, words
from perfctl.parsers.kineto.stream import Event, nanoseconds, read_int64
from perfctl.parsers.operators import GRADIENT_OF, READERS, Call, read_call
from perfctl.records.ranges import read_range_name
from perfctl.records.report import WAITS, Diagnostic

NOT_USED = words(
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

_DICTIONARY = msgspec.json.Decoder(dict[str, Any])
_WAITS = frozenset(WAITS)
_OPERATORS = frozenset((*READERS, *GRADIENT_OF))
_OLD_RANGE = ("ProfilerStep", "enumerate(DataLoader)#", "Optimizer.")
"""Until 2021 record_function ranges had the category of operations; these names, and perfctl's,
show a range."""
_CAPTURING = {"StreamBeginCapture": "begin", "StreamEndCapture": "end"}
_TIMES_END = 4_102_444_800 * 10**9
"""ns, 1 January 2100: no event has a later time."""
CALL_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "Runtime")
_DOMAINS = {
    "cuda_runtime": "cuda",
    "cuda_driver": "cuda",
    "Runtime": "cuda",
    "hip_runtime": "hip",
    "xpu_runtime": "xpu",
    "python_function": "python",
}
"""Category of a call -> domain of the library."""


class Span(msgspec.Struct, gc=False):
    """One operation or range on a CPU thread."""

    thread: int
    """Number in ``Events.threads``."""
    start: int
    end: int | None
    """None when the event has no duration. All times here are ns."""
    external: int
    """Grows with the start within a process; -1 when not given."""
    name: str
    is_range: bool


class Place(msgspec.Struct, frozen=True, gc=False):
    """A time on a thread."""

    thread: int
    at: int


class CapturedCall(NamedTuple):
    """One runtime or driver call of a trace in which graphs are captured."""

    what: str
    """begin, end (of a capture) or launch (of a kernel)."""
    place: Place
    kernel: str | None = None
    """Name of the kernel that it launches (ROCm); None where the trace does not say."""
    node: int | None = None
    """Id of the graph's node that it made; None where the trace does not say."""


A = TypeVar("A")
_Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None
_Three = tuple[_Int, _Int, _Int] | None


def _renamed(name: str) -> Any:
    return msgspec.field(name=name, default=None)


class _Args(msgspec.Struct, gc=False):
    """Arguments of any event; None where they are not given, or not of their type."""

    external: _Int = _renamed("External id")
    old_external: _Int = _renamed("external id")
    correlation: _Int = None

    def external_id(self) -> int:
        """Return -1 when not given; it was spelled with a small letter until 2021."""
        external = self.external if self.external is not None else self.old_external
        return -1 if external is None or external < 0 else external


class _OperationArgs(_Args, gc=False):
    """Arguments of an operation or range."""

    sequence: _Int = _renamed("Sequence number")
    forward_thread: _Int = _renamed("Fwd thread id")
    dims: Raw = msgspec.field(name="Input Dims", default=Raw())
    old_dims: Raw = msgspec.field(name="Input dims", default=Raw())
    types: Raw = msgspec.field(name="Input type", default=Raw())
    values: Raw = msgspec.field(name="Concrete Inputs", default=Raw())
    stack: str | None = _renamed("Call stack")
    kernel_file: Any = None
    kernel_hash: Any = None


class _CallArgs(_Args, gc=False):
    """Arguments of a runtime or driver call."""

    kernel: str | None = None
    node: _Int = _renamed("graph node id")


class DeviceArgs(_Args, gc=False):
    """Arguments of a kernel, copy or memset."""

    device: _Int = None
    from_device: _Int = _renamed("fromDevice")
    in_device: _Int = _renamed("inDevice")
    to_device: _Int = _renamed("toDevice")
    stream: _Int = None
    bytes: _Int = None
    grid: _Three = None
    block: _Three = None
    registers: _Int = _renamed("registers per thread")
    shared: _Int = _renamed("shared memory")
    context: _Int = None
    graph: _Int = _renamed("graph id")
    node: _Int = _renamed("graph node id")
    occupancy: float | None = _renamed("est. achieved occupancy %")
    collective: Any = _renamed("Collective name")
    stack: Any = None
    name: str | None = None
    annotation: str | None = None
    autograd_phase: Any = None


class DeviceEvent(msgspec.Struct, gc=False):
    """One kernel, memcpy or memset."""

    name: str
    start: int | None
    duration: int | None
    args: DeviceArgs


class CommArgs(msgspec.Struct, gc=False):
    """Arguments of a collective, of its kernel or its operation (PyTorch 2.1 and later)."""

    name: str | None = _renamed("Collective name")
    group: str | None = _renamed("Process Group Name")
    size: _Int = _renamed("Group size")
    """Ranks in the group."""
    elements: _Int = _renamed("In msg nelems")
    """Of this rank's input."""
    dtype: str | None = None
    ranks: str | None = _renamed("Process Group Ranks")
    """Of the group, as a list; PyTorch cuts a long one: "[0, 1, ..., 63]"."""


@dataclass(slots=True)
class Events:
    """The result of one pass over the events."""

    threads: list[tuple[int | None, int | None]] = field(default_factory=list)
    """(process, thread id), None where the trace has a text instead of a number."""
    spans: list[Span] = field(default_factory=list)
    by_external: dict[int, int] = field(default_factory=dict)
    """External id -> position in ``spans``; -1 when several spans share it."""
    calls: dict[int, Place | None] = field(default_factory=dict)
    """Correlation id -> where the runtime or driver call began; None when several calls
    share it."""
    graphs: set[int] = field(default_factory=set)
    """Correlation ids of calls that launch a graph."""
    waits: list[Span] = field(default_factory=list)
    """Calls that return when the GPU has done its work; empty where single operators are not
    wanted."""
    captured: list[CapturedCall] = field(default_factory=list)
    """Launches, and begins and ends of captures, in the order of the trace; empty where they were
    not wanted."""
    launches: int = 0
    """Runtime and driver calls that launch a kernel or a graph."""
    called: int = 0
    """All runtime and driver calls; ``uncorrelated``: those of them without a correlation id."""
    uncorrelated: int = 0
    kernels: list[DeviceEvent] = field(default_factory=list)
    copies: list[DeviceEvent] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """(thread, at, bytes) of each allocation; negative when it was freed."""
    peaks: dict[tuple[int, str], int] = field(default_factory=dict)
    """(GPU, "allocated" or "reserved") -> the largest total the allocator reported."""
    curves: defaultdict[int, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    """GPU -> what its allocator held after each of its allocations."""
    sequences: list[tuple[int, int, bool]] = field(default_factory=list)
    """(position in ``spans``, autograd's sequence number, whether it is the backward side) of
    operations that have one."""
    operators: dict[int, Call | None] = field(default_factory=dict)
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
    counter_ranges: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    """Category or kind of event -> count."""
    repeated: int = 0
    timeless: int = 0
    api: defaultdict[tuple[str, str], array[int]] = field(
        default_factory=lambda: defaultdict(lambda: array("q"))
    )
    """(domain, name) of runtime and driver calls, waits and Python functions -> ns of each call; -1
    where it has no duration."""
    comms: dict[int, CommArgs] = field(default_factory=dict)
    """Position in ``spans``, or -1 - position in ``kernels``, of each collective with arguments."""
    origins: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Position in ``kernels`` of each fused one -> the Python stacks of its origins."""
    annotated: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Position in ``kernels`` of each that was annotated when its graph was captured -> the name,
    whether it is backward."""
    compiled: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Position in ``spans`` of each call of a compiled kernel -> its arguments."""
    signatures: list[int] | None = None
    """For each of ``spans``, the number of its arguments in ``arguments``; None where single
    operators are not wanted."""
    arguments: list[tuple[str | None, str | None]] = field(default_factory=lambda: [(None, None)])
    """Shapes and types of inputs, as JSON."""
    stacks: dict[int, str] = field(default_factory=dict)
    """Position in ``spans`` -> call stack, innermost first and one frame a line, where operators
    have one (2021)."""
    functions: list[Span] = field(default_factory=list)


class _MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of an allocation, or its end."""

    bytes: _Int = _renamed("Bytes")
    device_type: _Int = _renamed("Device Type")
    device: _Int = _renamed("Device Id")
    allocated: _Int = _renamed("Total Allocated")
    reserved: _Int = _renamed("Total Reserved")


def _make_args_reader(kind: type[A]) -> Callable[[Event], A]:
    """Return what decodes arguments; numbers may also be texts, and what is of another type is left
    out."""
    decode = msgspec.json.Decoder(kind).decode
    decode_any = msgspec.json.Decoder(kind, strict=False).decode

    def read(event: Event) -> A:
        try:
            return decode(event.args)
        except msgspec.DecodeError:
            fitting = {}
            for key, value in _read_dictionary(event).items():
                with suppress(msgspec.DecodeError):
                    decode_any(msgspec.json.encode({key: value}))
                    fitting[key] = value
            return decode_any(msgspec.json.encode(fitting))

    return read


_read_operation_args = _make_args_reader(_OperationArgs)
_read_call_args = _make_args_reader(_CallArgs)
_read_device_args = _make_args_reader(DeviceArgs)
_read_memory_args = _make_args_reader(_MemoryArgs)
_read_comm_args = _make_args_reader(CommArgs)


def _read_dictionary(event: Event) -> dict[str, Any]:
    try:
        return _DICTIONARY.decode(event.args)
    except msgspec.DecodeError:  # no object
        return {}


def collect(
    blocks: Iterable[list[Event]], *, op_calls: bool = False, captures: bool = False
) -> Events:
    """Return all events, sorted. Elements that are not events, or not used, are skipped.

    ``op_calls``: keep what only single operators need (shapes, types, stacks). ``captures``: keep
    what is launched while graphs are captured.
    """
    collector = _Collector(op_calls=op_calls, captures=captures)
    for block in blocks:
        collector.add(block)
        block.clear()  # before the next one is decoded
    return collector.events


class _Collector:
    """One method a kind of event."""

    def __init__(self, *, op_calls: bool, captures: bool) -> None:
        self.events = Events(signatures=[] if op_calls else None)
        self.captures = captures
        self.texts: dict[str, str] = {}
        self.threads: dict[tuple[object, object], int] = {}
        self.signatures = {(b"", b""): 0}
        self.operator_calls: dict[tuple[bytes, bytes, bytes], Call | None] = {}
        self.compiled_calls: dict[bytes, dict[str, Any]] = {}
        self.device_work: set[int] = set()

    def add(self, block: Iterable[Event]) -> None:
        """Take events in the order of the trace."""
        handlers: dict[str, Callable[[Event], None]] = {
            **dict.fromkeys(("cpu_op", "Operator", "user_annotation"), self.add_span),
            **dict.fromkeys(CALL_CATEGORIES, self.add_call),
            **dict.fromkeys(("kernel", "Kernel"), self.add_kernel),
            **dict.fromkeys(("gpu_memcpy", "Memcpy", "gpu_memset", "Memset"), self.add_copy),
            "Trace": self.add_window,
            "python_function": self.add_function,
            "cuda_sync": self.add_wait,
        }
        events = self.events
        for event in block:
            category = event.cat
            handler = handlers.get(category) if type(category) is str else None
            if handler is not None and event.ph == "X":
                events.known += 1
                handler(event)
            elif handler is not None:
                count_unknown(events.unknown, event.ph, None)
            elif category == "cuda_profiler_range":
                events.known += 1
                events.counter_ranges += 1
            elif event.name == "[memory]":
                self.add_memory(event)
            elif type(category) is not str or category not in NOT_USED:
                count_unknown(events.unknown, event.ph, category)

    def read_name_and_times(self, event: Event) -> tuple[str, int | None, int | None]:
        """Return name, start, duration; a negative one is what Kineto writes for an event that
        never ended: None."""
        name, start, duration = event.name, event.ts, event.dur
        name = self.texts.setdefault(name, name) if type(name) is str else ""
        if type(start) is float and type(duration) is float:  # as all are since 2023
            start, duration = round(start * 1000), round(duration * 1000)
            self.events.whole_microseconds = False
        else:
            if type(start) in (float, str):
                self.events.whole_microseconds = False
            start, duration = nanoseconds(start), nanoseconds(duration)
        if start is not None and not -_TIMES_END < start < _TIMES_END:
            start = None
        if duration is not None and not 0 <= duration < _TIMES_END:
            self.events.backwards += duration < 0
            duration = None
        return name, start, duration

    def add_span(self, event: Event) -> None:
        """An operation or a range."""
        events, spans = self.events, self.events.spans
        name, start, duration = self.read_name_and_times(event)
        if start is None:
            events.timeless += 1
            return
        args = _read_operation_args(event)
        is_range = event.cat == "user_annotation" or (
            event.cat == "Operator"
            and (
                name.startswith(_OLD_RANGE)
                or any(part is not None for part in read_range_name(name))
            )
        )
        external = args.external_id()
        end = None if duration is None else start + duration
        span = Span(self.number_thread(event), start, end, external, name, is_range)
        index = len(spans)
        if external >= 0:
            earlier = events.by_external.setdefault(external, index)
            if earlier != index:
                if earlier >= 0 and spans[earlier] == span:
                    events.repeated += 1
                    return
                events.by_external[external] = -1
        if args.sequence is not None and args.sequence >= 0:
            events.sequences.append((index, args.sequence, bool(args.forward_thread)))
        dims = bytes(args.dims) or bytes(args.old_dims)
        if name in _OPERATORS:
            events.operators[index] = self.read_operator_call(dims, args)
        if args.kernel_file is not None or args.kernel_hash is not None:
            text = bytes(event.args)
            if text not in self.compiled_calls:
                self.compiled_calls[text] = _read_dictionary(event)
            events.compiled[index] = self.compiled_calls[text]
        if name == "record_param_comms" and (comm := _read_comm_args(event)).name:
            events.comms[index] = comm
        if events.signatures is not None:
            events.signatures.append(
                0 if is_range else self.number_signature(dims, bytes(args.types))
            )
            if args.stack and not is_range:
                stack = args.stack.replace(";", "\n")
                events.stacks[index] = self.texts.setdefault(stack, stack)
        spans.append(span)

    def number_signature(self, dims: bytes, types: bytes) -> int:
        """Return the number of shapes and types in ``Events.arguments``."""
        number = self.signatures.get((dims, types))
        if number is None:
            number = self.signatures[dims, types] = len(self.events.arguments)
            values = [msgspec.json.decode(text) if text else None for text in (dims, types)]
            shapes, kinds = (None if value is None else json.dumps(value) for value in values)
            self.events.arguments.append((shapes, kinds))
        return number

    def read_operator_call(self, dims: bytes, args: _OperationArgs) -> Call | None:
        """Return the arguments that a formula needs; a network repeats the same few calls."""
        key = dims, bytes(args.types), bytes(args.values)
        if key not in self.operator_calls:
            values = [msgspec.json.decode(text) if text else None for text in key]
            self.operator_calls[key] = read_call(*values)
        return self.operator_calls[key]

    def add_function(self, event: Event) -> None:
        """A call of a module is a range; of other functions the calls are summed."""
        events = self.events
        name, start, duration = self.read_name_and_times(event)
        is_module = name.startswith(MODULE)
        if not is_module:
            self.keep_duration("python_function", name, duration)
        if start is None or duration is None:
            return
        call = Span(self.number_thread(event), start, start + duration, -1, name, is_module)
        if is_module:
            events.spans.append(call)
        if events.signatures is not None:
            events.functions.append(call)
            if is_module:
                events.signatures.append(0)

    def keep_duration(self, category: str, name: str, duration: int | None) -> None:
        """Count one call of a function."""
        is_hip = name.startswith("hip") and category != "python_function"
        domain = "hip" if is_hip else _DOMAINS.get(category, category)
        self.events.api[domain, name].append(-1 if duration is None else duration)

    def add_call(self, event: Event) -> None:
        """A call of the runtime or the driver."""
        events = self.events
        name, start, duration = self.read_name_and_times(event)
        args = _read_call_args(event)
        correlation = args.correlation
        is_launch = "Launch" in name
        events.launches += is_launch
        events.called += 1
        events.uncorrelated += correlation is None
        if is_launch and correlation is not None and "GraphLaunch" in name:
            events.graphs.add(correlation)
        if start is not None:
            place = Place(self.number_thread(event), start)
            if self.captures and "Graph" not in name:
                what = next((what for word, what in _CAPTURING.items() if word in name), "")
                if is_launch or what:
                    captured = CapturedCall(what or "launch", place, args.kernel, args.node)
                    events.captured.append(captured)
            if correlation is not None:
                known = events.calls.setdefault(correlation, place)
                if known is not place and known == place:
                    return  # the same call again
                if known != place:
                    events.calls[correlation] = None
            if name in _WAITS and events.signatures is not None and duration is not None:
                end = start + duration
                events.waits.append(Span(place.thread, start, end, -1, name, False))
        self.keep_duration(event.cat, name, duration)

    def add_wait(self, event: Event) -> None:
        """A synchronisation (cuda_sync): of a stream, an event or a whole context."""
        name, _, duration = self.read_name_and_times(event)
        self.keep_duration("sync", name, duration)

    def add_kernel(self, event: Event) -> None:
        """One launch."""
        events, index = self.events, len(self.events.kernels)
        args = self.add_device_event(event, events.kernels)
        if args is None:
            return
        if not args.graph:  # 0: of no graph
            args.graph = args.node = None
        if args.occupancy is not None and not 0 <= args.occupancy <= 100:
            args.occupancy = None
        if args.collective is not None and (comm := _read_comm_args(event)).name:
            events.comms[-1 - index] = comm
        if type(args.stack) is list:
            stacks = tuple(text for text in args.stack if type(text) is str and text)
            if stacks:
                events.origins[index] = stacks
        name = args.name or args.annotation  # of torch.cuda._graph_annotations.mark_kernels
        if name and args.node is not None:
            events.annotated[index] = name, args.autograd_phase == "backward"

    def add_copy(self, event: Event) -> None:
        """A copy or memset."""
        args = self.add_device_event(event, self.events.copies)
        if args is not None and args.device is None:  # between GPUs: it is of the one that copies
            args.device = args.in_device

    def add_device_event(self, event: Event, known: list[DeviceEvent]) -> DeviceArgs | None:
        """Append it and return its arguments, unless the very same work was there before: that is
        counted."""
        args = _read_device_args(event)
        name, start, duration = self.read_name_and_times(event)
        if args.stream is None and type(event.tid) is str:  # as threads were until 2021
            args.stream = read_int64(event.tid.removeprefix("stream "))
        if args.correlation is not None and start is not None:
            key = hash((args.correlation, args.device, args.stream, start, duration, name))
            if key in self.device_work:
                self.events.repeated += 1
                return None
            self.device_work.add(key)
        known.append(DeviceEvent(name, start, duration, args))
        return args

    def add_window(self, event: Event) -> None:
        """The time in which the profiler ran."""
        start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        if start is not None and duration is not None and duration >= 0:
            begin, end = self.events.window or (start, start)
            self.events.window = (min(begin, start), max(end, start + duration))

    def add_memory(self, event: Event) -> None:
        """An allocation, or its end."""
        args, events, at = _read_memory_args(event), self.events, nanoseconds(event.ts)
        if at is None or args.bytes is None:
            return
        events.memory.append((self.number_thread(event), at, args.bytes))
        if args.device_type != 1 or args.device is None:
            return
        reading = Reading(at, args.allocated, args.reserved)
        for quantity, total in (("allocated", args.allocated), ("reserved", args.reserved)):
            if total is not None:
                key = args.device, quantity
                events.peaks[key] = max(total, events.peaks.get(key, 0))
        if reading[1:] != (None, None):
            events.curves[args.device].append(reading)

    def number_thread(self, event: Event) -> int:
        """Return the number of a process' thread in ``Events.threads``."""
        process, thread = event.pid, event.tid
        try:
            return self.threads[process, thread]
        except (KeyError, TypeError):  # new, or a list or object instead of an id
            key = (str(process), str(thread))
            number = self.threads.setdefault(key, len(self.events.threads))
            if number == len(self.events.threads):
                self.events.threads.append((read_int64(process), read_int64(thread)))
            if isinstance(process, int | str) and isinstance(thread, int | str):
                self.threads[process, thread] = number
            return number


def count_unknown(unknown: dict[str, int], kind: object, category: object) -> None:
    """Count a skipped event, unless its category and kind are known."""
    if isinstance(kind, str) and kind not in PHASES:
        name = f"ph {kind}"
    elif kind is None and category is None:
        name = "none, and no ph"  # which every event of the Chrome format has
    elif category is None or (isinstance(category, str) and category in NOT_USED):
        return
    else:
        name = str(category)
    name = name[:100]
    if name in unknown or len(unknown) < 100:
        unknown[name] = unknown.get(name, 0) + 1


def describe_unknown(unknown: dict[str, int]) -> tuple[Diagnostic, ...]:
    """Return one warning that names them with their numbers of events."""
    return not_understood(
        {"categories": [f"{name} ({number} events)" for name, number in unknown.items()]}
    )
