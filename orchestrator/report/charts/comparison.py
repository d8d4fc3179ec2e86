"""Charts of one layer over batch size: estimated, executed and derived FLOPs; time by two clocks;
and the course of a training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from perfctl.orchestrator.ledger.arm_figures import list_epochs
from perfctl.orchestrator.ledger.network import LayerAtBatch
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    ChartLine,
    draw_batch_chart,
    draw_course_chart,
    format_epoch_tick,
    make_chart_lines,
)
from perfctl.orchestrator.report.charts.speedup import make_epoch_courses
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_percent,
    format_si,
    format_significant,
    format_time,
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


def describe_host_run(profiler: str) -> str:
    """What ran while the CPU timer did."""
    return "alone" if profiler == "none" else f"under {profiler}"


def draw_flops_chart(layer: str, networks: Named) -> Chart | None:
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
        decades=is_wide,
        up="FLOP",
    )


def draw_clocks_chart(layer: str, networks: Named) -> Chart | None:
    """Time of the layer's forward pass by the synchronised clock and under the profiler."""

    def median_seconds(spread: TimeSpread | None) -> float | None:
        return spread.median / 1e9 if spread is not None else None

    values: Values = {
        "clock": lambda point: median_seconds(point.forward.synchronised),
        "profiler": lambda point: median_seconds(point.forward.profiled),
    }
    tools = (tool for _, points in networks for point in points for tool, _ in point.host)
    for tool in dict.fromkeys(tools):
        values[f"host {describe_host_run(tool)}"] = partial(_find_host_seconds, tool)
    return draw_batch_chart(
        "time-clocks",
        f"Time of {layer} forward, by batch size",
        _make_network_lines(networks, values),
        lambda value: drop_trailing_zeros(format_time(value * 1e9)),
        "medians; clock: synchronized, no profiler; profiler: the same layer in the profiler "
        "report",
        up="time per step",
    )


def _find_host_seconds(tool: str, point: LayerAtBatch) -> float | None:
    """Return the time by the CPU timer, in the run under this profiler."""
    return next((ns / 1e9 for name, ns in point.host if name == tool), None)


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


def draw_training_charts(runs: Sequence[tuple[str, Run]]) -> Iterator[Chart | None]:
    """Yield loss, then accuracy on test data, along epochs."""
    for name, title, fields, show in (
        ("loss", "Loss", {"training": "loss", "test": "test_loss"}, format_significant),
        ("accuracy", "Accuracy on test data", {"": "accuracy"}, format_percent),
    ):
        lines: list[ChartLine] = []
        for label, run in runs:
            for kind, field in fields.items():
                line = ": ".join(filter(None, (label, kind))) or name
                lines += make_epoch_courses(line, list_epochs(run), field, len(lines))
        titles = (f"{title}, by epoch", "epoch", title.lower())
        yield draw_course_chart(f"training-{name}", titles, lines, (format_epoch_tick, show))


def draw_step_losses(name: str, runs: Sequence[tuple[str, Run]]) -> Chart | None:
    """Return the loss of each measured step, a line a run; None if no run recorded two."""
    lines: list[ChartLine] = []
    for label, run in runs:
        losses = (step.loss for step in run.report.steps if step.phase == "step")
        points = {number: loss for number, loss in enumerate(losses, 1) if loss is not None}
        if len(points) > 1:
            lines.append(ChartLine(label, points, len(lines)))
    titles = ("Loss, by step", "measured step", "loss")
    return draw_course_chart(name, titles, lines, (format_epoch_tick, format_significant))
