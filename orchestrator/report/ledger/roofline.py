"""The roofline in sentences, cells and a chart; page, terminal and exports share the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfctl.orchestrator.analyse.roofline import FAR, LAUNCH_NS, Roofline, RooflinePoint
from perfctl.orchestrator.report.cells import Cell, amount, name_cell, nothing, share_cell, text_cell, time_cell
from perfctl.orchestrator.report.charts import charts
from perfctl.orchestrator.report.charts.charts import Chart
from perfctl.orchestrator.report.numbers import full, percent, ratio, rounded, short, si, significant, time
from perfctl.orchestrator.report.tables import Column, Table, table

KERNELS_SHOWN = 20
LABELLED = 6
"""Points with their name beside them."""


def spoken(point: RooflinePoint, roofs: Roofline) -> str | None:
    """The bound of this work with its number; None when nothing is known."""
    traffic, peaks = point.traffic, roofs.peaks
    if point.refused:
        return f"refused: {point.refused}"
    if point.bound == "launch" and traffic.level == "run":
        return f"launch-bound: kernels run in {percent(min(traffic.busy or 0, 1))} of the step; the rest waits for the host"
    if point.bound == "launch" and traffic.time_ns and traffic.launches:
        each = time(traffic.time_ns / traffic.launches)
        return f"launch-bound: {each} a launch on average, and starting one takes about {short(time(LAUNCH_NS))}"
    if point.bound and point.intensity is not None and point.ridge is not None:
        side = "above" if point.bound == "compute" else "below"
        of = f"the {point.path} peak" if point.bound == "compute" else si(peaks.bandwidth or 0, "B/s")
        at, ridge = significant(float(point.intensity)), significant(float(point.ridge))
        said = f"{point.bound}-bound: {at} FLOP per byte, {side} the ridge at {ridge}"
        if point.reached is None:
            return said
        far = "; neither roof is near" if point.reached < FAR else ""
        return f"{said}; it reaches {percent(point.reached)} of {of}{far}"
    if point.bound == "memory" and point.bytes_per_second and peaks.bandwidth:
        return f"memory-bound: no FLOPs; it moves {percent(point.bytes_per_second / peaks.bandwidth)} of {si(peaks.bandwidth, 'B/s')}"
    if point.reached is not None:
        whose = "paper FLOPs are" if point.source == "paper" else "it reaches"
        return f"{whose} {percent(point.reached)} of the {point.path} peak; DRAM bytes were not counted"
    return None


def bound_cell(point: RooflinePoint | None, roofs: Roofline) -> Cell:
    """ "memory 71 %", with the sentence as its title."""
    if point is None:
        return nothing("no time and no count")
    said = spoken(point, roofs)
    if point.refused:
        return Cell("refused", point.refused, "refused")
    if said is None:
        return nothing(why_not(point, roofs))
    if point.bound is None:
        return Cell(f"{_whole(point.reached or 0)} of peak", said, "est", value="not known")
    share = f" {_whole(point.reached)}" if point.reached is not None and point.bound != "launch" else ""
    return Cell(point.bound + share, said, "" if point.traffic.trusted else "est", value=point.bound)


def _whole(share: float) -> str:
    return "< 1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"


def why_not(point: RooflinePoint, roofs: Roofline) -> str:
    """Why the bound of this work is not known."""
    traffic = point.traffic
    if traffic.time_ns is None:
        return "not timed"
    if roofs.peaks.reason:
        return roofs.peaks.reason
    if traffic.counted.value is None and not traffic.paper:
        return traffic.counted.reason or "FLOPs were not counted"
    if traffic.dram.value is None:
        return traffic.dram.reason or "DRAM bytes were not counted"
    if point.path and point.peak is None:
        return f"the {point.path} peak of this device is not known"
    return "no FLOPs and no bytes"


def roofs_note(roofs: Roofline) -> str:
    """The roofs and their source."""
    peaks = roofs.peaks
    if not peaks.known:
        return f"No roofs: {peaks.reason}."
    flops = ", ".join(f"{path} {si(value, 'FLOP/s')}" for path, value in peaks.flops.items())
    memory = f", memory {si(peaks.bandwidth, 'B/s')}" if peaks.bandwidth else ", memory bandwidth not known"
    return f"Roofs of the {peaks.device}, {peaks.source}: {flops}{memory}."


def roofline_tables(roofs: Roofline) -> tuple[Table, ...]:
    """Whole steps, layers, and the kernels that take most time at the largest batch size."""
    captions = (
        ("run", "Whole steps: utilisation"),
        ("layer", "Layers under the roofs"),
        ("kernel", "Kernels under the roofs"),
    )
    made = (_table(level, caption, roofs) for level, caption in captions)
    return tuple(one for one in made if one is not None)


def _at_largest(points: Sequence[RooflinePoint]) -> list[RooflinePoint]:
    """Those at the largest batch size, by time."""
    largest = max((point.traffic.batch or 0 for point in points), default=0)
    chosen = [point for point in points if (point.traffic.batch or 0) == largest]
    return sorted(chosen, key=lambda point: -(point.traffic.time_ns or 0))


def _table(level: str, caption: str, roofs: Roofline) -> Table | None:
    points = [p for p in roofs.at(level) if p.achieved or p.bytes_per_second or p.refused or p.intensity]
    if level == "kernel" and points:
        every = _at_largest(points)
        points = every[:KERNELS_SHOWN]
        caption += f", batch {points[0].traffic.batch}" if points[0].traffic.batch is not None else ""
        caption += f", first {len(points)} of {len(every)} by time" if len(every) > len(points) else ""
    basis = "; ".join(sorted({p.traffic.basis for p in points if p.traffic.basis}))
    named, batch = Column("layer, direction" if level == "layer" else "kernel", style="code"), Column("batch")
    columns = [
        *{"run": [batch], "layer": [named, batch], "kernel": [named]}[level],
        Column("intensity", "FLOP/B", note="counted FLOPs per byte read from or written to DRAM"),
        Column("achieved", "FLOP/s", note="counted FLOPs / time; paper FLOPs in italics where nothing was counted"),
        Column("roof", style="text", note="the path with the most FLOPs"),
        Column("of attainable", note="achieved / min(peak, intensity x bandwidth)"),
        Column("MFU", note="model FLOPs utilisation: paper FLOPs / time / peak"),
        Column("HFU", note="hardware FLOPs utilisation: counted FLOPs / time / peak"),
        Column("time", base="ns", note=basis), Column("bound", style="text"),
    ]  # fmt: skip
    return table(caption, columns, [_row(point, roofs, level) for point in points])


def _row(point: RooflinePoint, roofs: Roofline, level: str) -> list[Cell]:
    traffic, lacking = point.traffic, why_not(point, roofs)
    intensity = nothing(traffic.dram.reason or lacking)
    if point.intensity is not None:
        title = f"{full(traffic.counted.value or 0, 'FLOP')} / {full(traffic.dram.value or 0, 'B')}"
        intensity = Cell(significant(float(point.intensity)), title, value=rounded(point.intensity))
    named = name_cell(traffic.name, _short(traffic.name) if level == "kernel" else None)
    batch = text_cell(traffic.batch) if traffic.batch is not None else nothing("not said")
    reached, model, hardware = (None if one is None else round(one, 6) for one in (point.reached, point.mfu, point.hfu))
    mfu = share_cell(model, point.refused or (lacking if traffic.paper else traffic.paper_why or "nothing on paper"))
    bound = spoken(point, roofs)
    return [
        *{"run": [batch], "layer": [named, batch], "kernel": [named]}[level], intensity,
        _achieved_cell(point, lacking), text_cell(point.path) if point.path else nothing(lacking),
        share_cell(reached, point.refused or lacking),
        Cell("refused", point.mfu_refused, "refused") if point.mfu_refused else mfu,
        share_cell(hardware, point.refused or (traffic.counted.reason or lacking)),
        time_cell(traffic.time_ns, "not timed", traffic.basis),
        nothing(lacking) if bound is None else Cell(bound, style="bad" if point.refused else "", value=bound),
    ]  # fmt: skip


def _achieved_cell(point: RooflinePoint, lacking: str) -> Cell:
    if point.over == "peak":
        return Cell(si(point.achieved or 0, "FLOP/s"), point.refused, "refused")
    cell = amount(point.achieved, "FLOP/s", lacking)
    notes = [f"from {point.source} FLOPs"] if point.source != "counted" else []
    notes += [] if point.traffic.trusted else [point.traffic.basis or ""]
    noted = notes and cell.style != "no"
    return replace(cell, title="; ".join([cell.title or "", *notes]), style="est") if noted else cell


def _short(name: str) -> str:
    """A kernel's name up to its template arguments."""
    text = name.removeprefix("void ").split("<")[0].split("(")[0]
    return text or name


def roofline_chart(key: str, roofs: Roofline, colours: Mapping[str, int]) -> Chart | None:
    """Points of layers (of kernels without layers) at the largest batch size; refused ones are not drawn."""
    peaks = roofs.peaks
    level = "layer" if roofs.at("layer") else "kernel"
    drawn = [p for p in roofs.at(level) if p.intensity and p.achieved and not p.refused]
    if not drawn or not peaks.known or not peaks.bandwidth:
        return None
    drawn = _at_largest(drawn)
    largest = drawn[0].traffic.batch or 0
    used = [path for path in peaks.flops if path in {p.path for p in drawn}] or ["fp32"]
    spots = [
        charts.Spot(p.traffic.name if level == "layer" else _short(p.traffic.name), p.intensity or 1, p.achieved or 1,
                    colours.get(p.traffic.layer or "", 7), number < LABELLED, p.source == "counted" and p.traffic.trusted)
        for number, p in enumerate(drawn[:40])
    ]  # fmt: skip
    said = "; ".join(f"{s.label} {significant(float(s.x))} FLOP/B {si(s.y, 'FLOP/s')}" for s in spots[:LABELLED])
    used_roofs = {path: peaks.flops[path] for path in used}
    svg = charts.roofline(f"{key}-roofline", f"Roofline. {said}", spots, used_roofs, peaks.bandwidth)
    refused = sum(1 for p in roofs.at(level) if p.refused and (p.traffic.batch or 0) == largest)
    note = f"{peaks.source}; {'; '.join(sorted({p.traffic.basis or '' for p in drawn}))}"
    note += "; open circles: estimated, or time under ncu" if not all(s.sure for s in spots) else ""
    note += f"; {refused} refused and not drawn" if refused else ""
    at = f" at batch {largest}" if largest else ""
    ridge = f"the {used[0]} ridge is at {ratio(peaks.ridge(used[0]) or 0)} FLOP per byte"
    return Chart(f"{'Layers' if level == 'layer' else 'Kernels'} under the roofs{at}; {ridge}", svg, note)
