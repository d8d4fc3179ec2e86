"""Where the time of a step goes, as an icicle: step, layers by their dotted names,
direction, kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfctl.orchestrator.counts.kernels.names import recognise
from perfctl.orchestrator.ledger.analysis import Analysis
from perfctl.orchestrator.ledger.ledger import OUTSIDE
from perfctl.orchestrator.ledger.prepared import PreparedBatch, PreparedRun
from perfctl.orchestrator.ledger.timing import Key
from perfctl.orchestrator.report.ledger.keys import row_key
from perfctl.orchestrator.report.page.columns import run_label
from perfctl.records.report import Kernel

MOST = 8
"""Kernels below one layer and direction; the others are one part."""
FAMILIES = 30
"""Kernels below one family, where no layer is known."""
UNKNOWN = "no layer"
OTHER, NO_LAYER = 7, 8
"""Numbers of colours, as the timeline has them."""


@dataclass(slots=True)
class Node:
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
    children: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        return self.children.setdefault(name, Node(name))

    @property
    def total(self) -> float:
        return self.own + sum(child.total for child in self.children.values())


def icicles(found: Analysis, colours: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
    """One view for each batch size whose layers were timed; for reports without layers, one a run
    by kernel family.

    A view: ``label``, ``basis``, and lists with one entry a node, parents before children:
    ``name``, ``parent`` (its index, -1 for the root), ``value`` (nanoseconds a step), ``colour``,
    ``trail`` (key of the ledger row, "" where there is none), ``layer`` and ``direction`` ("" where
    they are its parent's, or it has none).
    """
    batches = [batch for batch in found.study.prepared_batches if batch.times and batch.times.rows]
    if batches:
        return tuple(_packed(*_of_layers(batch, colours, found.names)) for batch in batches)
    timed = [
        run
        for run in found.study.prepared_runs
        if run.run.profiler != "ncu" and _took(run.run.report.kernels)
    ]
    return tuple(_packed(*_of_families(run, found.names)) for run in timed)


def _of_layers(
    batch: PreparedBatch, colours: Mapping[str, int], names: Mapping[str, str]
) -> tuple[Node, str, str]:
    times, timing = batch.times, batch.timing
    assert times is not None and timing is not None
    root = Node(times.whole.replace("of all steps", "of a mean step"))
    kernels = (
        _by_key(timing, names)
        if timing.run.report.kernels and times.basis.startswith("kernels")
        else {}
    )
    for (layer, direction), took in times.rows.items():
        place = layer or ("optimizer" if direction == "optimizer" else OUTSIDE)
        node = root
        for part in place.split(".") if layer and " " not in layer else [place]:
            above = node.layer
            node = node.child(part)
            node.layer = f"{above}.{part}" if above else part
        if place != direction:
            node = node.child(direction)
            node.direction = direction
        node.trail = row_key(place, direction, batch.batch)
        _hang(node, took.mean, kernels.get((layer, direction), {}))
    if times.unattributed.mean > 0:
        root.child(UNKNOWN).own += times.unattributed.mean
    _colour(root, colours)
    label = "as recorded" if batch.batch is None else f"batch {batch.batch}"
    return (
        root,
        label,
        f"{times.basis}; mean of {times.total.count} step{'' if times.total.count == 1 else 's'}",
    )


def _of_families(prepared: PreparedRun, names: Mapping[str, str]) -> tuple[Node, str, str]:
    root, each = Node("kernel time"), _took(prepared.run.report.kernels)
    families: dict[str, dict[str, float]] = defaultdict(dict)
    for name, took in each.items():
        families[recognise(name).family or "other kernels"][names.get(name, name)] = took
    for family, kernels in families.items():
        _hang(root.child(family), sum(kernels.values()), kernels, FAMILIES)
    _colour(root, {})
    return root, run_label(prepared.run), "sums over all launches of the report"


def _colour(root: Node, colours: Mapping[str, int]) -> None:
    """The parts of a step in the colours of the other charts; where they have none, the longest
    seven in one each."""
    ordered = sorted(root.children.values(), key=lambda node: -node.total)
    known = any(node.name in colours for node in ordered)
    for number, node in enumerate(ordered):
        colour = colours.get(node.name, OTHER) if known else min(number, OTHER)
        _paint(node, NO_LAYER if node.name == UNKNOWN else colour)


def _paint(node: Node, colour: int) -> None:
    node.colour = colour
    for child in node.children.values():
        _paint(child, colour)


def _hang(node: Node, total: float, kernels: Mapping[str, float], most: int = MOST) -> None:
    """Kernels below a node, the longest first; time that is no kernel's stays the node's own."""
    ordered = sorted(kernels.items(), key=lambda pair: -pair[1])
    for name, took in ordered[:most]:
        node.child(name).own += took
    if ordered[most:]:
        node.child(f"{len(ordered) - most} other kernels").own += sum(
            took for _, took in ordered[most:]
        )
    node.own += max(total - sum(took for _, took in ordered), 0.0)


def _by_key(run: PreparedRun, names: Mapping[str, str]) -> dict[Key, dict[str, float]]:
    """(layer, direction) -> kernel -> nanoseconds a step."""
    found: dict[Key, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, key in run.launches:
        if key is not None and kernel.duration_ns is not None:
            found[key][names.get(kernel.name, kernel.name)] += kernel.duration_ns / (run.steps or 1)
    return found


def _took(kernels: Iterable[Kernel]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.duration_ns is not None:
            found[kernel.name] += kernel.duration_ns
    return found


def _packed(root: Node, label: str, basis: str) -> dict[str, Any]:
    rows: list[tuple[Any, ...]] = []

    def add(node: Node, parent: int) -> None:
        index = len(rows)
        place = (node.colour, node.trail, node.layer, node.direction)
        rows.append((node.name[:300], parent, round(node.total), *place))
        for child in sorted(node.children.values(), key=lambda child: -child.total):
            add(child, index)

    add(root, -1)
    names = ("name", "parent", "value", "colour", "trail", "layer", "direction")
    columns = map(list, zip(*rows, strict=True))
    return {"label": label, "basis": basis} | dict(zip(names, columns, strict=True))
