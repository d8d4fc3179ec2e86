"""Finds which span encloses which on each thread of a trace, and the layer, step and phase
of each."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from perfctl.parsers.kineto.events import (
    MODULE,
    OPTIMIZER,
    PROFILER_STEP,
    SortedEvents,
    Span,
    ThreadTime,
)
from perfctl.parsers.operators import ENGINE, OperatorRow, OperatorRows, OperatorShapes
from perfctl.records.ranges import parse_range_name
from perfctl.records.report import Gap
from perfctl.records.served_names import parse_served_step_name
from perfctl.records.serving import ServedStep

WHOLE_MICROSECOND_SLACK = 2000
"""ns. Start and duration were cut to whole microseconds: a parent can seem to end that much before
its child."""
_PIPELINE = re.compile(r"([A-Za-z_]\w*)\(([FBW])\)\Z")
_PASSES = {"F": "forward", "B": "grad_input", "W": "grad_weight"}
"""Parts of a block as schedules of pipelines write them (DualPipe): attn(F), attn(B) for the
input's gradient, attn(W)."""
_LAST = 1 << 64

Owner = tuple[str | None, str | None, str | None]
"""(layer, direction, source)."""
Stretch = tuple[int, int, Any]
"""(begin, end, value): the value holds from begin until before the end."""


class SpanContext(NamedTuple):
    """Layer, step and phase of the ranges around a time, or the contents of one range's name."""

    layer: str | None = None
    direction: str | None = None
    step: int | None = None
    phase: str | None = None
    range_number: int | None = None
    """The range, or the innermost one, counted in the order of the file."""
    depth: int = 0
    """How many ranges enclose it; 0 for a name."""
    source: str | None = None
    """How the layer was found: Kernel.layer_source."""


NOWHERE = SpanContext()


class SpanNesting:
    """Parents and contexts of all spans of ``events``, by their position in ``events.spans``."""

    def __init__(self, events: SortedEvents) -> None:
        self.spans = events.spans
        self.parents = [-1] * len(self.spans)
        self.order: list[int] = []
        """Positions of the spans, every parent before its children."""
        self._crossed: dict[int, list[int]] = {}
        """Span -> those around it, outermost first, where some of them cross."""
        self._threads = events.threads
        self._slack = WHOLE_MICROSECOND_SLACK if events.whole_microseconds else 1
        self._timelines = self._find_all_parents()
        self.memory = [0] * len(self.spans)
        """Net bytes allocated inside each span and its children, host and device together."""
        for thread, moment, size in events.memory:
            for index in self.iterate_enclosing_spans(self.find_innermost_span(thread, moment)):
                self.memory[index] += size
        self.served: dict[int, ServedStep] = {}
        """The ranges that are steps of a server, by position."""
        self.meanings = self._interpret_range_names()
        """Position of each range, in the order of the file -> contents of its name."""
        self.contexts = [NOWHERE] * len(self.spans)
        self.outside: dict[int, SpanContext] = {}
        """For each range, the context without itself."""
        self._compute_contexts()
        self._stretches: defaultdict[tuple[str, int | None], list[Stretch]] = defaultdict(list)
        """("step" or "phase", process) -> when each was, in order."""
        for index, meaning in self.meanings.items():
            span = self.spans[index]
            for mark, value in (("step", meaning.step), ("phase", meaning.phase)):
                if value is not None and span.end is not None:
                    stretches = self._stretches[mark, self._threads[span.thread][0]]
                    stretches.append((span.start, span.end, value))
        for stretches in self._stretches.values():
            stretches.sort(key=itemgetter(0))

    def find_innermost_span(self, thread: int, moment: int) -> int:
        """Return the innermost span of a thread that runs at a time; -1 for none."""
        starts, spans = self._timelines[thread]
        number = bisect_right(starts, moment) - 1
        index = spans[number] if number >= 0 else -1
        while index >= 0 and ((end := self.spans[index].end) is None or end <= moment):
            index = self.parents[index]
        return index

    def iterate_enclosing_spans(self, index: int) -> Iterator[int]:
        """Yield a span, the one around it, and so on; nothing for -1."""
        while index >= 0:
            yield index
            index = self.parents[index]

    def is_autograd_wrapper(self, index: int) -> bool:
        """Return whether autograd's engine runs a node in this span; hooks, and so perfctl's
        ranges, run inside it."""
        return index >= 0 and self.spans[index].name.startswith(ENGINE)

    def add_inferred_steps(self, steps: list[Stretch]) -> None:
        """Take (begin, end, number) of steps that no range names: what runs then on any thread is
        of them."""
        for process, _ in self._threads if steps else ():
            self._stretches["step", process] = steps

    def find_step_or_phase(self, mark: str, context: SpanContext, origin: ThreadTime) -> Any:
        """Return the "step" or "phase" at a time with ``context``; by time alone on threads without
        such ranges (autograd's)."""
        if (value := getattr(context, mark)) is not None:
            return value
        stretches = self._stretches.get((mark, self._threads[origin.thread][0]), [])
        number = bisect_right(stretches, (origin.at, _LAST)) - 1
        is_inside = number >= 0 and origin.at < stretches[number][1]
        return stretches[number][2] if is_inside else None

    def _find_all_parents(self) -> list[tuple[list[int], list[int]]]:
        """Find all parents; return start and position of the spans of each thread, in order."""
        threads: list[list[tuple[int, int, int, int]]] = [[] for _ in self._threads]
        for index, span in enumerate(self.spans):
            end = span.start if span.end is None else span.end
            threads[span.thread].append((span.start, -end, span.external, index))
        timelines = []
        for items in threads:
            items.sort()
            self._find_parents_on_thread(items)
            timelines.append(([item[0] for item in items], [item[3] for item in items]))
            self.order += timelines[-1][1]
            items.clear()
        return timelines

    def _find_parents_on_thread(self, items: Iterable[tuple[int, int, int, int]]) -> None:
        stack: list[tuple[int, int]] = []  # (end, span), outermost first
        tangled = False  # some span on the stack outlives one below it
        for start, minus_end, _, index in items:
            end = -minus_end
            while stack and stack[-1][0] <= start:
                stack.pop()
            tangled = bool(stack) and (tangled or stack[-1][0] + self._slack < end)
            if tangled:
                stack = [entry for entry in stack if entry[0] > start]
                enclosing = [outer for outer_end, outer in stack if outer_end + self._slack >= end]
                self._crossed[index] = enclosing
                self.parents[index] = enclosing[-1] if enclosing else -1
            elif stack:
                self.parents[index] = stack[-1][1]
            if end > start:
                stack.append((end, index))

    def _compute_contexts(self) -> None:
        contexts = self.contexts
        for index in self.order:
            parent = self.parents[index]
            context = contexts[parent] if parent >= 0 else NOWHERE
            if index in self._crossed:
                context = NOWHERE
                for outer in self._crossed[index]:
                    context = self._enter_range_context(context, outer)
            if self.spans[index].is_range:
                self.outside[index] = context
                context = self._enter_range_context(context, index)
            contexts[index] = context

    def _enter_range_context(self, context: SpanContext, index: int) -> SpanContext:
        """Return ``context`` as it is inside span ``index``."""
        meaning = self.meanings.get(index)
        if meaning is None:
            return context
        layer = meaning if meaning.layer is not None else context
        step = meaning.step if meaning.step is not None else context.step
        inner = (layer.layer, layer.direction, step, meaning.phase or context.phase)
        return SpanContext(*inner, meaning.range_number, context.depth + 1, layer.source)

    def _interpret_range_names(self) -> dict[int, SpanContext]:
        """Return the meaning of each range. ProfilerStep#N and torch's own Optimizer.step#... count
        only where there is no perfctl:step, ProfilerStep#N only where no range is a step of a
        server; modules only where no range names a layer, and parts of a pipeline's blocks only
        where there are no modules either."""
        ranges = [index for index, span in enumerate(self.spans) if span.is_range]
        texts = dict.fromkeys(self.spans[index].name for index in ranges)
        names = {text: parse_range_name(text) for text in texts}
        has_steps = any(name.step is not None for name in names.values())
        if not has_steps:
            self.served = self._find_served_steps(texts)
        operations: dict[str, tuple[str, str]] = {}
        if all(name.layer is None for name in names.values()):
            operations = self._map_module_calls_to_paths() or _find_pipeline_block_passes(names)
        meanings = {}
        for text, (layer, direction, step, phase) in names.items():
            source = "range" if layer is not None else None
            if text in operations:
                (layer, direction), source = operations[text], "operation"
            if not has_steps and text.startswith(OPTIMIZER):
                phase = "optimizer"
            if not has_steps and not self.served and (match := PROFILER_STEP.match(text)):
                step = int(match[1])
            meanings[text] = SpanContext(layer, direction, step, phase, source=source)
        by_range = {}
        for number, index in enumerate(ranges):
            meaning = meanings[self.spans[index].name]
            if (served := self.served.get(index)) is not None:
                meaning = meaning._replace(step=served.number, phase=served.phase)
            by_range[index] = meaning._replace(range_number=number)
        return by_range

    def _find_served_steps(self, names: Iterable[str]) -> dict[int, ServedStep]:
        """Return position of each range that is a step of a server -> the step, numbered in order
        of time. If one lies in another, the outer counts, with the numbers that only the inner one
        names: SGLang's own name lies in AMD's."""
        steps = {name: step for name in names if (step := parse_served_step_name(name)) is not None}
        served: dict[int, ServedStep] = {}
        for index in self.order if steps else ():
            span = self.spans[index]
            step = steps.get(span.name) if span.is_range else None
            if step is None:
                continue
            outer_spans = self.iterate_enclosing_spans(self.parents[index])
            outer = next((outer for outer in outer_spans if outer in served), index)
            outer_step = served.setdefault(outer, step)
            if step.phase == outer_step.phase:
                both = zip(outer_step, step, strict=True)
                served[outer] = ServedStep._make(a if a is not None else b for a, b in both)
        in_time = sorted(served, key=lambda index: (self.spans[index].start, index))
        return {
            index: served[index]._replace(number=number) for number, index in enumerate(in_time)
        }

    def _map_module_calls_to_paths(self) -> dict[str, tuple[str, str]]:
        """Return names of module calls -> where the module was first called, and its direction:
        nn.Module: Conv2d_3 -> BasicBlock_1.Conv2d_3.

        A trace knows classes and which instance of a class it is, not attribute names. Like the
        paths of perfctl's own ranges these begin below the outermost module, which itself goes by
        its name.
        """
        modules: dict[str, tuple[str, str]] = {}
        for index in self.order:
            name = self.spans[index].name
            if not name.startswith(MODULE) or name in modules:
                continue
            outer_names = [
                self.spans[outer].name
                for outer in self.iterate_enclosing_spans(self.parents[index])
            ]
            above = [modules[outer][0] for outer in outer_names if outer in modules]
            path = name.removeprefix(MODULE).replace(":", ".")
            modules[name] = f"{above[0]}.{path}" if len(above) > 1 else path, "forward"
        return modules


def _find_pipeline_block_passes(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return name of a range -> part and direction, of those parts that have a forward pass and
    another: attn(F) and attn(B)."""
    read = {name: (match[1], match[2]) for name in names if (match := _PIPELINE.match(name))}
    passes = set(read.values())
    return {
        name: (part, _PASSES[letter])
        for name, (part, letter) in read.items()
        if (part, "F") in passes and {(part, "B"), (part, "W")} & passes
    }


def assign_layers_to_backward(events: SortedEvents, nesting: SpanNesting) -> None:
    """Assign layers to backward operations outside all layer ranges, and to everything inside
    these operations."""
    nodes = _find_backward_layers_by_sequence_number(events, nesting)
    owners = _find_backward_layers_by_open_range(events, nesting)
    # with hooks, only the node itself has the number, not the engine's wrapper of it (torch 2.x)
    for index, node_owner in nodes.items():
        if nesting.is_autograd_wrapper(nesting.parents[index]):
            owners[nesting.parents[index]] = node_owner
    owners |= _find_autograd_wrapper_layers(nesting) | nodes
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


def _find_backward_layers_by_sequence_number(
    events: SortedEvents, nesting: SpanNesting
) -> dict[int, Owner]:
    """Return backward operation -> the layer of the forward operation that made its node."""
    makers: defaultdict[tuple[int | None, int], dict[int, str | None]] = defaultdict(dict)
    """(process, sequence number) -> thread -> layer of its last forward operation with the
    number."""
    nodes = {}
    for index, number, is_backward in sorted(
        events.sequences, key=lambda sequence: events.spans[sequence[0]].start
    ):
        thread = events.spans[index].thread
        key = events.threads[thread][0], number
        if is_backward:
            nodes[index] = key
        else:
            makers[key][thread] = nesting.contexts[index].layer
    owners: dict[int, Owner] = {}
    for index, key in nodes.items():
        # every thread counts its own sequence numbers, so threads may disagree
        layers = set(makers.get(key, {}).values())
        if len(layers) == 1 and (layer := layers.pop()) is not None:
            owners[index] = (layer, "backward", "operation")
    return owners


def _find_backward_layers_by_open_range(
    events: SortedEvents, nesting: SpanNesting
) -> dict[int, Owner]:
    """Return the engine's wrapper on a thread of its own -> the backward range that another thread
    has open all the while.

    backward() holds its thread until the engine's threads are done (torch/csrc/autograd/engine.cpp,
    Engine::execute), so what they run is of the range around the call. Only where one thread of the
    process is inside a layer's range meanwhile.
    """
    layers = {
        index: meaning for index, meaning in nesting.meanings.items() if meaning.layer is not None
    }
    if all(meaning.direction in (None, "forward") for meaning in layers.values()):
        return {}
    threads = {events.spans[index].thread for index in layers}
    owners: dict[int, Owner] = {}
    for index, span in enumerate(events.spans):
        is_free = span.end is not None and nesting.contexts[index].layer is None
        if not is_free or not nesting.is_autograd_wrapper(index):
            continue
        process = events.threads[span.thread][0]
        open_layers = [
            layer
            for thread in threads - {span.thread}
            if events.threads[thread][0] == process
            and (layer := _find_layer_range_open_during_span(nesting, thread, span)) is not None
        ]
        if len(open_layers) == 1 and open_layers[0].direction not in (None, "forward"):
            owners[index] = (open_layers[0].layer, open_layers[0].direction, "operation")
    return owners


def _find_layer_range_open_during_span(
    nesting: SpanNesting, thread: int, span: Span
) -> SpanContext | None:
    """Return the innermost layer's range of another thread that is open from the start of ``span``
    to its end."""
    for index in nesting.iterate_enclosing_spans(nesting.find_innermost_span(thread, span.start)):
        end, meaning = nesting.spans[index].end, nesting.meanings.get(index)
        is_layer = meaning is not None and meaning.layer is not None
        if is_layer and end is not None and end >= (span.end or span.start):
            return meaning
    return None


def _find_autograd_wrapper_layers(nesting: SpanNesting) -> dict[int, Owner]:
    """Return the engine's wrapper -> the one layer whose ranges lie inside of it."""
    inside: defaultdict[int, set[Owner]] = defaultdict(set)
    for index, outside in nesting.outside.items():
        context = nesting.contexts[index]
        if outside.layer is None and context.layer is not None:
            outer_spans = nesting.iterate_enclosing_spans(nesting.parents[index])
            wrapper = next(filter(nesting.is_autograd_wrapper, outer_spans), None)
            if wrapper is not None:
                inside[wrapper].add((context.layer, context.direction, context.source))
    return {wrapper: owners.pop() for wrapper, owners in inside.items() if len(owners) == 1}


def assign_layers_and_operator_rows(
    events: SortedEvents,
    nesting: SpanNesting,
    launching_spans: Sequence[int] | None,
    *,
    by_step: bool = True,
) -> OperatorShapes:
    """Assign layers to backward work and rows to operators outside of layers; return the
    operators' shapes.

    ``launching_spans``: spans that launched the kernels, -1 for none; None where the trace has no
    kernels. Without ``by_step`` the shapes are those of all calls together.

    Nothing is collected from a trace of perfctl's own ranges, whose shapes perfctl recorded, nor
    from one without shapes.
    """
    has_own_ranges = any(context.source == "range" for context in nesting.meanings.values())
    if has_own_ranges or all(call is None for call in events.operators.values()):
        assign_layers_to_backward(events, nesting)
        if has_own_ranges or not events.operators or launching_spans is None:
            return OperatorShapes()
        reason = (
            f"{len(events.operators)} operators that multiply have no shapes. Record with "
            "record_shapes=True"
        )
        return OperatorShapes(gaps=(Gap("op_shape", "not_collected", reason),))
    names = [span.name for span in events.spans]
    backward = {index for index, _, is_backward in events.sequences if is_backward}
    rows = OperatorRows(names, nesting.parents, nesting.order, events.operators, backward)
    contexts = nesting.contexts

    def assign_operator_rows(direction: str) -> None:
        for index, owner in enumerate(rows.owners):
            # its name says it where a program calls the operator itself, without autograd
            is_backward = rows.inside[index] or (owner >= 0 and names[owner].endswith("_backward"))
            context, side = contexts[index], "backward" if is_backward else "forward"
            is_free = context.layer is None and context.phase != "optimizer"
            if owner >= 0 and is_free and side == direction:
                contexts[index] = context._replace(
                    layer=rows.labels[owner], direction=direction, source="operation"
                )

    assign_operator_rows("forward")
    assign_layers_to_backward(events, nesting)
    assign_operator_rows("backward")
    for index in rows.find_recomputed_spans():
        if contexts[index].layer is not None:
            contexts[index] = contexts[index]._replace(direction="recompute")

    def find_row_and_step(index: int) -> tuple[OperatorRow, int | None]:
        context, span = contexts[index], events.spans[index]
        step = nesting.find_step_or_phase("step", context, ThreadTime(span.thread, span.start))
        return OperatorRow(context.layer, context.direction, context.phase == "optimizer"), step

    steps = {meaning.step for meaning in nesting.meanings.values() if meaning.step is not None}
    return rows.collect_operator_shapes(
        find_row_and_step, steps if by_step else (), launching_spans
    )
