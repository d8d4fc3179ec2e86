"""What stands behind a row of the ledger: kernels by name, guessed layers, gradients that
belong together."""

from __future__ import annotations

from types import ModuleType

from perfctl.orchestrator.counts.figure import Figure, missing
from perfctl.orchestrator.ledger.ledger import algorithm, found_by, guessed, kernel_uses
from perfctl.orchestrator.ledger.prepared import PreparedRun
from perfctl.records.report import Kernel

GEMM = "volta_sgemm_128x64_tn"


def kernel(
    name: str = "k", direction: str | None = "forward", layer: str | None = "fc", **more: object
) -> Kernel:
    return Kernel(0, name, layer=layer, direction=direction, step=0)._replace(**more)  # type: ignore[arg-type]


def test_kernels_of_a_row_are_counted_per_step_the_most_launched_first(
    synthetic: ModuleType,
) -> None:
    kernels = [
        kernel("rare"),
        kernel(GEMM, short_name="sgemm"),
        kernel(GEMM, short_name="sgemm", step=1),
        kernel(layer=None),
        kernel(GEMM, short_name="sgemm"),
        kernel(GEMM, "backward"),
    ]
    uses = kernel_uses(PreparedRun(synthetic.make_run(profiler="nsys", kernels=kernels)))
    assert set(uses) == {("fc", "forward"), ("fc", "backward")}
    assert [(use.name, use.family, use.per_step) for use in uses["fc", "forward"]] == [
        (GEMM, "gemm", 1.5),
        ("rare", None, 0.5),
    ]
    assert uses["fc", "backward"][0].name == GEMM
    assert kernel_uses(None) == {}
    unnumbered = synthetic.make_run(
        profiler="dlprof", kernels=[kernel(step=None), kernel(step=None)]
    )
    assert kernel_uses(PreparedRun(unnumbered))["fc", "forward"][0].per_step == 2, (
        "of the whole report where no steps are known"
    )


def test_the_share_of_guessed_launches_is_told_where_there_are_any(synthetic: ModuleType) -> None:
    kernels = [
        kernel(layer_source="guessed"),
        kernel(layer_source="range"),
        kernel(layer_source="guessed"),
        kernel(),
        kernel(direction="backward"),
        kernel(layer=None, layer_source="guessed"),
    ]
    assert found_by(PreparedRun(synthetic.make_run(kernels=kernels)), "guessed") == {
        ("fc", "forward"): 0.5
    }
    assert found_by(None, "guessed") == {}


def test_what_a_guessed_launch_executed_is_an_estimate_for_its_layer() -> None:
    said = "the layer of some launches was guessed"
    assert guessed(Figure(5, "counted")) == Figure(5, "estimated", said)
    assert guessed(Figure(5, "counted", "by tile")) == Figure(5, "estimated", f"{said}; by tile")
    assert guessed(missing("refused", "no")) == missing("refused", "no")


def test_an_algorithm_is_said_in_words() -> None:
    assert algorithm(GEMM) == "gemm, 128x64 tile"
    assert (
        algorithm("volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_tn")
        == "gemm, 128x64 tile, fp16 tensor cores"
    )
    assert algorithm("frobnicate") is None
