"""Traces of JAX: the ``trace.json.gz`` that XLA's profiler writes, as events of Kineto.

All arguments are texts. A line of a GPU's process holds one stream, the steps, or XLA's operations.
Steps become ranges (ProfilerStep#N) from their first to their last work on any GPU, operations
become ranges of a thread for each GPU. Kernels refer to their step by XLA's group of events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from perfctl.parsers.kineto.events import make_args_decoder
from perfctl.parsers.kineto.stream import TraceEvent, parse_int64, parse_microseconds_as_ns
from perfctl.records.report import Gap, Kernel

_PROCESS = re.compile(r"/(?:host|device):")
_GPU = re.compile(r"/device:GPU:(\d{1,9})\Z")
LIMIT = 1_000_000
"""XLA drops the events of a longer trace without a word; by now the limit is 5 times this, or what
the user set."""
_STREAM = re.compile(r"Stream #(\d{1,18})\b")
_STEP = re.compile(r"(\d{1,9})\D*\Z")
_COPY = re.compile(r"(?i:memcpy|memset)")
_DETAIL = re.compile(r"\b(\w+):(\d+(?:,\d+)*)")
"""In a text such as "regs:32 static_shared:0 dynamic_shared:0 grid:8,1,1 block:256,1,1"."""
_BETWEEN = re.compile(r"([HDP])2([HDP])")


class _XlaArgs(msgspec.Struct):
    """Arguments that are read."""

    name: str = ""
    group_id: str | None = None
    correlation_id: str | None = None
    context_id: str | None = None
    kernel_details: str = ""
    memcpy_details: str = ""
    memset_details: str = ""


_read_args = make_args_decoder(_XlaArgs)


class XlaTranslator:
    """The part of a JAX trace that is known so far."""

    def __init__(self) -> None:
        self.is_xla = False
        self.gpus: dict[str, int] = {}
        """Process of the trace -> number of its GPU."""
        self._events = 0
        self._lines: dict[tuple[str, str], str] = {}
        self._steps: dict[str, tuple[str, int, int]] = {}
        """Group of events -> number of the step, begin and end in ns."""

    def translate_jax_to_kineto_events(
        self, blocks: Iterable[list[TraceEvent]]
    ) -> Iterator[list[TraceEvent]]:
        """Yield the events of a JAX trace as Kineto writes them; those of another trace as they
        are."""
        blocks = iter(blocks)
        first = next(blocks, [])
        self.is_xla = any(
            event.name == "process_name" and _PROCESS.match(_read_args(event).name)
            for event in first
        )
        if not self.is_xla:
            yield from chain([first], blocks)
            return
        for block in chain([first], blocks):
            yield [
                translated
                for event in block
                if (translated := self._translate_event(event)) is not None
            ]
        yield [
            _make_range_event(
                f"ProfilerStep#{number}", 0, begin / 1000, (end - begin) / 1000, group
            )
            for group, (number, begin, end) in self._steps.items()
        ]

    def list_missing_data_gaps(self, kernels: Sequence[Kernel]) -> Iterator[Gap]:
        """Yield what a JAX trace does not say."""
        reason = "perfctl reads the GPUs' lines of JAX traces, not those of the CPU"
        yield Gap("operation", "not_available", reason)
        if lacking := sum(kernel.step is None for kernel in kernels):
            reason = f"{lacking} of {len(kernels)} launches belong to no step of the line Steps"
            yield Gap("kernel.step", "not_available", reason)
        if self._events and self._events % LIMIT == 0:
            reason = f"the trace has exactly {self._events:,} events: XLA probably dropped others"
            yield Gap("kernel", "ambiguous", reason)

    def _translate_event(self, event: TraceEvent) -> TraceEvent | None:
        process, thread = str(event.pid), str(event.tid)
        if event.ph == "M":
            name = _read_args(event).name
            if event.name == "thread_name":
                self._lines[process, thread] = name
            elif event.name == "process_name" and (gpu := _GPU.match(name)):
                self.gpus[process] = int(gpu[1])
        self._events += event.ph == "X"
        if event.ph == "X" and process in self.gpus:
            line = self._lines.get((process, thread), "")
            if stream := _STREAM.match(line):
                return _make_device_event(event, self.gpus[process], int(stream[1]))
            if line == "XLA Ops":
                return _make_range_event(event.name, 1 + self.gpus[process], event.ts, event.dur)
            begin, length = map(parse_microseconds_as_ns, (event.ts, event.dur))
            step = _STEP.search(str(event.name)) if line == "Steps" else None
            if step and begin is not None and length is not None:
                group = _read_args(event).group_id or step[1]
                _, first, last = self._steps.get(group, ("", begin, begin))
                self._steps[group] = step[1], min(first, begin), max(last, begin + length)
        return None


def _make_range_event(
    name: object, thread: int, ts: object, dur: object, group: object = None
) -> TraceEvent:
    args = {"External id": parse_int64(group)}
    return TraceEvent("X", "user_annotation", name, 0, thread, ts, dur, _encode_args(args))


def _make_device_event(event: TraceEvent, gpu: int, stream: int) -> TraceEvent:
    """Return a kernel or copy with Kineto's arguments."""
    args = _read_args(event)
    text = f"{args.kernel_details} {args.memcpy_details} {args.memset_details}"
    details = {
        name: [parse_int64(number) for number in numbers.split(",")]
        for name, numbers in _DETAIL.findall(text)
    }
    single = {name: numbers[0] for name, numbers in details.items()}
    event.cat = "kernel"
    if _COPY.match(str(event.name)):
        event.cat, event.name = "gpu_memcpy", _BETWEEN.sub(r"\1to\2", event.name)
    event.args = _encode_args(
        {
            "External id": parse_int64(args.group_id),
            "correlation": parse_int64(args.correlation_id),
            "context": parse_int64(args.context_id),
            "device": gpu,
            "stream": stream,
            "grid": details.get("grid"),
            "block": details.get("block"),
            "registers per thread": single.get("regs"),
            "static shared memory": single.get("static_shared"),
            "dynamic shared memory": single.get("dynamic_shared"),
            "bytes": single.get("size"),
        }
    )
    return event


def _encode_args(args: Mapping[str, object]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(args))
