"""Real logs and reports that were read wrong once, against counts and sums taken from
their text."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

import perfctl
from perfctl.parsers import parse
from perfctl.parsers import reports as parts_of
from perfctl.records.report import Report


def runs(path: Path) -> list[Report]:
    parts = list(parts_of(path))
    assert not [part for part in parts if part.report is None]
    return [part.report for part in parts if part.report is not None]


def test_the_216_recordings_of_one_job_log_are_216_runs_with_every_row_of_their_tables(
    reports: Path,
) -> None:
    path = reports / "nsys/stats_text/ntua_a100_gemm_pipeline_results.txt"
    lines = path.read_text(errors="replace").replace("\r", "\n").split("\n")
    printed: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    table = ""
    for line in lines:
        if match := re.match(r"\[\d/7\] Executing '(\w+)'", line):
            table = match[1]
        elif line.startswith("Generat"):
            table = ""
        elif table and re.match(r"\s+\d+\.\d\s+\d+\s+\d+\s", line):
            printed[table] += 1
            calls[table] += int(line.split()[2])
    found = runs(path)
    assert len(found) == sum(line.startswith("Generating '") for line in lines) == 216
    operations = [one for report in found for one in report.operations]
    assert Counter(one.category for one in operations) == printed
    counted: Counter[str] = Counter()
    for one in operations:
        counted[one.category] += one.calls
    assert counted == calls
    assert not [
        said for report in found for said in report.diagnostics if "not understood" in said.text
    ]


def test_four_processes_of_one_job_are_four_runs_one_of_them_with_kernels(reports: Path) -> None:
    path = reports / "nsys/stats_text/samhachem_nsys_output.txt"
    found = runs(path)
    titles = [
        line.strip()
        for line in path.read_text().splitlines()
        if line.rstrip().endswith(("Statistics:", "):"))
    ]
    assert len(found) == titles.count("Operating System Runtime API Statistics:") == 4
    assert [{one.category for one in report.operations} for report in found] == [
        {"osrt_sum"},
        {"osrt_sum"},
        {"osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum"},
        {"osrt_sum"},
    ]
    assert (
        sum(
            one.calls
            for report in found
            for one in report.operations
            if one.category == "cuda_gpu_kern_sum"
        )
        == 30
    )


def test_the_seven_runs_under_nvprof_are_seven(reports: Path) -> None:
    path = reports / "nvprof/nichitapavel_nvprof_joined.txt"
    text = path.read_text()
    found = runs(path)
    assert len(found) == text.count("NVPROF is profiling process") == 7
    times = [
        [
            figure.value
            for figure in report.summaries
            if figure.name.startswith("GPU activities") and figure.name.endswith(": Time")
        ]
        for report in found
    ]
    assert [bool(one) for one in times] == [False] * 3 + [True] * 4
    assert [one[0] for one in times[3:]] == [3_075_200, 24_288, 4_621_100, 1_106_270_000]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hazyresearch_zoology_trace.json", f"{236 + 24} launches recorded, GPU activity missing"),
        (
            "bclarkson_flow_matching_trace.json",
            "5 CUDA calls and no launch recorded, GPU activity missing",
        ),
        (
            "hta_cpu_only_rank-34.pt.trace.json.gz",
            "the trace holds no GPU activity: torch.profiler ran without",
        ),
    ],
)
def test_why_a_trace_has_no_kernel(reports: Path, name: str, said: str) -> None:
    (gap,) = [gap for gap in parse(reports / "kineto" / name).gaps if gap.quantity == "kernel"]
    assert gap.reason.startswith(said)


def test_two_traces_have_the_batch_sizes_of_their_names_and_eight_come_out_of_their_tar(
    reports: Path, tmp_path: Path
) -> None:
    perfctl.ingest(reports / "kineto" / "harryjmoss_*.json", tmp_path / "s.db")
    assert sorted(
        (run.batch_size, Path(str(run.artifact)).stem[-3:])
        for run in perfctl.runs(tmp_path / "s.db")
    ) == [
        (16, "_16"),
        (128, "128"),
    ]
    folder = reports / "kineto/ranks/param_dlrm_8rank"
    done = perfctl.ingest(folder / "dlrm_kineto.tar.gz", tmp_path / "tar.db")
    unpacked = [parse(path) for path in sorted(folder.glob("worker*.json.gz"))]
    assert [written.kernels for _, written in done.taken] == [
        len(list(report.kernels)) for report in unpacked
    ]
    assert sum(written.kernels for _, written in done.taken) == 2104
