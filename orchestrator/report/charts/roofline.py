"""The roofline: ceilings of one precision, a slope for each memory level that was measured, a point
for each work and level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import atan2, degrees, log10
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.report.charts.charts import (
    convert_to_axes_fraction,
    make_axes,
    render_svg,
)
from perfctl.orchestrator.report.charts.files import (
    INK,
    PAPER,
    RULE,
    SERIES,
    HoverArea,
    shorten_label,
)
from perfctl.orchestrator.report.numbers import drop_trailing_zeros, format_si

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {
    "L1": ("^", "▲", "triangles", 5),
    "L2": ("s", "■", "squares", 2),
    "DRAM": ("o", "●", "circles", 0),
}
"""Level -> matplotlib's marker, its sign, its word, and its color if several levels
are drawn."""
LETTER, LINE = 0.0165, 0.052
"""Width of a letter and height of a line of text, as shares of the axes."""
Area = tuple[float, float, float]
"""Left, right and height of a text or point, as shares of the axes."""


@dataclass(frozen=True, slots=True)
class RooflineSpot:
    """One work at one memory level."""

    label: str
    """Name of the work, equal for all of its levels, which a line joins."""
    level: str
    hit: HoverArea
    """Where it is: FLOP per byte of this level, and FLOP/s; and its text under the pointer."""
    colour: int = 0
    named: bool = True
    sure: bool = True
    """Drawn full; otherwise as a ring."""

    @property
    def x(self) -> float:
        """FLOP per byte of this level."""
        return self.hit.x

    @property
    def y(self) -> float:
        """FLOP/s."""
        return self.hit.y


def draw_roofline(
    name: str,
    description: str,
    spots: Sequence[RooflineSpot],
    path: str,
    peak: float,
    bandwidths: Mapping[str, float],
) -> str:
    """Return as log-log SVG: a slope for each level up to the ceiling of ``path``; points with
    their names next to them.

    bandwidths: level -> bytes/s, of the levels that are drawn. peak: FLOP/s.
    """
    several = len(bandwidths) > 1
    x_title = "FLOP per byte" if several else f"FLOP per byte of {next(iter(bandwidths))}"
    shows = (lambda x: f"{x:g}", lambda y: drop_trailing_zeros(format_si(y)))
    figure, axes = make_axes(3.9, x_title, "FLOP/s", shows, log=True)
    slowest, fastest = min(bandwidths.values()), max(bandwidths.values())
    low_x = min(peak / fastest / 10, *(spot.x / 2 for spot in spots))
    high_x = max(peak / slowest * 10, *(spot.x * 3 for spot in spots))
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(min(slowest * low_x, *(spot.y / 2 for spot in spots)), peak * 2.5)
    for level, bandwidth in bandwidths.items():
        _, sign, _, number = MARKERS[level]
        color = SERIES[number] if several else INK
        xs, ys = [low_x, peak / bandwidth], [low_x * bandwidth, peak]
        axes.plot(xs, ys, color=color, linewidth=1.2)
        label = f"{sign} {level}" if several else level
        _write_slope_name(
            axes, f"{label} {drop_trailing_zeros(format_si(bandwidth, 'B/s'))}", low_x, bandwidth
        )
    axes.plot([peak / fastest, high_x], [peak, peak], color=INK, linewidth=1.2)
    ceiling = f"{path} {drop_trailing_zeros(format_si(peak, 'FLOP/s'))}"
    _write_text(axes, ceiling, (high_x, peak), (-2, 3), ha="right")
    for _, same in groupby(spots, key=lambda spot: (spot.label, spot.y)):
        levels = list(same)
        if len(levels) > 1:
            xs, ys = [spot.x for spot in levels], [spot.y for spot in levels]
            axes.plot(xs, ys, color=RULE, linewidth=1, zorder=1.5)
    for spot in spots:
        marker, _, _, number = MARKERS[spot.level]
        color = SERIES[(number if several else spot.colour) % len(SERIES)]
        axes.plot(
            [spot.x],
            [spot.y],
            marker,
            markersize=6,
            color=color,
            markerfacecolor=color if spot.sure else PAPER,
            markeredgewidth=1.4,
        )
    of_ceiling = (
        1 - LETTER * len(ceiling),
        1.0,
        convert_to_axes_fraction(axes, high_x, peak)[1] + 0.03,
    )
    _write_spot_names(axes, spots, of_ceiling)
    axes.minorticks_off()
    drawing = render_svg(figure, name, description, [spot.hit for spot in spots])
    return drawing.replace('class="chart"', 'class="chart halo"', 1)


def _write_text(
    axes: Axes, label: str, point: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write a text ``offset`` points from ``at``."""
    axes.annotate(
        label,
        point,
        xytext=offset,
        textcoords="offset points",
        fontsize=9,
        color=INK,
        parse_math=False,
        **style,
    )


def _write_slope_name(axes: Axes, label: str, low_x: float, bandwidth: float) -> None:
    """Write the name of a slope on it, from its lower end; it keeps to the slope when the drawing
    changes its shape."""
    from matplotlib.transforms import ScaledTranslation

    (low_limit, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    start = max(low_x, bottom / bandwidth) * 1.25
    angle = degrees(
        atan2(log10(right / low_limit), log10(top / bottom))
    )  # in fractions of the axes
    away = ScaledTranslation(-3 / 72, 3 / 72, axes.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
    axes.text(
        *convert_to_axes_fraction(axes, start, start * bandwidth),
        label,
        transform=axes.transAxes + away,
        rotation=angle,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=9,
        color=INK,
        parse_math=False,
    )


def _write_spot_names(axes: Axes, spots: Sequence[RooflineSpot], of_ceiling: Area) -> None:
    """Write the name of each work next to its rightmost point, if there is room."""
    points = [convert_to_axes_fraction(axes, spot.x, spot.y) for spot in spots]
    occupied = [*((x - 0.015, x + 0.015, y) for x, y in points), of_ceiling]
    rightmost: dict[str, float] = {}
    for spot in spots:
        rightmost[spot.label] = max(spot.x, rightmost.get(spot.label, spot.x))
    for spot, (x, y) in zip(spots, points, strict=True):
        label = shorten_label(spot.label)
        if not spot.named or spot.x != rightmost[spot.label]:
            continue
        for lines, side in product((0, 1, -1), (1, -1)):
            near, far = x + 0.02 * side, x + (0.02 + LETTER * len(label)) * side
            area = (min(near, far), max(near, far), y + lines * LINE)
            is_free = not any(
                abs(area[2] - other[2]) < LINE and area[0] < other[1] and other[0] < area[1]
                for other in occupied
            )
            if is_free and area[0] > 0 and area[1] < 1.02:
                occupied.append(area)
                style = {"va": "center", "ha": "left" if side > 0 else "right"}
                _write_text(
                    axes, label, (x, area[2]), (7 * side, 0), xycoords="axes fraction", **style
                )
                break
