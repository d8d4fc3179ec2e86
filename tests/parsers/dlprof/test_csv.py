"""The DLProf CSV parser on tests/data/dlprof-synthetic (written by hand) and on the
real reports."""

from __future__ import annotations

import csv
import shutil
from collections import Counter
from pathlib import Path

import pytest

from perfctl.parsers import ReportError, find, parse
from perfctl.parsers.dlprof import csv as dlprof_csv
from perfctl.records.report import Report, Summary

FOLDER = Path(__file__).resolve().parents[2] / "data" / "dlprof-synthetic"


@pytest.fixture(scope="module")
def report() -> Report:
    return parse(FOLDER)


def figures(report: Report) -> dict[str, Summary]:
    return {figure.name: figure for figure in report.summaries}


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


def test_the_1_8_0_folder_has_its_operations_once(reports: Path) -> None:
    found = parse(reports / "dlprof" / "odema_pytorch" / "no_relu")
    assert len(list(found.operations)) == figures(found)["All Ops: All ops: # Ops"].value == 32
    assert (
        sum(op.cpu_ns or 0 for op in found.operations)
        == figures(found)["All Ops: All ops: CPU Time"].value
    )
    assert (
        sum(op.device_ns or 0 for op in found.operations)
        == figures(found)["All Ops: All ops: GPU Time"].value
    )
    launches = Counter(
        (kernel.layer, kernel.direction, kernel.layer_source) for kernel in found.kernels
    )
    forward = {
        "Conv2d_1": 24,
        "Conv2d_2": 22,
        "dummy_network": 2,
        "Linear_3": 1,
        "Linear_4": 1,
        "Linear_5": 1,
    }
    assert launches == {
        (layer, "forward", "operation"): number for layer, number in forward.items()
    }


def test_the_1_7_0_summary_has_the_right_utilisation(reports: Path) -> None:
    found = parse(reports / "dlprof" / "chelseajohn_pytorch")
    assert figures(found)["GPU Utilization"].value == 0.1
    assert figures(found)["Tensor Core Kernel Utilization"].value == 35.4
    assert found.environment["cudnn"] == "8.3.0"
    assert found.tool_version == "1.7.0"
    assert [device.name for device in found.devices if device.kind == "gpu"] == [
        "NVIDIA A100-SXM4-40GB"
    ] * 4


def test_the_tensorflow_detail_report_has_every_operation(reports: Path) -> None:
    path = reports / "dlprof" / "tf1_v100" / "tf_keras_v1_detailed.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file.readlines()[1:]))
    found = list(parse(path).operations)
    assert [(op.name, op.calls) for op in found] == [
        (row["Op Name"], int(row["No. Calls"])) for row in rows
    ]
    assert sum(op.device_ns or 0 for op in found) == sum(
        int(row["Total GPU Time (ns)"]) for row in rows
    )
    assert [path.name for path in find(reports / "dlprof" / "tf1_v100")] == ["tf1_v100"]


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
