"""Layers of the kernels that a CUDA or HIP graph launched, from the trace in which the graph
was captured.

A graph's launch is one call, so its kernels name no module. While the graph was captured, each of
them had a launch call of its own, in the same order, under the module that made it. Servers record
that in a trace of its own beside the others: ``capture_<size>_<mode>`` ranges, and
``execution_details.json``, which names the file of each size and mode.

A kernel is matched with a launch of the capture by the id of the graph's node where both traces
have it, else by its name and the order within the graph. A capture without names of kernels (CUDA's
runtime calls have none) is matched by order alone, and only where it launched as many kernels as
the graph ran.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from perfctl.parsers.kineto.collect import Collector
from perfctl.parsers.kineto.events import CapturedCall, Events
from perfctl.parsers.kineto.nesting import Context, Nesting
from perfctl.parsers.kineto.operators import assign
from perfctl.parsers.operator_rows import Operators
from perfctl.parsers.text.json import JsonStream
from perfctl.records.errors import ReportError
from perfctl.records.report import Kernel
from perfctl.records.served_names import DETAILS, read_capture
from perfctl.records.serving import GraphLaunch

ORDER_ALONE = 0.5
"""Confidence of a match by order alone, a judgement: nothing but the number of kernels
confirms it."""
ALIKE = 0.5
"""Share of namesakes below which a graph and a capture are held to be different ones,
a judgement."""
LOOKED_AT = 8
"""Files with captures that are read for one trace."""
_FOLDERS = (".", "capture_traces")
_MOST_PAIRS = 4_000_000
"""Kernels times launches up to which sequences are aligned; beyond, names alone are counted."""
_COMPILED_CALL = "## Call CompiledFxGraph"
_GRAPH_MODULE = re.compile(r"(?:^|\.)GraphModule(?:_\d+)?\Z")

_Replay = tuple[int, list[Kernel]]
"""Correlation, its kernels in order of their start."""


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """One graph: the launches between the begin and the end of its capture."""

    calls: tuple[CapturedCall, ...]
    spans: tuple[int, ...]
    """Of each launch, the innermost span around it; -1 for none."""
    names: tuple[str | None, ...]
    """Of the kernels; None where the trace does not say."""


@dataclass(frozen=True, slots=True)
class CaptureSet:
    """The graphs that one step replays: one, or one for each piece of the model."""

    name: str
    size: int | None
    """Sequences or tokens that the step may have; None where no range says."""
    graphs: tuple[CapturedGraph, ...]


@dataclass(slots=True)
class Captures:
    """One trace with captures."""

    path: Path
    events: Events
    nesting: Nesting
    sets: list[CaptureSet] = field(default_factory=list)

    def context(self, span: int) -> Context | None:
        return self.nesting.contexts[span] if span >= 0 else None


class NoCapture(ReportError):
    """A trace in which no graph is captured."""


class Explained(NamedTuple):
    """What the captures say of a trace's kernels."""

    kernels: list[Kernel]
    launches: list[GraphLaunch]
    operators: tuple[Operators, ...] = ()
    """Shapes of the captured operators, with the calls of one step, or of the whole capture."""
    used: tuple[str, ...] = ()
    """Names of the files whose captures matched."""
    problems: tuple[str, ...] = ()


def read(path: Path) -> Captures:
    """Raises ReportError when the file is no such trace, or captures no graph."""
    collector = Collector(op_calls=False, captures=True)
    stream = JsonStream(path, "torch", "traceEvents", collector.take)
    events = collector.run(value for key, value in stream.members() if key == "traceEvents")
    nesting = Nesting(events, [call.place for call in events.captured])
    found = Captures(path, events, nesting)
    _name_compiled_parts(found)
    found.sets = list(_sets(found))
    if not found.sets:
        reason = (
            "it captures no graph: no cudaStreamBeginCapture or hipStreamBeginCapture with "
            "launches behind it"
        )
        todo = (
            "Pass the trace that was recorded while the graphs were captured, or one of the same "
            "steps without graphs"
        )
        raise NoCapture(path, "torch", reason, todo)
    return found


def _sets(found: Captures) -> Iterator[CaptureSet]:
    """The captures in order of time, those inside one ``capture_...`` range together, all
    others together."""
    ranges = sorted(
        (span.start, span.end or span.start, span.name)
        for span in found.events.spans
        if span.is_range and read_capture(span.name) is not None
    )
    spans = dict(zip(map(id, found.events.captured), found.nesting.probed, strict=True))
    calls = sorted(found.events.captured, key=lambda call: call.place.at)
    graphs: list[tuple[str, CapturedGraph]] = []
    open_since: int | None = None
    inside: list[CapturedCall] = []
    for call in calls:
        if call.what == "begin":
            open_since, inside = call.place.at, []
        elif call.what == "launch" and open_since is not None:
            inside.append(call)
        elif call.what == "end" and open_since is not None:
            around = [name for start, end, name in ranges if start <= open_since <= end]
            if inside:
                one = CapturedGraph(
                    tuple(inside),
                    tuple(spans[id(each)] for each in inside),
                    tuple(each.kernel for each in inside),
                )
                graphs.append((around[-1] if around else "", one))
            open_since = None
    for name, group in groupby(graphs, key=lambda pair: pair[0]):
        said = read_capture(name)
        yield CaptureSet(
            name or found.path.name, said[0] if said else None, tuple(graph for _, graph in group)
        )


def _name_compiled_parts(found: Captures) -> None:
    """Name what a compiled model launches, which has no modules inside, by the compiled part and
    the operator that it calls: GraphModule_0 becomes GraphModule_0.part_3.vllm.moe_forward. Parts
    count from 0 in each call of the module."""
    spans, nesting = found.events.spans, found.nesting
    parts: dict[int, int] = {}
    counted: Counter[int] = Counter()
    compiled = [at for at in nesting.order if spans[at].name.startswith(_COMPILED_CALL)]
    for at in sorted(compiled, key=lambda at: spans[at].start):
        around = _capture_around(found, at)
        parts[at] = counted[around]
        counted[around] += 1
    inside: dict[int, str] = {}
    """Span -> what its name adds to the module's."""
    for at in nesting.order:
        parent, context = nesting.parents[at], nesting.contexts[at]
        if at in parts:
            inside[at] = f"part_{parts[at]}"
        elif parent in inside:
            is_first = parent in parts and not spans[at].is_range
            inside[at] = (
                f"{inside[parent]}.{spans[at].name.replace('::', '.')}"
                if is_first
                else inside[parent]
            )
        else:
            continue
        if context.layer is not None and _GRAPH_MODULE.search(context.layer):
            nesting.contexts[at] = context._replace(layer=f"{context.layer}.{inside[at]}")


def _capture_around(found: Captures, at: int) -> int:
    """The ``capture_...`` range around a span; -1 for none."""
    while at >= 0 and read_capture(found.events.spans[at].name) is None:
        at = found.nesting.parents[at]
    return at


def beside(trace: Path, tokens: Iterable[int]) -> list[Path]:
    """Traces with captures that ``execution_details.json`` beside a trace names, those for
    ``tokens`` first; none without it.

    A file that was renamed is the only other one of its folder with "capture" in its name.
    """
    for folder in _FOLDERS:
        found = _named(trace.parent / folder, tokens, trace)
        if found:
            return found[:LOOKED_AT]
    return []


def in_folder(folder: Path) -> list[Path]:
    """All traces with captures that ``execution_details.json`` of ``folder`` names; none where
    nothing else may launch them."""
    at, where = (folder.parent, folder) if folder.name == _FOLDERS[1] else (folder, folder)
    found = _named(where, (), None)
    others = (path for path in at.glob("*.json*") if path.name != DETAILS and path not in found)
    return found if next(others, None) is not None else []


def _named(folder: Path, tokens: Iterable[int], trace: Path | None) -> list[Path]:
    """What the list of one folder names, without ``trace`` itself."""
    try:
        details = json.loads((folder / DETAILS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    entries = [one for one in details if isinstance(one, dict)] if isinstance(details, list) else []
    sizes = {size for one in entries if type(size := one.get("batch_size")) is int}
    wanted = {min((size for size in sizes if size >= count), default=None) for count in tokens}
    entries.sort(key=lambda one: one.get("batch_size") not in wanted)
    named = [
        folder / Path(name).name for one in entries if isinstance(name := one.get("file"), str)
    ]
    found = [path for path in dict.fromkeys(named) if path.is_file() and not _same(path, trace)]
    if found:
        return found
    others = [
        path
        for path in sorted(folder.glob("*capture*.json*"))
        if path.is_file() and not _same(path, trace)
    ]
    return others if len(others) == 1 else []


def _same(one: Path, other: Path | None) -> bool:
    return other is not None and one.resolve() == other.resolve()


def explain(
    kernels: list[Kernel], graphs: set[int], captures: Sequence[Captures], *, whole: bool
) -> Explained:
    """Give the kernels of ``graphs`` (correlation ids) the layers that ``captures`` say.

    ``whole``: the shapes of operators count over the whole trace instead of a step.
    """
    replays = replays_of(kernels, graphs)
    if not replays:
        return Explained(kernels, [])
    new, launches, used = list(kernels), [], Counter[tuple[int, int]]()
    spans_of: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for _, group in groupby(replays, key=lambda replay: replay[1][0].step):
        rest = list(group)
        while rest:
            found = _best_set(rest, captures)
            taken = rest[: len(found.pairs)] if found else rest
            rest = rest[len(taken) :]
            if found:
                used[found.key] += 1
            for number, (correlation, mine) in enumerate(taken):
                graph = found.pairs[number] if found else None
                launches.append(_explain_one(new, correlation, mine, graph, found, spans_of))
    operators = []
    for key, times in used.items():
        steps = {replay[1][0].step for replay in replays}
        if len([other for other in used if other[0] == key[0]]) == 1:
            owners = captures[key[0]]
            shapes = assign(owners.events, owners.nesting, sorted(spans_of[key]), by_step=False)
            times = (
                times
                if whole
                else times // max(len(steps), 1)
                if times % max(len(steps), 1) == 0
                else 0
            )
            ops = tuple(replace(op, calls=op.calls * times) for op in shapes.ops) if times else ()
            operators.append(replace(shapes, ops=ops))
    names = tuple(dict.fromkeys(captures[file].path.name for file, _ in used))
    return Explained(new, launches, tuple(operators), names)


def replays_of(kernels: Sequence[Kernel], graphs: set[int]) -> list[_Replay]:
    found: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.correlation in graphs:
            found[kernel.correlation].append(kernel)
    for mine in found.values():
        mine.sort(key=lambda kernel: (kernel.start_ns or 0, kernel.launch))
    return sorted(found.items(), key=lambda replay: (replay[1][0].start_ns or 0, replay[0]))


@dataclass(frozen=True, slots=True)
class _Match:
    """The graphs of a set that the next replays are of."""

    key: tuple[int, int]
    """Number of the file, and of the set in it."""
    found: CaptureSet
    captures: Captures
    pairs: tuple[CapturedGraph, ...]
    score: float


def _best_set(rest: Sequence[_Replay], captures: Sequence[Captures]) -> _Match | None:
    """The set whose graphs are most like the next replays, one for one and in order; None where
    nothing is alike.

    Where a set has more graphs than there are replays, or they are out of step, the one graph that
    is most like the next.
    """
    best: _Match | None = None
    for file, one in enumerate(captures):
        for number, found in enumerate(one.sets):
            if len(found.graphs) <= len(rest):
                groups = [found.graphs]
            else:
                groups = [(graph,) for graph in found.graphs] if len(rest) == 1 else []
            for graphs in groups:
                score = sum(_alike(rest[at][1], graph) for at, graph in enumerate(graphs)) / len(
                    graphs
                )
                if score >= ALIKE and (best is None or score > best.score):
                    best = _Match((file, number), found, one, graphs, score)
    return best


def _alike(mine: Sequence[Kernel], graph: CapturedGraph) -> float:
    """0..1: how many of both have a namesake in the other; ORDER_ALONE for as many launches
    without names."""
    if not any(graph.names):
        return ORDER_ALONE if len(mine) == len(graph.calls) else 0.0
    both = Counter[str | None](kernel.name for kernel in mine) & Counter(graph.names)
    return both.total() / max(len(mine), len(graph.names))


def _explain_one(
    new: list[Kernel],
    correlation: int,
    mine: Sequence[Kernel],
    graph: CapturedGraph | None,
    found: _Match | None,
    spans_of: defaultdict[tuple[int, int], set[int]],
) -> GraphLaunch:
    """Give the kernels of one replay their layers in ``new``."""
    bare = GraphLaunch(correlation, mine[0].step, len(mine), time_of(mine))
    if graph is None or found is None:
        return bare
    how, pairs = _pairs(mine, graph)
    for at, call in pairs:
        kernel, span = mine[at], graph.spans[call]
        context = found.captures.context(span)
        spans_of[found.key].add(span)
        if context is not None and context.layer is not None:
            new[kernel.launch] = new[kernel.launch]._replace(
                layer=context.layer, direction=context.direction, layer_source="capture"
            )
    share = len(pairs) / max(len(mine), len(graph.calls))
    return bare._replace(
        capture=found.found.name,
        matched=len(pairs),
        how=how if pairs else None,
        confidence=(share * ORDER_ALONE if how == "order" else share) if pairs else None,
    )


def time_of(kernels: Sequence[Kernel]) -> int | None:
    times = [kernel.duration_ns for kernel in kernels]
    return None if None in times else int(sum(time for time in times if time is not None))


def _pairs(mine: Sequence[Kernel], graph: CapturedGraph) -> tuple[str, list[tuple[int, int]]]:
    """How a replay and a capture were matched, and (kernel, launch) of each match."""
    nodes = {call.node: at for at, call in enumerate(graph.calls) if call.node is not None}
    ran = [kernel.graph_node_id for kernel in mine]
    if nodes and len(nodes) == len(graph.calls) and len(set(ran) & nodes.keys()) == len(mine):
        return "node", [(at, nodes[node]) for at, node in enumerate(ran) if node is not None]
    names = [kernel.name for kernel in mine]
    if not any(graph.names):
        return "order", [(at, at) for at in range(len(mine))] if len(mine) == len(
            graph.calls
        ) else []
    if tuple(names) == graph.names:
        return "name", [(at, at) for at in range(len(mine))]
    return "name", sorted(aligned(names, graph.names))


def aligned(names: Sequence[Any], captured: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Longest runs that both have in common; then the rest, each with its next namesake (streams
    side by side)."""
    left, free = set(range(len(names))), set(range(len(captured)))
    if len(names) * len(captured) <= _MOST_PAIRS:
        for block in SequenceMatcher(None, names, captured, autojunk=False).get_matching_blocks():
            for step in range(block.size):
                left.discard(block.a + step)
                free.discard(block.b + step)
                yield block.a + step, block.b + step
    waiting: defaultdict[Any, list[int]] = defaultdict(list)
    for at in sorted(free, reverse=True):
        waiting[captured[at]].append(at)
    for at in sorted(left):
        if waiting[names[at]]:
            yield at, waiting[names[at]].pop()
