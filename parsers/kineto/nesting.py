"""Finds which span encloses which on each thread of a trace, and the layer, step and phase
of each."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from perfctl.parsers.kineto.events import MODULE, OPTIMIZER, PROFILER_STEP, Events, Place, Span
from perfctl.records.ranges import read_range_name
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

_WRAPPER = "autograd::engine::evaluate_function: "
"""Wrapper of autograd's engine around a node; hooks, and so perfctl's ranges, run inside it."""

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

    def step_and_phase(self, context: Context, place: Place) -> tuple[int | None, str | None]:
        """Step and phase at a time with ``context``; by time alone on threads without such ranges
        (autograd's)."""
        process = self._threads[place.thread][0]
        step = (
            context.step
            if context.step is not None
            else _at(self._steps.get(process, ()), place.at)
        )
        return step, context.phase if context.phase is not None else _at(
            self._phases.get(process, ()), place.at
        )

    def assume(self, steps: Sequence[tuple[int, int, int]]) -> None:
        """(begin, end, number) of steps that no range names, in order of time: what runs then on
        any thread is of them."""
        if steps:
            self._steps = {process: list(steps) for process, _ in self._threads}

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

    def _time_lines(self, what: str) -> dict[int | None, list[tuple[int, int, Any]]]:
        """Process -> (start, end, value) of each step or phase, in order of time."""
        found: dict[int | None, list[tuple[int, int, Any]]] = {}
        for index, meaning in self.meanings.items():
            span, value = self.spans[index], getattr(meaning, what)
            if value is not None and span.end is not None:
                found.setdefault(self._threads[span.thread][0], []).append(
                    (span.start, span.end, value)
                )
        return {process: sorted(times, key=_start) for process, times in found.items()}


def _at(times: Sequence[tuple[int, int, Any]], moment: int) -> Any:
    """The value at a time; None between two and outside of all."""
    number = bisect_right(times, moment, key=_start) - 1
    return times[number][2] if number >= 0 and moment < times[number][1] else None


def read_ranges(
    spans: list[Span], served: Mapping[int, ServedStep] = MappingProxyType({})
) -> dict[int, Context]:
    """Position of each range -> what its name says.

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
    found = {}
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
        found[index] = Context(*name, number, 0, source)
    return found


def _pipeline_parts(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Name of a range -> part and direction, of those parts that have a forward pass and another:
    attn(F) beside attn(B)."""
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
    read = {name: read_served(name) for name in {span.name for span in spans if span.is_range}}
    if any(read_range_name(name).step is not None for name in read):
        return {}
    named = [
        (span.thread, span.start, -(span.end or span.start), index)
        for index, span in enumerate(spans)
        if span.is_range and read[span.name] is not None
    ]
    outer: list[tuple[int, int, ServedStep]] = []  # (start, span, step)
    thread, end = -1, 0
    for mine, start, minus_end, index in sorted(named):
        step = read[spans[index].name]
        assert step is not None
        if mine == thread and start < end:
            begun, above, known = outer[-1]
            told = {
                field: own for field, own in step._asdict().items() if getattr(known, field) is None
            }
            outer[-1] = begun, above, known._replace(**told) if step.phase == known.phase else known
            continue
        thread, end = mine, -minus_end
        outer.append((start, index, step))
    return {
        index: step._replace(number=number) for number, (_, index, step) in enumerate(sorted(outer))
    }


def module_paths(spans: list[Span]) -> dict[str, str]:
    """Names of module calls -> where the module was first called: nn.Module: Conv2d_3 ->
    BasicBlock_1.Conv2d_3.

    A trace knows classes and which instance of a class it is, not attribute names. Like the paths
    of perfctl's own ranges these begin below the outermost module, which itself goes by its name.
    """
    calls = sorted(
        (s.thread, s.start, -(s.end or s.start), s.name) for s in spans if s.name.startswith(MODULE)
    )
    found: dict[str, str] = {}
    stack: list[tuple[int, int, str]] = []
    for thread, start, minus_end, name in calls:
        while stack and (stack[-1][0] != thread or stack[-1][1] <= start):
            stack.pop()
        own = name.removeprefix(MODULE).replace(":", ".")
        above = [stack[-1][2]] if len(stack) > 1 else []
        found.setdefault(name, ".".join([*above, own]))
        stack.append((thread, -minus_end, found[name]))
    return found


def assign_layers(events: Events, nesting: Nesting) -> None:
    """Assign layers to backward operations outside all layer ranges, and to everything inside
    these operations."""
    nodes, callers = _of_nodes(events, nesting), _of_callers(events, nesting)
    around = {nesting.parents[index]: owner for index, owner in nodes.items()}
    # with hooks, only the node itself has the number, not the engine's wrapper of it (torch 2.x)
    wrapped = {
        index: owner for index, owner in around.items() if index >= 0 and _is_wrapper(events, index)
    }
    owners = {**callers, **wrapped, **_of_wrappers(events, nesting), **nodes}
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    contexts, inside = nesting.contexts, [False] * len(events.spans)
    given: dict[int, Owner] = {}
    for index in nesting.order:
        parent = nesting.parents[index]
        inside[index] = index in backward or (parent >= 0 and inside[parent])
        context = contexts[index]
        if context.layer is None:
            owner = owners.get(index) or given.get(parent)
            if owner is not None:
                given[index] = layer, direction, source = owner
                contexts[index] = context._replace(layer=layer, direction=direction, source=source)
        elif inside[index] and context.direction == "forward" and context.source == "operation":
            # a module called again: checkpointing
            contexts[index] = context._replace(direction="recompute")


def _of_nodes(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """Backward operation -> the layer of the forward operation that made its node."""
    made_by: dict[tuple[int | None, int], dict[int, int]] = {}
    for index, number, is_backward in events.sequences:
        if is_backward:
            continue
        span = events.spans[index]
        by_thread = made_by.setdefault((events.threads[span.thread][0], number), {})
        if events.spans[by_thread.get(span.thread, index)].start <= span.start:
            by_thread[span.thread] = index
    found = {}
    for index, number, is_backward in events.sequences:
        if not is_backward:
            continue
        process = events.threads[events.spans[index].thread][0]
        layers = {
            nesting.contexts[maker].layer for maker in made_by.get((process, number), {}).values()
        }
        # every thread counts its own sequence numbers, so threads may disagree
        if len(layers) == 1 and (layer := layers.pop()) is not None:
            found[index] = (layer, "backward", "operation")
    return found


def _of_callers(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """The engine's wrapper on a thread of its own -> the backward range that another thread has
    open all the while.

    backward() holds its thread until the engine's threads are done (torch/csrc/autograd/engine.cpp,
    Engine::execute), so what they run is of the range around the call. Only where one thread of the
    process is inside a layer's range meanwhile.
    """
    named: dict[int, list[tuple[int, int]]] = {}
    for index, meaning in nesting.meanings.items():
        if meaning.layer is not None and events.spans[index].end is not None:
            named.setdefault(events.spans[index].thread, []).append(
                (events.spans[index].start, index)
            )
    if not any(
        (nesting.meanings[index].direction or "forward") != "forward"
        for mine in named.values()
        for _, index in mine
    ):
        return {}
    for mine in named.values():
        mine.sort()
    found: dict[int, Owner] = {}
    for index, span in enumerate(events.spans):
        if (
            span.end is None
            or nesting.contexts[index].layer is not None
            or not _is_wrapper(events, index)
        ):
            continue
        process = events.threads[span.thread][0]
        around = [
            nesting.contexts[place]
            for thread, mine in named.items()
            if thread != span.thread
            and events.threads[thread][0] == process
            and (place := _open(events, nesting, mine, span)) is not None
        ]
        if (
            len(around) == 1
            and around[0].layer
            and (direction := around[0].direction or "forward") != "forward"
        ):
            found[index] = (around[0].layer, direction, "operation")
    return found


def _open(
    events: Events, nesting: Nesting, ranges: Sequence[tuple[int, int]], span: Span
) -> int | None:
    """The innermost of one thread's ``ranges``, (start, position) in order, that is open from the
    start of ``span`` to its end."""
    at = bisect_right(ranges, span.start, key=_start) - 1
    place = ranges[at][1] if at >= 0 else -1
    while place >= 0:
        end = events.spans[place].end
        own = nesting.meanings.get(place)
        if (
            own is not None
            and own.layer is not None
            and end is not None
            and end >= (span.end or span.start)
        ):
            return place
        place = nesting.parents[place]
    return None


def _is_wrapper(events: Events, index: int) -> bool:
    return events.spans[index].name.startswith(_WRAPPER)


def _of_wrappers(events: Events, nesting: Nesting) -> dict[int, Owner]:
    """The engine's wrapper -> the one layer whose ranges lie inside of it."""
    inside: dict[int, set[Owner]] = {}
    for index, outside in nesting.outside.items():
        context, around = nesting.contexts[index], nesting.parents[index]
        while around >= 0 and not _is_wrapper(events, around):
            around = nesting.parents[around]
        if around >= 0 and outside.layer is None and context.layer is not None:
            inside.setdefault(around, set()).add(
                (context.layer, context.direction or "", context.source or "")
            )
    return {wrapper: owners.pop() for wrapper, owners in inside.items() if len(owners) == 1}
