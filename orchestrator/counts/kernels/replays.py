"""What ncu replays, about how long that takes, and which launches repeat others: of launches with
the same kernels, grids and layer shapes ncu needs to replay one.

Kernel, grid and block are not enough. Two products with the same output but another depth use the
same kernel and grid, and a bias that is added in the product costs a multiply-add per output
(scripts/proof/accuracy/counts_by_configuration.py measures it). So layers repeat one another only
when their operations have the same shapes and attributes, too, and kernels whose work depends on
the data never count as repeated.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import ceil
from operator import attrgetter
from typing import Any, NamedTuple

from perfctl.orchestrator.counts.kernels.pairing import extract_bare_name, is_layer_selected
from perfctl.orchestrator.statistics import group_by
from perfctl.records.paper import OpShape
from perfctl.records.report import Counter, Gap, Kernel, Range, Report

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
LEFT_OUT = "ncu excluded it because it repeats {twin}, and {reason}"
WITHOUT_PLAN = (
    "a filter excluded it from ncu, and the file with the launch that it repeats is missing"
)
LEFT_OUT_PART = "launches that ncu excluded"
"""``Figure.missing`` of a sum without launches whose number is not known."""
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


class LaunchSite(NamedTuple):
    """Where launches come from."""

    layer: str
    direction: str

    def __str__(self) -> str:
        return f"{self.layer}:{self.direction}"


class LaunchSignature(NamedTuple):
    """What tells launches of one kernel apart before anything is counted."""

    name: str
    grid: tuple[int | None, int | None, int | None]
    block: tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What one plain step launched, and which layers repeat another."""

    launches: Mapping[LaunchSite, tuple[LaunchSignature, ...]]
    """In order of launch."""
    twins: Mapping[LaunchSite, LaunchSite]
    """A site that need not be replayed -> the one that has the same launches and shapes, and is."""
    all_launches: int
    """Number of launches, those outside of layers included."""

    @property
    def launches_without_replay(self) -> int:
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


def parse_first_pass(content: Mapping[str, Any]) -> FirstPass:
    """The first pass in its JSON form. Raises KeyError, TypeError or ValueError when it is
    not one."""
    launches = {
        LaunchSite(layer, direction): tuple(
            LaunchSignature(name, tuple(grid), tuple(block)) for name, grid, block in rows
        )
        for layer, direction, rows in content["launches"]
    }
    twins = {LaunchSite(*row[:2]): LaunchSite(*row[2:]) for row in content["twins"]}
    if not set(twins) | set(twins.values()) <= set(launches):
        raise ValueError("a layer without launches")
    return FirstPass(launches, twins, int(content["all_launches"]))


def build_first_pass(
    kernels: Iterable[Kernel], ops: Iterable[OpShape], ranges: Iterable[Range]
) -> FirstPass:
    """``kernels``: the launches of one plain step, with their layers; ``ops``: the shapes of
    its operations; ``ranges``: those that ``Kernel.range_number`` refers to.

    ncu leaves out the launches whose innermost range it is told. autograd's engine adds the
    gradients of a tensor that was used twice when the range of its node is closed: a trace
    of torch knows the layer of that kernel all the same, ncu sees it outside of all ranges.
    """
    shapes: dict[str, list[str]] = defaultdict(list)
    for op in ops:
        shape = replace(op, layer="", position=0, attributes={})
        shapes[op.layer].append(f"{shape} {sorted(op.attributes.items())}")
    sites = _find_sites_by_range(ranges)
    kernels = list(kernels)
    launches: dict[LaunchSite, tuple[LaunchSignature, ...]] = {
        site: tuple(map(_make_signature, site_kernels))
        for site, site_kernels in group_by(
            (
                kernel
                for kernel in kernels
                if sites.get(kernel.range_number) == _get_layer_and_direction(kernel)
            ),
            _get_layer_and_direction,
        ).items()
        if site is not None
    }
    first: dict[object, LaunchSite] = {}
    twins: dict[LaunchSite, LaunchSite] = {}
    for site, signatures in launches.items():
        if not shapes[site.layer] or any(_BY_DATA.search(launch.name) for launch in signatures):
            continue
        alike = (site.direction, signatures, tuple(sorted(shapes[site.layer])))
        if first.setdefault(alike, site) != site:
            twins[site] = first[alike]
    return FirstPass(launches, twins, len(kernels))


def _find_sites_by_range(ranges: Iterable[Range]) -> dict[int | None, LaunchSite]:
    """Return a range's number -> the site of the innermost layer's range around it."""
    by_number: dict[int | None, Range] = {range_.number: range_ for range_ in ranges}
    sites: dict[int | None, LaunchSite] = {}
    for number in by_number:
        enclosing = by_number.get(number)
        while enclosing is not None and _get_layer_and_direction(enclosing) is None:
            enclosing = by_number.get(enclosing.parent)
        if enclosing is not None and (site := _get_layer_and_direction(enclosing)) is not None:
            sites[number] = site
    return sites


def _get_layer_and_direction(item: Kernel | Range) -> LaunchSite | None:
    if item.layer is None or item.direction is None:
        return None
    return LaunchSite(item.layer, item.direction)


def _make_signature(kernel: Kernel) -> LaunchSignature:
    grid = kernel.grid_x, kernel.grid_y, kernel.grid_z
    return LaunchSignature(
        extract_bare_name(kernel.name), grid, (kernel.block_x, kernel.block_y, kernel.block_z)
    )


def add_unreplayed_repeats_to_report(report: Report, plain_step: FirstPass) -> Report:
    """ncu's report of the launches that were replayed, with those that repeat them added
    and marked.

    A launch that was left out gets the counts of the one that it repeats where that layer
    launched under ncu just what it did in the plain step, a whole number of times. Else it is
    added without counts, so that no sum passes for a whole one, and a gap says why. Times are
    not carried over.
    """
    by_site = group_by(report.kernels, _get_layer_and_direction)
    steps = sorted({kernel.step for kernel in report.kernels if kernel.step is not None})
    copied: list[tuple[Kernel, Kernel]] = []
    unknown: list[Kernel] = []
    gaps = list(report.gaps)
    for site, twin in plain_step.twins.items():
        measured, replayed = by_site.get(twin, []), by_site.get(site, [])
        signatures, replayed_signatures = (
            list(map(_make_signature, measured)),
            Tally(map(_make_signature, replayed)),
        )
        reason = _explain_difference_from_plain_step(signatures, plain_step.launches[twin])
        if reason is None and replayed_signatures <= Tally(signatures):
            # where ncu replayed a part all the same (ranges of the program's own lie around
            # it), that part keeps its counts
            copied += (
                (kernel, kernel._replace(**_ONE_LAUNCH, **site._asdict()))
                for kernel in _exclude_launches(measured, replayed_signatures)
            )
            continue
        lost = [
            kernel
            for step in steps or (None,)
            for kernel in _list_unreplayed_launches(site, plain_step.launches[site], replayed, step)
        ]
        if lost:
            unknown += lost
            reason = reason or "launched different kernels under ncu than in the plain step"
            text = LEFT_OUT.format(twin=twin, reason=reason)
            gaps.append(Gap("counter", "not_collected", text, str(site)))
    return _append_copied_and_uncounted_launches(replace(report, gaps=tuple(gaps)), copied, unknown)


def _exclude_launches(
    kernels: Iterable[Kernel], excluded: Tally[LaunchSignature]
) -> Iterator[Kernel]:
    """Yield the kernels but for as many of each launch as ``excluded`` has."""
    remaining = Tally(excluded)
    for kernel in kernels:
        launch = _make_signature(kernel)
        if remaining[launch]:
            remaining[launch] -= 1
        else:
            yield kernel


def _list_unreplayed_launches(
    site: LaunchSite,
    launches: Iterable[LaunchSignature],
    replayed: Iterable[Kernel],
    step: int | None,
) -> Iterator[Kernel]:
    """Yield what the plain step launched there and ncu did not replay in that step."""
    remaining = Tally(launches) - Tally(
        _make_signature(kernel) for kernel in replayed if kernel.step == step
    )
    for launch in remaining.elements():
        (x, y, z), (block_x, block_y, block_z) = launch.grid, launch.block
        yield Kernel(
            0,
            launch.name,
            layer=site.layer,
            direction=site.direction,
            step=step,
            layer_source="range",
            grid_x=x,
            grid_y=y,
            grid_z=z,
            block_x=block_x,
            block_y=block_y,
            block_z=block_z,
        )


def _append_copied_and_uncounted_launches(
    report: Report, copied: Sequence[tuple[Kernel, Kernel]], uncounted: Sequence[Kernel]
) -> Report:
    """Return the report with launches that have the counts of another, (the other, the launch), and
    with launches whose counts are not known."""
    kernels, counters = list(report.kernels), list(report.counters)
    values = group_by(counters, attrgetter("launch"))
    number = count(max((kernel.launch for kernel in kernels), default=-1) + 1)
    for measured, repeated in copied:
        launch = next(number)
        kernels.append(repeated._replace(launch=launch))
        counters += [
            counter._replace(launch=launch, section=EXTRAPOLATED)
            for counter in values.get(measured.launch, ())
            if "time_duration" not in counter.name
        ]
    kernels += [kernel._replace(launch=next(number)) for kernel in uncounted]
    environment = dict(report.environment)
    if copied:
        environment["ncu:extrapolated"] = (
            f"{len(copied)} of {len(kernels)} launches were not replayed: perfctl uses the counts "
            "of another launch with the same kernel, grid and layer shapes (--launches distinct)"
        )
    return replace(
        report, kernels=tuple(kernels), counters=tuple(counters), environment=environment
    )


def _explain_difference_from_plain_step(
    launches: list[LaunchSignature], plain: tuple[LaunchSignature, ...]
) -> str | None:
    """Return why ncu's launches are not those of the plain step, any number of times; None when
    they are."""
    if not launches:
        return "ncu counted no launch of it"
    times, remainder = divmod(len(launches), len(plain))
    if remainder or tuple(launches) != plain * times:
        return f"its {len(launches)} launches under ncu are not the {len(plain)} of the plain step"
    return None


def list_exclusion_gaps(ranges: Iterable[str]) -> Iterator[Gap]:
    """Yield gaps for ranges that ncu left out where nothing says what they repeat; ``ranges``: the
    values of --nvtx-exclude."""
    for value in dict.fromkeys(ranges):
        site = re.sub(r"\\(.)", r"\1", value.removesuffix("]"))
        yield Gap("counter", "not_collected", WITHOUT_PLAN, site)


def collect_exclusion_reasons(gaps: Iterable[Gap]) -> dict[LaunchSite, str]:
    """Return why launches that ncu left out have no counts, by where they come from; a layer's
    gradients also as its "backward", which a ledger may join them to."""
    reasons: dict[LaunchSite, str] = {}
    for gap in gaps:
        if gap.quantity == "counter" and gap.state == "not_collected" and gap.scope is not None:
            layer, _, direction = gap.scope.rpartition(":")
            reasons[LaunchSite(layer, direction)] = gap.reason
            if direction.startswith("grad_"):
                reasons.setdefault(LaunchSite(layer, "backward"), gap.reason)
    return reasons


def find_extrapolated_launches(counters: Iterable[Counter]) -> frozenset[int]:
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
    def replay_count(self) -> int:
        return self.launches * self.steps * self.passes


def estimate_pass_count(counter_count: int) -> int:
    """How often ncu will run each launch for that many counters: an assumption, ncu itself finds
    out on the GPU."""
    return max(1, ceil(counter_count / COUNTERS_A_PASS))


def estimate_replay_cost(
    step_kernels: Iterable[Kernel],
    *,
    layers: Sequence[str],
    steps: int,
    counter_count: int,
    repeated_launches: int = 0,
) -> ReplayCost:
    """``step_kernels``: the launches of one plain step, timed; ``layers``: those asked for, empty
    for all; ``repeated_launches``: how many launches repeat another."""
    kernels = list(step_kernels)
    selected = [kernel for kernel in kernels if is_layer_selected(kernel.layer, layers)]
    times = estimate_pass_count(counter_count)
    kernel_s = sum(kernel.duration_ns or 0 for kernel in selected) / 1e9
    span = zip(SLOWER, SECONDS_A_REPLAY, strict=True)
    least, most = (
        steps * times * (kernel_s * slower + len(selected) * each) for slower, each in span
    )
    return ReplayCost(len(selected), len(kernels), steps, times, (least, most), repeated_launches)


def describe_replay_cost(cost: ReplayCost, setting: str, layers: Sequence[str]) -> list[str]:
    """The estimate and its assumptions, in words."""
    among = f" in {', '.join(layers)} (of {cost.all_launches:,})" if layers else ""
    least, most = map(_format_duration, cost.seconds)
    steps = f"{cost.steps} {'step' if cost.steps == 1 else 'steps'}"
    saved = [
        (
            f"Counts repeat from step to step: {TEN} steps would take "
            f"{cost.replay_count // cost.steps * TEN:,} replays"
        )
    ] * (cost.steps < TEN)
    if cost.repeated:
        replays_needed = (cost.launches - cost.repeated) * cost.steps * cost.passes
        saved.append(
            f"{cost.repeated:,} launches repeat another with the same kernel, grid and layer "
            f"shapes: --launches distinct needs only {replays_needed:,} replays, "
            f"{1 - replays_needed / cost.replay_count:.0%} fewer"
        )
    return [
        (
            f"{setting}: {cost.launches:,} launches per step{among} x {steps} x "
            f"{cost.passes} passes = {cost.replay_count:,} replays, about {least} to {most} longer "
            "than without ncu"
        ),
        (
            "perfctl counted the launches in one plain step under torch.profiler. It assumes "
            f"{cost.passes} passes (in a public log, 5 counters needed 3; ncu prints the true "
            "number) and an overhead of 2 to 20 ms per replay"
        ),
        *saved,
    ]


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
