"""What an ncu CSV lacks is a gap: launches without their rows or metrics, and fields that no metric
fills."""

from __future__ import annotations

from pathlib import Path

from perfctl.records.report import Gap, Report
from tests.make.ncu_csv import METRIC, line, read

HEADER = ["ID", "Process ID", "Kernel Name", "Grid Size", "Section Name", *METRIC]
METRICS = {"Duration": "10", "Registers Per Thread": "32", "Grid Size": "8"}
PER_LAUNCH = len(METRICS)


def rows(launches: int) -> list[str]:
    """Each launch has three metrics; the grid has 4 x 2 x 1 blocks."""
    return [
        line(launch, 42, "gemm", "(4, 2, 1)", "S", name, "", value)
        for launch in range(launches)
        for name, value in METRICS.items()
    ]


def read_rows(folder: Path, lines: list[str]) -> Report:
    return read(folder, line(*HEADER), *lines)


def reasons(report: Report, quantity: str) -> list[str]:
    return [gap.reason for gap in report.gaps if gap.quantity == quantity]


def test_a_file_that_lacks_nothing_has_no_gap(tmp_path: Path) -> None:
    report = read_rows(tmp_path, rows(6))
    assert (report.gaps, report.diagnostics) == ((), ())


def test_launches_whose_ids_are_left_out_are_counted(tmp_path: Path) -> None:
    lines = rows(6)
    cause = "left out when it was exported, or lost"
    without_two = lines[: 2 * PER_LAUNCH] + lines[4 * PER_LAUNCH :]
    assert reasons(read_rows(tmp_path, without_two), "kernel") == [
        f"2 IDs of launches are not in the file: {cause}"
    ]
    assert reasons(read_rows(tmp_path, lines[PER_LAUNCH:]), "kernel") == [
        f"1 IDs of launches are not in the file: {cause}"
    ]


def test_a_metric_that_one_launch_lacks_is_a_gap_from_three_launches_on(tmp_path: Path) -> None:
    for launches in (2, 3, 4):
        lines = rows(launches)
        del lines[1]
        reason = "launches lacks 1 metrics that all others have, such as Registers Per Thread"
        expected = [f"1 of {launches} {reason}"] if launches > 2 else []
        assert reasons(read_rows(tmp_path, lines), "counter") == expected


def test_launches_of_which_only_a_rule_is_there_have_no_values(tmp_path: Path) -> None:
    header = line(*HEADER, "Rule Name", "Rule Type", "Rule Description")
    rule = line(3, 42, "gemm", "(4, 2, 1)", "S", "", "", "", "Bottleneck", "INF", "few blocks")
    report = read(tmp_path, header, *rows(3), rule)
    assert reasons(report, "counter") == ["1 of 4 launches have no metric values"]


def test_a_field_that_no_launch_has_names_the_metric_that_fills_it(tmp_path: Path) -> None:
    bare = [name for name in HEADER if name != "Grid Size"]

    def fields(*metrics: tuple[str, str]) -> dict[str, Gap]:
        lines = [line(0, 42, "k", "S", name, "", value) for name, value in metrics]
        report = read(tmp_path, line(*bare), *lines)
        return {gap.quantity: gap for gap in report.gaps if gap.quantity.startswith("kernel")}

    missing = fields(("a__b.sum", "1"))
    assert missing.keys() == {"kernel.duration_ns", "kernel.grid_x", "kernel.registers"}
    assert missing["kernel.duration_ns"].reason == "gpu__time_duration.sum is not among the metrics"
    assert missing["kernel.grid_x"].reason.startswith("no launch has a Grid Size")
    known = fields(("Duration", "0"), ("Registers Per Thread", "0"), ("launch__grid_dim_x", "1"))
    assert not known
