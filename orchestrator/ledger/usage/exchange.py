"""Collectives of a job one by one: what each exposes, of which layer, how fast its bus was, and
which rank came late.

Times in ns, bandwidths in bytes/s.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar

from perfctl.orchestrator.counts.hardware.machines import find
from perfctl.orchestrator.ledger.usage.busy import joined
from perfctl.orchestrator.ledger.usage.ranks import (
    Job,
    Pairs,
    RankUse,
    groups_of,
    length,
    match,
    shared,
    since,
    sorted_out,
)
from perfctl.records.report import Collective, Kernel

RANGE, AFTER = "range", "after backward"
"""How the layer of a collective was found: by the range or operator that launched it, or the last
gradient before it."""
NO_LAYER = "launched outside of every layer, and the last layer before it ran no backward"
NOT_MATCHED = "not found on every rank of its process group, one for one"
_BACKWARD = ("backward", "grad_input", "grad_weight")
_POINT_TO_POINT = re.compile(r"(i?send|i?recv|send_?recv)\b", re.IGNORECASE)
_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
_ENOUGH = 3
"""Collectives that align a clock with a known error."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective that all ranks of its process group took part in."""

    name: str
    group: str | None
    """Process group; null where the trace does not state it."""
    group_size: int | None
    """Ranks in the group."""
    ranks: tuple[int, ...]
    """Ranks that took part, of those with a record."""
    step: int | None
    layer: str | None
    """Whose data it sends: see ``layer_by``; null with ``layer_reason``."""
    layer_by: str | None
    """range: the layer that launched it; after backward: the layer whose backward was launched last
    before it."""
    layer_reason: str | None
    bytes: int | None
    """Size of a rank's input; null where the trace does not state it, or the ranks differ."""
    shortest_ns: int
    """Duration on the rank where it was shortest: the others waited."""
    exposed_ns: float | None
    """Mean over the ranks of the time that no other kernel covers."""
    bandwidth: float | None
    """Bus bandwidth in bytes/s, by NCCL's formulas, over ``shortest_ns``; null with
    ``bandwidth_reason``."""
    bandwidth_reason: str | None
    last: int | None
    """Rank that started last; null where several did."""
    late_ns: int
    """From the second last rank's start to the last one's: what all would gain if that rank came
    with the next."""
    late_median_ns: int
    """From the median start to the last rank's."""
    waiting_ns: int
    """Sum over the ranks of the time from their start to the last one's."""


@dataclass(frozen=True, slots=True)
class LayerTalk:
    """All collectives of one name, size of process group and layer, on all ranks."""

    name: str
    group_size: int | None
    """Ranks in the group; null where the trace does not state it."""
    layer: str | None
    layer_by: str | None
    calls: float
    """On one rank, mean."""
    exposed_ns: float | None
    """On one rank, mean; collectives at the same time count twice. Likewise ``most_ns``: on the
    rank with the most."""
    most_ns: int | None
    bandwidth: float | None
    """Median of the bus bandwidths in bytes/s; null where none is known, with
    ``bandwidth_reason``."""
    bandwidth_reason: str | None


@dataclass(frozen=True, slots=True)
class StepTalk:
    """One step on all ranks."""

    JSON_KEYS = ("*", "imbalance")

    step: int | None
    """null: the whole capture, where kernels belong to no step."""
    span_ns: int
    """Median over the ranks of the time from the first kernel's start to the last one's end."""
    exposed_ns: tuple[int, ...]
    """Of each rank: collectives while no compute kernel ran. Likewise ``compute_ns``: with a kernel
    that is of no collective."""
    compute_ns: tuple[int, ...]

    @property
    def imbalance(self) -> float | None:
        """Most compute over mean compute; None without compute."""
        mean = fmean(self.compute_ns)
        return max(self.compute_ns) / mean if mean else None


@dataclass(frozen=True, slots=True)
class Late:
    """What one rank cost all in one step by coming last."""

    rank: int
    step: int | None
    times: int
    """Collectives that it started last."""
    of: int
    """Collectives of the step that it took part in."""
    late_ns: int
    """Sum over these of the time from the second last rank's start."""
    waiting_ns: int
    """Sum over these and over the other ranks of their waiting."""
    error_ns: float | None
    """Of ``late_ns``, by the clocks: times x (errors of both ranks' clocks); null where fewer than
    3 collectives align them."""


@dataclass(frozen=True, slots=True)
class Bubble:
    """What one rank waited in sends and receives between two ranks, as the stages of a
    pipeline do."""

    rank: int
    waiting_ns: int
    """Time with a send or receive and no other kernel."""
    share: float
    """Of the rank's span."""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank of a job. Times in ns."""

    JSON_INLINED = ("rank",)

    rank: RankUse
    clock_error_ns: float | None
    """Of offset_ns; null: fewer than 3 collectives align the clock."""


@dataclass(frozen=True, slots=True)
class JobTalk:
    """The communication of one job."""

    JSON_KEYS = (
        "world_size",
        "ranks",
        "layers",
        "steps",
        "late",
        "bubbles",
        "exchanges",
        "link",
        "link_peak",
        "link_reason",
    )
    JSON_NAMES: ClassVar = {"exchanges": "collectives"}

    job: Job
    exchanges: tuple[Exchange, ...]
    layers: tuple[LayerTalk, ...]
    """Most exposed first."""
    steps: tuple[StepTalk, ...]
    late: tuple[Late, ...]
    """By step, then the most first."""
    bubbles: tuple[Bubble, ...]
    """Empty where no rank sends to or receives from one other rank."""
    link: str | None
    """NVLink or PCIe; None with ``link_reason``."""
    link_peak: float | None
    """Bytes/s of a GPU's link, one way, by the data sheet."""
    link_reason: str | None
    clock_errors: tuple[float | None, ...]
    """Of each rank against the first one: 1.48 x the median absolute deviation, or the resolution
    of the times if more."""

    @property
    def world_size(self) -> int | None:
        """null: not stated."""
        return self.job.world_size

    @property
    def ranks(self) -> list[RankRow]:
        """The ranks, in order."""
        return list(map(RankRow, self.job.ranks, self.clock_errors))

    @property
    def late_by_rank(self) -> dict[int, int]:
        """Rank -> what it cost all by coming last, over all steps."""
        sums: dict[int, int] = defaultdict(int)
        for one in self.late:
            sums[one.rank] += one.late_ns
        return dict(sums)


def bus_bandwidth(
    name: str, size: int | None, ranks: int | None, ns: float
) -> tuple[float | None, str | None]:
    """(bytes/s, None), or (None, why not). ``size``: bytes of one rank's input; ``ranks``: in
    the group.

    busbw of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: S / t times 2(n -
    1)/n for all-reduce, (n - 1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
    and reduce. S of an all-gather is its output, n inputs.
    """
    kind = re.sub("[^a-z]", "", name.lower())
    if "coalesced" in kind:
        return None, "of coalesced collectives the trace does not say what its size counts"
    if kind.endswith("alltoallv"):
        return None, "an all-to-all with uneven splits has no formula"
    if size is None:
        return None, "the trace does not state the size"
    if ranks is None:
        return None, "the trace does not state how many ranks the group has"
    if ns <= 0 or ranks < 2 or size <= 0:
        return None, "it sent nothing, or took no time"
    n = ranks
    factors = (
        ("allreduce", 2 * (n - 1) / n),
        ("allgather", n - 1),
        ("reducescatter", (n - 1) / n),
        ("alltoall", (n - 1) / n),
        ("broadcast", 1),
        ("reduce", 1),
    )
    factor = next((factor for word, factor in factors if word in kind), None)
    return (
        (None, f"there is no formula for {name}")
        if factor is None
        else (size / (ns / 1e9) * factor, None)
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What a collective's own rank says of it."""

    step: int | None
    layer: str | None
    by: str | None


@dataclass(frozen=True, slots=True)
class _Rank:
    talks: Sequence[Collective]
    said: Mapping[int, _Said]
    """Place of a collective -> what its kernel says; those without a kernel are left out."""
    compute: Mapping[int | None, Pairs]
    """Step -> union. Likewise the other two."""
    talking: Mapping[int | None, Pairs]
    span: Mapping[int | None, tuple[int, int]]
    waiting_ns: int | None
    """In sends and receives between two ranks, without another kernel; None where there
    are none."""


def job_talk(job: Job) -> JobTalk:
    """All of it from the records of the job's ranks."""
    ranks = [_read(one) for one in job.ranks]
    link, peak, why = _link(job)
    errors = _clock_errors(job, ranks)
    exchanges = _exchanges(job, ranks)
    numbers = [
        step
        for step in dict.fromkeys(step for rank in ranks for step in rank.span)
        if all(step in rank.span for rank in ranks)
    ]
    steps = sorted(numbers, key=lambda step: (step is None, step or 0))
    return JobTalk(
        job,
        exchanges,
        _by_layer(ranks, exchanges),
        tuple(_step(ranks, step) for step in steps),
        _late(job, exchanges, errors),
        tuple(
            Bubble(one.rank, rank.waiting_ns, rank.waiting_ns / one.span_ns)
            for one, rank in zip(job.ranks, ranks, strict=True)
            if rank.waiting_ns is not None and one.span_ns
        ),
        link,
        peak,
        why,
        errors,
    )


def _read(use: RankUse) -> _Rank:
    report = use.run.report
    talks, kernels = list(report.collectives), list(report.kernels)
    own, _ = sorted_out(talks, kernels)
    mine = {kernel.launch for kernel in own.values()}
    told = _Told(kernels, mine)
    said = {place: told.of(kernel) for place, kernel in own.items()}
    groups: tuple[dict[int | None, Pairs], ...] = (defaultdict(list), defaultdict(list))
    for kernel in kernels:
        if kernel.start_ns is not None and kernel.duration_ns is not None:
            pair = (kernel.start_ns, kernel.start_ns + round(kernel.duration_ns))
            groups[kernel.launch in mine][kernel.step].append(pair)
    compute, talking = ({step: joined(pairs) for step, pairs in group.items()} for group in groups)
    span: dict[int | None, tuple[int, int]] = {}
    for pairs in (compute, talking):
        for step, mine_ in pairs.items():
            begin, end = span.get(step, mine_[0])
            span[step] = min(begin, mine_[0][0]), max(end, mine_[-1][1])
    if len(span) > 1:
        span.pop(None, None)  # before and after the steps
    return _Rank(talks, said, compute, talking, span, _stalled(talks, own, kernels))


def _stalled(
    talks: Sequence[Collective], own: Mapping[int, Kernel], kernels: Iterable[Kernel]
) -> int | None:
    sent = {
        kernel.launch: kernel
        for place, kernel in own.items()
        if _POINT_TO_POINT.match(talks[place].name)
    }
    if not sent:
        return None

    def pairs(some: Iterable[Kernel]) -> Pairs:
        return joined(
            (one.start_ns, one.start_ns + round(one.duration_ns))
            for one in some
            if one.start_ns is not None and one.duration_ns is not None
        )

    waits, others = (
        pairs(sent.values()),
        pairs(kernel for kernel in kernels if kernel.launch not in sent),
    )
    return length(waits) - shared(waits, others)


class _Told:
    """Layers of collectives, by the kernels that were launched before them: by correlation where
    all have it, else by start."""

    def __init__(self, kernels: Sequence[Kernel], collectives: set[int]) -> None:
        self.launched = all(kernel.correlation is not None for kernel in kernels)
        marked = sorted(
            (self._when(kernel), kernel.launch, kernel.layer, kernel.direction)
            for kernel in kernels
            if kernel.launch not in collectives
            and (kernel.layer is not None or kernel.direction == "optimizer")
        )
        self.times = [when for when, *_ in marked]
        self.marked = [(layer, direction) for *_, layer, direction in marked]

    def _when(self, kernel: Kernel) -> int:
        return (kernel.correlation if self.launched else kernel.start_ns) or 0

    def of(self, kernel: Kernel) -> _Said:
        if kernel.layer is not None:
            return _Said(kernel.step, kernel.layer, RANGE)
        place = bisect_left(self.times, self._when(kernel)) - 1
        layer, direction = self.marked[place] if place >= 0 else (None, None)
        if direction not in _BACKWARD:
            return _Said(kernel.step, None, None)
        return _Said(kernel.step, layer, AFTER)


def _exchanges(job: Job, ranks: Sequence[_Rank]) -> tuple[Exchange, ...]:
    """In order of the first rank's start; starts on its clock."""
    numbered = [
        [
            one._replace(start_ns=None if one.start_ns is None else one.start_ns + since(use.run))
            for one in rank.talks
        ]
        for use, rank in zip(job.ranks, ranks, strict=True)
    ]
    places = [{id(one): place for place, one in enumerate(talks)} for talks in numbered]
    found = []
    for at in match(numbered, groups_of([use.run for use in job.ranks])):
        uses, same = [job.ranks[place] for place in at], list(at.values())
        first = same[0]
        said = [
            ranks[place].said.get(places[place][id(one)], _Said(None, None, None))
            for place, one in at.items()
        ]
        starts = [(one.start_ns or 0) + use.shift_ns for use, one in zip(uses, same, strict=True)]
        latest, second = sorted(starts, reverse=True)[:2]
        shortest = min(one.duration_ns or 0 for one in same)
        exposed = [one.exposed_ns for one in same if one.exposed_ns is not None]
        layers = {(one.layer, one.by) for one in said}
        layer, by = layers.pop() if len(layers) == 1 else (None, None)
        why = (
            None
            if layer is not None
            else "the ranks launched it after different layers"
            if layers
            else NO_LAYER
        )
        sizes = {one.bytes for one in same}
        size = sizes.pop() if len(sizes) == 1 else None
        speed, no_speed = bus_bandwidth(first.name, size, first.group_size, shortest)
        if sizes:
            no_speed = "the ranks sent different sizes"
        late = uses[starts.index(latest)].rank if latest > second else None
        found.append(
            Exchange(
                first.name,
                first.group,
                first.group_size,
                tuple(use.rank for use in uses),
                said[0].step,
                layer,
                by,
                why,
                size,
                shortest,
                fmean(exposed) if len(exposed) == len(same) else None,
                speed,
                no_speed,
                late,
                latest - second,
                round(-median(start - latest for start in starts)),
                sum(latest - start for start in starts),
            )
        )
    return tuple(found)


def _by_layer(ranks: Sequence[_Rank], exchanges: Sequence[Exchange]) -> tuple[LayerTalk, ...]:
    Key = tuple[str, int | None, str | None, str | None]
    groups: dict[Key, list[list[int | None]]] = defaultdict(lambda: [[] for _ in ranks])
    for at, rank in enumerate(ranks):
        for place, one in enumerate(rank.talks):
            said = rank.said.get(place, _Said(None, None, None))
            groups[one.name, one.group_size, said.layer, said.by][at].append(one.exposed_ns)
    speeds: dict[Key, list[Exchange]] = defaultdict(list)
    for exchange in exchanges:
        speeds[exchange.name, exchange.group_size, exchange.layer, exchange.layer_by].append(
            exchange
        )
    found = []
    for key, each in groups.items():
        known = all(ns is not None for mine in each for ns in mine)
        sums = [sum(ns or 0 for ns in mine) for mine in each]
        fast = [one.bandwidth for one in speeds[key] if one.bandwidth is not None]
        why = next(
            (one.bandwidth_reason for one in speeds[key] if one.bandwidth_reason), NOT_MATCHED
        )
        found.append(
            LayerTalk(
                *key,
                fmean(len(mine) for mine in each),
                fmean(sums) if known else None,
                max(sums) if known else None,
                median(fast) if fast else None,
                None if fast else why,
            )
        )
    return tuple(sorted(found, key=lambda one: -(one.exposed_ns or 0)))


def _step(ranks: Sequence[_Rank], step: int | None) -> StepTalk:
    """Compute of the neighbouring steps hides communication, too."""
    exposed = []
    for rank in ranks:
        talking = rank.talking.get(step, [])
        compute = joined(pair for pairs in rank.compute.values() for pair in pairs)
        exposed.append(length(talking) - shared(talking, compute))
    spans = [end - begin for begin, end in (rank.span[step] for rank in ranks)]
    return StepTalk(
        step,
        round(median(spans)),
        tuple(exposed),
        tuple(length(rank.compute.get(step, [])) for rank in ranks),
    )


def _late(
    job: Job, exchanges: Sequence[Exchange], errors: Sequence[float | None]
) -> tuple[Late, ...]:
    of: dict[tuple[int | None, int], int] = defaultdict(int)
    groups: dict[tuple[int | None, int], list[Exchange]] = defaultdict(list)
    for one in exchanges:
        for rank in one.ranks:
            of[one.step, rank] += 1
        if one.last is not None:
            groups[one.step, one.last].append(one)
    known = {use.rank: error for use, error in zip(job.ranks, errors, strict=True)}
    found = []
    for (step, rank), mine in groups.items():
        met = {place for one in mine for place in one.ranks} - {rank}
        other = [known[place] for place in met]
        own = known[rank]
        sure = own is not None and None not in other
        error = (
            len(mine) * ((own or 0) + max((one or 0 for one in other), default=0)) if sure else None
        )
        found.append(
            Late(
                rank,
                step,
                len(mine),
                of[step, rank],
                sum(one.late_ns for one in mine),
                sum(one.waiting_ns for one in mine),
                error,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.step is None, one.step or 0, -one.late_ns)))


def _clock_errors(job: Job, ranks: Sequence[_Rank]) -> tuple[float | None, ...]:
    """0 only of a job whose times have no resolution."""
    times = [one.start_ns for rank in ranks for one in rank.talks if one.start_ns is not None]
    resolution = math.gcd(*(time - times[0] for time in times)) if times else 0
    return tuple(
        None
        if use.spread_ns is None or use.matched < _ENOUGH
        else max(_SIGMA * use.spread_ns, min(resolution, 1000))
        for use in job.ranks
    )


def _link(job: Job) -> tuple[str | None, float | None, str | None]:
    """(NVLink or PCIe, bytes/s one way, None), or why that is not known."""
    if job.world_size != len(job.ranks):
        return None, None, "not all ranks of the job are here, so it may be on several nodes"
    names = {use.run.device.name if use.run.device else None for use in job.ranks}
    name = names.pop() if len(names) == 1 else None
    gpu = find(name)
    if names:
        return None, None, "the ranks ran on different GPUs"
    if gpu is None:
        return (
            None,
            None,
            f"the device table does not know the link of {name or 'a GPU without a name'}",
        )
    used = [
        {
            kernel.device_index
            for kernel in use.run.report.kernels
            if kernel.device_index is not None
        }
        for use in job.ranks
    ]
    if any(len(mine) != 1 for mine in used) or len(set().union(*used)) != len(used):
        return (
            None,
            None,
            (
                "the numbers of their GPUs do not say that all ranks ran on one node, and networks "
                "between are not known"
            ),
        )
    return gpu.link, gpu.link_gbs * 1e9, None
