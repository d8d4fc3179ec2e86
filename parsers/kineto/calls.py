"""What a trace says call by call: single operators with their stacks, sums of runtime calls, the
allocator's curve. Collectives: what a rank sent to others, and how long that took on its GPU.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import isnan
from typing import Any

from perfctl.parsers.allocator import Reading, curves
from perfctl.parsers.kineto.events import CallFacts, CommArgs, Events, Place, Span
from perfctl.parsers.kineto.fused import TEMPLATE, elementwise
from perfctl.parsers.kineto.nesting import NOWHERE, Nesting
from perfctl.parsers.kineto.records import Launches, direction_of
from perfctl.records.bulk import Columns
from perfctl.records.report import ApiCall, Collective, CompiledKernel, Gap, OpCall, Sample

KERNEL = re.compile(
    r"(?:void )?(?:(?:nccl|rccl|msccl)\w*?kernel(?:_generic)?_?([^_\W]*)"
    r"|(?:dpsk::ep|deep_ep)::(?:internode|intranode)\w*::(\w+))",
    re.IGNORECASE,
)
"""Kernels of NCCL and RCCL, with what they do behind ("ncclDevKernel_AllReduce_Sum_f32_RING_LL");
of DeepEP."""
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
}
_SIZES = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
"""c10's names of types, in small letters -> bytes of an element."""
_CHUNK = 1000
"""Operators at a time."""
_NAMED = 5
"""Kernels that a gap names."""
_DOMAINS = {
    "cuda_runtime": "cuda",
    "cuda_driver": "cuda",
    "Runtime": "cuda",
    "hip_runtime": "hip",
    "xpu_runtime": "xpu",
    "python_function": "python",
}
"""Category -> domain; others keep their name."""

_Place = tuple[str | None, str | None, int | None]
"""Layer, direction, step."""


def element_bytes(dtype: str | None) -> int | None:
    """None for a type that is not known."""
    name = (dtype or "").lower()
    return 1 if name.startswith("float8") else _SIZES.get(name)


def collectives(events: Events, nesting: Nesting, launches: Launches) -> list[Collective]:
    """One row a kernel that talks to other GPUs, in the order of the trace.

    Its name is that of its arguments, else of the range that launched it (nccl:all_reduce), else of
    the kernel; ``bytes`` is known only with arguments.
    """
    found = []
    for number, (event, span) in enumerate(zip(events.kernels, launches.kernel_spans, strict=True)):
        match = KERNEL.match(event.name)
        args = events.comms.get(-1 - number)
        if match is None and args is None:
            continue
        args, said = _around(events, nesting, span) if args is None else (args, None)
        word = (match[1] or match[2] or "") if match else ""
        kind = (
            event.name if not word or word.isdecimal() else _KINDS.get(word.lower(), word.lower())
        )
        if args is None:
            found.append(Collective(said or kind, start_ns=event.start, duration_ns=event.duration))
            continue
        size = element_bytes(args.dtype)
        total = (
            None
            if size is None or args.elements is None or args.elements < 0
            else size * args.elements
        )
        facts = (args.group, args.size, total, args.dtype)
        found.append(
            Collective(args.name, *facts, start_ns=event.start, duration_ns=event.duration)
        )
    return found


def _around(events: Events, nesting: Nesting, span: int) -> tuple[CommArgs | None, str | None]:
    """Arguments of the operation that launched it, and the collective that a range around the
    launch names."""
    said = None
    while span >= 0:
        if span in events.comms:
            return events.comms[span], said
        name = events.spans[span].name
        if said is None and name.startswith("nccl:"):
            said = name.removeprefix("nccl:")
        span = nesting.parents[span]
    return None, said


def op_calls(
    events: Events, nesting: Nesting, device: Sequence[float]
) -> Columns[OpCall] | tuple[()]:
    """Every operator of the trace in its order, records are made when they are read. ``device``: ns
    of kernels inside each span.

    After them, as operators without shapes, come the calls that wait for the GPU. Empty where
    single operators were not wanted.
    """
    signatures = events.signatures
    if signatures is None:
        return ()
    spans, threads, arguments = (
        events.spans,
        [thread for _, thread in events.threads],
        events.arguments,
    )
    on_gpu = bool(events.kernels or events.copies)
    wanted = [index for index, span in enumerate(spans) if not span.is_range]
    # Columns of plain numbers, so that the events need not stay until they are written; -1 is
    # not known.
    names = [spans[index].name for index in wanted]
    starts = array("q", (spans[index].start for index in wanted))
    lasted = array(
        "q",
        (-1 if (end := spans[index].end) is None else end - spans[index].start for index in wanted),
    )
    on_device = array(
        "q", (-1 if not on_gpu or isnan(ns := device[index]) else int(ns) for index in wanted)
    )
    given = array("q", (signatures[index] for index in wanted))
    on_thread = array("q", (spans[index].thread for index in wanted))
    known: dict[_Place, _Place] = {}
    places = [known.setdefault(place, place) for place in _places(spans, nesting, wanted)]
    stacks = _Stacks(events)
    nodes = array("q", map(stacks.node, wanted))
    for number, (name, thread, start, end) in enumerate(events.waits):
        names.append(name)
        starts.append(start)
        lasted.append(end - start)
        on_device.append(-1)
        given.append(0)
        on_thread.append(thread)
        places.append((None, None, nesting.step_and_phase(NOWHERE, Place(thread, start))[0]))
        nodes.append(stacks.node(len(spans) + number))

    def chunks() -> Iterator[Sequence[Sequence[Any]]]:
        for first in range(0, len(names), _CHUNK):
            part = slice(first, first + _CHUNK)
            inputs = [arguments[number] for number in given[part]]
            layers, directions, steps = zip(*places[part], strict=True)
            yield (
                names[part],
                starts[part].tolist(),
                [None if ns < 0 else ns for ns in lasted[part]],
                [None if ns < 0 else ns for ns in on_device[part]],
                [shapes for shapes, _ in inputs],
                [dtypes for _, dtypes in inputs],
                layers,
                directions,
                steps,
                [threads[number] for number in on_thread[part]],
                list(map(stacks.text, nodes[part])),
            )

    return Columns(OpCall, chunks)


def _places(spans: Sequence[Span], nesting: Nesting, wanted: Sequence[int]) -> Iterator[_Place]:
    for index in wanted:
        context = nesting.contexts[index]
        step = context.step
        if step is None:
            step, _ = nesting.step_and_phase(
                context, Place(spans[index].thread, spans[index].start)
            )
        yield context.layer, direction_of(context), step


class _Stacks:
    """Call stacks of operators: as they have them, else the Python functions around them on
    their thread."""

    def __init__(self, events: Events) -> None:
        self.nodes: list[tuple[int, str]] = [(0, "")]
        """Node above, function or whole stack; a call stack that was seen twice is the
        same node."""
        self.numbers: dict[tuple[int, str], int] = {}
        self.texts: dict[int, str] = {}
        self.of_spans: dict[int, int] = {}
        """Position of a span, or of a wait after all spans -> node of its stack, where it
        has one."""
        if events.functions.names:
            self._find(events)
        for index, text in events.stacks.items():
            self.of_spans[index] = self._number(0, text)

    def node(self, index: int) -> int:
        """0 for a span without a stack."""
        return self.of_spans.get(index, 0)

    def text(self, node: int) -> str | None:
        """Innermost first, one frame a line; None for node 0."""
        if not node:
            return None
        if node not in self.texts:
            frames, above = [], node
            while above:
                above, name = self.nodes[above]
                frames.append(name)
            self.texts[node] = "\n".join(frames)
        return self.texts[node]

    def _number(self, above: int, name: str) -> int:
        node = self.numbers.setdefault((above, name), len(self.nodes))
        if node == len(self.nodes):
            self.nodes.append((above, name))
        return node

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
        for number, (_, thread, start, end) in enumerate(events.waits, len(events.spans)):
            threads[thread].append((start, -end, 1, number))
        for items in threads.values():
            stack: list[tuple[int, int]] = []  # (end, node)
            for start, minus_end, is_operator, number in sorted(items):
                while stack and stack[-1][0] <= start:
                    stack.pop()
                above = stack[-1][1] if stack else 0
                if not is_operator:
                    stack.append((-minus_end, self._number(above, functions.names[number])))
                elif above:
                    self.of_spans[number] = above


def api_calls(events: Events) -> list[ApiCall]:
    """Sums by function of runtime and driver calls, waits and Python functions, the longest in
    all first.

    Calls of one name through runtime and driver are one row.
    """
    sums: dict[tuple[str, str], list[int | None]] = {}
    for (category, name), (calls, *times) in events.api.items():
        domain = (
            "hip"
            if name.startswith("hip") and category != "python_function"
            else _DOMAINS.get(category, category)
        )
        known = sums.get((domain, name))
        if known is None:
            sums[domain, name] = [calls, *times]
            continue
        pairs = list(zip(known[1:], times, strict=True))
        (total, shortest, longest) = (
            (None, None, None)
            if any(None in pair for pair in pairs)
            else (sum(pairs[0]), min(pairs[1]), max(pairs[2]))  # type: ignore[arg-type, type-var]
        )
        sums[domain, name] = [(known[0] or 0) + (calls or 0), total, shortest, longest]
    rows = [ApiCall(domain, name, *numbers) for (domain, name), numbers in sums.items()]
    return sorted(rows, key=lambda row: (row.domain, -(row.total_ns or 0), row.name))


def memory_curve(events: Events) -> list[Sample]:
    """What the allocator of each GPU held after each of its allocations."""
    devices: defaultdict[int, list[Reading]] = defaultdict(list)
    for at, device, allocated, reserved, _ in events.curve:
        devices[device].append(Reading(at, allocated, reserved))
    return curves(devices)


def compiled_kernels(events: Events, device: Sequence[float]) -> list[CompiledKernel]:
    """The kernels that Inductor wrote: file, hash, backend, work of a call, calls, time. One name
    may be several kernels, and one kernel may be called with several sizes.

    The time is not known where no launch was recorded, as inside the capture of a graph.
    """
    found: dict[tuple[str, CallFacts], list[float]] = {}
    for index, facts in events.compiled.items():
        total = found.setdefault((events.spans[index].name, facts), [0, 0])
        total[0] += 1
        total[1] += device[index]
    rows = []
    for (name, facts), (calls, ns) in found.items():
        origins, time = _origins(name), None if isnan(ns) or not ns else int(ns)
        listed = None if name.startswith(TEMPLATE) else elementwise(origins, facts.elements)
        rows.append(
            CompiledKernel(
                name,
                facts.file,
                facts.hash,
                facts.backend,
                origins,
                int(calls),
                time,
                facts.elements,
                facts.reduced,
                facts.argument_bytes,
                facts.flops,
                facts.stated_flops,
                facts.stated_bytes,
                listed,
            )
        )
    return rows


def compiled_gaps(
    kernels: Sequence[CompiledKernel], facts: Iterable[tuple[str, CallFacts]]
) -> Iterator[Gap]:
    """Why FLOPs of templates are not known, and where Inductor's own figure is another one."""
    why = {(name, one.why) for name, one in facts if one.why is not None}
    for reason in sorted({reason for _, reason in why if reason is not None}):
        names = sorted(name for name, its in why if its == reason)
        yield Gap("compiled_kernel.flops", "not_available", f"{reason}: {_listed(names)}")
    other = sorted(
        {
            one.name
            for one in kernels
            if one.stated_flops and one.flops is not None and one.flops != one.stated_flops
        }
    )
    if other:
        reason = (
            "Inductor states other FLOPs (stated_flops) than follow from the shapes: "
            f"{_listed(other)}"
        )
        yield Gap("compiled_kernel.flops", "ambiguous", reason)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(name[:60] for name in names[:_NAMED])}{more}"


def _origins(name: str) -> str | None:
    """The operators that Inductor fused, as it writes them in the name: "add_mul" of
    triton_poi_fused_add_mul_0."""
    _, found, rest = name.partition("_fused_")
    operators, _, number = rest.rpartition("_")
    return operators if found and operators and number.isdecimal() else None
