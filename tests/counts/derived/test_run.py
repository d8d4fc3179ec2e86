"""A run without counters gets derived counts, marked as such; where counters exist both stand side
by side."""

from dataclasses import replace

import pytest

from perfctl.orchestrator.counts.derived.pointwise import derive_pointwise_kernel
from perfctl.orchestrator.counts.derived.records import Launch
from perfctl.orchestrator.counts.derived.run import derive_launch_instructions
from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.analysis import analyse_study
from perfctl.orchestrator.ledger.prepared import group_into_studies
from perfctl.orchestrator.report.ledger.causes import build_ledger_headlines
from perfctl.orchestrator.report.tables import figure_cell
from perfctl.records.paper import OpShape
from perfctl.records.report import Kernel
from scripts.proof.verdicts.scenarios import Scenario, make_runs

BATCH = 16
PADDED = Scenario(forward={"conv2": "padding", "fc1": "padding"}, batches=(BATCH,))


def analysed(*profilers, scenario=PADDED):
    (study,) = group_into_studies([run for run in make_runs(scenario) if run.profiler in profilers])
    return analyse_study(study)


def row_of(found, layer, direction="forward"):
    return next(
        row for row in found.ledger.rows if (row.layer, row.direction) == (layer, direction)
    )


def test_an_nsys_run_alone_has_derived_counts_and_ratios():
    row = row_of(analysed("nsys"), "conv2")
    outputs = BATCH * 24 * 24  # 72 tiles of 128; 64 channels fill a tile of 128 by half
    assert row.executed.state == "derived"
    assert row.executed.value == 2 * outputs * 128 * 288 + 2 * outputs * 128
    assert row.ratio == pytest.approx(2 + 2 * 128 / (2 * 64 * 288))


def test_derived_counts_give_verdicts():
    found = analysed("nsys")
    assert "tile padding" in {
        item.rule for item in found.judgement.get_row_causes(BATCH, "conv2", "forward").causes
    }
    said = next(
        one.sentence
        for one in build_ledger_headlines(found.judgement, found.ledger)
        if one.sentence.startswith("conv2 forward")
    )
    assert said.startswith(
        "conv2 forward executed 2.01 times the estimated FLOPs at batch 16 (derived from its "
        "kernels). Cause: tile"
    )


def test_a_kernel_without_a_rule_is_no_zero():
    row = row_of(analysed("nsys"), "conv2", "backward")
    assert (row.executed.value, row.executed.state) == (None, "not_available")
    assert row.executed.reason == "no rule for this kernel"
    assert row.ratio is None
    judged = analysed("nsys").judgement.get_row_causes(BATCH, "conv2", "backward")
    assert not judged.causes, "no counter is asked for where none was read"


def test_counters_stay_counted_and_derived_counts_stand_beside_them():
    row = row_of(analysed("nsys", "ncu"), "conv2")
    assert row.executed.state == "counted"
    assert row.derived is not None and row.derived.state == "derived"
    # the epilogue is not simulated
    assert row.derived.value == pytest.approx(row.executed.value, rel=0.01)


def test_a_derived_cell_looks_different_and_states_rule_and_error():
    cell = figure_cell(row_of(analysed("nsys"), "conv2").executed, "FLOP")
    assert cell.text.startswith("ƒ ") and cell.style == "der"
    assert "x 128 x 128 x 288" in (cell.title or "") and "launches on an A100" in (cell.title or "")


def test_without_shapes_nothing_is_derived():
    runs = [run for run in make_runs(PADDED) if run.profiler == "nsys"]
    bare = [replace(run, report=replace(run.report, ops=())) for run in runs]
    (study,) = group_into_studies(bare)
    row = row_of(analyse_study(study), "conv2")
    assert (row.executed.value, row.executed.state, row.derived) == (None, "not_collected", None)


ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(int)"
)


def test_an_elementwise_kernel_whose_grid_fits_two_sizes_has_no_rule():
    assert (
        derive_pointwise_kernel(Launch(ADD, (20, 1, 1)), recognise_kernel(ADD), {10240, 10239})
        is None
    )


def test_what_moves_values_executes_no_floating_point_instruction():
    name = "void cudnn::cnn::im2col4d_kernel<float, long>(X)"
    found = derive_pointwise_kernel(Launch(name), recognise_kernel(name), ())
    assert found is not None and found.fp32_flops == 0


def test_a_reduction_belongs_to_the_product_before_it_in_its_layer():
    product = "ampere_sgemm_32x32_sliced1x4_tn"
    reduction = (
        "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, "
        "false>(cublasSplitKParams)"
    )
    launches = [
        (Kernel(number, name, grid_x=grid[0], grid_y=grid[1], grid_z=grid[2]), key)
        for number, name, grid, key in (
            (0, product, (8, 2, 4), ("fc1", "forward")),
            (1, product, (8, 2, 2), ("fc2", "forward")),
            (2, reduction, (64, 1, 1), ("fc1", "forward")),
        )
    ]
    shapes = ((256,), (40, 256), (256, 256))
    ops = [
        OpShape(layer, "Linear", "aten.addmm", "forward", shapes, ((40, 256),), (), {}, 0, 1, 0)
        for layer in ("fc1", "fc2")
    ]
    found = derive_launch_instructions(launches, ops)
    values = 64 * 256
    # its parts wait for the reduction, which adds the bias, too
    assert found[0].ffma == values * 256
    # the second part, and the bias, are added to what is there
    assert found[1].ffma == values * (256 + 1 + 1)
    assert (found[2].fadd, found[2].fmul) == (40 * 256 * (4 + 1), 40 * 256)
