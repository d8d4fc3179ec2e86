"""The DLProf CSV parser on tests/data/dlprof-synthetic (written by hand) and on the
real reports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, find, parse
from perfctl.parsers.dlprof import csv as dlprof_csv
from perfctl.records.report import Report

FOLDER = Path(__file__).resolve().parents[2] / "data" / "dlprof-synthetic"


@pytest.fixture(scope="module")
def report() -> Report:
    return parse(FOLDER)


def copied(tmp_path: Path, *names: str) -> Path:
    for name in names:
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


def test_a_folder_of_dlprof_files_is_one_report(report: Report) -> None:
    assert find(FOLDER) == [FOLDER]
    assert find(FOLDER.parent / "dlprof-synthetic" / "dlprof_summary.csv") == [
        FOLDER / "dlprof_summary.csv"
    ]
    assert (report.tool, report.tool_version, report.duration_ns) == ("dlprof", "1.8.0", 1000000)


def test_an_empty_file_in_the_folder_is_a_gap(tmp_path: Path) -> None:
    copied(tmp_path, "dlprof_summary.csv")
    (tmp_path / "dlprof_iteration.csv").touch()
    assert ("dlprof_iteration.csv", "unreadable") in {
        (gap.quantity, gap.state) for gap in parse(tmp_path).gaps
    }


def test_expert_systems_feedback_is_a_diagnostic_and_so_is_rounding(report: Report) -> None:
    said = [entry.text for entry in report.diagnostics]
    rounded = "DLProf rounds percentages to one decimal in CSV: 0.0% means any value below 0.05%"
    assert {"5 ops could use tensor cores. Try AMP", rounded} <= set(said)


def test_a_folder_without_a_report_is_refused_and_hidden_files_beside_one_are_not_named(
    tmp_path: Path,
) -> None:
    with pytest.raises(ReportError, match="no DLProf CSV report"):
        dlprof_csv.parse(tmp_path)
    copied(tmp_path, "dlprof_op_type.csv")
    (tmp_path / ".hidden").touch()
    assert parse(tmp_path).diagnostics == ()
    for number in range(11):
        (tmp_path / f"n{number:02}.txt").touch()
    (said,) = parse(tmp_path).diagnostics
    shown = ", ".join(f"n{number:02}.txt" for number in range(10))
    assert (
        said.text
        == f"read as one DLProf report; perfctl skipped the other files in the folder: {shown}"
    )
