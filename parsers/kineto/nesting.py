"""Finds which span encloses which on each thread of a trace, and the layer, step and phase
of each."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from perfctl.parsers.kineto.events import MODULE, OPTIMIZER, PROFILER_STEP, Events, Place, Span
from perfctl.parsers.operators import ENGINE, OperatorRows, Operators, Row
from perfctl.records.ranges import read_range_name
from perfctl.records.report import Gap
from perfctl.records.served_names import read_served
from perfctl.records.serving import ServedStep

WHOLE_MICROSECOND_SLACK = 2000
"""ns. Start and duration were cut to whole microseconds: a parent can seem to end that much before
its child."""
_PIPELINE = re.compile(r"([A-Za-z_]\w*)\(([FBW])\)\Z")
_PASSES = {"F": "forward", "B": "grad_input", "W": "grad_weight"}
"""Parts of a block as schedules of pipelines write them (DualPipe): attn(F), attn(B) for the
input's gradient, attn(W)."""
_LAST = 1 << 64
_start = itemgetter(0)

Owner = tuple[str, str, str]
"""(layer, direction, source)."""


class Context(NamedTuple):
    """Layer, step and phase of the ranges around a time, or what the name of one range says."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None
    phase: str | None = None
    range_number: int | None = None
    """The range, or the innermost one, counted in the order of the file."""
    depth: int = 0
    """How many ranges enclose it; 0 for what one name says."""
    source: str | None = None
    """How the layer was found: Kernel.layer_source."""


NOWHERE = Context()


class _TimeLine:
    """Values of stretches of time, (start, end, value), that follow one another."""

    def __init__(self, stretches: Iterable[tuple[int, int, Any]]) -> None:
        self._stretches = sorted(stretches, key=_start)
        self._starts = list(map(_start, self._stretches))

    def value_at(self, moment: int) -> Any:
        """Return the value at a time; None between two and outside of all."""
        number = bisect_right(self._starts, moment) - 1
        if number < 0 or moment >= self._stretches[number][1]:
            return None
        return self._stretches[number][2]


class Nesting:
    """Parents and contexts of all spans of ``events``, by their position in ``events.spans``."""

    def __init__(self, events: Events, probes: Iterable[Place]) -> None:
        self.spans = events.spans
        self.served = served_steps(events.spans)
        """The ranges that are steps of a server, by position."""
        self.meanings = read_ranges(events.spans, self.served)
        self.parents = [-1] * len(self.spans)
        self.contexts = [NOWHERE] * len(self.spans)
        self.outside: dict[int, Context] = {}
        """For each range, the context without itself."""
        self.order: list[int] = []
        """Positions of the spans, every parent before its children."""
        self.memory = [0] * len(self.spans)
        """Net bytes allocated inside each span and its children, host and device together."""
        self.probed: list[int] = []
        """For each probe, the innermost span around it; -1 for none."""
        self._slack = WHOLE_MICROSECOND_SLACK if events.whole_microseconds else 1
        self._threads = events.threads
        self._sweep(events, list(probes))
        self._steps, self._phases = self._time_lines("step"), self._time_lines("phase")

    def step_at(self, context: Context, place: Place) -> int | None:
        """Return the step at a time with ``context``; by time alone on threads without such ranges
        (autograd's)."""
        return context.step if context.step is not None else self._find(self._steps, place)

    def phase_at(self, context: Context, place: Place) -> str | None:
        """Return the phase, likewise."""
        return context.phase if context.phase is not None else self._find(self._phases, place)

    def _find(self, lines: Mapping[int | None, _TimeLine], place: Place) -> Any:
        line = lines.get(self._threads[place.thread][0])
        return None if line is None else line.value_at(place.at)

    def spans_around(self, index: int) -> Iterator[int]:
        """Yield a span, the one around it, and so on; nothing for -1."""
        while index >= 0:
            yield index
            index = self.parents[index]

    def is_wrapper(self, index: int) -> bool:
        """Return whether autograd's engine runs a node in this span; hooks, and so perfctl's
        ranges, run inside it."""
        return self.spans[index].name.startswith(ENGINE)

    def assume(self, steps: Sequence[tuple[int, int, int]]) -> None:
        """Take (begin, end, number) of steps that no range names: what runs then on any thread is
        of them."""
        if steps:
            self._steps = dict.fromkeys((process for process, _ in self._threads), _TimeLine(steps))

    def _sweep(self, events: Events, probes: list[Place]) -> None:
        threads: list[list[tuple[int, int, int, int]]] = [[] for _ in events.threads]
        for index, span in enumerate(self.spans):
            end = span.start if span.end is None else span.end
            threads[span.thread].append((span.start, -end, span.external, index))
        for number, (thread, at, _) in enumerate(events.memory):
            threads[thread].append((at, _LAST, 0, number))
        for number, place in enumerate(probes):
            threads[place.thread].append((place.at, _LAST, 1, number))
        self.probed = [-1] * len(probes)
        for items in threads:
            items.sort()
            self._sweep_thread(items, events)
            items.clear()
        for index in reversed(self.order):
            if self.parents[index] >= 0:
                self.memory[self.parents[index]] += self.memory[index]

    def _sweep_thread(self, items: list[tuple[int, int, int, int]], events: Events) -> None:
        stack: list[tuple[int, int]] = []  # (end, span), outermost first
        tangled = False  # some span on the stack outlives one below it
        for start, minus_end, what, index in items:
            while stack and stack[-1][0] <= start:
                stack.pop()
            if not stack:
                tangled = False
            elif tangled:
                stack = [entry for entry in stack if entry[0] > start]
            if minus_end == _LAST:
                inside = stack[-1][1] if stack else -1
                if what:
                    self.probed[index] = inside
                elif inside >= 0:
                    self.memory[inside] += events.memory[index][2]
                continue
            end = -minus_end
            around = stack[-1:]
            if stack and (tangled or stack[-1][0] + self._slack < end):
                tangled = True
                around = [entry for entry in stack if entry[0] + self._slack >= end]
            self._place(index, around, tangled)
            if end > start:
                stack.append((end, index))

    def _place(self, index: int, around: list[tuple[int, int]], tangled: bool) -> None:
        self.order.append(index)
        context = NOWHERE
        if tangled:
            for _, outer in around:
                context = self._inner(context, outer)
        elif around:
            context = self.contexts[around[0][1]]
        if around:
            self.parents[index] = around[-1][1]
        if self.spans[index].is_range:
            self.outside[index] = context
            context = self._inner(context, index)
        self.contexts[index] = context

    def _inner(self, context: Context, index: int) -> Context:
        """``context`` as it is inside span ``index``."""
        own = self.meanings.get(index)
        if own is None:
            return context
        layer = own if own.layer is not None else context
        step = own.step if own.step is not None else context.step
        named = (layer.layer, layer.direction, step, own.phase or context.phase)
        return Context(*named, own.range_number, context.depth + 1, layer.source)

    def _time_lines(self, what: str) -> dict[int | None, _TimeLine]:
        """Return process -> its steps or phases."""
        stretches: defaultdict[int | None, list[tuple[int, int, Any]]] = defaultdict(list)
        for index, meaning in self.meanings.items():
            span, value = self.spans[index], meaning.step if what == "step" else meaning.phase
            if value is not None and span.end is not None:
                process = self._threads[span.thread][0]
                stretches[process].append((span.start, span.end, value))
        return {process: _TimeLine(times) for process, times in stretches.items()}


def read_ranges(
    spans: list[Span], served: Mapping[int, ServedStep] = MappingProxyType({})
) -> dict[int, Context]:
    """Return position of each range -> what its name says.

    ProfilerStep#N and torch's own Optimizer.step#... count only where there is no perfctl:step,
    ProfilerStep#N only where no range is a step of a server (``served``); modules only where no
    range names a layer, and parts of a pipeline's blocks only where there are no modules either.
    """
    ranges = [(index, span.name) for index, span in enumerate(spans) if span.is_range]
    names = {name: read_range_name(name) for _, name in ranges}
    own_steps = any(name.step is not None for name in names.values())
    own_layers = any(name.layer is not None for name in names.values())
    modules = {} if own_layers else module_paths(spans)
    parts = {} if own_layers or modules else _pipeline_parts(names)
    meanings = {}
    for number, (index, text) in enumerate(ranges):
        name = names[text]
        if index in served:
            name = name._replace(step=served[index].number, phase=served[index].phase)
        elif not own_steps and not served and (match := PROFILER_STEP.match(text)):
            name = name._replace(step=int(match[1]))
        if not own_steps and text.startswith(OPTIMIZER):
            name = name._replace(phase="optimizer")
        source = "range" if name.layer is not None else None
        if text in parts:
            layer, direction = parts[text]
            name, source = name._replace(layer=layer, direction=direction), "operation"
        if text in modules:
            name, source = name._replace(layer=modules[text], direction="forward"), "operation"
        meanings[index] = Context(*name, number, 0, source)
    return meanings


def _pipeline_parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return name of a range -> part and direction, of those parts that have a forward pass and
    another: attn(F) beside attn(B)."""
    read = {name: (match[1], match[2]) for name in names if (match := _PIPELINE.match(name))}
    passes = set(read.values())
    return {
        name: (part, _PASSES[letter])
        for name, (part, letter) in read.items()
        if (part, "F") in passes and {(part, "B"), (part, "W")} & passes
    }


def served_steps(spans: Sequence[Span]) -> dict[int, ServedStep]:
    """Position of each range that is a step of a server -> the step, numbered in order of time.

    Empty where perfctl's own ranges name steps. Of one in another the outer counts, completed with
    what only the inner says: SGLang's own name lies in AMD's.
    """
    meanings = {name: read_served(name) for name in {span.name for span in spans if span.is_range}}
    if any(read_range_name(name).step is not None for name in meanings):
        return {}
    ranges = sorted(
        (span.thread, span.start, -(span.end or span.start), index, step)
        for index, span in enumerate(spans)
        if span.is_range and (step := meanings[span.name]) is not None
    )
    outer: list[tuple[int, int, ServedStep]] = []  # (start, span, step)
    outer_thread, outer_end = -1, 0
    for thread, start, minus_end, index, step in ranges:
        if thread != outer_thread or start >= outer_end:
            outer_thread, outer_end = thread, -minus_end
            outer.append((start, index, step))
            continue
        outer_start, outer_index, known = outer[-1]
        if step.phase == known.phase:
            more = {
                name: value
                for name, value in step._asdict().items()
                if getattr(known, name) is None
            }
            outer[-1] = outer_start, outer_index, known._replace(**more)
    return {
        index: step._replace(number=number) for number, (_, index, step) in enumerate(sorted(outer))
    }


def module_paths(spans: list[Span]) -> dict[str, str]:
    """Return names of module calls -> where the module was first called: nn.Module: Conv2d_3 ->
    BasicBlock_1.Conv2d_3.

    A trace knows classes and which instance of a class it is, not attribute names. Like the paths
    of perfctl's own ranges these begin below the outermost module, which itself goes by its name.
    """
    calls = sorted(
        (s.thread, s.start, -(s.end or s.start), s.name) for s in spans if s.name.startswith(MODULE)
    )
    paths: dict[str, str] = {}
    stack: list[tuple[int, int, str]] = []
    for thread, start, minus_end, name in calls:
        while stack and (stack[-1][0] != thread or stack[-1][1] <= start):
            stack.pop()
        own = name.removeprefix(MODULE).replace(":", ".")
        above = [stack[-1][2]] if len(stack) > 1 else []
        paths.setdefault(name, ".".join([*above, own]))
        stack.append((thread, -minus_end, paths[name]))
    return paths


def assign_layers(events: Events, nesting: Nesting) -> None:
    """Assign layers to backward operations outside all layer ranges, and to everything inside
    these operations."""
    nodes = _owners_of_nodes(events, nesting)
    # with hooks, only the node itself has the number, not the engine's wrapper of it (torch 2.x)
    wrapped = {
        parent: owner
        for index, owner in nodes.items()
        if (parent := nesting.parents[index]) >= 0 and nesting.is_wrapper(parent)
    }
    callers, wrappers = _owners_of_callers(events, nesting), _owners_of_wrappers(nesting)
    owners = {**callers, **wrapped, **wrappers, **nodes}
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    contexts, inside = nesting.contexts, [False] * len(events.spans)
    inherited: dict[int, Owner] = {}
    for index in nesting.order:
        parent = nesting.parents[index]
        inside[index] = index in backward or (parent >= 0 and inside[parent])
        context = contexts[index]
        if context.layer is None:
            owner = owners.get(index) or inherited.get(parent)
            if owner is not None:
                inherited[index] = layer, direction, source = owner
                contexts[index] = context._replace(layer=layer, direction=direction, source=source)
        elif inside[index] and context.direction == "forward" and context.source == "operation":
            # a module called again: checkpointing
            contexts[index] = context._replace(direction="recompute")


def _owners_of_nodes(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """Return backward operation -> the layer of the forward operation that made its node."""
    makers: defaultdict[tuple[int | None, int], dict[int, int]] = defaultdict(dict)
    """(process, sequence number) -> thread -> the last forward operation with the number."""
    for index, number, is_backward in events.sequences:
        if not is_backward:
            span = events.spans[index]
            by_thread = makers[events.threads[span.thread][0], number]
            if events.spans[by_thread.get(span.thread, index)].start <= span.start:
                by_thread[span.thread] = index
    owners = {}
    for index, number, is_backward in events.sequences:
        if is_backward:
            process = events.threads[events.spans[index].thread][0]
            by_thread = makers.get((process, number), {})
            layers = {nesting.contexts[maker].layer for maker in by_thread.values()}
            # every thread counts its own sequence numbers, so threads may disagree
            if len(layers) == 1 and (layer := layers.pop()) is not None:
                owners[index] = (layer, "backward", "operation")
    return owners


def _owners_of_callers(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """Return the engine's wrapper on a thread of its own -> the backward range that another thread
    has open all the while.

    backward() holds its thread until the engine's threads are done (torch/csrc/autograd/engine.cpp,
    Engine::execute), so what they run is of the range around the call. Only where one thread of the
    process is inside a layer's range meanwhile.
    """
    ranges_of_threads: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    has_backward = False
    for index, meaning in nesting.meanings.items():
        span = events.spans[index]
        if meaning.layer is not None and span.end is not None:
            ranges_of_threads[span.thread].append((span.start, index))
            has_backward |= (meaning.direction or "forward") != "forward"
    if not has_backward:
        return {}
    for ranges in ranges_of_threads.values():
        ranges.sort()
    owners: dict[int, Owner] = {}
    for index, span in enumerate(events.spans):
        is_free = span.end is not None and nesting.contexts[index].layer is None
        if not is_free or not nesting.is_wrapper(index):
            continue
        process = events.threads[span.thread][0]
        around = [
            nesting.contexts[range_index]
            for thread, ranges in ranges_of_threads.items()
            if thread != span.thread
            and events.threads[thread][0] == process
            and (range_index := _find_open_range(nesting, ranges, span)) is not None
        ]
        if len(around) == 1 and around[0].layer:
            direction = around[0].direction or "forward"
            if direction != "forward":
                owners[index] = (around[0].layer, direction, "operation")
    return owners


def _find_open_range(nesting: Nesting, ranges: Sequence[tuple[int, int]], span: Span) -> int | None:
    """Return the innermost of one thread's ``ranges``, (start, position) in order, that is open
    from the start of ``span`` to its end."""
    number = bisect_right(ranges, span.start, key=_start) - 1
    for index in nesting.spans_around(ranges[number][1] if number >= 0 else -1):
        end, meaning = nesting.spans[index].end, nesting.meanings.get(index)
        is_layer = meaning is not None and meaning.layer is not None
        if is_layer and end is not None and end >= (span.end or span.start):
            return index
    return None


def _owners_of_wrappers(nesting: Nesting) -> dict[int, Owner]:
    """Return the engine's wrapper -> the one layer whose ranges lie inside of it."""
    inside: defaultdict[int, set[Owner]] = defaultdict(set)
    for index, outside in nesting.outside.items():
        context = nesting.contexts[index]
        if outside.layer is None and context.layer is not None:
            around = nesting.spans_around(nesting.parents[index])
            wrapper = next(filter(nesting.is_wrapper, around), None)
            if wrapper is not None:
                owner = context.layer, context.direction or "", context.source or ""
                inside[wrapper].add(owner)
    return {wrapper: owners.pop() for wrapper, owners in inside.items() if len(owners) == 1}


def assign_operators(
    events: Events, nesting: Nesting, launchers: Sequence[int] | None, *, by_step: bool = True
) -> Operators:
    """Assign layers to backward work and rows to operators outside of layers; return the
    operators' shapes.

    ``launchers``: spans that launched the kernels, -1 for none; None where the trace has no
    kernels. Without ``by_step`` the shapes are those of all calls together.

    Nothing is collected from a trace of perfctl's own ranges, whose shapes perfctl recorded, nor
    from one without shapes.
    """
    own = any(context.source == "range" for context in nesting.meanings.values())
    if own or all(call is None for call in events.operators.values()):
        assign_layers(events, nesting)
        if own or not events.operators or launchers is None:
            return Operators()
        reason = (
            f"{len(events.operators)} operators that multiply have no shapes: record with "
            "record_shapes=True"
        )
        return Operators(gaps=(Gap("op_shape", "not_collected", reason),))
    names = [span.name for span in events.spans]
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    rows = OperatorRows(names, nesting.parents, nesting.order, events.operators, backward)
    contexts = nesting.contexts

    def assign_rows(direction: str, *, inside: bool) -> None:
        def is_free(index: int) -> bool:
            context = contexts[index]
            is_outside = context.layer is None and context.phase != "optimizer"
            return is_outside and rows.inside[index] == inside

        for index, owner in enumerate(rows.owners):
            if owner >= 0 and is_free(index):
                contexts[index] = contexts[index]._replace(
                    layer=rows.labels[owner], direction=direction, source="operation"
                )

    assign_rows("forward", inside=False)
    assign_layers(events, nesting)
    assign_rows("backward", inside=True)
    for index in rows.find_recomputed():
        if contexts[index].layer is not None:
            contexts[index] = contexts[index]._replace(direction="recompute")

    def find_row(index: int) -> tuple[Row, int | None]:
        context, span = contexts[index], events.spans[index]
        step = nesting.step_at(context, Place(span.thread, span.start))
        return Row(context.layer, context.direction, context.phase == "optimizer"), step

    steps = {meaning.step for meaning in nesting.meanings.values() if meaning.step is not None}
    return rows.collect(find_row, steps if by_step else (), launchers)
