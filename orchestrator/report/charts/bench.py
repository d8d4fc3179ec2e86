"""The charts of a bench: the time of a step against each figure of the networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from perfctl.orchestrator.analyse.predict.bench import ALL, correlation, figures
from perfctl.orchestrator.analyse.predict.relations import FEW
from perfctl.orchestrator.report.charts.files import Drawn, drawn
from perfctl.orchestrator.report.charts.relations import Axis, Dot, by_family, chance
from perfctl.orchestrator.report.numbers import si, time
from perfctl.records.bench import BenchPoint

ENOUGH = FEW
"""Points from which on a correlation is shown without a warning: of fewer, one point decides."""
PREFIX = "bench-"


def bench_charts(points: Sequence[BenchPoint]) -> dict[str, Drawn]:
    """name -> chart, for each figure that differs between points: "bench-flops-forward"."""
    names = sorted({name for point in points for name in figures(point)})
    with drawn(later=True) as found:
        for name in names:
            scatter(chart_name(name), name, points)
    few = {chart_name(name): few_points([p for p in points if figures(p).get(name, 0) > 0]) for name in names}
    return {chart.name: replace(chart, warning=few[chart.name]) for chart in found}


def few_points(points: Sequence[BenchPoint]) -> str | None:
    """What to say of correlations from fewer than ENOUGH points; None where there are more."""
    counts = Counter(point.family for point in points)
    return chance([f"{family} ({count})" for family, count in counts.items() if count < ENOUGH])


def chart_name(feature: str) -> str:
    """ "flops:forward" as part of a file's name."""
    return PREFIX + "".join(letter if letter.isalnum() else "-" for letter in feature)


def bench_label(feature: str) -> str:
    """ "flops:forward" in words: "FLOPs, forward"."""
    kind, _, part = feature.partition(":")
    words = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}.get(kind, kind)
    return f"{words}, {part}" if part else words


def scatter(name: str, feature: str, points: Sequence[BenchPoint]) -> str | None:
    """One drawing as SVG; None where fewer than three values of the figure are there."""
    shown = [point for point in points if figures(point).get(feature, 0) > 0]
    if len({figures(point)[feature] for point in shown}) < 3:
        return None
    dots = [
        Dot(point.family, f"{point.model}, batch {point.batch}", figures(point)[feature], float(point.step_ns[0]))
        for point in shown
    ]
    colours = {family: place for place, family in enumerate(dict.fromkeys(point.family for point in points))}
    ranked = {
        family: correlation(family, feature, [p for p in shown if p.family == family]).spearman for family in colours
    }
    found = correlation(ALL, feature, shown)
    said = f"Spearman, all: {found.spearman:.2f}" if found.spearman is not None else "no rank correlation"
    description = f"Time of a step against {bench_label(feature)}. {said} over {len(shown)} points"
    axis = Axis(bench_label(feature), si), Axis("time of a step", time)
    return by_family(name, description, dots, axis, colours, ranked, said)
