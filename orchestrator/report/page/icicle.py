"""Where the time of a step goes, as an icicle: step, layers by their dotted names,
direction, kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import OUTSIDE
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import TimeSpread
from perfctl.orchestrator.report.charts.charts import Colours
from perfctl.orchestrator.report.ledger import build_row_trail_key
from perfctl.orchestrator.report.tables import JsonObject, ShortNames, run_label
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel
from perfctl.records.run import format_point

MOST = 8
"""Kernels below one layer and direction; the others are one part."""
FAMILIES = 30
"""Kernels below one family, where no layer is known."""
UNKNOWN = "no layer"
OTHER, NO_LAYER = 7, 8
"""Numbers of colours, as the timeline has them."""


@dataclass(slots=True)
class IcicleNode:
    """One part of the time; its children take at most as long."""

    name: str
    colour: int = OTHER
    own: float = 0.0
    """Nanoseconds a step that belong to no child."""
    trail: str = ""
    layer: str = ""
    """Dotted path of the layer or of the group of layers that it is; "" for what is of none, or of
    its parent's."""
    direction: str = ""
    children: dict[str, IcicleNode] = field(default_factory=dict)

    def child(self, name: str) -> IcicleNode:
        return self.children.setdefault(name, IcicleNode(name))

    @property
    def total(self) -> float:
        return self.own + sum(child.total for child in self.children.values())


def build_icicles(analysis: Analysis, colours: Colours) -> tuple[JsonObject, ...]:
    """Return one view for each batch size whose layers were timed; for reports without layers, one
    a run by kernel family.

    A view: ``label``, ``basis``, and lists with one entry a node, parents before children:
    ``name``, ``parent`` (its index, -1 for the root), ``value`` (nanoseconds a step), ``colour``,
    ``trail`` (key of the ledger row, "" where there is none), ``layer`` and ``direction`` ("" where
    they are its parent's, or it has none).
    """
    batches = [
        batch for batch in analysis.study.prepared_batches if batch.times and batch.times.rows
    ]
    if batches:
        return tuple(_build_layer_icicle(batch, colours, analysis.names) for batch in batches)
    timed = [
        run
        for run in analysis.study.prepared_runs
        if run.run.profiler != "ncu"
        and any(kernel.duration_ns is not None for kernel in run.run.report.kernels)
    ]
    return tuple(_build_family_icicle(run, analysis.names) for run in timed)


def _build_layer_icicle(batch: PreparedBatch, colours: Colours, names: ShortNames) -> JsonObject:
    times, timing = batch.times, batch.timing_run
    assert times is not None and timing is not None
    total = times.total
    # the step of median time; of an even number the two whose mean is the median
    ordered = sorted(range(total.count), key=total.values.__getitem__)
    middle = ordered[(total.count - 1) // 2 : total.count // 2 + 1]
    step = "the median step" if total.over == 1 else "a mean step"
    root = IcicleNode(times.whole.replace("of all steps", f"of {step}"))
    launches = timing.launches if times.basis.startswith("kernels") else ()
    steps = timing.steps or 1
    if timing.numbered:  # the values are in the order in which the steps begin
        numbers = dict.fromkeys(
            kernel.step for kernel, _ in launches if kernel.duration_ns is not None
        )
        chosen = [number for index, number in enumerate(numbers) if index in middle]
        launches = [launch for launch in launches if launch[0].step in chosen]
        steps = len(middle)
    by_key = group_by(launches, lambda launch: launch[1])
    patterns = {call.layer for call in batch.expected.calls}
    for (layer, direction), spent in times.rows.items():
        path = layer or ("optimizer" if direction == "optimizer" else OUTSIDE)
        node = root
        for part in path.split(".") if layer and " " not in layer else [path]:
            above = node.layer
            node = node.child(part)
            node.layer = f"{above}.{part}" if above else part
        if path != direction and path not in patterns:
            node = node.child(direction)
            node.direction = direction
        node.trail = build_row_trail_key(path, direction, batch.batch)
        kernels = (kernel for kernel, _ in by_key.get((layer, direction), ()))
        _add_kernels(node, _average_steps(spent, middle), _sum_kernel_times(kernels, names, steps))
    if (unknown := _average_steps(times.unattributed, middle)) > 0:
        root.child(UNKNOWN).own += unknown
    _colour_children(root, colours)
    label = format_point(batch.batch)
    among = {1: "1 step"}.get(total.count, f"the step of median time among {total.count}")
    among = among if total.over == 1 else f"mean of {total.over} steps"
    return _pack_nodes(root, label, f"{times.basis}; {among}")


def _average_steps(spread: TimeSpread, steps: Sequence[int]) -> float:
    return fmean(spread.values[step] for step in steps)


def _build_family_icicle(prepared: PreparedRun, names: ShortNames) -> JsonObject:
    root = IcicleNode("kernel time")
    families = group_by(
        prepared.run.report.kernels,
        lambda kernel: recognise_kernel(kernel.name).family or "other kernels",
    )
    for family, kernels in families.items():
        if times := _sum_kernel_times(kernels, names):
            _add_kernels(root.child(family), sum(times.values()), times, FAMILIES)
    _colour_children(root, {})
    return _pack_nodes(root, run_label(prepared.run), "sums over all launches of the report")


def _sum_kernel_times(
    kernels: Iterable[Kernel], names: ShortNames, steps: int = 1
) -> dict[str, float]:
    """Return kernel -> nanoseconds a step."""
    times: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.duration_ns is not None:
            times[names.get(kernel.name, kernel.name)] += kernel.duration_ns / steps
    return times


def _colour_children(root: IcicleNode, colours: Colours) -> None:
    """The parts of a step in the colours of the other charts; where they have none, the longest
    seven in one each."""
    ordered = sorted(root.children.values(), key=lambda node: -node.total)
    has_colours = any(node.name in colours for node in ordered)
    for number, node in enumerate(ordered):
        colour = colours.get(node.name, OTHER) if has_colours else min(number, OTHER)
        _colour_subtree(node, NO_LAYER if node.name == UNKNOWN else colour)


def _colour_subtree(node: IcicleNode, colour: int) -> None:
    node.colour = colour
    for child in node.children.values():
        _colour_subtree(child, colour)


def _add_kernels(
    node: IcicleNode, total: float, kernels: Mapping[str, float], most: int = MOST
) -> None:
    """Kernels below a node, the longest first; time that is no kernel's stays the node's own."""
    ordered = sorted(kernels.items(), key=lambda pair: -pair[1])
    for name, spent in ordered[:most]:
        node.child(name).own += spent
    if remaining := ordered[most:]:
        node.child(f"{len(remaining)} other kernels").own += sum(spent for _, spent in remaining)
    node.own += max(total - sum(kernels.values()), 0.0)


def _pack_nodes(root: IcicleNode, label: str, basis: str) -> JsonObject:
    rows: list[tuple[Any, ...]] = []

    def add_node(node: IcicleNode, parent: int) -> None:
        index = len(rows)
        attributes = (node.colour, node.trail, node.layer, node.direction)
        rows.append((node.name[:300], parent, round(node.total), *attributes))
        for child in sorted(node.children.values(), key=lambda child: -child.total):
            add_node(child, index)

    add_node(root, -1)
    names = ("name", "parent", "value", "colour", "trail", "layer", "direction")
    columns = map(list, zip(*rows, strict=True))
    return {"label": label, "basis": basis} | dict(zip(names, columns, strict=True))
