"""Ranks of a job: communication that nothing hides, waiting, stragglers, and clocks that
collectives align."""

from __future__ import annotations

import time
from dataclasses import replace

from perfctl.orchestrator.ledger.usage.intervals import Intervals
from perfctl.orchestrator.ledger.usage.ranks import (
    RankActivity,
    add_exposed_ns_to_collectives,
    group_runs_into_multi_rank_jobs,
    match_collectives_across_ranks,
)
from perfctl.records.report import Collective, Copy, Kernel
from perfctl.records.run import Run
from tests.make.synthetic import foreign_run
from tests.make.tables import table


def ran(start, duration, device=0):
    return Kernel(0, "a kernel", start_ns=start, duration_ns=duration, device_index=device)


def talked(start, duration, name="all_reduce", group=None, size=None):
    return Collective(name, group, size, None, None, start, duration)


def on_rank(rank, collectives, kernels, **facts):
    own = [ran(one.start_ns or 0, int(one.duration_ns or 0)) for one in collectives]
    made: Run = foreign_run(
        rank + 1, kernels=[*kernels, *own], collectives=list(collectives), rank=rank, world_size=2
    )
    return replace(made, artifact=f"job/rank{rank}.json", **facts)


def test_what_is_shared_of_two_sets_of_times():
    def shared(*sets):
        first, second = map(Intervals, sets)
        return first.measure_overlap_ns(second)

    assert shared([(0, 10), (20, 30)], [(5, 22), (29, 40)]) == 5 + 2 + 1
    assert shared([(0, 10)], []) == shared([], [(0, 10)]) == 0
    assert shared([(0, 100)], [(10, 20), (30, 40)]) == 20


def test_time_of_a_collective_is_exposed_where_no_other_kernel_of_its_gpu_runs():
    kernels = [
        ran(0, 100),
        ran(90, 60),
        ran(0, 1000, device=1),
        ran(100, 100),
        ran(150, 100),
        ran(400, 10),
    ]
    calls = [talked(100, 100), talked(150, 100), talked(400, 10), talked(7000, 5)]
    found = add_exposed_ns_to_collectives(calls, kernels)
    # the last has no kernel: nothing is known
    assert [one.exposed_ns for one in found] == [50, 100, 10, None]
    assert [one._replace(exposed_ns=None) for one in found] == calls


def test_idle_is_what_neither_kernels_nor_copies_fill_and_copies_hide_no_communication():
    done = RankActivity(
        [ran(0, 10), ran(5, 10), ran(40, 20)], [Copy("HtoD", 8, 50, 20)], [talked(40, 20)]
    )
    assert (done.compute.pairs, done.communication.pairs) == ([(0, 15)], [(40, 60)])
    assert done.exposed_communication_ns == 20
    assert done.busy.pairs == [(0, 15), (40, 70)]


def test_the_rank_that_others_wait_for_is_named_and_clocks_are_aligned_by_the_ends():
    """Rank 1's clock is 1,000,000 ns ahead; its second collective ends 4 ns late."""
    ahead = 1_000_000
    first = on_rank(0, [talked(100, 50), talked(300, 40), talked(500, 20)], [ran(0, 90)])
    second = on_rank(
        1,
        [talked(ahead + 140, 10), talked(ahead + 330, 14), talked(ahead + 490, 30)],
        [ran(ahead, 60)],
    )
    (job,) = group_runs_into_multi_rank_jobs([second, first])
    zero, one = job.ranks
    assert (zero.rank, one.rank, zero.matched) == (0, 1, 3)
    assert (zero.offset_ns, one.offset_ns, one.spread_ns) == (0, -ahead, 0)
    assert (zero.waiting_ns, one.waiting_ns) == (40 + 30, 10)
    assert (zero.last, one.last) == (1, 2)
    assert job.straggler is one
    assert (zero.compute_ns, zero.communication_ns, zero.exposed_ns) == (90, 110, 110)
    assert zero.idle_ns == zero.span_ns - 90 - 110 == 520 - 200


def test_clocks_count_from_what_each_report_states():
    first, second = (on_rank(rank, [talked(100, 50)], [ran(0, 50)]) for rank in (0, 1))
    report = replace(second.report, environment={"clock_base_ns": "700"})
    (job,) = group_runs_into_multi_rank_jobs([first, replace(second, report=report)])
    assert job.ranks[1].offset_ns == -700


@table(
    "other",
    {
        "one more": [talked(at, 5) for at in (0, 10, 20)],
        "other names": [talked(0, 5, "broadcast"), talked(10, 5, "send")],
        "another group": [talked(at, 5, group="1") for at in (0, 10)],
        "other sizes": [talked(at, 5, size=1) for at in (0, 10)],
        "none": [],
    },
)
def test_collectives_that_may_not_be_the_same_are_not_matched(other):
    assert match_collectives_across_ranks([[talked(0, 5), talked(10, 5)], other]) == []


def test_without_a_common_collective_waiting_and_clocks_are_not_known():
    (job,) = group_runs_into_multi_rank_jobs(
        [on_rank(0, [talked(0, 5)], [ran(0, 3)]), on_rank(1, [], [ran(0, 3)])]
    )
    for rank in job.ranks:
        assert (rank.waiting_ns, rank.last, rank.offset_ns) == (None, None, None)
    assert (job.straggler, job.ranks[1].overlap) == (None, None)


def test_ranks_of_other_folders_and_ingests_are_other_jobs_and_one_rank_is_none():
    pair = [on_rank(rank, [talked(0, 5)], [ran(0, 3)]) for rank in (0, 1)]
    elsewhere = [replace(run, artifact=f"other/{run.report.rank}.json") for run in pair]
    later = [replace(run, sweep_id=99) for run in pair[:1]]
    alone = foreign_run(9, kernels=[ran(0, 1)])
    found = group_runs_into_multi_rank_jobs([*pair, *elsewhere, *later, alone])
    assert [[one.run for one in job.ranks] for job in found] == [pair, elsewhere]


def test_many_collectives_cost_no_more_than_their_number():
    """3,000 collectives among 12,000 kernels: each looks up what covers it, and does not go
    through all."""
    calls = [talked(100 * number, 30) for number in range(3_000)]
    kernels = [ran(100 * number + 20 * part, 15) for number in range(3_000) for part in range(4)]
    begin = time.process_time()
    found = add_exposed_ns_to_collectives(
        calls, [*kernels, *(ran(100 * number, 30) for number in range(3_000))]
    )
    assert time.process_time() - begin < 3
    assert {one.exposed_ns for one in found} == {30 - 15 - 10}
