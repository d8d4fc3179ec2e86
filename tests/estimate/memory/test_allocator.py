"""The caching allocator's rules at their edges, and the peak's category, phase and place: by hand,
without torch."""

from itertools import permutations

import pytest

from perfctl.orchestrator.estimate.memory import (
    CAPABILITIES,
    MemoryPeak,
    compute_block_rounded_peak_bytes,
    compute_reserved_bytes,
    compute_segment_bytes,
    find_memory_peak,
    get_cublas_workspace_bytes,
    parse_capability_or_gpu_name,
    round_up_to_block_bytes,
    summarize_memory,
)
from perfctl.records.paper import MemoryTrace, TensorAllocation
from tests.make.tables import table

KIB, MIB = 2**10, 2**20
SEGMENT = 20 * MIB
"""What is taken for tensors from above 1 MiB to below 10 MiB."""


def trace_of(*lives):
    """(MiB, born, died)."""
    rows = tuple(
        TensorAllocation(int(size * MIB), "temporary", born, died, "", "", "")
        for size, born, died in lives
    )
    return MemoryTrace(rows, 10, 20, 30)


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (MIB, 2 * MIB),
        (MIB + 1, SEGMENT),
        (10 * MIB - 512, SEGMENT),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (12 * MIB, 12 * MIB),
        (12 * MIB + 512, 14 * MIB),
        (100 * MIB, 100 * MIB),
    ],
)
def test_a_segment_is_2_or_20_mib_and_from_10_mib_on_a_multiple_of_2(size, segment):
    assert compute_segment_bytes(size) == segment


def test_blocks_are_rounded_up_to_512_bytes():
    assert [round_up_to_block_bytes(size) for size in (0, 1, 511, 512, 1024, 1025)] == [
        0,
        512,
        512,
        512,
        1024,
        1536,
    ]


LAST = 0.5 / 1024
"""MiB: the smallest block."""
SIXES = ((6, 0, 4), (6, 1, 5), (6, 2, None))
HOLES = ((9, 0, 4), (1.5, 1, None), (5, 2, 4), (4.5, 3, None))


@table(
    "lives mib",
    {
        "a small segment is split down to 512 bytes": (
            ((1, 0, None), (1 - LAST, 0, None), (LAST, 0, None)),
            2,
        ),
        "a small segment is full": (
            ((1, 0, None), (1 - LAST, 0, None), (LAST, 0, None), (LAST, 0, None)),
            4,
        ),
        "what is left of a large block is used": (((9, 0, None), (9, 1, None), (2, 2, None)), 20),
        "what is left is too small": (((9, 0, None), (9, 1, None), (2.5, 2, None)), 40),
        "a segment of its own is split": (((30, 1, 2), (15, 3, None), (15, 4, None)), 30),
        "small beside large": (((9, 0, None), (0.5, 1, None)), 22),
        "large after small": (((1, 0, 1), (1.5, 2, None)), 22),
        # twelve MiB are free in one piece, of two blocks of six
        "the later freed after the earlier": ((*SIXES, (9.5, 6, None)), 20),
        "the earlier freed after the later": (
            ((6, 0, 5), (6, 1, 4), (6, 2, None), (9.5, 6, None)),
            20,
        ),
        "the last two freed": (((6, 0, None), (6, 1, 4), (6, 2, 5), (9.5, 6, None)), 20),
        "free blocks that are no neighbours": (
            ((6, 0, 4), (6, 1, None), (6, 2, None), (9.5, 6, None)),
            40,
        ),
        **{
            f"three neighbours freed at {order}": (
                (
                    *((6, born, died) for born, died in enumerate(order)),
                    (9.5, 7, None),
                    (9.5, 8, None),
                ),
                20,
            )
            for order in permutations((4, 5, 6))
        },
        # the 4 go where the second 6 were, and leave 2: 2 + 6 + the segment's last 2
        "a block that was split in the middle": (
            ((6, 0, None), (6, 1, 3), (6, 2, 5), (4, 4, None), (9.5, 6, None)),
            20,
        ),
        "the smallest block that is large enough": ((*HOLES, (5, 5, None), (9, 6, None)), 20),
        "also for less": ((*HOLES, (4.5, 5, None), (9, 6, None)), 20),
        "a tensor without bytes": (((0, 0, 3), (0, 1, None)), 0),
    },
)
def test_the_allocator_reserves_segments_and_uses_free_blocks_again(lives, mib):
    assert compute_reserved_bytes(trace_of(*lives)) == mib * MIB


@pytest.mark.parametrize(
    ("moment", "phase"),
    [(0, "forward"), (10, "forward"), (11, "backward"), (20, "backward"), (21, "optimizer")],
)
def test_a_phase_ends_with_its_last_moment(moment, phase):
    assert find_memory_peak(trace_of((1, moment, None))).phase == phase


def test_the_peak_names_what_lived_at_the_first_of_equal_moments_and_what_made_it():
    rows = (
        TensorAllocation(100, "parameter", 0, None, "", "", ""),
        TensorAllocation(7, "input", 0, 1, "", "", ""),
        TensorAllocation(50, "activation", 2, 3, "conv", "forward", "aten.convolution"),
        TensorAllocation(50, "gradient", 4, None, "fc", "backward", "aten.mm"),
    )
    assert find_memory_peak(MemoryTrace(rows, 10, 20, 30)) == MemoryPeak(
        150, {"parameter": 100, "activation": 50}, "forward", "conv", "aten.convolution"
    )
    assert find_memory_peak(trace_of((1, 1, 2), (1, 2, None))).bytes == MIB, "what dies makes room"
    assert find_memory_peak(MemoryTrace((), 10, 20, 30)) == MemoryPeak(0, {}, "forward", "", "")


def test_everything_of_a_step_is_summed_by_category_and_its_peak_rounded_to_blocks():
    sizes = {
        "parameter": 1000,
        "buffer": 10,
        "gradient": 1001,
        "optimizer": 2000,
        "input": 64,
        "activation": 600,
    }
    rows = tuple(
        TensorAllocation(size, name, place, None, "", "", "")
        for place, (name, size) in enumerate(sizes.items())
    )
    found = summarize_memory(
        MemoryTrace((*rows, TensorAllocation(90, "activation", 7, 8, "", "", "")), 10, 20, 30),
        (9, 0),
    )
    assert (
        found.parameters,
        found.buffers,
        found.gradients,
        found.optimizer,
        found.inputs,
        found.activations,
    ) == (
        1000,
        10,
        1001,
        2000,
        64,
        690,
    )
    assert found.peak.bytes == 1000 + 10 + 1001 + 2000 + 64 + 690
    assert found.rounded_peak == 512 * (2 + 1 + 2 + 4 + 1 + 2 + 1)
    assert (found.reserved, found.gpu) == (2 * MIB, (9, 0))
    assert (found.workspaces, found.allocated) == ({}, found.rounded_peak)
    assert compute_block_rounded_peak_bytes(trace_of((1, 0, 1), (1, 1, None))) == MIB


def test_each_thread_that_multiplies_matrices_has_a_workspace_in_a_segment_of_the_allocator():
    def product(op, direction):
        return TensorAllocation(MIB, "temporary", 1, 2, "fc", direction, op)

    own = get_cublas_workspace_bytes((8, 0))
    forward = product("aten.addmm", "forward")
    for rows, wanted in (
        ((product("aten.convolution", "forward"),), {}),
        ((product("aten.mm", "forward"), product("aten.bmm", "forward")), {"cuBLAS, forward": own}),
        ((forward,), {"cuBLAS, forward": own, "cuBLASLt, forward": MIB}),
        (
            (forward, product("aten.mm", "backward")),
            {"cuBLAS, forward": own, "cuBLASLt, forward": MIB, "cuBLAS, backward": own},
        ),
        ((product("aten.mm", "optimizer"),), {}),
    ):
        found = summarize_memory(MemoryTrace(rows, 10, 20, 30), (8, 0))
        assert found.workspaces == wanted
        assert found.allocated == len(rows) * MIB + sum(wanted.values())
        # Small tensors and cuBLASLt's share segments of 2 MiB; one of 20 MiB holds two of cuBLAS's
        # 8.1 MiB.
        small = len(rows) + ("cuBLASLt, forward" in wanted)
        assert found.reserved == -(-small // 2) * 2 * MIB + (
            SEGMENT if any("cuBLAS," in name for name in wanted) else 0
        )


def test_segments_of_the_step_before_stay_and_its_survivors_lie_where_they_were_made():
    def storage(size, born, died):
        return TensorAllocation(size * MIB, "temporary", born, died, "", "", "")

    # The first step leaves 30 MiB free but for the 12 that its optimizer's state took; the second
    # one needs 30 again.
    first = (storage(30, 1, 2), storage(12, 3, None))
    second = (storage(12, 0, None), storage(30, 1, 2))
    assert compute_reserved_bytes(MemoryTrace(second, 10, 20, 30)) == (12 + 30) * MIB
    assert compute_reserved_bytes(MemoryTrace(second, 10, 20, 30, first=first)) == (30 + 30) * MIB
    assert (
        compute_reserved_bytes(
            MemoryTrace((storage(12, 0, None), storage(18, 1, 2)), 10, 20, 30, first=first)
        )
        == 30 * MIB
    )


@pytest.mark.parametrize(
    ("gpu", "workspace"),
    [
        (None, 8_519_680),
        ((7, 0), 8_519_680),
        ((8, 9), 8_519_680),
        ((9, 0), 32 * MIB),
        ((12, 0), 32 * MIB),
    ],
)
def test_the_workspace_of_cublas_is_32_mib_from_hopper_on(gpu, workspace):
    assert (
        get_cublas_workspace_bytes(gpu)
        == workspace
        == (32 * MIB if gpu is not None and gpu >= (9, 0) else 4096 * KIB * 2 + 128 * KIB)
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SM_90a", (9, 0)),
        ("8.6", (8, 6)),
        ("H100", (9, 0)),
        ("sm86", (8, 6)),
        ("10.0", (10, 0)),
        ("sm_100", (10, 0)),
        ("RTX 3090", (8, 6)),
        ("T4", (7, 5)),
        ("b200", (10, 0)),
        ("90", None),
        ("", None),
        ("sm_1000", None),
        ("9", None),
    ],
)
def test_a_capability_is_its_last_digit_and_those_before_it(text, wanted):
    assert parse_capability_or_gpu_name(text) == wanted
    assert all(parse_capability_or_gpu_name(name) == pair for name, pair in CAPABILITIES.items())
