"""Console text of ncu from real runs, and as Nsight's own importer prints it, beside the CSV of
the same."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.records.report import Counter


@pytest.mark.parametrize(
    ("name", "launches", "counters"),
    # launches and metric rows counted in the files: 241 launches x 5 metrics; 10 launches x 50;
    # 1 launch
    [
        ("heateq_ncu_fma_memory.txt", 241, 241 * 5),
        ("cs599k_silu-pytorch-ncu-report.txt", 10, 500),
        ("bobbyal_ecoli_optimized_k12.txt", 1, 75),
    ],
)
def test_real_texts_give_all_their_metrics(
    reports: Path, name: str, launches: int, counters: int
) -> None:
    report = ncu_text.parse(reports / "ncu" / "console" / name)
    assert len(list(report.kernels)) == launches
    assert len(list(report.counters)) == counters
    assert not [gap for gap in report.gaps if gap.state in ("unreadable", "ambiguous")]


def test_a_real_texts_figures_are_read_as_printed(reports: Path) -> None:
    report = ncu_text.parse(reports / "ncu" / "console" / "bobbyal_ecoli_optimized_k12.txt")
    found = {(c.section, c.name): (c.value, c.unit) for c in report.counters}
    assert found["GPU Speed Of Light Throughput", "Elapsed Cycles"] == (6_662_937, "cycle")
    assert found["GPU Speed Of Light Throughput", "DRAM Frequency"] == (7_000_000_000, "Hz")
    assert found["Memory Workload Analysis", "Memory Throughput"] == (191_400_000, "byte/s")
    assert next(iter(report.kernels)).dynamic_shared_bytes == 4_100


def _imported(path: Path, tmp_path: Path, *options: str) -> Path:
    """What the installed ncu prints of a report."""
    tool = shutil.which("ncu")
    if tool is None:
        pytest.skip("ncu is not installed")
    made = tmp_path / ("-".join(options).replace("/", "_") or "text")
    with made.open("wb") as file:
        done = subprocess.run(
            [tool, "--import", str(path), *options], stdout=file, check=False, timeout=600
        )
    if done.returncode:
        pytest.skip("the installed ncu cannot read this report")
    return made


def _facts(counters: object) -> list[Counter]:
    return sorted(counters, key=repr)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lashi_profile", ("--details-all", "--print-rule-details")),
        ("montecarlo_profile", ("--print-fp",)),
    ],
)
def test_the_details_page_as_text_and_as_csv_are_the_same_records(
    reports: Path, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    source = reports / "ncu" / "rep" / f"{name}.ncu-rep"
    text = ncu_text.parse(_imported(source, tmp_path, "--page", "details", *options))
    table = ncu_csv.parse(
        _imported(source, tmp_path, "--page", "details", *options, "--csv", "--print-units", "auto")
    )
    assert list(text.kernels) == list(table.kernels)
    assert _facts(text.counters) == _facts(table.counters)
