"""Layers of the kernels that a CUDA or HIP graph launched, and what is missing of them.

A graph's launch is one call, so its kernels name no module. While the graph was captured, each of
them had a launch call of its own, in the same order, under the module that made it. Servers record
that in a trace of its own beside the others: ``capture_<size>_<mode>`` ranges, and
``execution_details.json``, which names the file of each size and mode.

A kernel is matched with a launch of the capture by the id of the graph's node where both traces
have it, else by its name and the order within the graph. A capture without names of kernels (CUDA's
runtime calls have none) is matched by order alone, and only where it launched as many kernels as
the graph ran.

Kernels of graphs get layers by sequence, too, from a trace in which the same step ran without
graphs. An eager run launches about the same kernels in about the same order, each under its module.
The kernels of a step, those between its graphs too, are aligned with a step of the eager run: first
by name, grid and block, which are equal where the shapes are, then what is left by name. It is a
guess: nothing says that the two runs did the same.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.kineto.events import CapturedCall, Events, collect
from perfctl.parsers.kineto.nesting import Nesting, assign_operators
from perfctl.parsers.kineto.stream import TOOL, TraceStream
from perfctl.parsers.operator_rows import Operators
from perfctl.records.errors import ReportError
from perfctl.records.ranges import read_range_name
from perfctl.records.report import COVERS, Diagnostic, Gap, Kernel, Report
from perfctl.records.served_names import DETAILS, read_capture
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
"""``GraphLaunch.capture`` where the trace itself has what the program said of the nodes while the
graph was captured."""
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


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """One graph: the launches between the begin and the end of its capture."""

    calls: tuple[CapturedCall, ...]
    spans: tuple[int, ...]
    """Of each launch, the innermost span around it; -1 for none."""

    @property
    def names(self) -> tuple[str | None, ...]:
        """Of the kernels; None where the trace does not say."""
        return tuple(call.kernel for call in self.calls)


@dataclass(frozen=True, slots=True)
class CaptureSet:
    """The graphs that one step replays: one, or one for each piece of the model."""

    name: str
    size: int | None
    """Sequences or tokens that the step may have; None where no range says."""
    graphs: tuple[CapturedGraph, ...]


@dataclass(frozen=True, slots=True)
class Captures:
    """One trace with captures."""

    path: Path
    events: Events
    nesting: Nesting
    sets: tuple[CaptureSet, ...]


class NoCapture(ReportError):
    """A trace in which no graph is captured."""


@dataclass(frozen=True, slots=True)
class ExplainedGraphs:
    """What is known of a trace's kernels once its captures are read."""

    kernels: list[Kernel]
    operators: Operators
    launches: tuple[GraphLaunch, ...] = ()
    gaps: tuple[Gap, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


class Explained(NamedTuple):
    """What captures, or a run without graphs, say of a trace's kernels."""

    kernels: list[Kernel]
    launches: list[GraphLaunch]
    operators: tuple[Operators, ...] = ()
    """Shapes of the captured operators, with the calls of one step, or of the whole capture."""
    sources: tuple[str, ...] = ()
    """Names of the files whose captures matched."""


class Replay(NamedTuple):
    """One launch of a graph."""

    correlation: int
    kernels: list[Kernel]
    """In order of their start."""

    def describe(self) -> GraphLaunch:
        """Return the launch without a match."""
        step, kernels = self.kernels[0].step, len(self.kernels)
        return GraphLaunch(self.correlation, step, kernels, sum_times(self.kernels))


class _Match(NamedTuple):
    """The graphs of a set that the next replays are of."""

    file: int
    set_number: int
    graphs: tuple[CapturedGraph, ...]
    score: float


def explain_graphs(
    path: Path,
    capture: Path | None,
    events: Events,
    kernels: list[Kernel],
    operators: Operators,
    served: Iterable[ServedStep],
    parse: Callable[[Path], Report],
) -> ExplainedGraphs:
    """Give kernels of graphs the layers of the capture: of ``capture``, else of what lies beside
    ``path``. Where ``capture`` captures no graph, it is ``parse``d as a run of the same steps
    without graphs.

    Raises ReportError when ``capture`` cannot be read, or ``path`` launches no graph it could
    tell of.
    """
    inside = [kernel for kernel in kernels if kernel.correlation in events.graphs]
    if not inside:
        if capture is None:
            return ExplainedGraphs(kernels, operators)
        reason = (
            f"it launches no graph whose kernels it recorded, so {capture.name} says nothing "
            "about it"
        )
        todo = "Leave --capture out, or name the trace of an execution"
        raise ReportError(path, TOOL, reason, todo)
    diagnostics = []
    captures: list[Captures] = []
    eager: list[Kernel] = []
    if capture is not None:
        try:
            captures.append(read_captures(capture))
        except NoCapture:
            report = parse(capture)
            eager = list(report.kernels)
            if report.graph_launches or all(kernel.layer is None for kernel in eager):
                raise
    else:
        tokens = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in served]
        for other in find_captures(path, tokens):
            try:
                captures.append(read_captures(other))
            except ReportError as error:
                text = f"{other.name}, named by {DETAILS}: {error.reason}"
                diagnostics.append(Diagnostic("warning", "perfctl", text))
    if eager and capture is not None:
        explained = explain_by_eager(kernels, events.graphs, eager, capture.name)
    else:
        covers = bool(operators.environment.get(COVERS))
        explained = explain_by_captures(kernels, events.graphs, captures, whole=covers)
    explained = _add_annotations(explained, events)
    launches = explained.launches
    gaps = []
    if unknown := sum(launch.capture is None for launch in launches):
        inside_ns, all_ns = (
            sum(one.duration_ns or 0 for one in group) for group in (inside, kernels)
        )
        which = "no module is known of them"
        if captures or eager:
            which = f"{unknown} of {len(launches)} graph launches match no capture"
        reason = (
            f"{len(inside)} of {len(kernels)} kernels ({inside_ns / (all_ns or 1) * 100:.1f} % of "
            f"their time) were launched by graphs; {which}: give the trace of the capture with "
            "perfctl ingest --capture"
        )
        gaps.append(Gap("kernel.layer", "not_collected", reason))
    if explained.sources:
        text = _describe_matches(launches, explained.sources)
        diagnostics.append(Diagnostic("info", "perfctl", text))
    return ExplainedGraphs(
        explained.kernels,
        _join_operators(operators, explained.operators),
        tuple(launches),
        tuple(gaps),
        tuple(diagnostics),
    )


def read_captures(path: Path) -> Captures:
    """Return the captures of a trace. Raises ReportError when the file is no such trace, or
    captures no graph."""
    events = collect(TraceStream(path).blocks(), captures=True)
    nesting = Nesting(events, [call.place for call in events.captured])
    _name_compiled_parts(nesting)
    sets = tuple(_find_sets(path, events, nesting))
    if not sets:
        reason = (
            "it captures no graph: no cudaStreamBeginCapture or hipStreamBeginCapture with "
            "launches behind it"
        )
        todo = (
            "Pass the trace that was recorded while the graphs were captured, or one of the same "
            "steps without graphs"
        )
        raise NoCapture(path, TOOL, reason, todo)
    return Captures(path, events, nesting, sets)


def _find_sets(path: Path, events: Events, nesting: Nesting) -> Iterator[CaptureSet]:
    """Yield the captures in order of time, those inside one ``capture_...`` range together, all
    others together."""
    ranges = sorted(
        (span.start, span.end or span.start, span.name)
        for span in events.spans
        if span.is_range and read_capture(span.name) is not None
    )
    graphs: list[tuple[str, CapturedGraph]] = []
    begin: int | None = None
    inside: list[tuple[CapturedCall, int]] = []
    calls = zip(events.captured, nesting.probed, strict=True)
    for call, span in sorted(calls, key=lambda pair: pair[0].place.at):
        if call.what == "begin":
            begin, inside = call.place.at, []
        elif begin is not None and call.what == "launch":
            inside.append((call, span))
        elif begin is not None:
            if inside:
                around = [name for start, end, name in ranges if start <= begin <= end]
                captured, spans = zip(*inside, strict=True)
                graphs.append((around[-1] if around else "", CapturedGraph(captured, spans)))
            begin = None
    for name, group in groupby(graphs, key=lambda pair: pair[0]):
        meaning = read_capture(name)
        size = meaning[0] if meaning else None
        yield CaptureSet(name or path.name, size, tuple(graph for _, graph in group))


def _name_compiled_parts(nesting: Nesting) -> None:
    """Name what a compiled model launches, which has no modules inside, by the compiled part and
    the operator that it calls: GraphModule_0 becomes GraphModule_0.part_3.vllm.moe_forward. Parts
    count from 0 in each call of the module."""
    spans, contexts = nesting.spans, nesting.contexts
    parts: dict[int, int] = {}
    counts = Counter[int | None]()
    compiled = [index for index in nesting.order if spans[index].name.startswith(_COMPILED_CALL)]
    for index in sorted(compiled, key=lambda index: spans[index].start):
        around = nesting.spans_around(index)
        capture = next((one for one in around if read_capture(spans[one].name) is not None), None)
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


def find_captures(trace: Path, tokens: Iterable[int]) -> list[Path]:
    """Return traces with captures that ``execution_details.json`` beside a trace names, those for
    ``tokens`` first; none without it.

    A file that was renamed is the only other one of its folder with "capture" in its name.
    """
    folder = trace.parent
    paths = _named_captures(folder, tokens, trace)
    return (paths or _named_captures(folder / _SUBFOLDER, tokens, trace))[:FILES_MAX]


def in_folder(folder: Path) -> list[Path]:
    """Return all traces with captures that ``execution_details.json`` of ``folder`` names; none
    where nothing else may launch them."""
    paths = _named_captures(folder, (), None)
    runs = folder.parent if folder.name == _SUBFOLDER else folder
    has_others = any(path.name != DETAILS and path not in paths for path in runs.glob("*.json*"))
    return paths if has_others else []


def _named_captures(folder: Path, tokens: Iterable[int], trace: Path | None) -> list[Path]:
    """Return what the list of one folder names, without ``trace`` itself."""
    try:
        details = json.loads((folder / DETAILS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    entries = details if isinstance(details, list) else []
    entries = [entry for entry in entries if isinstance(entry, dict)]
    sizes = {size for entry in entries if type(size := entry.get("batch_size")) is int}
    wanted = {min((size for size in sizes if size >= count), default=None) for count in tokens}
    entries.sort(key=lambda entry: entry.get("batch_size") not in wanted)
    names = [entry["file"] for entry in entries if isinstance(entry.get("file"), str)]

    def is_other_file(path: Path) -> bool:
        return path.is_file() and (trace is None or path.resolve() != trace.resolve())

    named = dict.fromkeys(folder / Path(name).name for name in names)
    if paths := list(filter(is_other_file, named)):
        return paths
    renamed = list(filter(is_other_file, sorted(folder.glob("*capture*.json*"))))
    return renamed if len(renamed) == 1 else []


def explain_by_captures(
    kernels: list[Kernel], graphs: set[int], captures: Sequence[Captures], *, whole: bool
) -> Explained:
    """Give the kernels of ``graphs`` (correlation ids) the layers that ``captures`` say.

    ``whole``: the shapes of operators count over the whole trace instead of a step.
    """
    replays = find_replays(kernels, graphs)
    new, launches = list(kernels), []
    replayed = Counter[tuple[int, int]]()
    """(file, number of its set) -> how often."""
    spans: defaultdict[int, set[int]] = defaultdict(set)
    """File -> spans that launched matched kernels while they were captured."""
    for _, group in groupby(replays, key=lambda replay: replay.kernels[0].step):
        rest = list(group)
        while rest:
            match = _find_best_set(rest, captures)
            if match is None:
                launches += [replay.describe() for replay in rest]
                break
            replayed[match.file, match.set_number] += 1
            for replay, graph in zip(rest, match.graphs, strict=False):
                launch = _explain_replay(
                    new, replay, graph, captures[match.file], spans[match.file]
                )
                name = captures[match.file].sets[match.set_number].name
                launches.append(launch._replace(capture=name))
            rest = rest[len(match.graphs) :]
    operators = []
    steps = len({replay.kernels[0].step for replay in replays})
    sets_of_files = Counter(file for file, _ in replayed)
    for (file, _), times in replayed.items():
        if sets_of_files[file] == 1:
            trace = captures[file]
            shapes = assign_operators(
                trace.events, trace.nesting, sorted(spans[file]), by_step=False
            )
            if not whole:
                times = 0 if times % steps else times // steps
            ops = tuple(replace(op, calls=op.calls * times) for op in shapes.ops if times)
            operators.append(replace(shapes, ops=ops))
    sources = tuple(dict.fromkeys(captures[file].path.name for file, _ in replayed))
    return Explained(new, launches, tuple(operators), sources)


def find_replays(kernels: Sequence[Kernel], graphs: set[int]) -> list[Replay]:
    """Return the launches of ``graphs`` (correlation ids) in order of time."""
    by_correlation: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.correlation in graphs:
            by_correlation[kernel.correlation].append(kernel)
    replays = [Replay(key, _sort_by_start(group)) for key, group in by_correlation.items()]
    return sorted(replays, key=lambda replay: (replay.kernels[0].start_ns or 0, replay.correlation))


def _sort_by_start(kernels: Iterable[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: (kernel.start_ns or 0, kernel.launch))


def _find_best_set(replays: Sequence[Replay], captures: Sequence[Captures]) -> _Match | None:
    """Return the set whose graphs are most like the next replays, one for one and in order; None
    where nothing is alike.

    Where a set has more graphs than there are replays, or they are out of step, the one graph that
    is most like the next.
    """
    best: _Match | None = None
    for file, trace in enumerate(captures):
        for number, capture_set in enumerate(trace.sets):
            groups = [capture_set.graphs]
            if len(capture_set.graphs) > len(replays):
                single = capture_set.graphs if len(replays) == 1 else ()
                groups = [(graph,) for graph in single]
            for graphs in groups:
                pairs = zip(replays, graphs, strict=False)
                score = sum(_compare_names(*pair) for pair in pairs) / len(graphs)
                if score >= NAMESAKES_MIN and (best is None or score > best.score):
                    best = _Match(file, number, graphs, score)
    return best


def _compare_names(replay: Replay, graph: CapturedGraph) -> float:
    """Return 0..1: how many of both have a namesake in the other; ORDER_ALONE for as many launches
    without names."""
    if not any(graph.names):
        return ORDER_ALONE if len(replay.kernels) == len(graph.calls) else 0.0
    return _share_of_namesakes(_count_names(replay.kernels), Counter(graph.names))


def _count_names(kernels: Sequence[Kernel]) -> Counter[str | None]:
    return Counter(kernel.name for kernel in kernels)


def _share_of_namesakes(left: Counter[str | None], right: Counter[str | None]) -> float:
    return (left & right).total() / max(left.total(), right.total(), 1)


def _explain_replay(
    new: list[Kernel], replay: Replay, graph: CapturedGraph, captures: Captures, spans: set[int]
) -> GraphLaunch:
    """Give the kernels of one replay their layers in ``new``, and add their spans to ``spans``."""
    kernels = replay.kernels
    how, pairs = _match_kernels(kernels, graph)
    for index, call in pairs:
        launch, span = kernels[index].launch, graph.spans[call]
        spans.add(span)
        context = captures.nesting.contexts[span] if span >= 0 else None
        if context is not None and context.layer is not None:
            new[launch] = new[launch]._replace(
                layer=context.layer, direction=context.direction, layer_source="capture"
            )
    share = len(pairs) / max(len(kernels), len(graph.calls))
    return replay.describe()._replace(
        matched=len(pairs),
        how=how if pairs else None,
        confidence=(share * ORDER_ALONE if how == "order" else share) if pairs else None,
    )


def sum_times(kernels: Sequence[Kernel]) -> int | None:
    """Return the time of all, ns; None where one has no duration."""
    times = [kernel.duration_ns for kernel in kernels]
    return None if None in times else int(sum(time for time in times if time is not None))


def _match_kernels(
    kernels: Sequence[Kernel], graph: CapturedGraph
) -> tuple[str, list[tuple[int, int]]]:
    """Return how a replay and a capture were matched, and (kernel, launch) of each match."""
    nodes = {call.node: at for at, call in enumerate(graph.calls) if call.node is not None}
    node_ids = [kernel.graph_node_id for kernel in kernels]
    if len(nodes) == len(graph.calls) and len(set(node_ids) & nodes.keys()) == len(kernels):
        return "node", [(at, nodes[node]) for at, node in enumerate(node_ids) if node is not None]
    names = [kernel.name for kernel in kernels]
    in_order = [(at, at) for at in range(len(kernels))]
    if not any(graph.names):
        return "order", in_order if len(kernels) == len(graph.calls) else []
    if tuple(names) == graph.names:
        return "name", in_order
    return "name", sorted(align(names, graph.names))


def align(left: Sequence[Hashable], right: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield pairs of positions: longest runs that both have in common; then the rest, each with its
    next namesake (streams side by side)."""
    left_rest, right_rest = set(range(len(left))), set(range(len(right)))
    if len(left) * len(right) <= _PAIRS_MAX:
        for block in SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks():
            for offset in range(block.size):
                left_rest.discard(block.a + offset)
                right_rest.discard(block.b + offset)
                yield block.a + offset, block.b + offset
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index in sorted(right_rest, reverse=True):
        waiting[right[index]].append(index)
    for index in sorted(left_rest):
        if waiting[left[index]]:
            yield index, waiting[left[index]].pop()


def explain_by_eager(
    kernels: list[Kernel], graphs: set[int], eager: Sequence[Kernel], name: str
) -> Explained:
    """Give the kernels of ``graphs`` (correlation ids) the layers of the kernels of an eager run,
    whose file is called ``name``."""
    eager_steps = _group_by_step(eager)
    if len(eager_steps) > 1:
        eager_steps.pop(None, None)
    steps = _group_by_step(kernels)
    new, launches = list(kernels), []
    matches: dict[int | None, tuple[dict[int, Kernel], float]] = {}
    is_used = False
    for replay in find_replays(kernels, graphs):
        step = replay.kernels[0].step
        if step is None or step not in matches:
            own = replay.kernels if step is None else steps[step]
            matches[step] = _match_step(own, list(eager_steps.values()))
        pairs, confidence = matches[step]
        matched = [kernel for kernel in replay.kernels if kernel.launch in pairs]
        launch = replay.describe()
        if matched:
            is_used = True
            launch = launch._replace(
                capture=f"{name}, without graphs",
                matched=len(matched),
                how=EAGER,
                confidence=confidence,
            )
        launches.append(launch)
        for kernel in matched:
            other = pairs[kernel.launch]
            if other.layer is not None:
                new[kernel.launch] = kernel._replace(
                    layer=other.layer, direction=other.direction, layer_source="guessed"
                )
    return Explained(new, launches, sources=(name,) if is_used else ())


def _group_by_step(kernels: Sequence[Kernel]) -> dict[int | None, list[Kernel]]:
    """Return the kernels of each step in the order of their start."""
    groups: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in _sort_by_start(kernels):
        groups[kernel.step].append(kernel)
    return groups


def _match_step(
    kernels: list[Kernel], eager_steps: Sequence[list[Kernel]]
) -> tuple[dict[int, Kernel], float]:
    """Return (launch -> the eager run's kernel, confidence) by the step with the most namesakes;
    nothing where it is not alike."""
    names = _count_names(kernels)
    shares = [_share_of_namesakes(names, _count_names(step)) for step in eager_steps]
    best = max(shares, default=0.0)
    if best < NAMESAKES_MIN:
        return {}, 0
    others = eager_steps[shares.index(best)]
    pairs = dict(align(list(map(_shape_key, kernels)), list(map(_shape_key, others))))
    exact = len(pairs)
    rest = [index for index in range(len(kernels)) if index not in pairs]
    taken = set(pairs.values())
    free = [index for index in range(len(others)) if index not in taken]
    by_name = align([kernels[at].name for at in rest], [others[at].name for at in free])
    pairs |= {rest[left]: free[right] for left, right in by_name}
    matched = exact + BY_NAME_ALONE * (len(pairs) - exact)
    kernels_of = {kernels[left].launch: others[right] for left, right in pairs.items()}
    return kernels_of, matched / max(len(kernels), len(others))


def _shape_key(kernel: Kernel) -> tuple[object, ...]:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return kernel.name, *grid, kernel.block_x, kernel.block_y, kernel.block_z


def _add_annotations(explained: Explained, events: Events) -> Explained:
    """Name graph kernels that no capture explains as ``mark_kernels`` named their nodes during the
    capture.

    A name like "conv2:backward" is a layer and a direction; any other is the layer, whose direction
    PyTorch says.
    """
    kernels = list(explained.kernels)
    named: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for index, (text, is_backward) in events.annotated.items():
        kernel = kernels[index]
        if kernel.layer is None and kernel.correlation in events.graphs:
            name, side = read_range_name(text), "backward" if is_backward else "forward"
            kernels[index] = kernel._replace(
                layer=name.layer or text, direction=name.direction or side, layer_source="capture"
            )
            named[kernel.correlation].append(kernel)
    launches = [
        launch._replace(
            capture=ANNOTATIONS,
            matched=len(group),
            how="node",
            confidence=len(group) / launch.kernels,
        )
        if launch.capture is None and (group := named.get(launch.correlation))
        else launch
        for launch in explained.launches
    ]
    sources = (*explained.sources, *([ANNOTATIONS] if named else []))
    return explained._replace(kernels=kernels, launches=launches, sources=sources)


def _describe_matches(launches: Sequence[GraphLaunch], sources: Iterable[str]) -> str:
    """Return how well the kernels of graphs were matched."""
    matched = [launch for launch in launches if launch.confidence is not None]
    kernels = sum(launch.kernels for launch in launches)
    least = min((launch.confidence or 0 for launch in matched), default=0)
    verb = "guessed" if any(launch.how == EAGER for launch in matched) else "inferred"
    how = " or ".join(dict.fromkeys(_MATCHED_BY[launch.how] for launch in matched if launch.how))
    return (
        f"layers of {sum(launch.matched for launch in matched):,} of the {kernels:,} kernels in "
        f"{len(launches)} graph launches were {verb} from {', '.join(sources)}, by {how}; "
        f"confidence {least:.2f} or better"
    )


def _join_operators(own: Operators, captured: Iterable[Operators]) -> Operators:
    """Return the shapes of both; each operator keeps its own place in the order."""
    ops, precision, gaps = list(own.ops), own.precision, list(own.gaps)
    for other in captured:
        if not ops:
            precision = other.precision
        elif precision != other.precision:
            precision = None
        ops += [replace(op, position=len(ops) + at) for at, op in enumerate(other.ops)]
        gaps += [gap for gap in other.gaps if gap.quantity == "layer_call.flops"]
    return Operators(tuple(ops), dict(own.environment), tuple(gaps), precision)
