"""The roofline: roofs of one precision, a slope for each memory level that was measured, a point
for each work and level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import atan2, degrees, log10
from typing import TYPE_CHECKING

from perfctl.orchestrator.report.charts.charts import as_svg, fraction, new_axes
from perfctl.orchestrator.report.charts.files import INK, PAPER, RULE, SERIES, Hit, drawable
from perfctl.orchestrator.report.numbers import short, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = {
    "L1": ("^", "▲", "triangles", 5),
    "L2": ("s", "■", "squares", 2),
    "DRAM": ("o", "●", "circles", 0),
}
"""Level -> matplotlib's marker, its sign, its word, and its colour where several levels
are drawn."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One work at one memory level."""

    label: str
    """Name of the work, equal for all of its levels, which a line joins."""
    level: str
    hit: Hit
    """Where it is: FLOP per byte of this level, and FLOP/s; and its text under the pointer."""
    colour: int = 0
    named: bool = True
    sure: bool = True
    """Drawn full; else as a ring."""

    @property
    def x(self) -> float:
        """FLOP per byte of this level."""
        return self.hit.x

    @property
    def y(self) -> float:
        """FLOP/s."""
        return self.hit.y


def roofline(
    name: str,
    description: str,
    spots: Sequence[Spot],
    path: str,
    peak: float,
    bandwidths: Mapping[str, float],
) -> str:
    """log-log: a slope for each level up to the roof of ``path``; points with their names
    beside them.

    bandwidths: level -> bytes/s, of the levels that are drawn. peak: FLOP/s.
    """
    several = len(bandwidths) > 1
    what = "FLOP per byte" if several else f"FLOP per byte of {next(iter(bandwidths))}"
    figure, axes = new_axes(
        3.9, what, "FLOP/s", (lambda x: f"{x:g}", lambda y: short(si(y))), log=True
    )
    slowest, fastest = min(bandwidths.values()), max(bandwidths.values())
    low_x = min([peak / fastest / 10, *(spot.x / 2 for spot in spots)])
    high_x = max([peak / slowest * 10, *(spot.x * 3 for spot in spots)])
    axes.set_xlim(low_x, high_x)
    axes.set_ylim(min([slowest * low_x, *(spot.y / 2 for spot in spots)]), peak * 2.5)
    for level, bandwidth in bandwidths.items():
        colour = SERIES[MARKERS[level][3]] if several else INK
        corner = peak / bandwidth
        axes.plot([low_x, corner], [low_x * bandwidth, peak], color=colour, linewidth=1.2)
        _along(
            axes,
            f"{MARKERS[level][1] + ' ' if several else ''}{level} {short(si(bandwidth, 'B/s'))}",
            low_x,
            bandwidth,
        )
    axes.plot([peak / fastest, high_x], [peak, peak], color=INK, linewidth=1.2)
    roof = f"{path} {short(si(peak, 'FLOP/s'))}"
    axes.annotate(
        roof,
        (high_x, peak),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        color=INK,
        parse_math=False,
    )
    for _, same in groupby(spots, key=lambda spot: (spot.label, spot.y)):
        work = list(same)
        if len(work) > 1:
            axes.plot(
                [spot.x for spot in work],
                [spot.y for spot in work],
                color=RULE,
                linewidth=1,
                zorder=1.5,
            )
    for spot in spots:
        colour = SERIES[(MARKERS[spot.level][3] if several else spot.colour) % len(SERIES)]
        fill = colour if spot.sure else PAPER
        axes.plot(
            [spot.x],
            [spot.y],
            MARKERS[spot.level][0],
            markersize=6,
            color=colour,
            markerfacecolor=fill,
            markeredgewidth=1.4,
        )
    places = [fraction(axes, spot.x, spot.y) for spot in spots]
    occupied = [(x - 0.015, x + 0.015, y) for x, y in places]
    occupied.append((1 - 0.0165 * len(roof), 1.0, fraction(axes, high_x, peak)[1] + 0.03))
    rightmost = {
        spot.label: max(one.x for one in spots if one.label == spot.label) for spot in spots
    }
    for spot, at in zip(spots, places, strict=True):
        if spot.named and spot.x == rightmost[spot.label]:
            _beside(axes, drawable(spot.label), at, occupied)
    axes.minorticks_off()
    hits = [spot.hit for spot in spots]
    return as_svg(figure, name, description, hits).replace('class="chart"', 'class="chart halo"', 1)


def _along(axes: Axes, label: str, low_x: float, bandwidth: float) -> None:
    """The name of a slope, on it, from its lower end; it keeps to the slope when the drawing
    changes its shape."""
    from matplotlib.transforms import ScaledTranslation

    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    start = max(low_x, bottom / bandwidth) * 1.25
    angle = degrees(atan2(log10(right / left), log10(top / bottom)))  # in fractions of the axes
    away = ScaledTranslation(-3 / 72, 3 / 72, axes.get_figure(root=True).dpi_scale_trans)  # type: ignore[union-attr]
    axes.text(
        *fraction(axes, start, start * bandwidth),
        label,
        transform=axes.transAxes + away,
        rotation=angle,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=9,
        color=INK,
        parse_math=False,
    )


def _beside(
    axes: Axes, label: str, at: tuple[float, float], occupied: list[tuple[float, float, float]]
) -> None:
    x, y = at
    width, high = 0.0165 * len(label), 0.052
    for side, height in [(side, y + step * high) for step in (0, 1, -1) for side in (1, -1)]:
        left, right = (x + 0.02, x + 0.02 + width) if side > 0 else (x - 0.02 - width, x - 0.02)
        if left <= 0 or right >= 1.02:
            continue
        if any(
            abs(height - other) < high and start < right and left < end
            for start, end, other in occupied
        ):
            continue
        occupied.append((left, right, height))
        axes.annotate(
            label,
            (x, height),
            xycoords="axes fraction",
            xytext=(7 * side, 0),
            textcoords="offset points",
            va="center",
            ha="left" if side > 0 else "right",
            fontsize=9,
            color=INK,
            parse_math=False,
        )
        return
