"""What ncu replays, about how long that takes, and which launches repeat others: of launches with
the same kernels, grids and layer shapes ncu needs to replay one.

Kernel, grid and block are not enough. Two products with the same output but another depth use the
same kernel and grid, and a bias that is added in the product costs a multiply-add per output
(docs/hardware.md has the measurement). So layers repeat one another only when their operations have
the same shapes and attributes, too, and kernels whose work depends on the data never count
as repeated.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from perfctl.orchestrator.counts.kernels.pairing import bare_name, inside
from perfctl.records.paper import OpShape
from perfctl.records.report import Counter, Gap, Kernel, Report

SECONDS_A_REPLAY = (0.002, 0.02)
"""Assumed: what ncu adds to each replay of a launch (memory put back, caches flushed,
counters read)."""
SLOWER = (1.0, 3.0)
"""Assumed: how much longer a kernel itself takes with cold caches and at base clocks."""
TEN = 10
"""Steps that other profilers measure by default."""
COUNTERS_A_PASS = 5 / 3
"""5 counters (three of executed instructions, two of DRAM traffic) took 3 passes in a public log
of ncu."""

EXTRAPOLATED = "extrapolated"
"""``Counter.section`` of a value that was counted for another launch."""
_BY_DATA = re.compile(
    r"index|scatter|gather|embedding|sort|top_?k|radix|nonzero|unique|nms|masked|multinomial",
    re.IGNORECASE,
)
"""Kernels whose work depends on values, not on shapes alone."""


_ONE_LAUNCH: Mapping[str, Any] = dict.fromkeys(
    (
        "range_number",
        "start_ns",
        "duration_ns",
        "source",
        "correlation",
        "graph_id",
        "graph_node_id",
    )
)
"""Fields of a launch that another with the same counts does not have."""


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
                [*site, [list(launch) for launch in site_launches]]
                for site, site_launches in self.launches.items()
            ],
            "twins": [[*site, *twin] for site, twin in self.twins.items()],
        }


def read_first_pass(content: Mapping[str, Any]) -> FirstPass:
    """The first pass in its JSON form. Raises KeyError, TypeError or ValueError when it is
    not one."""
    launches = {
        Site(layer, direction): tuple(
            Launch(name, tuple(grid), tuple(block)) for name, grid, block in rows
        )
        for layer, direction, rows in content["launches"]
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
    by_site: dict[Site, list[Launch]] = defaultdict(list)
    total = 0
    for kernel in kernels:
        total += 1
        if kernel.layer is not None and kernel.direction is not None:
            by_site[Site(kernel.layer, kernel.direction)].append(_launch(kernel))
    first: dict[object, Site] = {}
    twins: dict[Site, Site] = {}
    for site, launches in by_site.items():
        if not shapes[site.layer] or any(_BY_DATA.search(launch.name) for launch in launches):
            continue
        alike = (site.direction, tuple(launches), tuple(sorted(shapes[site.layer])))
        if first.setdefault(alike, site) != site:
            twins[site] = first[alike]
    return FirstPass({site: tuple(launches) for site, launches in by_site.items()}, twins, total)


def _launch(kernel: Kernel) -> Launch:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return Launch(bare_name(kernel.name), grid, (kernel.block_x, kernel.block_y, kernel.block_z))


def with_repeats(report: Report, plain: FirstPass) -> Report:
    """ncu's report of the launches that were replayed, with those that repeat them added
    and marked.

    A layer is only added where the one that it repeats launched under ncu just what it did in the
    plain step, a whole number of times; else a gap says why its counts are not known. Times are not
    carried over.
    """
    kernels, counters, gaps = list(report.kernels), list(report.counters), list(report.gaps)
    by_site: dict[Site, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.layer is not None and kernel.direction is not None:
            by_site[Site(kernel.layer, kernel.direction)].append(kernel)
    values: dict[int, list[Counter]] = defaultdict(list)
    for counter in counters:
        values[counter.launch].append(counter)
    replayed, number = len(kernels), count(max((one.launch for one in kernels), default=-1) + 1)
    for site, twin in plain.twins.items():
        measured = by_site.get(twin, [])
        if site in by_site:  # ncu replayed it all the same
            continue
        if reason := _differs([_launch(kernel) for kernel in measured], plain.launches[twin]):
            reason = f"it repeats {twin}, and {reason}"
            gaps.append(Gap("counter", "not_collected", reason, str(site)))
            continue
        for kernel in measured:
            own = kernel._replace(launch=next(number), **site._asdict(), **_ONE_LAUNCH)
            kernels.append(own)
            counters += [
                counter._replace(launch=own.launch, section=EXTRAPOLATED)
                for counter in values[kernel.launch]
                if "time_duration" not in counter.name
            ]
    environment = dict(report.environment)
    if added := len(kernels) - replayed:
        environment["ncu:extrapolated"] = (
            f"{added} of {len(kernels)} launches were not replayed: their counts are those of "
            "another with the same kernel, grid and layer shapes (--launches distinct)"
        )
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


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """Of a run under ncu at one batch size."""

    launches: int
    all_launches: int
    steps: int
    passes: int
    seconds: tuple[float, float]
    """Least and most, added to a run without ncu."""
    repeated: int = 0
    """Launches of a step that repeat another with the same kernel, grid and layer shapes."""

    @property
    def replays(self) -> int:
        return self.launches * self.steps * self.passes


def passes(counters: int) -> int:
    """How often ncu will run each launch for that many counters: an assumption, ncu itself finds
    out on the GPU."""
    return max(1, ceil(counters / COUNTERS_A_PASS))


def replay_cost(
    step: Iterable[Kernel], *, layers: Sequence[str], steps: int, counters: int, repeated: int = 0
) -> ReplayCost:
    """``step``: the launches of one plain step, timed; ``layers``: those asked for, empty for all;
    ``repeated``: how many launches repeat another."""
    kernels = list(step)
    asked = [kernel for kernel in kernels if inside(kernel.layer, layers)]
    times = passes(counters)
    kernel_s = sum(kernel.duration_ns or 0 for kernel in asked) / 1e9
    span = zip(SLOWER, SECONDS_A_REPLAY, strict=True)
    least, most = (steps * times * (kernel_s * slower + len(asked) * each) for slower, each in span)
    return ReplayCost(len(asked), len(kernels), steps, times, (least, most), repeated)


def cost_lines(cost: ReplayCost, batch_size: int, layers: Sequence[str]) -> list[str]:
    """The estimate and its assumptions, in words."""
    among = f" in {', '.join(layers)} (of {cost.all_launches:,})" if layers else ""
    least, most = map(_duration, cost.seconds)
    steps = f"{cost.steps} {'step' if cost.steps == 1 else 'steps'}"
    saved = [
        (
            f"Counts repeat from step to step: {TEN} steps would take "
            f"{cost.replays // cost.steps * TEN:,} replays"
        )
    ] * (cost.steps < TEN)
    if cost.repeated:
        left = (cost.launches - cost.repeated) * cost.steps * cost.passes
        saved.append(
            f"{cost.repeated:,} launches repeat another with the same kernel, grid and layer "
            f"shapes: --launches distinct leaves {left:,} replays, {1 - left / cost.replays:.0%} "
            "fewer"
        )
    return [
        (
            f"batch {batch_size}: {cost.launches:,} launches a step{among} x {steps} x "
            f"{cost.passes} passes = {cost.replays:,} replays, about {least} to {most} longer than "
            "without ncu"
        ),
        (
            "The launches were counted in one plain step under torch.profiler. Assumed: "
            f"{cost.passes} passes (in a public log 5 counters took 3; ncu prints the true number) "
            "and 2 to 20 ms of ncu's own for each replay"
        ),
        *saved,
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
