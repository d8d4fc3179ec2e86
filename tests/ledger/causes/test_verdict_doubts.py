"""Simulated sweeps where an obvious reason is the wrong one: nothing false is said, and the true
reason is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import ceil
from typing import Any

import pytest

from perfctl.orchestrator.ledger.causes.judge import Judgement, judge
from perfctl.orchestrator.ledger.causes.rule import Cause
from perfctl.orchestrator.ledger.ledger import Ledger, ledger
from perfctl.orchestrator.ledger.prepared import studies
from perfctl.orchestrator.report.ledger.causes import describe_cause, describe_fix, headlines
from perfctl.records.run import Run
from scripts.proof.verdicts import scenarios as sim
from scripts.proof.verdicts.kernels import Launch
from scripts.proof.verdicts.networks import Linear

Scenario = sim.Scenario


def judged(runs: Iterable[Run]) -> tuple[Judgement, Ledger]:
    (study,) = studies(list(runs))
    entries = ledger(study)
    return judge(study, entries), entries


def rules(judgement: Judgement, batch: int, layer: str, direction: str = "forward") -> list[str]:
    return [item.rule for item in judgement.at(batch, layer, direction).causes]


def the(rule: str, found: Iterable[Cause]) -> Cause:
    (item,) = (item for item in found if item.rule == rule)
    return item


def counting(runs: Iterable[Run], change: Callable[[Run], Run]) -> list[Run]:
    return [change(run) if run.profiler == "ncu" else run for run in runs]


@pytest.mark.parametrize(("algorithm", "rule"), [("tf32", "TF32"), ("fp16", "tensor cores")])
def test_padding_of_a_tensor_core_kernel_is_counted_once(algorithm: str, rule: str) -> None:
    judgement, entries = judged(
        sim.make_runs(Scenario(forward={"conv1": algorithm}, batches=(16, 32)))
    )
    row = judgement.at(32, "conv1", "forward")
    tiles = ceil(32 * 26 * 26 / 128) * 128 * 64 * (16 if algorithm == "tf32" else 9)
    factor = tiles / (32 * 26 * 26 * 32 * 9)
    assert the("tile padding", row.causes).factor == pytest.approx(factor)
    assert the(rule, row.causes).factor == pytest.approx(1) and row.unexplained == pytest.approx(
        0, abs=1e-9
    )
    assert "stays unexplained" not in headlines(judgement, entries)[0].sentence


def test_small_batches_in_one_tile_of_an_unknown_size_are_no_wrong_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = (
        Linear("a", True, True, 1024, 1024),
        Linear("b", False, True, 1024, 512),
        Linear("c", False, True, 512, 10),
    )

    def tile_of_64(layer: Any, batch: int) -> list[Any]:
        rows, columns = ceil(batch / 64) * 64, ceil(layer.cout / 64) * 64
        name = "triton_tem_fused_addmm_relu_3"
        return [
            Launch(name, (rows // 64 * columns // 64, 1, 1), {"ffma": rows * columns * layer.cin})
        ]

    monkeypatch.setattr(sim, "NETWORK", network)
    monkeypatch.setitem(sim.ALGORITHMS, "unknown tile", tile_of_64)
    forward = {layer.name: "unknown tile" for layer in network}
    judgement, _ = judged(
        sim.make_runs(Scenario(forward=forward, missing="all", batches=(1, 2, 4, 8, 16, 32)))
    )
    assert {item.rule for item in judgement.sweep} == {"direction missing"}
    assert not rules(judgement, 1, "a")


def test_a_count_that_padding_explains_is_no_shared_kernel() -> None:
    """64 channels in a tile of 128 make 2.00, which is also what a neighbour of the same size
    would add."""

    def lost(run: Run) -> Run:
        kernels = [
            kernel._replace(layer=None, direction=None)
            if (kernel.layer, kernel.direction) == ("block.conv_b", "forward")
            else kernel
            for kernel in run.report.kernels
        ]
        return replace(run, report=replace(run.report, kernels=kernels))

    runs = sim.make_runs(Scenario(forward={"block.conv_a": "padding"}, batches=(16, 32)))
    judgement, _ = judged(counting(runs, lost))
    assert rules(judgement, 16, "block.conv_a") == ["tile padding"]
    assert rules(judgement, 16, "block.conv_b") == ["direction missing"]


def test_forwards_kernel_as_the_input_gradient_is_no_recomputation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A layer with as many channels in as out may use one kernel for both; a bias gradient is no
    gradient's product."""
    plain = sim.run_backward

    def backward(scenario: Any, layer: Any, batch: int) -> list[Any]:
        if layer.name != "block.conv_a":
            found: list[Any] = plain(scenario, layer, batch)
            return found
        return [
            *sim.ALGORITHMS["winograd2"](layer, batch),
            Launch(
                "void wgrad2d_direct_kernel<float>(float*)", (64, 1, 1), {"ffma": layer.macs(batch)}
            ),
            Launch("void sums_over_images(float*)", (1, 1, 1), {"fadd": layer.outputs(batch)}),
        ]

    monkeypatch.setattr(sim, "run_backward", backward)
    judgement, _ = judged(
        sim.make_runs(Scenario(forward={"block.conv_a": "winograd2"}, batches=(16, 32)))
    )
    row = judgement.at(16, "block.conv_a", "backward")
    (item,) = row.causes
    assert item.rule == "Winograd" and row.unexplained == pytest.approx(0, abs=0.01)
    multiplies = (16 / 36 * (64 / 56) + 1) / 2  # one of two gradients; 56 columns in tiles of 16
    adds = 16 * 2 * 7 * 4 * (32 * 64 * 32 + 32 * 32 * 24) + 20 * 64 * 64 + 8 * 64 * 64
    layer = sim.BY_NAME["block.conv_a"]
    adds += layer.outputs(16)  # the bias gradient's
    assert item.factor == pytest.approx(multiplies + adds / (4 * layer.macs(16)))


def test_padding_of_an_input_gradient_follows_from_its_grid_where_the_size_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gradient of 64 channels in a tile of 128 executes twice its half of backward."""
    plain = sim.run_backward

    def backward(scenario: Any, layer: Any, batch: int) -> list[Any]:
        found: list[Any] = plain(scenario, layer, batch)
        return (
            [*sim.padding(layer, batch), found[-1]]
            if layer.name in ("block.conv_a", "conv2")
            else found
        )

    monkeypatch.setattr(sim, "run_backward", backward)
    judgement, _ = judged(sim.make_runs(Scenario(batches=(16, 32))))
    row = judgement.at(16, "block.conv_a", "backward")
    assert the("tile padding", row.causes).factor == pytest.approx(
        1.5
    ) and row.unexplained == pytest.approx(0)
    # 26 x 26 in, 24 x 24 out: nothing is predicted
    assert not rules(judgement, 16, "conv2", "backward")


def test_algorithms_that_cudnn_tries_out_are_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def candidates(layer: Any, batch: int) -> list[Any]:
        return [
            *sim.padding(layer, batch),
            *sim.ALGORITHMS["winograd2"](layer, batch),
            *sim.ALGORITHMS["winograd4"](layer, batch),
        ]

    monkeypatch.setitem(sim.ALGORITHMS, "candidates", candidates)
    judgement, _ = judged(
        sim.make_runs(Scenario(forward={"block.conv_a": "candidates"}, batches=(16, 32)))
    )
    row = judgement.at(16, "block.conv_a", "forward")
    (item,) = row.causes
    layer = sim.BY_NAME["block.conv_a"]
    works = candidates(layer, 16)
    assert (
        item.rule == "several algorithms"
        and "3 kernels that each compute the complete layer" in describe_cause(item)
    )
    assert (
        item.factor == pytest.approx(sum(launch.flops for launch in works) / (2 * layer.macs(16)))
        and row.unexplained == 0
    )
    assert "cudnn.benchmark" in describe_fix(item) and not judgement.sweep


def test_the_forms_of_one_tensor_counter_are_not_added_to_each_other() -> None:
    """The sparse and dense forms, and the forms by destination, are parts of the form
    without them."""
    from perfctl.orchestrator.counts.counters.sums import ops_path

    whole = "sm__ops_path_tensor_src_tf32_dst_fp32"
    forms: dict[str, float | None] = {
        f"{whole}.sum": 100,
        f"{whole}_sparsity_off.sum": 100,
        f"{whole}_sparsity_on.sum": 0,
        "sm__ops_path_tensor_op_hmma_src_tf32_dst_fp32_sparsity_off.sum": 100,
        "sm__ops_path_tensor_src_fp16_dst_fp32.sum": 8,
        "sm__inst_executed_pipe_tensor.sum": 3,
    }
    assert ops_path(forms) == 108
    assert ops_path({"sm__inst_executed_pipe_tensor.sum": 3}) is None
