"""Points of families of networks, a color each, on two logarithmic axes: a quantity of a step
against a size. And the charts of a bench: the time of a step against each figure of the networks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from perfctl.orchestrator.predict import bench
from perfctl.orchestrator.predict.bench import (
    ALL,
    FEW,
    SizeObservation,
    SizeRelation,
    collect_features_with_batch,
    correlate_feature_with_step_time,
)
from perfctl.orchestrator.report.charts.charts import (
    Chart,
    make_axes,
    make_tick_formatter,
    render_svg,
)
from perfctl.orchestrator.report.charts.files import (
    INK,
    SERIES,
    HoverArea,
    Picture,
    collect_charts,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    drop_trailing_zeros,
    format_bytes,
    format_si,
    format_time,
)
from perfctl.records.bench import BenchPoint

TICKS_MAX = 8
"""An axis with at most so many different values has them as its ticks."""
NOTE = "The legend has Spearman's rank correlation of each family."


class AxisFormat(NamedTuple):
    """Title of an axis, and how its values are written."""

    title: str
    show: WriteNumber


class FamilyDot(NamedTuple):
    """One point."""

    family: str
    label: str
    x: float
    y: float


SIZES: Mapping[str, AxisFormat] = {
    "parameters": AxisFormat("parameters", format_si),
    "depth": AxisFormat("depth", "{:g}".format),
    "width": AxisFormat("width", "{:g}".format),
    "kernel": AxisFormat("kernel size", "{:g}".format),
    "input": AxisFormat("input size (pixels per side)", "{:g}".format),
    "batch": AxisFormat("batch size", "{:g}".format),
}


def format_step_seconds(seconds: float) -> str:
    """Return the time of a step."""
    return format_time(seconds * 1e9)


QUANTITIES: Mapping[str, AxisFormat] = {
    bench.TIME: AxisFormat("step time", format_step_seconds),
    bench.MEMORY: AxisFormat("memory per step", format_bytes),
    bench.FLOPS: AxisFormat("FLOPs per step", format_si),
}


def draw_step_time_against_features(points: Sequence[BenchPoint]) -> dict[str, Picture]:
    """Return name -> chart, for each figure that differs between points:
    "bench-flops-forward"."""
    charts: dict[str, Picture] = {}
    for name in sorted({name for point in points for name in collect_features_with_batch(point)}):
        with collect_charts(defers_drawing=True) as of_figure:
            draw_step_time_scatter(make_feature_chart_name(name), name, points)
        counts = Counter(
            point.family for point in points if collect_features_with_batch(point).get(name, 0) > 0
        )
        warning = describe_few_points_warning(
            {family: number for family, number in counts.items() if number < FEW}
        )
        charts |= {chart.name: replace(chart, warning=warning) for chart in of_figure}
    return charts


def make_feature_chart_name(feature: str) -> str:
    """Return "bench-flops-forward" for "flops:forward"."""
    return "bench-" + "".join(letter if letter.isalnum() else "-" for letter in feature)


def describe_feature(feature: str) -> str:
    """Return "flops:forward" in words: "FLOPs, forward"."""
    kind, _, part = feature.partition(":")
    names = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}
    label = names.get(kind, kind)
    return f"{label}, {part}" if part else label


def draw_step_time_scatter(
    name: str, feature: str, points: Sequence[BenchPoint], note: str = ""
) -> Chart | None:
    """Return the time of a step against a figure; None if the figure has fewer than three
    values."""
    points_with_figure = [
        point for point in points if collect_features_with_batch(point).get(feature, 0) > 0
    ]
    dots = [
        FamilyDot(
            point.family,
            f"{point.model}, batch {point.batch}",
            collect_features_with_batch(point)[feature],
            point.step_ns[0] / 1e9,
        )
        for point in points_with_figure
    ]
    if len({dot.x for dot in dots}) < 3:
        return None
    families = dict.fromkeys(point.family for point in points)
    ranked = {
        family: correlate_feature_with_step_time(
            family, feature, [p for p in points_with_figure if family in (p.family, ALL)]
        ).spearman
        for family in (*families, ALL)
    }
    axes = AxisFormat(describe_feature(feature), format_si), QUANTITIES[bench.TIME]
    return draw_family_scatter(name, axes, dots, families, ranked, note)


def draw_family_scatter(
    name: str,
    axes: tuple[AxisFormat, AxisFormat],
    dots: Sequence[FamilyDot],
    families: Iterable[str],
    rank_correlations: Mapping[str, float | None],
    note: str,
    *,
    corner_text: str = "",
    has_diagonal: bool = False,
) -> Chart:
    """Return the dots, families in colors by their order.

    rank_correlations: rank correlation of a family, and of ALL. corner_text: a text instead of the
    latter. has_diagonal: a line where y is x.
    """
    rank = rank_correlations.get(ALL)
    corner_text = corner_text or (
        f"{len(dots)} points" if rank is None else f"Spearman, all: {rank:.2f}"
    )
    shows = [lambda value, show=axis.show: drop_trailing_zeros(show(value)) for axis in axes]
    across, up = axes
    figure, drawing = make_axes(3.6, across.title, up.title, shows, log=True)
    hits, top = [], 0.97
    for family, color in zip(families, SERIES, strict=False):
        of_family = [dot for dot in dots if dot.family == family]
        if not of_family:
            continue
        xs, ys = [dot.x for dot in of_family], [dot.y for dot in of_family]
        drawing.plot(xs, ys, "o", color=color, markersize=4, alpha=0.8)
        rank = rank_correlations.get(family)
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
            HoverArea(f"{dot.label}: {across.show(dot.x)}, {up.show(dot.y)}", dot.x, dot.y)
            for dot in of_family
        ]
    for axis in (drawing.xaxis, drawing.yaxis):
        axis.set_minor_formatter(make_tick_formatter(lambda value: ""))
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
        corner_text, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=9.5, color=INK
    )
    title = f"{up.title[0].upper()}{up.title[1:]} over {across.title.partition(' (')[0]}"
    description = f"{title}, {len(dots)} points. {corner_text}"
    return Chart(name, title, render_svg(figure, name, description, hits), note)


def draw_quantity_against_size(
    name: str, observations: Sequence[SizeObservation], rows: Sequence[SizeRelation]
) -> Chart | None:
    """Return one quantity against one size, all families; None with fewer than two values of
    either.

    rows: relations of this quantity and size, of each family and of all.
    """
    quantity, size_name = rows[0].quantity, rows[0].size
    dots = [
        FamilyDot(
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
    return draw_family_scatter(name, axes, dots, families, ranked, f"{len(dots)} points. {NOTE}")


def draw_quantity_against_each_size(
    key: str, observations: Sequence[SizeObservation], rows: Iterable[SizeRelation], quantity: str
) -> dict[str, Chart]:
    """Return name -> chart, against every size that varies: KEY-time-against-depth."""
    charts = {}
    of_quantity = [row for row in rows if row.quantity == quantity]
    for size_name in bench.SIZES:
        of_size = [row for row in of_quantity if row.size == size_name]
        name = f"{key}-{quantity.lower()}-against-{size_name}"
        if of_size and (chart := draw_quantity_against_size(name, observations, of_size)):
            charts[name] = chart
    return charts


def draw_all_quantity_size_charts(observations: Sequence[SizeObservation]) -> dict[str, Picture]:
    """Return name -> chart, as ``perfctl plot`` draws them: bench-time-against-depth; with a
    warning if families have few points."""
    rows = bench.correlate_quantities_with_sizes(observations)
    with collect_charts(defers_drawing=True) as charts:
        for quantity in bench.QUANTITIES:
            draw_quantity_against_each_size("bench", observations, rows, quantity)
    few: dict[str, dict[str, int]] = {chart.name: {} for chart in charts}
    for row in rows:
        name = f"bench-{row.quantity.lower()}-against-{row.size}"
        if row.has_few_points and row.ranked and name in few:
            few[name][row.family] = row.points
    return {
        chart.name: replace(chart, warning=describe_few_points_warning(few[chart.name]))
        for chart in charts
    }


def describe_few_points_warning(points_by_family: Mapping[str, int]) -> str | None:
    """Return the warning about correlations from too few points; None if no family has fewer."""
    listed = ", ".join(f"{family} ({points})" for family, points in points_by_family.items())
    return (
        f"correlations from fewer than {FEW} points may be chance: {listed}"
        if points_by_family
        else None
    )
