"""Chapters of a network against pen and paper: its layers, a hand sheet, counts, times by two
clocks, memory, training, machine and verdicts.

With two networks, each table has both, in rows one below the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, permutations

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.sheets.slips import explain, in_its_unit
from perfctl.orchestrator.ledger.hand_values import HandValue, check_hand_values, unknown_layer
from perfctl.orchestrator.ledger.network import (
    NO_BACKWARD,
    Clocks,
    LayerPoint,
    Network,
    networks_of,
)
from perfctl.orchestrator.ledger.prepared import heading
from perfctl.orchestrator.ledger.timing import Spread
from perfctl.orchestrator.ledger.usage.run_usage import RunUsage
from perfctl.orchestrator.report.charts.comparison import (
    clocks_chart,
    flops_chart,
    host_run,
    step_losses,
    training_charts,
)
from perfctl.orchestrator.report.findings import findings as page_findings
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix
from perfctl.orchestrator.report.numbers import full, ratio, si, size, time
from perfctl.orchestrator.report.page.about import ORIGINS, device_text
from perfctl.orchestrator.report.page.records import LONGEST, Finding, shortened
from perfctl.orchestrator.report.page.study import summaries
from perfctl.orchestrator.report.page.usage import memory_table, readings_table, ways_table
from perfctl.orchestrator.report.studies.records import Chapter, Subject
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    decimal_cell,
    figure_cell,
    nothing,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.run import Run

MORE_IN_LESS = "more work in less time"
PARTS_RULES = ("other GPU", MORE_IN_LESS)
"""Rules of runs that differ in GPU or in the network."""
SCATTER_MIN = 3.0
"""Steps of one run that differ by this factor are no basis for a comparison of times."""
MOMENTS = {
    "start": "before loading",
    "before": "after loading",
    "peak": "peak of the measured steps",
    "after": "at the end",
}
"""Moment of a memory figure -> in words."""
QUANTITIES = {
    "allocated": "GPU, allocated by torch",
    "reserved": "GPU, reserved by torch",
    "device_free": "GPU, free",
    "device_total": "GPU, total",
    "host_available": "CPU, available",
    "host_resident": "CPU, of the process",
}
UNITS = ("MAC", "FLOP", "elementwise FLOP", "values", "B")
DATA = {"synthetic": "drawn digits or random values, not a published data set", "mnist": "MNIST"}
_STATED = re.compile(r"memory (allocated|reserved), (before|after)")


@dataclass(frozen=True, slots=True)
class Compared:
    """What the chapters are made of."""

    networks: tuple[Network, ...]
    layer: str
    """The layer that is looked at closely."""
    batch: int
    """Batch size of the hand sheet, the memory figures and the training."""
    hand: tuple[HandValue, ...]
    points: tuple[tuple[Network, tuple[LayerPoint, ...]], ...]

    @property
    def runs(self) -> list[Run]:
        return [run for network in self.networks for run in network.runs]

    @property
    def all_points(self) -> list[LayerPoint]:
        return [point for _, points in self.points for point in points]

    @property
    def scatter(self) -> float:
        """Return the largest slowest / fastest step of the layer's forward pass."""
        return max((point.forward.scatter for point in self.all_points), default=1.0)

    @property
    def heads(self) -> list[Column]:
        """Return the column that tells networks apart, where there are several."""
        return [Column("network", style="text")] if len(self.networks) > 1 else []

    def of(self, networks: Sequence[Network]) -> Compared:
        """Return the same of these networks alone."""
        return replace(self, networks=tuple(networks))

    def name(self, network: Network) -> list[Cell]:
        """Return the cell of that column."""
        return [text_cell(network.label)] if len(self.networks) > 1 else []

    def rows(self) -> Iterator[tuple[list[Cell], LayerPoint]]:
        """Yield points, batch sizes ascending and at each the networks in order, with the cells
        that say which row it is."""
        for batch in sorted({point.batch for point in self.all_points}):
            for network, points in self.points:
                for point in points:
                    if point.batch == batch:
                        yield [text_cell(batch), *self.name(network)], point


def subject(
    runs: Sequence[Run],
    *,
    workload: str | None = None,
    layer: str | None = None,
    batch: int | None = None,
    hand: Sequence[str] = (),
) -> Subject:
    """Return what the chapters are made of. Raises PerfctlError without a network, UsageError for
    a layer that it does not have."""
    networks = networks_of(runs, workload)
    if not networks:
        which = f" of {workload}" if workload else ""
        raise PerfctlError(
            f"no run{which} with a batch size and shapes of its layers",
            "Name the network with `workload`",
        )
    layer = layer or networks[0].main_layer() or ""
    sizes = networks[0].batches
    batch = batch if batch in sizes else sizes[-1]
    if networks[0].sheet(batch, layer) is None:
        raise unknown_layer("layer", layer, networks[0], batch)
    values = tuple(check_hand_values(networks, hand, batch))
    points = tuple((network, network.points(layer)) for network in networks)
    compared = Compared(networks, layer, batch, values, points)
    origins = dict.fromkeys(run.origin for run in compared.runs if run.origin != "measured")
    return Subject(
        {name: partial(chapter, compared) for name, chapter in CHAPTERS.items()},
        tuple(_facts(compared)),
        {"layer": layer, "network": str(compared.runs[0].workload)},
        origins=tuple(ORIGINS.get(name, name) for name in origins),
    )


def _facts(compared: Compared) -> Iterator[tuple[str, str]]:
    runs = compared.runs
    yield "network", heading(compared.networks[0].analyses[0].study)
    if len(compared.networks) > 1:
        yield "compared", " with ".join(network.label for network in compared.networks)
    devices = dict.fromkeys(
        filter(
            None,
            (device_text(one.study) for network in compared.networks for one in network.analyses),
        )
    )
    yield "device", ", ".join(devices) or "not recorded"
    batches = {batch for network in compared.networks for batch in network.batches}
    yield "batch sizes", ", ".join(map(str, sorted(batches)))
    tools = dict.fromkeys(_tool(run) for run in runs)
    if any(point.host for point in compared.all_points):
        tools["the host's clock, which waited for nothing"] = None
    yield "measured by", ", ".join(filter(None, tools))
    data = dict.fromkeys(run.report.environment.get("option:data", "") for run in runs)
    if named := [f"{name} ({DATA[name]})" if name in DATA else name for name in data if name]:
        yield "data", ", ".join(named)
    if day := min((run.started_at for run in runs if run.started_at), default="")[:10]:
        yield "date", day


def _tool(run: Run) -> str:
    """Return what measured: the profiler, or the clock where a run says which."""
    if run.profiler != "none":
        return {"torch": "the PyTorch profiler"}.get(run.profiler, run.profiler)
    if run.report.layer_times:
        return "a synchronised clock"
    timed = any(step.duration_ns is not None for step in run.report.steps)
    return "a clock without a profiler" if timed else ""


def network_chapter(compared: Compared) -> Chapter:
    """Layers, output shapes, parameters, multiply-adds, FLOPs and bytes, from the shapes."""
    heads = [
        Column("layer", style="text"),
        Column("kind", style="text"),
        *compared.heads,
        Column("output shape", style="text"),
        Column("parameters"),
        Column("MAC", note="multiply-adds of forward"),
        Column("forward FLOP", note="2 x MAC"),
        Column("backward FLOP", note="gradients of the input and of the weights"),
        Column("elementwise FLOP", note="other arithmetic of forward: bias, activation, pooling"),
        Column("parameter B"),
        Column("written B", note="by forward"),
    ]
    rows, text = [], []
    for network in compared.networks:
        sheet = network.network_sheet(compared.batch)
        text.append(f"{network.label}: {sheet.total.parameters:,} parameters.")
        for number, line in enumerate((*sheet.lines, *([sheet.total] if sheet.lines else []))):
            shape = " x ".join(map(str, line.output or ()))
            unknown = "an operation has no formula"
            cells = [
                text_cell(line.layer),
                text_cell(line.kind),
                *compared.name(network),
                text_cell(shape) if shape else nothing("no output of its own"),
                count(line.parameters),
                count(line.macs, unknown),
                count(line.flops, unknown),
                count(line.backward_flops, unknown) if sheet.backward else nothing(NO_BACKWARD),
                count(line.elementwise_flops, unknown),
                count(line.parameter_bytes),
                count(line.written_bytes),
            ]
            rows.append((line is sheet.total, number, cells))
    rows.sort(key=lambda row: row[:2])
    caption = f"Layers, parameters and FLOPs on paper, batch {compared.batch}"
    made = table(caption, heads, [cells for *_, cells in rows])
    return Chapter(tuple(text), tables=(made,), findings=tuple(_compare_shapes(compared)))


def _compare_shapes(compared: Compared) -> Iterator[str]:
    for (first, before), (second, after) in pairwise(compared.points):
        a, b = (
            next((one for one in points if one.batch == compared.batch), None)
            for points in (before, after)
        )
        if a is None or b is None or not a.paper.value or not b.paper.value:
            continue
        held = [
            network.network_sheet(compared.batch).total.parameters for network in (first, second)
        ]
        text = (
            f"{second.label}: {held[1]:,} parameters instead of {held[0]:,}; {compared.layer} does "
            f"x {ratio(b.paper.value / a.paper.value)} FLOPs"
        )
        clocks = a.forward.synchronised, b.forward.synchronised
        if clocks[0] and clocks[1] and compared.scatter < SCATTER_MIN:
            text += f" in x {ratio(clocks[1].median / clocks[0].median)} time"
        yield f"{text}."


def hand_chapter(compared: Compared) -> Chapter:
    """Values worked out by hand, checked; every figure of the layer in all its units; its sheet
    line by line."""
    layer, batch = compared.layer, compared.batch
    quantities: list[tuple[int, list[Cell]]] = []
    worked = []
    for network in compared.networks:
        sheet = network.sheet(batch, layer)
        values: dict[str, dict[str, int]] = defaultdict(dict)
        for item in sheet.quantities if sheet else ():
            values[item.what].setdefault(item.unit, item.value)
        for number, (what, by_unit) in enumerate(values.items()):
            absent = "not a figure of this quantity"
            kib = by_unit["B"] / 1024 if "B" in by_unit else None
            cells = [count(by_unit.get(unit), absent) for unit in UNITS]
            cells.append(nothing(absent) if kib is None else Cell(full(kib), value=kib))
            quantities.append((number, [text_cell(what), *compared.name(network), *cells]))
        words = ("part", "what", "formula", "numbers", "result")
        lines = [
            [
                section.title,
                *map(text_cell, (line.what, line.formula, line.numbers, line.result)),
            ]
            for section in (sheet.sections if sheet else ())
            for line in section.lines
        ]
        of = f", {network.label}" if len(compared.networks) > 1 else ""
        caption = f"{layer} at batch {batch}{of}, worked line by line"
        heads = [Column(word, style="text") for word in words]
        worked.append(table(caption, heads, lines, tools=False))
    quantities.sort(key=lambda row: row[0])
    columns = [Column("quantity", style="text"), *compared.heads, *map(Column, (*UNITS, "KiB"))]
    every = table(
        f"{layer} at batch {batch}: every quantity", columns, [cells for _, cells in quantities]
    )
    return Chapter(
        tuple(explain(value.finding, value.layer) for value in compared.hand),
        tables=(_hand_table(compared), every, *worked),
        findings=tuple(map(shortened, _judge_hand(compared.hand))),
    )


def _hand_table(compared: Compared) -> Table | None:
    heads = [
        Column("layer", style="text"),
        Column("your value"),
        Column("verdict", style="text"),
        *compared.heads,
        Column("batch"),
        Column("right"),
        Column("unit", style="text"),
        Column("quantity", style="text"),
    ]
    rows = []
    for value in compared.hand:
        finding = value.finding
        wrong = f"wrong: {'; '.join(finding.slips)}" if finding.exact else "not explained"
        rows.append(
            [
                value.layer,
                finding.value,
                "right" if value.is_right else wrong,
                *([value.network] if compared.heads else []),
                text_cell(value.batch),
                finding.right,
                finding.unit,
                finding.quantity or "forward",
            ]
        )
    return table("Hand values, checked", heads, rows, tools=False)


def _judge_hand(values: Sequence[HandValue]) -> Iterator[str]:
    """Yield the first value, and the second, or all others in short."""
    for value in values[:1] if len(values) > 2 else values:
        finding = value.finding
        start = f"Your {finding.value:,} for {value.layer} (batch {value.batch}) is"
        right = f"{finding.right:,} {finding.unit}"
        if value.is_right:
            yield f"{start} right: {finding.quantity or finding.unit}."
        elif finding.exact:
            text = f"{start} wrong: {' and '.join(finding.slips)}. Right: {right}."
            slips = f"{len(finding.slips)} slips" if len(finding.slips) > 1 else "one slip"
            yield text if len(text) <= LONGEST else f"{start} wrong by {slips}. Right: {right}."
        else:
            yield f"{start} none of its figures, and no usual slip makes it; nearest is {right}."
    if len(values) > 2:
        others = values[1:]
        judged = [
            f"{in_its_unit(value.finding)} is right"
            if value.is_right
            else f"{value.finding.value:,} should be {value.finding.right:,} {value.finding.unit}"
            if value.finding.exact
            else f"{value.finding.value:,} is not explained"
            for value in others
        ]
        of = f" of {values[0].layer}" if len({value.layer for value in values}) == 1 else ""
        text = f"The other hand values{of}: {'; '.join(judged)}."
        right_count = sum(value.is_right for value in others)
        wrong_count = len(others) - right_count
        short = f"The other {len(others)} hand values{of}: {right_count} right, {wrong_count} not."
        yield text if len(text) <= LONGEST else short


def comparison_chapter(compared: Compared) -> Chapter:
    """Paper, counted and derived FLOPs of the layer's forward pass, and of the whole step."""
    layer, points = compared.layer, compared.all_points
    heads = [
        Column("batch"),
        *compared.heads,
        Column(f"{layer} on paper", "MAC"),
        Column(f"{layer} on paper", "FLOP"),
        Column(f"{layer} counted", "FLOP", note="by hardware counters"),
        Column(f"{layer} derived", "FLOP", note="from kernel names, grids and shapes"),
        Column("counted / paper"),
        Column("outside layers, collected", "FLOP", note="instructions of kernels in no range"),
        Column("outside layers, derived", "FLOP", note="with those that were not collected"),
        Column("step on paper", "FLOP", note="forward and backward of all layers"),
        Column("step counted", "FLOP"),
    ]
    rows = []
    for name, point in compared.rows():
        paper, counted = point.paper.value, point.counted
        share = counted.value / paper if counted.value is not None and paper else None
        loose = [
            count(None if value is None else round(value), "no such kernel was collected")
            for value in (point.loose.flops, point.loose.derived)
        ]
        rows.append(
            [
                *name,
                count(None if paper is None else int(paper / 2), point.paper.reason or ""),
                _exact(point.paper),
                figure_cell(counted, "FLOP"),
                figure_cell(point.derived, "FLOP"),
                nothing(counted.reason or "not counted")
                if share is None
                else Cell(ratio(share), value=share),
                *loose,
                _exact(point.step_paper),
                figure_cell(point.step_counted, "FLOP"),
            ]
        )
    made = table(f"FLOPs of {layer} forward and of a step", heads, rows, tools=False)
    reasons = dict.fromkeys(p.counted.reason for p in points if p.counted.value is None)
    text = [f"Counted: not available. Reason: {reason}." for reason in reasons if reason]
    if names := dict.fromkeys(name for point in points for name in point.loose.names):
        text.append(
            f"Some kernels belong to no layer. What was collected of them: {', '.join(names)}. "
            "Derived: all their instructions, from kernel name and shapes."
        )
    missing = [
        (f"{what} FLOPs of {layer}", f"{figures[0].reason or 'not collected'}. {remedy}")
        for what, figures, remedy in (
            (
                "counted",
                [point.counted for point in points],
                "Run the same command on a machine with an NVIDIA GPU and ncu",
            ),
            (
                "derived",
                [point.derived for point in points],
                "They need the kernels of a GPU, from torch, nsys or ncu",
            ),
        )
        if figures and all(figure.value is None for figure in figures)
    ]
    return Chapter(
        tuple(text),
        (flops_chart(layer, _labelled(compared)),),
        (made and replace(made, notes=()),),
        findings=tuple(_judge_counts(compared)),
        missing=tuple(missing),
    )


def _exact(figure: Figure) -> Cell:
    if figure.lower_bound:
        return figure_cell(figure, "FLOP")
    value = None if figure.value is None else round(figure.value)
    return count(value, figure.reason or "not known")


def _judge_counts(compared: Compared) -> Iterator[Finding | str]:
    _, points = compared.points[0]
    last = points[-1]
    if (paper := last.paper.value) is not None:
        said = f"{compared.layer} forward at batch {last.batch}: {si(paper, 'FLOP')} on paper"
        for figure, how in ((last.counted, "counted"), (last.derived, "derived from its kernels")):
            if figure.value is not None:
                share = ratio(figure.value / paper)
                yield f"{said}, {si(figure.value, 'FLOP')} {how} ({share} of paper)."
                break
        else:
            if last.loose.flops is not None:
                names = ", ".join(last.loose.names)
                loose = si(last.loose.flops, "FLOP")
                yield f"{said}; kernels of no layer show {loose} of {names}."
            else:
                why = (last.counted.reason or "no counters at this batch size").partition(";")[0]
                yield shortened(f"{said}; nothing was counted: {why}.")
    flat = [point.loose.flops for point in points if point.loose.flops is not None]
    if len(flat) > 1 and len(set(flat)) == 1 and points[0].batch != last.batch:
        text = (
            f"What was counted is the same at batch {points[0].batch} to {last.batch}: "
            f"{flat[0]:,.0f} FLOP. The sweep changed nothing in it."
        )
        yield Finding(text, "verdicts")


def _labelled(compared: Compared) -> list[tuple[str, Sequence[LayerPoint]]]:
    """Return points with names for charts: without the word that all begin with."""
    words = [network.label.split() for network in compared.networks]
    has_same = len({tuple(one[:1]) for one in words}) == 1 and all(one[1:] for one in words)
    return [
        ("" if len(words) == 1 else " ".join(one[1:] if has_same else one), points)
        for one, (_, points) in zip(words, compared.points, strict=True)
    ]


def time_chapter(compared: Compared) -> Chapter:
    """Times of the layer and of a step by the synchronised clock and under the profiler."""
    layer, points = compared.layer, compared.all_points
    bases = dict.fromkeys(
        clocks.basis for point in points for clocks in (point.forward, point.step) if clocks.basis
    )
    text = []
    if any(point.forward.synchronised or point.step.synchronised for point in points):
        text.append("Clock: it waits until the device is idle, and no profiler runs.")
    text += [f"Profiler: {'; '.join(bases)}."] if bases else []
    if compared.scatter >= SCATTER_MIN:
        text.append(
            f"Within one run the slowest step takes x {ratio(compared.scatter)} the fastest: other "
            "work ran on this machine. Do not compare these times with each other."
        )
    host_rows = [
        [*name, host_run(tool), Cell(f"{ns / 1e6:g}", full(ns, "ns"), value=ns / 1e6)]
        for name, point in compared.rows()
        for tool, ns in point.host
    ]
    if host_rows:
        text.append(
            "A host clock that waits for nothing sees the launch of a kernel, not the kernel."
        )
    heads = [Column("batch"), *compared.heads, Column("run", style="text"), Column("time", "ms")]
    missing = [
        (f"time of {layer} {how}", why)
        for how, why, is_timed in (
            (
                "by a synchronised clock",
                "no run timed its layers with one: those of built-in workloads do",
                any(point.forward.synchronised for point in points),
            ),
            (
                "under a profiler",
                "no trusted report times it: nsys and the PyTorch profiler do",
                any(point.forward.profiled for point in points),
            ),
        )
        if not is_timed
    ]
    parts = {"forward": lambda point: point.forward, "backward": lambda point: point.backward}
    return Chapter(
        tuple(text),
        (clocks_chart(layer, _labelled(compared)),),
        (
            _clocks_table(f"Time of {layer}, by two clocks", compared, parts),
            _clocks_table(
                "Time of a step, by two clocks", compared, {"step": lambda point: point.step}
            ),
            table(
                f"Time of {layer} by the host's clock, as reported", heads, host_rows, tools=False
            ),
        ),
        findings=tuple(_judge_times(compared)),
        missing=tuple(missing),
    )


def _clocks_table(
    caption: str, compared: Compared, parts: dict[str, Callable[[LayerPoint], Clocks]]
) -> Table | None:
    heads = [Column("batch"), *compared.heads]
    for what in parts:
        heads += [
            Column(
                f"{what}, clock",
                base="ns",
                note="a clock that waits for the device, no profiler; median",
            ),
            Column(f"{what}, profiler", base="ns", note="median over the measured steps"),
            Column(f"{what}, profiler / clock"),
        ]
    rows = []
    for name, point in compared.rows():
        cells = []
        for clocks in (part(point) for part in parts.values()):
            factor = clocks.factor
            cells += [
                _spread_cell(clocks.synchronised, "no run timed it with a synchronised clock"),
                _spread_cell(clocks.profiled, "no profiler timed it", clocks.basis),
                nothing("needs both") if factor is None else Cell(ratio(factor), value=factor),
            ]
        rows.append([*name, *cells])
    made = table(caption, heads, rows, tools=False)
    has_times = made is not None and len(made.columns) > 1 + len(compared.heads)
    return replace(made, notes=()) if made is not None and has_times else None


def _spread_cell(spread: Spread | None, why: str, basis: str | None = None) -> Cell:
    if spread is None:
        return nothing(why)
    text = f"{time(spread.low)} to {time(spread.high)} over {spread.count} steps"
    return time_cell(spread.median, note="; ".join(filter(None, (text, basis))))


def _judge_times(compared: Compared) -> Iterator[Finding | str]:
    layer = compared.layer
    _, points = compared.points[0]
    chosen = next((point for point in points if point.batch == compared.batch), points[-1])
    both = {
        "on the synchronised clock": chosen.forward.synchronised,
        "under the profiler": chosen.forward.profiled,
    }
    if times := [f"{time(spread.median)} {how}" for how, spread in both.items() if spread]:
        factor = f" (x {ratio(chosen.forward.factor)})" if chosen.forward.factor else ""
        yield f"{layer} forward at batch {chosen.batch} takes {', '.join(times)}{factor}."
    if compared.scatter >= SCATTER_MIN:
        yield (
            f"Times scatter by x {ratio(compared.scatter)} within one run: other work ran here. "
            "Repeat them on an idle machine."
        )
    timed = [
        (point.batch, point.forward.synchronised.median)
        for point in points
        if point.forward.synchronised is not None
    ]
    if len(timed) > 1 and compared.scatter < SCATTER_MIN:
        (first, before), (last, after) = timed[0], timed[-1]
        yield (
            f"From batch {first} to {last} the work of {layer} grows x {ratio(last / first)}, its "
            f"time x {ratio(after / before)}."
        )
    by_tool: dict[str, list[float]] = defaultdict(list)
    for point in points:
        for tool, ns in point.host:
            by_tool[tool].append(ns)
    host = max(by_tool.values(), key=len, default=[])
    if len(host) > 1:
        yield (
            f"By the host's clock {layer} takes {time(min(host))} to {time(max(host))} at every "
            "batch: it saw the launch."
        )
    judged = any(
        cause.rule == MORE_IN_LESS
        for network in compared.networks
        for analysis in network.analyses
        for cause in analysis.judgement.sweep
    )
    works = [
        (point.batch, tool, point.paper.value / 2, ns)
        for point in compared.all_points
        if point.paper.value
        for tool, ns in point.host
    ]
    for less, more in permutations(works, 2) if judged else ():
        if less[:2] == more[:2] and less[2] < more[2] and less[3] > more[3]:
            took = [f"{one[3] / 1e6:g} ms for {si(one[2])} multiply-adds" for one in (more, less)]
            text = f"{layer} took {took[0]}, but {took[1]}: such times cannot be compared."
            yield Finding(text, "verdicts")
            return


def _trained(network: Network, batch: int) -> Run | None:
    """Return the run with epochs, at ``batch`` where there are several."""
    known = [
        run
        for run in network.runs
        if any(step.phase in ("epoch", "test") for step in run.report.steps)
    ]
    return min(known, key=lambda run: run.batch_size != batch, default=None)


def _is_foreign(run: Run) -> bool:
    """Whether the report was made elsewhere: its moments are those of a training, and its figures
    have the digits they have."""
    return run.origin not in ("measured", "recorded")


def memory_chapter(compared: Compared) -> Chapter:
    """Each quantity at each moment of one run of each network: with epochs, else without a
    profiler, else any."""
    chosen: list[tuple[Network, Run]] = []
    for network in compared.networks:
        trained = _trained(network, compared.batch)
        run = min(
            (run for run in network.runs if run.report.memory),
            key=lambda run: (
                run is not trained,
                run.batch_size != compared.batch,
                run.profiler != "none",
            ),
            default=None,
        )
        chosen += [(network, run)] if run is not None else []
    missing = tuple(_missing_memory(compared.runs))
    if not chosen:
        return Chapter(missing=missing)
    run = chosen[0][1]
    epochs = sum(step.phase == "epoch" for step in run.report.steps)
    trained_for = {0: "", 1: ", one epoch and its test"}.get(
        epochs, f", {epochs} epochs and their tests"
    )
    loaded = "After loading: the model is on its device, and no step has run."
    if any(item.moment == "start" for item in run.report.memory):
        loaded = f"Before loading: torch is imported, and there is no model. {loaded}"
    elif run.mode is None:
        loaded = "After loading: before the first measured step of the program."
    end = f"At the end: after the measured steps{trained_for}, at batch {run.batch_size}."
    text = [f"{loaded} {end}"]
    if _is_foreign(run):
        text = ["Before and after the training, as the report states them."]
    every = [
        _of_network(compared, network, memory_table(network.runs)) for network in compared.networks
    ]
    by_moment = _memory_by_moment(compared.of([network for network, _ in chosen]), chosen)
    held = {(item.moment, item.quantity): item.bytes for item in run.report.memory}
    findings: list[str] = []
    for quantity, what in (
        ("reserved", "GPU memory reserved"),
        ("host_resident", "CPU memory of the process"),
    ):
        before, after = held.get(("before", quantity)), held.get(("after", quantity))
        if before is not None and after is not None and not findings:
            findings.append(f"{what}: {size(before)} after loading, {size(after)} at the end.")
    return Chapter(
        tuple(text),
        tables=(by_moment,),
        folded=tuple(every),
        findings=tuple(findings),
        missing=missing,
    )


def _of_network(compared: Compared, network: Network, made: Table | None) -> Table | None:
    """Return the table with the network's name in its caption, where there are several."""
    if made is None or len(compared.networks) == 1:
        return made
    return replace(made, caption=f"{made.caption}, {network.label}")


def _memory_by_moment(compared: Compared, chosen: Sequence[tuple[Network, Run]]) -> Table | None:
    recorded = {item.moment for _, run in chosen for item in run.report.memory}
    moments = [name for name in MOMENTS if name in recorded]
    words = MOMENTS
    if all(_is_foreign(run) for _, run in chosen):
        words = MOMENTS | {"before": "before the training", "after": "after the training"}
    heads = [
        Column("memory", style="text"),
        *compared.heads,
        *(Column(words[name], base="B") for name in moments),
    ]
    rows = []
    for network, run in chosen:
        stated = dict(_stated_memory(run))
        for quantity in dict.fromkeys(quantity for quantity, _ in stated):
            texts = [stated.get((quantity, moment)) for moment in moments]
            rows.append(
                [
                    text_cell(f"{QUANTITIES[quantity]}, as published"),
                    *compared.name(network),
                    *(text_cell(text) if text else nothing("not stated") for text in texts),
                ]
            )
    for quantity in dict.fromkeys(item.quantity for _, run in chosen for item in run.report.memory):
        for network, run in chosen:
            held = {
                item.moment: item.bytes for item in run.report.memory if item.quantity == quantity
            }
            rows.append(
                [
                    text_cell(QUANTITIES.get(quantity, quantity)),
                    *compared.name(network),
                    *(_bytes_cell(held.get(moment)) for moment in moments),
                ]
            )
    return table("Memory of one run, by moment", heads, rows, tools=False)


def _stated_memory(run: Run) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield (quantity, moment) and the figure as it was published, where these are too coarse for
    bytes: "0.62 GB"."""
    for item in run.report.summaries:
        if match := _STATED.fullmatch(item.name):
            value = "" if item.value is None else f"{item.value:.2f} {item.unit or ''}".rstrip()
            if text := item.text or value:
                yield (match[1], match[2]), text


def _bytes_cell(value: int | None) -> Cell:
    """Return "40.4 GB (38,554 MiB)": nvidia-smi prints MiB."""
    if value is None:
        return nothing("the run did not record it at this moment")
    mib = value / 2**20
    text = f"{size(value)} ({mib:,.{0 if mib >= 100 else 1}f} MiB)"
    return Cell(text, full(value, "B"), value=value)


def _missing_memory(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    recorded = {item.quantity for run in runs for item in run.report.memory}
    recorded |= {quantity for run in runs for (quantity, _), _ in _stated_memory(run)}
    if not recorded & {"device_free", "device_total", "allocated", "reserved"}:
        on_cpu = all(run.device_kind in ("cpu", None) for run in runs)
        yield "GPU memory", "the run used no GPU" if on_cpu else "the runs recorded none"
    elif not recorded & {"allocated", "reserved"}:
        why = "the runs recorded what is free on the GPU only"
        yield "GPU memory allocated and reserved by torch", why
    if not recorded & {"host_available", "host_resident"}:
        yield "CPU memory", _gap(runs, "memory.host_available") or "the runs recorded none"


def _gap(runs: Sequence[Run], quantity: str) -> str | None:
    """Return why a run has none of it, in its own words."""
    gaps = (gap for run in runs for gap in run.report.gaps)
    return next((gap.reason for gap in gaps if gap.quantity == quantity), None)


def training_chapter(compared: Compared) -> Chapter:
    """Loss, accuracy and time of each epoch and its test."""
    chosen = [
        (network, run)
        for network in compared.networks
        if (run := _trained(network, compared.batch)) is not None
    ]
    if not chosen:
        why = "no run trained whole epochs: a built-in workload does with --epochs"
        return Chapter(missing=(("loss and accuracy", why),))
    compared = compared.of([network for network, _ in chosen])
    heads = [
        Column("epoch"),
        *compared.heads,
        Column("training loss"),
        Column("test loss"),
        Column("test accuracy"),
        Column("time of the epoch", base="ns"),
        Column("time of the test", base="ns"),
    ]
    rows, findings = [], []
    for network, run in chosen:
        steps = {(step.phase, step.number): step for step in run.report.steps}
        numbers = sorted({number for phase, number in steps if phase in ("epoch", "test")})
        stated = next((one.value for one in run.report.summaries if one.name == "epochs"), None)
        for number in numbers:
            train, test = steps.get(("epoch", number)), steps.get(("test", number))
            right = test.accuracy if test else None
            last = number + 1 if train else None if stated is None else round(stated)
            accuracy = nothing("no test") if right is None else Cell(f"{right:.2%}", value=right)
            cells = [
                nothing("the report does not say") if last is None else text_cell(last),
                *compared.name(network),
                decimal_cell(train.loss if train else None),
                decimal_cell(test.loss if test else None),
                replace(accuracy, text=accuracy.text.replace("%", " %")),
                time_cell(train.duration_ns if train else None),
                time_cell(test.duration_ns if test else None),
            ]
            rows.append((number, cells))
            if number == numbers[-1] and right is not None and test is not None:
                data = run.report.environment.get("option:data")
                of = f"{network.label}: " if len(chosen) > 1 else ""
                loss = f", loss {test.loss:.4f}" if test.loss is not None else ""
                on = "drawn digits" if data == "synthetic" else "the test data"
                after = "" if last is None else f" after {last} epoch{'' if last == 1 else 's'}"
                findings.append(f"{of}Accuracy {right * 100:.2f} %{loss} on {on}{after}.")
    rows.sort(key=lambda row: row[0])
    data = chosen[0][1].report.environment.get("option:data")
    text = f"Trained on: {DATA.get(data or '', data or 'data that the run does not name')}."
    named = [
        (network.label if len(chosen) > 1 else "", run)
        for network, run in chosen
        if any(step.phase == "epoch" for step in run.report.steps)
    ]
    why = "the data were made here, so accuracy is not comparable: use --data mnist --data-dir DIR"
    return Chapter(
        (text,),
        tuple(training_charts(named)),
        (table("Epochs", heads, [cells for _, cells in rows], tools=False),),
        findings=tuple(findings),
        missing=(("a published data set", why),) if data == "synthetic" else (),
    )


def machine_chapter(compared: Compared) -> Chapter:
    """Hosts, devices and software, and how busy they were."""
    runs = compared.runs
    facts: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for device in run.devices:
            what = "GPU" if device.kind == "gpu" else "processor"
            facts[what][device.name or "not named"] = None
            if device.memory_bytes:
                which = "GPU memory" if what == "GPU" else "CPU memory"
                facts[which][_bytes_cell(device.memory_bytes).text] = None
            for fact, value in (
                ("compute capability", device.compute_capability),
                ("multiprocessors", device.sm_count),
                ("driver", device.driver_version),
            ):
                if value:
                    facts[fact][str(value)] = None
        if run.origin == "measured" and run.host:  # else it is the machine that read the report
            facts["host"][run.host] = None
        for name, text in run.report.environment.items():
            if text and name not in ("rank", "world_size"):
                facts[name.removeprefix("option:").replace("_", " ")][text[:200]] = None
    rows = [[what, ", ".join(values)] for what, values in facts.items()]
    columns = [Column("fact", style="text"), Column("value", style="text")]
    usages = [(network, [RunUsage(run) for run in network.runs]) for network in compared.networks]
    ways = [way for _, used in usages for one in used for way in [one.ways]]
    missing: tuple[tuple[str, str], ...] = ()
    if all(way.kernels.value is way.nvml.value is way.dlprof.value is None for way in ways):
        why = "no run on the GPU was sampled, and none has kernels with start and length"
        why = _gap(runs, "sample.gpu_utilisation") or why
        if all(run.device_kind in ("cpu", None) for run in runs):
            why = "the run used no GPU"
        missing = (("GPU utilisation", why),)
    sizes = sorted(
        {
            device.memory_bytes
            for run in runs
            for device in run.devices
            if device.kind == "gpu" and device.memory_bytes
        }
    )
    mib = " and ".join(f"{one / 2**20:,.0f} MiB" for one in sizes)
    differ = f"The runs used GPUs of {mib}: their times must not be compared."
    return Chapter(
        tables=(
            table("Host and GPU", columns, rows, tools=False),
            *(_of_network(compared, network, ways_table(used)) for network, used in usages),
            summaries([run for run in runs if _is_foreign(run)]),
        ),
        folded=tuple(
            _of_network(compared, network, readings_table(used)) for network, used in usages
        ),
        findings=(differ,) if len(sizes) > 1 else (),
        missing=missing,
    )


def verdicts_chapter(compared: Compared) -> Chapter:
    """Why counted and paper differ, in full, and what the ledger's page would find."""
    heads = [
        *compared.heads,
        *(Column(name, style="text") for name in ("about", "reason", "verdict", "what to do")),
    ]
    rows: list[list[Cell]] = []
    text: list[str] = []
    for network in compared.networks:
        lead = f"{network.label}: " if len(compared.networks) > 1 else ""
        for analysis in network.analyses:
            causes = [
                ("parts of the study" if cause.rule in PARTS_RULES else "the sweep", cause)
                for cause in analysis.judgement.sweep
                if cause.rule != "hand estimate"
            ]
            causes += [
                (f"{row.name}{row.at}", cause)
                for row in analysis.ledger.rows
                if row.layer == compared.layer
                for cause in analysis.judgement.at(row.batch, row.layer, row.direction).causes
            ]
            rows += [
                [
                    *(
                        map(text_cell, ["all"] * len(compared.heads))
                        if cause.rule in PARTS_RULES
                        else compared.name(network)
                    ),
                    *map(text_cell, (about, cause.rule)),
                    *map(text_cell, (describe_cause(cause), describe_fix(cause))),
                ]
                for about, cause in causes
            ]
            told = {describe_cause(cause) for cause in analysis.judgement.sweep}
            text += [
                f"{lead}{finding.text}"
                for finding in page_findings(analysis)
                if finding.text not in told
            ]
    made = table("Why counted and paper differ", heads, rows, tools=False)
    return Chapter(tuple(dict.fromkeys(text)), tables=(made,))


CHAPTERS: dict[str, Callable[[Compared], Chapter]] = {
    "network": network_chapter,
    "hand": hand_chapter,
    "comparison": comparison_chapter,
    "time": time_chapter,
    "memory": memory_chapter,
    "training": training_chapter,
    "machine": machine_chapter,
    "verdicts": verdicts_chapter,
}


def draw(networks: Sequence[Network]) -> None:
    """Draw the charts of the study alone, of the layer with most multiply-adds; ``files.drawn``
    collects them."""
    layer = networks[0].main_layer()
    if layer is None:
        return
    points = tuple((network, network.points(layer)) for network in networks)
    labelled = _labelled(Compared(tuple(networks), layer, 0, (), points))
    flops_chart(layer, labelled)
    clocks_chart(layer, labelled)
    trained = [
        (network, run)
        for network in networks
        if (run := _trained(network, network.batches[-1])) is not None
    ]
    several = len(networks) > 1
    named = [(network.label if len(trained) > 1 else "", run) for network, run in trained]
    tuple(training_charts(named))
    if not trained:  # repeats and other profilers see the same losses
        step_losses(
            "training-loss",
            [
                (
                    f"{network.label}, batch {batch}" if several else f"batch {batch}",
                    next(run for run in network.runs if run.batch_size == batch),
                )
                for network in networks
                for batch in network.batches
            ],
        )
