"""What stands behind a row of the ledger: kernels by name, guessed layers, gradients that
belong together."""

from perfctl.orchestrator.counts.figure import Figure, make_missing_figure
from perfctl.orchestrator.ledger.ledger import GUESSED, describe_kernel_method_and_tile
from perfctl.orchestrator.ledger.prepared import PreparedRun, mark_as_estimate
from perfctl.records.report import Kernel
from tests.make.synthetic import make_run

GEMM = "volta_sgemm_128x64_tn"


def kernel(name="k", direction="forward", layer="fc", **more):
    return Kernel(0, name, layer=layer, direction=direction, step=0)._replace(**more)


def test_kernels_of_a_row_are_counted_per_step_the_most_launched_first():
    kernels = [
        kernel("rare"),
        kernel(GEMM, short_name="sgemm"),
        kernel(GEMM, short_name="sgemm", step=1),
        kernel(layer=None),
        kernel(GEMM, short_name="sgemm"),
        kernel(GEMM, "backward"),
    ]
    by_key = PreparedRun(make_run(profiler="nsys", kernels=kernels)).launches_by_layer_direction
    assert set(by_key) == {("fc", "forward"), ("fc", "backward")}
    assert list(by_key["fc", "forward"].names.items()) == [(GEMM, 1.5), ("rare", 0.5)]
    assert list(by_key["fc", "backward"].names) == [GEMM]
    unnumbered = make_run(profiler="dlprof", kernels=[kernel(step=None), kernel(step=None)])
    names = PreparedRun(unnumbered).launches_by_layer_direction["fc", "forward"].names
    assert list(names.values()) == [2], "of the complete report where no steps are known"


def test_what_a_guessed_launch_executed_is_an_estimate_for_its_layer():
    estimate = mark_as_estimate(Figure(5, "counted"), GUESSED)
    assert estimate == Figure(5, "estimated", GUESSED)
    estimate = mark_as_estimate(Figure(5, "counted", "by tile"), GUESSED)
    assert estimate == Figure(5, "estimated", f"{GUESSED}; by tile")
    assert mark_as_estimate(make_missing_figure("refused", "no"), GUESSED) == make_missing_figure(
        "refused", "no"
    )


def test_an_algorithm_is_said_in_words():
    assert describe_kernel_method_and_tile(GEMM) == "gemm, 128x64 tile"
    assert (
        describe_kernel_method_and_tile("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn")
        == "gemm, 128x64 tile, fp16 tensor cores"
    )
    assert describe_kernel_method_and_tile("frobnicate") is None
