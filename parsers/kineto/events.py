"""Sorts the events of a Kineto trace into what perfctl uses: spans, launches, device work, memory.

Spellings: category names were capitalised until 2021 (Operator, Kernel, Memcpy), GPU events then carried
"external id" in lower case, and thread ids were texts ("25738", "stream 7").
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from perfctl.parsers.operators import GRADIENT_OF, READERS, Call, read_call
from perfctl.parsers.text.doubts import not_understood, words
from perfctl.records.ranges import read_range_name
from perfctl.records.report import Diagnostic

_INT64 = 1 << 63


def nanoseconds(value: object) -> int | None:
    """Microseconds as the trace has them (integer, or the text of a number with a fraction) -> ns; None if unusable."""
    if type(value) is int:
        found = value * 1000
    elif type(value) is str:
        whole, _, fraction = value.partition(".")
        try:
            found = int(whole + fraction) if len(fraction) == 3 else round(Decimal(value) * 1000)
        except (ValueError, InvalidOperation, OverflowError):
            return None
    else:
        return None
    return found if -_INT64 <= found < _INT64 else None


def whole(value: object) -> int | None:
    """An integer, or the text of one, that fits into 64 bits; None for anything else."""
    if type(value) is str:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and -_INT64 <= value < _INT64 else None


def external_id(args: dict[str, Any]) -> int:
    """-1 when not given; it was spelled with a small letter until 2021."""
    value = args.get("External id")
    if type(value) is not int:
        value = whole(value if value is not None else args.get("external id"))
    return value if value is not None and value >= 0 else -1


def three(value: object) -> tuple[int | None, int | None, int | None]:
    """A grid or a block: x, y, z."""
    if type(value) is list and len(value) == 3:
        return whole(value[0]), whole(value[1]), whole(value[2])
    return None, None, None


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)


def _share(percent: object) -> float | None:
    """0..1 of a number of percent, or of the text of one; None for anything else."""
    try:
        share = float(percent) / 100 if type(percent) in (int, str) else None  # type: ignore[arg-type]
    except ValueError:
        return None
    return share if share is not None and 0 <= share <= 1 else None


def comm_args(args: dict[str, Any]) -> CommArgs | None:
    """None where they do not name a collective."""
    name = _text(args.get("Collective name"))
    if name is None:
        return None
    numbers = whole(args.get("Group size")), whole(args.get("In msg nelems"))
    return CommArgs(name, _text(args.get("Process Group Name")), *numbers, _text(args.get("dtype")))


NOT_USED = words(
    "gpu_user_annotation ac2g async async_cpu_to_gpu async_gpu fwdbwd forward_backward overhead"
    " cuda_event cpu_instant_event mtia_ccp_events mtia_runtime mtia_insight glow_runtime hpu_op collective_comm"
    " gpu_pm_counter external_correlation python_gc xpu_driver privateuse1_runtime privateuse1_driver __metadata"
)
"""gpu_user_annotation is the user_annotation again, on the GPU's time line; ac2g, async and fwdbwd are arrows."""
PHASES = frozenset("XBEbneiIMsftCPpSTFNODRcv()")
"""Kinds of event ("ph") of the Chrome format."""


def count(unknown: dict[str, int], kind: object, category: object) -> None:
    """Count a skipped event, unless its category and kind are known."""
    if isinstance(kind, str) and kind not in PHASES:
        name = f"ph {kind}"
    elif category is None or (isinstance(category, str) and category in NOT_USED):
        return
    else:
        name = str(category)
    name = name[:100]
    if name in unknown or len(unknown) < 100:
        unknown[name] = unknown.get(name, 0) + 1


def diagnostics(unknown: dict[str, int]) -> tuple[Diagnostic, ...]:
    """One warning that names them with their numbers of events."""
    return not_understood({"categories": [f"{name} ({number} events)" for name, number in unknown.items()]})


KINDS = {
    "cpu_op": "span", "Operator": "span", "user_annotation": "span", "cuda_runtime": "call", "cuda_driver": "call",
    "hip_runtime": "call", "xpu_runtime": "call", "Runtime": "call", "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "copy", "Memcpy": "copy", "gpu_memset": "copy", "Memset": "copy", "cuda_profiler_range": "counters",
    "Trace": "window", "python_function": "function", "cuda_sync": "wait",
}  # fmt: skip
"""Event category -> the method of _Collector that takes it."""

_COMPILED = ("kernel_file", "kernel_hash", "kernel_backend")
"""Arguments that Inductor gives the call of a kernel that it wrote."""
_OPERATORS = frozenset((*READERS, *GRADIENT_OF))
MODULE = "nn.Module: "
"""How the name of a module's call begins ("nn.Module: Conv2d_3"), where the profiler ran with_stack or with_modules."""
PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})\Z")
OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
"""Ranges that torch itself puts around an optimizer's work."""
_OLD_RANGE = ("ProfilerStep", "enumerate(DataLoader)#", "Optimizer.")
"""Until 2021 record_function ranges had the category of operations; these names, and perfctl's, show a range."""


class Span(NamedTuple):
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


class DeviceEvent(NamedTuple):
    """One kernel, memcpy or memset."""

    name: str
    start: int | None
    duration: int | None
    correlation: int | None
    external: int
    args: tuple[Any, ...]
    """Kernel: device, stream, grid x y z, block x y z, registers, shared bytes, context, graph, its node, occupancy 0..1.
    Copy: device, stream, bytes."""


class Place(NamedTuple):
    """A time on a thread."""

    thread: int
    at: int


class CommArgs(NamedTuple):
    """What the arguments of a collective say, of its kernel or its operation (PyTorch 2.1 and later)."""

    name: str
    group: str | None
    size: int | None
    """Ranks in the group."""
    elements: int | None
    """Of this rank's input."""
    dtype: str | None


class Reserved(NamedTuple):
    """What a GPU's allocator held after one of its allocations, bytes."""

    at: int
    device: int
    allocated: int | None
    reserved: int | None


@dataclass(slots=True)
class Functions:
    """Calls of Python functions, column by column, in the order of the trace."""

    threads: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Events:
    """The result of one pass over the events."""

    threads: list[tuple[int | None, int | None]] = field(default_factory=list)
    """(process, thread id), None where the trace has a text instead of a number."""
    spans: list[Span] = field(default_factory=list)
    by_external: dict[int, int] = field(default_factory=dict)
    """External id -> position in ``spans``; -1 when several spans share it."""
    calls: dict[int, Place | None] = field(default_factory=dict)
    """Correlation id -> where the runtime or driver call began; None when several calls share it."""
    launches: int = 0
    """Runtime and driver calls that launch a kernel or a graph."""
    kernels: list[DeviceEvent] = field(default_factory=list)
    copies: list[DeviceEvent] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """(thread, at, bytes) of each allocation; negative when it was freed."""
    peaks: dict[tuple[int, str], int] = field(default_factory=dict)
    """(GPU, "allocated" or "reserved") -> the largest total the allocator reported."""
    sequences: list[tuple[int, int, bool]] = field(default_factory=list)
    """(position in ``spans``, autograd's sequence number, whether it is the backward side) of operations that have one."""
    operators: dict[int, Call | None] = field(default_factory=dict)
    """Position in ``spans`` of each operator that multiplies -> its arguments; None where the trace has no shapes."""
    window: tuple[int, int] | None = None
    """Begin and end of the capture, ns."""
    whole_microseconds: bool = True
    """No time has a fraction: traces until 2023."""
    known: int = 0
    """Events of a category in KINDS."""
    counter_ranges: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    """Category or kind of event -> count."""
    repeated: int = 0
    timeless: int = 0
    api: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)
    """(category, name) of runtime and driver calls, waits and Python functions -> calls, and ns in all, of the shortest
    and of the longest; None where a call has no duration."""
    curve: list[Reserved] = field(default_factory=list)
    comms: dict[int, CommArgs] = field(default_factory=dict)
    """Position in ``spans``, or -1 - position in ``kernels``, of each collective with arguments."""
    compiled: dict[int, tuple[str | None, str | None, str | None]] = field(default_factory=dict)
    """Position in ``spans`` of each call of a compiled kernel -> file, hash and backend."""
    signatures: list[int] | None = None
    """For each of ``spans``, the number of its arguments in ``arguments``; None where single operators are not wanted."""
    arguments: list[tuple[str | None, str | None]] = field(default_factory=lambda: [(None, None)])
    """Shapes and types of inputs, as JSON."""
    stacks: dict[int, str] = field(default_factory=dict)
    """Position in ``spans`` -> call stack, innermost first and one frame a line, where operators have one (2021)."""
    functions: Functions = field(default_factory=Functions)


def collect(events: Iterable[Any], *, op_calls: bool = False) -> Events:
    """Sort all elements of ``traceEvents``. Elements that are not events, or not used, are skipped.

    ``op_calls``: keep what only single operators need (shapes, types, stacks).
    """
    return _Collector(op_calls).run(events)


class _Collector:
    def __init__(self, op_calls: bool) -> None:
        self.found = Events(signatures=[] if op_calls else None)
        self.signature_numbers: dict[str, int] = {"(None, None)": 0}
        self.thread_numbers: dict[tuple[object, object], int] = {}
        self.names: dict[str, str] = {}
        self.launch_shapes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """Each kept once, like the names: a network repeats the same few launches."""
        self.shares: dict[int, float | None] = {}
        self.arguments: dict[str, Call | None] = {}
        self.seen: set[int] = set()

    def run(self, events: Iterable[Any]) -> Events:
        handlers = {category: getattr(self, kind) for category, kind in KINDS.items()}
        for event in events:
            if type(event) is not dict:
                continue
            category = event.get("cat")
            handle = handlers.get(category) if type(category) is str else None
            if handle is None:
                if event.get("name") == "[memory]":
                    self.memory(event)
                elif type(category) is not str or category not in NOT_USED:
                    count(self.found.unknown, event.get("ph"), category)
            elif event.get("ph") == "X":
                self.found.known += 1
                args = event.get("args")
                handle(event, args if type(args) is dict else {})
            else:
                count(self.found.unknown, event.get("ph"), None)
        return self.found

    def span(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        found = self.found
        start, duration = self.times(event)
        if start is None:
            found.timeless += 1
            return
        end = None if duration is None else start + duration
        external = external_id(args)
        name = self.name(event)
        is_range = event["cat"] == "user_annotation" or (
            event["cat"] == "Operator"
            and (name.startswith(_OLD_RANGE) or any(part is not None for part in read_range_name(name)))
        )
        span = Span(self.thread(event), start, end, external, name, is_range)
        if external >= 0:
            earlier = found.by_external.setdefault(external, len(found.spans))
            if earlier != len(found.spans):
                if earlier >= 0 and found.spans[earlier] == span:
                    found.repeated += 1
                    return
                found.by_external[external] = -1
        number = args.get("Sequence number")
        if number is not None and (number := whole(number)) is not None and number >= 0:
            found.sequences.append((len(found.spans), number, bool(whole(args.get("Fwd thread id")))))
        if name in _OPERATORS:
            found.operators[len(found.spans)] = self.call_of(args)
        if "kernel_file" in args or "kernel_hash" in args:
            found.compiled[len(found.spans)] = tuple(map(_text, map(args.get, _COMPILED)))  # type: ignore[assignment]
        if name == "record_param_comms" and (comm := comm_args(args)) is not None:
            found.comms[len(found.spans)] = comm
        if found.signatures is not None:
            found.signatures.append(0 if is_range else self.signature(args))
        found.spans.append(span)

    def signature(self, args: dict[str, Any]) -> int:
        """Number of an operator's shapes and types; its stack, where it has one, is kept on the way."""
        found = self.found
        stack = args.get("Call stack")
        if type(stack) is str and stack:
            stack = stack.replace(";", "\n")
            found.stacks[len(found.spans)] = self.names.setdefault(stack, stack)
        given = args.get("Input Dims", args.get("Input dims")), args.get("Input type")
        key = repr(given)
        number = self.signature_numbers.get(key)
        if number is None:
            number = self.signature_numbers[key] = len(found.arguments)
            found.arguments.append((_json(given[0]), _json(given[1])))
        return number

    def call_of(self, args: dict[str, Any]) -> Call | None:
        """Each kept once: a network repeats the same few calls in every step."""
        given = args.get("Input Dims", args.get("Input dims")), args.get("Input type"), args.get("Concrete Inputs")
        text = str(given)
        if text not in self.arguments:
            self.arguments[text] = read_call(*given)
        return self.arguments[text]

    def function(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        """A call of a module is a range; of other functions the calls are summed."""
        found, name = self.found, self.name(event)
        start, duration = self.times(event)
        is_module = name.startswith(MODULE)
        if not is_module:
            self.sum_up("python_function", name, duration)
        if start is None or duration is None:
            return
        if is_module:
            found.spans.append(Span(self.thread(event), start, start + duration, -1, name, True))
        if found.signatures is not None:
            if is_module:
                found.signatures.append(0)
            found.functions.threads.append(self.thread(event))
            found.functions.starts.append(start)
            found.functions.ends.append(start + duration)
            found.functions.names.append(name)

    def sum_up(self, category: str, name: str, duration: int | None) -> None:
        total = self.found.api.get((category, name))
        if total is None:
            self.found.api[category, name] = [1, duration, duration, duration]
            return
        total[0] += 1  # type: ignore[operator]
        if duration is None or total[1] is None:
            total[1:] = [None, None, None]
            return
        total[1] += duration
        if duration < total[2]:  # type: ignore[operator]
            total[2] = duration
        elif duration > total[3]:  # type: ignore[operator]
            total[3] = duration

    def call(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        start, duration = self.times(event)
        correlation, name = whole(args.get("correlation")), self.name(event)
        self.found.launches += "Launch" in name
        if start is not None and correlation is not None:
            place = Place(self.thread(event), start)
            known = self.found.calls.setdefault(correlation, place)
            if known is not place and known == place:
                return  # the same call again
            if known != place:
                self.found.calls[correlation] = None
        self.sum_up(event["cat"], name, duration)

    def wait(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        """A synchronisation (cuda_sync): of a stream, an event or a whole context."""
        self.sum_up("sync", self.name(event), self.times(event)[1])

    def kernel(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        shape = (*three(args.get("grid")), *three(args.get("block")))
        graph = node = None
        if args.get("graph id"):  # 0 outside of graphs
            graph, node = whole(args["graph id"]), whole(args.get("graph node id"))
        percent = args.get("est. achieved occupancy %")
        if type(percent) is int and percent in self.shares:
            share = self.shares[percent]
        else:
            share = _share(percent)
            if type(percent) is int:
                self.shares[percent] = share
        numbers = (
            *shape, whole(args.get("registers per thread")), whole(args.get("shared memory")), whole(args.get("context")),
            graph, node, share,
        )  # fmt: skip
        before = len(self.found.kernels)
        self.device_event(self.found.kernels, event, args, numbers)
        if "Collective name" in args and len(self.found.kernels) > before and (comm := comm_args(args)) is not None:
            self.found.comms[-1 - before] = comm

    def copy(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        self.device_event(self.found.copies, event, args, (whole(args.get("bytes")),))

    def device_event(
        self,
        into: list[DeviceEvent],
        event: dict[str, Any],
        args: dict[str, Any],
        numbers: tuple[int | float | None, ...],
    ) -> None:
        stream = args.get("stream")
        if stream is None and type(event.get("tid")) is str:
            stream = event["tid"].removeprefix("stream ")
        numbers = (whole(args.get("device")), whole(stream), *numbers)
        start, duration = self.times(event)
        correlation = whole(args.get("correlation"))
        name = self.name(event)
        if correlation is not None and start is not None:
            key = hash((correlation, numbers[0], numbers[1], start, duration, name))
            if key in self.seen:
                self.found.repeated += 1
                return
            self.seen.add(key)
        numbers = self.launch_shapes.setdefault(numbers, numbers)
        into.append(DeviceEvent(name, start, duration, correlation, external_id(args), numbers))

    def counters(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        self.found.counter_ranges += 1

    def window(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if start is not None and duration is not None and duration >= 0:
            begin, end = self.found.window or (start, start)
            self.found.window = (min(begin, start), max(end, start + duration))

    def memory(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        args = args if type(args) is dict else {}
        at, size = nanoseconds(event.get("ts")), whole(args.get("Bytes"))
        if at is None or size is None:
            return
        self.found.memory.append((self.thread(event), at, size))
        device, peaks = whole(args.get("Device Id")), self.found.peaks
        if whole(args.get("Device Type")) == 1 and device is not None:
            totals = whole(args.get("Total Allocated")), whole(args.get("Total Reserved"))
            for quantity, total in zip(("allocated", "reserved"), totals, strict=True):
                if total is not None:
                    peaks[device, quantity] = max(total, peaks.get((device, quantity), 0))
            if totals != (None, None):
                self.found.curve.append(Reserved(at, device, *totals))

    def times(self, event: dict[str, Any]) -> tuple[int | None, int | None]:
        """(start, duration); a negative duration is what Kineto writes for an event that never ended: None."""
        stamp, length = event.get("ts"), event.get("dur")
        if type(stamp) is str:
            self.found.whole_microseconds = False
        duration = nanoseconds(length)
        return nanoseconds(stamp), duration if duration is not None and duration >= 0 else None

    def name(self, event: dict[str, Any]) -> str:
        name = event.get("name")
        name = name if type(name) is str else ""
        return self.names.setdefault(name, name)

    def thread(self, event: dict[str, Any]) -> int:
        process, thread = event.get("pid"), event.get("tid")
        try:
            return self.thread_numbers[process, thread]
        except (KeyError, TypeError):  # new, or a list or object instead of an id
            key = (str(process), str(thread))
            number = self.thread_numbers.setdefault(key, len(self.found.threads))
            if number == len(self.found.threads):
                self.found.threads.append((whole(process), whole(thread)))
            if isinstance(process, int | str) and isinstance(thread, int | str):
                self.thread_numbers[process, thread] = number
            return number
