"""Collectives of a job one by one: layers, bus bandwidth, late ranks, uneven work and pipelines,
with what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.ledger.usage.exchange import compute_bus_bandwidth_or_reason
from perfctl.orchestrator.ledger.usage.ranks import add_exposed_ns_to_collectives
from perfctl.orchestrator.report.ledger.ranks import (
    build_exposed_communication_by_layer_table,
    find_communication_costs,
    list_job_communications,
)
from perfctl.records.report import Collective, Device, Kernel
from perfctl.records.run import Run
from tests.make.synthetic import foreign_run
from tests.make.tables import table

A100 = Device("NVIDIA A100-SXM4-80GB", "gpu", compute_capability="8.0")
NVLINK = 300e9
"""A100 SXM: 12 links of 25 GB/s one way (NVIDIA A100 data sheet)."""
MS = 1_000_000


def work(start, lasts, layer=None, direction=None, step=1):
    """Times in ms; likewise below."""
    return Kernel(
        0,
        "gemm",
        layer=layer,
        direction=direction,
        step=step,
        start_ns=round(start * MS),
        duration_ns=round(lasts * MS),
    )


def communication(start, lasts, name="allreduce", size=1000, ranks=2):
    return Collective(name, "0", ranks, size, "Float", round(start * MS), round(lasts * MS))


def on_rank(rank, own, sent, *, gpu=None, world=2):
    sent = list(sent)
    gpu = rank if gpu is None else gpu
    every = [
        *own,
        *(
            Kernel(0, "nccl", step=1, start_ns=one.start_ns, duration_ns=one.duration_ns)
            for one in sent
        ),
    ]
    every.sort(key=lambda kernel: kernel.start_ns or 0)
    kernels = [
        kernel._replace(launch=at, correlation=at, device_index=gpu)
        for at, kernel in enumerate(every)
    ]
    made: Run = foreign_run(
        rank + 1,
        kernels=kernels,
        collectives=add_exposed_ns_to_collectives(sent, kernels),
        rank=rank,
        world_size=world,
        device=A100,
    )
    return replace(made, artifact=f"job/rank{rank}.json")


def job(*runs):
    (found,) = list_job_communications(runs)
    return found


def said(found):
    return " ".join(one.text for one in find_communication_costs(found))


@table(
    "name size ranks by_hand",
    [
        ("allreduce", 4_000_000, 8, 4_000_000 * 2 * 7 / 8),
        ("all_reduce", 4_000_000, 2, 4_000_000),
        ("_allgather_base", 50_272, 8, 8 * 50_272 * 7 / 8),
        ("_reduce_scatter_base", 8_000, 4, 8_000 * 3 / 4),
        ("all_to_all", 8_000, 4, 8_000 * 3 / 4),
        ("broadcast", 8_000, 4, 8_000),
        ("reduce", 8_000, 4, 8_000),
    ],
)
def test_bus_bandwidth_is_nccls_formula(name, size, ranks, by_hand):
    """Sizes are one rank's input, so that an all-gather's S is as many times that as there
    are ranks."""
    assert compute_bus_bandwidth_or_reason(name, size, ranks, 20_000) == (
        pytest.approx(by_hand / 20e-6),
        None,
    )


@table(
    "name size ranks why",
    [
        ("allreduce", None, 8, "does not state the size"),
        ("allreduce", 8, None, "number of ranks"),
        ("all_to_allv", 8, 8, "uneven"),
        ("send", 8, 2, "no formula"),
        ("allreduce_coalesced", 8, 8, "coalesced"),
        ("barrier", 0, 8, "sent nothing"),
    ],
)
def test_without_a_size_a_group_or_a_formula_bandwidth_is_not_known(name, size, ranks, why):
    value, reason = compute_bus_bandwidth_or_reason(name, size, ranks, 1000)
    assert value is None
    assert why in (reason or "")


def test_a_gradients_reduction_is_of_the_layer_before_it_and_its_time_is_that_of_the_rank_that_waited_least():
    """Rank 1 starts 3 ms late, so the transfer takes 2 ms of rank 0's 5; compute of 1 ms hides a
    part on both."""
    size = 300_000_000
    ranks = [
        on_rank(
            rank,
            [work(0, start, "fc", "grad_weight"), work(6, 1, "conv", "backward")],
            [communication(start, 7 - start, size=size)],
        )
        for rank, start in enumerate((2, 5))
    ]
    found = job(*ranks)
    (only,) = found.collectives
    assert (only.layer, only.layer_by, only.layer_reason) == ("fc", "after backward", None)
    assert only.shortest_ns == 2 * MS
    assert only.bandwidth == pytest.approx(size / 2e-3 * 2 * 1 / 2)
    assert found.link_peak == NVLINK
    table = build_exposed_communication_by_layer_table(found)
    assert table is not None and table.rows[0][-1].text == "50.0%"  # 150 of 300 GB/s
    (layer,) = found.layers
    assert (layer.exposed_ns, layer.max_ns) == ((4 + 1) / 2 * MS, 4 * MS)
    (step,) = found.steps
    assert step.exposed_ns == (4 * MS, 1 * MS)
    assert step.imbalance == pytest.approx(6 / ((3 + 6) / 2))
    assert "Work is uneven in step 1: rank 1 computes" in said(found)


@table(
    "before why",
    [
        ([], "outside"),
        ([work(0, 1, "fc", "forward")], "backward"),
        ([work(0, 1, None, "optimizer")], "backward"),
    ],
)
def test_a_collective_that_follows_no_backward_is_of_no_known_layer(before, why):
    early = [work(-2, 1, "fc", "backward"), *before] if before else []
    found = job(*(on_rank(rank, early, [communication(3, 1)]) for rank in (0, 1)))
    (only,) = found.collectives
    assert only.layer is None
    assert why in (only.layer_reason or "")


@table(
    "gpus world why",
    [
        ((0, 0), 2, "do not show that all ranks ran on one node"),
        ((0, 1), 16, "some ranks of the job are missing"),
    ],
)
def test_the_link_between_ranks_that_may_be_on_several_nodes_is_not_known(gpus, world, why):
    found = job(
        *(on_rank(rank, [], [communication(3, 1)], gpu=gpus[rank], world=world) for rank in (0, 1))
    )
    assert found.link_peak is None
    assert why in (found.link_reason or "")


def late(delays, noise=()):
    """A collective each 10 ms that ends 8 ms after it began: delays[n][rank] are its starts,
    noise[n] moves all of rank 1."""
    noise = noise or [0] * len(delays)
    runs = []
    for rank in range(len(delays[0])):
        sent = [
            communication(
                10 * at + row[rank] + noise[at] * (rank == 1), 8 - row[rank], ranks=len(row)
            )
            for at, row in enumerate(delays)
        ]
        runs.append(on_rank(rank, [work(0, 0.1)], sent, world=len(delays[0])))
    return job(*runs)


def test_a_straggler_is_named_with_what_it_costs_all_and_the_error_of_the_clocks():
    """Of four ranks rank 2 starts 3 ms after the next one, four times; the others start at 0, 0.5
    and 1 ms."""
    found = late([[0, 0.5, 4, 1]] * 4)
    (row,) = found.stragglers
    assert (row.rank, row.times, row.collectives, row.straggler_ns) == (2, 4, 4, 4 * 3 * MS)
    assert row.waiting_ns == 4 * (4 + 3.5 + 3) * MS
    assert row.error_ns is not None
    assert row.error_ns <= 4 * 2 * 1000  # clocks agree to the resolution of a trace, 1 us at most
    assert "Rank 2 is a straggler: it starts 4 of its 4 collectives last, 12.0 ms" in said(found)


@table(
    "delays noise",
    [
        ([[0, 0, 0, 0.01]] * 5, ()),  # 0.05 ms of 48 ms
        ([[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0], [0, 0, 0, 4]], ()),  # they take turns
        ([[0, 0.5, 0, 0]] * 5, (0, 0.9, -0.9, 0.9, -0.9)),  # clocks that are known to 1.3 ms only
        ([[0, 4, 0, 0]] * 2, ()),  # too few to know the error of the clocks
    ],
)
def test_nobody_is_called_a_straggler_where_it_costs_little_or_clocks_or_turns_explain_it(
    delays, noise
):
    found = late(delays, noise)
    assert len(found.collectives) == len(delays)
    assert sum(one.straggler_ns for one in found.stragglers) > 0
    assert "is a straggler" not in said(found)


def test_waiting_of_stages_for_each_other_is_a_bubble_and_an_all_to_all_is_none():
    """Rank 1 receives from 0 on, for 6 ms, while it computes nothing; of its 10 ms that is 60%."""
    found = job(
        on_rank(0, [work(0, 5)], [communication(5, 1, "send")]),
        on_rank(1, [work(6, 4)], [communication(0, 6, "recv")]),
    )
    assert [(one.rank, one.waiting_ns) for one in found.bubbles] == [(0, 1 * MS), (1, 6 * MS)]
    assert found.bubbles[1].share == pytest.approx(6 / 10)
    text = "Pipeline bubbles: rank 1 waits in sends and receives for 60.0% of its time"
    assert text in said(found)
    sent = [communication(0, 6, "all_to_all")]
    assert job(*(on_rank(rank, [work(6, 4)], sent) for rank in (0, 1))).bubbles == ()


def test_a_job_that_is_even_and_hides_its_communication_has_no_findings():
    pair = [
        on_rank(rank, [work(0, 10, "fc", "backward")], [communication(at, 1) for at in (2, 4, 6)])
        for rank in (0, 1)
    ]
    assert find_communication_costs(job(*pair)) == ()


def test_what_costs_the_job_most_comes_first():
    first, second = (
        on_rank(rank, [work(0, start)], [communication(start, 12 - start)])
        for rank, start in ((0, 2), (1, 4))
    )
    found = find_communication_costs(job(first, second))
    shares = [item.impact_share or 0 for item in found]
    assert len(shares) > 1 and shares == sorted(shares, reverse=True)
