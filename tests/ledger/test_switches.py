"""Along a sweep: which kernels serve a layer, where that changes, and what it does to FLOPs and
bytes per sample."""

import pytest

from perfctl.orchestrator.counts.kernels.names import recognise_kernel
from perfctl.orchestrator.ledger.ledger import build_ledger
from perfctl.orchestrator.ledger.sweep import describe_algorithm, list_layer_kernels_along_sweep
from perfctl.records.report import SAMPLES_PER_STEP, Counter, Kernel, Summary
from tests.make import synthetic
from tests.make.synthetic import fp_counters, gpu_pair, make_run, study_of, with_report

IMPLICIT = "volta_scudnn_128x64_relu_small_nn_v1"
WIDE = "volta_scudnn_128x128_relu_small_nn_v1"
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
TILES = (
    "void cudnn::winograd::generateWinogradTilesKernel<0, float, "
    "float>(cudnn::winograd::GenerateParams)"
)


def run(batch, names, macs, moved):
    """One step of conv2 forward, as ncu saw it; the first kernel multiplies, each moves ``moved``
    bytes a sample."""
    kernels, counters = [], []
    for launch, name in enumerate(names):
        kernels.append(
            Kernel(
                launch,
                name,
                name.split("<")[0].removeprefix("void "),
                "conv2",
                "forward",
                0,
                "range",
            )
        )
        counters += fp_counters(launch, 0, 0, batch * macs if launch == 0 else 0)
        if moved is not None:
            counters.append(Counter(launch, "dram__bytes_read.sum", batch * moved, "byte"))
            counters.append(Counter(launch, "dram__bytes_write.sum", batch * 10, "byte"))
    return make_run(
        batch,
        profiler="ncu",
        profiler_version="2025.3",
        device=synthetic.V100,
        batch_size=batch,
        kernels=kernels,
        counters=counters,
        layer_calls=synthetic.layer_calls(batch),
    )


def conv2(runs):
    study = study_of(*runs)
    (found,) = list_layer_kernels_along_sweep(study, build_ledger(study))
    assert (found.layer, found.direction, found.name) == ("conv2", "forward", "conv2 forward")
    return found


def test_a_switch_names_the_first_batch_with_the_new_algorithm():
    paper = 24 * 24 * 64 * 288
    runs = [
        run(16, (IMPLICIT,), paper, 1000),
        run(32, (IMPLICIT,), paper, 1000),
        run(64, (WINOGRAD, TILES), paper * 4 // 9, 1500),
    ]
    found = conv2(runs)
    assert [item.batch for item in found.sets] == [16, 32, 64]
    (switch,) = found.switches
    assert (switch.before.batch, switch.after.batch, switch.changes_algorithm) == (32, 64, True)
    assert (switch.before.algorithm.method, switch.after.algorithm.method) == (
        "implicit gemm",
        "winograd F(2x2,3x3)",
    )
    assert switch.before.flops_per_sample.value == 2 * paper
    assert switch.after.flops_per_sample.value == 2 * (paper * 4 // 9)
    assert switch.flops_per_sample_factor == pytest.approx(4 / 9)
    assert (switch.before.bytes_per_sample.value, switch.after.bytes_per_sample.value) == (
        1010,
        2 * 1510,
    )
    assert switch.after.kernels == (WINOGRAD, TILES)


def test_another_tile_is_a_switch_of_kernels_and_not_of_the_algorithm():
    found = conv2([run(16, (IMPLICIT,), 100, 1), run(32, (WIDE,), 110, 1)])
    (switch,) = found.switches
    assert not switch.changes_algorithm and switch.flops_per_sample_factor == pytest.approx(1.1)
    assert describe_algorithm(switch.before.algorithm) == "implicit gemm 128x64, fp32"
    assert describe_algorithm(switch.after.algorithm) == "implicit gemm 128x128, fp32"


def test_bytes_that_nobody_counted_are_not_zero():
    found = conv2(
        [run(16, (IMPLICIT,), 100, None), run(32, (WINOGRAD,), 50, None)],
    )
    (switch,) = found.switches
    assert (
        switch.before.bytes_per_sample.value is None and switch.dram_bytes_per_sample_factor is None
    )
    assert switch.before.bytes_per_sample.state == "not_collected"


def test_a_sample_is_not_taken_for_the_batch_size_if_the_samples_are_unknown():
    runs = [
        with_report(before, summaries=(Summary(SAMPLES_PER_STEP, None, "1"),))
        for batch in (16, 32)
        for before in [run(batch, (IMPLICIT,), 100, 1)]
    ]
    found = conv2(runs)
    assert {item.flops_per_sample.value for item in found.sets} == {None}
    assert {item.bytes_per_sample.reason for item in found.sets} == {
        "the samples of a step are unknown"
    }


def test_kernels_without_counters_are_shown_and_not_counted():
    timed = [gpu_pair(number, batch)[0] for number, batch in enumerate((16, 32), 1)]
    study = study_of(*timed)
    rows = list_layer_kernels_along_sweep(study, build_ledger(study))
    assert ("conv2", "forward") in {(row.layer, row.direction) for row in rows}
    assert all(item.flops_per_sample.state == "not_collected" for row in rows for item in row.sets)


def test_a_name_that_says_nothing_is_called_so():
    assert describe_algorithm(recognise_kernel("my_own_kernel")) == "not recognised"
    assert (
        describe_algorithm(
            recognise_kernel(
                "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x64x16_"
                "stage4_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
            )
        )
        == "implicit gemm 128x64, tf32 tensor cores"
    )
