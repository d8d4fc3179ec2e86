"""The charts of inference at low batch: every model in each of them, against batch size. Names
begin with a chapter's key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from perfctl.orchestrator.ledger.usage.inference import InferencePoint
from perfctl.orchestrator.ledger.usage.readings import by_device
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch, shares
from perfctl.orchestrator.report.charts.speedup import Bar, Course, bars, plotted, show_time
from perfctl.orchestrator.report.numbers import per_second, percent, short, size
from perfctl.orchestrator.statistics import TooWide, share_too_wide, wilson

MODELS = 8
"""Lines with a name of their own in one chart; the tables have all models."""
BARS = 24
FAR, APART = ("latency", "throughput"), 30
"""Charts with a logarithmic axis if values are further apart than this factor: on a linear one
the small are one line."""
MOMENTS = 100
"""Points of a curve over time; of more readings each point is the largest of several."""
PARTS = {"loading": 1, "copies": 2, "compute": 0}
"""Part of a step -> its colour."""
GPU_WAYS = {
    "kernels": "from the start and duration of every kernel",
    "sampled": "nvidia-smi or NVML, sampled (approximate)",
    "DLProf": "GPU Utilization in DLProf's summary",
}
"""Way in which the busy share of the GPU is known -> what it rests on."""


class Lines(NamedTuple):
    """A chart of one value, with a line a model."""

    name: str
    title: str
    note: str
    value: Callable[[InferencePoint], float | None]
    show: Callable[[float], str]


def show_size(value: float) -> str:
    """Return bytes as an axis has them."""
    return short(size(value))


def _show_share(value: float) -> str:
    return f"{value * 100:.3g}%"


def _percentile(part: int, more: str = "") -> Lines:
    def value(point: InferencePoint) -> float | None:
        return None if point.latency is None else point.latency.percentiles[part]

    note = f"copies and computation of a full batch, without loading{more}"
    return Lines(f"latency-p{part}", f"Latency p{part}", note, value, show_time)


def _images_per_second(point: InferencePoint) -> float | None:
    return None if point.latency is None else point.latency.images_per_second


def _host_cores(point: InferencePoint) -> float | None:
    cores = (use.ways.host_cores for use in point.uses)
    return next((count for count in cores if count is not None), None)


LATENCY = (
    _percentile(50),
    _percentile(95, "; a p95 needs 20 batches"),
    Lines(
        "throughput-images",
        "Images per second",
        "images of full batches / time of their steps, including the wait for images",
        _images_per_second,
        lambda value: short(per_second(value)),
    ),
)
UTILISATION = (
    Lines(
        "utilisation-tensor",
        "Tensor cores",
        "tensor cores: value of DLProf or ncu; otherwise share of kernel time by kernel names",
        lambda point: point.tensor.value,
        _show_share,
    ),
    Lines(
        "utilisation-memory",
        "Memory of the GPU",
        "highest memory in use / memory of the GPU",
        lambda point: point.memory.value,
        _show_share,
    ),
    Lines(
        "utilisation-host",
        "Host cores busy",
        "cores that the run's processes kept busy in its steps, mean over time",
        _host_cores,
        lambda cores: f"{cores:.3g}",
    ),
)


def all_charts(points: Sequence[InferencePoint]) -> dict[str, tuple[Chart, ...]]:
    """Return chapter -> its charts; a chapter without any is left out."""
    chapters: dict[str, list[Chart]] = {}
    for name, chart in _every_chart(points):
        chapters.setdefault(name.partition("-")[0], []).append(chart)
    return {name: tuple(charts) for name, charts in chapters.items()}


def _every_chart(points: Sequence[InferencePoint]) -> Iterator[tuple[str, Chart]]:
    """Yield (name, chart) in the order of the chapters."""
    for lines in LATENCY:
        yield from _draw_lines(lines, points)
    yield from _step_parts(points)
    ways = dict.fromkeys(point.gpu_way for point in points if point.gpu_way)
    for way in ways:  # never two ways in one line
        title = f"GPU busy ({way})" if len(ways) > 1 else "GPU busy"
        name = f"utilisation-gpu-{way.lower()}"
        lines = Lines(name, title, GPU_WAYS[way], lambda point: point.gpu.value, _show_share)
        yield from _draw_lines(lines, [point for point in points if point.gpu_way == way])
    for lines in UTILISATION:
        yield from _draw_lines(lines, points)
    note = "; ".join(dict.fromkeys(point.peak_of for point in points if point.peak is not None))
    peak = Lines("memory-peak", "Peak memory", note, lambda point: point.peak, show_size)
    yield from _draw_lines(peak, points)
    scored = [point for point in points if top1_of(point) is not None]
    is_wide = any(map(wide_of, scored))
    note = "shaded: 95% interval for this many images (Wilson)"
    if is_wide:
        note = "too few images for a 95% interval"
    top1 = Lines("accuracy-top1", "Top-1", note, top1_of, percent)
    yield from _draw_lines(top1, scored, None if is_wide else interval_of)
    yield from _courses(points)


def _draw_lines(
    lines: Lines,
    points: Sequence[InferencePoint],
    band: Callable[[InferencePoint], tuple[float, float]] | None = None,
) -> Iterator[tuple[str, Chart]]:
    """Yield a line a model; with one batch size, or if no report says its own, a bar a report.
    Nothing if no value is known."""
    name, title, note, value_of, show = lines
    values = {id(point): value_of(point) for point in points}
    known = [(point, value) for point in points if (value := values[id(point)]) is not None]
    batches = {point.batch for point, _ in known}
    if not known:
        return
    if len(batches) == 1:
        (batch,) = batches
        rows = [
            Bar(point.model, value, None, None, place)
            for place, (point, value) in enumerate(known[:BARS])
        ]
        of_what = "of each report" if batch is None else f"at batch {batch}"
        svg = bars(name, f"{title} {of_what}", rows, show, _axis(title))
        if batch is None:
            note = f"{note}; the reports do not state their batch size"
            yield name, Chart(f"{title}, by report", svg, note)
        else:
            yield name, Chart(f"{title} {of_what}", svg, note)
        return
    models = list(dict.fromkeys(point.model for point in points))
    series = []
    for model in dict.fromkeys(point.model for point, _ in known):
        own = [(point, value) for point, value in known if point.model == model and point.batch]
        if own:
            ends = [band(point) for point, _ in own] if band else []
            lows, highs = (tuple(end[place] for end in ends) for place in (0, 1))
            sizes, heights = tuple(point.batch or 0 for point, _ in own), [at for _, at in own]
            colour = models.index(model)
            series.append(Series(model, sizes, tuple(heights), lows, highs, colour))
    if len(series) > MODELS:
        note += f"; {MODELS} of {len(series)} models, the table has all"
    series = series[:MODELS]
    said = "; ".join(
        f"{line.label} batch {batch}: {show(value)}"
        for line in series
        for batch, value in zip(line.batches, line.values, strict=True)
    )
    every = [value for line in series for value in line.values]
    is_far = name.startswith(FAR) and min(every) > 0 and max(every) > APART * min(every)
    up = f"{_axis(title)}, log axis" if is_far else _axis(title)
    description = f"{title} over batch size. {said}"
    svg = against_batch(name, description, series, show, decades=is_far, up=up)
    yield name, Chart(f"{title}, by batch size", svg, note)


def _step_parts(points: Sequence[InferencePoint]) -> Iterator[tuple[str, Chart]]:
    rows = [
        (
            f"{point.model} {timed.batch}",
            {
                "loading": timed.load / timed.step,
                "copies": timed.copy / timed.step,
                "compute": timed.compute / timed.step,
            },
        )
        for point in points
        if (timed := point.latency) is not None
    ]
    if rows:
        title = "Parts of a step, one bar per model and batch size"
        svg = shares("throughput-parts", title, rows[:BARS], PARTS, what="")
        note = "shares of the mean step; loading is the wait that computation does not hide"
        note += f"; the first {BARS} of {len(rows)}" if len(rows) > BARS else ""
        title = "Parts of a step, by model and batch size"
        yield "throughput-parts", Chart(title, svg, note, tuple(PARTS.items()))


def top1_of(point: InferencePoint) -> float | None:
    """0..1; None where it was not scored."""
    return (
        None if point.latency is None or not images_of(point) else point.latency.figures.get("top1")
    )


def images_of(point: InferencePoint) -> int:
    """Images that were scored; 0 where that is not known."""
    return int(point.latency.figures.get("images") or 0) if point.latency is not None else 0


def interval_of(point: InferencePoint) -> tuple[float, float]:
    """95% interval of top-1 over its images. Only where ``top1_of`` gives one."""
    return wilson(top1_of(point) or 0.0, images_of(point))


def wide_of(point: InferencePoint) -> TooWide | None:
    """Why that interval says nothing: so few images. Only where ``top1_of`` gives one."""
    return share_too_wide(top1_of(point) or 0.0, images_of(point))


def _courses(points: Sequence[InferencePoint]) -> Iterator[tuple[str, Chart]]:
    """Yield utilisation and memory of GPUs over time, a line a device of a report."""
    for field, key, title, show in (
        ("gpu_utilisation", "utilisation", "GPU utilization", _show_share),
        ("memory_used_bytes", "memory", "GPU memory in use", show_size),
    ):
        lines: list[Course] = []
        for point, use in ((each, use) for each in points for use in each.uses):
            devices = by_device(use.run)
            for device, samples in devices.items():
                known = sorted(
                    (sample.at_ns, float(value))
                    for sample in samples
                    if (value := getattr(sample, field)) is not None
                )
                if len({at for at, _ in known}) > 1:
                    label = point.model + (f" b{point.batch}" if point.batch else "")
                    label += f" GPU {device}" if len(devices) > 1 else ""
                    lines.append(_course(label.strip(), known, len(lines)))
        if lines:
            titles = (f"{title} over time", "time since the first sample", _axis(title))
            svg = plotted(f"samples-{key}", lines[:MODELS], (show_time, show), titles)
            note = "samples of nvidia-smi, DCGM or NVML"
            note += f"; {MODELS} of {len(lines)} curves" if len(lines) > MODELS else ""
            yield f"samples-{key}", Chart(f"{title} over time", svg, note)


def _course(label: str, known: Sequence[tuple[int, float]], colour: int) -> Course:
    each = -(-len(known) // MOMENTS)
    groups = [known[place : place + each] for place in range(0, len(known), each)]
    xs = tuple(float(group[0][0] - known[0][0]) for group in groups)
    return Course(label, xs, tuple(max(value for _, value in group) for group in groups), colour)


def _axis(title: str) -> str:
    """Return the title of an axis: "GPU busy", "latency p50"."""
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"
