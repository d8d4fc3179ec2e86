"""The charts of inference at low batch: every model in each of them, against batch size. Names
begin with a chapter's key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perfctl.orchestrator.ledger.usage.inference import InferencePoint
from perfctl.orchestrator.ledger.usage.readings import by_device
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch, shares
from perfctl.orchestrator.report.charts.speedup import Bar, Course, bars, plotted
from perfctl.orchestrator.report.numbers import per_second, percent, short, size, time
from perfctl.orchestrator.statistics import TooWide, share_too_wide, wilson

MODELS = 8
"""Lines with a name of their own in one chart; the tables have all models."""
BARS = 24
FAR, APART = ("latency", "throughput"), 30
"""Charts with a logarithmic axis where values are further apart than this factor: on a linear one
the small are one line."""
MOMENTS = 100
"""Points of a curve over time; of more readings each point is the largest of several."""
PARTS = {"loading": 1, "copies": 2, "compute": 0}
"""Part of a step -> its colour."""
Value = Callable[[InferencePoint], float | None]


def all_charts(points: Sequence[InferencePoint]) -> dict[str, tuple[Chart, ...]]:
    """Chapter -> its charts; a chapter without any is left out."""
    found: dict[str, list[Chart | None]] = {
        "latency": [_percentile(points, 50), _percentile(points, 95)],
        "throughput": [_throughput(points), *_parts(points)],
        "utilisation": list(_utilisation(points)),
        "memory": [_peak(points)],
        "accuracy": [_top1(points)],
        "samples": list(_courses(points)),
    }
    return {
        key: kept
        for key, charts in found.items()
        if (kept := tuple(chart for chart in charts if chart))
    }


def _colours(points: Sequence[InferencePoint]) -> dict[str, int]:
    """The same in all charts."""
    return {
        model: place for place, model in enumerate(dict.fromkeys(point.model for point in points))
    }


def _lines(
    name: str,
    title: str,
    points: Sequence[InferencePoint],
    value: Value,
    show: Callable[[float], str],
    note: str,
    band: Callable[[InferencePoint], tuple[float, float]] | None = None,
) -> Chart | None:
    """A line a model; where no report says its batch size, a bar a report. None where no value
    is known."""
    known = [(point, found) for point in points if (found := value(point)) is not None]
    if not known:
        return None
    sizes = {point.batch for point, _ in known}
    if len(sizes) == 1:
        rows = [
            Bar(point.model, found, None, None, place)
            for place, (point, found) in enumerate(known[:BARS])
        ]
        (batch,) = sizes
        of_what = "of each report" if batch is None else f"at batch {batch}"
        svg = bars(name, f"{title} {of_what}", rows, show, _axis(title))
        if batch is None:
            return Chart(
                f"{title}, by report", svg, f"{note}; the reports do not say their batch size"
            )
        return Chart(f"{title} {of_what}", svg, note)
    colours, lines = _colours(points), []
    for model in dict.fromkeys(point.model for point, _ in known):
        mine = [
            (point, found)
            for point, found in known
            if point.model == model and point.batch is not None
        ]
        if mine:
            ends = [band(point) for point, _ in mine] if band else []
            lows, highs = (tuple(end[place] for end in ends) for place in (0, 1))
            batches = tuple(point.batch or 0 for point, _ in mine)
            values = tuple(found for _, found in mine)
            lines.append(Series(model, batches, values, lows, highs, colours[model]))
    left_out = (
        f"; {MODELS} of {len(lines)} models, the table has all" if len(lines) > MODELS else ""
    )
    lines = lines[:MODELS]
    said = "; ".join(
        f"{line.label} batch {batch}: {show(found)}"
        for line in lines
        for batch, found in zip(line.batches, line.values, strict=True)
    )
    every = [value for line in lines for value in line.values]
    far = name.startswith(FAR) and min(every) > 0 and max(every) > APART * min(every)
    up = f"{_axis(title)}, log axis" if far else _axis(title)
    svg = against_batch(
        name, f"{title} against batch size. {said}", lines, show, decades=far, up=up
    )
    return Chart(f"{title}, by batch size", svg, note + left_out)


def _percentile(points: Sequence[InferencePoint], part: int) -> Chart | None:
    def value(point: InferencePoint) -> float | None:
        return None if point.latency is None else point.latency.percentiles[part]

    name, title = f"latency-p{part}", f"Latency p{part}"
    more = "" if part == 50 else f"; a p{part} needs 20 batches"
    return _lines(
        name,
        title,
        points,
        value,
        _clock,
        f"copies and computation of a full batch, images ready{more}",
    )


def _throughput(points: Sequence[InferencePoint]) -> Chart | None:
    def value(point: InferencePoint) -> float | None:
        return None if point.latency is None else point.latency.images_per_second

    note = "images of full batches over the time of their steps, waiting for images included"
    return _lines(
        "throughput-images",
        "Images per second",
        points,
        value,
        lambda rate: short(per_second(rate)),
        note,
    )


def _parts(points: Sequence[InferencePoint]) -> Iterator[Chart]:
    rows = []
    for point in points:
        timed = point.latency
        if timed is not None:
            parts = {"loading": timed.load / timed.step, "copies": timed.copy / timed.step}
            rows.append(
                (f"{point.model} {timed.batch}", parts | {"compute": timed.compute / timed.step})
            )
    if rows:
        left_out = f"; the first {BARS} of {len(rows)}" if len(rows) > BARS else ""
        svg = shares(
            "throughput-parts",
            "Parts of a step, a bar a model and batch size",
            rows[:BARS],
            PARTS,
            what="",
        )
        note = (
            f"shares of the mean step; loading is the wait that computation did not hide{left_out}"
        )
        yield Chart("Parts of a step, by model and batch size", svg, note, tuple(PARTS.items()))


def _utilisation(points: Sequence[InferencePoint]) -> Iterator[Chart | None]:
    ways = dict.fromkeys(point.gpu_way for point in points if point.gpu_way)
    for way in ways:  # never two ways in one line
        mine = [point for point in points if point.gpu_way == way]
        note = {
            "kernels": "from start and length of every kernel",
            "sampled": "nvidia-smi or NVML, sampled: an estimate",
            "DLProf": "GPU Utilization in DLProf's summary",
        }[way]
        more = f" ({way})" if len(ways) > 1 else ""
        yield _lines(
            f"utilisation-gpu-{way.lower()}",
            f"GPU busy{more}",
            mine,
            lambda one: one.gpu.value,
            _share,
            note,
        )
    note = "tensor cores: DLProf's or ncu's figure, else the share of kernel time by kernel names"
    yield _lines(
        "utilisation-tensor", "Tensor cores", points, lambda one: one.tensor.value, _share, note
    )
    note = "highest memory in use over all of the GPU's"
    yield _lines(
        "utilisation-memory",
        "Memory of the GPU",
        points,
        lambda one: one.memory.value,
        _share,
        note,
    )
    note = "cores that the run's processes kept busy in its steps, mean over time"
    yield _lines(
        "utilisation-host", "Host cores busy", points, _host, lambda cores: f"{cores:.3g}", note
    )


def _host(point: InferencePoint) -> float | None:
    return next(
        (use.ways.host_cores for use in point.uses if use.ways.host_cores is not None), None
    )


def _peak(points: Sequence[InferencePoint]) -> Chart | None:
    note = "; ".join(dict.fromkeys(point.peak_of for point in points if point.peak is not None))
    return _lines(
        "memory-peak",
        "Peak memory",
        points,
        lambda one: one.peak,
        lambda value: short(size(value)),
        note,
    )


def _top1(points: Sequence[InferencePoint]) -> Chart | None:
    scored = [point for point in points if top1_of(point) is not None]
    wide = any(wide_of(point) for point in scored)
    note = (
        "too few images for a 95% interval"
        if wide
        else "shaded: 95% interval for this many images (Wilson)"
    )
    return _lines(
        "accuracy-top1", "Top-1", scored, top1_of, percent, note, band=None if wide else interval_of
    )


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


def _courses(points: Sequence[InferencePoint]) -> Iterator[Chart]:
    """Utilisation and memory of GPUs over time, a line a device of a report."""
    fields: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
        ("gpu_utilisation", "utilisation", "GPU utilisation", _share),
        ("memory_used_bytes", "memory", "GPU memory in use", lambda value: short(size(value))),
    )
    for field, key, title, show in fields:
        lines: list[Course] = []
        for point in points:
            for use in point.uses:
                devices = by_device(use.run)
                for device, samples in devices.items():
                    known = [
                        (one.at_ns, float(value))
                        for one in samples
                        if (value := getattr(one, field)) is not None
                    ]
                    if len({at for at, _ in known}) > 1:
                        label = " ".join(
                            filter(None, (point.model, f"b{point.batch}" if point.batch else ""))
                        )
                        label += f" GPU {device}" if len(devices) > 1 else ""
                        lines.append(_course(label, sorted(known), len(lines)))
        if lines:
            left_out = f"; {MODELS} of {len(lines)} curves" if len(lines) > MODELS else ""
            titles = (f"{title} over time", "time since its first reading", _axis(title))
            svg = plotted(f"samples-{key}", lines[:MODELS], (_clock, show), titles)
            yield Chart(
                f"{title} over time", svg, f"readings of nvidia-smi, DCGM or NVML{left_out}"
            )


def _course(label: str, known: Sequence[tuple[int, float]], colour: int) -> Course:
    each = -(-len(known) // MOMENTS)
    groups = [known[place : place + each] for place in range(0, len(known), each)]
    xs = tuple(float(group[0][0] - known[0][0]) for group in groups)
    return Course(label, xs, tuple(max(value for _, value in group) for group in groups), colour)


def _clock(value: float) -> str:
    return short(time(value))


def _share(value: float) -> str:
    return f"{value * 100:.3g}%"


def _axis(title: str) -> str:
    """As the title of an axis: "GPU busy", "latency p50"."""
    return title if title[:2].isupper() else f"{title[:1].lower()}{title[1:]}"
