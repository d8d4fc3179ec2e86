"""The charts of inference at low batch: every model in each of them, against batch size. Names
begin with a chapter's key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfctl.orchestrator.ledger.usage.inference import WAYS, InferenceLatency, InferencePoint
from perfctl.orchestrator.ledger.usage.readings import (
    group_gpu_samples_by_device,
    list_ns_and_value_of_field,
)
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    HorizontalBar,
    draw_batch_chart,
    draw_curves_over_epochs_or_time,
    draw_horizontal_bars,
    draw_stacked_share_bars,
    format_bytes_tick,
    format_ns_tick,
    format_share_tick,
    make_chart_lines,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    drop_trailing_zeros,
    format_percent,
    format_rate,
)
from perfctl.orchestrator.statistics import group_by

MODELS_MAX = 8
"""Lines with a name of their own in one chart; the tables have all models."""
BARS_MAX = 24
LOG_CHARTS, LOG_FACTOR = ("latency", "throughput"), 30
"""Charts with a logarithmic axis if values are further apart than this factor: on a linear one
the small are one line."""
SAMPLES_MAX = 100
"""Points of a curve over time; of more samples each point is the largest of several."""
STEP_PARTS = {"loading": 1, "copies": 2, "compute": 0}
"""Part of a step -> its color."""


class ModelLines(NamedTuple):
    """A chart of one value, with a line per model."""

    name: str
    title: str
    note: str
    read: Callable[[InferencePoint], float | None]
    show: WriteNumber


def _make_latency_reader(
    read: Callable[[InferenceLatency], float | None],
) -> Callable[[InferencePoint], float | None]:
    return lambda point: None if point.latency is None else read(point.latency)


def find_busy_host_cores(point: InferencePoint) -> float | None:
    """Return the cores that the lightest run kept busy that recorded it."""
    cores = (use.utilization_by_source.host_cores for use in point.uses)
    return next((count for count in cores if count is not None), None)


def _define_percentile_chart(percentile: int, note: str = "") -> ModelLines:
    return ModelLines(
        f"latency-p{percentile}",
        f"Latency p{percentile}",
        f"copies and computation of a full batch, without loading{note}",
        _make_latency_reader(lambda item: item.percentiles[percentile]),
        format_ns_tick,
    )


LATENCY = (
    _define_percentile_chart(50),
    _define_percentile_chart(95, "; a p95 needs 20 batches"),
    ModelLines(
        "throughput-images",
        "Images per second",
        "images of full batches / time of their steps, including the wait for images",
        _make_latency_reader(lambda item: item.images_per_second),
        lambda value: drop_trailing_zeros(format_rate(value)),
    ),
)
UTILIZATION = (
    ModelLines(
        "utilization-tensor",
        "Tensor cores",
        "tensor cores: value of DLProf or ncu; otherwise share of kernel time by kernel names",
        lambda point: point.tensor.value,
        format_share_tick,
    ),
    ModelLines(
        "utilization-memory",
        "Memory of the GPU",
        "highest memory in use / memory of the GPU",
        lambda point: point.memory.value,
        format_share_tick,
    ),
    ModelLines(
        "utilization-host",
        "Host cores busy",
        "cores that the run's processes kept busy in its steps, mean over time",
        find_busy_host_cores,
        lambda cores: f"{cores:.3g}",
    ),
)


def draw_inference_charts_by_chapter(
    points: Sequence[InferencePoint],
) -> dict[str, tuple[Chart, ...]]:
    """Return chapter -> its charts; a chapter without any is left out."""
    charts = filter(None, _draw_inference_charts_in_order(points))
    chapters = group_by(charts, lambda chart: chart.name.partition("-")[0])
    return {key: tuple(of_chapter) for key, of_chapter in chapters.items()}


def _draw_inference_charts_in_order(points: Sequence[InferencePoint]) -> Iterator[Chart | None]:
    """Yield the charts in the order of the chapters."""
    for lines in LATENCY:
        yield _draw_model_lines_or_bars(lines, points)
    yield _draw_step_part_shares(points)
    ways = {point.gpu_way for point in points}
    for _, way, meaning in WAYS:  # never two ways in one line
        if way in ways:
            title = f"GPU busy ({way})" if len(ways - {""}) > 1 else "GPU busy"
            name = f"utilization-gpu-{way.lower()}"
            lines = ModelLines(
                name, title, meaning, lambda point: point.gpu.value, format_share_tick
            )
            yield _draw_model_lines_or_bars(
                lines, [point for point in points if point.gpu_way == way]
            )
    for lines in UTILIZATION:
        yield _draw_model_lines_or_bars(lines, points)
    note = "; ".join(dict.fromkeys(point.peak_of for point in points if point.peak is not None))
    peak = ModelLines(
        "memory-peak", "Peak memory", note, lambda point: point.peak, format_bytes_tick
    )
    yield _draw_model_lines_or_bars(peak, points)
    is_wide = any(
        point.latency is not None and point.latency.top1_interval_too_wide for point in points
    )
    note = "shaded: 95% interval for this many images (Wilson)"
    if is_wide:
        note = "too few images for a 95% interval"
    top1 = ModelLines(
        "accuracy-top1", "Top-1", note, _make_latency_reader(lambda item: item.top1), format_percent
    )
    yield _draw_model_lines_or_bars(top1, points, is_banded=not is_wide)
    yield from _draw_gpu_samples_over_time(points)


def _draw_model_lines_or_bars(
    lines: ModelLines,
    points: Sequence[InferencePoint],
    *,
    is_banded: bool = False,
) -> Chart | None:
    """Return a line per model; with one batch size, or if no report states its own, a bar per
    report. None if no value is known."""
    name, title, note, read, show = lines
    values = [(point, value) for point in points if (value := read(point)) is not None]
    batches = {point.batch for point, _ in values}
    if not values:
        return None
    if len(batches) == 1:
        (batch,) = batches
        rows = [
            HorizontalBar(point.model, value, color)
            for color, (point, value) in enumerate(values[:BARS_MAX])
        ]
        title += ", by report" if batch is None else f" at batch {batch}"
        note += "; the reports do not state their batch size" if batch is None else ""
        return draw_horizontal_bars(
            name, title, rows, show, _lowercase_axis_title(lines.title), note
        )
    models = list(dict.fromkeys(point.model for point in points))
    of_models = {
        model: {
            point.batch: value for point, value in values if point.batch and point.model == model
        }
        for model in models
    }
    ends = {
        (point.model, point.batch): point.latency.top1_interval
        for point, _ in values
        if point.latency is not None and is_banded
    }
    series = [
        replace(
            line,
            colour=models.index(line.label),
            bounds={batch: ends[line.label, batch] for batch in line.points} if ends else {},
        )
        for line in make_chart_lines(of_models)
    ]
    if len(series) > MODELS_MAX:
        note += f"; {MODELS_MAX} of {len(series)} models, the table has all"
    series = series[:MODELS_MAX]
    every = [value for line in series for value in line.points.values()]
    is_log = name.startswith(LOG_CHARTS) and min(every) > 0 and max(every) > LOG_FACTOR * min(every)
    up = f"{_lowercase_axis_title(title)}{', log axis' if is_log else ''}"
    title = f"{title}, by batch size"
    return draw_batch_chart(name, title, series, show, note, has_log10_axis=is_log, y_label=up)


def _draw_step_part_shares(points: Sequence[InferencePoint]) -> Chart | None:
    name, title = "throughput-parts", "Parts of a step, by model and batch size"
    timed = [(point.model, point.latency) for point in points if point.latency is not None]
    rows = [
        (
            f"{model} {mean.batch}",
            dict(
                zip(
                    STEP_PARTS,
                    (mean.data_load_share, mean.copy / mean.step, mean.compute / mean.step),
                    strict=True,
                )
            ),
        )
        for model, mean in timed[:BARS_MAX]
    ]
    note = "shares of the mean step; loading is the wait that computation does not hide"
    note += f"; the first {BARS_MAX} of {len(timed)}" if len(timed) > BARS_MAX else ""
    if not rows:
        return None
    return draw_stacked_share_bars(name, title, title, rows, STEP_PARTS, note, row_label_prefix="")


def _draw_gpu_samples_over_time(points: Sequence[InferencePoint]) -> Iterator[Chart | None]:
    """Yield utilization and memory of GPUs over time, a line per device of a report."""
    for field, key, title, show in (
        ("gpu_utilisation", "utilization", "GPU utilization", format_share_tick),
        ("memory_used_bytes", "memory", "GPU memory in use", format_bytes_tick),
    ):
        lines: list[ChartLine] = []
        for model, batch, use in [(p.model, p.batch, use) for p in points for use in p.uses]:
            devices = group_gpu_samples_by_device(use.run)
            for device, samples in devices.items():
                values = list_ns_and_value_of_field(samples, field)
                if len(values) > 1:
                    step = -(-len(values) // SAMPLES_MAX)
                    parts = [values[start : start + step] for start in range(0, len(values), step)]
                    course = {part[0][0] - values[0][0]: max(y for _, y in part) for part in parts}
                    label = model + (f" b{batch}" if batch else "")
                    label += f" GPU {device}" if len(devices) > 1 else ""
                    lines.append(ChartLine(label.strip(), course, len(lines)))
        titles = (f"{title} over time", "time since the first sample", _lowercase_axis_title(title))
        note = "samples of nvidia-smi, DCGM or NVML"
        note += f"; {MODELS_MAX} of {len(lines)} curves" if len(lines) > MODELS_MAX else ""
        shows = (format_ns_tick, show)
        yield draw_curves_over_epochs_or_time(
            f"samples-{key}", titles, lines[:MODELS_MAX], shows, note
        )


def _lowercase_axis_title(title: str) -> str:
    """Return the title of an axis: "GPU busy", "latency p50"."""
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"
