"""Nsight Compute CSV: real files with known truths, and logs that hold no CSV."""

from __future__ import annotations

import csv
from collections import Counter as Tally
from pathlib import Path

import pytest

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.records.errors import ReportError
from perfctl.records.report import Report

DATA = Path(__file__).resolve().parents[2] / "data"
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


def test_a_partial_csv_after_errors_is_read_and_the_failed_kernel_is_a_gap(reports: Path) -> None:
    report = ncu_csv.parse(reports / "ncu/csv_long/gardenia_share_tile_smsp_sass.csv")
    assert len(list(report.kernels)) == 3
    failed = [gap for gap in report.gaps if gap.quantity == "kernel"]
    assert [(gap.state, gap.scope) for gap in failed] == [("not_collected", "gemm_shared_tile")]
    assert sum(item.severity == "error" for item in report.diagnostics) == 2


LONG = [
    "codegandee_k0001_ncu.details.csv",
    "codegandee_k0001_ncu.metrics.csv",
    "dphpc_ncu_analysis.csv",
    "gardenia_gemm_smsp_sass.csv",
    "lashi_ncu_reduceInteger.csv",
    "leleucas_bert_nsight_with_prof_lines.csv",
    "leleucas_conv2d_result.csv",
    "olajide_rtx5070_win_gemm_naive.csv",
    "wangzy_roofline_output.csv",
    "xplacer_aws_nsight_bfs_graph4096.log",
]


@pytest.mark.parametrize("name", LONG)
def test_no_launch_and_no_metric_of_a_real_long_file_is_lost(reports: Path, name: str) -> None:
    path = reports / "ncu/csv_long" / name
    text = path.read_text("utf-8-sig").splitlines()
    start = next(index for index, line in enumerate(text) if line.startswith('"ID",'))
    header, *rows = csv.reader(text[start:])
    metric, identity = header.index("Metric Name"), header.index("ID")
    expected = Tally((int(row[identity]), row[metric]) for row in rows if row[metric])
    report = ncu_csv.parse(path)
    order = sorted({launch for launch, _ in expected})
    assert Tally((order[counter.launch], counter.name) for counter in report.counters) == expected
    assert len(list(report.kernels)) == len(order)
    assert all(counter.value is not None or counter.text for counter in report.counters)


def test_the_wide_file_of_a_real_b200_run_is_whole(reports: Path) -> None:
    report = ncu_csv.parse(reports / "ncu/csv_wide/b200_flashinfer_gqa_bf16_b1_ctx32k_p64.ncu.csv")
    kernels = list(report.kernels)
    assert (len(kernels), len(list(report.counters))) == (16, 16 * (475 - 11))
    assert kernels[0].duration_ns == 12_928
    assert (
        kernels[0].registers,
        kernels[0].dynamic_shared_bytes,
        kernels[0].static_shared_bytes,
    ) == (40, 8704, 0)
    assert report.devices[0].name == "NVIDIA B200"


@pytest.mark.parametrize("page", ["details", "raw"])
@pytest.mark.parametrize("locale", ["en_US.UTF-8", "de_DE.UTF-8"])
def test_every_locale_of_one_report_gives_the_same_numbers(
    reports: Path, page: str, locale: str
) -> None:
    folder = reports / "ncu/locale_generated"
    plain = list(ncu_csv.parse(folder / f"lashi_profile.{page}.C.csv").counters)
    other = list(ncu_csv.parse(folder / f"lashi_profile.{page}.{locale}.csv").counters)
    assert plain == other


def test_a_summary_page_gives_figures_and_says_that_it_has_no_launches(reports: Path) -> None:
    report = ncu_csv.parse(reports / "ncu/locale_generated/lashi_profile.summary_per-kernel.csv")
    assert (list(report.kernels), list(report.counters)) == ([], [])
    assert {gap.quantity for gap in report.gaps} == {"kernel", "counter"}
    average = next(
        s
        for s in report.summaries
        if s.name.startswith("gpu__time_duration.sum, average of 3 launches")
    )
    assert (average.value, average.unit) == (221_440, "ns")


# Logs without CSV


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("csv_long/gardenia_profile_old.csv", "ERR_NVGPUCTRPERM"),
        ("csv_long/leleucas_relu_nsight_result.csv", "another program made"),
        ("csv_wide/b200_only_error_no_csv.ncu.csv", "exit code 1"),
        ("console/heateq_ncu_fma_memory_error.txt", "no kernels were profiled"),
    ],
)
def test_real_files_without_csv_are_explained(reports: Path, name: str, reason: str) -> None:
    path = reports / "ncu" / name
    assert ncu_csv.sniff(path, path.read_bytes()[:65536])
    with pytest.raises(ReportError, match=reason):
        ncu_csv.parse(path)
