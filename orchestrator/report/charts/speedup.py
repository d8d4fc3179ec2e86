"""The charts of a speedup study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfctl.orchestrator.compare.speedup import Gain, NetworkSpeedup
from perfctl.orchestrator.counts.kernels.categories import CATEGORIES
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names
from perfctl.orchestrator.ledger.arm_figures import ArmFigures, EpochFigures
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    HorizontalBar,
    draw_bars_chart,
    draw_batch_chart,
    draw_course_chart,
    draw_pies_chart,
    draw_shares_chart,
    format_bytes_tick,
    format_epoch_tick,
    format_ns_tick,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    format_percent,
    format_ratio,
    format_significant,
)

_MOST_BARS, _PIECES = 24, 7
"""The pieces of a pie are as many as have a colour of their own."""
LABEL_CHARACTERS = 28
"""Characters of a kernel's name beside its bar."""
_REST = "all others"
ON_TEST = "On test data, newest run."
_METRICS: tuple[tuple[str, str, WriteNumber, str], ...] = (
    (
        "Training loss",
        "loss",
        format_significant,
        "Mean over the training data during the epoch, newest run.",
    ),
    ("Test loss", "test_loss", format_significant, ON_TEST),
    ("Accuracy", "accuracy", format_percent, ON_TEST),
    ("Dice", "dice", format_percent, ON_TEST),
)
_COLOURS = {kind: index for index, kind in enumerate(CATEGORIES)} | {"optimizer": 9, "other": 8}


def draw_speedup_charts(study: NetworkSpeedup, key: str, *, pie: bool = False) -> list[Chart]:
    """Return everything that this study has values for; ``pie`` draws shares of a whole as pies."""
    work = draw_work_charts(study, key, pie=pie)
    drawings = (*_draw_gain_charts(study, key), *_draw_course_charts(study, key), *work)
    return list(filter(None, drawings))


def draw_gains_by_batch(studies: Sequence[NetworkSpeedup]) -> Iterator[Chart | None]:
    """How many times faster at each batch size, a line a device: by whole epochs, then by steps."""
    base = studies[0].base
    for level, unit, note in (
        ("epoch", "whole epochs", "every sample loaded and trained on once, without a profiler"),
        ("step", "steps", "measured steps, under the profiler"),
    ):
        gains: dict[str, dict[int, Gain]] = {}
        for study in studies:
            for other in study.comparisons:
                gain = next((line.gain for line in other.lines if line.key.level == level), None)
                if gain is not None and study.batch is not None:
                    gains.setdefault(other.label, {})[study.batch] = gain
        lines = [
            ChartLine(
                label,
                {batch: gain.value for batch, gain in of_device.items()},
                index,
                {batch: (gain.low, gain.high) for batch, gain in of_device.items()},
            )
            for index, (label, of_device) in enumerate(gains.items(), 1)
        ]
        if any(len(line.points) > 1 for line in lines):
            title = f"Times faster than {base} by {unit}, by batch size"
            note += "; shaded: 95% interval"
            yield draw_batch_chart(
                f"all-{level}", title, lines, format_ratio, note, up="times faster"
            )


def _draw_course_charts(study: NetworkSpeedup, key: str) -> Iterator[Chart | None]:
    for metric, field, show, note in _METRICS:
        for along, by, across in (
            ("epoch", "epoch", format_epoch_tick),
            ("time", "training time", format_ns_tick),
        ):
            name = f"{key}-{metric.replace(' ', '-').lower()}-by-{along}"
            titles = (f"{metric} by {by}", by, metric if metric == "Dice" else metric.lower())
            yield draw_course_chart(
                name, titles, _make_arm_courses(study, field, along), (across, show), note
            )
    titles, lines = (
        ("Training time of each epoch", "epoch", "time"),
        _make_arm_courses(study, "ns", "epoch"),
    )
    note = "Without the test pass."
    yield draw_course_chart(
        f"{key}-epoch-time", titles, lines, (format_epoch_tick, format_ns_tick), note
    )


def _draw_gain_charts(study: NetworkSpeedup, key: str) -> Iterator[Chart]:
    gains = [
        HorizontalBar(
            f"{other.label} {line.key.name}", line.gain.value, index, line.gain.low, line.gain.high
        )
        for index, other in enumerate(study.comparisons, 1)
        for line in other.lines
        if line.gain is not None and line.key.level in ("epoch", "step", "phase")
    ][:_MOST_BARS]
    if gains:
        title = f"Times faster than {study.base}"
        note = "Bars: ratios of geometric means; lines: their 95% intervals; 1: equally fast."
        yield draw_bars_chart(
            f"{key}-speedup", title, gains, format_ratio, "times faster", note, 1.0
        )


def draw_work_charts(study: NetworkSpeedup, key: str, *, pie: bool) -> Iterator[Chart]:
    """Kinds of work and the most expensive operations of each arm, as bars or pies; peak memory
    beside the bars."""
    worked = [(arm.label, dict(arm.categories)) for arm in study.arms if arm.categories]
    if worked:
        name, title, note = f"{key}-work", "Kinds of work", "By share of the time in the trace."
        description = f"{title} by share of the time in the trace"
        if pie:
            yield draw_pies_chart(name, title, description, worked, _COLOURS, note)
        else:
            yield draw_shares_chart(name, title, description, worked, _COLOURS, note, prefix="")
    for index, arm in enumerate(study.arms):
        if arm.top_operations:
            yield _draw_operations(
                arm, f"{key}-operations-{arm.label.replace(':', '-')}", index, pie
            )
    used = [
        HorizontalBar(f"{arm.label} {name.removeprefix('peak ')}", float(value), index)
        for index, arm in enumerate(study.arms)
        for name, value in arm.memory.items()
        if name.startswith("peak")
    ][:_MOST_BARS]
    if used and not pie:
        title, note = "Peak memory", "From the run's own record."
        yield draw_bars_chart(f"{key}-memory", title, used, format_bytes_tick, title.lower(), note)


def _draw_operations(arm: ArmFigures, name: str, index: int, pie: bool) -> Chart:
    title = f"The most expensive on {arm.label}"
    if pie:
        parts = {item.name: item.share for item in arm.top_operations[:_PIECES]}
        colours = {operation: number for number, operation in enumerate(parts)} | {_REST: 8}
        parts[_REST] = max(1 - sum(parts.values()), 0.0)
        return draw_pies_chart(name, title, title, [(arm.label, parts)], colours)
    is_kernels = arm.top_operations[0].total_ns is None
    kernels = (item.name for item in arm.top_operations) if is_kernels else ()
    names = shorten_kernel_names(kernels, LABEL_CHARACTERS)
    rows = [
        HorizontalBar(names.get(item.name, item.name), item.self_ns, index)
        for item in arm.top_operations
    ]
    quantity = "Time of kernels" if is_kernels else "Self time of operations"
    note = f"{quantity}, all steps in the trace."
    return draw_bars_chart(name, title, rows, format_ns_tick, "time in the trace", note)


def _make_arm_courses(study: NetworkSpeedup, field: str, along: str) -> list[ChartLine]:
    return [
        course
        for index, arm in enumerate(study.arms)
        for course in make_epoch_courses(arm.label, arm.epochs, field, index, along)
    ]


def make_epoch_courses(
    label: str, epochs: Sequence[EpochFigures], field: str, colour: int, along: str = "epoch"
) -> Iterator[ChartLine]:
    """Yield a figure of the epochs that have it, along their numbers or their training time."""
    values = [(item, getattr(item, field)) for item in epochs]
    points = {
        item.number + 1 if along == "epoch" else item.elapsed_ns: float(value)
        for item, value in values
        if value is not None
    }
    if points:
        yield ChartLine(label, points, colour)
