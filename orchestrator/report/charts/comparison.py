"""Charts of networks and devices next to each other: FLOPs and times of one layer, the course of
training, and speedups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from perfctl.orchestrator.compare.speedup import Gain, NetworkSpeedup
from perfctl.orchestrator.counts.kernels.categories import CATEGORIES
from perfctl.orchestrator.counts.kernels.short_names import shorten_kernel_names_uniquely
from perfctl.orchestrator.ledger.arm_figures import ArmFigures, EpochFigures, list_epochs
from perfctl.orchestrator.ledger.network import LayerAtBatch
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    HorizontalBar,
    draw_batch_chart,
    draw_curves_over_epochs_or_time,
    draw_horizontal_bars,
    draw_pies_chart,
    draw_stacked_share_bars,
    format_bytes_tick,
    format_epoch_tick,
    format_ns_tick,
    format_seconds_tick,
    make_chart_lines,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    drop_trailing_zeros,
    format_percent,
    format_ratio,
    format_si,
    format_significant,
)
from perfctl.records.run import Run

Named = Sequence[tuple[str, Sequence[LayerAtBatch]]]
"""(network, its points), in order; the network is "" where there is only one."""
Values = dict[str, Callable[[LayerAtBatch], float | None]]
"""Name of a line -> its value at a point."""

LOOSE = "*"
"""Marks the name of a line of kernels that no layer claims."""
WIDE = 100.0
"""Values that differ by more than this factor stand on a logarithmic axis: on a straight one the
small ones would be 0."""
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


def describe_profiler_presence(profiler: str) -> str:
    """What ran while the CPU timer did."""
    return "alone" if profiler == "none" else f"under {profiler}"


def draw_layer_forward_flops_chart(layer: str, networks: Named) -> Chart | None:
    """Estimated, executed and derived FLOPs of the layer's forward pass. 1 multiply-add = 2
    FLOPs."""
    lines = _make_network_lines(
        networks,
        {
            "estimated": lambda point: point.estimated.value,
            "executed": lambda point: point.executed.value,
            "derived": lambda point: point.derived.value,
            f"collected{LOOSE}": lambda point: point.loose.flops,
            f"derived{LOOSE}": lambda point: point.loose.derived,
        },
    )
    values = [value for line in lines for value in line.points.values()]
    is_wide = bool(values) and min(values) > 0 and max(values) > WIDE * min(values)
    names = {line.label.partition(", ")[0] for line in lines}
    absent = [name for name in ("executed", "derived") if name not in names]
    source = f"without {' and '.join(absent)} FLOPs, which no run has"
    notes = [
        *(["logarithmic axis"] if is_wide else []),
        source if absent else "measured by ncu",
        *(["*: kernels without a layer"] if any(LOOSE in name for name in names) else []),
    ]
    return draw_batch_chart(
        "comparison-flops",
        f"FLOPs of {layer} forward: estimated{' and executed' if 'executed' in names else ''}",
        lines,
        lambda value: drop_trailing_zeros(format_si(float(value))),
        "; ".join(notes),
        has_log10_axis=is_wide,
        y_label="FLOP",
    )


def draw_layer_forward_time_by_clock(layer: str, networks: Named) -> Chart | None:
    """Time of the layer's forward pass by the synchronised clock and under the profiler."""

    def get_median_seconds(spread: TimeSpread | None) -> float | None:
        return spread.median / 1e9 if spread is not None else None

    values = {
        "clock": lambda point: get_median_seconds(point.forward.synchronised),
        "profiler": lambda point: get_median_seconds(point.forward.profiled),
    }
    tools = (tool for _, points in networks for point in points for tool, _ in point.host)
    for tool in dict.fromkeys(tools):
        values[f"host {describe_profiler_presence(tool)}"] = partial(_find_host_timer_seconds, tool)
    return draw_batch_chart(
        "time-clocks",
        f"Time of {layer} forward, by batch size",
        _make_network_lines(networks, values),
        format_seconds_tick,
        "medians; clock: synchronized, no profiler; profiler: the same layer in the profiler "
        "report",
        y_label="time per step",
    )


def _find_host_timer_seconds(profiler: str, point: LayerAtBatch) -> float | None:
    """Return the time by the CPU timer, in the run under this profiler."""
    return next((ns / 1e9 for name, ns in point.host if name == profiler), None)


def _make_network_lines(networks: Named, values: Values) -> list[ChartLine]:
    return make_chart_lines(
        {
            f"{name}, {network}" if network else name: {
                point.batch: value for point in points if (value := read(point)) is not None
            }
            for network, points in networks
            for name, read in values.items()
        }
    )


def draw_loss_and_accuracy_by_epoch(runs: Sequence[tuple[str, Run]]) -> Iterator[Chart | None]:
    """Yield loss, then accuracy on test data, along epochs."""
    for name, title, fields, show in (
        ("loss", "Loss", {"training": "loss", "test": "test_loss"}, format_significant),
        ("accuracy", "Accuracy on test data", {"": "accuracy"}, format_percent),
    ):
        lines: list[ChartLine] = []
        for label, run in runs:
            for kind, field in fields.items():
                line = ": ".join(filter(None, (label, kind))) or name
                lines += make_epoch_metric_lines(line, list_epochs(run), field, len(lines))
        titles = (f"{title}, by epoch", "epoch", title.lower())
        yield draw_curves_over_epochs_or_time(
            f"training-{name}", titles, lines, (format_epoch_tick, show)
        )


def draw_loss_by_step(runs: Sequence[tuple[str, Run]]) -> Chart | None:
    """Return the loss of each measured step, a line a run; None if no run recorded two."""
    lines: list[ChartLine] = []
    for label, run in runs:
        losses = (step.loss for step in run.report.steps if step.phase == "step")
        points = {number: loss for number, loss in enumerate(losses, 1) if loss is not None}
        if len(points) > 1:
            lines.append(ChartLine(label, points, len(lines)))
    titles = ("Loss, by step", "measured step", "loss")
    return draw_curves_over_epochs_or_time(
        "training-loss", titles, lines, (format_epoch_tick, format_significant)
    )


def draw_speedup_charts(study: NetworkSpeedup, key: str, *, uses_pies: bool = False) -> list[Chart]:
    """Return everything that this study has values for; ``uses_pies`` draws shares of a whole as
    pies."""
    work = draw_work_and_memory_charts(study, key, uses_pies=uses_pies)
    drawings = (*_draw_speedup_bars(study, key), *_draw_training_curves_by_arm(study, key), *work)
    return list(filter(None, drawings))


def draw_speedup_by_batch(studies: Sequence[NetworkSpeedup]) -> Iterator[Chart | None]:
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
                f"all-{level}", title, lines, format_ratio, note, y_label="times faster"
            )


def _draw_training_curves_by_arm(study: NetworkSpeedup, key: str) -> Iterator[Chart | None]:
    for metric, field, show, note in _METRICS:
        for along, by, across in (
            ("epoch", "epoch", format_epoch_tick),
            ("time", "training time", format_ns_tick),
        ):
            name = f"{key}-{metric.replace(' ', '-').lower()}-by-{along}"
            titles = (f"{metric} by {by}", by, metric if metric == "Dice" else metric.lower())
            yield draw_curves_over_epochs_or_time(
                name, titles, _make_arm_epoch_lines(study, field, along), (across, show), note
            )
    titles = ("Training time of each epoch", "epoch", "time")
    lines = _make_arm_epoch_lines(study, "ns", "epoch")
    note = "Without the test pass."
    yield draw_curves_over_epochs_or_time(
        f"{key}-epoch-time", titles, lines, (format_epoch_tick, format_ns_tick), note
    )


def _draw_speedup_bars(study: NetworkSpeedup, key: str) -> Iterator[Chart]:
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
        yield draw_horizontal_bars(
            f"{key}-speedup", title, gains, format_ratio, "times faster", note, 1.0
        )


def draw_work_and_memory_charts(
    study: NetworkSpeedup, key: str, *, uses_pies: bool
) -> Iterator[Chart]:
    """Kinds of work and the most expensive operations of each arm, as bars or pies; peak memory
    beside the bars."""
    worked = [(arm.label, dict(arm.categories)) for arm in study.arms if arm.categories]
    if worked:
        name, title, note = f"{key}-work", "Kinds of work", "By share of the time in the trace."
        description = f"{title} by share of the time in the trace"
        if uses_pies:
            yield draw_pies_chart(name, title, description, worked, _COLOURS, note)
        else:
            yield draw_stacked_share_bars(
                name, title, description, worked, _COLOURS, note, row_label_prefix=""
            )
    for index, arm in enumerate(study.arms):
        if arm.top_operations:
            yield _draw_top_operations(
                arm, f"{key}-operations-{arm.label.replace(':', '-')}", index, uses_pies
            )
    used = [
        HorizontalBar(f"{arm.label} {name.removeprefix('peak ')}", float(value), index)
        for index, arm in enumerate(study.arms)
        for name, value in arm.memory.items()
        if name.startswith("peak")
    ][:_MOST_BARS]
    if used and not uses_pies:
        title, note = "Peak memory", "From the run's own record."
        yield draw_horizontal_bars(
            f"{key}-memory", title, used, format_bytes_tick, title.lower(), note
        )


def _draw_top_operations(arm: ArmFigures, name: str, index: int, uses_pies: bool) -> Chart:
    title = f"The most expensive on {arm.label}"
    if uses_pies:
        parts = {item.name: item.share for item in arm.top_operations[:_PIECES]}
        colours = {operation: number for number, operation in enumerate(parts)} | {_REST: 8}
        parts[_REST] = max(1 - sum(parts.values()), 0.0)
        return draw_pies_chart(name, title, title, [(arm.label, parts)], colours)
    is_kernels = arm.top_operations[0].total_ns is None
    kernels = (item.name for item in arm.top_operations) if is_kernels else ()
    names = shorten_kernel_names_uniquely(kernels, LABEL_CHARACTERS)
    rows = [
        HorizontalBar(names.get(item.name, item.name), item.self_ns, index)
        for item in arm.top_operations
    ]
    quantity = "Time of kernels" if is_kernels else "Self time of operations"
    note = f"{quantity}, all steps in the trace."
    return draw_horizontal_bars(name, title, rows, format_ns_tick, "time in the trace", note)


def _make_arm_epoch_lines(
    study: NetworkSpeedup, metric_field: str, x_quantity: str
) -> list[ChartLine]:
    return [
        course
        for index, arm in enumerate(study.arms)
        for course in make_epoch_metric_lines(
            arm.label, arm.epochs, metric_field, index, x_quantity
        )
    ]


def make_epoch_metric_lines(
    label: str,
    epochs: Sequence[EpochFigures],
    metric_field: str,
    colour: int,
    x_quantity: str = "epoch",
) -> Iterator[ChartLine]:
    """Yield a figure of the epochs that have it, along their numbers or their training time."""
    values = [(item, getattr(item, metric_field)) for item in epochs]
    points = {
        item.number + 1 if x_quantity == "epoch" else item.elapsed_ns: float(value)
        for item, value in values
        if value is not None
    }
    if points:
        yield ChartLine(label, points, colour)
