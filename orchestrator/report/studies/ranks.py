"""The ranks of a job in tables and sentences: communication that nothing hides, bandwidth,
stragglers and pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from perfctl.orchestrator.ledger.usage.exchange import JobTalk, LayerTalk, job_talk
from perfctl.orchestrator.ledger.usage.ranks import Job, jobs
from perfctl.orchestrator.report.numbers import full, percent, ratio, rounded, si, time
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    count,
    nothing,
    number_cell,
    share_cell,
    size_cell,
    table,
    text_cell,
    time_cell,
)
from perfctl.records.run import Run

MUCH_EXPOSED, MUCH_LATE, MUCH_STALLED = 0.1, 0.02, 0.1
"""Smaller shares of the span are no finding: of communication that nothing hides, of waiting for
one rank, of a pipeline."""
MOST_LATE = 0.5
"""A straggler causes at least this share of what all late ranks cost, and twice what the next
one does."""
UNEVEN = 1.1
"""Most compute over mean compute of a step from which on ranks are called uneven."""
SLOW, LARGE = 0.5, 1_000_000
"""Bus bandwidths below this share of the link are a finding, of collectives with so many bytes
or more."""
NAMED_RANKS = 8
"""A process group with more ranks is named by their number."""
_NO_MATCH = "the ranks have no collective in common, one for one"
_NO_ERROR = "fewer than 3 collectives align the clocks"


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A job of several ranks that came in together."""

    JSON_INLINED = ("talk",)

    talk: JobTalk
    findings: list[str]
    """What stands out, and what to do."""


def talks(runs: Iterable[Run]) -> tuple[JobTalk, ...]:
    """The jobs of several ranks among the runs."""
    return tuple(map(job_talk, jobs(runs)))


def ranks_tables(talk: JobTalk) -> tuple[Table, ...]:
    """The ranks; then exposed communication, steps, late ranks, stages of a pipeline and single
    collectives, where there are any."""
    found = (
        layers_table(talk),
        steps_table(talk),
        late_table(talk),
        bubbles_table(talk),
        exchanges_table(talk),
    )
    return (ranks_table(talk.job), *(one for one in found if one is not None))


def ranks_table(job: Job) -> Table:
    """A row a rank."""
    columns = [
        Column("rank"),
        Column(
            "span",
            is_optional=True,
            base="ns",
            note="from the first kernel's or copy's start to the last one's end",
        ),
        Column("compute", base="ns", note="time with a kernel that is of no collective"),
        Column(
            "collectives",
            base="ns",
            note="time with a kernel of a collective, waiting for other ranks included",
        ),
        Column("exposed", base="ns", note="of that, time without a compute kernel"),
        Column(
            "hidden",
            is_optional=True,
            note="share of the collectives' time that compute kernels cover",
        ),
        Column("idle", base="ns", note="of the span, without kernel and copy"),
        Column(
            "waits",
            base="ns",
            note="from this rank's start of a collective to the last rank's, summed",
        ),
        Column("last", note="collectives that this rank was the last to start"),
        Column(
            "clock",
            base="ns",
            note="added to this rank's clock it gives the first rank's, by the ends of collectives",
        ),
        Column("±", is_optional=True, base="ns", note="median absolute deviation of the same"),
    ]
    rows = [
        [
            count(one.rank),
            time_cell(one.span_ns),
            time_cell(one.compute_ns),
            time_cell(one.communication_ns),
            time_cell(one.exposed_ns),
            share_cell(one.overlap, "no collectives"),
            time_cell(one.idle_ns),
            time_cell(one.waiting_ns, _NO_MATCH),
            count(one.last, _NO_MATCH),
            time_cell(one.offset_ns, _NO_MATCH),
            time_cell(one.spread_ns, _NO_MATCH),
        ]
        for one in job.ranks
    ]
    found = table(f"Ranks{_said(job)}", columns, rows)
    assert found is not None, "a job has ranks"
    return found


def _said(job: Job) -> str:
    there = (
        f": {len(job.ranks)} of {job.world_size}"
        if job.world_size not in (None, len(job.ranks))
        else ""
    )
    matched = job.ranks[0].matched
    over = f", waiting over {matched} collectives" if matched else ""
    late = job.straggler
    if late is None:
        return f"{there}{over}"
    waits = max(one.waiting_ns or 0 for one in job.ranks)
    return f"{there}{over}: the others wait for rank {late.rank} most, up to {time(waits)}"


def _bandwidth_columns() -> tuple[Column, Column]:
    return (
        Column(
            "bus bandwidth",
            "B/s",
            note=(
                "NCCL's busbw, over the shortest duration among the ranks of the process group: "
                "the others waited"
            ),
        ),
        Column("of link", note="share of the peak of a GPU's link, one way, by the data sheet"),
    )


def _bandwidth_cells(talk: JobTalk, speed: float | None, why: str | None) -> tuple[Cell, Cell]:
    if speed is None:
        return nothing(why or "not known"), nothing(why or "not known")
    share = None if talk.link_peak is None else speed / talk.link_peak
    return number_cell(si(speed, "B/s"), full(speed, "B/s"), speed), share_cell(
        share, talk.link_reason or "not known"
    )


def _layer_cell(layer: str | None, by: str | None, why: str | None = None) -> Cell:
    if layer is None:
        return nothing(why or "no layer launched them, and none ran backward before")
    return text_cell(layer if by == "range" else f"after {layer} backward", f"by {by}")


def _of_groups(talk: JobTalk) -> tuple[Column, ...]:
    """Which process group, where there are smaller ones than the job."""
    smaller = any(
        one.group_size is not None and one.group_size < len(talk.job.ranks) for one in talk.layers
    )
    return (Column("group", style="text", note="ranks of the process group"),) if smaller else ()


def _group_cell(talk: JobTalk, size: int | None, ranks: Sequence[int] = ()) -> list[Cell]:
    if not _of_groups(talk):
        return []
    if ranks and len(ranks) <= NAMED_RANKS:
        return [text_cell(" ".join(map(str, ranks)))]
    return [nothing("the trace does not state it") if size is None else text_cell(f"{size} ranks")]


def layers_table(talk: JobTalk) -> Table | None:
    """A row a name and layer, the most exposed first."""
    columns = [
        Column("collective", style="text"),
        *_of_groups(talk),
        Column(
            "layer", style="text", note="that launched them, or whose backward was the last before"
        ),
        Column("calls", note="of one rank, mean"),
        Column(
            "exposed",
            base="ns",
            note="time without a compute kernel, mean over the ranks; with waiting",
        ),
        Column("most", base="ns", note="the same on the rank with the most"),
        *_bandwidth_columns(),
    ]
    rows = [
        [
            text_cell(one.name),
            *_group_cell(talk, one.group_size),
            _layer_cell(one.layer, one.layer_by),
            Cell(f"{one.calls:g}", value=one.calls),
            time_cell(one.exposed_ns),
            time_cell(one.most_ns),
            *_bandwidth_cells(talk, one.bandwidth, one.bandwidth_reason),
        ]
        for one in talk.layers
    ]
    return table(
        f"Exposed communication of the job by collective and layer{_of_link(talk)}", columns, rows
    )


def _of_link(talk: JobTalk) -> str:
    if talk.link_peak is None:
        return ""
    return f", link of a GPU: {talk.link} with {si(talk.link_peak, 'B/s')} one way"


def steps_table(talk: JobTalk) -> Table | None:
    """A row a step."""
    columns = [
        Column("step"),
        Column("span", is_optional=True, base="ns", note="median over the ranks"),
        Column("exposed", base="ns", note="mean over the ranks"),
        Column("share", note="of the span"),
        Column("most exposed", is_optional=True, base="ns"),
        Column("compute", base="ns", note="mean over the ranks"),
        Column("imbalance", note="most compute over mean compute"),
        Column("with the most", is_optional=True),
    ]
    rows = []
    for one in talk.steps:
        mean, uneven = fmean(one.exposed_ns), one.imbalance
        most = talk.job.ranks[one.compute_ns.index(max(one.compute_ns))].rank
        rows.append(
            [
                count(one.step, "kernels belong to no step"),
                time_cell(one.span_ns),
                time_cell(mean),
                share_cell(mean / one.span_ns if one.span_ns else None),
                time_cell(max(one.exposed_ns)),
                time_cell(fmean(one.compute_ns)),
                nothing("no compute")
                if uneven is None
                else Cell(ratio(uneven), value=rounded(uneven)),
                nothing("no compute") if uneven is None else text_cell(f"rank {most}"),
            ]
        )
    return table("Steps of all ranks", columns, rows)


def late_table(talk: JobTalk) -> Table | None:
    """A row a step and rank that came last in it."""
    columns = [
        Column("step"),
        Column("late rank"),
        Column("last in", style="text"),
        Column(
            "cost", base="ns", note="sum of its starts after the second last: what all would gain"
        ),
        Column(
            "± clocks",
            base="ns",
            note="error of the cost: collectives x the errors of both ranks' clocks",
        ),
        Column(
            "others wait",
            base="ns",
            note="for it, summed over the other ranks and these collectives",
        ),
    ]
    rows = [
        [
            count(one.step, "kernels belong to no step"),
            count(one.rank),
            text_cell(f"{one.times} of {one.of}"),
            time_cell(one.late_ns),
            time_cell(one.error_ns, _NO_ERROR),
            time_cell(one.waiting_ns),
        ]
        for one in talk.late
    ]
    return table("Late ranks", columns, rows)


def bubbles_table(talk: JobTalk) -> Table | None:
    """A row a rank of a pipeline."""
    columns = [
        Column("rank"),
        Column(
            "bubble",
            base="ns",
            note="time with a send or receive between two ranks and no other kernel",
        ),
        Column("share", note="of the rank's span"),
    ]
    rows = [
        [count(one.rank), time_cell(one.waiting_ns), share_cell(one.share)] for one in talk.bubbles
    ]
    return table("Pipeline: waiting in sends and receives", columns, rows)


def exchanges_table(talk: JobTalk) -> Table | None:
    """A row a collective that all ranks of its process group have."""
    columns = [
        Column("step"),
        Column("collective", style="text"),
        *_of_groups(talk),
        Column("layer", style="text"),
        Column("bytes", base="B", note="input of one rank"),
        Column("shortest", base="ns", note="of all ranks of the group"),
        *_bandwidth_columns(),
        Column("exposed", base="ns", note="mean over the ranks"),
        Column("last rank"),
        Column("late", base="ns", note="after the second last rank"),
        Column("after median", base="ns", note="after the median start"),
    ]
    rows = [
        [
            count(one.step, "its kernel belongs to no step"),
            text_cell(one.name),
            *_group_cell(talk, one.group_size, one.ranks),
            _layer_cell(one.layer, one.layer_by, one.layer_reason),
            size_cell(one.bytes, one.bandwidth_reason or "not known"),
            time_cell(one.shortest_ns),
            *_bandwidth_cells(talk, one.bandwidth, one.bandwidth_reason),
            time_cell(one.exposed_ns),
            count(one.last, "several ranks started last"),
            time_cell(one.late_ns),
            time_cell(one.late_median_ns),
        ]
        for one in talk.exchanges
    ]
    return table("Collectives of all ranks", columns, rows)


def rank_findings(talk: JobTalk) -> tuple[Finding, ...]:
    """What to do about the communication of a job; nothing where it is small, even and hidden."""
    said = (*_straggler(talk), *_exposed(talk), *_uneven(talk), *_slow(talk), *_stalled(talk))
    return tuple(Finding(text, "ranks") for text in said)


def _span(talk: JobTalk) -> float:
    return sum(one.span_ns for one in talk.steps) or median(one.span_ns for one in talk.job.ranks)


def _straggler(talk: JobTalk) -> Iterator[str]:
    costs = sorted(talk.late_by_rank.items(), key=lambda pair: -pair[1])
    if not costs:
        return
    rank, cost = costs[0]
    mine = [one for one in talk.late if one.rank == rank]
    if any(one.error_ns is None for one in mine):
        return
    error, span = sum(one.error_ns or 0 for one in mine), _span(talk)
    others = sum(other for _, other in costs[1:])
    leads = cost >= MOST_LATE * (cost + others) and all(cost > 2 * other for _, other in costs[1:2])
    if not leads or cost - error < MUCH_LATE * span:
        return
    worst = max(mine, key=lambda one: one.late_ns)
    where = (
        f", most in step {worst.step} ({time(worst.late_ns)})"
        if len(talk.steps) > 1 and worst.step is not None
        else ""
    )
    times, of = sum(one.times for one in mine), sum(rank in one.ranks for one in talk.exchanges)
    place = next(at for at, one in enumerate(talk.job.ranks) if one.rank == rank)
    compute, mean = (
        sum(one.compute_ns[place] for one in talk.steps),
        sum(fmean(one.compute_ns) for one in talk.steps),
    )
    if mean and compute >= UNEVEN * mean:
        slower = f"It computes {ratio(compute / mean)} times as long as the mean"
        cause = f"{slower}: give it less work, or compare its clocks and temperature (nvidia-smi)"
    else:
        cause = (
            "Its kernels take no longer than the others', so it begins late: look at its data "
            "loading, its Python and its host"
        )
    yield (
        f"Rank {rank} is a straggler: it starts {times} of its {of} collectives last, {time(cost)} "
        f"(± {time(error)} by the clocks) after the next rank in sum, {percent(cost / span)} of "
        f"the time{where}. The others wait {time(sum(one.waiting_ns for one in mine))} for it, "
        f"added up. {cause}."
    )


def _exposed(talk: JobTalk) -> Iterator[str]:
    ranks, span = talk.job.ranks, _span(talk)
    exposed = sum(fmean(one.exposed_ns) for one in talk.steps) or fmean(
        one.exposed_ns for one in ranks
    )
    if not span or exposed < MUCH_EXPOSED * span:
        return
    waits = [one.waiting_ns for one in ranks if one.waiting_ns is not None]
    waiting = (
        f" From start to the last rank's start of all collectives they wait {time(fmean(waits))}."
        if waits
        else ""
    )
    first = talk.layers[0] if talk.layers and talk.layers[0].exposed_ns else None
    most = (
        f" Most is in {_named(first)}: {time(first.exposed_ns or 0)}." if first is not None else ""
    )
    yield (
        f"Exposed communication of the job: on average over {len(ranks)} ranks, collectives run "
        f"{time(exposed)} without any compute kernel, {percent(exposed / span)} of the "
        f"{time(span)} of a rank (median).{most}{waiting} Remove the waiting first; then launch "
        "collectives earlier (prefetch of all-gathers, other sizes of gradient buckets), or send "
        "less (fp16 gradients, fewer steps with a reduction)."
    )


def _named(one: LayerTalk) -> str:
    if one.layer is None:
        return f"{one.name} of no known layer"
    return (
        f"{one.name} of {one.layer}"
        if one.layer_by == "range"
        else f"{one.name} after {one.layer} backward"
    )


def _uneven(talk: JobTalk) -> Iterator[str]:
    known = [(one.imbalance, one) for one in talk.steps if one.imbalance is not None]
    worst, step = max(known, key=lambda pair: pair[0], default=(None, None))
    if worst is None or step is None or worst < UNEVEN:
        return
    most = max(step.compute_ns)
    lost = most - fmean(step.compute_ns)
    if lost < MUCH_LATE * step.span_ns:
        return
    where = "" if step.step is None else f" in step {step.step}"
    rank = talk.job.ranks[step.compute_ns.index(most)].rank
    yield (
        f"Work is uneven{where}: rank {rank} computes {time(most)}, {ratio(worst)} times the mean "
        f"of all. Evened out, it would take {time(lost)} less: compare lengths of its samples, "
        "experts or tables."
    )


def _slow(talk: JobTalk) -> Iterator[str]:
    large = [
        one for one in talk.exchanges if one.bandwidth is not None and (one.bytes or 0) >= LARGE
    ]
    if talk.link_peak is None or not large:
        return
    middle = median(one.bandwidth or 0 for one in large)
    if middle >= SLOW * talk.link_peak:
        return
    yield (
        f"{len(large)} collectives of 1 MB or more reach a bus bandwidth of {si(middle, 'B/s')} "
        f"(median), {percent(middle / talk.link_peak)} of {talk.link}'s "
        f"{si(talk.link_peak, 'B/s')} one way. Send fewer and larger messages, and see with "
        "NCCL_DEBUG=INFO and nvidia-smi topo -m whether NCCL uses that link."
    )


def _stalled(talk: JobTalk) -> Iterator[str]:
    worst = max(talk.bubbles, key=lambda one: one.share, default=None)
    if worst is None or worst.share < MUCH_STALLED:
        return
    mean = fmean(one.share for one in talk.bubbles)
    yield (
        f"Pipeline bubbles: rank {worst.rank} waits in sends and receives for "
        f"{percent(worst.share)} of its time ({time(worst.waiting_ns)}), {percent(mean)} in the "
        f"mean of {len(talk.bubbles)} ranks. More microbatches, an interleaved schedule, or an "
        "evener split of the layers makes them smaller."
    )


def job_outputs(runs: Iterable[Run]) -> list[JobOutput]:
    """Return the jobs of several ranks among the runs, for ``perfctl ledger --json``."""
    return [
        JobOutput(talk, [finding.text for finding in rank_findings(talk)]) for talk in talks(runs)
    ]
