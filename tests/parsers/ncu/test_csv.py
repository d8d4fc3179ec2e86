"""Nsight Compute CSV: real files with known truths, and logs that hold no CSV."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.report import Report

TENSOR, FMUL = (
    "sm__inst_executed_pipe_tensor.sum",
    "sm__sass_thread_inst_executed_op_fmul_pred_on.sum",
)
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


def value(report: Report, name: str, launch: int) -> int | float | None:
    (found,) = [one.value for one in report.counters if (one.name, one.launch) == (name, launch)]
    return found


def launch_of(report: Report, part: str) -> int:
    return next(kernel.launch for kernel in report.kernels if part in kernel.name)


# Real files


def test_the_tensor_instructions_of_a_known_gemm_are_exact(reports: Path) -> None:
    report = ncu_csv.parse(reports / "ncu/csv_long/wangzy_roofline_output.csv")
    side = 20480
    gemms = [
        counter.launch for counter in report.counters if counter.name == TENSOR and counter.value
    ]
    assert 2 * side**3 == 33_554_432_000 * 512
    assert {value(report, TENSOR, launch) for launch in gemms} == {33_554_432_000}
    assert side**2 in {value(report, FMUL, launch) for launch in gemms}
    assert report.devices[0].compute_capability == "7.0"


def test_the_ffma_of_a_naive_gemm_are_exact_although_printed_as_floats(reports: Path) -> None:
    report = ncu_csv.parse(reports / "ncu/csv_long/gardenia_gemm_smsp_sass.csv")
    counted = value(report, FFMA, launch_of(report, "gemm_v0"))
    assert counted == 34_359_738_368_000 == 20480 * 20480 * 81920
    assert isinstance(counted, int)


# Logs without CSV
