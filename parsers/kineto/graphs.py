"""Steps of a server in a trace, and the layers of its graphs' kernels with what is missing of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from perfctl.parsers.kineto import captures, eager
from perfctl.parsers.kineto.captures import Explained
from perfctl.parsers.kineto.events import Events
from perfctl.parsers.kineto.nesting import Nesting
from perfctl.parsers.operator_rows import Operators
from perfctl.records.errors import ReportError
from perfctl.records.ranges import read_range_name
from perfctl.records.report import COVERS, Diagnostic, Gap, Kernel, Report
from perfctl.records.served_names import DETAILS
from perfctl.records.serving import EAGER, GraphLaunch, ServedStep


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
    """Give kernels of graphs the layers of the capture: of ``capture``, else of what lies beside ``path``. Where ``capture``
    captures no graph, it is ``parse``d as a run of the same steps without graphs.

    Raises ReportError when ``capture`` cannot be read, or ``path`` launches no graph it could tell of.
    """
    inside = [kernel for kernel in kernels if kernel.correlation in events.graphs]
    if not inside:
        if capture is not None:
            reason = f"it launches no graph whose kernels it recorded, so {capture.name} says nothing about it"
            raise ReportError(path, "torch", reason, "Leave --capture out, or name the trace of an execution")
        return WithCaptures(kernels, operators)
    tokens = [(step.prompt_tokens or 0) + (step.decode_tokens or 0) for step in served]
    paths = [capture] if capture is not None else captures.beside(path, tokens)
    read, said, without = [], [], None
    for one in paths:
        try:
            read.append(captures.read(one))
        except captures.NoCapture as error:
            if capture is None:
                said.append(Diagnostic("warning", "perfctl", f"{one.name}, named by {DETAILS}: {error.reason}"))
            elif not (without := _without_graphs(parse(one))):
                raise
        except ReportError as error:
            if capture is not None:
                raise
            said.append(Diagnostic("warning", "perfctl", f"{one.name}, named by {DETAILS}: {error.reason}"))
    covers = bool(operators.environment.get(COVERS))
    if without and capture is not None:
        found = eager.explain(kernels, events.graphs, without, capture.name)
    else:
        found = captures.explain(kernels, events.graphs, read, whole=covers)
    found = _with_annotations(found, events)
    launches, unknown = found.launches, sum(launch.capture is None for launch in found.launches)
    gaps = []
    if unknown:
        times = [kernel.duration_ns or 0 for kernel in kernels]
        share = sum(kernel.duration_ns or 0 for kernel in inside) / (sum(times) or 1)
        what = f"{len(inside)} of {len(kernels)} kernels ({share * 100:.1f} % of their time) were launched by graphs"
        which = (
            f"{unknown} of {len(launches)} graph launches match no capture"
            if read or without
            else "no module is known of them"
        )
        todo = "give the trace of the capture with perfctl ingest --capture"
        gaps.append(Gap("kernel.layer", "not_collected", f"{what}; {which}: {todo}"))
    if found.used:
        said.append(Diagnostic("info", "perfctl", _said(found.launches, found.used)))
    return WithCaptures(found.kernels, _together(operators, found.operators), tuple(launches), tuple(gaps), tuple(said))


ANNOTATIONS = "annotations of its nodes"
"""``GraphLaunch.capture`` where the trace itself has what the program said of the nodes while the graph was captured."""


def _with_annotations(found: Explained, events: Events) -> Explained:
    """Graph kernels that no capture explains, with the names that ``mark_kernels`` gave their nodes during the capture.

    A name like "conv2:backward" is a layer and a direction; any other is the layer, whose direction PyTorch says.
    """
    if not events.annotated:
        return found
    kernels, named = list(found.kernels), Counter[int]()
    times = Counter[int]()
    for at, (text, is_backward) in events.annotated.items():
        kernel = kernels[at]
        if kernel.layer is None and kernel.correlation in events.graphs:
            said = read_range_name(text)
            layer, direction = said.layer or text, said.direction or ("backward" if is_backward else "forward")
            kernels[at] = kernel._replace(layer=layer, direction=direction, layer_source="capture")
            named[kernel.correlation] += 1
            times[kernel.correlation] += int(kernel.duration_ns or 0)
    launches = [
        launch._replace(
            capture=ANNOTATIONS, matched=(mine := named[launch.correlation]), how="node",
            matched_ns=None if launch.kernel_ns is None else times[launch.correlation], confidence=mine / launch.kernels,
        )
        if launch.capture is None and named[launch.correlation]
        else launch
        for launch in found.launches
    ]  # fmt: skip
    return found._replace(kernels=kernels, launches=launches, used=(*found.used, *([ANNOTATIONS] if named else [])))


def _without_graphs(report: Report) -> list[Kernel]:
    """The kernels of a run that launched no graph; none where it did, or where no kernel has a layer."""
    kernels = list(report.kernels)
    is_eager = not report.graph_launches and any(kernel.layer is not None for kernel in kernels)
    return kernels if is_eager else []


def _said(launches: Iterable[GraphLaunch], used: Iterable[str]) -> str:
    """How well the kernels of graphs were matched."""
    launches = list(launches)
    mine = [launch for launch in launches if launch.confidence is not None]
    kernels, matched = sum(launch.kernels for launch in launches), sum(launch.matched for launch in mine)
    least = min((launch.confidence for launch in mine if launch.confidence is not None), default=0)
    by = {"node": "the graph's node", "name": "name and order", "order": "order alone", EAGER: "sequence"}
    told = "guessed" if any(launch.how == EAGER for launch in mine) else "inferred"
    how = " or ".join(dict.fromkeys(by[launch.how] for launch in mine if launch.how))
    return (
        f"layers of {matched:,} of the {kernels:,} kernels in {len(launches)} graph launches were {told} from"
        f" {', '.join(used)}, by {how}; confidence {least:.2f} or better"
    )


def _together(own: Operators, captured: Iterable[Operators]) -> Operators:
    """The shapes of both; each operator keeps its own place in the order."""
    ops, precision, gaps = list(own.ops), own.precision, list(own.gaps)
    environment = dict(own.environment)
    for one in captured:
        known = {op.op for op in ops}
        ops += [replace(op, position=len(ops) + at) for at, op in enumerate(one.ops)]
        gaps += [gap for gap in one.gaps if gap.quantity == "layer_call.flops"]
        precision = one.precision if not known else precision if precision == one.precision else None
    return Operators(tuple(ops), environment, tuple(gaps), precision)
