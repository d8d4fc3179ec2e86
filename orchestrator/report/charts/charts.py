"""Charts as SVG text: the one file that knows matplotlib.

Colours are drawn as fixed stand-ins and then replaced by CSS variables, so that one drawing serves the
light and the dark page. Text stays text. The same input gives the same bytes.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.charts import files as charts_files
from perfctl.orchestrator.report.charts import svg
from perfctl.orchestrator.report.charts.svg import INK, MUTED, ON_DEEP, PAPER, RULE, SERIES, Hit, drawable
from perfctl.orchestrator.report.numbers import percent, short, si, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (6.0, 3.3)
"""Inches at 72 units an inch: 432 x 238 in the drawing's own units."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points against batch size, and the spread where there are repeats."""

    label: str
    batches: tuple[int, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...] = ()
    highs: tuple[float, ...] = ()
    colour: int = 0


def against_batch(
    name: str, description: str, lines: Sequence[Series], show: Callable[[float], str], *, log: bool = False,
    up: str = "",
) -> str:  # fmt: skip
    """Lines against batch size (log2 axis, real values as ticks), labelled at their ends; ``up`` names the values' axis.

    With ``log`` the values stand on a log2 axis too, with a line at 1 named "paper".
    """
    figure, axes = _new()
    for line in lines:
        colour = SERIES[line.colour % len(SERIES)]
        if line.lows:
            axes.fill_between(line.batches, line.lows, line.highs, color=colour, alpha=0.18, linewidth=0)
        style = "" if log else "-"
        axes.plot(line.batches, line.values, f"o{style}", color=colour, markersize=4.5, linewidth=1.6)
    batches = sorted({batch for line in lines for batch in line.batches})
    _batch_axis(axes, batches)
    if log:
        _ratio_axis(axes, [value for line in lines for value in line.values], batches)
    else:
        highest = max([*(value for line in lines for value in line.values), *(h for line in lines for h in line.highs)])
        axes.set_ylim(0, highest * 1.12 or 1)
        axes.yaxis.set_major_formatter(_formatter(show))
    axes.set_ylabel(up, color=MUTED, fontsize=10)
    if len(lines) > 1 or log:
        _label_ends(axes, lines, log2 if log else float)
    hits = [Hit(_said(line, place, show, named=len(lines) > 1 or log), line.batches[place], value)
            for line in lines for place, value in enumerate(line.values)]  # fmt: skip
    return _svg(figure, name, description, hits)


def _said(line: Series, place: int, show: Callable[[float], str], *, named: bool) -> str:
    """ "conv2 forward, batch 64: 1.2 µs (1.1 µs to 1.4 µs)"."""
    text = f"{line.label}, " if named else ""
    text += f"batch {line.batches[place]}: {show(line.values[place])}"
    return f"{text} ({show(line.lows[place])} to {show(line.highs[place])})" if line.lows else text


def shares(
    name: str, description: str, rows: Sequence[tuple[str, Mapping[str, float]]], colours: Mapping[str, int], *,
    what: str = "batch ",
) -> str:  # fmt: skip
    """One bar a row from 0 to 100 %, its parts in the order of ``colours``; wide parts carry their name.

    ``what`` stands before a row's label where a part is pointed at.
    """
    figure, axes = _new(height=0.62 + 0.42 * len(rows))
    hits = []
    for place, (label, parts) in enumerate(rows):
        left = 0.0
        for part in colours:
            width = parts.get(part, 0.0) * 100
            if width <= 0:
                continue
            colour = SERIES[colours[part] % len(SERIES)]
            hits.append(
                Hit(f"{part}, {what}{label}: {percent(width / 100)}", left, place - 0.36, left + width, place + 0.36)
            )
            axes.barh(place, width, left=left, height=0.72, color=colour, edgecolor=PAPER, linewidth=1, label=part)
            if width >= 5 + 1.35 * len(part):
                dark = INK if colours[part] == 8 else ON_DEEP if colours[part] == 0 else "#0b0b0b"
                spot: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 9,
                    "color": dark,
                    "parse_math": False,
                }
                axes.text(left + width / 2, place, drawable(part), **spot)
            left += width
    axes.set_xlim(0, 100)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return _svg(figure, name, description, hits)


@dataclass(frozen=True, slots=True)
class Spot:
    """One point under the roofs."""

    label: str
    x: float
    """FLOP per byte."""
    y: float
    """FLOP/s."""
    colour: int = 0
    named: bool = True
    sure: bool = True
    """Drawn full; else as a ring."""


def roofline(name: str, description: str, spots: Sequence[Spot], roofs: Mapping[str, float], bandwidth: float) -> str:
    """log-log: the memory's slope up to each roof, named on the lines; points with their names beside them."""
    figure, axes = _new(height=3.9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    top = max(roofs.values())
    low_x = min([0.1, *(spot.x / 2 for spot in spots)])
    high_x = max([top / bandwidth * 10, *(spot.x * 3 for spot in spots)])
    low_y = min([bandwidth * low_x, *(spot.y / 2 for spot in spots)])
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(low_y, top * 2.5)
    corner = top / bandwidth
    axes.plot([low_x, corner], [low_x * bandwidth, top], color=INK, linewidth=1.2)
    note: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "color": INK, "parse_math": False}
    middle = (low_x * corner) ** 0.5
    axes.annotate(
        f"memory {short(si(bandwidth, 'B/s'))}", (middle, middle * bandwidth), xytext=(-7, 4), ha="right", **note
    )
    for path, peak in roofs.items():
        axes.plot([peak / bandwidth, high_x], [peak, peak], color=INK, linewidth=1.2)
        axes.annotate(f"{path} {short(si(peak, 'FLOP/s'))}", (high_x, peak), xytext=(-2, 3), ha="right", **note)
    for spot in spots:
        colour = SERIES[spot.colour % len(SERIES)]
        fill = colour if spot.sure else PAPER
        axes.plot([spot.x], [spot.y], "o", markersize=6, color=colour, markerfacecolor=fill, markeredgewidth=1.4)
    places = [_fraction(axes, spot) for spot in spots]
    taken = [(x - 0.015, x + 0.015, y) for x, y in places]
    for path, peak in roofs.items():
        height = _fraction(axes, Spot(path, high_x, peak))[1] + 0.03
        taken.append((1 - 0.0165 * len(f"{path} {short(si(peak, 'FLOP/s'))}"), 1.0, height))
    for spot, at in zip(spots, places, strict=True):
        if spot.named:
            _beside(axes, drawable(spot.label), at, taken)
    axes.set_xlabel("FLOP per byte of DRAM", color=MUTED, fontsize=10)
    axes.set_ylabel("FLOP/s", color=MUTED, fontsize=10)
    axes.xaxis.set_major_formatter(_formatter(lambda value: f"{value:g}"))
    axes.yaxis.set_major_formatter(_formatter(lambda value: short(si(value))))
    axes.minorticks_off()
    hits = [Hit(f"{s.label}: {significant(float(s.x))} FLOP/B, {si(s.y, 'FLOP/s')}", s.x, s.y) for s in spots]
    return _svg(figure, name, description, hits).replace('class="chart"', 'class="chart halo"', 1)


def _fraction(axes: Axes, spot: Spot) -> tuple[float, float]:
    """Where a point stands, 0..1 of the drawing both ways."""
    x, y = axes.transAxes.inverted().transform(axes.transData.transform((spot.x, spot.y)))
    return float(x), float(y)


def _beside(axes: Axes, label: str, at: tuple[float, float], taken: list[tuple[float, float, float]]) -> None:
    """A name beside its point, as near as there is room between points and other names; none where there is no room."""
    x, y = at
    width, high = 0.0165 * len(label), 0.052
    tries = [(side, y + step * high) for step in (0, 1, -1, 2, -2) for side in (1, -1)]

    def span(side: int) -> tuple[float, float]:
        return (x + 0.02, x + 0.02 + width) if side > 0 else (x - 0.02 - width, x - 0.02)

    def free(side: int, height: float) -> bool:
        left, right = span(side)
        return (
            left > 0
            and right < 1.02
            and not any(abs(height - other) < high and start < right and left < end for start, end, other in taken)
        )

    found = next((spot for spot in tries if free(*spot)), None)
    if found is None:
        return
    side, height = found
    taken.append((*span(side), height))
    axes.annotate(
        label, (x, height), xycoords="axes fraction", xytext=(7 * side, 0), textcoords="offset points", va="center",
        ha="left" if side > 0 else "right", fontsize=9, color=INK, parse_math=False,
    )  # fmt: skip


def _new(height: float = SIZE[1]) -> tuple[Figure, Axes]:
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
    return figure, axes


def _formatter(show: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: show(value))


def few_ticks(most: int = 5) -> Any:
    """For an axis of times: its words are wide."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=most)


def _batch_axis(axes: Axes, batches: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    shown = batches if len(batches) <= 9 else [*batches[:: -(-len(batches) // 8)]]
    axes.set_xticks(list(shown), [str(batch) for batch in shown])
    axes.minorticks_off()
    axes.set_xlim(batches[0] / 1.25, batches[-1] * 1.25)
    axes.set_xlabel("batch size", color=MUTED, fontsize=10)


def _ratio_axis(axes: Axes, values: Sequence[float], batches: Sequence[int]) -> None:
    """log2 with room for 1/2 to 2 at least, and the line that everything is read against."""
    low, high = min([0.5, *values]), max([2.0, *values])
    axes.set_yscale("log", base=2)
    axes.set_ylim(low / 1.3, high * 1.3)
    first, last = ceil(log2(low / 1.3)), floor(log2(high * 1.3))
    step = max(1, ceil((last - first) / 8))
    ticks = [2.0**power for power in range(first, last + 1) if power % step == 0]
    axes.set_yticks(ticks, [f"{tick:g}" if tick >= 2**-4 else f"1/{1 / tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.axhline(1, color=INK, linewidth=1)
    axes.annotate("paper", (batches[0] / 1.25, 1), xytext=(3, 3), textcoords="offset points", fontsize=9, color=INK)


def _label_ends(axes: Axes, lines: Sequence[Series], scale: Callable[[float], float]) -> None:
    """A name at the last point of each line, moved apart where they would lie on each other."""
    low, high = (scale(end) for end in axes.get_ylim())
    spots = [((scale(line.values[-1]) - low) / (high - low), line) for line in lines[:8]]
    spots.sort(key=lambda spot: spot[0])
    step, place = 0.075, -1.0
    for height, line in spots:
        place = max(height, place + step)
        axes.annotate(
            "●", (1.0, place), xycoords="axes fraction", xytext=(3, 0), textcoords="offset points", va="center",
            fontsize=8, annotation_clip=False, color=SERIES[line.colour % len(SERIES)],
        )  # fmt: skip
        axes.annotate(
            drawable(line.label), (1.0, place), xycoords="axes fraction",
            xytext=(12, 0), textcoords="offset points", va="center", fontsize=9.5, annotation_clip=False,
            color=INK, parse_math=False,
        )  # fmt: skip


def _svg(figure: Figure, name: str, description: str, hits: Sequence[Hit] = ()) -> str:
    import matplotlib

    out = io.StringIO()
    settings: Any = {"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "DejaVu Sans"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph that the measuring font lacks; the browser has its own
        charts_files.keep(name, description, figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    transform: Any = figure.axes[0].transData.transform
    shapes = svg.shapes(hits, transform, figure.get_figheight() * 72)
    return svg.tidy(out.getvalue(), description, shapes)
