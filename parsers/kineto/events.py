"""What the events of a Kineto trace are sorted into: spans, launches, device work, memory; and how
their values are read.

Spellings: category names were capitalised until 2021 (Operator, Kernel, Memcpy), GPU events then
carried "external id" in lower case, and thread ids were texts ("25738", "stream 7").

The text of events that are laid out as Kineto writes them is read ten times as fast as by way of
JSON objects. Kineto writes the members of an event in a fixed order, and what operations and
launches say of themselves repeats from step to step. Such an event is matched as a whole; its
arguments are decoded as JSON the first time that their text is seen, without the numbers that are
an event's own. Whatever is laid out otherwise does not match.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

from perfctl.parsers.operators import Call
from perfctl.parsers.text.doubts import not_understood, words
from perfctl.records.report import Diagnostic

_S = r"[ \t\r\n]*"
_TEXT = r'"([^"\\]*)"'
_ID = r"([0-9]{1,18})"
_TIME = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"

_INT64, _MOST_DIGITS = 1 << 63, 20

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

KINDS = {
    "cpu_op": "span",
    "Operator": "span",
    "user_annotation": "span",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "hip_runtime": "call",
    "xpu_runtime": "call",
    "Runtime": "call",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "copy",
    "Memset": "copy",
    "cuda_profiler_range": "counters",
    "Trace": "window",
    "python_function": "function",
    "cuda_sync": "wait",
}
"""Event category -> the method of Collector that takes it."""

MODULE = "nn.Module: "
"""How the name of a module's call begins ("nn.Module: Conv2d_3"), where the profiler ran with_stack
or with_modules."""
PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,9})\Z")
OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
"""Ranges that torch itself puts around an optimizer's work."""

_NUMBER = re.compile(r"[0-9]{1,18}(?=[ \t\r\n,]|\Z)").match
_LAST = '"Ev Idx": '
"""Mostly the last argument; each event's own, and not used."""
_DIGITS = re.compile("(?<=: )[0-9]+")
_MOST = 20_000
"""Texts that are kept."""

T = TypeVar("T")


class CallFacts(NamedTuple):
    """Of one call; None is not stated."""

    file: str | None
    hash: str | None
    backend: str | None
    elements: int | None = None
    """Elements that the loops run over, those of a reduction included; of a template those of
    its output."""
    reduced: int | None = None
    """Elements that are reduced into one result; None where nothing is."""
    argument_bytes: int | None = None
    """Of all tensors that it is given, once each."""
    flops: int | None = None
    """Of its product; 1 multiply-add is 2 FLOPs."""
    stated_flops: int | None = None
    stated_bytes: int | None = None
    why: str | None = None
    """Why a template's FLOPs are not known."""


def nanoseconds(value: object) -> int | None:
    """Microseconds as the trace has them (integer, or the text of a number with a fraction) -> ns;
    None if unusable."""
    if type(value) is int:
        found = value * 1000
    elif type(value) is str:
        whole, _, fraction = value.partition(".")
        try:
            found = int(whole + fraction) if len(fraction) == 3 else _thousandfold(Decimal(value))
        except (ValueError, ArithmeticError):  # those of decimals among them
            return None
    else:
        return None
    return found if -_INT64 <= found < _INT64 else None


def _thousandfold(number: Decimal) -> int:
    """Raises ArithmeticError or ValueError for what is no number, and before an integer of a
    million digits is made."""
    if number.adjusted() > _MOST_DIGITS:
        raise OverflowError
    return round(number * 1000)


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


def count(unknown: dict[str, int], kind: object, category: object) -> None:
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


def diagnostics(unknown: dict[str, int]) -> tuple[Diagnostic, ...]:
    """One warning that names them with their numbers of events."""
    return not_understood(
        {"categories": [f"{name} ({number} events)" for name, number in unknown.items()]}
    )


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
    """Kernel: device, stream, grid x y z, block x y z, registers, shared bytes, context, graph, its
    node, occupancy 0..1. Copy: device, stream, bytes."""


class Place(NamedTuple):
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


class CommArgs(NamedTuple):
    """What the arguments of a collective say, of its kernel or its operation (PyTorch 2.1
    and later)."""

    name: str
    group: str | None
    size: int | None
    """Ranks in the group."""
    elements: int | None
    """Of this rank's input."""
    dtype: str | None
    ranks: tuple[int, ...] | None = None
    """Of the group; None where the trace does not state all."""


class Reserved(NamedTuple):
    """What a GPU's allocator held after one of its allocations, bytes."""

    at: int
    device: int
    allocated: int | None
    reserved: int | None
    change: int
    """Bytes of the allocation, negative where memory was freed."""


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
    """Correlation id -> where the runtime or driver call began; None when several calls
    share it."""
    graphs: set[int] = field(default_factory=set)
    """Correlation ids of calls that launch a graph."""
    waits: list[tuple[str, int, int, int]] = field(default_factory=list)
    """(function, thread, start, end) of calls that return when the GPU has done its work; empty
    where single operators are not wanted."""
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
    """Events of a category in KINDS."""
    indices: int = 0
    """Operations and ranges with a number among all events of the profiler ("Ev Idx", from 0)."""
    last_index: int = -1
    backwards: int = 0
    """Events with a negative duration: what Kineto writes for those that never ended."""
    counter_ranges: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    """Category or kind of event -> count."""
    repeated: int = 0
    timeless: int = 0
    api: dict[tuple[str, str], list[int | None]] = field(default_factory=dict)
    """(category, name) of runtime and driver calls, waits and Python functions -> calls, and ns in
    all, of the shortest and of the longest; None where a call has no duration."""
    curve: list[Reserved] = field(default_factory=list)
    comms: dict[int, CommArgs] = field(default_factory=dict)
    """Position in ``spans``, or -1 - position in ``kernels``, of each collective with arguments."""
    origins: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Position in ``kernels`` of each fused one -> the Python stacks of its origins."""
    annotated: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Position in ``kernels`` of each that was annotated when its graph was captured -> the name,
    whether it is backward."""
    compiled: dict[int, CallFacts] = field(default_factory=dict)
    """Position in ``spans`` of each call of a compiled kernel -> what it says of the kernel."""
    signatures: list[int] | None = None
    """For each of ``spans``, the number of its arguments in ``arguments``; None where single
    operators are not wanted."""
    arguments: list[tuple[str | None, str | None]] = field(default_factory=lambda: [(None, None)])
    """Shapes and types of inputs, as JSON."""
    stacks: dict[int, str] = field(default_factory=dict)
    """Position in ``spans`` -> call stack, innermost first and one frame a line, where operators
    have one (2021)."""
    functions: Functions = field(default_factory=Functions)


def _members(**values: str) -> str:
    return rf",{_S}".join(f'"{name}":{_S}{value}' for name, value in values.items())


EVENT = re.compile(
    rf"[ \t\r\n,]*\{{{_S}"
    + _members(ph='"X"', cat=_TEXT, name=_TEXT, pid=_ID, tid=_ID, ts=_TIME, dur=_TIME)
    + rf',{_S}"args":{_S}\{{{_S}(?:"External id":{_S}{_ID}{_S}(?:,{_S}|(?=\}})))?'
).match
"""An event up to its arguments: category, name, process, thread, start, duration, External id."""
_ARROW_NAME = _members(cat='"(?:ac2g|fwdbwd)"', name='"(?:ac2g|fwdbwd)"')
END = re.compile(
    rf"\}}{_S}\}}(?:{_S},{_S}\{{{_S}"
    + _members(ph='"[sf]"', id="[0-9]{1,18}")
    + rf",{_S}(?:{_ARROW_NAME},{_S})?"
    + _members(pid="[0-9]{1,18}", tid="[0-9]{1,18}", ts="[0-9]{1,15}(?:[.][0-9]{1,9})?")
    + rf'(?:,{_S}{_ARROW_NAME})?(?:,{_S}"bp":{_S}"e")?{_S}()\}})?'
).match
"""The ends of its arguments and of an event; with a group where an arrow between CPU and GPU
follows it, which is not used."""


class Arguments(Generic[T]):
    """What the arguments of events say, each different text read once by ``read``.

    ``own``: the argument that is each event's own, "correlation". ``used``: whether ``read`` looks
    at any other number.
    """

    def __init__(self, read: Callable[[dict[str, Any]], T], own: str, *, used: bool = True) -> None:
        self._read, self._own, self._mark, self._used = read, own, f'"{own}": ', used
        self._decode = json.JSONDecoder(parse_float=str, strict=False).decode
        self._known: dict[str, T] = {}
        self.indices, self.last_index = 0, -1
        """How many events had a number among all events of the profiler ("Ev Idx"), and
        the largest."""

    def __call__(self, text: str) -> tuple[int | None, T] | None:
        """The number that is the event's own, and what it shares; None where the text is not plain
        enough to know."""
        number, index = None, -1
        if self._used:
            at = text.find(self._mark)
            if at >= 0:
                at += len(self._mark)
                if (digits := _NUMBER(text, at)) is None:
                    return None
                end = digits.end()
                number = int(text[at:end])
                text = text[:at] + "0" + text[end:]
            at = text.rfind(_LAST)
            if at >= 0:
                at += len(_LAST)
                if (digits := _NUMBER(text, at)) is not None:
                    text = text[:at] + "0" + text[digits.end() :]
                    index = int(digits[0])
        else:
            text = _DIGITS.sub("0", text)
        try:
            found = number, self._known[text]
        except KeyError:
            if (learned := self._learn(text, number)) is None:
                return None
            found = learned
        if index >= 0:
            self.indices += 1
            if index > self.last_index:
                self.last_index = index
        return found

    def _learn(self, text: str, number: int | None) -> tuple[int | None, T] | None:
        try:
            args = self._decode(f"{{{text}}}")
        except (ValueError, RecursionError):
            return None
        if self._used and not self._is_alone(text, number):
            return None
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[text] = shared = self._read(args)
        return number, shared

    def _is_alone(self, text: str, number: int | None) -> bool:
        """Whether no argument that is read apart is there twice, or spelled in another way."""
        return (
            text.count(f'"{self._own}"') == (number is not None)
            and '"external id"' not in text.lower()
        )
