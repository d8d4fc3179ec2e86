"""Charts of one layer against batch size: FLOPs on paper, counted and derived; time by two clocks; and a training's course."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from perfctl.orchestrator.analyse.comparison import LayerPoint
from perfctl.orchestrator.analyse.ledger.timing import Spread
from perfctl.orchestrator.report.charts.charts import Chart, Series, against_batch
from perfctl.orchestrator.report.charts.speedup import Course, epoch, plotted
from perfctl.orchestrator.report.numbers import percent, short, si, significant, time
from perfctl.records.run import Run

Named = Sequence[tuple[str, Sequence[LayerPoint]]]
"""(network, its points), in order; the network is "" where there is only one."""


def flops_chart(name: str, layer: str, networks: Named) -> Chart | None:
    """FLOPs of the layer's forward pass on paper, counted and derived. 1 multiply-add = 2 FLOPs."""
    ways: tuple[tuple[str, Callable[[LayerPoint], float | None]], ...] = (
        ("paper", lambda point: point.paper.value), ("counted", lambda point: point.counted.value),
        ("derived", lambda point: point.derived.value), ("counter, no layer", lambda point: point.loose),
        ("derived, no layer", lambda point: point.loose_derived),
    )  # fmt: skip
    lines = list(_lines(networks, ways))
    if not lines:
        return None
    said = "; ".join(f"{line.label} {si(line.values[-1], 'FLOP')} at batch {line.batches[-1]}" for line in lines)
    svg = against_batch(name, f"FLOPs of {layer} forward against batch size. {said}", lines, _flop, up="FLOP")
    shown = {line.label.rpartition(": ")[2] for line in lines}
    absent = [way for way in ("counted", "derived") if way not in shown]
    note = f"not in it: {' and '.join(absent)} FLOPs, which no run has" if absent else "counted by ncu"
    return Chart(f"FLOPs of {layer} forward: paper against the hardware", svg, note)


def clocks_chart(name: str, layer: str, networks: Named) -> Chart | None:
    """Time of the layer's forward pass by the synchronised clock and under the profiler."""

    def of(spread: Spread | None) -> float | None:
        return spread.median / 1e9 if spread is not None else None

    ways: tuple[tuple[str, Callable[[LayerPoint], float | None]], ...] = (
        ("clock", lambda point: of(point.forward.synchronised)), ("profiler", lambda point: of(point.forward.profiled)),
        ("host clock", lambda point: point.host_ns / 1e9 if point.host_ns is not None else None),
    )  # fmt: skip
    lines = list(_lines(networks, ways))
    if not lines:
        return None
    said = "; ".join(f"{line.label} {_time(line.values[-1])} at batch {line.batches[-1]}" for line in lines)
    svg = against_batch(name, f"Time of {layer} forward against batch size. {said}", lines, _time, up="time per step")
    note = "medians; clock: synchronised, no profiler; profiler: the same layer in the profiler's report"
    return Chart(f"Time of {layer} forward, by batch size", svg, note)


def _lines(
    networks: Named, ways: Sequence[tuple[str, Callable[[LayerPoint], float | None]]]
) -> Iterator[Series]:  # fmt: skip
    colour = 0
    for network, points in networks:
        for way, of in ways:
            found = {point.batch: value for point in points if (value := of(point)) is not None}
            if found:
                label = f"{network}: {way}" if network else way
                yield Series(label, tuple(found), tuple(found.values()), colour=colour)
                colour += 1


def _flop(value: float) -> str:
    return short(si(float(value)))


def _time(seconds: float) -> str:
    return short(time(seconds * 1e9))


def training_charts(key: str, runs: Sequence[tuple[str, Run]]) -> Iterator[Chart]:
    """Loss, then accuracy on test data, along epochs."""
    losses: list[Course] = []
    accuracies: list[Course] = []
    for label, run in runs:
        for phase, what in (("epoch", "training"), ("test", "test")):
            known = [(step.number + 1.0, step.loss) for step in run.report.steps if step.phase == phase]
            both = [(x, y) for x, y in known if y is not None]
            if both:
                name = f"{label}: {what}" if label else what
                losses.append(Course(name, *_columns(both), len(losses)))
        right = [(step.number + 1.0, step.accuracy) for step in run.report.steps if step.phase == "test"]
        scored = [(x, y) for x, y in right if y is not None]
        if scored:
            accuracies.append(Course(label or "accuracy", *_columns(scored), len(accuracies)))
    for name, title, lines, show in (
        ("loss", "Loss", losses, significant), ("accuracy", "Accuracy on test data", accuracies, percent),
    ):  # fmt: skip
        if lines:
            drawing = plotted(f"{key}-{name}", lines, (epoch, show), (f"{title} by epoch", "epoch", title.lower()))
            yield Chart(f"{title}, by epoch", drawing)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)
