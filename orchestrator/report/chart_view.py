"""Which charts a study gets, and from which numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfctl.orchestrator.analyse.ledger import Ledger, LedgerRow
from perfctl.orchestrator.analyse.sweep import BatchPoint
from perfctl.orchestrator.report import charts
from perfctl.orchestrator.report.numbers import ratio, short, size, time

COLOURED = 7
"""Layers with a colour of their own; the rest is "other"."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing with its title (what it shows) and a note on where the numbers come from."""

    title: str
    svg: str
    note: str
    legend: tuple[tuple[str, int], ...] = ()
    """(name, colour number) for parts too narrow to carry their name."""


def chart_views(key: str, ledger: Ledger, points: Sequence[BatchPoint]) -> tuple[Chart, ...]:
    """Charts of one study, the ones that answer most first. ``key`` keeps the drawings' inner names apart."""
    colours = layer_colours(ledger)
    times = _times(key, points)
    first = [*_ratio(key, ledger, colours), *times[:1], *_shares(key, ledger, colours)]
    return (*first, *times[1:], *_memory(key, points))


def layer_colours(ledger: Ledger) -> dict[str, int]:
    """layer -> colour, the same on every chart; the layers that take most time have their own."""
    weight: dict[str, float] = defaultdict(float)
    for row in ledger.rows:
        weight[row.place] += (row.share or 0) + 1e-18 * (row.paper.value or 0)
    top = set(sorted(weight, key=lambda layer: -weight[layer])[:COLOURED])
    order = [layer for layer in dict.fromkeys(row.place for row in ledger.rows) if layer in top]
    return {layer: number for number, layer in enumerate(order)}


def _times(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    timed = [point for point in points if point.step is not None]
    if len(timed) < 2:
        return []
    batches = tuple(point.batch for point in timed)
    spreads = [point.step for point in timed if point.step is not None]
    note = f"{'; '.join(sorted({point.basis or '' for point in timed}))}; median and range over {_steps(timed)} steps"
    whole = charts.Series(
        "step", batches, tuple(s.median / 1e9 for s in spreads), tuple(s.low / 1e9 for s in spreads),
        tuple(s.high / 1e9 for s in spreads), 0,
    )  # fmt: skip
    each = charts.Series(
        "sample", batches, tuple(s.median / b / 1e9 for s, b in zip(spreads, batches, strict=True)),
        tuple(s.low / b / 1e9 for s, b in zip(spreads, batches, strict=True)),
        tuple(s.high / b / 1e9 for s, b in zip(spreads, batches, strict=True)), 0,
    )  # fmt: skip
    said = "; ".join(f"batch {point.batch}: {time(point.per_sample or 0)}" for point in timed)
    return [
        Chart(
            "Time per sample, by batch size",
            _line(f"{key}-sample", f"Time per sample. {said}", [each], "time per sample"),
            note,
        ),
        Chart(
            "Time per step, by batch size",
            _line(f"{key}-step", "Time per step against batch size", [whole], "time per step"),
            note,
        ),
    ]


def _line(name: str, description: str, lines: Sequence[charts.Series], up: str) -> str:
    return charts.against_batch(name, description, lines, lambda seconds: short(time(seconds * 1e9)), up=up)


def _steps(points: Sequence[BatchPoint]) -> str:
    counts = sorted({point.step.count for point in points if point.step is not None})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _memory(key: str, points: Sequence[BatchPoint]) -> list[Chart]:
    lines: list[charts.Series] = []
    for quantity in dict.fromkeys(name for point in points for name in point.memory):
        at = [(point.batch, float(point.memory[quantity])) for point in points if quantity in point.memory]
        if len(at) >= 2:
            values = tuple(value for _, value in at)
            lines.append(charts.Series(quantity, tuple(batch for batch, _ in at), values, colour=len(lines)))
    if not lines:
        return []
    svg = charts.against_batch(
        f"{key}-memory", "Memory against batch size", lines[:6], lambda b: short(size(b)), up="memory"
    )
    what = lines[0].label.capitalize() if len(lines) == 1 else "Memory"
    return [Chart(f"{what}, by batch size", svg, "figures the workload recorded about itself")]


def _shares(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    """Share of time by layer (all directions together), one bar a batch size."""
    timed = [row for row in ledger.rows if row.share is not None]
    if not timed:
        return []
    parts: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in timed:
        layer = row.place
        parts[row.batch][layer if layer in colours else "other layers"] += row.share or 0
    for item in ledger.unattributed:
        parts[item.batch]["not attributed"] += item.share
    legend = dict(colours) | {"other layers": 7, "not attributed": 8}
    rows = [(str(batch), found) for batch, found in sorted(parts.items())]
    svg = charts.shares(f"{key}-shares", "Share of time by layer, one bar a batch size", rows, legend)
    seen = {part for found in parts.values() for part, share in found.items() if share > 0}
    basis = sorted({row.basis for row in timed if row.basis})
    title = f"Share of the {timed[0].whole} by layer, all directions"
    if len(rows) > 1:
        title += ", by batch size"
    note = f"{'; '.join(basis)}; all measured steps together"
    return [Chart(title, svg, note, tuple((part, colour) for part, colour in legend.items() if part in seen))]


def _ratio(key: str, ledger: Ledger, colours: Mapping[str, int]) -> list[Chart]:
    """Counted / paper: the rows furthest from 1 as dots, everything on a log2 axis with a line at 1."""
    groups: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger.rows:
        if row.ratio:
            groups[row.name].append(row)
    if not groups:
        return []
    off = {name: max(abs((row.ratio or 1) - 1) for row in rows) for name, rows in groups.items()}
    news = [name for name in groups if off[name] > 0.02] or list(groups)
    far = sorted(news, key=lambda name: -off[name])[:6]
    lines = [
        charts.Series(
            name, tuple(row.batch for row in groups[name]), tuple(row.ratio or 1 for row in groups[name]),
            colour=colours.get(groups[name][0].place, 7),
        )
        for name in groups if name in far
    ]  # fmt: skip
    said = "; ".join(f"{line.label} {line.values[-1]:.2f} at batch {line.batches[-1]}" for line in lines)
    svg = charts.against_batch(
        f"{key}-ratio", f"Counted over paper FLOPs. {said}", lines, ratio, log=True, up="counted / paper"
    )
    near = sum(difference <= 0.02 for name, difference in off.items() if name not in far)
    note = "counted by ncu"
    if near:
        note += f"; {near} more within 2 % of 1"
    if len(news) > len(far):
        note += f"; the {len(far)} furthest of {len(news)}"
    return [Chart("Counted / paper FLOPs, by batch size", svg, note)]
