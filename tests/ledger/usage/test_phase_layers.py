"""Phases by part of the model: repeated blocks as one row, paper FLOPs and bytes, the cache, and
padding in tiles."""

import pytest

from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.usage.blocks import map_layers_to_repeated_block
from perfctl.orchestrator.ledger.usage.phase_layers import (
    EITHER,
    TilePadding,
    compute_tile_padding,
    split_serving_phases_by_model_part,
)
from perfctl.orchestrator.ledger.usage.served import find_constant_sequences_per_step
from perfctl.orchestrator.report.ledger.phases import (
    build_phase_tables,
    find_worst_tile_padding,
    shorten_module_paths,
)
from perfctl.orchestrator.report.page.about import build_missing_values_table
from perfctl.records.paper import OpShape
from perfctl.records.report import COVERS, WHOLE_CAPTURE, Kernel
from perfctl.records.serving import ServedStep
from tests.make.synthetic import foreign_run, study_of, with_report

HEADS, KV_HEADS, SIZE, BLOCKS, SEQUENCES, KEYS = 8, 2, 16, 3, 4, 100
WIDE, NARROW = HEADS * SIZE, KV_HEADS * SIZE
DECODE = ServedStep(0, "d", "decode", 0, 0, 0, 0, SEQUENCES, SEQUENCES, KEYS, KEYS)
GEMM = "Cijk_Alik_Bljk_BBS_BH_MT64x16x32_MI16x16x1"


def product(layer, rows, depth, columns, position=0, calls=1):
    return OpShape(
        layer,
        "Linear",
        "aten.mm",
        "forward",
        ((rows, depth), (depth, columns)),
        ((rows, columns),),
        ("bfloat16",) * 3,
        calls=calls,
        position=position,
    )


def ran(layer, step=0, name=GEMM, length=10):
    return Kernel(0, name, layer=layer, step=step, start_ns=0, duration_ns=length, device_index=0)


def served(steps, kernels, ops):
    covers = {COVERS: WHOLE_CAPTURE}
    return foreign_run(
        1, kernels=list(kernels), served_steps=list(steps), ops=list(ops), environment=covers
    )


def decoding(kernel=GEMM):
    kernels, ops = [], []
    for at in range(BLOCKS):
        above = f"Block_{at}.Attention_{at}"
        kernels += [
            ran(f"{above}.QKV_{at}", name=kernel),
            ran(f"{above}.RadixAttention_{at}", name="paged", length=30),
        ]
        kernels += [ran(f"{above}.Linear_{at}", name=kernel)]
        ops += [product(f"{above}.QKV_{at}", SEQUENCES, WIDE, WIDE + 2 * NARROW, 2 * at)]
        ops += [product(f"{above}.Linear_{at}", SEQUENCES, WIDE, WIDE, 2 * at + 1)]
    (found,) = split_serving_phases_by_model_part(served([DECODE], kernels, ops))
    return found


def test_the_same_part_of_all_blocks_has_one_name_though_instances_are_numbered_over_the_model():
    layers = [
        f"Layer_{at}.{name}"
        for at in range(3)
        for name in (f"Norm_{2 * at}", f"Norm_{2 * at + 1}", f"MLP_{at}.Linear_{at}")
    ]
    found = map_layers_to_repeated_block([*layers, "Norm_6"])
    assert {part.name for part in found.values()} == {
        "Layer.Norm 1",
        "Layer.Norm 2",
        "Layer.MLP.Linear",
        "Norm_6",
    }
    assert [found[f"Layer_{at}.Norm_{2 * at + 1}"].block for at in range(3)] == [0, 1, 2]
    assert (
        map_layers_to_repeated_block(["Conv_0", "Conv_1", "Linear_0"])["Conv_1"].name == "Conv_1"
    ), "leaves of a network are no blocks"


def test_a_row_has_the_work_of_all_its_blocks():
    rows = {part.part: part for part in decoding().parts}
    qkv = rows["Block.Attention.QKV"]
    columns = WIDE + 2 * NARROW
    assert (qkv.blocks, qkv.launches, qkv.kernel_ns, qkv.share) == (BLOCKS, BLOCKS, 30, 30 / 150)
    assert qkv.flops == BLOCKS * 2 * SEQUENCES * WIDE * columns
    assert qkv.bytes == BLOCKS * 2 * (SEQUENCES * WIDE + WIDE * columns + SEQUENCES * columns)
    assert qkv.token_ns == 30 / SEQUENCES


def test_attention_reads_the_keys_and_values_that_its_tokens_attend_to():
    found = decoding()
    assert found.cache_bytes == KEYS * 2 * KV_HEADS * SIZE * 2 * BLOCKS
    attention = next(part for part in found.parts if part.part.endswith("RadixAttention"))
    assert attention.flops == BLOCKS * 2 * 2 * KEYS * HEADS * SIZE
    assert attention.bytes == found.cache_bytes + BLOCKS * 2 * SEQUENCES * (2 * WIDE + 2 * NARROW)
    assert attention.estimated, "the type of the cache is that of the projections by assumption"


def test_what_the_cache_lacks_is_named_and_no_figure_is_given():
    (bare,) = split_serving_phases_by_model_part(
        served([DECODE], [ran("a.b")], [product("a.b", SEQUENCES, 8, 8)])
    )
    assert bare.cache_bytes is None
    assert "key-value heads x head dimension are unknown" in (bare.cache_why or "")


def test_each_block_by_itself_where_that_is_asked_for():
    run = decoding().run
    (each,) = split_serving_phases_by_model_part(run, separates_blocks=True)
    assert len(each.parts) == BLOCKS * 3
    assert sum(part.flops or 0 for part in each.parts) == sum(
        part.flops or 0 for part in decoding().parts
    )


def test_a_layer_of_both_phases_has_no_figure_where_its_rows_do_not_tell():
    prefill = ServedStep(1, "p", "prefill", SEQUENCES, 50, decodes=0, decode_tokens=0)
    kernels = [ran("m.up", 0), ran("m.up", 1), ran("m.head", 0), ran("m.head", 1)]
    # of prompts, too, the head takes one row a sequence: the two calls cannot be told apart
    ops = [
        product("m.up", SEQUENCES, 8, 8),
        product("m.up", 50, 8, 8, 1),
        product("m.head", SEQUENCES, 8, 99, 2, calls=2),
    ]
    run = served([DECODE, prefill], kernels, ops)
    rows = {
        (found.phase, part.part): part
        for found in split_serving_phases_by_model_part(run)
        for part in found.parts
    }
    assert rows["prefill", "m.up"].flops == 2 * 50 * 8 * 8
    assert rows["decode", "m.up"].flops == 2 * SEQUENCES * 8 * 8
    assert rows["decode", "m.head"].flops is None
    assert rows["decode", "m.head"].flops_why == EITHER


def test_tiles_lie_with_their_second_side_along_torchs_rows():
    wide = compute_tile_padding(
        Kernel(0, "Cijk_Alik_Bljk_BBS_BH_MT256x32x64_MI16x16x1"),
        32,
        512,
        grid_counts_work_items=True,
    )
    assert wide == TilePadding(32, 512, (32, 256))
    assert wide.executed_over_estimated_macs == 1, (
        "256 is along the features: 32 tokens fill a tile of 32"
    )
    few = compute_tile_padding(
        Kernel(0, "Cijk_Alik_Bljk_BBS_BH_MT256x32x64_MI16x16x1"),
        3,
        512,
        grid_counts_work_items=True,
    )
    assert few is not None
    assert few.executed_over_estimated_macs == pytest.approx(32 / 3)


def test_without_a_grid_the_direction_of_an_uneven_tile_is_open():
    name = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"
    assert compute_tile_padding(Kernel(0, name), 3, 512, grid_counts_work_items=False) is None
    by_grid = compute_tile_padding(
        Kernel(0, name, grid_x=4, grid_y=1, grid_z=1), 3, 512, grid_counts_work_items=False
    )
    assert by_grid == TilePadding(3, 512, (64, 128)), "4 = 512 / 128 blocks along the features"


def test_padding_is_a_finding_with_its_numbers_and_full_tiles_are_none():
    (said,) = find_worst_tile_padding([decoding()])
    factor = 16 / SEQUENCES
    assert f"{factor:.2f} times the estimated multiply-adds" in said.text
    assert (
        f"{SEQUENCES} x {WIDE} outputs" in said.text
        or f"{SEQUENCES} x {WIDE + 2 * NARROW} outputs" in said.text
    )
    full = decoding("Cijk_Alik_Bljk_BBS_BH_MT64x4x32_MI4x4x1")
    assert list(find_worst_tile_padding([full])) == []
    assert {part.padded for part in full.parts} == {1.0, None}


def test_a_batch_is_known_where_all_steps_are_alike():
    assert (
        find_constant_sequences_per_step(served([DECODE, DECODE._replace(number=1)], [], []))
        == SEQUENCES
    )
    assert (
        find_constant_sequences_per_step(
            served([DECODE, DECODE._replace(number=1, decodes=9)], [], [])
        )
        is None
    )
    assert find_constant_sequences_per_step(served([], [], [])) is None


def test_short_names_tell_parts_apart():
    names = ["L.Qwen3Attention.Linear", "L.Qwen2MLP.Linear", "L.Qwen2MLP.Act"]
    assert list(shorten_module_paths(names).values()) == ["Attention.Linear", "MLP.Linear", "Act"]


def test_a_mixed_phase_whose_tokens_are_not_divided_says_which_columns_are_left_out_and_why():
    unsaid = ServedStep(0, "m", "mixed", 3, None, decodes=2)
    (table,) = build_phase_tables(
        split_serving_phases_by_model_part(
            served([unsaid], [ran("m.up", 0)], [product("m.up", 50, 8, 8)])
        )
    )
    assert (
        "of prompts, of decodes: the trace does not state how the tokens divide between prefill "
        "and decode." in table.notes
    )


def test_the_gap_of_paper_flops_says_which_rows_lack_them_and_leaves_out_what_the_phase_shows():
    """Attention has no shapes of its keys, so the ledger has no formula for it; its phase
    has one."""
    found = decoding()
    assert all(part.flops for part in found.parts)
    norms = [ran(f"Block_{at}.Norm_{at}") for at in range(BLOCKS)]
    kernels = [
        kernel._replace(direction="forward") for kernel in (*found.run.report.kernels, *norms)
    ]
    study = study_of(with_report(found.run, kernels=kernels))
    table = build_missing_values_table(study, build_ledger(study))
    assert table is not None
    (row,) = (row for row in table.rows if row[0].text == "estimated FLOPs")
    names = ", ".join(f"Block_{number}.Norm_{number} forward" for number in range(BLOCKS))
    assert (row[1].text, row[2].text) == ("no formula, because its shapes are unknown", names)
