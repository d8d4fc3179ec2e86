"""Charts as SVG text, drawn with matplotlib.

Colours are drawn as fixed stand-ins and then replaced by CSS variables, so that one drawing serves
the light and the dark page. Text stays text. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.charts import files as charts_files
from perfctl.orchestrator.report.charts.files import (
    INK,
    MUTED,
    ON_DEEP,
    PAPER,
    RULE,
    SERIES,
    Hit,
    drawable,
)
from perfctl.orchestrator.report.numbers import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TICKS = 8
LABEL = 0.075
"""Height of the name of a line, as a share of the axes' height."""
SIZE = (6.0, 3.3)
"""Inches at 72 units an inch: 432 x 238 in the drawing's own units."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing with its title and a note on the source of its numbers."""

    title: str
    svg: str
    note: str = ""
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour number) for parts too narrow to carry their name."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points against batch size, and the spread where there are repeats."""

    label: str
    batches: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    colour: int = 0


def batch_chart(
    name: str,
    title: str,
    lines: Sequence[Series],
    show: Callable[[float], str],
    note: str = "",
    *,
    decades: bool = False,
    up: str = "",
) -> Chart | None:
    """Return lines against batch size with a title, a note, and the last value of each line in
    words; None without lines. The other parameters are those of :func:`against_batch`."""
    if not lines:
        return None
    last = "; ".join(
        f"{line.label} {show(line.values[-1])} at batch {line.batches[-1]}" for line in lines
    )
    drawing = against_batch(name, f"{title}. {last}", lines, show, decades=decades, up=up)
    return Chart(title, drawing, note)


def against_batch(
    name: str,
    description: str,
    lines: Sequence[Series],
    show: Callable[[float], str],
    *,
    log: bool = False,
    decades: bool = False,
    up: str = "",
) -> str:
    """Lines against batch size (log2 axis, real values as ticks), labelled at their ends; ``up``
    names the values' axis.

    With ``log`` the values stand on a log2 axis too, with a line at 1 named "estimate"; with
    ``decades`` on a log10 axis.
    """
    figure, axes = new_axes(y=up)
    for line in lines:
        colour = SERIES[line.colour % len(SERIES)]
        if line.lows:
            axes.fill_between(
                line.batches, line.lows, line.highs, color=colour, alpha=0.18, linewidth=0
            )
        axes.plot(
            line.batches,
            line.values,
            "o" if log else "o-",
            color=colour,
            markersize=4.5,
            linewidth=1.6,
        )
    batches = sorted({batch for line in lines for batch in line.batches})
    if len(batches) > 1:  # one batch size has no scale
        axes.set_xscale("log", base=2)
    shown = batches if len(batches) <= 9 else batches[:: -(-len(batches) // 8)]
    axes.set_xticks(shown, [str(batch) for batch in shown])
    axes.minorticks_off()
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.set_xlabel("batch size", color=MUTED, fontsize=10)
    if log:
        _ratio_axis(axes, [value for line in lines for value in line.values], batches[0])
    elif decades:
        values = [value for line in lines for value in line.values]
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 2, max(values) * 2)
        axes.yaxis.set_major_formatter(formatter(show))
        axes.minorticks_off()
    else:
        highest = max(value for line in lines for value in (*line.values, *line.highs))
        axes.set_ylim(0, highest * 1.12 or 1)
        axes.yaxis.set_major_formatter(formatter(show))
    named = len(lines) > 1 or log
    if named:
        label_ends(axes, lines, log2 if log or decades else float, led=True)
    hits = []
    for line in lines:
        for place, (batch, value) in enumerate(zip(line.batches, line.values, strict=True)):
            spread = (
                f" ({show(line.lows[place])} to {show(line.highs[place])})" if line.lows else ""
            )
            hits.append(
                Hit(
                    f"{f'{line.label}, ' if named else ''}batch {batch}: {show(value)}{spread}",
                    batch,
                    value,
                )
            )
    return as_svg(figure, name, description, hits)


def shares(
    name: str,
    description: str,
    rows: Sequence[tuple[str, Mapping[str, float]]],
    colours: Mapping[str, int],
    *,
    what: str = "batch ",
) -> str:
    """One bar a row from 0 to 100%, its parts in the order of ``colours``; wide parts carry
    their name.

    ``what`` stands before a row's label in the text of a pointed part.
    """
    figure, axes = new_axes(height=0.62 + 0.42 * len(rows))
    hits = []
    for place, (label, parts) in enumerate(rows):
        left = 0.0
        for part in colours:
            width = parts.get(part, 0.0) * 100
            if width <= 0:
                continue
            said = f"{part}, {what}{label}: {percent(width / 100)}"
            hits.append(Hit(said, left, place - 0.36, left + width, place + 0.36))
            colour = SERIES[colours[part] % len(SERIES)]
            axes.barh(
                place,
                width,
                left=left,
                height=0.72,
                color=colour,
                edgecolor=PAPER,
                linewidth=1,
                label=part,
            )
            if width >= 5 + 1.35 * len(part):
                ink = INK if colours[part] == 8 else ON_DEEP if colours[part] == 0 else "#0b0b0b"
                spot: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 9,
                    "parse_math": False,
                }
                axes.text(left + width / 2, place, drawable(part), color=ink, **spot)
            left += width
    axes.set_xlim(0, 100)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100%"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return as_svg(figure, name, description, hits)


def new_axes(
    height: float = SIZE[1],
    x: str = "",
    y: str = "",
    shows: Sequence[Callable[[float], str]] = (),
    *,
    log: bool = False,
) -> tuple[Figure, Axes]:
    """``x``, ``y``: titles of the axes; ``shows``: how values are written along x and y; ``log``:
    both are logarithmic."""
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
    axes.set_xlabel(x, color=MUTED, fontsize=10, parse_math=False)
    axes.set_ylabel(y, color=MUTED, fontsize=10)
    for axis, show in zip((axes.xaxis, axes.yaxis), shows, strict=False):
        axis.set_major_formatter(formatter(show))
    return figure, axes


def few_ticks(most: int = 5) -> Any:
    """For an axis of times, whose labels are wide."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most)


def formatter(show: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: show(value))


def _ratio_axis(axes: Axes, values: Sequence[float], first_batch: int) -> None:
    low, high = min([0.5, *values]) / 1.3, max([2.0, *values]) * 1.3
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    first, last = ceil(log2(low)), floor(log2(high))
    step = max(1, ceil((last - first) / 8))
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    axes.set_yticks(ticks, [f"{tick:g}" if tick >= 2**-4 else f"1/{1 / tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate(
        "estimate",
        (first_batch / 1.25, 1),
        xytext=(3, 3),
        textcoords="offset points",
        fontsize=9,
        color=INK,
    )


def label_ends(
    axes: Axes, lines: Sequence[Series], scale: Callable[[float], float], *, led: bool = False
) -> None:
    """A name at the last point of each line, moved apart where names would overlap, and kept beside
    the axes.

    ``led``: where a name does not stand beside its last point, a thin line leads there, so that no
    mark stands at another value.
    """
    low, high = (scale(end) for end in axes.get_ylim())
    spots = sorted(
        ((scale(line.values[-1]) - low) / (high - low), place)
        for place, line in enumerate(lines[:8])
    )
    places: list[float] = []
    for height, _ in spots:
        places.append(max(height, places[-1] + LABEL if places else -1.0))
    above = 1.0
    for at in reversed(range(len(places))):  # as far down as the top needs
        places[at] = min(places[at], above)
        above = places[at] - LABEL
    last = max(line.batches[-1] for line in lines)
    fixed: dict[str, Any] = {
        "xycoords": "axes fraction",
        "textcoords": "offset points",
        "va": "center",
        "annotation_clip": False,
    }
    for (height, number), place in zip(spots, places, strict=True):
        line = lines[number]
        colour = SERIES[line.colour % len(SERIES)]
        if led and (line.batches[-1] != last or abs(place - height) > LABEL / 5):
            x, y = fraction(axes, line.batches[-1], line.values[-1])
            axes.plot(
                (x, 1.025),
                (y, place),
                transform=axes.transAxes,
                clip_on=False,
                color=colour,
                linestyle=":",
                linewidth=1,
                zorder=1.5,
            )
        else:
            axes.annotate("●", (1.0, place), xytext=(3, 0), fontsize=8, color=colour, **fixed)
        name = drawable(line.label)
        axes.annotate(
            name, (1.0, place), xytext=(12, 0), fontsize=9.5, color=INK, parse_math=False, **fixed
        )


def fraction(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """A point of the data in shares of the drawing's width and height."""
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
    return float(x), float(y)


def log_ticks(low: float, high: float) -> list[float]:
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
    from matplotlib.ticker import MaxNLocator

    return [
        float(tick)
        for tick in MaxNLocator(nbins=4, min_n_ticks=2).tick_values(low, high)
        if low <= tick <= high
    ]


def _label_log_axes(axes: Axes) -> None:
    """Give every axis in decades two labelled ticks or more; axes to base 2 have ticks of
    their own."""
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if axis.get_scale() == "log" and getattr(axis.get_transform(), "base", None) == 10:
            axis.set_ticks(log_ticks(low, high))


def as_svg(figure: Figure, name: str, description: str, hits: Sequence[Hit] = ()) -> str:
    for axes in figure.axes:
        _label_log_axes(axes)
    drawing = charts_files.svg(name, description, figure)
    if not drawing:
        return ""
    transform: Any = figure.axes[0].transData.transform
    shapes = charts_files.shapes(hits, transform, figure.get_figheight() * 72)
    return charts_files.tidy(drawing, description, shapes)
