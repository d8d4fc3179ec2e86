"""Fused attention in whole tiles, forward and backward: values worked out from the dimensions."""

from dataclasses import replace

from perfctl.orchestrator.counts.derived.records import AttentionShape, Launch, LaunchWork
from perfctl.orchestrator.counts.derived.rules import derive_instructions
from perfctl.orchestrator.counts.derived.tensor_cores import count_attention_tiles_per_head
from tests.make.tables import table

SHAPE = AttentionShape(batch=2, heads=4, queries=1000, keys=1000, width=64, value_width=64)
TRAITS = (
    "Flash_{way}_kernel_traits<{w}, {m}, {n}, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<{w}, {m}, {n}, 4, cutlass::bfloat16_t> >"
)
FORWARD = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::" + TRAITS.format(
    way="fwd", w=64, m=128, n=64
)
BACKWARD = "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<" + TRAITS.format(
    way="bwd", w=64, m=64, n=128
)
HOPPER = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90"
    "<flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
    "cute::tuple<cute::C<192>, cute::C<128>, cute::C<64> >, 64, cutlass::bfloat16_t, float, "
    "cutlass::arch::Sm90, {causal}, false, false, true>, X>>>"
)


def flags(dropout=False, causal=False):
    return (
        f", {str(dropout).lower()}, {str(causal).lower()}, false, false, true, true, "
        "false>(pytorch_flash::Flash_fwd_params)"
    )


def macs(name, shape=SHAPE, grid=None):
    """Multiply-adds of the tensor cores for each of the eight heads of both images."""
    derived = derive_instructions(Launch(name, grid), LaunchWork(shape))
    return derived and derived.tensor and derived.tensor / (2 * 8)


def brute(shape, m, n):
    """Tiles with at least one pair that the mask leaves, counted pair by pair at the
    tiles' corners."""
    shift = shape.keys - shape.queries
    return sum(
        min(row + m, shape.queries) - 1 + shift >= column
        for row in range(0, shape.queries, m)
        for column in range(0, shape.keys, n)
    )


@table("queries keys", [(1000, 1000), (1024, 1024), (500, 1000), (1000, 500)])
@table("m n", [(128, 64), (64, 128), (64, 64), (192, 128)])
def test_a_causal_mask_leaves_the_tiles_that_touch_it(queries, keys, m, n):
    shape = replace(SHAPE, queries=queries, keys=keys)
    assert count_attention_tiles_per_head(shape, m, n, True) == brute(shape, m, n)


SPLIT = (
    FORWARD.replace("flash_fwd_kernel<", "flash_fwd_splitkv_kernel<")
    + ", false, false, false, false, true, false, true, false>(X)"
)
CUDNN = "cudnn_generated_fort_native_sdpa_{}x64_4x1x1_cga1x1x1_kernel0_0"
CUDNN_FORWARD = CUDNN.format("sm80_flash_fprop_wmma_f16_knob_6_128x64")
CUDNN_BACKWARD = CUDNN.format("sm90_flash_bprop_wgmma_f16_knob_2_128x{}")
EFFICIENT = "fmha_cutlass{}_aligned_64x64_{}(X)"
BACK, NARROW = replace(SHAPE, backward=True), replace(SHAPE, width=40)
SMALL = replace(SHAPE, queries=128, keys=256)
FEW_KEYS = replace(BACK, keys=100)
WHOLE = (8 * 16) * 128 * 64
"""Scores of 1,000 x 1,000 in tiles of 128 x 64."""


@table(
    "name shape grid expected",
    {
        "forward: two products of whole tiles": (FORWARD + flags(), SHAPE, (8, 2, 4), WHOLE * 128),
        "the mask of the name": (
            FORWARD + flags(causal=True),
            SHAPE,
            None,
            brute(SHAPE, 128, 64) * 128 * 64 * 128,
        ),
        "no mask in the name": (
            FORWARD + flags(),
            replace(SHAPE, causal=True),
            None,
            WHOLE * 128,
        ),
        "backward computes the scores again": (
            BACKWARD + ", false, false, false>",
            BACK,
            (8, 2, 4),
            WHOLE * (5 * 64),
        ),
        "a kernel of backward for forward": (BACKWARD, SHAPE, None, None),
        "a wider kernel computes its own width": (
            FORWARD + flags(),
            replace(NARROW, value_width=40),
            None,
            WHOLE * 128,
        ),
        "no products: dO x O": (
            "void flash_bwd_dot_do_o_kernel<true, "
            + TRAITS.format(way="bwd", w=64, m=64, n=128)
            + ">(flash::Flash_bwd_params)",
            BACK,
            None,
            None,
        ),
        "no products: conversion": (
            "void flash_bwd_convert_dq_kernel<"
            + TRAITS.format(way="bwd", w=64, m=64, n=128)
            + ">(flash::Flash_bwd_params)",
            BACK,
            None,
            None,
        ),
        "no products: sum of parts": (
            "void flash::flash_fwd_splitkv_combine_kernel<"
            + TRAITS.format(way="fwd", w=64, m=64, n=128)
            + ", 4, 1, true>(X)",
            SHAPE,
            None,
            None,
        ),
        "split keys: the same tiles in more blocks": (SPLIT, SHAPE, (8, 3, 8), WHOLE * 128),
        "not the grid of these heads": (SPLIT, SHAPE, (8, 3, 7), None),
        "flash attention 3 states its tile in a tuple": (
            HOPPER.format(causal="false"),
            SHAPE,
            (132, 1, 1),
            6 * 8 * 192 * 128 * 128,
        ),
        "flash attention 3, causal": (
            HOPPER.format(causal="true"),
            SHAPE,
            (132, 1, 1),
            brute(SHAPE, 192, 128) * 192 * 128 * 128,
        ),
        # 1,000 keys in tiles of 64: 16 tiles for the scores, of which width 40 takes two steps of
        # 32; the last of the second product takes 64 of its 40 keys' 32-steps
        "memory-efficient: tiles and steps": (
            EFFICIENT.format("F_bf16", "rf_sm80"),
            NARROW,
            None,
            16 * 64 * (1024 * 64 + 64 * (15 * 64 + 64)),
        ),
        "its mask begins at the first key": (
            EFFICIENT.format("F_f16", "rf_sm80"),
            replace(SMALL, causal=True),
            None,
            sum(64 * (seen * 64 + 64 * seen) for seen in (64, 128)),
        ),
        "its backward has five products": (
            EFFICIENT.format("B_bf16", "k64_sm80"),
            replace(SMALL, backward=True),
            None,
            5 * 128 * 256 * 64,
        ),
        # gradients of K and V lie in tiles 128 wide, twice their width
        "its wide backward": (
            "fmha_cutlassB_bf16_aligned_128x64_k128_sm80(X)",
            replace(SMALL, backward=True),
            None,
            128 * 256 * (2 * 64 + 2 * 128 + 64),
        ),
        "cuDNN prints its tile": (CUDNN_FORWARD, SHAPE, None, WHOLE * 128),
        "and not its mask": (CUDNN_FORWARD, replace(SHAPE, causal=True), None, None),
        "cuDNN's backward": (
            CUDNN_FORWARD.replace("fprop", "bprop"),
            BACK,
            None,
            WHOLE * (5 * 64),
        ),
        # 1,000 queries and 100 keys are 8 x 2 tiles, or 16 x 1 that are as large
        "its tile may lie either way": (CUDNN_BACKWARD.format(192), FEW_KEYS, None, None),
        "its tile is square": (
            CUDNN_BACKWARD.format(128),
            FEW_KEYS,
            None,
            8 * 128 * 128 * (5 * 64),
        ),
    },
)
def test_fused_attention_computes_whole_tiles_or_has_no_rule(name, shape, grid, expected):
    assert macs(name, shape, grid) == expected


def test_memory_efficient_attention_in_fp32_is_three_tf32_products_from_ampere_on_and_ffma_before():
    shape = replace(SHAPE, queries=128, keys=128)
    expected = 8 * 2 * 64 * (128 * 64 + 64 * 128)
    late, early = (
        derive_instructions(Launch(EFFICIENT.format("F_f32", f"rf_sm{chip}")), LaunchWork(shape))
        for chip in (80, 75)
    )
    assert late is not None and early is not None
    assert (late.tensor, late.math, late.ffma) == (3 * 2 * expected, "tf32", None)
    assert (early.tensor, early.ffma) == (None, expected)
