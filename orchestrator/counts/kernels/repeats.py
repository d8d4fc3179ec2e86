"""Layers that repeat one another: of launches with the same kernels, grids and layer shapes ncu
needs to replay one.

Kernel, grid and block are not enough. Two products with the same output but another depth use the
same kernel and grid, and a bias that is added in the product costs a multiply-add per output
(docs/hardware.md has the measurement). So layers repeat one another only when their operations have
the same shapes and attributes, too, and kernels whose work depends on the data never count
as repeated.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, NamedTuple

from perfctl.orchestrator.counts.kernels.pairing import bare_name
from perfctl.records.paper import OpShape
from perfctl.records.report import Counter, Gap, Kernel, Report

EXTRAPOLATED = "extrapolated"
"""``Counter.section`` of a value that was counted for another launch."""
_BY_DATA = re.compile(
    r"index|scatter|gather|embedding|sort|top_?k|radix|nonzero|unique|nms|masked|multinomial",
    re.IGNORECASE,
)
"""Kernels whose work depends on values, not on shapes alone."""


class Site(NamedTuple):
    """Where launches come from."""

    layer: str
    direction: str

    def __str__(self) -> str:
        return f"{self.layer}:{self.direction}"


class Launch(NamedTuple):
    """What tells launches of one kernel apart before anything is counted."""

    name: str
    grid: tuple[int | None, int | None, int | None]
    block: tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What one plain step launched, and which layers repeat another."""

    launches: Mapping[Site, tuple[Launch, ...]]
    """In order of launch."""
    twins: Mapping[Site, Site]
    """A site that need not be replayed -> the one that has the same launches and shapes, and is."""
    all_launches: int
    """Number of launches, those outside of layers included."""

    @property
    def saved(self) -> int:
        """Launches of a step that need no replay."""
        return sum(len(self.launches[site]) for site in self.twins)

    def as_json(self) -> dict[str, Any]:
        return {
            "perfctl_plain_step": 1,
            "all_launches": self.all_launches,
            "launches": [
                [*site, [list(launch) for launch in found]] for site, found in self.launches.items()
            ],
            "twins": [[*site, *twin] for site, twin in self.twins.items()],
        }


def read_first_pass(content: Mapping[str, Any]) -> FirstPass:
    """The first pass in its JSON form. Raises KeyError, TypeError or ValueError when it is
    not one."""
    launches = {
        Site(layer, direction): tuple(
            Launch(name, tuple(grid), tuple(block)) for name, grid, block in found
        )
        for layer, direction, found in content["launches"]
    }
    twins = {Site(*row[:2]): Site(*row[2:]) for row in content["twins"]}
    if not set(twins) | set(twins.values()) <= set(launches):
        raise ValueError("a layer without launches")
    return FirstPass(launches, twins, int(content["all_launches"]))


def first_pass(kernels: Iterable[Kernel], ops: Iterable[OpShape]) -> FirstPass:
    """``kernels``: the launches of one plain step, with their layers; ``ops``: the shapes of
    its operations."""
    shapes: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        own = replace(op, layer="", position=0, attributes={})
        shapes[op.layer].append(f"{own} {sorted(op.attributes.items())}")
    found: dict[Site, list[Launch]] = defaultdict(list)
    total = 0
    for kernel in kernels:
        total += 1
        if kernel.layer is not None and kernel.direction is not None:
            found[Site(kernel.layer, kernel.direction)].append(_launch(kernel))
    first: dict[object, Site] = {}
    twins: dict[Site, Site] = {}
    for site, launches in found.items():
        if not shapes[site.layer] or any(_BY_DATA.search(launch.name) for launch in launches):
            continue
        alike = (site.direction, tuple(launches), tuple(sorted(shapes[site.layer])))
        if first.setdefault(alike, site) != site:
            twins[site] = first[alike]
    return FirstPass({site: tuple(launches) for site, launches in found.items()}, twins, total)


def _launch(kernel: Kernel) -> Launch:
    grid, block = (
        (kernel.grid_x, kernel.grid_y, kernel.grid_z),
        (kernel.block_x, kernel.block_y, kernel.block_z),
    )
    return Launch(bare_name(kernel.name), grid, block)


def with_repeats(report: Report, plain: FirstPass) -> Report:
    """ncu's report of the launches that were replayed, with those that repeat them added
    and marked.

    A layer is only added where the one that it repeats launched under ncu just what it did in the
    plain step, a whole number of times; else a gap says why its counts are not known. Times are not
    carried over.
    """
    kernels, counters = list(report.kernels), list(report.counters)
    by_site: dict[Site, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.layer is not None and kernel.direction is not None:
            by_site[Site(kernel.layer, kernel.direction)].append(kernel)
    values: dict[int, list[Counter]] = defaultdict(list)
    for counter in counters:
        values[counter.launch].append(counter)
    number = count(max((kernel.launch for kernel in kernels), default=-1) + 1)
    gaps = list(report.gaps)
    added = 0
    for site, twin in plain.twins.items():
        if site in by_site:  # ncu replayed it all the same
            continue
        measured = by_site.get(twin, [])
        if reason := _differs([_launch(kernel) for kernel in measured], plain.launches[twin]):
            gaps.append(
                Gap("counter", "not_collected", f"it repeats {twin}, and {reason}", str(site))
            )
            continue
        for kernel in measured:
            own = kernel._replace(
                launch=next(number),
                layer=site.layer,
                direction=site.direction,
                range_number=None,
                start_ns=None,
                duration_ns=None,
                source=None,
                correlation=None,
                graph_id=None,
                graph_node_id=None,
            )
            kernels.append(own)
            counters += [
                one._replace(launch=own.launch, section=EXTRAPOLATED)
                for one in values[kernel.launch]
                if "time_duration" not in one.name
            ]
            added += 1
    if not added:
        return replace(report, kernels=tuple(kernels), counters=tuple(counters), gaps=tuple(gaps))
    said = (
        f"{added} of {len(kernels)} launches were not replayed: their counts are those of another "
        "with the same kernel, "
    )
    said += "grid and layer shapes (--launches distinct)"
    environment = {**report.environment, "ncu:extrapolated": said}
    return replace(
        report,
        kernels=tuple(kernels),
        counters=tuple(counters),
        gaps=tuple(gaps),
        environment=environment,
    )


def _differs(seen: list[Launch], plain: tuple[Launch, ...]) -> str | None:
    """Why ncu's launches are not those of the plain step, any number of times; None when
    they are."""
    if not seen:
        return "ncu counted no launch of that"
    times, rest = divmod(len(seen), len(plain))
    if rest or tuple(seen) != plain * times:
        return f"its {len(seen)} launches under ncu are not the {len(plain)} of the plain step"
    return None


def extrapolated(counters: Iterable[Counter]) -> frozenset[int]:
    """Launches whose counts are those of another."""
    return frozenset(counter.launch for counter in counters if counter.section == EXTRAPOLATED)
