"""Points of families of networks, a color each, on two logarithmic axes: a quantity of a step
against a size. And the charts of a bench: the time of a step against each figure of the networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfctl.orchestrator.predict import bench
from perfctl.orchestrator.predict.bench import (
    ALL,
    FEW,
    Observation,
    Relation,
    correlation,
    figures,
)
from perfctl.orchestrator.report.charts.charts import Chart, as_svg, formatter, new_axes
from perfctl.orchestrator.report.charts.files import INK, SERIES, Drawn, Hit, drawn
from perfctl.orchestrator.report.numbers import short, si, size, time
from perfctl.records.bench import BenchPoint

ENOUGH = FEW
"""Points from which on a correlation is shown without a warning: of fewer, one point decides."""
TICKS_MAX = 8
"""An axis with at most so many different values has them as its ticks."""
NOTE = "The legend has Spearman's rank correlation of each family."


class Axis(NamedTuple):
    """Title of an axis, and how its values are written."""

    title: str
    show: Callable[[float], str]


class Dot(NamedTuple):
    """One point."""

    family: str
    label: str
    x: float
    y: float


SIZES: Mapping[str, Axis] = {
    "parameters": Axis("parameters", si),
    "depth": Axis("depth", "{:g}".format),
    "width": Axis("width", "{:g}".format),
    "kernel": Axis("kernel size", "{:g}".format),
    "input": Axis("input size (pixels per side)", "{:g}".format),
    "batch": Axis("batch size", "{:g}".format),
}


def show_step(seconds: float) -> str:
    """Return the time of a step."""
    return time(seconds * 1e9)


QUANTITIES: Mapping[str, Axis] = {
    bench.TIME: Axis("step time", show_step),
    bench.MEMORY: Axis("memory per step", size),
    bench.FLOPS: Axis("FLOPs per step", si),
}


def bench_charts(points: Sequence[BenchPoint]) -> dict[str, Drawn]:
    """Return name -> chart, for each figure that differs between points:
    "bench-flops-forward"."""
    charts: dict[str, Drawn] = {}
    for name in sorted({name for point in points for name in figures(point)}):
        with drawn(later=True) as of_figure:
            scatter(chart_name(name), name, points)
        counts = Counter(point.family for point in points if figures(point).get(name, 0) > 0)
        warning = warn_of_chance(
            {family: number for family, number in counts.items() if number < FEW}
        )
        charts |= {chart.name: replace(chart, warning=warning) for chart in of_figure}
    return charts


def chart_name(feature: str) -> str:
    """Return "bench-flops-forward" for "flops:forward"."""
    return "bench-" + "".join(letter if letter.isalnum() else "-" for letter in feature)


def bench_label(feature: str) -> str:
    """Return "flops:forward" in words: "FLOPs, forward"."""
    kind, _, part = feature.partition(":")
    names = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}
    label = names.get(kind, kind)
    return f"{label}, {part}" if part else label


def scatter(name: str, feature: str, points: Sequence[BenchPoint], note: str = "") -> Chart | None:
    """Return the time of a step against a figure; None if the figure has fewer than three
    values."""
    points_with_figure = [point for point in points if figures(point).get(feature, 0) > 0]
    dots = [
        Dot(
            point.family,
            f"{point.model}, batch {point.batch}",
            figures(point)[feature],
            point.step_ns[0] / 1e9,
        )
        for point in points_with_figure
    ]
    if len({dot.x for dot in dots}) < 3:
        return None
    families = dict.fromkeys(point.family for point in points)
    ranked = {
        family: correlation(
            family, feature, [p for p in points_with_figure if family in (p.family, ALL)]
        ).spearman
        for family in (*families, ALL)
    }
    axes = Axis(bench_label(feature), si), QUANTITIES[bench.TIME]
    return draw_families(name, axes, dots, families, ranked, note)


def draw_families(
    name: str,
    axes: tuple[Axis, Axis],
    dots: Sequence[Dot],
    families: Iterable[str],
    ranked: Mapping[str, float | None],
    note: str = "",
    *,
    corner: str = "",
    has_diagonal: bool = False,
) -> Chart:
    """Return the dots, families in colors by their order.

    ranked: rank correlation of a family, and of ALL. corner: a text instead of the latter.
    has_diagonal: a line where y is x.
    """
    rank = ranked.get(ALL)
    corner = corner or (f"{len(dots)} points" if rank is None else f"Spearman, all: {rank:.2f}")
    shows = [lambda value, show=axis.show: short(show(value)) for axis in axes]
    across, up = axes
    figure, drawing = new_axes(3.6, across.title, up.title, shows, log=True)
    hits, top = [], 0.97
    for family, color in zip(families, SERIES, strict=False):
        of_family = [dot for dot in dots if dot.family == family]
        if not of_family:
            continue
        xs, ys = [dot.x for dot in of_family], [dot.y for dot in of_family]
        drawing.plot(xs, ys, "o", color=color, markersize=4, alpha=0.8)
        rank = ranked.get(family)
        drawing.annotate(
            f"● {family}" + (f" {rank:.2f}" if rank is not None else ""),
            (0.02, top),
            xycoords="axes fraction",
            va="top",
            fontsize=9.5,
            color=color,
            parse_math=False,
        )
        top -= 0.075
        hits += [
            Hit(f"{dot.label}: {across.show(dot.x)}, {up.show(dot.y)}", dot.x, dot.y)
            for dot in of_family
        ]
    for axis in (drawing.xaxis, drawing.yaxis):
        axis.set_minor_formatter(formatter(lambda value: ""))
    drawing.tick_params(which="minor", length=0)
    values = sorted({dot.x for dot in dots})
    if len(values) <= TICKS_MAX:
        drawing.set_xticks(values)
    low, high = drawing.get_ylim()
    drawing.set_ylim(low, high * (high / low) ** 0.3)  # room for the names
    if has_diagonal:
        every = [end for dot in dots for end in (dot.x, dot.y)]
        ends = [min(every), max(every)]
        drawing.plot(ends, ends, color=INK, linewidth=1)
    drawing.annotate(
        corner, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=9.5, color=INK
    )
    title = f"{up.title[0].upper()}{up.title[1:]} over {across.title.partition(' (')[0]}"
    description = f"{title}, {len(dots)} points. {corner}"
    return Chart(title, as_svg(figure, name, description, hits), note)


def relation_chart(
    name: str, observations: Sequence[Observation], rows: Sequence[Relation]
) -> Chart | None:
    """Return one quantity against one size, all families; None with fewer than two values of
    either.

    rows: relations of this quantity and size, of each family and of all.
    """
    quantity, size_name = rows[0].quantity, rows[0].size
    dots = [
        Dot(
            item.family,
            f"{item.model}, batch {item.batch}",
            item.sizes[size_name],
            item.values[quantity],
        )
        for item in observations
        if item.sizes.get(size_name, 0) > 0 and item.values.get(quantity, 0) > 0
    ]
    if len({dot.x for dot in dots}) < 2 or len({dot.y for dot in dots}) < 2:
        return None
    axes = SIZES[size_name], QUANTITIES[quantity]
    families = dict.fromkeys(item.family for item in observations)
    ranked = {row.family: row.ranked.value for row in rows if row.ranked}
    return draw_families(name, axes, dots, families, ranked, f"{len(dots)} points. {NOTE}")


def relation_charts(
    key: str, observations: Sequence[Observation], rows: Iterable[Relation], quantity: str
) -> dict[str, Chart]:
    """Return name -> chart, against every size that varies: KEY-time-against-depth."""
    charts: dict[str, Chart] = {}
    of_quantity = [row for row in rows if row.quantity == quantity]
    for size_name in bench.SIZES:
        of_size = [row for row in of_quantity if row.size == size_name]
        name = f"{key}-{quantity.lower()}-against-{size_name}"
        if of_size and (chart := relation_chart(name, observations, of_size)):
            charts[name] = chart
    return charts


def all_relation_charts(observations: Sequence[Observation]) -> dict[str, Drawn]:
    """Return name -> chart, as ``perfctl plot`` draws them: bench-time-against-depth; with a
    warning if families have few points."""
    rows = bench.relations(observations)
    with drawn(later=True) as charts:
        for quantity in bench.QUANTITIES:
            relation_charts("bench", observations, rows, quantity)
    few: dict[str, dict[str, int]] = {chart.name: {} for chart in charts}
    for row in rows:
        name = f"bench-{row.quantity.lower()}-against-{row.size}"
        if row.few and row.ranked and name in few:
            few[name][row.family] = row.points
    return {chart.name: replace(chart, warning=warn_of_chance(few[chart.name])) for chart in charts}


def warn_of_chance(few: Mapping[str, int]) -> str | None:
    """Return the warning about correlations from too few points; None if no family has fewer."""
    listed = ", ".join(f"{family} ({points})" for family, points in few.items())
    return f"correlations from fewer than {FEW} points may be chance: {listed}" if few else None
