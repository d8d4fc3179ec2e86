"""Points of families of networks, a colour each, on two logarithmic axes: a quantity of a step
against a size. And the charts of a bench: the time of a step against each figure of the networks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
from perfctl.orchestrator.report.charts import charts as style
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.files import INK, SERIES, Drawn, Hit, drawn
from perfctl.orchestrator.report.numbers import short, si, size, time
from perfctl.records.bench import BenchPoint

ENOUGH = FEW
"""Points from which on a correlation is shown without a warning: of fewer, one point decides."""
PREFIX = "bench-"
FEW_VALUES = 8
"""An axis with at most so many different values has them as its ticks."""
QUANTITIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    bench.TIME: ("step time", lambda seconds: time(seconds * 1e9)),
    bench.MEMORY: ("memory per step", size),
    bench.FLOPS: ("FLOPs per step", si),
}
NOTE = "The legend has Spearman's rank correlation of each family."


def bench_charts(points: Sequence[BenchPoint]) -> dict[str, Drawn]:
    """name -> chart, for each figure that differs between points: "bench-flops-forward"."""
    names = sorted({name for point in points for name in figures(point)})
    with drawn(later=True) as found:
        for name in names:
            scatter(chart_name(name), name, points)
    few = {
        chart_name(name): few_points([p for p in points if figures(p).get(name, 0) > 0])
        for name in names
    }
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
    words = {"flops": "FLOPs", "calls": "operations", "elementwise": "element-wise FLOPs"}.get(
        kind, kind
    )
    return f"{words}, {part}" if part else words


def scatter(name: str, feature: str, points: Sequence[BenchPoint]) -> str | None:
    """One drawing as SVG; None where fewer than three values of the figure are there."""
    shown = [point for point in points if figures(point).get(feature, 0) > 0]
    if len({figures(point)[feature] for point in shown}) < 3:
        return None
    dots = [
        Dot(
            point.family,
            f"{point.model}, batch {point.batch}",
            figures(point)[feature],
            float(point.step_ns[0]),
        )
        for point in shown
    ]
    colours = {
        family: place
        for place, family in enumerate(dict.fromkeys(point.family for point in points))
    }
    ranked = {
        family: correlation(family, feature, [p for p in shown if p.family == family]).spearman
        for family in colours
    }
    found = correlation(ALL, feature, shown)
    said = (
        f"Spearman, all: {found.spearman:.2f}"
        if found.spearman is not None
        else "no rank correlation"
    )
    description = f"Step time over {bench_label(feature)}. {said} over {len(shown)} points"
    axis = Axis(bench_label(feature), si), Axis("step time", time)
    return by_family(name, description, dots, axis, colours, ranked, said)


def whole(value: float) -> str:
    return f"{value:g}"


SIZES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("parameters", si),
    "depth": ("depth", whole),
    "width": ("width", whole),
    "kernel": ("kernel size", whole),
    "input": ("input size (pixels per side)", whole),
    "batch": ("batch size", whole),
}


class Axis(NamedTuple):
    """What stands along an axis."""

    title: str
    show: Callable[[float], str]


class Dot(NamedTuple):
    """One point."""

    family: str
    label: str
    x: float
    y: float


def by_family(
    name: str,
    description: str,
    dots: Sequence[Dot],
    axis: tuple[Axis, Axis],
    colours: Mapping[str, int],
    ranked: Mapping[str, float | None],
    said: str,
    *,
    equal: bool = False,
) -> str:
    """ranked: what stands beside a family's name. said: in a corner. equal: a line where y is x."""
    shows = [lambda value, show=one.show: short(show(value)) for one in axis]
    figure, axes = style.new_axes(3.6, axis[0].title, axis[1].title, shows, log=True)
    hits = []
    for place, (family, colour) in enumerate(colours.items()):
        mine = [dot for dot in dots if dot.family == family]
        axes.plot(
            [dot.x for dot in mine],
            [dot.y for dot in mine],
            "o",
            color=SERIES[colour],
            markersize=4,
            alpha=0.8,
        )
        its = ranked.get(family)
        axes.annotate(
            f"● {family}" + (f" {its:.2f}" if its is not None else ""),
            (0.02, 0.97 - 0.075 * place),
            xycoords="axes fraction",
            va="top",
            fontsize=9.5,
            color=SERIES[colour],
            parse_math=False,
        )
        hits += [
            Hit(f"{dot.label}: {axis[0].show(dot.x)}, {axis[1].show(dot.y)}", dot.x, dot.y)
            for dot in mine
        ]
    for one in (axes.xaxis, axes.yaxis):
        one.set_minor_formatter(style.formatter(lambda value: ""))
    axes.tick_params(which="minor", length=0)
    values = sorted({dot.x for dot in dots})
    if len(values) <= FEW_VALUES:
        axes.set_xticks(values)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.3)  # room for the names
    if equal:
        ends = [min(min(dot.x, dot.y) for dot in dots), max(max(dot.x, dot.y) for dot in dots)]
        axes.plot(ends, ends, color=INK, linewidth=1)
    axes.annotate(said, (0.98, 0.04), xycoords="axes fraction", ha="right", fontsize=9.5, color=INK)
    return style.as_svg(figure, name, description, hits)


def relation_chart(
    name: str, found: Sequence[Observation], rows: Sequence[Relation]
) -> Chart | None:
    """One quantity against one size, all families; None with fewer than two values of either.

    rows: relations of this quantity and size, of each family and of all.
    """
    quantity, wanted = rows[0].quantity, rows[0].size
    (up, show_y), (across, show_x) = QUANTITIES[quantity], SIZES[wanted]
    dots = [
        Dot(one.family, f"{one.model}, batch {one.batch}", one.sizes[wanted], one.values[quantity])
        for one in found
        if one.sizes.get(wanted, 0) > 0 and one.values.get(quantity, 0) > 0
    ]
    if len({dot.x for dot in dots}) < 2 or len({dot.y for dot in dots}) < 2:
        return None
    there = {dot.family for dot in dots}
    places = enumerate(dict.fromkeys(one.family for one in found))
    colours = {family: place for place, family in places if family in there}
    ranked = {row.family: row.ranked.value for row in rows if row.ranked}
    said = f"Spearman, all: {ranked[ALL]:.2f}" if ALL in ranked else f"{len(dots)} points"
    title = f"{up[0].upper()}{up[1:]} over {across.partition(' (')[0]}"
    axis = (Axis(across, show_x), Axis(up, show_y))
    drawing = by_family(
        name, f"{title}, {len(dots)} points. {said}", dots, axis, colours, ranked, said
    )
    return Chart(title, drawing, f"{len(dots)} points. {NOTE}")


def relation_charts(
    key: str, found: Sequence[Observation], rows: Iterable[Relation], quantity: str
) -> list[Chart]:
    """Against every size that varies; names are KEY-time-against-depth."""
    mine = [row for row in rows if row.quantity == quantity]
    made = []
    for wanted in bench.SIZES:
        of_size = [row for row in mine if row.size == wanted]
        if of_size and (
            chart := relation_chart(f"{key}-{quantity.lower()}-against-{wanted}", found, of_size)
        ):
            made.append(chart)
    return made


def all_relation_charts(found: Sequence[Observation]) -> dict[str, Drawn]:
    """Name -> chart, as ``perfctl plot`` draws them: bench-time-against-depth; with a warning where
    families have few points."""
    rows = bench.relations(found)
    with drawn(later=True) as charts:
        for quantity in bench.QUANTITIES:
            relation_charts("bench", found, rows, quantity)
    few: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.few and row.ranked:
            few[f"bench-{row.quantity.lower()}-against-{row.size}"].append(
                f"{row.family} ({row.points})"
            )
    return {chart.name: replace(chart, warning=chance(few[chart.name])) for chart in charts}


def chance(few: Sequence[str]) -> str | None:
    """What to say of correlations from too few points. few: "vgg (4)", each family that has fewer;
    None without any."""
    return (
        f"correlations from fewer than {bench.FEW} points may be chance: {', '.join(few)}"
        if few
        else None
    )
