"""Layers of the kernels that a CUDA or HIP graph launched, and what is missing of them.

A graph's launch is one call, so its kernels name no module. While the graph was captured, each of
them had a launch call of its own, in the same order, under the module that made it. Servers record
that in a separate trace next to the others: ``capture_<size>_<mode>`` ranges, and
``execution_details.json``, which names the file of each size and mode.

A kernel is matched with a launch of the capture by the id of the graph's node where both traces
have it, else by its name and the order within the graph. A capture without names of kernels (CUDA's
runtime calls have none) is matched by order alone, and only where it launched as many kernels as
the graph ran.

Kernels of graphs get layers by sequence, too, from a trace in which the same step ran without
graphs. An eager run launches about the same kernels in about the same order, each under its module.
The kernels of a step, those between its graphs too, are aligned with a step of the eager run: first
by name, grid and block, which are equal where the shapes are, then what is left by name. It is a
guess: the two runs may have done different work.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeVar

from perfctl.parsers.common.json import list_json_objects
from perfctl.parsers.kineto.events import SortedEvents, classify_events
from perfctl.parsers.kineto.nesting import NOWHERE, SpanNesting, assign_layers_and_operator_rows
from perfctl.parsers.kineto.stream import TOOL, TraceStream
from perfctl.parsers.operators import OperatorShapes
from perfctl.records.errors import ReportError
from perfctl.records.ranges import parse_range_name
from perfctl.records.report import COVERS, Diagnostic, Gap, Kernel, Report
from perfctl.records.served_names import DETAILS, parse_graph_capture_name
from perfctl.records.serving import EAGER, GraphLaunch, ServedStep

ORDER_ALONE = 0.5
"""Confidence of a match by order alone, a judgement: nothing but the number of kernels
confirms it."""
NAMESAKES_MIN = 0.5
"""Share of namesakes below which a graph and a capture are held to be different ones,
a judgement."""
BY_NAME_ALONE = 0.5
"""What a pair counts whose grids differ, a judgement: the kernel is the same, its shapes
are not."""
FILES_MAX = 8
"""Files with captures that are read for one trace."""
ANNOTATIONS = "annotations of its nodes"
"""``GraphLaunch.capture`` if the trace itself has the annotations that the program gave the nodes
while the graph was captured."""
_SUBFOLDER = "capture_traces"
_PAIRS_MAX = 4_000_000
"""Kernels times launches up to which sequences are aligned; beyond, names alone are counted."""
_COMPILED_CALL = "## Call CompiledFxGraph"
_GRAPH_MODULE = re.compile(r"(?:^|\.)GraphModule(?:_\d+)?\Z")
_MATCHED_BY = {
    "node": "the graph's node",
    "name": "name and order",
    "order": "order alone",
    EAGER: "sequence",
}


C = TypeVar("C")
Replay = list[Kernel]
"""The kernels of one launch of a graph, in order of their start."""


class CapturedLaunch(NamedTuple):
    """One launch of a kernel in a capture, or in a run without graphs."""

    kernel: str | None
    """None if the trace does not name it."""
    layer: str | None
    direction: str | None
    node: int | None = None
    """Id of the graph's node that it made; None if the trace does not have it."""
    span: int = -1
    """Position of the innermost span around it, in a capture; -1 for none."""
    shape: tuple[int | None, ...] = ()
    """Grid and block, in a run without graphs."""


class KernelMatch(NamedTuple):
    """Kernels and the launches that they are matched with."""

    how: str
    """``GraphLaunch.how``."""
    confidence: float
    references: dict[int, CapturedLaunch]
    """By ``Kernel.launch``."""


_UNMATCHED = KernelMatch(EAGER, 0, {})
CapturedGraph = tuple[CapturedLaunch, ...]
"""The launches between the begin and the end of a graph's capture."""


@dataclass(frozen=True, slots=True, eq=False)
class CaptureSet:
    """The graphs that one step replays: one, or one for each piece of the model."""

    name: str
    graphs: tuple[CapturedGraph, ...]
    path: Path
    """The trace in which they were captured; likewise the others."""
    events: SortedEvents
    nesting: SpanNesting


class NoCaptureError(ReportError):
    """A trace in which no graph is captured."""


@dataclass(slots=True)
class ExplainedGraphs:
    """What is known of a trace's kernels once its captures are read."""

    kernels: list[Kernel]
    """By ``Kernel.launch``."""
    operators: OperatorShapes = field(default_factory=OperatorShapes)
    launches: list[GraphLaunch] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Names of the files whose captures matched."""
    gaps: list[Gap] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def set_kernel_layer(self, launch: int, layer: str, direction: str | None, source: str) -> None:
        """Give a kernel a layer, which was found as ``source`` (``Kernel.layer_source``) says."""
        self.kernels[launch] = self.kernels[launch]._replace(
            layer=layer, direction=direction, layer_source=source
        )

    def add_graph_launch(
        self, replay: Replay, capture: str = "", match: KernelMatch = _UNMATCHED
    ) -> None:
        """Add a launch of a graph, and give its kernels the layers of their references."""
        matched = [kernel.launch for kernel in replay if kernel.launch in match.references]
        for launch in matched:
            reference = match.references[launch]
            if reference.layer is not None:
                source = "guessed" if match.how == EAGER else "capture"
                self.set_kernel_layer(launch, reference.layer, reference.direction, source)
        first, times = replay[0], [kernel.duration_ns for kernel in replay]
        total_ns = None if None in times else int(sum(filter(None, times)))
        facts = (capture, len(matched), match.how, match.confidence) if matched else ()
        correlation = first.correlation or 0
        self.launches.append(GraphLaunch(correlation, first.step, len(replay), total_ns, *facts))


def assign_layers_to_graph_kernels(
    path: Path,
    capture_trace: Path | None,
    events: SortedEvents,
    explained: ExplainedGraphs,
    served_steps: Iterable[ServedStep],
    parse: Callable[[Path], Report],
) -> None:
    """Give kernels of graphs the layers of the capture: of ``capture_trace``, else of the captures
    next to ``path``. If ``capture_trace`` captures no graph, it is ``parse``d as a run of the same
    steps without graphs.

    Raises ReportError when ``capture_trace`` cannot be read, or ``path`` launches no
    graph.
    """
    replays = group_kernels_by_graph_launch(explained.kernels, events.graphs)
    if not replays:
        if capture_trace is None:
            return
        reason = (
            f"the trace has no graph launch with recorded kernels, so "
            f"{capture_trace.name} does not apply"
        )
        raise ReportError(path, TOOL, reason, "Omit --capture, or name the trace of an execution")
    sets: list[CaptureSet] = []
    eager: list[Kernel] = []
    if capture_trace is None:
        tokens = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in served_steps]
        for other in find_neighbouring_capture_traces(path, tokens):
            try:
                sets += read_graph_capture_sets(other)
            except ReportError as error:
                text = f"{other.name}, named by {DETAILS}: {error.reason}"
                explained.diagnostics.append(Diagnostic("warning", "perfctl", text))
    else:
        try:
            sets += read_graph_capture_sets(capture_trace)
        except NoCaptureError:
            report = parse(capture_trace)
            eager += report.kernels
            if report.graph_launches or all(kernel.layer is None for kernel in eager):
                raise
            assign_layers_by_eager_run(explained, replays, eager, capture_trace.name)
    if not eager:
        _assign_layers_by_captures(explained, replays, sets)
    _assign_layers_by_annotations(explained, events)
    if any(launch.capture is None for launch in explained.launches):
        explained.gaps.append(
            _describe_unmatched_launches(explained, replays, was_capture_read=bool(sets or eager))
        )
    if explained.sources:
        explained.diagnostics.append(_describe_matches(explained))


def read_graph_capture_sets(path: Path) -> list[CaptureSet]:
    """Return the captures of a trace in order of time, those inside one ``capture_...`` range
    together, all others together. Raises ReportError when the file is no such trace, or captures no
    graph."""
    events = classify_events(TraceStream(path).iterate_event_blocks(), collect_graph_captures=True)
    nesting = SpanNesting(events)
    _extend_layers_with_compiled_part_names(nesting)
    graphs: list[tuple[str, CapturedGraph]] = []
    name: str | None = None
    """Of the capture that has begun."""
    inside: list[CapturedLaunch] = []
    for call in sorted(events.captured, key=lambda call: call.place.at):
        span = nesting.find_innermost_span(call.place.thread, call.place.at)
        if call.what == "begin":
            capture_range = _find_capture_range(nesting, span)
            name = path.name if capture_range is None else events.spans[capture_range].name
            inside = []
        elif name is not None and call.what == "launch":
            context = nesting.contexts[span] if span >= 0 else NOWHERE
            facts = (call.kernel, context.layer, context.direction, call.node, span)
            inside.append(CapturedLaunch(*facts))
        elif name is not None:
            graphs += [(name, tuple(inside))] if inside else []
            name = None
    if not graphs:
        reason = (
            "the trace captures no graph: it lacks cudaStreamBeginCapture or "
            "hipStreamBeginCapture with launches"
        )
        todo = "Pass the trace of the graph capture, or a trace of the same steps without graphs"
        raise NoCaptureError(path, TOOL, reason, todo)
    return [
        CaptureSet(name, tuple(graph for _, graph in group), path, events, nesting)
        for name, group in groupby(graphs, key=lambda pair: pair[0])
    ]


def _find_capture_range(nesting: SpanNesting, span: int) -> int | None:
    """Return the position of the ``capture_...`` range around a span."""
    for index in nesting.iterate_enclosing_spans(span):
        if parse_graph_capture_name(nesting.spans[index].name) is not None:
            return index
    return None


def _extend_layers_with_compiled_part_names(nesting: SpanNesting) -> None:
    """Name what a compiled model launches, which has no modules inside, by the compiled part and
    the operator that it calls: GraphModule_0 becomes GraphModule_0.part_3.vllm.moe_forward. Parts
    count from 0 in each call of the module."""
    spans, contexts = nesting.spans, nesting.contexts
    parts: dict[int, int] = {}
    counts = Counter[int | None]()
    compiled = [index for index in nesting.order if spans[index].name.startswith(_COMPILED_CALL)]
    for index in sorted(compiled, key=lambda index: spans[index].start):
        capture = _find_capture_range(nesting, index)
        parts[index] = counts[capture]
        counts[capture] += 1
    suffixes: dict[int, str] = {}
    """Span -> what its name adds to the module's."""
    for index in nesting.order:
        parent, layer = nesting.parents[index], contexts[index].layer
        if index in parts:
            suffixes[index] = f"part_{parts[index]}"
        elif parent in suffixes:
            suffixes[index] = suffixes[parent]
            if parent in parts and not spans[index].is_range:
                suffixes[index] += f".{spans[index].name.replace('::', '.')}"
        if index in suffixes and layer is not None and _GRAPH_MODULE.search(layer):
            contexts[index] = contexts[index]._replace(layer=f"{layer}.{suffixes[index]}")


def find_neighbouring_capture_traces(trace: Path, token_counts: Iterable[int]) -> list[Path]:
    """Return traces with captures that ``execution_details.json`` next to a trace names, those for
    ``token_counts`` first; none without it.

    A file that was renamed is the only other one of its folder with "capture" in its name.
    """
    folder, sizes = trace.parent, list(token_counts)
    paths = _list_captures_in_details_file(folder, sizes, trace)
    return (paths or _list_captures_in_details_file(folder / _SUBFOLDER, sizes, trace))[:FILES_MAX]


def list_capture_traces_in_folder(folder: Path) -> list[Path]:
    """Return all traces with captures that ``execution_details.json`` of ``folder`` names; none
    where nothing else may launch them."""
    paths = _list_captures_in_details_file(folder, (), folder / DETAILS)
    runs = folder.parent if folder.name == _SUBFOLDER else folder
    has_others = any(path.name != DETAILS and path not in paths for path in runs.glob("*.json*"))
    return paths if has_others else []


def _list_captures_in_details_file(
    folder: Path, token_counts: Iterable[int], excluded_trace: Path
) -> list[Path]:
    """Return what the list of one folder names, without ``excluded_trace`` itself."""
    try:
        details = json.loads((folder / DETAILS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    entries = [entry for entry in list_json_objects(details) if isinstance(entry.get("file"), str)]
    sizes = {size for entry in entries if type(size := entry.get("batch_size")) is int}
    graph_sizes = {
        min((size for size in sizes if size >= count), default=None) for count in token_counts
    }
    entries.sort(key=lambda entry: entry.get("batch_size") not in graph_sizes)

    def keep_other_files(paths: Iterable[Path]) -> list[Path]:
        return [
            path for path in paths if path.is_file() and path.resolve() != excluded_trace.resolve()
        ]

    listed = keep_other_files(dict.fromkeys(folder / Path(entry["file"]).name for entry in entries))
    renamed = keep_other_files(sorted(folder.glob("*capture*.json*")))
    return listed or (renamed if len(renamed) == 1 else [])


def _assign_layers_by_captures(
    explained: ExplainedGraphs, replays: list[Replay], capture_sets: Sequence[CaptureSet]
) -> None:
    """Give the kernels of ``replays`` the layers of their captures."""
    replayed = Counter[CaptureSet]()
    spans: defaultdict[Path, set[int]] = defaultdict(set)
    """File -> spans that launched matched kernels while they were captured."""
    for _, group in groupby(replays, key=lambda replay: replay[0].step):
        replays_left = list(group)
        while replays_left:
            best = _find_best_capture_set(replays_left, capture_sets)
            if best is None:
                for replay in replays_left:
                    explained.add_graph_launch(replay)
                break
            captured, graphs = best
            replayed[captured] += 1
            for replay, graph in zip(replays_left, graphs, strict=False):
                match = _match_kernels_with_launches(replay, graph)
                explained.add_graph_launch(replay, captured.name, match)
                spans[captured.path].update(
                    reference.span for reference in match.references.values()
                )
            del replays_left[: len(graphs)]
    covers_trace = bool(explained.operators.environment.get(COVERS))
    steps = len({replay[0].step for replay in replays})
    sets_of_files = Counter(used.path for used in replayed)
    explained.sources += [path.name for path in sets_of_files]
    for used, times in replayed.items():
        if sets_of_files[used.path] == 1:
            launchers = sorted(spans[used.path])
            shapes = assign_layers_and_operator_rows(
                used.events, used.nesting, launchers, by_step=False
            )
            if not covers_trace:  # the calls are those of a step
                times = 0 if times % steps else times // steps
            explained.operators = _join_operators(explained.operators, shapes, times)


def _find_best_capture_set(
    replays: Sequence[Replay], capture_sets: Iterable[CaptureSet]
) -> tuple[CaptureSet, Sequence[CapturedGraph]] | None:
    """Return the set whose graphs are most like the next replays, one for one and in order. Where
    it has more graphs than there are replays, or they are out of step, the one graph counts that is
    most like the next."""
    candidates: list[tuple[CaptureSet, Sequence[CapturedGraph]]] = []
    for capture_set in capture_sets:
        if len(capture_set.graphs) <= len(replays):
            candidates.append((capture_set, capture_set.graphs))
        elif len(replays) == 1:
            candidates += [(capture_set, [graph]) for graph in capture_set.graphs]
    return _find_best_candidate_above_minimum(
        candidates,
        lambda pair: (
            sum(map(_compute_shared_kernel_name_fraction, replays, pair[1])) / len(pair[1])
        ),
    )


def group_kernels_by_graph_launch(
    kernels: Iterable[Kernel], graph_correlation_ids: set[int]
) -> list[Replay]:
    """Return the kernels of each launch of ``graph_correlation_ids`` (correlation ids) in order of
    time."""
    inside = (kernel for kernel in kernels if kernel.correlation in graph_correlation_ids)
    return list(_group_kernels_by_field(inside, "correlation").values())


def _group_kernels_by_field(
    kernels: Iterable[Kernel], field: str
) -> dict[int | None, list[Kernel]]:
    """Return the kernels of each value of a field in the order of their start."""
    key_of = attrgetter(field)
    groups: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in sorted(kernels, key=lambda kernel: (kernel.start_ns or 0, kernel.launch)):
        groups[key_of(kernel)].append(kernel)
    return groups


def _find_best_candidate_above_minimum(
    candidates: Iterable[C], compute_share: Callable[[C], float]
) -> C | None:
    """Return the candidate with the largest share of namesakes; None below NAMESAKES_MIN."""
    best = max(candidates, key=compute_share, default=None)
    return None if best is None or compute_share(best) < NAMESAKES_MIN else best


def _compute_shared_kernel_name_fraction(
    kernels: Sequence[Kernel], references: Sequence[CapturedLaunch]
) -> float:
    """Return 0..1: how many of both have a namesake in the other; ORDER_ALONE for as many launches
    without names."""
    names = [reference.kernel for reference in references]
    if not any(names):
        return ORDER_ALONE if len(kernels) == len(references) else 0.0
    both = Counter[str | None](kernel.name for kernel in kernels) & Counter(names)
    return both.total() / max(len(kernels), len(references))


def _match_kernels_with_launches(
    kernels: Sequence[Kernel], references: Sequence[CapturedLaunch]
) -> KernelMatch:
    names = [kernel.name for kernel in kernels]
    reference_names = [reference.kernel for reference in references]
    node_ids = [kernel.graph_node_id for kernel in kernels]
    nodes = [reference.node for reference in references]
    kernel_keys: Sequence[Hashable] = names
    reference_keys: Sequence[Hashable] = reference_names
    how, weight = "name", 1.0
    if None not in nodes and len(set(nodes)) == len(nodes) and set(node_ids) <= set(nodes):
        how, kernel_keys, reference_keys = "node", node_ids, nodes
    elif not any(reference_names):
        how, weight = "order", ORDER_ALONE
        kernel_keys = reference_keys = (
            range(len(kernels)) if len(kernels) == len(references) else ()
        )
    elif any(reference.shape for reference in references):
        how = EAGER
        kernel_keys = [(kernel.name, _grid_and_block(kernel)) for kernel in kernels]
        reference_keys = [(reference.kernel, reference.shape) for reference in references]
    pairs = dict(align_sequences(kernel_keys, reference_keys))
    agreeing = len(pairs) * weight
    if how == EAGER:
        kernels_left = [index for index in range(len(kernels)) if index not in pairs]
        free = sorted(set(range(len(references))) - set(pairs.values()))
        by_name = align_sequences(
            [names[index] for index in kernels_left], [reference_names[index] for index in free]
        )
        pairs |= {kernels_left[index]: free[other] for index, other in by_name}
        agreeing += BY_NAME_ALONE * (len(pairs) - agreeing)
    matched = {kernels[index].launch: references[other] for index, other in pairs.items()}
    return KernelMatch(how, agreeing / max(len(kernels), len(references)), matched)


def align_sequences(
    first_items: Sequence[Hashable], right: Sequence[Hashable]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions: longest runs that both have in common; then the rest, each with its
    next namesake (streams side by side)."""
    if first_items == right:
        yield from enumerate(range(len(first_items)))
        return
    left_rest, right_rest = set(range(len(first_items))), set(range(len(right)))
    if len(first_items) * len(right) <= _PAIRS_MAX:
        for block in SequenceMatcher(
            None, first_items, right, autojunk=False
        ).get_matching_blocks():
            for offset in range(block.size):
                left_rest.discard(block.a + offset)
                right_rest.discard(block.b + offset)
                yield block.a + offset, block.b + offset
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index in sorted(right_rest, reverse=True):
        waiting[right[index]].append(index)
    for index in sorted(left_rest):
        if waiting[first_items[index]]:
            yield index, waiting[first_items[index]].pop()


def assign_layers_by_eager_run(
    explained: ExplainedGraphs,
    replays: Iterable[Replay],
    eager_kernels: Iterable[Kernel],
    eager_file_name: str,
) -> None:
    """Give the kernels of ``replays`` the layers of the kernels of an eager run, whose file is
    called ``eager_file_name``."""
    eager_steps = _group_kernels_by_field(eager_kernels, "step")
    if len(eager_steps) > 1:
        eager_steps.pop(None, None)
    references = [
        [CapturedLaunch(k.name, k.layer, k.direction, shape=_grid_and_block(k)) for k in kernels]
        for kernels in eager_steps.values()
    ]
    steps = _group_kernels_by_field(explained.kernels, "step")
    matches: dict[int | None, KernelMatch] = {}
    for replay in replays:
        step = replay[0].step
        if step is None or step not in matches:
            kernels = replay if step is None else steps[step]
            best = _find_best_candidate_above_minimum(
                references, partial(_compute_shared_kernel_name_fraction, kernels)
            )
            matches[step] = (
                _UNMATCHED if best is None else _match_kernels_with_launches(kernels, best)
            )
        explained.add_graph_launch(replay, f"{eager_file_name}, without graphs", matches[step])
    if any(launch.matched for launch in explained.launches):
        explained.sources = [eager_file_name]


def _grid_and_block(kernel: Kernel) -> tuple[int | None, ...]:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return *grid, kernel.block_x, kernel.block_y, kernel.block_z


def _assign_layers_by_annotations(explained: ExplainedGraphs, events: SortedEvents) -> None:
    """Name graph kernels that no capture explains as ``torch.cuda._graph_annotations.mark_kernels``
    named their nodes during the capture.

    A name like "conv2:backward" is a layer and a direction; any other is the layer, whose direction
    is PyTorch's own annotation.
    """
    annotated = Counter[int | None]()
    for index, (text, is_backward) in events.annotated.items():
        kernel = explained.kernels[index]
        if kernel.layer is None and kernel.correlation in events.graphs:
            name, side = parse_range_name(text), "backward" if is_backward else "forward"
            explained.set_kernel_layer(index, name.layer or text, name.direction or side, "capture")
            annotated[kernel.correlation] += 1
    for number, launch in enumerate(explained.launches):
        if launch.capture is None and (matched := annotated[launch.correlation]):
            explained.launches[number] = launch._replace(
                capture=ANNOTATIONS,
                matched=matched,
                how="node",
                confidence=matched / launch.kernels,
            )
    if annotated:
        explained.sources.append(ANNOTATIONS)


def _describe_unmatched_launches(
    explained: ExplainedGraphs, replays: Iterable[Replay], *, was_capture_read: bool
) -> Gap:
    """Return the gap of graph launches without a match; ``was_capture_read``: a capture was
    read."""
    launches, inside = explained.launches, [kernel for replay in replays for kernel in replay]
    inside_ns, all_ns = (
        sum(kernel.duration_ns or 0 for kernel in kernels)
        for kernels in (inside, explained.kernels)
    )
    which = "their modules are unknown"
    if was_capture_read:
        unknown = sum(launch.capture is None for launch in launches)
        which = f"{unknown} of {len(launches)} graph launches match no capture"
    reason = (
        f"{len(inside)} of {len(explained.kernels)} kernels ({inside_ns / (all_ns or 1) * 100:.1f} "
        f"% of their time) were launched by graphs; {which}: set the trace of the capture with "
        "perfctl ingest --capture"
    )
    return Gap("kernel.layer", "not_collected", reason)


def _describe_matches(explained: ExplainedGraphs) -> Diagnostic:
    """Return how well the kernels of graphs were matched."""
    launches = explained.launches
    matched = [launch for launch in launches if launch.confidence is not None]
    least = min((launch.confidence or 0 for launch in matched), default=0)
    verb = "guessed" if any(launch.how == EAGER for launch in matched) else "inferred"
    how = " or ".join(dict.fromkeys(_MATCHED_BY[launch.how] for launch in matched if launch.how))
    text = (
        f"layers of {sum(launch.matched for launch in matched):,} of the "
        f"{sum(launch.kernels for launch in launches):,} kernels in {len(launches)} graph launches "
        f"were {verb} from {', '.join(explained.sources)}, by {how}; confidence {least:.2f} or "
        "better"
    )
    return Diagnostic("info", "perfctl", text)


def _join_operators(
    traced: OperatorShapes, captured: OperatorShapes, capture_repeats: int
) -> OperatorShapes:
    """Return the shapes of both, those of a capture as often as its graphs ran; each operator keeps
    its own place in the order."""
    first = len(traced.ops)
    ran = [
        replace(op, position=first + index, calls=op.calls * capture_repeats)
        for index, op in enumerate(captured.ops if capture_repeats else ())
    ]
    is_alike = not traced.ops or traced.precision == captured.precision
    gaps = (gap for gap in captured.gaps if gap.quantity == "layer_call.flops")
    precision = captured.precision if is_alike else None
    return OperatorShapes((*traced.ops, *ran), traced.environment, (*traced.gaps, *gaps), precision)
