"""Several ranks of one job: communication that nothing hides, waiting for others, and clocks that
collectives align.

Compute is every kernel that is not of a collective. Copies and memsets are neither compute nor
communication, and not idle.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import PurePath
from statistics import median
from typing import ClassVar, NamedTuple

from perfctl.orchestrator.ledger.usage.busy import joined
from perfctl.records.report import Collective, Copy, Kernel
from perfctl.records.run import Run

Pairs = list[tuple[int, int]]
"""(start, end) ascending, without overlap."""
_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Collectives that end on no rank before all have begun, by their names without underscores; a
broadcast may."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What one GPU did, as unions of intervals in ns."""

    compute: Pairs
    communication: Pairs
    copies: Pairs

    @property
    def exposed_ns(self) -> int:
        """Communication while no compute kernel ran."""
        return length(self.communication) - shared(self.communication, self.compute)

    @property
    def busy(self) -> Pairs:
        return joined([*self.compute, *self.communication, *self.copies])


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

    @property
    def run_id(self) -> int:
        return self.run.id

    @property
    def overlap(self) -> float | None:
        """Share of communication that compute kernels cover; None without communication."""
        return 1 - self.exposed_ns / self.communication_ns if self.communication_ns else None


@dataclass(frozen=True, slots=True)
class Job:
    """The ranks of one program that ran together, in order."""

    ranks: tuple[RankUse, ...]
    world_size: int | None

    @property
    def straggler(self) -> RankUse | None:
        """The rank that waits least, which is the one the others wait for; None where waiting is
        not known or equal, or the ranks wait in different numbers of collectives."""
        known = sorted(
            (one.waiting_ns, place)
            for place, one in enumerate(self.ranks)
            if one.waiting_ns is not None
        )
        same = len({one.matched for one in self.ranks}) == 1
        return (
            self.ranks[known[0][1]]
            if same and len(known) > 1 and known[0][0] < known[1][0]
            else None
        )


def length(pairs: Pairs) -> int:
    return sum(end - start for start, end in pairs)


def shared(some: Pairs, others: Pairs) -> int:
    """How much of ``some`` lies in ``others``; both as :func:`joined` gives them."""
    covered = _Covered(others)
    return sum(covered.before(end) - covered.before(start) for start, end in some)


class _Covered:
    """How much of the time up to a moment lies in intervals."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self.starts = [start for start, _ in pairs]
        self.sums = [0, *accumulate(end - start for start, end in pairs)]

    def before(self, moment: int) -> int:
        place = bisect_right(self.starts, moment) - 1
        if place < 0:
            return 0
        start, end = self.pairs[place]
        return self.sums[place] + min(moment, end) - start


def with_exposed(collectives: Iterable[Collective], kernels: Iterable[Kernel]) -> list[Collective]:
    """``exposed_ns`` filled in for each whose kernel is found by its time: what no other kernel of
    its GPU covers.

    Kernels of other collectives do not cover it.
    """
    found = list(collectives)
    of_kernel, compute = sorted_out(found, kernels)
    covering = {device: _Covered(joined(pairs)) for device, pairs in compute.items()}
    for place, kernel in of_kernel.items():
        one = found[place]
        start, lasted = one.start_ns or 0, one.duration_ns or 0
        covered = covering.get(kernel.device_index)
        hidden = 0 if covered is None else covered.before(start + lasted) - covered.before(start)
        found[place] = one._replace(exposed_ns=lasted - hidden)
    return found


def sorted_out(
    collectives: Sequence[Collective], kernels: Iterable[Kernel]
) -> tuple[dict[int, Kernel], dict[int | None, Pairs]]:
    """(place of a collective -> its kernel, ascending; intervals of all other kernels by GPU)."""
    waiting: dict[tuple[int, float], list[int]] = defaultdict(list)
    for place, one in enumerate(collectives):
        if one.start_ns is not None and one.duration_ns is not None:
            waiting[one.start_ns, one.duration_ns].append(place)
    found: dict[int, Kernel] = {}
    compute: dict[int | None, Pairs] = defaultdict(list)
    for kernel in kernels:
        if kernel.start_ns is None or kernel.duration_ns is None:
            continue
        mine = waiting.get((kernel.start_ns, kernel.duration_ns))
        if mine:
            found[mine.pop(0)] = kernel
        else:
            compute[kernel.device_index].append(
                (kernel.start_ns, kernel.start_ns + round(kernel.duration_ns))
            )
    return dict(sorted(found.items())), compute


def activity(
    kernels: Iterable[Kernel], copies: Iterable[Copy], collectives: Iterable[Collective]
) -> Activity:
    """Of all GPUs of a report together, which for a rank is one."""
    talks = list(collectives)
    of_kernel, compute = sorted_out(talks, kernels)
    talking = [
        (one.start_ns or 0, (one.start_ns or 0) + (one.duration_ns or 0))
        for one in map(talks.__getitem__, of_kernel)
    ]
    moved = [
        (one.start_ns, one.start_ns + one.duration_ns)
        for one in copies
        if one.start_ns is not None and one.duration_ns is not None
    ]
    return Activity(
        joined(pair for pairs in compute.values() for pair in pairs), joined(talking), joined(moved)
    )


def jobs(runs: Iterable[Run]) -> tuple[Job, ...]:
    """The jobs of several ranks among the runs, those with at least two ranks that ran on a GPU.

    Runs of one job came in together, from one folder; of a rank that is there twice the
    last counts.
    """
    groups: dict[tuple[object, ...], dict[int, Run]] = defaultdict(dict)
    for run in runs:
        rank = run.report.rank
        if rank is not None and run.report.kernels:
            folder = PurePath(run.artifact).parent if run.artifact else None
            key = (
                run.sweep_id,
                folder,
                run.profiler,
                run.workload,
                run.batch_size,
                run.mode,
                run.report.world_size,
            )
            groups[key][rank] = run
    return tuple(
        _job([mine[rank] for rank in sorted(mine)]) for mine in groups.values() if len(mine) > 1
    )


def _job(runs: Sequence[Run]) -> Job:
    matched = match([_on_clock(run) for run in runs], groups_of(runs))
    clocks = _clocks(matched, len(runs))
    latest = [
        max((one.start_ns or 0) + clocks[place].shift for place, one in same.items())
        for same in matched
    ]
    uses = []
    for place, (run, clock) in enumerate(zip(runs, clocks, strict=True)):
        done = activity(run.report.kernels, run.report.copies, run.report.collectives)
        busy = done.busy
        span = busy[-1][1] - busy[0][0] if busy else 0
        waits = [
            last - (same[place].start_ns or 0) - clock.shift
            for last, same in zip(latest, matched, strict=True)
            if place in same
        ]
        waiting, last = (sum(waits), waits.count(0)) if waits else (None, None)
        times = (
            span,
            length(done.compute),
            length(done.communication),
            done.exposed_ns,
            span - length(busy),
        )
        offset, spread = clock.shift if clock.from_first else None, clock.spread if waits else None
        uses.append(
            RankUse(
                run,
                run.report.rank or 0,
                *times,
                len(waits),
                waiting,
                last,
                offset,
                spread,
                clock.shift,
            )
        )
    return Job(tuple(uses), runs[0].report.world_size)


class _Clock(NamedTuple):
    shift: int
    spread: int
    from_first: bool
    """Collectives lead to the first rank."""


def _clocks(matched: Sequence[Mapping[int, Collective]], count: int) -> list[_Clock]:
    """Of each rank, against the lowest one of the group that it shares most collectives with, and
    on from there."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for same in matched:
        one, *others = sorted(same)
        for other in others:
            pairs[one, other].append(_end(same[one]) - _end(same[other]))
    known: dict[int, _Clock] = {}
    while len(known) < count:
        ways = [
            (-len(ends), known_, new, sign)
            for (one, other), ends in pairs.items()
            for known_, new, sign in ((one, other, 1), (other, one, -1))
            if known_ in known and new not in known
        ]
        if not ways:
            first = min(place for place in range(count) if place not in known)
            is_first = first == 0 and any(0 in same for same in matched)
            known[first] = _Clock(0, 0, is_first)
            continue
        _, base, new, sign = min(ways)
        ends = pairs[min(base, new), max(base, new)]
        middle = median(ends)
        spread = round(median(abs(end - middle) for end in ends))
        whole = known[base]
        known[new] = _Clock(
            whole.shift + sign * round(middle), whole.spread + spread, whole.from_first
        )
    return [known[place] for place in range(count)]


def groups_of(runs: Sequence[Run]) -> list[dict[str, tuple[int | None, ...]]]:
    """For each run, process group -> places of its ranks among the runs, None for one that is
    not here.

    Of groups whose ranks the report states and that are smaller than the job.
    """
    places = {run.report.rank: place for place, run in enumerate(runs)}
    found = []
    for run in runs:
        try:
            stated = json.loads(run.report.environment.get("process_groups", "{}"))
            found.append({name: tuple(map(places.get, ranks)) for name, ranks in stated.items()})
        except (ValueError, TypeError, AttributeError):
            found.append({})
    return found


def since(run: Run) -> int:
    """When the clock of its report began, ns since 1970; 0 where the report does not state it."""
    base = run.report.environment.get("clock_base_ns", "")
    return int(base) if base.isdecimal() else 0


def _on_clock(run: Run) -> list[Collective]:
    """Its collectives, with times since 1970 where the report states when its clock began."""
    began = since(run)
    return [
        one._replace(start_ns=None if one.start_ns is None else one.start_ns + began)
        for one in run.report.collectives
    ]


def match(
    ranks: Sequence[Iterable[Collective]],
    groups: Sequence[Mapping[str, tuple[int | None, ...]]] = (),
) -> list[dict[int, Collective]]:
    """Every collective that all ranks of its group took part in, as place of the rank -> its
    record, in order of the start on the first of them.

    The n-th of a name and group on one rank is the n-th on each other. ``groups``: of each rank,
    the places of the ranks of its smaller groups. Where none are stated, a smaller group is the
    ranks that have its collectives, if they are as many as its size. Names that do not occur
    equally often on all ranks of a group, groups that are not all here, and kinds that may end at
    different times are left out.
    """
    Key = tuple[str, str | None, int | None, tuple[int | None, ...] | None]
    by_key: dict[Key, dict[int, list[Collective]]] = defaultdict(lambda: defaultdict(list))
    for place, collectives in enumerate(ranks):
        stated = groups[place] if groups else {}
        for one in collectives:
            kind = one.name.lower().replace("_", "")
            if (
                one.start_ns is not None
                and one.duration_ns is not None
                and any(t in kind for t in _TOGETHER)
            ):
                members = stated.get(one.group) if one.group is not None else None
                by_key[one.name, one.group, one.group_size, members][place].append(one)
    found: list[dict[int, Collective]] = []
    for (_, _, size, members), mine in by_key.items():
        everybody = members is None and (size is None or size >= len(ranks))
        places = range(len(ranks)) if everybody else members or tuple(mine)
        is_whole = everybody or (None not in places and len(places) == len(set(places)) == size)
        if (
            len(places) < 2
            or not is_whole
            or len({len(mine.get(place or 0, ())) for place in places}) != 1
        ):
            continue
        columns = {place or 0: sorted(mine[place or 0], key=_when) for place in places}
        found += (
            {place: column[at] for place, column in columns.items()}
            for at in range(len(columns[places[0] or 0]))
        )
    return sorted(found, key=lambda same: _when(same[min(same)]))


def _when(one: Collective) -> tuple[int, int]:
    return one.start_ns or 0, _end(one)


def _end(one: Collective) -> int:
    return (one.start_ns or 0) + (one.duration_ns or 0)
