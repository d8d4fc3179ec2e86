"""The ranks of a job in tables and sentences: communication that nothing hides, bandwidth,
stragglers and pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from perfctl.orchestrator.ledger.usage.exchange import JobCommunication, analyse_job_communication
from perfctl.orchestrator.ledger.usage.ranks import MultiRankJob, group_runs_into_multi_rank_jobs
from perfctl.orchestrator.report.numbers import (
    format_percent,
    format_ratio,
    format_si,
    format_time,
    round_to_six_significant_digits,
)
from perfctl.orchestrator.report.page.records import Finding
from perfctl.orchestrator.report.tables import (
    Cell,
    Column,
    Table,
    amount_with_unit_cell,
    build_table,
    count_cell,
    missing_cell,
    share_cell,
    size_cell,
    size_column,
    text_cell,
    text_column,
    time_cell,
    time_column,
)
from perfctl.records.run import Run

EXPOSED_MIN, LATE_MIN, STALLED_MIN = 0.1, 0.02, 0.1
"""Smaller shares of the span are no finding: of communication that nothing hides, of waiting for
one rank, of a pipeline."""
STRAGGLER_SHARE_MIN = 0.5
"""A straggler causes at least this share of what all stragglers cost, and twice what the next
one does."""
IMBALANCE_MIN = 1.1
"""Most compute over mean compute of a step from which on ranks are called uneven."""
LINK_SHARE_MIN, LARGE_BYTES = 0.5, 1_000_000
"""Bus bandwidths below this share of the link are a finding, of collectives with so many bytes
or more."""
NAMED_RANKS_MAX = 8
"""A process group with more ranks is named by their number."""
NO_MATCH = "the ranks have no collective in common, one for one"
NO_STEP = "kernels belong to no step"
NO_COMPUTE = "no compute"
GROUP = text_column("group", "ranks of the process group")
EXPOSED = time_column("exposed", "without a compute kernel, mean over the ranks")
BANDWIDTH = (
    Column("bus bandwidth", "B/s", note="NCCL's busbw, over the shortest duration of the group"),
    Column("of link", note="share of the peak of a GPU's link, one way, by the data sheet"),
)


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A job of several ranks that came in together."""

    JSON_INLINED = ("communication",)

    communication: JobCommunication
    findings: list[str]
    """What stands out, and what to do."""


def list_job_communications(runs: Iterable[Run]) -> tuple[JobCommunication, ...]:
    """Return the jobs of several ranks among the runs."""
    return tuple(map(analyse_job_communication, group_runs_into_multi_rank_jobs(runs)))


def build_communication_tables(communication: JobCommunication) -> tuple[Table, ...]:
    """Return the ranks; then exposed communication, steps, stragglers, stages of a pipeline and
    single collectives, if there are any."""
    makers = (
        build_exposed_communication_by_layer_table,
        build_steps_across_ranks_table,
        build_stragglers_table,
        build_pipeline_bubbles_table,
        build_collectives_table,
    )
    tables = filter(None, (make(communication) for make in makers))
    return (build_ranks_table(communication.job), *tables)


def build_ranks_table(job: MultiRankJob) -> Table:
    """Return a row per rank."""
    columns = [
        Column("rank"),
        time_column("span", "first kernel or copy to the last one", is_optional=True),
        time_column("compute", "time with a kernel that is of no collective"),
        time_column("collectives", "time with a collective, waiting included"),
        time_column("exposed", "of that, time without a compute kernel"),
        Column("hidden", is_optional=True, note="share of collectives under compute kernels"),
        time_column("idle", "of the span, without kernel and copy"),
        time_column("waits", "until the last rank starts the collectives, summed"),
        Column("last", note="collectives that this rank was the last to start"),
        time_column("clock", "added to this rank's clock it gives the first rank's"),
        time_column("±", "median absolute deviation of the same", is_optional=True),
    ]
    rows = [
        [
            rank.rank,
            rank.span_ns,
            rank.compute_ns,
            rank.communication_ns,
            rank.exposed_ns,
            share_cell(rank.overlap, "no collectives"),
            rank.idle_ns,
            time_cell(rank.waiting_ns, NO_MATCH),
            count_cell(rank.last, NO_MATCH),
            time_cell(rank.offset_ns, NO_MATCH),
            time_cell(rank.spread_ns, NO_MATCH),
        ]
        for rank in job.ranks
    ]
    caption = "Ranks"
    if job.world_size not in (None, len(job.ranks)):
        caption += f": {len(job.ranks)} of {job.world_size}"
    if matched := job.ranks[0].matched:
        caption += f", waiting over {matched} collectives"
    if job.straggler is not None:
        waits = format_time(max(rank.waiting_ns or 0 for rank in job.ranks))
        caption += f": the others wait for rank {job.straggler.rank} most, up to {waits}"
    drawn = build_table(caption, columns, rows)
    assert drawn is not None, "a job has ranks"
    return drawn


def _build_bus_bandwidth_cells(
    communication: JobCommunication, bytes_per_second: float | None, missing_reason: str | None
) -> tuple[Cell, Cell]:
    if bytes_per_second is None:
        none = missing_cell(missing_reason or "not known")
        return none, none
    share = None if communication.link_peak is None else bytes_per_second / communication.link_peak
    return amount_with_unit_cell(bytes_per_second, "B/s"), share_cell(
        share, communication.link_reason or "not known"
    )


def _build_launching_layer_cell(
    layer: str | None, attribution_method: str | None, missing_reason: str | None = None
) -> Cell:
    if layer is None:
        return missing_cell(
            missing_reason or "no layer launched them, and none ran backward before"
        )
    return text_cell(
        layer if attribution_method == "range" else f"after {layer} backward",
        f"by {attribution_method}",
    )


def _build_process_group_cell(
    communication: JobCommunication, rank_count: int | None, member_ranks: Sequence[int] = ()
) -> Cell:
    """Return the process group, if there are smaller ones than the job."""
    size = len(communication.job.ranks)
    if not any((layer.group_size or size) < size for layer in communication.layers):
        return missing_cell("all ranks")
    if member_ranks and len(member_ranks) <= NAMED_RANKS_MAX:
        return text_cell(" ".join(map(str, member_ranks)))
    return (
        missing_cell("the trace does not state it")
        if rank_count is None
        else text_cell(f"{rank_count} ranks")
    )


def build_exposed_communication_by_layer_table(communication: JobCommunication) -> Table | None:
    """Return a row per name and layer, the most exposed first."""
    layer_note = "that launched them, or whose backward was the last before"
    columns = [
        text_column("collective"),
        GROUP,
        text_column("layer", layer_note),
        Column("calls", note="of one rank, mean"),
        EXPOSED,
        time_column("most", "the same on the rank with the most"),
        *BANDWIDTH,
    ]
    rows = [
        [
            layer.name,
            _build_process_group_cell(communication, layer.group_size),
            _build_launching_layer_cell(layer.layer, layer.layer_by),
            Cell(f"{layer.calls:g}", value=layer.calls),
            layer.exposed_ns,
            layer.max_ns,
            *_build_bus_bandwidth_cells(communication, layer.bandwidth, layer.bandwidth_reason),
        ]
        for layer in communication.layers
    ]
    link = ""
    if communication.link_peak is not None:
        peak = format_si(communication.link_peak, "B/s")
        link = f", link of a GPU: {communication.link} with {peak} one way"
    caption = f"Exposed communication of the job by collective and layer{link}"
    return build_table(caption, columns, rows)


def build_steps_across_ranks_table(communication: JobCommunication) -> Table | None:
    """Return a row per step."""
    columns = [
        Column("step"),
        time_column("span", "median over the ranks, first to last kernel", is_optional=True),
        EXPOSED,
        Column("share", note="of the span"),
        time_column("most exposed", is_optional=True),
        time_column("compute", "mean over the ranks"),
        Column("imbalance", note="most compute over mean compute"),
        Column("with the most", is_optional=True),
    ]
    rows = []
    for step in communication.steps:
        mean, imbalance = fmean(step.exposed_ns), step.imbalance
        rank = communication.job.ranks[step.compute_ns.index(max(step.compute_ns))].rank
        no_compute = missing_cell(NO_COMPUTE)
        rows.append(
            [
                count_cell(step.step, NO_STEP),
                step.span_ns,
                mean,
                share_cell(mean / step.span_ns if step.span_ns else None),
                max(step.exposed_ns),
                fmean(step.compute_ns),
                Cell(format_ratio(imbalance), value=round_to_six_significant_digits(imbalance))
                if imbalance
                else no_compute,
                text_cell(f"rank {rank}") if imbalance else no_compute,
            ]
        )
    return build_table("Steps of all ranks, only kernels launched in a step", columns, rows)


def build_stragglers_table(communication: JobCommunication) -> Table | None:
    """Return a row per step and rank that came last in it."""
    columns = [
        *map(Column, ("step", "straggler")),
        text_column("last in"),
        time_column("cost", "starts after the second last rank: what all would gain"),
        time_column("± clocks", "collectives x the errors of both ranks' clocks"),
        time_column("others wait", "for it, summed over ranks and collectives"),
    ]
    rows = [
        [
            count_cell(straggler.step, NO_STEP),
            straggler.rank,
            f"{straggler.times} of {straggler.collectives}",
            straggler.straggler_ns,
            time_cell(straggler.error_ns, "fewer than 3 collectives align the clocks"),
            straggler.waiting_ns,
        ]
        for straggler in communication.stragglers
    ]
    return build_table("Stragglers", columns, rows)


def build_pipeline_bubbles_table(communication: JobCommunication) -> Table | None:
    """Return a row per rank of a pipeline."""
    note = "time with a send or receive between two ranks and no other kernel"
    columns = [
        Column("rank"),
        time_column("bubble", note),
        Column("share", note="of the rank's span"),
    ]
    rows = [
        [bubble.rank, bubble.waiting_ns, share_cell(bubble.share)]
        for bubble in communication.bubbles
    ]
    return build_table("Pipeline: waiting in sends and receives", columns, rows)


def build_collectives_table(communication: JobCommunication) -> Table | None:
    """Return a row per collective that all ranks of its process group have."""
    columns = [
        Column("step"),
        text_column("collective"),
        GROUP,
        text_column("layer"),
        size_column("bytes", "input of one rank"),
        time_column("shortest", "of all ranks of the group"),
        *BANDWIDTH,
        EXPOSED,
        Column("last rank"),
        time_column("late", "after the second last rank"),
        time_column("after median", "after the median start"),
    ]
    rows = [
        [
            count_cell(item.step, NO_STEP),
            item.name,
            _build_process_group_cell(communication, item.group_size, item.ranks),
            _build_launching_layer_cell(item.layer, item.layer_by, item.layer_reason),
            size_cell(item.bytes, item.bandwidth_reason or "not known"),
            item.shortest_ns,
            *_build_bus_bandwidth_cells(communication, item.bandwidth, item.bandwidth_reason),
            item.exposed_ns,
            count_cell(item.last, "several ranks started last"),
            item.straggler_ns,
            item.straggler_median_ns,
        ]
        for item in communication.collectives
    ]
    return build_table("Collectives of all ranks", columns, rows)


def find_communication_costs(communication: JobCommunication) -> tuple[Finding, ...]:
    """Return what to do about the communication of a job, what costs most first; nothing if it is
    small, even and hidden."""
    judges = (
        _find_costly_straggler,
        _find_exposed_communication,
        _find_uneven_work,
        _find_low_bandwidth,
        _find_pipeline_bubbles,
    )
    stated = (finding for judge in judges if (finding := judge(communication)))
    return tuple(sorted(stated, key=lambda finding: -(finding.impact_share or 0.0)))


def _compute_job_span_ns(communication: JobCommunication) -> float:
    return sum(step.span_ns for step in communication.steps) or median(
        rank.span_ns for rank in communication.job.ranks
    )


def _find_costly_straggler(communication: JobCommunication) -> Finding | None:
    costs = sorted(communication.straggler_ns_by_rank.items(), key=lambda pair: -pair[1])
    if not costs:
        return None
    rank, cost = costs[0]
    delays = [item for item in communication.stragglers if item.rank == rank]
    if any(item.error_ns is None for item in delays):
        return None
    error, span = sum(item.error_ns or 0 for item in delays), _compute_job_span_ns(communication)
    is_most = cost >= STRAGGLER_SHARE_MIN * sum(ns for _, ns in costs)
    is_leading = is_most and all(cost > 2 * ns for _, ns in costs[1:2])
    if not is_leading or cost - error < LATE_MIN * span:
        return None
    worst = max(delays, key=lambda item: item.straggler_ns)
    most = ""
    if len(communication.steps) > 1 and worst.step is not None:
        most = f", most in step {worst.step} ({format_time(worst.straggler_ns)})"
    of_rank = sum(rank in item.ranks for item in communication.collectives)
    index = [use.rank for use in communication.job.ranks].index(rank)
    compute = sum(step.compute_ns[index] for step in communication.steps)
    mean = sum(fmean(step.compute_ns) for step in communication.steps)
    cause = (
        "Its kernels take no longer than the others', so it begins late: look at its data "
        "loading, its Python and its host"
    )
    if mean and compute >= IMBALANCE_MIN * mean:
        slower = f"It computes {format_ratio(compute / mean)} times as long as the mean"
        cause = f"{slower}: give it less work, or compare its clocks and temperature (nvidia-smi)"
    text = (
        f"Rank {rank} is a straggler: it starts {sum(item.times for item in delays)} of its "
        f"{of_rank} collectives last, {format_time(cost)} (± {format_time(error)}, clock error) in "
        f"total after the rank before it, {format_percent(cost / span)} of the time{most}. The "
        f"others wait {format_time(sum(item.waiting_ns for item in delays))} for it, added up. "
        f"{cause}."
    )
    return Finding(text, "ranks", impact_ns=cost, step_ns=span)


def _find_exposed_communication(communication: JobCommunication) -> Finding | None:
    ranks, span = communication.job.ranks, _compute_job_span_ns(communication)
    exposed = sum(fmean(step.exposed_ns) for step in communication.steps)
    exposed = exposed or fmean(rank.exposed_ns for rank in ranks)
    if not span or exposed < EXPOSED_MIN * span:
        return None
    waits = [rank.waiting_ns for rank in ranks if rank.waiting_ns is not None]
    most = waiting = ""
    if waits:
        waiting = f"; inside them, {format_time(fmean(waits))} is waiting for stragglers"
    first = next(iter(communication.layers), None)
    if first is not None and first.exposed_ns:
        layer = f"of {first.layer}" if first.layer else "of no known layer"
        if first.layer and first.layer_by != "range":
            layer = f"after {first.layer} backward"
        most = f" Most is in {first.name} {layer}: {format_time(first.exposed_ns)}."
    text = (
        f"Exposed communication of the job: collectives run {format_time(exposed)} alone{waiting} "
        f"(means of {len(ranks)} ranks). Without any compute kernel, a rank runs them for "
        f"{format_percent(exposed / span)} of its {format_time(span)} (median).{most} "
        "Remove the waiting first; "
        "then launch collectives earlier (prefetch of all-gathers, other sizes of gradient "
        "buckets), or send less (fp16 gradients, fewer steps with a reduction)."
    )
    return Finding(text, "ranks", impact_ns=exposed, step_ns=span)


def _find_uneven_work(communication: JobCommunication) -> Finding | None:
    step = max(communication.steps, key=lambda step: step.imbalance or 0.0, default=None)
    if step is None or (step.imbalance or 0.0) < IMBALANCE_MIN:
        return None
    most = max(step.compute_ns)
    lost = most - fmean(step.compute_ns)
    if lost < LATE_MIN * step.span_ns:
        return None
    at_step = "" if step.step is None else f" in step {step.step}"
    rank = communication.job.ranks[step.compute_ns.index(most)].rank
    text = (
        f"Work is uneven{at_step}: rank {rank} computes {format_time(most)}, "
        f"{format_ratio(step.imbalance or 0)} times the mean of all. Evened out, it would take "
        f"{format_time(lost)} less: compare lengths of its samples, experts or tables."
    )
    return Finding(text, "ranks")


def _find_low_bandwidth(communication: JobCommunication) -> Finding | None:
    speeds = [
        item.bandwidth
        for item in communication.collectives
        if item.bandwidth is not None and (item.bytes or 0) >= LARGE_BYTES
    ]
    peak = communication.link_peak
    if peak is None or not speeds or median(speeds) >= LINK_SHARE_MIN * peak:
        return None
    text = (
        f"{len(speeds)} collectives of 1 MB or more reach a bus bandwidth of "
        f"{format_si(median(speeds), 'B/s')} (median), {format_percent(median(speeds) / peak)} of "
        f"{communication.link}'s {format_si(peak, 'B/s')} one way. Send fewer and larger "
        "messages, and see with NCCL_DEBUG=INFO and nvidia-smi topo -m whether NCCL uses that "
        "link."
    )
    return Finding(text, "ranks")


def _find_pipeline_bubbles(communication: JobCommunication) -> Finding | None:
    worst = max(communication.bubbles, key=lambda bubble: bubble.share, default=None)
    if worst is None or worst.share < STALLED_MIN:
        return None
    mean = fmean(bubble.share for bubble in communication.bubbles)
    text = (
        f"Pipeline bubbles: rank {worst.rank} waits in sends and receives for "
        f"{format_percent(worst.share)} of its time ({format_time(worst.waiting_ns)}), "
        f"{format_percent(mean)} in the mean of {len(communication.bubbles)} ranks. More "
        "microbatches, an interleaved schedule, or an evener split of the layers makes them "
        "smaller."
    )
    return Finding(text, "ranks")


def list_multi_rank_job_json(runs: Iterable[Run]) -> list[JobOutput]:
    """Return the jobs of several ranks among the runs, for ``perfctl ledger --json``."""
    return [
        JobOutput(
            communication, [finding.text for finding in find_communication_costs(communication)]
        )
        for communication in list_job_communications(runs)
    ]
