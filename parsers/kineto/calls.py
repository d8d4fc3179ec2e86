"""What a trace says call by call: single operators with their stacks, sums of runtime calls, the allocator's curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any

from perfctl.parsers.allocator import Reading, curves
from perfctl.parsers.kineto.events import Events, Place
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.records import direction_of
from perfctl.records.bulk import Columns
from perfctl.records.report import ApiCall, CompiledKernel, OpCall, Sample

_CHUNK = 1000
"""Operators at a time."""
_DOMAINS = {
    "cuda_runtime": "cuda", "cuda_driver": "cuda", "Runtime": "cuda", "hip_runtime": "hip", "xpu_runtime": "xpu",
    "python_function": "python",
}  # fmt: skip
"""Category -> domain; others keep their name."""


def op_calls(events: Events, nesting: Nesting, device: Sequence[float]) -> Columns[OpCall] | tuple[()]:
    """Every operator of the trace in its order, made when it is read. ``device``: ns of kernels inside each span.

    Empty where single operators were not wanted.
    """
    signatures = events.signatures
    if signatures is None:
        return ()
    spans, contexts, arguments = events.spans, nesting.contexts, events.arguments
    on_gpu = bool(events.kernels or events.copies)
    wanted = [index for index, span in enumerate(spans) if not span.is_range]

    def step_of(index: int) -> int | None:
        context = contexts[index]
        if context.step is not None:
            return context.step
        return nesting.step_and_phase(context, Place(spans[index].thread, spans[index].start))[0]

    def chunks() -> Iterator[Sequence[Sequence[Any]]]:
        stack_of = _Stacks(events)
        for first in range(0, len(wanted), _CHUNK):
            part = wanted[first : first + _CHUNK]
            mine, around = [spans[index] for index in part], [contexts[index] for index in part]
            given = [arguments[signatures[index]] for index in part]
            yield (
                [span.name for span in mine],
                [span.start for span in mine],
                [None if span.end is None else span.end - span.start for span in mine],
                [None if not on_gpu or isnan(device[index]) else int(device[index]) for index in part],
                [shapes for shapes, _ in given],
                [dtypes for _, dtypes in given],
                [context.layer for context in around],
                list(map(direction_of, around)),
                list(map(step_of, part)),
                [events.threads[span.thread][1] for span in mine],
                stack_of.all(part),
            )

    return Columns(OpCall, chunks)


class _Stacks:
    """Call stacks of operators: as they have them, else the Python functions around them on their thread."""

    def __init__(self, events: Events) -> None:
        self.stated = events.stacks
        self.innermost: dict[int, int] = {}
        """Position of a span -> node of the innermost function around it."""
        self.nodes: list[tuple[int, str]] = [(0, "")]
        """Node above, function; a call stack that was seen twice is the same node."""
        self.texts: dict[int, str] = {}
        if events.functions.names:
            self._find(events)

    def all(self, indices: Sequence[int]) -> list[str | None]:
        if not self.innermost:
            return [self.stated.get(index) for index in indices]
        return [self.stated.get(index) or self._text(self.innermost.get(index, 0)) for index in indices]

    def _text(self, node: int) -> str | None:
        if not node:
            return None
        if node not in self.texts:
            frames, above = [], node
            while above:
                above, name = self.nodes[above]
                frames.append(name)
            self.texts[node] = "\n".join(frames)
        return self.texts[node]

    def _find(self, events: Events) -> None:
        functions = events.functions
        threads: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
        for number, (thread, start, end) in enumerate(
            zip(functions.threads, functions.starts, functions.ends, strict=True)
        ):
            threads[thread].append((start, -end, 0, number))
        for index, span in enumerate(events.spans):
            if not span.is_range and span.thread in threads:
                threads[span.thread].append((span.start, -(span.end or span.start), 1, index))
        children: dict[tuple[int, str], int] = {}
        for items in threads.values():
            stack: list[tuple[int, int]] = []  # (end, node)
            for start, minus_end, is_operator, number in sorted(items):
                while stack and stack[-1][0] <= start:
                    stack.pop()
                above = stack[-1][1] if stack else 0
                if is_operator:
                    self.innermost[number] = above
                    continue
                key = (above, functions.names[number])
                node = children.setdefault(key, len(self.nodes))
                if node == len(self.nodes):
                    self.nodes.append(key)
                stack.append((-minus_end, node))


def api_calls(events: Events) -> list[ApiCall]:
    """Sums by function of runtime and driver calls, waits and Python functions, the longest in all first.

    Calls of one name through runtime and driver are one row.
    """
    sums: dict[tuple[str, str], list[int | None]] = {}
    for (category, name), (calls, *times) in events.api.items():
        domain = "hip" if name.startswith("hip") and category != "python_function" else _DOMAINS.get(category, category)
        known = sums.get((domain, name))
        if known is None:
            sums[domain, name] = [calls, *times]
            continue
        pairs = list(zip(known[1:], times, strict=True))
        (total, shortest, longest) = (
            (None, None, None) if any(None in pair for pair in pairs) else (sum(pairs[0]), min(pairs[1]), max(pairs[2]))  # type: ignore[arg-type, type-var]
        )
        sums[domain, name] = [(known[0] or 0) + (calls or 0), total, shortest, longest]
    rows = [ApiCall(domain, name, *numbers) for (domain, name), numbers in sums.items()]
    return sorted(rows, key=lambda row: (row.domain, -(row.total_ns or 0), row.name))


def memory_curve(events: Events) -> list[Sample]:
    """What the allocator of each GPU held after each of its allocations."""
    devices: defaultdict[int, list[Reading]] = defaultdict(list)
    for at, device, allocated, reserved in events.curve:
        devices[device].append(Reading(at, allocated, reserved))
    return curves(devices)


def compiled_kernels(events: Events, device: Sequence[float]) -> list[CompiledKernel]:
    """The kernels that Inductor wrote: file, hash, backend, calls, time. One name may be several kernels.

    The time is not known where no launch was recorded, as inside the capture of a graph.
    """
    found: dict[tuple[Any, ...], list[float]] = {}
    for index, facts in events.compiled.items():
        total = found.setdefault((events.spans[index].name, *facts), [0, 0])
        total[0] += 1
        total[1] += device[index]
    return [
        CompiledKernel(name, file, key, backend, _origins(name), int(calls), None if isnan(ns) or not ns else int(ns))
        for (name, file, key, backend), (calls, ns) in found.items()
    ]


def _origins(name: str) -> str | None:
    """The operators that Inductor fused, as it writes them in the name: "add_mul" of triton_poi_fused_add_mul_0."""
    _, found, rest = name.partition("_fused_")
    operators, _, number = rest.rpartition("_")
    return operators if found and operators and number.isdecimal() else None
