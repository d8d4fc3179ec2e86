"""The roofline in sentences, cells, tables and charts: ceilings of one precision, a slope for each
memory level that was measured, a point for each work and level. 1 multiply-add = 2 FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import atan2, degrees, log10
from typing import TYPE_CHECKING, Any

from perfctl.orchestrator.counts.counters.work import CACHES, LEVELS
from perfctl.orchestrator.ledger.ledger import OUTSIDE, format_at_batch
from perfctl.orchestrator.ledger.roofline import (
    FAR,
    LAUNCH_NS,
    LevelRooflinePoint,
    MeasuredWork,
    Roofline,
    RooflinePoint,
)
from perfctl.orchestrator.report.charts.charts import (
    Chart,
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
    truncate_label_start,
)
from perfctl.orchestrator.report.ledger import build_row_evidence_trail_key
from perfctl.orchestrator.report.numbers import (
    drop_trailing_zeros,
    format_integer_or_six_digits,
    format_percent,
    format_si,
    format_significant,
    format_time,
    round_to_six_significant_digits,
)
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_cell,
    build_table,
    join_notes,
    missing_cell,
    name_cell,
    name_column,
    optional_text_cell,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import WORKED_OUT
from perfctl.records.run import format_sweep_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


KERNELS_MAX = 20
"""Kernels of a table, those with the most time."""
NAMED_POINTS, DRAWN_MAX = 6, 40
"""Points of a drawing with a name next to them, and all its points, those with the most time
first."""
CAPTIONS = {
    "run": "Complete steps: utilization",
    "layer": "Roofline of the layers",
    "kernel": "Roofline of the kernels",
}
"""Level of the work -> caption of its table."""
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


def describe_roofline_bound(point: RooflinePoint, roofs: Roofline) -> str | None:
    """Return what bounds this work, with its numbers; None if nothing is known."""
    traffic, bandwidth = point.traffic, roofs.peaks.bandwidth
    moved = ""
    if point.bytes_per_second and bandwidth:
        share = format_percent(point.bytes_per_second / bandwidth)
        moved = f"its bytes reach {share} of {format_si(bandwidth, 'B/s')}"
    if point.refused:
        return f"refused: {point.refused}"
    if point.bound == "launch" and traffic.level == "run":
        return (
            f"launch-bound: kernels run in {format_percent(min(traffic.busy or 0, 1))} of the "
            "step; the GPU waits for the host in the rest"
        )
    if point.bound == "launch" and traffic.time_ns and traffic.launches:
        average = format_time(traffic.time_ns / traffic.launches)
        usual = drop_trailing_zeros(format_time(LAUNCH_NS))
        return f"launch-bound: {average} per launch on average; a launch costs about {usual}"
    if point.bound == "memory" and (traffic.executed.lower_bound or point.intensity is None):
        return f"memory-bound: {'no FLOPs; ' if traffic.executed.value == 0 else ''}{moved}"
    if point.bound and point.intensity is not None and point.ridge is not None:
        side, ceiling = "below", format_si(bandwidth or 0, "B/s")
        if point.bound == "compute":
            side, ceiling = "above", f"the {point.path} peak"
        intensity = format_significant(float(point.intensity))
        ridge = format_significant(float(point.ridge))
        sentence = f"{point.bound}-bound: {intensity} FLOP per byte, {side} the ridge at {ridge}"
        if point.reached is None:
            return sentence
        far = "; it is far below both ceilings" if point.reached < FAR else ""
        return f"{sentence}; it reaches {format_percent(point.reached)} of {ceiling}{far}"
    if point.reached is None:
        return None
    if point.intensity is not None and point.ridge is not None:
        partial = "executed FLOPs" if traffic.executed.lower_bound else "DRAM bytes"
        return f"unknown: the {partial} are a lower bound; {moved}"
    subject = "estimated FLOPs are" if point.source == "paper" else "it reaches"
    share = format_percent(point.reached)
    lacking = "no DRAM bytes were measured"
    if traffic.dram.value is not None:
        lacking = "the memory bandwidth of the device is unknown"
    return f"{subject} {share} of the {point.path} peak; {lacking}"


def build_bound_cell(point: RooflinePoint | None, roofs: Roofline) -> Cell:
    """Return "memory 71%", with the sentence as its title."""
    if point is None:
        return missing_cell("no time and no executed FLOPs")
    if point.refused:
        return Cell("refused", point.refused, "refused")
    sentence = describe_roofline_bound(point, roofs)
    if sentence is None:
        return missing_cell(explain_missing_bound(point, roofs))
    share = "" if point.reached is None else format_whole_percent(point.reached)
    if point.bound is None:
        text = f"{share} of peak" if point.intensity is None else "unknown"
        return Cell(text, sentence, "est", value="unknown")
    text = point.bound if point.bound == "launch" else f"{point.bound} {share}".strip()
    return Cell(text, sentence, "" if point.traffic.trusted else "est", value=point.bound)


def format_whole_percent(share: float) -> str:
    """Return 0.2134 as "21%"; "<1%" for what would be 0%."""
    return "<1%" if 0 < share < 0.005 else f"{share * 100:.0f}%"


def explain_missing_bound(point: RooflinePoint, roofs: Roofline) -> str:
    """Return why the bound of this work is unknown."""
    traffic = point.traffic
    if traffic.time_ns is None:
        return "not timed"
    if roofs.peaks.reason:
        return roofs.peaks.reason
    if traffic.executed.value is None and not traffic.estimated:
        return traffic.executed.reason or "no FLOPs were measured"
    if traffic.dram.value is None:
        return traffic.dram.reason or "no DRAM bytes were measured"
    if point.path and point.peak is None:
        return f"the {point.path} peak of this device is unknown"
    return "no FLOPs and no bytes"


def describe_device_peaks(roofs: Roofline) -> str:
    """Return the peaks and their source."""
    peaks = roofs.peaks
    if not peaks.has_flop_peaks:
        return f"No peaks: {peaks.reason}."
    flops = ", ".join(f"{path} {format_si(value, 'FLOP/s')}" for path, value in peaks.flops.items())
    bandwidth = format_si(peaks.bandwidth, "B/s") if peaks.bandwidth else "bandwidth unknown"
    levels = (level for point in roofs.points for level in point.levels)
    caches = {
        level.level: f" {level.level} {format_si(peak.bandwidth, 'B/s')} ({peak.source})."
        for level in levels
        if level.level in CACHES
        and (peak := peaks.find_cache_peak(level.level, level.moved.rule)) is not None
    }
    return (
        f"Peaks of the {peaks.device}, {peaks.source}: {flops}, memory {bandwidth}."
        f"{''.join(caches.values())}{' ' if roofs.missing_memory_levels_sentence else ''}"
        f"{roofs.missing_memory_levels_sentence or ''}"
    )


def build_roofline_tables(
    roofs: Roofline, short_kernel_names: Mapping[str, str]
) -> tuple[Table, ...]:
    """Return complete steps, layers, and the kernels that take the most time at the largest batch
    size; each with a row for every memory level whose bytes were measured.

    short_kernel_names: kernel name -> its short form.
    """
    return tuple(
        filter(None, (_build_roofline_table(work, roofs, short_kernel_names) for work in CAPTIONS))
    )


def _build_roofline_table(
    work_level: str, roofs: Roofline, short_kernel_names: Mapping[str, str]
) -> Table | None:
    points = [
        point
        for point in roofs.select_points_by_work_level(work_level)
        if point.achieved or point.bytes_per_second or point.refused or point.intensity
    ]
    caption = CAPTIONS[work_level]
    if work_level == "kernel" and points:
        every = _select_largest_batch_points(points)
        points, batch = every[:KERNELS_MAX], every[0].traffic.batch
        caption += "" if batch is None else f", {format_sweep_point(batch)}"
        selection = f", first {len(points)} of {len(every)} by time"
        caption += selection if len(every) > len(points) else ""
    basis = "; ".join(sorted({point.traffic.basis for point in points if point.traffic.basis}))
    achieved = "executed FLOPs / time; estimated FLOPs (in italics) if there are no executed FLOPs"
    has_settings = any(isinstance(point.traffic.batch, str) for point in points)
    columns = [
        name_column("layer, pass" if work_level == "layer" else "kernel"),
        Column("parameters" if has_settings else "batch"),
        text_column("level"),
        size_column("bytes", "per step; reads and writes if the counter has both"),
        Column("intensity", "FLOP/B", is_optional=True, note="executed FLOPs / bytes"),
        Column("achieved", "FLOP/s", is_optional=True, note=achieved),
        text_column("ceiling", "the path with the most FLOPs", is_optional=True),
        Column("of bandwidth", note="bytes / time / bandwidth of this level"),
        Column(
            "of attainable", is_optional=True, note="achieved / min(peak, intensity x bandwidth)"
        ),
        Column(
            "MFU", is_optional=True, note="model FLOPs utilization: estimated FLOPs / time / peak"
        ),
        Column(
            "HFU", is_optional=True, note="hardware FLOPs utilization: executed FLOPs / time / peak"
        ),
        time_column("time", f"per step; {basis}"),
        text_column("bound"),
    ]
    hidden = {"run": {"kernel"}, "kernel": {"batch", "parameters"}}.get(work_level, set())
    if all(len(point.levels) < 2 for point in points):
        hidden |= {"level", "bytes", "of bandwidth"}
    pairs = [(point, level) for point in points for level in point.levels or (None,)]
    rows = (_build_roofline_cells(*pair, roofs, short_kernel_names) for pair in pairs)
    drawn = build_table(caption, columns, rows, omitted_columns=hidden)
    if drawn is None or work_level != "layer":
        return drawn
    marks = tuple((_name_layer(point.traffic), point.traffic.direction or "") for point, _ in pairs)
    return replace(drawn, marks=marks[: len(drawn.rows)])


def _build_roofline_cells(
    point: RooflinePoint,
    level: LevelRooflinePoint | None,
    roofs: Roofline,
    short_kernel_names: Mapping[str, str],
) -> tuple[Cell, ...]:
    """Return the cells of one work at one memory level; of the complete work if no bytes were
    measured."""
    traffic, missing = point.traffic, explain_missing_bound(point, roofs)
    no_estimate = missing if traffic.estimated else traffic.paper_why or "no estimate"
    no_count = traffic.executed.reason if traffic.executed.value is None else None
    mfu = share_cell(point.mfu, point.refused or no_estimate)
    moved, bandwidth, refused = traffic.dram, None, point.refused
    intensity, reached, bound = None, point.reached, build_bound_cell(point, roofs)
    if level is not None:
        moved, bandwidth, refused = level.moved, level.bandwidth_share, level.refused
        intensity, reached = level.intensity, level.reached
    reason = refused or missing
    if level is not None and level.level in CACHES:
        bound = optional_text_cell(level.bound, reason)
        bound = Cell("refused", refused, "refused") if refused else bound
    size = size_cell(moved.value, moved.reason or missing)
    flops_per_byte = missing_cell(moved.reason or missing)
    if intensity is not None:
        title = (
            f"{format_integer_or_six_digits(traffic.executed.value or 0, 'FLOP')} / "
            f"{format_integer_or_six_digits(moved.value or 0, 'B')}"
        )
        flops_per_byte = Cell(
            format_significant(float(intensity)),
            title,
            value=round_to_six_significant_digits(intensity),
        )
    short = None
    if traffic.level == "kernel":
        up_to_arguments = traffic.name.removeprefix("void ").split("<")[0].split("(")[0]
        short = short_kernel_names.get(traffic.name) or up_to_arguments
    time = time_cell(traffic.time_ns, "not timed", traffic.basis)
    if WORKED_OUT in (traffic.basis or ""):
        time = replace(time, text=f"ƒ {time.text}", style="der")
    return (
        name_cell(traffic.name, short),
        optional_text_cell(traffic.batch, "not recorded"),
        text_cell(level.level) if level else missing_cell("no bytes"),
        replace(
            size,
            title=join_notes(size.title, moved.rule, moved.reason),
            style="est" if moved.state == "estimated" else size.style,
        ),
        flops_per_byte,
        _build_achieved_rate_cell(point, missing),
        optional_text_cell(point.path, missing),
        share_cell(bandwidth, reason),
        share_cell(reached, reason),
        Cell("refused", point.mfu_reason, "refused") if point.mfu_reason else mfu,
        share_cell(point.hfu, point.refused or no_count or missing),
        time,
        bound,
    )


def _build_achieved_rate_cell(point: RooflinePoint, missing_reason: str) -> Cell:
    if point.over == "peak":
        return Cell(format_si(point.achieved or 0, "FLOP/s"), point.refused, "refused")
    cell, notes = amount_cell(point.achieved, "FLOP/s", missing_reason), []
    if point.source != "counted":
        kind = point.source.replace("estimated", "approximate").replace("paper", "estimated")
        notes.append(f"from {kind} FLOPs")
    if not point.traffic.trusted:
        notes.append(point.traffic.basis or "")
    if not notes or cell.style == "no":
        return cell
    return replace(cell, title="; ".join([cell.title or "", *notes]), style="est")


def _name_layer(traffic: MeasuredWork) -> str:
    """Return the layer as the ledger names it."""
    return traffic.layer or ("optimizer" if traffic.direction == "optimizer" else OUTSIDE)


def _select_largest_batch_points(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Return those at the largest batch size, by time."""
    largest = max((point.traffic.batch or 0 for point in points), default=0)
    chosen = [point for point in points if (point.traffic.batch or 0) == largest]
    return sorted(chosen, key=lambda point: -(point.traffic.time_ns or 0))


def draw_roofline_charts_by_precision(
    name_prefix: str,
    roofs: Roofline,
    colors: Mapping[str, int],
    short_kernel_names: Mapping[str, str],
) -> tuple[Chart, ...]:
    """Return the layers (kernels without layers) at the largest batch size below the ceilings of
    their own precision: a drawing for each.

    Refused points are not drawn. The precision that takes the most time comes first, and its
    drawing is named "roofline".
    """
    points = roofs.select_points_by_work_level("layer") or roofs.kernel_points
    drawable = [point for point in points if any(level.reached for level in point.levels)]
    by_path = group_by(_select_largest_batch_points(drawable), lambda point: point.path or "")
    ordered = sorted(
        by_path.values(), key=lambda points: -sum(point.traffic.time_ns or 0 for point in points)
    )
    return tuple(
        _draw_roofline_chart(name_prefix, roofs, points, colors, short_kernel_names, number)
        for number, points in enumerate(ordered)
    )


def _draw_roofline_chart(
    name_prefix: str,
    roofs: Roofline,
    points: Sequence[RooflinePoint],
    colors: Mapping[str, int],
    short_kernel_names: Mapping[str, str],
    chart_index: int,
) -> Chart:
    path, peak, batch = points[0].path or "", points[0].peak or 1, points[0].traffic.batch
    work = points[0].traffic.level
    pairs = [
        (point, level) for point in points[:DRAWN_MAX] for level in point.levels if level.reached
    ]
    spots = [
        _build_roofline_spot(name_prefix, point, level, colors, short_kernel_names, points)
        for point, level in pairs
    ]
    widths = {level.level: level.bandwidth or 1 for _, level in pairs}
    bandwidths = {level: widths[level] for level in LEVELS if level in widths}
    name = f"{name_prefix}-roofline" + (f"-{path.replace(' ', '-')}" if chart_index else "")
    works = f"{work.capitalize()}s and the {path} ceilings"
    svg = draw_roofline_svg(name, works, spots, path, peak, bandwidths)
    same = [p for p in roofs.select_points_by_work_level(work) if p.traffic.batch == batch]
    refused = sum(1 for p in same if p.path == path for level in p.levels if level.refused)
    unknown = sum(1 for p in same if p.path and p.intensity and p.peak is None)
    notes = {
        "; ".join(sorted({point.traffic.basis or "" for point in points})): True,
        ", ".join(f"{MARKERS[level][2]}: {level}" for level in bandwidths): len(bandwidths) > 1,
        "a line joins the levels of one row": len(bandwidths) > 1,
        "open markers: approximate, or time under ncu": not all(spot.sure for spot in spots),
        f"{refused} refused and not drawn": refused,
        f"{unknown} with an unknown peak are not drawn": unknown and not chart_index,
        f"the first {DRAWN_MAX} of {len(points)} by time": len(points) > DRAWN_MAX,
    }
    note = "; ".join([roofs.peaks.source, *(text for text, applies in notes.items() if applies)])
    ridges = ", ".join(
        f"{format_significant(peak / width)} ({level})" for level, width in bandwidths.items()
    )
    return Chart(
        name, f"{works}{format_at_batch(batch)}; ridge at {ridges}, FLOP per byte", svg, note
    )


def _build_roofline_spot(
    name_prefix: str,
    point: RooflinePoint,
    level: LevelRooflinePoint,
    colors: Mapping[str, int],
    short_kernel_names: Mapping[str, str],
    points: Sequence[RooflinePoint],
) -> RooflineSpot:
    traffic, layer_name = point.traffic, _name_layer(point.traffic)
    is_layer = traffic.level == "layer"
    label = traffic.name if is_layer else short_kernel_names.get(traffic.name, traffic.name)
    batch = f", {format_sweep_point(traffic.batch)}" if traffic.batch is not None else ""
    text = (
        f"{label}{batch}, {level.level}: {format_significant(float(level.intensity or 0))} "
        f"FLOP/B, {format_si(point.achieved or 0, 'FLOP/s')}, "
        f"{format_percent(level.reached or 0)} of the attainable {point.path} rate"
    )
    if level.bound:
        text += f", bound by {level.bound}"
    if point.bound and point.bound != level.bound:
        text += f"; overall, bound by {point.bound}"
    if is_layer and traffic.kernels:
        suffix = f" and {len(traffic.kernels) - 1} more" if len(traffic.kernels) > 1 else ""
        text += (
            f"; kernel "
            f"{short_kernel_names.get(traffic.kernels[0], traffic.kernels[0])[:90]}{suffix}"
        )
    is_certain = point.source == "counted" and traffic.trusted and level.moved.state == "counted"
    href = f"#{name_prefix}-{'ledger' if is_layer else 'kernels'}"
    hit = HoverArea(text, level.intensity or 1, point.achieved or 1, href=href)
    if is_layer:
        direction = traffic.direction or ""
        trail = build_row_evidence_trail_key(layer_name, direction, traffic.batch)
        hit = replace(hit, trail=trail, layer=layer_name, direction=direction)
    is_named = any(point is labeled for labeled in points[:NAMED_POINTS])
    return RooflineSpot(label, level.level, hit, colors.get(layer_name, 7), is_named, is_certain)


@dataclass(frozen=True, slots=True)
class RooflineSpot:
    """One work at one memory level."""

    label: str
    """Name of the work, equal for all of its levels, which a line joins."""
    level: str
    hit: HoverArea
    """Where it is: FLOP per byte of this level, and FLOP/s; and its text under the pointer."""
    colour: int
    named: bool
    sure: bool
    """Drawn full; otherwise as a ring."""

    @property
    def x(self) -> float:
        """FLOP per byte of this level."""
        return self.hit.x

    @property
    def y(self) -> float:
        """FLOP/s."""
        return self.hit.y


def draw_roofline_svg(
    name: str,
    description: str,
    spots: Sequence[RooflineSpot],
    precision: str,
    peak: float,
    bandwidths: Mapping[str, float],
) -> str:
    """Return as log-log SVG: a slope for each level up to the ceiling of ``precision``; points with
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
        _draw_bandwidth_slope_label(
            axes, f"{label} {drop_trailing_zeros(format_si(bandwidth, 'B/s'))}", low_x, bandwidth
        )
    axes.plot([peak / fastest, high_x], [peak, peak], color=INK, linewidth=1.2)
    ceiling = f"{precision} {drop_trailing_zeros(format_si(peak, 'FLOP/s'))}"
    _annotate_point_label(axes, ceiling, (high_x, peak), (-2, 3), ha="right")
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
    _draw_spot_labels(axes, spots, of_ceiling)
    axes.minorticks_off()
    drawing = render_svg(figure, name, description, [spot.hit for spot in spots])
    return drawing.replace('class="chart"', 'class="chart halo"', 1)


def _annotate_point_label(
    axes: Axes, label: str, point: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write a text ``offset`` points from ``point``."""
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


def _draw_bandwidth_slope_label(axes: Axes, label: str, low_x: float, bandwidth: float) -> None:
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


def _draw_spot_labels(axes: Axes, spots: Sequence[RooflineSpot], ceiling_label_area: Area) -> None:
    """Write the name of each work next to its rightmost point, if there is room."""
    points = [convert_to_axes_fraction(axes, spot.x, spot.y) for spot in spots]
    occupied = [*((x - 0.015, x + 0.015, y) for x, y in points), ceiling_label_area]
    rightmost: dict[str, float] = {}
    for spot in spots:
        rightmost[spot.label] = max(spot.x, rightmost.get(spot.label, spot.x))
    for spot, (x, y) in zip(spots, points, strict=True):
        label = truncate_label_start(spot.label)
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
                _annotate_point_label(
                    axes, label, (x, area[2]), (7 * side, 0), xycoords="axes fraction", **style
                )
                break
