"""Time of a step against each figure of pen and paper: a point a network and batch size, a colour a family."""

from __future__ import annotations

from collections.abc import Sequence

from perfctl.orchestrator.analyse.correlate import ALL, correlation, figures
from perfctl.orchestrator.report import charts as style
from perfctl.orchestrator.report.chart_files import Drawn, drawn
from perfctl.orchestrator.report.numbers import short, si, time
from perfctl.orchestrator.report.svg_text import INK, MUTED, SERIES, Hit
from perfctl.parsers.bench_points import BenchPoint

PREFIX = "bench-"
"""What the names of these charts begin with."""


def bench_charts(points: Sequence[BenchPoint]) -> dict[str, Drawn]:
    """name -> chart, for each figure that differs between points: "bench-flops-forward"."""
    names = sorted({name for point in points for name in figures(point)})
    with drawn() as found:
        for name in names:
            scatter(chart_name(name), name, points)
    return {chart.name: chart for chart in found}


def chart_name(feature: str) -> str:
    """ "flops:forward" as part of a file's name."""
    return PREFIX + "".join(letter if letter.isalnum() else "-" for letter in feature)


def label(feature: str) -> str:
    """ "flops:forward" in words: "FLOPs, forward"."""
    kind, _, part = feature.partition(":")
    words = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}.get(kind, kind)
    return f"{words}, {part}" if part else words


def scatter(name: str, feature: str, points: Sequence[BenchPoint]) -> str | None:
    """One drawing as SVG; None where fewer than three values of the figure are there."""
    shown = [point for point in points if figures(point).get(feature, 0) > 0]
    if len({figures(point)[feature] for point in shown}) < 3:
        return None
    figure, axes = style._new(height=3.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    hits = []
    for place, family in enumerate(dict.fromkeys(point.family for point in points)):
        mine = [point for point in shown if point.family == family]
        xs, ys = [figures(point)[feature] for point in mine], [float(point.step_ns[0]) for point in mine]
        axes.plot(xs, ys, "o", color=SERIES[place], markersize=4, alpha=0.8)
        its = correlation(family, feature, mine).spearman
        axes.annotate(
            f"● {family}" + (f" {its:.2f}" if its is not None else ""), (0.02, 0.97 - 0.075 * place),
            xycoords="axes fraction", va="top", fontsize=9.5, color=SERIES[place], parse_math=False,
        )  # fmt: skip
        hits += [
            Hit(f"{point.model}, batch {point.batch}: {si(x)}, {time(y)}", x, y)
            for point, x, y in zip(mine, xs, ys, strict=True)
        ]
    axes.xaxis.set_major_formatter(style._formatter(lambda value: short(si(value))))
    axes.yaxis.set_major_formatter(style._formatter(lambda value: short(time(value))))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(style._formatter(lambda value: ""))
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel(label(feature), color=MUTED, fontsize=10, parse_math=False)
    axes.set_ylabel("time of a step", color=MUTED, fontsize=10)
    found = correlation(ALL, feature, shown)
    said = f"Spearman, all: {found.spearman:.2f}" if found.spearman is not None else "no rank correlation"
    axes.annotate(said, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=9.5, color=INK)
    description = f"Time of a step against {label(feature)}. {said} over {len(shown)} points"
    return style._svg(figure, name, description, hits)
