"""Process groups smaller than the job: tensor-parallel pairs inside a data-parallel job, each
judged by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from perfctl.orchestrator.ingest.ingest import ingest_paths
from perfctl.orchestrator.ledger.usage.exchange import analyse_job_communication
from perfctl.orchestrator.ledger.usage.ranks import (
    add_exposed_ns_to_collectives,
    group_runs_into_multi_rank_jobs,
    match_collectives_across_ranks,
)
from perfctl.orchestrator.report.ledger.ranks import (
    build_collectives_table,
    build_exposed_communication_by_layer_table,
    find_communication_costs,
)
from perfctl.orchestrator.store import database, read
from perfctl.orchestrator.stored_runs import load_readable_runs
from perfctl.records.report import Collective, Kernel
from perfctl.records.run import Run
from tests.make.kineto import event, kernel
from tests.make.synthetic import foreign_run
from tests.make.tables import table

MS = 1_000_000
PAIRS = {"1": (0, 1), "2": (2, 3), "3": (0, 2), "4": (1, 3)}
"""Of four ranks: two pairs of tensor parallelism (1, 2), and the same two of data parallelism
(3, 4)."""


def communication(group, start, lasts, size=1_000_000, name="allreduce"):
    """Times in ms; likewise below."""
    return Collective(
        name, group, 4 if group == "0" else 2, size, "Float", round(start * MS), round(lasts * MS)
    )


def on_rank(rank, sent, stated=True, ahead=0):
    """``ahead``: of the others' clocks."""
    sent = [one._replace(start_ns=(one.start_ns or 0) + round(ahead * MS)) for one in sent]
    kernels = [
        Kernel(
            at,
            "nccl",
            step=1,
            start_ns=one.start_ns,
            duration_ns=one.duration_ns,
            device_index=rank,
        )
        for at, one in enumerate(sent)
    ]
    mine = {name: ranks for name, ranks in PAIRS.items() if rank in ranks}
    made: Run = foreign_run(
        rank + 1,
        kernels=kernels,
        collectives=add_exposed_ns_to_collectives(sent, kernels),
        rank=rank,
        world_size=4,
        environment={"process_groups": json.dumps(mine)} if stated else {},
    )
    return replace(made, artifact=f"job/rank{rank}.json")


def job_of(ranks):
    (found,) = group_runs_into_multi_rank_jobs(ranks)
    return analyse_job_communication(found)


def job(*sent, ahead=(0, 0, 0, 0), stated=True):
    """Of ranks that each sent these."""
    return job_of([on_rank(rank, each, stated, ahead[rank]) for rank, each in enumerate(sent)])


def tensor(rank):
    return "1" if rank < 2 else "2"


def data(rank):
    return "3" if rank % 2 == 0 else "4"


@table("stated", [True, False])
def test_bandwidth_of_a_pair_is_over_the_shortest_time_in_that_pair(stated):
    """All-reduces of 1 MB: in 2 ms between ranks 0 and 1 (rank 0 waits 3 ms more), in 1 ms between
    2 and 3."""
    times = (("1", 0, 5), ("1", 3, 2), ("2", 0, 1), ("2", 0, 1))
    found = job(*([communication(*each)] for each in times), stated=stated)
    by_ranks = {one.ranks: one for one in found.collectives}
    late, even = by_ranks.pop((0, 1)), by_ranks.pop((2, 3))
    assert not by_ranks
    assert late.bandwidth == pytest.approx(1e6 / 2e-3 * 2 * (2 - 1) / 2)
    assert even.bandwidth == pytest.approx(1e6 / 1e-3 * 2 * (2 - 1) / 2)
    assert (late.last, late.straggler_ns) == (1, 3 * MS)
    assert (even.last, even.straggler_ns) == (None, 0)


def test_a_late_rank_costs_its_own_group_and_is_counted_among_its_groups_collectives():
    """Three all-reduces in each pair, 10 ms apart; rank 3 starts each 4 ms late."""
    found = job(
        *(
            [communication(tensor(rank), at + late, 6 - late) for at in (0, 10, 20)]
            for rank, late in enumerate((0, 0, 0, 4))
        )
    )
    (row,) = found.stragglers
    assert (row.rank, row.times, row.collectives) == (3, 3, 3), (
        "3 of the 3 of its group, not of the 6 of the job"
    )
    assert row.straggler_ns == row.waiting_ns == 3 * 4 * MS
    assert [one.waiting_ns for one in found.job.ranks] == [0, 0, 3 * 4 * MS, 0]
    assert "Rank 3 is a straggler: it starts 3 of its 3 collectives last" in " ".join(
        one.text for one in find_communication_costs(found)
    )


def test_clocks_are_aligned_by_way_of_the_groups_that_join_the_ranks():
    """No collective is of all four: rank 3 meets rank 0 by way of rank 1 or 2. Clocks are 7, 20 and
    100 ms ahead."""
    ahead = (0, 7, 20, 100)
    pairs = [[communication(tensor(rank), 0, 2)] for rank in range(4)]
    joined = [[*pair, communication(data(rank), 5, 2)] for rank, pair in enumerate(pairs)]
    found = job(*joined, ahead=ahead)
    assert [one.offset_ns for one in found.job.ranks] == [-ms * MS for ms in ahead]
    found = job(*pairs, ahead=ahead)
    assert [one.offset_ns for one in found.job.ranks] == [0, -7 * MS, None, None], (
        "nothing leads from 0 to 2"
    )
    assert [one.straggler_ns for one in found.collectives] == [0, 0], "in a pair, clocks agree"


SAME = [[communication("x", at, 1)] for at in range(4)]
FIRST, SECOND = {"x": (0, 1)}, {"x": (2, 3)}


@table(
    "collectives groups matched",
    {
        "two pairs": (SAME, [FIRST, FIRST, SECOND, SECOND], [{0, 1}, {2, 3}]),
        "four ranks have it, and it is of two": (SAME, (), []),
        "not all here": (SAME[:3], [FIRST, FIRST, {"x": (2, None)}], [{0, 1}]),
        "a rank twice": (SAME[:2], [{"x": (0, 0)}, {"x": (1, 1)}], []),
        "other numbers of them": (
            [SAME[0], [*SAME[0], *SAME[2]], [], []],
            [FIRST, FIRST, SECOND, SECOND],
            [],
        ),
    },
)
def test_groups_of_one_name_on_different_ranks_are_kept_apart_and_one_that_is_not_all_here_is_left_out(
    collectives, groups, matched
):
    assert [set(one) for one in match_collectives_across_ranks(collectives, groups)] == matched


def test_tables_tell_groups_of_the_same_collective_apart():
    found = job(
        *([communication(tensor(rank), 0, 2), communication("0", 5, 2)] for rank in range(4))
    )

    def groups(table):
        assert table is not None
        at = [column.label for column in table.columns].index("group")
        return [row[at].text for row in table.rows]

    assert sorted(groups(build_exposed_communication_by_layer_table(found))) == [
        "2 ranks",
        "4 ranks",
    ]
    assert groups(build_collectives_table(found)) == ["0 1", "2 3", "0 1 2 3"]


@table(
    "stated size found",
    [
        ("[0, 1]", 2, {"7": [0, 1]}),
        ("[0, 1, ..., 3]", 4, None),
        ("[0, 1, 2, 3]", 4, None),
        (None, 2, {"7": [0, 1]}),
    ],
)
def test_the_ranks_of_a_group_come_from_the_collective_or_from_the_configuration(
    tmp_path, stated, size, found
):
    """Not where PyTorch cut the list, nor of the group that is the job of four."""
    args: dict[str, Any] = {
        "Collective_name": "allreduce",
        "Process_Group_Name": "7",
        "Group_size": size,
        "In_msg_nelems": 8,
        "dtype": "Float",
        "Process_Group_Ranks": stated,
    }
    events = [
        kernel("ncclDevKernel_AllReduce", 5, 20, device=0, **args),
        event("cpu_op", "aten::mm", 0, 1),
    ]
    config = [{"pg_name": "7", "ranks": [0, 1]}, {"pg_name": "8", "ranks": None}]
    for rank in (0, 1):
        world = {"rank": rank, "world_size": 4, "pg_config": config if stated is None else []}
        trace = {"schemaVersion": 1, "distributedInfo": world, "n": rank, "traceEvents": events}
        (tmp_path / f"w{rank}.json").write_text(json.dumps(trace))
    assert not ingest_paths(tmp_path, tmp_path / "s.db").failed
    with database.open_store_for_reading(tmp_path / "s.db") as connection:
        runs = load_readable_runs(connection, read.list_run_ids(connection))
    kept = [run.report.environment.get("process_groups") for run in runs]
    assert kept == [None if found is None else json.dumps(found)] * 2
    if found:
        (only,) = job_of(runs).collectives
        assert (only.ranks, only.bytes, only.group_size) == ((0, 1), 8 * 4, 2)
