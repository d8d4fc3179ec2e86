"""The charts of a study, and of several studies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

from perfctl.orchestrator.counts.counters.sums import read_thread_counts_by_instruction
from perfctl.orchestrator.counts.hardware.peaks import (
    find_fastest_gpu_and_flop_rate,
    find_recorded_gpu,
)
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import Ledger
from perfctl.orchestrator.ledger.prepared import (
    Study,
    group_into_studies,
)
from perfctl.orchestrator.ledger.sweep import BatchPoint
from perfctl.orchestrator.ledger.timing import list_reported_layer_host_times
from perfctl.orchestrator.ledger.usage.counters import (
    ACTIVITIES,
    convert_counter_samples_to_rates,
    get_counter_display_unit,
)
from perfctl.orchestrator.ledger.usage.inference import LIGHTEST_FIRST
from perfctl.orchestrator.ledger.usage.readings import is_host_sample, list_ns_and_value_of_field
from perfctl.orchestrator.ledger.usage.run_usage import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    IDLE,
    RunUsage,
)
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    Colours,
    draw_batch_chart,
    draw_curves_over_epochs_or_time,
    draw_stacked_share_bars,
    format_bytes_tick,
    format_epoch_tick,
    format_ns_tick,
    format_seconds_tick,
    format_share_tick,
    make_chart_lines,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    drop_trailing_zeros,
    format_ratio,
    format_si,
    format_time,
)
from perfctl.orchestrator.report.tables import run_label
from perfctl.orchestrator.statistics import group_by
from perfctl.records.run import Point, Run, format_sweep_point, get_batch_size_sort_key

COLORED_LAYERS = 7
"""Layers with a color of their own; the rest is "other"."""
LINES_MAX = 6
"""Lines of a chart of layers or of memory."""
RATIO_DIFFERENCE_MIN = 0.02
"""Layers whose ratio differs less from 1 are left out of its chart, if others differ more."""
PART_COLORS = {COMPUTE: 2, COMMUNICATION: 0, COPIES: 1, IDLE: 8}
"""Part of the time -> color."""
ESTIMATED = "multiply-adds, estimated"
Sampled = Mapping[str, tuple[str, Callable[[list[float]], float], WriteNumber]]
"""Field of a sample -> (title of its chart, value of several samples, how values are written)."""
SAMPLED_MEMORY: Sampled = {
    "memory_used_bytes": ("Memory used", max, format_bytes_tick),
    "allocated_bytes": ("Memory in tensors", max, format_bytes_tick),
    "reserved_bytes": ("Memory reserved by the allocator", max, format_bytes_tick),
}
SAMPLED: Sampled = {
    "gpu_utilisation": ("GPU utilization", fmean, format_share_tick),
    "power_w": ("Power", fmean, lambda watts: f"{watts:.3g} W"),
    "temperature_c": ("Temperature", max, lambda degrees: f"{degrees:.3g} °C"),
    "sm_clock_hz": ("SM clock", fmean, lambda hertz: drop_trailing_zeros(format_si(hertz, "Hz"))),
}
SERIES_POINTS_MIN, SERIES_POINTS_MAX = 5, 240
"""Points of a line from which on it is drawn, and points of all lines of a chart."""
SERIES_CHARTS_MAX = 6
"""Charts of samples in one report."""
Usages = Sequence[tuple[str, Sequence[RunUsage]]]
"""(model, its runs); the model is "" if there is only one."""
Quantities = Mapping[str, Callable[[RunUsage], float | None]]
BUSY_SHARES: Quantities = {
    "kernels": lambda run: run.utilization_by_source.kernels.value,
    "NVML": lambda run: run.utilization_by_source.nvml.value,
    "DLProf": lambda run: run.utilization_by_source.dlprof.value,
}
MEMORY_USES: Quantities = {
    "process, NVML": lambda run: run.memory_use.process,
    "device in use": lambda run: run.memory_use.device,
    "reserved": lambda run: run.memory_use.reserved,
    "host, all processes": lambda run: run.memory_use.host_all,
    "host resident": lambda run: run.memory_use.host,
}


def draw_study_charts(key: str, analysis: Analysis, *, includes_times: bool) -> tuple[Chart, ...]:
    """Return the charts of one study, the ones that answer most first. ``key`` keeps the drawings'
    inner names apart.

    includes_times: with times and memory by batch size, which inference has in the part of all
    models.
    """
    ledger, colors = analysis.ledger, assign_layer_colours(analysis.ledger)
    points, scale = (
        analysis.points if includes_times else (),
        build_sweep_axis_scale(analysis.study),
    )
    times = list(_draw_sample_and_step_time_charts(key, points, scale))
    parts = [
        _draw_gpu_time_breakdown(key, analysis),
        _draw_layer_time_shares(key, ledger, colors, scale),
    ]
    first = [
        draw_constant_instruction_counts(key, analysis),
        draw_flat_host_time_chart(key, analysis),
        *times[:1],
    ]
    ratios = _draw_flops_ratio_chart(key, ledger, colors, scale)
    memory = _draw_recorded_memory(key, points, scale)
    first_part = next(filter(None, parts), None)
    other_parts = [part for part in parts if part is not first_part]
    charts = (*first, first_part, ratios, *other_parts, *times[1:], memory)
    return tuple(filter(None, charts))


def assign_layer_colours(ledger: Ledger) -> dict[str, int]:
    """Return the color of each layer, the same on every chart; the layers that take most time have
    their own."""
    weight: dict[str, float] = defaultdict(float)
    for row in ledger.rows:
        weight[row.layer_label] += (row.share or 0) + 1e-18 * (row.estimated.value or 0)
    top = set(sorted(weight, key=lambda layer: -weight[layer])[:COLORED_LAYERS])
    order = [
        layer for layer in dict.fromkeys(row.layer_label for row in ledger.rows) if layer in top
    ]
    return {layer: number for number, layer in enumerate(order)}


class AxisScale(NamedTuple):
    """The axis of what varies in a study."""

    axis: str
    """ "batch size", or names of parameters."""
    places: Mapping[Point, float]
    labels: Mapping[float, str] | None
    """Place -> "N=256"; None for batch sizes."""


def build_sweep_axis_scale(study: Study) -> AxisScale:
    """Return the axis of a study: batch sizes or one number as they are, anything else in order at
    equal distances on a log2 axis."""
    if study.batches:
        return AxisScale("batch size", {size: size for size in study.batches}, None)
    numbers = {
        run.point: run.parameters[0].number for run in study.runs if len(run.parameters) == 1
    }
    places = {point: number for point, number in numbers.items() if number and number > 0}
    if len(places) < len(study.points):
        places = {point: 2.0**index for index, point in enumerate(study.points)}
    labels = {position: format_sweep_point(point) for point, position in places.items()}
    return AxisScale(study.axis_name, places, labels)


def _draw_sample_and_step_time_charts(
    key: str, points: Sequence[BatchPoint], scale: AxisScale
) -> Iterator[Chart | None]:
    """Yield time per sample, then per step, if two batch sizes were timed."""
    timed = [(point, point.step) for point in points if point.step is not None]
    counts = sorted({step.count for _, step in timed})
    steps = " to ".join(map(str, dict.fromkeys((*counts[:1], *counts[-1:]))))
    bases = "; ".join(sorted({point.basis or "" for point, _ in timed}))
    for unit in ("sample", "step"):
        seconds = {
            scale.places[point.batch]: [
                ns / divisor / 1e9 for ns in (step.median, step.low, step.high)
            ]
            for point, step in timed
            if (divisor := point.samples if unit == "sample" else 1)
        }
        if len(seconds) >= 2:
            medians = {position: values[0] for position, values in seconds.items()}
            bounds = {position: values[1:] for position, values in seconds.items()}
            line = ChartLine(unit, medians, bounds=bounds)
            yield draw_batch_chart(
                f"{key}-{unit}",
                f"Time per {unit}, by {scale.axis}",
                [line],
                format_seconds_tick,
                f"{bases}; median and range over {steps} steps",
                y_label=f"time per {unit}",
                axis=scale.axis,
                labels=scale.labels,
            )


def _draw_recorded_memory(key: str, points: Sequence[BatchPoint], scale: AxisScale) -> Chart | None:
    values: dict[str, dict[float, float]] = defaultdict(dict)
    for point in points:
        for quantity, count in point.memory.items():
            values[quantity][scale.places[point.batch]] = float(count)
    lines = make_chart_lines(values, 2)[:LINES_MAX]
    subject = lines[0].label.capitalize() if len(lines) == 1 else "Memory"
    note = "values that the workload recorded about itself"
    return draw_batch_chart(
        f"{key}-memory",
        f"{subject}, by {scale.axis}",
        lines,
        format_bytes_tick,
        note,
        y_label="memory",
        axis=scale.axis,
        labels=scale.labels,
    )


def _draw_layer_time_shares(
    key: str, ledger: Ledger, colors: Colours, scale: AxisScale
) -> Chart | None:
    timed = [row for row in ledger.rows if row.share is not None]
    if not timed:
        return None
    parts: dict[Point, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in timed:
        parts[row.batch][row.layer_label if row.layer_label in colors else "other layers"] += (
            row.share or 0
        )
    for item in ledger.unattributed:
        parts[item.batch]["not attributed"] += item.share
    by_batch = f", by {scale.axis}" if len(parts) > 1 else ""
    return draw_stacked_share_bars(
        f"{key}-shares",
        f"Share of the {timed[0].whole} by layer, all passes{by_batch}",
        f"Share of time by layer, one bar per {scale.axis}",
        [(str(batch or ""), parts[batch]) for batch in sorted(parts, key=get_batch_size_sort_key)],
        {**colors, "other layers": 7, "not attributed": 8},
        "; ".join(sorted({row.basis for row in timed if row.basis})),
    )


def _draw_gpu_time_breakdown(key: str, analysis: Analysis) -> Chart | None:
    """Return the activity of the GPU, one bar per batch size: of the run whose layer times are
    read, otherwise of any."""
    groups = [
        (prepared.batch, (prepared.timing_run, *prepared.runs))
        for prepared in analysis.study.prepared_batches
    ] or [(None, analysis.study.prepared_runs)]
    breakdowns = {}
    for batch, runs in groups:
        of_runs = (run.usage.time_breakdown for run in runs if run is not None)
        if (breakdown := next(filter(None, of_runs), None)) is not None:
            breakdowns[batch] = breakdown
    if not breakdowns:
        return None
    windows = "; ".join(dict.fromkeys(breakdown.window for breakdown in breakdowns.values()))
    gpus = max(breakdown.gpus for breakdown in breakdowns.values())
    over = f", mean of {gpus} GPUs" if gpus > 1 else ""
    return draw_stacked_share_bars(
        f"{key}-breakdown",
        f"Step breakdown, by {build_sweep_axis_scale(analysis.study).axis}"
        if len(breakdowns) > 1
        else "GPU activity",
        "Share of the time that the GPU computed, communicated, copied, idled",
        [(str(batch or ""), breakdown.shares) for batch, breakdown in breakdowns.items()],
        PART_COLORS,
        f"{windows}{over}; communication and copies only if no computation hides them; "
        "idle: neither kernels nor copies",
    )


def draw_flat_host_time_chart(key: str, analysis: Analysis) -> Chart | None:
    """Return times of the CPU timer that a cause calls flat, with the minimum that the peak of the
    GPU allows."""
    if not any(item.rule == "time does not follow" for item in analysis.judgement.sweep):
        return None
    times: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    minima: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for timed in list_reported_layer_host_times(analysis.study.runs):
        batch, layer_pass = timed.run.batch_size, (timed.layer, timed.direction)
        if batch is None:
            continue
        times[layer_pass][batch] = timed.nanoseconds / 1e9
        peak = find_fastest_gpu_and_flop_rate(
            find_recorded_gpu(timed.run), analysis.study.precision
        )
        if peak is not None and timed.macs:
            minima[layer_pass][batch] = 2 * timed.macs / peak[1]
    layer_pass = max(times, key=lambda key: len(times[key]), default=("", ""))
    lines = make_chart_lines(
        {"CPU timer": times[layer_pass], "minimum at peak": minima[layer_pass]}, 2
    )
    if not lines or lines[0].label != "CPU timer":
        return None
    note = "minimum: estimated FLOPs / peak of the fastest GPU that fits the records"
    return draw_batch_chart(
        f"{key}-clock",
        f"Time of {' '.join(layer_pass)}, CPU timer",
        lines,
        format_seconds_tick,
        note if len(lines) > 1 else "from the report",
        has_log10_axis=True,
        y_label="time, log axis",
    )


def draw_constant_instruction_counts(key: str, analysis: Analysis) -> Chart | None:
    """Return instructions of the kernels that executed the same at every batch size, and the
    multiply-adds of their layer; None without such kernels, or if no layer fits them."""
    window = analysis.judgement.window
    if window is None or window.row is None:
        return None
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in analysis.ledger.rows:
        if (
            (row.layer, row.direction) == window.row
            and row.complete_estimated_flops
            and isinstance(row.batch, int)
        ):
            values[ESTIMATED][row.batch] = row.complete_estimated_flops / 2
    for prepared in analysis.study.prepared_batches:
        if prepared.counted_run is None or not isinstance(prepared.batch, int):
            continue
        for name in ("fadd", "ffma"):
            total, state = 0.0, "measured"
            for kernel, _ in prepared.counted_run.measured_launches:
                if kernel.name in window.kernels:
                    counters = prepared.counted_run.values.get(kernel.launch, {})
                    value = read_thread_counts_by_instruction(counters).get(name)
                    rule = prepared.rule_completed_counts_by_launch.get(kernel.launch)
                    if value is None and rule is not None:
                        value, state = getattr(rule, name), "derived"
                    total += value or 0
            if total:
                steps = prepared.counted_run.step_count or 1
                values[f"{name.upper()}, {state}"][prepared.batch] = total / steps
    lines = make_chart_lines(values, 2)
    if len(lines) < 2 or lines[0].label != ESTIMATED:
        return None
    estimates, layer_pass = lines[0].points.values(), " ".join(window.row)
    kernels = ", ".join(analysis.names.get(name, name) for name in window.kernels)
    return draw_batch_chart(
        f"{key}-counts",
        f"Executed: constant; estimated: {max(estimates) / min(estimates):.3g}-fold",
        lines,
        lambda n: drop_trailing_zeros(format_si(n)),
        f"estimated multiply-adds of {layer_pass}; instructions of {kernels}",
        has_log10_axis=True,
        y_label="number, log axis",
    )


def _draw_flops_ratio_chart(
    key: str, ledger: Ledger, colors: Colours, scale: AxisScale
) -> Chart | None:
    groups = defaultdict(list)
    for row in ledger.rows:
        if row.ratio and row.batch is not None:
            groups[row.name].append(row)
    differences = {
        name: max(abs((row.ratio or 1) - 1) for row in rows) for name, rows in groups.items()
    }
    different = [name for name in groups if differences[name] > RATIO_DIFFERENCE_MIN] or [*groups]
    furthest = sorted(different, key=lambda name: -differences[name])[:LINES_MAX]
    lines = [
        ChartLine(
            name,
            {scale.places[row.batch]: row.ratio or 1 for row in rows},
            colors.get(rows[0].layer_label, 7),
        )
        for name, rows in groups.items()
        if name in furthest
    ]
    states = {row.executed.state for rows in groups.values() for row in rows}
    is_derived = states == {"derived"}
    note = "derived from kernel names, grids and shapes" if is_derived else "measured by ncu"
    near = sum(differences[name] <= RATIO_DIFFERENCE_MIN for name in groups if name not in furthest)
    if near:
        note += f"; {near} more within 2% of 1"
    if len(different) > len(furthest):
        note += f"; the {len(furthest)} furthest of {len(different)}"
    return draw_batch_chart(
        f"{key}-ratio",
        f"Executed / estimated FLOPs, by {scale.axis}",
        lines,
        format_ratio,
        note,
        has_log2_ratio_axis=True,
        y_label="executed / estimated",
        axis=scale.axis,
        labels=scale.labels,
    )


def draw_utilization_and_memory_charts(runs: Sequence[Run]) -> tuple[Chart, ...]:
    """Return charts of utilization and memory with all studies of ``runs`` in them."""
    usages = [
        (get_model_or_workload_label(study), [RunUsage(run) for run in study.runs])
        for study in group_into_studies(runs)
        if not study.is_foreign
    ]
    charts = (
        draw_busy_share_by_batch("all-utilization", usages),
        draw_peak_memory_by_batch(usages),
    )
    return tuple(filter(None, charts))


def get_model_or_workload_label(study: Study) -> str:
    """Return the model's name if the workload has one, otherwise the workload's with its own
    options."""
    model = study.runs[0].report.environment.get("option:model")
    return model or ", ".join(part for part in (study.workload, study.variant) if part)


def draw_busy_share_by_batch(name: str, usages: Usages) -> Chart | None:
    """Return the busy share against batch size, one line per tool and model. On a CPU, cores
    busy."""
    note = (
        "kernels: start and duration of each; NVML: driver value, mean over time; DLProf: its "
        "summary"
    )
    title = "Share of time with a busy GPU"
    values = _group_values_by_batch(usages, BUSY_SHARES)
    if chart := _draw_usage_by_batch_chart(name, title, values, format_share_tick, note):
        return chart
    values = _group_values_by_batch(usages, {"": lambda run: run.utilization_by_source.host_cores})
    note = "cores that the run's processes kept busy in its steps, mean over time"
    return _draw_usage_by_batch_chart(
        name, "Host cores busy", values, lambda cores: f"{cores:.3g}", note
    )


def draw_samples_over_time(
    name: str, runs: Sequence[Run], quantities: Sampled
) -> tuple[Chart, ...]:
    """Return samples against time, one chart a quantity and run, one line a device; none
    of a quantity that did not change."""
    charts: list[Chart | None] = []
    for run in runs:
        for field, (title, choose, show) in quantities.items():
            lines, width = _make_sample_lines(run, field, choose)
            if len({value for line in lines for value in line.points.values()}) < 2:
                continue
            # samples without times are numbered
            is_timed = width > 1
            titles = (
                f"{title} ({run_label(run)})" if len(runs) > 1 else title,
                "time" if is_timed else "sample",
                "",
            )
            note = (
                f"{'Mean' if choose is fmean else 'Maximum'} of the samples in {format_time(width)}"
            )
            charts.append(
                draw_curves_over_epochs_or_time(
                    f"{name}-{len(charts)}",
                    titles,
                    lines,
                    (format_ns_tick if is_timed else format_epoch_tick, show),
                    note if is_timed else "",
                )
            )
    return tuple(filter(None, charts[:SERIES_CHARTS_MAX]))


def _make_sample_lines(
    run: Run, field: str, aggregate: Callable[[list[float]], float]
) -> tuple[list[ChartLine], int]:
    """Return a line for each device, and the time of which a point is, in ns."""
    counters = [sample for sample in run.report.counter_samples if sample.name == field]
    samples: list[Any] = counters or [
        item for item in run.report.samples if not is_host_sample(item)
    ]
    devices = group_by(samples, lambda sample: sample.device_index)
    times = [sample.at_ns for sample in samples] or [0]
    begin, length = min(times), max(times) - min(times)
    width = length * len(devices) // SERIES_POINTS_MAX + 1
    lines = []
    for colour, (device, of_device) in enumerate(devices.items()):
        points = (
            convert_counter_samples_to_rates(of_device)
            if counters
            else list_ns_and_value_of_field(of_device, field)
        )
        parts = group_by(points, lambda point: (point[0] - begin) // width).values()
        if len(parts) >= SERIES_POINTS_MIN:
            course = {
                part[-1][0] - begin: aggregate([value for _, value in part]) for part in parts
            }
            lines.append(ChartLine(f"GPU {device or 0}", course, colour))
    return lines, width


def list_counters_to_chart(runs: Sequence[Run]) -> Sampled:
    """Return the hardware counters that runs sampled, as quantities of
    ``draw_samples_over_time``; those of ACTIVITIES come first."""
    units = {
        item.name: get_counter_display_unit(item)
        for run in runs
        for item in run.report.counter_samples
    }
    ordered = sorted(
        units, key=lambda name: not any(begin.match(name) for begin in ACTIVITIES.values())
    )
    return {name: (name, fmean, partial(_format_counter_tick, units[name])) for name in ordered}


def _format_counter_tick(unit: str, value: float) -> str:
    return (
        format_share_tick(value / 100)
        if unit == "%"
        else drop_trailing_zeros(format_si(value, unit))
    )


def draw_peak_memory_by_batch(usages: Usages) -> Chart | None:
    """Return memory against batch size, one line per model: by NVML if it was sampled, otherwise
    the allocator's, otherwise the host's."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for usage in usages:
        values |= islice(_group_values_by_batch([usage], MEMORY_USES).items(), 1)
    note = (
        "maximum of each run: process or device (NVML), reserved (torch allocator), or resident "
        "memory of the host"
    )
    return _draw_usage_by_batch_chart("all-memory", "Memory", values, format_bytes_tick, note)


def _group_values_by_batch(
    usages: Usages, quantities: Quantities
) -> dict[tuple[str, str], dict[int, float]]:
    """Return (model, quantity) -> batch size -> value, if there are two batch sizes."""
    values = {}
    for model, runs in usages:
        ordered = sorted(runs, key=lambda item: LIGHTEST_FIRST.get(item.run.profiler, 3))
        for quantity, read in quantities.items():
            points: dict[int, float] = {}
            for item in ordered:
                if item.run.batch_size is not None and (value := read(item)) is not None:
                    points.setdefault(item.run.batch_size, value)
            if len(points) > 1:
                values[model, quantity] = points
    return values


def _draw_usage_by_batch_chart(
    name: str,
    title: str,
    values: Mapping[tuple[str, str], Mapping[int, float]],
    show: WriteNumber,
    note: str,
) -> Chart | None:
    """Return a line per model, and per quantity if lines differ in it."""
    quantities = {quantity for _, quantity in values}
    up = title.lower()
    if len(quantities) == 1 and (quantity := next(iter(quantities))):
        title += f" ({quantity})"
    lines = make_chart_lines(
        {
            ", ".join(
                filter(None, (model, quantity if len(quantities) > 1 or not model else ""))
            ): points
            for (model, quantity), points in values.items()
        }
    )
    return draw_batch_chart(name, f"{title}, by batch size", lines, show, note, y_label=up)
