"""Charts of one layer against batch size: FLOPs on paper, counted and derived; time by two clocks;
and a training's course."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from perfctl.orchestrator.ledger.network import LayerPoint
from perfctl.orchestrator.ledger.timing import Spread
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch
from perfctl.orchestrator.report.charts.speedup import Course, epoch, plotted
from perfctl.orchestrator.report.numbers import percent, short, si, significant, time
from perfctl.records.run import Run

Named = Sequence[tuple[str, Sequence[LayerPoint]]]
"""(network, its points), in order; the network is "" where there is only one."""


LOOSE = "*"
"""Marks the name of a line of kernels that no layer claims."""
WIDE = 100.0
"""Values that differ by more than this factor stand on a logarithmic axis: on a straight one the
small ones would be 0."""


def host_run(profiler: str) -> str:
    """What ran while the host's clock did."""
    return "alone" if profiler == "none" else f"under {profiler}"


def flops_chart(layer: str, networks: Named) -> Chart | None:
    """FLOPs of the layer's forward pass on paper, counted and derived. 1 multiply-add = 2 FLOPs."""
    ways: tuple[tuple[str, Callable[[LayerPoint], float | None]], ...] = (
        ("paper", lambda point: point.paper.value),
        ("counted", lambda point: point.counted.value),
        ("derived", lambda point: point.derived.value),
        (f"collected{LOOSE}", lambda point: point.loose.flops),
        (f"derived{LOOSE}", lambda point: point.loose.derived),
    )
    lines = list(_lines(networks, ways))
    if not lines:
        return None
    said = "; ".join(
        f"{line.label} {si(line.values[-1], 'FLOP')} at batch {line.batches[-1]}" for line in lines
    )
    values = [value for line in lines for value in line.values]
    wide = min(values) > 0 and max(values) > WIDE * min(values)
    svg = against_batch(
        "comparison-flops",
        f"FLOPs of {layer} forward against batch size. {said}",
        lines,
        _flop,
        decades=wide,
        up="FLOP",
    )
    shown = {line.label.partition(", ")[0] for line in lines}
    absent = [way for way in ("counted", "derived") if way not in shown]
    notes = ["logarithmic axis"] if wide else []
    notes += [
        f"not in it: {' and '.join(absent)} FLOPs, which no run has" if absent else "counted by ncu"
    ]
    notes += (
        ["*: of kernels that belong to no layer"]
        if any(way.endswith(LOOSE) for way in shown)
        else []
    )
    note = "; ".join(notes)
    return Chart(f"FLOPs of {layer} forward: paper against the hardware", svg, note)


def clocks_chart(layer: str, networks: Named) -> Chart | None:
    """Time of the layer's forward pass by the synchronised clock and under the profiler."""

    def of(spread: Spread | None) -> float | None:
        return spread.median / 1e9 if spread is not None else None

    ways: tuple[tuple[str, Callable[[LayerPoint], float | None]], ...] = (
        ("clock", lambda point: of(point.forward.synchronised)),
        ("profiler", lambda point: of(point.forward.profiled)),
        *(
            (f"host {host_run(tool)}", partial(_host, tool))
            for tool in dict.fromkeys(
                tool for _, points in networks for point in points for tool, _ in point.host
            )
        ),
    )
    lines = list(_lines(networks, ways))
    if not lines:
        return None
    said = "; ".join(
        f"{line.label} {_time(line.values[-1])} at batch {line.batches[-1]}" for line in lines
    )
    svg = against_batch(
        "time-clocks",
        f"Time of {layer} forward against batch size. {said}",
        lines,
        _time,
        up="time per step",
    )
    note = (
        "medians; clock: synchronised, no profiler; profiler: the same layer in the profiler's "
        "report"
    )
    return Chart(f"Time of {layer} forward, by batch size", svg, note)


def _host(tool: str, point: LayerPoint) -> float | None:
    """Seconds by the host's clock, in the run under this profiler."""
    return next((ns / 1e9 for name, ns in point.host if name == tool), None)


def _lines(
    networks: Named, ways: Sequence[tuple[str, Callable[[LayerPoint], float | None]]]
) -> Iterator[Series]:
    colour = 0
    for network, points in networks:
        for way, of in ways:
            found = {point.batch: value for point in points if (value := of(point)) is not None}
            if found:
                label = f"{way}, {network}" if network else way
                yield Series(label, tuple(found), tuple(found.values()), colour=colour)
                colour += 1


def _flop(value: float) -> str:
    return short(si(float(value)))


def _time(seconds: float) -> str:
    return short(time(seconds * 1e9))


def training_charts(runs: Sequence[tuple[str, Run]]) -> Iterator[Chart]:
    """Loss, then accuracy on test data, along epochs."""
    losses: list[Course] = []
    accuracies: list[Course] = []
    for label, run in runs:
        for phase, what in (("epoch", "training"), ("test", "test")):
            known = [
                (step.number + 1.0, step.loss) for step in run.report.steps if step.phase == phase
            ]
            both = [(x, y) for x, y in known if y is not None]
            if both:
                name = f"{label}: {what}" if label else what
                losses.append(Course(name, *_columns(both), len(losses)))
        right = [
            (step.number + 1.0, step.accuracy) for step in run.report.steps if step.phase == "test"
        ]
        scored = [(x, y) for x, y in right if y is not None]
        if scored:
            accuracies.append(Course(label or "accuracy", *_columns(scored), len(accuracies)))
    for name, title, lines, show in (
        ("loss", "Loss", losses, significant),
        ("accuracy", "Accuracy on test data", accuracies, percent),
    ):
        if lines:
            drawing = plotted(
                f"training-{name}",
                lines,
                (epoch, show),
                (f"{title} by epoch", "epoch", title.lower()),
            )
            yield Chart(f"{title}, by epoch", drawing)


def step_losses(name: str, runs: Sequence[tuple[str, Run]]) -> Chart | None:
    """Loss of each measured step, a line a run; None where no run recorded two."""
    lines: list[Course] = []
    for label, run in runs:
        steps = (step for step in run.report.steps if step.phase == "step")
        known = [
            (float(place), step.loss)
            for place, step in enumerate(steps, 1)
            if step.loss is not None
        ]
        if len(known) > 1:
            lines.append(Course(label, *_columns(known), len(lines)))
    if not lines:
        return None
    return Chart(
        "Loss, by step",
        plotted(name, lines, (epoch, significant), ("Loss by step", "measured step", "loss")),
    )


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)
