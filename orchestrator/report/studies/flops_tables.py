"""Tables of the study of FLOPs. With two networks, each table has both: in columns side by side or
in rows one below the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.estimate.sheets.layers import Line
from perfctl.orchestrator.estimate.sheets.slips import Finding as HandFinding
from perfctl.orchestrator.ledger.network import NO_BACKWARD, Clocks, LayerPoint, Network
from perfctl.orchestrator.ledger.timing import Spread
from perfctl.orchestrator.report.charts.comparison import host_run
from perfctl.orchestrator.report.numbers import full, ratio, size, time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    decimal_cell,
    figure_cell,
    nothing,
    share_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.run import Run

MOMENTS = {
    "start": "before loading",
    "before": "after loading",
    "peak": "peak of the measured steps",
    "after": "at the end",
}
"""Moment of a memory figure -> in words."""
STATED_MOMENTS = {"before": "before the training", "after": "after the training"}
_STATED = re.compile(r"memory (allocated|reserved), (before|after)")
MODEL = "(model)"
"""Layer of the operations that no module runs, such as the loss."""
UNITS = ("MAC", "FLOP", "elementwise FLOP", "values", "B")

OUTSIDE = ("outside layers, collected", "outside layers, derived")
"""Columns of kernels that no layer claims."""
Points = Sequence[tuple[Network, Sequence[LayerPoint]]]
"""Each network with its points, one a batch size."""

QUANTITIES = {
    "allocated": "GPU, allocated by torch",
    "reserved": "GPU, reserved by torch",
    "device_free": "GPU, free",
    "device_total": "GPU, total",
    "host_available": "CPU, available",
    "host_resident": "CPU, of the process",
}


@dataclass(frozen=True, slots=True)
class HandValue:
    """One value worked out by hand, checked."""

    layer: str
    network: str
    """Label of the network whose sheet explains it."""
    batch: int
    finding: HandFinding

    @property
    def right(self) -> bool:
        """True when it is a figure of the layer."""
        return self.finding.exact and not self.finding.slips


def _name(networks: Sequence[Network]) -> list[Column]:
    return [Column("network", style="text")] if len(networks) > 1 else []


def _named(networks: Sequence[Network], one: Network) -> list[Cell]:
    return [text_cell(one.label)] if len(networks) > 1 else []


def parameters(networks: Sequence[Network], batch: int) -> Table | None:
    """Layer, output shape and parameters, both networks side by side; the last row has
    the totals."""
    sheets = [one.network_sheet(batch) for one in networks]
    lines = [
        {line.layer: line for line in sheet.lines if line.output is not None} for sheet in sheets
    ]
    names = list(dict.fromkeys(chain.from_iterable(lines)))
    heads = [Column("layer", style="text"), Column("kind", style="text")]
    for one in networks:
        of = f", {one.label}" if len(networks) > 1 else ""
        heads += [Column(f"output shape{of}", style="text"), Column(f"parameters{of}")]
    rows: list[list[Cell]] = []
    for name in names:
        kind = next(mine[name].kind for mine in lines if name in mine)
        row = [text_cell(name), text_cell(kind)]
        for mine in lines:
            line, absent = mine.get(name), nothing("this network has no such layer")
            shape = " x ".join(map(str, line.output)) if line and line.output else None
            row += [
                text_cell(shape) if shape else absent,
                count(line.parameters) if line else absent,
            ]
        rows.append(row)
    totals = [text_cell("total"), text_cell("")]
    for sheet in sheets:
        totals += [text_cell(""), count(sheet.total.parameters)]
    return table(
        f"Layers, output shapes and parameters, batch {batch}",
        heads,
        [*rows, totals] if rows else [],
    )


def layers_on_paper(networks: Sequence[Network], batch: int) -> Table | None:
    """Multiply-adds, FLOPs and bytes of every layer, from the shapes."""
    heads = [
        Column("layer", style="text"),
        *_name(networks),
        Column("MAC", note="multiply-adds of forward"),
        Column("forward FLOP", note="2 x MAC"),
        Column("backward FLOP", note="gradients of the input and of the weights"),
        Column("elementwise FLOP", note="other arithmetic of forward: bias, activation, pooling"),
        Column("parameter B"),
        Column("written B", note="by forward"),
    ]
    rows = []
    for place, one in enumerate(networks):
        sheet = one.network_sheet(batch)
        for at, line in enumerate((*sheet.lines, *([sheet.total] if sheet.lines else []))):
            unknown = "an operation has no formula"
            cells = [count(value, unknown) for value in (line.macs, line.flops)]
            cells.append(
                count(line.backward_flops, unknown) if sheet.backward else nothing(NO_BACKWARD)
            )
            figures = (line.elementwise_flops, line.parameter_bytes, line.written_bytes)
            cells += [count(value, unknown) for value in figures]
            name = f"{line.layer}, {line.kind}" if line.layer == MODEL else line.layer
            rows.append((at, place, [text_cell(name), *_named(networks, one), *cells]))
    rows.sort(key=lambda row: row[:2])
    return table(f"Every layer on paper, batch {batch}", heads, [row for *_, row in rows])


def quantities(networks: Sequence[Network], layer: str, batch: int) -> Table | None:
    """Every figure of the layer in all its units."""
    heads = [
        Column("quantity", style="text"),
        *_name(networks),
        *(Column(unit) for unit in UNITS),
        Column("KiB"),
    ]
    rows: list[tuple[int, int, list[Cell]]] = []
    for place, one in enumerate(networks):
        sheet = one.sheet(batch, layer)
        found: dict[str, dict[str, int]] = {}
        for item in sheet.quantities if sheet else ():
            found.setdefault(item.what, {}).setdefault(item.unit, item.value)
        for at, (what, values) in enumerate(found.items()):
            other = "not a figure of this quantity"
            cells = [count(values.get(unit), other) for unit in UNITS]
            kib = values["B"] / 1024 if "B" in values else None
            cells.append(nothing(other) if kib is None else Cell(full(kib), value=kib))
            rows.append((at, place, [text_cell(what), *_named(networks, one), *cells]))
    rows.sort(key=lambda row: row[:2])
    return table(f"{layer} at batch {batch}: every quantity", heads, [row for *_, row in rows])


def worked(one: Network, layer: str, batch: int, several: bool) -> Table | None:
    """The sheet of the layer line by line: formula, numbers, result."""
    sheet = one.sheet(batch, layer)
    heads = [
        Column(name, style="text") for name in ("part", "what", "formula", "numbers", "result")
    ]
    rows = [
        [section.title, *_line(line)]
        for section in (sheet.sections if sheet else ())
        for line in section.lines
    ]
    of = f", {one.label}" if several else ""
    return table(f"{layer} at batch {batch}{of}, worked line by line", heads, rows, tools=False)


def _line(line: Line) -> list[Cell]:
    return [text_cell(part) for part in (line.what, line.formula, line.numbers, line.result)]


def hand_values(values: Sequence[HandValue], several: bool) -> Table | None:
    """Each hand value: what it is, and which slips make it."""
    heads = [
        Column("layer", style="text"),
        Column("your value"),
        Column("verdict", style="text"),
        *([Column("network", style="text")] if several else []),
        Column("batch"),
        Column("right"),
        Column("unit", style="text"),
        Column("quantity", style="text"),
    ]
    rows = []
    for one in values:
        found = one.finding
        verdict = (
            "right"
            if one.right
            else f"wrong: {'; '.join(found.slips)}"
            if found.exact
            else "not explained"
        )
        rows.append(
            [
                text_cell(one.layer),
                count(found.value),
                text_cell(verdict),
                *([text_cell(one.network)] if several else []),
                text_cell(one.batch),
                count(found.right),
                text_cell(found.unit),
                text_cell(found.quantity or "forward"),
            ]
        )
    return table("Hand values, checked", heads, rows, tools=False)


def _rows(points: Points) -> Iterator[tuple[list[Cell], LayerPoint]]:
    """Batch sizes ascending; at each the networks in order, with the cells that say which row
    it is."""
    networks = [one for one, _ in points]
    every = sorted(
        (
            (point.batch, place, one, point)
            for place, (one, found) in enumerate(points)
            for point in found
        ),
        key=lambda item: item[:2],
    )
    for batch, _, one, point in every:
        yield [text_cell(batch), *_named(networks, one)], point


def comparison(points: Points, layer: str) -> Table | None:
    """Paper, counted and derived FLOPs of the layer's forward pass, and of the whole step."""
    heads = [
        Column("batch"),
        *_name([one for one, _ in points]),
        Column(f"{layer} on paper", "MAC"),
        Column(f"{layer} on paper", "FLOP"),
        Column(f"{layer} counted", "FLOP", note="by hardware counters"),
        Column(f"{layer} derived", "FLOP", note="from kernel names, grids and shapes"),
        Column("counted / paper"),
        Column(OUTSIDE[0], "FLOP", note="instructions of kernels in no range"),
        Column(
            OUTSIDE[1],
            "FLOP",
            note="the same kernels with the instructions that were not collected",
        ),
        Column("step on paper", "FLOP", note="forward and backward of all layers"),
        Column("step counted", "FLOP"),
    ]
    rows = []
    for name, point in _rows(points):
        paper = point.paper.value
        no_loose = (
            "every kernel belongs to a layer"
            if point.counted.value is not None
            else "nothing was collected"
        )
        share = point.counted.value / paper if point.counted.value is not None and paper else None
        rows.append(
            [
                *name,
                count(int(paper / 2) if paper is not None else None, point.paper.reason or ""),
                _exact(point.paper),
                figure_cell(point.counted, "FLOP"),
                figure_cell(point.derived, "FLOP"),
                nothing(point.counted.reason or "not counted")
                if share is None
                else Cell(ratio(share), value=share),
                count(_whole(point.loose.flops), no_loose),
                count(_whole(point.loose.derived), no_loose),
                _exact(point.step_paper),
                figure_cell(point.step_counted, "FLOP"),
            ]
        )
    found = table(f"FLOPs of {layer} forward and of a step", heads, rows, tools=False)
    told = (
        [note for note in found.notes if not note.startswith((*OUTSIDE, "counted / paper"))]
        if found
        else []
    )
    return replace(found, notes=tuple(told)) if found is not None else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _exact(figure: Figure) -> Cell:
    return (
        figure_cell(figure, "FLOP")
        if figure.lower_bound
        else count(_whole(figure.value), figure.reason or "not known")
    )


def clocks(points: Points, layer: str) -> Table | None:
    """Time of the layer by the synchronised clock and under the profiler, side by side."""
    parts: tuple[tuple[str, Callable[[LayerPoint], Clocks]], ...] = (
        ("forward", lambda point: point.forward),
        ("backward", lambda point: point.backward),
    )
    return _timed(f"Time of {layer}, by two clocks", points, parts)


def host_clock(points: Points, layer: str) -> Table | None:
    """Times of the layer that reports state by the host's clock, with the digits that they have."""
    heads = [
        Column("batch"),
        *_name([one for one, _ in points]),
        Column("run", style="text"),
        Column("time", "ms", note="the host did not wait for the device: it saw the launch"),
    ]
    rows = [
        [
            *name,
            text_cell(host_run(profiler)),
            Cell(f"{ns / 1e6:g}", full(ns, "ns"), value=ns / 1e6),
        ]
        for name, point in _rows(points)
        for profiler, ns in point.host
    ]
    return table(f"Time of {layer} by the host's clock, as reported", heads, rows, tools=False)


def step_clocks(points: Points) -> Table | None:
    """Time of a whole step by both clocks, and of one sample."""
    each = Column(
        "a sample, clock", base="ns", note="the step by the synchronised clock / batch size"
    )
    return _timed(
        "Time of a step, by two clocks",
        points,
        (("step", lambda point: point.step),),
        (each,),
        lambda point: (
            point.step.synchronised.median / point.batch if point.step.synchronised else None
        ),
    )


def _timed(
    caption: str,
    points: Points,
    parts: Sequence[tuple[str, Callable[[LayerPoint], Clocks]]],
    last: Sequence[Column] = (),
    of_last: Callable[[LayerPoint], float | None] = lambda point: None,
) -> Table | None:
    heads = [Column("batch"), *_name([one for one, _ in points])]
    for what, _ in parts:
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
    for name, point in _rows(points):
        row = list(name)
        for _, of in parts:
            found = of(point)
            factor = found.factor
            row += [
                _spread(found.synchronised, "no run timed it with a synchronised clock"),
                _spread(found.profiled, "no profiler timed it", found.basis),
                nothing("needs both") if factor is None else Cell(ratio(factor), value=factor),
            ]
        rows.append([*row, *(time_cell(of_last(point), "not known") for _ in last)])
    shown = table(caption, [*heads, *last], rows, tools=False)
    names = 1 + len(_name([one for one, _ in points]))
    return replace(shown, notes=()) if shown is not None and len(shown.columns) > names else None


def _spread(found: Spread | None, why: str, basis: str | None = None) -> Cell:
    if found is None:
        return nothing(why)
    said = f"{time(found.low)} to {time(found.high)} over {found.count} steps"
    return time_cell(found.median, note="; ".join(filter(None, (said, basis))))


def as_stated(run: Run) -> bool:
    """True for a report made elsewhere: its moments are those of a training, and its figures have
    the digits they have."""
    return run.origin not in ("measured", "recorded")


def stated_memory(run: Run) -> Iterator[tuple[str, str, str]]:
    """(quantity, moment, figure as it was published) where these are too coarse for bytes:
    ("reserved", "after", "0.62 GB")."""
    for item in run.report.summaries:
        if found := _STATED.fullmatch(item.name):
            said = item.text or (
                "" if item.value is None else f"{item.value:.2f} {item.unit or ''}".rstrip()
            )
            if said:
                yield found[1], found[2], said


def _bytes(value: int | None, none: str) -> Cell:
    """ "40.4 GB (38,554 MiB)": nvidia-smi prints MiB."""
    if value is None:
        return nothing(none)
    mib = value / 2**20
    return Cell(
        f"{size(value)} ({mib:,.{0 if mib >= 100 else 1}f} MiB)", full(value, "B"), value=value
    )


def memory(chosen: Sequence[tuple[Network, Run]]) -> Table | None:
    """Each quantity at each moment of one run of each network."""
    networks = [one for one, _ in chosen]
    moments = [
        name
        for name in MOMENTS
        if any(item.moment == name for _, run in chosen for item in run.report.memory)
    ]
    words = MOMENTS | STATED_MOMENTS if all(as_stated(run) for _, run in chosen) else MOMENTS
    heads = [
        Column("memory", style="text"),
        *_name(networks),
        *(Column(words[name], base="B") for name in moments),
    ]
    rows = []
    for one, run in chosen:
        told = {(quantity, moment): said for quantity, moment, said in stated_memory(run)}
        for quantity in dict.fromkeys(quantity for quantity, _ in told):
            known = [told.get((quantity, name)) for name in moments]
            cells = [
                nothing("the report does not say") if said is None else text_cell(said)
                for said in known
            ]
            rows.append(
                [text_cell(f"{QUANTITIES[quantity]}, as published"), *_named(networks, one), *cells]
            )
    for quantity in dict.fromkeys(item.quantity for _, run in chosen for item in run.report.memory):
        for one, run in chosen:
            found = {
                item.moment: item.bytes for item in run.report.memory if item.quantity == quantity
            }
            none = "the run did not record it at this moment"
            cells = [_bytes(found.get(name), none) for name in moments]
            rows.append(
                [text_cell(QUANTITIES.get(quantity, quantity)), *_named(networks, one), *cells]
            )
    return table("Memory of one run, by moment", heads, rows, tools=False)


def epochs(chosen: Sequence[tuple[Network, Run]]) -> Table | None:
    """Loss, accuracy and time of each epoch and its test."""
    heads = [
        Column("epoch"),
        *_name([one for one, _ in chosen]),
        Column("training loss"),
        Column("test loss"),
        Column("test accuracy"),
        Column("time of the epoch", base="ns"),
        Column("time of the test", base="ns"),
    ]
    rows = []
    for place, (one, run) in enumerate(chosen):
        steps = {(step.phase, step.number): step for step in run.report.steps}
        for number in sorted({number for phase, number in steps if phase in ("epoch", "test")}):
            train, test = steps.get(("epoch", number)), steps.get(("test", number))
            right = test.accuracy if test else None
            cells = [
                decimal_cell(train.loss if train else None),
                decimal_cell(test.loss if test else None),
                nothing("no test") if right is None else Cell(f"{right:.2%}", value=right),
                time_cell(train.duration_ns if train else None),
                time_cell(test.duration_ns if test else None),
            ]
            stated = next(
                (item.value for item in run.report.summaries if item.name == "epochs"), None
            )
            which = (
                text_cell(number + 1) if train else count(_whole(stated), "the report does not say")
            )
            rows.append((number, place, [which, *_named([one for one, _ in chosen], one), *cells]))
    rows.sort(key=lambda row: row[:2])
    return table("Epochs", heads, [row for *_, row in rows], tools=False)


def every_row(networks: Sequence[Network]) -> Table | None:
    """The whole ledger: every layer and direction at every batch size."""
    heads = [
        Column("batch"),
        *_name(networks),
        Column("layer", style="text"),
        Column("direction", style="text"),
        Column("paper", "FLOP"),
        Column("counted", "FLOP"),
        Column("counted / paper"),
        Column("time", base="ns"),
        Column("share"),
        Column("clock", style="text"),
    ]
    rows = [
        [
            text_cell(row.batch),
            *_named(networks, one),
            text_cell(row.place),
            text_cell(row.direction),
            _exact(row.paper),
            figure_cell(row.counted, "FLOP"),
            nothing(row.counted.reason or "no ratio")
            if row.ratio is None
            else Cell(ratio(row.ratio), value=row.ratio),
            _spread(row.time, row.time_reason or "not timed"),
            share_cell(row.share),
            row.basis,
        ]
        for one in networks
        for found in one.analyses
        for row in found.ledger.rows
    ]
    return table("Every layer and direction", heads, rows)


def clock_of(found: Clocks) -> str:
    """ "8.31 ms on the synchronised clock, 9.02 ms under the profiler"; "" where nothing
    timed it."""
    said = []
    if found.synchronised is not None:
        said.append(f"{time(found.synchronised.median)} on the synchronised clock")
    if found.profiled is not None:
        said.append(f"{time(found.profiled.median)} under the profiler")
    return ", ".join(said)
