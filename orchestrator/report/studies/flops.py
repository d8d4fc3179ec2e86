"""Chapters of a network against pen and paper: its layers, a hand sheet, counts, times by two
clocks, memory, training, machine and verdicts.

With two networks, each table has both, in rows one below the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.sheets.slips import explain
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
from perfctl.orchestrator.report.charts.comparison import (
    clocks_chart,
    flops_chart,
    host_run,
    step_losses,
    training_charts,
)
from perfctl.orchestrator.report.numbers import full, ratio, si, time
from perfctl.orchestrator.report.page.about import ORIGINS
from perfctl.orchestrator.report.page.records import LONGEST, shortened
from perfctl.orchestrator.report.studies.flops_runs import (
    Compared,
    find_trained,
    machine_chapter,
    memory_chapter,
    training_chapter,
    verdicts_chapter,
)
from perfctl.orchestrator.report.studies.records import Subject, facts_of, make_chapter
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    figure_cell,
    nothing,
    table,
    text_cell,
    time_cell,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

SCATTER_MIN = 3.0
"""Steps of one run that differ by this factor are no basis for a comparison of times."""
UNITS = ("MAC", "FLOP", "elementwise FLOP", "values", "B")


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
    facts = {"network": heading(networks[0].analyses[0].study)}
    if len(networks) > 1:
        facts["compared"] = " with ".join(network.label for network in networks)
    facts |= facts_of(compared.runs)
    origins = dict.fromkeys(run.origin for run in compared.runs if run.origin != "measured")
    return Subject(
        {name: partial(chapter, compared) for name, chapter in CHAPTERS.items()},
        tuple(facts.items()),
        {"layer": layer, "network": str(compared.runs[0].workload)},
        origins=tuple(ORIGINS.get(name, name) for name in origins),
    )


def network_chapter(compared: Compared) -> View:
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
    return make_chapter(tuple(text), tables=(made,), findings=tuple(_compare_shapes(compared)))


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


def hand_chapter(compared: Compared) -> View:
    """Values worked out by hand, checked; every figure of the layer in all its units; its sheet
    line by line."""
    layer, batch = compared.layer, compared.batch
    quantities: list[tuple[int, list[Cell]]] = []
    worked = []
    for network in compared.networks:
        sheet = network.sheet(batch, layer)
        values: dict[str, dict[str, int]] = defaultdict(dict)
        for item in sheet.quantities if sheet else ():
            values[item.quantity].setdefault(item.unit, item.value)
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
                *map(text_cell, (line.quantity, line.formula, line.numbers, line.result)),
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
    return make_chapter(
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
        wrong = f"wrong: {'; '.join(finding.mistakes)}" if finding.is_explained else "not explained"
        rows.append(
            [
                value.layer,
                Cell(finding.grouped, value=finding.value),
                "right" if value.is_right else wrong,
                *([value.network] if compared.heads else []),
                text_cell(value.batch),
                finding.correct_value,
                finding.unit,
                finding.quantity or "forward",
            ]
        )
    return table("Hand values, checked", heads, rows, tools=False)


def _judge_hand(values: Sequence[HandValue]) -> Iterator[str]:
    """Yield what the first two values are; the table has all."""
    for value in values[:2]:
        finding = value.finding
        start = f"Your {finding.grouped} for {value.layer} (batch {value.batch}) is"
        right = f"{finding.correct_value:,} {finding.unit}"
        if value.is_right:
            yield f"{start} right: {finding.quantity or finding.unit}."
        elif finding.is_explained:
            text = f"{start} wrong: {' and '.join(finding.mistakes)}. Right: {right}."
            slips = f"{len(finding.mistakes)} slips" if len(finding.mistakes) > 1 else "one slip"
            yield text if len(text) <= LONGEST else f"{start} wrong by {slips}. Right: {right}."
        else:
            yield f"{start} none of its figures, and no usual slip makes it; nearest is {right}."


def comparison_chapter(compared: Compared) -> View:
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
        loose = (point.loose.flops, point.loose.derived)
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
                *(
                    count(None if value is None else round(value), "no such kernel was collected")
                    for value in loose
                ),
                _exact(point.step_paper),
                figure_cell(point.step_counted, "FLOP"),
            ]
        )
    made = table(f"FLOPs of {layer} forward and of a step", heads, rows, tools=False)
    remedies = {
        "counted": "Run the same command on a machine with an NVIDIA GPU and ncu",
        "derived": "They need the kernels of a GPU, from torch, nsys or ncu",
    }
    figures = {
        "counted": [point.counted for point in points],
        "derived": [point.derived for point in points],
    }
    missing = [
        (f"{what} FLOPs of {layer}", f"{found[0].reason or 'not collected'}. {remedies[what]}")
        for what, found in figures.items()
        if found and all(figure.value is None for figure in found)
    ]
    return make_chapter(
        charts=(flops_chart(layer, _labelled(compared)),),
        tables=(made and replace(made, notes=()),),
        findings=tuple(_judge_counts(compared)),
        missing=tuple(missing),
    )


def _exact(figure: Figure) -> Cell:
    if figure.lower_bound:
        return figure_cell(figure, "FLOP")
    value = None if figure.value is None else round(figure.value)
    return count(value, figure.reason or "not known")


def _judge_counts(compared: Compared) -> Iterator[str]:
    _, points = compared.points[0]
    last = points[-1]
    if (paper := last.paper.value) is None:
        return
    start = f"{compared.layer} forward at batch {last.batch}: {si(paper, 'FLOP')} on paper"
    known = {"counted": last.counted.value, "derived from its kernels": last.derived.value}
    for how, value in known.items():
        if value is not None:
            yield f"{start}, {si(value, 'FLOP')} {how} ({ratio(value / paper)} of paper)."
            return
    if last.loose.flops is not None:
        loose = f"{si(last.loose.flops, 'FLOP')} of {', '.join(last.loose.names)}"
        yield f"{start}; kernels of no layer show {loose}."
    else:
        why = (last.counted.reason or "no counters at this batch size").partition(";")[0]
        yield shortened(f"{start}; nothing was counted: {why}.")


def _labelled(compared: Compared) -> list[tuple[str, Sequence[LayerPoint]]]:
    """Return points with names for charts: without the word that all begin with."""
    words = [network.label.split() for network in compared.networks]
    has_same = len({tuple(one[:1]) for one in words}) == 1 and all(one[1:] for one in words)
    return [
        ("" if len(words) == 1 else " ".join(one[1:] if has_same else one), points)
        for one, (_, points) in zip(words, compared.points, strict=True)
    ]


def time_chapter(compared: Compared) -> View:
    """Times of the layer and of a step by the synchronised clock and under the profiler."""
    layer, points = compared.layer, compared.all_points
    bases = dict.fromkeys(
        clocks.basis for point in points for clocks in (point.forward, point.step) if clocks.basis
    )
    host_rows = [
        [*name, host_run(tool), Cell(f"{ns / 1e6:g}", full(ns, "ns"), value=ns / 1e6)]
        for name, point in compared.rows()
        for tool, ns in point.host
    ]
    heads = [Column("batch"), *compared.heads, Column("run", style="text"), Column("time", "ms")]
    missing = []
    if not any(point.forward.synchronised for point in points):
        why = "no run timed its layers with one: those of built-in workloads do"
        missing.append((f"time of {layer} by a synchronised clock", why))
    if not any(point.forward.profiled for point in points):
        why = "no trusted report times it: nsys and the PyTorch profiler do"
        missing.append((f"time of {layer} under a profiler", why))
    return make_chapter(
        (f"Profiler: {'; '.join(bases)}.",) if bases else (),
        (clocks_chart(layer, _labelled(compared)),),
        (
            _clocks_table(
                f"Time of {layer}, by two clocks",
                compared,
                {"forward": lambda point: point.forward, "backward": lambda point: point.backward},
            ),
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


def _judge_times(compared: Compared) -> Iterator[str]:
    layer, scatter = compared.layer, compared.scatter
    _, points = compared.points[0]
    chosen = next((point for point in points if point.batch == compared.batch), points[-1])
    both = {
        "on the synchronised clock": chosen.forward.synchronised,
        "under the profiler": chosen.forward.profiled,
    }
    if times := [f"{time(spread.median)} {how}" for how, spread in both.items() if spread]:
        factor = f" (x {ratio(chosen.forward.factor)})" if chosen.forward.factor else ""
        yield f"{layer} forward at batch {chosen.batch} takes {', '.join(times)}{factor}."
    if scatter >= SCATTER_MIN:
        yield (
            f"Times scatter by x {ratio(scatter)} within one run: other work ran here. Repeat them "
            "on an idle machine."
        )
        return
    clocks = {point.batch: point.forward.synchronised for point in points}
    timed = [(batch, spread.median) for batch, spread in clocks.items() if spread is not None]
    if len(timed) > 1:
        (first, before), (last, after) = timed[0], timed[-1]
        yield (
            f"From batch {first} to {last} the work of {layer} grows x {ratio(last / first)}, its "
            f"time x {ratio(after / before)}."
        )


CHAPTERS: dict[str, Callable[[Compared], View]] = {
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
        if (run := find_trained(network, network.batches[-1])) is not None
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
