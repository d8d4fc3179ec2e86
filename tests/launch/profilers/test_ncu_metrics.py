"""Which counters ncu is asked for, chip by chip."""

from __future__ import annotations

import pytest

from perfctl.orchestrator.launch.machine import tools
from perfctl.orchestrator.launch.profilers import ncu

QUERY = """Chip gx100
--------------------------- ------------- ----------- -----------------------------
Metric Name                 Metric Type   Metric Unit Metric Description
--------------------------- ------------- ----------- -----------------------------
dram__bytes_read            Counter       byte        # of bytes read from DRAM
gpu__time_duration          Counter       nsecond     equals to gpu__time_duration_measured_user
                                                      equals to gpu__time_duration_measured_wallclock
sm__inst_executed_pipe_tensor Counter     inst        # of warp instructions
sm__inst_executed_pipe_tensor_op_hmma_type_hfma2 Counter inst HFMA2.MMA
sm__ops_path_tensor_src_fp16_dst_fp32 Counter         operations
sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_off Counter operations
sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_on Counter operations
smsp__sass_thread_inst_executed_op_fadd_pred_on Counter inst
smsp__sass_thread_inst_executed_op_ffma_pred_on Counter inst
smsp__sass_thread_inst_executed_op_ffma2_pred_on Counter inst
smsp__sass_thread_inst_executed_op_memory_pred_on Counter inst
"""


def test_only_counters_of_the_chip_are_asked_for(monkeypatch):
    monkeypatch.setattr(ncu, "chip_metrics", lambda chip: ncu.read_metrics(QUERY))
    assert ncu.flops("gx100") == (
        "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
        "sm__inst_executed_pipe_tensor.sum", "gpu__time_duration.sum", "dram__bytes_read.sum",
        "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum", "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
        "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
    )  # fmt: skip


def test_each_tensor_type_is_asked_for_once(monkeypatch):
    path = "sm__ops_path_tensor_src_"
    names = {"fp16", "fp16_dst_fp16", "fp16_dst_fp32", "fp64", "fp8_sparsity_on", "fp8_sparsity_off", "int8"}
    monkeypatch.setattr(ncu, "chip_metrics", lambda chip: frozenset(path + name for name in names))
    wanted = names - {"fp16"}  # the sum of the two forms that say what they add up to
    assert set(ncu.flops("gx100")) == {f"{path}{name}.sum" for name in wanted}


def test_an_unknown_chip_gets_the_portable_counters():
    assert ncu.flops(None) == ncu.PORTABLE
    assert len(set(ncu.PORTABLE)) == 3 * 3 + 1 + 3


def test_the_chip_comes_from_the_compute_capability(monkeypatch):
    monkeypatch.setattr(tools, "find", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(tools, "output", lambda *argv: "8.0\n8.6\n")
    ncu.chip.cache_clear()
    assert ncu.chip() == "ga100"
    ncu.chip.cache_clear()


@pytest.mark.skipif(tools.find("ncu") is None, reason="ncu is not installed")
@pytest.mark.parametrize(("chip", "moves"), [("gv100", False), ("ga100", True)])
def test_the_installed_ncu_knows_its_chips_without_a_gpu(chip, moves):
    asked = ncu.flops(chip)
    assert set(ncu.PORTABLE) <= set(asked)
    assert ("sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum" in asked) is moves
