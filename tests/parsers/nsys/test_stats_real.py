"""nsys stats on real reports: sums, and console text of a profile run."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfctl.parsers.nsys import sqlite, stats
from perfctl.records.report import Operation, Report


def operations(report: Report) -> list[tuple[str, str | None, int, int | None, int | None]]:
    return [
        (one.name, one.category, one.calls, one.cpu_ns, one.device_ns) for one in report.operations
    ]


def summaries(report: Report) -> dict[str, tuple[float | None, str | None]]:
    return {one.name: (one.value, one.unit) for one in report.summaries}


def test_real_csv_of_many_reports(reports: Path) -> None:
    found = stats.parse(reports / "nsys" / "stats_csv" / "mineru_nsys_stats.csv")
    calls: list[Operation] = list(found.operations)
    assert len(calls) == 61  # lines of its only table
    assert operations(found)[0] == ("pthread_cond_wait", "osrt_sum", 316, 4_467_639_532_177, None)
    assert not [gap for gap in found.gaps if gap.state == "unreadable"]


def test_real_console_text_of_a_profile_run(reports: Path) -> None:
    found = stats.parse(reports / "nsys" / "stats_text" / "dphpc_nsys.log")
    by_category = [one.category for one in found.operations]
    assert {name: by_category.count(name) for name in by_category} == {
        "cuda_api_sum": 10,
        "cuda_gpu_kern_sum": 1,
        "cuda_gpu_mem_time_sum": 1,
    }
    assert summaries(found)["cuda_gpu_mem_size_sum:[CUDA memcpy Host-to-Device]:Total"] == (
        67_633_000,
        "byte",
    )


@pytest.mark.parametrize("name", ["gpukernsum", "nvtxsum"])
def test_stats_of_a_real_database_add_up_to_it(reports: Path, name: str) -> None:
    found = stats.parse(
        reports / "nsys" / "stats_generated" / f"quasiben_cudf_2020schema_{name}.csv"
    )
    database = sqlite.parse(reports / "nsys" / "sqlite" / "quasiben_cudf.sqlite")
    if name == "gpukernsum":
        kernels = list(database.kernels)
        assert sum(one.calls for one in found.operations) == len(kernels)
        assert sum(one.device_ns or 0 for one in found.operations) == sum(
            kernel.duration_ns or 0 for kernel in kernels
        )
        assert {one.name for one in found.operations} == {kernel.name for kernel in kernels}
    else:
        ranges = [
            one for one in database.ranges if one.duration_ns is not None and one.kind != "mark"
        ]
        assert sum(one.calls for one in found.operations) == len(ranges)
        assert sum(one.cpu_ns or 0 for one in found.operations) == sum(
            one.duration_ns or 0 for one in ranges
        )


@pytest.mark.parametrize(
    "folder", ["ncu/console", "ncu/csv_long", "ncu/csv_wide", "nvidia_smi", "dlprof/tf1_v100"]
)
def test_real_files_of_other_tools_are_not_taken(reports: Path, folder: str) -> None:
    for path in sorted((reports / folder).iterdir()):
        assert not stats.sniff(path, path.read_bytes()[:65536]), path
