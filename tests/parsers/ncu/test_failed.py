"""Launches that failed, and metrics without any value: what is missing is named as what it is."""

from __future__ import annotations

from pathlib import Path

from perfctl.parsers.ncu import csv as ncu_csv
from perfctl.parsers.ncu import text as ncu_text
from perfctl.records.report import Gap, Report
from tests.make.ncu_csv import METRIC, line

COLUMNS = ["ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", *METRIC]
CONSOLE = """\
==ERROR== LaunchFailed
[7] a@127.0.0.1
  render(int) (0, 0, 0)x(0, 0, 0), Context 1, Stream 7, Device 0, CC 8.9
    Section: GPU Speed Of Light Throughput
    ----------- ----------- ------------
    Metric Name Metric Unit Metric Value
    ----------- ----------- ------------
    Duration        nsecond      (!) nan
    SM Busy               %      (!) nan
    ----------- ----------- ------------

"""


def gaps(report: Report, quantity: str) -> list[tuple[str, str]]:
    return [(gap.state, gap.reason) for gap in report.gaps if gap.quantity == quantity]


def test_the_grid_of_a_launch_that_failed_is_not_known_and_its_nan_duration_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "ncu.txt").write_text(CONSOLE)
    report = ncu_text.parse(tmp_path / "ncu.txt")
    (kernel,) = report.kernels
    assert (kernel.grid_x, kernel.block_x, kernel.duration_ns) == (None, None, None)
    failed = Gap(
        "kernel.grid_x",
        "not_available",
        "ncu gives the grid (0, 0, 0): this launch failed",
        "render(int)",
    )
    assert failed in report.gaps
    ((state, reason),) = gaps(report, "kernel.duration_ns")
    assert (state, reason) == (
        "not_available",
        "ncu could not measure Duration in 1 of 1 launches",
    )
    ((state, reason),) = gaps(report, "counter.value")
    assert (state, reason.partition(":")[0]) == (
        "unreadable",
        "none of the 2 metric values is a number",
    )


def test_one_failed_launch_of_three_has_a_gap_and_the_others_their_figures(tmp_path: Path) -> None:
    shapes = ["(4, 1, 1)", "(0, 0, 0)", "(5, 1, 1)"]
    rows = [
        line(
            number,
            1,
            f"k{number}",
            "(32, 1, 1)",
            grid,
            "gpu__time_duration.sum",
            "nsecond",
            "nan" if number == 1 else "7",
        )
        for number, grid in enumerate(shapes)
    ]
    (tmp_path / "ncu.csv").write_text("".join((line(*COLUMNS), *rows)))
    report = ncu_csv.parse(tmp_path / "ncu.csv")
    assert [(kernel.grid_x, kernel.duration_ns) for kernel in report.kernels] == [
        (4, 7),
        (None, None),
        (5, 7),
    ]
    assert [gap.scope for gap in report.gaps if gap.quantity == "kernel.grid_x"] == ["k1"]
    ((state, reason),) = gaps(report, "kernel.duration_ns")
    assert (state, reason) == (
        "not_available",
        "ncu could not measure gpu__time_duration.sum in 1 of 3 launches",
    )
    assert gaps(report, "counter.value") == [], "two of three values are there"


def test_metrics_that_are_all_not_available_are_one_gap_that_makes_a_run_partial(
    tmp_path: Path,
) -> None:
    rows = [
        line(number, 1, "k", "(32, 1, 1)", "(4, 1, 1)", "sm_misspelt.sum", "", "n/a")
        for number in range(4)
    ]
    (tmp_path / "ncu.csv").write_text("".join((line(*COLUMNS), *rows)))
    report = ncu_csv.parse(tmp_path / "ncu.csv")
    ((state, reason),) = gaps(report, "counter.value")
    assert (state, reason.partition(":")[0]) == (
        "unreadable",
        "none of the 4 metric values is a number",
    )
    assert gaps(report, "kernel.duration_ns") == [
        ("not_collected", "gpu__time_duration.sum is not among the metrics")
    ]
