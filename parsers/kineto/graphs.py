"""Steps of a server in a trace, and the layers of its graphs' kernels with what is missing of them.

Kernels of graphs get layers by sequence, too, from a trace in which the same step ran without
graphs. An eager run launches about the same kernels in about the same order, each under its module.
The kernels of a step, those between its graphs too, are aligned with a step of the eager run: first
by name, grid and block, which are equal where the shapes are, then what is left by name. It is a
guess: nothing says that the two runs did the same.

Where no range names the steps (transformers' generate, nano-vLLM), prefill and decode are told by
the shapes of operators. A step begins with the look-up of its tokens (aten::embedding). Where a
trace begins inside a step, and none of its modules is called twice, all of it is one. What a step
is follows from its shapes:

- Look-ups and linear layers of (sequences, tokens of each, ...): one token of each is decode, more
  are prefill.
- Where no product with a weight has shapes, either (a trace of attention alone), the tokens are the
  rows of the tensors of queries and of keys, (tokens, heads, head dimension), that operators in the
  module of flash-attention's kernel read before its launch. The kernel's name states the head
  dimension, and its grid has to fit the heads.
- Where all tokens are in one row of sequences (nano-vLLM, vLLM), the rows of the products are the
  tokens. The kernels of attention then tell: those that read a cache in parts for one token of a
  sequence (split-KV with one block of queries, paged attention) are decode's, those of varying
  lengths prefill's. In decode each row is then a sequence, if it checks no drafts. A single row is
  decode where no kernel says otherwise.

Nothing is told of training, of traces without attention, and of those in which nothing reads
a cache.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from perfctl.parsers.kineto import captures
from perfctl.parsers.kineto.captures import ALIKE, Explained, aligned, replays_of, time_of
from perfctl.parsers.kineto.events import MODULE, Events
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.kineto.records import Launches
from perfctl.parsers.operator_rows import Operators
from perfctl.records.errors import ReportError
from perfctl.records.ranges import read_range_name
from perfctl.records.report import COVERS, Diagnostic, Gap, Kernel, Report
from perfctl.records.served_names import DETAILS
from perfctl.records.serving import EAGER, FROM_SHAPES, PART_FROM_SHAPES, GraphLaunch, ServedStep

_LINEAR = {"aten::mm": 0, "aten::linear": 0, "aten::_scaled_mm": 0, "aten::addmm": 1}
"""Products of a weight -> which argument has a row a token."""
_ATTENDS = re.compile(r"attention|attn|softmax|fmha|flash_fwd|splitkv", re.IGNORECASE)
_CACHE = re.compile(
    r"kv_?cache|paged|cache_flash|splitkv|flash_?decod|batch_?decode", re.IGNORECASE
)
_DECODES = re.compile(
    r"paged_attention|flash_?decod|batch_?decode|single_?decode|decode_attention", re.IGNORECASE
)
_SPLIT = re.compile(r"flash_fwd_splitkv_kernel", re.IGNORECASE)
_PREFILLS = re.compile(
    r"varlen|batch_?prefill|flash_fwd_kernel(?!_traits)|prefill_with|fmha_fwd", re.IGNORECASE
)
_FLASH = re.compile(r"\bflash_fwd_(splitkv_)?kernel<Flash_fwd_kernel_traits<\(?(?:int\)\(?)?(\d+)")
"""flash-attention 2: whether it splits the keys, and the head dimension."""
_ALWAYS = 1 << 62
BY_NAME_ALONE = 0.5
"""What a pair counts whose grids differ, a judgement: the kernel is the same, its shapes
are not."""
_Key = tuple[object, ...]

ANNOTATIONS = "annotations of its nodes"
"""``GraphLaunch.capture`` where the trace itself has what the program said of the nodes while the
graph was captured."""


class ShapeSteps(NamedTuple):
    """Steps with their times on the host's clock, or why there are none."""

    steps: tuple[tuple[int, int, ServedStep], ...] = ()
    """(begin, end, step): the first begins before the capture, the last ends after it."""
    gap: Gap | None = None


def shape_steps(events: Events, nesting: Nesting, launches: Launches) -> ShapeSteps:
    """The steps; empty where ranges name them already, or where nothing was generated."""
    named = bool(nesting.served) or any(
        meaning.step is not None for meaning in nesting.meanings.values()
    )
    if named or any(is_backward for _, _, is_backward in events.sequences):
        return ShapeSteps()
    if not events.kernels:
        return _without_kernels(events)
    names = {span.name for span in events.spans} | {kernel.name for kernel in events.kernels}
    if not any(map(_ATTENDS.search, names)):
        return ShapeSteps()
    cached = any(map(_CACHE.search, names))
    found, why = _steps_of_shapes(events, nesting, launches)
    if not cached and not any(step.phase == "decode" for _, _, step in found):
        return ShapeSteps()
    if found:
        return ShapeSteps(found)
    text = f"no range names a step and its shapes do not tell prefill from decode: {why}"
    return ShapeSteps(gap=Gap("served_step", "not_available", text))


def _without_kernels(events: Events) -> ShapeSteps:
    """A gap for a trace of attention's modules on the host alone; an encoder has such modules, too,
    so it names no server."""
    modules = [
        span.name.removeprefix(MODULE)
        for span in events.spans
        if span.is_range and span.name.startswith(MODULE)
    ]
    mine = next((name for name in reversed(modules) if _ATTENDS.search(name)), None)
    if mine is None or any(not span.is_range for span in events.spans):
        return ShapeSteps()
    text = (
        "no range names a step, and the trace has neither kernels nor operators with shapes "
        f"inside its modules ({mine} and others)"
    )
    return ShapeSteps(gap=Gap("served_step", "not_available", text))


def _steps_of_shapes(
    events: Events, nesting: Nesting, launches: Launches
) -> tuple[tuple[tuple[int, int, ServedStep], ...], str | None]:
    begins, looked = _look_ups(events)
    if not begins:
        calls = Counter(
            span.name for span in events.spans if span.is_range and span.name.startswith(MODULE)
        )
        if not calls or max(calls.values()) > 1:
            return (), "nothing marks where a step begins"
    limits = [-_ALWAYS, *begins[1:], _ALWAYS]
    products: list[Counter[tuple[int, ...]]] = [Counter() for _ in limits[1:]]
    for index, call in events.operators.items():
        span = events.spans[index]
        place = _LINEAR.get(span.name)
        if (
            place is None
            or call is None
            or len(call.shapes) <= place
            or not (shape := call.shapes[place])
        ):
            continue
        if len(shape) > 1:
            products[bisect_right(limits, span.start) - 1][shape[:-1]] += 1
    hints: list[Counter[str]] = [Counter() for _ in limits[1:]]
    for event in events.kernels:
        hint = _hint(event.name, event.args[2] if len(event.args) > 2 else None)
        if hint and (at := launches.place(event)) is not None:
            hints[bisect_right(limits, at.at) - 1][hint] += 1
    keys = _keys(events, limits)
    if not begins and not products[0] and (rows := _attended(events, launches)) is not None:
        products[0][(rows,)] += 1
    found = []
    for number, (begin, end) in enumerate(pairwise(limits)):
        shape = looked[number] if looked else None
        step = _step(number, shape, products[number], hints[number], keys[number])
        if isinstance(step, str):
            return (), step
        if not begins:
            step = step._replace(name=step.name.replace(FROM_SHAPES, PART_FROM_SHAPES))
        found.append((begin, end, step))
    return tuple(found), None


def _look_ups(events: Events) -> tuple[list[int], list[tuple[int, ...]]]:
    """When tokens were looked up, and the shape of each; look-ups in other tables (positions) are
    left out."""
    found = []
    for index, span in enumerate(events.spans):
        if span.name == "aten::embedding" and len(shapes := _shapes(events, index)) > 1:
            found.append((span.start, shapes[0], shapes[1]))
    found.sort()
    mine = [item for item in found if item[1] == found[0][1] and item[2]]
    return [start for start, _, _ in mine], [shape for _, _, shape in mine]


def _shapes(events: Events, index: int) -> list[tuple[int, ...]]:
    text = events.arguments[events.signatures[index]][0] if events.signatures is not None else None
    try:
        given = json.loads(text) if text else []
        return [tuple(map(int, shape)) for shape in given]
    except (TypeError, ValueError):
        return []


def _keys(events: Events, limits: Sequence[int]) -> list[Counter[tuple[int, int]]]:
    """Of torch's own attention in each step: (keys of all sequences, pairs of tokens and keys)
    -> calls."""
    found: list[Counter[tuple[int, int]]] = [Counter() for _ in limits[1:]]
    for index, span in enumerate(events.spans):
        if span.name == "aten::scaled_dot_product_attention":
            shapes = _shapes(events, index)
            if len(shapes) > 1 and len(shapes[0]) == len(shapes[1]) == 4:
                (sequences, _, tokens, _), (_, _, keys, _) = shapes[:2]
                found[bisect_right(limits, span.start) - 1][
                    sequences * keys, sequences * tokens * keys
                ] += 1
    return found


def _attended(events: Events, launches: Launches) -> int | None:
    """Tokens of a call of flash-attention: rows of the tensors of queries and of keys before it.
    None where they do not tell."""
    told = set()
    for event in events.kernels:
        found, at = _FLASH.search(event.name), launches.place(event)
        if (
            found is None
            or at is None
            or len(event.args) < 5
            or not isinstance(heads := event.args[4], int)
        ):
            continue
        seen: dict[int, set[int]] = {}
        for index, span in enumerate(events.spans):
            if span.thread == at.thread and span.start < at.at and not span.is_range:
                for shape in _shapes(events, index)[:1]:
                    if len(shape) == 3 and shape[2] == int(found[2]):
                        seen.setdefault(shape[0], set()).add(shape[1])
        # Queries have as many heads as keys or a multiple. The grid has a block for each head, and
        # where keys are split for each sequence and head of keys: fewer than all where some
        # sequences are attended to elsewhere.
        fits = [
            rows
            for rows, several in seen.items()
            if len(several) == 2
            and not max(several) % min(several)
            and (
                not heads % min(several) and heads <= rows * min(several)
                if found[1]
                else heads == max(several)
            )
        ]
        told.update(fits if len(fits) == 1 else [0])
    return told.pop() if len(told) == 1 and 0 not in told else None


def _hint(kernel: str, grid_x: object) -> str | None:
    """Which phase a kernel of attention is of; None for other kernels, and for those of either."""
    if _SPLIT.search(kernel):
        return "decode" if grid_x == 1 else "prefill"
    return "decode" if _DECODES.search(kernel) else "prefill" if _PREFILLS.search(kernel) else None


def _step(
    number: int,
    looked: tuple[int, ...] | None,
    products: Counter[tuple[int, ...]],
    hints: Counter[str],
    keys: Counter[tuple[int, int]],
) -> ServedStep | str:
    """The step, or why it is not known."""
    if not looked and not products:
        return (
            "no product with a weight has shapes, and the tensors around attention do not tell its "
            "tokens"
        )
    shape = looked or max(products, key=lambda shape: (len(shape), products[shape]))
    told = keys.most_common(1)
    keyed, pairs = told[0][0] if len(keys) == 1 else (None, None)
    if len(shape) == 2 and shape[0] == 1 and set(hints) == {"decode"}:
        shape = shape[1:]  # sequences of one token each, packed into one row
    if len(shape) == 2:
        sequences, each = shape
        name = f"{FROM_SHAPES}{sequences:,} x {each:,} tokens"
        if each == 1:
            return ServedStep(
                number, name, "decode", 0, 0, 0, 0, sequences, sequences, keyed, pairs
            )
        return ServedStep(
            number, name, "prefill", sequences, sequences * each, keyed, pairs, 0, 0, 0, 0
        )
    rows = shape[0]
    name = f"{FROM_SHAPES}{rows:,} {'row' if rows == 1 else 'rows'}"
    if rows == 1 and "prefill" not in hints:
        hints = Counter(("decode",))
    if len(hints) != 1:
        kinds = "of both phases" if hints else "of either phase"
        return f"its products have {rows:,} rows, and its kernels of attention may be {kinds}"
    if "decode" in hints:
        return ServedStep(number, name, "decode", 0, 0, 0, 0, rows, rows, keyed, pairs)
    return ServedStep(number, name, "prefill", None, rows, keyed, pairs, 0, 0, 0, 0)


class _Step(NamedTuple):
    number: int | None
    kernels: list[Kernel]
    names: Counter[str]


def explain_by_eager(
    kernels: list[Kernel], graphs: set[int], eager: Sequence[Kernel], name: str
) -> Explained:
    """Give the kernels of ``graphs`` (correlation ids) the layers of the kernels of an eager run,
    whose file is called ``name``."""
    steps, new, launches = _steps(eager), list(kernels), []
    of_steps: defaultdict[int, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.step is not None:
            of_steps[kernel.step].append(kernel)
    matches: dict[int | None, tuple[dict[int, Kernel], float]] = {}
    used = False
    for correlation, mine in replays_of(kernels, graphs):
        step = mine[0].step
        if step is None or step not in matches:
            matches[step] = _match(mine if step is None else of_steps[step], steps)
        pairs, confidence = matches[step]
        found = [(kernel, pairs[kernel.launch]) for kernel in mine if kernel.launch in pairs]
        launch = GraphLaunch(correlation, step, len(mine), time_of(mine))
        if found:
            used = True
            launch = launch._replace(
                capture=f"{name}, without graphs",
                matched=len(found),
                how=EAGER,
                confidence=confidence,
            )
        launches.append(launch)
        for kernel, other in found:
            if other.layer is not None:
                new[kernel.launch] = kernel._replace(
                    layer=other.layer, direction=other.direction, layer_source="guessed"
                )
    return Explained(new, launches, used=(name,) if used else ())


def _steps(eager: Sequence[Kernel]) -> list[_Step]:
    """The kernels of each step in the order of their start; all together where no kernel is of
    a step."""
    groups: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in eager:
        groups[kernel.step].append(kernel)
    if len(groups) > 1:
        groups.pop(None, None)
    return [
        _Step(number, _ordered(group), Counter(one.name for one in group))
        for number, group in groups.items()
    ]


def _ordered(kernels: Sequence[Kernel]) -> list[Kernel]:
    return sorted(kernels, key=lambda kernel: (kernel.start_ns or 0, kernel.launch))


def _match(mine: Sequence[Kernel], steps: Sequence[_Step]) -> tuple[dict[int, Kernel], float]:
    """(launch -> the eager run's kernel, confidence) by the step with the most namesakes; nothing
    where it is not alike."""
    mine, names = _ordered(mine), Counter(kernel.name for kernel in mine)
    best = max(steps, key=lambda step: _share(names, step.names), default=None)
    if best is None or _share(names, best.names) < ALIKE:
        return {}, 0
    others = best.kernels
    pairs = dict(aligned([_key(one) for one in mine], [_key(one) for one in others]))
    exact = len(pairs)
    taken = set(pairs.values())
    left = [at for at in range(len(mine)) if at not in pairs]
    free = [at for at in range(len(others)) if at not in taken]
    for one, other in aligned([mine[at].name for at in left], [others[at].name for at in free]):
        pairs[left[one]] = free[other]
    confidence = (exact + BY_NAME_ALONE * (len(pairs) - exact)) / max(len(mine), len(others))
    return {mine[one].launch: others[other] for one, other in pairs.items()}, confidence


def _share(left: Counter[str], right: Counter[str]) -> float:
    return (left & right).total() / max(left.total(), right.total(), 1)


def _key(kernel: Kernel) -> _Key:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return kernel.name, *grid, kernel.block_x, kernel.block_y, kernel.block_z


@dataclass(frozen=True, slots=True)
class WithCaptures:
    """What is known of a trace once its captures are read."""

    kernels: list[Kernel]
    operators: Operators
    launches: tuple[GraphLaunch, ...] = ()
    gaps: tuple[Gap, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()


def served_ranges(nesting: Nesting) -> dict[int, ServedStep]:
    """Number of each range that is a step of a server -> the step."""
    numbers = {index: number for number, index in enumerate(nesting.meanings)}
    return {numbers[index]: step for index, step in nesting.served.items()}


def with_captures(
    path: Path,
    capture: Path | None,
    events: Events,
    kernels: list[Kernel],
    operators: Operators,
    served: Iterable[ServedStep],
    parse: Callable[[Path], Report],
) -> WithCaptures:
    """Give kernels of graphs the layers of the capture: of ``capture``, else of what lies beside
    ``path``. Where ``capture`` captures no graph, it is ``parse``d as a run of the same steps
    without graphs.

    Raises ReportError when ``capture`` cannot be read, or ``path`` launches no graph it could
    tell of.
    """
    inside = [kernel for kernel in kernels if kernel.correlation in events.graphs]
    if not inside:
        if capture is not None:
            reason = (
                f"it launches no graph whose kernels it recorded, so {capture.name} says nothing "
                "about it"
            )
            raise ReportError(
                path, "torch", reason, "Leave --capture out, or name the trace of an execution"
            )
        return WithCaptures(kernels, operators)
    tokens = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in served]
    paths = [capture] if capture is not None else captures.beside(path, tokens)
    read, said, without = [], [], None
    for one in paths:
        try:
            read.append(captures.read(one))
        except captures.NoCapture as error:
            if capture is None:
                said.append(
                    Diagnostic(
                        "warning", "perfctl", f"{one.name}, named by {DETAILS}: {error.reason}"
                    )
                )
            elif not (without := _without_graphs(parse(one))):
                raise
        except ReportError as error:
            if capture is not None:
                raise
            said.append(
                Diagnostic("warning", "perfctl", f"{one.name}, named by {DETAILS}: {error.reason}")
            )
    covers = bool(operators.environment.get(COVERS))
    if without and capture is not None:
        found = explain_by_eager(kernels, events.graphs, without, capture.name)
    else:
        found = captures.explain(kernels, events.graphs, read, whole=covers)
    found = _with_annotations(found, events)
    launches, unknown = found.launches, sum(launch.capture is None for launch in found.launches)
    gaps = []
    if unknown:
        times = [kernel.duration_ns or 0 for kernel in kernels]
        share = sum(kernel.duration_ns or 0 for kernel in inside) / (sum(times) or 1)
        what = (
            f"{len(inside)} of {len(kernels)} kernels ({share * 100:.1f} % of their time) were "
            "launched by graphs"
        )
        which = (
            f"{unknown} of {len(launches)} graph launches match no capture"
            if read or without
            else "no module is known of them"
        )
        todo = "give the trace of the capture with perfctl ingest --capture"
        gaps.append(Gap("kernel.layer", "not_collected", f"{what}; {which}: {todo}"))
    if found.used:
        said.append(Diagnostic("info", "perfctl", _said(found.launches, found.used)))
    return WithCaptures(
        found.kernels,
        _together(operators, found.operators),
        tuple(launches),
        tuple(gaps),
        tuple(said),
    )


def _with_annotations(found: Explained, events: Events) -> Explained:
    """Graph kernels that no capture explains, with the names that ``mark_kernels`` gave their nodes
    during the capture.

    A name like "conv2:backward" is a layer and a direction; any other is the layer, whose direction
    PyTorch says.
    """
    if not events.annotated:
        return found
    kernels, named = list(found.kernels), Counter[int]()
    for at, (text, is_backward) in events.annotated.items():
        kernel = kernels[at]
        if kernel.layer is None and kernel.correlation in events.graphs:
            said = read_range_name(text)
            layer, direction = (
                said.layer or text,
                said.direction or ("backward" if is_backward else "forward"),
            )
            kernels[at] = kernel._replace(layer=layer, direction=direction, layer_source="capture")
            named[kernel.correlation] += 1
    launches = [
        launch._replace(
            capture=ANNOTATIONS,
            matched=(mine := named[launch.correlation]),
            how="node",
            confidence=mine / launch.kernels,
        )
        if launch.capture is None and named[launch.correlation]
        else launch
        for launch in found.launches
    ]
    return found._replace(
        kernels=kernels, launches=launches, used=(*found.used, *([ANNOTATIONS] if named else []))
    )


def _without_graphs(report: Report) -> list[Kernel]:
    """The kernels of a run that launched no graph; none where it did, or where no kernel has
    a layer."""
    kernels = list(report.kernels)
    is_eager = not report.graph_launches and any(kernel.layer is not None for kernel in kernels)
    return kernels if is_eager else []


def _said(launches: Iterable[GraphLaunch], used: Iterable[str]) -> str:
    """How well the kernels of graphs were matched."""
    launches = list(launches)
    mine = [launch for launch in launches if launch.confidence is not None]
    kernels, matched = (
        sum(launch.kernels for launch in launches),
        sum(launch.matched for launch in mine),
    )
    least = min((launch.confidence for launch in mine if launch.confidence is not None), default=0)
    by = {
        "node": "the graph's node",
        "name": "name and order",
        "order": "order alone",
        EAGER: "sequence",
    }
    told = "guessed" if any(launch.how == EAGER for launch in mine) else "inferred"
    how = " or ".join(dict.fromkeys(by[launch.how] for launch in mine if launch.how))
    return (
        f"layers of {matched:,} of the {kernels:,} kernels in {len(launches)} graph launches were "
        f"{told} from {', '.join(used)}, by {how}; confidence {least:.2f} or better"
    )


def _together(own: Operators, captured: Iterable[Operators]) -> Operators:
    """The shapes of both; each operator keeps its own place in the order."""
    ops, precision, gaps = list(own.ops), own.precision, list(own.gaps)
    environment = dict(own.environment)
    for one in captured:
        known = {op.op for op in ops}
        ops += [replace(op, position=len(ops) + at) for at, op in enumerate(one.ops)]
        gaps += [gap for gap in one.gaps if gap.quantity == "layer_call.flops"]
        precision = (
            one.precision if not known else precision if precision == one.precision else None
        )
    return Operators(tuple(ops), environment, tuple(gaps), precision)
