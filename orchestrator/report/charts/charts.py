"""Charts as SVG text, drawn with matplotlib.

Drawings have the light colors, which the page replaces by CSS variables, so that one drawing serves
the light and the dark page. Text stays text. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING, Any, NamedTuple

from perfctl.orchestrator.report.charts import files as charts_files
from perfctl.orchestrator.report.charts.files import (
    INK,
    MUTED,
    ON_DEEP,
    PAPER,
    RULE,
    SERIES,
    HoverArea,
    truncate_label_start,
)
from perfctl.orchestrator.report.numbers import (
    WriteNumber,
    drop_trailing_zeros,
    format_bytes,
    format_percent,
    format_time,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colours = Mapping[str, int]
"""Layer or part of a whole -> the number of its color."""
MOST_TICKS = 8
DOTS_MAX = 40
"""Values of a line that are dots."""
WIDE_PIECE, LONG_LABEL = 0.05, 20
"""Smaller pieces of a pie have no share in words; labels of more characters leave room for few
ticks only."""
LABEL = 0.075
"""Height of the name of a line, as a share of the axes' height."""
SIZE = (6.0, 3.3)
"""Inches at 72 units an inch: 432 x 238 in the drawing's own units."""


class LegendEntry(NamedTuple):
    """A name below a drawing."""

    name: str
    colour: int
    """Its number."""
    href: str = ""
    """Part of the HTML report to which the name leads; "" for none."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing with its title and a note on the source of its numbers."""

    name: str
    title: str
    svg: str
    note: str
    legend: tuple[LegendEntry, ...] = ()
    """Of parts that are too narrow to carry their name, or that lead to a part of the report."""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line, along batch sizes, other parameters, epochs or time."""

    label: str
    points: Mapping[Any, float]
    """Place on the horizontal axis -> value."""
    colour: int = 0
    bounds: Mapping[Any, Sequence[float]] = field(default_factory=dict)
    """Place -> lowest and highest value; {} if nothing was repeated."""

    @property
    def color(self) -> str:
        """Its color in the drawing."""
        return SERIES[self.colour % len(SERIES)]

    @property
    def last_point(self) -> tuple[float, float]:
        """Its last point."""
        return [*self.points.items()][-1]


def make_chart_lines(
    values: Mapping[str, Mapping[Any, float]], min_points: int = 1
) -> list[ChartLine]:
    """Return a line for each name with ``min_points`` batch sizes or more, through its values."""
    points_by_name = {name: points for name, points in values.items() if len(points) >= min_points}
    return [
        ChartLine(name, dict(sorted(points.items())), colour)
        for colour, (name, points) in enumerate(points_by_name.items())
    ]


class HorizontalBar(NamedTuple):
    """One horizontal bar, with its interval where it has one."""

    label: str
    value: float
    colour: int
    low: float | None = None
    high: float | None = None


def format_seconds_tick(value: float) -> str:
    """Return seconds as an axis has them."""
    return drop_trailing_zeros(format_time(value * 1e9))


def format_ns_tick(value: float) -> str:
    """Return nanoseconds as an axis has them."""
    return drop_trailing_zeros(format_time(value))


def format_bytes_tick(value: float) -> str:
    """Return bytes as an axis has them."""
    return drop_trailing_zeros(format_bytes(value))


def format_share_tick(value: float) -> str:
    """Return a share as an axis has it."""
    return f"{value * 100:.3g}%"


def format_epoch_tick(value: float) -> str:
    """Return a number of epochs or steps as an axis has it."""
    return f"{value:g}"


def draw_batch_chart(
    name: str,
    title: str,
    lines: Sequence[ChartLine],
    format_value: WriteNumber,
    note: str = "",
    *,
    has_log2_ratio_axis: bool = False,
    has_log10_axis: bool = False,
    y_label: str = "",
    axis: str = "batch size",
    labels: Mapping[float, str] | None = None,
) -> Chart | None:
    """Return lines against batch size (log2 axis, real values as ticks), labeled at their ends, and
    every value in words; None without lines. ``y_label`` names the values' axis.

    ``axis``: what varies in place of the batch size, with ``labels`` such as "N=256" of its places.

    With ``has_log2_ratio_axis`` the values are on a log2 axis too, with a line at 1 named
    "estimate"; with ``has_log10_axis`` on a log10 axis.
    """
    if not lines:
        return None
    figure, axes = make_axes(y_title=y_label)
    for line in lines:
        if line.bounds:
            lows, highs = zip(*line.bounds.values(), strict=True)
            axes.fill_between(
                [*line.bounds], lows, highs, color=line.color, alpha=0.18, linewidth=0
            )
        _plot_line(axes, line, "o" if has_log2_ratio_axis else "o-")
    batches = sorted({batch for line in lines for batch in line.points})
    if len(batches) > 1:  # one batch size has no scale
        axes.set_xscale("log", base=2)
    ticks = batches if len(batches) <= 9 else batches[:: -(-len(batches) // 8)]
    batch_labels = {batch: f"batch {batch}" for batch in batches} if labels is None else labels
    prefix = "batch " if labels is None else f"{axis}="
    axes.set_xticks(ticks, [batch_labels[batch].removeprefix(prefix) for batch in ticks])
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.set_xlabel(axis, color=MUTED, fontsize=10)
    values = [value for line in lines for value in line.points.values()]
    if has_log2_ratio_axis:
        _set_log2_ratio_axis(axes, values)
    else:
        if has_log10_axis:
            axes.set_yscale("log")
            axes.set_ylim(min(values) / 2, max(values) * 2)
        else:
            tops = (high for line in lines for _, high in line.bounds.values())
            highest = max(*values, *tops, 0.0)
            axes.set_ylim(0, highest * 1.12 or 1)
        axes.yaxis.set_major_formatter(make_tick_formatter(format_value))
    axes.minorticks_off()
    is_named = len(lines) > 1 or has_log2_ratio_axis
    if is_named:
        _label_line_ends(
            axes,
            lines,
            log2 if has_log2_ratio_axis or has_log10_axis else float,
            draws_leaders=True,
        )
    hits, texts = [], []
    for line in lines:
        lead = f"{line.label}, " if is_named else ""
        for batch, value in line.points.items():
            text = f"{batch_labels[batch]}: {format_value(value)}"
            texts.append(f"{line.label} {text}".strip())
            ends = line.bounds.get(batch)
            spread = f" ({' to '.join(map(format_value, ends))})" if ends else ""
            hits.append(HoverArea(f"{lead}{text}{spread}", batch, value))
    return Chart(name, title, render_svg(figure, name, f"{title}. {'; '.join(texts)}", hits), note)


def _plot_line(axes: Axes, line: ChartLine, marker_style: str) -> None:
    points = line.points
    axes.plot(
        [*points], [*points.values()], marker_style, color=line.color, markersize=4.5, linewidth=1.6
    )


def draw_stacked_share_bars(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    colours: Colours,
    note: str = "",
    *,
    row_label_prefix: str = "batch ",
) -> Chart:
    """Return one bar per row from 0 to 100%, its parts in the order of ``colours``, with a legend
    of those that it has; wide parts carry their name.

    ``row_label_prefix`` stands before a number in the text of a pointed part.
    """
    figure, axes = make_axes(height=0.62 + 0.42 * len(rows))
    hits = []
    for y, (label, parts) in enumerate(rows):
        left_edge = 0.0
        for part, number in colours.items():
            width = parts.get(part, 0.0) * 100
            if width <= 0:
                continue
            group_text = f", {row_label_prefix if label.isdigit() else ''}{label}" if label else ""
            text = f"{part}{group_text}: {format_percent(width / 100)}"
            hits.append(HoverArea(text, left_edge, y - 0.36, left_edge + width, y + 0.36))
            axes.barh(
                y,
                width,
                left=left_edge,
                height=0.72,
                color=SERIES[number % len(SERIES)],
                edgecolor=PAPER,
                linewidth=1,
                label=part,
            )
            if width >= 5 + 1.35 * len(part):
                axes.text(
                    left_edge + width / 2,
                    y,
                    truncate_label_start(part),
                    color={8: INK, 0: ON_DEEP}.get(number, "#0b0b0b"),
                    ha="center",
                    va="center",
                    fontsize=9,
                    parse_math=False,
                )
            left_edge += width
    axes.set_xlim(0, 100)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100%"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    parts_drawn = {part for _, parts in rows for part, share in parts.items() if share > 0}
    legend = tuple(LegendEntry(*entry) for entry in colours.items() if entry[0] in parts_drawn)
    return Chart(name, title, render_svg(figure, name, description, hits), note, legend)


def draw_curves_over_epochs_or_time(
    name: str,
    titles: tuple[str, str, str],
    lines: Sequence[ChartLine],
    x_and_y_formats: tuple[WriteNumber, WriteNumber],
    note: str = "",
) -> Chart | None:
    """Return lines named at their ends, short ones with a dot at each value; None without lines.
    ``titles`` are for all, x and y, ``x_and_y_formats`` for x and y."""
    if not lines:
        return None
    show_x, show_y = x_and_y_formats
    figure, axes = make_axes(x_title=titles[1], y_title=titles[2], tick_formats=x_and_y_formats)
    for line in lines:
        _plot_line(axes, line, "o-" if len(line.points) <= DOTS_MAX else "-")
    axes.set_ylim(0, max(y for line in lines for y in line.points.values()) * 1.12 or 1)
    axes.set_xlim(left=0)
    if show_x is format_epoch_tick:
        ticks = sorted({x for line in lines for x in line.points})
        axes.set_xticks(ticks[:: -(-len(ticks) // MOST_TICKS)])
    else:
        axes.xaxis.set_major_locator(_make_tick_locator())
    if len(lines) > 1:
        _label_line_ends(axes, lines, float)
    hits = [
        HoverArea(f"{line.label}, {show_x(x)}: {show_y(y)}", x, y)
        for line in lines
        for x, y in line.points.items()
    ]
    return Chart(name, titles[0], render_svg(figure, name, titles[0], hits), note)


def draw_horizontal_bars(
    name: str,
    title: str,
    rows: Sequence[HorizontalBar],
    format_value: WriteNumber,
    axis: str,
    note: str,
    reference_value: float | None = None,
) -> Chart:
    """Return horizontal bars from 0, each with its interval as a line; ``reference_value`` draws
    the reference."""
    figure, axes = make_axes(0.5 + 0.27 * len(rows), axis, tick_formats=(format_value,))
    hits = []
    for index, bar in enumerate(rows):
        axes.barh(index, bar.value, height=0.66, color=SERIES[bar.colour % len(SERIES)])
        text = f"{bar.label}: {format_value(bar.value)}"
        if bar.low is not None and bar.high is not None:
            axes.plot(
                [bar.low, bar.high],
                [index, index],
                color=INK,
                linewidth=1.4,
                marker="|",
                markersize=6,
            )
            text += f" ({format_value(bar.low)} to {format_value(bar.high)})"
        hits.append(HoverArea(text, 0, index - 0.33, max(bar.value, bar.high or 0), index + 0.33))
    if reference_value is not None:
        axes.axvline(reference_value, color=INK, linewidth=1)
    typical = max(bar.value for bar in rows)
    axes.set_xlim(
        0, min(max([typical, *(bar.high or 0 for bar in rows)]), 2.5 * typical) * 1.05 or 1
    )
    axes.set_yticks(range(len(rows)), [truncate_label_start(bar.label) for bar in rows])
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(
        _make_tick_locator(5 if max(len(bar.label) for bar in rows) < LONG_LABEL else 3)
    )
    axes.grid(visible=False)
    axes.grid(axis="x", color=RULE, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    return Chart(name, title, render_svg(figure, name, title, hits), note)


def draw_pies_chart(
    name: str,
    title: str,
    description: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    colours: Colours,
    note: str = "",
) -> Chart:
    """Return a pie per row, side by side, parts (shares, 0..1) in the order of ``colours``; wide
    parts carry their share.

    Bars are the default: lengths are easier to compare than angles.
    """
    figure, first = make_axes(height=0.8 + 5.0 / max(len(rows), 2))
    figure.delaxes(first)
    wedges_by_part: dict[str, Any] = {}
    for axes, (label, parts) in zip(
        figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True
    ):
        pieces = [(part, parts[part]) for part in colours if parts.get(part, 0.0) > 0]
        wedges = axes.pie(
            [share for _, share in pieces],
            colors=[SERIES[colours[part] % len(SERIES)] for part, _ in pieces],
            labels=[format_percent(share) if share >= WIDE_PIECE else "" for _, share in pieces],
            startangle=90,
            counterclock=False,
            wedgeprops={"edgecolor": PAPER, "linewidth": 1},
            labeldistance=1.12,
            textprops={"color": INK, "fontsize": 9, "parse_math": False},
        )[0]
        wedges_by_part |= {part: wedge for (part, _), wedge in zip(pieces, wedges, strict=True)}
        axes.set_title(truncate_label_start(label), color=INK, fontsize=10, parse_math=False)
    names = [part for part in colours if part in wedges_by_part]
    charts_files.draw_legend(
        figure,
        [wedges_by_part[part] for part in names],
        [truncate_label_start(part, 40) for part in names],
        ncols=2,
        labelcolor=INK,
    )
    return Chart(name, title, render_svg(figure, name, description), note)


def make_axes(
    height: float = SIZE[1],
    x_title: str = "",
    y_title: str = "",
    tick_formats: Sequence[WriteNumber] = (),
    *,
    log: bool = False,
) -> tuple[Figure, Axes]:
    """``x_title``, ``y_title``: titles of the axes; ``tick_formats``: how their values are written;
    ``log``: both are logarithmic."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], height), dpi=72, layout="constrained")
    FigureCanvasSVG(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=10, length=3)
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(x_title, color=MUTED, fontsize=10, parse_math=False)
    axes.set_ylabel(y_title, color=MUTED, fontsize=10)
    for axis, show in zip((axes.xaxis, axes.yaxis), tick_formats, strict=False):
        axis.set_major_formatter(make_tick_formatter(show))
    return figure, axes


def _make_tick_locator(max_ticks: int = 5) -> Any:
    """For an axis of times, whose labels are wide."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=max_ticks)


def make_tick_formatter(format_value: WriteNumber) -> Callable[[float, float], str]:
    return lambda value, _: format_value(value)


def _set_log2_ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(0.5, *values) / 1.3, max(2.0, *values) * 1.3)
    axes.yaxis.set_major_formatter(
        make_tick_formatter(lambda value: f"{value:g}" if value >= 2**-4 else f"1/{1 / value:g}")
    )
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate(
        "estimate",
        (axes.get_xlim()[0], 1),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=9,
        color=INK,
    )


def _label_line_ends(
    axes: Axes,
    lines: Sequence[ChartLine],
    scale: Callable[[float], float],
    *,
    draws_leaders: bool = False,
) -> None:
    """Write a name at the last point of each line, moved apart if names would overlap, and kept
    next to the axes.

    ``draws_leaders``: if a name is not next to its last point, a thin line leads there, so that no
    mark is at another value.
    """
    low, high = map(scale, axes.get_ylim())
    ends = sorted(
        ((scale(line.last_point[1]) - low) / (high - low), number)
        for number, line in enumerate(lines[:8])
    )
    heights: list[float] = []
    for end, _ in ends:
        heights.append(max(end, heights[-1] + LABEL if heights else end))
    above = 1.0
    for index in reversed(range(len(heights))):  # as far down as the top needs
        heights[index] = min(heights[index], above)
        above = heights[index] - LABEL
    last = max(line.last_point[0] for line in lines)
    beside: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "va": "center",
        "annotation_clip": False,
    }
    for (end, number), height in zip(ends, heights, strict=True):
        line, spot = lines[number], (1.0, height)
        if draws_leaders and (line.last_point[0] != last or abs(height - end) > LABEL / 5):
            x, y = convert_to_axes_fraction(axes, *line.last_point)
            axes.plot(
                (x, 1.025),
                (y, height),
                transform=axes.transAxes,
                clip_on=False,
                color=line.color,
                linestyle=":",
                linewidth=1,
                zorder=1.5,
            )
        else:
            axes.annotate("●", spot, xytext=(3, 0), fontsize=8, color=line.color, **beside)
        name = truncate_label_start(line.label)
        axes.annotate(
            name, spot, xytext=(12, 0), fontsize=9.5, color=INK, parse_math=False, **beside
        )


def convert_to_axes_fraction(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """A point of the data in shares of the drawing's width and height."""
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(x), float(y)


def choose_log_ticks(low: float, high: float) -> list[float]:
    """Two ticks or more from ``low`` to ``high`` on a log10 axis: decades, else also 3, or 2 and 5,
    else every digit.

    On an axis that is shorter still, its round values as on a linear axis; at most about eight.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), tuple(range(1, 10))):
        ticks = [
            digit * 10.0**power
            for power in powers
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(ticks) >= (2 if digits == (1,) else 3):
            return ticks[:: -(-len(ticks) // MOST_TICKS)]
    return [
        float(tick) for tick in _make_tick_locator(4).tick_values(low, high) if low <= tick <= high
    ]


def render_svg(figure: Figure, name: str, description: str, hits: Sequence[HoverArea] = ()) -> str:
    """Draw it. Every axis in decades gets two labelled ticks or more; axes to base 2 have ticks of
    their own."""
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            if axis.get_scale() == "log" and getattr(axis.get_transform(), "base", None) == 10:
                axis.set_ticks(choose_log_ticks(low, high))
    drawing = charts_files.collect_or_draw_svg(name, description, figure)
    if not drawing:
        return ""
    transform: Any = figure.axes[0].transData.transform
    shapes = charts_files.build_hover_shapes_svg(hits, transform, figure.get_figheight() * 72)
    return charts_files.convert_svg_for_page(drawing, description, shapes)
