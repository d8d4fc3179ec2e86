"""Parts of one run group next to each other: the GPU of each, figures of its variants, and times of
the CPU timer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware.peaks import (
    find_fastest_gpu_and_flop_rate,
    find_recorded_gpu,
)
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.prepared import Study
from perfctl.orchestrator.ledger.timing import (
    HostTime,
    count_estimated_macs_of_layer,
    list_reported_layer_host_times,
)
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_integer_or_six_digits,
    format_ratio,
    format_si,
)
from perfctl.orchestrator.report.page.about import describe_profiler_versions, describe_study_device
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_cell,
    build_table_hiding_empty_columns,
    count_cell,
    missing_cell,
    optional_text_cell,
    text_cell,
    text_column,
    text_columns,
    time_cell,
    time_column,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import LayerCall
from perfctl.records.run import Run

VARIANTS_MAX, LAYERS_MAX = 4, 12
"""More variants, or variants with more layers that have parameters, are not compared."""
DEFAULT_VARIANT = "by default"
NOT_RECORDED = missing_cell("not recorded")


def build_device_by_study_table(studies: Sequence[Study]) -> Table | None:
    """Return a row per part, with its device; None if all are on the same."""
    if len({describe_study_device(study) for study in studies}) < 2:
        return None
    rows = []
    for study in studies:
        gpu = next((gpu for run in study.runs if (gpu := find_recorded_gpu(run)) is not None), None)
        device, batches = gpu or describe_study_device(study), " ".join(map(str, study.batches))
        cell = optional_text_cell(device, "not recorded")
        rows.append(
            [
                study.variant or DEFAULT_VARIANT,
                cell,
                describe_profiler_versions(study.runs),
                batches,
            ]
        )
    columns = text_columns("part", "device", "tools", "batch")
    return build_table_hiding_empty_columns(
        "Parts, each with its device", columns, rows, has_filter_and_csv=False
    )


def build_variant_comparison_table(analysis: Analysis) -> Table | None:
    """Return parameters, multiply-adds, accuracy and times of up to four variants of one network, a
    column each.

    The figures are those of the runs at the smallest batch size that all variants have. None for
    one variant, for networks of many or of different layers, and without such a batch size.
    """
    pairs = ((study.variant, run) for study in analysis.parts for run in study.runs)
    groups = group_by(pairs, lambda pair: pair[0])
    by_variant = {variant: [run for _, run in same] for variant, same in groups.items()}
    if not 2 <= len(by_variant) <= VARIANTS_MAX:
        return None
    sizes = [{run.batch_size for run in runs if run.layer_calls} for runs in by_variant.values()]
    batch = min((size for size in set.intersection(*sizes) if size is not None), default=None)
    if batch is None:
        return None
    variants = [[run for run in runs if run.batch_size == batch] for runs in by_variant.values()]
    traced = [next(run.layer_calls for run in runs if run.layer_calls) for runs in variants]
    calls = [[call for call in each if call.direction == "forward"] for each in traced]
    layers, *other_layers = [
        [call.layer for call in forward if call.parameters] for forward in calls
    ]
    if any(names != layers for names in other_layers) or not 0 < len(layers) <= LAYERS_MAX:
        return None
    is_refused = any(item.rule == "more work in less time" for item in analysis.judgement.sweep)
    columns = [
        text_column("figure"),
        *(Column(variant or DEFAULT_VARIANT) for variant in by_variant),
    ]
    rows = (
        *_build_differing_conv_shape_rows(layers, variants),
        *_build_parameter_and_mac_rows(layers, calls),
        *_build_test_accuracy_rows(variants),
        *_build_cpu_timer_rows(variants, are_ratios_refused=is_refused),
    )
    notes = ["MAC: multiply-adds of the batch."]
    notes += (
        ["Time: CPU timer."]
        if any(any(list_reported_layer_host_times(runs)) for runs in variants)
        else []
    )
    notes += ["Refused: the times cannot be compared (see the findings)."] if is_refused else []
    caption = f"Variants side by side, batch {batch}"
    return build_table_hiding_empty_columns(caption, columns, rows, notes, has_filter_and_csv=False)


def _build_differing_conv_shape_rows(
    layers: Sequence[str], variants: Sequence[Sequence[Run]]
) -> Iterator[list[object]]:
    """Yield shapes of convolution weights, "64 x 32 x 3 x 3", that differ between variants."""
    for layer in layers:
        shapes = []
        for runs in variants:
            weights = (
                op.inputs[1]
                for run in runs
                for op in run.report.ops
                if op.layer == layer and op.op == "aten.convolution" and len(op.inputs) > 1
            )
            shapes.append(next((" x ".join(map(str, shape)) for shape in weights if shape), None))
        if len(set(shapes)) > 1 and None not in shapes:
            yield [f"{layer} weights", *map(text_cell, shapes)]


def _build_parameter_and_mac_rows(
    layers: Sequence[str], calls: Sequence[Sequence[LayerCall]]
) -> Iterator[list[object]]:
    for name, field in (("parameters", "parameters"), ("forward, MAC", "macs")):
        for layer in (*layers, "all"):
            cells = []
            for forward in calls:
                chosen = [call for call in forward if layer in (call.layer, "all")]
                values = list(map(attrgetter(field), chosen))
                total = None if None in values else sum(values)
                cells.append(count_cell(total, "no estimate"))
            yield [f"{layer} {name}", *cells]


def _build_test_accuracy_rows(variants: Sequence[Sequence[Run]]) -> Iterator[list[object]]:
    shares = [find_last_test_accuracy(runs) for runs in variants]
    if any(share is not None for share in shares):
        cells = (
            NOT_RECORDED if share is None else Cell(f"{share:.2%}", value=share) for share in shares
        )
        yield ["last accuracy", *cells]


def find_last_test_accuracy(runs: Sequence[Run]) -> float | None:
    """Return the share (0..1) of correct answers in the last test; None without one."""
    tests = [
        step
        for run in runs
        for step in run.report.steps
        if step.phase == "test" and step.accuracy is not None
    ]
    return max(tests, key=lambda step: step.number).accuracy if tests else None


def _build_cpu_timer_rows(
    variants: Sequence[Sequence[Run]], *, are_ratios_refused: bool
) -> Iterator[list[object]]:
    """Yield the CPU-timer times of each layer and pass, and their ratios."""
    by_variant = [
        group_by(
            list_reported_layer_host_times(runs), lambda item: f"{item.layer} {item.direction}"
        )
        for runs in variants
    ]
    for name in dict.fromkeys(name for times in by_variant for name in times):
        times = [_choose_tested_or_newest_time_ns(items.get(name, ())) for items in by_variant]
        yield [
            f"{name}, time",
            # with four digits, as such times are published
            *(
                NOT_RECORDED
                if ns is None
                else Cell(f"{ns / 1e6:.4g} ms", format_integer_or_six_digits(ns, "ns"), value=ns)
                for ns in times
            ),
        ]
        ratios = [_build_time_ratio_cell(time, times[0]) for time in times]
        if are_ratios_refused:
            refused = "these times cannot be compared"
            ratios[1:] = [
                cell
                if cell.value is None
                else Cell("refused", f"{cell.text}, but {refused}", "refused")
                for cell in ratios[1:]
            ]
        yield ["time / time of the first variant", *ratios]


def _choose_tested_or_newest_time_ns(times: Sequence[HostTime]) -> float | None:
    """Return the time of the run with the variant's results; otherwise of the newest."""
    best = max(
        times,
        key=lambda item: (find_last_test_accuracy([item.run]) is not None, item.run.id),
        default=None,
    )
    return best.nanoseconds if best else None


def _build_time_ratio_cell(value: float | None, reference: float | None) -> Cell:
    if value is None or not reference:
        return missing_cell("one of the two times is unknown")
    return Cell(
        format_ratio(value / reference),
        format_integer_or_six_digits(value / reference),
        value=value / reference,
    )


class _CpuTiming(NamedTuple):
    """A time of the CPU timer, or a batch without one that the counters measured."""

    name: str
    run: Run
    batch: int | None
    macs: int | None
    nanoseconds: float | None
    precision: str | None


def build_cpu_time_vs_peak_minimum_table(analysis: Analysis) -> Table | None:
    """Return every time of the CPU timer next to the minimum that a kernel needs, by the peak of
    the fastest GPU model that it may be."""
    minimum = (
        "estimated FLOPs / peak: the minimum time of a kernel that executes the estimated FLOPs"
    )
    columns = [
        text_column("layer"),
        Column("batch"),
        Column("MAC", note="estimated multiply-adds; 1 multiply-add = 2 FLOPs"),
        time_column("CPU timer"),
        Column("rate", "FLOP/s", note="estimated FLOPs / time of the CPU timer"),
        time_column("minimum", minimum),
        Column("time / minimum", note="below 1, the timer cannot have measured such a kernel"),
        text_column("GPU", is_optional=True),
    ]
    rows = []
    peaks: dict[str, None] = {}
    for item in _list_cpu_timings(analysis):
        gpu, least = find_recorded_gpu(item.run), None
        fastest_gpu = find_fastest_gpu_and_flop_rate(gpu, item.precision)
        no_peak = "not recorded which GPU it was"
        if fastest_gpu is not None and item.macs:
            model, peak = fastest_gpu
            least, text = 2 * item.macs / peak * 1e9, drop_trailing_zeros(format_si(peak, "FLOP/s"))
            note = f"Peak of {gpu}, assumed to be a {model.name}, the fastest candidate: {text}."
            peaks[note] = None
        elif gpu is not None and gpu.name:
            no_peak = f"the device table has no peak of {gpu.name}"
        spent = item.nanoseconds
        rate = 2 * item.macs / spent * 1e9 if item.macs and spent else None
        share = _build_time_ratio_cell(spent, least)
        is_impossible = spent is not None and least and spent < least
        rows.append(
            [
                item.name,
                count_cell(item.batch, "not recorded"),
                amount_cell(item.macs, "", "no estimate"),
                time_cell(spent, "this batch size has no time"),
                amount_cell(rate, "FLOP/s", "no time, or no estimate"),
                time_cell(least, no_peak),
                replace(share, style="bad") if is_impossible else share,
                optional_text_cell(gpu, "not recorded"),
            ]
        )
    caption = "CPU-timer times, and the minimum at peak FLOP/s"
    return build_table_hiding_empty_columns(caption, columns, rows, peaks)


def _list_cpu_timings(analysis: Analysis) -> Iterator[_CpuTiming]:
    for study in analysis.parts:
        times = sorted(
            list_reported_layer_host_times(study.runs),
            key=lambda item: (item.layer, item.direction, item.run.batch_size or 0),
        )
        for item in times:
            variant = f", {study.variant}" if study.variant else ""
            yield _CpuTiming(
                f"{item.layer} {item.direction}{variant}",
                item.run,
                item.run.batch_size,
                item.macs,
                item.nanoseconds,
                study.precision,
            )
        if study is analysis.study:
            yield from _list_counter_batch_without_run(
                analysis, {(item.layer, item.direction) for item in times}
            )


def _list_counter_batch_without_run(
    analysis: Analysis, timed: Collection[tuple[str, str]]
) -> Iterator[_CpuTiming]:
    """Yield the batch size that the counters measured, if no run has it."""
    study, window = analysis.study, analysis.judgement.window
    if window is None or window.batch is None or window.batch in study.batches:
        return
    if window.row is None or window.row not in timed:
        return
    for run in study.runs:
        if run.batch_size and (macs := count_estimated_macs_of_layer(run, *window.row)):
            macs = macs * window.batch // run.batch_size
            name = f"{' '.join(window.row)}, executed"
            yield _CpuTiming(name, run, window.batch, macs, None, study.precision)
            return
