"""Sorts the events of a Kineto trace into what perfctl uses, in one pass over them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from perfctl.parsers.kineto.events import (
    END,
    EVENT,
    KINDS,
    MODULE,
    NOT_USED,
    Arguments,
    CallFacts,
    CapturedCall,
    CommArgs,
    DeviceEvent,
    Events,
    Place,
    Reserved,
    Span,
    count,
    external_id,
    nanoseconds,
    three,
    whole,
)
from perfctl.parsers.kineto.fused import facts
from perfctl.parsers.operators import GRADIENT_OF, READERS, Call, read_call
from perfctl.records.ranges import read_range_name
from perfctl.records.report import WAITS

_WAITS = frozenset(WAITS)
_OPERATORS = frozenset((*READERS, *GRADIENT_OF))
_OLD_RANGE = ("ProfilerStep", "enumerate(DataLoader)#", "Optimizer.")
"""Until 2021 record_function ranges had the category of operations; these names, and perfctl's,
show a range."""


_CAPTURING = (("begin", "StreamBeginCapture"), ("end", "StreamEndCapture"))


def _text(value: object) -> str | None:
    return value if type(value) is str and value else None


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)


def _captured(args: dict[str, Any]) -> tuple[str | None, int | None]:
    """The kernel that a call launches, and its node in the graph that is being captured."""
    return _text(args.get("kernel")), whole(args.get("graph node id"))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(one for one in value if type(one) is str and one) if type(value) is list else ()


def _annotated(args: dict[str, Any]) -> tuple[str, bool] | None:
    """What ``torch.cuda._graph_annotations.mark_kernels`` said of a node: the name, and whether it
    is of the backward pass."""
    name = _text(args.get("name")) or _text(args.get("annotation"))
    return None if name is None else (name, args.get("autograd_phase") == "backward")


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
    group, stated = (
        _text(args.get("Process Group Name")),
        _text(args.get("Process Group Ranks")) or "",
    )
    # PyTorch cuts a long list: "[0, 1, ..., 63]"
    ranks = tuple(map(int, re.findall(r"\d{1,9}", stated)))
    return CommArgs(
        name,
        group,
        *numbers,
        _text(args.get("dtype")),
        ranks if ranks and len(ranks) == numbers[0] else None,
    )


def _nanoseconds(text: str) -> int | None:
    """Of microseconds, with or without a fraction."""
    return nanoseconds(text if "." in text else int(text))


class _Operation(NamedTuple):
    """What the arguments of an operation or range say, which others may say, too."""

    args: dict[str, Any]
    call: list[Call | None]
    """The arguments that its formula needs, once they were asked for; until then empty."""
    signature: int
    """Number of its shapes and types; 0 where single operators are not wanted."""
    stack: str | None
    compiled: dict[str, CallFacts] | None
    """What the call of a kernel that Inductor wrote says, by its name, once that was asked for;
    None for other operations."""


class _Launch(NamedTuple):
    """What the arguments of a kernel or copy say, which others may say, too."""

    numbers: tuple[Any, ...]
    """``DeviceEvent.args``."""
    comm: CommArgs | None
    origins: tuple[str, ...] = ()
    annotated: tuple[str, bool] | None = None


def collect(events: Iterable[Any], *, op_calls: bool = False) -> Events:
    """Sort all elements of ``traceEvents``. Elements that are not events, or not used, are skipped.

    ``op_calls``: keep what only single operators need (shapes, types, stacks).
    """
    return Collector(op_calls=op_calls).run(events)


class Collector:
    """Takes events as decoded objects (``run``), or as text in Kineto's own layout (``take``); both
    may take turns."""

    def __init__(self, *, op_calls: bool, captures: bool = False) -> None:
        """``captures``: keep what is launched while graphs are captured."""
        self.captures = captures
        self.found = Events(signatures=[] if op_calls else None)
        self.signature_numbers: dict[str, int] = {"(None, None)": 0}
        self.thread_numbers: dict[tuple[object, object], int] = {}
        self.names: dict[str, str] = {}
        self.launch_shapes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """Each kept once, like the names: a network repeats the same few launches."""
        self.shares: dict[int, float | None] = {}
        self.arguments: dict[str, Call | None] = {}
        self.seen: set[int] = set()
        reads: dict[str, Arguments[Any]] = {
            "span": Arguments(self.operation, "Sequence number"),
            "call": Arguments(_captured if captures else lambda _: (None, None), "correlation"),
            "kernel": Arguments(self.launch, "correlation"),
            "copy": Arguments(self.copied, "correlation"),
            "function": Arguments(lambda _: None, "Python id", used=False),
        }
        self.spans = reads["span"]
        self.by_text: dict[str, tuple[Arguments[Any], Callable[..., None]]] = {
            category: (reads[kind], getattr(self, f"add_{kind}"))
            for category, kind in KINDS.items()
            if kind in reads
        }
        """Category -> what reads the arguments of such an event, and takes it."""

    def take(self, text: str, at: int) -> tuple[int, int]:
        """Take events from ``text``, from ``at`` on, as long as they are laid out as Kineto
        writes them.

        Returns where the first begins that is not, and how many elements of ``traceEvents``
        were taken.
        """
        by_text, names, found, find = self.by_text, self.names, self.found, text.find
        events = arrows = 0
        while (begin := EVENT(text, at)) is not None:
            category, name, process, thread, stamp, lasted, external = begin.groups()
            inside = begin.end()
            last = find("}", inside)  # if that is not the end of the arguments, they cannot be read
            if category not in by_text or last < 0 or (end := END(text, last)) is None:
                break
            read, add = by_text[category]
            if (said := read(text[inside:last])) is None:
                break
            start: int | None
            if stamp[-4:-3] == ".":
                start = int(stamp[:-4] + stamp[-3:])
                found.whole_microseconds = False
            else:
                start = _nanoseconds(stamp)
                found.whole_microseconds &= "." not in stamp
            has_three = lasted[-4:-3] == "."
            duration = int(lasted[:-4] + lasted[-3:]) if has_three else _nanoseconds(lasted)
            number = -1 if external is None else int(external)
            add(
                category,
                names.setdefault(name, name),
                (int(process), int(thread)),
                start,
                duration,
                number,
                *said,
            )
            events += 1
            arrows += end.lastindex is not None
            at = end.end()
        found.known += events
        found.indices += self.spans.indices
        found.last_index = max(found.last_index, self.spans.last_index)
        self.spans.indices = 0
        return at, events + arrows

    def run(self, events: Iterable[Any]) -> Events:
        """Take decoded events until there are no more. Nothing can be taken afterwards."""
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
        # its methods hold this object, and all events with it, while Python's cycle collector
        # is off
        self.by_text = {}
        return self.found

    def span(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        index = whole(args.get("Ev Idx"))
        if index is not None:
            self.found.indices += 1
            self.found.last_index = max(self.found.last_index, index)
        self.add_span(
            *self.facts(event),
            external_id(args),
            whole(args.get("Sequence number")),
            self.operation(args),
        )

    def call(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        self.add_call(*self.facts(event), -1, whole(args.get("correlation")), _captured(args))

    def function(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        self.add_function(*self.facts(event), -1, None, None)

    def kernel(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        launch = self.launch(args, _stream(event))
        self.add_kernel(
            *self.facts(event), external_id(args), whole(args.get("correlation")), launch
        )

    def copy(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        launch = self.copied(args, _stream(event))
        self.add_copy(*self.facts(event), external_id(args), whole(args.get("correlation")), launch)

    def facts(
        self, event: dict[str, Any]
    ) -> tuple[str, str, tuple[object, object], int | None, int | None]:
        """Category, name, process and thread, start, duration; a negative one is what Kineto writes
        for an event that never ended: None."""
        name, stamp = event.get("name"), event.get("ts")
        name = name if type(name) is str else ""
        if type(stamp) is str:
            self.found.whole_microseconds = False
        duration = nanoseconds(event.get("dur"))
        if duration is not None and duration < 0:
            duration = None
            self.found.backwards += 1
        place = event.get("pid"), event.get("tid")
        return event["cat"], self.names.setdefault(name, name), place, nanoseconds(stamp), duration

    def operation(self, args: dict[str, Any]) -> _Operation:
        """What the arguments of an operation or range say; shapes and types only where single
        operators are wanted."""
        stack = args.get("Call stack")
        if type(stack) is str and stack:
            stack = stack.replace(";", "\n")
            stack = self.names.setdefault(stack, stack)
        signature = 0
        if self.found.signatures is not None:
            given = args.get("Input Dims", args.get("Input dims")), args.get("Input type")
            key = repr(given)
            known = self.signature_numbers.get(key)
            if known is None:
                known = self.signature_numbers[key] = len(self.found.arguments)
                self.found.arguments.append((_json(given[0]), _json(given[1])))
            signature = known
        compiled: dict[str, CallFacts] | None = (
            {} if "kernel_file" in args or "kernel_hash" in args else None
        )
        return _Operation(
            args, [], signature, stack if type(stack) is str and stack else None, compiled
        )

    def add_span(
        self,
        category: str,
        name: str,
        place: tuple[object, object],
        start: int | None,
        duration: int | None,
        external: int,
        sequence: int | None,
        said: _Operation,
    ) -> None:
        """An operation or a range. ``sequence``: autograd's number of it."""
        found = self.found
        if start is None:
            found.timeless += 1
            return
        is_range = category == "user_annotation" or (
            category == "Operator"
            and (
                name.startswith(_OLD_RANGE)
                or any(part is not None for part in read_range_name(name))
            )
        )
        end = None if duration is None else start + duration
        spans = found.spans
        span: Span = tuple.__new__(Span, (self.thread(place), start, end, external, name, is_range))
        if external >= 0:
            earlier = found.by_external.setdefault(external, len(spans))
            if earlier != len(spans):
                if earlier >= 0 and spans[earlier] == span:
                    found.repeated += 1
                    return
                found.by_external[external] = -1
        if sequence is not None and sequence >= 0:
            found.sequences.append(
                (len(spans), sequence, bool(whole(said.args.get("Fwd thread id"))))
            )
        if name in _OPERATORS:
            if not said.call:
                said.call.append(self.call_of(said.args))
            found.operators[len(spans)] = said.call[0]
        if said.compiled is not None:
            if name not in said.compiled:
                said.compiled[name] = facts(name, said.args)
            found.compiled[len(spans)] = said.compiled[name]
        if name == "record_param_comms" and (comm := comm_args(said.args)) is not None:
            found.comms[len(spans)] = comm
        if found.signatures is not None:
            found.signatures.append(0 if is_range else said.signature)
            if said.stack is not None and not is_range:
                found.stacks[len(spans)] = said.stack
        spans.append(span)

    def call_of(self, args: dict[str, Any]) -> Call | None:
        """Each kept once: a network repeats the same few calls in every step."""
        given = (
            args.get("Input Dims", args.get("Input dims")),
            args.get("Input type"),
            args.get("Concrete Inputs"),
        )
        text = str(given)
        if text not in self.arguments:
            self.arguments[text] = read_call(*given)
        return self.arguments[text]

    def add_function(
        self,
        category: str,
        name: str,
        place: tuple[object, object],
        start: int | None,
        duration: int | None,
        *_: object,
    ) -> None:
        """A call of a module is a range; of other functions the calls are summed."""
        found = self.found
        is_module = name.startswith(MODULE)
        if not is_module:
            self.sum_up("python_function", name, duration)
        if start is None or duration is None:
            return
        if is_module:
            found.spans.append(Span(self.thread(place), start, start + duration, -1, name, True))
        if found.signatures is not None:
            if is_module:
                found.signatures.append(0)
            found.functions.threads.append(self.thread(place))
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

    def add_call(
        self,
        category: str,
        name: str,
        place: tuple[object, object],
        start: int | None,
        duration: int | None,
        external: int,
        correlation: int | None,
        said: tuple[str | None, int | None],
    ) -> None:
        """A call of the runtime or the driver. ``said``: of ``_captured``."""
        found = self.found
        is_launch = "Launch" in name
        found.launches += is_launch
        found.called += 1
        found.uncorrelated += correlation is None
        if is_launch and correlation is not None and "GraphLaunch" in name:
            found.graphs.add(correlation)
        if self.captures and start is not None and "Graph" not in name:
            what = (
                "launch"
                if is_launch
                else next((say for say, word in _CAPTURING if word in name), None)
            )
            if what is not None:
                found.captured.append(CapturedCall(what, Place(self.thread(place), start), *said))
        if start is not None and correlation is not None:
            at: Place = tuple.__new__(Place, (self.thread(place), start))
            known = found.calls.setdefault(correlation, at)
            if known is not at and known == at:
                return  # the same call again
            if known != at:
                found.calls[correlation] = None
        if (
            name in _WAITS
            and found.signatures is not None
            and start is not None
            and duration is not None
        ):
            found.waits.append((name, self.thread(place), start, start + duration))
        self.sum_up(category, name, duration)

    def wait(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        """A synchronisation (cuda_sync): of a stream, an event or a whole context."""
        _, name, _, _, duration = self.facts(event)
        self.sum_up("sync", name, duration)

    def launch(self, args: dict[str, Any], stream: object = None) -> _Launch:
        """What a kernel's arguments say; ``stream`` where they name none."""
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
            *self.on_device(args, stream),
            *shape,
            whole(args.get("registers per thread")),
            whole(args.get("shared memory")),
            whole(args.get("context")),
            graph,
            node,
            share,
        )
        comm = comm_args(args) if "Collective name" in args else None
        origins = _texts(args.get("stack"))
        annotated = _annotated(args) if node is not None else None
        return _Launch(self.launch_shapes.setdefault(numbers, numbers), comm, origins, annotated)

    def copied(self, args: dict[str, Any], stream: object = None) -> _Launch:
        """What the arguments of a copy or memset say."""
        numbers = (*self.on_device(args, stream), whole(args.get("bytes")))
        return _Launch(self.launch_shapes.setdefault(numbers, numbers), None)

    def on_device(self, args: dict[str, Any], stream: object) -> tuple[int | None, int | None]:
        given = args.get("stream")
        return whole(args.get("device")), whole(stream if given is None else given)

    def add_kernel(
        self,
        category: str,
        name: str,
        place: tuple[object, object],
        start: int | None,
        duration: int | None,
        external: int,
        correlation: int | None,
        launch: _Launch,
    ) -> None:
        kernels = self.found.kernels
        if self.is_new(name, start, duration, correlation, launch):
            if launch.comm is not None:
                self.found.comms[-1 - len(kernels)] = launch.comm
            if launch.origins:
                self.found.origins[len(kernels)] = launch.origins
            if launch.annotated is not None:
                self.found.annotated[len(kernels)] = launch.annotated
            given = (name, start, duration, correlation, external, launch.numbers)
            kernels.append(tuple.__new__(DeviceEvent, given))

    def add_copy(
        self,
        category: str,
        name: str,
        place: tuple[object, object],
        start: int | None,
        duration: int | None,
        external: int,
        correlation: int | None,
        launch: _Launch,
    ) -> None:
        if self.is_new(name, start, duration, correlation, launch):
            self.found.copies.append(
                DeviceEvent(name, start, duration, correlation, external, launch.numbers)
            )

    def is_new(
        self,
        name: str,
        start: int | None,
        duration: int | None,
        correlation: int | None,
        launch: _Launch,
    ) -> bool:
        """Whether this work of a device was not there before; a repeated one is counted."""
        if correlation is None or start is None:
            return True
        device, stream, *_ = launch.numbers
        key = hash((correlation, device, stream, start, duration, name))
        if key in self.seen:
            self.found.repeated += 1
            return False
        self.seen.add(key)
        return True

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
        self.found.memory.append((self.thread((event.get("pid"), event.get("tid"))), at, size))
        device, peaks = whole(args.get("Device Id")), self.found.peaks
        if whole(args.get("Device Type")) == 1 and device is not None:
            totals = whole(args.get("Total Allocated")), whole(args.get("Total Reserved"))
            for quantity, total in zip(("allocated", "reserved"), totals, strict=True):
                if total is not None:
                    peaks[device, quantity] = max(total, peaks.get((device, quantity), 0))
            if totals != (None, None):
                self.found.curve.append(Reserved(at, device, *totals, size))

    def thread(self, place: tuple[object, object]) -> int:
        """Number of a process' thread in ``Events.threads``."""
        try:
            return self.thread_numbers[place]
        except (KeyError, TypeError):  # new, or a list or object instead of an id
            process, thread = place
            key = (str(process), str(thread))
            number = self.thread_numbers.setdefault(key, len(self.found.threads))
            if number == len(self.found.threads):
                self.found.threads.append((whole(process), whole(thread)))
            if isinstance(process, int | str) and isinstance(thread, int | str):
                self.thread_numbers[place] = number
            return number


def _stream(event: dict[str, Any]) -> object:
    """As the thread of GPU work was called until 2021: "stream 7"."""
    thread = event.get("tid")
    return thread.removeprefix("stream ") if type(thread) is str else None
