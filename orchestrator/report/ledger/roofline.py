"""The roofline in sentences, cells and charts; page, terminal and exports share the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.counts.counters.work import CACHES, LEVELS
from perfctl.orchestrator.counts.figure import Figure
from perfctl.orchestrator.ledger.ledger import OUTSIDE
from perfctl.orchestrator.ledger.roofline import (
    FAR,
    LAUNCH_NS,
    LevelPoint,
    Roofline,
    RooflinePoint,
    Traffic,
)
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.charts.files import Hit
from perfctl.orchestrator.report.charts.roofline import MARKERS, Spot
from perfctl.orchestrator.report.charts.roofline import roofline as drawn_roofline
from perfctl.orchestrator.report.ledger.keys import row_key
from perfctl.orchestrator.report.numbers import full, percent, rounded, short, si, significant, time
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount,
    name_cell,
    nothing,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)

KERNELS_SHOWN = 20
LABELLED = 6
"""Works with their name beside them."""
DRAWN = 40
"""Works in one drawing, the longest first."""


def spoken(point: RooflinePoint, roofs: Roofline) -> str | None:
    """The bound of this work with its number; None when nothing is known."""
    traffic, peaks = point.traffic, roofs.peaks
    if point.refused:
        return f"refused: {point.refused}"
    if point.bound == "launch" and traffic.level == "run":
        return (
            f"launch-bound: kernels run in {percent(min(traffic.busy or 0, 1))} of the step; the "
            "GPU waits for the host in the rest"
        )
    if point.bound == "launch" and traffic.time_ns and traffic.launches:
        each = time(traffic.time_ns / traffic.launches)
        return (
            f"launch-bound: {each} per launch on average; a launch costs about "
            f"{short(time(LAUNCH_NS))}"
        )
    if point.bound and point.intensity is not None and point.ridge is not None:
        side = "above" if point.bound == "compute" else "below"
        of = (
            f"the {point.path} peak"
            if point.bound == "compute"
            else si(peaks.bandwidth or 0, "B/s")
        )
        at, ridge = significant(float(point.intensity)), significant(float(point.ridge))
        said = f"{point.bound}-bound: {at} FLOP per byte, {side} the ridge at {ridge}"
        if point.reached is None:
            return said
        far = "; it is far below both ceilings" if point.reached < FAR else ""
        return f"{said}; it reaches {percent(point.reached)} of {of}{far}"
    if point.bound == "memory" and point.bytes_per_second and peaks.bandwidth:
        return (
            f"memory-bound: no FLOPs; it moves {percent(point.bytes_per_second / peaks.bandwidth)} "
            f"of {si(peaks.bandwidth, 'B/s')}"
        )
    if point.reached is not None:
        whose = "estimated FLOPs are" if point.source == "paper" else "it reaches"
        return (
            f"{whose} {percent(point.reached)} of the {point.path} peak; no DRAM bytes were "
            "measured"
        )
    return None


def bound_cell(point: RooflinePoint | None, roofs: Roofline) -> Cell:
    """ "memory 71%", with the sentence as its title."""
    if point is None:
        return nothing("no time and no executed FLOPs")
    said = spoken(point, roofs)
    if point.refused:
        return Cell("refused", point.refused, "refused")
    if said is None:
        return nothing(why_not(point, roofs))
    if point.bound is None:
        return Cell(f"{_whole(point.reached or 0)} of peak", said, "est", value="not known")
    share = (
        f" {_whole(point.reached)}" if point.reached is not None and point.bound != "launch" else ""
    )
    return Cell(
        point.bound + share, said, "" if point.traffic.trusted else "est", value=point.bound
    )


def _whole(share: float) -> str:
    return "< 1%" if 0 < share < 0.005 else f"{share * 100:.0f}%"


def why_not(point: RooflinePoint, roofs: Roofline) -> str:
    """Why the bound of this work is not known."""
    traffic = point.traffic
    if traffic.time_ns is None:
        return "not timed"
    if roofs.peaks.reason:
        return roofs.peaks.reason
    if traffic.counted.value is None and not traffic.paper:
        return traffic.counted.reason or "no FLOPs were measured"
    if traffic.dram.value is None:
        return traffic.dram.reason or "no DRAM bytes were measured"
    if point.path and point.peak is None:
        return f"the {point.path} peak of this device is unknown"
    return "no FLOPs and no bytes"


def roofs_note(roofs: Roofline) -> str:
    """The roofs and their source."""
    peaks = roofs.peaks
    if not peaks.known:
        return f"No peaks: {peaks.reason}."
    flops = ", ".join(f"{path} {si(value, 'FLOP/s')}" for path, value in peaks.flops.items())
    memory = (
        f", memory {si(peaks.bandwidth, 'B/s')}"
        if peaks.bandwidth
        else ", memory bandwidth unknown"
    )
    caches = "".join(
        f" {level} {si(bandwidth, 'B/s')} ({source})."
        for level, (bandwidth, source) in _cache_roofs(roofs).items()
    )
    lacking = f" {roofs.lacking}" if roofs.lacking else ""
    return f"Peaks of the {peaks.device}, {peaks.source}: {flops}{memory}.{caches}{lacking}"


def _cache_roofs(roofs: Roofline) -> dict[str, tuple[float, str]]:
    """L1, L2 -> (bytes/s, source), of levels that points are set against."""
    found: dict[str, tuple[float, str]] = {}
    for one in (level for point in roofs.points for level in point.levels if level.level in CACHES):
        if (peak := roofs.peaks.cache(one.level, one.moved.rule)) is not None:
            found.setdefault(one.level, (peak.bandwidth, peak.source))
    return found


def roofline_tables(roofs: Roofline, names: Mapping[str, str] | None = None) -> tuple[Table, ...]:
    """Whole steps, layers, and the kernels that take most time at the largest batch size; then
    those by memory level.

    names: kernel name -> its short form.
    """
    names = names or {}
    captions = (
        ("run", "Complete steps: utilization"),
        ("layer", "Roofline of the layers"),
        ("kernel", "Roofline of the kernels"),
    )
    made = [_table(level, caption, roofs) for level, caption in captions]
    if any(level in CACHES for level in roofs.levels):
        made.append(_levels_table("layer" if roofs.at("layer") else "kernel", roofs, names))
    return tuple(one for one in made if one is not None)


def _place(traffic: Traffic) -> str:
    """The layer as the ledger names it."""
    return traffic.layer or ("optimizer" if traffic.direction == "optimizer" else OUTSIDE)


def _levels_table(kind: str, roofs: Roofline, names: Mapping[str, str]) -> Table | None:
    """What the drawings show, a row for each work and memory level."""
    points = [point for point in roofs.at(kind) if point.levels and point.achieved]
    caption = f"{'Layers' if kind == 'layer' else 'Kernels'} by memory level"
    if kind == "kernel" and points:
        points = _at_largest(points)[:KERNELS_SHOWN]
    columns = (
        Column("layer, pass" if kind == "layer" else "kernel", style="code"),
        Column("batch"),
        Column("level", style="text"),
        Column(
            "bytes", base="B", note="measured per step; reads and writes if the counter has both"
        ),
        Column("intensity", "FLOP/B", note="executed FLOPs / bytes of this level"),
        Column("rate", "FLOP/s", note="executed FLOPs / time"),
        Column("precision", style="text", note="data type of the ceiling"),
        Column("of bandwidth", note="bytes / time / bandwidth of this level"),
        Column("of ceiling", note="rate / min(peak, intensity x bandwidth)"),
        Column("bound", style="text"),
    )
    pairs = [(point, one) for point in points for one in point.levels]
    rows = [_level_row(point, one, roofs, names) for point, one in pairs]
    found = table(caption, columns, rows)
    marks = tuple((_place(point.traffic), point.traffic.direction or "") for point, _ in pairs)
    return replace(found, marks=marks[: len(found.rows)]) if found and kind == "layer" else found


def _text_or_dash(text: object, reason: str) -> Cell:
    return nothing(reason) if text is None else text_cell(text)


def _intensity_cell(intensity: float | None, traffic: Traffic, moved: Figure, reason: str) -> Cell:
    """Return FLOPs / bytes, with both in full."""
    if intensity is None:
        return nothing(reason)
    title = f"{full(traffic.counted.value or 0, 'FLOP')} / {full(moved.value or 0, 'B')}"
    return Cell(significant(float(intensity)), title, value=rounded(intensity))


def _level_row(
    point: RooflinePoint, one: LevelPoint, roofs: Roofline, names: Mapping[str, str]
) -> list[Cell]:
    traffic = point.traffic
    lacking = one.refused or (
        f"the {one.level} bandwidth is unknown" if one.bandwidth is None else why_not(point, roofs)
    )
    unknown = "no bytes" if traffic.counted.value else "no FLOPs"
    moved = size_cell(one.moved.value)
    notes = "; ".join(filter(None, (moved.title, one.moved.rule, one.moved.reason)))
    return [
        name_cell(traffic.name, names.get(traffic.name) if traffic.level == "kernel" else None),
        _text_or_dash(traffic.batch, "not said"),
        text_cell(one.level),
        replace(moved, title=notes, style="est" if one.moved.state == "estimated" else ""),
        _intensity_cell(one.intensity, traffic, one.moved, unknown),
        _achieved_cell(point, lacking),
        _text_or_dash(point.path or None, lacking),
        share_cell(one.busy, lacking),
        share_cell(one.reached, lacking),
        Cell(f"refused: {one.refused}", style="bad")
        if one.refused
        else _text_or_dash(one.bound or None, lacking),
    ]


def _at_largest(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Those at the largest batch size, by time."""
    largest = max((point.traffic.batch or 0 for point in points), default=0)
    chosen = [point for point in points if (point.traffic.batch or 0) == largest]
    return sorted(chosen, key=lambda point: -(point.traffic.time_ns or 0))


def _table(level: str, caption: str, roofs: Roofline) -> Table | None:
    points = [
        p for p in roofs.at(level) if p.achieved or p.bytes_per_second or p.refused or p.intensity
    ]
    if level == "kernel" and points:
        every = _at_largest(points)
        points = every[:KERNELS_SHOWN]
        caption += (
            f", batch {points[0].traffic.batch}" if points[0].traffic.batch is not None else ""
        )
        caption += (
            f", first {len(points)} of {len(every)} by time" if len(every) > len(points) else ""
        )
    basis = "; ".join(sorted({p.traffic.basis for p in points if p.traffic.basis}))
    named, batch = (
        Column("layer, pass" if level == "layer" else "kernel", style="code"),
        Column("batch"),
    )
    columns = [
        *{"run": [batch], "layer": [named, batch], "kernel": [named]}[level],
        Column("intensity", "FLOP/B", note="executed FLOPs per byte read from or written to DRAM"),
        Column(
            "achieved",
            "FLOP/s",
            note="executed FLOPs / time; estimated FLOPs (in italics) if there are no executed "
            "FLOPs",
        ),
        Column("ceiling", style="text", note="the path with the most FLOPs"),
        Column("of attainable", note="achieved / min(peak, intensity x bandwidth)"),
        Column("MFU", note="model FLOPs utilization: estimated FLOPs / time / peak"),
        Column("HFU", note="hardware FLOPs utilization: executed FLOPs / time / peak"),
        Column("time", base="ns", note=basis),
        Column("bound", style="text"),
    ]
    found = table(caption, columns, [_row(point, roofs, level) for point in points])
    if found is None or level != "layer":
        return found
    marks = tuple((_place(point.traffic), point.traffic.direction or "") for point in points)
    return replace(found, marks=marks[: len(found.rows)])


def _row(point: RooflinePoint, roofs: Roofline, level: str) -> list[Cell]:
    traffic, lacking = point.traffic, why_not(point, roofs)
    named = name_cell(traffic.name, _short(traffic.name) if level == "kernel" else None)
    batch = _text_or_dash(traffic.batch, "not said")
    mfu = share_cell(
        point.mfu,
        point.refused or (lacking if traffic.paper else traffic.paper_why or "no estimate"),
    )
    bound = spoken(point, roofs)
    return [
        *{"run": [batch], "layer": [named, batch], "kernel": [named]}[level],
        _intensity_cell(point.intensity, traffic, traffic.dram, traffic.dram.reason or lacking),
        _achieved_cell(point, lacking),
        _text_or_dash(point.path or None, lacking),
        share_cell(point.reached, point.refused or lacking),
        Cell("refused", point.mfu_refused, "refused") if point.mfu_refused else mfu,
        share_cell(point.hfu, point.refused or (traffic.counted.reason or lacking)),
        time_cell(traffic.time_ns, "not timed", traffic.basis),
        nothing(lacking)
        if bound is None
        else Cell(bound, style="bad" if point.refused else "", value=bound),
    ]


def _achieved_cell(point: RooflinePoint, lacking: str) -> Cell:
    if point.over == "peak":
        return Cell(si(point.achieved or 0, "FLOP/s"), point.refused, "refused")
    cell = amount(point.achieved, "FLOP/s", lacking)
    source = "estimated" if point.source == "paper" else point.source
    notes = [f"from {source} FLOPs"] if source != "counted" else []
    notes += [] if point.traffic.trusted else [point.traffic.basis or ""]
    noted = notes and cell.style != "no"
    return (
        replace(cell, title="; ".join([cell.title or "", *notes]), style="est") if noted else cell
    )


def _short(name: str) -> str:
    """A kernel's name up to its template arguments."""
    text = name.removeprefix("void ").split("<")[0].split("(")[0]
    return text or name


def roofline_charts(
    key: str, roofs: Roofline, colours: Mapping[str, int], names: Mapping[str, str] | None = None
) -> tuple[Chart, ...]:
    """Layers (kernels without layers) at the largest batch size under their own precision's roofs:
    a drawing for each.

    Refused points are not drawn. The precision that takes most time comes first, and its drawing is
    named "roofline".
    """
    kind = "layer" if roofs.at("layer") else "kernel"
    sound = [point for point in roofs.at(kind) if any(one.reached for one in point.levels)]
    if not sound:
        return ()
    by_path: dict[str, list[RooflinePoint]] = {}
    for point in _at_largest(sound):
        by_path.setdefault(point.path or "", []).append(point)
    ordered = sorted(
        by_path, key=lambda path: -sum(point.traffic.time_ns or 0 for point in by_path[path])
    )
    return tuple(
        _chart(key, roofs, by_path[path], colours, names or {}, number)
        for number, path in enumerate(ordered)
    )


def _chart(
    key: str,
    roofs: Roofline,
    points: Sequence[RooflinePoint],
    colours: Mapping[str, int],
    names: Mapping[str, str],
    number: int,
) -> Chart:
    first, peaks = points[0], roofs.peaks
    path, kind, batch = first.path or "", first.traffic.level, first.traffic.batch
    spots = [
        _spot(key, point, one, colours, names, named=place < LABELLED)
        for place, point in enumerate(points[:DRAWN])
        for one in point.levels
        if one.reached
    ]
    bandwidths = {
        one.level: one.bandwidth or 1
        for point in points[:DRAWN]
        for one in point.levels
        if one.reached
    }
    bandwidths = {level: bandwidths[level] for level in LEVELS if level in bandwidths}
    said = "; ".join(
        f"{s.label} {s.level} {significant(float(s.x))} FLOP/B {si(s.y, 'FLOP/s')}"
        for s in spots[:LABELLED]
    )
    name = f"{key}-roofline" + (f"-{path.replace(' ', '-')}" if number else "")
    svg = drawn_roofline(
        name, f"Roofline of {path}. {said}", spots, path, first.peak or 1, bandwidths
    )
    note = f"{peaks.source}; {'; '.join(sorted({p.traffic.basis or '' for p in points}))}"
    if len(bandwidths) > 1:
        note += (
            "; "
            + ", ".join(f"{MARKERS[level][2]}: {level}" for level in bandwidths)
            + "; a line joins the levels of one row"
        )
    note += (
        "; open markers: approximate, or time under ncu" if not all(s.sure for s in spots) else ""
    )
    same = [p for p in roofs.at(kind) if p.traffic.batch == batch]
    refused = sum(1 for p in same if p.path == path for one in p.levels if one.refused)
    note += f"; {refused} refused and not drawn" if refused else ""
    unknown = sum(1 for p in same if p.path and p.intensity and p.peak is None) if not number else 0
    note += f"; {unknown} with an unknown peak are not drawn" if unknown else ""
    note += f"; the first {DRAWN} of {len(points)} by time" if len(points) > DRAWN else ""
    at = f" at batch {batch}" if batch else ""
    ridges = ", ".join(
        f"{significant((first.peak or 0) / width)} ({level})" for level, width in bandwidths.items()
    )
    what = "Layers" if kind == "layer" else "Kernels"
    return Chart(f"{what} and the {path} ceilings{at}; ridge at {ridges}, FLOP per byte", svg, note)


def _spot(
    key: str,
    point: RooflinePoint,
    one: LevelPoint,
    colours: Mapping[str, int],
    names: Mapping[str, str],
    *,
    named: bool,
) -> Spot:
    traffic, layer = point.traffic, point.traffic.level == "layer"
    label = traffic.name if layer else names.get(traffic.name, traffic.name)
    place = _place(traffic)
    batch = f", batch {traffic.batch}" if traffic.batch is not None else ""
    said = (
        f"{label}{batch}, {one.level}: {significant(float(one.intensity or 0))} FLOP/B, "
        f"{si(point.achieved or 0, 'FLOP/s')}"
    )
    said += (
        f", {percent(one.reached or 0)} of the {point.path} ceiling at this intensity, bound by "
        f"{one.bound}"
    )
    if point.bound and point.bound != one.bound:
        said += f" (overall: {point.bound})"
    if layer and traffic.kernels:
        more = f" and {len(traffic.kernels) - 1} more" if len(traffic.kernels) > 1 else ""
        said += f"; kernel {names.get(traffic.kernels[0], traffic.kernels[0])[:90]}{more}"
    sure = point.source == "counted" and traffic.trusted and one.moved.state == "counted"
    href = f"#{key}-{'ledger' if layer else 'kernels'}"
    hit = Hit(said, one.intensity or 1, point.achieved or 1, href=href)
    if layer:
        direction = traffic.direction or ""
        trail = row_key(place, direction, traffic.batch)
        hit = replace(hit, trail=trail, layer=place, direction=direction)
    return Spot(label, one.level, hit, colours.get(place, 7), named, sure)
