"""Chapters of a network against manual estimates: its layers, a worked example, executed FLOPs,
times by two clocks, memory, training, machine and causes.

With two networks, each table has both, in rows one below the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate.sheets.slips import explain_check_finding
from perfctl.orchestrator.ledger.hand_values import (
    CheckedHandValue,
    build_unknown_layer_error,
    check_hand_values,
)
from perfctl.orchestrator.ledger.network import (
    NO_BACKWARD,
    LayerAtBatch,
    Network,
    group_workload_runs_into_networks,
)
from perfctl.orchestrator.ledger.prepared import format_study_heading
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.report.charts.comparison import (
    describe_profiler_presence,
    draw_layer_forward_flops_chart,
    draw_layer_forward_time_by_clock,
)
from perfctl.orchestrator.report.numbers import (
    format_integer_or_six_digits,
    format_ratio,
    format_si,
    format_significant,
    format_step_times,
)
from perfctl.orchestrator.report.page.about import ORIGINS
from perfctl.orchestrator.report.page.records import LONGEST, shorten_sentence
from perfctl.orchestrator.report.studies.flops_runs import (
    ComparedNetworks,
    build_flops_difference_causes_chapter,
    build_machine_chapter,
    build_memory_chapter,
    build_training_chapter,
)
from perfctl.orchestrator.report.studies.records import (
    StudySubject,
    build_study_chapter,
    collect_run_facts,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    build_table,
    count_cell,
    figure_cell,
    join_notes,
    missing_cell,
    text_cell,
    text_columns,
    time_column,
)
from perfctl.orchestrator.report.view import View
from perfctl.records.run import Run

SCATTER_MIN = 3.0
"""Steps of one run that differ by this factor are no basis for a comparison of times."""
UNITS = ("MAC", "FLOP", "elementwise FLOP", "values", "B")
NO_FORMULA = "an operation has no formula"


def build_flops_study(
    runs: Sequence[Run],
    *,
    workload: str | None,
    layer: str | None,
    batch: int | None,
    hand_values: Sequence[str],
) -> StudySubject:
    """Return what the chapters are made of. Raises PerfctlError without a network, UsageError for
    a layer that it does not have."""
    networks = group_workload_runs_into_networks(runs, workload)
    if not networks:
        which = f" of {workload}" if workload else ""
        raise PerfctlError(
            f"no run{which} with a batch size and shapes of its layers",
            "Name the network with `workload`",
        )
    compared = _collect_compared_networks(networks, layer, batch, hand_values)
    facts = {"network": format_study_heading(networks[0].analyses[0].study)}
    if len(networks) > 1:
        facts["compared"] = " with ".join(network.label for network in networks)
    facts |= collect_run_facts(compared.runs)
    origins = dict.fromkeys(run.origin for run in compared.runs if run.origin != "measured")
    return StudySubject(
        {name: partial(chapter, compared) for name, chapter in CHAPTERS.items()},
        tuple(facts.items()),
        {"layer": compared.layer, "network": str(compared.runs[0].workload)},
        origins=tuple(ORIGINS.get(name, name) for name in origins),
    )


def _collect_compared_networks(
    networks: tuple[Network, ...],
    layer: str | None = None,
    batch: int | None = None,
    hand_values: Sequence[str] = (),
) -> ComparedNetworks:
    first = networks[0]
    layer = layer or first.find_layer_with_most_forward_macs() or ""
    batch = batch if batch in first.batches else first.batches[-1]
    if first.build_layer_calculation_sheet(batch, layer) is None:
        raise build_unknown_layer_error("layer", layer, first, batch)
    values = tuple(check_hand_values(networks, hand_values, batch))
    points = tuple((network, network.list_layer_points_by_batch(layer)) for network in networks)
    return ComparedNetworks(networks, layer, batch, values, points)


def draw_and_register_flops_charts(runs: Sequence[Run]) -> None:
    """Draw the charts of the study only, of the layer with the most multiply-adds, if there is one;
    ``files.collect_charts`` collects them."""
    networks = group_workload_runs_into_networks(runs)
    if networks and networks[0].find_layer_with_most_forward_macs() is not None:
        compared = _collect_compared_networks(networks)
        for chapter in (
            build_executed_flops_chapter,
            build_layer_and_step_time_chapter,
            build_training_chapter,
        ):
            chapter(compared)


def build_network_layers_chapter(compared: ComparedNetworks) -> View:
    """Return layers, output shapes, parameters, multiply-adds, FLOPs and bytes, from the shapes."""
    heads = [
        *text_columns("layer", "kind", "output shape"),
        Column("parameters"),
        Column("MAC", note="multiply-adds of forward"),
        Column("forward FLOP", note="2 x MAC"),
        Column("backward FLOP", note="gradients of the input and of the weights"),
        Column("elementwise FLOP", note="other arithmetic of forward: bias, activation, pooling"),
        Column("parameter B"),
        Column("written B", note="by forward"),
    ]
    rows = []
    text = []
    for network in compared.networks:
        sheet = network.build_network_calculation_sheet(compared.batch)
        text.append(f"{network.label}: {sheet.total.parameters:,} parameters.")
        for line in (*sheet.lines, *([sheet.total] if sheet.lines else [])):
            shape = " x ".join(map(str, line.output or ()))
            cells = [
                line.layer,
                text_cell(line.kind),
                shape or missing_cell("no output of its own"),
                line.parameters,
                count_cell(line.macs, NO_FORMULA),
                count_cell(line.flops, NO_FORMULA),
                count_cell(line.backward_flops, NO_FORMULA)
                if sheet.backward
                else missing_cell(NO_BACKWARD),
                count_cell(line.elementwise_flops, NO_FORMULA),
                line.parameter_bytes,
                line.written_bytes,
            ]
            rows.append((network.label, cells))
    caption = f"Layers, parameters and estimated FLOPs, batch {compared.batch}"
    table = compared.build_networks_table(caption, heads, rows)
    return build_study_chapter(
        text, tables=(table,), findings=_describe_network_size_changes(compared)
    )


def _describe_network_size_changes(compared: ComparedNetworks) -> Iterator[str]:
    at_batch = [
        (network, point)
        for network, points in compared.points
        for point in points
        if point.batch == compared.batch and point.estimated.value
    ]
    for (first, a), (second, b) in pairwise(at_batch):
        before, after = (
            network.build_network_calculation_sheet(compared.batch).total.parameters
            for network in (first, second)
        )
        factor = format_ratio((b.estimated.value or 0) / (a.estimated.value or 1))
        text = (
            f"{second.label}: {after:,} parameters instead of {before:,}; {compared.layer} does "
            f"x {factor} FLOPs"
        )
        clocks = a.forward.synchronised, b.forward.synchronised
        if clocks[0] and clocks[1] and compared.slowest_over_fastest_step < SCATTER_MIN:
            text += f" in x {format_ratio(clocks[1].median / clocks[0].median)} time"
        yield f"{text}."


def build_manual_estimates_chapter(compared: ComparedNetworks) -> View:
    """Return manual estimates, checked; every figure of the layer in all its units; its worked
    example line by line."""
    layer, batch = compared.layer, compared.batch
    rows = []
    worked = []
    for network in compared.networks:
        sheet = network.build_layer_calculation_sheet(batch, layer)
        values: dict[str, dict[str, int]] = defaultdict(dict)
        for item in sheet.quantities if sheet else ():
            values[item.quantity].setdefault(item.unit, item.value)
        for quantity, by_unit in values.items():
            absent = "not a figure of this quantity"
            kib = by_unit["B"] / 1024 if "B" in by_unit else None
            cells = [count_cell(by_unit.get(unit), absent) for unit in UNITS]
            cells.append(
                missing_cell(absent)
                if kib is None
                else Cell(format_integer_or_six_digits(kib), value=kib)
            )
            rows.append((network.label, [quantity, *cells]))
        lines = [
            [section.title, line.quantity, line.formula, line.numbers, line.result]
            for section in (sheet.sections if sheet else ())
            for line in section.lines
        ]
        of_network = f", {network.label}" if len(compared.networks) > 1 else ""
        caption = f"{layer} at batch {batch}{of_network}, worked line by line"
        heads = text_columns("part", "what", "formula", "numbers", "result")
        worked.append(build_table(caption, heads, [list(map(text_cell, line)) for line in lines]))
    columns = [*text_columns("quantity"), *map(Column, (*UNITS, "KiB"))]
    every = compared.build_networks_table(
        f"{layer} at batch {batch}: every quantity", columns, rows
    )
    return build_study_chapter(
        (explain_check_finding(value.finding, value.layer) for value in compared.hand),
        tables=(_build_manual_estimates_table(compared), every, *worked),
        findings=map(shorten_sentence, _judge_first_two_manual_estimates(compared.hand)),
    )


def _build_manual_estimates_table(compared: ComparedNetworks) -> Table | None:
    heads = [
        *text_columns("layer"),
        Column("your value"),
        *text_columns("result"),
        *map(Column, ("batch", "right")),
        *text_columns("unit", "quantity"),
    ]
    rows = []
    for value in compared.hand:
        finding = value.finding
        wrong = (
            f"wrong, possibly by {'; '.join(finding.mistakes)}"
            if finding.is_explained
            else "not explained"
        )
        cells = [
            value.layer,
            Cell(finding.value_with_thousands_separators, value=finding.value),
            "right" if value.is_right else wrong,
            value.batch,
            finding.correct_value,
            finding.unit,
            finding.quantity or "forward",
        ]
        rows.append((value.network, cells))
    return compared.build_networks_table("Manual estimates, checked", heads, rows)


def _judge_first_two_manual_estimates(values: Sequence[CheckedHandValue]) -> Iterator[str]:
    """Yield what the first two values are; the table has all."""
    for value in values[:2]:
        finding = value.finding
        start = (
            f"Your {finding.value_with_thousands_separators} for {value.layer} (batch "
            f"{value.batch}) is"
        )
        right = f"{finding.correct_value:,} {finding.unit}"
        if value.is_right:
            yield f"{start} right: {finding.quantity or finding.unit}."
        elif finding.is_explained:
            text = f"{start} wrong, possibly by {' and '.join(finding.mistakes)}. Correct: {right}."
            number = len(finding.mistakes)
            mistakes = f"{number} mistakes" if number > 1 else "one mistake"
            short = f"{start} wrong, possibly by {mistakes}. Correct: {right}."
            yield text if len(text) <= LONGEST else short
        else:
            yield f"{start} no figure of it, and no usual mistake gives it; the nearest is {right}."


def build_executed_flops_chapter(compared: ComparedNetworks) -> View:
    """Return estimated, executed and derived FLOPs of the layer's forward pass, and of the complete
    step."""
    layer, points = compared.layer, compared.labelled_points
    heads = [
        Column("batch"),
        Column(f"{layer} estimated", "MAC"),
        Column(f"{layer} estimated", "FLOP"),
        Column(f"{layer} executed", "FLOP", note="by hardware counters"),
        Column(f"{layer} derived", "FLOP", note="from kernel names, grids and shapes"),
        Column("executed / estimated"),
        Column("outside layers, collected", "FLOP", note="instructions of kernels in no range"),
        Column("outside layers, derived", "FLOP", note="with those that were not collected"),
        Column("step estimated", "FLOP", note="forward and backward of all layers"),
        Column("step executed", "FLOP"),
    ]
    rows = []
    for label, point in points:
        estimated, executed = point.estimated.value, point.executed
        share = executed.value / estimated if executed.value is not None and estimated else None
        loose = (point.loose.flops, point.loose.derived)
        cells = [
            point.batch,
            count_cell(
                None if estimated is None else int(estimated / 2), point.estimated.reason or ""
            ),
            _build_exact_flops_cell(point.estimated),
            figure_cell(executed, "FLOP"),
            figure_cell(point.derived, "FLOP"),
            _build_ratio_cell(share, executed.reason or "not collected"),
            *(
                count_cell(None if value is None else round(value), "no such kernel was collected")
                for value in loose
            ),
            _build_exact_flops_cell(point.step_paper),
            figure_cell(point.step_counted, "FLOP"),
        ]
        rows.append((label, cells))
    figures = {
        "executed": ([point.executed for _, point in points], "run it on an NVIDIA GPU with ncu"),
        "derived": (
            [point.derived for _, point in points],
            "they need the kernels of a GPU, from torch, nsys or ncu",
        ),
    }
    missing = {
        f"{name} FLOPs of {layer}": f"{values[0].reason or 'not collected'}; {fix}"
        for name, (values, fix) in figures.items()
        if values and all(figure.value is None for figure in values)
    }
    caption = f"FLOPs of {layer} forward and of a step"
    return build_study_chapter(
        charts=(draw_layer_forward_flops_chart(layer, _label_points_for_charts(compared)),),
        tables=(compared.build_networks_table(caption, heads, rows, explain_empty_columns=False),),
        findings=_summarize_largest_batch_flops(compared),
        missing=missing,
    )


def _build_exact_flops_cell(figure: Figure) -> Cell:
    if figure.lower_bound:
        return figure_cell(figure, "FLOP")
    value = None if figure.value is None else round(figure.value)
    return count_cell(value, figure.reason or "not known")


def _build_ratio_cell(value: float | None, reason: str) -> Cell:
    return missing_cell(reason) if value is None else Cell(format_ratio(value), value=value)


def _summarize_largest_batch_flops(compared: ComparedNetworks) -> Iterator[str]:
    last = compared.points[0][1][-1]
    if (estimated := last.estimated.value) is None:
        return
    start = (
        f"{compared.layer} forward at batch {last.batch}: {format_si(estimated, 'FLOP')} estimated"
    )
    for how, value in (("executed", last.executed.value), ("derived", last.derived.value)):
        if value is not None:
            yield f"{start}, {format_si(value, 'FLOP')} {how} ({format_ratio(value / estimated)}x)."
            return
    if last.loose.flops is not None:
        loose = f"{format_si(last.loose.flops, 'FLOP')} of {', '.join(last.loose.names)}"
        yield f"{start}; kernels of no layer show {loose}."
    else:
        reason = last.executed.reason or "no counters at this batch size"
        text = f"{start}; no executed FLOPs: {reason}."
        # the list of what is not in this study has every reason
        yield text if len(text) <= LONGEST else f"{start}; there are no executed FLOPs."


def _label_points_for_charts(
    compared: ComparedNetworks,
) -> list[tuple[str, Sequence[LayerAtBatch]]]:
    """Return points with names for charts: without the word that all begin with."""
    label_parts = [network.label.split() for network in compared.networks]
    has_same = len({label[0] for label in label_parts}) == 1 and all(
        label[1:] for label in label_parts
    )
    return [
        ("" if len(label_parts) == 1 else " ".join(label[1:] if has_same else label), points)
        for label, (_, points) in zip(label_parts, compared.points, strict=True)
    ]


def build_layer_and_step_time_chapter(compared: ComparedNetworks) -> View:
    """Return times of the layer and of a step by the synchronized clock and under the profiler."""
    layer, points = compared.layer, compared.labelled_points
    both = [clocks for _, point in points for clocks in (point.forward, point.step)]
    bases = dict.fromkeys(clocks.basis for clocks in both if clocks.basis)
    host_rows = []
    for label, point in points:
        for tool, ns in point.host:
            cell = Cell(f"{ns / 1e6:g}", format_integer_or_six_digits(ns, "ns"), value=ns / 1e6)
            host_rows.append((label, [point.batch, describe_profiler_presence(tool), cell]))
    heads = [Column("batch"), *text_columns("run"), Column("time", "ms")]
    missing = {}
    if not any(point.forward.synchronised for _, point in points):
        reason = "no run timed its layers with one: those of built-in workloads do"
        missing[f"time of {layer} by a synchronized clock"] = reason
    if not any(point.forward.profiled for _, point in points):
        reason = "no trusted report times it: nsys and the PyTorch profiler do"
        missing[f"time of {layer} under a profiler"] = reason
    host_caption = f"Time of {layer} by the CPU timer, as reported"
    return build_study_chapter(
        (f"Profiler: {'; '.join(bases)}.",) if bases else (),
        (draw_layer_forward_time_by_clock(layer, _label_points_for_charts(compared)),),
        (
            _build_clock_vs_profiler_table(
                f"Time of {layer}, by two clocks", compared, "forward", "backward"
            ),
            _build_clock_vs_profiler_table("Time of a step, by two clocks", compared, "step"),
            compared.build_networks_table(host_caption, heads, host_rows),
        ),
        findings=_describe_layer_times(compared),
        missing=missing,
    )


def _build_clock_vs_profiler_table(
    caption: str, compared: ComparedNetworks, *parts: str
) -> Table | None:
    """Return the times of these parts of a point: forward, backward, step."""
    heads = [Column("batch")]
    for quantity in parts:
        note = "a clock that waits for the device, no profiler; median"
        heads += [
            time_column(f"{quantity}, clock", note),
            time_column(f"{quantity}, profiler", "median over the measured steps"),
            Column(f"{quantity}, profiler / clock"),
        ]
    rows = []
    for label, point in compared.labelled_points:
        cells: list[object] = [point.batch]
        for clocks in (getattr(point, part) for part in parts):
            cells += [
                _build_median_time_cell(
                    clocks.synchronised, "no run timed it with a synchronized clock"
                ),
                _build_median_time_cell(clocks.profiled, "no profiler timed it", clocks.basis),
                _build_ratio_cell(clocks.profiled_over_synchronised, "needs both"),
            ]
        rows.append((label, cells))
    table = compared.build_networks_table(caption, heads, rows, explain_empty_columns=False)
    has_times = table is not None and any(column.base == "ns" for column in table.columns)
    return table if has_times else None


def _build_median_time_cell(
    spread: TimeSpread | None, reason: str, basis: str | None = None
) -> Cell:
    if spread is None:
        return missing_cell(reason)
    note = join_notes(format_integer_or_six_digits(spread.median, "ns"), basis)
    return Cell(format_step_times(spread), note, value=spread.median)


def _describe_layer_times(compared: ComparedNetworks) -> Iterator[str]:
    layer, scatter = compared.layer, compared.slowest_over_fastest_step
    _, points = compared.points[0]
    chosen = next((point for point in points if point.batch == compared.batch), points[-1])
    both = {
        "on the synchronized clock": chosen.forward.synchronised,
        "under the profiler": chosen.forward.profiled,
    }
    if times := [f"{format_step_times(spread)} {how}" for how, spread in both.items() if spread]:
        factor = chosen.forward.profiled_over_synchronised if scatter < SCATTER_MIN else None
        times_text = ", ".join(times) + (f" (x {format_ratio(factor)})" if factor else "")
        yield f"{layer} forward at batch {chosen.batch} takes {times_text}."
    if scatter >= SCATTER_MIN:
        yield (
            f"The slowest step of {layer} took {format_significant(scatter)} times as long as the "
            "fastest one, probably because other programs ran. Repeat the study on an idle "
            "machine."
        )
        return
    clocks = {point.batch: point.forward.synchronised for point in points}
    timed = [(batch, spread.median) for batch, spread in clocks.items() if spread is not None]
    if len(timed) > 1:
        (first, before), (last, after) = timed[0], timed[-1]
        yield (
            f"From batch {first} to {last} the work of {layer} grows x "
            f"{format_ratio(last / first)}, its time x {format_ratio(after / before)}."
        )


CHAPTERS: dict[str, Callable[[ComparedNetworks], View]] = {
    "network": build_network_layers_chapter,
    "hand": build_manual_estimates_chapter,
    "comparison": build_executed_flops_chapter,
    "time": build_layer_and_step_time_chapter,
    "memory": build_memory_chapter,
    "training": build_training_chapter,
    "machine": build_machine_chapter,
    "causes": build_flops_difference_causes_chapter,
}
