"""Several ranks of one job: communication that nothing hides, waiting for others, and clocks that
collectives align.

Compute is every kernel that is not of a collective. Copies and memsets are neither compute nor
communication, and not idle.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median
from typing import ClassVar, NamedTuple

from perfctl.orchestrator.ledger.usage.intervals import (
    Intervals,
    get_end_ns,
    get_start_ns,
    has_start_and_duration,
)
from perfctl.orchestrator.statistics import group_by
from perfctl.records.report import Collective, Copy, Kernel
from perfctl.records.run import Run

_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Collectives that end on no rank before all have begun, by their names without underscores; a
broadcast may."""
_SIGMA = 1.4826
"""Standard deviations in a median absolute deviation, of a normal distribution."""
ALIGNING_MIN = 3
"""Collectives that align a clock with a known error."""
Members = tuple[int | None, ...]
"""Indexes of the ranks of a process group; None for a rank that has no report."""
Match = Mapping[int, Collective]
"""Index of a rank -> its record of a collective that all ranks of a group took part in."""


class RankActivity:
    """The work of all GPUs of a report together; a rank has one GPU."""

    def __init__(
        self, kernels: Iterable[Kernel], copies: Iterable[Copy], collectives: Iterable[Collective]
    ) -> None:
        self.collectives = list(collectives)
        self.computing: list[Kernel] = []
        """Kernels with times that are of no collective."""
        by_time: dict[tuple[int | None, float | None], list[int]] = group_by(
            range(len(self.collectives)),
            lambda index: (self.collectives[index].start_ns, self.collectives[index].duration_ns),
        )
        kernel_of: dict[int, Kernel] = {}
        for kernel in filter(has_start_and_duration, kernels):
            if indexes := by_time.get((kernel.start_ns, kernel.duration_ns)):
                kernel_of[indexes.pop(0)] = kernel
            else:
                self.computing.append(kernel)
        self.kernel_of = dict(sorted(kernel_of.items()))
        """Index of a collective -> its kernel, which has the same time."""
        self.compute = Intervals.make_from_items(self.computing)
        self.communication = Intervals.make_from_items(self.kernel_of.values())
        self.busy = Intervals(
            [
                *self.compute.pairs,
                *self.communication.pairs,
                *Intervals.make_from_items(copies).pairs,
            ]
        )

    @property
    def exposed_communication_ns(self) -> int:
        """Communication while no compute kernel ran."""
        return self.communication.total_ns - self.communication.measure_overlap_ns(self.compute)


def add_exposed_ns_to_collectives(
    collectives: Iterable[Collective], kernels: Iterable[Kernel]
) -> list[Collective]:
    """Return the collectives with ``exposed_communication_ns`` for each whose kernel is found by
    its time: what no other kernel of its GPU covers.

    Kernels of other collectives do not cover it.
    """
    activity = RankActivity(kernels, (), collectives)
    by_device = group_by(activity.computing, lambda kernel: kernel.device_index)
    covering = {
        device: Intervals.make_from_items(computing) for device, computing in by_device.items()
    }
    result = activity.collectives
    for index, kernel in activity.kernel_of.items():
        exposed = result[index].duration_ns or 0
        if kernel.device_index in covering:
            covered = covering[kernel.device_index]
            exposed -= covered.measure_covered_ns(get_start_ns(kernel), get_end_ns(kernel))
        result[index] = result[index]._replace(exposed_ns=exposed)
    return result


@dataclass(frozen=True, slots=True)
class RankUse:
    """One rank, in ns. ``None`` where nothing says."""

    JSON_KEYS = (
        "run_id",
        "rank",
        "span_ns",
        "compute_ns",
        "communication_ns",
        "exposed_ns",
        "idle_ns",
        "matched",
        "waiting_ns",
        "last",
        "offset_ns",
        "spread_ns",
        "shift_ns",
        "overlap",
        "clock_error_ns",
    )
    JSON_NAMES: ClassVar = {"run_id": "run"}

    run: Run
    rank: int
    span_ns: int
    """From the first kernel's or copy's start to the last one's end."""
    compute_ns: int
    communication_ns: int
    exposed_ns: int
    idle_ns: int
    """Of the span, without kernel and copy."""
    matched: int
    """Collectives that it has in common, one for one, with all other ranks of their
    process group."""
    waiting_ns: int | None
    """Sum over these of the time from this rank's start to that of the last rank."""
    last: int | None
    """How many of these this rank was the last to start."""
    offset_ns: int | None
    """Added to this rank's clock it gives that of the first rank: median over these of the
    difference of their ends; by way of other ranks, where the two have no group in common. None
    where no group leads there."""
    spread_ns: int | None
    """Median absolute deviation of these differences, summed over the way; None without such
    collectives."""
    shift_ns: int
    """As ``offset_ns``; where that is None, to the clock of the first rank that groups lead to."""
    clock_error_ns: float | None
    """Of offset_ns: 1.48 x the median absolute deviation, or the resolution of the times if that is
    more; null: fewer than 3 collectives align the clock."""
    activity: RankActivity = field(compare=False, repr=False)

    @property
    def run_id(self) -> int:
        return self.run.id

    @property
    def overlap(self) -> float | None:
        """Share of communication that compute kernels cover; None without communication."""
        return 1 - self.exposed_ns / self.communication_ns if self.communication_ns else None


@dataclass(frozen=True, slots=True)
class MultiRankJob:
    """The ranks of one program that ran together, in order."""

    ranks: tuple[RankUse, ...]
    world_size: int | None
    collectives: Sequence[Sequence[Collective]] = field(compare=False, repr=False)
    """Of each rank, with times since 1970."""
    matches: Sequence[Match] = field(compare=False, repr=False)

    @property
    def straggler(self) -> RankUse | None:
        """The rank that waits least, which is the one the others wait for; None where waiting is
        not known or equal, or the ranks wait in different numbers of collectives."""
        waiting = [rank for rank in self.ranks if rank.waiting_ns is not None]
        waiting.sort(key=lambda rank: rank.waiting_ns or 0)
        if len(waiting) < 2 or len({rank.matched for rank in self.ranks}) > 1:
            return None
        return waiting[0] if waiting[0].waiting_ns != waiting[1].waiting_ns else None


def group_runs_into_multi_rank_jobs(runs: Iterable[Run]) -> tuple[MultiRankJob, ...]:
    """Return the jobs of several ranks among the runs, those with at least two ranks that ran on a
    GPU.

    Runs of one job came in together, from one folder; of a rank that is there twice the
    last counts.
    """
    groups: dict[tuple[object, ...], dict[int, Run]] = defaultdict(dict)
    for run in runs:
        rank = run.report.rank
        if rank is not None and run.report.kernels:
            folder = PurePath(run.artifact).parent if run.artifact else None
            group = (run.sweep_id, folder, run.profiler, run.workload, run.batch_size, run.mode)
            groups[*group, run.report.world_size][rank] = run
    return tuple(
        _build_job([by_rank[rank] for rank in sorted(by_rank)])
        for by_rank in groups.values()
        if len(by_rank) > 1
    )


def _build_job(runs: Sequence[Run]) -> MultiRankJob:
    collectives, matches = match_collectives_across_runs(runs)
    clocks = _align_rank_clocks(matches, len(runs))
    latest = [
        max(get_start_ns(item) + clocks[index].shift for index, item in match.items())
        for match in matches
    ]
    recorded = [item.start_ns for run in runs for item in run.report.collectives]
    times = [start_ns for start_ns in recorded if start_ns is not None]
    resolution = math.gcd(*(time - times[0] for time in times))
    ranks = []
    for index, (run, clock) in enumerate(zip(runs, clocks, strict=True)):
        activity = RankActivity(run.report.kernels, run.report.copies, run.report.collectives)
        waits = [
            last - get_start_ns(match[index]) - clock.shift
            for last, match in zip(latest, matches, strict=True)
            if index in match
        ]
        ranks.append(
            RankUse(
                run=run,
                rank=run.report.rank or 0,
                span_ns=activity.busy.span_ns,
                compute_ns=activity.compute.total_ns,
                communication_ns=activity.communication.total_ns,
                exposed_ns=activity.exposed_communication_ns,
                idle_ns=activity.busy.span_ns - activity.busy.total_ns,
                matched=len(waits),
                waiting_ns=sum(waits) if waits else None,
                last=waits.count(0) if waits else None,
                offset_ns=clock.shift if clock.leads_to_first else None,
                spread_ns=clock.spread if waits else None,
                shift_ns=clock.shift,
                clock_error_ns=max(_SIGMA * clock.spread, min(resolution, 1000))
                if len(waits) >= ALIGNING_MIN
                else None,
                activity=activity,
            )
        )
    return MultiRankJob(tuple(ranks), runs[0].report.world_size, collectives, matches)


class _RankClock(NamedTuple):
    shift: int
    spread: int
    leads_to_first: bool
    """Collectives lead to the first rank."""


def _align_rank_clocks(matches: Sequence[Match], rank_count: int) -> list[_RankClock]:
    """Return the clock of each rank, against the lowest rank of the group that it shares most
    collectives with, and on from there."""
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for match in matches:
        first, *other_ends = sorted(match)
        for other in other_ends:
            differences[first, other].append(get_end_ns(match[first]) - get_end_ns(match[other]))
    clocks: dict[int, _RankClock] = {}
    while len(clocks) < rank_count:
        ways = [
            (-len(differences[pair]), base, new, sign)
            for pair in differences
            for base, new, sign in ((*pair, 1), (*reversed(pair), -1))
            if base in clocks and new not in clocks
        ]
        if not ways:
            first = min(index for index in range(rank_count) if index not in clocks)
            leads_to_first = first == 0 and any(0 in match for match in matches)
            clocks[first] = _RankClock(0, 0, leads_to_first)
            continue
        _, base, new, sign = min(ways)
        ends = differences[min(base, new), max(base, new)]
        middle = median(ends)
        clocks[new] = _RankClock(
            clocks[base].shift + sign * round(middle),
            clocks[base].spread + round(median(abs(end - middle) for end in ends)),
            clocks[base].leads_to_first,
        )
    return [clocks[index] for index in range(rank_count)]


def match_collectives_across_runs(
    runs: Sequence[Run],
) -> tuple[list[list[Collective]], list[Match]]:
    """Return the collectives of each run, and those that all ranks of their group took part in.
    Times are since 1970 if the report states when its clock began; reports state the groups that
    are smaller than the job."""
    index_of = {run.report.rank: index for index, run in enumerate(runs)}
    groups: list[dict[str, Members]] = []
    collectives = []
    for run in runs:
        base = run.report.environment.get("clock_base_ns", "")
        began = int(base) if base.isdecimal() else 0
        collectives.append(
            [
                item if item.start_ns is None else item._replace(start_ns=item.start_ns + began)
                for item in run.report.collectives
            ]
        )
        try:
            stated = json.loads(run.report.environment.get("process_groups", "{}"))
            groups.append({name: tuple(map(index_of.get, ranks)) for name, ranks in stated.items()})
        except (ValueError, TypeError, AttributeError):
            groups.append({})
    return collectives, match_collectives_across_ranks(collectives, groups)


def match_collectives_across_ranks(
    collectives_by_rank: Sequence[Iterable[Collective]],
    group_members_by_rank: Sequence[Mapping[str, Members]] = (),
) -> list[Match]:
    """Return every collective that all ranks of its group took part in, as index of the rank -> its
    record, in order of the start on the first of them.

    The n-th of a name and group on one rank is the n-th on each other. ``group_members_by_rank``:
    of each rank, the indexes of the ranks of its smaller groups. Where none are stated, a smaller
    group is the ranks that have its collectives, if they are as many as its size. Names that do not
    occur equally often on all ranks of a group, groups that are not all here, and kinds that may
    end at different times are left out.
    """
    by_key: dict[
        tuple[str, str | None, int | None, Members | None], dict[int, list[Collective]]
    ] = defaultdict(lambda: defaultdict(list))
    for index, collectives in enumerate(collectives_by_rank):
        stated = group_members_by_rank[index] if group_members_by_rank else {}
        for item in collectives:
            kind = item.name.lower().replace("_", "")
            if has_start_and_duration(item) and any(name in kind for name in _TOGETHER):
                members = stated.get(item.group) if item.group is not None else None
                by_key[item.name, item.group, item.group_size, members][index].append(item)
    matches: list[Match] = []
    for (_, _, size, members), by_rank in by_key.items():
        is_of_all = members is None and (size is None or size >= len(collectives_by_rank))
        indexes = range(len(collectives_by_rank)) if is_of_all else members or tuple(by_rank)
        here = [index for index in indexes if index is not None]
        is_complete = is_of_all or len(here) == len(indexes) == len(set(here)) == size
        counts = {len(by_rank.get(index, ())) for index in here}
        if len(here) > 1 and is_complete and len(counts) == 1:
            columns = [sorted(by_rank[index], key=_get_start_and_end) for index in here]
            matches += (dict(zip(here, row, strict=True)) for row in zip(*columns, strict=True))
    return sorted(matches, key=lambda match: _get_start_and_end(match[min(match)]))


def _get_start_and_end(collective: Collective) -> tuple[int, int]:
    return get_start_ns(collective), get_end_ns(collective)
