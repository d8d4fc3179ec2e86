"""Facts about a launch among the metrics of real reports, and which metrics count FLOPs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers import parse
from perfctl.parsers.ncu.facts import CYCLES, counts_flops


def test_whole_counts_of_multiply_adds_count_the_work_and_rates_or_additions_do_not() -> None:
    op = "thread_inst_executed_op_{}_pred_on.sum"
    counts = [
        f"{unit}__sass_{op.format(name)}"
        for unit in ("sm", "smsp")
        for name in ("ffma", "dfma", "hfma", "ffma2")
    ]
    counts += ["sm__inst_executed_pipe_tensor.sum", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"]
    assert all(map(counts_flops, counts))
    others = [
        f"{counts[0]}.per_cycle_elapsed",
        counts[0].replace("ffma", "fadd"),
        "sm__inst_executed.sum",
        "FFMA",
    ]
    assert not any(map(counts_flops, others))


def test_where_a_report_has_all_three_cycles_by_clock_rate_is_its_duration(reports: Path) -> None:
    pytest.importorskip("ncu_report")
    found = parse(reports / "ncu" / "rep" / "cs599k_h100_silu_2025-04-21.ncu-rep")
    values = {(item.launch, item.name): item.value for item in found.counters}
    for kernel in found.kernels:
        for cycles, rate in CYCLES:
            by_cycles = (
                (values[kernel.launch, cycles] or 0) / (values[kernel.launch, rate] or 1) * 1e9
            )
            assert by_cycles == pytest.approx(kernel.duration_ns, rel=1e-6)
