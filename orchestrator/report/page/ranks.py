"""The ranks of a job side by side: communication that nothing hides, waiting, clocks."""

from __future__ import annotations

from collections.abc import Iterable

from perfctl.orchestrator.analyse.usage.ranks import Job, jobs
from perfctl.orchestrator.report.cells import count, share_cell, time_cell
from perfctl.orchestrator.report.numbers import time
from perfctl.orchestrator.report.tables import Column, Table, table
from perfctl.records.run import Run

_NO_MATCH = "the ranks have no collective in common, one for one"


def ranks_tables(runs: Iterable[Run]) -> tuple[Table, ...]:
    """A table a job of several ranks, a row a rank; none where there is no such job."""
    return tuple(map(ranks_table, jobs(runs)))


def ranks_table(job: Job) -> Table:
    """A row a rank."""
    columns = [
        Column("rank"),
        Column("span", base="ns", note="from the first kernel's or copy's start to the last one's end"),
        Column("compute", base="ns", note="time with a kernel that is of no collective"),
        Column("collectives", base="ns", note="time with a kernel of a collective, waiting for other ranks included"),
        Column("exposed", base="ns", note="of that, time without a compute kernel"),
        Column("hidden", note="share of the collectives' time that compute kernels cover"),
        Column("idle", base="ns", note="of the span, without kernel and copy"),
        Column("waits", base="ns", note="from this rank's start of a collective to the last rank's, summed"),
        Column("last", note="collectives that this rank was the last to start"),
        Column(
            "clock", base="ns", note="added to this rank's clock it gives the first rank's, by the ends of collectives"
        ),
        Column("±", base="ns", note="median absolute deviation of the same"),
    ]
    rows = [
        [count(one.rank), time_cell(one.span_ns), time_cell(one.compute_ns), time_cell(one.communication_ns),
         time_cell(one.exposed_ns), share_cell(one.overlap, "no collectives"), time_cell(one.idle_ns),
         time_cell(one.waiting_ns, _NO_MATCH), count(one.last, _NO_MATCH), time_cell(one.offset_ns, _NO_MATCH),
         time_cell(one.spread_ns, _NO_MATCH)]
        for one in job.ranks
    ]  # fmt: skip
    found = table(f"Ranks{_said(job)}", columns, rows)
    assert found is not None, "a job has ranks"
    return found


def _said(job: Job) -> str:
    there = f": {len(job.ranks)} of {job.world_size}" if job.world_size not in (None, len(job.ranks)) else ""
    matched = job.ranks[0].matched
    over = f", waiting over {matched} collectives" if matched else ""
    late = job.straggler
    if late is None:
        return f"{there}{over}"
    waits = max(one.waiting_ns or 0 for one in job.ranks)
    return f"{there}{over}: the others wait for rank {late.rank} most, up to {time(waits)}"
