"""Collectives of a job one by one: what each exposes, of which layer, how fast its bus was, and
which rank was the straggler.

Times in ns, bandwidths in bytes/s.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from perfctl.orchestrator.counts.hardware.machines import find_gpu_product
from perfctl.orchestrator.ledger.usage.intervals import Intervals, get_start_ns
from perfctl.orchestrator.ledger.usage.ranks import Match, MultiRankJob, RankUse
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Kernel

RANGE, AFTER = "range", "after backward"
"""How the layer of a collective was found: by the range or operator that launched it, or the last
gradient before it."""
NO_LAYER = "launched outside of all layers, and the last layer before it was not a backward pass"
NOT_MATCHED = "not matched one to one on every rank of its process group"
_BACKWARD = ("backward", "grad_input", "grad_weight")
_POINT_TO_POINT = re.compile(r"(i?send|i?recv|send_?recv)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Collective:
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
    straggler_ns: int
    """From the second last rank's start to the last one's: what all would gain if that rank came
    with the next."""
    straggler_median_ns: int
    """From the median start to the last rank's."""
    waiting_ns: int
    """Sum over the ranks of the time from their start to the last one's."""


@dataclass(frozen=True, slots=True)
class LayerCommunication:
    """All collectives of one name, size of process group and layer, on all ranks."""

    name: str
    group_size: int | None
    """Ranks in the group; null where the trace does not state it."""
    layer: str | None
    layer_by: str | None
    calls: float
    """On one rank, mean."""
    exposed_ns: float | None
    """On one rank, mean; collectives at the same time count twice. Likewise ``max_ns``: on the
    rank with the most."""
    max_ns: int | None
    bandwidth: float | None
    """Median of the bus bandwidths in bytes/s; null where none is known, with
    ``bandwidth_reason``."""
    bandwidth_reason: str | None


@dataclass(frozen=True, slots=True)
class StepCommunication:
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
class StragglerCost:
    """What one rank cost all in one step by coming last."""

    rank: int
    step: int | None
    times: int
    """Collectives that it started last."""
    collectives: int
    """Collectives of the step that it took part in."""
    straggler_ns: int
    """Sum over these of the time from the second last rank's start."""
    waiting_ns: int
    """Sum over these and over the other ranks of their waiting."""
    error_ns: float | None
    """Of ``straggler_ns``, by the clocks: times x (errors of both ranks' clocks); null where fewer
    than 3 collectives align them."""


@dataclass(frozen=True, slots=True)
class PipelineBubble:
    """What one rank waited in sends and receives between two ranks, as the stages of a
    pipeline do."""

    rank: int
    waiting_ns: int
    """Time with a send or receive and no other kernel."""
    share: float
    """Of the rank's span."""


@dataclass(frozen=True, slots=True)
class JobCommunication:
    """The communication of one job."""

    JSON_KEYS = (
        "world_size",
        "ranks",
        "layers",
        "steps",
        "stragglers",
        "bubbles",
        "collectives",
        "link",
        "link_peak",
        "link_reason",
    )

    job: MultiRankJob
    collectives: tuple[Collective, ...]
    layers: tuple[LayerCommunication, ...]
    """Most exposed first."""
    steps: tuple[StepCommunication, ...]
    stragglers: tuple[StragglerCost, ...]
    """By step, then the most first."""
    bubbles: tuple[PipelineBubble, ...]
    """Empty where no rank sends to or receives from one other rank."""
    link: str | None
    """NVLink or PCIe; None with ``link_reason``."""
    link_peak: float | None
    """Bytes/s of a GPU's link, one way, by the data sheet."""
    link_reason: str | None

    @property
    def world_size(self) -> int | None:
        """null: not stated."""
        return self.job.world_size

    @property
    def ranks(self) -> Sequence[RankUse]:
        """The ranks, in order."""
        return self.job.ranks

    @property
    def straggler_ns_by_rank(self) -> dict[int, int]:
        """Rank -> what it cost all by coming last, over all steps."""
        sums: Counter[int] = Counter()
        for straggler in self.stragglers:
            sums[straggler.rank] += straggler.straggler_ns
        return sums


def compute_bus_bandwidth_or_reason(
    collective_name: str, input_bytes: int | None, group_size: int | None, duration_ns: float
) -> tuple[float | None, str | None]:
    """(bytes/s, None), or (None, why not). ``input_bytes``: bytes of one rank's input;
    ``group_size``: in the group.

    busbw of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: S / t times 2(n -
    1)/n for all-reduce, (n - 1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast
    and reduce. S of an all-gather is its output, n inputs.
    """
    kind = re.sub("[^a-z]", "", collective_name.lower())
    if "coalesced" in kind:
        return None, "for coalesced collectives, the trace does not state what the size includes"
    if kind.endswith("alltoallv"):
        return None, "an all-to-all with uneven splits has no formula"
    if input_bytes is None:
        return None, "the trace does not state the size"
    if group_size is None:
        return None, "the trace does not state the number of ranks of the group"
    if duration_ns <= 0 or group_size < 2 or input_bytes <= 0:
        return None, "it sent nothing, or took no time"
    n = group_size
    factors = (
        ("allreduce", 2 * (n - 1) / n),
        ("allgather", n - 1),
        ("reducescatter", (n - 1) / n),
        ("alltoall", (n - 1) / n),
        ("broadcast", 1),
        ("reduce", 1),
    )
    factor = next((factor for part, factor in factors if part in kind), None)
    return (
        (None, f"perfctl has no formula for {collective_name}")
        if factor is None
        else (input_bytes / (duration_ns / 1e9) * factor, None)
    )


class _CollectiveSource(NamedTuple):
    """The place in the program from which a rank launched a collective."""

    step: int | None
    layer: str | None
    layer_by: str | None


_UNKNOWN = _CollectiveSource(None, None, None)


class _RankCommunication:
    """The communication of one rank, by collective and by step."""

    def __init__(self, use: RankUse) -> None:
        self.use = use
        self.collectives = use.activity.collectives
        self.sources = _attribute_collectives_to_layers(use)
        self.compute = _merge_kernel_intervals_by_step(use.activity.computing)
        self.communication = _merge_kernel_intervals_by_step(use.activity.kernel_of.values())
        # compute of other steps hides communication, too
        self.exposed_ns = {
            step: spans.total_ns - spans.measure_overlap_ns(use.activity.compute)
            for step, spans in self.communication.items()
        }
        running = _merge_kernel_intervals_by_step(
            [*use.activity.computing, *use.activity.kernel_of.values()]
        )
        self.span_ns = {step: of_step.span_ns for step, of_step in running.items()}
        if len(self.span_ns) > 1:
            self.span_ns.pop(None, None)  # before and after the steps

    @property
    def exposed_point_to_point_ns(self) -> int | None:
        """Time in sends and receives between two ranks, without another kernel; None if there
        are none."""
        waiting: list[Kernel] = []
        working = list(self.use.activity.computing)
        for index, kernel in self.use.activity.kernel_of.items():
            is_sent = _POINT_TO_POINT.match(self.collectives[index].name)
            (waiting if is_sent else working).append(kernel)
        if not waiting:
            return None
        waits = Intervals.make_from_items(waiting)
        return waits.total_ns - waits.measure_overlap_ns(Intervals.make_from_items(working))


def _merge_kernel_intervals_by_step(kernels: Iterable[Kernel]) -> dict[int | None, Intervals]:
    by_step = group_by(kernels, lambda kernel: kernel.step)
    return {step: Intervals.make_from_items(of_step) for step, of_step in by_step.items()}


def _attribute_collectives_to_layers(use: RankUse) -> dict[int, _CollectiveSource]:
    """Return the source of each collective that has a kernel. Its layer is that of the range that
    launched it, or of the kernel that was launched before it, by correlation where all kernels
    have one of the same process, and otherwise by start."""
    kernels = use.run.report.kernels
    is_correlated = len({kernel.process for kernel in kernels}) == 1 and all(
        kernel.correlation is not None for kernel in kernels
    )

    def get_launch_order(kernel: Kernel) -> int:
        return (kernel.correlation if is_correlated else kernel.start_ns) or 0

    collective_launches = {kernel.launch for kernel in use.activity.kernel_of.values()}
    marked = sorted(
        (get_launch_order(kernel), kernel.launch, kernel.layer, kernel.direction)
        for kernel in kernels
        if kernel.launch not in collective_launches
        and (kernel.layer is not None or kernel.direction == "optimizer")
    )
    orders = [when for when, *_ in marked]
    sources = {}
    for index, kernel in use.activity.kernel_of.items():
        before = bisect_left(orders, get_launch_order(kernel)) - 1
        if kernel.layer is not None:
            sources[index] = _CollectiveSource(kernel.step, kernel.layer, RANGE)
        elif before >= 0 and marked[before][3] in _BACKWARD:
            sources[index] = _CollectiveSource(kernel.step, marked[before][2], AFTER)
        else:
            sources[index] = _CollectiveSource(kernel.step, None, None)
    return sources


def analyse_job_communication(job: MultiRankJob) -> JobCommunication:
    """Return the communication of a job, from the records of its ranks."""
    ranks = list(map(_RankCommunication, job.ranks))
    link, peak, reason = _find_gpu_link_bandwidth_or_reason(job)
    collectives = _build_matched_collectives(job, ranks)
    steps = set.intersection(*(set(rank.span_ns) for rank in ranks))
    return JobCommunication(
        job=job,
        collectives=collectives,
        layers=_sum_collectives_by_name_group_layer(ranks, collectives),
        steps=tuple(
            StepCommunication(
                step,
                round(median(rank.span_ns[step] for rank in ranks)),
                tuple(rank.exposed_ns.get(step, 0) for rank in ranks),
                tuple(rank.compute[step].total_ns if step in rank.compute else 0 for rank in ranks),
            )
            for step in sorted(steps, key=lambda step: (step is None, step or 0))
        ),
        stragglers=_sum_straggler_costs_by_rank_and_step(
            collectives, {use.rank: use.clock_error_ns for use in job.ranks}
        ),
        bubbles=tuple(
            PipelineBubble(rank.use.rank, waiting, waiting / rank.use.span_ns)
            for rank in ranks
            if (waiting := rank.exposed_point_to_point_ns) is not None and rank.use.span_ns
        ),
        link=link,
        link_peak=peak,
        link_reason=reason,
    )


def _build_matched_collectives(
    job: MultiRankJob, ranks: Sequence[_RankCommunication]
) -> tuple[Collective, ...]:
    """Return the matched collectives, in order of the first rank's start."""
    indexes = [
        {id(record): index for index, record in enumerate(of_rank)} for of_rank in job.collectives
    ]
    collectives = []
    for match in job.matches:
        uses = [job.ranks[rank] for rank in match]
        sources = [
            ranks[rank].sources.get(indexes[rank][id(record)], _UNKNOWN)
            for rank, record in match.items()
        ]
        collectives.append(_build_matched_collective(match, uses, sources))
    return tuple(collectives)


def _build_matched_collective(
    match: Match, uses: Sequence[RankUse], sources: Sequence[_CollectiveSource]
) -> Collective:
    """Return one collective; starts are on the first rank's clock."""
    records = list(match.values())
    first = records[0]
    starts = [get_start_ns(item) + use.shift_ns for use, item in zip(uses, records, strict=True)]
    latest, second = sorted(starts, reverse=True)[:2]
    shortest = min(item.duration_ns or 0 for item in records)
    exposed = [item.exposed_ns for item in records if item.exposed_ns is not None]
    layer = layer_by = None
    layer_reason: str | None = "the ranks launched it after different layers"
    if len({(source.layer, source.layer_by) for source in sources}) == 1:
        _, layer, layer_by = sources[0]
        layer_reason = NO_LAYER if layer is None else None
    if len({item.bytes for item in records}) == 1:
        size = first.bytes
        speed, no_speed = compute_bus_bandwidth_or_reason(
            first.name, size, first.group_size, shortest
        )
    else:
        size, speed, no_speed = None, None, "the ranks sent different sizes"
    return Collective(
        name=first.name,
        group=first.group,
        group_size=first.group_size,
        ranks=tuple(use.rank for use in uses),
        step=sources[0].step,
        layer=layer,
        layer_by=layer_by,
        layer_reason=layer_reason,
        bytes=size,
        shortest_ns=shortest,
        exposed_ns=fmean(exposed) if len(exposed) == len(records) else None,
        bandwidth=speed,
        bandwidth_reason=no_speed,
        last=uses[starts.index(latest)].rank if latest > second else None,
        straggler_ns=latest - second,
        straggler_median_ns=round(-median(start - latest for start in starts)),
        waiting_ns=sum(latest - start for start in starts),
    )


def _sum_collectives_by_name_group_layer(
    ranks: Sequence[_RankCommunication], collectives: Sequence[Collective]
) -> tuple[LayerCommunication, ...]:
    """Return the collectives of each name, size of group and layer, the most exposed first."""
    Key = tuple[str, int | None, str | None, str | None]
    groups: dict[Key, list[list[int | None]]] = defaultdict(lambda: [[] for _ in ranks])
    for of_rank, rank in enumerate(ranks):
        for index, item in enumerate(rank.collectives):
            _, layer, layer_by = rank.sources.get(index, _UNKNOWN)
            groups[item.name, item.group_size, layer, layer_by][of_rank].append(item.exposed_ns)
    by_key = group_by(
        collectives, lambda item: (item.name, item.group_size, item.layer, item.layer_by)
    )
    layers = []
    for key, exposed in groups.items():
        is_known = all(ns is not None for of_rank in exposed for ns in of_rank)
        sums = [sum(ns or 0 for ns in of_rank) for of_rank in exposed]
        matched = by_key.get(key, [])
        speeds = [item.bandwidth for item in matched if item.bandwidth is not None]
        reasons = (item.bandwidth_reason for item in matched if item.bandwidth_reason)
        layers.append(
            LayerCommunication(
                *key,
                calls=fmean(map(len, exposed)),
                exposed_ns=fmean(sums) if is_known else None,
                max_ns=max(sums) if is_known else None,
                bandwidth=median(speeds) if speeds else None,
                bandwidth_reason=None if speeds else next(reasons, NOT_MATCHED),
            )
        )
    return tuple(sorted(layers, key=lambda layer: -(layer.exposed_ns or 0)))


def _sum_straggler_costs_by_rank_and_step(
    collectives: Sequence[Collective], clock_errors: Mapping[int, float | None]
) -> tuple[StragglerCost, ...]:
    """Return what each rank cost by coming last in each step; ``clock_errors`` are by rank."""
    counts = Counter((item.step, rank) for item in collectives for rank in item.ranks)
    groups = group_by(collectives, lambda item: (item.step, item.last))
    stragglers = []
    for (step, rank), last in groups.items():
        if rank is None:
            continue
        own_error = clock_errors[rank]
        other_errors = [
            clock_errors[other] for item in last for other in item.ranks if other != rank
        ]
        known_errors = [error for error in other_errors if error is not None]
        is_known = own_error is not None and len(known_errors) == len(other_errors)
        stragglers.append(
            StragglerCost(
                rank=rank,
                step=step,
                times=len(last),
                collectives=counts[step, rank],
                straggler_ns=sum(item.straggler_ns for item in last),
                waiting_ns=sum(item.waiting_ns for item in last),
                error_ns=len(last) * ((own_error or 0) + max(known_errors, default=0))
                if is_known
                else None,
            )
        )
    return tuple(
        sorted(stragglers, key=lambda item: (item.step is None, item.step or 0, -item.straggler_ns))
    )


def _find_gpu_link_bandwidth_or_reason(
    job: MultiRankJob,
) -> tuple[str | None, float | None, str | None]:
    """(NVLink or PCIe, bytes/s one way, None), or why that is not known."""
    if job.world_size != len(job.ranks):
        return None, None, "some ranks of the job are missing, so it may run on several nodes"
    names = {use.run.device.name if use.run.device else None for use in job.ranks}
    name = names.pop() if len(names) == 1 else None
    gpu = find_gpu_product(name)
    if names:
        return None, None, "the ranks ran on different GPUs"
    if gpu is None:
        reason = f"the device table does not know the link of {name or 'a GPU without a name'}"
        return None, None, reason
    used = [
        {kernel.device_index for kernel in use.run.report.kernels} - {None} for use in job.ranks
    ]
    if any(len(devices) != 1 for devices in used) or len(set().union(*used)) != len(used):
        reason = (
            "the GPU numbers do not show that all ranks ran on one node, and the bandwidth of "
            "inter-node networks is unknown"
        )
        return None, None, reason
    return gpu.link, gpu.link_gbs * 1e9, None
