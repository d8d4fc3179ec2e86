"""Fused attention in whole tiles, forward and backward: values worked out from the dimensions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.derived.records import AttentionShape, Derived, Launch, Work
from perfctl.orchestrator.counts.derived.rules import derive
from perfctl.orchestrator.counts.derived.tensor_cores import tiles_of
from perfctl.orchestrator.counts.kernels.grids import Grid

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


def flags(dropout: bool = False, causal: bool = False) -> str:
    return (
        f", {str(dropout).lower()}, {str(causal).lower()}, false, false, true, true, "
        "false>(pytorch_flash::Flash_fwd_params)"
    )


def derived(name: str, shape: AttentionShape, grid: Grid | None = None) -> Derived | None:
    return derive(Launch(name, grid), Work(shape))


def brute(shape: AttentionShape, m: int, n: int) -> int:
    """Tiles with at least one pair that the mask leaves, counted pair by pair at the
    tiles' corners."""
    shift = shape.keys - shape.queries
    return sum(
        min(row + m, shape.queries) - 1 + shift >= column
        for row in range(0, shape.queries, m)
        for column in range(0, shape.keys, n)
    )


def test_forward_is_two_products_of_whole_tiles() -> None:
    found = derived(FORWARD + flags(), SHAPE, (8, 2, 4))
    assert found is not None and found.tensor == 2 * 8 * (8 * 16) * 128 * 64 * (64 + 64)


@pytest.mark.parametrize(
    ("queries", "keys"), [(1000, 1000), (1024, 1024), (500, 1000), (1000, 500)]
)
@pytest.mark.parametrize(("m", "n"), [(128, 64), (64, 128), (64, 64), (192, 128)])
def test_a_causal_mask_leaves_the_tiles_that_touch_it(
    queries: int, keys: int, m: int, n: int
) -> None:
    shape = replace(SHAPE, queries=queries, keys=keys)
    assert tiles_of(shape, m, n, True) == brute(shape, m, n)


def test_the_names_own_mask_decides() -> None:
    masked = derived(FORWARD + flags(causal=True), SHAPE)
    assert masked is not None and masked.tensor == 2 * 8 * brute(SHAPE, 128, 64) * 128 * 64 * 128
    plain = derived(FORWARD + flags(), replace(SHAPE, causal=True))
    assert plain is not None and plain.tensor == 2 * 8 * (8 * 16) * 128 * 64 * 128


def test_backward_computes_the_scores_again() -> None:
    found = derived(BACKWARD + ", false, false, false>", replace(SHAPE, backward=True), (8, 2, 4))
    assert found is not None and found.tensor == 2 * 8 * (16 * 8) * 64 * 128 * (5 * 64)
    assert derived(BACKWARD, SHAPE) is None, "no forward"


def test_a_wider_kernel_computes_its_own_width() -> None:
    found = derived(FORWARD + flags(), replace(SHAPE, width=40, value_width=40))
    assert found is not None and found.tensor == 2 * 8 * (8 * 16) * 128 * 64 * 128


@pytest.mark.parametrize(
    "name",
    [
        "void flash_bwd_dot_do_o_kernel<true, "
        + TRAITS.format(way="bwd", w=64, m=64, n=128)
        + ">(flash::Flash_bwd_params)",
        "void flash_bwd_convert_dq_kernel<"
        + TRAITS.format(way="bwd", w=64, m=64, n=128)
        + ">(flash::Flash_bwd_params)",
        "void flash::flash_fwd_splitkv_combine_kernel<"
        + TRAITS.format(way="fwd", w=64, m=64, n=128)
        + ", 4, 1, true>(X)",
    ],
)
def test_what_only_sums_or_converts_has_no_products(name: str) -> None:
    assert derived(name, replace(SHAPE, backward="bwd" in name)) is None


def test_split_keys_do_the_same_tiles_in_more_blocks() -> None:
    name = (
        FORWARD.replace("flash_fwd_kernel<", "flash_fwd_splitkv_kernel<")
        + ", false, false, false, false, true, false, true, false>(X)"
    )
    found = derived(name, SHAPE, (8, 3, 8))
    assert found is not None and found.tensor == 2 * 8 * (8 * 16) * 128 * 64 * 128
    assert derived(name, SHAPE, (8, 3, 7)) is None, "not the grid of these heads"


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_3_states_its_tile_in_a_tuple(causal: bool) -> None:
    found = derived(HOPPER.format(causal=str(causal).lower()), SHAPE, (132, 1, 1))
    tiles = brute(SHAPE, 192, 128) if causal else 6 * 8
    assert found is not None and found.tensor == 2 * 8 * tiles * 192 * 128 * 128


def test_memory_efficient_attention_fills_tiles_and_steps() -> None:
    """1,000 keys in tiles of 64: 16 tiles for the scores; the last of the second product takes 64
    of its 40 keys' 32-steps."""
    found = derived("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(X)", replace(SHAPE, width=40))
    scores, values = 1024 * 64, 64 * (15 * 64 + 64)  # width 40 takes two steps of 32
    assert found is not None and found.tensor == 2 * 8 * 16 * 64 * (scores + values)


def test_memory_efficient_attention_in_fp32_is_three_tf32_products_from_ampere_on_and_ffma_before() -> (
    None
):
    shape = replace(SHAPE, queries=128, keys=128)
    macs = 8 * 2 * 64 * (128 * 64 + 64 * 128)
    late = derived("fmha_cutlassF_f32_aligned_64x64_rf_sm80(X)", shape)
    early = derived("fmha_cutlassF_f32_aligned_64x64_rf_sm75(X)", shape)
    assert late is not None and early is not None
    assert (late.tensor, late.math, late.ffma) == (3 * 2 * macs, "tf32", None)
    assert (early.tensor, early.ffma) == (None, macs)


def test_its_mask_begins_at_the_first_key() -> None:
    shape = replace(SHAPE, queries=128, keys=256, causal=True)
    found = derived("fmha_cutlassF_f16_aligned_64x64_rf_sm80(X)", shape)
    macs = sum(64 * (seen * 64 + 64 * seen) for seen in (64, 128))
    assert found is not None and found.tensor == 2 * 8 * macs


def test_its_backward_has_five_products() -> None:
    shape = replace(SHAPE, queries=128, keys=256, backward=True)
    found = derived("fmha_cutlassB_bf16_aligned_64x64_k64_sm80(X)", shape)
    assert found is not None and found.tensor == 2 * 8 * 5 * 128 * 256 * 64
    wide = derived("fmha_cutlassB_bf16_aligned_128x64_k128_sm80(X)", shape)
    # gradients of K and V lie in tiles 128 wide, twice their width
    assert wide is not None and wide.tensor == 2 * 8 * 128 * 256 * (2 * 64 + 2 * 128 + 64)


def test_cudnn_prints_its_tile_and_not_its_mask() -> None:
    name = (
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_6_128x64x64_4x1x1_cga1x1x1"
        "_kernel0_0"
    )
    found = derived(name, SHAPE)
    assert found is not None and found.tensor == 2 * 8 * (8 * 16) * 128 * 64 * 128
    assert derived(name, replace(SHAPE, causal=True)) is None
    backward = derived(name.replace("fprop", "bprop"), replace(SHAPE, backward=True))
    assert backward is not None and backward.tensor == 2 * 8 * (8 * 16) * 128 * 64 * (5 * 64)


def test_cudnns_backward_has_no_rule_where_its_tile_may_lie_either_way() -> None:
    """1,000 queries and 100 keys are 8 x 2 tiles, or 16 x 1 that are as large."""
    name = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_2_{}x64_1x4x1_cga1x1x1"
    shape = replace(SHAPE, keys=100, backward=True)
    assert derived(name.format("128x192"), shape) is None
    found = derived(name.format("128x128"), shape)
    assert found is not None and found.tensor == 2 * 8 * 8 * 128 * 128 * (5 * 64)
