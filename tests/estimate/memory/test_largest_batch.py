"""The largest batch that fits: PyTorch's allocator with an end of memory, replayed at any batch
size. By hand, without torch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.estimate.memory import (
    LARGE_SEGMENT,
    LT_WORKSPACE,
    SMALL_SEGMENT,
    BlockPool,
    LargestBatch,
    OutOfMemory,
    StepMemory,
    UnlikeTracesError,
    can_run_trace_in_bytes,
    compute_peak_allocated_bytes,
    find_largest_batch_by_replay,
    get_cublas_workspace_bytes,
)
from perfctl.records.paper import MemoryTrace, TensorAllocation

MIB = 2**20
LIVES = ((24, 0, 0, None), (0, 11, 1, 4), (0, 7, 2, 3), (0, 30, 5, 6))
"""(MiB, MiB a sample, born, died): parameters, two activations, and a tensor that needs the place
of both."""


def trace(batch, *lives, op=""):
    rows = tuple(
        TensorAllocation((fixed + each * batch) * MIB, "temporary", born, died, "", "forward", op)
        for fixed, each, born, died in lives
    )
    return MemoryTrace(rows, 10, 20, 30)


def memory(*lives, op=""):
    return StepMemory(trace(2, *lives, op=op), trace(3, *lives, op=op))


def test_where_memory_ends_the_allocator_gives_unused_segments_back_and_then_stops():
    pool = BlockPool(limit=100 * MIB)
    kept, freed = pool.allocate(30 * MIB), pool.allocate(40 * MIB)
    pool.free_block(freed)
    assert pool.reserved == 70 * MIB  # the 40 are kept for the next tensor of at most their size
    pool.allocate(60 * MIB)
    assert pool.reserved == 90 * MIB  # 30 + 60: the 40 went back to the device
    with pytest.raises(OutOfMemory, match="no room for 12,582,912 B beside 94,371,840 B in use"):
        pool.allocate(12 * MIB)
    pool.free_block(kept)
    pool.allocate(30 * MIB)
    assert pool.reserved == 90 * MIB


def test_a_segment_that_is_used_in_part_cannot_be_given_back():
    pool = BlockPool(limit=100 * MIB)
    whole = pool.allocate(60 * MIB)
    pool.free_block(whole)
    pool.allocate(20 * MIB)  # from the segment of 60, whose other 40 stay its own
    pool.allocate(40 * MIB)
    pool.allocate(40 * MIB)
    with pytest.raises(OutOfMemory):
        pool.allocate(2 * MIB)


def test_a_step_at_any_batch_is_the_trace_of_that_batch():
    for batch in (1, 2, 3, 50):
        assert memory(*LIVES).extrapolate_trace_to_batch(batch) == trace(batch, *LIVES)


@pytest.mark.parametrize("reserve", [0, 100 * MIB])
@pytest.mark.parametrize("room", [20 * MIB, 54 * MIB, 200 * MIB, 1234 * MIB, 4567 * MIB])
def test_the_largest_batch_is_the_one_that_trying_all_of_them_finds(room, reserve):
    runs = [batch for batch in range(1, 300) if can_run_trace_in_bytes(trace(batch, *LIVES), room)]
    fit = memory(*LIVES).find_largest_fitting_batch(room + reserve, reserve)
    assert fit.batch == max(runs, default=0)
    assert fit.needed == (compute_peak_allocated_bytes(trace(fit.batch, *LIVES)) if runs else 0)
    assert fit.margin == room - fit.needed >= 0
    assert fit.next_needed == compute_peak_allocated_bytes(trace(fit.batch + 1, *LIVES))
    edges = (1, fit.batch or 1, fit.batch + 1)
    assert [memory(*LIVES).can_fit_batch(batch, room + reserve, reserve) for batch in edges] == [
        batch <= fit.batch for batch in edges
    ]
    # Found by doubling, as of a model whose storages do not grow in lines.
    assert find_largest_batch_by_replay(room, reserve, lambda batch: trace(batch, *LIVES)) == fit


def test_pieces_that_are_too_small_cost_batches_that_the_tensors_alone_would_allow():
    # the first piece of 6 is free, and 11 do not go into it
    lives = ((0, 6, 1, 3), (0, 6, 2, None), (0, 11, 4, None))
    room = 170 * MIB
    fit = memory(*lives).find_largest_fitting_batch(room)
    tensors = room // (17 * MIB)
    assert fit.batch is not None and fit.batch <= tensors
    assert fit.batch == max(
        batch for batch in range(tensors + 1) if can_run_trace_in_bytes(trace(batch, *lives), room)
    )


def test_workspaces_of_cublas_count_for_both_the_bytes_and_the_largest_batch():
    lives = ((0, 16, 1, None),)
    for gpu, large in (((8, 0), LARGE_SEGMENT), ((9, 0), 32 * MIB)):
        found = memory(*lives, op="aten.addmm")
        assert (
            found.compute_allocated_peak_bytes(3, gpu)
            == 48 * MIB + get_cublas_workspace_bytes(gpu) + LT_WORKSPACE
        )
        # The workspaces are in segments of their own, which nothing of 16 MiB fits into.
        assert found.find_largest_fitting_batch(160 * MIB, 0, gpu).batch == (
            160 * MIB - large - SMALL_SEGMENT
        ) // (16 * MIB)


def test_a_step_that_does_not_grow_fits_at_every_batch_or_at_none():
    flat = ((24, 0, 0, None),)
    assert memory(*flat).find_largest_fitting_batch(100 * MIB, MIB) == LargestBatch(
        None, 24 * MIB, MIB, 75 * MIB, 0
    )
    assert memory(*flat).find_largest_fitting_batch(20 * MIB) == LargestBatch(
        0, 0, 0, 20 * MIB, 24 * MIB
    )


def test_steps_that_differ_in_more_than_their_sizes_are_refused():
    one, other = trace(2, *LIVES), trace(3, *LIVES)
    for first in ((), one.allocations[:1]):
        with pytest.raises(UnlikeTracesError, match="lifetime of a tensor"):
            StepMemory(replace(one, first=first), replace(other, first=other.allocations))


def test_the_search_by_doubling_asks_for_few_batch_sizes_and_for_none_twice():
    asked: list[int] = []

    def at(batch):
        asked.append(batch)
        return trace(batch, (0, 2, 1, None))

    assert find_largest_batch_by_replay(1000 * MIB, 0, at).batch == 500
    assert asked[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert len(asked) == len(set(asked)) == 10 + 8
